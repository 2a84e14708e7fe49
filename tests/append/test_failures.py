"""An application says which results of tools failed, and everything that counts failures follows it."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import ConversationStore, InvalidInputError
from convstore.exceptions import CorruptDocumentError
from convstore.integration import host_of
from convstore.transfer import export_conversations, import_conversations, read_file

SCOPE = {"user_id": "ada", "thread_id": "t"}
WORDS = "Sorry, the shop is closed. " + "Please come back. " * 80
CALLS = [{"name": name, "args": {}, "id": name} for name in ("shop", "look", "other")]


def by_words(tool: str, message: ToolMessage) -> bool | None:
    """Say that a shop fails in words, that a look never fails, and nothing of others."""
    if tool == "shop":
        return str(message.content).startswith("Sorry")
    return False if tool == "look" else None


@pytest.fixture
async def store() -> AsyncIterator[ConversationStore]:
    """A store in memory with a conversation: three results without a name, of which the first and the last fail."""
    async with await ConversationStore.connect("memory://", is_failed=by_words) as store:
        await store.setup()
        chat = store.conversation(**SCOPE)
        await chat.append([HumanMessage("Go."), AIMessage("", tool_calls=CALLS)])
        results = [
            ToolMessage(WORDS, tool_call_id="shop", id="shop"),
            ToolMessage("No error here.", tool_call_id="look", id="look", status="error"),
            ToolMessage("Timeout", tool_call_id="other", id="other", status="error"),
        ]
        await chat.append(results)
        await chat.append([AIMessage("Closed.")])
        yield store


async def failed_in(store: ConversationStore) -> tuple[int, list[str], bool]:
    """The count of failures, the ids of the results that failed, and what the stub of the first says."""
    chat = store.conversation(**SCOPE)
    [info] = (await store.list_conversations(user_id="ada")).conversations
    stored = await chat.list_messages()
    failed = [str(message.message.id) for message in stored if message.is_failed]
    records = await chat.get_tool_messages(["shop", "look", "other"])
    assert [record.tool_message_id for record in records if record.is_failed] == failed
    [stub] = [message for message in (await chat.load_history()).messages if message.id == "shop"]
    return info.failed, failed, json.loads(str(stub.content))["success"]


async def test_what_the_application_says_is_counted_and_shown(store: ConversationStore) -> None:
    """In the list, in messages, in records and in stubs; without a word the content decides."""
    assert await failed_in(store) == (2, ["shop", "other"], False)


async def test_verify_does_not_ask_again(store: ConversationStore) -> None:
    """A store with another rule, or none, finds no damage; a changed verdict is damage."""
    driver = host_of(store).driver
    for judge in (None, lambda *_: True):
        other = ConversationStore(driver.database, is_failed=judge)
        report = await other.verify(**SCOPE)
        assert report.ok, report.findings
        assert await failed_in(other) == (2, ["shop", "other"], False)
    log = driver.collection("log")
    await log.update_one({"messages.id": "shop"}, {"$unset": {"messages.0.failed": 1}})
    assert not (await ConversationStore(driver.database).verify(**SCOPE)).ok


@pytest.mark.parametrize(
    "damage",
    [{"$unset": {"messages.0.failed": 1}}, {"$set": {"messages.0.judged": ["True", b"12345678"]}}],
    ids=["verdict", "checksum"],
)
async def test_a_damaged_word_of_the_application_is_not_read(
    store: ConversationStore, damage: dict[str, Any]
) -> None:
    """Nothing derives it, so it has a checksum that every read compares."""
    driver = host_of(store).driver
    await driver.collection("log").update_one({"messages.id": "shop"}, damage)
    with pytest.raises(CorruptDocumentError):
        await ConversationStore(driver.database).conversation(**SCOPE).list_messages()


def _broken(tool: str, message: ToolMessage) -> bool:
    raise KeyError(tool)


@pytest.mark.parametrize("judge", [None, lambda *_: True, lambda *_: False, _broken])
async def test_an_archive_has_the_word_of_the_application(
    store: ConversationStore, judge: Any, tmp_path: Path
) -> None:
    """A store without the function, or with one of its own, keeps it and asks nobody again."""
    lines = io.BytesIO()
    await export_conversations(store, lines.write)
    path = tmp_path / "archive.jsonl"
    path.write_bytes(lines.getvalue())
    async with await ConversationStore.connect("memory://", is_failed=judge) as there:
        await there.setup()
        assert (await import_conversations(there, read_file(path))).problems == []
        assert await failed_in(there) == (2, ["shop", "other"], False)
        assert (await there.verify()).ok


async def _later(tool: str, message: ToolMessage) -> bool:
    return True


class _Later:
    async def __call__(self, *_: object) -> bool:
        return True


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        (_broken, "is_failed raised for a result of 'shop': KeyError"),
        (lambda *_: "no", "is_failed must return True, False or None; .* returned str"),
        (_Later(), "returned coroutine"),
    ],
    ids=["raises", "text", "coroutine"],
)
async def test_a_wrong_function_refuses_the_append(judge: Any, said: str) -> None:
    """Before anything is written; the error says what it did."""
    async with await ConversationStore.connect("memory://", is_failed=judge) as store:
        await store.setup()
        chat = store.conversation(**SCOPE)
        call = AIMessage("", tool_calls=CALLS[:1])
        with pytest.raises(InvalidInputError, match=said):
            await chat.append([HumanMessage("Go."), call, ToolMessage(WORDS, tool_call_id="shop")])
        assert not (await chat.info()).conversation_id


@pytest.mark.parametrize("judge", ["shop", _later, 7])
async def test_the_function_is_a_plain_one(judge: Any) -> None:
    """Anything else is refused when the store is made."""
    with pytest.raises(InvalidInputError, match="is_failed must be a plain function"):
        await ConversationStore.connect("memory://", is_failed=judge)
