"""The commands import and export: what they take, what they print, how they end, and what a kill leaves behind."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from bson import json_util
from canary import LOGIN
from command_line import convstore, emptied_address, lines, own_address, recording, turn
from langchain_core.messages import AIMessage, HumanMessage, message_to_dict
from langgraph.checkpoint.mongodb import MongoDBSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from properties import STRIDE
from pymongo import MongoClient

from convstore import ConversationStore

ROOT = Path(__file__).parents[2]


@pytest.fixture
def uri(server_uri: str) -> Any:
    """The address of an empty database."""
    with emptied_address(server_uri) as uri:
        yield uri


@pytest.fixture
def new_uri(server_uri: str) -> Any:
    """The address of a database that is not set up."""
    with own_address(server_uri) as uri:
        yield uri


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two conversations."""
    path = tmp_path / "chats.jsonl"
    path.write_text(lines(recording("one"), recording("two")), encoding="utf-8")
    return path


def imported(uri: str, *arguments: str | Path, exit_code: int = 0) -> dict[str, Any]:
    """The JSON document of an import for one user."""
    result = convstore("import", "--json", "--uri", uri, "--scope", "user_id=ada", *arguments)
    assert (result.exit_code, result.stderr) == (exit_code, ""), result.output
    return json.loads(result.stdout)


