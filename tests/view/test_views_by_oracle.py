"""Views of the store are those of an independent implementation of the rule, for random conversations."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from oracle import Log, decide, essence, whole_view
from properties import soaked
from view_replay import Replay, handles
from view_scripts import Load, Script, policies
from view_workloads import WORKLOADS, Writer

from convstore import ConversationStore, HistoryPolicy

CONVERSATIONS, CALLS = 25, 40
# Budgets are up to 4,000: a text that keeps more than 1,000 tokens is measured by a bound, as its payload is not read.


def replay(
    stores: Sequence[ConversationStore], chosen: random.Random, *, rewinds: float = 0.04
) -> Replay:
    """A random script on a new conversation, with four policies."""
    budget = chosen.choice([2_700, 3_000])
    script = Script(chosen, budget, policies=4, processes=len(stores), rewinds=rewinds)
    return Replay(script, handles(stores), policies(chosen, budget, count=4))


async def test_a_view_shows_what_the_rule_says(stores: list[ConversationStore]) -> None:
    """Each message is whole, a stub, shortened or absent as the rule says, in two processes, under several policies."""
    for seed in range(2):
        await replay(stores, random.Random(seed)).run(CALLS)


@pytest.mark.slow
@pytest.mark.parametrize("block", soaked(range(8), first=1))
async def test_a_thousand_views_show_what_the_rule_says(
    stores: list[ConversationStore], block: int
) -> None:
    """The same for a thousand calls of random conversations."""
    for number in range(CONVERSATIONS):
        await replay(stores, random.Random(f"{block} {number}")).run(CALLS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", soaked(range(15), first=8))
async def test_processes_that_load_at_once_see_the_same(
    stores: list[ConversationStore], seed: int
) -> None:
    """Loads of two processes at the same time show the view of one record, whichever of them stored it."""
    running = replay(stores, random.Random(f"at once {seed}"))
    for event in running.script.events(20):
        if isinstance(event, Load):
            policy = running.policies[event.policy]
            both = await asyncio.gather(*(chat.load_history(policy) for chat in running.chats))
            assert essence(both[0].messages) == essence(both[1].messages)
            running.compare(both[0], event.policy)
        else:
            await running.make(event)


@pytest.mark.slow
async def test_another_question_keeps_the_view(stores: list[ConversationStore]) -> None:
    """A rewind of the last turn keeps the record, so the view for a question that replaces it begins as before."""
    for seed in range(3):
        running = replay(stores, random.Random(seed), rewinds=0)
        await running.run(25)
        views = []
        for process in (0, 1):
            asked = running.script.ask()
            await running.make(asked)
            views.append(essence((await running.load(Load(0, process))).messages)[:-1])
            question = str(asked.messages[0].id)
            await running.chats[process].rewind(before_id=question)
            running.log.rewind(question)
        assert views[0] == views[1]


@pytest.mark.slow
async def test_a_first_view_of_a_long_log_is_that_of_the_rule(
    stores: list[ConversationStore],
) -> None:
    """A policy that never loaded a view begins with the whole log, and then makes room in it."""
    [chat, other] = handles(stores)
    log = Log()
    for batch in WORKLOADS["short chat"](Writer()):
        await chat.append(batch)
        log.append(batch)
    for budget in (600, 5_000, 20_000):
        policy = HistoryPolicy(max_tokens=budget)
        wanted = decide(log, policy, None)
        found = await other.load_history(policy)
        assert essence(found.messages) == essence(wanted.messages())
        assert found.report.left_out_turns == wanted.left_turns


@pytest.mark.slow
async def test_without_a_budget_everything_is_shown(stores: list[ConversationStore]) -> None:
    """`max_tokens=None` leaves nothing out, and nothing is shortened."""
    running = replay(stores, random.Random(3))
    for event in running.script.events(30):
        if isinstance(event, Load):
            found = await running.chats[event.process].load_history(HistoryPolicy(max_tokens=None))
            assert essence(found.messages) == essence(whole_view(running.log, HistoryPolicy()))
            assert not found.report.over_budget
        else:
            await running.make(event)


async def recall(running: Replay, calls: int) -> None:
    """Load this many views, and then rebuild each from its stamp in another process."""
    views = []
    for event in running.script.events(calls):
        await running.make(event)
        if isinstance(event, Load):
            views.append((await running.load(event), running.policies[event.policy]))
    for view, policy in views:
        assert view.stamp
        past = await running.chats[-1].view_at(view.stamp)
        assert past.match == "exact"
        assert essence(past.messages) == essence(view.messages)
        assert (past.policy, past.tokens) == (policy, view.tokens)


@pytest.mark.slow
@pytest.mark.parametrize("block", soaked(range(5), first=1))
async def test_a_thousand_stamps_rebuild_their_views(
    stores: list[ConversationStore], block: int
) -> None:
    """Each view is built again from its stamp, whatever happened to log and records since."""
    for number in range(5):
        await recall(replay(stores, random.Random(f"past {block} {number}")), CALLS)
