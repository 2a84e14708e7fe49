"""Properties of every chain: parsing, sizes, provider hygiene and summaries, over random conversations."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from properties import examples
from strategies import any_text, same
from test_chain import bytes_in, chain_of, copied

from convstore.chain import Chain, ChainSummarizer, ChainSummarizerConfig, ChainSummary, parse_chain
from convstore.exceptions import MalformedChainError
from convstore.testing.pairing import check_pairing

many = examples(100)

# ---------------------------------------------------------------------------------------------------------------------
# Random chains: a few call ids, so that they come again; texts of all lengths and code points.

_lengths = st.sampled_from([0, 1, 50, 400, 2000])
_texts = st.builds(lambda text, times: text + "y" * times, any_text, _lengths)
_call_ids = st.sampled_from(["x", "y", "z", "call_" + "a" * 24])
_thinking = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}


@st.composite
def _pairs(draw: st.DrawFn, *, broken: bool) -> list[BaseMessage]:
    called = draw(st.lists(_call_ids, max_size=3))
    text = draw(_texts)
    content: Any = draw(st.sampled_from([text, [_thinking, {"type": "text", "text": text}]]))
    calls = [{"name": "f", "args": {"q": "ü" * draw(_lengths)}, "id": each} for each in called]
    answered = draw(st.permutations(called))
    if broken:
        answered = draw(st.lists(_call_ids, max_size=4))
    results = [ToolMessage(draw(_texts), tool_call_id=each, name="f") for each in answered]
    return [AIMessage(content, tool_calls=calls), *results]


# What is no part of a chain and stays where it is.
_kept = st.one_of(
    *[st.just([])] * 4,
    st.builds(lambda text: [SystemMessage(text)], _texts),
    st.builds(
        lambda text: [ChatMessage(content=text, role="critic"), SystemMessage("Be brief.")], _texts
    ),
)


@st.composite
def _chains(draw: st.DrawFn, *, broken: bool = False) -> list[BaseMessage]:
    messages: list[BaseMessage] = [SystemMessage(draw(_texts))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 5))):
        messages += [
            HumanMessage(draw(_texts)) for _ in range(draw(st.integers(1, 2)) if broken else 1)
        ]
        messages += draw(_kept)
        for pair in draw(st.lists(_pairs(broken=broken), min_size=1, max_size=5)):
            messages += [*pair, *draw(_kept)]
    messages += [HumanMessage("And?")] if draw(st.booleans()) else []
    return (
        [m.model_copy(update={"id": f"m{at}"}) for at, m in enumerate(messages)]
        if draw(st.booleans())
        else messages
    )


chains = _chains()
broken_chains = _chains(broken=True)
configs = st.builds(
    ChainSummarizerConfig,
    preserve_last=st.booleans(),
    use_qa=st.booleans(),
    summarize_human_in_qa=st.booleans(),
    last_section_bytes=st.sampled_from([500, 2000, 8000, 0]),
    max_pair_bytes=st.sampled_from([100, 1000, 0]),
    max_qa_sections=st.integers(1, 4),
    max_qa_bytes=st.sampled_from([1000, 5000, 0]),
    keep_sections=st.integers(1, 3),
)
shares = st.lists(st.sampled_from([0.0, 0.01, 0.5, 1.0]), min_size=1, max_size=4)


class Obedient:
    """A handler whose summaries take a share of what they may; keeps what it was shown."""

    def __init__(self, shares: Sequence[float]) -> None:
        self.shares = shares
        self.prompts: list[str] = []

    async def __call__(self, text: str) -> str:
        """Return a text of the requested length."""
        self.prompts.append(text)
        [room] = re.findall(r"below (\d+) bytes", text.partition("</instructions>")[0]) or ["2"]
        share = self.shares[len(self.prompts) % len(self.shares)]
        return "s" * max(int(int(room) * share) - 1, 1)


def summarized(
    messages: Sequence[BaseMessage], config: ChainSummarizerConfig, shares: Sequence[float]
) -> tuple[ChainSummary, Obedient]:
    """The summary, and the handler."""
    handler = Obedient(shares)
    return asyncio.run(ChainSummarizer(handler, config=config).summarize(messages)), handler


def assert_sizes(chain: Chain) -> None:
    """Every size is the sum of its parts, down to bytes counted anew."""
    assert (
        chain.size
        == sum(section.size for section in chain.sections)
        == sum(map(_bytes, chain.messages()))
    )
    for section in chain.sections:
        assert section.size == section.header.size + sum(pair.size for pair in section.body)
        parts: list[Any] = [section.header, *section.body]
        for part in parts:
            assert part.size == sum(map(_bytes, part.messages()))


def _bytes(message: BaseMessage) -> int:
    return bytes_in(message.model_copy(update={"content": str(message.text)}))


# ---------------------------------------------------------------------------------------------------------------------
# Structure


@many
@given(chains, st.booleans())
def test_parse_and_flatten_are_inverse(messages: Any, repair: Any) -> None:
    """The same objects come back, and nothing of them was changed."""
    before = copied(messages)
    chain = parse_chain(messages, repair=repair)
    assert all(message is two for message, two in zip(chain.messages(), messages, strict=True))
    assert chain.repairs == ()
    assert same(messages, before)


@many
@given(broken_chains)
def test_a_repaired_chain_needs_no_repair(messages: Any) -> None:
    """A repaired chain parses without repair, its calls match its results, and no human message is lost."""
    before = copied(messages)
    chain = parse_chain(messages, repair=True)
    again = parse_chain(chain.messages())
    assert same(again.messages(), chain.messages())
    problems = [
        each for each in check_pairing(chain.messages()) if "its results have the order" not in each
    ]
    assert problems == []
    said = "".join(
        message.text for message in chain.messages() if isinstance(message, HumanMessage)
    )
    assert all(message.text in said for message in messages if isinstance(message, HumanMessage))
    assert len([m for m in chain.messages() if m.type == "ai"]) == len(
        [m for m in messages if m.type == "ai"]
    )
    assert same(messages, before)


@many
@given(broken_chains)
def test_a_chain_is_refused_exactly_if_it_would_be_repaired(messages: Any) -> None:
    """Without repair nothing that is broken gets through."""
    repairs = parse_chain(messages, repair=True).repairs
    try:
        parse_chain(messages)
    except MalformedChainError:
        assert repairs
    else:
        assert not repairs


_operations = st.lists(
    st.sampled_from(["human", "response", "ids", "other ids", "reasoning", "arguments"]),
    min_size=1,
    max_size=5,
)


@many
@given(chains, _operations, _texts)
def test_sizes_are_sums_after_every_operation(messages: Any, operations: Any, text: Any) -> None:
    """After every operation sizes are sums, the chain parses without repair, and the previous chain is unchanged."""
    chain = parse_chain(messages)
    for operation in operations:
        before, copy_before = chain.messages(), copied(chain.messages())
        after = _operate(chain, operation, text)
        assert_sizes(after)
        assert same(before, copy_before)
        assert parse_chain(after.messages()) == after
        chain = after


def _operate(chain: Chain, operation: str, text: str) -> Chain:
    if operation == "human":
        return chain.append_human(text)
    if operation == "response":
        called = [result.tool_call_id for pair in chain.pairs() for result in pair.results]
        return (
            chain.add_tool_response(ToolMessage(text, tool_call_id=called[-1])) if called else chain
        )
    if operation == "reasoning":
        return chain.clear_reasoning()
    if operation == "arguments":
        return chain.sanitize_tool_call_arguments()
    return chain.normalize_tool_call_ids("call_{r:24:x}" if operation == "ids" else "{f}_{r:12:h}")


@pytest.mark.slow
@many
@given(chains, st.sampled_from(["call_{r:24:x}", "toolu_{r:24:b}", "{r:9:x}"]))
def test_new_ids_keep_calls_and_results_together(messages: Any, template: Any) -> None:
    """Every result stays with its call, only ids change, twice is like once, and no two calls get one new id."""
    chain = parse_chain(messages)
    after = chain.normalize_tool_call_ids(template)
    assert (
        after.normalize_tool_call_ids(template) == after == chain.normalize_tool_call_ids(template)
    )
    old, new = (
        [call["id"] for pair in each.pairs() for call in pair.ai.tool_calls]
        for each in (chain, after)
    )
    changed = [two for text, two in zip(old, new, strict=True) if text != two]
    assert len(changed) == len(set(changed))
    assert set(changed).isdisjoint(old)
    for old_pair, two in zip(chain.pairs(), after.pairs(), strict=True):
        assert [_answer_of(old_pair, at) for at in range(len(old_pair.results))] == [
            _answer_of(two, at) for at in range(len(two.results))
        ]


def _answer_of(pair: Any, position: int) -> str:
    """Text of the result that answers the call at a position; calls with the same id are answered in order."""
    called = [call["id"] for call in pair.ai.tool_calls]
    earlier = called[:position].count(called[position])
    return [result.text for result in pair.results if result.tool_call_id == called[position]][
        earlier
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Summaries

EXAMPLE = chain_of("s", "h", "a x x", "t x", "t x", "h", "a", "h", "a x", "t x", "a")


@many
@given(chains, configs, shares)
@example(EXAMPLE, ChainSummarizerConfig(), [0.5])
def test_a_summary_is_a_smaller_chain(messages: Any, config: Any, shares: Any) -> None:
    """A summarised chain parses without repair, keeps calls paired with results, and is never larger than before.

    Both sizes are reported correctly, and no error occurs.
    """
    before = copied(messages)
    summary, handler = summarized(messages, config, shares)
    assert summary.error is None
    chain = parse_chain(summary.messages)
    assert_sizes(chain)
    assert summary.bytes_before == sum(map(_bytes, messages))
    assert summary.bytes_after == chain.size <= summary.bytes_before
    assert (summary.bytes_after < summary.bytes_before) == bool(summary.calls)
    asked = {call.request for call in summary.calls}  # an equal request is asked once
    assert len(handler.prompts) == len(asked)
    if not check_pairing(messages):
        assert check_pairing(summary.messages) == []
    assert same(messages, before)


@pytest.mark.slow
@many
@given(chains, configs, shares)
def test_a_second_run_asks_nothing_and_changes_nothing(
    messages: Any, config: Any, shares: Any
) -> None:
    """The output of the first run is accepted unchanged."""
    summary, _ = summarized(messages, config, shares)
    again, handler = summarized(summary.messages, config, shares)
    assert (handler.prompts, again.calls, again.error) == ([], (), None)
    assert all(
        message is two for message, two in zip(again.messages, summary.messages, strict=True)
    )


@pytest.mark.slow
@many
@given(chains, configs, shares)
def test_the_last_pair_survives(messages: Any, config: Any, shares: Any) -> None:
    """The header and the last pair of the last section survive a summary as the same objects."""
    summary, _ = summarized(messages, config, shares)
    if not messages:
        return
    last, kept = (parse_chain(each).sections[-1] for each in (messages, summary.messages))
    assert [id(m) for m in kept.header.messages()] == [id(m) for m in last.header.messages()]
    assert [id(m) for pair in kept.body[-1:] for m in pair.messages()] == [
        id(m) for pair in last.body[-1:] for m in pair.messages()
    ]


@pytest.mark.slow
@many
@given(chains, configs, shares)
def test_what_leaves_was_shown(messages: Any, config: Any, shares: Any) -> None:
    """Every message stays, or joins another word for word, or was shown to a call; none is lost or repeated."""
    summary, handler = summarized(messages, config, shares)
    stayed = {id(message) for message in summary.messages}
    shown = {index for call in summary.calls for index in call.shown}
    joined = "".join(
        message.text for message in summary.messages if isinstance(message, HumanMessage)
    )
    for index, message in enumerate(messages):
        assert (
            id(message) in stayed
            or index in shown
            or (message.type == "human" and message.text in joined)
        )
        assert id(message) in stayed or any(index in origin for origin in summary.origins)
    assert len(summary.origins) == len(summary.messages)
    for call, prompt in zip(summary.calls, handler.prompts, strict=True):
        long = [
            messages[index].text.encode(errors="backslashreplace").decode() for index in call.shown
        ]
        assert all(
            re.sub(r"[&<>]", "", text)[-400:] in re.sub(r"&amp;|&lt;|&gt;", "", prompt)
            for text in long
        )


@pytest.mark.slow
@many
@given(chains, configs, shares)
def test_origins_cover_the_input_in_order(messages: Any, config: Any, shares: Any) -> None:
    """Each message of the input is represented, and earlier output represents earlier input, a fold's header apart."""
    summary, _ = summarized(messages, config, shares)
    covered = {index for origin in summary.origins for index in origin}
    assert covered == set(range(len(messages)))
    if not config.use_qa:
        firsts = [min(origin) for origin in summary.origins]
        assert firsts == sorted(firsts)


