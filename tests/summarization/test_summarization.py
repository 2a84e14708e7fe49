"""Rolling summaries, rule by rule, with a scripted model; each rule sync and async."""

from __future__ import annotations

import asyncio
import copy
import html
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain import chat_models
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from convstore.chain.parse import MISSING_RESULT
from convstore.exceptions import ConvstoreError, MissingExtraError, SummaryError
from convstore.messages.sizes import size_of
from convstore.messages.tool_calls import MISSING_TEXT, Call, Pairing, missing_result, pair
from convstore.summarization import (
    DEFAULT_EXISTING_SUMMARY_PROMPT,
    DEFAULT_FINAL_SUMMARY_PROMPT,
    DEFAULT_INITIAL_SUMMARY_PROMPT,
    CompactionRule,
    HeadTailSummarizer,
    RunningSummarizer,
    RunningSummary,
    SummarizationNode,
    SummarizationResult,
    asummarize_messages,
    cuts,
    summarize_messages,
)
from convstore.summarization.cuts import Cuts, choose_cut
from convstore.summarization.prompts import join_prompts, record_steps
from convstore.testing.pairing import check_pairing

MARK = {"convstore": {"kind": "summary"}}


class ScriptedModel:
    """A model with nothing but ``invoke(messages)`` and ``ainvoke(messages)``; keeps what it was shown."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.prompts: list[list[BaseMessage]] = []

    def invoke(self, messages: list[BaseMessage]) -> Any:
        """Give the next reply; without any, a text that says how many there were."""
        assert type(messages) is list
        self.prompts.append(messages)
        reply = self.replies.pop(0) if self.replies else f"summary {len(self.prompts)}"
        if isinstance(reply, Exception):
            raise reply
        return AIMessage(reply) if isinstance(reply, str) else reply

    async def ainvoke(self, messages: list[BaseMessage]) -> Any:
        """The same, waited for."""
        await asyncio.sleep(0)
        return self.invoke(messages)

    @property
    def shown(self) -> list[list[str]]:
        """Ids of the messages that each call showed, the request at the end left out."""
        return [[str(message.id) for message in prompt if message.id] for prompt in self.prompts]


def talk(*kinds: str) -> list[BaseMessage]:
    """Messages 1, 2, ...: "h" human, "a" AI, "s" system, "a x y" an AI message with calls, "t x" a result."""
    return [_message(str(number), *kind.split()) for number, kind in enumerate(kinds, start=1)]


def _message(message_id: str, kind: str, *call_ids: str) -> BaseMessage:
    if kind == "t":
        return ToolMessage(
            f"result {message_id}", id=message_id, name="search", tool_call_id=call_ids[0]
        )
    calls = [{"name": "search", "args": {}, "id": call_id} for call_id in call_ids]
    if kind == "a":
        return AIMessage(f"text {message_id}", id=message_id, tool_calls=calls)
    return {"h": HumanMessage, "s": SystemMessage}[kind](f"text {message_id}", id=message_id)


def ids(messages: Sequence[BaseMessage]) -> list[str | None]:
    """Ids in order."""
    return [message.id for message in messages]


def by_sync(messages: Sequence[BaseMessage], **options: Any) -> SummarizationResult:
    """`summarize_messages` where a message is a token and nothing was summarised before."""
    return summarize_messages(messages, **_with_defaults(options))


def by_async(messages: Sequence[BaseMessage], **options: Any) -> SummarizationResult:
    """The same by `asummarize_messages`."""
    return asyncio.run(asummarize_messages(messages, **_with_defaults(options)))


def _with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    return {"running_summary": None, "max_summary_tokens": 1, "token_counter": len, **options}


Summarize = Callable[..., SummarizationResult]


@pytest.fixture(params=[by_sync, by_async], ids=["sync", "async"])
def summarize(request: pytest.FixtureRequest) -> Summarize:
    """Either function."""
    return request.param


# ---------------------------------------------------------------------------------------------------------------------
# The surface


def test_parameters_and_defaults_are_those_of_langmem() -> None:
    """Names, order and defaults as in its reference, with `overflow` added at the end."""
    parameters = inspect.signature(summarize_messages).parameters
    default_of = {
        name: each.default
        for name, each in parameters.items()
        if each.default is not inspect.Parameter.empty
    }
    assert list(parameters)[:4] == ["messages", "running_summary", "model", "max_tokens"]
    assert {
        name: default_of[name]
        for name in ("max_tokens_before_summary", "max_summary_tokens", "overflow")
    } == {
        "max_tokens_before_summary": None,
        "max_summary_tokens": 256,
        "overflow": "fold",
    }
    assert default_of["token_counter"].__name__ == "count_tokens_approximately"
    assert default_of["initial_summary_prompt"] is DEFAULT_INITIAL_SUMMARY_PROMPT
    assert default_of["existing_summary_prompt"] is DEFAULT_EXISTING_SUMMARY_PROMPT
    assert default_of["final_prompt"] is DEFAULT_FINAL_SUMMARY_PROMPT
    assert all(
        each.kind is each.KEYWORD_ONLY for name, each in parameters.items() if name != "messages"
    )


def test_sync_async_and_node_take_the_same() -> None:
    """The three ways in cannot drift apart."""
    sync, waiting, node = (
        inspect.signature(each).parameters
        for each in (summarize_messages, asummarize_messages, SummarizationNode)
    )
    assert sync == waiting
    own = {
        "input_messages_key": "messages",
        "output_messages_key": "summarized_messages",
        "name": "summarization",
    }
    assert {name: each.default for name, each in node.items() if name not in sync} == own
    assert {name: node[name] for name in node if name in sync} == {
        name: each for name, each in sync.items() if name not in ("messages", "running_summary")
    }


def test_a_running_summary_is_made_like_that_of_langmem() -> None:
    """By position and by name, and equal if its three fields are; the third may be left out."""
    running = RunningSummary("text", {"1"}, "1")
    two = RunningSummary(
        summary="text", summarized_message_ids={"1"}, last_summarized_message_id="1"
    )
    assert running == two
    assert (
        repr(running)
        == "RunningSummary(summary='text', summarized_message_ids={'1'}, last_summarized_message_id='1')"
    )
    assert RunningSummary("text", {"1"}) == RunningSummary("text", {"1"}, None)
    assert SummarizationResult([]).running_summary is None


def test_the_default_prompts_have_the_known_variables() -> None:
    """The default prompts have the variables of langmem's prompts, so that either can replace the other."""
    prompts = (
        DEFAULT_INITIAL_SUMMARY_PROMPT,
        DEFAULT_EXISTING_SUMMARY_PROMPT,
        DEFAULT_FINAL_SUMMARY_PROMPT,
    )
    variables = [{*prompt.input_variables, *prompt.optional_variables} for prompt in prompts]
    assert variables == [
        {"messages"},
        {"messages", "existing_summary"},
        {"system_message", "summary", "messages"},
    ]


