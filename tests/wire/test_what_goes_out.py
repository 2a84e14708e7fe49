"""The table of what goes out, in docs/measurements.md, is what writers do; run this file to write it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.messages.tool_calls import pair
from convstore.types import Dropped, History
from convstore.values.providers import ROWS, rules_of_framework
from convstore.view.provider_rules import made_for
from convstore.wire.edits import RequestEdits

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measurements.md"
BEGIN, END = "<!-- what goes out: begin -->\n", "<!-- what goes out: end -->\n"
WORD = "theword"
NOTHING = "nothing"
PNG = "iVBORw0KGgoAAAANSUhEUg=="
PDF = "JVBERi0xLjQK"
WAV = "UklGRiQAAABXQVZF"

Log = list[BaseMessage]
Request = tuple[Any, Iterable[Dropped]]


def asked(*blocks: Any) -> Log:
    """A question with these blocks."""
    return [HumanMessage([{"type": "text", "text": "?"}, *blocks])]


def said(*blocks: Any, model: str = "", provider: str = "", **fields: Any) -> Log:
    """A question, and an answer of a model in the same turn."""
    metadata = {"model_name": model, "model_provider": provider} if model else {}
    call = {"name": "look", "args": {}, "id": "call_1", "type": "tool_call"}
    fields = {"tool_calls": [call], "response_metadata": metadata, **fields}
    answer = AIMessage([*blocks, {"type": "text", "text": "So."}], **fields)
    return [HumanMessage("?"), answer, ToolMessage("1", tool_call_id="call_1", name="look")]


def returned(content: Any, status: Any = "success") -> Log:
    """A call and its result."""
    return [*said()[:-1], ToolMessage(content, tool_call_id="call_1", name="look", status=status)]


CLAUDE = {"model": "claude-opus-4-1", "provider": "anthropic"}
GPT = {"model": "gpt-5", "provider": "openai"}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": WORD}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": WORD}
RAN = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "search", "input": {"q": WORD}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
]
SEARCHED = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": WORD},
}
CUT = [{"name": "look", "args": f'{{"q": "{WORD}', "id": "call_1", "error": "cut"}]
IMAGE = {"type": "image", "base64": PNG, "mime_type": "image/png"}
ADDRESS = {"type": "image", "url": f"https://a/{WORD}", "mime_type": "image/png"}
FOUND = {
    "type": "search_result",
    "source": "https://a",
    "title": "A",
    "content": [{"type": "text", "text": WORD}],
}
CITED = {"type": "text", "text": "So.", "citations": [{"type": "page", "cited_text": WORD}]}
SIGNED = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look", "arguments": "{}"},
    "extra_content": {"google": {"thought_signature": WORD}},
}
LOGS: dict[str, tuple[Log, str]] = {
    "text of a user": ([HumanMessage(WORD)], WORD),
    "image": (asked(IMAGE), PNG),
    "address of an image": (asked(ADDRESS), WORD),
    "PDF": (asked({"type": "file", "base64": PDF, "mime_type": "application/pdf"}), PDF),
    "audio (wav)": (asked({"type": "audio", "base64": WAV, "mime_type": "audio/wav"}), WAV),
    "system message in the middle": ([HumanMessage("?"), SystemMessage(WORD)], WORD),
    "text of an answer": ([HumanMessage("?"), AIMessage(WORD)], WORD),
    "Claude's thinking, open turn": (said(THOUGHT, **CLAUDE), WORD),
    "OpenAI's encrypted reasoning, open turn": (said(REASONING, **GPT), WORD),
    "`reasoning_content` of DeepSeek": (
        said(model="deepseek-v4-pro", additional_kwargs={"reasoning_content": WORD}),
        WORD,
    ),
    "Gemini's signature of a call": (
        said(model="gemini-3-pro", additional_kwargs={"tool_calls": [SIGNED]}),
        WORD,
    ),
    "citations of Claude": (said(CITED, **CLAUDE), WORD),
    "search that Anthropic ran": (said(*RAN, **CLAUDE), WORD),
    "search that OpenAI ran": (said(SEARCHED, **GPT), WORD),
    "arguments that were cut": (said(tool_calls=[], invalid_tool_calls=CUT), WORD),
    "text of a result": (returned(WORD), WORD),
    "text of a failed result": (returned(WORD, "error"), WORD),
    "image in a result": (returned([IMAGE]), PNG),
    "image in a failed result": (returned([IMAGE], "error"), PNG),
    "`search_result` in a result": (returned([FOUND]), WORD),
}


def chat(model: str) -> Callable[[Log], Request]:
    """Chat Completions, of a model."""

    def write(log: Log) -> Request:
        request = History(messages=log).to_openai(model=model)
        return request, request.dropped

    return write


def responses(log: Log) -> Request:
    """The Responses API."""
    request = History(messages=log).to_openai(api="responses", model="gpt-5")
    return request, request.dropped


def anthropic(log: Log) -> Request:
    """Anthropic's API."""
    request = History(messages=log).to_anthropic(model="claude-opus-4-1")
    return request["messages"], request.dropped


