"""Measure the system prompt and the tools of a model request; stamps keep their digest and sizes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from langchain.agents.middleware.types import ModelRequest
from langchain_core.messages import SystemMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from convstore.messages.text import text_of
from convstore.messages.tokens import TokenCounter, count
from convstore.values.stamps import NOT_MEASURED, RequestParts

_DIGEST_CHARACTERS = 16


class RequestMeter:
    """Measures requests; safe to use from several threads. The last result is cached, as most requests are alike."""

    def __init__(self) -> None:
        self._last: tuple[list[object], list[Any], RequestParts] = ([], [], NOT_MEASURED)

    def measure(self, request: ModelRequest[Any], counter: TokenCounter) -> RequestParts:
        """Return the digest and the sizes of a request's system prompt and tools."""
        prompt = text_of(request.system_message.content) if request.system_message else ""
        tools = list(request.tools)
        key: list[object] = [prompt, *map(id, tools)]
        known, _, parts = self._last
        if known == key:
            return parts
        schemas = [_schema(tool) for tool in tools]
        described = json.dumps(schemas, sort_keys=True, default=repr) if schemas else ""
        digest = hashlib.sha256(json.dumps([prompt, described]).encode()).hexdigest()
        parts = RequestParts(
            digest[:_DIGEST_CHARACTERS], _tokens(prompt, counter), _tokens(described, counter)
        )
        # One assignment, because other threads may measure concurrently. The reference to the tools prevents Python
        # from reusing their `id()`s.
        self._last = key, tools, parts
        return parts


def _schema(tool: Any) -> Any:
    """Return the schema of a tool that is sent to a provider; a dict is a schema already."""
    return tool if isinstance(tool, dict) else convert_to_openai_tool(tool)


def _tokens(text: str, counter: TokenCounter) -> int:
    return count(counter, SystemMessage(text)) if text else 0
