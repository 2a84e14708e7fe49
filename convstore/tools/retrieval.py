"""The tool that an agent registers to read old tool results back: ``retrieve_previous_sources``.

The conversation is set by the application or by the run's configuration, never by a model. The tool never raises on a
model's arguments, and reads them leniently, see `RetrieveArguments`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool, ToolException
from pydantic import AfterValidator, BaseModel, Field, ValidationError, WithJsonSchema
from pydantic.v1 import ValidationError as ValidationErrorV1

from convstore.exceptions import StoreError, SyncUnsupportedError
from convstore.messages.tokens import fitting
from convstore.readback.passages import in_line
from convstore.readback.request import PAGE_TOKENS, ReadBack, Request, check_page_tokens
from convstore.sources.source import MAX_SOURCES, read_ids
from convstore.sources.stub import RETRIEVAL_TOOL
from convstore.values.models import SourcePage
from convstore.values.scope import MAX_ID_BYTES, MAX_IDS

_FIND_CHARACTERS = 200
_NUMBERS_CHARACTERS = 4_000
"""Maximum characters read of a text that names sources; a thousand numbers take no more."""
_MAX_ITEMS = 20_000
_ERROR_CHARACTERS = 400
_LARGEST = 10**15

_CURSOR_TEXT = re.compile(r'"([\w.]{1,40}@\d{1,20})"', re.ASCII)

_DESCRIPTION = (
    "Search and read everything that was said earlier in this conversation, also what history shortens or leaves out. "
    "To search, pass words as find: you get the best passages with their ids. "
    "To read in full, pass tool_message_ids (any message ids) or source_ids; with find, only the passages around that "
    "text. A long answer comes page by page: call again with the same arguments and the cursor of its last line. "
    "Without arguments: a list of what can be read."
)


def _message_ids(value: Any) -> list[str | int]:
    """Return the ids that a model passed. Numbers among them are source ids, because no message id is a number."""
    if isinstance(value, str):
        value = _listed(value)
    elif not isinstance(value, list | tuple | None):
        raise ValueError(_not_ids(value))
    found: list[str | int] = []
    for one in _items(value):
        number = _whole_number(one)
        if number is None and not isinstance(one, str):
            raise ValueError(_not_ids(one))
        found += [one if number is None else number] if one != "" else []
    return found


def _source_ids(value: Any) -> list[int]:
    """Return the numbers in a list, a number or a text; at most a few more than one call reads."""
    found: dict[int, None] = {}
    room = _NUMBERS_CHARACTERS
    for one in _items(value):
        if isinstance(one, str):
            found |= _numbers_in(one[:room], is_cut=len(one) > room)
            room -= min(len(one), room)
        elif (number := _whole_number(one)) is not None:
            found[number] = None
        else:
            raise ValueError(_not_numbers(one))
        if len(found) > MAX_SOURCES or not room:
            break
    return list(found)


def _numbers_in(text: str, *, is_cut: bool) -> dict[int, None]:
    found: dict[int, None] = {}
    text = " ".join(text.strip("[]()").replace("\u2013", "-").split()).replace(" -", "-").replace("- ", "-")
    parts = text.replace(";", " ").replace(",", " ").split()
    for part in parts[:-1] if is_cut and len(parts) > 1 else parts:
        try:
            numbers = read_ids(part)
        except ValueError as error:
            raise ValueError(_not_numbers(part)) from error
        if not numbers:
            raise ValueError(_not_numbers(part))
        found |= dict.fromkeys(numbers)
        if len(found) > MAX_SOURCES:
            break
    return found


def _text(value: Any) -> str:
    """Return the text to look for; a number becomes its digits."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if type(value) is float or (type(value) is int and abs(value) < _LARGEST):
        return str(value)
    raise ValueError(f"expected a text to look for, not {_kind(value)}")


def _cursor(value: Any) -> str:
    """Return a cursor, also from the whole last line of a page."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(
            f'expected the text from the last line of the page before, such as "11@4000", not {_kind(value)}'
        )
    said = value[:_FIND_CHARACTERS].strip()
    found = _CURSOR_TEXT.search(said)
    return found[1] if found else said


def _items(value: Any) -> Sequence[Any]:
    """Return the items of a list without nulls; any other value counts as a list of one."""
    values = value if isinstance(value, list | tuple) else [value]
    return [one for one in values[:_MAX_ITEMS] if one is not None]


def _listed(text: str) -> Any:
    """Return the list that a text is in JSON, or that its commas separate."""
    if text.lstrip()[:1] == "[" and len(text) <= MAX_IDS * MAX_ID_BYTES * 2:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    return [one.strip() for one in text.split(",", MAX_IDS + 1)]


def _whole_number(value: Any) -> int | None:
    """Return the source number that a value is; None if it is none."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < _LARGEST else None


def _not_ids(value: Any) -> str:
    return f'expected a list of ids as shortened results show them, such as ["call_7"], not {_kind(value)}'


def _not_numbers(value: Any) -> str:
    return f'expected numbers of sources, such as [3, 11], or a text such as "3, 11-20", not {_kind(value)}'


