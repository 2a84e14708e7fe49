"""`convstore doctor --server`: on the real server, on those that lack something, and when it is disturbed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from command_line import convstore
from counting import Commands
from pymongo import AsyncMongoClient, MongoClient
from refusing_server import (
    Command,
    RefusingServer,
    documentdb,
    forbidding,
    refusal,
    without_retries,
    words_in,
)
from server_kinds import swapped_bounds

from convstore.cli.output import screen
from convstore.cli.server import _print
from convstore.exceptions import InvalidInputError, StoreError
from convstore.mongo import constructs
from convstore.mongo.constructs import CONSTRUCTS, CREATION
from convstore.mongo.server_probe import PROBE_PREFIX, probe_server
from convstore.values.reports import ProbedConstruct, ServerReport

MONGO = Path(constructs.__file__).parent
NAMES = [construct.name for construct in (*CREATION, *CONSTRUCTS)]


def address(uri: str, name: str) -> str:
    """The address of a database."""
    return uri.replace("/?", f"/{name}?")


def not_supported(report: ServerReport) -> dict[str, tuple[str, int | None]]:
    """Status and code of each construct that is not supported, by name; but for those that MongoDB 5.0 lacks itself."""
    found = [
        part
        for part in report.constructs
        if part.status != "supported" and "since MongoDB" not in part.reason
    ]
    return {construct.name: (construct.status, construct.code) for construct in found}


def report_in(document: dict[str, Any]) -> ServerReport:
    """The report in the document of the command."""
    return ServerReport(**{name: document[name] for name in ServerReport.model_fields})


def operators_in(text: str) -> set[str]:
    """The operators and variables among the quoted words of a text."""
    return set(re.findall(r"""["'](\$\$?[A-Za-z]+)["']""", text))


async def test_every_operator_of_the_store_is_tried(own_database: Any, server_uri: str) -> None:
    """Each operator in the room of MongoDB is sent by a probe, but for paths to fields of documents."""
    fields = {"$at", "$conversation", "$count", "$data", "$messages"}
    code = "".join(path.read_text(encoding="utf-8") for path in MONGO.glob("*.py"))
    commands = Commands()
    async with AsyncMongoClient[dict[str, Any]](server_uri, event_listeners=[commands]) as client:
        await probe_server(client[own_database.name])
    sent = operators_in(repr([command for _, command in commands.sent]))
    assert operators_in(code) - fields - sent == set()


@pytest.mark.slow
async def test_the_real_server_has_everything(own_database: Any) -> None:
    """What a killed run left is removed first; nothing is left, and collections of others stay."""
    await own_database[f"{PROBE_PREFIX}log"].insert_one({"_id": "of a killed run"})
    await own_database[f"{PROBE_PREFIX}notes"].insert_one({})
    report = await probe_server(own_database)
    assert (report.server, report.topology, not_supported(report)) == ("MongoDB", "replica set", {})
    assert [construct.name for construct in report.constructs] == NAMES
    assert abs(report.clock_ahead) < 60
    assert await own_database.list_collection_names() == [f"{PROBE_PREFIX}notes"]


@pytest.mark.slow
def test_what_documentdb_lacks_is_named(
    server_uri: str,
    database_name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With what replaces it, within 80 columns; as a document for programs, too."""
    monkeypatch.setenv("COLUMNS", "80")
    with RefusingServer(address(server_uri, database_name), documentdb) as server:
        result = convstore("doctor", "--server", "--json", "--uri", server.uri)
    document = json.loads(result.stdout)
    _print(screen(), report_in(document))
    shown = capsys.readouterr().out
    lacking = {
        part["name"]: part for part in document["constructs"] if part["status"] != "supported"
    }
    assert {name: part["status"] for name, part in lacking.items()} == {
        "zstd compression": "replaced",
        "clustered collections": "replaced",
        "pipeline updates with $$NOW": "replaced",
        "filters with $$NOW": "replaced",
        "$lookup with a pipeline": "replaced",
        "$bsonSize": "replaced",
    }
    assert (result.exit_code, document["ok"], result.stderr) == (0, True, "")
    assert max(map(len, shown.splitlines())) <= 80
    text = " ".join(shown.split())
    for name, part in lacking.items():
        code = "" if part["code"] is None else f" {part['code']}"
        assert f"{name} instead: {part['without']} server{code}: {part['reason']}" in text


def careless(command: Command) -> Mapping[str, Any] | None:
    """Accept a second entry with the same message id, and use no index where a field has to exist."""
    documents = command.get("documents", ())
    if "insert" in command and any(len(document.get("messages", ())) > 1 for document in documents):
        return {"ok": 1.0, "n": 1}
    if "explain" in command:
        plan = {"stage": "LIMIT", "inputStage": {"stage": "COLLSCAN"}}
        return {"ok": 1.0, "queryPlanner": {"winningPlan": plan}}
    return None


def imitation(command: Command) -> Mapping[str, Any] | None:
    """Give the build information of a server that is not MongoDB's own."""
    return (
        {"ok": 1.0, "version": "5.0.0", "versionArray": [5, 0, 0, 0]}
        if "buildInfo" in command
        else None
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "server", "found"),
    [
        pytest.param(
            (careless,),
            "MongoDB",
            {
                "unique partial indexes over arrays": ("missing", None),
                "indexes for $exists": ("missing", None),
            },
            id="accepted, but answered otherwise",
        ),
        pytest.param(
            (forbidding("collStats", "aggregate"),),
            "MongoDB",
            {
                "ordered batches with majority and journal": ("not_tried", 13),
                "counts": ("not_tried", 13),
                "$lookup with a pipeline": ("not_tried", 13),
                "$bsonSize": ("not_tried", 13),
                "change streams": ("not_tried", 13),
                "collStats": ("not_tried", 13),
            },
            id="the user may not",
        ),
        pytest.param(
            (imitation, forbidding("createIndexes", "aggregate")),
            "a server that speaks MongoDB's protocol",
            {
                "partial indexes": ("not_tried", 13),
                "unique partial indexes over arrays": ("not_tried", None),
                "indexes for $exists": ("not_tried", None),
                "ordered batches with majority and journal": ("not_tried", 13),
                "counts": ("not_tried", 13),
                "$lookup with a pipeline": ("replaced", 13),
                "$bsonSize": ("not_tried", 13),
                "change streams": ("replaced", 13),
                "listCollections and listIndexes": ("not_tried", None),
            },
            id="code 13 of another server",
        ),
        pytest.param(
            (lambda command: refusal(96, "No") if "$$NOW" in set(words_in(command)) else None,),
            "MongoDB",
            {"pipeline updates with $$NOW": ("missing", 96), "filters with $$NOW": ("missing", 96)},
            id="a refusal that the store does not know",
        ),
        pytest.param(
            (
                lambda command: (
                    refusal(16500, "Request rate is large") if "distinct" in command else None
                ),
            ),
            "MongoDB",
            {"distinct": ("not_tried", 16500)},
            id="busy",
        ),
    ],
)
@pytest.mark.costly
def test_lacks_privileges_and_busy_servers_are_told_apart(
    server_uri: str, database_name: str, rules: Any, server: str, found: Any
) -> None:
    """A wrong answer is a lack; a missing privilege is none, and only MongoDB's own servers mean that by code 13."""
    with RefusingServer(address(server_uri, database_name), *rules) as proxy:
        result = convstore("doctor", "--server", "--json", "--uri", proxy.uri)
    report = report_in(json.loads(result.stdout))
    assert (report.server, not_supported(report)) == (server, found)
    assert result.exit_code == (3 if "missing" in {status for status, _ in found.values()} else 1)
    reasons = [
        part.reason for part in report.constructs if (part.status, part.code) == ("not_tried", 13)
    ]
    assert all(("grant" in reason) is (server == "MongoDB") for reason in reasons)


@pytest.mark.slow
async def test_swapped_bounds_are_found(own_database: Any) -> None:
    """By three documents, whatever version the server names; the store works with them."""
    with swapped_bounds():
        report = await probe_server(own_database)
    assert not_supported(report) == {"exact bounds of descending scans": ("replaced", None)}


def test_nothing_is_written_by_a_user_who_cannot_clean_up(
    server_uri: str, database_name: str
) -> None:
    """Everything is reported as not tried, once, with what to do; retryable writes have an error of their own."""
    uri = address(server_uri, database_name)
    with RefusingServer(uri, forbidding("drop")) as server:
        result = convstore("doctor", "--server", "--uri", server.uri)
        assert (result.exit_code, server.passed["create"] + server.passed["insert"]) == (1, 0)
    assert " ".join(result.stdout.split()).count("grant the user the role convstoreProbe") == 1
    assert f"{len(NAMES)} constructs could not be tried" in result.stdout
    with RefusingServer(uri, without_retries, options="retryWrites=true") as server:
        result = convstore("doctor", "--server", "--uri", server.uri)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith("add retryWrites=false to the address\n")


@pytest.fixture
def probed(server_uri: str, database_name: str) -> Iterator[Any]:
    """A database for a probe; the test looks at what is left in it."""
    with MongoClient[dict[str, Any]](server_uri) as client:
        yield client[f"{database_name}_probed"]
        client.drop_database(f"{database_name}_probed")


@pytest.mark.slow
def test_a_time_limit_ends_the_probe(server_uri: str, probed: Any) -> None:
    """What was tried by then is reported, the rest is named, and nothing stays."""
    ended = threading.Event()

    def hang(command: Command) -> None:
        if "explain" in command:
            ended.wait(10)

    with RefusingServer(address(server_uri, probed.name), hang) as server:
        result = convstore("doctor", "--server", "--timeout", "2", "--json", "--uri", server.uri)
        ended.set()
    found = json.loads(result.stdout)["constructs"]
    number = sum(part["status"] != "not_tried" for part in found)
    assert number <= NAMES.index("indexes for $exists")
    assert "not_tried" not in {part["status"] for part in found[:number]}
    assert {part["reason"] for part in found[number:]} == {
        "the time limit of 2s was reached; allow more (--timeout)"
    }
    assert (result.exit_code, probed.list_collection_names()) == (1, [])


@pytest.mark.parametrize(
    "arguments",
    [["--server", "--repair"], ["--server", "--scope", "user_id=ada"], ["--timeout", "5"]],
)
def test_options_that_exclude_each_other_are_refused(server_uri: str, arguments: list[str]) -> None:
    """Before anything is opened; exit code 2."""
    assert convstore("doctor", "--uri", server_uri, *arguments).exit_code == 2


async def test_a_probe_needs_a_server_and_a_limit(own_database: Any) -> None:
    """A database in memory and a limit of nothing are refused before anything is sent."""
    from mongomock_motor import AsyncMongoMockClient  # noqa: PLC0415 - an extra

    with pytest.raises(InvalidInputError, match="has no server"):
        await probe_server(AsyncMongoMockClient()["x"])
    with pytest.raises(InvalidInputError, match="above 0"):
        await probe_server(own_database, seconds=0)


def test_a_clock_that_is_off_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """From a second on, with the side; a server of another maker is not called by MongoDB's version alone."""
    for ahead, said in (
        (0.2, "agree to 0.200 s"),
        (31.0, "31.0 s ahead"),
        (-90.0, "90.0 s behind"),
    ):
        counts = ProbedConstruct(name="counts", status="supported")
        report = ServerReport(
            server="FerretDB",
            version="7.0.77",
            topology="standalone",
            clock_ahead=ahead,
            constructs=(counts,),
        )
        _print(screen(), report)
        shown = " ".join(capsys.readouterr().out.split())
        assert said in shown
        assert shown.startswith("FerretDB, as MongoDB 7.0.77, standalone")


@pytest.mark.slow
async def test_two_probes_at_once_notice_each_other(own_database: Any) -> None:
    """At least one says that its result may be wrong; the next one alone finds everything again."""
    results = await asyncio.gather(
        probe_server(own_database), probe_server(own_database), return_exceptions=True
    )
    errors = [result for result in results if isinstance(result, BaseException)]
    assert errors
    assert all(
        isinstance(error, StoreError) and "one at a time" in str(error) for error in errors
    ), results
    assert not_supported(await probe_server(own_database)) == {}
    assert await own_database.list_collection_names() == []


@pytest.mark.slow
def test_a_probe_whose_collections_another_one_removed_has_no_result(
    server_uri: str, probed: Any
) -> None:
    """The other one may be over already, so that nothing of it is left."""

    def remove(command: Command) -> None:
        if "collStats" in command:
            probed.drop_collection(f"{PROBE_PREFIX}marker")

    with RefusingServer(address(server_uri, probed.name), remove) as server:
        result = convstore("doctor", "--server", "--uri", server.uri)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "run one at a time" in result.stderr


@pytest.mark.slow
def test_a_killed_probe_is_cleaned_up_by_the_next(server_uri: str, probed: Any) -> None:
    """With SIGKILL at each of three moments; the next run removes everything and finds everything."""
    for moment in ("create", "explain", "collStats"):
        pids: list[int] = []

        def kill(command: Command, moment: str = moment, pids: list[int] = pids) -> None:
            if moment in command:
                os.kill(pids[0], signal.SIGKILL)

        with RefusingServer(address(server_uri, probed.name), kill) as server:
            command = [sys.executable, "-m", "convstore", "doctor", "--server"]
            process = subprocess.Popen(command, env={**os.environ, "CONVSTORE_URI": server.uri})  # noqa: S603
            pids.append(process.pid)
            assert process.wait() == -signal.SIGKILL
        assert [name for name in probed.list_collection_names() if name.startswith(PROBE_PREFIX)]
        result = convstore(
            "doctor", "--server", "--json", "--uri", address(server_uri, probed.name)
        )
        assert (result.exit_code, probed.list_collection_names()) == (0, [])


@pytest.mark.slow
def test_a_frozen_server_ends_the_probe(server_uri: str, probed: Any) -> None:
    """The error says in one line what may be left; the limit and ten seconds later the command has ended."""
    is_frozen, ended = threading.Event(), threading.Event()

    def freeze(command: Command) -> None:
        if is_frozen.is_set() or "explain" in command:
            is_frozen.set()
            ended.wait(60)

    with RefusingServer(address(server_uri, probed.name), freeze) as server:
        began = time.monotonic()
        result = convstore("doctor", "--server", "--timeout", "1", "--uri", server.uri)
        took = time.monotonic() - began
        ended.set()
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "the next `convstore doctor --server` removes them" in result.stderr
    assert took < 45
    assert convstore("doctor", "--server", "--uri", address(server_uri, probed.name)).exit_code == 0
    assert probed.list_collection_names() == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_motor_answers_alike(server_uri: str, own_database: Any) -> None:
    """The checks use what both drivers have."""
    from motor.motor_asyncio import AsyncIOMotorClient  # noqa: PLC0415 - an extra

    client = AsyncIOMotorClient(server_uri)
    try:
        assert not_supported(await probe_server(client[own_database.name])) == {}
    finally:
        client.close()
