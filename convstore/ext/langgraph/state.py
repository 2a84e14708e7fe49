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

    Serialized, it is an empty dict: in a checkpoint of a subgraph's input, in a stream, in a trace. So history does not
    leak by accident, and a deserialized value counts as no view.

    Attributes:
        history: The result of `load_history`.
        policy: The policy it was loaded with.
        covered: Ids of the state's messages that the view includes.
        answer: The answer that the log has to the question of the run; None without one.
        turn_id: Id of the question of the run; None without one.
        turn: The messages of its turn that the view or an append node has seen, which the state may lose.
        entry: Number of the last entry that an append node wrote since the view was loaded; 0 for none.
        on_dropped: Called with what the messages for a model lack of the log; None for no call.
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
        """Add what an append node has appended in this run."""
        known = ids_of(self.turn)
        self.turn += [message for message in appended if message.id not in known]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        # a copy would be an empty dict and no view
        return handler.generate_schema(SkipValidation[dict[str, Any]])

    def __repr__(self) -> str:
        return f"LoadedView({len(self.history.messages)} messages, {self.history.tokens} tokens)"


def _mark(logged: list[str], change: list[str] | Mapping[str, bool]) -> list[str]:
    """Return the ids after some were added (True, or a list of ids) or removed (False)."""
    changed = change if isinstance(change, Mapping) else dict.fromkeys(change, True)
    kept = [message_id for message_id in logged if changed.get(message_id, True)]
    return [*kept, *(new for new, is_logged in changed.items() if is_logged and new not in logged)]


def _first(owner: str, new: str) -> str:
    """Return the owner that a state has, else the new one: the input of a run must not replace it."""
    return owner or new


def _newer(turn: str, new: str) -> str:  # noqa: ARG001 - a reducer has both
    """Return the question of the run that began last."""
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
        convstore_owner: A digest of the scope, so that no other one takes the state over.
    """

    convstore_view: NotRequired[Annotated[LoadedView, UntrackedValue(LoadedView, guard=False)]]
    convstore_turn: NotRequired[Annotated[str, _newer]]
    convstore_logged: NotRequired[Annotated[list[str], _mark]]
    convstore_owner: NotRequired[Annotated[str, _first]]


def view_of(state: Any) -> list[BaseMessage]:
    """Return the messages for the model: the view of the log, then this turn's messages, each exactly once.

    Any provider accepts the list, whether the messages of this turn are in the log yet or not. Put your own prompt
    before it. No I/O.

    Args:
        state: The state that a node gets: a dict, or an object with attributes.

    Raises:
        InvalidInputError: No load node has run before this node in this run of the graph; `LoadNode.aview_of` loads
            the view where it is absent. Or the question was removed from the state before it was appended.
    """
    loaded = _needed(state)
    return for_model(loaded, checked(loaded, state))


def answer_of(state: Any) -> AIMessage | None:
    """Return the answer that the log already has to this run's question; None if the model has to be called.

    So a request repeated under the id of its question is answered without the model. The load node has put the answer
    into the state, as the last of its messages. Arguments and errors are those of `view_of`.

    Args:
        state: The state of the graph.
    """
    return _needed(state).answer


def loaded_of(state: Any) -> LoadedView | None:
    """Return the view in a state; None without one."""
    loaded = part_of(state, "convstore_view")
    # a checkpoint may have made an empty dict of it
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
    """Return the answer that a load node of this run has found for a question; None without one."""
    loaded = loaded_of(state)
    return loaded.answer if loaded is not None and loaded.turn_id == turn_id else None


def turn_of_run(state: Any, messages: Sequence[BaseMessage]) -> str | None:
    """Return the id of the question of a run: the newest one when its first load node ran, or now.

    What a node says later as a user, such as a rewritten question or a critique, belongs to that turn. A run without a
    question that is new to its thread repeats the last one.
    """
    logged = logged_of(state)
    loaded = loaded_of(state)
    if loaded is not None and loaded.turn_id in ids_of(messages) | logged:
        return loaded.turn_id
    newest = last_turn_of(messages)
    before = part_of(state, "convstore_turn")
    return before if newest in logged and before in ids_of(messages) else newest


def turn_in(state: Any, messages: Sequence[BaseMessage]) -> str | None:
    """Return the id of the question that messages of a state answer; of one that the state has lost if it is logged."""
    turn = part_of(state, "convstore_turn")
    return turn_of_run(state, messages) or (turn if turn in logged_of(state) else None)


def owner_in(state: Any) -> str:
    """Return what a state says of the conversation that it belongs to; "" for a new one."""
    return str(part_of(state, OWNER) or "")


def messages_of(state: Any) -> list[BaseMessage]:
    """Return the messages of a state; InvalidInputError if it has none, or one without an id, which a retry needs."""
    found = part_of(state, "messages")
    if not isinstance(found, Sequence) or not all(isinstance(each, BaseMessage) for each in found):
        raise InvalidInputError(
            "the state has no list of messages under `messages`; make it of MessagesState"
        )
    # The nodes add the channel, so it exists, and is empty, in a graph whose messages have another key.
    if not found and loaded_of(state) is None and not logged_of(state):
        raise InvalidInputError(
            "the state has no messages under `messages`; make it of MessagesState, whose key that "
            "is, and begin the run with a message"
        )
    if nameless := [index for index, message in enumerate(found) if not message.id]:
        raise InvalidInputError(
            f"message {nameless[0]} of the state has no id; make the state of MessagesState, "
            "whose reducer adds ids"
        )
    return list(found)


def checked(loaded: LoadedView, state: Any) -> list[BaseMessage]:
    """Return the messages of a state; an error if it has lost a question that the log does not have."""
    messages = messages_of(state)
    known = ids_of(messages) | logged_of(state) | loaded.covered | ids_of(loaded.history.messages)
    if loaded.turn_id and loaded.turn_id not in known and last_question(messages) is None:
        raise InvalidInputError(
            "the question of this run was removed from the state before it was appended, so the "
            "model would be asked "
            "nothing; end the run instead, or put another human message in its place"
        )
    return messages


def for_model(loaded: LoadedView, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return `compose` for a call of the model, and report what it lacks of the log."""
    dropped = list(loaded.history.dropped)
    shown = compose(loaded, messages, dropped)
    report_dropped(dropped, loaded.on_dropped)
    return shown


