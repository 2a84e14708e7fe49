"""Scripted chat model, so that the example runs without a network.

It follows simple rules, but builds each reply from its messages, like a real model. Any LangChain chat model can
replace it.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field

from clinical_assistant.knowledge import RAG_TOOL_NAME

__all__ = ["ScriptedModel"]


class ScriptedModel(BaseChatModel):
    """Chat model that looks things up, answers from the first passage, and obeys some key words.

    Attributes:
        seen: The messages of each call.
        before_reply: Awaited with the question before each reply, so that a demo or a test can slow it down.
    """

    seen: list[list[BaseMessage]] = Field(default_factory=list)
    before_reply: Callable[[str], Awaitable[None]] | None = None

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> ScriptedModel:  # noqa: ARG002 - it knows them from its rules
        """Ignore the tools; the rules already know them."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - the base class has it
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002 - likewise
        **_: Any,
    ) -> ChatResult:
        self.seen.append(list(messages))
        return ChatResult(generations=[ChatGeneration(message=_reply(messages))])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002 - the base class has it
        **_: Any,
    ) -> ChatResult:
        if self.before_reply is not None:
            await self.before_reply(_question(messages))
        return self._generate(messages, stop)


def _question(messages: Sequence[BaseMessage]) -> str:
    return next(message.text for message in reversed(messages) if isinstance(message, HumanMessage))


def _reply(messages: Sequence[BaseMessage]) -> AIMessage:
    last, question = messages[-1], _question(messages).lower()
    if isinstance(last, ToolMessage):
        return _answer_from(last.text)
    if "outage" in question:
        raise ConnectionError("the model's service does not answer")
    if "order" in question:
        return _call("order_medication", what=question)
    if "hello" in question:
        return AIMessage("Hello. Ask me about the handbook of the ward.")
    stubs = [message for message in messages if isinstance(message, ToolMessage)]
    if "again" in question and stubs:
        return _call(
            "retrieve_previous_sources",
            tool_message_ids=[json.loads(stubs[0].text)["tool_message_id"]],
        )
    return _call(RAG_TOOL_NAME, query=question)


def _answer_from(text: str) -> AIMessage:
    """Return the first sentence of the first passage, with its number."""
    found = re.search(r"^\[(\d+)\] .*\n(.+?\.)(?: |$)", text, re.MULTILINE)
    return AIMessage(
        f"{found[2]} [{found[1]}]" if found else "The handbook says nothing about that."
    )


def _call(name: str, **arguments: Any) -> AIMessage:
    return AIMessage(
        "", tool_calls=[{"name": name, "args": arguments, "id": f"call_{uuid.uuid4().hex[:8]}"}]
    )
