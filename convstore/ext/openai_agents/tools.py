"""Tools with which an agent of the Agents SDK reads full results again and searches other conversations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from convstore import Conversation
from convstore.exceptions import InvalidInputError
from convstore.ext.openai_agents.session import ConvstoreSession
from convstore.integration import agent_tools

if TYPE_CHECKING:
    from agents import FunctionTool
    from agents.tool_context import ToolContext


def read_back_tools(
    session: ConvstoreSession, *, search: Sequence[str] = ("user_id",), artifact: bool = False
) -> list[FunctionTool]:
    """Return the tools that read full content again, and search the other conversations of the same user.

    They work on the conversation of the run that calls them, never on one that a model names. Invalid arguments do not
    raise; the model gets an error message.

    Args:
        session: The session of the agent's runs.
        search: Names of the scope keys that the searched conversations share; empty to leave out the search tool.
        artifact: Show the model the rest of artifacts when it reads back, as `retrieve_previous_sources_tool` does.

    Raises:
        InvalidInputError: `session` is not a ConvstoreSession, `search` has a name that is not a scope key, or
            `artifact` is not a bool.
    """
    if not isinstance(session, ConvstoreSession):
        raise InvalidInputError(f"session must be a ConvstoreSession, not {type(session).__name__}")
    tools = agent_tools(session.store, search, artifact=artifact)
    return [_tool(session, tool, bind) for tool, bind in tools]


def _tool(
    session: ConvstoreSession, tool: Any, bound: Callable[[Conversation], Any]
) -> FunctionTool:
    """Return a tool of the SDK that runs ours, bound to the conversation of the run."""
    from agents import FunctionTool  # noqa: PLC0415 - loads slowly

    async def invoke(context: ToolContext[Any], arguments: str) -> str:
        chosen = bound(session.conversation(context))
        return str(await chosen.ainvoke({"type": "function_call", "arguments": arguments}))

    parameters = tool.to_openai(api="responses")["parameters"]
    return FunctionTool(tool.name, tool.description, parameters, invoke, strict_json_schema=False)
