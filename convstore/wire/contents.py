"""Read the content of messages for a framework that did not write them, and report the parts that it cannot express.

Reasoning is written as parts of the AI SDK, with the signature without which its provider rejects it. Each provider and
gateway has its own form; the names of the signatures are those of the AI SDK's providers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from convstore.messages.reasoning import REASONING_BESIDE
from convstore.values.json_form import valid_text
from convstore.wire.parts import Block, Media, Text, beside_calls, parts_of
from convstore.wire.requests import Dropped

_TEXTS = (
    "thinking",
    "reasoning",
    "reasoning_content",
    "reasoningContent",
    "reasoningText",
    "text",
    "content",
)
_BESIDE = (*REASONING_BESIDE, "thinking")
"""Keys in which gateways put reasoning beside the content; the first one with a text counts."""


class ContentReader:
    """Reads messages that another adapter appended, or that a view has changed.

    Attributes:
        is_request: True if the messages are for a model. Then settings such as citations, and extra fields of calls,
            are reported as well.
        dropped: The parts that the framework cannot express.
    """

    is_request = False

    def __init__(self) -> None:
        self.dropped: list[Dropped] = []

    def contents(self, message: BaseMessage) -> Iterator[str | Media | dict[str, Any]]:
        """Yield texts, files and a model's reasoning in the form of `reasoning_part`, in order."""
        is_said = isinstance(message, AIMessage)
        if is_said:
            yield from _reasoning_beside(message)
        for part in parts_of(message):
            self._name_settings(message, part)
            if isinstance(part, Text):
                yield from filter(None, [part.text])
            elif isinstance(part, Media):
                yield part
            elif part.kind == "reasoning" and is_said:
                yield reasoning_part(part.block)
            else:
                yield from self.other(message, part)

    def other(self, message: BaseMessage, block: Block) -> Iterator[dict[str, Any]]:
        """Yield the framework's parts for any other block; by default, only report the block."""
        ids: set[str | None] = set()
        if isinstance(message, AIMessage):
            calls = (*message.tool_calls, *message.invalid_tool_calls)
            ids = {call["id"] for call in calls}
        if block.kind != "call" or block.id not in ids:
            name = "reasoning" if block.kind == "reasoning" else block.type or "block"
            self.drop(message, name, "the framework has no part for it")
        yield from ()

    def calls(self, message: AIMessage) -> Iterator[tuple[str, str, Any]]:
        """Yield id, name and arguments of the calls, valid or not; a call without an id or a name is reported."""
        if self.is_request:
            self._drop_all(message, beside_calls(message))
        for call in (*message.tool_calls, *message.invalid_tool_calls):
            if call["id"] and call["name"]:
                yield call["id"], call["name"], call["args"]
            else:
                self.drop(message, "call", "it has no id or no name")

    def _name_settings(self, message: BaseMessage, part: Text | Media | Block) -> None:
        if self.is_request and not isinstance(part, Block):
            self._drop_all(message, part.settings)

    def _drop_all(self, message: BaseMessage, names: Iterable[str]) -> None:
        for name in names:
            self.drop(message, name, "the framework has no place for it")

    def without_file(self, message: BaseMessage, media: Media) -> str:
        """Report a file, and return the text that names it."""
        self.drop(
            message,
            media.kind,
            "the framework has no part for such a file in a message of this kind",
        )
        return media.description

    def drop(self, message: BaseMessage, part: str, reason: str) -> None:
        """Report a part of a message."""
        self.dropped.append(Dropped(str(message.id or ""), part, reason))


def reasoning_part(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reasoning in a content block.

    >>> reasoning_part({"type": "thinking", "thinking": "Hm.", "signature": "c2ln"})["providerMetadata"]
    {'anthropic': {'signature': 'c2ln'}}
    """
    part = {"type": "reasoning", "text": valid_text(reasoning_text(block)), "state": "done"}
    levels = *(block[key] for key in ("extras", *_TEXTS) if isinstance(block.get(key), dict)), block
    fields = {
        key: value
        for level in levels
        for key, value in level.items()
        if isinstance(value, str) and value
    }
    encrypted = fields.get("encrypted_content")
    item = fields.get("id") if encrypted else None
    redacted = fields.get("data") if block.get("type") == "redacted_thinking" else None
    signature = fields.get("thoughtSignature") or fields.get("thought_signature")
    proofs = (
        ("openai", {"reasoningEncryptedContent": encrypted, "itemId": item}),
        ("anthropic", {"redactedData": redacted}),
        ("google", {"thoughtSignature": signature}),
        ("anthropic", {"signature": fields.get("signature")}),
    )
    for provider, given in proofs:
        if proof := {key: valid_text(value) for key, value in given.items() if value}:
            return {**part, "providerMetadata": {provider: proof}}
    return part


def _reasoning_beside(message: BaseMessage) -> Iterator[dict[str, Any]]:
    """Yield the reasoning that a gateway has put beside the content of a message."""
    for key in _BESIDE:
        value = message.additional_kwargs.get(key)
        blocks = [{"text": value}] if isinstance(value, str) and value else value
        if not isinstance(blocks, list):
            continue
        if found := [block for block in blocks if isinstance(block, dict)]:
            yield from map(reasoning_part, found)
            return


def reasoning_text(value: Any) -> str:
    """Return the text of a block of reasoning, of a block inside it, or of a list of them."""
    if isinstance(value, list):
        return "\n\n".join(filter(None, map(reasoning_text, value)))
    if isinstance(value, Mapping):
        return next(
            (text for key in ("summary", *_TEXTS) if (text := reasoning_text(value.get(key)))), ""
        )
    return value if isinstance(value, str) else ""