def exported(uri: str, *arguments: str | Path) -> bytes:
    """Return the output of an export."""
    result = convstore("export", "--uri", uri, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes


def counted(document: dict[str, Any], *names: str) -> list[int]:
    """Return the figures of a report under these names."""
    return [document[name] for name in names]


async def test_conversations_of_sub_agents_are_told_apart(server_uri: str, tmp_path: Path) -> None:
    """An export counts them, and says once what its format lacks; a dry run names their paths."""
    file = tmp_path / "all.jsonl"
    with emptied_address(server_uri) as uri:
        async with await ConversationStore.connect(uri) as store:
            await store.setup()
            chat = store.conversation(user_id="ada", thread_id="one")
            for number, each in enumerate((chat, chat.child("search"), chat.child("look")), 1):
                metadata = {"model_name": "m"}
                answers = [AIMessage("A.", response_metadata=metadata) for _ in range(number)]
                await each.append([HumanMessage("Q?"), *answers])
        options = ("--uri", uri, "--output")
        openai = ["export", "--format", "openai", *options, tmp_path / "openai.jsonl"]
        commands = (["export", *options, file], openai)
        whole, lacking = [await asyncio.to_thread(convstore, *each) for each in commands]
        shown = await asyncio.to_thread(convstore, "import", file, "--uri", uri, "--dry-run")
    assert whole.stderr.endswith("Of these conversations 2 are of sub-agents.\n")
    [changed] = [line for line in lacking.stderr.splitlines() if line.startswith("changed")]
    assert changed.endswith("and 2 others: the format has no place for: response_metadata")
    rows = [line.split()[-3:] for line in shown.stdout.splitlines() if "all.jsonl" in line]
    assert [row[-1] for row in rows if row[-1] != "one"] == ["search", "look"]


@pytest.mark.slow
def test_a_file_is_imported_and_reported(uri: Any, file: Path) -> None:
    """The report counts conversations and messages and says that nothing was left out; a second import does no harm."""
    result = convstore("import", file, "--uri", uri, "--scope", "user_id=ada")
    assert result.exit_code == 0
    rows = [line.strip() for line in result.stdout.splitlines()[:3]]
    assert rows == ["2  conversations read", "2  imported", "24  messages written"]
    assert "Nothing was left out." in result.stdout
    again = convstore("import", file, "--uri", uri, "--scope", "user_id=ada")
    assert "messages stored before" in again.stdout
    assert " 0  messages written" in again.stdout


def test_a_look_writes_nothing(new_uri: Any, file: Path) -> None:
    """With --dry-run the database is not even set up, and the report says what would be."""
    document = imported(new_uri, file, "--dry-run")
    assert counted(document, "imported", "messages", "dry_run") == [2, 24, True]
    assert [row["scope"] for row in document["scopes"]] == [
        {"user_id": "ada", "thread_id": "one"},
        {"user_id": "ada", "thread_id": "two"},
    ]
    with MongoClient[dict[str, Any]](new_uri) as client:
        assert client.get_default_database().list_collection_names() == []
    shown = convstore(
        "import", file, "--uri", new_uri, "--scope", "user_id=ada", "--dry-run"
    ).stdout
    assert "24  messages would be written" in shown
    assert "Nothing was written: --dry-run." in shown
    assert ["chats.jsonl, line 2", "ada", "two"] in [
        re.split(r"\s{2,}", line.strip()) for line in shown.splitlines()
    ]


@pytest.mark.slow
def test_threads_of_a_checkpointer_are_imported(uri: Any, tmp_path: Path) -> None:
    """From a file of SqliteSaver that is only read; ids in a file select threads, metadata names their users."""
    path, ids = tmp_path / "checkpoints.sqlite", tmp_path / "ids.txt"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        put_threads(saver, "one", "two")
    ids.write_text("one\nnone\n", encoding="utf-8")
    before = path.read_bytes()
    options = [
        "--from",
        "langgraph",
        "--uri",
        uri,
        "--json",
        "--scope-from",
        "user_id=metadata.user_id",
    ]
    for more, exit_code, figures in (["--thread-ids", ids], 1, [1, 1]), ([], 0, [1, 0]):
        result = convstore("import", path, *options, *more)
        assert result.exit_code == exit_code, result.output
        assert counted(json.loads(result.stdout), "imported", "left_out") == figures
    assert path.read_bytes() == before
    for wrong in (tmp_path / "none.sqlite", ids, "postgresql://ada:secret@localhost/app"):
        result = convstore("import", wrong, *options)
        assert result.exit_code != 0
        assert "secret" not in result.output


@pytest.mark.slow
def test_threads_of_a_mongodb_saver_are_imported(uri: Any) -> None:
    """From its two collections; a database without them is not written to."""
    options = [
        "--from",
        "langgraph",
        "--uri",
        uri,
        "--json",
        "--scope-from",
        "user_id=metadata.user_id",
    ]
    with MongoDBSaver.from_conn_string(uri, "convstore_test_saver") as saver:
        put_threads(saver, "one", "two")
        source = uri.replace(f"/{urlsplit(uri).path[1:]}", "/convstore_test_saver")
        for figures in [2, 0], [0, 2]:
            document = json.loads(convstore("import", source, *options).stdout)
            assert counted(document, "imported", "unchanged") == figures
        saver.client.drop_database("convstore_test_saver")
        result = convstore("import", source, *options)
        assert "has no collection 'checkpoints'" in result.output
        assert "convstore_test_saver" not in saver.client.list_database_names()


def put_threads(saver: Any, *thread_ids: str) -> None:
    """Run a graph once for each thread of the user ada."""
    graph = StateGraph(MessagesState).add_node(
        "answer", lambda _: {"messages": [AIMessage("They do.", id="a")]}
    )
    agent = graph.add_edge(START, "answer").compile(checkpointer=saver)
    for thread_id in thread_ids:
        config: Any = {"configurable": {"thread_id": thread_id, "user_id": "ada"}}
        agent.invoke({"messages": [HumanMessage("Do orcas sleep?", id="q")]}, config)


@pytest.mark.slow
def test_what_was_just_imported_is_not_pruned(uri: Any, tmp_path: Path) -> None:
    """`prune` keeps conversations that were just imported, however old their messages are."""
    path = tmp_path / "x.jsonl"
    path.write_text(lines(recording("old"), recording("older")))
    convstore("import", path, "--uri", uri, "--scope", "user_id=ada")
    found = convstore("prune", "--uri", uri, "--older-than", "30d", "--json").stdout
    assert json.loads(found)["conversations"] == 0


def test_nothing_says_whose_it_is(uri: Any, file: Path) -> None:
    """Without a scope nothing is written; the reason is printed once, with the options that help."""
    result = convstore("import", file, "--uri", uri)
    assert result.exit_code == 1
    [problem] = [line for line in result.stdout.splitlines() if line.startswith("left out:")]
    assert "line 1 (one) and 1 other: no value for user_id" in problem
    assert "--scope-from" in problem


def test_what_can_not_be_imported_is_reported(uri: Any, tmp_path: Path) -> None:
    """Each bad line with its reason, on the screen and in a file; the rest is taken over, and the exit code is 1."""
    path, report = tmp_path / "x.jsonl", tmp_path / "report.jsonl"
    king = {"id": "king", "messages": [{"role": "king", "content": "\u001b[31m"}]}
    text = lines(recording("one"), "{broken", king, {"id": "none"}, '["array"]')
    path.write_bytes(text.encode() + b'{"id": "caf\xe9"}\n' + lines(recording("two")).encode())
    result = convstore("import", path, "--uri", uri, "--scope", "user_id=ada", "--report", report)
    assert result.exit_code == 1
    for problem in (
        "x.jsonl, line 2: not JSON",
        "x.jsonl, line 3 (king): x.jsonl, line 3, message 1: field 'role'",
        "x.jsonl, line 4: not a conversation",
        "x.jsonl, line 5: a JSON array",
        "x.jsonl, line 6: not UTF-8: byte 0xe9",
    ):
        assert problem in result.stdout
    assert "2  imported" in result.stdout
    assert [json.loads(line)["what"] for line in report.read_text().splitlines()] == [
        "conversation"
    ] * 5


def test_single_messages_may_be_left_out(uri: Any, tmp_path: Path) -> None:
    """With --skip-messages the rest of a conversation is taken over; the exit code is 1 all the same."""
    path = tmp_path / "x.jsonl"
    first = recording("one", turns=1)
    first["messages"].append({"role": "king"})
    path.write_text(lines(first))
    document = imported(uri, path, "--skip-messages", exit_code=1)
    assert counted(document, "imported", "messages", "messages_left_out") == [1, 4, 1]


def test_more_problems_than_a_screen_holds(uri: Any, tmp_path: Path) -> None:
    """The first reasons are shown, and how many there are besides."""
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"messages": [{{"role": "r{number}"}}]}}\n' for number in range(30)))
    shown = convstore("import", path, "--uri", uri, "--scope", "user_id=ada").stdout
    assert shown.count("left out:") == 20
    assert "… and 10 more; --report FILE keeps them all." in shown


