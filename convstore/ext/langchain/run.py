"""State of an agent's run, from one hook of the middleware to the next.

It is kept in a private channel of the agent's state that no checkpoint holds. Where it is absent, after a resume or on
another worker, it is rebuilt from the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

from langchain.agents import AgentState
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.channels import UntrackedValue

from convstore.exceptions import ConvstoreError
from convstore.ext.langchain.results import is_evicted
from convstore.messages.filing import came_with, ids_of, results_after
from convstore.messages.provenance import is_made_up
from convstore.messages.tokens import TokenCounter, count
from convstore.messages.tool_calls import result_id
from convstore.messages.unread import has_all_results, steps_of
from convstore.types import History

CHANNEL = "convstore_run"
TURN = "convstore_turn"
"""Channel for the id of the question, which checkpoints keep though the state may lose the question."""

NO_STREAM = "nostream"
"""Tag of model calls that LangGraph does not stream as the agent's."""


@dataclass(slots=True, eq=False)
class AgentRun:
    """A run, or the rest of one.

    Attributes:
        scope: Scope of its conversation.
        turn_id: Id of the human message that it answers; None without one.
        logged: Messages that are in the log, by id; None if only their id is known.
        ahead: The turn's messages from an earlier run, if there was one; the state gets them step by step.
        is_known: True once the log was asked for the turn.
        history: The view as it was loaded.
        view: Its part before the turn, above the budget with the turn so far; None if it has to be loaded.
        folded: Ids of messages of the turn that `view` shows, leaves out or summarises.
        is_answered: True if the log has the answer, so the run only repeats it.
        resent: For the next append, the messages of the client's history before the new ones; None if the client sent
            no history.
        paired: The messages last shown to the model, if each result was at its call.
        shown: The messages last shown to the model, until its answer is in the log.
        entry: Number of the last entry that the run wrote since the view was loaded; 0 for none.
        is_adapted: True if the model was shown the turn in another form than the log's.
        abandoned: Ids of messages that were rewound, which messages of this run cannot have.
        drop_draft: Deletes the draft of the model's last reply, which is not in the log yet; None if there is none.
        conversation_id: Id of its conversation; "" until that is known.
        refusal: The error of an input that is refused, raised once the state is without it; None for a valid input.
        is_unimported: True for a refused input of a thread that has to be imported; it has no owner until then.
        whole: The messages of the turn at the last step, if they lacked nothing.
        unread: Ids of the model's last reply, as far as this run has appended it, and of what was appended since.
    """

    scope: dict[str, str]
    turn_id: str | None = None
    logged: dict[str, BaseMessage | None] = field(default_factory=dict)
    ahead: list[BaseMessage] = field(default_factory=list)
    is_known: bool = False
    history: History | None = None
    view: list[BaseMessage] | None = None
    folded: frozenset[str] = frozenset()
    is_answered: bool = False
    resent: list[BaseMessage] | None = None
    paired: list[BaseMessage] = field(default_factory=list)
    shown: list[BaseMessage] | None = None
    entry: int = 0
    is_adapted: bool = False
    abandoned: frozenset[str] = frozenset()
    drop_draft: Callable[[], Awaitable[None]] | None = None
    conversation_id: str = ""
    refusal: ConvstoreError | None = None
    is_unimported: bool = False
    whole: list[BaseMessage] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)
    _sizes: dict[int, tuple[BaseMessage, int]] = field(default_factory=dict)

    def note(self, messages: Iterable[BaseMessage]) -> None:
        """Record that the log has these messages as they are."""
        self.logged |= {str(message.id): message for message in messages}

    def note_appended(self, messages: Iterable[BaseMessage]) -> None:
        """Record that the log has these messages as they are, and that the model is to read those after its reply."""
        for message in messages:
            if isinstance(message, AIMessage) and not came_with(message):
                self.unread.clear()
            self.unread.add(str(message.id))
            self.logged[str(message.id)] = message

    def is_whole(self, messages: Sequence[BaseMessage]) -> bool:
        """Return True if messages have the question, all that is unread, and each call and result with the other."""
        here = ids_of(messages)
        if self.turn_id in self.logged and self.turn_id not in here:
            return False
        is_longer = messages[: len(self.whole)] == self.whole
        return self.unread <= here and has_all_results(
            messages[len(self.whole) :] if is_longer else messages
        )

    def missing(self, messages: Iterable[BaseMessage]) -> list[BaseMessage]:
        """Return the messages that the log does not have, or not as they are now."""
        changed = [
            message for message in messages if self.logged.get(message.id or "") is not message
        ]
        return [
            message for message in changed if not is_made_up(message) and not self._has(message)
        ]

    def _has(self, message: BaseMessage) -> bool:
        if message.id not in self.logged:
            return False
        known = self.logged[message.id]
        return known is None or known == message or is_evicted(message, known)

    def with_turn(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the view followed by those messages of the turn that it does not stand for."""
        return [
            *(self.view or ()),
            *(message for message in messages if message.id not in self.folded),
        ]

    def size_of(self, message: BaseMessage, counter: TokenCounter) -> int:
        """Return the tokens of a message, counted once."""
        # The reference prevents Python from reusing the message's `id()`.
        if id(message) not in self._sizes:
            self._sizes[id(message)] = message, count(counter, message)
        return self._sizes[id(message)][1]

    def next_answer(self, messages: Sequence[BaseMessage]) -> AIMessage | None:
        """Return the model's answer at this step from an earlier run; None if the model has to be called."""
        if not self.ahead:
            return None
        here = ids_of(messages)
        steps = steps_of(self.ahead)
        # The state may have lost a part of a step, or earlier steps as a whole.
        reached = [at for at, step in enumerate(steps) if not here.isdisjoint(step)]
        following = steps[max(reached, default=-1) + 1 :]
        wanted = following[0][0] if following else None
        return next(
            (each for each in self.ahead if isinstance(each, AIMessage) and each.id == wanted), None
        )

    def results_of(self, ai: AIMessage, names: set[str]) -> list[ToolMessage]:
        """Return the results that an earlier run stored for the calls of some tools."""
        called = {call["id"] for call in ai.tool_calls if call["name"] in names}
        return [result for result in results_after(self.ahead, ai) if result.tool_call_id in called]

    def stored_results(self, ai_message_id: str, call_id: str, position: int) -> list[BaseMessage]:
        """Return the result that an earlier run stored for a call, and the messages that its tool added."""
        wanted = result_id(ai_message_id, call_id, position)
        result = self._stored_result(ai_message_id, call_id, position, wanted)
        if result is None:
            return []
        return [each for each in self.ahead if each is result or came_with(each) == wanted]

    def _stored_result(
        self, ai_message_id: str, call_id: str, position: int, wanted: str
    ) -> ToolMessage | None:
        said = [each for each in self.ahead if isinstance(each, AIMessage)]
        asking = next((ai for ai in said if ai.id == ai_message_id), None)
        if asking is None:
            return None
        found = [each for each in results_after(self.ahead, asking) if each.tool_call_id == call_id]
        named = [answer for answer in found if answer.id == wanted]
        return next(iter(named or found[position:]), None)


class RunReference(str):
    """The entry of a run in the agent's state: a text that holds the run, so that no stream takes its view for new."""

    run: AgentRun

    @classmethod
    def to(cls, run: AgentRun) -> RunReference:
        """Return a reference to a run."""
        reference = cls(run.turn_id or "")
        reference.run = run
        return reference


def _joined(known: list[str], new: list[str]) -> list[str]:
    """Add digests of messages, or replace all by those after an empty text.

    >>> _joined(["a"], ["b"]), _joined(["a"], ["", "b"])
    (['a', 'b'], ['b'])
    """
    return new[1:] if new[0] == "" else [*known, *new]


class ConversationAgentState(AgentState[Any]):
    """The agent's state with private channels.

    They are for the run, the question, digests of messages that the log may lack, and the owner.
    """

    convstore_run: NotRequired[Annotated[str, UntrackedValue(str, guard=False), PrivateStateAttr]]
    convstore_turn: NotRequired[Annotated[str, PrivateStateAttr]]
    convstore_own: NotRequired[Annotated[list[str], PrivateStateAttr, _joined]]
    convstore_owner: NotRequired[Annotated[str, PrivateStateAttr]]


def run_in(state: Any, scope: dict[str, str]) -> AgentRun | None:
    """Return the run in a state, None after a resume; raise the error of a run whose input is refused."""
    run = getattr(state.get(CHANNEL), "run", None)
    if not isinstance(run, AgentRun) or run.scope != scope:
        return None
    if run.refusal:
        raise run.refusal
    return run
