"""Formats of import and export, without a store: lines, messages, records, the archive, scopes."""

from __future__ import annotations

import gzip
import json
import math
import reprlib
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from cases import each_case
from hypothesis import given
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
)
from strategies import messages, same

from convstore import InvalidInputError
from convstore.append.inputs import normalize_messages
from convstore.exceptions import InvalidScopeError
from convstore.messages.encoding import encode_message, fields_of
from convstore.messages.values import Codec
from convstore.transfer import (
    BadRecord,
    ConversationRecord,
    RecordItem,
    ScopeRule,
    dicts,
    files,
    read_file,
)
from convstore.transfer.archive import ArchiveReader, begin_line, end_line, message_line
from convstore.transfer.files import Line, check_readable, read_lines
from convstore.transfer.openai_lines import openai_line, openai_message
from convstore.transfer.prepare import batches_of, make_ready
from convstore.types import ConversationInfo

AT = datetime(2026, 3, 1, 12, 30, 15, 123_000, tzinfo=UTC)
KEYS = ("user_id", "thread_id")


def written(path: Path, *lines: Any) -> Path:
    """A file of these lines: bytes as they are, anything else as JSON."""
    path.write_bytes(
        b"".join(
            line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines
        )
    )
    return path


def texts(record: ConversationRecord | BadRecord) -> list[str]:
    """The texts of a record's messages."""
    assert isinstance(record, ConversationRecord), record
    return [message.message.text for message in make_ready(record, codec=Codec())[0]]


# ---------------------------------------------------------------------------------------------------------------------
# Lines


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_lines_are_read_from_plain_and_packed_files(tmp_path: Path, pack: Any) -> None:
    """Objects come with the numbers of their lines; empty lines, Windows' line ends and a mark of UTF-8 do no harm."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(pack(b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": 2}'))
    assert list(read_lines(path)) == [Line(1, {"a": 1}), Line(4, {"a": 2})]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"a": ', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a": "caf\xe9"}', "not UTF-8: byte 0xe9 at position 11"),
        (b'[{"messages": []}]', "jq -c"),
        (b'"text"', "not a JSON object but str"),
        (b'{"a": "' + b"x" * 2_000 + b'"}', "longer than 1,000 bytes"),
        (b"{" + b"1" * 900 + b"}", "not JSON"),
    ],
)
def test_a_bad_line_is_reported_and_the_next_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: Any, problem: str
) -> None:
    """Number and problem of any bad line are reported, and nothing else is lost."""
    path = written(tmp_path / "x.jsonl", {"a": 1}, line + b"\n", {"a": 3})
    if b"[[" not in line:
        monkeypatch.setattr(files, "_LINE_BYTES", 1_000)
    first, bad, last = read_lines(path)
    assert (first, last) == (Line(1, {"a": 1}), Line(3, {"a": 3}))
    assert bad.problem
    assert (bad.number, problem in bad.problem) == (2, True), bad


def test_a_long_last_line_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line above the limit at the end of the file, without a line end, is reported as well."""
    path = written(tmp_path / "x.jsonl", b"x" * 3_000_000)
    monkeypatch.setattr(files, "_LINE_BYTES", 10)
    assert [line.number for line in read_lines(path)] == [1]


def test_a_damaged_gzip_file_is_reported_where_it_breaks(tmp_path: Path) -> None:
    """Lines before the damage are read."""
    path = tmp_path / "x.jsonl.gz"
    packed = gzip.compress(b"".join(b'{"a": %d}\n' % number for number in range(5_000)))
    path.write_bytes(packed[:-20])
    *lines, bad = read_lines(path)
    assert lines
    assert bad.problem
    assert bad.number == len(lines) + 1
    assert "cannot be read from here on" in bad.problem


def test_files_that_can_not_be_opened_are_named(tmp_path: Path) -> None:
    """No file, or a folder."""
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InvalidInputError, match="cannot be read"):
            check_readable(path)


# ---------------------------------------------------------------------------------------------------------------------
# Messages and records


