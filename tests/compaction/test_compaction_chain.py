"""A chain summarizer as a store's summarizer: the messages that replace old ones, in any conversation."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from mongomock_motor import AsyncMongoMockClient
from properties import examples
from test_compaction import pair_of

from convstore import Conversation, ConversationStore, History, HistoryPolicy, InvalidInputError
from convstore.chain import ChainSummarizer, ChainSummarizerConfig, work
from convstore.compaction import strategies as folders
from convstore.log.summary import is_summary
from convstore.messages.provenance import kind_of
from convstore.messages.tokens import approximate_tokens
from convstore.summarization.summarizers import HeadTailSummarizer
from convstore.testing import same_messages
from convstore.testing.pairing import check_pairing
from convstore.values.policy import CompactionRule

CONFIG = ChainSummarizerConfig(
    last_section_bytes=4_000, max_pair_bytes=2_000, max_qa_sections=4, max_qa_bytes=8_000
)
RULE = CompactionRule(max_tokens_before_summary=1_000, max_summary_tokens=100, keep_last_turns=1)
NO_LIMIT = HistoryPolicy(max_tokens=None)
_NUMBERS = count(1)


class Scripted:
    """The handler of a chain summarizer; keeps what it was shown."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.fails = False
        self._numbers = count(1)

    async def __call__(self, text: str) -> str:
        """A few words."""
        if self.fails:
            raise ValueError("the model is down")
        self.prompts.append(text)
        return f"part {next(self._numbers)}"


class Wordy(Scripted):
    """Needs a hundred tokens for each summary."""

    async def __call__(self, text: str) -> str:
        """Return the scripted answer, padded to 400 characters."""
        return (await super().__call__(text)).ljust(400, ".")


@pytest.fixture
def handler() -> Scripted:
    """The model."""
    return Scripted()


@pytest.fixture
def handles(handler: Scripted) -> Callable[..., Conversation]:
    """The same conversation as processes of their own have it."""
    database, thread = AsyncMongoMockClient()["chain"], uuid.uuid4().hex

    def make(summarizer: Any = None) -> Conversation:
        chosen = summarizer or ChainSummarizer(handler, config=CONFIG, rule=RULE)
        store = ConversationStore(database, summarizer=chosen, policy=NO_LIMIT)
        return store.conversation(user_id="a", thread_id=thread)

    return make


@pytest.fixture
async def chat(handles: Callable[..., Conversation]) -> Conversation:
    """An empty conversation."""
    chat = handles()
    await chat.store.setup()
    return chat


def made(kind: str) -> list[BaseMessage]:
    """Messages of one kind, with ids of their own and no sources."""
    n = next(_NUMBERS)
    asked = HumanMessage(f"question {n} " + "why " * (n % 40), id=f"h{n}")
    done = AIMessage(f"answer {n}", id=f"a{n}")
    turns: dict[str, list[BaseMessage]] = {
        "system": [SystemMessage(f"rule {n}", id=f"s{n}")],
        "ask": [asked],
        "turn": [asked, done],
        "long": [asked, AIMessage("so " * 400, id=f"a{n}")],
        "rag": [asked, *pair_of(n), done],
        "open": [asked, *pair_of(n, result=False)],
        "late": [ToolMessage(f"late {n}", id=f"t{n}", tool_call_id=f"call{(n - 1) % 7}")],
    }
    if kind != "pairs":
        return turns[kind]
    return [asked, *(message for _ in range(1 + n % 5) for message in pair_of(next(_NUMBERS)))]


def comparable(history: History) -> list[Any]:
    """A view as it is compared."""
    return [
        history.summary,
        history.tokens,
        *(message.model_dump() for message in history.messages),
    ]


def run_of(*numbers: int) -> list[BaseMessage]:
    """Pairs of a long run."""
    return [message for number in numbers for message in pair_of(number)]


def kinds(messages: Sequence[BaseMessage]) -> str:
    """Return one letter for each message, a capital for a summary."""
    return "".join(m.type[0].upper() if is_summary(m) else m.type[0] for m in messages)


