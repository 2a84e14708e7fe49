"""The state of a conversation says if the answer to its newest question was cut off, wherever that was appended."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from convstore import Conversation
from convstore.messages.turn_calls import cut_error


def _asked(turn: str) -> BaseMessage:
    return HumanMessage("Why?", id=turn)


def _said(reason: str) -> BaseMessage:
    return AIMessage("Because", response_metadata={"finish_reason": reason})


async def _state(chat: Conversation) -> str:
    return (await chat.info()).state


async def test_only_the_answer_to_the_newest_question_counts(chat: Conversation) -> None:
    """Not one before it, nor one that comes late to an earlier question."""
    await chat.append([_asked("q1"), _said("length")])
    assert await _state(chat) == "cut"
    await chat.append([_asked("q2")])
    assert await _state(chat) == "open"
    await chat.append([_said("content_filter")])
    assert await _state(chat) == "refused"
    await chat.append([_said("stop")], turn="q2")
    assert await _state(chat) == "finished"
    await chat.append([_said("length")], turn="q1")
    assert await _state(chat) == "finished"


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        *(("stopReason", reason) for reason in ("content_filtered", "guardrail_intervened")),
        *(("finish_reason", reason) for reason in ("BLOCKLIST", "LANGUAGE", "MODEL_ARMOR", "SPII")),
        ("stop_reason", "refusal"),
    ],
)
async def test_every_filter_refuses_a_reply(chat: Conversation, key: str, reason: str) -> None:
    """Amazon and Google name more filters than one: a reply that one of them ended is not finished.

    Its last call is not run either: half of its arguments may be missing.
    """
    call = {"name": "pay", "args": {"amount": 1}, "id": "c1"}
    calling = AIMessage("", tool_calls=[call], response_metadata={key: reason})
    assert "was cut off" in cut_error(calling, "c1")
    await chat.append([_asked("q1"), AIMessage("Because", response_metadata={key: reason})])
    assert await _state(chat) == "refused"


@pytest.mark.parametrize(
    "reply",
    [
        AIMessage("", additional_kwargs={"refusal": "No."}),
        AIMessage([{"type": "refusal", "refusal": "No."}]),
        AIMessage([{"type": "refusal", "refusal": "No. " * 9_000}]),
    ],
    ids=["beside", "block", "long"],
)
async def test_a_refusal_with_an_ordinary_stop_reason_is_refused(
    chat: Conversation, reply: AIMessage
) -> None:
    """OpenAI's models end it as any answer, which may have no text."""
    reply.response_metadata["finish_reason"] = "stop"
    await chat.append([_asked("q1"), reply])
    assert await _state(chat) == "refused"
    assert (await chat.store.verify(**chat.scope)).ok


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("finish_reason", "MALFORMED_FUNCTION_CALL"),
        ("finish_reason", "TOO_MANY_TOOL_CALLS"),
        ("stopReason", "malformed_tool_use"),
    ],
)
async def test_a_reply_with_a_call_that_nobody_could_read_is_cut(
    chat: Conversation, key: str, reason: str
) -> None:
    """Google and Amazon end it there, often without any text: it is no finished answer."""
    await chat.append([_asked("q1"), AIMessage("", response_metadata={key: reason})])
    assert await _state(chat) == "cut"


async def test_a_rewind_shows_the_state_before(chat: Conversation) -> None:
    """Of the question that is the newest one again, with the answers that are left of it."""
    await chat.append([_asked("q1"), _said("length")])
    await chat.append([_asked("q2"), _said("content_filter")])
    await chat.append([_asked("q3"), _said("stop")])
    for question, state in (("q3", "refused"), ("q2", "cut")):
        await chat.rewind(before_id=question)
        assert await _state(chat) == state
    assert (await chat.store.verify(**chat.scope)).ok


async def test_a_turn_without_an_answer_is_not_cut(chat: Conversation) -> None:
    """An event may end a turn without an answer."""
    await chat.append([_asked("q1"), _said("length")])
    async with await chat.turn("q2", human="And now?") as turn:
        await turn.finish()
    assert await _state(chat) == "finished"
