"""Put a streamed reply together, from LangChain's chunks, events of OpenAI's or Anthropic's SDK, or strings.

A reply knows its text so far, which is what a user has read, and becomes one message that `append` takes. Events may be
objects of the SDKs or their dicts. Helper events, which repeat what others say, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Protocol

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, message_chunk_to_message

from convstore.exceptions import InvalidInputError
from convstore.messages.call_arguments import parsed_arguments
from convstore.values.json_form import with_invalid_calls

_OF_ANTHROPIC = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
    }
)


class _Reply(Protocol):
    """A reply of one kind; `text` is what a user has read of it."""

    text: str

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments of its calls so far, as the model wrote them, by call id."""
        ...

    def add(self, chunk: Any) -> None:
        """Add a chunk."""

    def message(self) -> Any:
        """Return the message so far."""


class StreamedReply:
    """A reply that arrives in chunks of one of the supported kinds, which the first chunk decides.

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
        """What a user has read so far."""
        return self._reply.text if self._reply else ""

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments of its calls so far, as the model wrote them, by call id."""
        return self._reply.arguments if self._reply else {}

    def add(self, chunk: Any) -> None:
        """Add a chunk.

        Raises:
            InvalidInputError: It is of no supported kind.
        """
        value = _plain(chunk)
        try:
            self._reply = self._reply or _reply_for(value)
            self._reply.add(value)
        except (AttributeError, KeyError, TypeError) as error:
            raise InvalidInputError(
                f"turn.stream cannot read this chunk or event: {error!r}"
            ) from error

    def message(self) -> Any:
        """Return the message so far, in a form that `append` takes; None before the first part of it."""
        return self._reply.message() if self._reply else None


def _plain(chunk: Any) -> Any:
    """Return a chunk as a text, a message or a dict."""
    if isinstance(chunk, str | BaseMessage | Mapping):
        return chunk
    dump = getattr(chunk, "model_dump", None)
    value = dump(exclude_unset=True) if callable(dump) else None
    if not isinstance(value, dict):
        raise InvalidInputError(
            "turn.stream takes strings, LangChain's chunks, and the events of OpenAI's and Anthropic's SDKs, not "
            f"{type(chunk).__name__}"
        )
    return value


def _reply_for(value: Any) -> _Reply:
    if isinstance(value, str):
        return _Text()
    if isinstance(value, BaseMessage):
        return _LangChain()
    kind = str(value.get("type", ""))
    if value.get("object") == "chat.completion.chunk" or kind == "chunk" or "choices" in value:
        return _OpenAIChat()
    if kind.startswith("response."):
        return _OpenAIResponses()
    if kind in _OF_ANTHROPIC:
        return _Anthropic()
    raise InvalidInputError(f"turn.stream does not know this event: its type is {kind!r}")


class _Text:
    def __init__(self) -> None:
        self.text = ""
        self.arguments = dict[str, str]()

    def add(self, chunk: Any) -> None:
        if not isinstance(chunk, str):
            raise InvalidInputError(
                f"a stream of strings must go on with strings, not {type(chunk).__name__}"
            )
        self.text += chunk

    def message(self) -> Any:
        return AIMessage(self.text)


class _LangChain:
    def __init__(self) -> None:
        self.text = ""
        self._whole: BaseMessage | None = None

    def add(self, chunk: Any) -> None:
        if not isinstance(chunk, BaseMessage):
            raise InvalidInputError(
                f"a stream of LangChain's chunks must go on with chunks, not {type(chunk).__name__}"
            )
        if not isinstance(chunk, AIMessageChunk) or not isinstance(self._whole, AIMessageChunk):
            self._whole = chunk
        else:
            self._whole = self._whole + chunk
        self.text = self._whole.text

    @property
    def arguments(self) -> dict[str, str]:
        calls = self._whole.tool_call_chunks if isinstance(self._whole, AIMessageChunk) else []
        return {str(call["id"]): call["args"] or "" for call in calls}

    def message(self) -> Any:
        whole = None if self._whole is None else message_chunk_to_message(self._whole)
        return with_invalid_calls(whole) if isinstance(whole, AIMessage) else whole


class _OpenAIChat:
    """Chunks of Chat Completions, or the events of the SDK's stream helper, which hold them."""

    def __init__(self) -> None:
        self.text = ""
        self._whole: dict[str, Any] = {"object": "chat.completion"}
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish: str | None = None

    def add(self, chunk: Any) -> None:
        if isinstance(chunk, Mapping) and chunk.get("type") == "chunk":
            chunk = chunk["chunk"]
        if not isinstance(chunk, Mapping) or "choices" not in chunk:
            return  # a helper event, which repeats what a chunk said
        self._whole |= {
            name: chunk[name] for name in ("id", "model", "created", "usage") if chunk.get(name)
        }
        for choice in chunk["choices"] or ():
            if choice.get("index", 0) == 0:
                self._finish = choice.get("finish_reason") or self._finish
                self._take(choice.get("delta") or {})

    def _take(self, delta: Mapping[str, Any]) -> None:
        for name in ("content", "refusal", "reasoning_content"):
            if isinstance(said := delta.get(name), str):
                self._message[name] = (self._message.get(name) or "") + said
        self.text = str(self._message["content"] or self._message.get("refusal") or "")
        for call in delta.get("tool_calls") or ():
            known = self._calls.setdefault(
                call.get("index", len(self._calls)), {"type": "function", "function": {}}
            )
            known |= {name: call[name] for name in ("id", "type") if call.get(name)}
            for name, said in (call.get("function") or {}).items():
                if isinstance(said, str):
                    known["function"][name] = known["function"].get(name, "") + said

    @property
    def arguments(self) -> dict[str, str]:
        return {
            str(call.get("id")): call["function"].get("arguments", "")
            for call in self._calls.values()
        }

    def message(self) -> Any:
        calls = [
            {**call, "function": {"arguments": "", **call["function"]}}
            for _, call in sorted(self._calls.items())
            if call.get("id") and call["function"].get("name")
        ]
        message = self._message | ({"tool_calls": calls} if calls else {})
        return {
            **self._whole,
            "choices": [{"index": 0, "finish_reason": self._finish, "message": message}],
        }


