"""Numbers of sources in the results of a graph's state, before a model sees them."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore import Conversation
from convstore.integration import ResultNumbering
from convstore.messages.filing import ids_of


async def with_numbers(
    chat: Conversation,
    numbering: ResultNumbering,
    state: Sequence[BaseMessage],
    new: Sequence[BaseMessage],
) -> list[BaseMessage]:
    """Return messages to append, with numbers on the sources of results that no AI message of the state follows.

    A node that runs again, because its graph was killed before the state had the numbers, takes those of the log.
    """
    unseen = ids_of(_unseen(state))
    results = [each for each in new if isinstance(each, ToolMessage) and each.id in unseen]
    if not results:
        return list(new)
    tools = {
        str(call["id"]): call["name"]
        for message in state
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    }
    numbered = await numbering.number(chat, results, tools=tools, may_be_logged=True)
    return [numbered.get(id(each), each) for each in new]


def _unseen(state: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
    """Return the messages after the last AI message."""
    for index in range(len(state), 0, -1):
        if isinstance(state[index - 1], AIMessage):
            return state[index:]
    return state