def test_an_empty_source_is_reported(uri: Any, tmp_path: Path) -> None:
    """A file or a collection without conversations is more likely a mistake than a wish."""
    path = tmp_path / "x.jsonl"
    path.touch()
    for source, advice in (
        (path, ""),
        (uri, "; name another collection (--collection) or format (--from)"),
    ):
        result = convstore("import", source, "--uri", uri, "--scope", "user_id=ada")
        assert result.exit_code == 1
        assert f"there is no conversation in it{advice}\n" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--scope", "ada"], "takes KEY=VALUE"),
        (["--scope-from", "ada"], "takes KEY=FIELD"),
        (["--scope-match", "("], "takes FIELD=REGEX"),
        (["--scope", "user_id=ada", "--scope", "user_id=bob"], "names 'user_id' twice"),
        (["--scope-key", "user_id", "--scope", "team=x"], "'team' is not in this store's scope"),
        (["--scope-key", "user_id", "--scope-match", "SessionId=("], "not a regular expression"),
        (["--scope-key", "no name"], "a scope key must be a Python name"),
        (["--jobs", "0"], "--jobs"),
    ],
)
def test_a_command_line_that_makes_no_sense(file: Path, arguments: list[str], problem: str) -> None:
    """Exit code 2, before anything is opened."""
    result = convstore(
        "import", file, "--uri", f"mongodb://{LOGIN}@nobody.invalid/x", *arguments, width=200
    )
    assert result.exit_code == 2
    assert problem in result.stderr


