"""Numbers the sources in a tool's answer before a model sees it.

Most search tools count from 1 on every call, so two searches cite the same [1]. The wrapper puts numbers into content
and artifact that are unique in the conversation.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.tools import BaseTool, StructuredTool
from pydantic import Field

from convstore.exceptions import InvalidInputError
from convstore.sources.detection import SourceExtractor, extract_sources, find_sources, parse_json
from convstore.sources.prompt import RenderSources, heading_of, render_sources
from convstore.sources.source import FoundSource, FoundSources
from convstore.values.models import Source

Given = tuple[Sequence[int], list[int | None]]
"""Numbers for some sources, and for each the number under which its text was shown before, or None."""


class Numbering(NamedTuple):
    """Functions that assign numbers to sources by their texts, async and sync; and the tools' own extractors."""

    give: Callable[[Sequence[str]], Awaitable[Given]]
    give_sync: Callable[[Sequence[str]], Given]
    extractors: Mapping[str, SourceExtractor]


def make_numbered_tool(
    tool: BaseTool | Callable[..., Any],
    numbering_for: Callable[[RunnableConfig], Numbering],
    *,
    render: RenderSources = render_sources,
) -> BaseTool:
    """Wrap a tool, or a function, so that the sources of each answer have the numbers of the run's conversation.

    `render` writes the content from the numbered sources, unless the content is JSON.
    """
    inner = _with_artifact(tool if isinstance(tool, BaseTool) else _tool_of(tool))
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
        numbering_for=numbering_for,
        render=render,
    )


class _NumberedTool(BaseTool):
    """Calls the inner tool, whose errors pass through, and numbers the sources in its message."""

    inner: BaseTool
    numbering_for: Callable[[RunnableConfig], Numbering] = Field(repr=False)
    render: RenderSources = Field(repr=False)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        answer = await self.inner.ainvoke(_call(self.name, input), config, **kwargs)
        numbering = self.numbering_for(ensure_config(config))
        if found := _found(answer, self.name, numbering.extractors):
            answer = _numbered(answer, found, await numbering.give(_texts(found)), self.render)
        return answer if _is_call(input) else _parts(answer)[0]

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        answer = self.inner.invoke(_call(self.name, input), config, **kwargs)
        numbering = self.numbering_for(ensure_config(config))
        if found := _found(answer, self.name, numbering.extractors):
            answer = _numbered(answer, found, numbering.give_sync(_texts(found)), self.render)
        return answer if _is_call(input) else _parts(answer)[0]

    async def _arun(self, *, config: RunnableConfig, **arguments: Any) -> tuple[Any, Any]:
        return _parts(await self.ainvoke(_call(self.name, arguments), config))

    def _run(self, *, config: RunnableConfig, **arguments: Any) -> tuple[Any, Any]:
        return _parts(self.invoke(_call(self.name, arguments), config))


def with_numbers(message: ToolMessage, found: FoundSources, given: Given) -> ToolMessage:
    """Return a result with the sources that its tool named: with their numbers, in content and artifact."""
    numbers, earlier = given
    items = [
        source.with_number(number) for source, number in zip(found.items, numbers, strict=True)
    ]
    artifact = (
        items if message.artifact is None else {"sources": items, "artifact": message.artifact}
    )
    shown = list(map(_source, found.items, numbers, earlier))
    content = _content(message.content, shown, render_sources)
    return message.model_copy(update={"content": content, "artifact": artifact})


def _tool_of(function: Any) -> BaseTool:
    if not callable(function):
        raise InvalidInputError(
            f"number_sources takes a tool or a function, not {type(function).__name__}"
        )
    try:
        if inspect.iscoroutinefunction(function):
            return StructuredTool.from_function(coroutine=function)
        return StructuredTool.from_function(function)
    except (
        TypeError,
        ValueError,
    ) as error:  # no signature, no docstring, arguments that a model cannot give
        raise InvalidInputError(
            f"number_sources cannot make a tool of {function!r}: {error}"
        ) from error


def _with_artifact(tool: BaseTool) -> BaseTool:
    """Return the tool with a list of sources as its artifact; as content the list would become text."""
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
    """Return content and artifact of a value: a list of sources is an artifact, any other value content."""
    match value:
        case (str() as content, list() | tuple() as artifact) if isinstance(value, tuple):
            return content, artifact
    is_list = isinstance(value, list | tuple)
    found = (
        find_sources(ToolMessage("", artifact=value, tool_call_id=""), None)
        if is_list
        else FoundSources()
    )
    return ("", value) if found.rebuild is not None else (value, None)


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


def _found(
    answer: Any, tool: str, extractors: Mapping[str, SourceExtractor]
) -> FoundSources | None:
    """Return the sources that an append of the answer would find; None if there is nothing to number."""
    if not isinstance(answer, ToolMessage) or answer.status == "error":
        return None
    named = answer.model_copy(update={"name": answer.name or tool})
    found = extract_sources(named, _parsed(answer), extractors)
    return found if found.items else None


def _texts(found: FoundSources) -> list[str]:
    return [source.text for source in found.items]


def _numbered(
    answer: ToolMessage, found: FoundSources, given: Given, render: RenderSources
) -> ToolMessage:
    """Return the message with numbers on its sources, in the content if possible."""
    numbers, earlier = given
    items = [
        source.with_number(number) for source, number in zip(found.items, numbers, strict=True)
    ]
    in_json = find_sources(ToolMessage("", artifact=_parsed(answer), tool_call_id=""), None)
    if found.rebuild is None and in_json.rebuild is not None and _texts(in_json) == _texts(found):
        return answer.model_copy(
            update={"content": json.dumps(in_json.rebuild(items), ensure_ascii=False)}
        )
    sources = list(map(_source, found.items, numbers, earlier))
    if found.rebuild is not None:
        artifact = found.rebuild(items)
    else:
        artifact = (
            items if answer.artifact is None else {"sources": items, "artifact": answer.artifact}
        )
    return answer.model_copy(
        update={"content": _content(answer.content, sources, render), "artifact": artifact}
    )


def _content(content: Any, sources: list[Source], render: RenderSources) -> Any:
    """Return the content for the model: all that the tool wrote, each part once, unless `render` differs."""
    if render is not render_sources:
        return render(sources)
    if isinstance(content, list):
        return [*content, {"type": "text", "text": "\n".join(map(heading_of, sources))}]
    is_whole = all(source.content in content for source in sources)
    return render(sources) if is_whole or not content.strip() else f"{content}\n\n{render(sources)}"


def _parsed(answer: ToolMessage) -> Any:
    return parse_json(answer.content) if isinstance(answer.content, str) else None


def _source(source: FoundSource, number: int, earlier: int | None) -> Source:
    return Source(
        source_id=number,
        title=source.title,
        url=source.url,
        content=source.text,
        metadata={key: value for key, value in source.metadata.items() if key != "source_id"},
        earlier_id=earlier,
    )