def view_for(provider: str) -> Callable[[Log], Request]:
    """A view for LangChain's package of a provider."""

    def write(log: Log) -> Request:
        dropped = list[Dropped]()
        made = made_for(pair(log).messages, ROWS[provider], dropped)
        return [message.model_dump(exclude={"response_metadata"}) for message in made], dropped

    return write


def pydantic_ai(log: Log) -> Request:
    """Messages of Pydantic AI, for Claude."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter  # noqa: PLC0415 - loads slowly

    from convstore.ext.pydantic_ai.messages import from_log  # noqa: PLC0415 - loads slowly

    model = "claude-opus-4-1"
    edits = RequestEdits(rules_of_framework(None, model), asked=model)
    found, dropped = from_log(log, edits)
    return ModelMessagesTypeAdapter.dump_python(found, mode="json"), [*dropped, *edits.dropped]


def agent_framework(log: Log) -> Request:
    """Messages of Microsoft's Agent Framework, for Claude."""
    from convstore.ext.microsoft.messages import from_log  # noqa: PLC0415 - loads slowly

    model = "claude-opus-4-1"
    edits = RequestEdits(rules_of_framework(None, model), asked=model)
    found, dropped = from_log(log, edits)
    return [message.to_dict() for message in found], [*dropped, *edits.dropped]


def agents_sdk(log: Log) -> Request:
    """Items for OpenAI's Agents SDK, before the next question."""
    from convstore.ext.openai_agents.items import of_view  # noqa: PLC0415 - loads slowly

    items = of_view(log, ROWS["responses"])
    return list(items), items.dropped


WRITERS: dict[str, Callable[[Log], Request]] = {
    "Chat Completions, GPT": chat("gpt-5"),
    "Chat Completions, DeepSeek": chat("deepseek-v4-pro"),
    "Chat Completions, Gemini": chat("gemini-3-pro"),
    "Responses": responses,
    "Anthropic": anthropic,
    "LangChain, OpenAI": view_for("openai"),
    "LangChain, Anthropic": view_for("anthropic"),
    "Pydantic AI, Claude": pydantic_ai,
    "Agent Framework, Claude": agent_framework,
    "Agents SDK": agents_sdk,
}


def places(value: Any, word: str, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield where a word stands: the roles and types around it."""
    if isinstance(value, Mapping):
        kind = value.get("part_kind") or value.get("role") or value.get("type") or value.get("kind")
        own = (*path, str(kind)) if isinstance(kind, str) else path
        for name, each in value.items():
            if name == "additional_kwargs" and "tool_calls" in each:
                continue  # LangChain's packages send `tool_calls` instead
            yield from places(each, word, own)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from places(each, word, path)
    elif isinstance(value, str) and word in value:
        yield path


def cell(log: Log, word: str, write: Callable[[Log], Request]) -> str:
    """What a writer makes of a log: where the word stands in the request, and what is named in `.dropped`."""
    numbered = [
        message.model_copy(update={"id": f"m{number}"}) for number, message in enumerate(log)
    ]
    request, dropped = write(numbered)
    found = dict.fromkeys(
        "/".join(kind for kind in place if kind not in ("message", "request", "response"))
        for place in places(request, word)
    )
    names = sorted({f"`{part.part}` named" for part in dropped if part.part != "status"})
    return "; ".join([*found, *names]) or NOTHING


def table() -> str:
    """The table."""
    head = f"| in the log | {' | '.join(WRITERS)} |\n|{'---|' * (len(WRITERS) + 1)}\n"
    lines = [
        f"| {name} | {' | '.join(cell(log, word, write) for write in WRITERS.values())} |\n"
        for name, (log, word) in LOGS.items()
    ]
    return head + "".join(lines)


@pytest.mark.slow
def test_the_table_in_docs_is_what_goes_out() -> None:
    """If this fails, run ``python tests/wire/test_what_goes_out.py`` and read the difference."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == table()


def test_nothing_vanishes() -> None:
    """Each part is in the request, or it is named."""
    quick = [write for name, write in WRITERS.items() if not re.match("Pydantic|Agent", name)]
    empty = [
        name
        for name, (log, word) in LOGS.items()
        for write in quick
        if cell(log, word, write) == NOTHING
    ]
    assert empty == []


if __name__ == "__main__":
    old = PAGE.read_text(encoding="utf-8")
    before, _, rest = old.partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")
    sys.stdout.write(table())
