"""The tool that an agent registers to read old tool results back: ``retrieve_previous_sources``.

Layer 4. It is bound to one conversation by whoever makes it; a model passes ids and a cursor, never a scope, and
nothing that it passes raises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from langchain_core.tools import StructuredTool, ToolException
from pydantic import BaseModel, Field

from convstore.exceptions import InvalidInputError, StoreError, SyncUnsupportedError
from convstore.models import SourcePage
from convstore.stubs import RETRIEVAL_TOOL

__all__ = ["MOST_PAGE_TOKENS", "PAGE_TOKENS", "ReadBack", "ReadBackSync", "RetrieveArguments", "make_retrieval_tool"]

PAGE_TOKENS = 4_000
MOST_PAGE_TOKENS = 16_000
_FEWEST_PAGE_TOKENS = 100

_DESCRIPTION = (
    "Read the full content of earlier tool results of this conversation, which history shows shortened. "
    "Pass tool_message_ids as the shortened results name them. A long result comes page by page: "
    "call again with the same ids and the cursor of the last line."
)


class ReadBack(Protocol):
    """Gives one page: text for the model, values for the program."""

    def __call__(self, ids: Sequence[str], cursor: str, page_tokens: int) -> Awaitable[tuple[str, SourcePage]]:
        """Read the page of some messages that a cursor names."""


class ReadBackSync(Protocol):
    """Gives one page to a sync caller."""

    def __call__(self, ids: Sequence[str], cursor: str, page_tokens: int) -> tuple[str, SourcePage]:
        """Read the page of some messages that a cursor names."""


class RetrieveArguments(BaseModel):
    """What a model passes."""

    tool_message_ids: list[str] = Field(description="Ids of tool messages, as shortened results name them.")
    cursor: str = Field(default="", description="From the last line of the page before; empty for the first page.")


def make_retrieval_tool(
    read_back: ReadBack, *, read_back_sync: ReadBackSync, page_tokens: int = PAGE_TOKENS
) -> StructuredTool:
    """A LangChain tool, async and sync; its content is text for the model, its artifact a `SourcePage`.

    A store that can not answer makes a tool message with ``status="error"``; arguments of the wrong type too.

    Args:
        read_back: Reads a page of the conversation that the tool is bound to.
        read_back_sync: The same for a sync caller.
        page_tokens: Size of a page.

    Raises:
        InvalidInputError: `page_tokens` out of bounds.
    """
    if type(page_tokens) is not int or not _FEWEST_PAGE_TOKENS <= page_tokens <= MOST_PAGE_TOKENS:
        raise InvalidInputError(
            f"page_tokens is a whole number from {_FEWEST_PAGE_TOKENS} to {MOST_PAGE_TOKENS}, not {page_tokens!r}"
        )

    async def retrieve(tool_message_ids: list[str], cursor: str = "") -> tuple[str, SourcePage]:
        with _told_to_the_model():
            return await read_back(tool_message_ids, cursor, page_tokens)

    def retrieve_sync(tool_message_ids: list[str], cursor: str = "") -> tuple[str, SourcePage]:
        with _told_to_the_model():
            return read_back_sync(tool_message_ids, cursor, page_tokens)

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


@contextmanager
def _told_to_the_model() -> Iterator[None]:
    """A store that can not answer is told to the model; how the tool is used is told to the developer."""
    try:
        yield
    except SyncUnsupportedError:
        raise
    except StoreError as error:
        raise ToolException(f"The store can not answer now: {error}") from error
