"""What a run of an agent knows of its conversation, from one hook of the middleware to the next.

Floor 7. It is kept in a private channel of the agent's state that no checkpoint holds. Where it is absent, after a
resume or on another worker, it is made again from the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

from langchain.agents import AgentState
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.channels import UntrackedValue

from convstore.ext.ids import ids_of
from convstore.ext.langchain.evicted import is_evicted
from convstore.ext.langchain.turn import answers, came_with, is_made_up
from convstore.messages.tool_calls import result_id
from convstore.values.models import History

__all__ = ["CHANNEL", "AgentRun", "ConversationAgentState", "Ticket", "run_in"]

CHANNEL = "convstore_run"


@dataclass(slots=True, eq=False)
class AgentRun:
    """A run, or what is left of one.

    Attributes:
        scope: Whose conversation it works on.
        turn_id: Id of the human message that it answers; None if there is none.
        logged: Messages that are in the log, by id; None where only that much is known.
        ahead: The turn's messages as an earlier run left them, if there was one; the state gets them step by step.
        is_known: Whether the log was asked what it has of the turn.
        history: The view as it was loaded.
        view: Of it what precedes the turn; None if it has to be loaded.
        folded: Ids of messages of the turn that the view's summary stands for.
        first: Ordinal of the human message; None if it is not known.
        is_answered: Whether the run only gives again what the log has, its question being answered.
        resent: For the next append, the messages of the client's history that precede what is new; None if the client
            sent no history.
        stubs: Results of this turn as the log's stubs, by id; None for one that has none.
    """

    scope: dict[str, str]
    turn_id: str | None = None
    logged: dict[str, BaseMessage | None] = field(default_factory=dict)
    ahead: list[BaseMessage] = field(default_factory=list)
    is_known: bool = False
    history: History | None = None
    view: list[BaseMessage] | None = None
    folded: frozenset[str] = frozenset()
    first: int | None = None
    is_answered: bool = False
    resent: list[BaseMessage] | None = None
    stubs: dict[str, ToolMessage | None] = field(default_factory=dict)

    def note(self, messages: Iterable[BaseMessage]) -> None:
        """These messages are in the log as they are."""
        self.logged |= {str(message.id): message for message in messages}

    def missing(self, messages: Iterable[BaseMessage]) -> list[BaseMessage]:
        """Those of some messages that the log has not, or not as they are now."""
        return [message for message in messages if not is_made_up(message) and not self._has(message)]

    def _has(self, message: BaseMessage) -> bool:
        if message.id not in self.logged:
            return False
        known = self.logged[message.id]
        return known is None or known is message or known == message or is_evicted(message, known)

    def next_answer(self, messages: Sequence[BaseMessage]) -> AIMessage | None:
        """Return the model's answer at this step from an earlier run; None if it has to be asked."""
        here = ids_of(messages)
        said = (one for one in self.ahead if isinstance(one, AIMessage) and not came_with(one))
        return next((one for one in said if one.id not in here), None)

    def results_of(self, ai: AIMessage, names: set[str]) -> list[ToolMessage]:
        """The results that an earlier run left for the calls of some tools."""
        called = {call["id"] for call in ai.tool_calls if call["name"] in names}
        return [result for result in answers(self.ahead, ai) if result.tool_call_id in called]

    def left_for(self, ai_message_id: str, call_id: str, position: int) -> list[BaseMessage]:
        """The result that an earlier run left for a call, with what its tool put beside it; empty if there is none."""
        wanted = result_id(ai_message_id, call_id, position)
        ai = next((one for one in self.ahead if isinstance(one, AIMessage) and one.id == ai_message_id), None)
        found = [one for one in answers(self.ahead, ai) if one.tool_call_id == call_id] if ai else []
        result = next((one for one in found if one.id == wanted), None) or next(iter(found[position:]), None)
        return [one for one in self.ahead if one is result or came_with(one) == wanted] if result else []


class Ticket(str):
    """The entry of a run in the agent's state: prints as a text and holds the run.

    So no stream takes the messages of a view for new ones.
    """

    run: AgentRun

    @classmethod
    def to(cls, run: AgentRun) -> Ticket:
        """A ticket to a run."""
        ticket = cls(run.turn_id or "")
        ticket.run = run
        return ticket


class ConversationAgentState(AgentState[Any]):
    """The agent's state with the private channel."""

    convstore_run: NotRequired[Annotated[str, UntrackedValue(str, guard=False), PrivateStateAttr]]


def run_in(state: Any, scope: dict[str, str]) -> AgentRun | None:
    """The run that a state tells of; None after a resume."""
    run = getattr(state.get(CHANNEL), "run", None)
    return run if isinstance(run, AgentRun) and run.scope == scope else None
