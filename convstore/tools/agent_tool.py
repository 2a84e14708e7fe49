"""A LangChain tool that loops on a provider's SDK can use, too: it has specifications and accepts calls of the SDKs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool, ToolException
from langchain_core.utils.function_calling import convert_to_openai_tool

from convstore.exceptions import StoreError, SyncUnsupportedError
from convstore.messages.call_arguments import arguments_text
from convstore.runtime.loop_thread import BothWays
from convstore.values.json_form import has_few_levels, sendable, sendable_message
from convstore.values.plain import part_of
from convstore.values.scope import check_one_of

_ARGUMENTS = {"function": "arguments", "function_call": "arguments", "tool_use": "input"}
_NOT_JSON = (
    "The arguments are not a JSON object, or they nest too deeply. Call again with valid ones."
)
_ERROR_CHARACTERS = 400


class AgentTool(StructuredTool):
    """A `StructuredTool` whose `invoke` and `ainvoke` also accept a call of OpenAI's or Anthropic's SDK.

    Such a call may be an object or a dict, and its result is text. For LangChain's calls and for plain arguments, the
    result is that of `StructuredTool`.
    """

    def to_openai(self, *, api: Literal["chat", "responses"] = "chat") -> Any:
        """Return the specification for `tools` of Chat Completions or of the Responses API.

        Raises:
            InvalidInputError: `api` has another value.
        """
        check_one_of(api, "chat", "responses", name="api")
        chat = convert_to_openai_tool(self)
        return chat if api == "chat" else {"type": "function", **chat["function"], "strict": False}

    def to_anthropic(self) -> Any:
        """Return the specification for `tools` of Anthropic's API."""
        function = convert_to_openai_tool(self)["function"]
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": function["parameters"],
        }

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run the tool for a call or its arguments."""
        arguments = _arguments(input)
        if arguments is None:
            return self._invalid_call_error(input)
        return _sendable_answer(super().invoke(arguments, config, **kwargs))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run the tool for a call or its arguments."""
        arguments = _arguments(input)
        if arguments is None:
            return self._invalid_call_error(input)
        return _sendable_answer(await super().ainvoke(arguments, config, **kwargs))

    def _invalid_call_error(self, given: Any) -> Any:
        """Return the error for a call with invalid arguments, in the form that its caller expects."""
        if part_of(given, "type") != "tool_call":
            return _NOT_JSON
        return ToolMessage(_NOT_JSON, name=self.name, tool_call_id=given["id"], status="error")


def agent_tool(
    request_of: Callable[..., Any], ways_of: Callable[[RunnableConfig], BothWays], **options: Any
) -> AgentTool:
    """Return a tool, async and sync, that answers requests of a model and reports errors of the store to the model.

    `request_of` builds a request from the model's arguments. `ways_of` returns the async and sync functions that answer
    it, given the configuration of a run. The options are those of `StructuredTool.from_function`.
    """

    async def answer(*given: Any, config: RunnableConfig, **named: Any) -> Any:
        work, _ = ways_of(config)
        with _reported_to_the_model():
            return await work(request_of(*given, **named))

    def answer_sync(*given: Any, config: RunnableConfig, **named: Any) -> Any:
        _, work = ways_of(config)
        with _reported_to_the_model():
            return work(request_of(*given, **named))

    options |= {"handle_tool_error": True, "handle_validation_error": True}
    return cast("AgentTool", AgentTool.from_function(answer_sync, answer, **options))


@contextmanager
def _reported_to_the_model() -> Iterator[None]:
    """Report errors of the store to the model; raise a SyncUnsupportedError, which is an error of the application."""
    try:
        yield
    except SyncUnsupportedError:
        raise
    except StoreError as error:
        raise ToolException(f"The store cannot answer now: {error}"[:_ERROR_CHARACTERS]) from error


def _sendable_answer(answer: Any) -> Any:
    """Return an answer in a form that can be sent to a model."""
    return sendable_message(answer) if isinstance(answer, BaseMessage) else sendable(answer)


def _arguments(given: Any) -> Any:
    """Return the arguments of a call of a provider's SDK, None if they are invalid; any other input unchanged.

    Input that nests too deeply is invalid, too, because LangChain's logging of the input would fail.
    """
    key = _ARGUMENTS.get(str(part_of(given, "type")))
    if key is None:
        return None if isinstance(given, dict) and not has_few_levels(given) else given
    text, is_whole = arguments_text(part_of(part_of(given, "function") or given, key))
    return json.loads(text) if is_whole else None