@pytest.mark.slow
@many
@given(broken_chains, configs, shares)
def test_a_broken_chain_is_repaired_and_summarised(messages: Any, config: Any, shares: Any) -> None:
    """The output needs no repair, is not larger than the repaired input, and a second run does not change it."""
    summary, _ = summarized(messages, config, shares)
    assert summary.error is None
    assert summary.bytes_before == parse_chain(messages, repair=True).size
    assert parse_chain(summary.messages).size == summary.bytes_after <= summary.bytes_before
    again, handler = summarized(summary.messages, config, shares)
    assert (handler.prompts, same(again.messages, summary.messages)) == ([], True)


@pytest.mark.slow
@many
@given(chains, configs, st.sampled_from(["", "raise", "long"]))
def test_a_handler_that_fails_loses_nothing(messages: Any, config: Any, failure: Any) -> None:
    """The messages come back, unless only calls for oversized pairs failed: then the same, without an error."""

    async def fail(text: str) -> str:
        if failure == "raise":
            raise RuntimeError(text)
        return failure * len(text)

    summary = asyncio.run(ChainSummarizer(fail, config=config).summarize(messages))
    assert [id(m) for m in summary.messages] == [id(m) for m in messages]
    assert all(call.error for call in summary.calls)
    assert (summary.error is None) == all(
        call.strategy == "oversized_pair" for call in summary.calls
    )


