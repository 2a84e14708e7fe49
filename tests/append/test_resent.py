"""The rule by which a history that is sent again is known, against brute force; and content digests."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from convstore.append.resent import Comparable, Match, compare, is_enough, known_prefix, leading_systems, parting
from convstore.log.comparison import content_digest
from convstore.messages.values import Codec

CODEC = Codec()
LETTERS = {"h": "human", "a": "ai", "c": "ai", "t": "tool", "s": "system"}


def line(script: str) -> list[Comparable]:
    """A log or a batch: a letter for each message, a digit after it for its text; "c" is an AI message with a call."""
    words = [script[at : at + 2] for at in range(0, len(script), 2)]
    return [
        Comparable(LETTERS[word[0]], word[0] == "c", word.encode(), f"{index}", index)
        for index, word in enumerate(words, 1)
    ]


def known(batch: str, log: str) -> int | None:
    """Return how many messages of a batch are known."""
    return compare(line(batch), line(log)).known


def spelled(messages: Any) -> str:
    """The script of some messages."""
    return "".join(one.digest.decode() for one in messages)


scripts = st.lists(st.sampled_from(["h1", "h2", "a1", "a2", "c1", "t1", "s1"]), max_size=9).map("".join)
texts = st.lists(st.sampled_from([b"x", b"y"]), max_size=9)


def by_brute_force(batch: list[bytes], log: list[bytes], question: int | None) -> tuple[int, int]:
    """Try every length at both ends of the log."""
    ends = [len(log)] if question is None else [question + 1, len(log)]
    lengths = {
        end: max(length for length in range(min(len(batch), end) + 1) if batch[:length] == log[end - length : end])
        for end in ends
    }
    end = max(ends, key=lambda one: (lengths[one], one))
    length = lengths[end]
    if end < len(log) and batch[length : length + 1] == log[end : end + 1]:
        return 0, end
    return length, end


@given(texts, texts, st.data())
def test_the_longest_beginning_is_found(batch: list[bytes], log: list[bytes], data: Any):
    """In one pass the same as trying every length."""
    question = data.draw(st.none() | st.integers(0, len(log) - 1)) if log else None
    assert known_prefix(batch, log, question) == by_brute_force(batch, log, question)


@given(scripts, scripts)
def test_what_is_known_is_the_end_of_the_log(batch: str, log: str):
    """The messages that are known are equal to those of the log, which end it or stop at its open question."""
    found = compare(line(batch), line(log))
    if found.known is None:
        return
    assert batch[: 2 * found.known].endswith(spelled(found.matched))
    lists = [[one for one in line(log) if "t" in batch or one.type == "human" or one.is_answer]]
    if "c" in batch and "t" not in batch:
        lists.append([one for one in line(log) if one.type != "tool"])
    assert any(ends_the_log(found, compared, batch, log) for compared in lists)


def ends_the_log(found: Match, compared: list[Comparable], batch: str, log: str) -> bool:
    """Return True if the known messages end the compared ones, or stop at the open question."""
    matched = [one for one in found.matched if one in compared]
    if not matched:
        return found.known == leading_systems(line(batch)) or not log
    rest = compared[compared.index(matched[-1]) + 1 :]
    is_open = matched[-1].type == "human" and all(one.type != "human" for one in rest) and not line(log)[-1].is_answer
    return (not rest or is_open) and matched == compared[compared.index(matched[0]) : compared.index(matched[-1]) + 1]


@given(scripts, scripts)
def test_what_is_read_is_enough(batch: str, log: str):
    """The end of a log that is enough for a batch gives the same answer as the whole log."""
    whole = compare(line(batch), line(log))
    for start in range(len(line(log))):
        end = line(log)[start:]
        if is_enough(line(batch), end) and not all(one.type == "system" for one in end):
            part = compare(line(batch), end)
            assert part.known == whole.known
            assert spelled(part.matched).lstrip("s1") == spelled(whole.matched).lstrip("s1")


@pytest.mark.parametrize(
    ("batch", "log", "expected"),
    [
        ("h1a1h2", "", 0),  # an empty log takes all
        ("s1h1a1h2", "", 0),
        ("s1h1a1h2", "s1", 1),
        ("h1a1h2", "h1a1", 2),  # the whole log
        ("s1h1a1h2", "h1a1", 3),
        ("s1h1a1h2", "s2h1a1", 3),
        ("h2a2h3", "h1a1h2a2", 2),  # its end
        ("h1a1h2", "h1c1t1a1", 2),  # without tool messages
        ("h1c1t1a1h2", "h1c1t1a1", 4),
        ("h1a1h2t1", "h1c1t1a1", None),
        ("h1a1h2", "h1a1h2", 3),  # the open question
        ("h1c1t1a1h2", "h1c1t1a1h2c2t2", 5),
        ("h1c1t1a1h2h3", "h1c1t1a1h2c2t2", 5),
        ("h1c1t1a1h2c2", "h1c1t1a1h2c2t2", None),  # a part of the turn in progress
        ("h1a1h2c2h3", "h1a1h2c2", 4),  # calls without results
        ("h1c1a1h2", "h1c1t1a1", 3),
        ("h1a1h2c2", "h1c1t1a1", 2),
        ("h1a1h2c1", "h1a1h2c1t1c2", None),
        ("h1a1h2", "h1a1h2a2", None),  # regenerated
        ("h1a2h2", "h1a1", None),  # edited
        ("h3a3h4", "h1a1", None),
        ("h1a1h1", "h1a1h1a1", 2),  # repeated texts: the last turn and a new question
        ("h1a1h1a1h1", "h1a1h1a1", 4),
    ],
)
def test_the_rule_by_example(batch: str, log: str, expected: int | None):
    """Each sentence of the rule."""
    assert known(batch, log) == expected


@pytest.mark.parametrize(
    ("batch", "log", "after", "before"),
    [
        ("h1a1h3", "h1a1h2a2", "2", "3"),
        ("h1a1h2", "h1a1h2c1t1a2", "3", "4"),
        ("h3a1h2", "h1a1", None, "1"),
        ("h2a2h4", "h1a1h2a2h3a3", "4", "5"),
        ("h1a2h1", "h1a1h1a1", "1", "2"),
    ],
)
def test_where_histories_part(batch: str, log: str, after: str | None, before: str):
    """After the last message on which both agree; the active message after it is what `rewind` needs."""
    found = parting(line(batch), line(log))
    assert (found.after and found.after.id, found.before and found.before.id) == (after, before)


def test_a_long_history_of_equal_texts_takes_no_time():
    """Nothing is quadratic."""
    log = [b"next", b"Done."] * 20_000
    assert known_prefix([*log, b"next"], log) == (40_000, 40_000)


def same(one: BaseMessage, other: BaseMessage) -> bool:
    """Return True if a client cannot distinguish two messages."""
    return content_digest(one, CODEC) == content_digest(other, CODEC)


def called(args: Any, name: str = "look", id_: str = "c") -> AIMessage:
    """An AI message with one call."""
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": id_}])


PICTURE = base64.b64encode(b"a picture").decode()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (HumanMessage("Hi", id="1", name="ada"), HumanMessage(" Hi\n", id="2")),
        (HumanMessage("Hi there"), HumanMessage([{"type": "text", "text": "Hi "}, "there"])),
        (HumanMessage("Hi"), HumanMessage([{"type": "input_text", "text": "Hi"}])),
        (AIMessage([{"type": "reasoning", "reasoning": "…"}, {"type": "text", "text": "Hi"}]), AIMessage("Hi")),
        (
            AIMessage([{"type": "tool_use", "id": "c", "name": "look", "input": {}}], tool_calls=called({}).tool_calls),
            called({}),
        ),
        (called({"a": 1, "b": [2.0]}), called({"b": [2], "a": 1.0}, id_="d")),
        (ToolMessage("r", tool_call_id="1", artifact=[1]), ToolMessage("r", tool_call_id="2", name="look")),
        (
            HumanMessage([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}]),
            HumanMessage([{"type": "image", "base64": PICTURE, "mime_type": "image/png", "id": "i"}]),
        ),
        (
            HumanMessage([{"type": "image", "source": {"type": "base64", "data": PICTURE}}]),
            HumanMessage([{"type": "image", "data": b"a picture"}]),
        ),
    ],
)
def test_what_a_client_cannot_tell_apart_is_equal(one: BaseMessage, other: BaseMessage):
    """Ids, reasoning, white space around, and how a text or a picture is written do not count."""
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (HumanMessage("Hi"), AIMessage("Hi")),
        (HumanMessage("Hi"), SystemMessage("Hi")),
        (HumanMessage("Hi"), HumanMessage("hi")),
        (HumanMessage("a b"), HumanMessage("a  b")),
        (AIMessage(""), called({})),
        (called({"a": 1}), called({"a": 2})),
        (called({"a": 1}), called({"a": "1"})),
        (called({"a": True}), called({"a": 1})),
        (called({}), called({}, name="find")),
        (ToolMessage("r", tool_call_id="1"), ToolMessage("s", tool_call_id="1")),
        (
            ToolMessage([{"type": "json", "json": {"a": 1}}], tool_call_id="1"),
            ToolMessage([{"type": "json", "json": {"a": 2}}], tool_call_id="1"),
        ),
        (ChatMessage("x", role="critic"), ChatMessage("x", role="judge")),
        (FunctionMessage("x", name="f"), FunctionMessage("x", name="g")),
        (
            HumanMessage([{"type": "image", "base64": PICTURE}]),
            HumanMessage([{"type": "image", "base64": PICTURE[1:]}]),
        ),
        (HumanMessage([{"type": "image", "base64": PICTURE}]), HumanMessage("")),
    ],
)
def test_messages_that_differ_are_not_equal(one: BaseMessage, other: BaseMessage):
    """Type, text, media, names and arguments of calls, results."""
    assert not same(one, other)


def test_any_value_has_a_digest():
    """Bytes, dates, lone surrogates, NaN, keys that are no text, any depth."""
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    for value in (b"\x00", "\ud800", float("nan"), {1: 2, "a": 3}, deep, {"$": 1}, object()):
        digest = content_digest(ToolMessage([{"type": "x", "x": value}], tool_call_id="c"), CODEC)
        assert len(digest) == 12
        assert content_digest(called({"x": value}), CODEC) != digest
