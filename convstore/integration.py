"""Functions beneath the public API for frameworks, imports, exports and the command line; not for backends.

These rooms import nothing else of the rooms that do the work.

The module is long because it passes every call that an integration may make on to the room that does the work.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from langchain_core.messages import AIMessage, BaseMessage

from convstore.append.formats import from_langchain, is_langchain
from convstore.append.inputs import normalize_messages
from convstore.append.resent import is_history
from convstore.append.resent_history import Decision
from convstore.append.responses import is_answer_item
from convstore.append.trust import SentMessage, Trust, check_trust, read_sent
from convstore.conversation import Conversation
from convstore.conversation.entered import (
    EnteredTurn,
    begun_turn,
    check_not_left,
    find_sessions_by,
    held_turn,
    observed,
)
from convstore.conversation.host import Host, host_of
from convstore.conversation.log import ConversationLog, LogMessage, StoredId, VariantChange
from convstore.conversation.numbering import ResultNumbering
from convstore.conversation.operations import Operation
from convstore.conversation.run_turn import RunTurn
from convstore.exceptions import (
    BatchTooLargeError,
    ConversationDeletedError,
    CorruptDocumentError,
    InvalidInputError,
    SchemaVersionError,
    UnknownMessageError,
)
from convstore.index.texts import Snippets
from convstore.index.words import is_common, query_groups
from convstore.log.facts.event import TurnEvent
from convstore.log.facts.standing import Standing
from convstore.log.turn_record import TurnRecord
from convstore.messages.filing import came_with, without_marks
from convstore.messages.turn_calls import pairs_of
from convstore.mongo.artifact_types import new_codec
from convstore.mongo.collection import closing
from convstore.mongo.driver import close_client, driver_errors, open_client
from convstore.mongo.migrator import Migrator
from convstore.mongo.server_probe import probe_server
from convstore.readback.request import PAGE_TOKENS
from convstore.runtime.background import in_parallel, settle
from convstore.runtime.clock import as_of
from convstore.store import ConversationStore
from convstore.store.agent_tools import retrieve_previous_sources_tool, search_conversations_tool
from convstore.turns.ends import ConversationEnd
from convstore.turns.held import Addition, HeldTurn
from convstore.turns.keeper import Busy, Drafting, TurnKeeper
from convstore.values.append_options import AppendOptions, Columns
from convstore.values.models import (
    ConversationInfo,
    Receipt,
    StateSnapshot,
    StoredMessage,
    TurnState,
)
from convstore.values.reports import ConversationHits
from convstore.values.scope import PATH
from convstore.values.turns import Pause, TurnCall
from convstore.view.provider_rules import fit_for, made_for
from convstore.wire.history import History

__all__ = [
    "PAGE_TOKENS",
    "Busy",
    "ConversationEnd",
    "ConversationLog",
    "Decision",
    "EnteredTurn",
    "HeldTurn",
    "Host",
    "LogMessage",
    "Operation",
    "ResultNumbering",
    "RunTurn",
    "SentMessage",
    "StoredId",
    "Trust",
    "TurnRecord",
    "VariantChange",
    "agent_tools",
    "append_in_halves",
    "append_in_turn",
    "as_of",
    "begun_by_caller",
    "check_session",
    "check_store",
    "check_trust",
    "conversation_id_of",
    "database_with",
    "documents_of",
    "drafting_in_turn",
    "driver_errors",
    "each_conversation",
    "ends_of",
    "entered_by_caller",
    "estimated_count",
    "find_sessions_by",
    "finish_in_turn",
    "fit_for",
    "from_langchain",
    "held_by_caller",
    "hidden_variant",
    "host_of",
    "is_answer_item",
    "is_history",
    "is_langchain",
    "last_seen",
    "log_of",
    "made_for",
    "marks_of",
    "new_codec",
    "newest_first",
    "normalize_messages",
    "observed",
    "open_database",
    "open_turn_of",
    "pairs_of",
    "pause_in_turn",
    "paused_calls",
    "probe_server",
    "read_again",
    "read_current",
    "read_sent",
    "record_of_turn",
    "run_sync",
    "settle",
    "shard_key_indexes",
    "titled",
    "update_state_of",
    "variants_at_places",
    "with_children",
    "with_source",
    "with_split_lists",
]

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")
_Named = TypeVar("_Named", ConversationInfo, ConversationHits)
_PAGE = 200
_ENDS_AT_ONCE = 16


async def append_in_turn(
    chat: Conversation, held: HeldTurn, messages: Sequence[BaseMessage], **how: Any
) -> Receipt:
    """Append messages of an agent to a turn. `how` are options of `Conversation.append`.

    Those that a tool added to its result are marked in the state of the agent, and have a column for it in the log.
    The messages go to the log alone if it does not have the question, or that was rewound: its end then says which
    turn they belong to. The draft of a reply among them is deleted.
    """
    columns = dict[str, Columns]()
    for message in messages:
        if result_id := came_with(message):
            columns[str(message.id)] = Columns(held.record.turn_id, answers=result_id)
    whole = normalize_messages(without_marks(messages))
    options = AppendOptions(columns=columns, **how)
    services = await host_of(chat).services()
    addition = Addition(whole, of_state=True, options=options)
    try:
        receipt = await services.turn_keeper.writes.append(held, addition)
    except UnknownMessageError:
        if held.branch:
            raise
        scope = tuple(chat.scope.items())
        receipt = (await services.writer.append(scope, whole, options=options)).receipt
    if held.drop_draft and any(isinstance(message, AIMessage) for message in whole):
        await held.drop_draft()
        held.drop_draft = None
    return receipt


async def read_again(chat: Conversation, held: HeldTurn) -> None:
    """Read again what the log has of a turn, for example after a rewind."""
    await (await _keeper(chat)).writes.read_again(held)


def check_session(chat: Conversation, turn_id: str | None) -> None:
    """Raise a TurnLostError if this task began within a session of a turn that was left meanwhile."""
    check_not_left(chat.store, tuple(chat.scope.items()), turn_id)


def last_seen(history: History) -> int:
    """Return the last ordinal that a view saw; 0 for an empty log."""
    stamp = history._stamp  # noqa: SLF001 - without the digest of its messages, which takes long
    return stamp([], None).ordinal if stamp else 0


def open_turn_of(history: History) -> str:
    """Return the id of the message with which a view's turn in progress begins; "" if the newest turn is over."""
    return history._open_turn  # noqa: SLF001 - no name for backends, which ask `get_turn`


