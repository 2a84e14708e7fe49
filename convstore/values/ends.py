"""Describe the end of a conversation at a glance, for lists of conversations."""

from __future__ import annotations

from typing import Literal, NamedTuple

from convstore.values.models import Status


class ConversationEnd(NamedTuple):
    """The end of a conversation.

    Attributes:
        status: The status of its newest turn, as in `TurnState`; "" without a turn.
        waiting: Names of the tools whose calls wait for a person.
        error: Class and first line of the error by which the turn broke off, "" if that is not known.
        cut: Stop reason of the last answer, if the output limit or a filter ended it; else "".
        is_only_asked: True if the turn has only its question: nothing says that somebody worked on it.
    """

    status: Status | Literal[""] = ""
    waiting: tuple[str, ...] = ()
    error: str = ""
    cut: str = ""
    is_only_asked: bool = False
