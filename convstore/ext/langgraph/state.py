"""The state of a graph: its channels for the view and the logged ids, and the messages for the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NotRequired

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.channels import UntrackedValue
from langgraph.graph import MessagesState
from pydantic import GetCoreSchemaHandler, SkipValidation

from convstore import get_conversational_history
from convstore.edges import OWNER, OnDropped, report_dropped
from convstore.exceptions import InvalidInputError
from convstore.integration import fit_for
from convstore.messages.filing import (
    ids_of,
    last_question,
    last_turn_of,
    with_unread,
    without_marks,
)
from convstore.messages.provenance import kind_of
from convstore.messages.tokens import TokenCounter, count
from convstore.types import Dropped, History
from convstore.values.plain import part_of
from convstore.values.policy import HistoryPolicy
from convstore.values.stamps import ViewStamp


class LoadedView(dict[str, Any]):
    """The view that a load node puts into the state, for `view_of`.

    It is serialized as an empty dict: in a checkpoint of a subgraph's input, in a stream, in a trace. So history does
    not leak by accident, and a deserialized value is not used as a view.

    Attributes:
        history: The result of `load_history`.
        policy: The policy it was loaded with.
        covered: Ids of the state's messages that the view includes.
        answer: The stored answer to the question of the run; None if the log has no answer.
        turn_id: Id of the question of the run; None if the state has no question.
        turn: The messages of its turn that the view has or an append node has written; the state may lose them.
        entry: Number of the last entry that an append node wrote since the view was loaded; 0 if it wrote none.
        on_dropped: Called with the parts of the log that the messages for a model lack; None to call nothing.
    """

    __slots__ = (
        "answer",
        "covered",
        "entry",
        "history",
        "on_dropped",
        "policy",
        "turn",
        "turn_id",
    )

    def __init__(
        self,
        history: History,
        policy: HistoryPolicy,
        covered: frozenset[str],
        messages: Sequence[BaseMessage],
        answer: AIMessage | None = None,
        *,
        turn_id: str | None = None,
        on_dropped: OnDropped | None = None,
    ) -> None:
        super().__init__()
        self.history = history
        self.policy = policy
        self.covered = covered
        self.answer = answer
        self.on_dropped = on_dropped
        self.entry = 0
        self.turn_id = turn_id or last_turn_of(messages)
        whole = [
            *history.messages,
            *(message for message in messages if message.id == self.turn_id),
        ]
        begin = next(
            (at for at, message in enumerate(whole) if message.id == self.turn_id), len(whole)
        )
        self.turn = [message for message in whole[begin:] if not kind_of(message)]

    def note(self, appended: Iterable[BaseMessage]) -> None:
        """Add messages that an append node has appended in this run."""
        known = ids_of(self.turn)
        self.turn += [message for message in appended if message.id not in known]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        # a copy would be an empty dict
        return handler.generate_schema(SkipValidation[dict[str, Any]])

    def __repr__(self) -> str:
        return f"LoadedView({len(self.history.messages)} messages, {self.history.tokens} tokens)"


def _mark(logged: list[str], change: list[str] | Mapping[str, bool]) -> list[str]:
    """Return the ids after some were added (True, or a list of ids) or removed (False)."""
    changed = change if isinstance(change, Mapping) else dict.fromkeys(change, True)
    kept = [message_id for message_id in logged if changed.get(message_id, True)]
    return [*kept, *(new for new, is_logged in changed.items() if is_logged and new not in logged)]


def _first(owner: str, new: str) -> str:
    """Return the owner that a state has, else the new one; the input of a run must not replace an owner."""
    return owner or new


def _newer(turn: str, new: str) -> str:  # noqa: ARG001 - a reducer has both
    """Return the new question's id: the channel keeps that of the run that began last."""
    return new


class ConversationState(MessagesState):
    """A state with this turn's messages and the view.

    Declare it as the type of the first argument of a node that reads the view; the private channels are then not part
    of the graph's input and output. A graph may also have it, or a subclass, as its schema.

    Attributes:
        messages: The messages of this turn; earlier ones are removed when the view is loaded.
        convstore_view: The view; never checkpointed, so it is absent after a resume.
        convstore_turn: Id of the question of the run, which the state may lose.
        convstore_logged: Ids of the state's messages that are in the log.
        convstore_owner: A digest of the scope, so that the state is refused in any other scope.
    """

    convstore_view: NotRequired[Annotated[LoadedView, UntrackedValue(LoadedView, guard=False)]]
    convstore_turn: NotRequired[Annotated[str, _newer]]
    convstore_logged: NotRequired[Annotated[list[str], _mark]]
    convstore_owner: NotRequired[Annotated[str, _first]]


