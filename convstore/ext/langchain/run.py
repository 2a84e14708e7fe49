"""State of an agent's run, from one hook of the middleware to the next.

It is kept in a private channel of the agent's state that is not saved in checkpoints. After a resume or on another
worker it is rebuilt from the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from langchain.agents import AgentState
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.channels import UntrackedValue

from convstore import Conversation
from convstore.exceptions import ConvstoreError
from convstore.ext.checkpoints import OnFork
from convstore.ext.langchain.results import is_evicted
from convstore.ext.langchain.shown import ShownView
from convstore.integration import TurnAccess, TurnRecord, log_of
from convstore.messages.filing import added_to, ids_of, marked_as_added, step_ids
from convstore.messages.provenance import is_generated
from convstore.messages.tool_calls import answers_in, calls_of, result_id, result_ids
from convstore.values.append_options import Trust
from convstore.values.policy import HistoryPolicy
from convstore.values.turns import Busy

CHANNEL = "convstore_run"
TURN = "convstore_turn"
"""Channel for the id of the question; checkpoints save it, because the state may lose the question itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings of a middleware; see `ConversationMiddleware`."""

    policy: HistoryPolicy
    compact: bool
    on_unencodable: Literal["raise", "omit"]
    on_source_clash: Literal["raise", "renumber"]
    on_fork: OnFork
    trust: Trust
    busy: Busy


@dataclass(slots=True, eq=False)
class AgentRun:
    """A run of an agent, or the rest of a run: the relation between the agent's state and the log.

    Attributes:
        chat: Its conversation; in a sync run, of the store's counterpart for sync callers.
        rules: The settings of its middleware.
        turn_id: Id of the human message that it answers; None if the state has no such message.
        view: The view that its model is shown.
        logged: The messages of the state that are in the log, by id; None if their logged content is not loaded.
        turn: The messages of the turn that this run found in the log or appended, the question first.
        ahead: The turn's messages from an earlier run; the state gets them step by step.
        is_answered: True if the log has the answer, so that the run only repeats it.
        resent: For the next append, the messages of the client's history before the new ones; None if the client did
            not send a history.
        abandoned: Ids of rewound messages, which messages of this run must not reuse.
    """

    chat: Conversation
    rules: Rules
    turn_id: str | None = None
    view: ShownView = field(init=False)
    logged: dict[str, BaseMessage | None] = field(default_factory=dict)
    turn: list[BaseMessage] = field(default_factory=list)
    ahead: list[BaseMessage] = field(default_factory=list)
    is_answered: bool = False
    resent: list[BaseMessage] | None = None
    abandoned: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.view = ShownView(self.rules.policy, self.chat.store.token_counter)

    def note(self, messages: Iterable[BaseMessage]) -> None:
        """Record that the log has these messages with this content."""
        self.logged |= {str(message.id): message for message in messages}

    def take_over(self, record: TurnRecord) -> list[BaseMessage]:
        """Record the stored messages of the turn as logged; return those after the question."""
        self.turn = messages_of(record)
        question, *later = self.turn
        self.logged |= dict.fromkeys(ids_of(later))
        self.note([question])  # with its content, so that a question in other words is a conflict
        return later

    def resume(self, record: TurnRecord | None) -> None:
        """Continue the turn from its stored messages; None if the log does not have the turn."""
        self.turn = []
        self.ahead = self.take_over(record) if record else []

    def note_appended(self, messages: Sequence[BaseMessage]) -> None:
        """Record that this run has appended these messages."""
        new = [message for message in messages if message.id not in self.logged]
        self.note(messages)
        begins = (at for at, message in enumerate(new) if message.id == self.turn_id)
        start = 0 if self.turn else next(begins, len(new))
        self.turn += new[start:]

    def missing(self, messages: Iterable[BaseMessage]) -> list[BaseMessage]:
        """Return the messages that the log does not have, or has with other content."""
        changed = [
            message for message in messages if self.logged.get(message.id or "") is not message
        ]
        return [
            message for message in changed if not is_generated(message) and not self._has(message)
        ]

    def _has(self, message: BaseMessage) -> bool:
        if message.id not in self.logged:
            return False
        known = self.logged[message.id]
        return known is None or known == message or is_evicted(message, known)

    def next_answer(self, messages: Sequence[BaseMessage]) -> AIMessage | None:
        """Return the model's stored reply to this step, from an earlier run; None if the model has to be called."""
        if not self.ahead:
            return None
        state_ids = ids_of(messages)
        steps = step_ids(self.ahead)
        # The state may have lost a part of a step, or all of earlier steps.
        reached = [at for at, step in enumerate(steps) if not state_ids.isdisjoint(step)]
        following = steps[max(reached, default=-1) + 1 :]
        wanted = following[0][0] if following else None
        return next(
            (each for each in self.ahead if isinstance(each, AIMessage) and each.id == wanted), None
        )

    def results_of(self, ai: AIMessage, names: set[str]) -> list[ToolMessage]:
        """Return the results that an earlier run stored for the calls of some tools."""
        results = answers_in(self.ahead)
        ids = zip(result_ids(ai), calls_of(ai), strict=True)
        return [results[id_] for id_, call in ids if call.tool in names and id_ in results]

    def stored_results(self, ai_message_id: str, call_id: str, position: int) -> list[BaseMessage]:
        """Return the result that an earlier run stored for a call, and the messages that its tool added."""
        wanted = result_id(ai_message_id, call_id, position)
        result = answers_in(self.ahead).get(wanted)
        if result is None:
            return []
        return [each for each in self.ahead if each is result or added_to(each) == wanted]