class _OpenAIResponses:
    """Events of the Responses API."""

    def __init__(self) -> None:
        self.text = ""
        self._begun: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._whole: Any = None

    def add(self, chunk: Any) -> None:
        kind = str(chunk.get("type", ""))
        at = chunk.get("output_index", 0)
        if kind in (
            "response.created",
            "response.completed",
            "response.incomplete",
            "response.failed",
        ):
            self._begun = dict(chunk["response"])
            self._whole = self._begun if kind != "response.created" else None
        elif kind in ("response.output_item.added", "response.output_item.done"):
            self._items[at] = deepcopy(dict(chunk["item"]))  # more is added to its content
        elif kind in ("response.output_text.delta", "response.refusal.delta"):
            self.text += chunk["delta"]
            block = (
                {"type": "output_text", "text": ""}
                if "text" in kind
                else {"type": "refusal", "refusal": ""}
            )
            content = self._items.setdefault(
                at, {"type": "message", "role": "assistant"}
            ).setdefault("content", [])
            if not content or content[-1].get("type") != block["type"]:
                content.append(block)
            content[-1]["text" if "text" in kind else "refusal"] += chunk["delta"]
        elif kind == "response.function_call_arguments.delta":
            item = self._items.setdefault(at, {"type": "function_call"})
            item["arguments"] = item.get("arguments", "") + chunk["delta"]

    @property
    def arguments(self) -> dict[str, str]:
        return {
            str(item.get("call_id")): item.get("arguments") or "" for item in self._items.values()
        }

    def message(self) -> Any:
        if self._whole is not None and self._whole.get("output"):
            return self._whole
        items = [item for _, item in sorted(self._items.items()) if item.get("type") != "reasoning"]
        if not items and self._begun.get("status") == "completed":
            return AIMessage("")  # a model may end its turn after a result without a word
        return {"object": "response", **self._begun, "output": items} if items else None


class _Anthropic:
    """Events of the Messages API; the stream helper of the SDK adds others that repeat them."""

    def __init__(self) -> None:
        self.text = ""
        self._whole: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, str] = {}

    def add(self, chunk: Any) -> None:
        kind = chunk.get("type")
        at = chunk.get("index", 0)
        if kind == "message_start":
            self._whole = dict(chunk["message"])
        elif kind == "content_block_start":
            self._blocks[at] = dict(chunk["content_block"])
        elif kind == "content_block_delta":
            self._take(
                self._blocks.setdefault(at, {"type": "text", "text": ""}), at, chunk["delta"]
            )
        elif kind == "message_delta":
            self._whole |= {
                name: value for name, value in chunk["delta"].items() if value is not None
            }
            usage = {
                name: value
                for name, value in (chunk.get("usage") or {}).items()
                if value is not None
            }
            self._whole["usage"] = {**(self._whole.get("usage") or {}), **usage}

    def _take(self, block: dict[str, Any], at: int, delta: Mapping[str, Any]) -> None:
        for name in ("text", "thinking", "signature"):
            if isinstance(said := delta.get(name), str):
                block[name] = (block.get(name) or "") + said
        if delta.get("type") == "input_json_delta":
            self._arguments[at] = self._arguments.get(at, "") + delta["partial_json"]
        if delta.get("type") == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
        blocks = (block for _, block in sorted(self._blocks.items()) if block.get("type") == "text")
        self.text = "".join(block.get("text", "") for block in blocks)

    @property
    def arguments(self) -> dict[str, str]:
        return {
            str(self._blocks.get(at, {}).get("id")): text for at, text in self._arguments.items()
        }

    def message(self) -> Any:
        if not self._blocks:  # as above
            return AIMessage("") if self._whole.get("stop_reason") else None
        return _with_arguments(self._whole, self._blocks, self._arguments)


def _with_arguments(
    whole: Mapping[str, Any], blocks: Mapping[int, dict[str, Any]], arguments: Mapping[int, str]
) -> dict[str, Any]:
    """Return the message of Anthropic's blocks; calls are listed apart if the arguments of one were cut off."""
    content = list[dict[str, Any]]()
    calls = list[dict[str, Any]]()
    is_cut = False
    for at, block in sorted(blocks.items()):
        text = arguments.get(at)
        if block.get("type") == "text" and not block.get("text"):
            continue
        if not text:
            content.append({"input": {}, **block} if block.get("type") == "tool_use" else block)
            continue
        function = {"name": block.get("name"), "arguments": text}
        calls.append({"id": block.get("id"), "type": "function", "function": function})
        if (args := parsed_arguments(text)) is None:
            is_cut = True
        else:
            content.append({**block, "input": args})
    made = {
        "type": "message",
        "role": "assistant",
        "stop_reason": None,
        **whole,
        "content": content,
    }
    return made | ({"tool_calls": calls} if is_cut else {})
