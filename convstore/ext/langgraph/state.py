"""The state of a graph: the channels that hold the view and the marks, and what a model gets of both.

Floor 7, without I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NotRequired

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.channels import UntrackedValue
from langgraph.graph import MessagesState
from pydantic import GetCoreSchemaHandler, SkipValidation

from convstore.exceptions import InvalidInputError
from convstore.ext.ids import ids_of
from convstore.messages.provenance import kind_of
from convstore.messages.tool_calls import has_calls
from convstore.values.models import History
from convstore.values.policy import HistoryPolicy
from convstore.view.provider_rules import fit_for
from convstore.view.render import get_conversational_history

__all__ = [
    "ConversationState",
    "LoadedView",
    "answer_in",
    "answer_of",
    "compose",
    "loaded_of",
    "logged_of",
    "messages_of",
    "view_of",
]


class LoadedView(dict[str, Any]):
    """The view that a load node puts into the state, for `view_of`.

    To everything that writes it down it is an empty dict: to a checkpointer, which keeps the input of a subgraph, to
    an endpoint that sends the stream of a graph on, to a trace. So history gets nowhere by accident, and what is read
    back counts as no view.

    Attributes:
        history: As `load_history` gave it, with its report.
        policy: What it was loaded under.
        covered: Ids of messages of the state that it stands for.
    """

    __slots__ = ("covered", "history", "policy")

    def __init__(self, history: History, policy: HistoryPolicy, covered: frozenset[str]) -> None:
        super().__init__()
        self.history, self.policy, self.covered = history, policy, covered

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return handler.generate_schema(SkipValidation[dict[str, Any]])  # a copy would be an empty dict and no view

    def __repr__(self) -> str:
        return f"LoadedView({len(self.history.messages)} messages, {self.history.tokens} tokens)"


def _mark(logged: list[str], change: list[str] | Mapping[str, bool]) -> list[str]:
    """The ids that are marked after some were added (True, or a list of them) or taken out (False)."""
    changed = change if isinstance(change, Mapping) else dict.fromkeys(change, True)
    kept = [message_id for message_id in logged if changed.get(message_id, True)]
    return [*kept, *(new for new, is_logged in changed.items() if is_logged and new not in logged)]


class ConversationState(MessagesState):
    """A state with this turn's messages and the view: the type of the state of a node that wants the view.

    As the type of a node's first argument it is enough: the private channels are not in the graph's input and output
    then. A graph may also have it, or a subclass, as its schema.

    Attributes:
        messages: Those of this turn; earlier ones leave when the view is loaded.
        convstore_view: The view; never checkpointed, so it is absent after a resume.
        convstore_logged: Ids of the messages of the state that are in the log.
    """

    convstore_view: NotRequired[Annotated[LoadedView, UntrackedValue(LoadedView, guard=False)]]
    convstore_logged: NotRequired[Annotated[list[str], _mark]]


def view_of(state: Any) -> list[BaseMessage]:
    """Return the messages for the model: the view of the log, then this turn's messages, each exactly once.

    The list is one that any provider accepts, whether messages of this turn are in the log by now or not; a prompt of
    yours goes before it. No I/O.

    Args:
        state: As a node gets it: a dict, or an object with attributes.

    Raises:
        InvalidInputError: No load node has run before this node in this run of the graph; `LoadNode.aview_of` loads
            the view where it is absent.
    """
    return compose(_needed(state), messages_of(state))


def answer_of(state: Any) -> AIMessage | None:
    """The answer that the log already has to this run's question, None if it has none: then the model is asked.

    So a request that is repeated under the id of its question is answered without a call of the model. The load node
    has put the answer into the state, as the last of its messages.

    Args:
        state: As `view_of` takes it.

    Raises:
        InvalidInputError: As in `view_of`.
    """
    return answer_in(_needed(state).history, messages_of(state))


def answer_in(history: History, messages: Sequence[BaseMessage]) -> AIMessage | None:
    """The last message of a finished turn of a view: of the one that begins with the question of a state."""
    question = next((message.id for message in reversed(messages) if isinstance(message, HumanMessage)), None)
    place = next((at for at, message in enumerate(history.messages) if question and message.id == question), None)
    if place is None:
        return None
    later = history.messages[place + 1 :]
    ends = (at for at, message in enumerate(later) if isinstance(message, HumanMessage) and not kind_of(message))
    length = next(ends, len(later))
    last = later[length - 1] if length else None
    return last if isinstance(last, AIMessage) and not has_calls(last) else None


def loaded_of(state: Any) -> LoadedView | None:
    """The view of a state, None if it has none."""
    loaded = _value(state, "convstore_view")
    return loaded if isinstance(loaded, LoadedView) else None  # a checkpoint may have made an empty dict of it


def _needed(state: Any) -> LoadedView:
    loaded = loaded_of(state)
    if loaded is None:
        raise InvalidInputError(
            "the state has no view: let a load node run before this node, name ConversationState as the type of its "
            "state, and behind an interrupt go through the load node again, or use `await load.aview_of(state)`"
        )
    return loaded


def logged_of(state: Any) -> set[str]:
    """Ids of the messages of a state that are in the log."""
    return set(_value(state, "convstore_logged") or ())


def messages_of(state: Any) -> list[BaseMessage]:
    """The messages of a state, each with an id.

    Raises:
        InvalidInputError: There are none, and none were seen before; or one has no id: then a retry could not know it
            again.
    """
    found = _value(state, "messages")
    if not isinstance(found, Sequence) or not all(isinstance(each, BaseMessage) for each in found):
        raise InvalidInputError("the state has no list of messages under `messages`; make it of MessagesState")
    # The nodes bring the channel, so it is there, and empty, in a graph that has its messages elsewhere.
    if not found and loaded_of(state) is None and not logged_of(state):
        raise InvalidInputError(
            "the state has no messages under `messages`; make it of MessagesState, whose key that is, and begin the "
            "run with a message"
        )
    if nameless := [place for place, message in enumerate(found) if not message.id]:
        raise InvalidInputError(
            f"message {nameless[0]} of the state has no id; make the state of MessagesState, whose reducer gives ids"
        )
    return list(found)


def _value(state: Any, key: str) -> Any:
    return state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)


def compose(loaded: LoadedView, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The view and what of the state it does not stand for, paired as a view of both would be.

    Of what both have the state's form is taken: its results name their calls by the ids that the state knows.
    """
    own = {message.id: message for message in messages}
    # A result that was missing when the view was loaded may be in the state.
    view = [message for message in loaded.history.messages if kind_of(message) != "missing_result"]
    start = next((place for place, message in enumerate(view) if message.id in own), len(view))
    head, here = view[:start], [own.get(message.id, message) for message in view[start:]]
    shown = loaded.covered | ids_of(here)
    fresh = [each for each in messages if each.id not in shown]
    whole = [*head, *here, *fresh]
    if loaded.policy.view == "conversation":
        whole = [*head, *get_conversational_history([*here, *fresh])]
    return fit_for(whole, loaded.policy.provider)
