"""The session of one turn: ask, run the model and the tools, stop, wait for a person, resume, answer.

The module is long because nearly all of it is the documentation of one class.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.append.fields import check_fields
from convstore.append.inputs import normalize_messages
from convstore.conversation.entered import note_entry, note_exit
from convstore.conversation.numbering import ResultNumbering
from convstore.exceptions import (
    ContentConflictError,
    InvalidInputError,
    InvalidMessageError,
    TurnClosedError,
    UnfinishedReplyError,
)
from convstore.messages.stop_reasons import failed_reason
from convstore.messages.turn_calls import calls_without_result, make_result
from convstore.runtime.background import settle
from convstore.sources.detection import given_sources
from convstore.sources.numbering import SourceNumbers, with_numbers, with_rendered
from convstore.sources.source import MAX_SOURCES, FoundSources
from convstore.turns.held import Addition, HeldTurn
from convstore.turns.streaming import read_until
from convstore.values.models import Receipt
from convstore.values.policy import HistoryPolicy, check_policy
from convstore.values.scope import PATH, check_flags, check_number, check_one_of
from convstore.values.stamps import ViewStamp, check_stamp
from convstore.values.turns import TurnCall
from convstore.view.past import PastViews
from convstore.wire.history import History
from convstore.wire.streams import StreamedReply

_LOGGER = logging.getLogger("convstore")

_STOPPED = "Stopped by the user before it ran."


class _Numbers(NamedTuple):
    """The numbers of a result's sources, and for each text the number with which it was shown earlier."""

    texts: list[str]
    numbers: list[int]
    earlier: list[int | None]


_BY_DEFAULT = ResultNumbering(None)
_NO_SOURCES = {"content": "No results."}


