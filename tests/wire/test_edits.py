"""The rules of a provider stand once: a row that is broken changes what every writer of requests writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.types import Dropped, History, ProviderRules
from convstore.values.providers import ROWS, rules_of_framework
from convstore.view.provider_rules import made_for
from convstore.wire.edits import NO_ANSWER, RequestEdits

Said = list[tuple[str, str]]
FREE = ProviderRules(name="own", reasoning="always", reasoning_of="any")
"""A row that changes nothing."""
STRICT = replace(
    FREE,
    system="first",
    human_first=True,
    answer_after_results=True,
    reasoning_of="family",
    result_media="moved",
    text_beside_calls=False,
)
MOVED = "[Images and files in the tool results above]"


IMAGE = {"type": "image", "url": "https://example.org/fish.png", "mime_type": "image/png"}


def log() -> list[BaseMessage]:
    """A greeting, a late instruction, and a question after a result, with an id that comes twice."""
    call = {"name": "look", "args": {}, "id": "c", "type": "tool_call"}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    metadata = {"model_name": "claude-opus-4-1", "model_provider": "anthropic"}
    looked: Any = [thought, {"type": "text", "text": "I look."}]
    messages = [
        AIMessage("Hi!"),
        HumanMessage("Fish?"),
        SystemMessage("Be brief."),
        AIMessage(looked, tool_calls=[call], response_metadata=metadata),
        ToolMessage([{"type": "text", "text": "Two."}, IMAGE], tool_call_id="c", name="look"),
        HumanMessage("So?"),
        AIMessage("", tool_calls=[call]),
        ToolMessage("Three.", tool_call_id="c", name="look"),
    ]
    for number, message in enumerate(messages):
        message.id = f"m{number}"
    return messages


def text_of(content: Any) -> str:
    """The texts of a content."""
    blocks = content if isinstance(content, list) else [content]
    texts = [block.get("text", "") if isinstance(block, dict) else str(block) for block in blocks]
    return " ".join(filter(None, texts))


def chat(rules: ProviderRules) -> Said:
    """Chat Completions."""
    request = History(messages=log()).to_openai(provider=rules, model="gpt-5")
    return [(each["role"], text_of(each["content"])) for each in request]


def responses(rules: ProviderRules) -> Said:
    """The Responses API."""
    request = History(messages=log()).to_openai(api="responses", provider=rules)
    texts = [item.get("content", item.get("output", "")) for item in request]
    roles = [item.get("role", "tool") for item in request]
    return list(zip(roles, map(text_of, texts), strict=True))


def anthropic(rules: ProviderRules) -> Said:
    """Anthropic's API."""
    request = History(messages=log()).to_anthropic(provider=rules)
    return [(each["role"], text_of(each["content"])) for each in request["messages"]]


def langchain(rules: ProviderRules) -> Said:
    """A view for LangChain's package of a provider."""
    made = made_for(log(), rules)
    roles = {"ai": "assistant", "human": "user", "system": "system", "tool": "tool"}
    return [(roles[each.type], text_of(each.content)) for each in made]


def agents_sdk(rules: ProviderRules) -> Said:
    """Items for OpenAI's Agents SDK."""
    from convstore.ext.openai_agents.items import of_view  # noqa: PLC0415 - loads slowly

    items = of_view(log(), rules)
    texts = [item.get("content", item.get("output", "")) for item in items]
    roles = [item.get("role", "tool") for item in items]
    return list(zip(roles, map(text_of, texts), strict=True))


def pydantic_ai(rules: ProviderRules) -> Said:
    """Messages of Pydantic AI."""
    from convstore.ext.pydantic_ai.messages import from_log  # noqa: PLC0415 - loads slowly

    found, _ = from_log(log(), RequestEdits(rules, asked="gpt-5"))
    roles = {"system-prompt": "system", "user-prompt": "user", "tool-return": "tool"}
    return [
        (roles.get(part.part_kind, "assistant"), text_of(getattr(part, "content", "")))
        for message in found
        for part in message.parts
    ]


def agent_framework(rules: ProviderRules) -> Said:
    """Messages of Microsoft's Agent Framework."""
    from convstore.ext.microsoft.messages import from_log  # noqa: PLC0415 - loads slowly

    found, _ = from_log(log(), RequestEdits(rules, asked="gpt-5"))
    return [(str(message.role), message.text) for message in found]


FRAMEWORKS = [agents_sdk, pydantic_ai, agent_framework]
WRITERS = [
    chat,
    responses,
    anthropic,
    langchain,
    *(pytest.param(writer, marks=pytest.mark.slow) for writer in FRAMEWORKS),
]


@pytest.mark.parametrize("write", WRITERS)
def test_a_broken_row_changes_every_writer(write: Callable[[ProviderRules], Said]) -> None:
    """An order of roles that a provider wants is in one place: seven writers follow it."""
    free = write(FREE)
    strict = write(STRICT)
    beginning = ("user", "(The conversation begins.)")
    no_answer = ("assistant", "(No answer.)")
    assert beginning not in free
    assert no_answer not in free
    assert ("system", "Be brief.") in free
    assert strict[0] == beginning
    assert strict[strict.index(("user", "So?")) - 1] == no_answer
    if write is not pydantic_ai:  # whose package moves them
        moved = next(said for said in strict if said[1].startswith(MOVED))
        assert moved[0] == "user"
        assert strict.index(moved) == strict.index(("user", "So?")) - 2
        assert write is chat or not any(said[1].startswith(MOVED) for said in free)
    if write is not anthropic:  # whose messages have blocks
        at = strict.index(("assistant", "I look."))
        assert strict[at + 1] in (("assistant", ""), ("tool", ""))
    instruction = next(said for said in strict if "Be brief." in said[1])
    assert instruction[0] == "user"
    assert instruction[1].startswith("[Instruction of the application]")


