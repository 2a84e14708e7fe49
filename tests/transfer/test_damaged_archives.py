"""An archive that somebody else wrote or changed: read in bounds, and refused whole or imported readable."""

from __future__ import annotations

import gzip
import json
import sqlite3
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from every_reader import read_everything
from langchain_core.messages import AIMessage, HumanMessage
from properties import parts

from convstore import ConversationStore, InvalidInputError
from convstore.messages.values import Codec
from convstore.transfer import (
    BadRecord,
    ConversationRecord,
    RecordItem,
    ScopeRule,
    files,
    import_conversations,
    read_file,
    sqlite_table,
)
from convstore.transfer.prepare import make_ready
from convstore.types import LogItem
from convstore.values.log_records import LogChange, PlacedItem

pytestmark = pytest.mark.usefixtures("quick_memory")

HEALTHY = {
    "id": "healthy",
    "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
}
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    2,
    2.5,
    float("inf"),  # JSON's 1e999
    2**53,
    10**30,
    "x",
    "1-9",
    [],
    [2],
    [[1, float("inf")]],
    [{"a": 1}],
    {},
    {"a": 1},
)
AT = "2026-03-01T12:30:15.123000+00:00"
_CALL = {"name": "s", "args": {}, "id": "c1", "type": "tool_call"}
_USAGE = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
_MESSAGES: list[dict[str, Any]] = [
    {"type": "human", "content": "q", "id": "m1", "name": "ada", "additional_kwargs": {"a": 1}},
    {"type": "ai", "content": [{"type": "text", "text": "x"}], "id": "m2", "tool_calls": [_CALL]},
    {
        "type": "tool",
        "content": "found it",
        "id": "m3",
        "tool_call_id": "c1",
        "name": "s",
        "status": "success",
    },
    {
        "type": "ai",
        "content": "a",
        "id": "m4",
        "response_metadata": {"b": 1},
        "usage_metadata": _USAGE,
    },
]
Path_ = tuple[Any, ...]


def archive() -> list[dict[str, Any]]:
    """The lines of an export with each field that the format has, but for variants."""
    lines: list[dict[str, Any]] = [
        {
            "convstore": 1,
            "scope": {"user_id": "ada", "thread_id": "one"},
            "title": ["T"],
            "metadata": [{"a": 1}],
            "state": [{"step": 2}],
        }
    ]
    for ordinal, message in enumerate(_MESSAGES, 1):
        lines.append({"message": [message], "ordinal": ordinal, "entry": ordinal, "at": AT})
    lines[1]["annotations"] = [{"rating": 1}]
    lines[1]["turn"] = 1
    lines[4]["unseen"] = 1
    lines[3]["sources"] = "1-2"
    lines[2]["stamp"] = {"tokens": 9, "digest": "d", "marks": [1, 0, 0, 0]}
    lines.append({"item": [{"id": "i1", "kind": "mark", "data": 1}], "after": 1})
    shown = json.dumps(["m4", 2, "d", 0])
    changes = [
        {"ordinal": 4, "kind": "fact", "name": "thinking", "values": shown, "at": AT},
        {"ordinal": 4, "kind": "finish", "turn": "m1", "at": AT},
    ]
    changes[0]["has_messages"] = True
    end = {"messages": 4, "rewound": [[3, 3]], "changes": changes}
    lines.append({"end": {**end, "sources_through": 3, "summaries": []}})
    return deepcopy(lines)


DECIDED = json.dumps({"verdict": "approve", "args": None, "message": "", "by": "eve"})


def varied() -> list[dict[str, Any]]:
    """The lines of an export with another answer and another question."""
    said = [("human", "q1"), ("ai", "a1"), ("ai", "a2"), ("human", "q2"), ("ai", "a3")]
    messages = [{"type": type_, "content": "x", "id": id_} for type_, id_ in said]
    made: list[dict[str, Any]] = [
        {"ordinal": 2, "kind": "begin", "variant": "v2", "turn": "q1", "first_turn": "q1"},
        {"ordinal": 3, "kind": "append", "variant": "v2", "turn": "q1", "first_turn": "q1"},
        {"ordinal": 3, "kind": "rewind", "message": "a2"},
        {"ordinal": 3, "kind": "undo", "message": "a2"},
        {"ordinal": 3, "kind": "begin", "variant": "q2", "turn": "q2", "first_turn": "q1"},
        {"ordinal": 4, "kind": "append", "variant": "q2", "turn": "q2", "first_turn": "q1"},
        {"ordinal": 5, "kind": "append", "variant": "q2", "turn": "q2", "first_turn": "q1"},
        {"ordinal": 5, "kind": "activate", "variant": "q1", "turn": "q1", "first_turn": "q1"},
        {"ordinal": 5, "kind": "wait", "turn": "q1", "call": "r", "values": '["", false, []]'},
        {"ordinal": 5, "kind": "decide", "turn": "q1", "call": "r", "values": DECIDED},
        {"ordinal": 5, "kind": "finish", "turn": "q1"},
    ]
    for change in made:
        change["at"] = AT
    made[1] |= {"has_messages": True, "shows": True}
    made[4]["message"] = "q1"
    made[5]["has_messages"] = True
    made[6] |= {"has_messages": True, "shows": True}
    lines = [
        {"message": [message], "ordinal": ordinal, "entry": ordinal, "at": AT}
        for ordinal, message in enumerate(messages, 1)
    ]
    return [{"convstore": 1, "scope": {}}, *lines, {"end": {"messages": 5, "changes": made}}]


