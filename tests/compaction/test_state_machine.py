"""Everything that is done to conversations, in any order, against a model that keeps lists in memory.

Two stores, as two processes have them, work on two scopes of one database. The short form runs with the suite; with
CONVSTORE_LONG=10 ten times as many and as long examples run on each driver.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from mongomock_motor import AsyncMongoMockClient
from motor.motor_asyncio import AsyncIOMotorClient
from properties import examples
from pymongo import AsyncMongoClient

from convstore import (
    Conversation,
    ConversationStore,
    History,
    HistoryPolicy,
    InvalidInputError,
    Receipt,
)
from convstore.chain import ChainSummarizer, ChainSummarizerConfig
from convstore.exceptions import (
    ContentConflictError,
    MessageRewoundError,
    SourceIdClashError,
    UnknownMessageError,
)
from convstore.integration import host_of
from convstore.messages.provenance import kind_of
from convstore.messages.tokens import approximate_tokens
from convstore.messages.tool_calls import pair, without_orphans
from convstore.runtime.clock import Clock
from convstore.testing import same_messages
from convstore.testing.pairing import check_pairing
from convstore.values.policy import CompactionRule

pytestmark = pytest.mark.slow

LONG = int(os.environ.get("CONVSTORE_LONG", "1"))
SETTINGS = examples(
    10 * LONG,
    stateful_step_count=30 * min(LONG, 4),
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
POLICIES = (
    HistoryPolicy(),
    HistoryPolicy(max_tokens=None),
    HistoryPolicy(max_tokens=None, stub_tools="never"),
    HistoryPolicy(max_tokens=None, view="conversation"),
    HistoryPolicy(max_tokens=600),
    HistoryPolicy(max_tokens=1_200, max_turns=3),
)
KINDS = ("turn", "turn", "rag", "rag", "pairs", "ask", "open", "late", "again", "system", "paste")
LEARNT = 11
"""Seconds after which every process has learnt of a deletion."""

_Answer = TypeVar("_Answer")
_NUMBERS = itertools.count(1)

kinds = st.lists(st.sampled_from(KINDS), min_size=1, max_size=3)
sides = st.integers(0, 1)
indexes = st.integers(0, 50)


class Made:
    """A summary as the model knows it."""

    def __init__(
        self,
        version: int,
        text: str,
        parent: Made | None,
        active: dict[int, BaseMessage],
        last: int,
        *,
        by: int,
    ) -> None:
        self.version, self.text, self.parent, self.last, self.by = version, text, parent, last, by
        self.active = {ordinal: message for ordinal, message in active.items() if ordinal <= last}

    def fits(self, active: dict[int, BaseMessage]) -> bool:
        """Return True if the messages that were active up to its end are active now."""
        return {ordinal for ordinal in active if ordinal <= self.last} == set(self.active)


def chain_of(made: Made | None) -> list[Made]:
    """A summary and those that it extends."""
    return [made, *chain_of(made.parent)] if made else []


class Model:
    """A model of a conversation: active messages, summaries, and the steps that led to them."""

    def __init__(self) -> None:
        self.log: list[BaseMessage] = []
        self.active: dict[int, BaseMessage] = {}
        self.undo: list[dict[int, BaseMessage]] = []
        self.summaries: list[Made] = []
        self.current: Made | None = None
        self.aside: list[Made] = []

    def append(self, batch: Sequence[BaseMessage]) -> None:
        """Behind the log."""
        for message in batch:
            self.log.append(message)
            self.active[len(self.log)] = message

    def rewind(self, back: int) -> str:
        """Rewind some of the last messages, or all of them; gives the id of the first one."""
        self.undo.append(dict(self.active))
        gone = list(self.active)[-back:]
        first = self.active[gone[0]]
        self.active = {
            ordinal: message for ordinal, message in self.active.items() if ordinal < gone[0]
        }
        self.reselect()
        return str(first.id)

    def take_back(self) -> None:
        """The last rewind is taken back, and those before it are what they were then."""
        if self.undo:
            self.active = self.undo.pop()
            self.reselect()

    def reselect(self) -> None:
        """The longest summary that fits, of those that the current one extends and those that a rewind set aside."""
        known = [made for end in (self.current, *self.aside) for made in chain_of(end)]
        fitting = [made for made in known if made.fits(self.active)]
        best = max(fitting, key=lambda made: (made.last, made.version), default=None)
        if best is not self.current:
            self.aside = [made for made in known if made is not best]
            self.current = best

    def leading(self) -> list[BaseMessage]:
        """The system messages that the active messages begin with."""
        return list(
            itertools.takewhile(lambda message: message.type == "system", self.active.values())
        )

    def unsummarized(self) -> list[BaseMessage]:
        """The active messages that are not summarised, without leading system messages."""
        if self.current:
            return [
                message for ordinal, message in self.active.items() if ordinal > self.current.last
            ]
        return list(self.active.values())[len(self.leading()) :]


class Backend:
    """A driver's database, and the loop that it is used on."""

    def __init__(self, runner: asyncio.Runner, database: Callable[[], Any]) -> None:
        self.runner, self.database = runner, database