class TurnSession:
    """One turn of a conversation that this worker holds, so that other workers neither answer it nor ask a question.

    `Conversation.turn` returns it. ``async with`` renews the lease in the background and releases it at the end,
    whatever happened in between, also in another task. A session that is never entered lapses after 30 seconds, like
    that of a killed worker. Then another worker can continue the turn from the log.

    A stop ends the body with a `TurnClosedError`, raised for example by an agent inside the turn. The exit swallows it.

    Messages are in the log when the call that appends them returns. If a worker was silent for so long that another one
    took the turn, it gets a `TurnLostError`, and nothing is written.
    """

    def __init__(self, chat: Any, held: HeldTurn, views: PastViews) -> None:
        self._chat = chat
        self._held = held
        self._views = views
        self._stamp: ViewStamp | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._streaming: AsyncGenerator[Any, None] | None = None
        # by result id; kept because the append of the result may fail and be repeated
        self._reserved: dict[str, _Numbers] = {}
        self._numbering = asyncio.Lock()

    def __repr__(self) -> str:
        return f"TurnSession({self.turn_id!r})"

    @property
    def turn_id(self) -> str:
        """Id of the turn, which is that of its question."""
        return self._held.record.turn_id

    @property
    def messages(self) -> list[BaseMessage]:
        """The messages of the turn that are in the log, the question first, in full."""
        return list(self._held.record.messages)

    @property
    def open_calls(self) -> list[TurnCall]:
        """The calls that need a result, in order, including those of a worker that died and those a person approved.

        A call with invalid arguments has an `error`. Calls that wait for a decision are not among them.
        """
        return self._held.record.open_calls

    @property
    def waiting_calls(self) -> list[TurnCall]:
        """The calls that wait for a person's decision, in order."""
        return self._held.record.undecided

    @property
    def draft(self) -> str:
        """The beginning of a reply that a killed or interrupted worker had streamed, else "".

        It is not in the log. Ask the model again; the next stream replaces it.
        """
        return self._held.drafts.found.text if self._held.drafts.found else ""

    @property
    def error(self) -> str:
        """Class and first line of the error by which the last run of the turn broke off, else "".

        `Conversation.get_turn` has it, too. It may quote contents.
        """
        return self._held.drafts.found.error if self._held.drafts.found else ""

    @property
    def is_running(self) -> bool:
        """True if this worker holds the turn, and it is not finished, stopping or waiting for a person."""
        record = self._held.record
        return not (
            record.is_finished
            or record.is_waiting
            or self._held.lease.is_stopping
            or self._held.lease.is_lost
        )

    @property
    def is_variant(self) -> bool:
        """True while the session makes another answer or another question that views do not show yet."""
        return self._held.branch is not None

    @property
    def is_waiting(self) -> bool:
        """True if the turn has no open calls except those that wait for a person's decision."""
        return self._held.record.is_waiting

    @property
    def is_finished(self) -> bool:
        """True if the turn is over in the log: it has its answer, was finished or stopped, or a later one began.

        Do not call the model for a finished turn.
        """
        return self._held.record.is_finished

    @property
    def is_stopped(self) -> bool:
        """True if the turn was stopped, or a stop was requested."""
        return self._held.lease.is_stopping or self._held.record.is_stopped

    @property
    def answer(self) -> AIMessage | None:
        """The answer: the last message, if it is an AI message without calls; None if the turn waits or is paused."""
        return self._held.record.answer

    async def load_history(self, policy: HistoryPolicy | None = None) -> History:
        """Return the view for the next call of the model, as `Conversation.load_history` does.

        The next AI message that is appended gets its stamp.
        """
        if self.is_variant:
            chosen = check_policy(policy) or self._chat.store.policy
            history = await load_variant(self._views, self._held, chosen)
        else:
            history = await self._chat.load_history(policy)
        self._stamp = history.stamp
        return history

    async def append(
        self,
        messages: BaseMessage | Mapping[str, Any] | Iterable[BaseMessage | Mapping[str, Any]],
        *,
        stamp: ViewStamp | None = None,
    ) -> Receipt:
        """Append messages to the turn: in order, as a whole or not at all, and only while this worker holds it.

        Each message is stored once. These repetitions write nothing: the last reply of the turn, if no result follows
        it; the same result of a call; an append that failed. A reply may have the id of another stored message, as
        replies from a cache do; it is stored under a new id, which the receipt and `messages` have. Messages without an
        id get one; the id of a result is derived from its call. One command; two or three more for an id that is taken.

        Args:
            messages: Output of a model or a tool: LangChain messages, dicts or objects of a provider's SDK. A human
                message, such as an image of a result or a hint of the user, belongs to the turn, too.
            stamp: Stamp of the view that the first AI message answers; by default of the view loaded last.

        Raises:
            InvalidInputError: `stamp` is not that of a view which this conversation had.
            InvalidMessageError: A message is invalid, or has the id of the turn.
            UnfinishedReplyError: A reply failed, was cancelled or is still being made.
            TurnLostError: Another worker took the turn over, or this one left it. Nothing was written.
            TurnConflictError: A later turn has begun. Nothing was written.
            UnknownMessageError: The question, or a message before a variant, was rewound. Nothing was written.
            TurnClosedError: The turn was ended by `finish` or by a stop, perhaps at the same time. Nothing was written.
                Repeating stored messages raises no error. After an answer, further replies are accepted, and the last
                message is the answer. Once the session knows of a stop, replies are refused; results of tools that ran
                are accepted until the session is left.
        """
        addition = self._normalized(messages)
        whole = addition.messages
        for index, message in enumerate(whole):
            _check_finished(message, index=index)
            if message.id == self.turn_id:
                raise InvalidMessageError(
                    "has the id of the turn, which is that of its question", index=index
                )
        answers = any(isinstance(message, AIMessage) for message in whole)
        if stamp is not None:
            check_stamp(stamp)
        stamp = stamp or (self._stamp if answers else None)
        receipt = await self._held.append(addition.answering(stamp))
        if answers:
            self._stamp = None
            self._held.drafts.streamed = StreamedReply()
        return receipt

    def _normalized(self, messages: Any) -> Addition:
        """Return messages with ids, and the set of ids that were generated for messages without one."""
        generated_ids: set[str] = set()

        def new_id() -> str:
            generated_ids.add(made := str(uuid4()))
            return made

        return Addition(normalize_messages(messages, new_id=new_id), generated_ids=generated_ids)

    def stream(
        self,
        source: Any,
        *,
        on_stop: Literal["keep", "discard"] = "keep",
        redact: Callable[[str], str] | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Yield the chunks of a model's reply as they come, and append the reply at its end.

        Meanwhile a draft of its text is stored once a second, outside the log. `Conversation.get_turn` shows it to
        other workers. After a crash it is a prefix of the yielded text that lacks at most the last 1.5 seconds. If the
        client disconnects, the task is cancelled or the source fails, nothing is appended: the turn is unfinished, and
        the same request asks again. If the turn is stopped, the source is closed and the text so far becomes the
        answer; a call that was cut off gets an error as its result.

        Args:
            source: A stream of LangChain, of OpenAI's SDK (Chat Completions or Responses), of Anthropic's, or of
                strings.
            on_stop: "discard" appends nothing of a reply that was stopped.
            redact: Returns the text for the draft, without parts that a later step would remove from the reply. If it
                fails, no draft is stored, and the class of the error is logged.

        Raises:
            InvalidInputError: The source has another type.
            UnfinishedReplyError: The source ended without a whole reply, or reported that the reply failed.
            TurnLostError: Another worker took the turn over.
            Exception: Any error of the source.
        """
        check_one_of(on_stop, "keep", "discard", name="on_stop")
        self._streaming = self._stream(source, on_stop, redact)
        return self._streaming

    async def _stream(self, source: Any, on_stop: str, redact: Any) -> AsyncGenerator[Any, None]:
        reply = StreamedReply()
        held = self._held
        held.drafts.streamed = reply if on_stop == "keep" else StreamedReply()

        def text() -> Any:
            return redact(reply.text) if redact else reply.text

        async with held.drafting(text):
            async with aclosing(read_until(source, held.lease.ended)) as chunks:
                async for chunk in chunks:
                    reply.add(chunk)
                    yield chunk
            if held.lease.is_stopping:
                await held.append_if(self._stop_event)
            else:
                held.lease.check()
                await self.append(reply.whole())

    def _stop_event(self) -> Addition | None:
        """Return the event that stops the turn, with the reply so far; None if the turn ended with that reply.

        Raises:
            TurnClosedError: The turn ended without the reply so far.
        """
        record = self._held.record
        said = self._partial_reply()
        if not record.is_ended:
            stamp = self._stamp if said.messages else None
            return said._replace(event=self._held.event("stop").event).answering(stamp)
        if said.messages and (
            record.answer is None or record.answer.text != self._held.drafts.streamed.text
        ):
            raise TurnClosedError(self.turn_id)
        return None

    def _partial_reply(self) -> Addition:
        """Return the reply as streamed before a stop, with an error as the result of each of its calls."""
        streamed = self._held.drafts.streamed
        message = streamed.message() if streamed.text else None
        if message is None:
            return Addition()
        said = self._normalized(message)
        results = [
            make_result(call, _STOPPED, is_error=True)
            for call in calls_without_result(said.messages)
        ]
        return said._replace(messages=[*said.messages, *results])

    async def add_result(
        self,
        call: TurnCall,
        content: Any = "",
        *,
        sources: Sequence[Any] | None = None,
        artifact: Any = None,
        error: bool = False,
    ) -> Receipt:
        """Append the result of an open call. Results of parallel calls may be added at once, in any order.

        The same result again, in this session or a later one, writes nothing.

        Args:
            call: One of `open_calls`.
            content: Result for the model: a text, a list of content blocks, or a value, which becomes JSON.
            sources: At most 1,000 sources: LangChain documents, texts, ``(text, metadata)`` pairs, or dicts with a
                text, a title or an address. They get numbers of the conversation, for one command more. If the content
                shows every source, its text gets the numbers; else each source is added below the content, as
                ``[number] title (address)`` above its text. None numbers the sources that content and artifact declare:
                documents, ``search_result`` blocks, responses of known search services, and texts that count them. ()
                leaves both as they are, but an empty content becomes "No results."
            artifact: A value that the model does not see. With sources, the message's artifact is
                ``{"sources": [...], "artifact": artifact}``.
            error: True if the tool failed, and `content` says why. A failed call cannot have sources.

        Raises:
            InvalidInputError: The call is not open, a value is not a source, or JSON cannot express the content.
            InvalidMessageError: The type of a content block is not a str.
            UnencodableError: A content block, a source or the artifact has a value of an unknown type.
            ContentConflictError: The call has another result. Nothing was written.
        """
        check_flags(error=error)
        if error and sources:
            raise InvalidInputError(
                "a failed call has no sources; leave out error=True, or the sources"
            )
        message = make_result(self._check_call(call), content, is_error=error)
        check_fields(message, index=0)
        message.artifact = artifact
        message = await self._with_numbers(message, sources)
        return await self._held.append(Addition([message]))

    async def _with_numbers(
        self, message: ToolMessage, sources: Sequence[Any] | None
    ) -> ToolMessage:
        """Return a result with numbers for the caller's sources, or for those that the result declares."""
        if sources is None:
            unnumbered = await _BY_DEFAULT.find(self._chat, message)
            if unnumbered is None:
                return message
            given = await self._numbers_for(message, unnumbered.found)
            return with_numbers(message, unnumbered.found, given, plan=unnumbered.plan)
        found = given_sources(sources)
        if not found.items:
            return message if message.content else message.model_copy(update=_NO_SOURCES)
        return with_rendered(message, found, await self._numbers_for(message, found))

    async def _numbers_for(self, message: ToolMessage, found: FoundSources) -> SourceNumbers:
        """Return numbers for the sources of a result; a repeated result gets the same numbers again."""
        id_ = str(message.id)
        texts = [source.text for source in found.items]
        async with self._numbering:
            known = self._reserved.get(id_)
            if self._held.record.result(id_):
                known = await self._stored_numbers(id_)
                if known.texts != texts:
                    raise ContentConflictError(id_)
            elif known is None or known.texts != texts:
                numbers = await self.reserve(len(texts))
                known = _Numbers(texts, list(numbers), await self._chat.find_shown_sources(texts))
            self._reserved[id_] = known
        return known.numbers, known.earlier

    async def _stored_numbers(self, result_id: str) -> _Numbers:
        """Return the numbers of a stored result; an earlier number that is the result's own counts as None."""
        [record] = await self._chat.get_tool_messages([result_id])
        numbers = [source.source_id for source in record.sources]
        earlier = [
            None if source.earlier_id in numbers else source.earlier_id for source in record.sources
        ]
        return _Numbers([source.content for source in record.sources], numbers, earlier)

    def _check_call(self, call: TurnCall) -> TurnCall:
        """Return the call if it is open, has a result, or is one of a turn that has ended; refuse any other."""
        if not isinstance(call, TurnCall):
            raise InvalidInputError(
                f"call must be one of turn.open_calls, not {type(call).__name__}"
            )
        record = self._held.record
        # the append to the ended turn raises the right error
        is_left = record.is_ended and record.find_call(call.result_id) is not None
        if not (is_left or call.result_id in self._open_ids or record.result(call.result_id)):
            raise InvalidInputError(
                f"the call {call.id!r} of {call.name!r} is not in turn.open_calls"
            )
        return call

    @property
    def _open_ids(self) -> set[str]:
        return {pending.result_id for pending in self.open_calls}

    async def finish(self) -> None:
        """End a turn that has no answer, such as one that ends with a tool's result.

        Views, listings and exports then treat it as finished. A finished turn stays as it is. One command.
        """
        if not self.is_finished:
            await self._held.finish()

    async def wait_for(self, call: TurnCall) -> None:
        """Mark a call as waiting for a person's decision; see `Conversation.decide`.

        The call leaves `open_calls` until then. When only such calls are left, the turn is waiting: leave the session,
        and enter the turn again after the decision, days later and in any worker. A new question closes a waiting turn.
        A call that waits already stays as it is. One command.
        """
        if call in self.waiting_calls:
            return

        def wait() -> Addition | None:
            if call in self.waiting_calls:
                return None
            if self._check_call(call).result_id not in self._open_ids:
                raise InvalidInputError(
                    f"the call {call.id!r} of {call.name!r} has its result already"
                )
            return self._held.event("wait", call.result_id)

        await self._held.append_if(wait)

    async def reserve(self, number: int) -> range:
        """Reserve source ids as `Conversation.reserve_source_ids` does, while this worker holds the turn."""
        check_number(number, name="number", minimum=1, maximum=MAX_SOURCES)
        if PATH in self._chat.scope:
            # Without this check, a reservation would create a deleted outermost conversation again.
            await self._held.lease.renew()
            self._held.lease.check()
            numbers: range = await self._chat.reserve_source_ids(number)
            return numbers
        return await self._held.reserve(number)

    async def __aenter__(self) -> TurnSession:
        if self._renewing is not None:
            raise InvalidInputError("a session is entered once; call chat.turn again")
        self._enter()
        note_entry(self._chat, self._held)
        return self

    def _enter(self, *, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Renew the lease until the session is left, the lease is lost or `goes_on` returns False."""
        self._held.is_entered = True
        self._renewing = self._held.lease.keep(goes_on)
        self._renewing.add_done_callback(self._note_end_of_renewals)

    def _note_end_of_renewals(self, renewals: asyncio.Task[None]) -> None:
        """If a renewal failed unexpectedly, log where, and treat the turn as lost."""
        error = None if renewals.cancelled() else renewals.exception()
        if error is not None:
            self._held.lease.give_up()
            frame = traceback.extract_tb(error.__traceback__)[-1]
            line = "turn %s is given up: the renewal of its lease raised %s at %s:%s"
            _LOGGER.error(line, self.turn_id, type(error).__name__, frame.filename, frame.lineno)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        # the return type is not `bool`: type checkers would then report names of the block as possibly unbound
        note_exit(self._held)
        await self._exit(error)
        return self.is_stopped and self._is_closed_by(error)

    async def _exit(self, error: BaseException | None) -> None:
        self._held.is_entered = False
        if self._renewing is not None:
            self._renewing.cancel()
        await settle(self._leave(error))

    def _is_closed_by(self, error: BaseException | None) -> bool:
        """Return True if an error is only the TurnClosedError of this turn, or a group of such errors."""
        if isinstance(error, BaseExceptionGroup):
            return all(self._is_closed_by(part) for part in error.exceptions)
        return isinstance(error, TurnClosedError) and error.turn_id == self.turn_id

    async def _leave(self, error: BaseException | None) -> None:
        """Close a stream that was not read to its end, so that its draft is written, and release the lease."""
        try:
            if self._streaming is not None:
                with suppress(RuntimeError):  # another task reads it, and finds the turn lost
                    await self._streaming.aclose()
        finally:  # also if its source cannot be closed
            await self._held.note_error(error)
            await self._held.leave(self._stop_event)


async def load_variant(views: PastViews, held: HeldTurn, policy: HistoryPolicy) -> History:
    """Return the view of the variant that a worker is producing, which other views do not show yet."""
    entry = held.branch.totals.entries if held.branch else held.tail.entries
    history, held.record_of_view = await views.of_variant(
        held.scope, entry, policy, held.record_of_view
    )
    return history


def _check_finished(message: BaseMessage, *, index: int) -> None:
    """Raise an UnfinishedReplyError for a reply whose provider reported a failure."""
    if isinstance(message, AIMessage) and (reason := failed_reason(message.response_metadata)):
        raise UnfinishedReplyError(f"the provider reported {reason}", index=index)
