"""What `activate` and another answer send: each command, where nothing else happens in the conversation."""

from __future__ import annotations

import pytest
from counting import STANDING, Commands
from fixture_types import Client
from langchain_core.messages import AIMessage

from convstore import Conversation, ConversationStore


@pytest.fixture
async def chat(client: Client, database_name: str, request: pytest.FixtureRequest) -> Conversation:
    """A conversation with one answer, of a store on the counted client."""
    store = ConversationStore(client[database_name], clock=STANDING)
    await store.setup()
    chat = store.conversation(user_id="counted", thread_id=request.node.name)
    await _answer(chat)
    return chat


async def _answer(chat: Conversation, key: str | None = None) -> None:
    async with await chat.turn("q", human=None if key else "Q", regenerate=key) as turn:
        await turn.append(AIMessage("A"))


async def test_a_variant_is_shown_by_three_commands(chat: Conversation, commands: Commands) -> None:
    """The end of the log, the last changes of the place, and the entry; what they do not tell is one more."""
    for number in range(12):
        await _answer(chat, f"click-{number}")
    variants = await chat.variants("q")
    for variant, names in (
        (variants[-2], ["find", "find", "insert"]),
        (variants[-1], ["find", "find", "insert"]),
        (variants[-1], ["find", "find"]),
        (variants[-3], ["find", "find", "insert"]),
        (variants[1], ["find", "find", "find", "find", "insert"]),
    ):
        with commands.counted():
            await chat.activate(variant)
        assert sorted(name for name, _ in commands.own) == names
        [shown] = [each for each in await chat.variants("q") if each.is_active]
        assert shown.variant_id == variant.variant_id


async def test_another_answer_takes_six_commands(chat: Conversation, commands: Commands) -> None:
    """The lease, the question, its place, the two entries, and the lease again."""
    for number in range(3):
        with commands.counted():
            await _answer(chat, f"click-{number}")
        assert sorted(name for name, _ in commands.own) == [
            "find",
            "find",
            "findAndModify",
            "insert",
            "insert",
            "update",
        ]
        await chat.activate((await chat.variants("q"))[0])


async def test_another_answer_reads_no_more_of_a_longer_log(
    chat: Conversation, client: Client, database_name: str
) -> None:
    """The question and the entries of the answer are found by indexes: one of them is partial."""
    for number in range(20):
        await _answer(chat, f"click-{number}")
    database = client[database_name]
    await database.command("profile", 2)
    await _answer(chat, "once more")
    await database.command("profile", 0)
    seen = await database["system.profile"].find({"ns": {"$regex": r"\.log$"}}).to_list()
    assert max(command.get("docsExamined", 0) for command in seen) <= 2
    await database.drop_collection("system.profile")
