"""What another import of a source that changed meanwhile brings, and what its report says that it does not bring."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore import Conversation, ConversationStore, InvalidInputError
from convstore.integration import ConversationLog
from convstore.transfer import (
    ConversationRecord,
    ImportReport,
    export_conversations,
    import_conversations,
    read_file,
)
from convstore.types import LogItem
from convstore.values.log_records import PlacedItem

SCOPE = {"user_id": "ada", "thread_id": "orcas"}


async def carried(here: ConversationStore, there: ConversationStore, folder: Path) -> ImportReport:
    """Export one store, and import it into the other."""
    lines = io.BytesIO()
    await export_conversations(here, lines.write)
    path = folder / "archive.jsonl"
    path.write_bytes(lines.getvalue())
    return await import_conversations(there, read_file(path))


async def items_of(chat: Conversation) -> list[str]:
    """Return the kinds of the items of a conversation, in order."""
    return [item.kind async for item in chat.items()]


async def test_a_second_import_reports_what_it_does_not_bring(tmp_path: Path) -> None:
    """Messages, items and changes at the end are brought; what differs elsewhere is reported."""
    async with (
        await ConversationStore.connect("memory://") as here,
        await ConversationStore.connect("memory://") as there,
    ):
        await here.setup()
        await there.setup()
        chat, copy = here.conversation(**SCOPE), there.conversation(**SCOPE)
        await chat.append(
            [HumanMessage("One?", id="q1"), AIMessage("1", id="a1"), LogItem(kind="first", data=1)]
        )
        await chat.append([HumanMessage("Two?", id="q2"), AIMessage("2", id="a2")])
        await chat.rewind(before_id="q2")
        await chat.update(title="Numbers")
        await chat.state.update({"step": 1})
        await chat.annotate("a1", rating=1)
        for imported in (1, 0):
            report = await carried(here, there, tmp_path)
            assert (report.imported, report.problems) == (imported, [])

        await chat.undo_rewind()
        await chat.append([LogItem(kind="late", data=2)])
        await chat.append(
            [
                HumanMessage("Three?", id="q3"),
                AIMessage("3", id="a3"),
                LogItem(kind="later", data=3),
            ]
        )
        await chat.update(title="More numbers")
        await chat.state.update({"step": 2})
        await chat.annotate("a1", rating=2)
        report = await carried(here, there, tmp_path)
        kept = "kept as they were, the source has others: title, state, 1 annotation"
        assert [problem.reason for problem in report.problems] == [kept]
        assert (report.extended, report.messages) == (1, 2)
        assert len(await copy.list_messages()) == 6  # the undo came with them
        assert await items_of(copy) == ["first", "late", "later"]
        assert [message.text async for message in copy.messages(rewound=True)] == [
            "One?",
            "1",
            "Two?",
            "2",
            "Three?",
            "3",
        ]

        await copy.rewind(before_id="q3")
        report = await carried(here, there, tmp_path)
        hidden = "still rewound: 2 messages that the source shows; see undo_rewind"
        assert [problem.reason for problem in report.problems] == [hidden, kept]
        await copy.undo_rewind()

        await chat.rewind(before_id="q2")
        await copy.append([HumanMessage("Four?", id="q4")])
        await chat.append([LogItem(kind="last", data=4)])
        report = await carried(here, there, tmp_path)
        assert [problem.reason for problem in report.problems][:2] == [
            "not imported: 1 item between messages that were stored before",
            "still shown: 4 messages that the source removed or rewound since",
        ]


@pytest.mark.slow
async def test_an_import_that_was_stopped_rewinds_what_is_left_only() -> None:
    """After each message; a rewind that was made before is not made again, and hides no later message."""
    messages = [
        (HumanMessage if number % 3 == 0 else AIMessage)(str(number), id=f"m{number}")
        for number in range(1, 10)
    ]
    rewound = [(1, 2), (4, 5), (8, 8)]
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        for done in range(len(messages)):
            scope = {"user_id": "ada", "thread_id": str(done)}
            for through in (done, len(messages), len(messages)):
                parts = [(first, min(last, through)) for first, last in rewound if first <= through]
                for known in (parts, [part for part in parts if part[1] < through]):
                    record = ConversationRecord(id="x", messages=messages[:through], rewound=known)
                    report = await import_conversations(store, [record], scope=scope)
                    assert report.left_out == 0, report.problems
            chat = store.conversation(**scope)
            assert [row.message.id for row in await chat.list_messages()] == [
                "m3",
                "m6",
                "m7",
                "m9",
            ], done


async def test_an_item_that_comes_late_is_hidden_with_its_message() -> None:
    """As if one import had brought the item and the rewind: it is appended before the rewind is made."""
    messages = [HumanMessage("One?", id="q1"), AIMessage("1", id="a1")]
    messages += [HumanMessage("Two?", id="q2"), AIMessage("2", id="a2")]
    first = ConversationRecord(id="r", messages=messages, scope=SCOPE)
    late = PlacedItem(LogItem(kind="late", data=1, id="i"), 4)
    second = replace(first, items=[late], rewound=[(3, 4)])
    found = list[list[tuple[str, bool]]]()
    for records in ([second], [first, second]):
        async with await ConversationStore.connect("memory://") as store:
            await store.setup()
            for record in records:
                assert (await import_conversations(store, [record])).problems == []
            chat = store.conversation(**SCOPE)
            items = [item async for item in chat.items(rewound=True)]
            found.append([(item.kind, item.is_rewound) for item in items])
    assert found == [[("late", True)]] * 2


async def test_messages_of_an_import_that_broke_off_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The conversation is left out, and the report says how many messages of it are stored."""

    async def refused(self: ConversationLog, message_id: str) -> None:
        raise InvalidInputError(f"{message_id} cannot be rewound")

    monkeypatch.setattr(ConversationLog, "rewind", refused)
    messages = [HumanMessage("One?", id="q1"), AIMessage("1", id="a1"), HumanMessage("Two?")]
    record = ConversationRecord(id="r", messages=messages, scope=SCOPE, rewound=[(1, 2)])
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        report = await import_conversations(store, [record])
        assert (report.left_out, report.imported, report.messages) == (1, 0, 2)
        assert (await store.conversation(**SCOPE).info()).message_count == 2
