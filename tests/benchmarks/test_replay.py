"""The replay of recorded conversations: its figures, what it finds broken, and how it ends."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from command_line import convstore, lines, recording, turn
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from pymongo import MongoClient

from convstore import Conversation, History, StoreUnavailableError
from convstore.readback import pager
from convstore.readback.pager import Pager
from convstore.readback.passages import passages_of
from convstore.view.loader import Loader

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import replay
import replay_assertions


def replayed(*arguments: str | Path) -> typer.testing.Result:
    """Run the command; it must not end in an exception of Python."""
    return convstore(*arguments, application=replay.app)


def figures(*arguments: str | Path, exit_code: int = 0) -> dict[str, Any]:
    """The JSON document of a replay."""
    result = replayed("--json", *arguments)
    assert result.exit_code == exit_code, result.output
    assert result.stderr == ""
    return json.loads(result.stdout)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two good conversations."""
    path = tmp_path / "chats.jsonl"
    path.write_text(lines(recording("ada"), recording("bob")), encoding="utf-8")
    return path


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, file: Path) -> Callable[..., list[str]]:
    """Breaks a method of the store, replays, and gives what was found; the exit code must be 1."""

    def found(owner: type, name: str, method: Callable[..., Any]) -> list[str]:
        monkeypatch.setattr(owner, name, method)
        document = figures(file, exit_code=1)
        assert document["ok"] is False
        return [error["what"] for error in document["errors"] if error["conversation"] == "ada"]

    return found


def loads_as(change: Callable[[History], History]) -> Callable[..., Any]:
    """`Loader.load` with something done to each view."""
    load = Loader.load

    async def loaded(self: Any, scope: dict[str, str], policy: Any) -> Any:
        return change(await load(self, scope, policy))

    return loaded


@pytest.mark.slow
def test_a_good_file_is_replayed_without_an_error(file: Path) -> None:
    """A row for the file, the verdict, and exit code 0."""
    result = replayed(file)
    assert result.exit_code == 0
    assert "chats " in result.stdout
    assert "Nothing lost, changed or unreachable" in result.stdout
    assert re.search(r"Tool context: saved 9\d\.\d%\.", result.stdout)
    assert "-9" not in result.stdout


def test_the_table_fits_80_columns_without_colours(tmp_path: Path) -> None:
    """A long file name is folded, and nothing else is."""
    path = tmp_path / f"{'a_long_name_' * 4}.jsonl.gz"
    path.write_bytes(gzip.compress(lines(recording("ada")).encode()))
    shown = replayed(path).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown
    assert "…" not in shown


@pytest.mark.slow
def test_the_figures_as_json(file: Path) -> None:
    """`replay --json` prints one document with counts, tokens, savings of stubs, stability and times."""
    document = figures(file)
    (row,) = document["files"]
    assert (document["ok"], document["errors"]) == (True, [])
    assert (row["file"], row["conversations"], row["messages"], row["loads"]) == (
        "chats.jsonl",
        2,
        24,
        8,
    )
    assert row["tokens_loaded"] < row["tokens_full"] / 2
    assert row["tool_context"]["reduction"] > 0.9
    assert row["prefix"] == {"stable": 6, "total": 6, "stability": 1.0}
    assert row["read_back"]["unreachable_characters"] == 0
    assert 0 < row["append_ms"]["median"] <= row["append_ms"]["p95"]
    assert 0 < row["load_ms"]["median"] <= row["load_ms"]["p95"]


@pytest.mark.slow
def test_gzip_is_read_whatever_the_name(file: Path, tmp_path: Path) -> None:
    """The same conversations in gzip give the same counts."""
    path = tmp_path / "chats.data"
    path.write_bytes(gzip.compress(file.read_bytes()))
    both = [figures(recorded)["files"][0] for recorded in (file, path)]
    assert both[0]["messages"] == both[1]["messages"] == 24
    assert both[0]["tokens_loaded"] == both[1]["tokens_loaded"]


