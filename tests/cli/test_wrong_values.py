"""A wrong value of an option is a wrong command line: exit code 2, before anything is read or written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from canary import LOGIN
from command_line import convstore, emptied_address

NOWHERE = f"mongodb://{LOGIN}@127.0.0.1:1/app?serverSelectionTimeoutMS=50"
"""An address that leads nowhere: a command that gets as far ends with exit code 1."""

COMMANDS = {
    "list": [],
    "show": ["1"],
    "search": ["orcas", "--scope", "user_id=ada"],
    "stats": [],
    "sums": [],
    "inspect": [],
    "import": ["FILE", "--scope", "user_id=ada"],
    "export": [],
    "migrate": [],
    "doctor": [],
    "prune": ["--older-than", "90d"],
    "erase": ["--everything"],
}
SHARED = {
    "--collection-prefix": "x$y",
    "--scope-key": "two words",
    "--database": "an app",
}
OWN = [
    (["prune", "--older-than", "4m"], "--older-than: older_than must be at least 5m, not 4m"),
    (["prune", "--older-than", "never"], "an age must be a number"),
    (["list", "--since", "7"], "an age must be a number"),
    (["sums", "--since", "7"], "an age must be a number"),
    (["migrate", "--listing", "user_id,"], "--listing: a scope key must be a Python name"),
    (["migrate", "--listing", "team", "--scope-key", "user_id"], "--listing: a listing names"),
    (["show", "1", "--at", ""], "--at must not be empty"),
    (["show", "1", "--source", str(2**53)], "--source must be a whole number"),
    (["show", "1", "--before", str(2**60)], "--before must be a whole number"),
    (["show", "1", "--policy", "max_tokens=many"], "--policy"),
    (["show", ""], "CONVERSATION: an id must not be empty"),
    (["show", "x" * 600], "CONVERSATION: an id must be at most 512 bytes"),
    (["list", "--price", "gpt-5=1"], "--price"),
    (["import", "FILE", "--scope", f"user_id={'x' * 513}"], "--scope: scope value user_id"),
    (["import", "mongodb://db", "--collection", "a$b"], "--collection must be a name"),
    (["import", "mongodb://db", "--collection", "a..b"], "--collection must be a name"),
    (["import", "mongodb://db", "--session-key", "$x"], "--session-key must be a name"),
    (["import", "mongodb://db", "--history-key", ""], "--history-key must be a name"),
    (["import", f"http://{LOGIN}@db/app"], "an address begins with mongodb://"),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with a conversation that could be imported."""
    path = tmp_path / "chats.jsonl"
    record = {"id": "one", "messages": [{"role": "user", "content": "Hello!"}]}
    path.write_text(json.dumps(record) + "\n")
    return path


def assert_refused(said: str, *arguments: str | Path, uri: str = NOWHERE) -> None:
    """Run a command with a wrong value; stderr alone has its usage and the reason, also for a program."""
    as_document = ["--json"]
    if arguments[0] == "export":
        as_document += ["--output", "/dev/null", "--force"]
    for options in ([], as_document):
        result = convstore(*arguments, "--uri", uri, *options, width=400)
        assert (result.exit_code, result.stdout) == (2, ""), result.output
        assert said in result.stderr
        assert result.stderr.startswith("Usage: ")


@pytest.mark.parametrize("option", SHARED)
@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_values_of_shared_options_are_a_wrong_command_line(
    command: str, option: str, file: Path
) -> None:
    """All commands on a database refuse them alike."""
    own = [file if argument == "FILE" else argument for argument in COMMANDS[command]]
    uri = NOWHERE
    if option == "--database":
        uri = NOWHERE.replace("/app?", "/?")
    assert_refused("", command, *own, option, SHARED[option], uri=uri)


@pytest.mark.parametrize(
    "uri",
    [f"http://{LOGIN}@db/app", "mongodb://db/an app", ""],
    ids=["scheme", "database", "empty"],
)
@pytest.mark.parametrize("command", [*COMMANDS, "demo"])
def test_a_malformed_address_is_a_wrong_command_line(command: str, uri: str, file: Path) -> None:
    """So is one that PyMongo refuses, and an empty one."""
    own = [file if argument == "FILE" else argument for argument in COMMANDS.get(command, [])]
    assert_refused("address", command, *own, uri=uri)


def test_an_address_of_the_server_to_try_is_checked_like_all() -> None:
    """`doctor --server` opens no store, and refuses what PyMongo refuses."""
    assert_refused("address", "doctor", "--server", uri="mongodb://db/an app")


@pytest.mark.parametrize(("arguments", "said"), OWN, ids=range(len(OWN)))
def test_wrong_values_of_a_command_are_a_wrong_command_line(
    arguments: list[str], said: str, file: Path
) -> None:
    """The error names the option or what its value must be."""
    assert_refused(said, *(file if argument == "FILE" else argument for argument in arguments))


@pytest.mark.parametrize("name", ["nope", "ada", "user_id"])
def test_what_is_no_id_of_a_conversation_is_a_wrong_command_line(
    name: str, server_uri: str
) -> None:
    """`erase` takes the whole id alone; an id that no conversation has is only not found."""
    with emptied_address(server_uri) as uri:
        assert convstore("migrate", "--uri", uri).exit_code == 0
        refused = convstore("erase", name, "--uri", uri)
        assert (refused.exit_code, "is not the id of a conversation" in refused.stderr) == (2, True)
        assert convstore("erase", "0" * 24, "--uri", uri).exit_code == 0
