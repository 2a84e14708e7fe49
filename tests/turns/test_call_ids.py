"""Results of calls that a model gave one id: of parallel calls, and of calls in two steps of a turn."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from mongomock_motor import AsyncMongoMockClient

from convstore import Conversation, ConversationStore
from convstore.messages.tool_calls import answers_in, later_result_id, result_id


@pytest.fixture
async def chat() -> Conversation:
    """A conversation in memory."""
    store = ConversationStore(AsyncMongoMockClient()["app"])
    await store.setup()
    return store.conversation(user_id="ada", thread_id="t")


def _asked() -> AIMessage:
    calls = [{"name": "search", "args": {"q": text}, "id": "call_0"} for text in ("one", "two")]
    return AIMessage("", tool_calls=calls)


def _results() -> list[ToolMessage]:
    return [ToolMessage(f"of {text}", tool_call_id="call_0") for text in ("one", "two")]


@pytest.mark.parametrize("is_one_append", [True, False])
async def test_results_answer_the_calls_of_a_message_in_order(
    chat: Conversation, is_one_append: bool
) -> None:
    """The first result without an id is that of the first call, not of the last."""
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        if is_one_append:
            await turn.append([_asked(), *_results()])
        else:
            await turn.append(_asked())
            await turn.append(_results())
        shown = (await turn.load_history()).messages
    assert [message.text for message in shown[2:]] == ["of one", "of two"]


async def test_results_that_are_appended_again_write_nothing(chat: Conversation) -> None:
    """Each is known by its content, as their calls cannot tell them apart."""
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        await turn.append(_asked())
        first = await turn.append(_results())
        again = await turn.append(_results())
        alone = await turn.append(_results()[0])
    assert (again.written, again.message_ids) == (0, first.message_ids)
    assert (alone.written, alone.message_ids) == (0, first.message_ids[:1])


def test_a_later_result_is_that_of_the_call_which_its_id_names() -> None:
    """Also where nothing but the messages says so."""
    call = {"name": "pay", "args": {}, "id": "call_0"}
    steps = [AIMessage("", tool_calls=[call], id=id_) for id_ in ("first", "second")]
    made_for = result_id("first", "call_0")
    result = ToolMessage("1", tool_call_id="call_0", id=later_result_id(made_for, 2))
    assert list(answers_in([*steps, result])) == [made_for]


async def test_a_step_whose_result_was_rewound_is_written_once(chat: Conversation) -> None:
    """Whichever id its result comes with, and though another call has its id and an equal result."""
    call = {"name": "look", "args": {}, "id": "call_0"}
    steps = [AIMessage("", tool_calls=[call], id=id_) for id_ in ("first", "second")]
    results = [
        ToolMessage("ok", tool_call_id="call_0", id=result_id(str(step.id), "call_0"))
        for step in steps
    ]
    async with await chat.turn("r1", human="Look twice.") as turn:
        await turn.append([steps[0], results[0], steps[1], results[1]])
    written = list[str]()
    for before in (2, 3):
        await chat.rewind(before_id=written[-1] if written else str(results[1].id))
        async with await chat.turn("r1") as turn:
            made = await turn.append([steps[1], results[1]])
            assert made.written == 1
            written.append(made.message_ids[-1])
            assert written[-1] == later_result_id(str(results[1].id), before)
            for id_ in (str(results[1].id), *written):
                again = ToolMessage("ok", tool_call_id="call_0", id=id_)
                for batch in ([again], [steps[1], again]):
                    repeated = await turn.append(batch)
                    assert (repeated.written, repeated.message_ids[-1]) == (0, written[-1])


async def test_ids_of_the_application_with_a_point_say_nothing(chat: Conversation) -> None:
    """A reply with a repeated id, and its result, are another step; the result before it has a longer id."""
    call = {"name": "look", "args": {}, "id": "call_0"}
    async with await chat.turn("r1", human="Look twice.") as turn:
        for text, id_ in (("one", "mine.2"), ("two", "mine")):
            result = ToolMessage(text, tool_call_id="call_0", id=id_)
            made = await turn.append([AIMessage("", tool_calls=[call], id="reply"), result])
            assert (made.written, made.message_ids[-1]) == (2, id_)


async def test_a_rejection_is_not_the_result_of_a_later_call_with_the_same_id(
    chat: Conversation,
) -> None:
    """However often its result is rewound, it is given again for its own call; the other call stays open."""
    call = {"name": "pay", "args": {}, "id": "call_0"}
    async with await chat.turn("r1", human="Pay both.") as turn:
        await turn.append(AIMessage("", tool_calls=[call], id="first"))
        await turn.wait_for(turn.open_calls[0])
        [asked] = turn.waiting_calls
    await chat.decide("r1", asked.result_id, "reject")
    for step in ("second", "third"):
        [last] = await chat.list_messages(limit=1)
        await chat.rewind(before_id=str(last.message.id))
        await chat.append(AIMessage("", tool_calls=[call], id=step), turn="r1")
        for _ in range(2):
            async with await chat.turn("r1") as turn:
                assert [call.message_id for call in turn.open_calls] == [step]
                assert [message.type for message in turn.messages[-2:]] == ["ai", "tool"]
        assert turn.messages[-1].text.startswith("User rejected")
        await chat.rewind(before_id=step)
        async with await chat.turn("r1") as turn:
            assert turn.messages[-1].text.startswith("User rejected")