@pytest.mark.slow
def test_frameworks_get_edits_and_the_rest_as_it_was() -> None:
    """Ids are unique, foreign reasoning stays out and is named; a message without an edit is the same object."""
    from pydantic_ai.messages import (  # noqa: PLC0415 - loads slowly
        ModelRequest,
        ModelResponse,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )

    from convstore.ext.pydantic_ai.edited import edited  # noqa: PLC0415 - loads slowly

    thought = ThinkingPart("Hm.", signature="c2ln", provider_name="anthropic")
    call = ToolCallPart("look", {}, tool_call_id="c")
    messages = [
        ModelRequest([UserPromptPart("?")]),
        ModelResponse([thought, call], model_name="claude-opus-4-1"),
        ModelRequest([ToolReturnPart("look", "Two.", tool_call_id="c")]),
        ModelResponse([call]),
        ModelRequest([ToolReturnPart("look", "Two.", tool_call_id="c")]),
    ]
    rules = rules_of_framework(None, "gpt-5")
    edits = RequestEdits(rules, asked="gpt-5")
    made = [each for message in messages for each in edited(message, edits)]
    assert [new is old for new, old in zip(made, messages, strict=True)] == [
        True,
        False,
        True,
        False,
        False,
    ]
    assert made[1].parts == [call]
    assert edits.dropped == [Dropped("", "reasoning", "another model wrote it")]
    renamed: Any = (made[3].parts[0], made[4].parts[0])
    assert renamed[0].tool_call_id == renamed[1].tool_call_id != "c"
    own = RequestEdits(rules_of_framework(None, "claude-opus-5"), asked="claude-opus-5")
    assert [edited(message, own)[0] is message for message in messages[:2]] == [True, True]


def test_a_view_names_what_it_leaves_out_for_a_provider() -> None:
    """Reasoning, tools that another provider ran, settings, media in results that it does not take."""
    picture = {"type": "image", "base64": "AAAA", "mime_type": "image/png"}
    ran = {"type": "web_search_call", "id": "ws_1", "action": {"query": "fish"}}
    cited = {"type": "text", "text": "So.", "annotations": [{"type": "citation"}]}
    call = {"name": "look", "args": {}, "id": "c", "type": "tool_call"}
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    said: list[Any] = [thought, ran, cited]
    messages = [
        HumanMessage("?", id="q"),
        AIMessage(said, id="a", tool_calls=[call]),
        ToolMessage([picture], id="t", tool_call_id="c"),
    ]
    dropped = list[Dropped]()
    made_for(messages, ROWS["mistralai"], dropped)
    assert [(part.message_id, part.part) for part in dropped] == [
        ("a", "reasoning"),
        ("a", "web_search_call"),
        ("a", "annotations"),
        ("t", "image"),
    ]


def test_each_call_has_an_id_of_its_own_and_its_result_too() -> None:
    """Results of calls with one id answer them in their order; the last one again; those of no call keep the id."""
    edits = RequestEdits(FREE)
    edits.place("assistant")
    named = [edits.call("c", tool) for tool in ("look", "mcp.find", "look")]
    assert len({name.id for name in named}) == 3
    assert named[0] == ("c", "look")
    assert named[1].tool == "mcp_find"
    assert [edits.result("c") for _ in range(4)] == [*named, named[2]]
    assert edits.result("other") == ("other", "")
    again = RequestEdits(FREE)
    again.place("assistant")
    assert [again.call("c", "look"), again.call("c", "mcp.find"), again.call("c", "look")] == named
    again.place("assistant")
    later = again.call("c", "look")
    assert again.result("c") == later
    assert later not in named
    many = RequestEdits(FREE)
    assert len({many.call("", "look").id for _ in range(1_200)}) == 1_200
    own = RequestEdits(FREE, in_own_form=True)
    assert own.call("???", "look").id != "???"
    strict = RequestEdits(STRICT)
    strict.place("user")
    strict.place("assistant")
    strict.call("c", "look")
    assert strict.place("user").before is None
    strict.result("c")
    assert strict.place("user").before == NO_ANSWER


@pytest.mark.parametrize(
    ("parts", "rules", "writer", "problem", "expected"),
    [
        ("reasoning text call", FREE, "claude-opus-4-1", "", ["reasoning text call"]),
        ("reasoning text call", STRICT, "", "", ["reasoning text", "call"]),
        ("reasoning text call", STRICT, "claude-opus-4-1", "", ["text", "call"]),
        ("reasoning text", FREE, "", "its turn is over", ["text"]),
        ("reasoning", STRICT, "claude-opus-4-1", "", ["(no text)"]),
        ("call call", STRICT, "claude-opus-4-1", "", ["call call"]),
        ("text", STRICT, "claude-opus-4-1", "", ["text"]),
    ],
)
def test_an_answer_goes_without_reasoning_that_stays_out(
    parts: str, rules: ProviderRules, writer: str, problem: str, expected: list[str]
) -> None:
    """It is named; a text and calls are two messages where a provider takes one of them."""
    edits = RequestEdits(rules, asked="gpt-5")
    kinds = parts.split()
    made = edits.answer(
        kinds, str, AIMessage("", id="m"), writer=writer, blank="(no text)", problem=problem
    )
    assert [" ".join(message) for message in made] == expected
    is_left_out = "reasoning" in kinds and "reasoning" not in expected[0]
    named = Dropped("m", "reasoning", problem or "another model wrote it")
    assert edits.dropped == [named] * is_left_out
