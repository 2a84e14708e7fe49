"""Tests of the application's state of a conversation: compare-and-set, outside the log, deleted with it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from convstore.conversation import Conversation
from convstore.exceptions import InvalidInputError, StateConflictError, UnencodableError
from convstore.store import ConversationStore
from convstore.testing.samples import rag_turn
from convstore.types import StateSnapshot

__all__ = ["ApplicationStateContract"]

_NOTHING = StateSnapshot(values={}, revision=0)


class ApplicationStateContract:
    """`Conversation.state`."""

    async def test_a_conversation_without_a_state_is_at_revision_0(
        self, chat: Conversation
    ) -> None:
        """Reading a missing state returns revision 0 and creates nothing."""
        assert await chat.state.get() == _NOTHING
        assert (await chat.info()).created_at is None

    async def test_values_are_set_by_name_and_removed_by_none(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """An update changes only the given values and removes those set to None. Views and counts stay the same."""
        await chat.append(rag_turn("What about seals?"))
        view = (await chat.load_history()).messages
        before = await chat.info()
        odd = {
            "a.b": [1, {"$set": "x"}],
            "$ne": "",
            "": "\0 \ud800",
            "when": datetime(2026, 1, 1, tzinfo=UTC),
        }
        assert await chat.state.update({"step": 1, **odd}) == StateSnapshot(
            values={"step": 1, **odd}, revision=1
        )
        assert await elsewhere.state.update(
            {"step": 2, "when": None, "missing": None}, revision=1
        ) == (
            kept := StateSnapshot(
                values={k: v for k, v in odd.items() if k != "when"} | {"step": 2}, revision=2
            )
        )
        assert await chat.state.get() == kept
        assert (await chat.load_history()).messages == view
        assert (await chat.info()).message_count == before.message_count
        assert await chat.annotations([str(message.id) for message in view]) == {}

    async def test_an_update_of_another_revision_changes_nothing(self, chat: Conversation) -> None:
        """The error names both revisions."""
        await chat.state.update({"step": 1})
        for revision in (0, 2):
            with pytest.raises(StateConflictError, match="get it again") as caught:
                await chat.state.update({"step": 9}, revision=revision)
            assert (caught.value.expected, caught.value.revision) == (revision, 1)
        assert await chat.state.get() == StateSnapshot(values={"step": 1}, revision=1)

    async def test_an_update_after_a_deletion_makes_no_conversation(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Updating a deleted state at its old revision raises StateConflictError and creates no conversation."""
        await chat.state.update({"step": 1})
        await elsewhere.delete()
        with pytest.raises(StateConflictError):
            await chat.state.update({"step": 2}, revision=1)
        assert (await chat.info()).conversation_id == ""
        child = chat.child("helper")
        with pytest.raises(StateConflictError):
            await child.state.update({"step": 2}, revision=1)
        assert (await chat.info()).conversation_id == ""
        for number in range(2):
            assert (
                await child.state.update({"step": number}, revision=number)
            ).revision == number + 1

    async def test_of_concurrent_updates_of_one_revision_one_is_stored(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Of concurrent updates of one revision, only one succeeds, even for the first state of a conversation."""
        for revision in (0, 1):
            each = [
                conversation.state.update({"by": 1}, revision=revision)
                for conversation in (chat, elsewhere) * 4
            ]
            done = await asyncio.gather(*each, return_exceptions=True)
            [stored] = [snapshot for snapshot in done if isinstance(snapshot, StateSnapshot)]
            assert stored == await chat.state.get()
            assert (
                sum(isinstance(snapshot, StateConflictError) for snapshot in done) == len(each) - 1
            )

    async def test_concurrent_updates_without_a_revision_are_all_stored(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Each update is applied to the values that the update before has stored."""
        each = [
            (chat, elsewhere)[number % 2].state.update({f"by{number}": number})
            for number in range(12)
        ]
        assert {snapshot.revision for snapshot in await asyncio.gather(*each)} == set(range(1, 13))
        assert (await chat.state.get()).values == {f"by{number}": number for number in range(12)}

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({}, InvalidInputError),
            ([("a", 1)], InvalidInputError),
            ({1: 2}, InvalidInputError),
            ({"a": object()}, UnencodableError),
            ({"a": "x" * 300_000}, InvalidInputError),
        ],
        ids=["nothing", "a list", "a number as a name", "a value of another type", "too large"],
    )
    async def test_a_bad_state_is_refused(
        self, chat: Conversation, changes: Any, error: type[Exception]
    ) -> None:
        """The error is typed, and nothing is written, not even a conversation."""
        with pytest.raises(error):
            await chat.state.update(changes)
        with pytest.raises(InvalidInputError):
            await chat.state.update({"a": 1}, revision=-1)
        assert (await chat.info()).created_at is None

    async def test_a_state_takes_at_most_256_kilobytes(self, chat: Conversation) -> None:
        """An update that makes the state larger than 256 KB raises InvalidInputError and changes nothing."""
        kept = await chat.state.update({"a": "ü" * 100_000})
        with pytest.raises(InvalidInputError, match="the limit is 262,144"):
            await chat.state.update({"b": "ü" * 100_000})
        assert await chat.state.get() == kept

    async def test_a_state_ends_with_its_conversation(
        self, chat: Conversation, store: ConversationStore
    ) -> None:
        """A state belongs to one scope and is deleted with its conversation. A reused scope starts without a state."""
        eve = store.conversation(**{**chat.scope, "user_id": "eve"})
        await eve.state.update({"step": 1})
        assert await chat.state.get() == _NOTHING
        await eve.delete()
        assert await eve.state.get() == _NOTHING
        assert (await eve.state.update({"step": 2}, revision=0)).revision == 1