@pytest.fixture(params=["pymongo", pytest.param("motor", marks=pytest.mark.slow), "memory"])
def backend(
    request: pytest.FixtureRequest, server_uri: str, database_name: str
) -> Iterator[Backend]:
    """Each driver on a loop of its own, as the steps of a machine are no coroutines."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        if request.param == "memory":
            yield Backend(runner, lambda: AsyncMongoMockClient()["app"])
            return
        client: Any = {"pymongo": AsyncMongoClient, "motor": AsyncIOMotorClient}[request.param](
            server_uri
        )
        yield Backend(runner, lambda: client[database_name])
        closing = client.close()
        if closing is not None:
            runner.run(closing)


class Talk(Model):
    """A conversation as it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.exists = False
        self.back: list[int] = []
        self.through = 0
        self.unused: list[int] = []
        self.sources: dict[int, tuple[str, str]] = {}
        self.shown: dict[str, int] = {}
        self.said: dict[str, dict[str, Any]] = {}
        self.title: str | None = None
        self.metadata: dict[str, Any] = {}

    @property
    def ids(self) -> list[str]:
        """Ids of the whole log."""
        return [str(message.id) for message in self.log]

    def append(self, batch: Sequence[BaseMessage]) -> None:
        """Behind the log; sources get the next numbers unless they came with some."""
        self.exists = True
        super().append(batch)
        for message in batch:
            for text, said in getattr(message, "artifact", None) or ():
                number = said.get("source_id")
                if number is None:
                    number = self.through = self.through + 1
                self.sources[number] = (str(message.id), text)
                self.shown.setdefault(text, number)

    def rewind_to(self, ordinal: int) -> int:
        """A message and all after it leave; gives how many."""
        if ordinal not in self.active:
            return 0
        left = sum(other >= ordinal for other in self.active)
        self.rewind(left)
        self.back.append(left)
        return left

    def undo_rewind(self) -> int:
        """Gives how many come back."""
        if not self.undo:
            return 0
        self.take_back()
        return self.back.pop()

    def unseen(self) -> set[str]:
        """Ids of the question and of the last step of the turn in progress, which the model has not read yet."""
        now = [
            message
            for message in self.active.values()
            if str(message.id) in self.turn_in_progress()
        ]
        steps = [index for index, message in enumerate(now) if message.type == "ai"]
        questions = {str(message.id) for message in now if message.type == "human"}
        return questions | {str(message.id) for message in now[steps[-1] if steps else 0 :]}

    def turn_in_progress(self) -> set[str]:
        """Ids of the messages of the last turn, if it is not finished: an answer ends it, whatever follows."""
        active = list(self.active.values())
        asked = [index for index, message in enumerate(active) if message.type == "human"]
        turn = active[asked[-1] if asked else 0 :]
        said = [message for message in turn if message.type == "ai"]
        is_answered = any(not getattr(message, "tool_calls", []) for message in said)
        return set() if is_answered else {str(message.id) for message in turn}


class Writer:
    """A summarizer that says little."""

    name = "scripted"
    rule = CompactionRule(max_tokens_before_summary=300, max_summary_tokens=20, keep_last_turns=1)

    def __init__(self) -> None:
        self.shown: list[BaseMessage] = []
        self.earlier: str | None = None

    async def summarize(self, messages: Sequence[BaseMessage], *, summary: str | None) -> str:
        """A few words, never the same."""
        self.shown, self.earlier = list(messages), summary
        return f"Part {next(_NUMBERS)}."


async def shorten(prompt: str) -> str:
    """The model of the chain summarizer."""
    return f"part {next(_NUMBERS)}"


def chain() -> ChainSummarizer:
    """The other kind of summarizer."""
    config = ChainSummarizerConfig(last_section_bytes=3_000, max_pair_bytes=1_500)
    return ChainSummarizer(shorten, config=config, rule=Writer.rule)


