"""The event loop stays free: long work is done in threads, and there in pieces that let others have their turn.

Nothing here is timed: what is asserted is where work is done, and how much of it at once. `benchmarks/load.py` measures
how long the loop is blocked.
"""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from scripted_agents import log_of

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.append import writer
from convstore.append.batch import prepare_batch
from convstore.append.compose import compose_entry
from convstore.log import stored_message as reading
from convstore.messages import json_text, text, values
from convstore.messages.text import text_of
from convstore.messages.tokens import approximate_tokens
from convstore.messages.values import Codec
from convstore.mongo import log
from convstore.search.sealer import Sealer
from convstore.sources.detection import parse_json
from convstore.testing import rag_turn
from convstore.view import decoder

LARGE, SMALL = "a whale " * 30_000, "a whale " * 500
_WHOLE = HistoryPolicy(max_tokens=None)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The thread of each message that is decoded from now on; conversations of other tests are not sealed meanwhile."""
    monkeypatch.setattr(Sealer, "ring", lambda _: None)
    threads: list[int] = []

    def noted(decode: Callable[..., BaseMessage], *arguments: Any, **options: Any) -> BaseMessage:
        threads.append(threading.get_ident())
        return decode(*arguments, **options)

    for module, name in (
        (reading, "decode_message"),
        (decoder, "decode_plain"),
        (decoder, "decode_if_plain"),
    ):
        monkeypatch.setattr(module, name, partial(noted, getattr(module, name)))
    return threads


def turn(text: str) -> list[BaseMessage]:
    """A turn in progress whose result has this text in content and artifact."""
    call = {"name": "look", "args": {}, "id": "1"}
    result = ToolMessage(
        text, id="result", tool_call_id="1", artifact=[(text, {"title": "Whales"})]
    )
    return [HumanMessage("?", id="question"), AIMessage("", id="call", tool_calls=[call]), result]


READS: dict[str, Callable[[Conversation], Awaitable[Any]]] = {
    "load_history": lambda chat: chat.load_history(_WHOLE),
    "get_tool_messages": lambda chat: chat.get_tool_messages(["result"]),
    "messages": log_of,
    "list_messages": lambda chat: chat.list_messages(full=True),
    "get_turn": lambda chat: chat.get_turn("question"),
}


@pytest.mark.parametrize("name", READS)
async def test_a_large_result_is_decoded_in_a_thread(
    store: ConversationStore, decoded: list[int], name: str
) -> None:
    """Every reader decodes it in a thread, also if the store still has its text."""
    chat = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
    await chat.append(turn(LARGE))
    decoded.clear()
    await READS[name](chat)
    assert decoded
    assert threading.get_ident() not in decoded


@pytest.mark.parametrize("name", READS)
async def test_a_small_result_is_decoded_at_once(
    store: ConversationStore, decoded: list[int], name: str
) -> None:
    """A thread would take longer than the work."""
    chat = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
    await chat.append(turn(SMALL))
    decoded.clear()
    await READS[name](chat)
    assert set(decoded) == {threading.get_ident()}


@pytest.mark.slow
async def test_many_messages_are_read_in_a_thread(
    store: ConversationStore, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many messages are read and decoded in a thread, for a view and for a page of a thousand."""
    made: list[int] = []
    entry_from = log.entry_from

    def noted(*arguments: Any, **options: Any) -> Any:
        made.append(threading.get_ident())
        return entry_from(*arguments, **options)

    monkeypatch.setattr(log, "entry_from", noted)
    chat = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
    for number in range(200):
        await chat.append([HumanMessage(f"{number}?"), AIMessage("Yes.")])
    for work in (chat.load_history(_WHOLE), chat.list_messages(limit=1_000)):
        made.clear()
        decoded.clear()
        await work
        assert len(decoded) == 400
        assert sum(thread != threading.get_ident() for thread in made) >= 200
        assert threading.get_ident() not in decoded


