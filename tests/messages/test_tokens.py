"""Sizes of messages whose characters alone do not determine them."""

from __future__ import annotations

from asyncio import CancelledError
from functools import partial
from typing import Any

import pytest
from cases import each_case
from hypothesis import given
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.utils import count_tokens_approximately
from strategies import messages

from convstore import ConversationStore
from convstore.messages.media_figures import FIGURES, UNMEASURED_TOKENS, MediaFigures
from convstore.messages.tokens import (
    NamedCounter,
    approximate_tokens,
    count,
    counter_for,
    figures_of,
)

CALL = {
    "name": "search",
    "args": {"query": "where do orcas sleep " * 20},
    "id": "c1",
    "type": "tool_call",
}


@each_case("text", ["", "Where is my order?", "naïve café, that is 3 €", "x" * 10_000])
def test_latin_text_is_counted_as_langchain_does(text: str) -> None:
    """A quarter of a token for a character, and a few for the message."""
    others = {"id": "m1", "response_metadata": {"model_name": "m"}}
    for message in (
        HumanMessage(text),
        HumanMessage(text, name="ada"),
        AIMessage(text, **others),
        AIMessage(text, tool_calls=[CALL, CALL], name="planner"),
        ToolMessage(text, tool_call_id="call-1", name="search", artifact="x" * 100),
        ToolMessage(text, tool_call_id="call-12", status="error"),
        SystemMessage(text, additional_kwargs={"__openai_role__": "developer"}),
        ChatMessage(content=text, role="critic"),
    ):
        assert approximate_tokens([message]) == count_tokens_approximately([message])


@each_case(
    ("text", "low", "high"),
    [
        ("机器学习是人工智能的一个分支。" * 20, 0.7, 1.2),
        ("машинное обучение " * 20, 0.3, 0.6),
        ("딥러닝은 " * 40, 0.6, 1.1),
    ],
)
def test_other_scripts_take_more_tokens_for_a_character(text: str, low: float, high: float) -> None:
    """About one for a wide character, about half of one for others."""
    tokens = approximate_tokens([HumanMessage(text)])
    assert low * len(text) < tokens < high * len(text)


@each_case(
    "image",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400_000}},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "A" * 400_000},
        },
        {"type": "input_image", "image_url": "https://example.org/a.png"},
    ],
)
def test_an_image_counts_the_same_whatever_its_bytes(image: dict[str, object]) -> None:
    """An image without a header counts `UNMEASURED_TOKENS` in addition to the text, whatever its bytes."""
    alone = approximate_tokens([HumanMessage([{"type": "text", "text": "What is this?"}])])
    message = HumanMessage([{"type": "text", "text": "What is this?"}, image])
    assert approximate_tokens([message]) == alone + UNMEASURED_TOKENS
    assert message.content[1] == image


def test_calls_listed_also_in_blocks_are_counted_once() -> None:
    """Calls are counted once, even if the content repeats them."""
    text = {"type": "text", "text": "Let me look."}
    without = approximate_tokens([AIMessage([text])])
    beside = approximate_tokens([AIMessage([text], tool_calls=[CALL])])
    assert beside > without + 100
    blocks: list[dict[str, Any]] = [
        {"type": "tool_use", "id": "c1", "name": "search", "input": CALL["args"]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "search"},
        {"type": "non_standard", "value": {"type": "computer_call", "call_id": "c1"}},
    ]
    for block in blocks:
        alone = approximate_tokens([AIMessage([text, block])])
        assert approximate_tokens([AIMessage([text, block], tool_calls=[CALL])]) == alone
    without_id = CALL | {"id": None}
    assert approximate_tokens([AIMessage([text], tool_calls=[without_id])]) > without + 100


def test_a_counter_of_the_application_counts_for_every_provider() -> None:
    """Only the default counter has other figures of media for each provider; one with figures of its own keeps them."""
    own = partial(approximate_tokens, media=MediaFigures.named("gemini-3-pro"))
    for counter in (own, count_tokens_approximately, NamedCounter("own", own)):
        assert counter_for(counter, "openai") is counter
    default = NamedCounter("named", approximate_tokens)
    assert figures_of(counter_for(default, "openai")) is FIGURES["openai"]


@given(messages)
def test_any_message_has_a_size(message: BaseMessage) -> None:
    """Never an error, never negative, the same each time."""
    assert count(approximate_tokens, message) == count(approximate_tokens, message) >= 0


@each_case("is_deep", [False, True])
def test_calls_that_python_cannot_print_have_a_size(is_deep: bool) -> None:
    """A number beyond Python's limit of digits, and a list far deeper than the stack."""
    value: Any = 0 if is_deep else 10**5_000
    for _ in range(5_000 if is_deep else 0):
        value = [value]
    assert (
        count(
            approximate_tokens,
            AIMessage("x", tool_calls=[{"name": "f", "args": {"a": value}, "id": "c"}]),
        )
        > 10
    )


def test_a_message_that_a_counter_cannot_count_is_estimated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A model's counter may refuse a lone result, or be down: its error is noted, and logged once without its text."""
    counter = NamedCounter("mine", lambda messages: len(messages[7].text))
    for content in ("secret", "x" * 400):
        message = HumanMessage(content)
        assert count(counter, message) == approximate_tokens([message])
    assert counter.errors == ["IndexError"]
    [record] = caplog.records
    assert "mine fails: IndexError" in record.getMessage()
    assert count(partial(max, key=lambda message: message.tokens), HumanMessage("x")) > 0


def test_a_tokenizer_that_panics_is_a_counter_that_fails() -> None:
    """A panic of Rust is no `Exception`; what ends a task or the process passes."""

    class PanicException(BaseException):
        """As pyo3 raises it."""

    def failing(error: BaseException) -> NamedCounter:
        def counter(_: Any) -> int:
            raise error

        return NamedCounter("mine", counter)

    message = HumanMessage("x" * 40)
    counter = failing(PanicException())
    assert count(counter, message) == approximate_tokens([message])
    assert counter.errors == ["PanicException"]
    with pytest.raises(CancelledError):
        count(failing(CancelledError()), message)


@each_case("tokens", [-1, 1.5, None, True])
async def test_a_counter_that_gives_no_number_refuses_no_append(tokens: Any) -> None:
    """It is a counter that fails: sizes are estimates, and the report says why."""
    async with await ConversationStore.connect(
        "memory://", token_counter=lambda _: tokens, token_counter_name="mine"
    ) as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        await chat.append([HumanMessage("Seals?"), AIMessage("Seals do.")])
        history = await chat.load_history()
    assert history.tokens == approximate_tokens(history.messages)
    assert history.report.counter_error == "no whole number from 0"