def check_store(store: object) -> None:
    """Raise an InvalidInputError for anything but a `ConversationStore`."""
    if not isinstance(store, ConversationStore):
        raise InvalidInputError(f"store must be a ConversationStore, not {type(store).__name__}")


async def conversation_id_of(chat: Conversation) -> str:
    """Return the id of a conversation, "" if there is none. No command if this process knows it, else one."""
    services = await host_of(chat.store).services()
    found = await services.reader.find(tuple(chat.scope.items()))
    return found.conversation if found else ""


def agent_tools(
    store: ConversationStore,
    search: Sequence[str],
    *,
    page_tokens: int = PAGE_TOKENS,
    artifact: bool = False,
) -> list[tuple[Any, Callable[[Conversation], Any]]]:
    """Return the tools that read back and search, each with the function that binds it to the conversation of a run.

    Args:
        store: The store.
        search: Names of the scope keys that the searched conversations share; empty for no such tool.
        page_tokens: Size of an answer, 100 to 16,000.
        artifact: Show the model the rest of artifacts, too.
    """

    def reading(chat: Conversation) -> Any:
        return chat.retrieve_previous_sources_tool(page_tokens=page_tokens, artifact=artifact)

    def searching(owner: ConversationStore | Conversation) -> Any:
        return search_conversations_tool(owner, search, page_tokens=page_tokens)

    read = retrieve_previous_sources_tool(store, page_tokens=page_tokens, artifact=artifact)
    return [(read, reading), *([(searching(store), searching)] if search else [])]


def with_split_lists(tool: Any, *, is_chosen: bool) -> Any | None:
    """Return a tool that keeps a list of sources as its artifact; None for one that needs no such change."""
    from convstore.tools.numbering import with_split_lists as split  # noqa: PLC0415 - LangChain's tools load slowly

    return split(tool, is_chosen=is_chosen)