async def test_a_large_batch_is_composed_in_a_thread(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large batch is composed in a thread, a small one in the event loop."""
    threads: list[int] = []

    def noted(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.get_ident())
        return compose_entry(*arguments, **options)

    monkeypatch.setattr("convstore.append.writer.compose_entry", noted)
    chat = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
    await chat.append([HumanMessage(f"{number}?") for number in range(500)])
    assert threads
    assert threading.get_ident() not in threads
    threads.clear()
    await chat.append(HumanMessage("?"))
    assert threads == [threading.get_ident()]


async def test_appends_at_once_take_turns(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tasks run between any two concurrent appends, so many users block the loop no longer than one."""
    steps: list[str] = []

    async def another() -> None:
        while True:
            steps.append("other")
            await asyncio.sleep(0)

    def noted(*arguments: Any, **options: Any) -> Any:
        steps.append("prepare")
        return prepare_batch(*arguments, **options)

    monkeypatch.setattr(writer, "prepare_batch", noted)
    chats = [store.conversation(user_id="ada", thread_id=uuid.uuid4().hex) for _ in range(5)]
    task = asyncio.create_task(another())
    await asyncio.gather(*(chat.append(rag_turn("And?")) for chat in chats))
    task.cancel()
    assert steps.count("prepare") == len(chats)
    assert ("prepare", "prepare") not in pairwise(steps)


class _Counting(json.JSONEncoder):
    """Notes how many values each call of the JSON writer holds."""

    maximum = 0

    def encode(self, o: Any) -> str:
        """Write."""
        self.maximum = max(self.maximum, _values_in(o))
        return super().encode(o)


def _values_in(value: Any) -> int:
    children = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    )
    return 1 + sum(map(_values_in, children))


def test_a_long_value_is_written_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long value is encoded in slices, so that no call of C blocks all threads. A short value takes one call."""
    counting = _Counting(ensure_ascii=False, check_circular=False, separators=(",", ":"))
    for module in (values, json_text):
        monkeypatch.setattr(module, "write_line", counting.encode)
    rows = [{"k": number, "v": [number] * 3} for number in range(5_000)]
    text = Codec().encode({"artifact": {"rows": rows}})
    assert Codec().decode(text) == {"artifact": {"rows": rows}}
    assert 0 < counting.maximum < 1_000
    Codec().encode({"artifact": rows[:200], "tagged": (1,)})
    assert counting.maximum > 1_000


_JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=3), inner, max_size=7)
    ),
    max_leaves=30,
)


@given(_JSON_VALUES)
def test_slices_are_the_same_text(value: Any) -> None:
    """The text, and so the digest, is the same whether or not it was written in slices."""
    with patch.object(json_text, "_SLICE", 2), patch.object(text, "_SLICE", 2):
        assert json_text.write_long_line(value) == json_text.write_line(value)
        assert text_of([value] * 5) == json.dumps([value] * 5, ensure_ascii=False)


def test_long_json_is_read_with_pauses() -> None:
    """A function of Python is called for each dict of a long text, of a short one it is not."""
    rows = [{"k": number} for number in range(20_000)]
    with patch.object(json, "loads", wraps=json.loads) as loads:
        assert parse_json(json.dumps({"rows": rows})) == {"rows": rows}
        assert loads.call_args.kwargs["object_hook"]({"k": 1}) == {"k": 1}
        parse_json('{"k": 1}')
        assert loads.call_args.kwargs["object_hook"] is None


def test_a_long_text_is_counted_as_the_sum_of_its_pieces() -> None:
    """Characters of wide scripts count the same wherever a piece ends."""
    text = "abc\u4e2d\u0430" * 50_000
    number, ten = (
        approximate_tokens([HumanMessage(part)]) for part in (text[: len(text) // 10], text)
    )
    assert abs(ten - 10 * number) <= 10 * 4


async def test_the_loop_turns_while_a_large_result_is_loaded(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop runs other tasks while a large result is decoded."""
    begun, turned, decode = threading.Event(), threading.Event(), reading.decode_message

    def waits(*arguments: Any, **options: Any) -> BaseMessage:
        begun.set()
        assert turned.wait(30), "the loop is blocked"
        return decode(*arguments, **options)

    chat = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
    await chat.append(turn(LARGE))
    monkeypatch.setattr(reading, "decode_message", waits)
    loading = asyncio.ensure_future(chat.load_history())
    assert await asyncio.to_thread(begun.wait, 30)
    turned.set()
    assert [message.id for message in (await loading).messages] == ["question", "call", "result"]