@pytest.mark.slow
def test_a_limit_counts_conversations_of_each_file(file: Path, tmp_path: Path) -> None:
    """`--limit 1` replays only the first conversation of each file."""
    other = tmp_path / "other.jsonl"
    other.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    assert [row["conversations"] for row in figures("--limit", "1", file, other)["files"]] == [1, 1]


@pytest.mark.slow
def test_files_of_one_name_and_ids_of_one_name_do_not_mix(file: Path, tmp_path: Path) -> None:
    """Two files of the same name, each with an id twice, are four conversations each."""
    other = tmp_path / "more" / file.name
    other.parent.mkdir()
    for path in (file, other):
        path.write_text(lines(*[recording("ada")] * 4), encoding="utf-8")
    document = figures(file, other)
    assert [(row["file"], row["conversations"]) for row in document["files"]] == [
        (str(file), 4),
        (str(other), 4),
    ]


def test_what_precedes_the_first_question_is_replayed_first(tmp_path: Path) -> None:
    """A greeting ahead of the first human message is in the log and in every view."""
    path = tmp_path / "greeting.jsonl"
    greeting = {"role": "assistant", "content": "Good morning."}
    path.write_text(
        lines({"id": "ada", "messages": [greeting, *turn(0), *turn(1)]}), encoding="utf-8"
    )
    (row,) = figures(path)["files"]
    assert (row["messages"], row["prefix"]["stability"]) == (9, 1.0)


@pytest.mark.slow
def test_a_server_is_replayed_against_and_left_clean(
    file: Path, server_uri: str, database_name: str
) -> None:
    """On a real server several conversations run at a time and none is left."""
    name = f"{database_name}_replay"
    document = figures("--uri", address(server_uri, name), "--jobs", "2", file)
    assert document["files"][0]["conversations"] == 2
    with MongoClient[dict[str, Any]](server_uri) as client:
        assert client[name]["log"].count_documents({}) == 0
        client.drop_database(name)


@pytest.mark.slow
def test_keep_leaves_the_conversations(file: Path, server_uri: str, database_name: str) -> None:
    """With --keep they stay, and the user id is printed."""
    name = f"{database_name}_keep"
    result = replayed("--keep", "--uri", address(server_uri, name), file)
    with MongoClient[dict[str, Any]](server_uri) as client:
        scopes = [
            head["scope"] for head in client[name]["heads"].find({"scope": {"$exists": True}})
        ]
        client.drop_database(name)
    assert len(scopes) == 2
    assert f"user_id '{scopes[0]['user_id']}'" in result.stdout


def test_a_lost_message_is_found(broken: Callable[..., list[str]]) -> None:
    """A message that is missing from the log is reported as lost."""
    messages = Conversation.messages

    async def without_the_second(self: Conversation) -> Any:
        position = 0
        async for message in messages(self):
            position += 1
            if position != 2:
                yield message

    (what,) = broken(Conversation, "messages", without_the_second)
    assert what.endswith("(ai) is lost")


def test_a_changed_message_is_found(broken: Callable[..., list[str]]) -> None:
    """A field that comes back otherwise is named."""
    messages = Conversation.messages

    async def shortened(self: Conversation) -> Any:
        async for message in messages(self):
            yield message.model_copy(update={"content": message.content[:20]})

    assert any(
        what.endswith("(tool) changed: content")
        for what in broken(Conversation, "messages", shortened)
    )


def test_messages_in_another_order_are_found(broken: Callable[..., list[str]]) -> None:
    """Messages in another order are reported, even if all are there and unchanged."""
    messages = Conversation.messages

    async def backwards(self: Conversation) -> Any:
        for message in reversed([message async for message in messages(self)]):
            yield message

    assert broken(Conversation, "messages", backwards) == ["the messages are in another order"]


