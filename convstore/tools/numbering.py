"""Numbers the sources in a tool's answer before a model sees it.

Most search tools count from 1 on every call, so [1] of two searches means two sources. The wrapper puts numbers that
are unique in the conversation into content and artifact.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import wraps
from typing import Any, NamedTuple

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.tools import BaseTool, StructuredTool
from pydantic import Field

from convstore.exceptions import InvalidInputError
from convstore.sources.detection import SourceExtractor, find_sources, parse_json
from convstore.sources.numbering import SourceNumbers, sources_in, sources_of, with_numbers
from convstore.sources.outputs import (
    ReturnedSources,
    results_in,
    returned_list,
    with_results,
)
from convstore.sources.prompt import RenderSources, render_sources
from convstore.sources.source import FoundSources


class SourceNumberer(NamedTuple):
    """Functions that assign numbers to sources, async and sync; and the tools' own extractors."""

    give: Callable[[FoundSources], Awaitable[SourceNumbers]]
    give_sync: Callable[[FoundSources], SourceNumbers]
    extractors: Mapping[str, SourceExtractor]


def make_numbered_tool(
    tool: BaseTool | Callable[..., Any],
    numberer_for: Callable[[RunnableConfig], SourceNumberer],
    *,
    render: RenderSources | None = None,
) -> BaseTool:
    """Wrap a tool or a function so that the sources of each answer get numbers of the run's conversation.

    `render` writes the content from the numbered sources, unless the content is JSON. A list of sources that a tool
    returns as its content is always rendered.
    """
    given = tool if isinstance(tool, BaseTool) else _tool_of(tool)
    inner = _with_artifact(given)
    return _NumberedTool(
        name=inner.name,
        description=inner.description,
        args_schema=inner.args_schema,
        return_direct=inner.return_direct,
        tags=inner.tags,
        metadata=inner.metadata,
        extras=inner.extras,
        response_format="content_and_artifact",
        inner=inner,
        numberer_for=numberer_for,
        render=render,
    )


class _NumberedTool(BaseTool):
    """Calls the inner tool, whose errors pass through, and numbers the sources in its results."""

    inner: BaseTool
    numberer_for: Callable[[RunnableConfig], SourceNumberer] = Field(repr=False)
    render: RenderSources | None = Field(repr=False)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        answer = await self.inner.ainvoke(_call(self.name, input), config, **kwargs)
        numberer = self.numberer_for(ensure_config(config))
        numbered = {}
        for message, found in self._with_sources(answer, numberer):
            given = await numberer.give(found)
            numbered[id(message)] = self._numbered(message, found, given)
        answer = with_results(answer, numbered)
        return answer if _is_call(input) else _parts(answer)[0]

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        answer = self.inner.invoke(_call(self.name, input), config, **kwargs)
        numberer = self.numberer_for(ensure_config(config))
        numbered = {}
        for message, found in self._with_sources(answer, numberer):
            given = numberer.give_sync(found)
            numbered[id(message)] = self._numbered(message, found, given)
        answer = with_results(answer, numbered)
        return answer if _is_call(input) else _parts(answer)[0]

    async def _arun(self, *, config: RunnableConfig, **arguments: Any) -> tuple[Any, Any]:
        return _parts(await self.ainvoke(_call(self.name, arguments), config))

    def _run(self, *, config: RunnableConfig, **arguments: Any) -> tuple[Any, Any]:
        return _parts(self.invoke(_call(self.name, arguments), config))

    def _with_sources(
        self, answer: Any, numberer: SourceNumberer
    ) -> Iterator[tuple[ToolMessage, FoundSources]]:
        """Yield the results of an answer with the sources that an append would find in them."""
        for message in results_in(answer):
            plain = returned_list(message) or message
            named = plain.model_copy(update={"name": message.name or self.name})
            found = sources_in(named, numberer.extractors)
            if found.items:
                yield message, found

    def _numbered(
        self, message: ToolMessage, found: FoundSources, given: SourceNumbers
    ) -> ToolMessage:
        returned = returned_list(message)
        numbered = with_numbers(returned or message, found, given)
        is_json = isinstance(message.content, str) and parse_json(message.content) is not None
        is_written = returned is not None and message.content == ""
        if is_json or not (self.render or is_written):
            return numbered
        render = self.render or render_sources
        return numbered.model_copy(update={"content": render(sources_of(found.items, given))})


def with_split_lists(tool: Any, *, is_chosen: bool) -> Any | None:
    """Return a tool that returns its list of sources as an artifact; None if the tool needs no change.

    Args:
        tool: A tool of an agent.
        is_chosen: True if the application named the tool as one with sources. Otherwise the tool is changed only if its
            return annotation names LangChain's documents.
    """
    if not is_chosen and not _returns_documents(tool):
        return None
    split = _with_artifact(tool)
    return None if split is tool else split


def _returns_documents(tool: Any) -> bool:
    if type(tool) is not StructuredTool:
        return False
    function = tool.coroutine or tool.func
    annotations = getattr(function, "__annotations__", {})
    return "Document" in str(annotations.get("return", ""))


def _tool_of(function: Any) -> BaseTool:
    if not callable(function):
        raise InvalidInputError(
            f"number_sources takes a tool or a function, not {type(function).__name__}"
        )
    try:
        if inspect.iscoroutinefunction(function):
            return StructuredTool.from_function(coroutine=function)
        return StructuredTool.from_function(function)
    except (TypeError, ValueError) as error:
        # it has no signature or no docstring, or arguments that a model cannot pass
        raise InvalidInputError(
            f"number_sources cannot make a tool of {function!r}: {error}"
        ) from error


def _with_artifact(tool: BaseTool) -> BaseTool:
    """Return the tool with its list of sources as an artifact; as content the list would become text."""
    if not isinstance(tool, StructuredTool) or tool.response_format == "content_and_artifact":
        return tool
    function = tool.func
    coroutine = tool.coroutine
    changes: dict[str, Any] = {"response_format": "content_and_artifact"}
    if function is not None:
        changes["func"] = wraps(function)(lambda *args, **kwargs: _split(function(*args, **kwargs)))
    if coroutine is not None:

        @wraps(coroutine)
        async def later(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
            return _split(await coroutine(*args, **kwargs))

        changes["coroutine"] = later
    return tool.model_copy(update=changes)


def _split(value: Any) -> tuple[Any, Any]:
    """Split a returned value into content and artifact: a list of sources is an artifact, any other value content."""
    match value:
        case (str() as content, list() | tuple() as artifact) if isinstance(value, tuple):
            return content, artifact
    if isinstance(value, list | tuple):
        found = find_sources(ToolMessage("", artifact=value, tool_call_id=""), None)
        if found.rebuild is not None:
            return "", ReturnedSources(value)
    return value, None


def _is_call(given: Any) -> bool:
    return isinstance(given, dict) and given.get("type") == "tool_call"


def _call(name: str, given: Any) -> Any:
    """Return the input of the inner tool: always a tool call, because only that returns the artifact."""
    if _is_call(given):
        return given
    arguments = given if isinstance(given, dict) else {"__arg1": given}
    return {"type": "tool_call", "id": "bare", "name": name, "args": arguments}


def _parts(answer: Any) -> tuple[Any, Any]:
    """Return content and artifact of a message; any other value, such as a command, is content."""
    return (answer.content, answer.artifact) if isinstance(answer, ToolMessage) else (answer, None)
