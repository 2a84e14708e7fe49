"""Items of a log under rewinds: what is shown is what a plain list of all that was appended would show."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from counting import STANDING, Commands, cold
from fixture_types import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage

from convstore import Conversation, ConversationStore
from convstore.exceptions import BrokenLogError
from convstore.readback import items
from convstore.types import LogItem

# an append: True for a message, False for an item
_STEPS = st.lists(
    st.one_of(
        st.lists(st.booleans(), min_size=1, max_size=3),
        st.floats(0, 0.99),  # a rewind to something active
        st.none(),  # an undo
    ),
    min_size=2,
    max_size=10,
)


async def _shown(chat: Conversation) -> list[str]:
    """Return the ids of active messages and items, in order."""
    said = [
        (message.ordinal, 0, str(message.message.id))
        for message in await chat.list_messages(limit=100)
    ]
    others = [(item.after, place, item.id) async for place, item in _numbered(chat)]
    return [id_ for *_, id_ in sorted([*said, *others])]


async def _numbered(chat: Conversation) -> AsyncIterator[Any]:
    place = 0
    async for item in chat.items():
        yield (place := place + 1), item


def _made(kinds: list[bool], number: int) -> list[Any]:
    ids = [f"{number}.{index}" for index in range(len(kinds))]
    return [
        HumanMessage("text", id=id_) if is_message else LogItem(kind="k", data=id_, id=id_)
        for is_message, id_ in zip(kinds, ids, strict=True)
    ]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(steps=_STEPS)
async def test_rewinds_take_and_undoing_them_returns_items_as_a_list_does(steps: list[Any]) -> None:
    """In any order of appends, rewinds to a message or an item, and undoing them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(items, "_PAGE", 2)  # read in pages
        await _rewound_as_a_list(steps)


async def _rewound_as_a_list(steps: list[Any]) -> None:
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat, shown, before = (
            store.conversation(user_id="ada", thread_id="t"),
            list[str](),
            list[list[str]](),
        )
        for number, step in enumerate(steps):
            if isinstance(step, list):
                made = _made(step, number)
                await chat.append(made)
                shown = [*shown, *(item.id for item in made)]
            elif step is None:
                await chat.undo_rewind()
                shown = before.pop() if before else shown
            elif shown:
                place = int(step * len(shown))
                await chat.rewind(before_id=shown[place])
                before.append(shown)
                shown = shown[:place]
            assert await _shown(chat) == shown
            after, end = number // 2, number // 2 + 2
            page = [item.id async for item in chat.items() if after <= item.after < end]
            assert [item.id async for item in chat.items(after=after, before=end)] == page
        assert not (await store.verify()).findings


async def test_a_page_of_items_costs_what_it_holds(
    client: Client, database_name: str, commands: Commands
) -> None:
    """The end of the log, and the appends with items of the page, however many come before and after it."""
    store = ConversationStore(client[database_name], clock=STANDING)
    await store.setup()
    chat = store.conversation(user_id="counted", thread_id="items")
    for kinds in [[True, False], [False], [True]] * 8:
        await chat.append(_made(kinds, (await chat.info()).message_count))
    for after, before, read in ((7, 10, 4), (15, None, 2), (None, 1, 0)):
        with commands.counted():
            found = [item.after async for item in chat.items(after=after, before=before)]
        assert len(found) == read
        assert (commands.names, commands.documents) == (["find", "find"], 1 + read)
    last = [item.id async for item in chat.items(after=15)][-1]
    with commands.counted():
        await chat.rewind(before_id=last)
    assert commands.documents < 10


@pytest.mark.slow
async def test_a_load_does_not_read_entries_with_only_items(
    client: Client, database_name: str, commands: Commands
) -> None:
    """Between messages, in a process that knows the log or not; what they precede is still checked."""
    store = ConversationStore(client[database_name], clock=STANDING)
    await store.setup()
    chat = store.conversation(user_id="counted", thread_id="load")
    await chat.append([HumanMessage("q", id="q")])
    await chat.load_history()
    for number in range(40):
        await chat.append(_made([False], number))
    await chat.append([HumanMessage("then", id="then")])
    for handle, documents in ((chat, 3), (cold(client, database_name, chat), 4)):
        with commands.counted():
            history = await handle.load_history()
        assert [message.id for message in history.messages] == ["q", "then"]
        assert commands.documents == documents  # the state and two entries; the head
        assert history.report.documents == documents
    await chat.append([HumanMessage("last", id="last")])
    await client[database_name]["log"].delete_one({"messages.id": "then"})
    with pytest.raises(BrokenLogError, match="missing"):
        await cold(client, database_name, chat).load_history()
