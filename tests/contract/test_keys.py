"""Scope keys that do not fit the database, calls of the seed's form, and the name of a database that is not set up."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from counting import Commands
from fixture_types import Client
from langchain_core.messages import HumanMessage

from convstore import ConversationStore, InvalidInputError
from convstore.exceptions import InvalidScopeError, NotSetUpError
from convstore.testing.samples import new_id, rag_turn

KEYS = ("user_id", "course_id")


@pytest.fixture
def make(client: Client, database_name: str) -> Any:
    """Make stores on one database that no other test uses."""
    prefix = f"keys_{new_id()[:8]}_"
    return lambda keys: ConversationStore(
        client[database_name], scope_keys=keys, collection_prefix=prefix
    )


async def test_a_store_with_other_scope_keys_is_warned_of(make: Any, database_name: str) -> None:
    """Setting up a store with other scope keys than the stored ones warns with both sets and the line of the caller."""
    store = make(KEYS)
    await store.setup()
    await store.conversation(user_id="ada", course_id="ml").append(HumanMessage("Hi"))
    with pytest.warns(
        RuntimeWarning, match=f"user_id, thread_id.*{database_name}.*course_id, user_id"
    ) as caught:
        await make(("user_id", "thread_id")).setup()
    assert caught[0].filename == __file__
    with pytest.warns(RuntimeWarning, match="find none"):
        await make(("user_id",)).setup()


@pytest.mark.slow
async def test_a_store_with_the_keys_of_some_conversation_is_not(
    make: Any, commands: Commands
) -> None:
    """In whatever order; nor one on an empty database. It costs setup one command."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for keys in (KEYS, KEYS[::-1]):
            store = make(keys)
            await store.setup()
            await store.conversation(user_id="ada", course_id=new_id()).append(HumanMessage("Hi"))
    other = make(("team",))
    with pytest.warns(RuntimeWarning):
        await other.setup()
    await other.conversation(team="x").append(HumanMessage("Hi"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await make(("team",)).setup()
        with commands.counted():
            await make(KEYS).setup()
    assert len([command for _, command in commands.sent if command.get("limit") == 100]) == 1


async def test_tool_messages_are_also_read_in_the_seeds_form(make: Any) -> None:
    """Scope values in the order of the store's keys, then the ids; any other number is an error, not a guess."""
    store = make(KEYS)
    await store.setup()
    turn = rag_turn("What about orcas?")
    await store.conversation(user_id="ada", course_id="ml").append(turn)
    ids = [turn[2].id]
    named = await store.get_tool_messages(user_id="ada", course_id="ml", tool_message_ids=ids)
    assert await store.get_tool_messages("ada", "ml", ids) == named
    assert [record.tool_message_id for record in named] == ids
    assert await store.get_tool_messages("ml", "ada", ids) == []
    for values, names in (
        (("ada", ids), {}),
        (("ada", "ml"), {"tool_message_ids": ids}),
        (("ada", "ml", "x", ids), {}),
        (("ada", ids), {"course_id": "ml"}),
        ((), {"user_id": "ada", "course_id": "ml"}),
    ):
        with pytest.raises(InvalidInputError, match="user_id, course_id, tool_message_ids"):
            await store.get_tool_messages(*values, **names)
    with pytest.raises(InvalidScopeError):
        await store.get_tool_messages({"$ne": ""}, "ml", ids)


async def test_a_database_that_is_not_set_up_is_named(make: Any, database_name: str) -> None:
    """Most often its name is mistyped."""
    with pytest.raises(NotSetUpError, match=f"the database '{database_name}' is not set up"):
        await make(KEYS).conversation(user_id="ada", course_id="ml").append(HumanMessage("Hi"))