@each_case(
    "message",
    [
        HumanMessage("Hi", id="h", name="ada", additional_kwargs={"a": 1}),
        AIMessage(
            [{"type": "text", "text": "so"}],
            tool_calls=[{"name": "f", "args": {"a": 1}, "id": "c"}],
            invalid_tool_calls=[{"name": "g", "args": "{", "id": "d", "error": "no"}],
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        ),
        ToolMessage("r", tool_call_id="c", artifact=[{"text": "x"}], status="error"),
        SystemMessage("Be brief."),
        ChatMessage(content="said", role="moderator"),
    ],
)
def test_both_forms_of_langchain_are_read(message: Any) -> None:
    """Dicts of ``message_to_dict`` and ``model_dump`` become the same message again."""
    for form in (message_to_dict(message), message.model_dump()):
        assert dicts.item_of(json.loads(json.dumps(form))).message == message


@each_case(
    ("raw", "problem"),
    [
        (7, "a message must be an object, not int"),
        ({"type": "alien", "data": {"content": ""}}, "not a message of LangChain"),
        (
            {"type": "constructor", "lc": 1, "id": ["os", "system"], "kwargs": {"command": "true"}},
            "not a message",
        ),
        ({"type": "human", "data": {}}, "content"),
        ({"type": "tool", "data": {"content": "x"}}, "tool_call_id"),
        ({"type": {"$ne": ""}, "data": {"content": ""}}, "not a message of LangChain"),
    ],
)
def test_what_is_no_message_says_why(raw: dict[str, Any] | int, problem: str) -> None:
    """A value that is not a message of LangChain is reported with the reason and is never loaded as another class."""
    item = dicts.item_of(raw)
    assert item.message is None
    assert problem in item.problem


@each_case(
    ("raw", "moment"),
    [
        ({"timestamp": 1724708469}, datetime(2024, 8, 26, 21, 41, 9, tzinfo=UTC)),
        ({"timestamp": 1724708469123}, datetime(2024, 8, 26, 21, 41, 9, 123_000, tzinfo=UTC)),
        ({"created_at": "2024-08-26T23:41:09+02:00"}, datetime(2024, 8, 26, 21, 41, 9, tzinfo=UTC)),
        ({"timestamp": "soon", "create_time": 1.5e9}, datetime(2017, 7, 14, 2, 40, tzinfo=UTC)),
        ({"timestamp": "1724708469.5"}, datetime(2024, 8, 26, 21, 41, 9, 500_000, tzinfo=UTC)),
        ({"timestamp": "1724708469123"}, datetime(2024, 8, 26, 21, 41, 9, 123_000, tzinfo=UTC)),
        ({"timestamp": "20240826"}, datetime(2024, 8, 26, tzinfo=UTC)),
        ({"timestamp": datetime(2024, 8, 26)}, datetime(2024, 8, 26, tzinfo=UTC)),  # noqa: DTZ001 - what PyMongo gives
        (
            {"created_at": {"$date": "2024-08-26T21:41:09.123Z"}},
            datetime(2024, 8, 26, 21, 41, 9, 123_000, tzinfo=UTC),
        ),
        (
            {"created_at": {"$date": {"$numberLong": "1724708469123"}}},
            datetime(2024, 8, 26, 21, 41, 9, 123_000, UTC),
        ),
    ],
)
def test_dates_are_those_that_a_message_says(raw: dict[str, Any], moment: Any) -> None:
    """Seconds, milliseconds, as text too, ISO 8601, those of PyMongo and of mongoexport."""
    item = dicts.item_of({"role": "user", "content": "Hi", **raw})
    assert (item.at, item.unread_date) == (moment, "")


@each_case(
    "value",
    [
        *(
            True,
            math.nan,
            math.inf,
            -1,
            0,
            1e300,
            10**400,
            "9999-01-01",
            {},
            {"$date": "soon"},
            "yesterday",
        ),
        *(
            "01.05.2024 10:00",
            "26 Aug 2024 23:41 GMT+0200",
            "172470846912345678",
            "0001-01-01T00:00+14:00",
            {"$oid": "1"},
            ["2024-08-26"],
        ),
    ],
)
def test_unreadable_dates_are_reported(value: Any) -> None:
    """A date that cannot be read is reported with its value and is not used. An empty field is ignored."""
    for form in ({"role": "user", "content": "Hi"}, {"type": "human", "content": "Hi"}):
        item = dicts.item_of({**form, "created_at": "", "timestamp": value})
        assert (item.at, item.unread_date) == (None, f"timestamp {reprlib.repr(value)}")
        assert dicts.item_of({**form, "created_at": "", "timestamp": None}).unread_date == ""


