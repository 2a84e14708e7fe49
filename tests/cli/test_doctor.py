"""``convstore doctor``, ``erase`` and ``prune``: what they print, what they change, and how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from canary import LOGIN
from command_line import complaints, convstore, emptied_address, own_address
from pymongo import MongoClient

from convstore import ConversationStore
from convstore.cli.doctor import _verdict
from convstore.runtime.clock import Clock
from convstore.testing.samples import rag_turn
from convstore.types import Finding, VerifyReport


@pytest.fixture
def uri(server_uri: str) -> Iterator[str]:
    """The address of an empty database of its own."""
    with emptied_address(server_uri) as uri:
        yield uri


@pytest.fixture
def database(uri: str) -> Iterator[Any]:
    """The database, for those who damage it."""
    with MongoClient[dict[str, Any]](uri) as client:
        yield client.get_default_database()


@contextmanager
def failing(uri: str, command: str, code: int) -> Iterator[None]:
    """The server refuses a command as long as the block lasts."""
    data = {"failCommands": [command], "errorCode": code}
    with MongoClient[dict[str, Any]](uri) as client:
        client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=data)
        try:
            yield
        finally:
            client.admin.command("configureFailPoint", "failCommand", mode="off")


def fill(uri: str, *, days: int = 0, user_id: str = "ada", thread_id: str = "t") -> None:
    """A conversation that was last written to some days ago."""
    then = datetime.now(UTC) - timedelta(days=days)

    async def append() -> None:
        async with await ConversationStore.connect(uri, clock=Clock(now=lambda: then)) as store:
            await store.setup()
            await store.conversation(user_id=user_id, thread_id=thread_id).append(
                rag_turn("What about seals?")
            )

    asyncio.run(append())


@pytest.mark.slow
def test_all_is_well(uri: str) -> None:
    """The report has counts and a verdict; exit code 0."""
    fill(uri)
    result = convstore("doctor", "--uri", uri)
    assert (result.exit_code, complaints(result)) == (0, "")
    rows = [line.split() for line in result.stdout.splitlines()[1:4]]
    assert rows == [["conversations", "1"], ["log", "documents", "1"], ["messages", "4"]]
    assert result.stdout.endswith("No damage found.\n")


def test_damage_is_reported_and_repaired(uri: str, database: Any) -> None:
    """Each finding with its document; what can be mended says so, is mended on demand, and then is gone."""
    fill(uri, days=2)
    head = database["heads"].find_one({})
    database["heads"].update_one({}, {"$set": {"entry": [9, 9]}})
    database["log"].drop_index("ordinals")
    result = convstore("doctor", "--uri", uri)
    assert result.exit_code == 3
    assert f"head_entry, can be repaired\n  heads {head['_id']}\n" in result.stdout
    assert "index_missing, can be repaired\n  log ordinals\n" in result.stdout
    said = "Messages may be lost: restore a backup first; --repair gives them up."
    assert " ".join(result.stdout.split()).endswith(f"2 found, 0 repaired. {said}")
    result = convstore("doctor", "--uri", uri, "--repair")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "2 found, 2 repaired.")
    assert database["heads"].find_one({}) == head
    assert convstore("doctor", "--uri", uri).exit_code == 0


def test_programs_get_one_document(uri: str, database: Any) -> None:
    """Everything that the report has, and the address without its secrets."""
    fill(uri, days=2)
    entry = database["log"].find_one({"first": 1})
    database["log"].update_one({"_id": entry["_id"]}, {"$set": {"count": "x"}})
    result = convstore("doctor", "--uri", uri, "--json", "--scope", "user_id=ada")
    assert (result.exit_code, complaints(result)) == (3, "")
    document = json.loads(result.stdout)
    [damaged] = [finding for finding in document["findings"] if finding["kind"] == "damaged"]
    assert (damaged["collection"], damaged["document_id"], damaged["repaired"]) == (
        "log",
        entry["_id"],
        False,
    )
    assert (document["ok"], document["conversations"], document["counts"]["damaged"]) == (
        False,
        1,
        1,
    )


@pytest.mark.slow
def test_only_the_chosen_are_looked_at(uri: str) -> None:
    """By a scope value."""
    fill(uri, user_id="ada")
    fill(uri, user_id="eve")
    document = json.loads(
        convstore("doctor", "--uri", uri, "--json", "--scope", "user_id=eve").stdout
    )
    assert (document["conversations"], document["findings"]) == (1, [])


@pytest.mark.slow
def test_text_of_others_does_not_steer_the_terminal(uri: str, database: Any) -> None:
    """A key with escapes in it is printed harmless."""
    fill(uri, days=2)
    conversation = database["heads"].find_one({})["conversation"]
    database["annotations"].insert_one(
        {"_id": f"{conversation}:\x1b[2J", "conversation": conversation}
    )
    result = convstore("doctor", "--uri", uri)
    assert (result.exit_code, "\x1b" in result.stdout) == (3, False)


@pytest.mark.slow
def test_a_policy_is_tried_and_then_done(uri: str) -> None:
    """Without --yes it counts what --yes then removes; the rest stays."""
    fill(uri, days=100, thread_id="old")
    fill(uri, days=1, thread_id="new")
    arguments = ["prune", "--uri", uri, "--older-than", "90d", "--json"]
    expected = {
        "conversations": 1,
        "entries": 1,
        "payload_chunks": 1,
        "summaries": 0,
        "annotations": 0,
    }
    for yes, removed in (
        ([], expected),
        (["--yes"], expected),
        (["--yes"], dict.fromkeys(expected, 0)),
    ):
        document = json.loads(convstore(*arguments, *yes).stdout)
        assert {name: document[name] for name in expected} == removed
    result = convstore("prune", "--uri", uri, "--older-than", "90d")
    limit = f"{datetime.now(UTC) - timedelta(days=90):%Y-%m-%d}"
    said, _, heading, *_ = result.stdout.splitlines()
    assert said.startswith(f"Conversations not written to since {limit} ")
    assert said.endswith("an import counts as a write.")
    assert (result.exit_code, heading.rstrip()) == (0, "would be removed")
    assert result.stdout.endswith("\nThere is nothing to remove.\n")
    assert json.loads(convstore("doctor", "--uri", uri, "--json").stdout)["conversations"] == 1


@pytest.mark.slow
def test_a_user_is_counted_and_then_erased(uri: str) -> None:
    """`erase` removes nothing without --yes. With it, all conversations of the user are removed, and no others."""
    fill(uri, user_id="ada", thread_id="1")
    fill(uri, user_id="ada", thread_id="2")
    fill(uri, user_id="eve")
    arguments = ["erase", "--uri", uri, "--scope", "user_id=ada"]
    result = convstore(*arguments)
    assert (result.exit_code, result.stdout.splitlines()[1].split()) == (0, ["conversations", "2"])
    assert result.stdout.endswith(
        "Nothing was removed. Run it again with --yes to remove this permanently.\n"
    )
    counted = json.loads(convstore(*arguments, "--json").stdout)
    assert (counted["dry_run"], counted["conversations"], counted["entries"]) == (True, 2, 2)
    erased = json.loads(convstore(*arguments, "--json", "--yes").stdout)
    assert erased == counted | {"dry_run": False}
    assert json.loads(convstore(*arguments, "--json").stdout)["conversations"] == 0
    everything = json.loads(
        convstore("erase", "--uri", uri, "--everything", "--yes", "--json").stdout
    )
    assert everything["conversations"] == 1


@pytest.mark.slow
def test_an_erasure_counts_what_no_scope_finds(uri: str, database: Any) -> None:
    """Lost conversations are counted after each erasure, which then ends with 3; an id or --lost removes them."""
    for thread in ("1", "2", "3"):
        fill(uri, user_id="ada", thread_id=thread)
    first, second = [head["conversation"] for head in database["heads"].find({}, limit=2)]
    database["heads"].delete_many({"conversation": {"$in": [first, second]}})
    arguments = ["erase", "--uri", uri, "--scope", "user_id=ada"]
    result = convstore(*arguments, "--yes")
    assert (result.exit_code, result.stdout.splitlines()[1].split()) == (3, ["conversations", "1"])
    assert "2 conversations are lost and may have messages of the same person" in result.stdout
    assert f"convstore erase {first}" in convstore("doctor", "--uri", uri).stdout
    result = convstore("erase", "--uri", uri, first, "--yes", "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["conversations"], document["lost"]) == (3, 1, 1)
    document = json.loads(convstore("erase", "--uri", uri, "--lost", "--yes", "--json").stdout)
    assert (document["conversations"], document["entries"], document["lost"]) == (1, 1, 0)
    result = convstore(*arguments, "--yes", "--json")
    assert (result.exit_code, json.loads(result.stdout)["lost"]) == (0, 0)
    assert convstore("doctor", "--uri", uri).exit_code == 0


@pytest.mark.parametrize(
    "chosen", [[], ["--everything", "--scope", "user_id=ada"], ["--everything", "--lost"]]
)
def test_who_is_erased_is_said_once(uri: str, chosen: Any) -> None:
    """No scope is not everybody, and everybody is not one user; exit code 2."""
    result = convstore("erase", "--uri", uri, "--yes", *chosen)
    assert (result.exit_code, "--everything for all" in " ".join(result.stderr.split())) == (
        2,
        True,
    )


@pytest.mark.costly
@pytest.mark.parametrize(
    "age", ["90", "d", "1y", "-3d", "1.5d", "9999999d", "999999d", "999999w", "", "90 d"]
)
def test_an_age_that_is_none_is_refused(uri: str, age: str) -> None:
    """Before anything is opened; exit code 2."""
    result = convstore("prune", "--uri", uri, "--older-than", age)
    assert (result.exit_code, "an age must be a number" in " ".join(result.stderr.split())) == (
        2,
        True,
    )


@pytest.mark.costly
@pytest.mark.parametrize("scope", ["user_id", "user_id=", "=x", "a b=x"])
@pytest.mark.parametrize("command", [["doctor"], ["erase"], ["prune", "--older-than", "90d"]])
def test_a_scope_that_is_none_is_refused(uri: str, command: list[str], scope: str) -> None:
    """Half a filter does not become none."""
    assert convstore(*command, "--uri", uri, "--scope", scope).exit_code == 2


@pytest.mark.parametrize(
    ("scope", "said"),
    [
        (f"user_id={'x' * 513}", "at most 512 bytes"),
        ("user_id=\udcff", "UTF-8"),
    ],
    ids=["too long", "lone surrogate"],
)
@pytest.mark.parametrize(
    "command", [["doctor"], ["erase", "--yes"], ["prune", "--older-than", "90d"], ["export"]]
)
def test_scope_values_are_checked_before_anything_is_opened(
    command: list[str], scope: str, said: str
) -> None:
    """An address that leads nowhere is not reached: the error names the scope, with exit code 2."""
    nowhere = f"mongodb://{LOGIN}@127.0.0.1:1/?serverSelectionTimeoutMS=50"
    result = convstore(*command, "--uri", nowhere, "--scope", scope)
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.costly
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["prune", "--older-than", "90d", "--scope", "team=x"], "is not in this store's scope"),
        (["erase", "--scope", "team=x", "--yes"], "is not in this store's scope"),
        (["doctor", "--scope", "team=x"], "is not in this store's scope"),
        (["migrate", "--listing", "team"], "names some of this store's scope keys"),
    ],
)
def test_errors_are_one_line(uri: str, arguments: list[str], said: str) -> None:
    """An error is one line on stderr with exit code 1. With --json it is also a document on stdout."""
    fill(uri)
    assert_one_line(uri, arguments, said)


def test_a_database_that_is_not_set_up_is_one_line(server_uri: str) -> None:
    """The error names the command that sets it up."""
    with own_address(server_uri) as uri:
        assert_one_line(uri, ["prune", "--older-than", "90d"], "convstore migrate")


def assert_one_line(uri: str, arguments: list[str], said: str) -> None:
    """Run a command that fails, for a person and for a program."""
    result = convstore(*arguments, "--uri", uri)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert said in result.stderr
    again = convstore(*arguments, "--uri", uri, "--json")
    assert (again.exit_code, again.stderr) == (1, result.stderr)
    assert json.loads(again.stdout) == {
        "error": result.stderr.removeprefix("convstore: ").rstrip("\n")
    }


@pytest.mark.slow
def test_commands_name_damage_in_plain_words(uri: str, database: Any) -> None:
    """A list and a search end with 0 and say what is damaged, as text and with --json."""
    for thread in ("1", "2", "3"):
        fill(uri, thread_id=thread)
    nameless, endless, bodiless = [
        head["_id"] for head in database["heads"].find().sort("scope.thread_id", 1)
    ]
    ids = {head["_id"]: head["conversation"] for head in database["heads"].find()}
    database["heads"].update_one({"_id": nameless}, {"$unset": {"conversation": ""}})
    database["log"].update_one({"_id": f"{ids[endless]}:{1:012d}"}, {"$set": {"totals": 7}})
    database["log"].update_one(
        {"_id": f"{ids[bodiless]}:{1:012d}"}, {"$set": {"messages.0.body": b"x"}}
    )
    listed = convstore("list", "--uri", uri)
    assert (listed.exit_code, "its field 'conversation' is missing" in listed.stdout) == (0, True)
    found = convstore("search", "seals", "--everything", "--uri", uri)
    said = " ".join(found.stderr.split())
    assert found.exit_code == 0
    assert "Damaged: 2 conversations" in said
    assert "Not searched whole: 1 conversation" in said
    assert "what stays is damaged: run `convstore doctor`" in said
    document = json.loads(
        convstore("search", "seals", "--everything", "--uri", uri, "--json").stdout
    )
    assert (len(document["problems"]), len(document["incomplete"])) == (2, 1)


@pytest.mark.slow
def test_a_backup_is_advised_only_where_a_repair_loses_something(uri: str, database: Any) -> None:
    """A damaged state is an error that names the doctor, which restores it; a fork is joined whole."""
    fill(uri)
    state = {"_id": f"{database['heads'].find_one()['conversation']}:~"}
    database["log"].update_one(state, {"$set": {"revision": "x"}}, upsert=True)
    shown = convstore("show", "1", "--view", "--uri", uri)
    assert (shown.exit_code, "run `convstore doctor`" in shown.stderr) == (1, True)
    found = convstore("doctor", "--uri", uri)
    assert (found.exit_code, "backup" in found.stdout) == (3, False)
    assert "Run it again with --repair" in found.stdout
    assert convstore("doctor", "--uri", uri, "--repair").exit_code == 0
    assert convstore("show", "1", "--view", "--uri", uri).exit_code == 0
    for kind, is_lossy in (("fork", False), ("hole", True)):
        finding = Finding(
            kind=kind, collection="log", document_id="x", problem="y", repairable=True
        )
        report = VerifyReport(findings=(finding,), counts={kind: 1}, left=1)
        assert ("backup" in _verdict(report, 1, repair=False)) is is_lossy


@pytest.mark.costly
@pytest.mark.parametrize("command", ["collStats", "listIndexes", "find"])
def test_a_doctor_who_may_not_look_says_so(uri: str, command: str) -> None:
    """A doctor without permission to read exits with code 1 and gives the reason without the driver's full error."""
    fill(uri)
    with failing(uri, command, 13):
        result = convstore("doctor", "--uri", uri)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "does not permit" in result.stderr
    assert "full error" not in result.stderr