# ---------------------------------------------------------------------------------------------------------------------
# When nothing is summarised


@pytest.mark.parametrize("kinds", [[], ["s"]], ids=["nothing", "a system message"])
@pytest.mark.parametrize(
    "running", [None, RunningSummary("old", {"x"}, "x")], ids=["first", "later"]
)
def test_empty_input_comes_back(summarize: Summarize, kinds: Any, running: Any) -> None:
    """Without a message to summarise the list and the running summary are as they were."""
    model = ScriptedModel()
    result = summarize(talk(*kinds), model=model, max_tokens=2, running_summary=running)
    assert result == SummarizationResult(talk(*kinds), running)
    assert model.prompts == []


@pytest.mark.parametrize("kinds", ["hahah", "shahah"])
def test_input_below_the_threshold_comes_back(summarize: Summarize, kinds: str) -> None:
    """The same messages, and the model is not asked."""
    model, messages = ScriptedModel(), talk(*kinds)
    result = summarize(messages, model=model, max_tokens=10)
    assert all(message is two for message, two in zip(result.messages, messages, strict=True))
    assert (result.running_summary, model.prompts) == (None, [])


@pytest.mark.parametrize("maximum", [1, 0])
def test_the_summary_must_leave_room(summarize: Summarize, maximum: int) -> None:
    """`max_summary_tokens` not below `max_tokens` is a ValueError, for an empty list too."""
    with pytest.raises(ValueError, match="`max_summary_tokens` must be less than `max_tokens`"):
        summarize([], model=ScriptedModel(), max_tokens=maximum, max_summary_tokens=1)


def test_another_overflow_is_refused(summarize: Summarize) -> None:
    """A misspelt choice is a ValueError that names the two."""
    with pytest.raises(ValueError, match='"fold" or "trim"'):
        summarize([], model=ScriptedModel(), max_tokens=2, overflow="cut")


# ---------------------------------------------------------------------------------------------------------------------
# The first summary and the cut


def test_the_summary_takes_the_place_of_the_oldest(summarize: Summarize) -> None:
    """Summary first, the rest as the same objects after it, the bookkeeping exact, the text bare."""
    model, messages = ScriptedModel("They talked."), talk(*"hahahah")
    result = summarize(messages, model=model, max_tokens=6)
    assert result.running_summary == RunningSummary("They talked.", set("123456"), "6")
    assert result.messages[0].type == "system"
    assert result.messages[0].text == "Summary of the conversation so far: They talked."
    assert result.messages[1] is messages[6]
    assert len(result.messages) == 2
    assert model.shown == [list("123456")]
    assert model.prompts[0][-1].type == "human"


def test_a_system_message_is_set_aside_counted_and_kept_first(summarize: Summarize) -> None:
    """A system message stays first, is not shown to the summarizer, and reduces the room of other messages."""
    counter = lambda messages: sum(3 if message.type == "system" else 1 for message in messages)  # noqa: E731
    model, messages = ScriptedModel(), talk(*"shahahahaha")
    kwargs = {"max_tokens": 7, "max_tokens_before_summary": 2, "token_counter": counter}
    result = summarize(messages, model=model, **kwargs)
    # 7 - 1 for the summary - 3 for the system message leave 3 of the 10 others; the seventh is a human message, and
    # before it 4 would stay, so it is folded with its answer.
    assert model.shown == [list("234567"), list("89")]
    assert result.messages[0] is messages[0]
    assert ids(result.messages[2:]) == ["10", "11"]
    without = summarize(messages[1:], model=ScriptedModel(), **kwargs)
    assert ids(without.messages[1:]) == ["6", "7", "8", "9", "10", "11"]


@pytest.mark.parametrize(
    ("before", "maximum", "folded"),
    [
        pytest.param(4, 10, "1234", id="reached, and the rest fits"),
        pytest.param(2, 7, "1234", id="reached early, but the rest fits later only"),
        pytest.param(10, 10, "1234567890", id="reached at the end"),
        pytest.param(11, 10, "", id="not reached"),
        pytest.param(None, 8, "12345678", id="max_tokens if it is not given"),
    ],
)
def test_the_cut_is_the_first_place_that_will_do(
    summarize: Summarize, before: int | None, maximum: int, folded: str
) -> None:
    """The running sum reaches `max_tokens_before_summary` and what follows fits beside the summary."""
    messages = talk(*"hahahahaha")
    for message in messages:
        message.id = str(message.id)[-1]
    model = ScriptedModel()
    result = summarize(
        messages, model=model, max_tokens=maximum, max_tokens_before_summary=before, overflow="trim"
    )
    summary = result.running_summary
    assert (summary.summarized_message_ids if summary else set()) == set(folded)
    kept = "1234567890"[len(folded) :]
    assert ids(result.messages[1:] if summary else result.messages) == list(kept)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("kinds", "cut", "folded"),
    [
        pytest.param("h,a,h,a", 3, 2, id="a human message stays out"),
        pytest.param("h,a,h,h,a", 4, 2, id="several human messages stay out"),
        pytest.param("h,h,a", 2, 0, id="nothing but human messages: no summary"),
        pytest.param("h,a,a x", 3, 2, id="a call without a result stays out"),
        pytest.param("h,a,h,a x", 4, 2, id="and the question before it"),
        pytest.param("h,a,a x,h,a", 3, 2, id="also if a human message follows"),
        pytest.param("h,a x,h,a", 4, 4, id="a call that was given up is folded"),
        pytest.param("h,a,a x,t x,a", 3, 4, id="a call is folded with its result"),
        pytest.param("h,a,a x y z,t x,t y,t z,a", 3, 6, id="with all its results"),
        pytest.param("h,a,a x y z,t x,t y,t z,a", 4, 6, id="cut at its first result"),
        pytest.param("h,a,a x y z,t z,t x,t y,a", 5, 6, id="results in odd order"),
        pytest.param("h,a,a x y,t x,h", 3, 2, id="a call of which one result is missing stays out"),
        pytest.param("h,a,a x y,t x,h", 4, 2, id="cut at the result that is there"),
        pytest.param("h,a,a x y,t y", 4, 2, id="and nothing else follows"),
        pytest.param("h,a,a x,a y,t y,t x,a", 4, 6, id="two in flight, folded with both results"),
        pytest.param("h,a,a x,a y,t x,t y,a", 3, 6, id="results that overlap"),
        pytest.param(
            "h,a,a x,a y,t y", 5, 2, id="nothing is cut behind a call whose result may come"
        ),
        pytest.param(
            "h,a,a x,h,t x,a", 3, 2, id="a human message between call and result is not swallowed"
        ),
        pytest.param("h,a,a x,h,t x,a", 4, 2, id="nor is it at the cut"),
        pytest.param("h,a,a x,h,t x,a", 5, 5, id="but folded where it lies before the cut"),
        pytest.param("h,a x,t x,h,a x,t x,a", 5, 6, id="a call id that comes again"),
        pytest.param("h,a,t x,a", 3, 3, id="a result that answers nothing"),
    ],
)
def test_where_the_cut_goes(summarize: Summarize, kinds: str, cut: int, folded: int) -> None:
    """Questions without an answer stay out, calls and results stay together, whatever message the sum is reached at."""
    model, messages = ScriptedModel(), talk(*kinds.split(","))
    result = summarize(messages, model=model, max_tokens=100, max_tokens_before_summary=cut)
    assert len(model.prompts) == (1 if folded else 0)
    rest = result.messages[1:] if folded else result.messages
    assert all(message is two for message, two in zip(rest, messages[folded:], strict=True))
    for prompt in model.prompts:
        assert check_pairing(prompt) == []