def run_sync(
    chat: Conversation,
    work: Callable[[Conversation], Coroutine[Any, Any, _Result]],
    *,
    instead: str,
) -> _Result:
    """Run work on a conversation for a sync caller, on the twin of its store, which has an event loop of its own.

    Raises:
        SyncUnsupportedError: The store works on the caller's async client; `instead` says what to call.
    """
    scope = chat.scope
    return host_of(chat.store).run_sync(
        lambda twin: work(twin.conversation(**scope)), instead=instead
    )


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


async def record_of_turn(chat: Conversation, turn_id: str) -> TurnRecord | None:
    """Return a turn with its messages in full: as the caller who has entered it knows it, else as the log has it.

    None if the log does not have its question, or that was rewound.
    """
    held = held_by_caller(chat, turn_id)
    if held is not None and held.record.is_asked:
        return held.record
    records = (await host_of(chat).services()).turn_records
    with suppress(InvalidInputError):
        return (await records.read(tuple(chat.scope.items()), turn_id))[0]
    return None


async def update_state_of(
    chat: Conversation, conversation_id: str, changes: dict[str, Any], *, revision: int
) -> StateSnapshot:
    """Update the state only if the scope still has this conversation, else raise a StateConflictError.

    Values that were derived from messages are not stored after the messages were erased.
    """
    states = (await host_of(chat).services()).states
    scope = tuple(chat.scope.items())
    return await states.update(scope, changes, revision, conversation=conversation_id)


async def pause_in_turn(chat: Conversation, held: HeldTurn, pauses: Mapping[str, Pause]) -> None:
    """Record that calls of an agent wait for a person, by the ids of their results; safe to repeat."""
    await (await _keeper(chat)).writes.pause(held, pauses)


async def finish_in_turn(chat: Conversation, held: HeldTurn) -> None:
    """Record that an agent's run ended its turn without an answer, with the result of a tool; safe to repeat."""
    finished = Addition.of_event(TurnEvent("finish", held.record.turn_id))
    writes = (await _keeper(chat)).writes
    await writes.record(held, lambda: finished if held.record.fold.is_done else None)


async def paused_calls(chat: Conversation, turn_id: str) -> list[tuple[TurnCall, Pause]]:
    """Return the calls that an agent's interrupt is about, as they were decided, in order. Two or three commands."""
    if held := held_by_caller(chat, turn_id):
        return held.record.paused
    decisions = (await host_of(chat).services()).decisions
    return await decisions.find_paused(tuple(chat.scope.items()), turn_id)


async def drafting_in_turn(chat: Conversation, held: HeldTurn, text: Callable[[], str]) -> Drafting:
    """Return a context that stores what `text` returns as the draft of a reply, once a second.

    It yields a function that drops the draft, for when the reply was appended.
    """
    return (await _keeper(chat)).drafting(held, text, keeps=True)


def held_by_caller(chat: Conversation, *turn_ids: str | None) -> HeldTurn | None:
    """Return the turn that this context has entered, or its run holds; None for no turn, or another one than these."""
    return held_turn(chat.store, tuple(chat.scope.items()), *turn_ids)


def entered_by_caller(chat: Conversation) -> HeldTurn | None:
    """Return the turn that this context has entered, not one that its run took; None without one."""
    return held_turn(chat.store, tuple(chat.scope.items()), of_run=False)


def begun_by_caller(chat: Conversation, turn_id: str | None) -> HeldTurn | None:
    """Return a turn that this context has entered, though its session was left since; None if it has not."""
    return begun_turn(chat.store, tuple(chat.scope.items()), turn_id)


async def _keeper(chat: Conversation) -> TurnKeeper:
    return (await host_of(chat).services()).turn_keeper


async def hidden_variant(chat: Conversation, state: TurnState) -> tuple[list[BaseMessage], str]:
    """Return the messages of a variant that views do not show yet, and the id of the question that they show instead.

    Nothing if the question was not asked yet. Four commands, or five.
    """
    with suppress(UnknownMessageError):
        variants = (await host_of(chat).services()).variants
        return await variants.hidden(
            tuple(chat.scope.items()), state.turn_id, state.variant_id or state.turn_id
        )
    return [], ""


async def variants_at_places(chat: Conversation, turn_ids: Sequence[str]) -> dict[str, Standing]:
    """Return what stands at the places of some active turns, by turn id; nothing for a turn that is alone there."""
    return await (await _keeper(chat)).variants.at_places(tuple(chat.scope.items()), turn_ids)