def view_of(state: Any) -> list[BaseMessage]:
    """Return the messages for the model: the view of the log, then this turn's messages, each exactly once.

    Any provider accepts the list, even if messages of this turn are not in the log yet. Put your own prompt before it.
    No I/O.

    Args:
        state: The state that a node gets: a dict, or an object with attributes.

    Raises:
        InvalidInputError: No load node has run before this node in this run of the graph; `LoadNode.aview_of` loads a
            missing view itself. Or the question was removed from the state before it was appended.
    """
    loaded = _needed(state)
    return for_model(loaded, checked(loaded, state))


def answer_of(state: Any) -> AIMessage | None:
    """Return the stored answer to this run's question; None if the model has to be called.

    So a request that is repeated under the id of its question is answered without the model. The load node has added
    the answer to the end of the state's messages. Arguments and errors are those of `view_of`.

    Args:
        state: The state of the graph.
    """
    return _needed(state).answer


def loaded_of(state: Any) -> LoadedView | None:
    """Return the view in a state; None if it has none."""
    loaded = part_of(state, "convstore_view")
    # from a checkpoint it may be an empty dict
    return loaded if isinstance(loaded, LoadedView) else None


def _needed(state: Any) -> LoadedView:
    loaded = loaded_of(state)
    if loaded is None:
        raise InvalidInputError(
            "the state has no view: let a load node run before this node, declare "
            "ConversationState as the type of its state, and after an interrupt go through the "
            "load node again, or use `await load.aview_of(state)`"
        )
    return loaded


def logged_of(state: Any) -> set[str]:
    """Return the ids of a state's messages that are in the log."""
    return set(part_of(state, "convstore_logged") or ())


def answer_in(state: Any, turn_id: str | None) -> AIMessage | None:
    """Return the stored answer that a load node of this run has found for a question; None if it found none."""
    loaded = loaded_of(state)
    return loaded.answer if loaded is not None and loaded.turn_id == turn_id else None


def turn_of_run(state: Any, messages: Sequence[BaseMessage]) -> str | None:
    """Return the id of the question of a run: the newest question when its first load node ran, or now.

    Human messages that nodes add later, such as a rewritten question or a critique, belong to that turn. A run without
    a new question repeats the last one of its thread.
    """
    logged = logged_of(state)
    loaded = loaded_of(state)
    if loaded is not None and loaded.turn_id in ids_of(messages) | logged:
        return loaded.turn_id
    newest = last_turn_of(messages)
    before = part_of(state, "convstore_turn")
    return before if newest in logged and before in ids_of(messages) else newest


def turn_in(state: Any, messages: Sequence[BaseMessage]) -> str | None:
    """Return the id of the question that a state's messages answer; a logged question may be missing in the state."""
    turn = part_of(state, "convstore_turn")
    return turn_of_run(state, messages) or (turn if turn in logged_of(state) else None)


def owner_in(state: Any) -> str:
    """Return the owner that a state stores, see `owner_of`; "" for a new state."""
    return str(part_of(state, OWNER) or "")


def messages_of(state: Any) -> list[BaseMessage]:
    """Return the messages of a state. InvalidInputError without messages, or if one has no id, which retries need."""
    found = part_of(state, "messages")
    if not isinstance(found, Sequence) or not all(isinstance(each, BaseMessage) for each in found):
        raise InvalidInputError(
            "the state has no list of messages under `messages`; derive its schema from "
            "MessagesState"
        )
    # The nodes add the channel `messages`, so it exists but is empty in a graph that uses another key.
    if not found and loaded_of(state) is None and not logged_of(state):
        raise InvalidInputError(
            "the state has no messages under `messages`; derive its schema from MessagesState, "
            "which has that key, and begin the run with a message"
        )
    if nameless := [index for index, message in enumerate(found) if not message.id]:
        raise InvalidInputError(
            f"message {nameless[0]} of the state has no id; derive the schema of the state from "
            "MessagesState, whose reducer adds ids"
        )
    return list(found)


