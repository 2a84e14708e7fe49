"""The handle of one conversation, the API of an agent backend.

Creating a handle does no I/O. It holds no state, so each request can create its own; the services do the work. The
module is long because nearly all of it is the documentation of one class.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import aclosing
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.messages import BaseMessage, HumanMessage

from convstore.append.condition import Condition, TailMoved
from convstore.append.inputs import copy_ids, naming_conflicts, question_message
from convstore.append.items import read_batch, read_history
from convstore.conversation.entered import entered_turn
from convstore.conversation.host import Host, read_back
from convstore.conversation.state import ApplicationState
from convstore.conversation.turn import TurnSession, load_variant
from convstore.exceptions import InvalidInputError, LogMovedError
from convstore.readback.citations import read_citations
from convstore.readback.items import read_items
from convstore.readback.request import request_of
from convstore.search.request import search_request
from convstore.sources.source import MAX_SOURCES
from convstore.sources.stub import PAGE_TOKENS
from convstore.turns.variants import requested_variant
from convstore.values.append_options import check_options, check_trust
from convstore.values.log_records import LogItem, StoredItem
from convstore.values.models import (
    Compaction,
    ConversationInfo,
    ConversationUpdate,
    Receipt,
    SourcePage,
    StoredMessage,
    Summary,
    ToolRecord,
    Turn,
)
from convstore.values.plain import shown_value
from convstore.values.policy import HistoryPolicy, check_policy
from convstore.values.reports import Citation, ErasureReceipt, SearchHit
from convstore.values.scope import (
    PATH,
    Scope,
    as_scope,
    check_flags,
    check_id,
    check_ids,
    check_number,
    check_one_of,
    check_ordinals,
    child_scope,
)
from convstore.values.stamps import TurnOutline, ViewStamp
from convstore.values.turns import Busy, TurnCall, Variant, Verdict, call_named, check_decision
from convstore.view.past import check_moment
from convstore.wire.history import History, PastView

if TYPE_CHECKING:
    from convstore.tools.agent_tool import AgentTool

_MAX_WAIT = 3_600


class Conversation:
    """One conversation of a store, identified by its scope.

    A scope without messages is an empty conversation; it need not be created. Ids of other scopes are treated exactly
    like unknown ids.
    """

    def __init__(self, host: Host, scope: Scope) -> None:
        self._host = host
        self._scope = scope
        self._services = host.services

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self._scope)})"
        )

    @property
    def store(self) -> Any:
        """The store of this conversation."""
        return self._host.store

    @property
    def scope(self) -> dict[str, str]:
        """The scope values that identify this conversation."""
        return dict(self._scope)

    @property
    def state(self) -> ApplicationState:
        """A small state that the application keeps for this conversation, outside the log."""
        return ApplicationState(self._host, self._scope)

    async def append(
        self,
        messages: BaseMessage
        | LogItem
        | dict[str, Any]
        | Iterable[BaseMessage | LogItem | dict[str, Any]],
        *,
        key: str | None = None,
        on_unencodable: Literal["raise", "omit"] = "raise",
        on_source_clash: Literal["raise", "renumber"] = "raise",
        stamp: ViewStamp | None = None,
        turn: str | None = None,
        after: int | None = None,
    ) -> Receipt:
        """Append messages to the log permanently: in order, each once, and the batch as a whole or not at all.

        When the call returns, every reader sees them together, after all earlier messages. The call is idempotent:
        appending the same ids again writes only missing messages, so a failed call can be retried as it is. It takes
        one command, and a second one at most every 10 seconds.

        Args:
            messages: Messages, or dicts in the format of OpenAI, Anthropic or LangChain. A message without an id gets
                one, on the caller's object. A `LogItem` among them is stored at its position in the log, but models
                never see it; see `items`. A batch with items takes three more commands.
            key: Seed for the ids of dicts without one, such as a request id. A repeated request then gets the same ids.
            on_unencodable: "omit" replaces values of unknown types by a marker and names them in the receipt.
            on_source_clash: "renumber" gives a source whose number is taken the next free one. The message is
                unchanged; the receipt and `Source.given_id` show both numbers. One more command if numbers may clash.
            stamp: ``history.stamp`` of the view that the first AI message written now answers; see `view_at`.
            turn: Id of the question that the messages belong to, human messages included, for a writer that works on a
                question while others are asked. By default it follows from the log's end and the types of the messages.
                Name it for results after a later question: by default they find only the 20 newest open call ids.
            after: Write only if the log ends with this ordinal, such as ``receipt.last``; 0 for an empty log. Messages
                that are in the log already do not count as a conflict.

        Raises:
            InvalidInputError: `stamp` is not that of a view which this conversation had.
            InvalidMessageError: A message is invalid; the error names the message and the field.
            UnencodableError: An artifact holds a value of a type that cannot be restored exactly.
            BatchTooLargeError: The batch exceeds 1 MB, not counting large tool results and large parts of messages.
            ContentConflictError: An id is in the log with different content.
            MessageRewoundError: A message is in the log but was rewound.
            UnknownMessageError: The log has no question with the id `turn`, or it was rewound.
            SourceIdClashError: The number of a source is taken; see `on_source_clash`.
            LogMovedError: The log ends with another message than `after` says.
            StoreUnavailableError: The server did not answer; retry the call.
        """
        options = check_options(on_unencodable, on_source_clash, stamp, turn)
        check_ordinals(after=after)
        _, whole, items = read_batch(messages, key=key)
        writer = (await self._services()).writer
        try:
            with naming_conflicts(whole, key=key):
                written = await writer.append(
                    self._scope, whole, items=items, condition=Condition(after), options=options
                )
        except TailMoved as moved:
            raise LogMovedError(after or 0, last=moved.args[0]) from None
        return written.receipt

    async def append_history(
        self,
        messages: BaseMessage | dict[str, Any] | Iterable[BaseMessage | dict[str, Any]],
        *,
        trust: Literal["human", "all"] = "human",
        client_tools: Collection[str] = (),
        strict: bool = False,
        on_resent: Literal["skip", "raise"] = "skip",
        key: str | None = None,
        on_unencodable: Literal["raise", "omit"] = "raise",
        on_source_clash: Literal["raise", "renumber"] = "raise",
        stamp: ViewStamp | None = None,
    ) -> Receipt:
        """Append the new messages of a history that a client sends whole with each request, without ids.

        The history is compared with the active log by its questions, unless it is a single question. Stored messages
        get their ids from the log, on the caller's objects, and are in the receipt with the new ones. Otherwise it
        behaves like `append`. One more command.

        Args:
            messages: The history, or its last turns, in the formats that `append` takes.
            trust: "human" accepts human messages only; the receipt names the ignored ones. "all" accepts every message;
                use it for histories that your application makes itself, never for a client's.
            client_tools: Names of tools that run on the client. Results of their open calls are accepted, too. Set them
                in your code, never from a request.
            strict: Raise an error instead of ignoring messages.
            on_resent: "raise" rejects a history that begins with stored messages.
            key: As in `append`.
            on_unencodable: As in `append`.
            on_source_clash: As in `append`.
            stamp: As in `append`.

        Raises:
            HistoryDivergedError: A question was changed or is missing, or an answer with ``trust="all"``.
            ResentHistoryError: The history begins with stored messages (``on_resent="raise"``).
            UntrustedMessageError: The history holds messages that would be ignored (`strict`).
        """
        check_one_of(trust, "human", "all", name="trust")
        trusted = check_trust(trust, client_tools, strict)
        check_one_of(on_resent, "skip", "raise", name="on_resent")
        options = check_options(on_unencodable, on_source_clash, stamp)
        given, whole, _ = read_history(messages, key=key)
        resender = (await self._services()).resender
        with naming_conflicts(whole, key=key):
            receipt = await resender.append(
                self._scope, whole, skip=on_resent == "skip", trust=trusted, options=options
            )
        copy_ids(whole, given)  # stored messages have the log's ids
        return receipt

    async def turn(
        self,
        turn_id: str,
        *,
        human: str | HumanMessage | dict[str, Any] | None = None,
        regenerate: str | None = None,
        instead_of: str | None = None,
        busy: Busy = "raise",
        wait_seconds: float = 30.0,
    ) -> TurnSession:
        """Take a turn to work on it: ask its question, or continue it from the messages in the log.

        When the call returns, the question is in the log, once, and no other worker can work on the conversation until
        this one leaves the session. A repeated request continues an unfinished turn, also one of a killed worker, and
        finds a finished one with its answer. Use it with ``async with``; else the lease lapses after 30 seconds. Two
        commands for a question, six in a new conversation, up to ten to continue a turn.

        Args:
            turn_id: Id of the turn, such as a request id.
            human: The question; None to continue a turn.
            regenerate: Ask for another answer to the turn: an id for this request, such as the click's. Repeating it
                continues the same answer, or returns it. Views show the new answer once it is finished.
            instead_of: Id of a turn whose question this one replaces. Once the new question has its answer, views no
                longer show that turn and all that followed it.
            busy: If another worker holds a turn of the conversation: "raise" raises an error, "wait" waits for it, and
                "interrupt" asks another turn to stop, and waits. It never stops the same turn, or an answered one.
            wait_seconds: How long to wait at most.

        Raises:
            TurnBusyError: A turn of the conversation is being worked on. Nothing was written.
            TurnConflictError: The turn has another question, or with `instead_of` its id is taken. Nothing was written.
            UnknownMessageError: `human` is None and the question is not in the log; or the turn that `regenerate` or
                `instead_of` needs is not in the log or not active.
            MessageRewoundError: The question was rewound.
        """
        check_one_of(busy, "raise", "wait", "interrupt", name="busy")
        if not isinstance(wait_seconds, int | float) or not 0 <= wait_seconds <= _MAX_WAIT:
            raise InvalidInputError(
                f"wait_seconds must be 0 to {_MAX_WAIT}, not {shown_value(wait_seconds)}"
            )
        request = requested_variant(turn_id, regenerate, instead_of, has_question=human is not None)
        whole = [] if human is None else [question_message(turn_id, human)]
        entrance = (services := await self._services()).turn_entrance
        with naming_conflicts(whole, turn=check_id(turn_id, name="turn_id")):
            held = await entrance.enter(
                self._scope, turn_id, whole, busy=busy, seconds=wait_seconds, request=request
            )
        return TurnSession(self, held, services.past)

    async def variants(
        self, turn_id: str, *, before_number: int | None = None, limit: int = 50
    ) -> list[Variant]:
        """Return the variants of a turn: its first answer, other answers, edited questions; by default the newest.

        The first answer comes first, finished or not. The others follow in the order in which they were finished;
        unfinished ones are left out. While the turn that views show is in progress, no variant is active. Three or four
        commands, rarely six.

        Args:
            turn_id: Id of the turn.
            before_number: Only variants with a lower number, the nearest ones.
            limit: Maximum number of variants, up to 200.

        Raises:
            UnknownMessageError: The log does not have the turn's question.
        """
        return await (await self._services()).variants.page(
            self._scope, turn_id, before_number=before_number, limit=limit
        )

    async def activate(self, variant: Variant) -> None:
        """Show a variant in views and listings, with everything that followed it when it was last active.

        The variant shown until now is hidden, with everything after it. Atomic; a repeated call does nothing, and
        `undo_rewind` undoes it.

        Args:
            variant: One of `variants`.

        Raises:
            InvalidInputError: This conversation does not have the variant.
            MessageRewoundError: Another message was appended in its place, or a message before it was rewound.
        """
        if not isinstance(variant, Variant):
            raise InvalidInputError(
                f"variant is one of chat.variants(turn_id), not {type(variant).__name__}"
            )
        turn_id = check_id(variant.turn_id, name="variant.turn_id")
        variant_id = check_id(variant.variant_id, name="variant.variant_id")
        await (await self._services()).activator.activate(self._scope, turn_id, variant_id)

    async def stop(self, turn_id: str) -> bool:
        """Stop a turn, from any worker; its answer is the text streamed so far. A stop is permanent.

        A worker that holds the turn notices within 2 seconds, and marks the turn when it leaves, even if it appended an
        answer meanwhile. Without such a worker it is marked at once, with all other unfinished answers. A repeated
        request finds it finished. Returns False if the turn is unknown, or was over and no worker held it; else True.
        A question that another writer appends before the worker leaves ends the turn instead, until it is rewound.

        Args:
            turn_id: Id of the turn, or of a question that replaces another one.
        """
        entrance = (await self._services()).turn_entrance
        return await entrance.stop(self._scope, check_id(turn_id, name="turn_id"))

    async def decide(
        self,
        turn_id: str,
        call: TurnCall | str,
        verdict: Verdict,
        *,
        args: dict[str, Any] | None = None,
        message: str = "",
        by: str = "",
    ) -> None:
        """Record a person's decision about a waiting call, from any worker; then the turn can be entered again.

        The first decision stands. Repeating it does nothing.

        Args:
            turn_id: The turn.
            call: One of the waiting calls, or its `TurnCall.result_id`. ``get_turn(...).waiting_calls`` has them, as
                `TurnSession` and the `TurnState` of `watch` do. Those of another answer are in
                ``get_turn(...).pending``.
            verdict: "approve" runs the call, "edit" runs it with `args`, "reject" gives it an error as its result, and
                "respond" gives it `message` as its result.
            args: For "edit", the new arguments, as JSON values.
            message: For "reject" the reason, for "respond" the text.
            by: The person who decided.

        Raises:
            InvalidInputError: The turn has no such call, the call does not wait for a decision, or its agent paused
                again at another place.
            DecisionConflictError: Another decision about the call is stored.
            TurnClosedError: The turn is over, or the user asked another question.
            UnknownMessageError: The turn is not in the log.
        """
        check_id(turn_id, name="turn_id")
        result_id = call_named(call)
        decision = check_decision(verdict, args=args, message=message, by=by)
        await (await self._services()).decisions.decide(self._scope, turn_id, result_id, decision)

    async def reserve_source_ids(self, number: int) -> range:
        """Reserve source ids, unique across all processes, for a tool that numbers its own sources.

        The sources then carry them as ``source_id``. Unused ids are never assigned again. Another tool that counts by
        itself may still return the same numbers; wrap it with ``number_sources``. One command, up to four in a child.

        Args:
            number: Number of ids, 1 to 1,000.
        """
        check_number(number, name="number", minimum=1, maximum=MAX_SOURCES)
        writer = (await self._services()).writer
        if PATH in self.scope:
            return await writer.reserve_for_child(self._scope, number)
        if held := entered_turn(self):
            return await held.reserve(number)
        return (await writer.reserve(self._scope, number))[0]

    def child(self, id_: str, call_id: str | None = None, /) -> Conversation:
        """Return the handle of a sub-agent's conversation below this one; no I/O.

        It is identified by the call that the sub-agent answers, or by a name. It has its own log, views and turns.
        Only `children` lists it, and it is deleted, pruned and exported with this conversation. A child can have
        children, up to eight levels. Its sources have numbers of the outermost conversation, which reads them back.

        Args:
            id_: Id of the AI message with the call; or a name, for an agent that is called once, such as a node.
            call_id: Id of the call; None for a name.

        Raises:
            InvalidInputError: An id is not a plain non-empty str, or there are too many levels.
        """
        return Conversation(
            self._host, child_scope(self._scope, [id_] if call_id is None else [id_, call_id])
        )

    async def children(self) -> list[ConversationInfo]:
        """Return the conversations of sub-agents directly below this one, oldest first. Two commands.

        ``store.conversation(**info.scope)`` is the handle of one.
        """
        return await (await self._services()).catalog.children(self._scope)

    async def load_history(self, policy: HistoryPolicy | None = None) -> History:
        """Return the view for the next model call: with calls and results paired, stable, and within the budget.

        Old tool results are stubs; the current turn is complete. The same log, policy and stored record, which says
        where the policy's views begin, give the same messages. Time and bytes do not grow with the conversation. It
        takes one round trip if the conversation is cached, else two. Large results of this turn that another process
        wrote take one more.

        Args:
            policy: Limits of the view; None for the store's.

        Raises:
            InvalidInputError: `policy` is not a policy, or summarises ``before_load`` and the store has no summarizer.
            CorruptDocumentError: A stored document is damaged; the error names it.
            StoreUnavailableError: The server did not answer.
        """
        chosen = check_policy(policy) or self.store.policy
        services = await self._services()
        if (held := entered_turn(self)) and held.branch:
            return await load_variant(services.past, held, chosen)
        history = await services.loader.load(self._scope, chosen)
        if chosen.compact == "before_load" and services.compactor.may_be_due(history, chosen):
            compaction = await services.compactor.compact_in_time(self._scope)
            if compaction.status == "done":
                history = await services.loader.load(self._scope, chosen)
            return history.model_copy(update={"compaction": compaction})
        return history

    async def compact(self, *, force: bool = False) -> Compaction:
        """Summarise old turns now, if the summarizer's rule says that it is time, or if views do not show them.

        Views then show the summary in place of the messages from its first to its last ordinal. The messages stay in
        the log, and `expand_summary` returns them. Each of them was shown to the summarizer as views show it, or is
        kept word for word next to the summary. Only one worker summarises at a time. If the summarizer fails, or its
        summary saves nothing, views do not change and retries back off. Its errors are returned, never raised. Two
        commands if no summary is due; else nine, and more for large messages among the summarised ones.

        Args:
            force: Summarise even if little would be saved, or the last attempt has just failed.

        Raises:
            InvalidInputError: The store has no summarizer.
        """
        check_flags(force=force)
        return await (await self._services()).compactor.compact(self._scope, force=force)

    async def undo_compaction(self) -> bool:
        """Undo the current summary: views show the previous one, or the messages. Returns False without a summary."""
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

    async def rewind(self, *, before_id: str) -> int:
        """Remove a message and all later ones from views and listings, to edit a question or regenerate an answer.

        They stay in the log: `get_tool_messages` and `get_sources` still return them, `messages` and `list_messages` do
        with ``rewound=True``, and `undo_rewind` restores them. The next append follows the message before. Returns the
        number of messages removed; 0 if this one was already rewound, so a failed call can be retried as it is. Atomic;
        seven commands, or more after earlier rewinds.

        A `LogItem` is removed with the message that it follows. Its own id removes it, and everything after it.

        Args:
            before_id: Id of the first message, or item, to remove.

        Raises:
            UnknownMessageError: No message and no item of this conversation has the id.
        """
        check_id(before_id, name="before_id")
        return (await (await self._services()).rewinder.rewind(self._scope, before_id)).moved

    async def undo_rewind(self, *, before_id: str | None = None) -> int:
        """Undo the last rewind: views and listings are restored to their state before it.

        Messages appended since are removed from them and stay in the log. Returns the number of messages restored; 0
        without a rewind to undo. Further calls undo earlier rewinds.

        Args:
            before_id: Id of a message that the last rewind removed, such as the one passed to `rewind`. If it is
                already restored, nothing happens, so a failed call can be retried. Without it, a retry may undo another
                rewind.

        Raises:
            UnknownMessageError: No message of this conversation has the id.
            InvalidInputError: The last rewind did not remove the message.
        """
        if before_id is not None:
            check_id(before_id, name="before_id")
        return (await (await self._services()).rewinder.undo(self._scope, before_id)).moved

    async def fork(
        self, *, before_id: str | None = None, key: str, new_scope: dict[str, str]
    ) -> Conversation:
        """Copy the conversation up to a message into another one, whose views are the same up to there; return it.

        Messages, their annotations, sources and summaries are copied, so either one can be deleted without the other.
        Rewound messages before that message are copied, too. Title, metadata, state and the conversations of sub-agents
        with their sources are not. The fork appears whole or not at all. 10,000 messages take about half a second.

        Args:
            before_id: Id of the first message that is not copied; None to copy all.
            key: Id of the request. Repeated with the same arguments, it returns the same fork and writes nothing.
            new_scope: The scope of the fork, with all keys. Check that the user may write there.

        Raises:
            UnknownMessageError: No message of this conversation has the id.
            MessageRewoundError: The message was rewound.
            ForkRefusedError: The new scope has another conversation, or `before_id` is None and the last turn is in
                progress.
            InvalidScopeError: The new scope does not have exactly the keys of the store's scope, or a value is invalid.
        """
        fork: Conversation = self.store.conversation(**as_scope(new_scope))
        await (await self._services()).forker.fork(
            self._scope, fork._scope, before_id=before_id, key=key
        )
        return fork

    async def update(
        self,
        *,
        title: str | EllipsisType | None = ...,
        metadata: dict[str, Any] | EllipsisType = ...,
    ) -> None:
        """Set the title, the metadata or both. Arguments not given stay unchanged. Creates a missing conversation.

        Args:
            title: Up to 100,000 characters.
            metadata: Values that the store can encode, up to 100,000 characters.
        """
        await (await self._services()).catalog.update(self._scope, title=title, metadata=metadata)

    async def delete(self) -> ErasureReceipt:
        """Delete this conversation permanently with everything in it. The scope is then a new, empty conversation.

        It also discards appends in flight, and those of the next 10 seconds by a process that has not learnt of it:
        they return a receipt, and the process logs and counts the loss once it learns of it. Nothing happens if there
        is no conversation. A failed or killed call can be retried as it is. Returns a receipt of the removed data.
        """
        return await (await self._services()).retention.delete(self._scope)

    async def find_shown_sources(self, texts: Sequence[str]) -> list[int | None]:
        """Return the id of the source that first showed each text; None for texts not among the newest 200.

        At least the newest of the last 60 appends are known. With it, a tool can say "already shown as [4]". It takes
        no command if the conversation is cached.

        Args:
            texts: Texts of sources, as the tool returned them.
        """
        if (
            isinstance(texts, str)
            or not isinstance(texts, Sequence)
            or not all(type(text) is str for text in texts)
        ):
            raise InvalidInputError("texts must be a list of str")
        return await (await self._services()).writer.find_shown(self._scope, texts)

    async def view_at(
        self,
        at: ViewStamp | str | int | None = None,
        *,
        policy: HistoryPolicy | None = None,
        reasons_before: int | None = None,
    ) -> PastView:
        """Return a view as it was at an earlier time, to see what a model got and why. Nothing is written.

        A stamp gives exactly the view that it was taken from: `match` is "exact", or "differs" with the reason. A
        message or an ordinal gives the view directly after the entry that contains it, with the summary of that time.
        Later rewinds, summaries and results do not count. Three commands; one or two more for the summary of that
        time, a rewind, or large messages.

        Args:
            at: ``history.stamp`` or `StoredMessage.stamp`, the id of a message, an ordinal, or None for now.
            policy: Limits of the view; None for the stamp's, or the store's.
            reasons_before: Only reasons that begin before this ordinal, see `HistoryReport.reasons_before`.

        Raises:
            UnknownMessageError: This conversation has no such message or view; it may have been deleted.
            InvalidInputError: `at` or `policy` has another type.
        """
        moment = check_moment(at)
        own = at.history_policy if isinstance(at, ViewStamp) else self.store.policy
        chosen = check_policy(policy)
        past = (await self._services()).past
        return await past.view_at(
            self._scope,
            moment,
            chosen or own,
            reasons_before=reasons_before,
            has_policy=chosen is not None,
        )

    async def summaries(self) -> list[Summary]:
        """Return every summary of this conversation, oldest first, with the range of messages that it covers."""
        return await (await self._services()).summaries.all(self._scope)

    async def expand_summary(self, version: int) -> list[BaseMessage]:
        """Return the messages that a summary covers, in order, each equal to the appended one.

        Args:
            version: `Summary.version`.

        Raises:
            InvalidInputError: The conversation has no summary of this version.
        """
        return await (await self._services()).summaries.expand(self._scope, version)

    async def get_tool_messages(self, ids: Sequence[str]) -> list[ToolRecord]:
        """Return messages in full, equal to the appended ones, in the order of the ids. Unknown ids are left out.

        Any message id works, not only those of tool results. One command, and one more for each append that stored
        large results; those of successive messages are read together.

        Args:
            ids: At most 200 ids.

        Raises:
            TooManyIdsError: More than 200 ids.
        """
        return await (await self._services()).records.get(self._scope, check_ids(ids, name="ids"))

    async def messages(self, *, rewound: bool = False) -> AsyncGenerator[BaseMessage, None]:
        """Iterate over the messages of the log in order, each equal to the appended one. Reads in batches.

        Args:
            rewound: Also rewound messages.
        """
        records = (await self._services()).records
        async with aclosing(records.all(self._scope, rewound=rewound)) as messages:
            async for message in messages:
                yield message

    async def items(
        self,
        *,
        kind: str | None = None,
        after: int | None = None,
        before: int | None = None,
        rewound: bool = False,
    ) -> AsyncGenerator[StoredItem, None]:
        """Iterate over the items that were appended as `LogItem`, in the order of the log, with equal data.

        A rewind removes an item with the message that it follows, and an undo restores both. Only the appends that
        `after` and `before` select are read. For a page of `list_messages`, pass its first ordinal and the next page's.
        Two commands, and one more for each append with large items.

        Args:
            kind: Only items of this kind; None for all.
            after: Only items after the message with this ordinal.
            before: Only items before the message with this ordinal.
            rewound: Also items that a rewind removed, which have ``is_rewound``.

        Raises:
            CorruptDocumentError: A stored item is damaged.
        """
        check_flags(rewound=rewound)
        reader = (await self._services()).reader
        found = read_items(
            reader, self._scope, kind, after=after, before=before, everything=rewound
        )
        async with aclosing(found) as items:
            async for item in items:
                yield item

    async def turns(
        self,
        *,
        after: int | None = None,
        before: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        rewound: bool = False,
    ) -> AsyncGenerator[Turn, None]:
        """Iterate over whole turns in order, each message equal to the appended one.

        A message belongs to the turn that it was stored with, wherever it stands. Reads in batches. To continue, pass
        `turn.first` of the last turn as `after`, or as `before` to go further back. `variants` has other answers.

        Args:
            after: Only turns that begin after this ordinal.
            before: Only turns that begin before this ordinal.
            limit: Maximum number of turns; None for all.
            newest_first: Reverse the order and read from the end.
            rewound: Also rewound turns, and rewound messages of other turns, such as other answers; `turn.rewound`
                names them. Without `newest_first`, the log after `after` is then read to its end first.
        """
        check_flags(newest_first=newest_first, rewound=rewound)
        read = (await self._services()).turns.read
        found = read(
            self._scope,
            after=after,
            before=before,
            limit=limit,
            newest_first=newest_first,
            everything=rewound,
        )
        async with aclosing(found) as turns:
            async for turn in turns:
                yield turn

    async def outline(self, *, before: int | None = None, limit: int = 100) -> list[TurnOutline]:
        """Return the last turns without their messages, oldest first: sizes, dates, and stamps of their views.

        Args:
            before: Only turns that begin before this ordinal.
            limit: Maximum number of turns, up to 1,000.
        """
        return await (await self._services()).turns.outline(self._scope, before=before, limit=limit)

    async def last_policy(self) -> HistoryPolicy | None:
        """Return the policy of the newest readable stamp in the last 50 turns, else None.

        The application loads its views with this policy.
        """
        return await (await self._services()).turns.last_policy(self._scope)

    async def get_turn(self, turn_id: str) -> Turn | None:
        """Return the turn whose first message has this id; None if it is missing or rewound.

        Six to nine commands, and up to three more in a process that does not know the conversation.

        Args:
            turn_id: Id of the turn, the id of its question.
        """
        check_id(turn_id, name="turn_id")
        services = await self._services()
        if (turn := await services.turns.get(self._scope, turn_id)) is None or not turn.number:
            return turn
        return turn.model_copy(
            update={"pending": await services.watcher.pending(self._scope, turn_id)}
        )

    async def list_messages(
        self,
        *,
        before: int | None = None,
        after: int | None = None,
        around: int | None = None,
        limit: int = 50,
        full: bool = False,
        rewound: bool = False,
    ) -> list[StoredMessage]:
        """Return a page of the log, oldest first, for a user interface; by default the newest messages.

        To scroll back, pass the lowest ordinal of the page as `before`; to scroll forward, the highest as `after`.
        Three commands, up to four more if the page does not begin with a question, and one with `rewound`. With `full`,
        one more for 2 million characters of large results; else one for each append with a large question or answer.

        Args:
            before: Only messages with a lower ordinal, the nearest ones.
            after: Only messages with a higher ordinal, the nearest ones.
            around: The messages before and after this ordinal, such as that of a `SearchHit`.
            limit: Maximum number of messages, up to 1,000.
            full: Messages as appended; by default tool results are stubs, and images, audio and files placeholders.
            rewound: Also rewound messages, which have ``is_rewound``.

        Raises:
            InvalidInputError: More than one of `before`, `after` and `around`, or a number out of bounds.
        """
        records = (await self._services()).records
        return await records.page(
            self._scope,
            before=before,
            after=after,
            around=around,
            limit=limit,
            full=full,
            rewound=rewound,
        )

    async def watch(
        self, *, after: int | None = None, limit: int = 50, full: bool = False
    ) -> AsyncGenerator[ConversationUpdate]:
        """Follow a conversation: new messages, rewinds, and the state of the last turn with its draft.

        The first update comes at once; later ones come within a second on a replica set, by one change stream for the
        whole store, and within two elsewhere. The iteration goes on until the caller leaves it: use
        ``contextlib.aclosing``. After an error, call it again with the last ordinal. Five commands for an append,
        three for a draft.

        Args:
            after: Ordinal of the last message that the caller has; None to begin with the newest `limit` messages.
            limit: Up to 1,000.
            full: As for `list_messages`.

        Raises:
            StoreClosedError: The store was closed.
        """
        check_flags(full=full)
        watcher = (await self._services()).watcher
        watched = watcher.watch(self._scope, after=after, limit=limit, full=full)
        async with aclosing(watched) as updates:
            async for update in updates:
                yield update

    async def search(
        self,
        text: str,
        *,
        limit: int = 20,
        types: Collection[str] | None = None,
        before: int | None = None,
        after: int | None = None,
    ) -> list[SearchHit]:
        """Return the messages that best match a query, the best one first.

        It searches texts, calls, results and sources of every active message, also those outside views, in any form of
        the words. Results of the retrieval tool are left out, because they are copies. Three commands in two round
        trips, and one more for each append with large results among the hits.

        Args:
            text: The query. Its first 4,096 characters are read, and the 64 rarest words of them count.
            limit: Maximum number, up to 200.
            types: Only messages of these types, such as ``["human", "ai"]``; None for all.
            before: Only messages with a lower ordinal.
            after: Only messages with a higher ordinal.
        """
        request = search_request(text, limit=limit, types=types, before=before, after=after)
        found = await (await self._services()).searcher.search(self._scope, request)
        return [match.hit for match in found.matches]

    async def annotations(self, message_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the values that `annotate` attached to messages, by message id. Messages without any are left out.

        Args:
            message_ids: At most 200 ids.
        """
        ids = check_ids(message_ids, name="message_ids")
        return await (await self._services()).annotator.get(self._scope, ids)

    async def info(self) -> ConversationInfo:
        """Return title, metadata, dates and exact counts; for an empty scope, zeros and dates that are None."""
        return await (await self._services()).catalog.info(self._scope)

    async def get_sources(
        self,
        source_ids: Iterable[int] | str = (),
        *,
        tool_message_ids: Sequence[str] = (),
        find: str = "",
        cursor: str | None = None,
        page_tokens: int = PAGE_TOKENS,
    ) -> SourcePage:
        """Return sources by number, or all sources of tool messages, in the order requested, page by page.

        Joined, the pages of a source are its whole text. Sources of children are found by number, too. Ids that this
        conversation does not have are listed in ``not_found``. Two commands for a source; they read only the chunks
        that contain it.

        Args:
            source_ids: Numbers, a range, or a text as in stubs: "3, 11-20".
            tool_message_ids: Ids of tool messages.
            find: Only the passages around this text; case is ignored. `search` looks through the whole conversation.
            cursor: ``next_cursor`` of the previous page, passed with the same ids.
            page_tokens: Size of a page in tokens, 100 to 16,000.

        Raises:
            InvalidInputError: Ids or page size are invalid, or `find` has no ids to look in.
            InvalidCursorError: The cursor does not come from this call.
        """
        request = request_of(source_ids, tool_message_ids, find, cursor, page_tokens)
        return await (await self._services()).pager.sources(self._scope, request)

    async def citations(self, message: BaseMessage | str) -> list[Citation]:
        """Return the sources that a message cites, each with its position in ``message.text``.

        Numbers such as ``[17]`` outside of code count, and citations that OpenAI, Anthropic or Gemini attached. A
        number is a source id of the log, or a number of its own that a result of the turn shows, such as an imported
        one. Three commands, four for an id, two more for such results.

        Args:
            message: A message, or the id of one.
        """
        services = await self._services()
        return await read_citations(services.records, services.pager, self._scope, message)

    def retrieve_previous_sources_tool(
        self, *, page_tokens: int = PAGE_TOKENS, artifact: bool = False
    ) -> AgentTool:
        """Return the tool by which an agent reads full content back, bound to this conversation.

        Args:
            page_tokens: Size of a page in tokens, 100 to 16,000.
            artifact: Also show the model the rest of artifacts. By default it reads sources and content of a result.
        """
        from convstore.tools.retrieval import make_retrieval_tool  # noqa: PLC0415 - LangChain's tools load slowly

        read = read_back(self.store, self._scope)
        return make_retrieval_tool(lambda _: read, page_tokens=page_tokens, artifact=artifact)
