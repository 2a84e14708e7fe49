"""A store's summarizer and its policy know of each other: turns are summarised before they would leave views."""

from __future__ import annotations

from typing import Any

import pytest
from mongomock_motor import AsyncMongoMockClient

from convstore import ConversationStore, HistoryPolicy, InvalidInputError
from convstore.summarization import CompactionRule, HeadTailSummarizer


def store(rule: CompactionRule | None, budget: int | None) -> ConversationStore:
    """A store with a rule and a budget; no I/O."""
    client: Any = AsyncMongoMockClient()
    return ConversationStore(
        client["app"], summarizer=HeadTailSummarizer(rule), policy=HistoryPolicy(max_tokens=budget)
    )


@pytest.mark.parametrize(("budget", "trigger"), [(None, 16_000), (32_000, 16_000), (8_000, 4_000), (300, 150)])
def test_the_default_trigger_is_half_of_the_budget(budget: int | None, trigger: int) -> None:
    """Without a budget it is 16,000; the expected size of a summary follows."""
    rule = CompactionRule().under(budget)
    assert rule.max_tokens_before_summary == trigger > rule.max_summary_tokens
    assert store(None, budget)


@pytest.mark.parametrize("budget", [2_000, 1_999])
def test_a_trigger_at_the_budget_or_above_is_refused(budget: int) -> None:
    """By the constructor, with both numbers: turns would leave views before a summary is due."""
    rule = CompactionRule(max_tokens_before_summary=2_000)
    with pytest.raises(InvalidInputError, match=f"is 2000, and the policy's max_tokens {budget}: turns would leave"):
        store(rule, budget)
    assert store(rule, 2_001)
    assert store(rule, None)
