"""The tool by which an agent reads old tool results back: ``retrieve_previous_sources``.

The application or the run's configuration determines the conversation, never the model. The tool never raises on a
model's arguments, and accepts them in any unambiguous form.

Null and empty values are ignored. A single value is a list of one, and a list may be written as text. A number is a
source. Common other names of an argument are accepted, and unknown names are listed in the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import ToolException
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.json_schema import SkipJsonSchema

from convstore.messages.tokens import weight
from convstore.readback.names import meaning_of
from convstore.readback.passages import in_line
from convstore.readback.request import MAX_CHARACTERS, Request, check_page_tokens, quoted
from convstore.runtime.loop_thread import BothWays
from convstore.sources.source import MAX_SOURCES
from convstore.sources.stub import PAGE_TOKENS, RETRIEVAL_TOOL
from convstore.tools.agent_tool import AgentTool, agent_tool
from convstore.values.scope import MAX_ID_BYTES, MAX_IDS, check_flags

ARGUMENTS = {
    "tool_message_ids": (
        "tool_message_id message_ids message_id ids id tool_call_ids tool_call_id results result"
    ),
    "source_ids": "source_id sources source numbers number",
    "find": "query q search text words keywords",
    "cursor": "page next_cursor next",
}
"""The arguments, and other names under which models pass them."""
_EXPECTED = {
    "tool_message_ids": 'a list of ids as shortened results show them, such as ["call_7"]',
    "source_ids": 'numbers of sources, such as [3, 11], or a text such as "3, 11-20"',
    "find": "a text to look for",
    "cursor": "the text from the last line of the page before",
}
_KNOWN = {name for parameter, others in ARGUMENTS.items() for name in (parameter, *others.split())}
_FIND_CHARACTERS = 400
_NUMBERS_CHARACTERS = 4_000
"""Maximum number of characters read of a text that names sources; a thousand numbers fit."""
_MAX_ITEMS = 20_000
_ERROR_CHARACTERS = 400
_LARGEST = 10**15
_FIRST_PAGE = frozenset({"", "0", "1", "none", "null", "first", "start", "undefined"})
_NO_PAGES = (
    "There are no page numbers: to read on, pass the cursor of the last line of a page, alone."
)


def read_arguments(given: Mapping[str, Any], page_tokens: int) -> Request:
    """Parse a model's arguments into a request, limited to one call's maximum, with remarks about ignored parts.

    Raises:
        ToolException: An argument has a value of a wrong kind; the message names the expected one.
    """
    said = {name: list(_items(given, name)) for name in ARGUMENTS}
    problems = [
        f"{name}: expected {_EXPECTED[name]}, not {_kind(unclear[0])}."
        for name, items in said.items()
        if (unclear := [item for item in items if not _is_clear(name, item)])
    ]
    if problems:
        raise ToolException(" ".join(problems)[:_ERROR_CHARACTERS])
    ids, numbers = _named_ids(said)
    find = _texts(said["find"])
    cursor = _texts(said["cursor"])
    request = Request(
        list(ids), list(numbers), " ".join(find), _cursor("".join(cursor[:1])), page_tokens
    )
    return _limit_request(request, [in_line(name, 40) for name in given if name not in _KNOWN])


def _named_ids(said: Mapping[str, Sequence[Any]]) -> tuple[dict[str, None], dict[int, None]]:
    """Return the ids and the source numbers that a model passed, each once."""
    ids: dict[str, None] = {}
    numbers: dict[int, None] = {}
    parts = chain(said["tool_message_ids"], chain.from_iterable(map(_numbers, said["source_ids"])))
    for part in parts:
        if not isinstance(part, str):
            numbers[int(part)] = None
        elif part:
            ids[part[: MAX_ID_BYTES + 1]] = None  # a longer text is not a valid id
        if len(numbers) > MAX_SOURCES:
            break
    return ids, numbers


def _texts(items: Sequence[Any]) -> list[str]:
    return [text for item in items if (text := str(item).strip())]


def _limit_request(request: Request, unknown: Sequence[str]) -> Request:
    """Limit a request to one call's maximum, with remarks; a cursor replaces the other arguments."""
    find = request.find[:_FIND_CHARACTERS]
    cursor = request.cursor
    while weight(quoted(find)) > request.characters // 8:
        find = find[: len(find) * 7 // 8]
    texts = request.tool_message_ids
    numbers = request.source_ids
    named = (
        f"{'s' * (len(unknown) > 1)}: {', '.join(unknown[:5])}. There are {', '.join(ARGUMENTS)}."
    )
    remarks = {
        f"Unknown argument{named}": unknown,
        _NO_PAGES: cursor not in _FIRST_PAGE and cursor.isdigit(),
        f"Only the first {MAX_IDS} tool_message_ids are read.": len(texts) > MAX_IDS,
        f"Only the first {MAX_SOURCES} source_ids are read.": len(numbers) > MAX_SOURCES,
        f"Only the first {len(find)} characters of find are looked for.": len(request.find)
        > len(find),
    }
    said = [remark for remark, applies in remarks.items() if applies]
    if cursor not in _FIRST_PAGE and not cursor.isdigit():
        return Request.continued(
            cursor, page_tokens=request.page_tokens, remarks=said[: bool(unknown)]
        )
    return Request(
        texts[:MAX_IDS], numbers[:MAX_SOURCES], find, page_tokens=request.page_tokens, remarks=said
    )


def _items(given: Mapping[str, Any], name: str) -> Iterator[Any]:
    """Yield the values of an argument under any of its names: the items of lists, and single values."""
    for alias in (name, *ARGUMENTS[name].split()):
        value = given.get(alias)
        if name == "tool_message_ids" and isinstance(value, str):
            value = _parse_list(value)
        items = value[:_MAX_ITEMS] if isinstance(value, list | tuple) else [value]
        yield from (item for item in items if item is not None)


def _is_clear(name: str, value: Any) -> bool:
    """Return True for a text, and for a number that is valid for this argument."""
    if isinstance(value, str) or type(value) not in (int, float):
        return isinstance(value, str)
    if name in ("find", "cursor"):
        return type(value) is float or bool(abs(value) < _LARGEST)
    return bool(0 <= value < _LARGEST and value == int(value))


def _numbers(given: Any) -> Iterator[Any]:
    """Yield a number itself, or the numbers in a text, with other parts of the text as ids."""
    if not isinstance(given, str):
        yield given
        return
    parts = given[:_NUMBERS_CHARACTERS].strip("[]() ").replace(";", ",").split(",")
    for part in parts[:-1] if len(given) > _NUMBERS_CHARACTERS and len(parts) > 1 else parts:
        yield from meaning_of(part).numbers or (part.strip(),)


def _parse_list(text: str) -> Sequence[Any]:
    """Parse a list that is written as JSON or separated by commas."""
    if text.lstrip()[:1] == "[" and len(text) <= MAX_IDS * MAX_ID_BYTES * 2:
        try:
            return list(json.loads(text))
        except (ValueError, RecursionError):
            pass
    return [part.strip() for part in text.split(",", MAX_IDS + 1)]


def _cursor(said: str) -> str:
    """Return a cursor, which may be inside the whole last line of a page."""
    _, is_line, rest = said[: 2 * MAX_CHARACTERS].partition('cursor="')
    if is_line:
        return rest.partition('"')[0]
    return said.strip("\"' ") if len(said) <= MAX_CHARACTERS else said[:100]


def _kind(value: Any) -> str:
    """Describe a value that a model passed, in a few words."""
    if type(value) in (bool, float) or (type(value) is int and abs(value) < _LARGEST):
        return json.dumps(value)
    kinds = {dict: "an object", list: "a list", int: "a number of that size"}
    return kinds.get(type(value), "that")


_DESCRIPTION = (
    "Search and read everything that was said earlier in this conversation, also what the history "
    "shortens or leaves out. To search, pass words as find: you get the best passages with their "
    "ids. To read in full, pass tool_message_ids (of any messages) or source_ids; with find, only "
    "passages that match. A page that is not the last one ends with a cursor: call again with it "
    "alone. Without arguments: a list of what can be read."
)


_TEXT = WithJsonSchema({"type": "string"})


class RetrieveArguments(BaseModel):
    """The arguments in the schema for models; any value is accepted under any name, and `read_arguments` parses it."""

    # the docstring is not for models
    model_config = ConfigDict(json_schema_extra=lambda schema: schema.__delitem__("description"))

    tool_message_ids: Annotated[
        Any, WithJsonSchema({"type": "array", "items": {"type": "string"}})
    ] = Field(
        default_factory=list,
        description=(
            "Messages to read in full: ids from shortened results, notes and searches, or "
            'ordinals. Example: ["call_7", "m12"]'
        ),
    )
    source_ids: Annotated[Any, _TEXT] = Field(
        default_factory=str,
        description=(
            'Sources to read in full, as you cite them: numbers and ranges. Example: "3, 11-20"'
        ),
    )
    find: Annotated[Any, _TEXT] = Field(
        default_factory=str,
        description=(
            "Words to search for when you do not know where something was said; with ids, only in "
            'those. Example: "refund deadline"'
        ),
    )
    cursor: Annotated[Any, _TEXT] = Field(
        default_factory=str,
        description=(
            "To read on: the cursor in the last line of a page, without other arguments. "
            'Example: "11@4000"'
        ),
    )
    given: SkipJsonSchema[Any] = ()

    @model_validator(mode="before")
    @classmethod
    def _collect_arguments(cls, given: Any) -> Any:
        """Keep all arguments, under any names, for `read_arguments`."""
        return {"given": dict(given)} if isinstance(given, dict) else given


def make_retrieval_tool(
    read_back_for: Callable[[RunnableConfig], BothWays],
    *,
    page_tokens: int = PAGE_TOKENS,
    artifact: bool = False,
) -> AgentTool:
    """Return the tool, async and sync; its content is for the model, its artifact a `SourcePage`.

    It reads from the conversation that `read_back_for` finds by the configuration of a run. If the store fails, the
    result is a tool message with ``status="error"``. If an argument cannot be understood, the message names it and the
    expected value. With `artifact` it also shows the parts of artifacts that are not sources.
    """
    check_page_tokens(page_tokens)
    check_flags(artifact=artifact)

    def request_of(ids: Any = (), *, given: Any = (), **_: Any) -> Request:
        request = read_arguments({"ids": ids, **dict(given)}, page_tokens)
        return replace(request, artifact=artifact)

    return agent_tool(
        request_of,
        read_back_for,
        name=RETRIEVAL_TOOL,
        description=_DESCRIPTION,
        args_schema=RetrieveArguments,
        response_format="content_and_artifact",
    )