def test_an_unreachable_passage_is_found(broken: Callable[..., list[str]]) -> None:
    """A source that no page holds is counted in characters."""
    found = broken(pager, "passages_of", lambda *of, **how: passages_of(*of, **how)[1:])
    assert len(found) == 3
    assert all("characters are on no page" in what for what in found)


def test_a_page_above_its_size_is_found(broken: Callable[..., list[str]]) -> None:
    """Pages that are too long for a model are errors."""
    cut = Pager._page

    async def everything(self: Any, known: Any, request: Any, passages: Any, *, room: int) -> Any:
        again = [replace(passage, remark="") for passage in passages] * 9
        return await cut(self, known, request, again, room=9 * room)

    assert any("more than 16,000" in what for what in broken(Pager, "_page", everything))


@pytest.mark.slow
def test_an_invalid_view_is_found(broken: Callable[..., list[str]]) -> None:
    """A view without the results of its calls is one that providers refuse."""

    def without_results(history: History) -> History:
        kept = [message for message in history.messages if not isinstance(message, ToolMessage)]
        return history.model_copy(update={"messages": kept})

    assert any(
        "has no result" in what for what in broken(Loader, "load", loads_as(without_results))
    )


def test_an_unstable_view_is_found(broken: Callable[..., list[str]]) -> None:
    """A view that begins otherwise than the one before costs the prompt cache."""
    views = iter(range(1_000))

    def dated(history: History) -> History:
        said = SystemMessage(f"It is now {next(views)} o'clock.")
        return history.model_copy(update={"messages": [said, *history.messages]})

    assert "view 2: message 0 is not that of the view before" in broken(
        Loader, "load", loads_as(dated)
    )


def test_a_view_that_hides_turns_is_found(broken: Callable[..., list[str]]) -> None:
    """Turns that the budget has room for must be in the view, and left-out ones must be reported."""

    def last_turn(history: History) -> History:
        return history.model_copy(update={"messages": history.messages[-1:]})

    found = broken(Loader, "load", loads_as(last_turn))
    assert "view 2: it reports 0 turns as left out, but 1 are" in found
    assert "view 2: 1 turns are left out, though the whole log fits in the budget" in found


def test_an_error_that_is_not_ours_is_a_line_of_the_report(
    broken: Callable[..., list[str]],
) -> None:
    """A bug in the store stops neither the other conversations nor the report, and says where it came from."""

    async def failing(self: Any, scope: dict[str, str], policy: Any) -> None:
        raise KeyError("head")

    (what,) = broken(Loader, "load", failing)
    assert what.startswith("KeyError: 'head' (test_replay.py, line ")


