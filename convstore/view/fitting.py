"""Shortens a finished turn that exceeds the budget by itself: its longest texts lose their middle.

The same turn and room always give the same messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from convstore.log.stored_message import Shown
from convstore.messages.tokens import TokenCounter, count
from convstore.sources.shortening import with_short_texts

_MIN_TEXT_TOKENS = 20
"""Lower limit for the length of a shortened text."""


def fitted(turn: Sequence[Shown], room: int, *, counter: TokenCounter) -> list[Shown] | None:
    """Shorten the texts and arguments of a turn, the longest first, until they fit in `room` tokens.

    Return None if the turn does not fit even with all long texts shortened.
    """
    shortened, limit = [_with_tokens(one, counter) for one in turn], room
    while sum(one.tokens or 0 for one in shortened) > room:
        limit = limit * 3 // 4
        if limit < _MIN_TEXT_TOKENS:
            return None
        shortened = [_shortened(one, original, limit, counter) for one, original in zip(shortened, turn, strict=True)]
    return shortened


def _with_tokens(one: Shown, counter: TokenCounter) -> Shown:
    return one if one.tokens is not None else one._replace(tokens=count(counter, one.message))


def _shortened(shortened: Shown, original: Shown, limit: int, counter: TokenCounter) -> Shown:
    if (shortened.tokens or 0) <= limit:
        return shortened
    message = with_short_texts(original.message, limit, arguments=True)
    if message is original.message:
        return shortened
    return shortened._replace(message=message, tokens=count(counter, message), is_shortened=True)
