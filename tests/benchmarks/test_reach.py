"""The benchmark of reach: its questions keep what their strata promise, and it runs on a small slice."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import reach
import reach_data
from reach_data import content_words, own, text_of
from reach_ways import measured, table

SMALL = 6_000


@pytest.fixture(scope="module")
def conversations() -> dict[str, Any]:
    """All conversations, hardly padded; making one checks its proofs and the words that it shares."""
    return {conversation.name: conversation for conversation in own(tokens=SMALL)}


def test_there_are_questions_of_every_stratum_in_both_halves(conversations: dict[str, Any]) -> None:
    """At least 120 in all, and neither half has less than a third of a stratum."""
    questions = [
        question for conversation in conversations.values() for question in conversation.questions
    ]
    assert len(questions) >= 120
    assert len({question.id for question in questions}) == len(questions)
    for stratum in reach_data.STRATA[:-1]:
        halves = [question.held_out for question in questions if question.stratum == stratum]
        assert len(halves) / 3 < sum(halves) < len(halves) * 2 / 3


def test_a_conversation_is_made_the_same_again(conversations: dict[str, Any]) -> None:
    """Ids and texts depend on nothing but the files."""
    [again] = own(tokens=SMALL, names=["study"])
    assert [text_of(message) for message in again.messages] == [
        text_of(message) for message in conversations["study"].messages
    ]


def test_content_words_leave_out_what_every_question_has() -> None:
    """Question words are no content words; inflected words are the same word."""
    assert content_words("Which appointments were moved?") == ["appoi", "moved"]
    assert content_words("我对什么过敏") == ["过敏"]


@pytest.mark.slow
async def test_a_small_run_gives_a_table_a_chart_and_json(
    own_database: Any, conversations: dict[str, Any]
) -> None:
    """The full history holds every proof; the window holds what is in it; every reader and ranking has a figure."""
    outcomes = await reach.measure(own_database, conversations["talk"])
    found = reach.summary(outcomes)
    assert set(found["reached"]["full history"].values()) == {1.0}
    assert found["recall"]["BM25 per message"]["same words"] > 0.9
    assert found["given"]["full history"] > found["given"]["view of 4,000"] > 0
    text = reach.table("all", found)
    assert all(reader in text for reader in reach.READERS)
    assert ElementTree.fromstring(reach.chart(found)).tag.endswith("svg")  # noqa: S314 - written by the line itself
    assert json.loads(json.dumps([reach.as_json(outcome) for outcome in outcomes]))[0][
        "id"
    ].startswith("talk-")


def test_plain_bm25_prefers_rare_words() -> None:
    """A text with the rarer of two words comes first, and texts without any word are left out."""
    ranking = reach.Bm25(["the cat and the dog", "the heron", "the dog", "nothing at all"])
    assert ranking.best_first("the heron or the dog")[0] == 1
    assert 3 not in ranking.best_first("the heron or the dog")


async def test_the_ways_of_reading_back_are_counted(tmp_path: Path) -> None:
    """Of each result but the last the passage that people found relevant, by all ways; by its number in one call."""
    messages: list[dict[str, Any]] = []
    for topic in ("owls", "orcas", "seals"):
        passages = [
            {"text": f"{topic} and {what}. " * 30, "title": topic, "url": "", "relevant": [vote]}
            for what, vote in (("fish", "no"), ("sleep", "yes"))
        ]
        call = {"id": topic, "function": {"name": "search", "arguments": "{}"}}
        found = {"content": "2 passages", "name": "search", "tool_call_id": topic}
        messages += [
            {"role": "user", "content": f"Do {topic} sleep?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", **found, "sources": passages},
            {"role": "assistant", "content": "Yes."},
        ]
    path = tmp_path / "mtrag_small.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps({"id": "c", "messages": messages}).encode()))
    costs = (await measured([path]))[path.name]
    assert {way: len(taken) for way, taken in costs.items()} == dict.fromkeys(costs, 2)
    assert all(cost.found for taken in costs.values() for cost in taken)
    assert {cost.calls for cost in costs["number"]} == {1}
    assert "number           2    100%     1.0" in table({path.name: costs})