def test_a_server_that_goes_away_ends_the_replay(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server fails, a replay ends with one line and exit code 1 instead of a report of lost messages."""

    async def gone(self: Any, scope: dict[str, str], policy: Any) -> None:
        raise StoreUnavailableError("no primary")

    monkeypatch.setattr(Loader, "load", gone)
    result = replayed(file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "convstore: no primary\n"


def test_bad_lines_are_errors_with_their_number(file: Path) -> None:
    """Lines that are no conversation are named by number; the others are replayed."""
    file.write_text(
        lines("{nope", recording("ada"), "", [1], {"id": "x"}, {"messages": []}), encoding="utf-8"
    )
    document = figures(file, exit_code=1)
    assert [error["conversation"] for error in document["errors"]] == [
        "line 1",
        "line 4",
        "line 5",
        "line 6",
    ]
    assert document["files"][0]["conversations"] == 1


def test_a_damaged_gzip_file_is_an_error(file: Path) -> None:
    """Conversations before the damage are replayed; the error says where reading ended."""
    packed = gzip.compress(lines(recording("ada")).encode()) + gzip.compress(
        lines(recording("bob")).encode()
    )
    file.write_bytes(packed[:-20])
    document = figures(file, exit_code=1)
    assert [error["conversation"] for error in document["errors"]] == ["line 2"]
    assert "cannot be read from here on" in document["errors"][0]["what"]


def test_a_refused_message_is_an_error_of_its_conversation(file: Path) -> None:
    """An unknown role is reported with its conversation; the other one is replayed."""
    bad = {"id": "eve", "messages": [{"role": "oracle", "content": "?"}]}
    file.write_text(lines(bad, recording("ada")), encoding="utf-8")
    document = figures(file, exit_code=1)
    assert [error["conversation"] for error in document["errors"]] == ["eve"]
    assert "field 'role'" in document["errors"][0]["what"]
    assert document["files"][0]["messages"] == 12


def test_only_the_first_errors_are_shown_to_eyes(file: Path) -> None:
    """Twenty of them, and how many more there are."""
    file.write_text(lines(*["nope"] * 25), encoding="utf-8")
    result = replayed(file)
    assert result.exit_code == 1
    assert result.stdout.count("not JSON") == 20
    assert "… and 5 more" in result.stdout


def test_text_of_a_file_can_not_steer_the_terminal(file: Path) -> None:
    """Escape sequences in ids are not printed."""
    file.write_text(lines({"id": "\x1b[2J\ud800", "messages": [{"role": "?"}]}), encoding="utf-8")
    shown = replayed(file)
    assert shown.exit_code == 1
    assert "\x1b" not in shown.output


@pytest.mark.parametrize("path", ["missing.jsonl", "."])
def test_a_file_that_can_not_be_read_is_an_error_of_one_line(path: str, tmp_path: Path) -> None:
    """A missing file, and a folder: one line on stderr and exit code 1."""
    result = replayed(tmp_path / path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1
    assert "cannot be read" in result.stderr


def address(uri: str, database: str) -> str:
    """A server's address with a database of its own."""
    before, _, options = uri.partition("?")
    return f"{before.rstrip('/')}/{database}?{options}"


def test_a_text_that_looks_like_a_page_is_read_back_whole(tmp_path: Path) -> None:
    """Header lines and last lines inside a result do not confuse the check."""
    path = tmp_path / "odd.jsonl"
    record = recording("ada", turns=1)
    record["messages"][2] |= {
        "content": 'x, characters 0-3 of 9\nEnd.\nMore: cursor="1"\n' * 900,
        "sources": [],
    }
    path.write_text(lines(record), encoding="utf-8")
    assert figures(path)["errors"] == []


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({"role": "user", "content": "Hello"}, "content"),
        ({"role": "user", "content": "Hi", "mood": "cheerful"}, "mood"),
        ({"role": "user", "content": "Hi", "name": "ada"}, "name"),
        ({"role": "assistant", "content": "Hi", "audio": {"id": "a1"}}, "audio"),
    ],
)
def test_what_a_dict_says_and_its_message_does_not_is_found(raw: dict[str, Any], key: str) -> None:
    """Content, own keys and names must reach the message."""
    (what,) = replay_assertions.check_dict(raw, HumanMessage("Hi", id="m1"))
    assert what == f"message m1: {key!r} is not what the file says"


def test_a_null_of_the_api_says_nothing() -> None:
    """A dict of the API has null for what its message does not have."""
    raw = {"role": "assistant", "content": None, "name": None, "audio": None, "function_call": None}
    assert replay_assertions.check_dict(raw, AIMessage("", id="m1")) == []


def test_nan_is_like_nan_and_one_is_not_like_true() -> None:
    """Messages are compared by value and type, NaN to NaN."""
    message, same, other = (
        AIMessage("a", id="1", response_metadata={"x": x}) for x in (float("nan"), float("nan"), 1)
    )
    true = AIMessage("a", id="1", response_metadata={"x": True})
    assert replay_assertions.check_log([message], [same]) == []
    assert replay_assertions.check_log([message], [other]) != []
    assert replay_assertions.check_log([other], [true]) != []


def test_the_help_has_examples() -> None:
    """Within 80 columns."""
    shown = replayed("--help").stdout
    assert "  python benchmarks/replay.py chats.jsonl" in shown
    assert max(map(len, shown.splitlines())) <= 80