@pytest.mark.parametrize(
    "call",
    [
        AIMessage(
            "",
            id="3",
            invalid_tool_calls=[{"name": "search", "args": "{", "id": "x", "error": None}],
        ),
        AIMessage([{"type": "tool_use", "id": "x", "name": "search", "input": {}}], id="3"),
    ],
    ids=["invalid call", "call in the content"],
)
def test_every_kind_of_call_counts(summarize: Summarize, call: Any) -> None:
    """Calls are those that a provider wants answered, not only `tool_calls`."""
    messages = [*talk("h", "a"), call, *talk("s", "s", "s", "t x", "a")[3:]]
    messages[3:] = [ToolMessage("found", id="4", tool_call_id="x"), AIMessage("Done.", id="5")]
    result = summarize(messages, model=ScriptedModel(), max_tokens=100, max_tokens_before_summary=3)
    assert ids(result.messages[1:]) == ["5"]


def test_a_late_result_is_shown_as_text(summarize: Summarize) -> None:
    """If its call was summarised before the result came, no orphan is left and nothing is lost."""
    messages = talk("h", "a x", "h", "a", "h", "a y", "t x", "t y", "a")
    first = summarize(messages[:5], model=ScriptedModel(), max_tokens=4)
    assert first.running_summary.last_summarized_message_id == "4"
    later = summarize(
        messages, model=ScriptedModel(), max_tokens=100, running_summary=first.running_summary
    )
    assert ids(later.messages[1:]) == ["5", "6", "8", "7", "9"]
    assert check_pairing(later.messages) == []
    late = later.messages[4]
    assert (late.type, late.text) == ("human", "[Result of an earlier call of search]\nresult 7")
    assert late.additional_kwargs == {"convstore": {"kind": "late_result"}}
    model = ScriptedModel()
    options = {"max_tokens": 6, "max_tokens_before_summary": 5}
    last = summarize(messages, model=model, running_summary=first.running_summary, **options)
    assert last.running_summary.last_summarized_message_id == "9"
    assert sorted(model.shown[0]) == list("56789")
    assert check_pairing(model.prompts[0]) == []


def test_a_result_shown_as_text_behind_the_newest_one_is_not_new(summarize: Summarize) -> None:
    """Summarizing the output again makes no call, even if its last message shows a result as text.

    A new message after that result makes a call.
    """
    options = {"max_tokens": 4, "max_tokens_before_summary": 1}
    first = summarize(talk("h", "a", "a x", "t y", "t x"), model=ScriptedModel(), **options)
    assert ids(first.messages[1:]) == ["3", "5", "4"]
    running, refuses = first.running_summary, ScriptedModel(AssertionError("asked again"))
    again = summarize(first.messages, model=refuses, running_summary=running, **options)
    assert ids(again.messages) == ids(first.messages)
    answer, model = talk("h", "a", "h", "h", "h", "a")[-1], ScriptedModel()
    summarize([*first.messages, answer], model=model, running_summary=running, **options)
    assert len(model.prompts) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Later summaries


def test_a_later_summary_extends_the_earlier(summarize: Summarize) -> None:
    """A later summary is made from the earlier text and the messages after the last summarised one."""
    model, messages = ScriptedModel("first", "second"), talk(*"hahahah")
    result = summarize(messages[:5], model=model, max_tokens=4)
    two = summarize(
        messages,
        model=model,
        max_tokens=4,
        max_tokens_before_summary=2,
        running_summary=result.running_summary,
    )
    assert model.shown == [list("1234"), list("56")]
    assert "first" not in model.prompts[0][-1].text
    assert "first" in model.prompts[1][-1].text
    assert two.running_summary == RunningSummary("second", set("123456"), "6")
    assert [message.text for message in two.messages] == [
        "Summary of the conversation so far: second",
        "text 7",
    ]


def test_the_old_summary_is_still_put_first(summarize: Summarize) -> None:
    """Without a new summary the old one precedes the messages that it does not cover."""
    model, messages = ScriptedModel("first"), talk("s", *"hahah")
    result = summarize(messages, model=model, max_tokens=5, max_tokens_before_summary=4)
    two = summarize(
        [*messages, *talk(*"hahahah")[6:]],
        model=model,
        max_tokens=9,
        running_summary=result.running_summary,
    )
    assert [message.text for message in two.messages] == [
        "text 1",
        "Summary of the conversation so far: first",
        "text 6",
        "text 7",
    ]
    assert two.running_summary == result.running_summary
    assert len(model.prompts) == 1


@pytest.mark.parametrize("system", [[], ["s"]], ids=["without system", "with system"])
def test_a_summary_fed_back_in_is_replaced(summarize: Summarize, system: Any) -> None:
    """The output with messages added is an input; there is one summary in what comes out, and it is the newest."""
    model, log = ScriptedModel("first", "second"), talk(*system, *"hahahahah")
    result = summarize(log[: len(system) + 5], model=model, max_tokens=4)
    grown = [*result.messages, *log[len(system) + 5 :]]
    two = summarize(grown, model=model, max_tokens=5, running_summary=result.running_summary)
    assert [message.type for message in two.messages] == [
        *(["system"] if system else []),
        "system",
        "human",
    ]
    assert [message.text for message in two.messages if message.additional_kwargs == MARK] == [
        "Summary of the conversation so far: second"
    ]
    assert "Summary of the conversation" not in "".join(
        message.text for message in model.prompts[1]
    )
    rest = summarize(two.messages, model=model, max_tokens=5, running_summary=two.running_summary)
    assert rest.messages == two.messages


def test_a_summary_of_langmem_fed_back_in_is_replaced(summarize: Summarize) -> None:
    """A state that langmem's node wrote has no mark; it is recognised by its text."""
    old = SystemMessage("Summary of the conversation so far: old", id="made up")
    running = RunningSummary("old", {"0"}, "0")
    result = summarize(
        [old, *talk("h", "a")], model=ScriptedModel(), max_tokens=9, running_summary=running
    )
    assert [message.text for message in result.messages] == [old.text, "text 1", "text 2"]
    assert result.messages[0].additional_kwargs == MARK
    below = summarize(
        [*talk("s"), old, *talk("s", "h")[1:]],
        model=ScriptedModel(),
        max_tokens=9,
        running_summary=running,
    )
    assert [message.text for message in below.messages] == ["text 1", old.text, "text 2"]