@pytest.mark.costly
@pytest.mark.parametrize("options", [["--scope", "team=x"], ["--scope-match", "SessionId=("]])
def test_a_scope_that_makes_no_sense_for_the_keys(
    new_uri: Any, file: Path, options: list[str]
) -> None:
    """Without --scope-key the keys are known once the database is open: exit code 2, before anything is set up."""
    assert convstore("import", file, "--uri", new_uri, *options).exit_code == 2
    with MongoClient[dict[str, Any]](new_uri) as client:
        assert client.get_default_database().list_collection_names() == []


@pytest.mark.parametrize("name", ["none.jsonl", "."])
def test_a_file_that_can_not_be_read(uri: Any, name: str) -> None:
    """A file that cannot be read is an error with exit code 1, before the store is opened."""
    result = convstore(
        "import", name, "--uri", f"mongodb://{LOGIN}@nobody.invalid/x", "--scope", "user_id=ada"
    )
    assert (result.exit_code, result.stdout) == (1, "")
    assert "cannot be read" in result.stderr


@pytest.mark.slow
def test_a_collection_of_langchain(uri: Any, tmp_path: Path) -> None:
    """`import` reads a LangChain collection at an address and splits its session ids into scopes.

    A session id that does not match the pattern is left out with the reason.
    """
    with MongoClient[dict[str, Any]](uri) as client:
        collection = client.get_default_database()["message_store"]
        for session in ("ada:one", "bob:two", "broken"):
            said = json.dumps(message_to_dict(HumanMessage(f"Hi from {session}")))
            collection.insert_many([{"SessionId": session, "History": said}] * 1)
    pattern = "SessionId=(?P<user_id>[^:]+):(?P<thread_id>.+)"
    result = convstore("import", uri, "--uri", uri, "--scope-match", pattern, "--json")
    document = json.loads(result.stdout)
    assert counted(document, "conversations", "imported", "left_out") == [3, 2, 1]
    assert "'broken', which" in document["problems"][0]["reason"]
    assert b"Hi from bob:two" in exported(uri, "--scope", "user_id=bob")


def test_a_database_of_another_framework(uri: Any) -> None:
    """`import --from google-adk` reads a database of that framework, with scopes from fields of its documents."""
    stored = json_util.loads(
        (Path(__file__).parents[1] / "support" / "foreign_sessions.json").read_text("utf-8")
    )
    with MongoClient[dict[str, Any]](uri) as client:
        for name, documents in stored["adk"].items():
            client.get_default_database()[name].insert_many(documents)
    scope = ("--scope-from", "user_id=user_id")
    result = convstore("import", uri, "--from", "google-adk", "--uri", uri, *scope, "--json")
    assert counted(
        json.loads(result.stdout), "conversations", "imported", "messages", "left_out"
    ) == [2, 1, 5, 0]


def test_options_of_checkpoints_are_refused_for_other_sources(file: Path) -> None:
    """Ignored, `--removed "leave out"` would import what it names, and `--thread-ids` would import all."""
    for option, value in (
        ("--thread-ids", file),
        ("--removed", "leave out"),
        ("--writes-collection", "w"),
    ):
        result = convstore("import", file, "--uri", "memory://", option, value)
        assert result.exit_code == 2
        assert f"{option} is an option of --from langgraph" in result.stderr


@pytest.mark.slow
def test_fields_make_the_scope(uri: Any, tmp_path: Path) -> None:
    """A field inside a field, and other scope keys."""
    path = tmp_path / "x.jsonl"
    path.write_text(lines({**recording("one", turns=1), "meta": {"team": "red", "room": 7}}))
    arguments = ("--scope-key", "team", "--scope-key", "room")
    fields = ("--scope-from", "team=meta.team", "--scope-from", "room=meta.room")
    assert convstore("import", path, "--uri", uri, *arguments, *fields).exit_code == 0
    [line] = exported(uri, *arguments, "--format", "openai").splitlines()
    assert json.loads(line)["scope"] == {"team": "red", "room": "7"}


# ---------------------------------------------------------------------------------------------------------------------
# Export


