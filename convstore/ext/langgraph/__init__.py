"""Nodes for hand-built LangGraph graphs: one loads the view of a conversation, one appends to its log.

The graph's state keeps the messages of this turn only, so that a checkpointer does not write the history again with
every step::

    graph = StateGraph(MessagesState)
    graph.add_node("load", load_node(store))
    graph.add_node("model", call_model)       # async def call_model(state: ConversationState): ... view_of(state)
    graph.add_node("append", append_node(store))

The nodes add private channels to the state: the view, which is never checkpointed, the id of the question, the ids of
the state's messages that are in the log, and a digest of the scope. A node that reads the view declares
`ConversationState` as the type of its state, unless the graph's schema is `ConversationState` or a subclass.
"""

from __future__ import annotations

from convstore.exceptions import MissingExtraError

try:
    import langgraph.graph  # noqa: F401 - the modules below need it
except ImportError as error:
    raise MissingExtraError(package="langgraph", extra="langgraph") from error

from convstore.ext.langgraph.nodes import AppendNode, LoadNode, append_node, load_node
from convstore.ext.langgraph.state import ConversationState, LoadedView, answer_of, view_of

__all__ = [
    "AppendNode",
    "ConversationState",
    "LoadNode",
    "LoadedView",
    "answer_of",
    "append_node",
    "load_node",
    "view_of",
]