def test_a_system_message_that_holds_the_summary_is_kept(summarize: Summarize) -> None:
    """The summary's words in it do not make the user's own system message a summary."""
    messages = [SystemMessage("Be kind to Ada.", id="s"), *talk("h", "a")]
    result = summarize(
        messages,
        model=ScriptedModel(),
        max_tokens=9,
        running_summary=RunningSummary("Ada", {"0"}, "0"),
    )
    assert result.messages[0] is messages[0]


def test_a_system_message_with_another_mark_is_one(summarize: Summarize) -> None:
    """Only the kind "summary" makes a summary."""
    for mark in ({"kind": "other"}, "text", {}):
        system = SystemMessage("Be kind.", id="s", additional_kwargs={"convstore": mark})
        result = summarize(
            [system, *talk(*"hahah")],
            model=ScriptedModel(),
            max_tokens=5,
            max_tokens_before_summary=4,
        )
        assert result.messages[0] is system
        assert len(result.messages) == 3


def test_a_summary_without_its_running_summary_is_summarised(summarize: Summarize) -> None:
    """A caller without the running summary loses none of its text."""
    first = summarize(talk(*"hahah"), model=ScriptedModel("They met."), max_tokens=4)
    model = ScriptedModel()
    grown = [*first.messages, *talk(*"hahahaha")[5:]]
    again = summarize(grown, model=model, max_tokens=4)
    assert "They met." in model.prompts[0][0].text
    assert again.running_summary.summarized_message_ids == {first.messages[0].id, "5", "6"}
    assert ids(again.messages[1:]) == ["7", "8"]


def test_a_summary_of_another_kind_is_a_message(summarize: Summarize) -> None:
    """A summary of another kind, such as that of a stored conversation, is kept and later summarised as a message."""
    stored = HumanMessage("[Record of earlier talk]", id="stored", additional_kwargs=MARK)
    running = RunningSummary("old", {"0"}, "0")
    kept = summarize(
        [stored, *talk("h")], model=ScriptedModel(), max_tokens=9, running_summary=running
    )
    assert ids(kept.messages[1:]) == ["stored", "1"]
    model = ScriptedModel()
    summarize([stored, *talk("h", "a")], model=model, max_tokens=3, running_summary=running)
    assert model.shown[0][0] == "stored"


# ---------------------------------------------------------------------------------------------------------------------
# The limit comes first


def by_words(messages: Sequence[BaseMessage]) -> int:
    """Tokens: words, at least one for a message."""
    return sum(max(1, len(message.text.split())) for message in messages)


def sized(*kinds: str) -> list[BaseMessage]:
    """`talk`, each message with as many words as the number after a colon says, else one."""
    found = talk(*(kind.partition(":")[0] for kind in kinds))
    return [
        message.model_copy(update={"content": "word " * int(kind.partition(":")[2] or 1)})
        for message, kind in zip(found, kinds, strict=True)
    ]


def test_a_long_question_is_folded_with_its_answer(summarize: Summarize) -> None:
    """A long question is summarised with its answer, so that the result keeps to the limit."""
    model = ScriptedModel("They met.")
    messages = [
        HumanMessage("word " * 95, id="1"),
        AIMessage("I have read it all.", id="2"),
        HumanMessage("And what do you think?", id="3"),
        AIMessage("Fine.", id="4"),
    ]
    result = summarize(
        messages,
        model=model,
        max_tokens=100,
        max_summary_tokens=20,
        token_counter=count_tokens_approximately,
    )
    assert model.prompts
    assert count_tokens_approximately(result.messages) <= 100
    assert not result.over_budget


def test_a_paste_does_not_keep_all_that_follows_it(summarize: Summarize) -> None:
    """After a long paste each result keeps to the limit, and the model is not called in every turn."""
    messages: list[BaseMessage] = [
        HumanMessage("word " * 4_800, id="paste"),
        AIMessage("I see.", id="a"),
    ]
    options = {"max_tokens": 8_000, "max_tokens_before_summary": 4_000, "max_summary_tokens": 256}
    model, running = ScriptedModel(), None
    for number in range(60):
        messages += [
            HumanMessage("why " * 60, id=f"q{number}"),
            AIMessage("so " * 60, id=f"a{number}"),
        ]
        result = summarize(
            messages,
            model=model,
            running_summary=running,
            token_counter=count_tokens_approximately,
            **options,
        )
        assert count_tokens_approximately(result.messages) <= 8_000
        assert not result.over_budget
        running = result.running_summary
    assert 1 <= len(model.prompts) <= 4


@pytest.mark.parametrize(
    ("kinds", "folded"),
    [
        pytest.param(
            "h,a x y,t x:90,h:15", 3, id="a call that was given up, before the open question"
        ),
        pytest.param("h,a x y,t x:95,h,a:15", 3, id="before a question that is answered"),
        pytest.param("h:90,a:15", 2, id="a question with its answer"),
        pytest.param("h,a:50,h:50,a:10", 2, id="the sum is reached at a question, which may stay"),
        pytest.param(
            "h,a:5,h:95,a:10", 4, id="the sum is reached at a question, which may not stay"
        ),
        pytest.param("h:50,a:50,h:10", 2, id="the open question stays"),
        pytest.param("h,a,a x,h,t x:95,a:20", 5, id="a question between a call and its result"),
        pytest.param("h,a:30,h:120", 2, id="the open question alone is larger: the rest is folded"),
        pytest.param("h,a:30,a x:120", 2, id="a call whose result may come"),
        pytest.param("h:120", 0, id="nothing but an open question"),
        pytest.param("h,a x:120", 0, id="nothing but a call"),
    ],
)
def test_the_limit_decides_what_is_folded(summarize: Summarize, kinds: str, folded: int) -> None:
    """More is folded until the rest fits; messages that cannot be separated stay, and the result says so."""
    model, messages = ScriptedModel("Summary."), sized(*kinds.split(","))
    result = summarize(
        messages,
        model=model,
        max_tokens=100,
        max_tokens_before_summary=95,
        max_summary_tokens=10,
        token_counter=by_words,
    )
    rest = result.messages[1:] if folded else result.messages
    assert all(message is two for message, two in zip(rest, messages[folded:], strict=True))
    assert bool(model.prompts) == bool(folded)
    assert result.over_budget == (by_words(result.messages) > 100)
    assert result.over_budget == (
        max(by_words([message]) for message in rest) > 100 if rest else False
    )


