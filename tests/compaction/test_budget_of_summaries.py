"""A store's summarizer and its policy know of each other: turns are summarised before they would leave views."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from fixture_types import Client
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from mongomock_motor import AsyncMongoMockClient

from convstore import Conversation, ConversationStore, History, HistoryPolicy, InvalidInputError
from convstore.summarization import CompactionRule, HeadTailSummarizer
from convstore.testing import rag_turn


def store(rule: CompactionRule | None, budget: int | None) -> ConversationStore:
    """A store with a rule and a budget; no I/O."""
    client: Any = AsyncMongoMockClient()
    return ConversationStore(
        client["app"], summarizer=HeadTailSummarizer(rule), policy=HistoryPolicy(max_tokens=budget)
    )


@pytest.mark.parametrize(
    ("budget", "trigger"), [(None, 16_000), (32_000, 16_000), (8_000, 4_000), (300, 150)]
)
def test_the_default_trigger_is_half_of_the_budget(budget: int | None, trigger: int) -> None:
    """Without a budget it is 16,000; the expected size of a summary follows."""
    rule = CompactionRule().under(budget)
    assert rule.max_tokens_before_summary == trigger > rule.max_summary_tokens
    assert store(None, budget)


@pytest.mark.parametrize("budget", [2_000, 1_999])
def test_a_trigger_at_the_budget_or_above_is_refused(budget: int) -> None:
    """By the constructor, with both numbers: turns would leave views before a summary is due."""
    rule = CompactionRule(max_tokens_before_summary=2_000)
    with pytest.raises(
        InvalidInputError, match=f"is 2000, and the policy's max_tokens {budget}: turns would leave"
    ):
        store(rule, budget)
    assert store(rule, 2_001)
    assert store(rule, None)


def turn(number: int, words: int) -> list[BaseMessage]:
    """A question and an answer of so many words."""
    return [
        HumanMessage(f"Question {number}?", id=f"q{number}"),
        AIMessage("word " * words, id=f"a{number}"),
    ]


@pytest.fixture(params=["explicit", "before_load"])
async def chat(request: pytest.FixtureRequest, client: Client, database_name: str) -> Conversation:
    """A conversation under a budget of 2,000 tokens, with turns that the rule alone would not summarise yet."""
    rule = CompactionRule(
        max_tokens_before_summary=1_900, max_summary_tokens=100, keep_last_turns=1
    )
    policy = HistoryPolicy(max_tokens=2_000, compact=request.param)
    store = ConversationStore(
        client[database_name], summarizer=HeadTailSummarizer(rule), policy=policy
    )
    await store.setup()
    return store.conversation(user_id=uuid.uuid4().hex, thread_id="t")


def shown(history: History) -> set[str]:
    """Ids of the messages in a view."""
    return {str(message.id) for message in history.messages}


@pytest.mark.slow
@pytest.mark.costly
async def test_no_turn_leaves_views_without_a_summary(chat: Conversation) -> None:
    """Each turn is in the view, or in a summary once a compaction has run, whatever the sizes of turns."""
    before_load = chat.store.policy.compact == "before_load"
    for number in range(1, 31):
        await chat.append(turn(number, 100 + 450 * (number % 4 == 0)))
        await chat.append(HumanMessage("And?", id=f"and{number}"))
        history = await chat.load_history()
        assert not history.report.over_budget
        if not before_load and history.report.left_out_turns:
            assert (await chat.compact()).status == "done"
            history = await chat.load_history()
        assert history.report.left_out_turns == 0
        covered = max(
            (summary.last for summary in await chat.summaries() if summary.is_current), default=0
        )
        page = await chat.list_messages(after=covered, limit=200)
        assert {message.message.id for message in page} <= shown(history)
        await chat.append(AIMessage("Well.", id=f"well{number}"))
    assert history.summary is not None


async def test_a_smaller_policy_of_a_load_only_reports(chat: Conversation) -> None:
    """Summaries belong to the store's policy; turns that such a load leaves out make none due."""
    for number in range(1, 5):
        await chat.append(turn(number, 100))
    history = await chat.load_history(HistoryPolicy(max_tokens=300))
    assert history.report.left_out_turns > 0
    assert (await chat.compact()).status == "not_needed"
    assert (await chat.load_history()).report.left_out_turns == 0


async def test_a_note_names_results_that_are_in_no_summary_any_more(
    client: Client, database_name: str
) -> None:
    """The record keeps the names of results before its start; after an undo those that the summary named come back."""
    rule = CompactionRule(max_tokens_before_summary=900, max_summary_tokens=100, keep_last_turns=1)
    policy = HistoryPolicy(max_tokens=1_000)

    def opened() -> ConversationStore:
        return ConversationStore(
            client[database_name], summarizer=HeadTailSummarizer(rule), policy=policy
        )

    store = opened()
    await store.setup()
    chat = store.conversation(user_id=uuid.uuid4().hex, thread_id="t")
    for number in range(4):
        await chat.append(rag_turn(f"Question {number}?"))
    assert (await chat.compact(force=True)).status == "done"
    number, history = 4, await chat.load_history()
    while not history.report.left_out_turns:
        await chat.append(rag_turn(f"Question {number}? {'Please explain. ' * 40}"))
        number, history = number + 1, await chat.load_history()
    assert await chat.undo_compaction()
    for conversation in (chat, opened().conversation(**chat.scope)):
        loaded = await conversation.load_history()
        [note] = [message.text for message in loaded.messages if "left out here" in message.text]
        assert "m3 (source ids 1-3)" in note
        assert loaded.messages == (await conversation.view_at(loaded.stamp)).messages
    warm = await chat.load_history()
    assert warm.report.round_trips == 1


async def test_a_note_names_only_results_before_the_view(
    client: Client, database_name: str
) -> None:
    """The view rebuilt at a number equals the loaded one, although one append holds turns before the view and in it."""
    store = ConversationStore(client[database_name], policy=HistoryPolicy(max_tokens=1_000))
    await store.setup()
    chat = store.conversation(user_id=uuid.uuid4().hex, thread_id="t")
    await chat.append(rag_turn("And seals?"))
    await chat.append(
        [
            message
            for number in range(9)
            for message in rag_turn(f"Question {number}? {'Please explain. ' * 40}")
        ]
    )
    loaded = await chat.load_history()
    assert loaded.report.left_out_turns > 1
    last = (await chat.info()).message_count
    assert (await chat.view_at(last)).messages == loaded.messages
