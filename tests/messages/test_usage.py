"""Token counts: every form in which providers and frameworks report them, and damaged ones."""

from __future__ import annotations

from typing import Any

from cases import each_case
from langchain_core.messages import AIMessage, HumanMessage

from convstore import ConversationStore
from convstore.messages.usage import usage_in, usage_of
from convstore.values.usage import Usage

CHAT = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 60},
}
RESPONSES = {
    "input_tokens": 100,
    "output_tokens": 20,
    "total_tokens": 120,
    "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 9},
}
ANTHROPIC = {
    "input_tokens": 31,
    "output_tokens": 20,
    "cache_read_input_tokens": 60,
    "cache_creation_input_tokens": 9,
}
LITELLM = CHAT | {"cache_read_input_tokens": 60, "cache_creation_input_tokens": 9}
PYDANTIC_AI = {
    "input_tokens": 100,
    "output_tokens": 20,
    "cache_read_tokens": 60,
    "cache_write_tokens": 9,
    "details": {},
}
GEMINI = {
    "prompt_token_count": 95,
    "tool_use_prompt_token_count": 5,
    "candidates_token_count": 12,
    "thoughts_token_count": 8,
    "cached_content_token_count": 60,
    "total_token_count": 120,
}


@each_case(
    ("value", "written"),
    [(CHAT, 0), (RESPONSES, 9), (ANTHROPIC, 9), (LITELLM, 9), (PYDANTIC_AI, 9), (GEMINI, 0)],
)
def test_every_form_says_what_a_cache_read_and_wrote(value: dict[str, Any], written: int) -> None:
    """OpenAI (and its Agents SDK), Anthropic (also by LiteLLM), Pydantic AI, Gemini: cached tokens are input tokens."""
    said = AIMessage("Yes.", usage_metadata=usage_of(value))
    assert usage_in(said) == Usage(100, 20, 120, 60, written)


@each_case(
    "metadata",
    [{"token_usage": CHAT}, {"usage": {**ANTHROPIC, "cache_creation_input_tokens": 0}}],
)
def test_counts_in_the_metadata_alone_are_read(metadata: dict[str, Any]) -> None:
    """Older versions of LangChain have them there."""
    found = usage_in(AIMessage("Yes.", response_metadata=metadata))
    assert found
    assert found.cache_read_tokens == 60


def test_gemini_leaves_out_what_is_zero() -> None:
    """A prompt that was blocked has no candidates."""
    assert usage_of({"prompt_token_count": 7, "candidates_token_count": None}) == {
        "input_tokens": 7,
        "output_tokens": 0,
        "total_tokens": 7,
    }


@each_case(
    ("details", "read", "written"),
    [
        ({"cache_read": 60, "ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 4}, 60, 9),
        ({"cache_read": 60, "cache_creation": 9, "ephemeral_5m_input_tokens": 9}, 60, 9),
        ({"cache_read": 150, "cache_creation": 150}, 100, 0),
        ({"cache_read": 60, "cache_creation": 150}, 60, 40),
        ({"cache_read": -60, "cache_creation": "9"}, 0, 0),
        ({"cache_read": 2**80, "cache_creation": True}, 0, 0),
        ("cached", 0, 0),
        (None, 0, 0),
    ],
)
def test_the_cached_share_is_never_more_than_the_input(
    details: Any, read: int, written: int
) -> None:
    """Whatever a message built without validation holds."""
    said = AIMessage("Yes.")
    counts: Any = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}
    said.usage_metadata = counts | {"input_token_details": details}
    assert usage_in(said) == Usage(100, 20, 120, read, written)


@each_case(
    ("counts", "expected"),
    [
        ({}, None),
        ({"input_tokens": "100", "output_tokens": None}, None),
        ({"input_tokens": -100, "output_tokens": 20}, Usage(0, 20)),
        ({"input_tokens": 2**41, "output_tokens": 1.5, "total_tokens": 7}, Usage(0, 0, 7)),
        ({1: 2, "input_tokens": True}, None),
    ],
)
async def test_damaged_counts_are_stored_and_not_summed(
    counts: Any, expected: Usage | None
) -> None:
    """The message comes back as it was; what is no number of tokens counts as 0, in a log that `verify` accepts."""
    said = AIMessage("Yes.", response_metadata={"model_name": "m"})
    said.usage_metadata = counts
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        whole: Any = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
        first = AIMessage("No.", response_metadata={"model_name": "m"}, usage_metadata=whole)
        await chat.append([HumanMessage("?"), first, said])
        assert usage_in(said) == expected
        sums = Usage(10, 2, 12).plus(expected or Usage())
        assert (await chat.info()).usage == {"m": sums._asdict()}
        assert (await store.verify()).ok


def test_counts_of_another_type_are_none() -> None:
    """Views and pages read messages that were not appended."""
    said = AIMessage("Yes.")
    for wrong in ("many", [100, 20], 7):
        said.usage_metadata = wrong
        assert usage_in(said) is None
