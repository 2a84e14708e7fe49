"""Rewinding, by a model: the view of a conversation that was rewound is that of one which was never written so."""

from __future__ import annotations

import itertools
import random
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from mongomock_motor import AsyncMongoMockClient
from properties import examples

from convstore import ConversationStore, History, HistoryPolicy
from convstore.log.entry import Entry, RewoundRange, Totals
from convstore.log.rewind import NO_REWINDS, Rewinds
from convstore.testing import same_messages

_NUMBERS = itertools.count(1)


def script_of(seed: int) -> list[tuple[str, Any]]:
    """Return a strategy for steps on a conversation; appends come first and most often."""
    dice = random.Random(seed)
    script: list[tuple[str, Any]] = []
    for _ in range(dice.randint(6, 40)):
        kinds = [dice.choice(["turn", "rag", "rag", "ask", "system"]) for _ in range(dice.randint(1, 3))]
        step = dice.choice(["append", "append", "append", "rewind", "undo", "load", "load", "reserve", "switch"])
        value = {
            "append": kinds,
            "rewind": dice.choice([1, 2, 3, 5, 8, 100]),
            "load": 0,  # under a budget that is exceeded, a rewind keeps the record of where views begin
            "reserve": 2,
        }.get(step)
        script.append((step, value) if script else ("append", ["system", *kinds] if dice.random() < 0.5 else kinds))
    return script


POLICIES = (
    HistoryPolicy(),
    HistoryPolicy(max_tokens=400),
    HistoryPolicy(max_tokens=900, max_turns=3, keep_last_results=1),
)


def made(kind: str) -> list[BaseMessage]:
    """Messages of one kind, with ids of their own and no sources: their numbers go on over what is rewound."""
    n = next(_NUMBERS)
    asked = HumanMessage(f"question {n} " + "why " * (n % 40), id=f"h{n}")
    if kind == "system":
        return [SystemMessage(f"rule {n}", id=f"s{n}")]
    if kind == "ask":
        return [asked]
    if kind == "turn":
        return [asked, AIMessage(f"answer {n}", id=f"a{n}")]
    call = AIMessage("", id=f"c{n}", tool_calls=[{"name": "run", "args": {"n": n}, "id": f"call{n % 7}"}])
    result = ToolMessage(f"line {n}\n" * 200, id=f"t{n}", tool_call_id=f"call{n % 7}")
    return [asked, call, result, AIMessage(f"done {n}", id=f"a{n}")]


class Model:
    """A model of a conversation: the active messages, and the steps that led to them."""

    def __init__(self) -> None:
        self.active: list[BaseMessage] = []
        self.undo: list[list[BaseMessage]] = []

    def rewind(self, back: int) -> str | None:
        """Rewind some of the last messages, or all of them; gives the id of the first one."""
        if not self.active:
            return None
        self.undo.append(list(self.active))
        gone, self.active = self.active[-back:], self.active[:-back]
        return gone[0].id

    def take_back(self) -> None:
        """The last rewind is taken back, and those before it are what they were then."""
        if self.undo:
            self.active = self.undo.pop()


def comparable(history: History) -> list[Any]:
    """A view without what is counted in ordinals of the log."""
    return [
        (message.type, message.content, "note" if "note" in str(message.additional_kwargs) else message.id)
        for message in history.messages
    ]


@examples(80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32).map(script_of))
async def test_a_rewound_conversation_is_like_one_that_was_never_written_so(script: list[tuple[str, Any]]) -> None:
    """Views under any policy, listings, turns and counts, for processes that know it and for those that do not."""
    database = AsyncMongoMockClient()["rewinds"]
    stores = [ConversationStore(database), ConversationStore(database)]
    await stores[0].setup()
    thread = uuid.uuid4().hex
    chat, other = (store.conversation(user_id="a", thread_id=thread) for store in stores)
    model, log = Model(), []
    for kind, value in script:
        if kind == "append":
            batch = [message for one in value for message in made(one)]
            await chat.append(batch)
            model.active += batch
            log += batch
        elif kind == "rewind" and (message_id := model.rewind(value)):
            assert await chat.rewind(before=message_id) > 0
        elif kind == "undo":
            model.take_back()
            await chat.undo_rewind()
        elif kind == "load":
            await chat.load_history(POLICIES[value])
        elif kind == "reserve":
            await chat.reserve_source_ids(value)
        elif kind == "switch":
            chat, other = other, chat
    fresh = ConversationStore(database).conversation(user_id="b", thread_id=thread)
    if model.active:
        await fresh.append(model.active)
    cold = ConversationStore(database).conversation(user_id="a", thread_id=thread)
    for policy in POLICIES:
        expected = comparable(await fresh.load_history(policy))
        for one in (chat, other, cold):
            assert comparable(await one.load_history(policy)) == expected
    assert same_messages([one.message for one in await cold.list_messages(limit=1_000, full=True)], model.active)
    assert same_messages([message async for turn in cold.turns() for message in turn.messages], model.active)
    assert same_messages([message async for message in cold.messages()], log)
    assert ((await cold.info()).message_count, (await cold.info()).tokens) == (
        len(model.active),
        (await fresh.info()).tokens,
    )


@pytest.mark.parametrize(("ordinal", "expected"), [(2, True), (3, False), (4, False), (5, True)])
def test_what_is_in_a_gap_is_not_live(ordinal: int, expected: bool) -> None:
    """Both ends belong to the range."""
    assert Rewinds(ranges=(RewoundRange(3, 4, 2, 3),)).has(ordinal) == expected


def test_reading_passes_over_entries_without_live_messages() -> None:
    """Back from any of them, and forth."""
    rewinds = Rewinds(ranges=(RewoundRange(3, 4, 2, 3), RewoundRange(6, 9, 5, 8)))
    assert [rewinds.end_before(number) for number in range(1, 11)] == [1, 2, 2, 2, 5, 5, 5, 5, 5, 10]
    assert [rewinds.start_from(number) for number in range(1, 11)] == [1, 4, 4, 4, 9, 9, 9, 9, 9, 10]


def test_a_difference_needs_the_whole_list_that_it_continues() -> None:
    """Counts that happen to agree with another list are no proof."""
    totals = Totals(entries=9, messages=10, active=8, rewind_entry=9, whole_list=5)
    entry = Entry(9, datetime.now(UTC), (), totals, rewound=(RewoundRange(3, 4, 2, 3),))
    with pytest.raises(ValueError, match="the whole list of rewound ranges that it continues is missing"):
        NO_REWINDS.after(entry)
    assert NO_REWINDS.after(replace(entry, totals=replace(totals, whole_list=9))).inactive == 2