def hidden(message: BaseMessage, policy: HistoryPolicy) -> bool:
    """Return True if a view of the conversation alone leaves a message out."""
    return policy.view == "conversation" and (
        message.type == "tool" or bool(getattr(message, "tool_calls", None))
    )


class Machine(RuleBasedStateMachine):
    """Two stores on one database, and the model of two conversations."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.run = backend.runner.run
        self.seconds = 0.0
        self.user = uuid.uuid4().hex
        self.database = backend.database()
        self.writer = Writer()
        self.stores = [self.store(self.writer), self.store(chain())]
        self.talks = [Talk(), Talk()]
        self.run(self.stores[0].setup())

    def teardown(self) -> None:
        """After any steps, verify finds nothing when all processes have ended."""
        for store in self.stores:
            self.run(store.close())
        self.seconds += 200
        assert self.run(self.store().verify(user_id=self.user)).findings == ()

    def store(self, summarizer: Any = None, **options: Any) -> ConversationStore:
        """A store as another process has it."""
        start = datetime(2026, 3, 1, tzinfo=UTC)
        clock = Clock(
            now=lambda: start + timedelta(seconds=self.seconds),
            monotonic=lambda: self.seconds,
            sleep=_no_pause,
        )
        return ConversationStore(self.database, summarizer=summarizer, clock=clock, **options)

    def chat(self, side: int, scope: int, store: ConversationStore | None = None) -> Conversation:
        """Return the conversation of this scope in one of the stores."""
        return (store or self.stores[side]).conversation(
            user_id=self.user, thread_id=f"thread {scope}"
        )

    def refused(self, error: type[Exception], work: Awaitable[Any]) -> None:
        """A call that must not be done."""
        with pytest.raises(error):
            self.run(_awaited(work))

    # -----------------------------------------------------------------------------------------------------------------
    # Messages

    def made(self, kind: str, talk: Talk) -> list[BaseMessage]:
        """Messages of one kind; calls repeat their ids, texts of sources too."""
        n = next(_NUMBERS)
        call = {"name": "run", "args": {"n": n}, "id": f"call{n % 5}"}
        asked, done = (
            HumanMessage(f"question {n} " + "why " * (n % 30), id=f"h{n}"),
            AIMessage(f"answer {n}", id=f"a{n}"),
        )
        called = AIMessage("", id=f"c{n}", tool_calls=[call])
        result = ToolMessage(
            f"line {n}\n" * 150, id=f"t{n}", name="run", tool_call_id=f"call{n % 5}"
        )
        found = [
            (f"Passage {(n + index) % 7} " * 40, {"title": f"T{index}"})
            for index in range(n % 3 + 1)
        ]
        if talk.unused and n % 2:
            found[0] = (found[0][0], {"title": "T", "source_id": talk.unused.pop()})
        rag = ToolMessage(
            f"found {n}", id=f"t{n}", name="search", tool_call_id=f"call{n % 5}", artifact=found
        )
        made: dict[str, list[BaseMessage]] = {
            "system": [SystemMessage(f"rule {n}", id=f"s{n}")],
            "ask": [asked],
            "turn": [asked, done],
            "paste": [HumanMessage(f"paste {n} " * 3_000, id=f"h{n}"), done],
            "rag": [asked, called, rag, done],
            "pairs": [asked, called, result],
            "open": [asked, called],
            "late": [ToolMessage(f"late {n}", id=f"t{n}", tool_call_id=f"call{(n - 1) % 5}")],
            "again": [AIMessage("", id=f"c{n}", tool_calls=[call, call]), result],
        }
        return made[kind]

    def batch(self, scope: int, texts: Sequence[str]) -> list[BaseMessage]:
        """A batch of some kinds."""
        return [message for kind in texts for message in self.made(kind, self.talks[scope])]

    # -----------------------------------------------------------------------------------------------------------------
    # Appends

    @rule(side=sides, scope=sides, texts=kinds)
    def append(self, side: int, scope: int, texts: list[str]) -> None:
        """New messages stand after the log."""
        talk, batch = self.talks[scope], self.batch(scope, texts)
        receipt = self.run(self.chat(side, scope).append(batch))
        self.check_receipt(receipt, talk, batch)
        talk.append(batch)
        self.look(1 - side, scope)

    def check_receipt(self, receipt: Receipt, talk: Talk, batch: Sequence[BaseMessage]) -> None:
        """Assert that a receipt has the ids and the numbers that the model expects."""
        first = len(talk.log) + 1
        assert receipt.message_ids == tuple(str(message.id) for message in batch)
        assert receipt.ordinals == tuple(range(first, first + len(batch)))
        assert (receipt.first, receipt.last, receipt.written) == (
            first,
            first + len(batch) - 1,
            len(batch),
        )

    @rule(scope=sides, texts=kinds, other=kinds, policy=st.sampled_from(POLICIES))
    def append_together(
        self, scope: int, texts: list[str], other: list[str], policy: HistoryPolicy
    ) -> None:
        """Two processes at once, and a load meanwhile: each batch whole, one after the other."""
        talk, batches = self.talks[scope], [self.batch(scope, texts), self.batch(scope, other)]
        before = talk.ids

        async def work() -> tuple[Receipt, Receipt, History]:
            return await asyncio.gather(
                self.chat(0, scope).append(batches[0]),
                self.chat(1, scope).append(batches[1]),
                self.chat(0, scope).load_history(policy),
            )

        *receipts, history = self.run(work())
        for receipt, batch in sorted(
            zip(receipts, batches, strict=True), key=lambda pair: pair[0].first
        ):
            self.check_receipt(receipt, talk, batch)
            talk.append(batch)
        # A load sees none of a batch or all of it, and what it sees is the beginning of the final order.
        shown, new = (
            {message.id for message in history.messages} - set(before),
            talk.ids[len(before) :],
        )
        prefixes = [len(before), *(receipt.last for receipt in receipts)]
        if policy.max_tokens is None and policy.view == "full":
            seen = {*shown, *history.report.orphans, *history.report.late_results} & set(new)
            assert seen in [set(talk.ids[len(before) : end]) for end in prefixes]
        self.look(1, scope)

    @rule(scope=sides, texts=kinds)
    def append_the_same_together(self, scope: int, texts: list[str]) -> None:
        """Append the same messages in two processes at once: one of them writes."""
        talk, batch = self.talks[scope], self.batch(scope, texts)

        async def work() -> list[Receipt]:
            return await asyncio.gather(*(self.chat(side, scope).append(batch) for side in (0, 1)))

        receipts = self.run(work())
        assert sorted(receipt.written for receipt in receipts) == [0, len(batch)]
        assert receipts[0].ordinals == receipts[1].ordinals
        talk.append(batch)
        self.look(0, scope)

    @rule(
        side=sides,
        scope=sides,
        start=indexes,
        length=st.integers(1, 6),
        texts=st.lists(st.sampled_from(KINDS), max_size=1),
    )
    def replay(self, side: int, scope: int, start: int, length: int, texts: list[str]) -> None:
        """Messages that are there are not written again; what is new among them is."""
        talk = self.talks[scope]
        if not talk.log:
            return
        start %= len(talk.log)
        old, new = talk.log[start : start + length], self.batch(scope, texts)
        work = self.chat(side, scope).append([*old, *new])
        if any(ordinal not in talk.active for ordinal in range(start + 1, start + 1 + len(old))):
            self.refused(MessageRewoundError, work)
        else:
            receipt = self.run(work)
            assert receipt.written == len(new)
            assert receipt.ordinals[: len(old)] == tuple(range(start + 1, start + 1 + len(old)))
            assert receipt.ordinals[len(old) :] == tuple(
                range(len(talk.log) + 1, len(talk.log) + 1 + len(new))
            )
            talk.append(new)
        self.look(1 - side, scope)

    @rule(side=sides, scope=sides, index=indexes)
    def conflict(self, side: int, scope: int, index: int) -> None:
        """The same id with other content: nothing of the batch is written."""
        talk = self.talks[scope]
        if talk.log:
            other = HumanMessage("something else", id=talk.log[index % len(talk.log)].id)
            self.refused(
                ContentConflictError,
                self.chat(side, scope).append([*self.batch(scope, ["turn"]), other]),
            )
            self.look(1 - side, scope)

    @rule(side=sides, scope=sides, index=indexes)
    def clash(self, side: int, scope: int, index: int) -> None:
        """A number that a source has is nobody else's: nothing of the batch is written."""
        talk = self.talks[scope]
        if talk.sources:
            number = sorted(talk.sources)[index % len(talk.sources)]
            found = [("A passage of its own. " * 20, {"source_id": number})]
            batch = [ToolMessage("x", id=f"t{next(_NUMBERS)}", tool_call_id="x", artifact=found)]
            self.refused(SourceIdClashError, self.chat(side, scope).append(batch))
            self.look(1 - side, scope)

    @rule(side=sides, scope=sides, number=st.integers(1, 5))
    def reserve(self, side: int, scope: int, number: int) -> None:
        """Numbers that nobody else gets."""
        talk = self.talks[scope]
        given = self.run(self.chat(side, scope).reserve_source_ids(number))
        assert given == range(talk.through + 1, talk.through + number + 1)
        talk.exists = True
        talk.through += number
        talk.unused += given

    # -----------------------------------------------------------------------------------------------------------------
    # What changes views

    @rule(side=sides, scope=sides, index=indexes)
    def rewind(self, side: int, scope: int, index: int) -> None:
        """A message and all after it leave, unless they left already."""
        talk = self.talks[scope]
        if not talk.log:
            self.refused(UnknownMessageError, self.chat(side, scope).rewind(before_id="h0"))
            return
        ordinal = len(talk.log) - index % len(talk.log)
        assert self.run(
            self.chat(side, scope).rewind(before_id=talk.ids[ordinal - 1])
        ) == talk.rewind_to(ordinal)
        self.look(1 - side, scope)

    @rule(side=sides, scope=sides)
    def undo_rewind(self, side: int, scope: int) -> None:
        """The last rewind is taken back."""
        assert self.run(self.chat(side, scope).undo_rewind()) == self.talks[scope].undo_rewind()
        self.look(1 - side, scope)

    @rule(side=sides, scope=sides, force=st.booleans())
    def compact(self, side: int, scope: int, force: bool) -> None:
        """A summary covers the messages that were active up to its end, whichever summarizer made it."""
        talk, chat = self.talks[scope], self.chat(side, scope)
        unsummarized, leading = talk.unsummarized(), len(talk.leading())
        done = self.run(chat.compact(force=force))
        assert done.status in ("done", "not_needed", "failed", "waiting")
        if done.status == "failed":
            # it would save nothing, or is too large
            assert done.problem.startswith("SummaryError: "), done.problem
        if done.summary is None:
            self.look(1 - side, scope)
            return
        summary = done.summary
        new = Made(summary.version, summary.text, talk.current, talk.active, summary.last, by=side)
        assert summary.version == len(talk.summaries) + 1
        assert summary.last in talk.active
        assert talk.active[summary.last].id in [message.id for message in unsummarized]
        if talk.current is None:
            assert summary.first == list(talk.active)[leading]
        inside = [message for ordinal, message in new.active.items() if ordinal >= summary.first]
        assert summary.tool_message_ids == [
            message.id for message in inside if message.type == "tool"
        ]
        if side == 0:
            earlier = self.writer.earlier
            shown = [
                message for message in self.writer.shown if kind_of(message) != "missing_result"
            ]
            folded = unsummarized[: len(shown)]
            assert folded[-1].id == talk.active[summary.last].id
            # results may come at their calls, as in a view
            assert sorted(str(message.id) for message in shown) == sorted(
                str(message.id) for message in folded
            )
            others = [message.id for message in folded if message.type != "tool"]
            assert [message.id for message in shown if message.id in others] == others
            assert check_pairing(self.writer.shown) == []
            before = talk.current.text if talk.current else ""
            # what a chain kept word for word comes with its summaries
            if talk.current and talk.current.by == 1:
                assert [part for part in before.split("\n\n") if part not in earlier] == []
            else:
                assert (earlier or "") == before
        talk.summaries.append(new)
        talk.current = new
        self.look(1 - side, scope)

    @rule(side=sides, scope=sides)
    def undo_compaction(self, side: int, scope: int) -> None:
        """The summary before, or the messages."""
        talk = self.talks[scope]
        assert self.run(self.chat(side, scope).undo_compaction()) == (talk.current is not None)
        undone = talk.current
        talk.aside = [made for made in talk.aside if undone not in chain_of(made)]
        talk.current = undone and undone.parent
        self.look(1 - side, scope)

    @rule(side=sides, scope=sides)
    def delete(self, side: int, scope: int) -> None:
        """Delete a conversation: nothing of it is left, and its scope is empty."""
        self.run(self.chat(side, scope).delete())
        self.talks[scope] = Talk()
        self.seconds += LEARNT
        self.look(1 - side, scope)

    @rule(seconds=st.sampled_from([1, 9, 11, 70]))
    def time_passes(self, seconds: int) -> None:
        """Caches grow old, heads become due, and so does the second sweep."""
        self.seconds += seconds

    # -----------------------------------------------------------------------------------------------------------------
    # What is said of messages and conversations

    @rule(
        side=sides,
        scope=sides,
        index=indexes,
        value=st.sampled_from([None, 1, "good", {"$set": "x"}, "\ud800"]),
    )
    def annotate(self, side: int, scope: int, index: int, value: Any) -> None:
        """Kept beside the message, rewound or not."""
        talk = self.talks[scope]
        message_id = talk.ids[index % len(talk.ids)] if talk.log else "h0"
        work = self.chat(side, scope).annotate(message_id, rating=value, by="ada")
        if not talk.log:
            self.refused(UnknownMessageError, work)
            return
        self.run(work)
        said = {**talk.said.get(message_id, {}), "rating": value, "by": "ada"}
        talk.said[message_id] = {name: item for name, item in said.items() if item is not None}
        assert self.run(self.chat(1 - side, scope).annotations([message_id, "h0"])) == {
            message_id: talk.said[message_id]
        }

    @rule(side=sides, scope=sides, title=st.sampled_from([None, "Whales", "\x00", "\ud800"]))
    def update(self, side: int, scope: int, title: str | None) -> None:
        """Title and metadata; the conversation begins with them."""
        talk = self.talks[scope]
        talk.exists, talk.title, talk.metadata = True, title, {"a.b": next(_NUMBERS), "$set": title}
        self.run(self.chat(side, scope).update(title=title, metadata=talk.metadata))
        self.look(1 - side, scope)

    # -----------------------------------------------------------------------------------------------------------------
    # Reads

    @rule(side=sides, scope=sides, policy=st.sampled_from(POLICIES))
    def load(self, side: int, scope: int, policy: HistoryPolicy) -> None:
        """The view equals the model's."""
        self.check_view(self.run(self.chat(side, scope).load_history(policy)), scope, policy)

    async def sealed(self, side: int, scope: int) -> None:
        """Seal a conversation in one of the processes."""
        chat = self.chat(side, scope)
        sealer = (await host_of(chat).services()).sealer
        await sealer.seal(tuple(chat.scope.items()))

    @rule(scope=sides, processes=st.sampled_from([(0,), (1,), (0, 1)]))
    def seal(self, scope: int, processes: tuple[int, ...]) -> None:
        """Searches of segments and of the log give the same hits, whichever process seals."""

        async def seal_all() -> None:
            await asyncio.gather(*(self.sealed(side, scope) for side in processes))

        self.run(seal_all())

    @rule(side=sides, scope=sides)
    def delete_during_a_seal(self, side: int, scope: int) -> None:
        """A segment that comes too late belongs to nobody."""

        async def both() -> None:
            await asyncio.gather(self.sealed(side, scope), self.chat(1 - side, scope).delete())

        self.run(both())
        self.talks[scope] = Talk()
        self.seconds += LEARNT
        self.look(side, scope)

    @rule(side=sides, scope=sides, index=indexes)
    def search(self, side: int, scope: int, index: int) -> None:
        """Live messages only, each under its id; a word of one of them finds it."""
        talk = self.talks[scope]
        active = sorted(talk.active)
        ordinal = active[index % len(active)] if active else 0
        words = (
            re.findall(r"\b[a-z]{4,20}\b", str(talk.active[ordinal].content)[:2_000])
            if active
            else ["whale"]
        )
        hits = self.run(self.chat(side, scope).search(" ".join(words[:3]), limit=200))
        assert {hit.ordinal for hit in hits} <= set(talk.active)
        assert all(hit.message_id == talk.ids[hit.ordinal - 1] for hit in hits)
        assert not words or not active or ordinal in [hit.ordinal for hit in hits]
        scanning = self.chat(side, scope, self.store(search_index=False))
        assert hits == self.run(scanning.search(" ".join(words[:3]), limit=200))

    @rule(side=sides, scope=sides, numbers=st.lists(indexes, max_size=5))
    def read(self, side: int, scope: int, numbers: list[int]) -> None:
        """Messages by id, in the order asked for, whether rewound or not; foreign and unknown ones left out."""
        talk, other = self.talks[scope], self.talks[1 - scope]
        wanted = (
            list(dict.fromkeys(talk.ids[index % len(talk.ids)] for index in numbers))
            if talk.log
            else []
        )
        asked = ["h0", *other.ids[:2], *wanted]
        records = self.run(self.chat(side, scope).get_tool_messages(asked))
        assert [record.tool_message_id for record in records] == wanted
        for record in records:
            message = talk.log[record.ordinal - 1]
            assert (record.tool_message_id, record.content) == (message.id, message.content)
            assert record.artifact == getattr(message, "artifact", None)
            assert {
                source.source_id: (source.tool_message_id, source.content)
                for source in record.sources
            } == {
                number: (id_, text)
                for number, (id_, text) in talk.sources.items()
                if id_ == message.id
            }

    @rule(
        side=sides,
        scope=sides,
        numbers=st.lists(st.integers(1, 40), min_size=1, max_size=5, unique=True),
    )
    def read_sources(self, side: int, scope: int, numbers: list[int]) -> None:
        """Whole texts, page by page; the tool names the same ones."""
        talk, texts = self.talks[scope], dict[int, str]()
        cursor: str | None = ""
        while cursor is not None:
            page = self.run(
                self.chat(side, scope).get_sources(numbers, cursor=cursor, page_tokens=100)
            )
            assert page.not_found == [number for number in numbers if number not in talk.sources]
            for source in page.sources:
                texts[source.source_id] = texts.get(source.source_id, "") + source.content
                first = talk.shown[talk.sources[source.source_id][1]]
                assert source.earlier_id == (None if first == source.source_id else first)
            cursor = page.next_cursor
        assert texts == {
            number: talk.sources[number][1] for number in numbers if number in talk.sources
        }
        tool = self.chat(side, scope).retrieve_previous_sources_tool()
        answer = self.run(tool.ainvoke({"source_ids": numbers}))
        for number in numbers:
            assert (f"[{number}] " in answer) == (number in talk.sources)

    @rule(side=sides, scope=sides)
    def find_shown(self, side: int, scope: int) -> None:
        """Under which number a text was first shown; a warm process may not know what others showed in 10 s."""
        texts = [f"Passage {index} " * 40 for index in range(7)]
        shown = [self.talks[scope].shown.get(text) for text in texts]
        found = self.run(self.chat(side, scope).find_shown_sources(texts))
        assert all(value in (None, number) for value, number in zip(found, shown, strict=True))
        assert self.run(self.chat(0, scope, self.store()).find_shown_sources(texts)) == shown

    def look(self, side: int, scope: int) -> None:
        """The other process knows what happened: counts and the end of the log."""
        talk = self.talks[scope]
        info = self.run(self.chat(side, scope).info())
        assert (info.message_count, info.title, info.metadata) == (
            len(talk.active),
            talk.title,
            talk.metadata,
        )
        assert (info.created_at is not None) == talk.exists
        assert info.tokens == sum(approximate_tokens([message]) for message in talk.active.values())
        last = self.run(self.chat(side, scope).list_messages(limit=2, full=True))
        assert [message.ordinal for message in last] == list(talk.active)[-2:]
        assert same_messages([message.message for message in last], list(talk.active.values())[-2:])

    @rule(scope=sides)
    def check_all(self, scope: int) -> None:
        """Processes with and without a cached conversation read the same of it, and all of it."""
        talk, late = self.talks[scope], self.store()
        chats = [self.chat(0, scope), self.chat(1, scope), self.chat(0, scope, late)]
        for policy in POLICIES:
            histories = [self.run(chat.load_history(policy)) for chat in chats]
            self.check_view(histories[0], scope, policy)
            assert len({json.dumps(_comparable(history)) for history in histories}) == 1
        for chat in chats:
            self.run(self.check_log(chat, talk))
        listed = self.run(late.list_conversations(user_id=self.user)).conversations
        assert sorted(info.scope["thread_id"] for info in listed) == [
            f"thread {index}" for index, other in enumerate(self.talks) if other.exists
        ]

    async def check_log(self, chat: Conversation, talk: Talk) -> None:
        """The log, its pages, its turns and its summaries."""
        active = list(talk.active.values())
        assert same_messages([message async for message in chat.messages(rewound=True)], talk.log)
        pages = [await chat.list_messages(after=0, limit=7, full=True)]
        while pages[-1]:
            pages.append(await chat.list_messages(after=pages[-1][-1].ordinal, limit=7, full=True))
        assert same_messages([message.message for page in pages for message in page], active)
        assert {
            str(message.message.id): message.annotations
            for page in pages
            for message in page
            if message.annotations
        } == {
            id_: said
            for id_, said in talk.said.items()
            if said and id_ in {message.id for message in active}
        }
        turns = [turn async for turn in chat.turns()]
        assert same_messages([message for turn in turns for message in turn.messages], active)
        for turn in turns:
            humans = [message.type for message in turn.messages].count("human")
            assert humans == (turn.number > 0)
            assert turn.messages[0].type == "human" or not turn.number
        back = [turn.turn_id async for turn in chat.turns(newest_first=True)]
        assert back == [turn.turn_id for turn in reversed(turns)]
        made = await chat.summaries()
        assert [older.version for older in made if older.is_current] == (
            [talk.current.version] if talk.current else []
        )
        for expected, summary in zip(talk.summaries, made, strict=True):
            inside = [
                message for ordinal, message in expected.active.items() if ordinal >= summary.first
            ]
            assert same_messages(await chat.expand_summary(summary.version), inside)
        with pytest.raises(InvalidInputError):
            await chat.expand_summary(len(made) + 1)

    # -----------------------------------------------------------------------------------------------------------------
    # The view

    def check_view(self, history: History, scope: int, policy: HistoryPolicy) -> None:
        """System messages, the replacement of older ones, then the model's messages, old results as stubs."""
        talk, messages, report = self.talks[scope], history.messages, history.report
        assert check_pairing(messages) == []
        assert history.summary == (talk.current.text if talk.current else None)
        assert (
            history.tokens
            == report.tokens_after
            == sum(approximate_tokens([message]) for message in messages)
        )
        assert report.over_budget == (
            policy.max_tokens is not None and history.tokens > policy.max_tokens
        )
        leading = [str(message.id) for message in talk.leading()]
        ids = [str(message.id) for message in messages]
        assert ids[: len(leading)] == leading
        if policy.max_tokens is None and policy.view == "full":
            summary_messages = self.summary_messages(scope)
            listed = [*talk.leading(), *summary_messages, *talk.unsummarized()]
            if summary_messages:
                listed = without_orphans(listed)
            whole = pair(listed)
            late = [str(message.id) for message in listed if kind_of(message) == "late_result"]
            assert ids == [
                f"{message.id}~" if kind_of(message) == "late_result" else str(message.id)
                for message in whole.messages
            ]
            assert report.late_results == tuple(late)
            assert (report.orphans, report.missing_results) == (
                tuple(whole.orphans),
                tuple(whole.missing),
            )
            assert report.left_out_turns == 0
        unsummarized = {
            str(message.id): message
            for message in talk.unsummarized()
            if not hidden(message, policy)
        }
        if policy.max_tokens is None:
            assert set(unsummarized) <= {*ids, *report.orphans, *report.late_results}
        if report.left_out_turns:
            assert not set(unsummarized) <= {*ids, *report.orphans, *report.late_results}
        now = talk.turn_in_progress() if policy.max_tokens is None else talk.unseen()
        self.check_messages(history, policy, unsummarized, now)

    def summary_messages(self, scope: int) -> list[BaseMessage]:
        """Return the messages that replace summarised ones in a view, by a store that never saw the conversation."""
        summaries = self.run(self.chat(0, scope, self.store()).summaries())
        return [
            message for summary in summaries if summary.is_current for message in summary.messages
        ]

    def check_messages(
        self,
        history: History,
        policy: HistoryPolicy,
        unsummarized: dict[str, BaseMessage],
        now: set[str],
    ) -> None:
        """Each message as it was appended, or as its stub or with a placeholder, and then the report says so."""
        report = history.report
        for message in history.messages:
            id_ = str(message.id)
            if id_ not in unsummarized:
                continue
            was = unsummarized[id_]
            changed = id_ in {*report.stubbed, *report.placeholders, *report.shortened}
            assert changed == (message.content != was.content)
            assert not changed or id_ not in now
            if id_ in report.stubbed:
                assert policy.stub_tools == "finished_turns"
                assert (message.artifact, message.tool_call_id) == (None, was.tool_call_id)
                if was.artifact and was.text:  # a short status stays
                    assert message.text.startswith(
                        f"{was.text}\n[tool_message_id: {id_}, source_ids: "
                    )
                else:
                    stub = json.loads(str(message.content))
                    assert stub["tool_message_id"] == id_
                    assert ("source_ids" in stub) == bool(was.artifact)
            elif id_ in report.shortened:
                assert policy.max_tokens is not None
                assert message.text[:20] == was.text[:20]
                assert message.text[-20:] == was.text[-20:]
                assert id_ in message.text
                assert len(message.text) < len(was.text)
            elif not changed:
                assert same_messages([message], [was])


async def _no_pause(seconds: float) -> None:
    """In the place of a wait between two looks."""


async def _awaited(work: Awaitable[_Answer]) -> _Answer:
    return await work


def _comparable(history: History) -> list[Any]:
    return [
        history.summary,
        history.tokens,
        *(message.model_dump(mode="json") for message in history.messages),
    ]


def test_whatever_is_done_the_store_is_as_the_model(backend: Backend) -> None:
    """Every promise of the log, the view and the read-back, for two processes and two scopes at once."""
    run_state_machine_as_test(partial(Machine, backend), settings=SETTINGS)
