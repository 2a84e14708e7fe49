"""What was open in the source of an import is told apart from what goes wrong after it."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from convstore import Conversation, ConversationStore
from convstore.integration import host_of
from convstore.transfer import (
    ConversationRecord,
    export_conversations,
    import_conversations,
    read_file,
)

CALL = AIMessage("", tool_calls=[{"name": "refund", "args": {}, "id": "c"}])
CUT = AIMessage("Because", response_metadata={"finish_reason": "length"})
REWOUND = [HumanMessage("One?"), AIMessage("1"), HumanMessage("Two?"), AIMessage("2")]


@pytest.fixture
async def store() -> AsyncIterator[ConversationStore]:
    """A store in memory."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        yield store


async def imported(
    store: ConversationStore, name: str, messages: Sequence[BaseMessage], **fields: object
) -> Conversation:
    """Import a conversation and return it."""
    scope = {"user_id": "ada", "thread_id": name}
    record = ConversationRecord(id=name, scope=scope, messages=messages, **fields)
    report = await import_conversations(store, [record])
    assert report.problems == []
    return store.conversation(**scope)


async def states_of(chat: Conversation) -> tuple[str, str, bool]:
    """The state that the API says, that of the list, and True if it needs attention; `verify` finds nothing."""
    info = await chat.info()
    [row] = await host_of(chat.store).rows([info])
    assert (await chat.store.verify(**chat.scope)).findings == ()
    return info.state, row.end.label, row.needs_attention


@pytest.mark.parametrize(
    "messages",
    [[HumanMessage("Refund me?")], [HumanMessage("Refund me?"), CALL], [HumanMessage("Why?"), CUT]],
    ids=["asked", "called", "cut"],
)
async def test_what_the_source_left_open_is_imported(
    store: ConversationStore, messages: list[BaseMessage]
) -> None:
    """It needs no attention; the same messages, appended, do."""
    chat = await imported(store, "open", messages)
    assert await states_of(chat) == ("imported", "imported", False)
    again = [message.model_copy(update={"id": None}) for message in messages]
    other = store.conversation(user_id="ada", thread_id="appended")
    await other.append(again)
    assert (await states_of(other))[2]


async def test_an_imported_conversation_that_is_finished_has_no_state(
    store: ConversationStore,
) -> None:
    """Like any other; so has one that goes on and ends here."""
    chat = await imported(store, "done", [HumanMessage("Seals?"), AIMessage("Fish.")])
    assert await states_of(chat) == ("finished", "", False)
    chat = await imported(store, "went on", [HumanMessage("Orcas?")])
    await chat.append([HumanMessage("Whales?"), AIMessage("Krill.")])
    assert await states_of(chat) == ("finished", "", False)


async def test_what_goes_wrong_after_an_import_needs_attention(store: ConversationStore) -> None:
    """A new question without an answer, and an error at the question that was imported."""
    chat = await imported(store, "asked", [HumanMessage("Seals?"), AIMessage("Fish.")])
    await chat.append(HumanMessage("And orcas?"))
    assert await states_of(chat) == ("open", "no answer", True)
    chat = await imported(store, "tried", [HumanMessage("Seals?", id="q")])
    with suppress(RuntimeError):
        async with await chat.turn("q"):
            raise RuntimeError("no model")
    assert (await states_of(chat))[1:] == ("broke off", True)


async def test_a_call_that_waits_for_a_person_is_open(store: ConversationStore) -> None:
    """It was recorded here, after the import."""
    messages = [HumanMessage("Refund me?", id="q"), CALL.model_copy(update={"id": None})]
    chat = await imported(store, "waits", messages)
    async with await chat.turn("q") as turn:
        await turn.wait_for(turn.open_calls[0])
    assert await states_of(chat) == ("open", "waits", True)


async def test_a_rewind_of_the_source_keeps_the_mark(store: ConversationStore) -> None:
    """It is the last entry that the import writes."""
    chat = await imported(store, "back", [*REWOUND[:3], AIMessage("2")], rewound=[(4, 4)])
    assert await states_of(chat) == ("imported", "imported", False)


async def test_a_fork_that_is_cut_inside_an_imported_entry_keeps_the_mark(
    store: ConversationStore,
) -> None:
    """Its question is still one of the import."""
    chat = await imported(store, "whole", [HumanMessage("Seals?"), AIMessage("Fish.", id="a")])
    scope = {"user_id": "ada", "thread_id": "cut"}
    fork = await chat.fork(before_id="a", key="k", new_scope=scope)
    assert await states_of(fork) == ("imported", "imported", False)


async def test_an_archive_keeps_the_difference(store: ConversationStore, tmp_path: Path) -> None:
    """A conversation of this store stays one that broke off; an imported one stays imported."""
    await store.conversation(user_id="ada", thread_id="own").append(HumanMessage("Own?"))
    await imported(store, "foreign", [HumanMessage("Foreign?")])
    lines = io.BytesIO()
    await export_conversations(store, lines.write)
    path = tmp_path / "archive.jsonl"
    path.write_bytes(lines.getvalue())
    async with await ConversationStore.connect("memory://") as there:
        await there.setup()
        await import_conversations(there, read_file(path))
        for name, state in (("own", "open"), ("foreign", "imported")):
            copy = there.conversation(user_id="ada", thread_id=name)
            assert (await states_of(copy))[0] == state
