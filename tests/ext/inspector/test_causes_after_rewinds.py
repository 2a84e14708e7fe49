"""The cause of a past cache break is that of its time: rewinds and other answers since then do not change it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import httpx
import pytest
from conftest import text_in
from fixture_types import Browse
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore
from convstore.cli.show_calls import calls_answer
from convstore.ext.model_calls import CachedPrefix, Calls, ModelCall, cached_prefix
from convstore.messages.provenance import mark
from convstore.values.stamps import MESSAGES_CHANGED, ViewMarks, ViewStamp, break_between

CAUSES = {2: "", 4: "", 6: "turn ended", 8: "", 10: "turn ended", 12: ""}


@pytest.mark.parametrize(
    "way",
    [
        "another answer",
        pytest.param("r1", marks=pytest.mark.slow),
        pytest.param("r2", marks=pytest.mark.slow),
    ],
)
async def test_rewinds_and_other_answers_keep_the_causes_of_past_calls(
    store: ConversationStore, browse: Browse, way: str
) -> None:
    """The overview, the strip, the head, the tab Changes and `show --why` have the same ones before and after."""
    chat = store.conversation(user_id="ada", thread_id=way)
    await ask(chat, "r1", "r2", "r3")
    before = await causes(chat)
    assert await causes(chat) == CAUSES
    if way == "another answer":
        await answer(chat, "r1", regenerate="again")
    else:
        await chat.rewind(before_id=way)
    after = await rows(chat)
    assert {row["ordinal"]: row["cause"] for row in after if row["ordinal"] in CAUSES} == before
    replaced = {row["ordinal"] for row in after if row["is_rewound"]}
    assert replaced == {row for row in CAUSES if row > (4 if way == "r2" else 0)}
    assert [row["ordinal"] for row in after if row["cache"] == "first call"] == [2]
    client = browse()
    here = await address(chat)
    shown = await overview(client, here)
    assert {at: shown[at] for at in CAUSES} == before
    for at in (6, 8, 10):
        page = (await client.get(f"{here}/changes?at={at}")).text
        assert (f"expected, {CAUSES[at]}" in page) == bool(CAUSES[at])
        assert ("Cache broken, as expected" in page) == bool(CAUSES[at])
        assert "no call before" not in page
        assert ("as its turn ended" in page) == bool(CAUSES[at])
        assert "as its turn is long" not in page
        assert re.search(r"Call for message \d+: [\d,]+ tokens, rewound", page)


@pytest.mark.slow
async def test_what_follows_a_rewind_is_new_and_breaks_no_cache(
    store: ConversationStore, browse: Browse
) -> None:
    """A call for another answer begins as the call before does, and the turns that were rewound were not left out.

    Both stay so when the call itself is rewound.
    """
    chat = store.conversation(user_id="ada", thread_id="another")
    await ask(chat, "r1", "r2", "r3")
    await answer(chat, "r1", regenerate="again")
    await chat.rewind(before_id="r1")
    await ask(chat, "r4")
    after = {row["ordinal"]: (row["cache"], row["cause"]) for row in await rows(chat)}
    assert (after[13], after[17]) == (("held", ""), ("held", ""))
    client = browse()
    here = await address(chat)
    shown = await overview(client, here)
    assert (shown[13], shown[17]) == ("", "")
    for at in (13, 17):
        page = text_in((await client.get(f"{here}/changes?at={at}")).text)
        assert "Cache held" in page
        assert "because all after them is new" in page
    await chat.rewind(before_id="r4")
    assert (await causes(chat)) == {at: cause for at, (_, cause) in after.items() if at}
    shown = await overview(client, here)
    assert (shown[13], shown[17]) == ("", "")


async def test_a_result_that_is_whole_again_after_a_rewind_breaks_the_cache(
    store: ConversationStore, browse: Browse
) -> None:
    """Its turn had ended, and goes on: the overview and `show --why` say that earlier messages changed."""
    chat = store.conversation(user_id="ada", thread_id="whole again")
    await ask(chat, "r1", "r2")
    said = [message async for message in chat.messages()][3]
    await chat.rewind(before_id=str(said.id))
    async with await chat.turn("r1") as turn:
        await turn.append(AIMessage("Fish."), stamp=(await turn.load_history()).stamp)
    client = browse()
    here = await address(chat)
    assert (await causes(chat))[9] == MESSAGES_CHANGED
    assert (await overview(client, here))[9] == MESSAGES_CHANGED
    page = (await client.get(f"{here}/changes?at=9")).text
    assert f"expected, {MESSAGES_CHANGED}" in page
    assert f">9</a> ({MESSAGES_CHANGED})" in page


@pytest.mark.slow
async def test_turns_that_were_replaced_have_no_number(
    store: ConversationStore, browse: Browse
) -> None:
    """Their heading says so, and the turn whose answer was replaced goes on below them."""
    chat = store.conversation(user_id="ada", thread_id="headings")
    await ask(chat, "r1", "r2")
    await answer(chat, "r1", regenerate="again")
    await ask(chat, "r3")
    client = browse()
    here = await address(chat)
    expected = ["Turn 1", "Rewound or replaced", "Turn 1, continued", "Turn 2"]
    for at in ("", "?at=6"):
        page = (await client.get(f"{here}{at}")).text
        titles = re.findall(r"<h2>([^<]+)<span>", page)
        assert titles == expected[: 3 if at else 4]


def test_stamps_say_what_a_rewind_gives_back() -> None:
    """Turns that were left out are shown again; the mark of stubs goes back without any new stub."""
    for old, new, cause in (
        (ViewMarks(start=20), ViewMarks(start=5), "earlier turns shown again"),
        (ViewMarks(start=5), ViewMarks(start=20), "turns left out"),
        (ViewMarks(stubs_through=9), ViewMarks(stubs_through=3), ""),
        (ViewMarks(stubs_through=3), ViewMarks(stubs_through=9), "results became stubs"),
    ):
        before = ViewStamp(conversation_id="c", messages=9, marks=old)
        assert break_between(before, before.model_copy(update={"marks": new})) == cause


async def test_the_calls_around_a_moment(store: ConversationStore) -> None:
    """The call before and after it, and the turns that had ended; a question without an answer is in progress."""
    chat = store.conversation(user_id="ada", thread_id="the calls around a moment")
    for number in "12":
        call = {"name": "look", "args": {}, "id": number}
        await chat.append([HumanMessage("Orcas?"), AIMessage("", tool_calls=[call])])
        await chat.append([ToolMessage("5", tool_call_id=number), AIMessage("Five.")])
    near = await chat.list_messages()
    now = Calls(near, None)
    then = Calls(near, near[5])
    around = [now.previous, now.next, then.previous, then.next]
    assert [call.ordinal if call else 0 for call in around] == [8, 0, 4, 8]
    assert now.is_answered
    assert [now.has_ended(5), then.has_ended(1), then.has_ended(5)] == [True, True, False]
    assert [now.has_beginning, Calls(near[1:], None).has_beginning] == [True, False]
    await chat.append(HumanMessage("And seals?"))
    asked = Calls(await chat.list_messages(), None)
    assert not asked.is_answered
    assert [asked.has_ended(5), asked.has_ended(9)] == [True, False]
    calling = Calls(near[:6], None)
    assert [calling.is_answered, calling.has_ended(1), calling.has_ended(5)] == [False, True, False]
    nothing = Calls([], None)
    assert (nothing.previous, nothing.is_answered, nothing.has_beginning) == (None, False, True)


async def test_a_call_without_a_stamp_tells_nothing(store: ConversationStore) -> None:
    """It is compared if there is no other, and another model is no cause where nothing is known."""
    chat = store.conversation(user_id="ada", thread_id="a call without a stamp tells nothing")
    for _ in range(3):
        await chat.append([HumanMessage("Orcas?"), AIMessage("Yes.")])
    stamp = (await chat.load_history()).stamp
    calls = Calls(await chat.list_messages(), None).all
    stamped = [calls[0], replace(calls[1], stamp=stamp), calls[2]]

    def before(earlier: list[ModelCall], stamp: ViewStamp | None) -> ModelCall | None:
        call = ModelCall(9, stamp=stamp)
        call.compare(earlier)
        return call.before

    assert before(stamped, stamp) is stamped[1]
    assert before(stamped, None) is before(calls, stamp) is calls[2]
    assert before([], stamp) is None
    for old, new, cause in (
        (stamp, stamp, "another model"),
        (None, stamp, ""),
        (stamp, None, ""),
    ):
        call = ModelCall(9, stamp=new, model="claude")
        call.compare([ModelCall(8, stamp=old, model="gpt-5")])
        assert call.cut_by == cause


async def test_the_views_decide_what_held(store: ConversationStore) -> None:
    """If both are as they were: what follows the common beginning may be new, but not changed or made for the view."""
    chat = store.conversation(user_id="ada", thread_id="the views decide what held")
    await chat.append([HumanMessage(f"Question {number}.", id=f"q{number}") for number in range(3)])
    view = await chat.view_at(None)
    first, *_ = view.messages
    changed = HumanMessage("Shorter.", id="q1")
    new = HumanMessage("New.", id="new")
    note = HumanMessage("Note.", id="note", additional_kwargs=mark("note"))

    def kept(*after: HumanMessage, cut_by: str = "", match: str = "rebuilt") -> CachedPrefix:
        messages = [first, *after]
        later = view.model_copy(update={"messages": messages, "match": match})
        return cached_prefix(view, later, cut_by)

    assert kept(*view.messages[1:], new, cut_by="turn ended") == CachedPrefix(3, "")
    assert kept(new) == CachedPrefix(1, "")
    assert kept(changed, new) == kept(new, note) == CachedPrefix(1, MESSAGES_CHANGED)
    assert kept(changed, match="differs") == CachedPrefix(1, "")
    assert kept(changed, cut_by="turn ended") == CachedPrefix(1, "turn ended")
    assert kept(new, cut_by="turns left out") == CachedPrefix(1, "")
    assert kept(new, cut_by="another model") == CachedPrefix(0, "another model")


async def ask(chat: Conversation, *turns: str) -> None:
    """Ask questions, each answered after a call of a tool."""
    for turn_id in turns:
        await answer(chat, turn_id, human=HumanMessage("What do orcas eat?"))


async def answer(chat: Conversation, turn_id: str, **options: Any) -> None:
    """Answer a turn after a call of a tool."""
    async with await chat.turn(turn_id, **options) as turn:
        search = {"name": "search", "args": {}, "id": "c"}
        stamp = (await turn.load_history()).stamp
        await turn.append(AIMessage("", tool_calls=[search]), stamp=stamp)
        await turn.add_result(turn.open_calls[0], "orca " * 300)
        await turn.append(AIMessage("Seals."), stamp=(await turn.load_history()).stamp)


async def rows(chat: Conversation) -> list[dict[str, Any]]:
    """The rows of `show --why`."""
    found = await calls_answer(chat, limit=100, before=None)
    return json.loads(json.dumps(found.document(), default=str))["calls"]


async def causes(chat: Conversation) -> dict[int, str]:
    """The causes that `show --why` names."""
    return {row["ordinal"]: row["cause"] for row in await rows(chat) if row["ordinal"]}


async def address(chat: Conversation) -> str:
    """The path of a conversation's page."""
    return f"/c/{(await chat.info()).conversation_id}"


