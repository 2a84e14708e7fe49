"""A policy is checked when it is made, and is a value."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from cases import each_case

from convstore.exceptions import InvalidInputError
from convstore.values.policy import HistoryPolicy


@pytest.mark.parametrize(
    "nonsense",
    [
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": True},
        {"max_tokens": 1.5},
        {"max_tokens": "32000"},
        {"max_turns": 0},
        {"max_turns": "3"},
        {"stub_tools": "always"},
        {"stub_tools": None},
        {"stub_tools": []},
        {"view": "short"},
        {"view": ["full"]},
        {"never_stub": "search"},
        {"never_stub": b"search"},
        {"never_stub": None},
        {"never_stub": 7},
        {"never_stub": [7]},
        {"never_stub": [["search"]]},
    ],
    ids=str,
)
def test_nonsense_is_refused_when_the_policy_is_made(nonsense: dict[str, Any]) -> None:
    """A value that means nothing never waits for the first load; the error names the field."""
    with pytest.raises(InvalidInputError, match=next(iter(nonsense))):
        HistoryPolicy(**nonsense)


@each_case("unknown", [{"tokens": 1}, {"max_token": 1}])
def test_unknown_fields_are_refused(unknown: dict[str, Any]) -> None:
    """A misspelt field is an error, not ignored."""
    with pytest.raises(TypeError):
        HistoryPolicy(**unknown)
    with pytest.raises(TypeError):
        HistoryPolicy(*[1_000])


def test_the_defaults_are_these() -> None:
    """Budget, limits and views that a caller gets who says nothing."""
    assert dataclasses.asdict(HistoryPolicy()) == {
        "max_tokens": 32_000,
        "max_turns": None,
        "stub_tools": "finished_turns",
        "never_stub": frozenset(),
        "shorten_over": None,
        "media": "finished_turns",
        "max_request_bytes": 20_000_000,
        "view": "full",
        "compact": "explicit",
        "provider": None,
    }


def test_edges_are_allowed() -> None:
    """No limits, the smallest numbers and any collection of names."""
    policy = HistoryPolicy(
        max_tokens=None,
        max_turns=None,
        never_stub=iter("ab"),
    )
    assert policy.never_stub == frozenset("ab")
    assert (HistoryPolicy(max_tokens=1, max_turns=1).max_tokens, HistoryPolicy().max_tokens) == (
        1,
        32_000,
    )


def test_equal_policies_are_one_key() -> None:
    """Policies are frozen, compared and hashed by value: what is remembered of a view is found again."""
    policy, other = (
        HistoryPolicy(never_stub=frozenset({"a", "b"})),
        HistoryPolicy(never_stub=["b", "a", "b"]),
    )
    assert {policy: 1}[other] == 1
    assert policy != HistoryPolicy()
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.max_tokens = 1  # type: ignore[misc]
