"""Rolling summaries over any conversation as it grows: nothing lost or shown twice, no call without its result."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage, ToolMessage
from properties import examples
from test_summarization import ScriptedModel, ids, talk

from convstore.messages.tool_calls import calls_of, pair, without_orphans
from convstore.summarization import (
    RunningSummary,
    SummarizationResult,
    asummarize_messages,
    summarize_messages,
)
from convstore.testing.pairing import check_pairing

many = examples(300)

_blocks = st.one_of(
    st.sampled_from(
        [
            ["h", "a"],
            ["h", "a x", "t x", "a"],
            ["h", "a x y", "t y", "t x", "a"],
            ["a x y z", "t x", "t y", "t z"],
            ["a x", "a y", "t y", "t x"],
            ["a x", "h", "t x"],
            ["a x x", "t x", "t x"],
            ["a x", "t x", "t x"],
        ]
    ),
    st.sampled_from(["h", "a", "s", "a x", "a y", "a x y", "t x", "t y", "t z"]).map(
        lambda kind: [kind]
    ),
)
conversations = st.lists(_blocks, max_size=14).map(
    lambda blocks: [kind for block in blocks for kind in block]
)
budgets = st.tuples(st.integers(2, 14), st.integers(1, 30)).flatmap(
    lambda both: st.tuples(st.just(both[0]), st.just(both[1]), st.integers(1, both[0] - 1))
)


@dataclass
class Case:
    """A conversation with the places where it is summarised, and how."""

    system: list[BaseMessage]
    log: list[BaseMessage]
    stops: list[int]
    options: dict[str, Any]
    waiting: bool

    def summarize(
        self, messages: Sequence[BaseMessage], running: RunningSummary | None, model: ScriptedModel
    ) -> SummarizationResult:
        """By the sync function or by the async one."""
        options = {"running_summary": running, "model": model, "token_counter": len, **self.options}
        if self.waiting:
            return asyncio.run(asummarize_messages(messages, **options))
        return summarize_messages(messages, **options)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    log = talk(*draw(conversations))
    while log and isinstance(log[0], SystemMessage):
        log = log[1:]
    maximum, before, summary = draw(budgets)
    stops = sorted(draw(st.sets(st.integers(0, len(log)), max_size=4)) | {len(log)})
    options = {
        "max_tokens": maximum,
        "max_tokens_before_summary": before,
        "max_summary_tokens": summary,
    }
    system: list[BaseMessage] = [SystemMessage("Be kind.")] if draw(st.booleans()) else []
    return Case(system, log, stops, options, draw(st.booleans()))


cases = _cases()


def folded(result: SummarizationResult) -> set[str]:
    """Return the ids that the summary covers."""
    return result.running_summary.summarized_message_ids if result.running_summary else set()


def rest_of(case: Case, result: SummarizationResult) -> list[BaseMessage]:
    """The messages that came out, system message and summary apart."""
    return result.messages[
        len(case.system) + bool(result.running_summary and result.messages != case.system) :
    ]


def shown_by(model: ScriptedModel, log: Sequence[BaseMessage]) -> Counter[str]:
    """Return how often each message of the log was shown."""
    known = set(ids(log))
    return Counter(each for shown in model.shown for each in shown if each in known)


@many
@given(cases)
def test_every_summarised_message_was_shown_once(case: Any) -> None:
    """Over all calls, and no other message was."""
    model, running = ScriptedModel(), None
    for stop in case.stops:
        running = case.summarize([*case.system, *case.log[:stop]], running, model).running_summary
        summarized = running.summarized_message_ids if running else set()
        assert shown_by(model, case.log) == Counter(summarized)


@many
@given(cases)
def test_the_model_is_shown_what_providers_accept(case: Any) -> None:
    """Each call with its results directly after it, nothing else, in every step; all others in the log's order."""
    model, running = ScriptedModel(), None
    for stop in case.stops:
        running = case.summarize([*case.system, *case.log[:stop]], running, model).running_summary
    for prompt in model.prompts:
        assert check_pairing(prompt) == []
    tools = {message.id for message in case.log if isinstance(message, ToolMessage)}
    plain = [
        int(each) for shown in model.shown for each in shown if each not in tools and each.isdigit()
    ]
    assert plain == sorted(plain)