def _kind(value: Any) -> str:
    """Describe a value that a model passed, in a few words."""
    if isinstance(value, str):
        return f"'{in_line(value, 40)}'"
    if type(value) in (bool, float) or (type(value) is int and abs(value) < _LARGEST):
        return json.dumps(value)
    kinds = {dict: "an object", list: "a list", int: "a number of that size"}
    return kinds.get(type(value), "that")


class RetrieveArguments(BaseModel):
    """The arguments that a model passes; more forms are understood than the schema names.

    Null means the default. One value means a list of one, and the text of a list means the list. A number among message
    ids is a source id; a number to find means its digits. A cursor may be the whole last line of a page.
    """

    tool_message_ids: Annotated[
        Any,
        AfterValidator(_message_ids),
        WithJsonSchema({"type": "array", "items": {"type": "string"}}),
    ] = Field(default=[], description="Ids of messages to read.")
    source_ids: Annotated[
        Any,
        AfterValidator(_source_ids),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
                    {"type": "string"},
                ]
            }
        ),
    ] = Field(default=[], description='Numbers of sources, or a text: "3, 11-20".')
    find: Annotated[Any, AfterValidator(_text), WithJsonSchema({"type": "string"})] = Field(
        default="", description="Words to search for; with ids, the exact text to show."
    )
    cursor: Annotated[Any, AfterValidator(_cursor), WithJsonSchema({"type": "string"})] = Field(
        default="", description="From the last line of the page before."
    )


def make_retrieval_tool(
    read_back_for: Callable[[RunnableConfig], ReadBack], *, page_tokens: int = PAGE_TOKENS
) -> StructuredTool:
    """Return the tool, async and sync; its content is text for the model, its artifact a `SourcePage`.

    It reads from the conversation that `read_back_for` finds by the configuration of a run. If the store fails, the
    result is a tool message with ``status="error"``. If arguments cannot be understood, the message names the argument
    and what is expected.
    """
    check_page_tokens(page_tokens)

    async def retrieve(
        tool_message_ids: Any = (), source_ids: Any = (), find: Any = "", cursor: Any = "", *, config: RunnableConfig
    ) -> tuple[str, SourcePage]:
        read_back = read_back_for(config)
        with reported_to_the_model():
            return await read_back.read(_request(tool_message_ids, source_ids, find, cursor, page_tokens))

    def retrieve_sync(
        tool_message_ids: Any = (), source_ids: Any = (), find: Any = "", cursor: Any = "", *, config: RunnableConfig
    ) -> tuple[str, SourcePage]:
        read_back = read_back_for(config)
        with reported_to_the_model():
            return read_back.read_sync(_request(tool_message_ids, source_ids, find, cursor, page_tokens))

    return StructuredTool.from_function(
        func=retrieve_sync,
        coroutine=retrieve,
        name=RETRIEVAL_TOOL,
        description=_DESCRIPTION,
        args_schema=RetrieveArguments,
        response_format="content_and_artifact",
        handle_tool_error=True,
        handle_validation_error=_what_is_expected,
    )


def _what_is_expected(error: ValidationError | ValidationErrorV1) -> str:
    """Return the message for a model whose arguments cannot be read."""
    problems = [f"{detail['loc'][0]}: {detail['msg']}" for detail in error.errors() if detail["loc"]]
    text = " ".join(f"{one.replace('Value error, ', '', 1)}." for one in problems)
    return text[:_ERROR_CHARACTERS] or "Pass the arguments by their names."


def _request(ids: Any, numbers: Sequence[int], find: str, cursor: str, page_tokens: int) -> Request:
    """Return a model's request, limited to what one call reads, and the remarks about the rest."""
    ids = _message_ids(ids)  # validated already, unless the tool was called with a text alone
    # A longer text is no id; its beginning is reported as not found.
    texts = list(dict.fromkeys(id_[: MAX_ID_BYTES + 1] for id_ in ids if isinstance(id_, str)))
    numbers = list(dict.fromkeys([*(id_ for id_ in ids if not isinstance(id_, str)), *numbers]))
    request = Request(page_tokens=page_tokens)
    is_search = not texts and not numbers
    longest = len(find) if is_search else fitting(find[:_FIND_CHARACTERS], request.characters // 8)
    remarks = {
        f"Only the first {MAX_IDS} tool_message_ids are read.": len(texts) > MAX_IDS,
        f"Only the first {MAX_SOURCES} source_ids are read.": len(numbers) > MAX_SOURCES,
        f"Only the first {longest} characters of find are looked for.": len(find) > longest,
    }
    return Request(
        tool_message_ids=texts[:MAX_IDS],
        source_ids=numbers[:MAX_SOURCES],
        find=find[:longest],
        cursor=cursor,
        page_tokens=page_tokens,
        remarks=[remark for remark, applies in remarks.items() if applies],
    )


@contextmanager
def reported_to_the_model() -> Iterator[None]:
    """Report errors of the store to the model; an error in the tool's use is raised."""
    try:
        yield
    except SyncUnsupportedError:
        raise
    except StoreError as error:
        raise ToolException(f"The store cannot answer now: {error}"[:_ERROR_CHARACTERS]) from error