async def overview(client: httpx.AsyncClient, here: str) -> dict[int, str]:
    """The causes in the overview."""
    page = (await client.get(f"{here}/overview")).text
    found = re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', page, re.DOTALL)
    return {
        int(text_in(name)): "".join(re.findall("cache broken: ([^<]+)", row)) for name, row in found
    }


async def test_another_model_has_a_cache_of_its_own(
    store: ConversationStore, browse: Browse
) -> None:
    """Nothing held at its first call; a model that is asked again has what its own last call left."""
    chat = store.conversation(user_id="ada", thread_id="models")
    for number, model in enumerate(("gpt-5", "gpt-5", "claude", "gpt-5", "claude")):
        await chat.append(HumanMessage(f"Question {number}."))
        stamp = (await chat.load_history()).stamp
        said = AIMessage("Yes.", response_metadata={"model_name": model})
        await chat.append(said, stamp=stamp)
    shown = {row["ordinal"]: (row["cache"], row["cause"]) for row in await rows(chat)}
    held = ("held", "")
    broken = ("broken", "another model")
    first = ("first call", "")
    assert shown == {2: first, 4: held, 6: broken, 8: held, 10: held, None: held}
    client = browse()
    here = await address(chat)
    assert await overview(client, here) == {2: "", 4: "", 6: "another model", 8: "", 10: ""}
    page = text_in((await client.get(f"{here}/changes?at=6")).text)
    assert "another model answered" in page
    assert "Cache broken: none of" in page
    assert "so the cache holds" not in page
