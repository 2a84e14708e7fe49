"""The JSON of a framework's message comes back exactly, whatever it holds, and repeats nothing that messages hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore.wire.exact import with_references, without_references

LONG = "Seals eat fish. " * 20


def deep(levels: int) -> Any:
    """Lists in lists."""
    value: Any = "end"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "own",
    [
        {"text": "Hi", "content": LONG, "proof": LONG},
        {"args": {"convstore:held": "content"}, "text": {"convstore:held": "nowhere"}},
        {"exact": "{}"},
        {"list": deep(600)},
        {"number": float("nan"), "lone": "\ud83d", "result": {"n": 1.0}},
    ],
)
def test_any_json_comes_back(own: dict[str, Any]) -> None:
    """References of its own, a field named as ours, deep nesting, and values that JSON has no exact form of."""
    messages: list[BaseMessage] = [HumanMessage("Hi"), AIMessage([{"type": "text", "text": LONG}])]
    mark = json.loads(json.dumps(with_references(own, *messages)))
    assert json.dumps(without_references(mark, *messages)) == json.dumps(own)


def test_what_messages_hold_is_not_repeated() -> None:
    """Whole contents and long texts, of the second message too; a text that a view has changed is restored changed."""
    said = AIMessage(
        [{"type": "text", "text": LONG}],
        tool_calls=[{"name": "look", "args": {"at": LONG}, "id": "a"}],
    )
    result = ToolMessage(LONG[::-1], tool_call_id="a")
    own = {
        "said": {"content": said.content},
        "result": LONG[::-1],
        "seal": LONG,
        "args": {"at": LONG},
    }
    mark = with_references(own, said, result)
    assert LONG not in json.dumps(mark)
    assert LONG[::-1] not in json.dumps(mark)
    assert without_references(mark, said, ToolMessage("stub", tool_call_id="a"))["result"] == "stub"
    with pytest.raises(LookupError):
        without_references(mark, said)
