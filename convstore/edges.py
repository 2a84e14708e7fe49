"""Helpers that `ext`, `transfer` and `cli` share, such as loops that read lists and logs to their end.

They use only the public API; `convstore.integration` has the functions that reach beneath it.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from datetime import datetime
from functools import wraps
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from convstore import Conversation, ConversationStore
from convstore.exceptions import BatchTooLargeError, ConversationDeletedError, InvalidInputError
from convstore.types import Dropped
from convstore.values.list_rows import may_be_since
from convstore.values.models import ConversationInfo, Source, StoredMessage, ToolRecord
from convstore.values.plain import shown_value
from convstore.values.scope import PATH

OWNER: Final = "convstore_owner"
"""Key of a checkpoint's state that names its conversation. A state with this key has its messages in the log."""


_Part = TypeVar("_Part")
_Kind = TypeVar("_Kind")
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")
_PAGE = 200

OnDropped: TypeAlias = Callable[[list[Dropped]], None]
"""Callback that gets the parts of the log that a request cannot carry."""


def report_dropped(dropped: Sequence[Dropped], on_dropped: OnDropped | None) -> None:
    """Call `on_dropped` with the parts that a request cannot carry, each once; do not call it without any."""
    if dropped and on_dropped:
        on_dropped(list(dict.fromkeys(dropped)))


def check_store(store: object) -> None:
    """Raise an InvalidInputError for anything but a `ConversationStore`."""
    if not isinstance(store, ConversationStore):
        raise InvalidInputError(f"store must be a ConversationStore, not {type(store).__name__}")


def check_conversation(chat: object) -> None:
    """Raise an InvalidInputError for anything but a `Conversation`."""
    if not isinstance(chat, Conversation):
        raise InvalidInputError(
            f"chat must come from store.conversation(...), not {type(chat).__name__}"
        )


def check_list(values: Iterable[_Kind], kind: type[_Kind], *, name: str) -> list[_Kind]:
    """Return some values of one type as a list; raise an InvalidInputError for anything else, such as a single one."""
    is_some = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
    found: list[Any] = list(values) if is_some else []
    if not is_some or not all(isinstance(value, kind) for value in found):
        raise InvalidInputError(
            f"{name} must be a list, and each of them a {kind.__name__}, not {shown_value(values)}"
        )
    return found


def collection_of(database: Any, name: str) -> Any:
    """Return a collection of an application's database; raise an InvalidInputError for anything else. No I/O."""
    ConversationStore(database)  # refuses other values, and databases of synchronous clients
    if not isinstance(name, str) or not name:
        raise InvalidInputError(
            f"the name of a collection must be a non-empty str, not {shown_value(name)}"
        )
    return database[name]


def as_mapping(values: object, *, name: str) -> Mapping[str, Any]:
    """Return a mapping unchanged, {} for None; raise an InvalidInputError for anything else."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise InvalidInputError(f"{name} must be a dict, not {shown_value(values)}")
    return values


async def append_in_halves(
    append: Callable[[Sequence[_Part]], Awaitable[object]], batch: Sequence[_Part]
) -> None:
    """Append a batch at once; if it is too large, append its halves in order instead.

    Raises:
        BatchTooLargeError: A single part of the batch is too large.
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
    """Yield the conversations with these scope values, newest first; every conversation if `scope` is empty.

    With `since`, only those that were changed since then. One command for 200 conversations.
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
    """Decorate a read to be repeated once after a ConversationDeletedError; the second one finds an empty conversation.

    A worker learns that another worker deleted a conversation only when a read fails.
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
    """Yield the messages of a log in full, the newest first, in pages of `limit` by `list_messages`."""
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
    """Yield a conversation and all its descendants, the conversations of sub-agents, in depth-first order."""
    yield info
    if info.has_children and info.scope.keys() - {PATH} == set(store.scope_keys):
        for child in await store.conversation(**info.scope).children():
            async with aclosing(with_children(store, child)) as family:
                async for descendant in family:
                    yield descendant


async def find_source(
    chat: Conversation, number: int
) -> tuple[Conversation, ToolRecord, Source] | None:
    """Return a source in full with its message and its conversation, which is `chat` or a child of it; else None."""
    for named in (await chat.get_sources([number])).sources:
        owner = await chat.store.find_conversation(named.child_id) if named.child_id else chat
        if owner is None:
            return None
        [record] = await owner.get_tool_messages([named.tool_message_id])
        whole = next(source for source in record.sources if source.source_id == number)
        return owner, record, whole
    return None
