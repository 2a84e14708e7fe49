"""Errors name what was meant: a misspelt option, and a synchronous client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from command_line import convstore
from mongomock import MongoClient as MockClient
from pymongo import MongoClient

from convstore import ConversationStore, HistoryPolicy
from convstore.exceptions import InvalidInputError


@pytest.mark.parametrize(
    ("build", "option", "said"),
    [
        (HistoryPolicy, "max_token", " 'max_token'. Did you mean max_tokens?"),
        (HistoryPolicy, "zebra", " 'zebra'"),
        (partial(ConversationStore, None), "scope_key", " 'scope_key'. Did you mean scope_keys?"),
    ],
)
def test_a_misspelt_option_is_answered_by_the_one_that_is_meant(
    build: Callable[..., Any], option: str, said: str
) -> None:
    """Nothing is suggested for a name that is like none."""
    with pytest.raises(TypeError) as raised:
        build(**{option: 8_000})
    assert str(raised.value).endswith(f" has no option{said}")


async def test_connect_suggests_options_too() -> None:
    """Its options are those of the class."""
    options: Any = {"sumarizer": None}
    with pytest.raises(TypeError, match=r"Did you mean summarizer\?"):
        await ConversationStore.connect("memory://", **options)


@pytest.mark.parametrize("policy", ["max_token=8000", '{"max_token": 8000}'])
def test_the_option_policy_suggests_options(policy: str) -> None:
    """Pairs and JSON are answered alike, before a server is asked."""
    result = convstore(
        "show", "1", "--view", "--policy", policy, "--uri", "mongodb://127.0.0.1:1/app"
    )
    assert result.exit_code == 2
    assert "Did you mean max_tokens?" in " ".join(result.stderr.split())


@pytest.mark.parametrize("client", [MongoClient, MockClient])
def test_a_synchronous_client_is_named_as_such(client: Callable[..., Any]) -> None:
    """The error of its database, and of the client itself, says what to pass instead."""
    opened = client("mongodb://127.0.0.1:1", connect=False)
    for given in (opened, opened["app"]):
        with pytest.raises(InvalidInputError, match=r"synchronous client.*AsyncMongoClient\("):
            ConversationStore(given)
    opened.close()