def test_nested_dates_of_a_hostile_file_are_reported() -> None:
    """A date nested 100,000 levels deep is reported in a short text."""
    value: Any = "2024-08-26"
    for _ in range(100_000):
        value = {"$date": value}
    try:
        assert dicts.moment_of({"timestamp": value}) is None
        assert len(dicts.unread_date({"timestamp": value})) < 100
    finally:
        while isinstance(value, dict):
            value = value.pop("$date")


def test_unread_dates_are_reported_once_for_a_conversation() -> None:
    """With their number and the first one; the messages are taken over."""
    given = [
        {"role": "user", "content": "Hi", "timestamp": value}
        for value in (1724708469, "soon", "later")
    ]
    messages, problems = make_ready(
        ConversationRecord(id="c", where="x", messages=given), codec=Codec()
    )
    assert len(messages) == 3
    [problem] = problems
    assert (problem.what, problem.where) == ("changed", "x")
    assert "cannot be read: 2, the first is timestamp 'soon' of message 2" in problem.reason


def test_dicts_of_a_record_are_read_as_those_of_a_file() -> None:
    """With their date and what they retrieved; those of LangChain too. A date beside a dict goes before its own."""
    result = {
        "role": "tool",
        "tool_call_id": "c",
        "content": "x",
        "sources": [{"text": "a"}],
        "timestamp": 1724708469,
    }
    human = {"type": "human", "data": {"content": "Hi"}, "created_at": "2024-08-26"}
    given = [
        MappingProxyType(result),
        human,
        RecordItem(message=result),
        RecordItem(message=result, at=AT),
    ]
    record = ConversationRecord(id="c", messages=given)
    first, second, third, last = make_ready(record, codec=Codec())[0]
    years = [message.item.at and message.item.at.year for message in (first, second, third, last)]
    assert years == [2024, 2024, 2024, 2026]
    assert [message.message.artifact for message in (first, third, last)] == [[{"text": "a"}]] * 3
    assert second.message.text == "Hi"


def test_the_date_of_an_item_is_a_datetime() -> None:
    """The date of an item is a datetime. Without a time zone it is in UTC, and a text is refused."""
    item = RecordItem(message=HumanMessage("Hi"), at=datetime(2026, 3, 1, 12, 30, 15, 123_000))  # noqa: DTZ001
    assert item.at == AT
    with pytest.raises(InvalidInputError, match="at must be a datetime, not str"):
        RecordItem(message=HumanMessage("Hi"), at="2026-03-01")


@pytest.mark.parametrize(
    ("says", "dates"),
    [
        ({"created_at": "2024-08-26"}, [26, None, None]),
        ({"create_time": 1724630400, "update_time": 1724803200.5}, [26, None, 28]),
        ({"updated_at": "2024-08-28"}, [None, None, 28]),
        ({}, [None, None, None]),
    ],
)
def test_dates_of_a_conversation_are_those_of_its_ends(
    tmp_path: Path, says: dict[str, Any], dates: Any
) -> None:
    """If its messages have no dates, the first and the last get them."""
    asked = [{"role": "user", "content": "Hi"}] * 3
    [kept] = read_file(written(tmp_path / "x.jsonl", {"messages": asked, **says}))
    assert isinstance(kept, ConversationRecord)
    assert [item.at and item.at.day for item in kept.messages] == dates
    assert kept.notes == []


def test_dates_of_messages_go_before_those_of_their_conversation(tmp_path: Path) -> None:
    """A conversation may be newer than all its messages, when it was renamed for example."""
    asked = [
        {"role": "user", "content": "Hi"},
        {"role": "user", "content": "Hi", "timestamp": 1724708469},
    ]
    [kept] = read_file(
        written(
            tmp_path / "x.jsonl", {"messages": asked, "created_at": "2025-01-01", "updated_at": "?"}
        )
    )
    assert [item.at and item.at.year for item in kept.messages] == [None, 2024]
    assert kept.notes == []


def test_unread_dates_of_a_conversation_are_reported(tmp_path: Path) -> None:
    """Each of the two."""
    [kept] = read_file(
        written(tmp_path / "x.jsonl", {"messages": [{}], "created_at": "soon", "updated_at": 7})
    )
    assert [note.partition(": ")[2] for note in kept.notes] == ["created_at 'soon'", "updated_at 7"]


