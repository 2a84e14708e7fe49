"""The handle of one conversation: what an agent backend calls.

Layer 5. A handle is bound to its scope and makes no I/O when made; it keeps nothing, so one can be made for each
request. What it promises is kept by the services.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice
from types import EllipsisType
from typing import Any, Literal

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.tools import StructuredTool

from convstore.append.inputs import copy_ids, items_of, whole_messages
from convstore.append.turn import turn_messages
from convstore.exceptions import InvalidInputError, TooManyIdsError
from convstore.readback.request import Request
from convstore.services import ServiceHost, read_back
from convstore.sources.source import MAX_SOURCES, read_ids
from convstore.tools.retrieval import PAGE_TOKENS, check_page_tokens, make_retrieval_tool
from convstore.values.models import (
    Compaction,
    ConversationInfo,
    ErasureReceipt,
    History,
    Receipt,
    SourcePage,
    StoredMessage,
    Summary,
    ToolRecord,
    Turn,
)
from convstore.values.policy import HistoryPolicy, check_policy
from convstore.values.scope import Scope, check_choice, check_id, check_ids, check_number

__all__ = ["Conversation"]


class Conversation:
    """One conversation of a store, found by its scope.

    Another scope's data answers exactly like missing data. A scope without messages is an empty conversation; nothing
    has to be created.
    """

    def __init__(self, store: ServiceHost, scope: Scope) -> None:
        self._store, self._scope = store, scope
        self._services = store.services

    def __repr__(self) -> str:
        return f"Conversation({', '.join(f'{key}={value!r}' for key, value in self._scope)})"

    @property
    def store(self) -> Any:
        """The store that it is in."""
        return self._store

    @property
    def scope(self) -> dict[str, str]:
        """Whose conversation it is."""
        return dict(self._scope)

    async def append(
        self,
        messages: BaseMessage | dict[str, Any] | Iterable[BaseMessage | dict[str, Any]],
        *,
        key: str | None = None,
        unencodable: Literal["raise", "omit"] = "raise",
        on_source_clash: Literal["raise", "renumber"] = "raise",
        resent: Literal["skip", "raise"] | None = None,
    ) -> Receipt:
        """Add messages to the log: all of them or none, once, in order, for ever.

        Afterwards every reader sees them, together and after everything appended before. Appending the same ids again
        writes only what is missing, so a call that failed is repeated as it is. One command; two at most once in 10 s.

        Args:
            messages: Messages, or dicts of OpenAI, Anthropic or LangChain. One without an id gets one, on your object.
            key: Makes the ids of dicts without one, so that a repeated request makes the same: a request id.
            unencodable: "omit" replaces values of unknown types by a marker, which the receipt names.
            on_source_clash: "renumber" gives sources that came with a taken number the next free one; the message
                stays as it is, receipt and `Source.given_id` tell both. One command more when numbers may be taken.
            resent: For clients that send the conversation again, without ids: a batch with two or more human messages
                is compared with the live log. "skip" appends only what follows the messages that are known, which get
                the log's ids; "raise" refuses a batch that begins with known ones. One command more.

        Raises:
            InvalidMessageError: A message is refused; says which one and which field.
            UnencodableError: An artifact holds a value of a type that cannot be given back equal.
            BatchTooLargeError: More than 1 MB in one batch, large tool results and parts of messages apart.
            ContentConflictError: An id is in the log with other content.
            MessageRewoundError: A message is in the log but was rewound.
            SourceIdClashError: A source came with a number that is taken; see `on_source_clash`.
            ResentHistoryError: The beginning of the batch is known; says how much (``resent="raise"``).
            HistoryDivergedError: A batch that is compared is not the log's history: edited, regenerated, incomplete.
            StoreUnavailableError: No answer from the server; repeat the call.
        """
        whole = whole_messages(given := items_of(messages), key=key)
        receipt = await self._append(whole, unencodable, on_source_clash, resent=resent)
        copy_ids(whole, given)
        return receipt

    async def _append(
        self, whole: Sequence[BaseMessage], unencodable: str, clash: str, *, turn: str = "", resent: str | None = None
    ) -> Receipt:
        check_choice(unencodable, "raise", "omit", name="unencodable")
        check_choice(clash, "raise", "renumber", name="on_source_clash")
        check_choice(resent, None, "skip", "raise", name="resent")
        omit, renumber = unencodable == "omit", clash == "renumber"
        services = await self._services()
        if resent:
            return await services.resender.append(
                self._scope, whole, skip=resent == "skip", omit=omit, renumber=renumber
            )
        return await services.writer.append(self._scope, whole, turn=turn, omit=omit, renumber=renumber)

    async def append_turn(
        self,
        turn_id: str,
        *,
        human: str | HumanMessage | dict[str, Any] | None = None,
        messages: BaseMessage | dict[str, Any] | Iterable[BaseMessage | dict[str, Any]] = (),
        key: str | None = None,
        unencodable: Literal["raise", "omit"] = "raise",
        on_source_clash: Literal["raise", "renumber"] = "raise",
    ) -> Receipt:
        """Add a turn, or go on with it: afterwards it begins with the human message and exactly these messages.

        The human message gets `turn_id` as its id, so `turns` and `get_turn` know the turn by it, and a message without
        an id gets one made from `turn_id` and its place. So a request that is made again, by anyone, writes nothing; of
        several answers to one question one is stored, and none ends up in another turn. Else as `append`; one command
        too, three or four if another process appended the question or a part of the turn is there.

        Args:
            turn_id: A request id, say.
            human: The question; None if it was appended before.
            messages: What follows it, from the first message on; calls need not have their results yet.
            key: Makes ids in place of `turn_id`: another answer, after a `rewind` of the first, needs ids of its own.
            unencodable: As in `append`.
            on_source_clash: As in `append`.

        Raises:
            UnknownMessageError: No `human` was given, and the question is not in the log.
            TurnConflictError: The turn holds other messages, or a later one was begun; nothing was written.
            ContentConflictError: A message of the turn is in the log with other content.
        """
        whole = turn_messages(turn_id, human=human, messages=messages, key=key)
        return await self._append(whole, unencodable, on_source_clash, turn=turn_id)

    async def reserve_source_ids(self, number: int) -> range:
        """Source ids that the store gives to nobody else, in any process: for a tool that numbers its sources itself.

        The sources then carry them as ``source_id``. Ids that stay unused are never given out again. A tool that brings
        numbers of its own may come with the same ones: wrap it with ``number_sources``. One command.

        Args:
            number: How many, 1 to 1,000.
        """
        check_number(number, name="number", least=1, most=MAX_SOURCES)
        services = await self._services()
        return await services.writer.reserve(self._scope, number)

    async def find_shown_sources(self, texts: Sequence[str]) -> list[int | None]:
        """For each text the id of the source under which it was first shown, None if it was not, as far as is known.

        Known are the newest 200 different texts. So a tool can say "already shown as [4]". No command when warm.
        """
        if isinstance(texts, str) or not isinstance(texts, Sequence) or not all(type(text) is str for text in texts):
            raise InvalidInputError("texts is a list of str")
        services = await self._services()
        return await services.writer.find_shown(self._scope, texts)

    async def load_history(self, policy: HistoryPolicy | None = None) -> History:
        """The view for the next model call: valid for any provider, stable, within the budget.

        Old tool results are stubs, the turn in progress is whole. The same log and policy give the same messages. Time
        and bytes do not grow with the conversation: one round trip when warm, two when cold, one more for large
        results of the turn in progress that another process appended.

        Args:
            policy: What the view may hold; None takes the store's.

        Raises:
            InvalidInputError: Not a policy, or one that summarises (``before_load``) and the store has no summarizer.
            CorruptDocumentError: A stored document is damaged; names it.
            StoreUnavailableError: No answer from the server.
        """
        chosen = check_policy(policy) or self._store.policy
        services = await self._services()
        history = await services.loader.load(self._scope, chosen)
        if chosen.compact == "before_load" and services.compactor.may_be_due(history):
            compaction = await services.compactor.compact_in_time(self._scope)
            if compaction.status == "done":
                history = await services.loader.load(self._scope, chosen)
            return history.model_copy(update={"compaction": compaction})
        return history

    async def compact(self, *, force: bool = False) -> Compaction:
        """Summarise old turns now, if the store's summarizer says that it is time.

        Afterwards views have the summary in their place; the messages stay in the log, and `expand_summary` gives
        them. A summary stands for all messages from its first to its last ordinal, and each of them was shown to the
        summarizer as views show it, or stands word for word beside it. Two workers never both summarise; if the
        summarizer fails, or its summary saves nothing, views are as before, and the next try waits. Never raises for
        what the summarizer does.

        Args:
            force: Even if little would be saved, or the last attempt failed a moment ago.

        Raises:
            InvalidInputError: The store has no summarizer.
        """
        services = await self._services()
        return await services.compactor.compact(self._scope, force=force)

    async def summaries(self) -> list[Summary]:
        """Every summary that was made of this conversation, oldest first, with its range and what it stands for."""
        services = await self._services()
        return await services.kept.all(self._scope)

    async def expand_summary(self, version: int) -> list[BaseMessage]:
        """The messages that a summary stands for, in order, each equal to what was appended.

        Raises:
            InvalidInputError: There is no such summary.
        """
        services = await self._services()
        return await services.kept.expand(self._scope, version)

    async def undo_compaction(self) -> bool:
        """Take the current summary back: views show the one before it, or the messages; False if there is none."""
        services = await self._services()
        return await services.kept.undo(self._scope)

    async def get_tool_messages(self, ids: Sequence[str]) -> list[ToolRecord]:
        """Messages in full, equal to what was appended, in the order asked for; unknown ids are left out.

        Any message id works, not only those of tool results. One command, and one more for each append that large
        results came with.

        Raises:
            TooManyIdsError: More than 200 ids.
        """
        wanted = check_ids(ids, name="ids")
        services = await self._services()
        return await services.records.get(self._scope, wanted)

    async def messages(self) -> AsyncIterator[BaseMessage]:
        """The log itself, in order, each message equal to what was appended; reads as it goes.

        Rewound messages are in the log too; `turns` leaves them out.
        """
        services = await self._services()
        async for _, _, message in services.reader.iterate(self._scope):
            yield message

    async def turns(
        self,
        *,
        after: int | None = None,
        before: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[Turn]:
        """Whole turns in order, each message equal to what was appended, rewound ones left out; reads as it goes.

        Go on with an export with `turn.last` of the last turn as `after`, further back with `turn.first` as `before`.

        Args:
            after: Only turns that begin behind this ordinal.
            before: Only turns that begin before this ordinal.
            limit: At most this many turns; None for all.
            newest_first: In the opposite order, read from the end.
        """
        services = await self._services()
        found = services.turns.read(self._scope, after=after, before=before, limit=limit, newest_first=newest_first)
        async for turn in found:
            yield turn

    async def get_turn(self, turn_id: str) -> Turn | None:
        """The turn whose first message has this id; None if there is none, or it was rewound. 3 or 4 commands."""
        check_id(turn_id, name="turn_id")
        services = await self._services()
        return await services.turns.get(self._scope, turn_id)

    async def list_messages(
        self, *, before: int | None = None, after: int | None = None, limit: int = 50, full: bool = False
    ) -> list[StoredMessage]:
        """Messages of the log by place, oldest first, for a user interface: the last ones if nothing else is asked.

        Scroll back with the lowest ordinal of the page as `before`, and forth with the highest as `after`.

        Args:
            before: Only messages with a lower ordinal, the nearest ones.
            after: Only messages with a higher ordinal, the nearest ones.
            limit: At most this many messages, up to 1,000.
            full: Each message as appended; else tool results as stubs, and images, audio and files as placeholders.

        Raises:
            InvalidInputError: Both `before` and `after`, or a number out of bounds.
        """
        services = await self._services()
        return await services.records.page(self._scope, before=before, after=after, limit=limit, full=full)

    async def annotate(self, message_id: str, /, **values: Any) -> None:
        """Say something of a message: feedback of a user, a label, a note of an audit. Kept beside the log.

        Values of the same names are replaced, None removes one, others stay. `list_messages` and `annotations` give
        them back; no model sees them. Three commands.

        Args:
            message_id: Any message, a rewound one too.
            values: What the store can encode: at most 100 for a message, 100,000 characters each, 1 MB in all.

        Raises:
            UnknownMessageError: No message of this conversation has the id.
            UnencodableError: A value of a type that cannot be given back equal.
        """
        check_id(message_id, name="message_id")
        services = await self._services()
        await services.annotator.annotate(self._scope, message_id, values)

    async def annotations(self, message_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What was said of some messages with `annotate`, by message id; those without annotations are left out."""
        wanted = check_ids(message_ids, name="message_ids")
        services = await self._services()
        return await services.annotator.get(self._scope, wanted)

    async def rewind(self, *, before: str) -> int:
        """Take a message and all behind it out of views and listings, to edit the question or ask for another answer.

        They stay in the log: `messages`, `get_tool_messages` and `get_sources` still give them, and `undo_rewind`
        brings them back. What is appended next follows the message before. Gives how many messages left; 0 if this
        one had left already, so a call that failed is repeated as it is. Atomic; 7 commands.

        Args:
            before: Id of the first message to leave.

        Raises:
            UnknownMessageError: No message of this conversation has the id.
        """
        check_id(before, name="before")
        services = await self._services()
        return await services.rewinder.rewind(self._scope, before)

    async def undo_rewind(self, *, before: str | None = None) -> int:
        """Take the last rewind back: views and listings are what they were before it.

        What was appended since leaves them in its turn and stays in the log. Gives how many messages came back; 0 if
        there is nothing to take back. Earlier rewinds are taken back by further calls.

        Args:
            before: Id of a message that the last rewind took away, such as the one that `rewind` was given. If it is
                back already nothing happens, so a call that failed is repeated as it is; without it look first.

        Raises:
            UnknownMessageError: No message of this conversation has the id.
            InvalidInputError: The message did not leave with the last rewind.
        """
        if before is not None:
            check_id(before, name="before")
        services = await self._services()
        return await services.rewinder.undo(self._scope, before)

    async def info(self) -> ConversationInfo:
        """Title, metadata, dates and exact counts; for a scope without a conversation zeros and no dates."""
        services = await self._services()
        return await services.directory.info(self._scope)

    async def update(
        self, *, title: str | EllipsisType | None = ..., metadata: dict[str, Any] | EllipsisType = ...
    ) -> None:
        """Set title or metadata, or both; what is not given stays. Creates the conversation if there is none."""
        services = await self._services()
        await services.directory.update(self._scope, title=title, metadata=metadata)

    async def delete(self) -> ErasureReceipt:
        """End this conversation for ever and remove everything in it; the scope then begins a new, empty one.

        Messages that other processes append at the same moment are removed with it. Nothing happens if there is none.
        A call that failed or was killed is repeated as it is. Gives what was removed.
        """
        services = await self._services()
        return await services.retention.delete(self._scope)

    async def get_sources(
        self,
        source_ids: Iterable[int] | str = (),
        *,
        tool_message_ids: Sequence[str] = (),
        find: str = "",
        cursor: str | None = None,
        page_tokens: int = PAGE_TOKENS,
    ) -> SourcePage:
        """Sources by their numbers, or all those of some tool messages, in the order asked for, page by page.

        The pages of a source, one after the other, are its whole text. Unknown and foreign ids are named in
        ``not_found``. Two commands for a source, which read only the chunks of its result that hold it.

        Args:
            source_ids: Numbers, a range, or a text such as stubs show: "3, 11-20".
            tool_message_ids: Ids of tool messages.
            find: Only the passages around this text, in any case.
            cursor: ``next_cursor`` of the page before, given with the same ids.
            page_tokens: Size of a page, 100 to 16,000.

        Raises:
            InvalidInputError: Ids or size that cannot be.
            InvalidCursorError: A cursor that this call did not give.
        """
        request = Request(
            tool_message_ids=check_ids(tool_message_ids, name="tool_message_ids"),
            source_ids=_source_ids(source_ids),
            find=find,
            cursor="" if cursor is None else cursor,
            page_tokens=check_page_tokens(page_tokens),
        )
        services = await self._services()
        return await services.pager.sources(self._scope, request)

    def retrieve_previous_sources_tool(self, *, page_tokens: int = PAGE_TOKENS) -> StructuredTool:
        """The tool that brings full content back, bound to this conversation: register it with your agent.

        Args:
            page_tokens: Size of a page, 100 to 16,000.
        """
        return make_retrieval_tool(lambda _config: read_back(self._store, self._scope), page_tokens=page_tokens)


def _source_ids(given: Iterable[int] | str) -> list[int]:
    """Numbers of sources that a caller asks for.

    Raises:
        InvalidInputError: Not numbers, or too many.
    """
    try:
        numbers = read_ids(given) if isinstance(given, str) else list(islice(given, MAX_SOURCES + 1))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"source_ids are numbers or a text such as '3, 11-20': {error}") from error
    for number in numbers:
        check_number(number, name="a source id", least=1, most=2**53 - 1)
    if len(numbers) > MAX_SOURCES:
        raise TooManyIdsError(f"more than {MAX_SOURCES:,} source ids in one call; ask for fewer at a time")
    return numbers