def test_a_system_message_that_takes_it_all_leaves_the_last_question(summarize: Summarize) -> None:
    """All else is folded, and the result says that it is larger."""
    messages = [SystemMessage("word " * 97), *sized("h", "a", "h", "a", "h")]
    result = summarize(
        messages,
        model=ScriptedModel("Old."),
        max_tokens=100,
        max_summary_tokens=10,
        token_counter=by_words,
    )
    assert ids(result.messages[2:]) == ["5"]
    assert result.over_budget


def test_an_overlong_summary_does_not_cost_a_call_in_each_turn(summarize: Summarize) -> None:
    """A summary above the limit is no reason to make another: that would hardly be shorter."""
    model, messages = ScriptedModel("old " * 300), sized("h", "a:99", "h")
    options = {
        "model": model,
        "max_tokens": 100,
        "max_summary_tokens": 10,
        "token_counter": by_words,
    }
    result = summarize(messages, **options)
    assert result.over_budget
    grown = [*messages, *talk("h", "h", "h", "a", "h")[3:]]
    two = summarize(grown, running_summary=result.running_summary, **options)
    assert len(model.prompts) == 1
    assert two.over_budget
    assert ids(two.messages[1:]) == ["3", "4", "5"]


def test_a_lower_limit_is_kept_without_a_new_message(summarize: Summarize) -> None:
    """The same list again asks nothing, unless less is allowed to stay."""
    model, messages = ScriptedModel("one", "two"), sized("h", "a:90", "h", "a:50", "h", "a:3")
    options = {
        "model": model,
        "max_summary_tokens": 10,
        "token_counter": by_words,
        "max_tokens_before_summary": 90,
    }
    result = summarize(messages, max_tokens=100, **options)
    assert ids(result.messages[1:]) == ["3", "4", "5", "6"]
    two = summarize(
        messages,
        max_tokens=50,
        running_summary=result.running_summary,
        **options | {"overflow": "fold"},
    )
    assert len(model.prompts) > 1
    assert by_words(two.messages) <= 50


def test_a_late_result_counts_as_it_comes_out(summarize: Summarize) -> None:
    """A late result counts as it is shown: as text with a heading."""
    log = talk("h", "a x", "h", "a", "h", "t x", "t y")
    first = summarize(log[:4], model=ScriptedModel("Old."), max_tokens=4)
    result = summarize(
        log,
        model=ScriptedModel(),
        running_summary=first.running_summary,
        max_tokens=100,
        max_summary_tokens=10,
        token_counter=by_words,
    )
    assert result.messages[2].text.startswith("[Result of an earlier call")
    again = summarize(
        log,
        model=ScriptedModel(),
        running_summary=first.running_summary,
        max_tokens=by_words(result.messages),
        max_summary_tokens=10,
        token_counter=by_words,
    )
    assert (again.over_budget, len(again.messages)) == (False, len(result.messages))
    less = summarize(
        log,
        model=ScriptedModel(),
        running_summary=first.running_summary,
        max_tokens=by_words(result.messages) - 1,
        max_summary_tokens=10,
        token_counter=by_words,
    )
    assert less.over_budget  # an open question, and results after it


# ---------------------------------------------------------------------------------------------------------------------
# Ids


@pytest.mark.parametrize("maximum", [2, 100])
def test_messages_need_ids(summarize: Summarize, maximum: int) -> None:
    """A new message without an id raises ValueError, even below the threshold. A system message needs no id."""
    model = ScriptedModel()
    messages = [SystemMessage("Be kind."), HumanMessage("hi", id="1"), AIMessage("hello")]
    with pytest.raises(ValueError, match="Messages are required to have ID field") as caught:
        summarize(messages, model=model, max_tokens=maximum)
    assert isinstance(caught.value, ConvstoreError)
    assert model.prompts == []
    assert summarize(messages[:2], model=model, max_tokens=100).messages == messages[:2]


def test_messages_before_the_last_summarised_one_need_no_ids(summarize: Summarize) -> None:
    """Messages before the last summarised one need no ids."""
    messages = [HumanMessage("no id"), *talk("h", "a", "h")]
    result = summarize(
        messages,
        model=ScriptedModel(),
        max_tokens=9,
        running_summary=RunningSummary("old", {"2"}, "2"),
    )
    assert ids(result.messages[1:]) == ["3"]


def test_a_message_summarised_twice_is_refused(summarize: Summarize) -> None:
    """An id that the running summary covers cannot come after the last one."""
    model = ScriptedModel()
    with pytest.raises(ValueError, match="Message with ID 1 has already been summarized"):
        summarize(
            talk(*"hah"),
            model=model,
            max_tokens=9,
            running_summary=RunningSummary("old", {"1", "x"}, "x"),
        )
    with pytest.raises(ValueError, match="Message with ID 1 has already been summarized"):
        summarize(
            [*talk("h", "a"), *talk("h")],
            model=model,
            max_tokens=9,
            running_summary=RunningSummary("old", {"1", "2"}, "2"),
        )
    assert model.prompts == []


def test_an_id_that_comes_twice_is_refused(summarize: Summarize) -> None:
    """An id that occurs twice raises ValueError before the model is called, because it would be summarised twice."""
    model = ScriptedModel()
    with pytest.raises(ValueError, match="Message with ID 1 comes twice"):
        summarize([*talk("h", "a"), *talk("h", "a")], model=model, max_tokens=2)
    assert model.prompts == []


# ---------------------------------------------------------------------------------------------------------------------
# More than the summarizer takes


def words(messages: Sequence[BaseMessage]) -> int:
    """A counter: words of the text."""
    return sum(len(message.text.split()) for message in messages)


def long_talk() -> list[BaseMessage]:
    """A name in the first message, and six turns of 20 words."""
    log: list[BaseMessage] = [
        HumanMessage("I am Ada " + "word " * 7, id="1"),
        AIMessage("word " * 10, id="2"),
    ]
    for number in range(3, 13, 2):
        log += [
            HumanMessage("word " * 10, id=str(number)),
            AIMessage("word " * 10, id=str(number + 1)),
        ]
    return log


def test_what_does_not_fit_is_folded_in_steps(summarize: Summarize) -> None:
    """Each message is shown once, each step fits the budget and extends the summary of the step before."""
    model = ScriptedModel("one two", "three four five", "six seven")
    result = summarize(
        long_talk(), model=model, max_tokens=50, max_tokens_before_summary=100, token_counter=words
    )
    assert [len(shown) for shown in model.shown] == [4, 4, 2]
    assert [each for shown in model.shown for each in shown] == [
        str(number) for number in range(1, 11)
    ]
    assert "Ada" in model.prompts[0][0].text
    assert "one two" in model.prompts[1][-1].text
    assert "three four five" in model.prompts[2][-1].text
    assert result.running_summary == RunningSummary(
        "six seven", {str(n) for n in range(1, 11)}, "10"
    )
    for prompt, before in zip(model.prompts, [0, 2, 3], strict=True):
        assert words(prompt[:-1]) <= 50 - before
        assert prompt[0].type == "human"