async def test_sections_become_their_header_and_a_summary(
    chat: Conversation, handler: Scripted
) -> None:
    """System message, then each question with one summary of what followed, then the last turn as it was."""
    await chat.append(SystemMessage("Be kind.", id="s"))
    for number in (1, 2, 3):
        question = [HumanMessage(f"question {number}", id=f"q{number}")]
        await chat.append([*question, *run_of(number), AIMessage("so " * 600, id=f"a{number}")])
    done = await chat.compact()
    assert done.status == "done"
    assert done.summary is not None
    assert (done.summary.first, done.summary.last, done.summary.model) == (2, 9, "Scripted")
    assert kinds(done.summary.messages) == "hATh" + "AT"
    view = (await chat.load_history()).messages
    assert kinds(view) == "shAThAT" + "hata"
    assert [message.id for message in view if not is_summary(message)] == [
        "s",
        "q1",
        "q2",
        "q3",
        "c3",
        "t3",
        "a3",
    ]
    assert all("<message" in prompt for prompt in handler.prompts)
    assert len(handler.prompts) == 2


async def test_a_long_turn_is_rotated_inside(
    chat: Conversation, handles: Callable[..., Conversation]
) -> None:
    """The question stays word for word, older pairs become one summary, the newest stay with their results in full."""
    await chat.append(HumanMessage("question 0", id="q"))
    for number in range(1, 9):
        await chat.append(run_of(number))
    done = await chat.compact()
    assert done.summary is not None
    view = (await handles().load_history()).messages
    assert kinds(view)[:3] == "hAT"
    assert view[0].id == "q"
    kept = [message for message in view[3:] if isinstance(message, ToolMessage)]
    assert [message.text for message in kept] == [
        f"line {n}\n" * 200 for n in range(9 - len(kept), 9)
    ]
    assert kept
    assert await handles().load_history(HistoryPolicy(max_tokens=None, view="conversation"))


async def test_a_view_of_the_talk_has_summaries_as_answers(chat: Conversation) -> None:
    """Without tool messages no summary is lost."""
    for number in (1, 2, 3):
        question = [HumanMessage(f"question {number}", id=f"q{number}")]
        await chat.append([*question, *run_of(number), AIMessage("so " * 600, id=f"a{number}")])
    await chat.compact()
    talk = (await chat.load_history(HistoryPolicy(view="conversation"))).messages
    assert kinds(talk) == "hAhAha"
    assert talk[1].text == "**summarized content:**\npart 1"


async def test_what_is_summarised_can_be_asked_for(chat: Conversation) -> None:
    """The last summary names the newest results in its range, once, also after the next compaction."""
    for number in range(1, 7):
        question = [HumanMessage(f"question {number}", id=f"q{number}")]
        await chat.append([*question, *run_of(number), AIMessage("so " * 600, id=f"a{number}")])
        await chat.compact()
    view = (await chat.load_history()).messages
    [telling] = [
        message.text
        for message in view
        if "retrieve_previous_sources" in message.text and is_summary(message)
    ]
    assert telling.startswith("part ")
    assert telling.endswith("t5, t4, t3, t2, t1.]")


async def test_a_model_that_fails_changes_nothing(chat: Conversation, handler: Scripted) -> None:
    """A typed result with the model's words; views are as before, and the next try waits."""
    await chat.append([HumanMessage("question 0"), *run_of(*range(1, 9))])
    before = (await chat.load_history()).messages
    handler.fails = True
    done = await chat.compact()
    assert done.status == "failed"
    assert "the model is down" in done.problem
    assert (await chat.load_history()).messages == before
    assert (await chat.compact()).status == "waiting"
    assert await chat.summaries() == []


async def _every_turn(chat: Conversation, turns: Sequence[Sequence[BaseMessage]]) -> list[Any]:
    """Append turns and summarise after each, as an application does; return the compactions that found work."""
    done = []
    for turn in turns:
        await chat.append(turn)
        done.append(await chat.compact())
    return [compaction for compaction in done if compaction.status != "not_needed"]


async def test_a_mixed_chat_is_summarised_though_summaries_are_longer_than_answers(
    handles: Callable[..., Conversation],
) -> None:
    """Answers of 600 characters, some with tools, and summaries of 800: each compaction succeeds, with few calls."""
    prompts: list[str] = []

    async def handler(text: str) -> str:
        prompts.append(text)
        return "s" * 800

    chat = handles(ChainSummarizer(handler, rule=RULE))
    await chat.store.setup()
    turns = [
        [HumanMessage("why " * 20), *(pair_of(n) if n % 4 == 0 else []), AIMessage("a" * 600)]
        for n in range(24)
    ]
    done = await _every_turn(chat, turns)
    assert {compaction.status for compaction in done} == {"done"}
    assert len(prompts) <= 3 * len(done)
    assert (await chat.load_history()).tokens < 2 * RULE.max_tokens_before_summary


