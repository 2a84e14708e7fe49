"""Functions beneath the public API for `ext`, `transfer` and `cli`; backends do not need them.

Those three packages may import the inner modules only through this one. `convstore.edges` has the helpers that they
share and that need only the public API.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Sequence,
)
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from convstore.append.condition import TailMoved
from convstore.append.inputs import normalize_messages
from convstore.append.responses import is_answer_item
from convstore.conversation import Conversation
from convstore.conversation.host import host_of
from convstore.conversation.log import ConversationLog, check_fact, renumbered_fact
from convstore.conversation.numbering import ResultNumbering
from convstore.conversation.operations import Operation
from convstore.conversation.run_turn import RunTurn
from convstore.conversation.turn_access import TurnAccess
from convstore.index.texts import Snippets
from convstore.index.words import is_common, query_groups
from convstore.log.changes import LogChanges
from convstore.log.turn_record import TurnRecord
from convstore.mongo.artifact_types import new_codec
from convstore.mongo.collection import closing
from convstore.mongo.driver import close_client, driver_errors, open_client
from convstore.mongo.server_probe import probe_server
from convstore.runtime.background import settle
from convstore.runtime.clock import as_of
from convstore.runtime.retrying import until_written
from convstore.sources.stub import PAGE_TOKENS
from convstore.store import ConversationStore
from convstore.store.agent_tools import retrieve_previous_sources_tool, search_conversations_tool
from convstore.turns.held import HeldTurn
from convstore.values.list_rows import ListRow
from convstore.values.models import StateSnapshot
from convstore.view.provider_rules import fit_for, made_for

__all__ = [
    "ConversationLog",
    "HeldTurn",
    "LogChanges",
    "Operation",
    "ResultNumbering",
    "RunTurn",
    "TailMoved",
    "TurnAccess",
    "TurnRecord",
    "agent_tools",
    "as_of",
    "check_fact",
    "documents_of",
    "driver_errors",
    "fit_for",
    "host_of",
    "is_answer_item",
    "log_of",
    "made_for",
    "marks_of",
    "new_codec",
    "normalize_messages",
    "open_database",
    "probe_server",
    "renumbered_fact",
    "row_of",
    "run_sync",
    "settle",
    "until_written",
    "update_state_of",
]

_Result = TypeVar("_Result")


def agent_tools(
    store: ConversationStore,
    search: Sequence[str],
    *,
    page_tokens: int = PAGE_TOKENS,
    artifact: bool = False,
) -> list[tuple[Any, Callable[[Conversation], Any]]]:
    """Return the retrieval tool and the search tool, each with a function that binds it to one conversation.

    Args:
        store: The store.
        search: Names of the scope keys that the searched conversations share; empty to leave out the search tool.
        page_tokens: Size of a tool's answer in tokens, 100 to 16,000.
        artifact: Also show the model the rest of artifacts.
    """

    def reading(chat: Conversation) -> Any:
        return chat.retrieve_previous_sources_tool(page_tokens=page_tokens, artifact=artifact)

    def searching(owner: ConversationStore | Conversation) -> Any:
        return search_conversations_tool(owner, search, page_tokens=page_tokens)

    read = retrieve_previous_sources_tool(store, page_tokens=page_tokens, artifact=artifact)
    return [(read, reading), *([(searching(store), searching)] if search else [])]


def run_sync(
    chat: Conversation,
    work: Callable[[Conversation], Coroutine[Any, Any, _Result]],
    *,
    instead: str,
) -> _Result:
    """Run work on a conversation for a sync caller, on the twin of its store, which has its own event loop.

    Raises:
        SyncUnsupportedError: The store uses the caller's async client; the error suggests the call `instead`.
    """
    scope = chat.scope
    return host_of(chat.store).run_sync(
        lambda twin: work(twin.conversation(**scope)), instead=instead
    )


async def update_state_of(
    chat: Conversation, conversation_id: str, changes: dict[str, Any], *, revision: int
) -> StateSnapshot:
    """Update the state of a scope only while it has this conversation, else raise a StateConflictError.

    So values that were derived from messages are never stored after the messages were erased.
    """
    states = (await host_of(chat).services()).states
    scope = tuple(chat.scope.items())
    return await states.update(scope, changes, revision, conversation=conversation_id)


def marks_of(query: str) -> Callable[[str], list[tuple[int, int]]]:
    """Return a function that finds the words of a query in a snippet, in any form, as pairs of start and end."""
    groups = query_groups(query)
    return Snippets([group for group in groups if not is_common(group)] or groups).marks


async def row_of(chat: Conversation) -> ListRow:
    """Return the row of a conversation in a list of conversations."""
    [row] = await host_of(chat.store).rows([await chat.info()])
    return row


def log_of(chat: Conversation) -> ConversationLog:
    """Return a handle of the whole log of a conversation, with entries, dates and rewound messages."""
    return ConversationLog(host_of(chat), tuple(chat.scope.items()))


@asynccontextmanager
async def open_database(uri: str, *, default: str) -> AsyncIterator[Any]:
    """Open the database that a URI names, or the database `default`, and close its client at the end."""
    client, database = open_client(uri, default=default)
    try:
        yield database
    finally:
        await close_client(client)


async def documents_of(cursor: Any) -> AsyncGenerator[dict[str, Any], None]:
    """Iterate over the documents of a cursor; driver errors are raised as errors of this package."""
    async with closing(cursor) as found:
        while True:
            async with driver_errors():
                document = await anext(found, None)
            if document is None:
                return
            yield document
