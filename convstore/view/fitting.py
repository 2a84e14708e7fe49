"""Makes a finished turn fit in a budget that it exceeds by itself: its longest texts lose their middle.

Layer 1, pure. The same turn and room give the same messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from convstore.log.stored_message import Shown
from convstore.messages.tokens import TokenCounter, count
from convstore.sources.shortening import with_short_texts

__all__ = ["fitted"]

_LEAST = 20
"""Texts are not shortened to fewer tokens."""


def fitted(turn: Sequence[Shown], room: int, *, counter: TokenCounter) -> list[Shown] | None:
    """The messages of a turn with texts and arguments shortened, the longest first, until they fit in `room`.

    None if there is too much in it besides long texts.
    """
    made, limit = [_counted(one, counter) for one in turn], room
    while sum(one.tokens or 0 for one in made) > room:
        limit = limit * 3 // 4
        if limit < _LEAST:
            return None
        made = [_shortened(one, whole, limit, counter) for one, whole in zip(made, turn, strict=True)]
    return made


def _counted(one: Shown, counter: TokenCounter) -> Shown:
    return one if one.tokens is not None else one._replace(tokens=count(counter, one.message))


def _shortened(made: Shown, whole: Shown, limit: int, counter: TokenCounter) -> Shown:
    if (made.tokens or 0) <= limit:
        return made
    message = with_short_texts(whole.message, limit, arguments=True)
    if message is whole.message:
        return made
    return made._replace(message=message, tokens=count(counter, message), is_shortened=True)
