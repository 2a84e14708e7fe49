"""Images and files take no room of earlier turns until the model has read them, and no request holds too many."""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.messages.media import has_media, is_media
from convstore.messages.media_figures import FIGURES
from convstore.messages.tokens import approximate_tokens
from convstore.types import History

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8) + struct.pack(">II", 1_024, 1_024) + bytes(9)


@pytest.fixture
async def chat() -> AsyncIterator[Conversation]:
    """A conversation in memory."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        yield store.conversation(user_id="ada", thread_id="t")


def media(kind: str, data: bytes) -> dict[str, Any]:
    """A media block."""
    mime_type = "image/png" if kind == "image" else "application/pdf"
    return {"type": kind, "base64": b64encode(data).decode(), "mime_type": mime_type}


def pdf(pages: int, *, size: int = 0) -> dict[str, Any]:
    """A PDF."""
    page = b"<< /Type /Page /Font 1 0 R >>"
    return media("file", b"%PDF-1.4\n" + page * pages + bytes(size))


def image(size: int = 0) -> dict[str, Any]:
    """An image of 1,024 by 1,024 pixels."""
    return media("image", PNG + bytes(size))


async def talk(chat: Conversation, turns: int, *, words: int = 200) -> None:
    """Append turns of about 500 tokens each."""
    for number in range(turns):
        await chat.append(
            [HumanMessage(f"Question {number}? " + "so " * words), AIMessage("well " * words)]
        )


async def step(chat: Conversation, number: int, content: Any, *, at: str = "s") -> None:
    """Append a call and its result."""
    call = {"name": "look", "args": {"n": number}, "id": f"{at}{number}"}
    result = ToolMessage(content, tool_call_id=f"{at}{number}", name="look")
    await chat.append([AIMessage("", tool_calls=[call]), result])


def questions(history: History) -> int:
    """The number of questions in a view."""
    return sum(message.text.startswith("Question") for message in history.messages)


def shown(messages: list[BaseMessage]) -> list[int]:
    """The number of media of each message that has some."""
    return [sum(map(is_media, message.content)) for message in messages if has_media(message)]


@pytest.mark.parametrize("media_option", ["finished_turns", "never"])
async def test_a_pdf_larger_than_the_budget_leaves_earlier_turns_a_quarter(
    chat: Conversation, media_option: Any
) -> None:
    """While its turn goes on the same turns stay, byte for byte; afterwards all of them are back."""
    policy = HistoryPolicy(max_tokens=16_000, media=media_option)
    await talk(chat, 20)
    before = await chat.load_history(policy)
    assert questions(before) == 20
    await chat.append(HumanMessage([{"type": "text", "text": "And this?"}, pdf(14)], id="q"))
    first = await chat.load_history(policy)
    assert first.report.over_budget
    assert shown(first.messages) == [1]
    earlier = first.messages[:-1]
    assert 3_000 < approximate_tokens(earlier) <= 4_000 + 210
    last = first.messages
    for number in range(6):
        await step(chat, number, "fact " * 800)
        history = await chat.load_history(policy)
        assert history.messages[: len(last)] == last
        last = history.messages
    await chat.append(AIMessage("It is a contract."))
    await chat.append(HumanMessage("Who signed it?"))
    after = await chat.load_history(policy)
    assert questions(after) >= 15
    assert shown(after.messages) == []
    assert "q" in after.report.placeholders
    assert not after.report.over_budget


@pytest.mark.parametrize("size", [0, 40_000])
async def test_media_never_shows_the_newest_files_in_half_of_the_budget(
    chat: Conversation, size: int
) -> None:
    """A file of a finished turn stays as long as newer ones leave it room, in its entry and in a payload."""
    policy = HistoryPolicy(max_tokens=16_000, media="never")
    for number in range(4):
        question = [{"type": "text", "text": f"Question {number}"}, pdf(1, size=size)]
        await chat.append([HumanMessage(question, id=f"q{number}"), AIMessage("Yes.")])
    history = await chat.load_history(policy)
    assert shown(history.messages) == [1, 1, 1]
    assert history.tokens == approximate_tokens(history.messages)
    assert history.report.placeholders == ("q0",)
    assert questions(history) == 4
    assert shown((await chat.load_history(HistoryPolicy(media="never"))).messages) == [1] * 4


@pytest.mark.parametrize("provider", ["google_genai", None])
async def test_images_of_results_with_sources_keep_to_half_of_the_budget(
    chat: Conversation, provider: Any
) -> None:
    """A short result whose sources a suffix names shows its images, too: the newest, as its provider counts them."""
    source = ("Seals dive.", {"title": "Seals"})
    for number in range(12):
        await talk(chat, 1, words=1)
        call = {"name": "look", "args": {}, "id": f"c{number}"}
        result = ToolMessage(
            [{"type": "text", "text": "Found."}, image()],
            tool_call_id=f"c{number}",
            name="look",
            artifact=[source],
        )
        await chat.append([AIMessage("", tool_calls=[call]), result, AIMessage("Yes.")])
    policy = HistoryPolicy(max_tokens=8_000, provider=provider)
    figures = {"media": FIGURES[provider]} if provider else {}
    for _ in range(2):
        history = await chat.load_history(policy)
        expected = approximate_tokens(history.messages, **figures)
        assert history.tokens == pytest.approx(expected, abs=12)
        assert not history.report.over_budget
        assert questions(history) == 12
        assert 2 <= sum(shown(history.messages)) <= 5
        assert len(history.report.stubbed) == 12
        assert history.report.placeholders == ()


async def test_a_file_that_fits_changes_nothing(chat: Conversation) -> None:
    """Nothing of the earlier turns is left out for an image that has room beside them."""
    await talk(chat, 20)
    await chat.append(HumanMessage([{"type": "text", "text": "And this?"}, image()]))
    history = await chat.load_history()
    assert questions(history) == 20
    assert not history.report.over_budget
    assert history.tokens == approximate_tokens(history.messages)


async def test_a_turn_with_a_small_image_stays_in_the_budget(chat: Conversation) -> None:
    """Only what takes more than three quarters of the budget by itself may exceed it."""
    policy = HistoryPolicy(max_tokens=4_000)
    await talk(chat, 2, words=1_000)
    await chat.append(HumanMessage([{"type": "text", "text": "And this?"}, image()]))
    for number in range(8):
        await step(chat, number, "fact " * 500)
        history = await chat.load_history(policy)
        assert history.tokens <= 4_000
        assert shown(history.messages) == [1]


@pytest.mark.parametrize("provider", ["anthropic", "google_genai", "openai", None])
async def test_a_view_counts_media_as_its_provider_does(chat: Conversation, provider: Any) -> None:
    """In questions and in results, whole and stored, cold and warm, whoever loaded before."""
    await chat.append(
        [HumanMessage([{"type": "text", "text": "What?"}, image(), pdf(2)]), AIMessage("A.")]
    )
    await chat.append(HumanMessage([{"type": "text", "text": "And this?"}, image(), pdf(2)]))
    await step(chat, 1, [{"type": "text", "text": "Seen."}, image()])
    for media_option in ("finished_turns", "never"):
        options: dict[str, Any] = {"media": media_option}
        for _ in range(2):
            await chat.load_history(HistoryPolicy(**options))
            history = await chat.load_history(HistoryPolicy(provider=provider, **options))
            figures = {"media": FIGURES[provider]} if provider else {}
            expected = approximate_tokens(history.messages, **figures)
            assert history.tokens == pytest.approx(expected, abs=12)


async def test_the_oldest_images_of_a_turn_leave_above_the_providers_number(
    chat: Conversation,
) -> None:
    """Mistral takes eight: four leave at once, so views change once in four steps, and the newest is always there."""
    policy = HistoryPolicy(max_tokens=None, provider="mistralai")
    await chat.append(HumanMessage([{"type": "text", "text": "Watch."}, image()]))
    changes = 0
    last = (await chat.load_history(policy)).messages
    for number in range(24):
        await chat.append(
            AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": f"c{number:08}"}])
        )
        await chat.append(
            [ToolMessage("Look.", tool_call_id=f"c{number:08}"), HumanMessage([image()])]
        )
        history = await chat.load_history(policy)
        counts = shown(history.messages)
        assert 4 <= sum(counts) <= 8 or number < 4
        assert has_media(history.messages[-1])
        changes += history.messages[: len(last)] != last
        last = history.messages
    assert changes <= 6


async def test_a_question_with_too_many_images_shows_the_newest(chat: Conversation) -> None:
    """The others are placeholders in the same message."""
    await chat.append(HumanMessage([{"type": "text", "text": "Which?"}, *[image()] * 11], id="q"))
    history = await chat.load_history(HistoryPolicy(provider="mistralai"))
    assert shown(history.messages) == [7]
    assert history.report.placeholders == ("q",)
    [message] = history.messages
    assert "message id q" in message.content[1]["text"]
    assert history.tokens == approximate_tokens(history.messages)


async def test_a_request_stays_below_its_bytes(
    stores: list[ConversationStore], scope: dict[str, str]
) -> None:
    """The report has its size; the newest file is shown, however large; every process shows the same."""
    warm, cold = (store.conversation(**scope) for store in stores)
    policy = HistoryPolicy(max_tokens=20_000, max_request_bytes=400_000)
    await warm.append(HumanMessage("What is on them?"))
    history = await warm.load_history(policy)
    for number in range(8):
        await step(warm, number, [{"type": "text", "text": "Page."}, image(60_000)])
        history = await warm.load_history(policy)
        assert history.report.request_bytes <= 400_000
        assert has_media(history.messages[-1])
    again = await cold.load_history(policy)
    assert again.messages == history.messages
    assert again.report.request_bytes == history.report.request_bytes > 150_000
    await step(warm, 9, [image(500_000)])
    history = await warm.load_history(policy)
    assert shown(history.messages) == [1]
    assert history.report.request_bytes > 650_000
    free = await warm.load_history(HistoryPolicy(max_tokens=None, max_request_bytes=None))
    assert sum(shown(free.messages)) == 9
    assert (await stores[0].verify(**scope)).findings == ()


async def test_a_past_view_has_the_same_placeholders(chat: Conversation) -> None:
    """A stamp rebuilds the view byte for byte."""
    policy = HistoryPolicy(max_tokens=20_000, max_request_bytes=300_000, provider="openai")
    await talk(chat, 3)
    await chat.append(HumanMessage([{"type": "text", "text": "Which?"}, *[image(40_000)] * 6]))
    history = await chat.load_history(policy)
    await chat.append(AIMessage("The third."), stamp=history.stamp)
    past = await chat.view_at(history.stamp)
    assert past.messages == history.messages
    assert past.tokens == history.tokens
    assert 1 <= sum(shown(past.messages)) < 6
