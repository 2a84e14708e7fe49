"""Thinking that Claude binds to what stands before it goes along as long as all of that is the same."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import pytest
from mongomock_motor import AsyncMongoMockClient
from properties import soaked

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.types import History

pytestmark = pytest.mark.usefixtures("quick_memory")

MODEL = "claude-opus-5-5"
PNG = "data:image/png;base64,iVBORw0KGgo="


class Server:
    """Signs each block of thinking with all that stands before it, blocks of thinking included, and checks them."""

    def __init__(self) -> None:
        self.signed = dict[str, str]()
        self.refused = self.kept = 0

    def ask(self, history: History, dice: random.Random, *, is_last: bool) -> dict[str, Any]:
        """Check a request, and answer it with a thought and a call or a text."""
        cache: Any = dice.choice([None, "5m", "1h"])
        request = history.to_anthropic(cache=cache, model=MODEL)
        wrong = 0
        for at, message in enumerate(request["messages"]):
            for place, part in enumerate(message["content"]):
                if part["type"] == "thinking":
                    self.kept += 1
                    wrong += self.signed[part["signature"]] != before(request, at, place)
        self.refused += bool(wrong)
        signature = f"signature-{len(self.signed)}"
        self.signed[signature] = before(request, len(request["messages"]), 0)
        number = len(self.signed)
        thinking = {"type": "thinking", "thinking": "Hm.", "signature": signature}
        said: dict[str, Any] = {"type": "text", "text": "All is well. " * dice.choice([1, 60])}
        if not is_last:
            said = {
                "type": "tool_use",
                "id": f"toolu_{number}",
                "name": "read",
                "input": {"n": number},
            }
        return {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [thinking, said] if dice.random() < 0.9 else [said],
            "stop_reason": "end_turn" if is_last else "tool_use",
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }


def before(request: Any, at: int, place: int) -> str:
    """What stands before a block of a message; a string and a list of one text are not equal here."""
    shown = [
        (
            message["role"],
            [plain(part) for part in message["content"]]
            if isinstance(message["content"], list)
            else message["content"],
        )
        for message in request["messages"][:at]
    ]
    beginning = request["messages"][at]["content"][:place] if place else []
    return json.dumps([plain(each) for each in request.get("system", [])] + shown + beginning)


def plain(part: dict[str, Any]) -> dict[str, Any]:
    """A block without its mark for the cache, which is no content."""
    return {key: value for key, value in part.items() if key != "cache_control"}


async def play(
    chats: list[Conversation], dice: random.Random, policy: HistoryPolicy, turns: int
) -> Server:
    """Play a conversation, each step in any of some processes."""
    server = Server()
    stamped = dice.choice([1, 0.95, 0.5, 0])
    for turn in range(turns):
        content: Any = [{"type": "text", "text": f"Question {turn}? " * dice.choice([1, 80])}]
        if dice.random() < 0.2:
            content.append({"type": "image_url", "image_url": {"url": PNG}})
        await dice.choice(chats).append({"role": "user", "content": content})
        steps = dice.choice([1, 1, 2, 4, 9])
        for step in range(steps):
            chat = dice.choice(chats)
            history = await chat.load_history(policy)
            reply = server.ask(history, dice, is_last=step == steps - 1)
            stamp = history.stamp if dice.random() < stamped else None
            await chat.append(reply, stamp=stamp)
            if step < steps - 1:
                result = {
                    "role": "tool",
                    "tool_call_id": reply["content"][-1]["id"],
                    "content": "all is well " * dice.choice([1, 5, 200, 900]),
                }
                await dice.choice(chats).append(result)
        if dice.random() < 0.1 and turn:
            records = await chats[0].list_messages(limit=1)
            question = records[0].turn_id
            if question:
                await dice.choice(chats).rewind(before_id=question)
    return server


async def games(seeds: Iterable[int], *, turns: int) -> tuple[int, int]:
    """Return how many requests were refused, and how many blocks went along."""
    refused = kept = 0
    for seed in seeds:
        dice = random.Random(seed)
        database = AsyncMongoMockClient()["app"]
        stores = [ConversationStore(database) for _ in range(2)]
        await stores[0].setup()
        chats = [store.conversation(user_id="ada", thread_id="t") for store in stores]
        options: dict[str, Any] = dice.choice(
            [{}, {}, {"stub_tools": "never"}, {"shorten_over": 50}]
        )
        budget = dice.choice([1_500, 4_000, 32_000, None])
        server = await play(chats, dice, HistoryPolicy(max_tokens=budget, **options), turns)
        refused += server.refused
        kept += server.kept
    return refused, kept


async def test_no_request_has_thinking_that_is_bound_to_another_one() -> None:
    """Whatever becomes a stub, leaves or is shortened, in two processes; and thinking goes along."""
    refused, kept = await games([0], turns=3)
    assert refused == 0
    assert kept > 0


@pytest.mark.slow
@pytest.mark.parametrize("first", soaked((0, 8, 16), first=1))
async def test_no_request_is_refused_in_long_conversations(first: int) -> None:
    """The same in eight conversations of 12 turns."""
    refused, kept = await games(range(first, first + 8), turns=12)
    assert refused == 0
    assert kept > 120


async def test_thinking_stays_as_long_as_nothing_changes() -> None:
    """Also that of finished turns; what a view leaves out is named, and never comes back."""
    store = ConversationStore(AsyncMongoMockClient()["app"])
    await store.setup()
    chat = store.conversation(user_id="ada", thread_id="t")
    dice = random.Random(2)
    server = Server()
    found = list[int]()

    async def answer(*, is_last: bool) -> tuple[History, dict[str, Any]]:
        history = await chat.load_history()
        reply = server.ask(history, dice, is_last=is_last)
        thinking = {"type": "thinking", "thinking": "Hm.", "signature": f"signature-{len(found)}"}
        found.append(str(history.to_anthropic(model=MODEL)).count("signature-"))
        await chat.append(
            {**reply, "content": [thinking, reply["content"][-1]]}, stamp=history.stamp
        )
        return history, reply["content"][-1]

    for turn in range(4):
        await chat.append({"role": "user", "content": f"{turn}?"})
        if turn == 1:
            _, call = await answer(is_last=False)
            await chat.append({"role": "tool", "tool_call_id": call["id"], "content": "x " * 3_000})
        history, _ = await answer(is_last=True)
    assert found == [0, 1, 2, 0, 1]
    assert [part.part for part in history.to_anthropic().dropped] == ["reasoning"] * 3
    assert (await chat.view_at(history.stamp)).match == "exact"