def test_a_path_may_be_text(tmp_path: Path) -> None:
    """A path may be a str, as for `open`."""
    path = written(tmp_path / "x.jsonl", {"messages": [{"role": "user", "content": "Hi"}]})
    assert list(read_file(str(path))) == list(read_file(path))


def test_a_conversation_a_line(tmp_path: Path) -> None:
    """Each line is a conversation with its id, fields, title and messages. A state of LangGraph is read too."""
    asked = [{"role": "user", "content": "Hi"}, {"type": "ai", "content": "Hello"}]
    path = written(
        tmp_path / "chats.jsonl",
        {
            "id": "one",
            "messages": asked,
            "title": "T",
            "metadata": {"a": 1},
            "meta": {"user": "ada"},
        },
        {"values": {"messages": asked}, "thread_id": 7},
        {"messages": asked},
    )
    kept, two, three = read_file(path)
    assert [texts(record) for record in (kept, two, three)] == [["Hi", "Hello"]] * 3
    assert (kept.id, kept.title, kept.metadata, kept.fields["meta"]) == (
        "one",
        "T",
        {"a": 1},
        {"user": "ada"},
    )
    assert (two.id, three.id, three.where) == ("7", "chats.jsonl:3", "chats.jsonl, line 3")


@pytest.mark.parametrize(
    "value", [{}, {"messages": []}, {"messages": {}}, {"messages": None, "values": []}]
)
def test_a_line_without_messages_is_reported(tmp_path: Path, value: dict[str, Any]) -> None:
    """A line without messages is reported with the list that is needed."""
    [bad] = read_file(written(tmp_path / "x.jsonl", value))
    assert isinstance(bad, BadRecord)
    assert 'a list "messages" is needed' in bad.problem


def test_ids_are_the_same_each_time_and_differ_between_conversations() -> None:
    """A message without an id gets one from the record's id and its place, however long the record's id is."""

    def ids(name: str) -> list[str]:
        given = [{"role": "user", "content": "same"}] * 3
        return [
            message.id
            for message in make_ready(ConversationRecord(id=name, messages=given), codec=Codec())[0]
        ]

    assert ids("a") == ids("a")
    assert len({*ids("a"), *ids("b"), *ids("x" * 10_000), *ids("\ud800")}) == 12


@each_case("id_", ["first", "", "x" * 513, 7, "\ud800", {"$ne": ""}])
def test_an_invalid_id_is_replaced_and_reported(id_: Any) -> None:
    """The message is taken over with another id, always the same one, and the change is named."""
    record = ConversationRecord(
        id="c",
        where="x",
        messages=[
            {"role": "user", "content": "1", "id": "first"},
            {"role": "user", "content": "2", "id": id_},
        ],
    )
    messages, problems = make_ready(record, codec=Codec())
    assert [message.message.text for message in messages] == ["1", "2"]
    assert messages[1].id not in ("first", id_)
    assert [problem.what for problem in problems] == ["changed"]
    assert messages[1].id == make_ready(record, codec=Codec())[0][1].id


def test_the_objects_of_a_caller_keep_their_ids() -> None:
    """A message of a program whose id is taken is not changed itself."""
    twice = [HumanMessage("1", id="same"), HumanMessage("2", id="same")]
    messages, _ = make_ready(ConversationRecord(id="c", messages=twice), codec=Codec())
    assert len({message.id for message in messages}) == 2
    assert [message.id for message in twice] == ["same", "same"]


def test_whole_turns_are_appended_together_and_dates_never_go_back() -> None:
    """A batch begins with each human message; it has the date of its first message that has one."""

    def item(role: str, seconds: int | None = None) -> dict[str, Any]:
        return {"role": role, "content": "x", "timestamp": seconds}

    given = [
        item("system"),
        item("user", 2_000_000),
        item("assistant", 1),
        item("user"),
        item("user", 1_000_000),
    ]
    record = ConversationRecord(id="c", messages=[dicts.item_of(message) for message in given])
    batches = list(batches_of(record, make_ready(record, codec=Codec())[0]))
    assert [[message.position for message in batch.messages] for batch in batches] == [
        [1],
        [2, 3],
        [4],
        [5],
    ]
    assert {batch.at for batch in batches} == {datetime.fromtimestamp(2_000_000, UTC)}


# ---------------------------------------------------------------------------------------------------------------------
# The archive


