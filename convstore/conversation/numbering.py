"""Number the sources in tool results before a model sees them; sessions, nodes and the middleware use it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from langchain_core.messages import ToolMessage

from convstore.conversation.host import Host, host_of
from convstore.exceptions import InvalidInputError
from convstore.runtime.threads import characters_in, run_in_thread_if_long
from convstore.sources.detection import SourceExtractor, declares_sources
from convstore.sources.numbering import (
    NumberingPlan,
    plan_numbers,
    sources_in,
    with_numbers,
    with_rendered,
)
from convstore.sources.outputs import returned_list
from convstore.sources.placing import counted_passages
from convstore.sources.source import FoundSources
from convstore.sources.stub import RETRIEVAL_TOOL
from convstore.values.plain import shown_value

_LOGGER = logging.getLogger("convstore")
_OTHER_MARKS = (
    "results of tool %r show marks such as [1] that are not the numbers of their sources in the "
    "log, so a citation may be read as another source; pass number_sources=(%r,)"
)
_OTHER_LIST = (
    "results of tool %r hold a list whose items have numbers in the log that the model is not "
    "shown; if they are sources to cite, pass number_sources=(%r,)"
)
_DOCUMENTS_AS_TEXT = (
    "results of tool %r are a list of Documents as Python writes it, so they are not cited as "
    "sources; give the agent or graph number_sources(tool, store) in place of %r, or return text "
    'and documents with response_format="content_and_artifact"'
)
_UNKNOWN_PASSAGES = (
    "results of tool %r count passages by marks such as [1] and have no sources for the log, so a "
    "citation may be read as another source; return the passages as an artifact, too, or call "
    "store.register_source_extractor(%r, ...)"
)


class Unnumbered(NamedTuple):
    """A result whose sources need numbers of the conversation, and a plan where the text shows them."""

    message: ToolMessage
    found: FoundSources
    plan: NumberingPlan


class ResultNumbering:
    """Numbers the sources in results of an agent's tools.

    By default, it numbers a result that declares its sources, or whose tool counts them by marks of its own.

    Attributes:
        names: Names of tools whose sources are always numbered; None for the default, empty to number no result.
    """

    def __init__(self, tools: Collection[Any] | None) -> None:
        self.names = None if tools is None else _names_of(tools)
        self._without_results = set(self.names or ())

    def check(self, tools: Iterable[Any]) -> None:
        """Raise an InvalidInputError if the agent has no tool for one of the `names`."""
        if not self.names:
            return
        known = set(map(_name_in_request, tools))
        if unknown := sorted(self.names - known):
            raise InvalidInputError(
                f"number_sources names {', '.join(map(repr, unknown))}, but the agent has no such "
                f"tool; its tools are {', '.join(sorted(map(repr, known))) or 'none'}"
            )

    def with_split_lists(self, tool: Any, name: str) -> Any | None:
        """Return a tool that returns its list of sources as an artifact; None if the tool needs no change."""
        from convstore.tools.numbering import with_split_lists  # noqa: PLC0415 - LangChain's tools load slowly

        if tool is None or not self._is_on:
            return None
        return with_split_lists(tool, is_chosen=name in (self.names or ()))

    async def number(
        self,
        chat: Any,
        results: Sequence[ToolMessage],
        *,
        tools: Mapping[str, str],
        may_be_logged: bool = False,
    ) -> dict[int, ToolMessage]:
        """Return the results that get numbers, by the `id()` of the object that each replaces.

        One command for each of them.

        Args:
            chat: The conversation.
            results: Results that no model has seen.
            tools: Names of tools by the ids of their calls, for results that do not name their tool.
            may_be_logged: True if the log may have the results already. Then the stored results with their numbers are
                used, for one command more.
        """
        numbered: dict[int, ToolMessage] = {}
        wanted: list[tuple[ToolMessage, Unnumbered]] = []
        for message in results:
            tool = tools.get(message.tool_call_id, "")
            returned = returned_list(message)
            unnumbered = await self.find(chat, returned or message, tool=tool)
            if unnumbered is not None:
                wanted.append((message, unnumbered))
            elif returned is not None:
                numbered[id(message)] = _as_returned(returned)
        logged = await _logged_results(chat, wanted) if wanted and may_be_logged else {}
        for message, unnumbered in wanted:
            is_whole = returned_list(message) is not None and message.content == ""
            numbered[id(message)] = logged.get(str(message.id)) or await _number_result(
                chat, unnumbered, is_whole=is_whole
            )
        return numbered

    async def find(self, chat: Any, message: ToolMessage, *, tool: str = "") -> Unnumbered | None:
        """Return a result with its sources and a plan to number them; None if it stays as it is. No command.

        A warning is logged once about a tool whose lists may be sources, or whose own marks differ from the numbers in
        the log. It also lists the `names` that no result has had yet, because one of them may be misspelt.
        """
        find = partial(self._find, chat, message, tool)
        return await run_in_thread_if_long(find, characters=characters_in([message]))

    def _find(self, chat: Any, message: ToolMessage, tool: str) -> Unnumbered | None:
        host = host_of(chat)
        name = message.name or tool
        self._without_results.discard(name)
        found = _sources_found(message, name, host.source_extractors)
        if not found.items:
            if _is_documents_as_text(message):
                self._log_once(host, name, _DOCUMENTS_AS_TEXT)
            elif _counts_unknown_passages(message, name):
                self._log_once(host, name, _UNKNOWN_PASSAGES)
            return None
        is_chosen = name in (self.names or ())
        is_done = all(source.kept_id for source in found.items)
        if is_done and not is_chosen:
            return None
        plan = plan_numbers(message.content, found.items)
        if is_chosen or (self._is_on and _wants_numbers(message, found, plan)):
            return Unnumbered(message, found, plan)
        self._log_once(host, name, _OTHER_MARKS if plan.is_marked else _OTHER_LIST)
        return None

    def _log_once(self, host: Host, tool: str, text: str) -> None:
        """Log once that the results of a tool are not numbered, with the `names` that no result has had yet."""
        if (tool, self.names) in host.logged_tools:
            return
        host.logged_tools.add((tool, self.names))
        unused = ", ".join(map(repr, sorted(self._without_results)))
        said = f"; number_sources names {unused}, and no such tool has had a result"
        is_warning = unused or text is not _OTHER_LIST
        level = logging.WARNING if is_warning else logging.INFO
        _LOGGER.log(level, text + "%s", tool, tool, said if unused else "")

    @property
    def _is_on(self) -> bool:
        return self.names is None or bool(self.names)


def _names_of(tools: Collection[Any]) -> frozenset[str]:
    """Return the names of tools, each given as a name, a tool or a function."""
    is_collection = isinstance(tools, Iterable) and not isinstance(tools, str)
    names: list[Any] = [_name_of(tool) for tool in tools] if is_collection else [None]
    if not all(isinstance(name, str) for name in names):
        raise InvalidInputError(
            "number_sources must be a collection of tools, functions or names of tools, not "
            + shown_value(tools)
        )
    return frozenset(names)


def _name_of(tool: Any) -> Any:
    """Return the name of a tool, or the name that LangChain gives to a function's tool; other values as they are."""
    return getattr(tool, "name", None) or getattr(tool, "__name__", tool)


