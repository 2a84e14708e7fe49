"""The command line finds the scope keys of a store in its data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import complaints, convstore, lines, own_address, recording
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient

from convstore import ConversationStore

KEYS = ("user_id", "session_id")


@pytest.fixture(scope="module")
def uri(server_uri: str) -> Iterator[str]:
    """The address of a store whose scope keys are not the default ones, with two conversations."""

    async def fill(address: str) -> None:
        async with await ConversationStore.connect(address, scope_keys=KEYS) as store:
            await store.setup()
            for session in ("s1", "s2"):
                chat = store.conversation(user_id="ada", session_id=session)
                await chat.append([HumanMessage("What do orcas eat?"), AIMessage("Fish.")])

    with own_address(server_uri) as address:
        asyncio.run(fill(address))
        yield address


@pytest.mark.costly
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "--scope", "session_id=s1"], "user_id=ada session_id=s1"),
        (["stats", "--scope", "session_id=s1"], "conversations 1"),
        (["search", "orcas", "--scope", "session_id=s1"], "What do orcas eat?"),
        (["doctor", "--scope", "session_id=s1"], "No damage found."),
        (["doctor"], "No damage found."),
        (["erase", "--scope", "session_id=s1"], "conversations 1"),
        (["prune", "--older-than", "90d", "--scope", "session_id=s1"], "conversations 0"),
        (["export"], '"session_id": "s1"'),
        (["migrate"], "Scope keys: user_id, session_id."),
    ],
    ids=" ".join,
)
def test_no_command_needs_the_scope_keys(uri: str, arguments: list[str], said: str) -> None:
    """Every command finds the scope keys in the stored conversations."""
    result = convstore(*arguments, "--uri", uri)
    shown = " ".join(result.stdout.split())
    assert (result.exit_code, said in shown) == (0, True), result.output


@pytest.mark.costly
@pytest.mark.parametrize(
    "command",
    [
        ["list"],
        ["stats"],
        ["search", "orcas"],
        ["doctor"],
        ["erase"],
        ["prune", "--older-than", "90d"],
        ["export"],
    ],
)
def test_a_mistyped_key_is_an_error(uri: str, command: list[str]) -> None:
    """An empty answer would say that the user has no data."""
    result = convstore(*command, "--uri", uri, "--scope", "usr_id=ada")
    assert result.exit_code == 1
    assert "'usr_id' is not in this store's scope: user_id, session_id" in result.stderr


@pytest.mark.parametrize("options", [[], ["--repair"]])
def test_the_doctor_refuses_a_database_that_was_never_set_up(
    uri: str, server_uri: str, options: Any
) -> None:
    """A mistyped name is an error, and no database of that name is made."""
    other = uri.replace("convstore_cli_", "convstore_kyes_")
    result = convstore("doctor", *options, "--uri", other)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "check its name in --uri" in result.stderr
    with MongoClient[dict[str, Any]](server_uri) as client:
        assert not [
            name for name in client.list_database_names() if name.startswith("convstore_kyes_")
        ]


# ---------------------------------------------------------------------------------------------------------------------
# Import


@pytest.fixture
def empty(server_uri: str) -> Iterator[str]:
    """The address of an empty database."""
    with own_address(server_uri) as address:
        yield address


@pytest.fixture(params=["convstore", "openai"])
def export(uri: str, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """An export of the store, in either format that an import reads."""
    path = tmp_path / "export.jsonl.gz"
    assert convstore("export", "--uri", uri, "--format", request.param, "-o", path).exit_code == 0
    return path


def report_of(*arguments: str | Path, exit_code: int = 0) -> dict[str, Any]:
    """Return the document of an import."""
    result = convstore("import", "--json", *arguments)
    assert (result.exit_code, complaints(result)) == (exit_code, ""), result.output
    return json.loads(result.stdout)


def collections(uri: str) -> list[str]:
    """Return the names of the collections in a database."""
    with MongoClient[dict[str, Any]](uri) as client:
        return client.get_default_database().list_collection_names()


@pytest.mark.costly
@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_an_import_into_its_own_database_finds_everything(
    uri: str, export: Path, options: list[str]
) -> None:
    """It takes the keys of the stored conversations, so nothing is stored a second time."""
    document = report_of(export, "--uri", uri, *options)
    assert (document["unchanged"], document["imported"], document["scope_keys"]) == (
        2,
        0,
        list(KEYS),
    )


@pytest.mark.slow
@pytest.mark.costly
def test_an_import_into_a_database_of_several_stores_takes_the_keys_of_the_export(
    empty: str, export: Path
) -> None:
    """Not those of the newest conversation, such as that of the demo."""
    assert report_of(export, "--uri", empty)["imported"] == 2
    assert convstore("demo", "--uri", empty).exit_code == 0
    again = report_of(export, "--uri", empty)
    assert (again["unchanged"], again["scope_keys"]) == (2, list(KEYS))


@pytest.mark.slow
@pytest.mark.costly
def test_an_import_into_an_empty_database_takes_the_keys_of_the_export(
    empty: str, export: Path
) -> None:
    """The restored database has the conversations under their scopes, and the indexes of these keys alone."""
    assert report_of(export, "--uri", empty, "--dry-run")["imported"] == 2
    assert collections(empty) == []
    assert report_of(export, "--uri", empty)["imported"] == 2
    assert "user_id=ada session_id=s1" in convstore("list", "--uri", empty).stdout
    with MongoClient[dict[str, Any]](empty) as client:
        assert not [
            name
            for name in client.get_default_database()["heads"].index_information()
            if "thread_id" in name
        ]


@pytest.mark.costly
@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_an_export_with_other_keys_is_refused(empty: str, export: Path, options: list[str]) -> None:
    """Both formats name the keys and the options that help; nothing is set up, and a dry run reports the same."""
    keys = ["--scope-key", "user_id", "--scope-key", "thread_id"]
    document = report_of(export, "--uri", empty, *keys, *options, exit_code=1)
    assert (document["left_out"], document["imported"], document["messages"]) == (2, 0, 0)
    assert "has the keys user_id, session_id, and this import writes user_id, thread_id" in str(
        document["problems"]
    )
    assert collections(empty) == []


@pytest.mark.costly
def test_a_key_that_the_export_does_not_have_needs_a_value(empty: str, export: Path) -> None:
    """The conversation's id does not become the value of a scope key that an export lacks."""
    keys = [word for key in ("user_id", "session_id", "team") for word in ("--scope-key", key)]
    document = report_of(export, "--uri", empty, *keys, exit_code=1)
    assert {problem["reason"].partition(";")[0] for problem in document["problems"]} == {
        "no value for team"
    }


