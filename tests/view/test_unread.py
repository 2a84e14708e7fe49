"""What the model has not read is whole in its next call, whoever wrote in between."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.integration import log_of
from convstore.summarization import HeadTailSummarizer
from convstore.values.append_options import Columns
from convstore.values.policy import CompactionRule

LONG = "fact " * 800
IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]


@pytest.fixture
async def chat() -> AsyncIterator[Conversation]:
    """A conversation in memory."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        yield store.conversation(user_id="ada", thread_id="t")


def calling(id_: str, *calls: str) -> AIMessage:
    """An AI message with calls."""
    return AIMessage(
        "", id=id_, tool_calls=[{"name": "look", "args": {}, "id": call} for call in calls]
    )


def result(call: str, *, text: str = LONG, id_: str | None = None) -> ToolMessage:
    """A long result."""
    return ToolMessage(text, tool_call_id=call, name="look", id=id_)


async def results(chat: Conversation, policy: HistoryPolicy | None = None) -> list[bool]:
    """For each result in the view, if it is whole."""
    shown = (await chat.load_history(policy)).messages
    return [message.text == LONG for message in shown if message.type == "tool"]


@pytest.mark.parametrize(
    "between",
    [
        [SystemMessage("The user is in a hurry.")],
        [HumanMessage(IMAGE)],
    ],
    ids=["a note", "an image"],
)
async def test_messages_after_a_result_do_not_make_it_a_stub(
    chat: Conversation, between: list[BaseMessage]
) -> None:
    """Until the model has answered."""
    await chat.append([HumanMessage("Page 3?", id="q1"), calling("c1", "a")])
    await chat.append([result("a"), *between])
    assert await results(chat) == [True]
    await chat.append(AIMessage("It says facts."))
    assert await results(chat) == [False]


async def test_messages_of_a_tool_read_nothing(chat: Conversation) -> None:
    """A tool added them to its result, an AI message among them."""
    await chat.append([HumanMessage("Page 3?", id="q1"), calling("c1", "a")])
    added = [HumanMessage("A picture.", id="p"), AIMessage("Noted.", id="n")]
    columns = {str(message.id): Columns("q1", answers="r") for message in added}
    await log_of(chat).append([result("a", id_="r"), *added], columns=columns)
    assert await results(chat) == [True]
    turn = await chat.get_turn("q1")
    assert turn
    assert (turn.is_finished, len(turn.messages)) == (False, 5)
    await chat.append(AIMessage("It says facts."))
    assert await results(chat) == [False]


async def test_the_answer_of_another_run_reads_nothing_of_a_later_turn(chat: Conversation) -> None:
    """Two runs at once: the older one answers while the newer one waits for its model."""
    await chat.append([HumanMessage("First?", id="q1")])
    await chat.append([HumanMessage("Second?", id="q2"), calling("c2", "a")])
    await chat.append(result("a"))
    await chat.append(AIMessage("First answer."), turn="q1")
    assert await results(chat) == [True]


async def test_turns_that_interleave_leave_together(chat: Conversation) -> None:
    """A model went on with the first question after the second one was asked: its call stays with its result."""
    await chat.append([HumanMessage("First?", id="q1"), calling("c1", "a")])
    await chat.append(HumanMessage("Second?", id="q2"))
    await chat.append([result("a"), AIMessage("First answer.", id="x1")], turn="q1")
    history = await chat.load_history(HistoryPolicy(max_turns=1))
    assert [message.type for message in history.messages] == ["human", "ai", "tool", "human", "ai"]
    assert (history.report.left_out_turns, history.report.late_results) == (0, ())


@pytest.mark.parametrize("words", [1, 1_500])
async def test_the_newest_question_stays_when_the_steps_around_it_leave(
    chat: Conversation, words: int
) -> None:
    """A model went on with the first question after the second one, which may be long and is in progress."""
    await chat.append([HumanMessage("First?", id="q1"), calling("c1", "a"), result("a")])
    await chat.append(HumanMessage("Second " * words, id="q2"))
    await chat.append([calling("c2", "b"), result("b")], turn="q1")
    for number in range(40):
        step = [calling(f"d{number}", f"e{number}"), result(f"e{number}")]
        await chat.append(step, turn="q2")
    history = await chat.load_history(HistoryPolicy(max_tokens=4_000))
    shown = [message.id for message in history.messages]
    assert history.report.left_out_steps > 0
    assert "c2" not in shown
    assert [id_ for id_ in shown if id_ in ("q1", "q2")] == ["q1", "q2"]
    assert not history.report.over_budget


async def test_a_result_of_a_call_that_was_rewound_answers_no_other_turn(
    chat: Conversation,
) -> None:
    """A tool ran while its call was rewound; an earlier turn has an open call with the same id."""
    await chat.append([HumanMessage("First?", id="q1"), calling("c1", "a")])
    async with await chat.turn("q2", human="Second?") as turn:
        await turn.append(calling("c2", "a"))
        await chat.rewind(before_id="c2")
        await turn.add_result(turn.open_calls[0], "found for the second")
    history = await chat.load_history()
    assert "found for the second" not in [message.text for message in history.messages]
    assert len(history.report.orphans) == len(history.report.missing_results) == 1


