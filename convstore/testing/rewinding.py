"""Tests of rewinding to edit or regenerate: `rewind`, `undo_rewind`, and the turns and listings after them."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata

from convstore.conversation import Conversation
from convstore.exceptions import InvalidInputError, MessageRewoundError, UnknownMessageError
from convstore.store import ConversationStore
from convstore.testing.fixtures import NewStore, texts_of
from convstore.testing.samples import rag_turn, same_messages
from convstore.values.policy import HistoryPolicy

__all__ = ["RewindContract"]


def _said(messages: list[BaseMessage]) -> list[str]:
    return [message.text for message in messages]


async def _view(chat: Conversation, policy: HistoryPolicy | None = None) -> list[str]:
    return _said((await chat.load_history(policy)).messages)


async def _listed(chat: Conversation) -> list[str]:
    return _said([message.message for message in await chat.list_messages()])


async def _talk(chat: Conversation, *numbers: int) -> None:
    """Finished turns, each appended in two batches; their ids are q1, a1, q2, a2 and so on."""
    for number in numbers:
        await chat.append(HumanMessage(f"q{number}", id=f"q{number}"))
        await chat.append(AIMessage(f"a{number}", id=f"a{number}"))


class RewindContract:
    """`rewind`, `undo_rewind`, `turns`."""

    async def test_what_is_rewound_leaves_views_and_listings_and_stays_in_the_log(
        self, chat: Conversation
    ) -> None:
        """After a rewind another answer can be made; the first one can still be read by its id."""
        await _talk(chat, 1, 2)
        assert await chat.rewind(before_id="a2") == 1
        assert await _view(chat) == await _listed(chat) == ["q1", "a1", "q2"]
        await chat.append(AIMessage("better", id="b2"))
        assert await _view(chat) == await _listed(chat) == ["q1", "a1", "q2", "better"]
        active = ["q1", "a1", "q2", "better"]
        assert [message.text async for message in chat.messages()] == active
        assert [message.text async for turn in chat.turns() for message in turn.messages] == active
        assert await texts_of(chat) == [
            "q1",
            "a1",
            "q2",
            "a2",
            "better",
        ]
        [record] = await chat.get_tool_messages(["a2"])
        assert (record.content, record.ordinal) == ("a2", 4)
        info = await chat.info()
        assert info.message_count == 4
        assert info.last_message is not None
        assert info.last_message.text == "better"

    async def test_rewound_messages_are_listed_on_request(self, chat: Conversation) -> None:
        """Rewound messages are listed at their ordinals and marked, in both directions; each message has its size."""
        await _talk(chat, 1, 2, 3)
        await chat.rewind(before_id="q2")
        await _talk(chat, 4)
        await chat.rewind(before_id="a4")
        listed = await chat.list_messages(rewound=True)
        assert [message.message.text for message in listed] == [
            "q1",
            "a1",
            "q2",
            "a2",
            "q3",
            "a3",
            "q4",
            "a4",
        ]
        assert [message.ordinal for message in listed if message.is_rewound] == [3, 4, 5, 6, 8]
        assert all(message.tokens > 0 for message in listed)
        assert await chat.list_messages(rewound=True, after=2, limit=3) == listed[2:5]
        assert await chat.list_messages(rewound=True, before=5, limit=3) == listed[1:4]
        assert await chat.list_messages(rewound=True, around=4, limit=3) == listed[2:5]
        assert [message.is_rewound for message in await chat.list_messages()] == [False] * 3

    async def test_turns_are_listed_with_what_was_rewound(self, chat: Conversation) -> None:
        """On request, rewound turns and rewound messages of other turns are listed, in both directions."""
        await _talk(chat, 1, 2)
        await chat.rewind(before_id="q2")
        await _talk(chat, 3, 4)
        await chat.rewind(before_id="a3")
        turns = [turn async for turn in chat.turns(rewound=True)]
        assert [
            (turn.number, [message.id for message in turn.messages], turn.rewound) for turn in turns
        ] == [
            (1, ["q1", "a1"], ()),
            (2, ["q2", "a2"], ("q2", "a2")),
            (2, ["q3", "a3"], ("a3",)),
            (3, ["q4", "a4"], ("q4", "a4")),
        ]
        assert [turn.over for turn in turns] == ["answered", "answered", "", "answered"]
        back = [turn async for turn in chat.turns(rewound=True, newest_first=True, limit=2)]
        assert back == turns[:1:-1]
        middle = [turn async for turn in chat.turns(rewound=True, after=1, before=7, limit=1)]
        assert middle == turns[1:2]
        assert [turn.turn_id async for turn in chat.turns()] == ["q1", "q3"]
        with pytest.raises(InvalidInputError, match="rewound"):
            await anext(chat.turns(rewound=None))  # type: ignore[arg-type]

    async def test_a_rewind_in_the_middle_of_a_batch(self, chat: Conversation) -> None:
        """The part of the batch before the message stays, with its open calls."""
        turn = rag_turn("What about seals?")
        await chat.append(turn)
        await chat.rewind(before_id=str(turn[2].id))
        assert isinstance(turn[1], AIMessage)
        call = turn[1].tool_calls[0]["id"]
        result = ToolMessage("nothing", id="other", tool_call_id=str(call))
        await chat.append([result, AIMessage("So", id="so")])
        [record] = await chat.get_tool_messages(["other"])
        assert record.tool == "search"
        assert await _view(chat) == ["What about seals?", "", "nothing", "So"]

    async def test_a_rewind_is_taken_back(self, chat: Conversation) -> None:
        """Rewinds are undone from the newest one on; an undo removes messages appended after the rewind."""
        await _talk(chat, 1, 2, 3)
        assert await chat.rewind(before_id="q3") == 2
        await _talk(chat, 4)
        assert await chat.rewind(before_id="q2") == 4
        await _talk(chat, 5)
        assert await _view(chat) == ["q1", "a1", "q5", "a5"]
        assert await chat.undo_rewind() == 4
        assert await _view(chat) == await _listed(chat) == ["q1", "a1", "q2", "a2", "q4", "a4"]
        assert await chat.undo_rewind() == 2
        assert await _view(chat) == await _listed(chat) == ["q1", "a1", "q2", "a2", "q3", "a3"]
        assert await chat.undo_rewind() == 0
        await _talk(chat, 6)
        assert await _view(chat) == ["q1", "a1", "q2", "a2", "q3", "a3", "q6", "a6"]
        assert len([message async for message in chat.messages(rewound=True)]) == 12

    async def test_the_message_that_left_names_the_rewind_to_take_back(
        self, chat: Conversation
    ) -> None:
        """`undo_rewind(before_id=id)` can be repeated. It refuses an id that the last rewind did not remove."""
        await _talk(chat, 1, 2, 3)
        await chat.rewind(before_id="q3")
        await chat.rewind(before_id="q2")
        with pytest.raises(InvalidInputError, match="'q3' was not rewound by the last rewind"):
            await chat.undo_rewind(before_id="q3")
        assert [await chat.undo_rewind(before_id="q2") for _ in range(2)] == [2, 0]
        assert await _view(chat) == ["q1", "a1", "q2", "a2"]
        await _talk(chat, 4)
        assert [await chat.undo_rewind(before_id="a3") for _ in range(2)] == [2, 0]
        assert await _view(chat) == ["q1", "a1", "q2", "a2", "q3", "a3"]
        with pytest.raises(InvalidInputError, match="'q4' was not rewound"):
            await chat.undo_rewind(before_id="q4")
        with pytest.raises(UnknownMessageError):
            await chat.undo_rewind(before_id="nobody")

    async def test_a_repeated_rewind_changes_nothing(self, chat: Conversation) -> None:
        """A rewind before a message that is already rewound returns 0 and changes nothing."""
        await _talk(chat, 1, 2)
        assert await chat.rewind(before_id="q2") == 2
        await _talk(chat, 3)
        assert await chat.rewind(before_id="q2") == await chat.rewind(before_id="a2") == 0
        assert await _view(chat) == ["q1", "a1", "q3", "a3"]

    async def test_what_was_used_stays_used(self, chat: Conversation) -> None:
        """A rewind does not reduce the billed usage."""
        counts = UsageMetadata(input_tokens=10, output_tokens=5, total_tokens=15)
        await chat.append([HumanMessage("q"), AIMessage("a", id="a", usage_metadata=counts)])
        before = await chat.info()
        assert before.usage["unknown"]["total_tokens"] == 15
        assert before.bytes > 0
        for change in (chat.rewind(before_id="a"), chat.undo_rewind()):
            await change
            info = await chat.info()
            assert (info.usage, info.bytes) == (before.usage, before.bytes)

    async def test_listings_show_the_last_message_that_is_live(self, chat: Conversation) -> None:
        """The preview shows the last active message, after a rewind and after its undo."""
        await _talk(chat, 1, 2)
        for step, text in (
            (chat.rewind(before_id="a2"), "q2"),
            (chat.rewind(before_id="q2"), "a1"),
            (chat.undo_rewind(), "q2"),
        ):
            await step
            preview = (await chat.info()).last_message
            assert preview is not None
            assert preview.text == text

    async def test_what_was_rewound_is_not_appended_again_unseen(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A rewound id is refused by every process, because the message would be missing from views."""
        await _talk(chat, 1, 2)
        await chat.rewind(before_id="q2")
        for conversation in (chat, elsewhere):
            with pytest.raises(MessageRewoundError, match="undo_rewind"):
                await conversation.append(
                    [HumanMessage("new", id="new"), HumanMessage("q2", id="q2")]
                )
        assert await _view(chat) == ["q1", "a1"]
        assert (await chat.append(HumanMessage("q1", id="q1"))).ordinals == (1,)

    async def test_turns_are_those_of_one_moment(self, chat: Conversation) -> None:
        """Rewinds and appends during the read do not change the turns that it returns."""
        await _talk(chat, *range(1, 130))
        numbers = []
        async for turn in chat.turns():
            numbers.append(turn.number)
            if turn.number == 2:
                await chat.rewind(before_id="q120")
                await _talk(chat, 200)
        assert numbers == list(range(1, 130))

    async def test_a_whole_conversation_is_rewound(self, chat: Conversation) -> None:
        """After a complete rewind the conversation begins again, with other system messages, too."""
        await _talk(chat, 1, 2)
        await chat.rewind(before_id="q1")
        assert await _view(chat) == await _listed(chat) == []
        await _talk(chat, 3)
        assert await _view(chat, HistoryPolicy(max_turns=1)) == await _view(chat) == ["q3", "a3"]

    async def test_every_process_sees_it(self, chat: Conversation, new_store: NewStore) -> None:
        """Stores with and without a cache see the rewind; later appends follow it."""
        other = new_store().conversation(**chat.scope)
        await _talk(chat, 1, 2, 3)
        assert await _view(other) == ["q1", "a1", "q2", "a2", "q3", "a3"]
        await chat.rewind(before_id="q2")
        cold = new_store().conversation(**chat.scope)
        for conversation in (other, cold, chat):
            assert await _view(conversation) == await _listed(conversation) == ["q1", "a1"]
        await _talk(other, 4)
        for conversation in (chat, cold, new_store().conversation(**chat.scope)):
            assert await _view(conversation) == ["q1", "a1", "q4", "a4"]

    async def test_sources_that_were_rewound_are_read_but_not_listed(
        self, chat: Conversation
    ) -> None:
        """Rewound sources are readable by number, but notes and lists omit them. Their numbers are not reused."""
        first = rag_turn("What about seals?")
        second = rag_turn("What about orcas?")
        await chat.append(first)
        await chat.append(second)
        await chat.rewind(before_id=str(second[0].id))
        receipt = await chat.append(rag_turn("What about fish?"))
        assert receipt.source_ids == (7, 9)
        assert (await chat.get_sources([5])).sources[0].title == "Orcas 2"
        tool = chat.retrieve_previous_sources_tool()
        assert "source ids 4-6" not in await tool.ainvoke({})
        assert "source ids 1-3" in await tool.ainvoke({})
        await chat.append(HumanMessage("and?"))
        note = (await chat.load_history(HistoryPolicy(max_turns=1))).messages[0].text
        assert "newest tool message ids: m11 (source ids 7-9), m3 (source ids 1-3).]" in note

    async def test_pages_of_a_listing_pass_over_what_was_rewound(self, chat: Conversation) -> None:
        """Listings skip rewound messages in both directions, at any page size."""
        await _talk(chat, *range(1, 8))
        await chat.rewind(before_id="a3")
        await _talk(chat, 8, 9)
        await chat.rewind(before_id="q9")
        await _talk(chat, 10)
        active = ["q1", "a1", "q2", "a2", "q3", "q8", "a8", "q10", "a10"]
        for limit in (1, 2, 5, 20):
            back: list[str] = []
            before = None
            while page := await chat.list_messages(before=before, limit=limit):
                back = _said([message.message for message in page]) + back
                before = page[0].ordinal
            forth: list[str] = []
            after = 0
            while page := await chat.list_messages(after=after, limit=limit):
                forth = forth + _said([message.message for message in page])
                after = page[-1].ordinal
            assert back == forth == active

    async def test_turns_are_whole_and_live(self, chat: Conversation) -> None:
        """A turn has a human message and everything after it; its id is that of the first message."""
        first = rag_turn("What about seals?")
        second = rag_turn("What about orcas?")
        await chat.append([AIMessage("Hello", id="hello"), *first, *second])
        await chat.rewind(before_id=str(second[1].id))
        turns = [turn async for turn in chat.turns()]
        assert [
            (turn.turn_id, turn.number, turn.first, turn.last, turn.is_finished) for turn in turns
        ] == [
            ("hello", 0, 1, 1, True),
            (first[0].id, 1, 2, 5, True),
            (second[0].id, 2, 6, 6, False),
        ]
        assert same_messages(turns[1].messages, first)

    async def test_rewinds_and_appends_at_once_leave_no_hole(
        self, chat: Conversation, new_store: NewStore
    ) -> None:
        """After concurrent rewinds and appends the log is complete, and all readers see the same active messages."""
        chats = [new_store().conversation(**chat.scope) for _ in range(3)]
        await _talk(chat, 1, 2)
        await asyncio.gather(
            *(
                conversation.append(HumanMessage(f"x{n}-{index}"))
                for index, conversation in enumerate(chats)
                for n in range(5)
            ),
            chat.rewind(before_id="q2"),
            chat.rewind(before_id="a1"),
        )
        assert len([message async for message in chat.messages(rewound=True)]) == 19
        views = [
            await _view(conversation)
            for conversation in (chat, *chats, new_store().conversation(**chat.scope))
        ]
        assert views[0][0] == "q1"
        assert not {"a1", "q2", "a2"} & set(views[0])
        assert all(view == views[0] for view in views)
        assert views[0] == await _listed(chat)

    @pytest.mark.parametrize("wrong", ["", None, 7, {"$ne": ""}, "\ud800", "x" * 600])
    async def test_a_bad_id_is_refused(self, chat: Conversation, wrong: str) -> None:
        """The error is typed and comes before anything is read."""
        with pytest.raises(InvalidInputError):
            await chat.rewind(before_id=wrong)

    async def test_an_unknown_message_is_named(
        self, chat: Conversation, store: ConversationStore
    ) -> None:
        """Rewinding before an id that is not in the conversation raises UnknownMessageError with that id."""
        with pytest.raises(UnknownMessageError):
            await chat.rewind(before_id="q1")
        await _talk(store.conversation(**{**chat.scope, "user_id": "eve"}), 1)
        await _talk(chat, 2)
        with pytest.raises(UnknownMessageError, match="'q1'"):
            await chat.rewind(before_id="q1")
        assert await store.conversation(user_id="ada", thread_id="none").undo_rewind() == 0
