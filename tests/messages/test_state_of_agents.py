"""What a model has not read of its turn is added to the messages of an agent's state."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore.messages import filing
from convstore.messages.filing import with_unread


def test_a_state_with_the_whole_turn_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is read, so each step of a long turn costs the same; other objects are compared by id."""
    turn = [HumanMessage("Why?", id="q"), AIMessage("So.", id="a")]
    copies = [message.model_copy() for message in turn]
    assert with_unread(turn, [*copies, turn[1]]) == [*copies, turn[1]]
    assert with_unread(turn, [turn[1]]) == turn
    monkeypatch.setattr(filing, "ids_of", None)
    assert with_unread(turn, [*turn]) == turn