@pytest.mark.costly
@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz"])
def test_an_export_comes_back(uri: Any, file: Path, tmp_path: Path, name: str) -> None:
    """To a file and into another database, whose export is the same."""
    imported(uri, file)
    path, again = tmp_path / name, tmp_path / f"again-{name}"
    result = convstore("export", "--uri", uri, "-o", path)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "2 conversations, 24 messages," in result.stderr
    other = uri.replace("?", "_back?")
    try:
        assert convstore("import", path, "--uri", other).exit_code == 0
        assert convstore("export", "--uri", other, "-o", again, "--json").exit_code == 0
    finally:
        with MongoClient[dict[str, Any]](other) as client:
            client.drop_database(client.get_default_database().name)
    assert path.read_bytes() == again.read_bytes()
    text = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    assert text == exported(uri)
    assert path.stat().st_mode & 0o077 == 0


def test_one_conversation_is_exported_as_show_names_it(uri: Any, file: Path) -> None:
    """By the number of its row, its id or its scope; that of a sub-agent goes with its caller's."""
    imported(uri, file)
    rows = [row.split("\t") for row in convstore("list", "--uri", uri).stdout.splitlines()]
    for number, (id_, scope, *_) in enumerate(rows, 1):
        for name in ([str(number)], [id_], scope.split()):
            [line] = exported(uri, *name, "--format", "openai").splitlines()
            found = json.loads(line)["scope"]
            assert [f"{key}={value}" for key, value in found.items()] == scope.split()
    absent = convstore("export", "--uri", uri, "9")
    assert (absent.exit_code, absent.stdout) == (1, "")
    assert "the list has 2 rows, not 9" in absent.stderr


@pytest.mark.slow
def test_a_file_that_is_there_is_kept(uri: Any, file: Path, tmp_path: Path) -> None:
    """Unless --force says so; no half file is left behind in either case."""
    imported(uri, file)
    path = tmp_path / "all.jsonl"
    path.write_text("mine")
    refused = convstore("export", "--uri", uri, "-o", path)
    assert (refused.exit_code, path.read_text()) == (1, "mine")
    assert "--force" in refused.stderr
    assert convstore("export", "--uri", uri, "-o", path, "--force").exit_code == 0
    assert path.read_bytes() == exported(uri)
    unreachable = f"mongodb://{LOGIN}@127.0.0.1:1/x?serverSelectionTimeoutMS=50"
    failed = convstore("export", "--uri", unreachable, "-o", tmp_path / "b")
    assert "cannot be reached" in failed.stderr
    assert failed.exit_code == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.jsonl", "chats.jsonl"]


@pytest.mark.slow
def test_what_a_killed_export_left_is_removed(uri: Any, file: Path, tmp_path: Path) -> None:
    """By the next export to the same file, once nothing was written to it for an hour; files of others stay."""
    imported(uri, file)
    names = [
        f".{name}.part"
        for name in ("all.jsonl.abandoned", "all.jsonl.running", "other.jsonl.abandoned")
    ]
    for name in names:
        (tmp_path / name).write_text("half")
        if "abandoned" in name:
            os.utime(tmp_path / name, (0, 0))
    assert convstore("export", "--uri", uri, "-o", tmp_path / "all.jsonl").exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *names[1:],
        "all.jsonl",
        "chats.jsonl",
    ]


@pytest.mark.slow
def test_an_export_does_not_mind_files_of_concurrent_ones(
    uri: Any, file: Path, tmp_path: Path
) -> None:
    """One may be renamed while they are looked through, and one cannot be removed."""
    imported(uri, file)
    (tmp_path / ".all.jsonl.renamed.part").symlink_to(tmp_path / "nothing")
    (tmp_path / ".all.jsonl.another.part").mkdir()
    os.utime(tmp_path / ".all.jsonl.another.part", (0, 0))
    assert convstore("export", "--uri", uri, "-o", tmp_path / "all.jsonl").exit_code == 0
    assert (tmp_path / "all.jsonl").stat().st_size > 0


def test_a_folder_that_is_not_there(uri: Any, file: Path, tmp_path: Path) -> None:
    """Exporting into a missing folder is an error on stderr with exit code 1."""
    imported(uri, file)
    result = convstore("export", "--uri", uri, "-o", tmp_path / "none" / "x.jsonl")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "cannot be written: No such file or directory" in result.stderr


