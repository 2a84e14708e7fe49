"""A value of a wrong type is refused by a typed error, by chains and by the functions that summarise lists."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore import InvalidInputError
from convstore.chain import Chain, ChainSummarizer, parse_chain
from convstore.exceptions import MalformedChainError
from convstore.summarization import asummarize_messages, summarize_messages

MESSAGES = [HumanMessage("Hello", id="1"), AIMessage("Hi", id="2")]
MODEL = SimpleNamespace(invoke=lambda _: AIMessage("s"))


async def _handler(text: str) -> str:
    return text[:1]


def _summarize(**changed: Any) -> Any:
    given: dict[str, Any] = {
        "messages": MESSAGES,
        "running_summary": None,
        "model": MODEL,
        "max_tokens": 10,
        "max_summary_tokens": 5,
    }
    return summarize_messages(**given | changed)


CALLS: list[tuple[Callable[[Any], Any], str]] = [
    (parse_chain, "a chain is"),
    (lambda wrong: ChainSummarizer(_handler, config=wrong or 1), "config must be"),
    (lambda wrong: Chain().append_human(wrong), "content must be"),
    (lambda wrong: Chain().append_human([wrong]), "content must be"),
    (lambda wrong: Chain().add_tool_response(wrong), "response must be a ToolMessage"),
    (lambda wrong: _summarize(messages=wrong), "messages must be a list"),
    (lambda wrong: _summarize(messages=[wrong]), "messages must be a list"),
    (lambda wrong: _summarize(model=wrong), "model must be a LangChain chat model"),
    (lambda wrong: _summarize(max_tokens=str(wrong)), "max_tokens must be a whole number"),
    (lambda wrong: _summarize(max_summary_tokens=str(wrong)), "max_summary_tokens must be"),
    (lambda wrong: _summarize(max_tokens_before_summary=str(wrong)), "max_tokens_before_summary"),
    (lambda wrong: _summarize(token_counter=wrong), "token_counter must be a function"),
]


@pytest.mark.parametrize("wrong", [None, 1, 1.5], ids=repr)
@pytest.mark.parametrize(("call", "said"), CALLS, ids=range(len(CALLS)))
def test_a_value_of_a_wrong_type_is_named(
    call: Callable[[Any], Any], said: str, wrong: Any
) -> None:
    """No AttributeError or TypeError of an inner function reaches the caller."""
    with pytest.raises((InvalidInputError, MalformedChainError), match=said):
        call(wrong)


async def test_a_model_that_cannot_be_awaited_is_refused() -> None:
    """Before anything is summarised."""
    with pytest.raises(InvalidInputError, match="model must be"):
        await asummarize_messages(MESSAGES, running_summary=None, model=MODEL, max_tokens=1_000)
