"""Views of awkward conversations keep what is promised, under any policy and any token counter."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from awkward_talk import COUNTERS, Talk, count_characters, policy_of
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately
from properties import sampled, soaked
from view_promises import broken

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.messages.tokens import approximate_tokens

BUDGETS = (2_000, 4_000, 8_000, 32_000)
LONG = "word " * 5_000


def _opened(database: Any, counter: Any) -> ConversationStore:
    store = ConversationStore(database, token_counter=counter)
    store._host.schema.is_ready = True
    return store


@pytest.mark.costly
@pytest.mark.parametrize("seed", sampled(range(14, 44), every=15) + soaked(range(44, 74), first=0))
async def test_views_of_awkward_conversations_keep_their_promises(database: Any, seed: int) -> None:
    """Sizes are exact and within the budget, calls have their results, and nothing changes unreported.

    Two loads and two processes see the same, and the stamp of each view rebuilds it.
    """
    chosen, scope = random.Random(seed), {"user_id": "ada", "thread_id": uuid.uuid4().hex}
    counter, budget = chosen.choice(COUNTERS), chosen.choice(BUDGETS)
    stores, policy = [_opened(database, counter) for _ in range(2)], policy_of(chosen, budget)
    chat, other = (store.conversation(**scope) for store in stores)
    talk, views = (
        Talk(chosen, budget, per_token=1 if counter is count_characters else 4),
        list[Any](),
    )
    for batch, is_call in talk.batches():
        await chat.append(batch)
        if chosen.random() < 0.03:
            await talk.rewind(chat)
        if not is_call:
            continue
        history = await chat.load_history(policy)
        assert not broken(history, talk, policy, counter)
        reader = other if chosen.random() < 0.3 else chat
        assert (await reader.load_history(policy)).messages == history.messages
        views.append(history)
        if len(views) == 12:
            break
    for history in views[::3]:
        past = await other.view_at(history.stamp)
        assert (past.match, past.messages, past.tokens) == (
            "exact",
            history.messages,
            history.tokens,
        )
    for store in stores:
        await store.close()


async def _steps(chat: Conversation, number: int, tokens: int, name: str = "shell") -> list[str]:
    """Append a question and so many steps with a result of some tokens; return the ids of the results."""
    await chat.append(HumanMessage("Go on."))
    ids = []
    for at in range(number):
        call = AIMessage("", tool_calls=[{"name": name, "args": {"at": at}, "id": f"call {at}"}])
        result = ToolMessage("word " * (tokens * 4 // 5), tool_call_id=f"call {at}", name=name)
        await chat.append([call, result])
        ids.append(str(result.id))
    return ids


@pytest.mark.parametrize("option", [{"stub_tools": "never"}, {"never_stub": frozenset({"shell"})}])
async def test_steps_with_whole_results_leave_if_the_view_exceeds_its_budget(
    chat: Conversation, option: dict[str, Any]
) -> None:
    """Results that the policy never shows as stubs make no view exceed the budget: the oldest steps leave."""
    policy = HistoryPolicy(max_tokens=8_000, **option)
    ids = await _steps(chat, 8, 2_000)
    history = await chat.load_history(policy)
    shown = [message.id for message in history.messages if message.type == "tool"]
    assert history.tokens == approximate_tokens(history.messages) <= 8_000
    assert shown == ids[-len(shown) :]
    assert len(shown) >= 2
    past = await chat.view_at(history.stamp)
    assert (past.match, past.messages) == ("exact", history.messages)


async def test_the_last_step_is_whole_after_a_rewind(chat: Conversation) -> None:
    """A model that is asked again for a message in a turn reads the results before it, though later steps condensed."""
    policy = HistoryPolicy(max_tokens=8_000)
    ids = await _steps(chat, 8, 2_000)
    await chat.load_history(policy)
    messages = [message async for message in chat.messages(rewound=True)]
    last = next(at for at, message in enumerate(messages) if message.id == ids[4])
    await chat.rewind(before_id=str(messages[last + 1].id))
    history = await chat.load_history(policy)
    assert history.messages[-1].content == messages[last].content
    assert ids[4] not in history.report.stubbed
    assert history.report.left_out_steps < 5


async def test_images_stay_in_a_shortened_turn(chat: Conversation) -> None:
    """`media="never"` keeps an image in a turn whose text is shortened, wherever the image is stored."""
    image = {"type": "image", "base64": "A" * 40_000, "mime_type": "image/png"}
    asked = HumanMessage([{"type": "text", "text": LONG}, image])
    policy = HistoryPolicy(max_tokens=4_000, media="never")
    await chat.append([asked, AIMessage("A cat."), HumanMessage("Sure?")])
    for _ in range(2):
        history = await chat.load_history(policy)
        assert history.tokens == approximate_tokens(history.messages) <= 4_000
        assert history.report.shortened == (asked.id,)
        assert image in history.messages[0].content


DENSE = "海" * 33_000
SHAPES: dict[str, list[BaseMessage]] = {
    "images": [
        HumanMessage([{"type": "image", "base64": "A" * 400}] * 40, id="h"),
        AIMessage("So.", id="z"),
    ],
    "many texts": [
        AIMessage(
            "", tool_calls=[{"name": "f", "args": {"t": ["word " * 80] * 900}, "id": "c"}], id="z"
        )
    ],
    "numbers": [
        AIMessage(
            "", tool_calls=[{"name": "f", "args": {"n": [*range(30_000)]}, "id": "c"}], id="z"
        )
    ],
    "dense reasoning": [
        AIMessage(
            [{"type": "thinking", "thinking": DENSE}, {"type": "text", "text": LONG * 8}], id="z"
        )
    ],
}


@pytest.mark.costly
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_newest_turn_of_any_shape_keeps_to_the_budget(
    chat: Conversation, shape: str
) -> None:
    """What cannot be cut counts, and arguments of many texts or numbers are cut as one text."""
    policy = HistoryPolicy(max_tokens=32_000, media="never")
    large = SHAPES[shape]
    results = [ToolMessage("ok", tool_call_id="c")] if getattr(large[0], "tool_calls", None) else []
    end = [AIMessage("Done.")] if results else []
    await chat.append([HumanMessage("First."), *large, *results, *end, HumanMessage("And now?")])
    history = await chat.load_history(policy)
    assert history.tokens == approximate_tokens(history.messages) <= 32_000


async def test_results_made_up_for_tools_with_long_names_count(chat: Conversation) -> None:
    """The view says of each call without a result that it has none, with the name of its tool."""
    calls = [{"name": "n" * 3_000, "args": {}, "id": f"c{at}"} for at in range(8)]
    await chat.append(
        [HumanMessage("First."), AIMessage("", tool_calls=calls), AIMessage("Sorry.")]
    )
    await chat.append([HumanMessage("And now?")])
    history = await chat.load_history(HistoryPolicy(max_tokens=12_000))
    assert history.tokens == approximate_tokens(history.messages) <= 12_000


def _count_all(messages: Sequence[BaseMessage]) -> int:
    """A counter that counts reasoning beside the content, as some providers send it."""
    return sum(len(message.text + str(message.additional_kwargs)) for message in messages)


async def test_reasoning_beside_the_content_counts(database: Any, scope: dict[str, str]) -> None:
    """What a shortened message has in `additional_kwargs` stays, and counts if the counter counts it."""
    store = _opened(database, _count_all)
    chat, policy = store.conversation(**scope), HistoryPolicy(max_tokens=32_000)
    said = AIMessage(LONG * 2, additional_kwargs={"reasoning_content": "so " * 11_000})
    await chat.append([HumanMessage("First."), said, HumanMessage("And now?")])
    history = await chat.load_history(policy)
    assert history.tokens == _count_all(history.messages) <= 32_000
    await store.close()


async def test_reasoning_counts_beside_arguments_that_the_counter_leaves_out(
    database: Any, scope: dict[str, str]
) -> None:
    """LangChain's counter counts a list of blocks, but not the calls beside it."""
    store = _opened(database, count_tokens_approximately)
    chat, policy = store.conversation(**scope), HistoryPolicy(max_tokens=32_000)
    call = {"name": "f", "args": {"text": "word " * 60_000}, "id": "c"}
    asked = AIMessage([{"type": "reasoning", "reasoning": "so " * 37_000}], tool_calls=[call])
    await chat.append(
        [HumanMessage("First."), asked, ToolMessage("ok", tool_call_id="c"), AIMessage("Done.")]
    )
    await chat.append(HumanMessage(LONG))
    history = await chat.load_history(policy)
    assert (
        history.tokens
        == sum(count_tokens_approximately([message]) for message in history.messages)
        <= 32_000
    )
    await store.close()
