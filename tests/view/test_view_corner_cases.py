"""Corner cases of the rule that decides what a view shows: each answer of the rule's table, on the public API."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from counting import STANDING, Commands
from fixture_types import Client
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from oracle import Log, Oracle, Record, count_letters, decide, essence
from properties import sampled
from pymongo import AsyncMongoClient
from view_replay import Replay, handles, kinds
from view_scripts import Load, Script
from view_workloads import WORKLOADS, Writer, calls_model

from convstore import Conversation, ConversationStore, History, HistoryPolicy
from convstore.integration import host_of
from convstore.messages.tokens import approximate_tokens
from convstore.runtime.clock import Clock
from convstore.summarization import CompactionRule
from convstore.testing import rag_turn

NOTE_TOKENS = 210
"""The most that a note may add to a view that fits the budget."""


class Brief:
    """A summarizer that writes a text of known size."""

    name = "brief"

    def __init__(self, budget: int) -> None:
        self.rule = CompactionRule(
            max_tokens_before_summary=budget // 2,
            max_summary_tokens=budget // 10,
            keep_last_turns=2,
        )

    async def summarize(self, messages: Sequence[BaseMessage], *, summary: str | None) -> str:  # noqa: ARG002 - as the protocol has it
        """Return the same text for any messages."""
        return "summary" * 10


@pytest.mark.slow
@pytest.mark.costly
@pytest.mark.parametrize("seed", range(3))
async def test_a_view_begins_after_its_summary(database: Any, seed: int) -> None:
    """With summaries, the view is that of the record or of the summary's end, whichever is later; stamps say which."""
    budget = 4_000
    store = ConversationStore(database, token_counter=count_letters, summarizer=Brief(budget))
    script = Script(random.Random(seed), budget, rewinds=0)
    running = Replay(script, handles([store]), [HistoryPolicy(max_tokens=budget)])
    [chat], log, views = running.chats, script.log, list[History]()
    for number, event in enumerate(script.events(40)):
        await running.make(event)
        if number % 9 == 8 and (done := await chat.compact(force=True)).summary:
            log.summary_through = done.summary.last
            history = await chat.load_history(running.policies[0])
            log.summary_size = count_letters(
                [message for message in history.messages if kinds([message]) == ["summary"]]
            )
            running.compare(history, 0)
            views.append(history)
    assert log.summary_through
    assert await chat.undo_compaction()
    late = ConversationStore(database, token_counter=count_letters).conversation(**chat.scope)
    for history in views:
        past = await late.view_at(history.stamp)
        assert (past.match, past.messages) == ("exact", history.messages)
    await store.close()


@pytest.mark.slow
async def test_a_seventeenth_policy_decides_without_storing(database: Any) -> None:
    """Sixteen policies have a record each; one more gets a view decided each time, and pushes out none of them."""
    store = ConversationStore(database, token_counter=count_letters)
    [chat], log, stored = handles([store]), Log(), dict[str, Any]()
    used = [HistoryPolicy(max_tokens=1_000 + number) for number in range(17)]
    records: dict[int, Record | None] = {}
    for at, batch in enumerate(islice(WORKLOADS["short chat"](Writer()), 71)):
        await chat.append(batch)
        log.append(batch)
        if at % 5 or not calls_model(batch):
            continue
        for number, policy in enumerate(used):
            decision = decide(log, policy, records.get(number))
            assert essence((await chat.load_history(policy)).messages) == essence(
                decision.messages()
            )
            records[number] = decision.record if number < 16 else None
            if number == 15:
                stored = await stored_views(database, chat)
        assert await stored_views(database, chat) == stored
    assert len(stored) == 16
    await store.close()


async def stored_views(database: Any, chat: Conversation) -> dict[str, Any]:
    """The records of views in the state of a conversation."""
    state = await database["log"].find_one({"_id": f"{(await chat.info()).conversation_id}:~"})
    return dict(state.get("views", {}))


