"""The tool that an agent registers to read old tool results back: ``retrieve_previous_sources``.

Layer 4. Whose conversation it reads is said by whoever makes it or by the run's configuration, never by a model, and
nothing that a model passes raises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool, ToolException
from pydantic import BaseModel, Field

from convstore.exceptions import InvalidInputError, StoreError, SyncUnsupportedError
from convstore.models import SourcePage
from convstore.pager import Request
from convstore.sources import read_ids
from convstore.stubs import RETRIEVAL_TOOL

__all__ = [
    "MOST_PAGE_TOKENS",
    "PAGE_TOKENS",
    "SOURCES_PROMPT",
    "ReadBack",
    "RetrieveArguments",
    "check_page_tokens",
    "make_retrieval_tool",
    "sources_prompt",
]

PAGE_TOKENS = 4_000
MOST_PAGE_TOKENS = 16_000
_FEWEST_PAGE_TOKENS = 100
_FIND_CHARACTERS = 200

_DESCRIPTION = (
    "Read the full content of earlier tool results of this conversation, which history shows shortened. "
    "Name tool_message_ids or source_ids as the shortened results do; find shows only the passages around a text. "
    "A long answer comes page by page: call again with the same ids and the cursor of its last line. "
    "Without arguments: what can be read."
)


class ReadBack(NamedTuple):
    """Gives one page of a conversation, text for the model and values for the program, to async and sync callers."""

    read: Callable[[Request], Awaitable[tuple[str, SourcePage]]]
    read_sync: Callable[[Request], tuple[str, SourcePage]]


class RetrieveArguments(BaseModel):
    """What a model passes."""

    tool_message_ids: list[str] = Field(default=[], description="Ids of tool messages.")
    source_ids: list[int | str] | str = Field(default=[], description='Numbers of sources, or a text: "3, 11-20".')
    find: str = Field(default="", description="Show only the passages around this text.")
    cursor: str = Field(default="", description="From the last line of the page before.")


def sources_prompt(tool: str = RETRIEVAL_TOOL) -> str:
    """What a system prompt says of shortened tool results and how to read them, for a tool of this name.

    >>> "retrieve_previous_sources" in sources_prompt()
    True
    """
    return (
        "Tool results of earlier turns are shortened in this history to save context: you see the tool, whether it "
        "succeeded, how many sources it found and their source ids, but not their text. Source ids such as [17] stay "
        f"valid for the whole conversation, so cite them as before. To read a shortened result, call {tool} with its "
        "tool_message_id, or with source_ids to read single sources; a long one comes in pages, so go on with the "
        "cursor. Never answer from a shortened result alone: read it first, or say that you have not read it."
    )


SOURCES_PROMPT = sources_prompt()
"""`sources_prompt` for the tool under its own name; put it into the agent's system prompt."""


def check_page_tokens(page_tokens: int) -> int:
    """The size of a page, once it is sure that it is one.

    Raises:
        InvalidInputError: Not a whole number in bounds.
    """
    if type(page_tokens) is not int or not _FEWEST_PAGE_TOKENS <= page_tokens <= MOST_PAGE_TOKENS:
        raise InvalidInputError(
            f"page_tokens is a whole number from {_FEWEST_PAGE_TOKENS} to {MOST_PAGE_TOKENS}, not {page_tokens!r}"
        )
    return page_tokens


def make_retrieval_tool(
    read_back_for: Callable[[RunnableConfig], ReadBack], *, page_tokens: int = PAGE_TOKENS
) -> StructuredTool:
    """A LangChain tool, async and sync; its content is text for the model, its artifact a `SourcePage`.

    A store that can not answer makes a tool message with ``status="error"``; arguments of the wrong type too.

    Args:
        read_back_for: Gives the conversation to read for the configuration of a run.
        page_tokens: Size of a page.

    Raises:
        InvalidInputError: `page_tokens` out of bounds.
    """
    check_page_tokens(page_tokens)

    async def retrieve(
        config: RunnableConfig,
        tool_message_ids: list[str],
        source_ids: list[int | str] | str,
        find: str = "",
        cursor: str = "",
    ) -> tuple[str, SourcePage]:
        read_back = read_back_for(config)
        with _told_to_the_model():
            return await read_back.read(_request(tool_message_ids, source_ids, find, cursor, page_tokens))

    def retrieve_sync(
        config: RunnableConfig,
        tool_message_ids: list[str],
        source_ids: list[int | str] | str,
        find: str = "",
        cursor: str = "",
    ) -> tuple[str, SourcePage]:
        read_back = read_back_for(config)
        with _told_to_the_model():
            return read_back.read_sync(_request(tool_message_ids, source_ids, find, cursor, page_tokens))

    return StructuredTool.from_function(
        func=retrieve_sync,
        coroutine=retrieve,
        name=RETRIEVAL_TOOL,
        description=_DESCRIPTION,
        args_schema=RetrieveArguments,
        response_format="content_and_artifact",
        handle_tool_error=True,
        handle_validation_error=True,
    )


def _request(ids: list[str], source_ids: list[int | str] | str, find: str, cursor: str, page_tokens: int) -> Request:
    """What a model asks for; tells it what a source id looks like if it does not know.

    Raises:
        ToolException: `source_ids` is not made of numbers.
    """
    text = source_ids if isinstance(source_ids, str) else ",".join(map(str, source_ids))
    try:
        numbers = read_ids(text)
    except ValueError as error:
        raise ToolException(f'{error}; source_ids are numbers, or a text such as "3, 11-20".') from error
    return Request(
        tool_message_ids=ids, source_ids=numbers, find=find[:_FIND_CHARACTERS], cursor=cursor, page_tokens=page_tokens
    )


@contextmanager
def _told_to_the_model() -> Iterator[None]:
    """A store that can not answer is told to the model; how the tool is used is told to the developer."""
    try:
        yield
    except SyncUnsupportedError:
        raise
    except StoreError as error:
        raise ToolException(f"The store can not answer now: {error}") from error