def archived(*given: BaseMessage, codec: Codec | None = None, **end: Any) -> list[dict[str, Any]]:
    """The lines of a conversation with these messages."""
    codec = codec or Codec()
    whose = {"user_id": "ada", "thread_id": "t"}
    info = ConversationInfo(scope=whose, title="T", metadata={"a": (1, b"2")})
    lines = [begin_line(codec, info, state={})]
    lines += [
        message_line(
            codec,
            RecordItem(message=message, at=AT, turn=at, annotations={"n": at}),
            ordinal=at,
            entry=at,
        )
        for at, message in enumerate(given, 1)
    ]
    ending = {"messages": len(given), "rewound": [], "sources_through": 0, "summaries": [], **end}
    return [json.loads(line) for line in [*lines, end_line(**ending)]]


def read(lines: list[Any], codec: Codec | None = None) -> list[ConversationRecord | BadRecord]:
    """Return the records that the reader makes of lines."""
    reader = ArchiveReader(codec or Codec())
    found = [
        record
        for number, line in enumerate(lines, 1)
        for record in reader.read(line, f"line {number}")
    ]
    return [*found, *reader.close()]


LINES = archived(HumanMessage("one", id="1"), HumanMessage("two", id="2"))


@each_case(
    ("lines", "problem"),
    [
        (LINES[:-1], "cut off"),
        ([LINES[0], LINES[1], LINES[3]], "1 message, and should have 2"),
        (LINES[1:], "the first line of its conversation is missing"),
        ([LINES[0], {"message": [{"type": "alien"}]}, *LINES[2:]], "line 6"),
        ([LINES[0], {"message": 7}, *LINES[2:]], "a value must be a list of lines"),
        ([LINES[0], {"message": []}, *LINES[2:]], "a value must be a list of lines"),
        ([LINES[0], {**LINES[1], "at": "soon"}, *LINES[2:]], "soon"),
        (
            [LINES[0], {**LINES[1], "stamp": {"ordinal": "x"}}, *LINES[2:]],
            "its stamp is damaged: ordinal: Input should be a valid integer",
        ),
        ([LINES[0], {**LINES[1], "stamp": {"entry": "1"}}, *LINES[2:]], "its stamp is damaged"),
        (
            [LINES[0], {**LINES[1], "stamp": {"policy": {"x": "x" * 9_999}}}, *LINES[2:]],
            "its stamp is damaged",
        ),
        ([LINES[0], {**LINES[1], "stamp": [7]}, *LINES[2:]], "its stamp is damaged"),
        ([{**LINES[0], "convstore": 2}, *LINES[1:]], "version 2"),
        ([{**LINES[0], "metadata": "%"}, *LINES[1:]], "base64"),
        (
            [LINES[0], LINES[1], LINES[2], {"end": None}],
            "line 8: the end of a conversation must be an object",
        ),
    ],
)
def test_a_conversation_that_is_not_whole_is_left_out_and_the_next_is_read(
    lines: Any, problem: str
) -> None:
    """An incomplete conversation is left out with the reason. The conversations before and after it are read."""
    [before, bad, after] = read([*LINES, *lines, *LINES])
    assert isinstance(before, ConversationRecord)
    assert isinstance(bad, BadRecord)
    assert problem in bad.problem
    assert isinstance(after, ConversationRecord)


def test_a_message_that_refers_to_a_payload_is_refused() -> None:
    """A forged line cannot make a message that points at what others have stored."""
    encoded = encode_message(Codec(), fields_of(ToolMessage("x" * 9_999, tool_call_id="c")))
    assert encoded.payload
    forged = {**LINES[1], "message": [json.loads(encoded.body)]}
    [bad] = read([LINES[0], forged, *LINES[2:]])
    assert isinstance(bad, BadRecord)
    assert "cannot refer to a payload" in bad.problem


def test_a_broken_line_of_an_archive_spoils_its_conversation_only(tmp_path: Path) -> None:
    """The file is read on; the other conversations are whole."""
    path = written(tmp_path / "x.jsonl", *LINES, LINES[0], b"{broken\n", *LINES[2:], *LINES)
    kept, bad, two = read_file(path)
    assert isinstance(kept, ConversationRecord)
    assert isinstance(two, ConversationRecord)
    assert isinstance(bad, BadRecord)
    assert "line 6: not JSON" in bad.problem


# ---------------------------------------------------------------------------------------------------------------------
# OpenAI's format