def marks_of(query: str) -> Callable[[str], list[tuple[int, int]]]:
    """Return a function that finds the words of a query in a snippet, in any form: start and end of each."""
    groups = query_groups(query)
    return Snippets([group for group in groups if not is_common(group)] or groups).marks


async def ends_of(
    store: ConversationStore, conversations: Sequence[tuple[Mapping[str, str], str]]
) -> list[ConversationEnd]:
    """Return the ends of conversations, which are given by scope and id: the state of the newest turn, and so on.

    One command for each whose turn is over, two or about seven for the others; 16 conversations at a time. The end of
    one that is damaged, or was written by a newer version, is empty.
    """
    ends = (await host_of(store).services()).ends

    async def read(conversation: tuple[Mapping[str, str], str]) -> ConversationEnd:
        scope, id_ = conversation
        chat = store.conversation(**scope)
        try:
            return await ends.read(tuple(chat.scope.items()), id_)
        except (CorruptDocumentError, SchemaVersionError):
            return ConversationEnd()

    return await in_parallel(read, conversations, limit=_ENDS_AT_ONCE)


async def shard_key_indexes(store: ConversationStore, *, create: bool) -> list[str]:
    """Create the indexes by which collections can be sharded, if asked to; return the collections that lacked one."""
    migrator = Migrator(host_of(store).driver, scope_keys=store.scope_keys)
    return await (migrator.add_shard_keys() if create else migrator.missing_shard_keys())


async def titled(store: ConversationStore, conversations: Sequence[_Named]) -> list[_Named]:
    """Return conversations in which the first question stands for a missing title. At most one command.

    The question may have been rewound since. A conversation that begins with an answer has no question.
    """
    nameless = [info.conversation_id for info in conversations if not info.title]
    questions = await (await host_of(store).services()).catalog.first_questions(nameless)
    titles = [info.title or questions.get(info.conversation_id) for info in conversations]
    return [
        info.model_copy(update={"title": title})
        for info, title in zip(conversations, titles, strict=True)
    ]


async def each_conversation(
    store: ConversationStore, scope: Mapping[str, str]
) -> AsyncGenerator[ConversationInfo, None]:
    """Yield the conversations with some scope values, newest first; all without values. One command for 200."""
    cursor: str | None = None
    while True:
        page = await store.list_conversations(
            limit=_PAGE, cursor=cursor, everything=not scope, **scope
        )
        for info in page.conversations:
            yield info
        if (cursor := page.next_cursor) is None:
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


async def with_source(chat: Conversation, number: int) -> tuple[Conversation, str] | None:
    """Return the conversation that has a source, one or a child of it, and the id of its message; None if none has."""
    for source in (await chat.get_sources([number])).sources:
        owner = await chat.store.find_conversation(source.child_id) if source.child_id else chat
        return (owner, source.tool_message_id) if owner else None
    return None


def log_of(chat: Conversation) -> ConversationLog:
    """Return the whole log of a conversation with entries, dates and rewound messages."""
    return ConversationLog(host_of(chat), tuple(chat.scope.items()))


@asynccontextmanager
async def open_database(uri: str, *, default: str) -> AsyncIterator[Any]:
    """Open the database that an address names, or the default one, and close its client at the end."""
    client, database = open_client(uri, default=default)
    try:
        yield database
    finally:
        await close_client(client)


async def database_with(uri: str, name: str, *, default: str) -> str:
    """Return the name of the database that an address names, or the default one, which must have a collection.

    Raises:
        InvalidInputError: The database has no such collection.
    """
    async with open_database(uri, default=default) as database:
        async with driver_errors():
            names = await database.list_collection_names(filter={"name": name})
        if not names:
            raise InvalidInputError(
                f"the database {database.name!r} has no collection {name!r}; "
                "name the database in the address"
            )
        return str(database.name)


async def documents_of(cursor: Any) -> AsyncGenerator[dict[str, Any], None]:
    """Iterate over the documents of a cursor, with the errors of this package."""
    async with closing(cursor) as found:
        while True:
            async with driver_errors():
                document = await anext(found, None)
            if document is None:
                return
            yield document


async def estimated_count(collection: Any) -> int:
    """Return the number of documents of a collection, from its metadata. One command."""
    async with driver_errors():
        return int(await collection.estimated_document_count())
