"""Tests of variants, other answers and other questions: hidden until finished, listed, activated again."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage

from convstore.conversation import Conversation
from convstore.exceptions import (
    InvalidInputError,
    StoreUnavailableError,
    TurnBusyError,
    TurnClosedError,
    TurnConflictError,
    UnknownMessageError,
)
from convstore.mongo.log import Log
from convstore.testing.fixtures import NewStore, NextCall, ahead, unanswered
from convstore.testing.stored import Stored

__all__ = ["CALL", "TurnVariantContract", "ask", "shown"]

CALL = AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "call"}])
"""A message with one call."""


async def ask(chat: Conversation, *numbers: int, **asked: Any) -> None:
    """Ask questions Q1, Q2 … under the ids q1, q2 …, with the answers A1, A2 and so on."""
    for number in numbers:
        async with await chat.turn(f"q{number}", human=f"Q{number}", **asked) as turn:
            if turn.is_running:
                await turn.append(AIMessage(f"A{number}"))


async def _answer(chat: Conversation, turn_id: str, key: str, text: str) -> None:
    async with await chat.turn(turn_id, regenerate=key) as turn:
        await turn.append(AIMessage(text))


async def shown(chat: Conversation) -> list[str]:
    """Return the texts of a conversation, which view, listing, turns and counts agree on."""
    listed: list[str] = [message.message.text for message in await chat.list_messages()]
    assert [message.text for message in (await chat.load_history()).messages] == listed
    assert [message.text async for turn in chat.turns() for message in turn.messages] == listed
    assert (await chat.info()).message_count == len(listed)
    assert (await chat.store.verify(**chat.scope)).findings == ()
    return listed


class TurnVariantContract:
    """`turn` with `regenerate` and `instead_of`, `variants`, `activate`."""

    async def test_another_answer_is_shown_once_it_is_finished(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Until then every reader has the old answer; the session sees its question and its own steps."""
        await ask(chat, 1)
        async with await chat.turn("q1", regenerate="click") as turn:
            assert [message.text for message in (await turn.load_history()).messages] == ["Q1"]
            await turn.append(CALL.model_copy())
            await turn.add_result(turn.open_calls[0], "found")
            assert [message.text for message in (await turn.load_history()).messages] == [
                "Q1",
                "",
                "found",
            ]
            assert await shown(elsewhere) == ["Q1", "A1"]
            assert await chat.search("found") == []
            await turn.append(AIMessage("B1"))
        assert await shown(chat) == await shown(elsewhere) == ["Q1", "", "found", "B1"]
        assert [hit.message_id for hit in await chat.search("A1")] == []
        old = [message for message in await chat.list_messages(rewound=True) if message.is_rewound]
        assert [message.message.text for message in old] == ["A1"]
        [record] = await chat.get_tool_messages([str(old[0].message.id)])
        assert record.content == "A1"
        [whole] = [each async for each in chat.turns(rewound=True)]
        assert [message.text for message in whole.messages] == ["Q1", "A1", "", "found", "B1"]
        assert whole.rewound == (old[0].message.id,)

    async def test_a_repeated_wish_finds_its_answer(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Repeating a `regenerate` key returns its finished answer, even if another answer is active."""
        await ask(chat, 1)
        await _answer(chat, "q1", "one", "B1")
        await _answer(chat, "q1", "two", "C1")
        async with await elsewhere.turn("q1", regenerate="one") as turn:
            assert (turn.is_running, turn.answer and turn.answer.text) == (False, "B1")
            with pytest.raises(TurnClosedError):
                await turn.append(AIMessage("more"))
        assert await shown(chat) == ["Q1", "C1"]

    async def test_a_killed_worker_leaves_the_old_answer(
        self, chat: Conversation, new_store: NewStore
    ) -> None:
        """The same `regenerate` key continues the variant; another key begins a new one."""
        await ask(chat, 1, 2)
        killed = await chat.turn("q1", regenerate="one")
        await killed.append(CALL.model_copy())
        later = new_store(clock=ahead(60)).conversation(**chat.scope)
        assert await shown(later) == ["Q1", "A1", "Q2", "A2"]
        async with await later.turn("q1", regenerate="two") as turn:
            assert [message.text for message in turn.messages] == ["Q1"]
        async with await later.turn("q1", regenerate="one") as turn:
            await turn.add_result(turn.open_calls[0], "found")
            await turn.append(AIMessage("B1"))
        assert await shown(chat) == ["Q1", "", "found", "B1"]

    async def test_one_worker_makes_a_variant(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """While one worker makes a variant, `regenerate` in another worker raises TurnBusyError."""
        await ask(chat, 1)
        async with await chat.turn("q1", regenerate="one"):
            for key in ("one", "two"):
                with pytest.raises(TurnBusyError):
                    await elsewhere.turn("q1", regenerate=key)

    async def test_a_question_is_edited(self, chat: Conversation, elsewhere: Conversation) -> None:
        """The edited question replaces the old one and everything after it, even at the beginning."""
        await ask(chat, 1, 2, 3)
        await ask(chat, 4, instead_of="q2")
        assert await shown(elsewhere) == ["Q1", "A1", "Q4", "A4"]
        await ask(elsewhere, 4, instead_of="q2")
        async with await chat.turn("q5", human="Q5", instead_of="q1") as turn:
            assert [message.text for message in (await turn.load_history()).messages] == ["Q5"]
            await turn.append(AIMessage("A5"))
        assert await shown(chat) == ["Q5", "A5"]
        await ask(chat, 6)
        assert await shown(elsewhere) == ["Q5", "A5", "Q6", "A6"]

    async def test_variants_are_listed_and_activated(
        self, chat: Conversation, elsewhere: Conversation, database: Any
    ) -> None:
        """Activating a variant restores everything that followed it; a repeated call has no effect."""
        await ask(chat, 1, 2)
        await _answer(chat, "q1", "click", "B1")
        await ask(chat, 3)
        await ask(chat, 4, instead_of="q1")
        expected = {
            "q1": ["Q1", "A1", "Q2", "A2"],
            "click": ["Q1", "B1", "Q3", "A3"],
            "q4": ["Q4", "A4"],
        }
        found = await elsewhere.variants("q1")
        assert [(variant.variant_id, variant.turn_id, variant.is_active) for variant in found] == [
            ("q1", "q1", False),
            ("click", "q1", False),
            ("q4", "q4", True),
        ]
        assert [(variant.number, variant.count) for variant in await chat.variants("q4")] == [
            (1, 3),
            (2, 3),
            (3, 3),
        ]
        stored = await Stored.of(chat, database)
        for variant in (*found, *found[::-1]):
            await elsewhere.activate(variant)
            before = len(await stored.all())
            await chat.activate(variant)
            assert len(await stored.all()) == before
            assert await shown(chat) == expected[variant.variant_id]
            active = [listed.variant_id for listed in await chat.variants("q1") if listed.is_active]
            assert active == [variant.variant_id]

    async def test_a_variant_comes_back_as_it_was_left(self, chat: Conversation) -> None:
        """Activating a variant also restores its later turns and the answers that were active in them."""
        await ask(chat, 1, 2)
        await _answer(chat, "q1", "one", "B1")
        first, second = await chat.variants("q1")
        await chat.activate(first)
        await _answer(chat, "q2", "two", "B2")
        await ask(chat, 3)
        await chat.activate(second)
        assert await shown(chat) == ["Q1", "B1"]
        await chat.activate(first)
        assert await shown(chat) == ["Q1", "A1", "Q2", "B2", "Q3", "A3"]
        await chat.activate((await chat.variants("q2"))[0])
        assert await shown(chat) == ["Q1", "A1", "Q2", "A2"]

    async def test_others_append_meanwhile(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Messages that other writers append follow the old answer, and are shown and hidden with it."""
        await ask(chat, 1)
        async with await chat.turn("q1", regenerate="click") as turn:
            await turn.append(CALL.model_copy())
            await elsewhere.append(AIMessage("note", id="note"))
            assert await shown(elsewhere) == ["Q1", "A1", "note"]
            await turn.add_result(turn.open_calls[0], "found")
            assert [message.text for message in (await turn.load_history()).messages] == [
                "Q1",
                "",
                "found",
            ]
            await turn.append(AIMessage("B1"))
        assert await shown(elsewhere) == ["Q1", "", "found", "B1"]
        await chat.activate((await chat.variants("q1"))[0])
        assert await shown(elsewhere) == ["Q1", "A1", "note"]

    async def test_an_answer_is_rewound(self, chat: Conversation) -> None:
        """The first message of a variant, or one in its middle, can be rewound like any other."""
        await ask(chat, 1)
        async with await chat.turn("q1", regenerate="click") as turn:
            await turn.append(CALL.model_copy())
            await turn.add_result(turn.open_calls[0], "found")
            await turn.append([AIMessage("Well"), AIMessage("B1")])
            _, call, _, _, last = [str(message.id) for message in turn.messages]
        await chat.rewind(before_id=last)
        await chat.append(AIMessage("So", id="so"))
        assert await shown(chat) == ["Q1", "", "found", "Well", "So"]
        await chat.rewind(before_id=call)
        assert await shown(chat) == ["Q1"]
        await chat.undo_rewind()
        await chat.activate((await chat.variants("q1"))[0])
        assert await shown(chat) == ["Q1", "A1"]

    async def test_its_place_is_rewound_meanwhile(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A turn that is rewound while its replacement is made can be activated again."""
        await ask(chat, 1)
        async with await chat.turn("q2", human="Q2", instead_of="q1") as turn:
            await elsewhere.rewind(before_id="q1")
            await turn.append(AIMessage("A2"))
        await chat.activate((await chat.variants("q2"))[0])
        assert await shown(chat) == ["Q1", "A1"]

    async def test_what_stands_before_it_is_rewound_meanwhile(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """If the messages before a variant are rewound meanwhile, appending to the variant is refused."""
        await ask(chat, 1, 2)
        async with await chat.turn("q2", regenerate="click") as turn:
            await elsewhere.rewind(before_id="q1")
            with pytest.raises(UnknownMessageError):
                await turn.append(AIMessage("B2"))
        with pytest.raises(UnknownMessageError):
            await elsewhere.turn("q2", regenerate="click")
        assert await shown(chat) == []

    async def test_its_totals_are_derived(self, chat: Conversation, database: Any) -> None:
        """`verify` recomputes the totals in each entry of an unfinished variant and reports a wrong one."""
        await ask(chat, 1)
        async with await chat.turn("q1", regenerate="click") as turn:
            await turn.append(AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c"}]))
        stored = await Stored.of(chat, database)
        entries = await stored.all()
        [entry] = [
            entry for entry in entries if "messages" in entry and "branch" in entry.get("facts", {})
        ]
        assert (await chat.store.verify(**chat.scope)).ok
        changed = {"facts.branch.tokens": entry["facts"]["branch"]["tokens"] + 1}
        await stored.change(entry["_id"], {"$set": changed})
        assert not (await chat.store.verify(**chat.scope)).ok
        await chat.delete()

    async def test_a_model_may_repeat_itself(self, chat: Conversation) -> None:
        """A reply with the id of the old answer, such as from a cache, is a variant, and its key finds it again."""
        async with await chat.turn("q1", human="Q1") as turn:
            await turn.append(AIMessage("A1", id="a1"))
        for wish in ("click", "click", "another click"):
            async with await chat.turn("q1", regenerate=wish) as turn:
                if turn.is_running:
                    await turn.append(AIMessage("A1", id="a1"))
                assert turn.answer
                assert turn.answer.text == "A1"
        assert [variant.is_active for variant in await chat.variants("q1")] == [False, False, True]

    async def test_an_answer_of_unknown_outcome_is_repeated(
        self, chat: Conversation, next_call: NextCall
    ) -> None:
        """If the answer was written, it is shown once, and no copy follows it."""
        await ask(chat, 1)
        async with await chat.turn("q1", regenerate="click") as turn:
            next_call(Log, "insert", after=unanswered)
            with pytest.raises(StoreUnavailableError):
                await turn.append(AIMessage("B1", id="b1"))
            await turn.append(AIMessage("B1", id="b1"))
            assert not turn.is_variant
        assert await shown(chat) == ["Q1", "B1"]

    async def test_undo_takes_a_variant_back(self, chat: Conversation) -> None:
        """`undo_rewind` restores the variant that was active before."""
        await ask(chat, 1, 2)
        await _answer(chat, "q1", "click", "B1")
        await chat.undo_rewind()
        assert await shown(chat) == ["Q1", "A1", "Q2", "A2"]

    async def test_a_stopped_answer(self, elsewhere: Conversation, new_store: NewStore) -> None:
        """The text streamed before a stop becomes the new answer. Without any text the old answer stays."""
        chat = new_store(clock=ahead(0, hurry=50)).conversation(**elsewhere.scope)
        await ask(chat, 1)
        for key, said, expected in (("one", 0, ["Q1", "A1"]), ("two", 1, ["Q1", "B1"])):
            async with await chat.turn("q1", regenerate=key) as turn:
                async for _ in turn.stream(_words(["B1"][:said], elsewhere)):
                    pass
            assert await shown(chat) == expected
            async with await chat.turn("q1", regenerate=key) as turn:
                assert (turn.is_finished, turn.is_stopped) == (True, True)

    async def test_another_answer_takes_no_more_after_the_next_question(
        self, chat: Conversation
    ) -> None:
        """After the next question an append to a variant is refused: its message would be inside the next turn."""
        async with await chat.turn("q1", human="Do seals sleep?") as turn:
            await turn.append(AIMessage("They do."))
        async with await chat.turn("q1", regenerate="k") as turn:
            await turn.append(AIMessage("Yes."))
        async with await chat.turn("q2", human="And orcas?"):
            pass
        async with await chat.turn("q1", regenerate="k") as again:
            with pytest.raises(TurnConflictError):
                await again.append(AIMessage("And bears, too."))

    async def test_an_answer_in_steps_to_a_turn_stopped_at_once(self, chat: Conversation) -> None:
        """The turn has all messages of the variant, although nothing was rewound for it."""
        async with await chat.turn("q1", human="Q1") as turn:
            await chat.stop("q1")
        async with await chat.turn("q1", regenerate="click") as turn:
            await turn.append(CALL.model_copy())
            await turn.add_result(turn.open_calls[0], "found")
            await turn.append(AIMessage("B1"))
        assert [len(read.messages) async for read in chat.turns()] == [4]
        assert await shown(chat) == ["Q1", "", "found", "B1"]

    async def test_the_view_of_a_variant_is_built_again(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """The stamps of a variant's answer and of another reader's rebuild exactly the view that each had."""
        await ask(chat, 1, 2)
        async with await chat.turn("q2", regenerate="click") as turn:
            await turn.append(CALL.model_copy())
            await turn.add_result(turn.open_calls[0], "found")
            history = await turn.load_history()
            plain = await elsewhere.load_history()
            assert (await chat.view_at()).messages == plain.messages
            await turn.append(AIMessage("B2"))
        stamp = (await chat.list_messages())[-1].stamp
        for view in (history, plain):
            past = await chat.view_at(stamp if view is history else plain.stamp)
            assert (past.match, past.messages) == ("exact", view.messages)

    async def test_a_summary_covers_the_old_answer(self, new_store: NewStore) -> None:
        """Each variant has its own summary, which is used again when the variant is activated."""
        chat = new_store(summarizer=_summarize).conversation(
            user_id="ada", thread_id=uuid.uuid4().hex
        )
        await ask(chat, *range(1, 13))
        assert (await chat.compact(force=True)).status == "done"
        before = await chat.load_history()
        await _answer(chat, "q1", "click", "B1")
        assert [message.text for message in (await chat.load_history()).messages] == ["Q1", "B1"]
        await ask(chat, *range(13, 25))
        assert (await chat.compact(force=True)).status == "done"
        after = await chat.load_history()
        for variant, history in zip(
            [*await chat.variants("q1")] * 2, [before, after] * 2, strict=True
        ):
            await chat.activate(variant)
            assert (await chat.load_history()).messages == history.messages

    async def test_wrong_wishes_are_refused(self, chat: Conversation) -> None:
        """An invalid use of `regenerate`, `instead_of` or `variants` is refused and changes nothing."""
        await ask(chat, 1, 2)
        wrong: list[dict[str, Any]] = [
            {"turn_id": "q1", "regenerate": "k", "human": "Q1"},
            {"turn_id": "q1", "regenerate": "q1"},
            {"turn_id": "q3", "instead_of": "q1"},
            {"turn_id": "q1", "human": "Q1", "instead_of": "q1"},
            {"turn_id": "q3", "human": "Q3", "instead_of": "q1", "regenerate": "k"},
        ]
        for asked in wrong:
            with pytest.raises(InvalidInputError):
                await chat.turn(**asked)
        with pytest.raises(UnknownMessageError):
            await chat.turn("q3", regenerate="k")
        with pytest.raises(TurnConflictError):
            await chat.turn("q2", human="Q2", instead_of="q1")
        with pytest.raises(UnknownMessageError):
            await chat.variants("q3")
        assert await shown(chat) == ["Q1", "A1", "Q2", "A2"]
        assert [variant.count for variant in await chat.variants("q1")] == [1]

    async def test_a_crash_at_any_write_leaves_one_answer_whole(
        self, chat: Conversation, new_store: NewStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After a crash before or after any write, repeating the same key completes the answer."""
        await ask(chat, 1)
        insert = Log.insert
        old = ["Q1", "A1"]
        for number in range(8):
            left = number // 2
            text = f"B{number}"

            async def failing(
                log: Log, *args: Any, after: bool = number % 2 == 1, **options: Any
            ) -> None:
                nonlocal left
                left -= 1
                if left >= 0 or after:
                    await insert(log, *args, **options)
                if left < 0:
                    raise StoreUnavailableError("killed")

            monkeypatch.setattr(Log, "insert", failing)
            other = new_store().conversation(**chat.scope)
            with pytest.raises(StoreUnavailableError):
                await _work(other, f"key{number}", text)
            monkeypatch.setattr(Log, "insert", insert)
            assert (await shown(chat))[-1] in (old[-1], text)
            await _work(new_store(clock=ahead(60)).conversation(**chat.scope), f"key{number}", text)
            assert await shown(chat) == (old := ["Q1", "", "found", text])


async def _work(chat: Conversation, key: str, text: str) -> None:
    """Answer the first question in four writes, or continue such an answer."""
    turn = await chat.turn("q1", regenerate=key)
    if len(turn.messages) == 1:
        await turn.append(CALL.model_copy())
    if turn.open_calls:
        await turn.add_result(turn.open_calls[0], "found")
    if turn.is_running:
        await turn.append(AIMessage(text))
    async with turn:
        pass


async def _words(words: list[str], chat: Conversation) -> Any:
    """Yield words, and request a stop of the turn."""
    for word in words:
        yield word
    await chat.stop("q1")
    while True:
        await asyncio.sleep(0.01)  # a call in memory may never leave the event loop to others
        yield ""


async def _summarize(_messages: Sequence[BaseMessage], _summary: str | None) -> str:
    return "S"
