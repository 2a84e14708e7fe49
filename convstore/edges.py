"""Read lists and logs to their end: what frameworks, transfer and the command line share, on the public API alone.

Nothing here reaches beneath the public API; `convstore.integration` has what does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import wraps
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from convstore import Conversation, ConversationStore
from convstore.exceptions import BatchTooLargeError, ConversationDeletedError, InvalidInputError
from convstore.types import Dropped
from convstore.values.list_rows import may_be_since
from convstore.values.models import ConversationInfo, Source, StoredMessage, ToolRecord
from convstore.values.scope import PATH

OWNER: Final = "convstore_owner"
"""Names the conversation of a checkpoint. A state that has it is one whose messages are in the log."""


_Part = TypeVar("_Part")
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")
_PAGE = 200

OnDropped: TypeAlias = Callable[[list[Dropped]], None]
"""Called with what a request lacks of the log."""


def report_dropped(dropped: Sequence[Dropped], on_dropped: OnDropped | None) -> None:
    """Call a function with what a request lacks, each part once; not if there is nothing."""
    if dropped and on_dropped:
        on_dropped(list(dict.fromkeys(dropped)))


def check_store(store: object) -> None:
    """Raise an InvalidInputError for anything but a `ConversationStore`."""
    if not isinstance(store, ConversationStore):
        raise InvalidInputError(f"store must be a ConversationStore, not {type(store).__name__}")


async def append_in_halves(
    append: Callable[[Sequence[_Part]], Awaitable[object]], batch: Sequence[_Part]
) -> None:
    """Append a batch at once, or in order as several if one append cannot hold it.

    Raises:
        BatchTooLargeError: A single part of it is too large.
    """
    try:
        await append(batch)
    except BatchTooLargeError:
        if len(batch) == 1:
            raise
        half = len(batch) // 2
        for part in (batch[:half], batch[half:]):
            await append_in_halves(append, part)


async def each_conversation(
    store: ConversationStore, scope: Mapping[str, str], *, since: datetime | None = None
) -> AsyncGenerator[ConversationInfo, None]:
    """Yield the conversations with some scope values, newest first; all without values. One command for 200.

    With `since`, those that were changed since then.
    """
    cursor: str | None = None
    while True:
        page = await store.list_conversations(
            limit=_PAGE, cursor=cursor, everything=not scope, **scope
        )
        for info in page.conversations:
            if since is None or (info.updated_at and info.updated_at >= since):
                yield info
        cursor = page.next_cursor
        if cursor is None or not may_be_since(page.conversations[-1], since):
            return


def read_current(
    read: Callable[_Arguments, Coroutine[Any, Any, _Result]],
) -> Callable[_Arguments, Coroutine[Any, Any, _Result]]:
    """Return a read that is repeated once if it finds that the conversation was deleted: it is empty then.

    A worker learns of another one's deletion by the read that fails.
    """

    @wraps(read)
    async def reading(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        try:
            return await read(*args, **options)
        except ConversationDeletedError:
            return await read(*args, **options)

    return reading


async def newest_first(
    chat: Conversation, *, limit: int = _PAGE, **options: Any
) -> AsyncGenerator[StoredMessage, None]:
    """Yield the messages of a log in full, the newest first, by pages of `limit`, each read as by `list_messages`."""
    before: int | None = None
    while page := await chat.list_messages(before=before, limit=limit, full=True, **options):
        for stored in reversed(page):
            yield stored
        before = page[0].ordinal
        if len(page) < limit or before == 1:
            return


async def with_children(
    store: ConversationStore, info: ConversationInfo
) -> AsyncGenerator[ConversationInfo, None]:
    """Yield a conversation, then those of its sub-agents, each with those below it."""
    yield info
    if info.has_children and info.scope.keys() - {PATH} == set(store.scope_keys):
        for child in await store.conversation(**info.scope).children():
            async with aclosing(with_children(store, child)) as family:
                async for descendant in family:
                    yield descendant


async def find_source(
    chat: Conversation, number: int
) -> tuple[Conversation, ToolRecord, Source] | None:
    """Return a source in full with its message and the conversation, one or a child of it, that has it; else None."""
    for named in (await chat.get_sources([number])).sources:
        owner = await chat.store.find_conversation(named.child_id) if named.child_id else chat
        if owner is None:
            return None
        [record] = await owner.get_tool_messages([named.tool_message_id])
        whole = next(source for source in record.sources if source.source_id == number)
        return owner, record, whole
    return None
