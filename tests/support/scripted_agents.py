"""Agents for tests: a chat model that plays a script and keeps the messages it was shown, and a few tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field

from convstore import Conversation, ConversationStore
from convstore.testing.pairing import check_pairing


class ScriptedModel(BaseChatModel):
    """Plays its replies one after the other; refuses what a provider would refuse."""

    replies: list[Any] = Field(default_factory=list)
    shown: list[list[BaseMessage]] = Field(default_factory=list)
    tools: list[str] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> ScriptedModel:
        """Keeps the names of the tools."""
        self.tools[:] = [tool["name"] if isinstance(tool, dict) else tool.name for tool in tools]
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - the base class has it
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002 - likewise
        **_: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.reply(messages))])

    def reply(self, messages: list[BaseMessage]) -> AIMessage:
        """The next reply of the script."""
        assert check_pairing(messages) == []
        self.shown.append(list(messages))
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        answer: AIMessage = reply(messages) if callable(reply) else reply
        return answer


class PausingModel(ScriptedModel):
    """Streams its words, and waits at an event."""

    async def _astream(
        self, messages: Any, *_: Any, **__: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        self.shown.append(list(messages))
        for part in self.replies:
            if isinstance(part, asyncio.Event):
                await part.wait()
            else:
                yield ChatGenerationChunk(message=AIMessageChunk(content=part, id="said"))


class StreamingModel(ScriptedModel):
    """Streams its replies word by word."""

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - the base class has it
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> Iterator[ChatGenerationChunk]:
        reply = self.reply(messages)
        chunks = [AIMessageChunk(content=f"{word} ") for word in reply.text.split()]
        calls = [
            tool_call_chunk(name=call["name"], args="{}", id=call["id"], index=at)
            for at, call in enumerate(reply.tool_calls)
        ]
        for chunk in [
            *chunks,
            *([AIMessageChunk(content="", tool_call_chunks=calls)] if calls else []),
        ]:
            piece = ChatGenerationChunk(message=chunk)
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, chunk=piece)
            yield piece


def calls(*names: str, ids: Sequence[str] = (), **arguments: Any) -> AIMessage:
    """A reply that calls tools, under the ids call_0, call_1 … as many models give them."""
    named = ids or [f"call_{at}" for at in range(len(names))]
    return AIMessage(
        "",
        tool_calls=[
            {"name": name, "args": arguments, "id": id_}
            for name, id_ in zip(names, named, strict=True)
        ],
    )


def kinds(messages: Sequence[BaseMessage]) -> list[tuple[str, str]]:
    """Type and text of messages, the agent's prompt apart."""
    return [(message.type, message.text) for message in messages if message.type != "system"]


async def log_of(chat: Conversation) -> list[BaseMessage]:
    """The whole log."""
    return [message async for message in chat.messages(rewound=True)]


def elsewhere(store: ConversationStore, database: Any) -> ConversationStore:
    """The store as another worker has it: nothing remembered."""
    other = ConversationStore(database, scope_keys=store.scope_keys, policy=store.policy)
    other._host.schema.is_ready = True
    return other
