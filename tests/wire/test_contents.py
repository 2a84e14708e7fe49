"""What a framework is told of a message that another adapter wrote: its reasoning, its calls, and what has no place."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from convstore.wire.contents import ContentReader, reasoning_part

THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
ITEM = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}


@pytest.mark.parametrize(
    ("block", "metadata"),
    [
        pytest.param(THOUGHT, {"anthropic": {"signature": "c2ln"}}, id="anthropic"),
        pytest.param(
            {"type": "redacted_thinking", "data": "c2VjcmV0"},
            {"anthropic": {"redactedData": "c2VjcmV0"}},
            id="anthropic, redacted",
        ),
        pytest.param(
            {
                "type": "reasoning_content",
                "reasoning_content": {"text": "Hm.", "signature": "c2ln"},
            },
            {"anthropic": {"signature": "c2ln"}},
            id="bedrock",
        ),
        pytest.param(
            ITEM | {"encrypted_content": "ZW5j"},
            {"openai": {"reasoningEncryptedContent": "ZW5j", "itemId": "rs_1"}},
            id="openai",
        ),
        pytest.param(ITEM, None, id="openai, which has only its id"),
        pytest.param(
            {"type": "thinking", "thinking": "Hm.", "extras": {"thought_signature": "c2ln"}},
            {"google": {"thoughtSignature": "c2ln"}},
            id="google",
        ),
        pytest.param({"text": "Hm."}, None, id="a server without signatures"),
    ],
)
def test_the_proof_of_reasoning_goes_to_its_provider(block: Any, metadata: Any) -> None:
    """A framework that lacks the signature could not send the reasoning back; an id alone cannot be looked up."""
    part = reasoning_part(block)
    assert part.get("providerMetadata") == metadata
    assert part["text"] == ("" if "data" in block else "Hm.")


def test_reasoning_beside_an_answer_is_read_once() -> None:
    """Gateways repeat it under other keys: the first key with a text counts, and a list of details is in order."""
    details = [
        {"type": "reasoning.text", "text": "One."},
        {"type": "reasoning.text", "text": "Two."},
    ]
    both = AIMessage("So.", additional_kwargs={"reasoning": "Hm.", "reasoning_details": details})
    assert texts_of(both) == ["Hm.", "So."]
    assert texts_of(AIMessage("So.", additional_kwargs={"reasoning_details": details})) == [
        "One.",
        "Two.",
        "So.",
    ]


def texts_of(message: BaseMessage) -> list[Any]:
    """The texts and the reasoning of a message, as the reader yields them."""
    found = ContentReader().contents(message)
    return [part["text"] if isinstance(part, dict) else part for part in found]


def test_a_user_does_not_reason() -> None:
    """A client can post such a block, or such a field: it is reported, and no model is said to have thought it."""
    reader = ContentReader()
    message = HumanMessage(
        ["Hi.", THOUGHT], id="h", additional_kwargs={"reasoning_content": "I am the model."}
    )
    assert list(reader.contents(message)) == ["Hi."]
    assert [(loss.message_id, loss.part) for loss in reader.dropped] == [("h", "reasoning")]


def test_only_a_call_that_is_listed_nowhere_is_reported() -> None:
    """Blocks repeat the calls of an answer; one that no list has would vanish."""
    blocks: list[Any] = [
        {"type": "tool_use", "id": "c1", "name": "look", "input": {}},
        {"type": "tool_use", "id": "c2", "name": "look", "input": {}},
        {"type": "web_search_call", "id": "ws_1"},
    ]
    calls = [{"name": "look", "args": {}, "id": id_} for id_ in ("c1", "")]
    reader = ContentReader()
    assert list(reader.contents(AIMessage(blocks, tool_calls=calls))) == []
    assert [loss.part for loss in reader.dropped] == ["tool_use", "web_search_call"]
