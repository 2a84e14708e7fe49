"""Chains for another provider: call ids in its format, no foreign reasoning, arguments that are JSON."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from strategies import same
from test_chain import chain_of, copied, ids

from convstore.chain import Pair, parse_chain
from convstore.exceptions import InvalidInputError
from convstore.messages.tool_calls import calls_of
from convstore.testing.pairing import check_pairing

OPENAI, ANTHROPIC = "call_{r:24:x}", "toolu_{r:24:b}"
REAL_DATA = Path(__file__).parents[3] / "shared" / "data" / "dev" / "provider_cassettes.jsonl.gz"
SIGNATURES = "__gemini_function_call_thought_signatures__"


def call_ids(chain: Any) -> Any:
    """Ids of all calls in order."""
    return [call.id for pair in chain.pairs() for call in calls_of(pair.ai)]


def normalized(ai: AIMessage, *results: ToolMessage, template: str = OPENAI) -> Pair:
    """Return the pair of this AI message and its results, with call ids in the format of `template`."""
    [pair] = (
        parse_chain([HumanMessage("Hi!"), ai, *results]).normalize_tool_call_ids(template).pairs()
    )
    return pair


# ---------------------------------------------------------------------------------------------------------------------
# Ids


@each_case(
    ("template", "form"),
    [
        (OPENAI, r"call_[A-Za-z0-9]{24}"),
        (ANTHROPIC, r"toolu_[A-Za-z0-9]{24}"),
        ("{r:9:x}", r"[A-Za-z0-9]{9}"),
        ("{r:5:d}-{r:4:l}", r"[0-9]{5}-[a-z]{4}"),
        ("{r:6:u}{r:6:a}", r"[A-Z]{6}[A-Za-z]{6}"),
        ("{r:8:h}.{r:8:H}", r"[0-9a-f]{8}\.[0-9A-F]{8}"),
        ("{f}_{r:6:h}", r"search_[0-9a-f]{6}"),
        ("[{r:6:b}]", r"\[[0-9A-Za-z]{6}\]"),
    ],
)
def test_new_ids_have_the_form(template: Any, form: str) -> None:
    """Every charset, fixed text and the name of the tool; a second time nothing changes."""
    chain = parse_chain(chain_of("h", "a x y", "t y", "t x", "a z", "t z")).normalize_tool_call_ids(
        template
    )
    found = call_ids(chain)
    assert all(re.fullmatch(form, each) for each in found)
    assert len(set(found)) == 3
    assert chain.normalize_tool_call_ids(template) == chain


def test_ids_that_fit_are_kept() -> None:
    """Only the others are replaced, each in its call and in its result."""
    fits = "call_" + "a" * 24
    messages = chain_of("h", f"a {fits} x", f"t {fits}", "t x")
    before = copied(messages)
    chain = parse_chain(messages).normalize_tool_call_ids(OPENAI)
    assert call_ids(chain)[0] == fits
    assert call_ids(chain)[1] != "x"
    assert check_pairing(chain.messages()) == []
    assert ids(chain.messages()) == ids(messages)
    assert same(messages, before)


def test_a_repeated_id_stays_two_calls() -> None:
    """In one message or in two, with and without message ids, each with its own result."""
    for forget in (False, True):
        messages = chain_of("h", "a x x", "t x", "t x", "a x", "t x")
        if forget:
            messages = [message.model_copy(update={"id": None}) for message in messages]
        chain = parse_chain(messages).normalize_tool_call_ids(ANTHROPIC)
        assert len(set(call_ids(chain))) == 3
        assert check_pairing(chain.messages()) == []
        assert [message.text for message in chain.messages()] == [
            message.text for message in messages
        ]


@pytest.mark.slow
def test_an_id_may_come_very_often() -> None:
    """A call id that occurs 1,500 times becomes 1,500 different ids, although the messages have no ids."""
    call = {"name": "f", "args": {}, "id": "x"}
    pairs = [
        each
        for _ in range(1500)
        for each in (AIMessage("", tool_calls=[call]), ToolMessage("2", tool_call_id="x"))
    ]
    chain = parse_chain([HumanMessage("Hi!"), *pairs]).normalize_tool_call_ids(OPENAI)
    assert len(set(call_ids(chain))) == 1500


def test_ids_are_the_same_each_time() -> None:
    """The same chain gives the same ids, and a message with an id gives the same at any position."""
    messages = chain_of("h", "a x", "t x", "h", "a x", "t x", "a y", "t y")
    once, twice = (
        call_ids(parse_chain(messages).normalize_tool_call_ids(OPENAI)) for _ in range(2)
    )
    assert once == twice
    assert call_ids(parse_chain(messages[3:]).normalize_tool_call_ids(OPENAI)) == once[1:]


def test_every_place_of_an_id_is_renamed() -> None:
    """Lists of calls, content blocks, what OpenAI sent, chunks, and Gemini's map of signatures; the block's own not."""
    chunk = {"name": "f", "args": "{}", "id": "x", "index": 0, "type": "tool_call_chunk"}
    ai = AIMessageChunk(
        content=[
            {"type": "tool_use", "id": "x", "name": "f", "input": {}},
            {"type": "function_call", "id": "fc_1", "call_id": "x", "name": "f", "arguments": "{}"},
            {
                "type": "non_standard",
                "value": {"type": "computer_call", "id": "cu_1", "call_id": "c"},
            },
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        ],
        tool_call_chunks=[chunk],
        additional_kwargs={
            "tool_calls": [{"id": "x", "type": "function"}],
            SIGNATURES: {"x": "c2ln"},
        },
    )
    pair = normalized(ai, ToolMessage("2", tool_call_id="x"), ToolMessage("3", tool_call_id="c"))
    new, computer = (result.tool_call_id for result in pair.results)
    assert pair.ai.tool_calls[0]["id"] == new != "x"
    assert pair.ai.tool_call_chunks[0]["id"] == new
    content: Any = pair.ai.content
    use, function, wrapped, server = content
    assert (use["id"], function["call_id"], function["id"]) == (new, new, "fc_1")
    assert (wrapped["value"]["call_id"], wrapped["value"]["id"]) == (computer, "cu_1")
    assert server["id"] == "srvtoolu_1"
    assert pair.ai.additional_kwargs == {
        "tool_calls": [{"id": new, "type": "function"}],
        SIGNATURES: {new: "c2ln"},
    }


def test_invalid_calls_and_calls_without_id_are_renamed() -> None:
    """Invalid calls and calls without an id get new ids too, because they are also sent to providers."""
    ai = AIMessage(
        "",
        tool_calls=[{"name": "f", "args": {}, "id": None}],
        invalid_tool_calls=[{"name": "f", "args": "{", "id": "x", "error": None}],
    )
    pair = normalized(ai, ToolMessage("2", tool_call_id=""), ToolMessage("3", tool_call_id="x"))
    found = [pair.ai.tool_calls[0]["id"], pair.ai.invalid_tool_calls[0]["id"]]
    assert [result.tool_call_id for result in pair.results] == found
    assert all(re.fullmatch(r"call_\w{24}", each) for each in found)


@each_case(
    "template",
    [
        "",
        "call_1",
        "{f}",
        "{r:0:x}",
        "{r:600:x}",
        "{r:99999999999:x}",
        "{r:4:q}",
        "{r:x}",
        "{r:4:x}{",
        7,
    ],
)
def test_what_is_no_template_is_refused(template: int | str) -> None:
    """Without random characters two calls would get the same id."""
    with pytest.raises(InvalidInputError, match="template of call ids"):
        parse_chain([]).normalize_tool_call_ids(template)


def test_a_template_with_too_few_ids_is_refused() -> None:
    """Two calls never share a new id."""
    messages = chain_of(
        "h", *[each for number in range(11) for each in (f"a x{number}", f"t x{number}")]
    )
    with pytest.raises(InvalidInputError, match="too few ids"):
        parse_chain(messages).normalize_tool_call_ids("{r:1:d}")


# ---------------------------------------------------------------------------------------------------------------------
# Reasoning

TEXT = {"type": "text", "text": "Four."}


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(
            {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}, id="Anthropic, Gemini"
        ),
        pytest.param({"type": "redacted_thinking", "data": "c2ln"}, id="Anthropic, redacted"),
        pytest.param(
            {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, id="Mistral"
        ),
        pytest.param(
            {"type": "reasoning_content", "reasoning_content": {"text": "Hm."}},
            id="Bedrock Converse",
        ),
        pytest.param({"reasoningContent": {"reasoningText": {"text": "Hm."}}}, id="Bedrock, raw"),
        pytest.param(
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2ln"},
            id="OpenAI",
        ),
        pytest.param(
            {"type": "reasoning", "reasoning": "Hm.", "extras": {"signature": "c2ln"}},
            id="standard",
        ),
        pytest.param(
            {"type": "text", "text": "Hm.", "thought": True}, id="Gemini, a part that is a thought"
        ),
        pytest.param(
            {"type": "function_call_signature", "signature": "c2ln", "index": 0},
            id="Gemini, by index",
        ),
        pytest.param(
            {"type": "non_standard", "value": {"type": "thinking", "thinking": "Hm."}}, id="wrapped"
        ),
    ],
)
def test_reasoning_blocks_go(block: dict[str, Any]) -> None:
    """Each shape that a provider package writes; text and calls beside it stay."""
    chain = parse_chain([HumanMessage("2+2?"), AIMessage([block, TEXT])])
    assert chain.clear_reasoning().messages()[1].content == [TEXT]


@each_case(
    ("block", "left"),
    [
        ({**TEXT, "signature": "c2ln"}, TEXT),
        ({**TEXT, "extras": {"signature": "c2ln"}}, TEXT),
        ({**TEXT, "extras": {"signature": "c2ln", "seen": 1}}, {**TEXT, "extras": {"seen": 1}}),
        ({**TEXT, "extras": {}}, {**TEXT, "extras": {}}),
        ({**TEXT, "thought_signature": "c2ln", "id": "msg_1"}, {**TEXT, "id": "msg_1"}),
        ({**TEXT, "thoughtSignature": "c2ln"}, TEXT),
        (
            {"type": "non_standard", "value": {"type": "odd", "signature": "c2ln"}},
            {"type": "non_standard", "value": {"type": "odd"}},
        ),
        (
            {
                "type": "server_tool_use",
                "id": "s",
                "input": {"signature": "kept"},
                "signature": "c2ln",
            },
            {"type": "server_tool_use", "id": "s", "input": {"signature": "kept"}},
        ),
        ("plain", "plain"),
    ],
)
def test_signatures_leave_their_blocks(block: dict[str, Any] | str, left: Any) -> None:
    """Text, tool use and extras lose them and nothing else; arguments are never looked at."""
    chain = parse_chain([HumanMessage("2+2?"), AIMessage([block])])
    assert chain.clear_reasoning().messages()[1].content == [left]


def test_calls_lose_their_signatures() -> None:
    """clear_reasoning() removes signatures from calls, blocks and fields of gateways. Arguments stay word for word."""
    args = {"reasoning": "kept", "signature": "kept", "extras": {"signature": "kept"}}
    ai = AIMessage(
        [
            {
                "type": "tool_use",
                "id": "x",
                "name": "f",
                "input": args,
                "extras": {"signature": "c2ln"},
            }
        ],
        additional_kwargs={
            "tool_calls": [
                {
                    "id": "x",
                    "extra_content": {"google": {"thought_signature": "c2ln"}},
                    "function": args,
                }
            ],
        },
    )
    call = {"name": "f", "args": args, "id": "x", "type": "tool_call"}
    ai = ai.model_copy(update={"tool_calls": [{**call, "extras": {"signature": "c2ln"}}]})
    chain = parse_chain([HumanMessage("Hi!"), ai, ToolMessage("2", tool_call_id="x")])
    cleared = chain.clear_reasoning().messages()[1]
    assert cleared.tool_calls == [call]
    assert cleared.content == [{"type": "tool_use", "id": "x", "name": "f", "input": args}]
    assert cleared.additional_kwargs == {"tool_calls": [{"id": "x", "function": args}]}
    assert ai.tool_calls[0]["extras"] == {"signature": "c2ln"}


@each_case(
    "kwargs",
    [
        {"reasoning_content": "Hm."},
        {"reasoning": {"id": "rs_1", "summary": []}},
        {"reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]},
        {"thinking": "Hm.", "signature": "c2ln"},
        {"thinking_blocks": [{"type": "thinking"}]},
        {SIGNATURES: {"call_1": "c2ln"}},
        {"provider_specific_fields": {"thinking_blocks": [], "reasoning_content": "Hm."}},
        {"signatures": ["c2ln"]},
    ],
)
def test_reasoning_leaves_the_kwargs(kwargs: dict[str, Any]) -> None:
    """On every role, and what else is there stays."""
    messages = [
        HumanMessage("Hi!", additional_kwargs={"n": 1, **kwargs}),
        AIMessage(
            "",
            additional_kwargs={"n": 2, **kwargs},
            tool_calls=[{"name": "f", "args": {}, "id": "x"}],
        ),
        ToolMessage("2", tool_call_id="x", additional_kwargs={"n": 3, **kwargs}),
    ]
    before = copied(messages)
    cleared = parse_chain(messages).clear_reasoning().messages()
    assert [message.additional_kwargs for message in cleared] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert same(messages, before)


def test_clearing_changes_no_size_and_nothing_else() -> None:
    """Messages without reasoning stay the same objects; usage and ids always stay."""
    usage = {
        "input_tokens": 1,
        "output_tokens": 2,
        "total_tokens": 3,
        "output_token_details": {"reasoning": 1},
    }
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    messages = [
        *chain_of("s", "h", "a x", "t x"),
        AIMessage([thinking, TEXT], usage_metadata=usage, id="m9"),
    ]
    chain = parse_chain(messages)
    cleared = chain.clear_reasoning()
    assert cleared.size == chain.size
    assert all(
        message is two for message, two in zip(cleared.messages()[:-1], messages[:-1], strict=True)
    )
    assert same(cleared.messages()[-1], AIMessage([TEXT], usage_metadata=usage, id="m9"))


# ---------------------------------------------------------------------------------------------------------------------
# Arguments


@each_case(
    ("written", "sanitized"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('{"a":1 }', '{"a":1 }'),
        ('{"a": "two\nlines\tand\x01"}', '{"a": "two\\nlines\\tand\\u0001"}'),
        ('{"a": "a quote \\" and\n"}', '{"a": "a quote \\" and\\n"}'),
        (
            '{"a": "ends in a backslash \\\\",\n "b": "\r"}',
            '{"a": "ends in a backslash \\\\",\n "b": "\\r"}',
        ),
        ('{"a": "a backslash\\\n"}', '{"a": "a backslash\\n"}'),
        ('{"a": "cut o', "{}"),
        ("", "{}"),
        ("no JSON", "{}"),
        ('{"a": NaN}', "{}"),
        ("null", "null"),
        ('{"a": ' + "9" * 5000 + "}", '{"a": ' + "9" * 5000 + "}"),
        ("[" * 100_000, "{}"),
        (None, "{}"),
    ],
)
def test_arguments_become_json(written: Any, sanitized: Any) -> None:
    """JSON stays as it is, control characters in strings are escaped, what still is none becomes {}."""
    ai = AIMessage(
        [{"type": "function_call", "call_id": "x", "name": "f", "arguments": written}],
        invalid_tool_calls=[{"name": "f", "args": written, "id": "x", "error": "no"}],
        additional_kwargs={
            "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": written}}],
            "function_call": {"name": "f", "arguments": written},
        },
    )
    chain = parse_chain([HumanMessage("Hi!"), ai, ToolMessage("2", tool_call_id="x")])
    clean = chain.sanitize_tool_call_arguments().messages()[1]
    assert clean.invalid_tool_calls[0] == {**ai.invalid_tool_calls[0], "args": sanitized}
    assert clean.additional_kwargs["tool_calls"][0]["function"] == {
        "name": "f",
        "arguments": sanitized,
    }
    assert clean.additional_kwargs["function_call"]["arguments"] == sanitized
    if written is not None:
        assert clean.content[0]["arguments"] == sanitized
    json.loads(sanitized, parse_int=str)
    assert ai.invalid_tool_calls[0]["args"] == written


def test_arguments_that_json_has_no_form_for() -> None:
    """Arguments that JSON cannot express, such as NaN or bytes, become an empty object. The call stays."""
    bad = {"name": "f", "args": {"a": float("nan")}, "id": "x"}
    block = {"type": "tool_use", "id": "x", "name": "f", "input": {"a": b"bytes"}}
    good = {"name": "f", "args": {"a": "\ud800\n"}, "id": "y"}
    results = [ToolMessage("2", tool_call_id=name) for name in "xy"]
    chain = parse_chain([HumanMessage("Hi!"), AIMessage([block], tool_calls=[bad, good]), *results])
    clean = chain.sanitize_tool_call_arguments().messages()[1]
    assert [call["args"] for call in clean.tool_calls] == [{}, good["args"]]
    assert clean.content == [{**block, "input": {}}]


def test_clean_arguments_leave_the_objects_alone() -> None:
    """Messages with clean arguments stay the same objects. The free text of a custom tool need not be JSON."""
    custom = {"type": "custom_tool_call", "call_id": "x", "name": "f", "input": "print('a\nb')"}
    messages = [
        *chain_of("h", "a y", "t y"),
        AIMessage([custom, TEXT]),
        ToolMessage("2", tool_call_id="x"),
    ]
    chain = parse_chain(messages)
    clean = chain.sanitize_tool_call_arguments()
    assert all(message is two for message, two in zip(clean.messages(), messages, strict=True))


# ---------------------------------------------------------------------------------------------------------------------
# Real conversations


def _real(raw: Any, number: Any) -> Any:
    content = raw["content"] or ""
    if raw["role"] == "tool":
        return ToolMessage(content, id=f"m{number}", tool_call_id=raw["tool_call_id"])
    if raw["role"] == "user":
        return HumanMessage(content, id=f"m{number}")
    calls = []
    for call in raw.get("tool_calls", []):
        args = json.loads(call["function"]["arguments"])
        calls.append(
            {
                "name": call["function"]["name"],
                "args": args if isinstance(args, dict) else {},
                "id": call["id"],
            }
        )
    kwargs = {
        key: raw[key]
        for key in ("reasoning", "reasoning_content", "reasoning_details")
        if key in raw
    }
    return AIMessage(content, id=f"m{number}", tool_calls=calls, additional_kwargs=kwargs)


@pytest.mark.skipif(
    not REAL_DATA.exists(), reason="the real conversations are not next to the checkout"
)
@pytest.mark.parametrize("template", [OPENAI, ANTHROPIC])
def test_real_transcripts_are_fit_for_another_provider(template: Any) -> None:
    """Real transcripts fit another provider: no reasoning is left, ids fit, pairs and texts are the same."""
    cleared = 0
    with gzip.open(REAL_DATA, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if record["messages"][0]["role"] != "user":
                continue
            chain = parse_chain(
                [_real(raw, n) for n, raw in enumerate(record["messages"])], repair=True
            )
            clean = (
                chain.clear_reasoning()
                .normalize_tool_call_ids(template)
                .sanitize_tool_call_arguments()
            )
            as_json = json.dumps(
                [message.model_dump() for message in clean.messages()], default=str
            )
            assert '"type": "thinking"' not in as_json
            assert '"signature"' not in as_json
            assert "reasoning" not in [
                key for message in clean.messages() for key in message.additional_kwargs
            ]
            assert check_pairing(clean.messages()) == check_pairing(chain.messages())
            assert [m.text for m in clean.messages()] == [m.text for m in chain.messages()]
            assert all(call[:5] in ("call_", "toolu") for call in call_ids(clean))
            cleared += clean.clear_reasoning() != chain
    assert cleared > 40
