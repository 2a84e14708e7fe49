"""The rule by which a history that is sent again is known, against brute force; and content digests."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any

import pytest
from cases import each_case
from hypothesis import example, given
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

from convstore.append.resent import comparable, compare, divergence
from convstore.log.comparison import content_digest
from convstore.log.entry import EntryMessage
from convstore.messages.values import Codec

CODEC = Codec()
LETTERS = {"h": "human", "a": "ai", "c": "ai", "t": "tool", "s": "system"}


def line(script: str) -> list[EntryMessage]:
    """A log or a batch: a letter for each message, a digit after it for its text; "c" is an AI message with a call."""
    words = [script[at : at + 2] for at in range(0, len(script), 2)]
    return [
        EntryMessage(
            index,
            f"{index}",
            LETTERS[word[0]],
            "",
            b"",
            0,
            0,
            word.encode(),
            calls=("call",) if word[0] == "c" else (),
        )
        for index, word in enumerate(words, 1)
    ]


def known(batch: str, log: str, *, exactly: bool = True) -> int | None:
    """Return how many leading messages of a batch are known; None if it diverges from the log."""
    found = compare(line(batch), line(log), turns=log.count("h"), exactly=exactly)
    return None if found.differs else found.known


scripts = st.lists(st.sampled_from(["h1", "h2", "a1", "a2", "c1", "t1", "s1"]), max_size=9).map(
    "".join
)
both = st.booleans()


def questions(script: str) -> list[str]:
    """The questions of a script."""
    return [
        word for word in (script[at : at + 2] for at in range(0, len(script), 2)) if word[0] == "h"
    ]


@given(scripts, scripts, both)
def test_known_questions_end_the_log(batch: str, log: str, exactly: bool) -> None:
    """Matched questions are the first of the batch and the last of the log.

    Every matched message equals its counterpart in the log, and the counterparts are in order.
    """
    sent, found = (
        line(batch),
        compare(line(batch), line(log), turns=log.count("h"), exactly=exactly),
    )
    pairs = [(sent[index], message) for index, message in sorted(found.matched.items())]
    assert all(mine.content_digest == theirs.content_digest for mine, theirs in pairs)
    assert [theirs.ordinal for _, theirs in pairs] == sorted(
        {theirs.ordinal for _, theirs in pairs}
    )
    asked = [theirs.content_digest.decode() for _, theirs in pairs if theirs.type == "human"]
    assert asked == questions(batch)[: len(asked)]
    assert not asked or questions(log)[-len(asked) :] == asked
    possible = [
        number for number in range(1, 9) if questions(batch)[:number] == questions(log)[-number:]
    ]
    if len(questions(batch)) > 1 and questions(log):
        assert bool(asked) == any(possible) or found.differs
    assert found.differs <= (exactly or len(questions(batch)) > 1)


@given(scripts, scripts)
@example("s1a1s1h1h2", "a1")  # the first message is not written, and is not the third one
def test_a_written_batch_is_known(batch: str, log: str) -> None:
    """After the rest of a batch is written, the same batch matches as a whole, if no question occurs twice."""
    first = compare(line(batch), line(log), turns=log.count("h"), exactly=True)
    if first.differs or len(questions(batch)) < 2:
        return
    after = log + batch[2 * first.known :]
    again = compare(line(batch), line(after), turns=after.count("h"), exactly=True)
    assert not again.differs or len(set(questions(batch))) < len(questions(batch))
    if len(set(questions(batch + log))) == len(questions(batch + log)):
        assert 2 * again.known == len(batch)


@given(scripts, scripts, both)
def test_what_is_read_is_enough(batch: str, log: str, exactly: bool) -> None:
    """The end of a log that is enough for a batch gives the same answer as the whole log."""
    turns = log.count("h")
    whole = compare(line(batch), line(log), turns=turns, exactly=exactly)
    for start in range(len(line(log))):
        end = line(log)[start:]
        if log[2 * start :].count("h") > batch.count("h"):
            part = compare(line(batch), end, turns=turns, exactly=exactly)
            assert (part.differs, part.matched) == (whole.differs, whole.matched)


@each_case(
    ("batch", "log", "expected"),
    [
        ("h1a1h2", "", 0),  # an empty log takes all
        ("s1h1a1h2", "", 0),
        ("s1h1a1h2", "s1", 1),
        ("h1a1h2", "h1a1", 2),  # the whole log
        ("s1h1a1h2", "h1a1", 3),
        ("s1h1a1h2", "s2h1a1", 3),
        ("h2a2h3", "h1a1h2a2", 2),  # its end
        ("a1h2a2h3", "h1a1h2a2", 3),
        ("h1a1h2", "h1c1t1a1", 2),  # without tool messages
        ("h1c1t1a1h2", "h1c1t1a1", 4),
        ("h1a1h2", "h1a1h2", 3),  # the open question
        ("h1c1t1a1h2", "h1c1t1a1h2c2t2", 5),
        ("h1c1t1a1h2h3", "h1c1t1a1h2c2t2", 5),
        ("h1c1t1a1h2c2", "h1c1t1a1h2c2t2", 6),  # a part of the turn in progress
        ("h1a1h2c2h3", "h1a1h2c2", 4),  # calls without results
        ("h1c1a1h2", "h1c1t1a1", 3),
        ("h1a1h2c2", "h1c1t1a1", 2),
        ("h1a1h2c1t1a2", "h1a1h2c2", 3),  # an interrupted run left other calls
        ("h1a1h2c1t1a2", "h1a1h2c2c1t1a2", 6),
        ("h1a1h2c1t1a2h1", "h1a1h2c2c1t1a2", 6),
        ("h1a1h2", "h1a1h2a2", None),  # regenerated
        ("h1a2h2", "h1a1", None),  # edited
        ("h1c2t1a1h2", "h1c1t1a1", None),
        ("h3a3h4", "h1a1", None),
        ("h1a1h1", "h1a1h1a1", 2),  # repeated texts: the last turn and a new question
        ("h1a1h1a1h1", "h1a1h1a1", 4),
    ],
)
def test_the_rule_by_example(batch: str, log: str, expected: int | None) -> None:
    """Each sentence of the rule for histories that hold all answers."""
    assert known(batch, log) == expected


@each_case(
    ("batch", "log", "expected"),
    [
        ("h1a2h2", "h1a1", 1),  # another answer
        ("h1h2", "h1a1", 1),
        ("h1a1h2", "h1a1h2a2", 3),  # an answer that the client lacks
        ("h1a2h2a1", "h1a1h2a2", 3),
        ("h1a1h3", "h1a1h2a2", None),  # a missing question
        ("h2a1h3", "h1a1", None),
        ("h1", "h1a1", 0),  # one question alone is new
        ("h1a2", "h1a1", 1),
        ("h1a1h1", "h1a1h1a1", 3),
        ("h1a1h1", "h2a2h1a1h1a1", 2),
    ],
)
def test_the_rule_of_questions_by_example(batch: str, log: str, expected: int | None) -> None:
    """Each sentence of the rule for histories of clients."""
    assert known(batch, log, exactly=False) == expected


@each_case(
    ("batch", "log", "after", "before"),
    [
        ("h1a1h3", "h1a1h2a2", "2", "3"),
        ("h1a1h2", "h1a1h2c1t1a2", "3", "4"),
        ("h3a1h2", "h1a1", None, "1"),
        ("h2a2h4", "h1a1h2a2h3a3", "4", "5"),
        ("h1a2h1", "h1a1h1a1", "1", "2"),
    ],
)
def test_where_histories_part(batch: str, log: str, after: str | None, before: str) -> None:
    """After the last message on which both agree; the active message after it is what `rewind` needs."""
    assert [
        message and message.id for message in divergence(line(batch), line(log), exactly=True)
    ] == [after, before]


def test_where_questions_part() -> None:
    """Before the first question that the client lacks, whatever it holds as answers."""
    for batch in ("h1a1h3", "h1a2h3", "h1h3"):
        found = divergence(line(batch), line("h1c1t1a1h2a2"), exactly=False)
        assert [message and message.id for message in found] == ["4", "5"]


@pytest.mark.slow
def test_a_long_history_of_equal_texts_takes_no_time() -> None:
    """Comparing 40,000 messages of equal texts does not take quadratic time."""
    log = line("h1a1" * 20_000)
    assert compare([*log, log[0]], log, turns=20_000, exactly=False).known == 40_000


def same(message: BaseMessage, other: BaseMessage) -> bool:
    """Return True if a client cannot distinguish two messages."""
    return content_digest(message, CODEC) == content_digest(other, CODEC)


def called(args: Any, name: str = "look", id_: str = "c") -> AIMessage:
    """An AI message with one call."""
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": id_}])


PICTURE = base64.b64encode(b"a picture").decode()


def _bedrock(picture: bytes) -> dict[str, Any]:
    """A picture as Amazon Bedrock's Converse API has it."""
    return {"type": "image", "image": {"format": "png", "source": {"bytes": picture}}}


