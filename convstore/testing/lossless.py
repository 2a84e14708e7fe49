"""Tests of encoding: each appended message comes back equal (promise 1)."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from convstore.conversation import Conversation
from convstore.exceptions import UnencodableError
from convstore.store import ConversationStore
from convstore.testing.samples import SHARED_FIXTURES, new_id, same_messages

__all__ = ["LosslessContract"]


def _deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


_ARTIFACTS: dict[str, Any] = {
    "pairs": [("text", {"title": "T", "score": math.nan}), ("more", {})],
    "documents": [
        Document(page_content="page", metadata={"at": datetime(2026, 1, 2, tzinfo=UTC)}, id="d1")
    ],
    "python values": {
        "bytes": b"\x00\xff",
        "set": {1, 2},
        "tuple": (1, (2,)),
        3: "int key",
        None: "no key",
    },
    "hard keys": {"a.b": 1, "$where": 2, "$": {"$": ["bytes", "x"]}, "": 3, "\x00": 4},
    "numbers of 64 bits": [
        -0.0,
        0.0,
        1,
        1.0,
        True,
        2**53 + 1,
        2**63,
        2**64 - 1,
        -(2**63),
        5e-324,
        1e22,
        1e-7,
    ],
    "one number beyond": [2**64],
    "not a number": [1, math.nan],
    "a lone surrogate": {"\udc00": "\ud83d"},
    "numbers": [2**64, -(2**100), 10**5000, math.inf, -0.0, 1e300],
    "texts": ["\x00", "\ud83d\ude00", "\udc00", "😀", "line\u2028end"],
    "nesting": _deep(10_000),
}

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None))
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=12,
)


class _Unknown:
    """A value of a type that is not registered with the store."""


class _Colour(StrEnum):
    RED = "red"


class _Level(IntEnum):
    HIGH = 1


class _Name(str):
    __slots__ = ()


_LOOKALIKES: dict[str, Any] = {
    "str enum": _Colour.RED,
    "int enum": _Level.HIGH,
    "str subclass": _Name("red"),
    "str subclass as key": {_Name("red"): 1},
}
"""Values that equal a JSON value but are of another type."""


class LosslessContract:
    """Promise 1."""

    async def test_every_class_of_message_comes_back_equal(self, chat: Conversation) -> None:
        """`messages` returns messages of each class with all their fields."""
        thinking = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
        messages: list[BaseMessage] = [
            SystemMessage("Be brief."),
            HumanMessage(
                [
                    {"type": "text", "text": "look"},
                    {"type": "image", "base64": "aGk=", "mime_type": "image/png"},
                ],
                name="ada",
            ),
            AIMessage(
                [thinking, {"type": "text", "text": "so"}],
                tool_calls=[{"name": "f", "args": {"deep": _deep(300)}, "id": "c1"}],
                invalid_tool_calls=[{"name": "g", "args": "{bad", "id": "c2", "error": "no JSON"}],
                usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
                response_metadata={"model_name": "m", "logprobs": None},
                additional_kwargs={"reasoning_content": "because"},
            ),
            ToolMessage("r", tool_call_id="c1", artifact={"a": (1, b"2")}, name="f"),
            ToolMessage([{"type": "text", "text": "x"}, "y"], tool_call_id="c2", status="error"),
            FunctionMessage(content="legacy", name="old"),
            ChatMessage(content="said", role="moderator"),
        ]
        await chat.append(messages)
        assert same_messages([message async for message in chat.messages()], messages)

    @pytest.mark.parametrize("name", sorted(_ARTIFACTS))
    @pytest.mark.parametrize("padding", [0, 5_000])
    async def test_artifacts_come_back_equal(
        self, chat: Conversation, name: str, padding: int
    ) -> None:
        """An artifact of Python values is equal in the log and in the record, whether the result has a stub or not."""
        result = ToolMessage(
            "x" * padding, id=new_id(), tool_call_id="c", artifact=_ARTIFACTS[name]
        )
        await chat.append([result])
        [record] = await chat.get_tool_messages([str(result.id)])
        given_back = ToolMessage(
            record.content, id=result.id, tool_call_id="c", artifact=record.artifact
        )
        assert same_messages([message async for message in chat.messages()], [result])
        assert same_messages([given_back], [result])

    @pytest.mark.parametrize("name", sorted(_LOOKALIKES))
    async def test_a_value_that_only_equals_a_json_value_is_refused(
        self, chat: Conversation, name: str
    ) -> None:
        """A value that would come back as another type raises UnencodableError, and nothing is written."""
        for artifact in (_LOOKALIKES[name], {"deep": [{"in": [_LOOKALIKES[name]]}]}):
            with pytest.raises(UnencodableError):
                await chat.append(
                    [HumanMessage("hi"), ToolMessage("r", tool_call_id="c", artifact=artifact)]
                )
        assert [message async for message in chat.messages()] == []

    @settings(
        max_examples=min(40, settings().max_examples),
        deadline=None,
        suppress_health_check=SHARED_FIXTURES,
    )
    @given(artifact=_VALUES, text=st.text(st.characters(codec=None)))
    async def test_any_value_comes_back_equal(
        self, store: ConversationStore, artifact: Any, text: str
    ) -> None:
        """Content, artifact and metadata come back equal, whatever values they hold."""
        chat = store.conversation(user_id="any", thread_id=new_id())
        messages = [
            HumanMessage(text, additional_kwargs={"any": artifact}),
            ToolMessage(text, tool_call_id="c", artifact=artifact),
        ]
        await chat.append(messages)
        assert same_messages([message async for message in chat.messages()], messages)

    async def test_a_35_mb_result_comes_back_equal(self, chat: Conversation) -> None:
        """A tool result may be larger than one insert of 32 MB."""
        result = ToolMessage("é" + "0123456789abcde\n" * 2_200_000, id=new_id(), tool_call_id="c")
        await chat.append([result])
        [record] = await chat.get_tool_messages([str(result.id)])
        assert record.content == result.content

    async def test_large_parts_of_any_message_come_back_equal(self, chat: Conversation) -> None:
        """Images, pastes and arguments of several megabytes are stored outside the entry and come back."""
        image = {"type": "image", "base64": "QUJD" * 600_000, "mime_type": "image/png"}
        messages: list[BaseMessage] = [
            HumanMessage([{"type": "text", "text": "see"}, image]),
            AIMessage(
                "", tool_calls=[{"name": "write", "args": {"file": "x" * 3_000_000}, "id": "c"}]
            ),
            HumanMessage("paste " * 400_000, additional_kwargs={"raw": "y" * 50_000}),
        ]
        await chat.append(messages)
        assert same_messages([message async for message in chat.messages()], messages)

    async def test_many_middling_parts_of_a_message_come_back_equal(
        self, chat: Conversation
    ) -> None:
        """Many medium-sized parts, together larger than an entry, come back equal. A view shortens them."""
        blocks: list[str | dict[str, Any]] = [
            {"type": "text", "text": f"{at} " + "p" * 15_000} for at in range(80)
        ]
        calls = [
            {"name": "write", "args": {"text": "鯨" * 12_000}, "id": f"c{at}"} for at in range(40)
        ]
        messages: list[BaseMessage] = [
            HumanMessage(blocks),
            AIMessage("", tool_calls=calls),
            HumanMessage("And?", additional_kwargs={f"k{at}": "y" * 12_000 for at in range(100)}),
        ]
        await chat.append(messages)
        assert same_messages([message async for message in chat.messages()], messages)
        history = await chat.load_history()
        assert history.tokens <= 32_000
        assert (history.report.shortened, history.report.left_out_steps) == ((messages[0].id,), 1)

    async def test_chunks_are_made_whole(self, chat: Conversation) -> None:
        """Message chunks are stored as the complete message."""
        chunk = AIMessageChunk(content="Hel") + AIMessageChunk(content="lo")
        await chat.append([chunk])
        [message] = [message async for message in chat.messages()]
        assert type(message) is AIMessage
        assert message.content == "Hello"

    async def test_an_unknown_type_is_refused_before_anything_is_written(
        self, chat: Conversation
    ) -> None:
        """The error has the path of the value, and nothing of the batch is stored."""
        batch = [
            HumanMessage("hi"),
            ToolMessage("r", tool_call_id="c", artifact={"rows": [1, _Unknown()]}),
        ]
        with pytest.raises(
            UnencodableError, match=r"message 1\.artifact\.rows\[1\].*register_artifact_type"
        ):
            await chat.append(batch)
        assert (await chat.info()).created_at is None

    async def test_an_unknown_type_is_left_out_on_demand(self, chat: Conversation) -> None:
        """With ``on_unencodable="omit"`` a marker replaces a value of unknown type, and the receipt has its path."""
        batch = [ToolMessage("r", tool_call_id="c", artifact={"row": _Unknown(), "kept": 1})]
        receipt = await chat.append(batch, on_unencodable="omit")
        [message] = [message async for message in chat.messages()]
        assert receipt.omitted == ("message 0.artifact.row",)
        assert isinstance(message, ToolMessage)
        assert message.artifact["kept"] == 1
        assert "_Unknown" in message.artifact["row"].type_name

    async def test_a_path_in_a_resent_history_is_that_of_the_callers_list(
        self, chat: Conversation
    ) -> None:
        """Errors and receipts count messages from the start of the resent history, including those already stored."""
        history: list[BaseMessage] = [HumanMessage("q0"), AIMessage("a0"), HumanMessage("q1")]
        await chat.append(history)
        history.append(ToolMessage("r", tool_call_id="c", artifact={"row": _Unknown()}))
        with pytest.raises(UnencodableError, match=r"message 3\.artifact\.row"):
            await chat.append_history(history, trust="all")
        receipt = await chat.append_history(history, trust="all", on_unencodable="omit")
        assert (receipt.written, receipt.omitted) == (1, ("message 3.artifact.row",))

    async def test_a_registered_type_comes_back_equal(
        self, store: ConversationStore, chat: Conversation
    ) -> None:
        """A type that was registered by `register_artifact_type` comes back equal."""
        store.register_artifact_type(
            range, name="range", dump=lambda r: [r.start, r.stop, r.step], load=_load_range
        )
        await chat.append([ToolMessage("r", tool_call_id="c", artifact=[range(1, 9, 2)])])
        [message] = [message async for message in chat.messages()]
        assert isinstance(message, ToolMessage)
        assert message.artifact == [range(1, 9, 2)]


def _load_range(plain: list[int]) -> range:
    return range(*plain)