@many
@given(cases)
def test_the_bookkeeping_is_exact(case: Any) -> None:
    """The summary covers the log up to its last message, and later messages follow it, in order."""
    running = None
    for stop in case.stops:
        log = case.log[:stop]
        result = case.summarize([*case.system, *log], running, ScriptedModel())
        cut = len(folded(result))
        assert folded(result) == set(ids(log[:cut]))
        assert (
            result.running_summary is None
            or result.running_summary.last_summarized_message_id == log[cut - 1].id
        )
        rest = rest_of(case, result)
        assert sorted(ids(rest), key=str) == sorted(ids(log[cut:]), key=str)
        same = [message for message in log[cut:] if not isinstance(message, ToolMessage)]
        kept = [message for message in rest if any(message is each for each in same)]
        assert all(message is two for message, two in zip(kept, same, strict=True))
        assert result.messages[: len(case.system)] == case.system
        running = result.running_summary


@many
@given(cases)
def test_a_cut_leaves_no_orphan_and_no_open_call(case: Any) -> None:
    """Behind a summary every result answers a call, and a call lacks its result only if it does in the log."""
    running = None
    for stop in case.stops:
        log = case.log[:stop]
        result = case.summarize([*case.system, *log], running, ScriptedModel())
        running = result.running_summary
        if running:
            rest = rest_of(case, result)
            assert pair(rest).orphans == ()
            made = {message.id for message in pair(rest).messages} - set(ids(rest))
            assert made <= {message.id for message in pair(log).messages}
            if len(pair(log).messages) == len(log) and check_pairing(log) == []:
                assert check_pairing(result.messages) == []


@many
@given(cases)
def test_what_waits_for_an_answer_stays_out(case: Any) -> None:
    """No new summary ends with a human message, or covers a call whose result may still come."""
    running = None
    for stop in case.stops:
        log = case.log[:stop]
        result = case.summarize([*case.system, *log], running, ScriptedModel())
        cut = len(folded(result))
        if cut > len(running.summarized_message_ids if running else ()):
            assert not isinstance(log[cut - 1], HumanMessage)
            new = log[len(running.summarized_message_ids if running else ()) :]
            unanswered = {
                message.id.partition(":")[0] for message in pair(new).messages if ":" in message.id
            }
            for position, message in enumerate(log[:cut]):
                if message.id in unanswered and calls_of(message):
                    assert any(isinstance(later, HumanMessage) for later in log[position:])
        running = result.running_summary


@many
@given(cases)
def test_steps_fit_the_budget(case: Any) -> None:
    """A step has more than `max_tokens` less the earlier summary only if it cannot be parted."""
    model, running = ScriptedModel(), None
    for stop in case.stops:
        asked = len(model.prompts)
        before = running
        running = case.summarize([*case.system, *case.log[:stop]], running, model).running_summary
        for number, shown in enumerate(model.shown[asked:]):
            taken = 1 if before or number else 0
            parts = [message for message in case.log if message.id in shown]
            if len(parts) > max(1, case.options["max_tokens"] - taken):
                assert not any(_can_part(parts, position) for position in range(1, len(parts)))


def _can_part(messages: list[BaseMessage], position: int) -> bool:
    """Return True if both sides have the same results for their calls as the whole."""
    whole = [message.id for message in pair(messages).messages]
    sides = [*pair(messages[:position]).messages, *pair(messages[position:]).messages]
    return Counter(whole) == Counter(message.id for message in sides)


@many
@given(cases)
def test_nothing_new_means_no_call(case: Any) -> None:
    """The same call again, and the call with what came out, give the same and do not ask the model."""
    running = None
    for stop in case.stops:
        messages = [*case.system, *case.log[:stop]]
        result = case.summarize(messages, running, ScriptedModel())
        model = ScriptedModel(AssertionError("asked again"), AssertionError("asked again"))
        if result.running_summary != running:
            assert case.summarize(messages, result.running_summary, model) == result
            again = case.summarize(result.messages, result.running_summary, model)
            assert ids(again.messages) == ids(result.messages)
        running = result.running_summary


