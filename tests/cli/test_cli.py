"""The command line: what it shows, what it finds broken, and how it ends."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import subprocess
import sys
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest
import typer
from canary import LOGIN, checked
from command_line import convstore, emptied_address
from rich.console import Console

from convstore import History, __version__
from convstore.cli import main
from convstore.cli.demo import corpus
from convstore.cli.demo.demo import Demo, _print_commands
from convstore.cli.invocation import command_name
from convstore.cli.output import answer
from convstore.exceptions import MissingExtraError
from convstore.mongo import migrator
from convstore.mongo.driver import open_client
from convstore.store import handle
from convstore.types import ConversationInfo

ROOT = Path(__file__).parents[2]


def run_module(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a module in a process of its own."""
    command, environment = (
        [sys.executable, "-m", *arguments],
        {**os.environ, "PYTHONIOENCODING": "utf-8", **variables},
    )
    ended = subprocess.run(  # noqa: S603 - our own code
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    return checked(ended, ended.stdout, complaints=ended.stderr)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The one database in memory that every migration works on."""
    client, database = open_client("memory://")
    monkeypatch.setattr(handle, "open_client", lambda _uri: (client, database))
    return database


# The demo


def test_the_demo_shows_what_is_stored_and_what_the_model_gets() -> None:
    """Sources are numbered through, old results are stubs, the page has a cursor, and the saving is printed."""
    shown = convstore("demo")
    assert shown.exit_code == 0
    assert "tool   rag_search_tool       7," in shown.stdout
    assert "11-20" in shown.stdout
    assert "Retrieved 10 sources. Use" in shown.stdout
    assert "[1] Learning from examples" in shown.stdout
    assert 'More: cursor="' in shown.stdout
    assert shown.stdout.count("% saved") == 2
    assert "(Made without a model, from the beginning and the end of each message.)" in shown.stdout
    assert "it covers 24 messages, which stay in the log." in shown.stdout


def test_the_demo_fits_80_columns_without_colours() -> None:
    """Piped output has no line above 80 characters and no escape sequence."""
    shown = convstore("demo").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown


def test_the_demo_as_json() -> None:
    """The same facts as one document: most tokens saved, all ten sources read back over several pages."""
    document = json.loads(convstore("demo", "--json").stdout)
    assert [row["source_ids"] for row in document["stored"] if row["type"] == "tool"] == [
        "1-10",
        "11-20",
    ]
    assert document["tokens"]["saved"] > 0.8
    assert document["read_back"]["source_ids"] == "1-10"
    assert document["read_back"]["next_cursor"]
    assert document["read_back"]["pages"] > 1
    assert document["summary"]["stands_for_messages"] == 24
    assert document["summary"]["tokens"]["saved"] > 0.8


@pytest.mark.costly
@pytest.mark.parametrize("is_on_path", [False, True])
def test_the_demo_advises_commands_that_work_where_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_on_path: bool
) -> None:
    """Those of the environment that it was started from, and without the inspector's packages the pip of that one."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("convstore", "python"):
        (folder / name).touch(mode=0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [".venv/bin/convstore", "demo"])
    monkeypatch.setenv("PATH", str(folder) if is_on_path else "/nowhere")
    monkeypatch.setattr(sys.modules[Demo.__module__], "find_spec", lambda _: None)
    name = "convstore" if is_on_path else ".venv/bin/convstore"
    assert convstore("demo").stdout.splitlines()[-3:] == [
        f".venv/bin/python -m pip {MissingExtraError(package='', extra='inspector').arguments}",
        f"{name} demo --inspect",
        f"{name} demo --uri mongodb://localhost:27017/app",
    ]


def test_the_name_of_a_program_that_is_no_file_is_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the program was started under a name that is no file, advice names the command on the PATH."""
    (tmp_path / "convstore").touch(mode=0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["/nowhere/convstore", "demo"])
    assert command_name() == "convstore"


def test_a_package_that_is_missing_names_the_pip_of_this_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one on the PATH may belong to another environment."""

    async def without() -> None:
        raise MissingExtraError(package="jinja2", extra="inspector")

    said: list[str] = []
    monkeypatch.setattr("typer.echo", lambda text, **_: said.append(text))
    with pytest.raises(typer.Exit):
        answer(without(), as_document=False)
    pip = f"{sys.executable} -m pip {MissingExtraError(package='', extra='inspector').arguments}"
    assert said == [f"convstore: jinja2 is not installed; run: {pip}"]


@pytest.mark.parametrize(
    ("origin", "arguments"),
    [
        (None, "install 'convstore[cli]'"),
        (
            {"url": "file:///my%20work/convstore", "dir_info": {"editable": True}},
            "install -e '/my work/convstore[cli]'",
        ),
        ({"url": "file:///convstore", "dir_info": {}}, "install '/convstore[cli]'"),
        (
            {"url": "https://host/c.git", "vcs_info": {"vcs": "git", "commit_id": "12ab"}},
            "install 'convstore[cli] @ git+https://host/c.git@12ab'",
        ),
        (
            {"url": "file:///convstore-0.1.0-py3-none-any.whl", "archive_info": {}},
            "install 'convstore[cli] @ file:///convstore-0.1.0-py3-none-any.whl'",
        ),
    ],
)
def test_an_extra_is_installed_from_where_convstore_came(
    origin: dict[str, Any] | None, arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout, a file or a repository, and the package index only if it came from there."""
    recorded = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(PathDistribution, "read_text", lambda *_: recorded)
    assert MissingExtraError(package="", extra="cli").arguments == arguments


def test_the_printed_address_keeps_what_is_no_secret() -> None:
    """Options that a server needs, but no user info; it says if something is missing."""
    demo = Demo(
        [],
        History.model_construct(),
        [],
        History.model_construct(),
        0,
        ConversationInfo(scope={"user_id": "a"}),
    )
    printed = {}
    for login in ("", f"{LOGIN}@"):
        console = Console(file=io.StringIO(), width=200)
        _print_commands(console, demo, f"mongodb://{login}db/app?replicaSet=rs0&tls=true")
        printed[login] = console.file.getvalue()
    assert "export CONVSTORE_URI='mongodb://db/app?replicaSet=rs0&tls=true'\n" in printed[""]
    assert "…" not in printed[""]
    assert (
        "export CONVSTORE_URI='mongodb://…@db/app?replicaSet=rs0&tls=true'\n"
        in printed[f"{LOGIN}@"]
    )
    assert "For … write" in printed[f"{LOGIN}@"]


@pytest.mark.parametrize(
    ("name", "command"), [("verify", "doctor"), ("setup", "migrate"), ("delete", "erase")]
)
def test_the_name_of_a_method_leads_to_its_command(name: str, command: str) -> None:
    """It is no command of its own."""
    result = convstore(name)
    assert result.exit_code == 2
    assert f"run: convstore {command}" in " ".join(result.stderr.split())


@pytest.mark.slow
def test_the_demo_leaves_its_conversation_at_an_address(server_uri: str) -> None:
    """The commands that it names show it, and remove it."""
    with emptied_address(server_uri) as uri:
        named = re.findall(
            r"^convstore (.+)$", convstore("demo", "--uri", uri).stdout, re.MULTILINE
        )
        assert [command.split()[0] for command in named] == [
            "list",
            "show",
            "show",
            "inspect",
            "erase",
        ]
        shown = [
            convstore(*command.split(), CONVSTORE_URI=uri)
            for command in named
            if command != "inspect"
        ]
        assert [result.exit_code for result in shown] == [0, 0, 0, 0]
        assert "Tell me about machine learning" in shown[1].stdout
        assert "Policy: " in shown[2].stdout
        assert convstore("list", "--uri", uri).stdout == ""


def test_the_demo_has_passages_of_a_realistic_length() -> None:
    """Ten for each question, each between 400 and 900 characters."""
    for passages in (corpus.MACHINE_LEARNING, corpus.DEEP_LEARNING):
        assert len(passages) == 10
        assert all(400 <= len(passage["text"]) <= 900 for passage in passages)


# Migrations


def test_migrating_twice_changes_nothing(memory: Any) -> None:
    """The first run applies all, the second finds them applied."""
    first, second = (
        json.loads(convstore("migrate", "--uri", "memory://", "--json").stdout) for _ in range(2)
    )
    assert first["ran"]
    assert (second["applied"], second["ran"], second["pending"]) == (first["ran"], [], [])


def test_a_dry_run_only_looks(memory: Any) -> None:
    """Pending migrations are shown and stay pending."""
    for _ in range(2):
        shown = convstore("migrate", "--uri", "memory://", "--dry-run").stdout
        assert "pending" in shown
        assert "nothing was changed" in shown
    assert asyncio.run(memory.list_collection_names()) == []


def test_scope_keys_of_a_store_are_taken(memory: Any) -> None:
    """The indexes are made for the keys that are named; what cannot be a key is refused."""
    arguments = ("migrate", "--uri", "memory://", "--scope-key", "team", "--scope-key", "room")
    assert "The database is up to date." in convstore(*arguments).stdout
    indexes = asyncio.run(memory["heads"].index_information())
    assert any("scope.team" in str(index) for index in indexes.values())
    refused = convstore("migrate", "--uri", "memory://", "--scope-key", "two words")
    assert (refused.exit_code, "'two words'" in refused.stderr) == (2, True)


def test_listings_by_several_scope_keys_get_an_index(memory: Any) -> None:
    """`migrate --listing` makes its index also in a database that is up to date. Unknown scope keys are refused."""
    keys = (
        "migrate",
        "--uri",
        "memory://",
        "--scope-key",
        "team",
        "--scope-key",
        "course",
        "--scope-key",
        "room",
    )
    assert convstore(*keys).exit_code == 0
    assert convstore(*keys, "--listing", "course,room").exit_code == 0
    indexes = asyncio.run(memory["heads"].index_information())
    assert any(
        "scope.course" in str(index) and "scope.room" in str(index) for index in indexes.values()
    )
    refused = convstore(*keys, "--listing", "course,user")
    assert (refused.exit_code, "['course', 'user']" in refused.stderr) == (2, True)


def test_a_newer_database_is_left_alone(memory: Any) -> None:
    """`migrate` refuses a database of a newer version and says to upgrade the package."""
    asyncio.run(memory["convstore_migrations"].insert_one({"_id": "9999_future"}))
    result = convstore("migrate", "--uri", "memory://")
    assert result.exit_code == 1
    assert "upgrade the package" in result.stderr


def test_what_is_left_after_a_deployment_is_shown_and_run(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`migrate` lists a migration for after a deployment and runs it only with `--after-deployment`."""
    convstore("migrate", "--uri", "memory://")

    async def up(_target: Any) -> None:
        pass

    known = (
        *migrator.discover(),
        migrator.MigrationStep("9001_last", "Drop the old form.", up, phase="after"),
    )
    for module in ("mongo.migrator", "store.handle"):
        monkeypatch.setattr(f"convstore.{module}.discover", lambda: known)
    assert "after deployment" in convstore("migrate", "--uri", "memory://").stdout
    options = ((), ("--after-deployment",), ())
    ran = [
        json.loads(convstore("migrate", "--uri", "memory://", "--json", *option).stdout)
        for option in options
    ]
    assert [(report["ran"], report["after_deployment"]) for report in ran] == [
        ([], ["9001_last"]),
        (["9001_last"], []),
        ([], []),
    ]


# All commands


@pytest.mark.slow
@pytest.mark.parametrize("command", ["demo", "migrate"])
def test_a_server_that_does_not_answer_is_an_error_of_one_line(command: str) -> None:
    """No traceback, no description of the topology, but what to do."""
    uri = f"mongodb://{LOGIN}@127.0.0.1:1/?serverSelectionTimeoutMS=50"
    ended = convstore(command, "--uri", uri)
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert len(ended.stderr.splitlines()) == 1
    assert "check that it runs" in ended.stderr
    assert "Topology" not in ended.stderr


def test_an_address_that_makes_no_sense_is_a_wrong_command_line() -> None:
    """The error says what an address looks like."""
    result = convstore("demo", "--uri", f"http://{LOGIN}@localhost")
    assert result.exit_code == 2
    assert "an address begins with mongodb://" in result.stderr


@pytest.mark.parametrize("command", ["demo", "migrate"])
def test_every_command_explains_itself_with_examples(command: str) -> None:
    """Help ends with commands that can be copied, within 80 columns."""
    shown = convstore(command, "--help").stdout
    assert f"  convstore {command}" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_version_is_printed() -> None:
    """``--version`` names the program and the version that it is."""
    assert convstore("--version").stdout == f"convstore {__version__}\n"


@pytest.mark.slow
def test_the_package_can_be_run() -> None:
    """``python -m convstore`` is the same command line."""
    assert run_module("convstore", "--version").stdout.startswith("convstore ")


def test_a_terminal_without_arrows_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters that an output cannot take are replaced."""
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "argv", ["convstore", "demo"])
    with io.TextIOWrapper(printed, encoding="ascii") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        with pytest.raises(SystemExit) as ended:
            main()
        terminal.flush()
        assert not ended.value.code
        assert b" ? 207" in printed.getvalue()
        monkeypatch.undo()


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_a_missing_extra_is_an_error_of_one_line(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Without typer or rich, the line to install them and exit code 1."""
    for name in [name for name in sys.modules if name.startswith("convstore.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit) as ended:
        main()
    advice = f"run: pip {MissingExtraError(package='', extra='cli').arguments}"
    assert ended.value.code == f"convstore: {package} is not installed; {advice}"


def test_the_commands_do_not_need_the_extra_before_they_run() -> None:
    """Importing the package of the command line imports neither typer nor rich."""
    script = "import sys, convstore.cli; print({'typer', 'rich'} & set(sys.modules))"
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    assert ended.stdout == "set()\n"