@pytest.mark.costly
@pytest.mark.parametrize("size", [1_500, 20_000])
async def test_a_long_paste_in_the_first_turn_is_no_error(
    handles: Callable[..., Conversation], size: int
) -> None:
    """A long paste in the first turn fails no compaction, neither during its run nor after it."""

    async def handler(text: str) -> str:
        return "s" * 800

    chat = handles(ChainSummarizer(handler, config=CONFIG, rule=RULE))
    await chat.store.setup()
    paste = HumanMessage("paste " * size, id="paste")
    done = await _every_turn(
        chat, [[paste], *(run_of(n) for n in range(6)), [AIMessage("ok", id="ok")]]
    )
    assert {compaction.status for compaction in done} == {"done"}
    assert size > 10_000 or any(
        message.id == "paste" for message in (await chat.load_history()).messages
    )
    done = await _every_turn(chat, [[HumanMessage("and?"), AIMessage("a" * 600)] for _ in range(9)])
    assert {compaction.status for compaction in done} <= {"done"}
    assert (await chat.load_history()).tokens < 2 * RULE.max_tokens_before_summary


async def test_nothing_to_fold_is_no_call(chat: Conversation, handler: Scripted) -> None:
    """A single long answer stays: there is nothing that a chain summarizer would take."""
    await chat.append([HumanMessage("question 0"), AIMessage("so " * 3_000)])
    assert (await chat.compact()).status == "not_needed"
    assert handler.prompts == []


async def test_both_kinds_of_summary_extend_each_other(
    chat: Conversation, handles: Callable[..., Conversation]
) -> None:
    """A store that changes its summarizer goes on from the summary that is there; undo leads back through both."""
    head_tail = HeadTailSummarizer(
        CompactionRule(max_tokens_before_summary=1_000, max_summary_tokens=100)
    )
    running = handles(summarizer=head_tail)

    async def go_on(*numbers: int) -> None:
        for number in numbers:
            question = HumanMessage(f"question {number}", id=f"q{number}")
            await chat.append([question, *run_of(number), AIMessage("so " * 600, id=f"a{number}")])

    await go_on(1, 2, 3)
    first = await chat.compact()
    await go_on(4, 5, 6, 7)
    second = await running.compact(force=True)
    await go_on(8, 9, 10)
    third = await chat.compact()
    assert [done.status for done in (first, second, third)] == ["done"] * 3
    assert second.summary is not None
    assert third.summary is not None
    assert "part 1" in second.summary.text
    assert "part 1" in "".join(message.text for message in third.summary.messages)
    assert [m.id for m in third.summary.messages if m.type == "human"] == ["summary-2", "q8", "q9"]
    # a view does not begin with an AI message
    assert kinds((await handles().load_history()).messages)[:2] == "Hh"
    assert third.summary.first == 1
    everything = [message async for message in chat.messages(rewound=True)]
    assert same_messages(await chat.expand_summary(3), everything[: third.summary.last])
    assert await handles().undo_compaction()
    assert (await handles().load_history()).summary == second.summary.text


@pytest.mark.slow
async def test_a_call_that_nobody_answers_does_not_keep_its_turn_whole(
    chat: Conversation, handler: Scripted
) -> None:
    """An agent that lost a result went on: after some more steps its older pairs are folded, and paid for once."""
    await chat.append([HumanMessage("question 0", id="q"), *pair_of(900, result=False)])
    calls = []
    for number in range(1, 30):
        await chat.append(run_of(number))
        await chat.compact()
        calls.append(len(handler.prompts))
    history = await chat.load_history()
    assert history.tokens < 2_000
    assert calls[-1] == len(await chat.summaries()) < 15
    assert check_pairing(history.messages) == []


async def test_a_chat_without_tools_becomes_one_summary(
    chat: Conversation, handler: Scripted
) -> None:
    """No section is worth a summary of its own, so old ones are folded into one, whatever `use_qa` says."""
    for number in range(12):
        await chat.append(
            [HumanMessage(f"question {number}", id=f"q{number}"), AIMessage("so " * 150)]
        )
    done = await chat.compact()
    assert done.summary is not None
    assert kinds(done.summary.messages) == "hA"
    assert done.summary.messages[0].text.startswith("question 0\n\nquestion 1\n\n")
    assert len(handler.prompts) == 1


