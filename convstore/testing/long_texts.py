"""Tests of long texts in views: whole by default, wherever they are stored, and read in few round trips.

The rules themselves are tested without a database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from convstore.conversation import Conversation
from convstore.testing.fixtures import NewStore
from convstore.testing.samples import new_id, rag_turn, same_messages
from convstore.values.policy import CompactionRule, HistoryPolicy

__all__ = ["LongTextContract"]

_UNLIMITED = HistoryPolicy(max_tokens=None)
_IMAGE = {"type": "image", "base64": "QUJD" * 20_000, "mime_type": "image/png"}


def _text(words: int, *, seed: str = "word") -> str:
    return " ".join(f"{seed}{number}" for number in range(words))


def _said() -> list[BaseMessage]:
    """Return a finished turn whose messages are all long."""
    call = {"name": "write_file", "args": {"text": _text(4_000, seed="arg")}, "id": "call-1"}
    reasoning = {"type": "reasoning", "reasoning": _text(4_000, seed="thought")}
    return [
        HumanMessage([{"type": "text", "text": _text(4_000)}, _IMAGE], id=new_id()),
        AIMessage([reasoning, {"type": "text", "text": _text(4_000, seed="code")}], id=new_id()),
        AIMessage("", tool_calls=[call], id=new_id()),
        *rag_turn("Is it written?")[2:],
    ]


class _RecordingSummarizer:
    """A summarizer that records the messages that it gets."""

    name = "reader"
    rule = CompactionRule(
        max_tokens_before_summary=2_000, max_summary_tokens=100, keep_last_turns=1
    )

    def __init__(self) -> None:
        self.shown: list[BaseMessage] = []

    async def summarize(self, messages: Sequence[BaseMessage], *, summary: str | None) -> str:
        self.shown += messages
        return f"{summary or 'So far'}+{len(messages)}"


class LongTextContract:
    """Long texts of users and models."""

    async def test_what_was_said_is_whole_in_every_view(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Texts, arguments and reasoning of finished turns, in the process that appended them and in others."""
        said = _said()
        said[3].tool_call_id = "call-1"  # type: ignore[attr-defined]
        await chat.append(said)
        await chat.append([HumanMessage("Change the second function."), AIMessage("Done.")])
        for conversation in (chat, elsewhere):
            history = await conversation.load_history(_UNLIMITED)
            assert history.messages[0].content[0] == said[0].content[0]
            assert "image/png, 60,000 bytes" in str(history.messages[0].content[1])
            assert same_messages(history.messages[1:3], said[1:3])
            assert history.report.placeholders == (said[0].id,)
            assert history.tokens == history.report.tokens_after

    async def test_long_texts_cost_one_round_trip_once(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Texts that a store appended or showed are cached; another store reads them once, all in parallel."""
        for number in range(3):
            await chat.append([HumanMessage(_text(5_000, seed=f"w{number}-")), AIMessage("ok")])
        assert (await chat.load_history(_UNLIMITED)).report.round_trips == 1
        assert (await chat.load_history(_UNLIMITED)).report.round_trips == 1
        trips = [(await elsewhere.load_history(_UNLIMITED)).report.round_trips for _ in range(3)]
        assert trips == [3, 1, 1]

    async def test_a_short_message_of_the_turn_before_is_a_round_trip_less(
        self, chat: Conversation
    ) -> None:
        """After a long paste, the next turn costs as many round trips as without the paste."""
        await chat.append([HumanMessage(_text(5_000)), AIMessage("ok")])
        await chat.load_history()
        await chat.append(HumanMessage("Change the second function."))
        history = await chat.load_history()
        assert history.report.round_trips == 1
        assert history.messages[0].text == _text(5_000)

    @pytest.mark.parametrize("kind", ["default", "conversation"])
    async def test_a_view_with_a_paste_begins_with_the_view_before(
        self, chat: Conversation, kind: Any
    ) -> None:
        """Long texts do not change when their turn is finished, so the prompt cache stays valid."""
        policy = HistoryPolicy(
            view="full" if kind == "default" else "conversation", max_tokens=100_000
        )
        before: list[BaseMessage] = []
        for number in range(4):
            await chat.append(HumanMessage(_text(5_000, seed=f"w{number}-"), id=new_id()))
            messages = (await chat.load_history(policy)).messages
            assert same_messages(messages[: len(before)], before)
            before = messages
            await chat.append(AIMessage(_text(5_000, seed=f"a{number}-"), id=new_id()))

    async def test_a_summarizer_is_shown_all_of_every_message(
        self, chat: Conversation, new_store: NewStore
    ) -> None:
        """A summarizer gets the long texts and results of finished turns in full, and images as descriptions."""
        reader = _RecordingSummarizer()
        chat = new_store(summarizer=reader).conversation(**chat.scope)  # the store is set up
        said = _said()
        said[3].tool_call_id = "call-1"  # type: ignore[attr-defined]
        await chat.append(said)
        await chat.append(rag_turn("And now?"))
        assert (await chat.compact()).status == "done"
        assert same_messages(reader.shown[1:], said[1:])
        assert reader.shown[0].content[0] == said[0].content[0]
        assert "image/png, 60,000 bytes" in str(reader.shown[0].content[1])