@pytest.mark.costly
def test_keys_are_exchanged_if_every_value_is_named(empty: str, export: Path) -> None:
    """Then no value is lost without notice."""
    keys = ["--scope-key", "user_id", "--scope-key", "thread_id"]
    named = ["--scope-from", "user_id=scope.user_id", "--scope-from", "thread_id=scope.session_id"]
    assert report_of(export, "--uri", empty, *keys, *named)["imported"] == 2
    assert "user_id=ada thread_id=s2" in convstore("list", "--uri", empty).stdout


@pytest.mark.costly
@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_keys_that_the_database_does_not_have_are_one_line(
    uri: str, tmp_path: Path, options: list[str]
) -> None:
    """Named with --scope-key they are imported; the line, not a warning of Python, is on stderr."""
    with own_address(uri.replace(uri.rpartition("/")[2].partition("?")[0], "")) as other:
        path = tmp_path / "export.jsonl"
        assert convstore("export", "--uri", uri, "-o", path).exit_code == 0
        assert convstore("import", path, "--uri", other).exit_code == 0
        plain = tmp_path / "plain.jsonl"
        plain.write_text(lines(recording("one")))
        keys = ["--scope-key", "user_id", "--scope-key", "room"]
        result = convstore(
            "import", plain, "--uri", other, "--scope", "user_id=bob", *keys, *options
        )
    assert result.exit_code == 0
    assert complaints(result) == (
        "convstore: the stored conversations have the scope keys user_id, session_id; "
        "an application with these does not find conversations with the keys user_id, room\n"
    )


@pytest.mark.slow
@pytest.mark.costly
def test_a_database_in_need_of_a_migration_keeps_its_keys(empty: str, export: Path) -> None:
    """Its conversations cannot be listed before the setup; nothing is written under default keys."""
    assert report_of(export, "--uri", empty)["imported"] == 2
    with MongoClient[dict[str, Any]](empty) as client:
        client.get_default_database()["convstore_migrations"].delete_one({"_id": "0006_children"})
    plain = export.parent / "plain.jsonl"
    plain.write_text(lines(recording("one")))
    arguments = (plain, "--uri", empty, "--scope", "user_id=bob")
    refused = convstore("import", *arguments)
    assert (
        refused.exit_code,
        "have the scope keys user_id, session_id; import again" in refused.stderr,
    ) == (1, True)
    assert report_of(*arguments)["scope_keys"] == list(KEYS)
    assert "user_id=bob session_id=one" in convstore("list", "--uri", empty).stdout


def test_other_keys_than_the_stored_ones_are_named(uri: str) -> None:
    """Nothing is found with other keys, which must not pass for nothing being there."""
    result = convstore("erase", "--uri", uri, "--scope", "team=x", "--scope-key", "team")
    assert result.exit_code == 0
    assert "the stored conversations have the scope keys user_id, session_id" in result.stderr
