"""What a person decided about another answer while it was hidden stands once it is shown, also after a rewind in it."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore import Conversation, ConversationStore
from convstore.conversation.turn import TurnSession
from convstore.exceptions import DecisionConflictError


def _calls(*ids: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": id_, "args": {}, "id": id_} for id_ in ids])


async def _enter(chat: Conversation, kind: str) -> TurnSession:
    """Enter another answer, an edited question, or a turn as it stands."""
    if kind == "edit":
        return await chat.turn("edit", human="Refund it?", instead_of="q")
    return await chat.turn("q", regenerate="again" if kind == "answer" else None)


async def _make(chat: Conversation, kind: str, steps: int) -> list[str]:
    """Ask a person about two calls, let them be decided, and finish after some steps; return the calls' result ids."""
    turn_id = "edit" if kind == "edit" else "q"
    async with await _enter(chat, kind) as turn:
        await turn.append(_calls("refund", "mail"))
        for call in turn.open_calls:
            await turn.wait_for(call)
        refused, run = [call.result_id for call in turn.waiting_calls]
    await chat.decide(turn_id, refused, "reject")
    await chat.decide(turn_id, run, "approve")
    async with await _enter(chat, kind) as turn:
        for _ in range(steps + 1):
            await turn.add_result(turn.open_calls[0], "Done.")
            await turn.append(_calls("look"))
        await turn.add_result(turn.open_calls[0], "Done.")
        await turn.finish()
    return [refused, run]


@pytest.mark.parametrize("steps", [0, 20])
@pytest.mark.parametrize("kind", ["turn", "answer", "edit"])
async def test_a_decision_stands_after_a_rewind_of_its_result(kind: str, steps: int) -> None:
    """No reader has the refused call as one that may be run, also if a read of the log leaves many entries out."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        await chat.append([HumanMessage("Refund?", id="q"), *[AIMessage("No.")][kind == "turn" :]])
        refused, run = await _make(chat, kind, steps)
        turn_id = "edit" if kind == "edit" else "q"
        turn = await chat.get_turn(turn_id)
        assert turn
        await chat.rewind(before_id=str(turn.messages[2].id))
        turn = await chat.get_turn(turn_id)
        assert turn
        assert (len(turn.messages), turn.is_finished, turn.waiting_calls) == (2, False, ())
        async for update in chat.watch(limit=1):
            assert update.turn
            assert (update.turn.status, update.turn.waiting_calls) == ("interrupted", ())
            break
        await chat.decide(turn_id, refused, "reject")
        with pytest.raises(DecisionConflictError):
            await chat.decide(turn_id, run, "reject")
        async with await chat.turn(turn_id) as session:
            [call] = session.open_calls
            assert call.result_id == run
            assert call.decision
            assert call.decision.verdict == "approve"
            assert "rejected" in session.messages[2].text
        assert not (await chat.store.verify(**chat.scope)).findings