async def test_what_was_a_stub_stays_one_when_an_earlier_run_goes_on(chat: Conversation) -> None:
    """Its form was decided when the newer question was asked; its turn and the newer one are one then."""
    await chat.append(
        [HumanMessage("First?", id="q1"), calling("c1", "a"), result("a"), calling("c2", "b")]
    )
    await chat.append(HumanMessage("Second?", id="q2"))
    assert (await results(chat))[0] is False
    await chat.append([result("b"), AIMessage("First answer.")], turn="q1")
    assert await results(chat) == [False, True]


async def test_a_reply_reads_only_what_its_view_showed(chat: Conversation) -> None:
    """A result that came while the model was asked stays whole."""
    await chat.append([HumanMessage("Both?", id="q1"), calling("c1", "a", "b"), result("a")])
    stamp = (await chat.load_history()).stamp
    await chat.append(result("b"))
    await chat.append(calling("c2", "c"), stamp=stamp)
    await chat.append(result("c"))
    policy = HistoryPolicy(max_tokens=1_000)
    assert await results(chat, policy) == [True, True, True]


async def test_the_stamp_of_an_extended_view_does_not_say_what_the_model_saw(
    chat: Conversation,
) -> None:
    """A graph adds messages of its state to the view, which may replace those that the view made up."""
    await chat.append([HumanMessage("Both?", id="q1"), calling("c1", "a")])
    history = await chat.load_history()
    stamps = [
        history.stamp,
        history.stamp_for([*history.messages, HumanMessage("And?")]),
        history.stamp_for(history.messages, adapted=True),
        history.stamp_for(history.messages, entry=5),
    ]
    assert [stamp.ordinal if stamp else None for stamp in stamps] == [2, 0, 0, 0]


async def test_what_a_dead_agent_left_is_whole_once_up_to_a_quarter(chat: Conversation) -> None:
    """The newest results first, as decided when the next turn began; then all are stubs."""
    calls = [f"call-{number}" for number in range(40)]
    await chat.append([HumanMessage("Read all.", id="q1"), calling("c1", *calls)])
    await chat.append([result(call) for call in calls])
    await chat.append(HumanMessage("Are you there?", id="q2"))
    began = await results(chat)
    assert began == sorted(began)
    assert 2 <= sum(began) <= 8_000 // 1_000
    await chat.append([calling("c2", "z"), result("z")])
    assert await results(chat) == [*began, True]
    await chat.append(AIMessage("Yes."))
    assert not any(await results(chat))


async def test_what_a_person_ended_counts_as_read(chat: Conversation) -> None:
    """A turn that ends with the result of its tool."""
    async with await chat.turn("q1", human="Book it.") as turn:
        await turn.append(calling("c1", "a"))
        await turn.add_result(turn.open_calls[0], LONG)
        assert await results(chat) == [True]
        await turn.finish()
    assert await results(chat) == [False]
    await chat.append(HumanMessage("Thanks!"))
    assert await results(chat) == [False]


async def test_a_turn_whose_end_was_rewound_keeps_what_is_unread(chat: Conversation) -> None:
    """It goes on, and what it leaves unread is whole in the next turn."""
    await chat.append([HumanMessage("Page 3?", id="q1"), calling("c1", "a")])
    await chat.append(calling("c2", "b"))
    await chat.stop("q1")
    await chat.rewind(before_id="c2")
    await chat.append(result("a"))
    assert await results(chat) == [True]
    await chat.append(HumanMessage("And?"))
    assert await results(chat) == [True]


async def test_a_summary_covers_nothing_unread() -> None:
    """The next turn sees what an agent that died has found."""
    rule = CompactionRule(
        max_tokens_before_summary=1_000, max_summary_tokens=200, keep_last_turns=0
    )
    async with await ConversationStore.connect(
        "memory://", summarizer=HeadTailSummarizer(rule)
    ) as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        await chat.append([HumanMessage("Orcas? " * 800), AIMessage("Yes. " * 800)])
        await chat.append([HumanMessage("Read it."), calling("c1", "a"), result("a")])
        await chat.append(HumanMessage("Are you there?"))
        await chat.compact(force=True)
        assert await results(chat) == [True]


@pytest.mark.parametrize("budget", [3_000, 8_000])
async def test_a_turn_that_began_with_thinking_begins_with_it_as_long_as_it_is_open(
    chat: Conversation, budget: int
) -> None:
    """Anthropic refuses a request without it; the other steps leave, and the view is within the budget."""
    thinking = {"type": "thinking", "thinking": "I read all files.", "signature": "c2lnbmF0dXJl"}
    await chat.append(HumanMessage("Read all.", id="q1"))
    for number in range(24):
        step = calling(f"c{number}", str(number))
        await chat.append(
            [
                step.model_copy(update={"content": [thinking]}) if number == 0 else step,
                result(str(number)),
            ]
        )
    history = await chat.load_history(HistoryPolicy(max_tokens=budget))
    said = [message for message in history.messages if message.type == "ai"]
    assert [message.id for message in said][:1] == ["c0"]
    assert said[0].content == [thinking]
    assert len(said) < 20
    assert history.tokens <= budget
    await chat.append(AIMessage("Done."))
    assert (await chat.load_history(HistoryPolicy(max_tokens=budget))).tokens <= budget