def checked(loaded: LoadedView, state: Any) -> list[BaseMessage]:
    """Return the messages of a state; raise an InvalidInputError if a question was removed before it was appended."""
    messages = messages_of(state)
    known = ids_of(messages) | logged_of(state) | loaded.covered | ids_of(loaded.history.messages)
    if loaded.turn_id and loaded.turn_id not in known and last_question(messages) is None:
        raise InvalidInputError(
            "the question of this run was removed from the state before it was appended, so the "
            "model would get no question; end the run instead, or replace the question by another "
            "human message"
        )
    return messages


def for_model(loaded: LoadedView, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages of `compose`, and report the parts of the log that were left out."""
    dropped = list(loaded.history.dropped)
    shown = compose(loaded, messages, dropped)
    report_dropped(dropped, loaded.on_dropped)
    return shown


def compose(
    loaded: LoadedView, messages: Sequence[BaseMessage], dropped: list[Dropped] | None = None
) -> list[BaseMessage]:
    """Return the view followed by the state's other messages, with each call paired with its result.

    Messages in both are taken from the state, because its results refer to calls by the ids in the state. The parts
    that are left out for a provider are added to `dropped`.
    """
    own = {message.id: message for message in messages}
    # A result that was missing when the view was loaded may be in the state.
    view = [message for message in loaded.history.messages if kind_of(message) != "missing_result"]
    start = next((index for index, message in enumerate(view) if message.id in own), len(view))
    report = loaded.history.report
    changed = {*report.stubbed, *report.shortened}  # in a view over budget
    head = view[:start]
    current = [_own(message, own, keep=message.id in changed) for message in view[start:]]
    shown = loaded.covered | ids_of(view)
    fresh = [each for each in with_unread(loaded.turn, messages) if each.id not in shown]
    whole = without_marks([*head, *current, *fresh])
    if loaded.policy.view == "conversation":
        whole = [*head, *get_conversational_history(without_marks([*current, *fresh]))]
    return fit_for(whole, loaded.policy.rules, dropped)


def begin_of(turn_id: str | None, messages: Sequence[BaseMessage]) -> int:
    """Return the index of a question in a state, else that of the newest question, else 0."""
    positions = (at for at, message in enumerate(messages) if message.id == turn_id)
    return next(positions, last_question(messages) or 0)


def removed_by_load(
    messages: Sequence[BaseMessage], logged: Collection[str], turn_id: str | None
) -> list[BaseMessage]:
    """Return the logged messages of earlier turns, which the load node removes from the state."""
    start = begin_of(turn_id, messages)
    return [message for message in messages[:start] if message.id in logged]


def repeated_questions(
    history: History, messages: Sequence[BaseMessage], logged: set[str]
) -> list[BaseMessage]:
    """Return the questions of a state whose ids are in the view, but that are unlogged or have other content."""
    shown = {message.id: message for message in history.messages}
    questions = [each for each in messages if isinstance(each, HumanMessage) and each.id in shown]
    return [each for each in questions if each.id not in logged or each != shown[each.id]]


def stamp_of(
    loaded: LoadedView | None,
    messages: Sequence[BaseMessage],
    new: Sequence[BaseMessage],
    *,
    counter: TokenCounter,
) -> ViewStamp | None:
    """Return the stamp of the view that the first new AI message answers; None without a view or such a message."""
    wanted = ids_of(message for message in new if isinstance(message, AIMessage))
    answer = next((at for at, message in enumerate(messages) if message.id in wanted), None)
    if loaded is None or answer is None:
        return None
    given = compose(loaded, messages[:answer])
    return loaded.history.stamp_for(
        given,
        entry=loaded.entry,
        adapted=given != loaded.history.messages,
        turn=loaded.turn_id,
        size_of=partial(count, counter),
    )


def _own(message: BaseMessage, own: Mapping[str | None, BaseMessage], *, keep: bool) -> BaseMessage:
    """Return the state's message, or the view's with `keep`; a kept result gets the call id that the state has."""
    other = own.get(message.id, message)
    if keep and isinstance(message, ToolMessage) and isinstance(other, ToolMessage):
        return message.model_copy(update={"tool_call_id": other.tool_call_id})
    return message if keep else other