@pytest.mark.slow
async def test_a_policy_that_rested_for_a_day_makes_room(database: Any) -> None:
    """A new policy takes the place of one whose record has not moved for a day."""
    moment = [datetime.now(UTC)]
    clock = Clock(now=lambda: moment[0], monotonic=lambda: moment[0].timestamp())  # noqa: PLW0108 - it moves
    store = ConversationStore(database, token_counter=count_letters, clock=clock)
    [chat], log = handles([store]), Log()
    batches = list(WORKLOADS["short chat"](Writer()))
    for batch in batches[:60]:
        await chat.append(batch)
        log.append(batch)
    for number in range(16):
        await chat.load_history(HistoryPolicy(max_tokens=1_000 + number))
    moment[0] += timedelta(days=1, minutes=1)
    late, record = HistoryPolicy(max_tokens=2_000), None
    for batch in batches[60:120]:
        await chat.append(batch)
        log.append(batch)
        decision = decide(log, late, record)
        record = decision.record
        assert essence((await chat.load_history(late)).messages) == essence(decision.messages())
    await store.close()


async def test_a_load_that_lost_decides_again(
    stores: list[ConversationStore], database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load that loses to another process decides again, and does not move the other's stored view back."""
    policy = HistoryPolicy(max_tokens=3_000)
    [chat, other] = handles(stores)
    states: Any = (await host_of(chat).services()).loader._states
    move = states.move_view

    async def fill(turns: int) -> None:
        for _ in range(turns):
            await other.append([HumanMessage("Why?"), AIMessage("a" * 2_400)])

    async def move_late(*values: Any, **options: Any) -> bool:
        monkeypatch.setattr(states, "move_view", move)
        await fill(20)
        await other.load_history(policy)
        moved.append(await stored_views(database, other))
        return bool(await move(*values, **options))

    moved = list[Any]()
    await fill(12)
    monkeypatch.setattr(states, "move_view", move_late)
    late = await chat.load_history(policy)
    assert moved == [await stored_views(database, other)]
    assert late.messages == (await other.load_history(policy)).messages


@pytest.mark.costly
@pytest.mark.parametrize("seed", range(6))
async def test_a_real_counter_keeps_within_the_budget_and_a_note(
    store: ConversationStore, seed: int
) -> None:
    """With the default counter, a view exceeds the budget by a note at most, unless what is unseen does not fit."""
    chosen = random.Random(seed)
    budget = chosen.choice([2_000, 4_000])
    script = Script(chosen, budget, policies=1)
    chat = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
    running, policy = Replay(script, [chat], []), HistoryPolicy(max_tokens=budget)
    for event in script.events(40):
        if not isinstance(event, Load):
            await running.make(event)
            continue
        history = await chat.load_history(policy)
        assert history.tokens == approximate_tokens(history.messages)
        unseen = approximate_tokens(
            [line.message for line in Oracle(script.log, policy).unseen_lines]
        )
        note = approximate_tokens(
            [message for message in history.messages if kinds([message]) == ["note"]]
        )
        assert note <= NOTE_TOKENS
        assert history.tokens <= max(budget, unseen) + note
        assert history.report.over_budget == (history.tokens > budget)


WRITES = {"insert", "update", "delete", "findAndModify"}


def writes(commands: Commands) -> list[str]:
    """The commands of the calls counted that may have written."""
    return [name for name, _ in commands.own if name in WRITES]


@pytest.mark.slow
async def test_a_view_that_fits_writes_nothing(
    client: Client, database_name: str, commands: Commands
) -> None:
    """Loads of a small conversation, of a log decided before, or without a budget only read."""
    store = ConversationStore(client[database_name], token_counter=count_letters, clock=STANDING)
    [chat], log, record = handles([store]), Log(), None
    small, unlimited = HistoryPolicy(max_tokens=100_000), HistoryPolicy(max_tokens=None)
    policy = HistoryPolicy(max_tokens=2_000)
    for batch in islice(WORKLOADS["short chat"](Writer()), 80):
        await chat.append(batch)
        log.append(batch)
        decision = decide(log, policy, record)
        with commands.counted():
            await chat.load_history(policy)
            assert bool(writes(commands)) == (decision.record != record)
        with commands.counted():
            for given in (policy, small, unlimited):
                await chat.load_history(given)
            assert not writes(commands)
        record = decision.record
    assert record
    await store.close()


@pytest.mark.slow
async def test_a_record_that_cannot_be_stored_fails_no_load(
    server_uri: str, database_name: str
) -> None:
    """If the server refuses to store a record, each load still shows the view that the rule decides."""
    name = "a store that cannot write"
    async with AsyncMongoClient[dict[str, Any]](server_uri, appname=name) as client:
        store = ConversationStore(
            client[database_name], token_counter=count_letters, clock=STANDING
        )
        [chat], log, policy = handles([store]), Log(), HistoryPolicy(max_tokens=2_000)
        for batch in list(WORKLOADS["short chat"](Writer()))[:61]:
            await chat.append(batch)
            log.append(batch)
        failing = {
            "failCommands": ["update", "findAndModify", "insert"],
            "errorCode": 13,
            "appName": name,
        }
        await client.admin.command(
            "configureFailPoint", "failCommand", mode="alwaysOn", data=failing
        )
        try:
            for _ in range(3):
                found = await chat.load_history(policy)
                assert essence(found.messages) == essence(decide(log, policy, None).messages())
        finally:
            await client.admin.command("configureFailPoint", "failCommand", mode="off")
        await store.close()


LONG = "word " * 5_000
SHAPES: dict[str, AIMessage] = {
    "arguments": AIMessage("", tool_calls=[{"name": "write", "args": {"text": LONG}, "id": "c"}]),
    "arguments beside a text": AIMessage(
        LONG, tool_calls=[{"name": "write", "args": {"text": LONG}, "id": "c"}]
    ),
    "two texts": AIMessage([{"type": "text", "text": LONG}, {"type": "text", "text": LONG}]),
    "a dense text beside a long one": AIMessage(
        [{"type": "text", "text": "海" * 3_000}, {"type": "text", "text": LONG}]
    ),
    "reasoning": AIMessage(
        [{"type": "thinking", "thinking": LONG, "signature": "s"}, {"type": "text", "text": "so"}]
    ),
    "a call as a block": AIMessage(
        [{"type": "tool_use", "id": "c", "name": "write", "input": {"text": LONG}}],
        tool_calls=[{"name": "write", "args": {"text": LONG}, "id": "c"}],
    ),
}


@pytest.mark.costly
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("shorten_over", sampled([4_000, 50, 400, 1_200, None], every=4))
async def test_what_is_not_shortened_counts_in_the_budget(
    chat: Conversation, shape: str, shorten_over: int | None
) -> None:
    """`shorten_over` cuts texts of finished turns, not their arguments and reasoning: the view keeps to its budget."""
    policy = HistoryPolicy(max_tokens=23_000, shorten_over=shorten_over)
    for number in range(9):
        await chat.append(HumanMessage("And now?"))
        history = await chat.load_history(policy)
        assert history.tokens <= 23_000
        said = SHAPES[shape].model_copy(update={"id": f"said {number}"})
        results = [ToolMessage("ok", tool_call_id="c")] if said.tool_calls else []
        await chat.append([said, *results, AIMessage("Done.")])
    assert history.report.left_out_turns + history.report.left_out_steps or shape not in {
        "arguments",
        "reasoning",
    }


async def test_the_turn_in_progress_counts_whole_towards_a_summary(chat: Conversation) -> None:
    """Its results are no stubs yet, so a compaction rule measures what the view shows."""
    await chat.append(rag_turn("What about whales?"))
    await chat.append(rag_turn("And seals?")[:3])
    history = await chat.load_history()
    assert history.report.tokens_unsummarized == history.tokens


async def test_what_is_returned_without_validation_is_valid(
    stores: list[ConversationStore],
) -> None:
    """Receipt, view and report have each field of their model, with a value that it accepts."""
    chat = stores[0].conversation(user_id="ada", thread_id="t")
    receipt = await chat.append(rag_turn("Where are whales?"))
    history = await chat.load_history()
    for made in (receipt, history.report, history):
        values = dict(made)
        assert [*values] == [*type(made).model_fields]
        assert dict(type(made)(**values)) == values