def test_the_earlier_summary_takes_of_the_budget(summarize: Summarize) -> None:
    """With a summary of 15 words, 35 are left for messages."""
    model = ScriptedModel()
    running = RunningSummary("old " * 15, {"0"}, "0")
    summarize(
        long_talk(),
        model=model,
        max_tokens=50,
        max_tokens_before_summary=100,
        token_counter=words,
        running_summary=running,
    )
    assert len(model.shown[0]) == 2
    assert "old old" in model.prompts[0][-1].text


def test_a_long_list_is_planned_once(summarize: Summarize, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls and results of a long list are paired at most twice, however many calls of the model it takes."""
    paired: list[int] = []

    def noting(messages: Sequence[BaseMessage]) -> Pairing:
        paired.append(len(messages))
        return pair(messages)

    monkeypatch.setattr(cuts, "pair", noting)
    model = ScriptedModel()
    messages = talk(*"ha" * 200)
    summarize(messages, model=model, max_tokens=10, max_tokens_before_summary=400)
    assert len(model.prompts) >= 40
    assert sum(paired) <= 2 * len(messages)


def test_trim_makes_one_call_without_the_oldest(summarize: Summarize) -> None:
    """With `trim`, one call is made without the oldest messages, which count as summarised, as in langmem."""
    model = ScriptedModel()
    result = summarize(
        long_talk(),
        model=model,
        max_tokens=50,
        max_tokens_before_summary=100,
        token_counter=words,
        overflow="trim",
    )
    assert model.shown == [["7", "8", "9", "10"]]
    assert model.prompts[0][0].type == "human"
    assert result.running_summary.summarized_message_ids == {str(number) for number in range(1, 11)}


def test_trim_leaves_what_fits(summarize: Summarize) -> None:
    """With room for all, the two ways show the same, whatever it begins with."""
    shown = []
    for overflow in ("fold", "trim"):
        model = ScriptedModel()
        summarize(
            long_talk()[1:], model=model, max_tokens=90, token_counter=words, overflow=overflow
        )
        shown.append(model.shown)
    assert shown[0] == shown[1] == [[str(number) for number in range(2, 11)]]


def test_trim_shows_all_if_no_part_begins_with_a_human_message(summarize: Summarize) -> None:
    """With `trim`, all messages are shown if no part begins with a human message. A warning says so."""
    model = ScriptedModel()
    messages = talk("h", "a x", "t x", "a y", "t y", "a")
    with pytest.warns(RuntimeWarning, match="shown all"):
        summarize(messages, model=model, max_tokens=2, max_tokens_before_summary=6, overflow="trim")
    assert model.shown == [list("123456")]


def test_a_message_that_alone_does_not_fit_is_shown_whole_and_alone(summarize: Summarize) -> None:
    """A message that exceeds the limit of a step is shown whole in its own step.

    So is a message with calls together with its results.
    """
    model = ScriptedModel()
    messages = talk("h", "a", "h", "a x y z", "t x", "t y", "t z", "a", "h", "a")
    summarize(messages, model=model, max_tokens=3, max_tokens_before_summary=10)
    assert model.shown == [["1", "2"], ["3"], ["4", "5", "6", "7"], ["8"], ["9", "10"]]
    huge = [HumanMessage("word " * 500, id="h"), AIMessage("ok", id="a")]
    model = ScriptedModel()
    summarize(huge, model=model, max_tokens=50, max_tokens_before_summary=501, token_counter=words)
    assert model.shown == [["h"], ["a"]]
    assert model.prompts[0][0] is huge[0]


def test_an_overlong_summary_does_not_cost_a_call_for_each_message(summarize: Summarize) -> None:
    """A quarter of `max_tokens` is always left for messages."""
    model = ScriptedModel()
    running = RunningSummary("old " * 500, {"0"}, "0")
    summarize(
        long_talk(),
        model=model,
        max_tokens=80,
        max_tokens_before_summary=120,
        token_counter=words,
        running_summary=running,
    )
    assert model.shown[0] == ["1", "2"]


# ---------------------------------------------------------------------------------------------------------------------
# Prompts


def test_prompts_are_parameters(summarize: Summarize) -> None:
    """Prompts of the caller's own, with the variables of langmem's."""
    prompts = {
        "initial_summary_prompt": ChatPromptTemplate(
            [("placeholder", "{messages}"), ("human", "FIRST")]
        ),
        "existing_summary_prompt": ChatPromptTemplate(
            [("system", "HAD {existing_summary}"), ("placeholder", "{messages}")]
        ),
        "final_prompt": ChatPromptTemplate(
            [
                ("placeholder", "{system_message}"),
                ("human", "Record: {summary}"),
                ("placeholder", "{messages}"),
            ]
        ),
    }
    model, messages = ScriptedModel("one", "two"), talk("s", *"hahaha")
    first = summarize(messages[:4], model=model, max_tokens=2, **prompts)
    assert model.prompts[0][-1].text == "FIRST"
    assert [message.text for message in first.messages] == ["text 1", "Record: one", "text 4"]
    assert first.messages[1].additional_kwargs == MARK
    second = summarize(
        [*first.messages, *messages[4:]],
        model=model,
        max_tokens=6,
        max_tokens_before_summary=4,
        running_summary=first.running_summary,
        **prompts,
    )
    assert model.prompts[1][0].text == "HAD one"
    assert [message.text for message in second.messages] == ["text 1", "Record: two"]


@pytest.mark.parametrize("text", ["{x} {0} {", "{{summary}}", "{messages}", "%s {{ x }}"])
def test_braces_are_data(summarize: Summarize, text: str) -> None:
    """In messages and in summaries they mean nothing to a template."""
    model = ScriptedModel(text, text)
    messages = [HumanMessage(text, id="1"), AIMessage(text, id="2"), *talk("h", "a", "h", "a")[2:]]
    first = summarize(messages[:2], model=model, max_tokens=2)
    assert first.running_summary.summary == text
    assert first.messages[0].text == f"Summary of the conversation so far: {text}"
    assert model.prompts[0][0].text == text
    summarize(messages, model=model, max_tokens=2, running_summary=first.running_summary)
    assert text in model.prompts[1][-1].text


def test_the_summary_message_has_a_stable_id(summarize: Summarize) -> None:
    """The same for the same summary, so that a reducer of messages replaces it; another for the next summary."""
    running = RunningSummary("old", {"7"}, "7")
    made = [
        summarize(messages, model=ScriptedModel(), max_tokens=9, running_summary=running)
        for messages in (talk("h"), talk("s", "h"))
    ]
    assert made[0].messages[0].id == made[1].messages[1].id == "7:summary-0"


# ---------------------------------------------------------------------------------------------------------------------
# Answers of the model


@pytest.mark.parametrize(
    "reply",
    [
        AIMessage(
            [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "They "}, "met."]
        ),
        AIMessage(
            [{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "They met."}]
        ),
        AIMessage("They met."),
    ],
    ids=["thinking", "reasoning", "text"],
)
def test_the_text_of_an_answer_is_taken(summarize: Summarize, reply: Any) -> None:
    """Blocks of text joined, reasoning left out; a plain str, so that any checkpointer can store it."""
    summary = summarize(
        talk("h", "a"), model=ScriptedModel(reply), max_tokens=2
    ).running_summary.summary
    assert (summary, type(summary)) == ("They met.", str)


@pytest.mark.parametrize(
    "reply", ["", " \n", AIMessage([{"type": "reasoning", "reasoning": "Hm."}]), AIMessage([])]
)
@pytest.mark.parametrize("step", [0, 1])
def test_an_empty_answer_is_an_error(summarize: Summarize, reply: Any, step: int) -> None:
    """A summary of nothing would lose messages; whatever step it comes at, the caller has what he had."""
    model = ScriptedModel(*(["fine"] * step), reply)
    messages = long_talk()
    before = copy.deepcopy(messages)
    with pytest.raises(SummaryError, match="without text") as caught:
        summarize(
            messages, model=model, max_tokens=50, max_tokens_before_summary=100, token_counter=words
        )
    assert isinstance(caught.value, ValueError)
    assert messages == before


def test_the_error_of_a_model_reaches_the_caller(summarize: Summarize) -> None:
    """An error of the model reaches the caller as it is. StopIteration does not end the summarization."""
    with pytest.raises(TimeoutError):
        summarize(talk("h", "a"), model=ScriptedModel(TimeoutError()), max_tokens=2)
    with pytest.raises((StopIteration, RuntimeError)):
        summarize(talk("h", "a"), model=ScriptedModel(StopIteration()), max_tokens=2)


def test_models_of_langchain_do(summarize: Summarize) -> None:
    """A chat model, one with bound parameters, and a chain that gives a str."""
    model = FakeListChatModel(responses=["They met."])
    for each in (model, model.bind(stop=["x"]), model | StrOutputParser()):
        assert (
            summarize(talk("h", "a"), model=each, max_tokens=2).running_summary.summary
            == "They met."
        )


# ---------------------------------------------------------------------------------------------------------------------
# Running summaries from elsewhere


class LangmemSummary:
    """Like the dataclass of langmem, which a stored state may still hold."""

    def __init__(self) -> None:
        self.summary = "old"
        self.summarized_message_ids = {"1", "2"}
        self.last_summarized_message_id = "2"


@pytest.mark.parametrize(
    "stored",
    [
        LangmemSummary(),
        {"summary": "old", "summarized_message_ids": ["1", "2"], "last_summarized_message_id": "2"},
    ],
    ids=["object", "dict"],
)
def test_a_running_summary_of_langmem_is_taken_up(summarize: Summarize, stored: Any) -> None:
    """A conversation goes on where langmem left it; JSON may have made a dict and a list of it."""
    result = summarize(
        talk(*"haha"), model=ScriptedModel("new"), max_tokens=3, running_summary=stored
    )
    assert result.running_summary == RunningSummary("old", {"1", "2"}, "2")
    assert ids(result.messages[1:]) == ["3", "4"]


@pytest.mark.parametrize("as_dict", [False, True])
def test_two_fields_are_a_running_summary(summarize: Summarize, as_dict: bool) -> None:
    """A running summary may have two fields alone, as an object or a dict, as in langmem's reference.

    The messages that it names are skipped wherever they are, and the others are kept or summarised.
    """
    fields = {"summary": "They met.", "summarized_message_ids": {"1", "2"}}
    running: Any = fields if as_dict else RunningSummary(**fields)
    model = ScriptedModel("They met again.")
    below = summarize(talk(*"hahah"), model=model, max_tokens=9, running_summary=running)
    assert [message.text for message in below.messages][1:] == ["text 3", "text 4", "text 5"]
    assert below.messages[0].text == "Summary of the conversation so far: They met."
    assert below.running_summary == RunningSummary("They met.", {"1", "2"})
    fed_back = summarize(
        below.messages, model=model, max_tokens=9, running_summary=below.running_summary
    )
    assert ids(fed_back.messages) == ids(below.messages)
    assert model.prompts == []
    above = summarize(talk(*"hahah"), model=model, max_tokens=3, running_summary=running)
    assert above.running_summary == RunningSummary("They met again.", set("1234"), "4")
    assert model.shown == [["3", "4"]]
    assert "They met." in model.prompts[0][-1].text
    grown = [*below.messages, *talk(*"hahahah")[5:]]
    state = summarize(
        grown, model=ScriptedModel("All."), max_tokens=5, running_summary=below.running_summary
    )
    assert [message.text for message in state.messages if message.additional_kwargs == MARK] == [
        "Summary of the conversation so far: All."
    ]
    other = RunningSummary("They met.", {"1", "3"})
    assert (
        summarize(talk("h"), model=model, max_tokens=9, running_summary=other).messages[0].id
        != below.messages[0].id
    )


@pytest.mark.parametrize(
    "wrong", ["text", 7, {}, {"summary": "old"}, {"summary": 1, "summarized_message_ids": []}]
)
def test_anything_else_is_no_running_summary(summarize: Summarize, wrong: Any) -> None:
    """Any other value as running summary raises a ValueError that says which types are valid."""
    with pytest.raises(ValueError, match="running_summary must be a RunningSummary or None"):
        summarize(talk("h"), model=ScriptedModel(), max_tokens=2, running_summary=wrong)


def test_a_summarizer_takes_the_name_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """LangChain makes the model; without the package the error names the extra."""
    monkeypatch.setattr(
        chat_models, "init_chat_model", lambda name: FakeListChatModel(responses=[name])
    )
    assert asyncio.run(
        RunningSummarizer("openai:gpt-5-mini").summarize([HumanMessage("x")], summary=None)
    ) == ("openai:gpt-5-mini")
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    with pytest.raises(MissingExtraError, match=r"\[langchain\]"):
        RunningSummarizer("openai:gpt-5-mini")


# ---------------------------------------------------------------------------------------------------------------------
# What a stored summary's writer is shown


def shown_to(*messages: BaseMessage, **options: Any) -> list[str]:
    """The requests of a `RunningSummarizer`."""
    model = ScriptedModel()
    asyncio.run(RunningSummarizer(model, **options).summarize(messages, summary=None))
    return [prompt[-1].text for prompt in model.prompts]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(" ".join(f"name{number}" for number in range(20_000)), id="words"),
        pytest.param("<&>" * 30_000, id="escapes"),
        pytest.param("语" * 30_000, id="a token each"),
        pytest.param("x" * 200_000, id="one word"),
    ],
)
def test_a_long_message_is_shown_whole_in_pieces(text: Any) -> None:
    """A long message is shown whole in pieces: no text is lost, no word is cut, and each step keeps to its limit."""
    shown = shown_to(HumanMessage(text), max_tokens=4_000, max_summary_tokens=500)
    assert len(shown) > 5
    assert all(count_tokens_approximately([HumanMessage(each)]) <= 4_000 for each in shown)
    pieces = [
        piece
        for each in shown
        for piece in re.findall(r"<message from='human'>\n(.*?)\n</message>", each, re.DOTALL)
    ]
    assert html.unescape("".join(pieces)) == text
    if " " in text:
        assert all(piece.endswith(" ") for piece in pieces[:-1])


def test_a_piece_of_a_long_message_leaves_half_of_a_request_to_others() -> None:
    """A step that begins with the end of a long message still has room for those that follow it."""
    steps = list(record_steps([HumanMessage("name " * 2_000), HumanMessage("And then?")], 400))
    pieces = [piece for step in steps for piece in step.split("</message>")]
    assert max(count_tokens_approximately([HumanMessage(piece)]) for piece in pieces) < 250
    assert "And then?" in steps[-1]
    assert "name name" in steps[-1]


def test_large_summaries_leave_half_of_a_request_to_messages() -> None:
    """A limit of summaries above that of requests does not cost a call for each sentence."""
    long = HumanMessage("name " * 2_000)
    assert len(shown_to(long, max_tokens=1_000, max_summary_tokens=5_000)) < 15


def test_the_summary_without_a_model_keeps_its_newest_line_alone_if_that_fills_it() -> None:
    """A line larger than the summary may be does not bring all others back."""
    summarizer = HeadTailSummarizer(
        CompactionRule(max_tokens_before_summary=20, max_summary_tokens=1)
    )
    messages = [HumanMessage(f"{number} " + "word " * 40) for number in range(3)]
    text = asyncio.run(summarizer.summarize(messages, summary=None))
    _, *lines = text.split("\n")
    assert [line[:8] for line in lines] == ["human: 2"]


def test_a_summary_beyond_its_limit_is_not_made_again_for_the_same_messages(
    summarize: Summarize,
) -> None:
    """It leaves less room than planned: the rest would be folded in a call that no new message asks for."""
    model = ScriptedModel()
    options: dict[str, Any] = {"model": model, "max_tokens": 10, "max_tokens_before_summary": 4}
    options["token_counter"] = _five_for_a_summary
    first = summarize(talk(*"hahahahahaha"), **options)
    again = summarize(first.messages, running_summary=first.running_summary, **options)
    assert len(model.prompts) == 1
    assert ids(again.messages) == ids(first.messages)


def _five_for_a_summary(messages: Sequence[BaseMessage]) -> int:
    return sum(5 if isinstance(message, SystemMessage) else 1 for message in messages)


def test_half_of_the_room_is_left_free_for_the_next_turns() -> None:
    """A list that only just exceeds its limit is not cut so that the next turn exceeds it again."""
    cuts = Cuts(talk(*"hahahahaha"))
    assert choose_cut(cuts, [1] * 10, before_summary=20, room=8, unfolded_room=9) == 6


def test_an_early_question_is_not_folded_with_the_results_around_it() -> None:
    """A user writes while a tool runs: its answer is still to come when the result is there."""
    messages = talk("h", "a", "h", "a x", "h", "t x", "a", "h", "a")
    assert choose_cut(Cuts(messages), [1] * 9, before_summary=4, room=20, unfolded_room=20) == 2


def test_the_last_join_may_be_as_long_as_the_summary() -> None:
    """Only summaries that are joined again share a request: the last one is asked for up to its own limit."""
    [last] = join_prompts(["One.", "Two."], room=50_000, max_bytes=65_536)
    assert "below 7142 words" in last.text
    several = join_prompts(["x" * 40_000, "y" * 40_000], room=50_000, max_bytes=65_536)
    assert len(several) == 2
    assert all("below 1170 words" in prompt.text for prompt in several)


def test_media_are_described_and_every_call_is_named() -> None:
    """No bytes of an image reach the model that sums up; calls do that no parser could read."""
    image = {"type": "image", "base64": "aGk=" * 10_000, "mime_type": "image/png"}
    invalid = [{"name": "book", "args": '{"seat": ', "id": "x", "error": "no JSON"}]
    [shown] = shown_to(
        HumanMessage([{"type": "text", "text": "What is it?"}, image]),
        AIMessage([{"type": "thinking", "thinking": "secret"}, {"type": "text", "text": "Hm."}]),
        AIMessage("", invalid_tool_calls=invalid),
    )
    assert "What is it?\n[image of 40000 bytes, not shown]" in shown
    assert "aGk=aGk=" not in shown
    assert "secret" not in shown
    assert 'calls book({"seat": )' in shown


def test_a_summary_does_not_repeat_what_only_the_caller_was_told() -> None:
    """A repaired chain asks the model to call again: the summary is told that there is no result."""
    call = Call("c1", "book", 0)
    asks = missing_result(call, ai_message_id="a").model_copy(update={"content": MISSING_RESULT})
    [shown] = shown_to(asks)
    assert MISSING_TEXT in shown
    assert "try again" not in shown


def test_a_document_of_plain_text_is_shown_whole() -> None:
    """A document whose source is text is no file: the summary would lose its words."""
    source = {"type": "text", "media_type": "text/plain", "data": "A refund takes 14 days."}
    document = {"type": "document", "title": "Terms", "context": "As of May", "source": source}
    [shown] = shown_to(HumanMessage([document, {"type": "text", "text": "When?"}]))
    assert "Terms\nAs of May\nA refund takes 14 days.\nWhen?" in shown


@pytest.mark.parametrize(
    "block",
    [
        {"type": "non_standard", "value": {"type": "tool_use", "id": "c1", "name": "look"}},
        {"type": "non_standard", "value": {"type": "function_call", "id": "fc_1", "call_id": "c1"}},
        {"type": "tool_call_chunk", "id": "c1", "name": "look", "args": "{}"},
    ],
)
def test_a_call_that_a_block_repeats_is_shown_once(block: Any) -> None:
    """A block that repeats a listed call is not shown beside it, in LangChain's wrapper neither."""
    call = {"name": "look", "args": {}, "id": "c1"}
    [shown] = shown_to(AIMessage(["Wait.", block], tool_calls=[call]))
    assert "Wait.\ncalls look({})\n" in shown
    assert shown.count("look") == 1


def test_a_call_without_an_id_hides_no_other_block() -> None:
    """Some servers leave the ids of calls empty: what a hosted tool found is shown all the same, and counted."""
    call = {"name": "look", "args": {}, "id": ""}
    found = {"type": "web_search_call", "action": {"query": "tides at Oslo"}}
    message = AIMessage(["Wait.", found], tool_calls=[call])
    [shown] = shown_to(message)
    assert "tides at Oslo" in shown
    assert size_of(message) > size_of(AIMessage(["Wait."], tool_calls=[call]))