@pytest.mark.slow
def test_lines_for_fine_tuning(uri: Any, file: Path) -> None:
    """`export --format fine-tuning` prints lines of messages alone and reports on stderr what it left out."""
    imported(uri, file)
    result = convstore("export", "--uri", uri, "--format", "fine-tuning")
    assert [json.loads(line).keys() for line in result.stdout.splitlines()] == [{"messages"}] * 2
    assert "artifact (3 messages)" in result.stderr


def test_a_turn_that_is_left_out_is_named_once(uri: Any, tmp_path: Path) -> None:
    """By its messages and its scope, which are not repeated; a turn of one message is no range."""
    path = tmp_path / "x.jsonl"
    path.write_text(
        lines({"id": "one", "messages": [*turn(0), {"role": "user", "content": "And now?"}]})
    )
    imported(uri, path)
    said = convstore("export", "--uri", uri, "--format", "fine-tuning").stderr
    assert (
        'left out: message 5 of {"user_id": "ada", "thread_id": "one"}: turn 2: it has no answer\n'
        in said
    )


@pytest.mark.slow
def test_a_database_without_conversations(new_uri: Any) -> None:
    """Exporting a database that is not set up fails and says to migrate. An empty database is reported as empty."""
    result = convstore("export", "--uri", new_uri)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "convstore migrate" in result.stderr
    assert convstore("migrate", "--uri", new_uri).exit_code == 0
    result = convstore("export", "--uri", new_uri)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "There are no conversations with this scope." in result.stderr


@pytest.mark.costly
@pytest.mark.parametrize("form", ["convstore", "openai", "fine-tuning"])
def test_other_scope_keys_are_named(uri: Any, file: Path, tmp_path: Path, form: str) -> None:
    """A store with other keys than these: the option that is missing is said, and no file takes the place of one."""
    keys, others = (
        ("--scope-key", "user_id", "--scope-key", key) for key in ("session", "thread_id")
    )
    imported(uri, file, *keys)
    path = tmp_path / "all.jsonl"
    path.write_text("yesterday's")
    result = convstore("export", "--uri", uri, "-o", path, "--force", "--format", form, *others)
    assert (result.exit_code, result.stdout, path.read_text()) == (1, "", "yesterday's")
    assert "none of 2 conversations could be written" in result.stderr
    assert (
        "its scope keys are user_id, session; make the store with these (--scope-key"
        in result.stderr
    )
    failed = json.loads(
        convstore("export", "--uri", uri, "-o", path, "--force", "--json", *others).stdout
    )
    assert "--scope-key" in failed["error"]
    assert "2 conversations" in convstore("export", "--uri", uri, "-o", path, "--force").stderr


def test_json_needs_a_file(uri: Any) -> None:
    """On stdout the two would be mixed."""
    result = convstore("export", "--uri", uri, "--json")
    assert (result.exit_code, result.stdout) == (2, "")


# ---------------------------------------------------------------------------------------------------------------------
# Processes


def process(*arguments: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "convstore", *map(str, arguments)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, **options)  # noqa: S603 - our own code


@pytest.mark.slow
def test_a_reader_that_goes_away(uri: Any, file: Path) -> None:
    """``convstore export | head`` ends with one line, not with a traceback."""
    imported(uri, file)
    exporting = process("export", "--uri", uri, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert exporting.stdout is not None
    assert exporting.stderr is not None
    exporting.stdout.close()
    said = exporting.stderr.read().decode()
    exporting.stderr.close()
    assert exporting.wait(60) == 1
    assert "stdout cannot be written: Broken pipe" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_very_long_line(uri: Any, tmp_path: Path) -> None:
    """A conversation of 20 MB on one line is taken over, in CI one of 100 MB."""
    path = tmp_path / "long.jsonl"
    result = {"role": "tool", "tool_call_id": "c", "content": "0123456789" * (10_000_000 // STRIDE)}
    path.write_text(
        json.dumps({"id": "long", "messages": [{"role": "user", "content": "?"}, result]}) + "\n"
    )
    assert counted(imported(uri, path), "imported", "messages") == [1, 2]
