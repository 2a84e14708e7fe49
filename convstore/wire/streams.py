"""Assemble a streamed reply from LangChain's chunks, events of OpenAI's or Anthropic's SDK, or strings.

A reply has its text so far, which users see, and becomes one message that `append` accepts: the same message that the
API returns without a stream. Events may be objects of the SDKs or dicts. Helper events, which repeat other events, are
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, message_chunk_to_message
from langchain_core.messages.ai import add_ai_message_chunks

from convstore.exceptions import InvalidInputError, UnfinishedReplyError
from convstore.messages.stop_reasons import lacks_reason
from convstore.values.json_form import with_invalid_calls
from convstore.wire.anthropic_stream import READ, AnthropicReply
from convstore.wire.chat_stream import ChatReply
from convstore.wire.responses_stream import ResponsesReply

_MALFORMED: Final = (AttributeError, KeyError, TypeError)


class _Reply(Protocol):
    """A reply of one kind; `text` is the text so far that users see."""

    @property
    def text(self) -> str: ...

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments of its calls so far, as the model wrote them, by call id."""
        ...

    @property
    def problem(self) -> str:
        """Why the reply is not complete, "" if it is."""
        ...

    def add(self, chunk: Any, /) -> None:
        """Add a chunk."""

    def message(self, *, is_whole: bool = False) -> Any:
        """Return the message so far, or the whole one."""


class StreamedReply:
    """A reply that arrives in chunks; the first chunk determines the kind of the stream.

    >>> reply = StreamedReply()
    >>> for word in ("Half ", "of it."):
    ...     reply.add(word)
    >>> reply.text, reply.message().content
    ('Half of it.', 'Half of it.')
    """

    def __init__(self) -> None:
        self._reply: _Reply | None = None

    @property
    def text(self) -> str:
        """The text so far that users see."""
        return self._reply.text if self._reply else ""

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments of its calls so far, as the model wrote them, by call id."""
        return self._reply.arguments if self._reply else {}

    def add(self, chunk: Any) -> None:
        """Add a chunk.

        Raises:
            InvalidInputError: The chunk is not of a supported kind.
        """
        value = _plain(chunk)
        try:
            if self._reply is None:
                self._reply = _reply_for(value)
            self._reply.add(value)
        except _MALFORMED as error:
            raise _unreadable(error) from error

    def message(self) -> Any:
        """Return the message so far, in a form that `append` accepts; None before its first part."""
        try:
            return self._reply.message() if self._reply else None
        except _MALFORMED as error:
            raise _unreadable(error) from error

    def whole(self) -> Any:
        """Return the message at the end of the stream, in a form that `append` accepts.

        Raises:
            UnfinishedReplyError: The provider reported a failure, or the stream ended before its last event.
        """
        problem = self._reply.problem if self._reply else "the stream ended without a message"
        if problem or self._reply is None:
            raise UnfinishedReplyError(problem)
        try:
            return self._reply.message(is_whole=True)
        except _MALFORMED as error:
            raise _unreadable(error) from error


def _unreadable(error: Exception) -> InvalidInputError:
    """Return the error for a malformed event. It has only the type of its cause, whose text may quote contents."""
    return InvalidInputError(f"turn.stream cannot read a chunk or event: {type(error).__name__}")


def _plain(chunk: Any) -> Any:
    """Return a chunk as a text, a message or a dict; of a helper event only its chunk, or only its type."""
    if isinstance(chunk, str | BaseMessage | Mapping):
        return chunk
    kind = getattr(chunk, "type", None)
    if kind == "chunk":
        chunk = chunk.chunk
    elif isinstance(kind, str) and not _is_read(kind):
        return {"type": kind}
    dump = getattr(chunk, "model_dump", None)
    value = dump(exclude_unset=True, by_alias=True, warnings=False) if callable(dump) else None
    if not isinstance(value, dict):
        raise InvalidInputError(
            "turn.stream takes strings, LangChain's chunks, and the events of OpenAI's and "
            f"Anthropic's SDKs, not {type(chunk).__name__}"
        )
    return value


def _is_read(kind: str) -> bool:
    return kind in READ or kind == "error" or kind.startswith("response.")


def _reply_for(value: Any) -> _Reply:
    if isinstance(value, str):
        return _StringReply()
    if isinstance(value, BaseMessage):
        return _LangChainReply()
    kind = str(value.get("type", ""))
    if kind == "error":
        return AnthropicReply() if isinstance(value.get("error"), Mapping) else ResponsesReply()
    if kind in READ:
        return AnthropicReply()
    if kind.startswith("response."):
        return ResponsesReply()
    if kind == "chunk" or "choices" in value or value.keys() == {"error"}:
        return ChatReply()
    raise InvalidInputError(f"turn.stream does not know this event: its type is {kind!r}")


class _StringReply:
    problem = ""

    def __init__(self) -> None:
        self.text = ""
        self.arguments: dict[str, str] = {}

    def add(self, chunk: Any) -> None:
        if not isinstance(chunk, str):
            raise InvalidInputError(
                f"a stream of strings must go on with strings, not {type(chunk).__name__}"
            )
        self.text += chunk

    def message(self, *, is_whole: bool = False) -> Any:
        return AIMessage(self.text)


class _LangChainReply:
    """Chunks of LangChain. They are summed only when needed, because the cost of a sum grows with the reply."""

    def __init__(self) -> None:
        self.text = ""
        self._whole: BaseMessage | None = None
        self._new: list[AIMessageChunk] = []

    def add(self, chunk: Any) -> None:
        if not isinstance(chunk, BaseMessage):
            raise InvalidInputError(
                f"a stream of LangChain's chunks must go on with chunks, not {type(chunk).__name__}"
            )
        if isinstance(chunk, AIMessageChunk) and isinstance(self._whole, AIMessageChunk):
            self._new.append(chunk)
            self.text += chunk.text
        else:
            self._whole = chunk
            self._new = []
            self.text = chunk.text

    def _sum(self) -> BaseMessage | None:
        if self._new and isinstance(self._whole, AIMessageChunk):
            self._whole = add_ai_message_chunks(self._whole, *self._new)
            self._new = []
        return self._whole

    @property
    def problem(self) -> str:
        whole = self._sum()
        is_cut = isinstance(whole, AIMessageChunk) and lacks_reason(whole.response_metadata)
        return "its stream ended without a stop reason" if is_cut else ""

    @property
    def arguments(self) -> dict[str, str]:
        whole = self._sum()
        calls = whole.tool_call_chunks if isinstance(whole, AIMessageChunk) else []
        return {str(call["id"]): call["args"] or "" for call in calls}

    def message(self, *, is_whole: bool = False) -> Any:
        found = self._sum()
        whole = None if found is None else message_chunk_to_message(found)
        return with_invalid_calls(whole) if isinstance(whole, AIMessage) else whole