async def test_questions_that_became_one_are_no_message_of_the_log(chat: Conversation) -> None:
    """Questions joined by a fold are one message with its own id and the kind `joined`.

    The other messages of the view can be appended again without a conflict.
    """
    ids = set()
    for number in range(24):
        await chat.append(
            [
                HumanMessage(f"question {number}", id=f"q{number}"),
                AIMessage("so " * 150, id=f"a{number}"),
            ]
        )
        done = await chat.compact()
        if done.status == "done":
            history = await chat.load_history()
            [joined] = [message for message in history.messages if kind_of(message) == "joined"]
            assert joined.text.startswith("question 0\n\nquestion 1")
            assert joined.id == f"q{joined.text.count('question') - 1}:joined"
            ids.add(joined.id)
            own = [message for message in history.messages if not kind_of(message)]
            assert (await chat.append(own)).written == 0
    assert len(ids) > 1
    assert same_messages(
        [message async for message in chat.messages(rewound=True)][:1],
        [HumanMessage("question 0", id="q0")],
    )


async def test_a_long_chain_is_read_in_threads(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop is left to others while a chain is made of messages, and requests of the chain."""
    threads: dict[str, set[int]] = {}

    def noted(name: str, of: Any) -> None:
        does = getattr(of, name)

        def note(*arguments: Any, **options: Any) -> Any:
            threads.setdefault(name, set()).add(threading.get_ident())
            return does(*arguments, **options)

        monkeypatch.setattr(of, name, note)

    noted("pair", folders)
    noted("read_chain", work)
    noted("make_prompts", work)
    noted("folded", folders._ChainInput)
    for number in range(12):
        await chat.append(
            [
                HumanMessage(f"question {number}", id=f"q{number}"),
                *run_of(number),
                AIMessage("so " * 600),
            ]
        )
    assert (await chat.compact()).status == "done"
    assert list(threads) == ["pair", "read_chain", "make_prompts", "folded"]
    assert threading.get_ident() not in set().union(*threads.values())


@pytest.mark.slow
@pytest.mark.costly
@pytest.mark.parametrize("weight", [1, 2])
async def test_summaries_that_become_too_many_are_folded(weight: int) -> None:
    """By the store's counter, and however few they are: no compaction is refused, no summary paid for twice."""
    handler = Wordy()
    rule = CompactionRule(
        max_tokens_before_summary=weight * 1_000, max_summary_tokens=100, keep_last_turns=1
    )
    store = ConversationStore(
        AsyncMongoMockClient()["chain"],
        summarizer=ChainSummarizer(handler, rule=rule),
        token_counter=lambda messages: weight * approximate_tokens(messages),
        token_counter_name="weighted",
    )
    await store.setup()
    chat = store.conversation(user_id="a", thread_id="t")
    statuses = []
    for number in range(1, 31):
        await chat.append(
            [HumanMessage(f"question {number}"), *run_of(number), AIMessage("so " * 300)]
        )
        statuses.append((await chat.compact(force=True)).status)
    assert statuses == ["not_needed", *["done"] * 29]
    assert len(handler.prompts) < 40


@pytest.mark.slow
async def test_questions_that_outgrow_their_share_are_summarised(
    chat: Conversation, handler: Scripted
) -> None:
    """Word for word up to half of the trigger, then they become one: no try is refused, none paid for in vain."""
    sizes = []
    for number in range(40):
        await chat.append([HumanMessage("why " * 100, id=f"q{number}"), AIMessage("so " * 300)])
        done = await chat.compact(force=True)
        assert done.status == ("done" if number else "not_needed")
        sizes += [done.summary.tokens_out] if done.summary else []
    assert 400 < max(sizes) <= RULE.max_tokens_before_summary
    assert len(handler.prompts) < 80
    view = (await chat.load_history()).messages
    assert kinds(view)[:2] == "HA"
    assert view[0].text.startswith("part ")


async def test_system_messages_that_outgrow_the_trigger_cost_no_call(
    chat: Conversation, handler: Scripted
) -> None:
    """If system messages alone exceed the trigger, a compaction fails before a model is called."""
    for number in range(8):
        rules = SystemMessage("Rule. " * 100, id=f"s{number}")
        await chat.append([HumanMessage("why"), AIMessage("so " * 300), rules])
    done = await chat.compact(force=True)
    assert done.status == "failed"
    assert "raise max_tokens_before_summary" in done.problem
    assert handler.prompts == []


async def test_a_result_finds_its_call_in_a_summary(chat: Conversation) -> None:
    """With a provider: a later call of the same id is shown under a new one, and so is what comes back for it."""
    await chat.append(HumanMessage("question 0", id="q"))
    answered = ToolMessage("short", id="tb", tool_call_id="call_AAAAAAAAAAAAAAAAAAAAAAAA")
    call = {"name": "run", "args": {}, "id": "call_AAAAAAAAAAAAAAAAAAAAAAAA"}
    for number in range(1, 5):
        await chat.append(run_of(number))
    await chat.append([AIMessage("", id="cb", tool_calls=[call]), answered, *run_of(9)])
    await chat.compact(force=True)
    await chat.append(AIMessage("", id="again", tool_calls=[call]))
    policy = HistoryPolicy(max_tokens=None, provider="openai")
    shown = (await chat.load_history(policy)).messages
    [asked] = [message for message in shown if message.id == "again"]
    assert isinstance(asked, AIMessage)
    answer = ToolMessage("found", id="late", tool_call_id=str(asked.tool_calls[0]["id"]))
    await chat.append(answer)
    history = await chat.load_history(policy)
    assert history.report.orphans == ()
    assert history.messages[-1].text == "found"


async def test_no_model_is_asked_to_call_again(
    chat: Conversation, handles: Callable[..., Conversation], handler: Scripted
) -> None:
    """A call without a result is shown as in views, and its late result is shown once."""
    summarized, kept = pair_of(900, result=False)[0], pair_of(901, result=False)[0]
    await chat.append(
        [HumanMessage("question 0", id="q"), *run_of(1), summarized, *run_of(*range(2, 12))]
    )
    assert (await chat.compact(force=True)).status == "done"
    await chat.append(
        [AIMessage("so"), HumanMessage("pay", id="p"), kept, HumanMessage("question 1", id="q1")]
    )
    await chat.append([*run_of(*range(20, 30)), AIMessage("so")])
    done = await chat.compact(force=True)
    assert done.summary is not None
    assert [
        message.text for message in done.summary.messages if message.id == "c901:missing-result-0"
    ] == ["No result was recorded for this call."]
    await chat.append(HumanMessage("question 2", id="q2"))
    before = (await handles().load_history()).messages
    assert isinstance(kept, AIMessage)
    await chat.append(
        ToolMessage("Paid 99 EUR.", id="late", tool_call_id=str(kept.tool_calls[0]["id"]))
    )
    for history in (await chat.load_history(), await handles().load_history()):
        assert same_messages(history.messages[:-1], before)
        assert history.messages[-1].text.endswith("Paid 99 EUR.")
        assert (history.report.orphans, history.report.late_results) == ((), ("late",))
        assert check_pairing(history.messages) == []
    assert "try again" not in f"{handler.prompts} {done.summary} {before}"


async def test_the_picture_of_a_question_stays_with_the_log(chat: Conversation) -> None:
    """A turn in progress is not parted after a question with large parts: it is shown whole, and not kept twice."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 40_000}}
    await chat.append(HumanMessage([{"type": "text", "text": "What is this?"}, picture], id="q"))
    await chat.append(run_of(*range(1, 9)))
    assert (await chat.compact(force=True)).status == "not_needed"
    assert picture in (await chat.load_history()).messages[0].content
    await chat.append([AIMessage("A cat."), HumanMessage("And now?"), AIMessage("so " * 2_000)])
    done = await chat.compact()
    assert done.summary is not None
    assert "A" * 1_000 not in str(done.summary.messages)


async def test_other_kinds_of_messages_are_shown(chat: Conversation, handler: Scripted) -> None:
    """A message that has no place in a chain is shown as text, and does not keep it from being summarised."""
    await chat.append(
        [HumanMessage("question 0", id="q"), FunctionMessage(content="odd", name="f", id="f")]
    )
    await chat.append(run_of(*range(1, 9)))
    assert (await chat.compact()).status == "done"
    assert "(function: odd)" in "".join(handler.prompts)


def script_of(seed: int) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """A configuration, and what is done to a conversation."""
    dice = random.Random(seed)
    config = {"use_qa": dice.random() < 0.5, "keep_sections": dice.randint(1, 3)}
    config["summarize_human_in_qa"] = dice.random() < 0.3
    kinds = ["turn", "rag", "rag", "pairs", "pairs", "ask", "open", "late", "system", "long"]
    steps = ["append"] * 7 + ["compact"] * 3 + ["rewind", "undo", "back"]
    script: list[tuple[str, Any]] = []
    for step in dice.choices(steps, k=dice.randint(5, 30)):
        value = (
            dice.choices(kinds, k=dice.randint(1, 4))
            if step == "append"
            else dice.choice([1, 2, 5, 9, 30])
        )
        script.append((step, value))
    return config, script


@pytest.mark.slow
@examples(40, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32).map(script_of))
async def test_a_chain_loses_nothing(script: tuple[dict[str, Any], list[tuple[str, Any]]]) -> None:
    """Ranges without gaps; each message in one is shown to the model or in views; all readers see the same."""
    config, steps = script
    handler, database, thread = Scripted(), AsyncMongoMockClient()["chain"], uuid.uuid4().hex
    options = {name: getattr(CONFIG, name) for name in CONFIG.__slots__} | config

    def handle() -> Conversation:
        summarizer = ChainSummarizer(handler, config=ChainSummarizerConfig(**options), rule=RULE)
        store = ConversationStore(database, summarizer=summarizer, policy=NO_LIMIT)
        return store.conversation(user_id="a", thread_id=thread)

    chat, other = handle(), handle()
    await chat.store.setup()
    for step, value in steps:
        active = [stored.message for stored in await chat.list_messages(limit=1_000, full=True)]
        if step == "append":
            await chat.append([message for kind in value for message in made(kind)])
        elif step == "rewind" and active:
            await chat.rewind(before_id=str(active[max(0, len(active) - value)].id))
        elif step == "undo":
            await chat.undo_rewind()
        elif step == "back":
            await chat.undo_compaction()
        elif step == "compact":
            await compact(chat, handler, active)
        views = [await conversation.load_history() for conversation in (chat, other, handle())]
        assert [comparable(view) for view in views[1:]] == [comparable(views[0])] * 2
        assert check_pairing(views[0].messages) == []
        talk = await chat.load_history(HistoryPolicy(view="conversation"))
        assert not [message for message in talk.messages if message.type == "tool"]


async def test_an_answer_that_a_store_has_used_is_forgotten(
    handles: Callable[..., Conversation], handler: Scripted
) -> None:
    """A compaction that was undone is not made again from memory: the user wants another summary."""
    chat = handles()
    await chat.store.setup()
    for number in range(3):
        await chat.append([HumanMessage(f"question {number}"), AIMessage("long " * 2_000)])
    assert (await chat.compact()).status == "done"
    asked = len(handler.prompts)
    assert await chat.undo_compaction()
    assert (await chat.compact()).status == "done"
    assert handler.prompts[asked:] == handler.prompts[:asked]


async def test_summaries_above_the_trigger_are_refused_even_if_they_are_shorter(
    handles: Callable[..., Conversation],
) -> None:
    """They would be due for a summary themselves at once, at every turn."""

    async def handler(text: str) -> str:
        return "word " * 900

    chat = handles(ChainSummarizer(handler, config=CONFIG, rule=RULE))
    await chat.store.setup()
    for number in range(3):
        await chat.append([HumanMessage(f"question {number}"), AIMessage("long " * 8_000)])
    done = await chat.compact()
    assert done.status == "failed"
    assert "the summaries would take" in done.problem
    assert (await chat.load_history()).summary is None


async def compact(chat: Conversation, handler: Scripted, active: Sequence[BaseMessage]) -> None:
    """Summarise; new messages of the range were shown or are still in views, and all of them come back."""
    earlier = next((summary for summary in await chat.summaries() if summary.is_current), None)
    handler.prompts.clear()
    done = await chat.compact()
    if done.status == "failed":
        assert any(
            words in done.problem
            for words in ("was rejected", "shorter", "would take", "cannot be cut")
        )
    if done.summary is None:
        return
    summary, leading = done.summary, 0
    while leading < len(active) and isinstance(active[leading], SystemMessage):
        leading += 1
    inside = await chat.expand_summary(summary.version)
    assert same_messages(inside, active[leading : leading + len(inside)])
    before = await chat.expand_summary(earlier.version) if earlier else []
    shown = "\n".join(handler.prompts)
    in_views = {message.id for message in summary.messages} | {
        m.id for m in (earlier.messages if earlier else [])
    }
    joined = "\n".join(message.text for message in summary.messages)
    for message in inside[len(before) :]:
        key = (
            f'"n": {message.tool_calls[0]["args"]["n"]}'
            if isinstance(message, AIMessage) and message.tool_calls
            else ""
        )
        text = key or " ".join(message.text.split()[:2])
        assert message.id in in_views or text in shown or text in joined, message


@pytest.mark.parametrize("rule", ["now", 5])
def test_a_rule_is_a_rule(rule: Any) -> None:
    """Refused when the summarizer is made."""
    with pytest.raises(InvalidInputError, match="CompactionRule"):
        ChainSummarizer(Scripted(), rule=rule)
