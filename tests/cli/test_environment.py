"""The environment describes a store, for `ConversationStore.from_env` and for every command."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import urlsplit

import pytest
from canary import LOGIN
from command_line import convstore, own_address
from langchain_core.messages import HumanMessage

from convstore import ConversationStore, InvalidInputError


def set_all(patch: pytest.MonkeyPatch, **variables: str) -> None:
    """Set these variables and no other ones."""
    for name in ("URI", "DATABASE", "SCOPE_KEYS", "COLLECTION_PREFIX", "POLICY"):
        patch.setenv(f"CONVSTORE_{name}", variables.get(name, ""))


async def test_the_environment_sets_address_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument overrides a variable."""
    set_all(
        monkeypatch,
        URI="memory://",
        DATABASE="chats",
        SCOPE_KEYS="team_id, user_id",
        COLLECTION_PREFIX="bot_",
        POLICY="max_tokens=9000,never_stub=book+pay",
    )
    async with (
        await ConversationStore.from_env() as store,
        await ConversationStore.from_env(policy=None) as other,
    ):
        assert (store.scope_keys, str(store.policy)) == (
            ("team_id", "user_id"),
            "max_tokens=9000,never_stub=book+pay",
        )
        assert other.policy.max_tokens == 32_000
        driver = store._host.schema._migrator._driver
        assert (driver.database.name, driver.prefix) == ("chats", "bot_")


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "URI"),
        ({"URI": f"mongo://{LOGIN}@db/app"}, "URI"),
        ({"URI": f"mongodb://{LOGIN}@db/app", "DATABASE": "other"}, "DATABASE"),
        ({"URI": "memory://", "SCOPE_KEYS": "user-id"}, "SCOPE_KEYS"),
        ({"URI": "memory://", "POLICY": "max_tokens=many"}, "POLICY"),
        ({"URI": "memory://", "COLLECTION_PREFIX": "$"}, "COLLECTION_PREFIX"),
    ],
)
async def test_a_wrong_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, variables: Any, name: str
) -> None:
    """In a typed error, which repeats no part of an address."""
    set_all(monkeypatch, **variables)
    with pytest.raises(InvalidInputError, match=f"(?i){name}") as caught:
        await ConversationStore.from_env()
    assert not re.search("canary", str(caught.value), re.IGNORECASE)


@pytest.mark.slow
def test_the_command_line_reads_the_same_variables(server_uri: str) -> None:
    """Commands find the store of an application that reads the environment; options override it."""

    async def write() -> None:
        async with await ConversationStore.from_env() as store:
            await store.setup()
            await store.conversation(team_id="red", user_id="ada").append(
                HumanMessage("What do orcas eat?")
            )

    with own_address(server_uri) as address, pytest.MonkeyPatch.context() as patch:
        parts = urlsplit(address)
        options = {
            "DATABASE": parts.path[1:],
            "SCOPE_KEYS": "team_id,user_id",
            "COLLECTION_PREFIX": "bot_",
        }
        set_all(patch, URI=parts._replace(path="/").geturl(), POLICY="max_tokens=9000", **options)
        asyncio.run(write())
        listed = convstore("list")
        assert (listed.exit_code, "team_id=red user_id=ada" in listed.stdout) == (0, True), (
            listed.output
        )
        shown = convstore("show", "team_id=red", "user_id=ada", "--view")
        assert "max_tokens=9000." in shown.stdout, shown.output
        assert convstore("list", "--collection-prefix", "other_").exit_code == 1
        patch.setenv("CONVSTORE_DATABASE", "")
        assert convstore("list", "--uri", address).stdout == listed.stdout
        named = convstore("list", "--database", options["DATABASE"])
        assert named.stdout == listed.stdout
        assert named.stderr.endswith(f"/{options['DATABASE']}\n")
        other = convstore("list", "--uri", address, "--database", "other")
        assert (other.exit_code, "names another database than --database" in other.stderr) == (
            2,
            True,
        )
        patch.setenv("CONVSTORE_SCOPE_KEYS", "user-id")
        assert "CONVSTORE_SCOPE_KEYS" in convstore("list").stderr