@each_case(
    ("message", "other"),
    [
        (HumanMessage("Hi", id="1", name="ada"), HumanMessage(" Hi\n", id="2")),
        (HumanMessage("Hi there"), HumanMessage([{"type": "text", "text": "Hi "}, "there"])),
        (HumanMessage("Hi"), HumanMessage([{"type": "input_text", "text": "Hi"}])),
        (
            AIMessage([{"type": "reasoning", "reasoning": "…"}, {"type": "text", "text": "Hi"}]),
            AIMessage("Hi"),
        ),
        (
            AIMessage(
                [{"type": "tool_use", "id": "c", "name": "look", "input": {}}],
                tool_calls=called({}).tool_calls,
            ),
            called({}),
        ),
        (called({"a": 1, "b": [2.0]}), called({"b": [2], "a": 1.0}, id_="d")),
        (
            ToolMessage("r", tool_call_id="1", artifact=[1]),
            ToolMessage("r", tool_call_id="2", name="look"),
        ),
        (
            HumanMessage(
                [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}]
            ),
            HumanMessage(
                [{"type": "image", "base64": PICTURE, "mime_type": "image/png", "id": "i"}]
            ),
        ),
        (
            HumanMessage([{"type": "image", "source": {"type": "base64", "data": PICTURE}}]),
            HumanMessage([{"type": "image", "data": b"a picture"}]),
        ),
        (
            HumanMessage([{"type": "image", "base64": PICTURE}]),
            HumanMessage([_bedrock(b"a picture")]),
        ),
        (
            HumanMessage([{"type": "media", "file_uri": "gs://a/b.mp4", "mime_type": "video/mp4"}]),
            HumanMessage([{"type": "media", "file_uri": "gs://a/b.mp4"}]),
        ),
    ],
)
def test_what_a_client_cannot_tell_apart_is_equal(message: BaseMessage, other: BaseMessage) -> None:
    """Ids, reasoning, white space around, and how a text or a picture is written do not count."""
    assert same(message, other)