@many
@given(cases)
def test_a_list_that_is_overwritten_loses_nothing(case: Any) -> None:
    """If each output is the next input, every message is shown once or still there, under one summary."""
    model, running, state = ScriptedModel(), None, list(case.system)
    done = 0
    for stop in case.stops:
        result = case.summarize([*state, *case.log[done:stop]], running, model)
        state, running, done = result.messages, result.running_summary, stop
        shown = shown_by(model, case.log)
        kept = Counter(message.id for message in state if message.id in set(ids(case.log)))
        assert shown + kept == Counter(ids(case.log[:stop]))
        assert set(shown) == folded(result)
        summaries = [
            m for m in state if m.additional_kwargs.get("convstore") == {"kind": "summary"}
        ]
        assert len(summaries) == (1 if running else 0)
        assert running is None or pair(state).orphans == ()


@many
@given(cases)
def test_the_input_is_left_alone(case: Any) -> None:
    """Messages, list and running summary are as they were, for each kind of overflow."""
    running = None
    for stop in case.stops:
        messages = [*case.system, *case.log[:stop]]
        before = copy.deepcopy((messages, running))
        result = case.summarize(messages, running, ScriptedModel())
        assert (messages, running) == before
        running = result.running_summary


def _may_be_cut(log: Sequence[BaseMessage], position: int) -> bool:
    """Return True if all messages before an index may be folded: no call loses its result, no question is open."""
    pairing = pair(log)
    answered = [index for index in pairing.indexes if index is not None]
    results = {
        index: message for index, message in enumerate(log) if isinstance(message, ToolMessage)
    }
    owner = -1
    for index in pairing.indexes:
        if index is None:  # a call without a result is given up once a human message follows
            if owner < position and not any(
                isinstance(later, HumanMessage) for later in log[owner:]
            ):
                return False
        elif index in results:
            if owner < position <= index:
                return False
        else:
            owner = index
    strays = {index for index in results if index not in answered}
    before = [message for index, message in enumerate(log[:position]) if index not in strays]
    if position and (not before or isinstance(before[-1], HumanMessage)):
        return not before  # nothing but results of calls that are not here
    return True


def _sizes(messages: Sequence[BaseMessage]) -> int:
    """Tokens by the length of the text."""
    return sum(max(1, len(message.text) // 10) for message in messages)


@examples(300)
@given(cases, st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(0, 30))
def test_the_limit_is_kept_wherever_a_cut_keeps_it(case: Any, weights: Any, system: Any) -> None:
    """Compared with all cuts there are: over the limit only if none is within it, and then nothing is left to fold."""
    log = [
        message.model_copy(
            update={"content": f"{message.text} {'y' * 10 * weights[at % len(weights)]}"}
        )
        for at, message in enumerate(case.log)
    ]
    case.options |= {
        "max_tokens": 10 * case.options["max_tokens"],
        "max_tokens_before_summary": 10 * case.options["max_tokens_before_summary"],
        "max_summary_tokens": 10 * case.options["max_summary_tokens"],
        "token_counter": _sizes,
    }
    first = [SystemMessage("z" * 10 * system)] if case.system else []
    maximum, running = case.options["max_tokens"], None
    for stop in case.stops:
        model, messages = ScriptedModel(), [*first, *log[:stop]]
        result = case.summarize(messages, running, model)
        new = log[len(folded_by(running)) : stop]
        shown = without_orphans(new)
        fixed = _sizes(first)
        summary = max(case.options["max_summary_tokens"], 0)
        sizes = [
            fixed + summary + _sizes(without_orphans(new[at:])) for at in range(1, len(new) + 1)
        ]
        cuts = [size for at, size in enumerate(sizes, start=1) if _may_be_cut(new, at)]
        whole = fixed + _sizes(shown) + (_sizes([result.messages[len(first)]]) if running else 0)
        if new and (min(cuts, default=maximum + 1) <= maximum or whole <= maximum):
            assert _sizes(result.messages) <= maximum
        elif new and model.prompts:
            rest = result.messages[len(first) + 1 :]
            assert fixed + summary + _sizes(rest) == min(cuts)
        if new:
            assert result.over_budget == (_sizes(result.messages) > maximum)
        running = result.running_summary


def folded_by(running: RunningSummary | None) -> set[str]:
    """Return the ids that a running summary covers."""
    return running.summarized_message_ids if running else set()
