"""Numbers the sources in a tool's answer before a model sees it.

Layer 4, on a small protocol. Most search tools count from 1 on every call, so that two searches cite the same [1];
behind the wrapper made here, content and artifact carry numbers that nobody else in the conversation has.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from langchain_core.messages import ToolMessage
from langchain_core.messages.tool import ToolOutputMixin
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import Field

from convstore.exceptions import InvalidInputError
from convstore.extraction import SourceExtractor, extract_sources, find_sources, parse_json
from convstore.models import Source
from convstore.sources import FoundSource, FoundSources
from convstore.stubs import text_of

__all__ = ["Numbering", "RenderSources", "make_numbered_tool", "render_sources"]

RenderSources = Callable[[list[Source]], str]
"""Writes the sources that a model gets to see."""

_Given = tuple[range, list[int | None]]
"""Numbers for some sources, and for each the number under which its text was shown before."""


_NO_SOURCES = FoundSources()


class Numbering(NamedTuple):
    """Gives numbers for the sources with some texts, to async and sync callers; and the tools' own extractors."""

    give: Callable[[Sequence[str]], Awaitable[_Given]]
    give_sync: Callable[[Sequence[str]], _Given]
    extractors: Mapping[str, SourceExtractor]


def render_sources(sources: list[Source]) -> str:
    """Sources as a model reads them: number, title and address in one line, the text below.

    >>> print(render_sources([Source(source_id=4, title="Seals", content="Seals sleep.", earlier_id=1)]))
    [4] Seals, already shown as [1]
    Seals sleep.
    """
    return "\n\n".join(f"{_heading(source)}\n{source.content}" for source in sources)


def make_numbered_tool(
    tool: BaseTool | Callable[..., Any],
    numbering_for: Callable[[RunnableConfig], Numbering],
    *,
    render: RenderSources = render_sources,
) -> BaseTool:
    """A tool that does what another does, with numbers of the conversation on the sources of each answer.

    Args:
        tool: The tool, or a function to make one of.
        numbering_for: Gives the numbers for the configuration of a run.
        render: Writes the content from the numbered sources, unless that is JSON.

    Raises:
        InvalidInputError: `tool` is neither a tool nor a function.
    """
    inner = tool if isinstance(tool, BaseTool) else _tool_of(tool)
    return _NumberedTool(
        name=inner.name,
        description=inner.description,
        args_schema=inner.args_schema,
        return_direct=inner.return_direct,
        inner=inner,
        numbering_for=numbering_for,
        render=render,
    )


class _ToldError(ToolException):
    """What the inner tool told the model of its failure; goes on as a message with an error status."""


def _tell(error: ToolException) -> str:
    if isinstance(error, _ToldError):
        return str(error)
    raise error


class _NumberedTool(BaseTool):
    inner: BaseTool
    numbering_for: Callable[[RunnableConfig], Numbering] = Field(repr=False)
    render: RenderSources = Field(repr=False)
    response_format: Any = "content_and_artifact"
    handle_tool_error: Any = _tell

    async def _arun(self, *, config: RunnableConfig, **arguments: Any) -> tuple[Any, Any]:
        answer = _read(await self.inner.ainvoke(_call(self.inner, arguments), config))
        numbering = self.numbering_for(config)
        answer = answer.find(self.name, numbering.extractors)
        return answer.numbered(await numbering.give(answer.texts), self.render) if answer.texts else answer.plain

    def _run(self, *, config: RunnableConfig, **arguments: Any) -> tuple[Any, Any]:
        answer = _read(self.inner.invoke(_call(self.inner, arguments), config))
        numbering = self.numbering_for(config)
        answer = answer.find(self.name, numbering.extractors)
        return answer.numbered(numbering.give_sync(answer.texts), self.render) if answer.texts else answer.plain


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a tool answered, and the sources in it."""

    content: Any
    artifact: Any = None
    found: FoundSources = _NO_SOURCES
    is_json: bool = False

    @property
    def plain(self) -> tuple[Any, Any]:
        return self.content, self.artifact

    @property
    def texts(self) -> list[str]:
        return [source.text for source in self.found.items]

    def find(self, tool: str, extractors: Mapping[str, SourceExtractor]) -> _Answer:
        """The answer with its sources, where they can be numbered in place if possible."""
        if isinstance(self.content, ToolOutputMixin) and not isinstance(self.content, ToolMessage):
            return self
        content = self.content if isinstance(self.content, str | list) else text_of(self.content)
        message = ToolMessage(content, artifact=self.artifact, tool_call_id="", name=tool)
        parsed = parse_json(content) if isinstance(content, str) else None
        found = extract_sources(message, parsed, extractors)
        in_json = find_sources(ToolMessage("", artifact=parsed, tool_call_id=""), None)
        if found.rebuild is None and in_json.rebuild is not None and tool not in extractors:
            return _Answer(self.content, self.artifact, in_json, is_json=True)
        return _Answer(self.content, self.artifact, found)

    def numbered(self, given: _Given, render: RenderSources) -> tuple[Any, Any]:
        numbers, earlier = given
        items = [source.with_number(number) for source, number in zip(self.found.items, numbers, strict=True)]
        if self.is_json:
            assert self.found.rebuild is not None  # noqa: S101 - asked before
            return json.dumps(self.found.rebuild(items), ensure_ascii=False), self.artifact
        sources = list(map(_source, self.found.items, numbers, earlier))
        if self.found.rebuild is not None:
            return render(sources), self.found.rebuild(items)
        return render(sources), items if self.artifact is None else {"sources": items, "artifact": self.artifact}


def _tool_of(function: Any) -> BaseTool:
    if not callable(function):
        raise InvalidInputError(f"number_sources takes a tool or a function, not {type(function).__name__}")
    if inspect.iscoroutinefunction(function):
        return StructuredTool.from_function(coroutine=function)
    return StructuredTool.from_function(function)


def _call(tool: BaseTool, arguments: dict[str, Any]) -> dict[str, Any]:
    """What the tool is called with: as a call where only that gives its artifact, else bare, to get its own value."""
    if tool.response_format != "content_and_artifact":
        return arguments
    return {"type": "tool_call", "id": "numbered", "name": tool.name, "args": arguments}


def _read(value: Any) -> _Answer:
    """What a tool gave, in whatever form.

    Raises:
        ToolException: The tool told of a failure.
    """
    if isinstance(value, ToolMessage):
        if value.status == "error":
            raise _ToldError(text_of(value.content))
        return _Answer(value.content, value.artifact)
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and not isinstance(value[1], dict):
        return _Answer(*value)
    is_content = isinstance(value, str | ToolOutputMixin) or _is_blocks(value)
    return _Answer(value) if is_content else _Answer(value, value)


def _is_blocks(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict) and isinstance(item.get("type"), str) for item in value
    )


def _source(source: FoundSource, number: int, earlier: int | None) -> Source:
    return Source(
        source_id=number,
        title=source.title,
        url=source.url,
        content=source.text,
        metadata={key: value for key, value in source.metadata.items() if key != "source_id"},
        earlier_id=earlier,
    )


def _heading(source: Source) -> str:
    address = f"({source.url})" if source.url else ""
    same = f", already shown as [{source.earlier_id}]" if source.earlier_id else ""
    return " ".join(filter(None, [f"[{source.source_id}]", " ".join(source.title.split()), address])) + same
