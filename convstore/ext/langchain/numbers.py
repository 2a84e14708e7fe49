"""Numbers of sources in the results of an agent's tools, before the model sees them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool

from convstore import Conversation
from convstore.exceptions import InvalidInputError
from convstore.ext.langchain.results import messages_in
from convstore.integration import ResultNumbering
from convstore.sources.outputs import with_results


class ToolNumbers:
    """Numbers what the tools of an agent return; see `ConversationMiddleware`."""

    def __init__(self, tools: Collection[str | BaseTool | Callable[..., Any]] | None) -> None:
        self._numbering = ResultNumbering(tools)
        self._names = self._numbering.names

    def check(self, tools: Sequence[Any]) -> None:
        """Raise an InvalidInputError if a name that was given is not that of a tool of the agent."""
        known = {_name_of(tool) for tool in tools} if self._names else set()
        unknown = sorted((self._names or frozenset()) - known)
        if unknown:
            raise InvalidInputError(
                f"number_sources names {', '.join(map(repr, unknown))}, but the agent has no such "
                "tool; its tools are "
                f"{', '.join(sorted(map(repr, known))) or 'none'}"
            )

    def split(self, tool: Any, name: str) -> Any | None:
        """Return the tool of a call with its list of sources as artifact; None if it stays as it is."""
        if tool is None or (self._names is not None and not self._names):
            return None
        return ResultNumbering.with_split_lists(tool, is_chosen=name in (self._names or ()))

    async def number(self, chat: Conversation, output: Any, call: ToolCall) -> Any:
        """Return a tool's output with numbers on the sources of its results."""
        results = [each for each in messages_in(output, call) if isinstance(each, ToolMessage)]
        tools = {str(call["id"]): call["name"]}
        numbered = await self._numbering.number(chat, results, tools=tools)
        return with_results(output, numbered)


def _name_of(tool: Any) -> str:
    """Return the name of a tool, also of one that a provider runs."""
    if not isinstance(tool, dict):
        return str(getattr(tool, "name", ""))
    function = tool.get("function")
    inner = function if isinstance(function, dict) else tool
    return str(inner.get("name") or tool.get("type") or "")