@each_case(
    ("message", "other"),
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
        (ChatMessage(content="x", role="critic"), ChatMessage(content="x", role="judge")),
        (FunctionMessage(content="x", name="f"), FunctionMessage(content="x", name="g")),
        (
            HumanMessage([{"type": "image", "base64": PICTURE}]),
            HumanMessage([{"type": "image", "base64": PICTURE[1:]}]),
        ),
        (HumanMessage([_bedrock(b"a picture")]), HumanMessage([_bedrock(b"another")])),
        (
            HumanMessage([{"type": "media", "file_uri": "gs://a/b.mp4"}]),
            HumanMessage([{"type": "media", "file_uri": "gs://a/c.mp4"}]),
        ),
        (HumanMessage([{"type": "image", "base64": PICTURE}]), HumanMessage("")),
    ],
)
def test_messages_that_differ_are_not_equal(message: BaseMessage, other: BaseMessage) -> None:
    """Type, text, media, names and arguments of calls, results."""
    assert not same(message, other)


def test_any_value_has_a_digest() -> None:
    """Bytes, dates, lone surrogates, NaN, keys that are no text or have no order, any depth."""
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    for value in (
        b"\x00",
        "\ud800",
        float("nan"),
        {1: 2, "a": 3},
        {Decimal("NaN"): 1, 2: 3},
        deep,
        {"$": 1},
        object(),
    ):
        digest = content_digest(ToolMessage([{"type": "x", "x": value}], tool_call_id="c"), CODEC)
        assert len(digest) == 12
        assert content_digest(called({"x": value}), CODEC) != digest


def test_only_what_ends_a_turn_is_compared_as_an_answer() -> None:
    """Neither a message with calls nor an answer that its provider paused does."""
    call = {"name": "search", "args": {}, "id": "c"}
    paused = AIMessage("Wait.", id="p", response_metadata={"stop_reason": "pause_turn"})
    said = [
        AIMessage("Yes.", id="a"),
        AIMessage("", id="c", tool_calls=[call]),
        paused,
        HumanMessage("?", id="h"),
    ]
    assert [comparable(message, CODEC).is_answer for message in said] == [True, False, False, False]
