"""The handle of one conversation, the API of an agent backend.

Creating a handle does no I/O. It holds no state, so each request can create its own; the services do the work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from types import EllipsisType
from typing import Any, Literal

from langchain_core.messages import BaseMessage, HumanMessage

from convstore.append.inputs import copy_ids, items_of, naming_conflicts, whole_messages
from convstore.append.trust import Trust, check_trust
from convstore.append.turn import turn_messages
from convstore.conversation.reader import ConversationReader
from convstore.exceptions import InvalidInputError
from convstore.sources.source import MAX_SOURCES
from convstore.values.models import Compaction, History, Receipt
from convstore.values.policy import HistoryPolicy, check_policy
from convstore.values.reports import ErasureReceipt
from convstore.values.scope import check_choice, check_id, check_number
from convstore.values.stamps import ViewStamp, check_stamp


class Conversation(ConversationReader):
    """One conversation of a store, identified by its scope.

    A scope without messages is an empty conversation; it need not be created. Ids of other scopes are treated exactly
    like unknown ids.
    """

    async def append(
        self,
        messages: BaseMessage | dict[str, Any] | Iterable[BaseMessage | dict[str, Any]],
        *,
        key: str | None = None,
        unencodable: Literal["raise", "omit"] = "raise",
        on_source_clash: Literal["raise", "renumber"] = "raise",
        resent: Literal["skip", "raise"] | None = None,
        accept: Literal["human", "all"] | None = None,
        client_tools: Collection[str] = (),
        strict: bool = False,
        stamp: ViewStamp | None = None,
    ) -> Receipt:
        """Append messages to the log permanently: in order, each once, and all of them or none.

        When the call returns, every reader sees them together, after all earlier messages. The call is idempotent:
        appending the same ids again writes only missing messages, so a failed call can be retried as it is. It takes
        one command, and a second one at most every 10 seconds.

        Args:
            messages: Messages, or dicts in the format of OpenAI, Anthropic or LangChain. A message without an id gets
                one, on the caller's object.
            key: Seed for the ids of dicts without one, such as a request id. A repeated request then gets the same ids.
            unencodable: "omit" replaces values of unknown types by a marker and names them in the receipt.
            on_source_clash: "renumber" gives a source whose number is taken the next free one. The message is
                unchanged; the receipt and `Source.given_id` show both numbers. One more command if numbers may clash.
            resent: For clients that resend the whole conversation without ids. The batch is compared with the active
                log, unless it is one question. "skip" appends only the new messages, and stored ones get the log's ids;
                "raise" rejects a batch that begins with stored messages. One more command.
            accept: With `resent`: "human", the default, takes human messages only. The receipt names those that it
                ignores. "all" takes all, and is for histories that your application makes itself, never for a client's.
            client_tools: With `resent`: names of tools that run on the client. Results of their open calls are taken.
                Set them in your code, never from a request.
            strict: With `resent`: raise an error instead of ignoring messages.
            stamp: ``history.stamp`` of the view that the first AI message written now answers; see `view_at`.

        Raises:
            InvalidInputError: `stamp` is no stamp, or that of another conversation's view.
            InvalidMessageError: A message is invalid; the error names the message and the field.
            UnencodableError: An artifact holds a value of a type that cannot be restored exactly.
            BatchTooLargeError: The batch exceeds 1 MB, not counting large tool results and large parts of messages.
            ContentConflictError: An id is in the log with different content.
            MessageRewoundError: A message is in the log but was rewound.
            SourceIdClashError: The number of a source is taken; see `on_source_clash`.
            ResentHistoryError: The batch begins with stored messages; the error says how many (``resent="raise"``).
            HistoryDivergedError: A question was changed or is missing; with ``accept="all"``, or an answer.
            UntrustedMessageError: The history holds messages that would be ignored (`strict`).
            StoreUnavailableError: The server did not answer; retry the call.
        """
        trust = check_trust(accept, client_tools, strict)
        if resent is None and (accept or client_tools or strict):
            raise InvalidInputError('accept, client_tools and strict are for histories of clients; add resent="skip"')
        whole = whole_messages(given := items_of(messages), key=key)
        with naming_conflicts(whole, key=key):
            receipt = await self._append(whole, unencodable, on_source_clash, resent=resent, trust=trust, stamp=stamp)
        if resent:
            copy_ids(whole, given)  # messages that were in the log already have the log's ids
        return receipt

    async def _append(
        self,
        whole: Sequence[BaseMessage],
        unencodable: str,
        clash: str,
        *,
        turn: str = "",
        resent: str | None = None,
        trust: Trust = Trust(),  # noqa: B008 - frozen
        stamp: ViewStamp | None = None,
    ) -> Receipt:
        check_choice(unencodable, "raise", "omit", name="unencodable")
        check_choice(clash, "raise", "renumber", name="on_source_clash")
        check_choice(resent, None, "skip", "raise", name="resent")
        stamp = None if stamp is None else check_stamp(stamp)
        options: Any = {"omit": unencodable == "omit", "renumber": clash == "renumber", "stamp": stamp}
        services = await self._services()
        if resent:
            return await services.resender.append(self._scope, whole, skip=resent == "skip", trust=trust, **options)
        return await services.writer.append(self._scope, whole, turn=turn, **options)

    async def append_turn(
        self,
        turn_id: str,
        *,
        human: str | HumanMessage | dict[str, Any] | None = None,
        messages: BaseMessage | dict[str, Any] | Iterable[BaseMessage | dict[str, Any]] = (),
        key: str | None = None,
        unencodable: Literal["raise", "omit"] = "raise",
        on_source_clash: Literal["raise", "renumber"] = "raise",
        stamp: ViewStamp | None = None,
    ) -> Receipt:
        """Append a turn, or continue it: afterwards it begins with the human message and exactly these messages.

        The human message gets `turn_id` as its id, by which `turns` and `get_turn` find the turn. A message without an
        id gets one derived from `turn_id` and its position. A repeated request therefore writes nothing. Of several
        answers to one question only one is stored, and none ends up in another turn. Otherwise it behaves like
        `append`. One command; three or four if another process appended the question, or a part is already stored.

        Args:
            turn_id: Id of the turn, such as a request id.
            human: The question; None if it is already stored.
            messages: All messages after it. Tool calls may still lack their results.
            key: Seed for the ids instead of `turn_id`. A second answer, after a `rewind` of the first, needs its own.
            unencodable: As in `append`.
            on_source_clash: As in `append`.
            stamp: As for `append`.

        Raises:
            UnknownMessageError: `human` is None, and the question is not in the log.
            TurnConflictError: The turn holds other messages, or a later turn has begun. Nothing was written.
        """
        whole = turn_messages(turn_id, human=human, messages=messages, key=key)
        with naming_conflicts(whole, key=key, turn=turn_id):
            return await self._append(whole, unencodable, on_source_clash, turn=turn_id, stamp=stamp)

    async def reserve_source_ids(self, number: int) -> range:
        """Reserve source ids, unique across all processes, for a tool that numbers its own sources.

        The sources then carry them as ``source_id``. Unused ids are never given out again. A tool with numbers of its
        own may still bring the same ones; wrap it with ``number_sources``. One command.

        Args:
            number: Number of ids, 1 to 1,000.
        """
        check_number(number, name="number", minimum=1, maximum=MAX_SOURCES)
        return await (await self._services()).writer.reserve(self._scope, number)

    async def load_history(self, policy: HistoryPolicy | None = None) -> History:
        """Return the view for the next model call: valid for any provider, stable, and within the budget.

        Old tool results are stubs; the current turn is complete. The same log and policy give the same messages. Time
        and bytes do not grow with the conversation. It takes one round trip if the conversation is cached, else two,
        and one more for large results of the current turn that another process appended.

        Args:
            policy: Limits of the view; None for the store's.

        Raises:
            InvalidInputError: Not a policy, or one that summarises (``before_load``) and the store has no summarizer.
            CorruptDocumentError: A stored document is damaged; the error names it.
            StoreUnavailableError: The server did not answer.
        """
        chosen = check_policy(policy) or self.store.policy
        services = await self._services()
        history = await services.loader.load(self._scope, chosen)
        if chosen.compact == "before_load" and services.compactor.may_be_due(history, chosen):
            compaction = await services.compactor.compact_in_time(self._scope)
            if compaction.status == "done":
                history = await services.loader.load(self._scope, chosen)
            return history.model_copy(update={"compaction": compaction})
        return history

    async def compact(self, *, force: bool = False) -> Compaction:
        """Summarise old turns now, if the summarizer's rule says that it is time, or if views show them no more.

        Views then show the summary in place of the messages from its first to its last ordinal. The messages stay in
        the log, and `expand_summary` returns them. Each of them was shown to the summarizer as views show it, or is
        kept word for word next to the summary. Only one worker summarises at a time. If the summarizer fails, or its
        summary saves nothing, views do not change and retries back off. Its errors are returned, never raised.

        Args:
            force: Summarise even if little would be saved, or the last attempt has just failed.

        Raises:
            InvalidInputError: The store has no summarizer.
        """
        return await (await self._services()).compactor.compact(self._scope, force=force)

    async def undo_compaction(self) -> bool:
        """Undo the current summary: views show the previous one, or the messages. Returns False if there is none."""
        return await (await self._services()).summaries.undo(self._scope)

    async def annotate(self, message_id: str, /, **values: Any) -> None:
        """Attach values to a message, such as user feedback, a label or an audit note. They are stored outside the log.

        Values of the same names are replaced, None removes a value, and others are kept. `list_messages` and
        `annotations` return them; models never see them. Three commands.

        Args:
            message_id: Id of any message, including rewound ones.
            values: Values that the store can encode: at most 100 for a message, 100,000 characters each, 1 MB in all.

        Raises:
            UnknownMessageError: No message of this conversation has the id.
            UnencodableError: A value has a type that cannot be restored exactly.
        """
        check_id(message_id, name="message_id")
        await (await self._services()).annotator.annotate(self._scope, message_id, values)

    async def rewind(self, *, before: str) -> int:
        """Remove a message and all later ones from views and listings, to edit a question or regenerate an answer.

        They stay in the log: `messages`, `get_tool_messages` and `get_sources` still return them, and `undo_rewind`
        restores them. The next append follows the message before. Returns the number of messages removed; 0 if this one
        was already rewound, so a failed call can be retried as it is. Atomic; seven commands, or nine after
        earlier rewinds.

        Args:
            before: Id of the first message to remove.

        Raises:
            UnknownMessageError: No message of this conversation has the id.
        """
        return await (await self._services()).rewinder.rewind(self._scope, check_id(before, name="before"))

    async def undo_rewind(self, *, before: str | None = None) -> int:
        """Undo the last rewind: views and listings are restored to their state before it.

        Messages appended since are removed from them and stay in the log. Returns the number of messages restored; 0 if
        there is no rewind. Further calls undo earlier rewinds.

        Args:
            before: Id of a message that the last rewind removed, such as the one passed to `rewind`. If it is already
                restored, nothing happens, so a failed call can be retried. Without it, a retry may undo another rewind.

        Raises:
            UnknownMessageError: No message of this conversation has the id.
            InvalidInputError: The last rewind did not remove the message.
        """
        if before is not None:
            check_id(before, name="before")
        return await (await self._services()).rewinder.undo(self._scope, before)

    async def update(
        self, *, title: str | EllipsisType | None = ..., metadata: dict[str, Any] | EllipsisType = ...
    ) -> None:
        """Set the title, the metadata or both. Arguments not given stay unchanged. Creates a missing conversation."""
        await (await self._services()).catalog.update(self._scope, title=title, metadata=metadata)

    async def delete(self) -> ErasureReceipt:
        """Delete this conversation permanently with everything in it. The scope is then a new, empty conversation.

        It also discards appends in flight from other processes. Nothing happens if there is no conversation. A failed
        or killed call can be retried as it is. Returns a receipt of the removed data.
        """
        return await (await self._services()).retention.delete(self._scope)