def _name_in_request(tool: Any) -> str:
    """Return the name of a tool in a request to a model: a tool, a schema, or a tool that the provider runs."""
    if not isinstance(tool, dict):
        return str(getattr(tool, "name", ""))
    function = tool.get("function")
    inner = function if isinstance(function, dict) else tool
    return str(inner.get("name") or tool.get("type") or "")


def _is_documents_as_text(message: ToolMessage) -> bool:
    """Return True if a result is the text of a Python list of LangChain documents, and its tool has no artifact."""
    content = message.content
    return (
        message.artifact is None and isinstance(content, str) and content.startswith("[Document(")
    )


def _wants_numbers(message: ToolMessage, found: FoundSources, plan: NumberingPlan) -> bool:
    return plan.is_marked or declares_sources(message, found)


def _as_returned(message: ToolMessage) -> ToolMessage:
    """Return a result whose tool returned a list of sources, with the numbers that the tool assigned."""
    found = sources_in(message, {})
    numbers = [source.kept_id for source in found.items]
    kept = [number for number in numbers if number is not None]
    if len(kept) < len(numbers):
        return message.model_copy(update={"content": str(message.artifact), "artifact": None})
    return with_rendered(message, found, (kept, [None] * len(kept)))


async def _logged_results(
    chat: Any, wanted: Sequence[tuple[ToolMessage, Unnumbered]]
) -> dict[str, ToolMessage]:
    """Return the results that the log already has, with their stored content and artifact, by message id."""
    messages = {str(message.id): message for message, _ in wanted}
    records = await chat.get_tool_messages(list(messages))
    return {
        record.tool_message_id: messages[record.tool_message_id].model_copy(
            update={"content": record.content, "artifact": record.artifact}
        )
        for record in records
    }


async def _number_result(chat: Any, unnumbered: Unnumbered, *, is_whole: bool) -> ToolMessage:
    """Reserve numbers for the sources of a result and return the result with them."""
    message, found, plan = unnumbered
    texts = [source.text for source in found.items]
    numbers = await chat.reserve_source_ids(len(texts))
    given = (numbers, await chat.find_shown_sources(texts))
    if is_whole:
        return with_rendered(message, found, given)
    return with_numbers(message, found, given, plan=plan)


def _counts_unknown_passages(message: ToolMessage, tool: str) -> bool:
    """Return True if a result counts passages that are not sources; False for errors and the retrieval tool."""
    is_read_back = tool == RETRIEVAL_TOOL
    if message.status == "error" or is_read_back:
        return False
    return bool(counted_passages(message.text))


def _sources_found(
    message: ToolMessage, name: str, extractors: Mapping[str, SourceExtractor]
) -> FoundSources:
    """Return the sources that an append would find in a result of the tool with this name."""
    if name == RETRIEVAL_TOOL:
        return FoundSources()
    is_named = message.name == name
    named = message if is_named else message.model_copy(update={"name": name})
    return sources_in(named, extractors)
