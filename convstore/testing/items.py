"""Tests of log items that are not messages: they keep their positions and change no view and no count."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore.conversation import Conversation
from convstore.exceptions import (
    BatchTooLargeError,
    ContentConflictError,
    CorruptDocumentError,
    InvalidInputError,
    InvalidMessageError,
    UnencodableError,
)
from convstore.store import ConversationStore
from convstore.testing.fixtures import NewStore, ahead
from convstore.types import LogItem

__all__ = ["ItemContract"]

_ODD = {
    "a.b": [1, {"$set": (2, b"x")}],
    "": "\0 \ud800",
    "when": datetime(2026, 1, 1, tzinfo=UTC),
    "big": 2**70,
}


def _item(id_: str, data: Any = None, *, kind: str = "mark") -> LogItem:
    return LogItem(kind=kind, data=data, id=id_)


def _scope(chat: Conversation) -> dict[str, Any]:
    return dict(chat.scope)


async def _ids(chat: Conversation, **page: Any) -> list[tuple[str, int]]:
    return [(item.id, item.after) async for item in chat.items(**page)]


class ItemContract:
    """`Conversation.items`."""

    async def test_items_keep_their_place_and_are_no_messages(
        self, chat: Conversation, elsewhere: Conversation, new_store: NewStore
    ) -> None:
        """Items of any size and type keep their positions and do not change views, counts or messages."""
        question = HumanMessage("q", id="q")
        answer = AIMessage("a", id="a")
        large = "é" * 1_200_000
        unnamed = LogItem(kind="title", data="Seals")
        await chat.append([_item("first", _ODD), question, _item("second", large, kind="large")])
        await chat.append(unnamed)
        receipt = await chat.append([answer, _item("last")], after=1)
        assert (receipt.message_ids, receipt.first, receipt.written) == (("a",), 2, 1)
        found = [item async for item in elsewhere.items()]
        assert [(item.id, item.kind, item.after) for item in found] == [
            ("first", "mark", 0),
            ("second", "large", 1),
            (unnamed.id, "title", 1),
            ("last", "mark", 2),
        ]
        assert [item.data for item in found] == [_ODD, large, "Seals", None]
        assert [item.id async for item in chat.items(kind="title")] == [unnamed.id]
        assert (await elsewhere.load_history()).messages == [question, answer]
        assert [message async for message in chat.messages(rewound=True)] == [question, answer]
        assert [message.ordinal for message in await chat.list_messages()] == [1, 2]
        assert (await chat.info()).message_count == 2
        assert not (
            await new_store(clock=ahead(200_000)).verify(repair=True, **_scope(chat))
        ).findings
        await chat.delete()
        assert not [item async for item in chat.items()]

    async def test_a_batch_of_many_items_is_taken(self, chat: Conversation) -> None:
        """Items that are too large together are stored outside the entry; an error about the size says what to do."""
        await chat.append([_item(f"i{number}", "x" * 9_000) for number in range(200)])
        assert [item.data for item in [item async for item in chat.items()]] == ["x" * 9_000] * 200
        with pytest.raises(BatchTooLargeError, match="smaller batches"):
            await chat.append([_item(f"j{number}", "x" * 400) for number in range(2_000)])
        assert len(await _ids(chat)) == 200

    async def test_items_alone_do_not_hide_messages(
        self, chat: Conversation, elsewhere: Conversation, store: ConversationStore
    ) -> None:
        """Two processes append items and messages in turn, at once, and each loads all messages."""
        said: list[str] = []
        for number in range(4):
            for writer, reader in ((chat, elsewhere), (elsewhere, chat)):
                said.append(f"{len(said)}")
                await writer.append([HumanMessage("q", id=said[-1])])
                await reader.append(_item(f"after {said[-1]}"))
                await asyncio.gather(
                    *(chat.append(_item(f"{said[-1]} {other}")) for other in range(number))
                )
                for handle in (reader, writer):
                    assert [
                        message.id for message in (await handle.load_history()).messages
                    ] == said
        assert [after for _, after in await _ids(chat)] == [
            after for after in range(1, 9) for _ in range((after + 1) // 2)
        ]
        assert not (await store.verify(**_scope(chat))).findings

    async def test_an_item_is_stored_once(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Repeating an item writes nothing. Other data or another kind under its id raises ContentConflictError."""
        batch: list[Any] = [HumanMessage("q", id="x"), _item("x", 1), AIMessage("a", id="a")]
        await chat.append(batch)
        assert (await elsewhere.append(batch)).written == 0
        receipt = await elsewhere.append(
            [*batch, _item("y"), HumanMessage("more", id="m"), _item("z")]
        )
        assert (receipt.written, await _ids(chat)) == (1, [("x", 1), ("y", 2), ("z", 3)])
        for other in (_item("x", 2), _item("x", 1, kind="other")):
            with pytest.raises(ContentConflictError, match="'x'"):
                await chat.append([HumanMessage("not written"), other])
        for _ in range(2):
            unnamed = [LogItem(kind="k", data=1), LogItem(kind="k", data=1)]
            await chat.append([{"role": "user", "content": "dict"}, *unnamed], key="request")
        assert [await _ids(chat), (await chat.info()).message_count] == [await _ids(elsewhere), 4]
        assert len(await _ids(chat)) == 5

    async def test_a_wrong_item_is_refused(self, chat: Conversation) -> None:
        """An invalid item, or any item in a resent history, is refused before anything is written."""
        wrong: list[tuple[Any, type[Exception]]] = [
            (_item("", 1), InvalidInputError),
            (_item("i", 1, kind="\ud800"), InvalidInputError),
            ([_item("i", 1), _item("i", 2)], InvalidInputError),
            (_item("i", {"a": [object()]}), UnencodableError),
            ([HumanMessage("q"), {"kind": "k", "data": 1}], InvalidMessageError),
        ]
        for batch, error in wrong:
            with pytest.raises(error):
                await chat.append(batch)
        with pytest.raises(InvalidInputError, match="messages only"):
            await chat.append_history([HumanMessage("q"), _item("i")])  # type: ignore[list-item]
        assert (await chat.info()).created_at is None
        receipt = await chat.append(_item("i", {"a": [object()]}), on_unencodable="omit")
        assert receipt.omitted == ("item 0.data.a[0]",)

    async def test_an_item_goes_and_comes_back_with_its_message(
        self, chat: Conversation, store: ConversationStore
    ) -> None:
        """A rewind to an item removes it and everything after it; later appends follow the message before it."""
        await chat.append(
            [HumanMessage("q", id="q"), _item("1"), _item("2"), AIMessage("a", id="a"), _item("3")]
        )
        await chat.append(_item("4"))
        whole = [("1", 1), ("2", 1), ("3", 2), ("4", 2)]
        for before, messages, left in (("a", 1, 2), ("4", 0, 3), ("2", 1, 1), ("q", 2, 0)):
            assert (await chat.rewind(before_id=before), await _ids(chat)) == (
                messages,
                whole[:left],
            )
            assert await chat.rewind(before_id=before) == 0
            all_items = [(item.id, item.is_rewound) async for item in chat.items(rewound=True)]
            rewound = {item[0] for item in whole[left:]}
            assert {id_ for id_, is_rewound in all_items if is_rewound} >= rewound
            assert [id_ for id_, is_rewound in all_items if not is_rewound] == [
                id_ for id_, _ in whole[:left]
            ]
            assert await _ids(chat, after=1, before=2) == [
                item for item in whole[:left] if item[1] == 1
            ]
            await chat.append(_item(f"then-{before}"))
            assert await _ids(chat) == [
                *whole[:left],
                (f"then-{before}", min(left, 1) + (left == 3)),
            ]
            assert (await chat.undo_rewind(), await _ids(chat)) == (messages, whole)
        assert not (await store.verify(**_scope(chat))).findings

    async def test_a_damaged_item_is_named(
        self, chat: Conversation, elsewhere: Conversation, store: ConversationStore, database: Any
    ) -> None:
        """Reading a damaged item raises CorruptDocumentError with its id, and `verify` reports the damage."""
        await chat.append([HumanMessage("q", id="q"), _item("i", "data")])
        kind = "facts.items.0.kind"
        query = {"facts.items.id": "i"}
        await database["log"].update_many(query, {"$set": {kind: "other"}})
        with pytest.raises(CorruptDocumentError, match="item 'i'"):
            await _ids(elsewhere)
        assert [finding.kind for finding in (await store.verify(**_scope(chat))).findings] == [
            "checksum"
        ]
        moved = {kind: "mark", "facts.items.0.after": 2, "lookup.0": f"items {2:016d}"}
        await database["log"].update_many(query, {"$set": moved})
        assert (
            "a position that the log does not have"
            in (await store.verify(**_scope(chat))).findings[0].problem
        )