def compose(
    loaded: LoadedView, messages: Sequence[BaseMessage], dropped: list[Dropped] | None = None
) -> list[BaseMessage]:
    """Return the view and the state's other messages, paired as a view of both would be.

    Messages in both are taken from the state, because its results name their calls by the ids that the state has. What
    they lose for a provider is added to `dropped`.
    """
    own = {message.id: message for message in messages}
    # A result that was missing when the view was loaded may be in the state.
    view = [message for message in loaded.history.messages if kind_of(message) != "missing_result"]
    start = next((index for index, message in enumerate(view) if message.id in own), len(view))
    report = loaded.history.report
    changed = {*report.stubbed, *report.shortened}  # above the budget
    head = view[:start]
    here = [_own(message, own, keep=message.id in changed) for message in view[start:]]
    shown = loaded.covered | ids_of(view)
    fresh = [each for each in with_unread(loaded.turn, messages) if each.id not in shown]
    whole = without_marks([*head, *here, *fresh])
    if loaded.policy.view == "conversation":
        whole = [*head, *get_conversational_history(without_marks([*here, *fresh]))]
    return fit_for(whole, loaded.policy.rules, dropped)


def begin_of(turn_id: str | None, messages: Sequence[BaseMessage]) -> int:
    """Return the index of a question in a state, else of the newest one; 0 without one."""
    here = (at for at, message in enumerate(messages) if message.id == turn_id)
    return next(here, last_question(messages) or 0)


def removed_by_load(
    messages: Sequence[BaseMessage], logged: Collection[str], turn_id: str | None
) -> list[BaseMessage]:
    """Return the messages of turns before one that the log has, which leave the state."""
    start = begin_of(turn_id, messages)
    return [message for message in messages[:start] if message.id in logged]


def asked_again(
    history: History, messages: Sequence[BaseMessage], logged: set[str]
) -> list[BaseMessage]:
    """Return the questions of a state that the view has under their ids, perhaps with other content."""
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
    """Return the stamp of what `view_of` gave for the first new AI message; None without a view or such a message."""
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
    """Return the state's message; of one that the view keeps in its form, with the call id that the state has."""
    other = own.get(message.id, message)
    if keep and isinstance(message, ToolMessage) and isinstance(other, ToolMessage):
        return message.model_copy(update={"tool_call_id": other.tool_call_id})
    return message if keep else other
