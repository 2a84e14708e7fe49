"""The caller of a sub-agent that waits for a person waits, too, in lists and on pages."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage

from convstore import Conversation
from convstore.integration import row_of
from convstore.types import TurnSession

LONG = "c" * 600


def _asking(*ids: str, name: str = "helper") -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": {}, "id": id_} for id_ in ids])


async def _call(chat: Conversation, turn_id: str, *ids: str, name: str = "helper") -> TurnSession:
    """Begin a turn that calls a tool and is left with the calls open; return its session."""
    async with await chat.turn(turn_id, human="Refund me.") as turn:
        await turn.append(_asking(*ids, name=name))
        return turn


async def _wait(chat: Conversation) -> TurnSession:
    """Begin a turn that waits for a person to decide about a refund."""
    async with await chat.turn("inner", human="Pay.") as turn:
        await turn.append(_asking("c1", name="refund"))
        await turn.wait_for(turn.open_calls[0])
        return turn


async def _end(chat: Conversation) -> tuple[str, str]:
    end = (await row_of(chat)).end
    return end.label, end.reason


@pytest.mark.parametrize("call_id", ["c1", "call/1", LONG])
async def test_a_caller_waits_while_its_sub_agent_does(chat: Conversation, call_id: str) -> None:
    """At any depth, with what the innermost one waits for; once that is decided, the run has to go on."""
    [call] = (await _call(chat, "q1", call_id)).open_calls
    assert await _end(chat) == ("broke off", "during helper")
    child = chat.child(call.message_id, call.id) if call_id != LONG else chat.child(call.result_id)
    [inner] = (await _call(child, "below", "c2")).open_calls
    assert await _end(chat) == ("broke off", "during helper")
    innermost = child.child(inner.message_id, inner.id)
    [asked] = (await _wait(innermost)).waiting_calls
    assert await _end(chat) == await _end(child) == ("waits", "refund")
    await innermost.decide("inner", asked, "approve")
    assert await _end(chat) == await _end(child) == ("broke off", "during helper")


async def test_a_caller_waits_if_all_its_calls_do(chat: Conversation) -> None:
    """A call that broke off beside the one that waits is work for the caller, as is a call without a sub-agent."""
    calls = (await _call(chat, "q1", "c1", "c2")).open_calls
    await _wait(chat.child(calls[0].message_id, calls[0].id))
    assert await _end(chat) == ("broke off", "during helper")
    second = chat.child(calls[1].message_id, calls[1].id)
    await _call(second, "inner", "c3", name="look")
    assert await _end(chat) == ("broke off", "during helper")
    async with await second.turn("inner") as turn:
        await turn.wait_for(turn.open_calls[0])
    assert await _end(chat) == ("waits", "refund, look")


async def test_a_sub_agent_of_an_earlier_turn_counts_no_more(chat: Conversation) -> None:
    """A caller that was asked something else, and broke off again, does not wait for the first one."""
    [call] = (await _call(chat, "q1", "c1")).open_calls
    await _wait(chat.child(call.message_id, call.id))
    await _call(chat, "q2", "c1")
    assert await _end(chat) == ("broke off", "during helper")
