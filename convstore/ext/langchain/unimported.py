"""Refuse a thread that began without convstore: its answers would be lost, because only its questions are taken."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import BaseMessage

from convstore import Conversation
from convstore.edges import OWNER
from convstore.exceptions import InvalidInputError
from convstore.ext.langchain.resent import removal
from convstore.ext.langchain.run import ConversationAgentState, RefusedRun
from convstore.ext.older_checkpoint import made_before
from convstore.messages.filing import ids_of
from convstore.messages.provenance import is_made_up


async def find_unimported(
    chat: Conversation,
    state: ConversationAgentState,
    messages: Sequence[BaseMessage],
    logged: set[str],
) -> tuple[RefusedRun, list[BaseMessage]] | None:
    """Return a refused run of a thread that has to be imported, and the changes that remove its input; else None.

    A thread that a run with convstore began has an owner in its state.
    """
    if state.get(OWNER):
        return None
    answers = [message for message in messages if _is_answer(message) and message.id not in logged]
    if not answers:
        return None
    made, given = await made_before(ids_of(messages))
    lost = made & ids_of(answers)
    if not lost:
        return None
    refusal = InvalidInputError(
        "this thread began without convstore, and the conversation lacks answers and results of "
        "its state "
        f"({len(lost)}); import it first: `convstore import ... --from langgraph`, or "
        "read_checkpoints(checkpointer, "
        "[thread_id]) of convstore.transfer"
    )
    run = RefusedRun(chat.scope, refusal, is_unimported=True)
    return run, [removal(message) for message in messages if message.id in given]


def _is_answer(message: BaseMessage) -> bool:
    """Return True for a reply, a result or another message that no user wrote, but not for a summary."""
    return message.type != "human" and not is_made_up(message)
