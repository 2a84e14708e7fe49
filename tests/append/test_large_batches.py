"""A batch of many middle-sized parts fits into one entry: parts move to payloads until it does."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.exceptions import BatchTooLargeError
from convstore.testing.samples import same_messages

NOISE = random.Random(7)


def text(size: int = 3_000) -> str:
    """A text that does not compress to nothing."""
    return " ".join(f"{NOISE.getrandbits(32):x}" for _ in range(size // 9))


def call(index: int) -> AIMessage:
    """A call with long arguments."""
    return AIMessage(
        "", tool_calls=[{"name": "look", "args": {"query": text()}, "id": f"c{index}"}]
    )


def picture() -> dict[str, Any]:
    """A small image."""
    return {"type": "image", "base64": "QUJD" * 800, "mime_type": "image/png"}


FORMS: dict[str, Any] = {
    "additional_kwargs": lambda index: HumanMessage(
        f"q{index}", additional_kwargs={"page": text(), "n": index}
    ),
    "response_metadata": lambda _: AIMessage(
        "Fine.", response_metadata={"log": text(), "model_name": "m"}
    ),
    "text": lambda index: (AIMessage if index % 2 else HumanMessage)(text()),
    "blocks": lambda _: HumanMessage(
        [{"type": "text", "text": text()}, {"type": "text", "text": "short"}]
    ),
    "images": lambda _: HumanMessage(["Look", picture()]),
    "calls": lambda index: (
        call(index // 2) if index % 2 == 0 else ToolMessage("ok", tool_call_id=f"c{index // 2}")
    ),
    "results": lambda index: ToolMessage(
        "ok", tool_call_id="c", additional_kwargs={"trace": text()}, name=f"t{index}"
    ),
    "unicode": lambda _: AIMessage("é☃" * 1_000),
}


QUICK = ("text",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=() if form in QUICK else pytest.mark.slow) for form in FORMS]
)
async def test_parts_move_until_the_entry_fits(store: ConversationStore, form: str) -> None:
    """Equal in the log, in views and in verification to the same messages appended one by one; known when repeated."""
    batch: list[BaseMessage] = [FORMS[form](index) for index in range(500)]
    chat, other = (store.conversation(user_id="ada", thread_id=uuid.uuid4().hex) for _ in range(2))
    assert (await chat.append(batch)).written == 500
    assert [message async for message in chat.messages()] == batch
    for start in range(0, 500, 100):
        await other.append(batch[start : start + 100])
    for policy in (
        HistoryPolicy(max_tokens=None),
        HistoryPolicy(media="never"),
        HistoryPolicy(max_tokens=None, shorten_over=300),
    ):
        mine, theirs = await chat.load_history(policy), await other.load_history(policy)
        assert mine.messages == theirs.messages
        assert mine.tokens == theirs.tokens
    assert (await chat.append(batch)).written == 0
    assert (await chat.append([batch[3].model_copy()])).written == 0
    assert (await other.append(batch)).written == 0
    assert (await store.verify(user_id="ada", thread_id=chat.scope["thread_id"])).findings == ()


@pytest.mark.slow
async def test_what_does_not_fit_in_small_parts_is_refused(store: ConversationStore) -> None:
    """A batch that does not fit even in small parts raises BatchTooLargeError, and nothing is written."""
    chat = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
    with pytest.raises(BatchTooLargeError, match="smaller batches"):
        await chat.append([HumanMessage("x" * 400) for _ in range(2_500)])
    assert (await chat.info()).created_at is None


WORDS = "Answer in the words of the handbook. "
BLOCKS = [{"type": "text", "text": f"{number} {WORDS * 5}"} for number in range(6_000)]
CALL: Any = {"name": "look", "args": {}, "id": "c1"}
LARGE: dict[str, list[BaseMessage]] = {
    "system message": [SystemMessage(WORDS * 30_000), HumanMessage("q"), AIMessage("ok")],
    "blocks of a system message": [SystemMessage([*BLOCKS]), HumanMessage("q"), AIMessage("ok")],
    "later system message": [HumanMessage("q"), AIMessage("ok"), SystemMessage(WORDS * 30_000)],
    "blocks of a question": [HumanMessage([*BLOCKS]), AIMessage("ok")],
    "blocks of an answer": [
        HumanMessage("q"),
        AIMessage([*BLOCKS, {"type": "tool_use", "input": {}, **CALL}], tool_calls=[CALL]),
        ToolMessage([*BLOCKS], tool_call_id="c1"),
    ],
    "nested fields": [
        HumanMessage("q", additional_kwargs={"raw": {f"k{at}": WORDS for at in range(30_000)}})
    ],
}


async def test_a_system_message_above_1_mb_is_stored_and_shown_whole() -> None:
    """Its text moves to a payload, and a view reads it."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        await _append_and_read(store, LARGE["system message"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LARGE][1:])
async def test_a_message_above_1_mb_is_stored_and_read(store: ConversationStore, name: str) -> None:
    """Of many small blocks or fields, too: in the log, in views before and after its turn, and in verification."""
    chat = await _append_and_read(store, LARGE[name])
    await chat.append([AIMessage("Fine."), HumanMessage("next")])
    await chat.load_history()
    assert len(await chat.list_messages()) == len(LARGE[name]) + 2
    assert (await store.verify(**chat.scope)).findings == ()


async def _append_and_read(store: ConversationStore, log: list[BaseMessage]) -> Conversation:
    chat = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
    await chat.append(log)
    assert same_messages([message async for message in chat.messages()], log)
    for policy in (HistoryPolicy(), HistoryPolicy(max_tokens=None, provider="anthropic")):
        shown = (await chat.load_history(policy)).messages
        if log[0].type == "system":
            assert shown[0].content == log[0].content
    assert (await chat.append(log)).written == 0
    return chat


async def test_a_message_that_is_too_large_is_named() -> None:
    """The error never asks to split a batch whose one message is too large."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        message = HumanMessage(
            "q", id="large", additional_kwargs={f"k{at}": "x" * 450 for at in range(2_400)}
        )
        with pytest.raises(
            BatchTooLargeError, match=r"message 'large' has .* fewer than 500 characters"
        ):
            await store.conversation(user_id="ada", thread_id="t").append(
                [message, HumanMessage("other")]
            )