@each_case(
    "raw",
    [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hi"}],
            "name": "ada",
            "timestamp": 1.5,
        },
        {
            "role": "assistant",
            "content": "Hello",
            "reasoning_content": "hm",
            "usage": {"prompt_tokens": 1},
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"a": "é"}'},
                }
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}},
                {"id": "d", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "content": "r", "tool_call_id": "c", "name": "f", "status": "error"},
        {
            "role": "tool",
            "content": "r",
            "tool_call_id": "c",
            "artifact": [{"text": "x", "n": 1.5}],
        },
        {"role": "function", "content": "r", "name": "f"},
    ],
)
def test_what_came_in_openais_format_goes_out_in_it(raw: dict[str, Any]) -> None:
    """A dict that was appended is written as it was, with the id it has now."""
    [message] = normalize_messages([raw], key="k")
    made, lost = openai_message(message)
    assert (made, lost) == ({**raw, "id": message.id}, [])
    assert same(normalize_messages([json.loads(openai_line(made))]), [message])


def test_what_openais_format_can_not_hold_is_named() -> None:
    """Artifacts that JSON would change, and LangChain's own metadata; a bare message has nothing but the core."""
    result = ToolMessage("r", id="r", tool_call_id="c", artifact=(1, b"2"), status="error")
    answer = AIMessage(
        "a",
        id="a",
        response_metadata={"model_name": "m"},
        usage_metadata={"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
        additional_kwargs={"reasoning_content": "hm"},
    )
    assert openai_message(result)[1] == ["artifact"]
    assert openai_message(answer)[1] == ["response_metadata", "usage_metadata"]
    assert openai_message(HumanMessage("Hi", additional_kwargs={"raw": b"x"})) == (
        {"role": "user", "content": "Hi"},
        ["raw"],
    )
    bare, lost = openai_message(result, bare=True)
    assert (bare, lost) == (
        {"role": "tool", "content": "r", "tool_call_id": "c"},
        ["artifact", "status"],
    )
    bare, lost = openai_message(answer, bare=True)
    assert (bare, lost) == (
        {"role": "assistant", "content": "a"},
        ["response_metadata", "usage_metadata", "reasoning_content"],
    )
    assert bare.keys() <= {"role", "content", "name", "tool_calls", "tool_call_id"}


def test_a_call_without_arguments_goes_out_with_empty_ones() -> None:
    """A provider may send no arguments of an invalid call."""
    cut = AIMessage("", invalid_tool_calls=[{"name": "f", "args": None, "id": "c", "error": None}])
    [call] = openai_message(cut)[0]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": "{}"}


@given(messages)
def test_any_message_can_be_written_or_says_why_not(message: Any) -> None:
    """A line of JSON, or an error that names the format that can."""
    try:
        made, _ = openai_message(message)
        line = openai_line(made)
    except ValueError as error:
        problem = str(error)
    else:
        problem = ""
        assert line.count(b"\n") == line.endswith(b"\n")
        # JSON joins two halves of a character
        assert json.loads(line).keys() == json.loads(json.dumps(made)).keys()
    assert problem == "" or problem.endswith("use the format convstore")


# ---------------------------------------------------------------------------------------------------------------------
# Scopes


def record(id_: str = "r1", **fields: Any) -> ConversationRecord:
    """A record with fields."""
    return ConversationRecord(id=id_, messages=[], fields=fields)


@each_case(
    ("rule", "fields", "scope"),
    [
        ({"constant": {"user_id": "ada"}}, {}, ("ada", "r1")),
        ({"fields": {"user_id": "meta.user"}}, {"meta": {"user": "bob"}}, ("bob", "r1")),
        (
            {"fields": {"user_id": "meta.user"}},
            {"meta.user": "eve", "meta": {"user": "bob"}},
            ("eve", "r1"),
        ),
        ({"fields": {"user_id": "u", "thread_id": "n"}}, {"u": "ada", "n": 7}, ("ada", "7")),
        (
            {"match": {"s": r"(?P<user_id>[^:]+):(?P<thread_id>.+)"}},
            {"s": "ada:x:y"},
            ("ada", "x:y"),
        ),
        ({"constant": {"user_id": "ada"}, "fields": {"user_id": "u"}}, {"u": "bob"}, ("ada", "r1")),
        (
            {"fields": {"user_id": "u"}},
            {"u": "bob", "scope": {"user_id": "no", "thread_id": "t"}},
            ("bob", "t"),
        ),
    ],
)
def test_scopes_are_made_by_the_rule(
    rule: dict[str, Any], fields: dict[str, Any], scope: Any
) -> None:
    """Constants before fields before groups before what the record knows; the last key falls back to the id."""
    assert tuple(ScopeRule(keys=KEYS, **rule)(record(**fields)).values()) == scope


@each_case(
    ("rule", "fields", "problem"),
    [
        ({}, {}, "no value for user_id"),
        ({"fields": {"user_id": "u"}}, {"x": 1}, "'u' is missing; .*the fields are x"),
        ({"fields": {"user_id": "u"}}, {"u": {"$ne": ""}}, "is a dict"),
        ({"fields": {"user_id": "u"}}, {"u": True}, "is a bool"),
        ({"fields": {"user_id": "u"}}, {"u": ""}, "must not be empty"),
        ({"fields": {"user_id": "u"}}, {"u": "\ud800"}, "surrogates"),
        ({"match": {"s": r"(?P<user_id>\d+)"}}, {"s": "ada"}, "does not match"),
    ],
)
def test_a_scope_that_can_not_be_is_refused(
    rule: dict[str, Any], fields: dict[str, Any], problem: str
) -> None:
    """An invalid scope is refused with the name of the wrong key or field."""
    with pytest.raises(InvalidScopeError, match=problem.replace("$", r"\$")):
        ScopeRule(keys=KEYS, **rule)(record(**fields))


@each_case(
    "rule",
    [
        {"constant": {"team": "x"}},
        {"fields": {"team": "x"}},
        {"match": {"s": "(?P<team>.+)"}},
        {"match": {"s": "("}},
        {"match": {"s": "no group"}},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_when_it_is_made(rule: dict[str, Any]) -> None:
    """Unknown keys and broken expressions, before anything is read."""
    with pytest.raises(InvalidScopeError):
        ScopeRule(keys=KEYS, **rule)


def test_the_scope_of_an_export_must_fit_the_store() -> None:
    """An export of a store with other scope keys is not squeezed into this one."""
    with pytest.raises(InvalidScopeError, match="course"):
        ScopeRule(keys=KEYS)(
            ConversationRecord(id="r", messages=[], scope={"user_id": "a", "course": "c"})
        )


def exported(form: str, **scope: str) -> ConversationRecord:
    """Return a record with its scope as each of the two formats of an export has it."""
    return (
        ConversationRecord(id="r", messages=[], scope=scope)
        if form == "convstore"
        else record(scope=scope)
    )


@each_case("form", ["convstore", "openai"])
def test_the_scope_of_an_export_is_taken_whole(form: str) -> None:
    """Another key, or one that is missing, is refused unless the rule names a value for every key."""
    other = exported(form, user_id="ada", session_id="s")
    with pytest.raises(
        InvalidScopeError, match=r"has the keys user_id, session_id, and this import writes user_id"
    ):
        ScopeRule(keys=KEYS, constant={"thread_id": "t"})(other)
    with pytest.raises(InvalidScopeError, match="no value for thread_id"):
        ScopeRule(keys=KEYS)(exported(form, user_id="ada"))
    named = ScopeRule(keys=KEYS, constant={"user_id": "bob", "thread_id": "t"})
    assert named(other) == {"user_id": "bob", "thread_id": "t"}


@each_case(("number", "said"), [(1, "1 summary left out;"), (2, "2 summaries left out;")])
def test_summaries_that_are_left_out_are_counted(number: int, said: str) -> None:
    """One is no plural."""
    reader = ArchiveReader(Codec())
    assert not list(
        reader.read({"convstore": 1, "scope": {"user_id": "ada", "thread_id": "t"}}, "line 1")
    )
    [read] = reader.read({"end": {"messages": 0, "summaries": [{}] * number}}, "line 2")
    assert isinstance(read, ConversationRecord)
    assert read.notes == [f"{said} compact makes new ones"]


def test_an_item_without_a_message_says_why() -> None:
    """A problem of the source becomes one of the record."""
    record = ConversationRecord(id="c", messages=[RecordItem(message=None, problem="gone")])
    _, problems = make_ready(record, codec=Codec())
    assert [(problem.what, problem.where, problem.reason) for problem in problems] == [
        ("message", "message 1", "gone")
    ]