def paths(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the path of each value inside a value."""
    for key in (
        list(value)
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else ()
    ):
        yield (*path, key)
        yield from paths(value[key], (*path, key))


class Case(NamedTuple):
    """An archive, and the value that a path in it gets."""

    make: Callable[[], list[dict[str, Any]]]
    path: Path_
    value: Any


def cases() -> Iterator[Case]:
    """Yield changes of one field."""
    for make, path in [*product([archive], paths(archive())), *product([varied], paths(varied()))]:
        is_of_variants = path[:1] == (6,)
        if len(path) > 1 and (make is archive or is_of_variants):
            yield from (Case(make, path, value) for value in VALUES)


def written(folder: Path, *lines: Any) -> Path:
    """Write JSON lines to a file."""
    path = folder / "archive.jsonl"
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    return path


def changed(
    path: Path_, value: Any, make: Callable[[], list[dict[str, Any]]] = archive
) -> list[dict[str, Any]]:
    """Return an archive with another value at a path."""
    return archive_of([Case(make, path, value)])


def archive_of(some: Sequence[Case]) -> list[dict[str, Any]]:
    """Return an archive with changes at several paths, of which none contains another."""
    lines: Any = some[0].make()
    for _, (*way, last), value in some:
        holder = lines
        for key in way:
            holder = holder[key]
        holder[last] = value
    return list(lines)


def left_out(record: ConversationRecord | BadRecord, codec: Codec) -> bool:
    """Return True for a record that an import leaves out before it writes anything."""
    if isinstance(record, BadRecord):
        return True
    try:
        _, problems = make_ready(record, codec=codec)
    except InvalidInputError:
        return True
    return any(problem.what == "message" for problem in problems)


def test_a_changed_field_costs_at_most_its_own_conversation(tmp_path: Path) -> None:
    """Whatever a field is, the next conversation is read; what is wrong is refused by a typed error."""
    codec, refused, taken = Codec(), 0, 0
    for case in islice(cases(), 0, None, 67):
        lines = archive_of([case])
        *before, healthy = read_file(written(tmp_path, *lines, HEALTHY))
        assert isinstance(healthy, ConversationRecord), lines
        bad = sum(left_out(record, codec) for record in before)
        refused += bad
        taken += len(before) - bad
    assert refused > 3 * taken > 0


def packed(some: Iterable[Case]) -> list[list[Case]]:
    """Return cases in groups for one archive each; ids and what describes a whole conversation change alone."""
    groups: dict[tuple[Any, int], list[list[Case]]] = {}
    used = Counter[tuple[Any, ...]]()
    for case in some:
        make, path, _ = case
        is_shared = path[0] == len(make()) - 1 or path[-1] in ("id", "ordinal", "entry")
        key = (make, len(path), "shared" if is_shared else path)
        of_length = groups.setdefault((make, len(path)), [])
        if used[key] == len(of_length):
            of_length.append([])
        of_length[used[key]].append(case)
        used[key] += 1
    return [group for of_length in groups.values() for group in of_length]


async def failure_of(folder: Path, group: Sequence[Case]) -> str:
    """Import an archive and read it; return a line about it if it is not taken whole or a reader fails."""
    lines = archive_of(group)
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        rule = ScopeRule(keys=store.scope_keys, constant={"user_id": "ada", "thread_id": "one"})
        report = await import_conversations(store, read_file(written(folder, *lines)), scope=rule)
        if (report.conversations, report.imported) != (1, 1):
            return f"{lines}: {report}"
        try:
            await read_everything(store, store.conversation(user_id="ada", thread_id="one"))
        except Exception as error:  # noqa: BLE001 - all of them are shown
            return f"{lines}: {error!r:.200}"
    return ""


async def failures_of_refused(folder: Path, some: Iterable[Case]) -> list[str]:
    """Import archives that are to be left out; return a line about each that is not, or that hides a bug."""
    wrong = list[str]()
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        for case in some:
            file = written(folder, *archive_of([case]))
            report = await import_conversations(
                store, read_file(file), scope={"user_id": "ada", "thread_id": "one"}
            )
            is_left_out = report.conversations == report.left_out == 1 and not report.messages
            if not is_left_out or any(".py, line" in problem.reason for problem in report.problems):
                wrong.append(f"{case}: {report}")
        page = await store.list_conversations(everything=True)
        assert not page.conversations
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("part", parts(5))
async def test_a_changed_archive_is_left_out_or_can_be_read(tmp_path: Path, part: slice) -> None:
    """An import of it ends, names what it leaves out, and takes nothing that a reader cannot read."""
    codec = Codec()
    right, refused = list[Case](), list[Case]()
    for case in list(cases())[part]:
        [record, healthy] = read_file(written(tmp_path, *archive_of([case]), HEALTHY))
        assert isinstance(healthy, ConversationRecord), case
        (refused if left_out(record, codec) else right).append(case)
    wrong = await failures_of_refused(tmp_path, refused)
    for group in packed(right):
        if together := await failure_of(tmp_path, group):
            alone = [await failure_of(tmp_path, [case]) for case in group]
            wrong += [*filter(None, alone)] or [together]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("tokens", [-1, 10**30])
async def test_a_stamp_with_a_size_that_no_call_has_is_read(tokens: int, tmp_path: Path) -> None:
    """The log counts no size for it, so the conversation is taken and can be read."""
    assert not await failure_of(tmp_path, [Case(archive, (2, "stamp", "tokens"), tokens)])


def test_a_date_that_is_yet_to_come_is_no_date(tmp_path: Path) -> None:
    """A conversation of the year 9999 would be the newest for ever."""
    for at in ("9999-12-31T00:00:00+00:00", "2500-01-01"):
        [record] = read_file(written(tmp_path, *changed((1, "at"), at)))
        assert isinstance(record, ConversationRecord)
        item = record.messages[0]
        assert isinstance(item, RecordItem)
        assert item.at is None
        assert item.unread_date == f"at {at!r}"
    [bad] = read_file(written(tmp_path, *changed((1, "at"), "0001-01-01T00:00:00+23:00")))
    assert isinstance(bad, BadRecord)  # UTC has no such date


def paired() -> list[dict[str, Any]]:
    """The lines of an export with two entries of two messages."""
    said = [("human", "q1"), ("ai", "a1"), ("human", "q2"), ("ai", "a2")]
    lines = [
        {
            "message": [{"type": type_, "content": "x", "id": id_}],
            "ordinal": ordinal,
            "entry": (ordinal + 1) // 2,
            "at": AT,
        }
        for ordinal, (type_, id_) in enumerate(said, 1)
    ]
    return [{"convstore": 1, "scope": {}}, *lines, {"end": {"messages": 4, "changes": []}}]


def _fact(value: Any, *keys: Any, ordinal: int = 2, name: str = "toy", **more: Any) -> Any:
    values = Codec().encode([value, list(keys)])
    return {"ordinal": ordinal, "kind": "fact", "name": name, "values": values, **more}


def _thinking(through: int, ordinal: int = 4) -> Any:
    values = json.dumps(["a2", 1, "d", through])
    return {**_fact(""), "ordinal": ordinal, "name": "thinking", "values": values}


_VARIANT = {"ordinal": 4, "turn": "q1", "first_turn": "q1", "variant": "v"}
_SHOWN = {**_VARIANT, "kind": "activate"}
_IMPOSSIBLE: dict[str, list[dict[str, Any]]] = {
    "an event inside an entry": [{"ordinal": 1, "kind": "finish", "turn": "q1"}],
    "a rewind inside an entry": [{"ordinal": 3, "kind": "rewind", "message": "q1"}],
    "a fact inside an entry": [_fact("x", ordinal=3)],
    "a fact with messages before all": [_fact("x", ordinal=0, has_messages=True)],
    "a rewind with messages": [
        {"ordinal": 4, "kind": "rewind", "message": "q1", "has_messages": True}
    ],
    "a variant that was not finished": [{**_VARIANT, "kind": "begin"}, _SHOWN],
    "thinking of later messages": [_thinking(5)],
    "thinking of its own entry": [{**_thinking(3), "has_messages": True}],
    "a set": [_fact({1, 2})],
    "a large number": [_fact(2**70)],
    "a part of a millisecond": [_fact(datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC))],
    "a name that is a number": [_fact({1: 2})],
    "a name with NUL": [_fact({"a\0b": 1})],
    "a text that is a number": [_fact((1,))],
    "two texts": [_fact(("a", "b"))],
    "a look-up value that is an object": [_fact("x", {"a": 1})],
    "no look-up value": [_fact("x", None)],
    "a large look-up value": [_fact("x", 2**70)],
    "many levels": [_fact(json.loads("[" * 70 + "]" * 70))],
    "1 MB": [_fact("x" * 1_000_001)],
    "a kind with NUL": [_fact("x", name="a\0b")],
    "a kind with a dot": [_fact("x", name="a.b")],
}


async def test_a_change_that_no_log_can_have_leaves_the_conversation_out(tmp_path: Path) -> None:
    """It is found before a message is written: an import that breaks off has half of a conversation."""
    impossible = [
        Case(paired, (5, "end", "changes"), [{"at": AT, **change} for change in changes])
        for changes in _IMPOSSIBLE.values()
    ]
    assert not await failures_of_refused(tmp_path, impossible)
    possible = [
        _fact({"a": [1, ("t",)]}, "k", 2, b"x"),
        _thinking(4),
        {**_thinking(2), "has_messages": True},
    ]
    for change in possible:
        assert not await failure_of(
            tmp_path, [Case(paired, (5, "end", "changes"), [{"at": AT, **change}])]
        )


async def test_changes_of_a_message_that_was_left_out_leave_the_conversation_out() -> None:
    """Also with `skip_messages`: what was said of the message cannot be said of another one."""
    messages = [
        RecordItem(message=HumanMessage("?", id="q1"), entry=1, turn=1, sources="x"),
        RecordItem(message=AIMessage("!", id="a1"), entry=2, turn=1),
    ]
    made = [{"kind": "finish", "turn": "q1"}, {"kind": "rewind", "message": "q1"}]
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        for number, values in enumerate(made):
            change = LogChange(2, at=datetime.now(UTC), **values)
            scope = {"user_id": "ada", "thread_id": str(number)}
            record = ConversationRecord(id="one", messages=messages, scope=scope, changes=[change])
            report = await import_conversations(store, [record], skip_messages=True)
            assert (report.left_out, report.messages) == (1, 0)
            assert not (await store.conversation(**scope).info()).message_count


# ---------------------------------------------------------------------------------------------------------------------
# Values of a record that is no archive


async def test_a_record_with_values_that_cannot_be_stored_is_left_out() -> None:
    """They are found before a message is written."""
    item = LogItem(kind="k", data=1, id="i")
    wrong: list[dict[str, Any]] = [
        {"title": 2},
        {"metadata": [1]},
        {"state": {1: 2}},
        {"sources_through": 2**53},
        {"sources_through": 1.0},
        {"rewound": [(2, 1)]},
        {"rewound": [(1, 9)]},
        {"items": [PlacedItem(item, 9)]},
        {"items": [PlacedItem(item, 1), PlacedItem(item, 1)]},
        {"items": [PlacedItem(LogItem(kind="k", data=1), 1)]},
        {"messages": [RecordItem(message=HumanMessage("q"), annotations={1: 2})]},
        {"messages": [RecordItem(message=HumanMessage("q"), sources="1-x")]},
        {"messages": [RecordItem(message=HumanMessage("q"), sources="999999999999999")]},
    ]
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        for number, values in enumerate(wrong):
            given: Any = {"id": "one", "messages": [HumanMessage("q"), AIMessage("a")]} | values
            scope = {"user_id": "ada", "thread_id": str(number)}
            report = await import_conversations(store, [ConversationRecord(**given)], scope=scope)
            assert [problem.what for problem in report.problems] == ["conversation"], values
            assert "Error" not in report.problems[0].reason
            assert not (await store.conversation(**scope).info()).message_count


# ---------------------------------------------------------------------------------------------------------------------
# Files that are larger than they look


_COLUMNS = "id INTEGER PRIMARY KEY, session_id TEXT, created_at TEXT, message_data TEXT"
_ROW = json.dumps({"role": "user", "content": "x" * 100})


def database(path: Path, *statements: str, rows: int = 0) -> Path:
    """Write a SQLite file."""
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    insert = "INSERT INTO agent_messages (session_id, message_data) VALUES ('s', ?)"
    if rows:
        connection.executemany(insert, [(_ROW,)] * rows)
    connection.commit()
    connection.close()
    return path


def circular(path: Path) -> Path:
    """Write a SQLite file of 8 pages in which 125 million paths lead to the same rows."""
    database(path, "PRAGMA page_size = 4096", f"CREATE TABLE agent_messages ({_COLUMNS})", rows=90)
    data = bytearray(path.read_bytes())
    pages = len(data) // 4096
    leaf = next(number for number in range(2, pages + 1) if data[4096 * (number - 1)] == 13)
    data += _inner_page(leaf) + _inner_page(pages + 1)
    data[4096:8192] = _inner_page(pages + 2)  # page 2 is the root of the table
    data[28:32] = struct.pack(">I", pages + 2)
    path.write_bytes(data)
    return path


def _inner_page(child: int, cells: int = 500) -> bytes:
    """Return a page of a table's tree whose cells all refer to one page."""
    page = bytearray(4096)
    start = len(page) - 5 * cells
    page[:12] = struct.pack(">BHHHBI", 5, 0, cells, start, 0, child)
    for cell in range(cells):
        at = start + 5 * cell
        page[12 + 2 * cell : 14 + 2 * cell] = struct.pack(">H", at)
        page[at : at + 5] = struct.pack(">IB", child, 1)
    return bytes(page)


def test_no_more_is_read_of_a_database_than_its_file_holds(tmp_path: Path) -> None:
    """A view, a computed column and pages in a circle are refused; a database of the SDK is read."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    columns = "'s' AS session_id, i AS id, 'x' AS message_data, '2020-01-01' AS created_at"
    computed = _COLUMNS.replace("message_data TEXT", "message_data TEXT AS (hex(zeroblob(4000)))")
    wrong = [
        database(
            tmp_path / "view",
            f"CREATE VIEW agent_messages AS {endless} SELECT {columns} FROM n",  # noqa: S608
        ),
        database(
            tmp_path / "virtual",
            "CREATE VIRTUAL TABLE agent_messages USING fts5(session_id, message_data)",
        ),
        database(
            tmp_path / "computed",
            f"CREATE TABLE agent_messages ({computed})",
            "INSERT INTO agent_messages (session_id) VALUES ('s')",
        ),
        circular(tmp_path / "circular"),
    ]
    for path in wrong:
        with pytest.raises(InvalidInputError, match="not a database of SQLiteSession"):
            list(read_file(path))
    [record] = read_file(
        database(tmp_path / "right", f"CREATE TABLE agent_messages ({_COLUMNS})", rows=90)
    )
    assert isinstance(record, ConversationRecord)
    assert len(record.messages) == 90


def test_a_row_that_is_no_text_costs_only_itself(tmp_path: Path) -> None:
    """The rest of the session and the other sessions are read, in order, whatever types the file has."""
    path = database(
        tmp_path / "mixed",
        "CREATE TABLE agent_messages (id INTEGER PRIMARY KEY, session_id, message_data, created_at)",
        "INSERT INTO agent_messages (session_id, message_data) VALUES ('a', CAST(x'7bff' AS TEXT)), (7, 'x')",
        f"INSERT INTO agent_messages (session_id, message_data) VALUES ('a', '{_ROW}'), (NULL, 2), (x'ff', x'ff')",  # noqa: S608
    )
    records = [record for record in read_file(path) if isinstance(record, ConversationRecord)]
    assert [record.id for record in records] == ["None", "b'\\xff'", "7", "a"]
    assert [
        bool(item.problem) for item in records[-1].messages if isinstance(item, RecordItem)
    ] == [True, False]


def test_the_work_in_a_database_is_bounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What yields no rows ends as well, and what was read before it is kept."""
    path = database(tmp_path / "right", f"CREATE TABLE agent_messages ({_COLUMNS})", rows=400)
    monkeypatch.setattr(sqlite_table, "_STEPS_FOR_A_BYTE", 0)
    monkeypatch.setattr(sqlite_table, "_LEAST_STEPS", 5)
    [bad] = read_file(path)
    assert isinstance(bad, BadRecord)
    assert "interrupted" in bad.problem


def test_a_packed_file_of_nothing_but_zeros_is_not_unpacked_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported; a file that is packed as texts are is read."""
    monkeypatch.setattr(files, "_UNPACKED_BYTES", 1_000)
    path = tmp_path / "packed.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(HEALTHY).encode() + b"\n" + b"0" * 3_000_000))
    [healthy, bad] = read_file(path)
    assert isinstance(healthy, ConversationRecord)
    assert isinstance(bad, BadRecord)
    assert "unpack it first" in bad.problem
