"""Say which messages of a client's history are taken; see `append.trust` for the rule."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from langchain_core.messages import BaseMessage

from convstore.exceptions import InvalidInputError
from convstore.values.scope import check_choice, check_names


@dataclass(frozen=True, slots=True)
class Trust:
    """Options that say which messages of a history are taken.

    Attributes:
        is_all: Every message is taken, else human messages only.
        is_chosen: The caller has chosen between the two.
        client_tools: Names of tools that run on the client; results of their open calls are taken, too.
        strict: Refuse a history that holds a message that would be ignored.
        own: Ids of messages that the application added to the history; they are taken.
    """

    is_all: bool = False
    is_chosen: bool = False
    client_tools: frozenset[str] = frozenset()
    strict: bool = False
    own: frozenset[str] = frozenset()


def check_trust(trust: str | None, client_tools: Collection[str], strict: bool) -> Trust:
    """Return the options of a caller as one value; None for `trust` if the caller has not chosen.

    >>> check_trust(None, ["pick_date"], False).client_tools
    frozenset({'pick_date'})
    """
    check_choice(trust, None, "human", "all", name="trust")
    check_choice(strict, False, True, name="strict")
    tools = check_names(client_tools, name="client_tools")
    if trust == "all" and (tools or strict):
        raise InvalidInputError(
            'trust="all" takes every message; omit client_tools and strict, or pass trust="human"'
        )
    return Trust(trust == "all", trust is not None, tools, strict)


class SentMessage(NamedTuple):
    """A message that a client sent: its name for errors, the message, and the caller's object with its position."""

    name: str
    message: BaseMessage
    origin: BaseMessage
    position: int
