"""The command line finds the scope keys of a store in its data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import convstore, own_address
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "--scope", "session_id=s1"], "user_id=ada session_id=s1"),
        (["stats", "--scope", "session_id=s1"], "conversations  1"),
        (["search", "orcas", "--scope", "session_id=s1"], "What do orcas eat?"),
        (["doctor", "--scope", "session_id=s1"], "No damage found."),
        (["doctor"], "No damage found."),
        (["erase", "--scope", "session_id=s1"], "conversations     1"),
        (["prune", "--older-than", "90d", "--scope", "session_id=s1"], "conversations     0"),
        (["export"], '"session_id": "s1"'),
        (["migrate"], "Scope keys: user_id, session_id."),
    ],
    ids=" ".join,
)
def test_no_command_needs_the_scope_keys(uri: str, arguments: list[str], said: str) -> None:
    """Every command finds the scope keys in the stored conversations."""
    result = convstore(*arguments, "--uri", uri)
    assert (result.exit_code, said in result.stdout) == (0, True), result.output


@pytest.mark.parametrize(
    "command",
    [["list"], ["stats"], ["search", "orcas"], ["doctor"], ["erase"], ["prune", "--older-than", "90d"], ["export"]],
)
def test_a_mistyped_key_is_an_error(uri: str, command: list[str]) -> None:
    """An empty answer would say that the user has no data."""
    result = convstore(*command, "--uri", uri, "--scope", "usr_id=ada")
    assert result.exit_code == 1
    assert "'usr_id' is not in this store's scope: user_id, session_id" in result.stderr


@pytest.mark.parametrize("options", [[], ["--repair"]])
def test_the_doctor_refuses_a_database_that_was_never_set_up(uri: str, server_uri: str, options: Any) -> None:
    """A mistyped name is an error, and no database of that name is made."""
    other = uri.replace("convstore_cli_", "convstore_kyes_")
    result = convstore("doctor", *options, "--uri", other)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "check its name in --uri" in result.stderr
    with MongoClient[dict[str, Any]](server_uri) as client:
        assert not [name for name in client.list_database_names() if name.startswith("convstore_kyes_")]
