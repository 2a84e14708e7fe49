"""An answer that its provider paused leaves its turn in progress for everything that asks where a turn ends."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore
from convstore.summarization import CompactionRule, HeadTailSummarizer

PAUSED, ENDED = {"stop_reason": "pause_turn"}, {"stop_reason": "end_turn"}


@pytest.fixture
async def chat() -> AsyncIterator[Conversation]:
    """A conversation in memory that is summarised above 2,000 tokens."""
    rule = CompactionRule(
        max_tokens_before_summary=2_000, max_summary_tokens=300, keep_last_turns=1
    )
    async with await ConversationStore.connect(
        "memory://", summarizer=HeadTailSummarizer(rule)
    ) as store:
        await store.setup()
        yield store.conversation(user_id="ada", thread_id="t")


@pytest.mark.parametrize(("reason", "status"), [(PAUSED, "done"), (ENDED, "not_needed")])
async def test_a_compaction_counts_its_turn_whole(
    chat: Conversation, reason: dict[str, str], status: str
) -> None:
    """The model is shown its results in full until the answer that follows; those of a finished turn are stubs."""
    for _ in range(3):
        await chat.append([HumanMessage("why " * 100), AIMessage("so " * 200)])
    call = AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "c"}])
    result = ToolMessage("word " * 6_000, tool_call_id="c", name="search")
    await chat.append(
        [HumanMessage("And?"), call, result, AIMessage("Wait.", response_metadata=reason)]
    )
    assert (await chat.compact()).status == status


@pytest.mark.parametrize(("reason", "is_found"), [(PAUSED, False), (ENDED, True)])
async def test_a_search_does_not_find_its_question(
    chat: Conversation, reason: dict[str, str], is_found: bool
) -> None:
    """The question that the model works on holds the words that it looks for."""
    await chat.append(
        [HumanMessage("Which passage had seals?"), AIMessage("Wait.", response_metadata=reason)]
    )
    found = await chat.retrieve_previous_sources_tool().ainvoke({"find": "seals"})
    assert ("Which passage" in found) == is_found