@many
@given(broken_chains, configs, shares)
def test_the_seeds_behaviour_gives_chains_too(messages: Any, config: Any, shares: Any) -> None:
    """Larger ones perhaps, but calls and results match, and the last pair survives, with calls for second results."""
    summary, _ = summarized(messages, replace(config, strict_seed=True), [0.5])
    assert summary.error is None
    chain = parse_chain(summary.messages)
    for section in parse_chain(messages, repair=True).sections[-1:]:
        for wanted, found in zip(section.body[-1:], chain.sections[-1].body[-1:], strict=True):
            assert found.ai.content == wanted.ai.content
            assert {call["id"] for call in wanted.ai.tool_calls} <= {
                call["id"] for call in found.ai.tool_calls
            }
            assert {result.tool_call_id for result in wanted.results} <= {
                result.tool_call_id for result in found.results
            }


@pytest.mark.slow
@many
@given(chains, configs, shares)
def test_a_chain_that_grows_stays_a_chain(messages: Any, config: Any, shares: Any) -> None:
    """Summarised as it grows, turn by turn, as an agent does it."""
    grown: list[BaseMessage] = []
    for section in parse_chain(messages).sections:
        grown = [*grown, *section.messages()]
        summary, _ = summarized(grown, config, shares)
        assert summary.error is None
        assert parse_chain(summary.messages).size == summary.bytes_after
        grown = summary.messages