@dataclass(frozen=True, slots=True)
class RefusedRun:
    """A run whose input is refused.

    Attributes:
        chat: Its conversation.
        error: The error, which is raised after the input was removed from the state.
        is_unimported: True if the thread has to be imported; its state gets no owner until then.
    """

    chat: Conversation
    error: ConvstoreError
    is_unimported: bool = False
    turn_id: ClassVar[None] = None


class RunReference(str):
    """The value of a run in the agent's state: a str with the run as an attribute.

    Streams treat messages inside a state's values as new ones, but do not look into a str.
    """

    run: AgentRun | RefusedRun

    @classmethod
    def to(cls, run: AgentRun | RefusedRun) -> RunReference:
        """Return a reference to a run."""
        reference = cls(run.turn_id or "")
        reference.run = run
        return reference


def _joined(known: list[str], new: list[str]) -> list[str]:
    """Add digests of messages; if the first one is "", the others replace the known ones.

    >>> _joined(["a"], ["b"]), _joined(["a"], ["", "b"])
    (['a', 'b'], ['b'])
    """
    return new[1:] if new[0] == "" else [*known, *new]


class ConversationAgentState(AgentState[Any]):
    """The agent's state with private channels: the run, the question, digests of unlogged messages, and the owner."""

    convstore_run: NotRequired[Annotated[str, UntrackedValue(str, guard=False), PrivateStateAttr]]
    convstore_turn: NotRequired[Annotated[str, PrivateStateAttr]]
    convstore_own: NotRequired[Annotated[list[str], PrivateStateAttr, _joined]]
    convstore_owner: NotRequired[Annotated[str, PrivateStateAttr]]


def run_in(state: Any, chat: Conversation) -> AgentRun | None:
    """Return the run in a state; None after a resume. Raises the error of a run whose input is refused."""
    run = getattr(state.get(CHANNEL), "run", None)
    if not isinstance(run, AgentRun | RefusedRun) or run.chat.scope != chat.scope:
        return None
    if isinstance(run, RefusedRun):
        raise run.error
    return run


def messages_of(record: TurnRecord) -> list[BaseMessage]:
    """Return the messages of a turn in the form of an agent's state: additions of tools to results are marked."""
    added = {item.id: item.answers for item in record.fold.messages if item.is_added}
    return [
        marked_as_added(message, added[message.id]) if message.id in added else message
        for message in record.messages
    ]


async def read_turn(chat: Conversation, turn_id: str | None) -> TurnRecord | None:
    """Read the turn of a question from the log; None if the log does not have it, or it was rewound."""
    return await TurnAccess(chat).record(turn_id) if turn_id else None


async def ids_in_log(chat: Conversation, ids: Collection[str]) -> set[str]:
    """Return the ids that the log has; one command for each 200 ids, without payloads."""
    return set(await log_of(chat).find(list(ids))) if ids else set()
