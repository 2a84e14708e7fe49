"""Decides which images, files and recordings a request can hold; older ones become placeholders.

Pure. Providers refuse a request above a size, a number of images or a number of pages, each time it is sent. So the
oldest media of the turn in progress leave in portions of half of the limit, counted from the first one: the same ones
leave while the turn goes on. Finished turns keep what the turn in progress leaves, the newest first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from convstore.log.entry import EntryMessage
from convstore.messages.media_sizes import MediaSize
from convstore.values.policy import HistoryPolicy

BYTES_PER_TOKEN = 4
"""About the bytes of a token of text in a request, and the most in most scripts."""


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """The most that the media of a request may take; None for no limit.

    Attributes:
        length: Characters of Base64.
        images: Number of images.
        pages: Number of pages of PDFs.
        tokens: Tokens, of finished turns only.
    """

    length: int | None = None
    images: int | None = None
    pages: int | None = None
    tokens: int | None = None


def limits_of(policy: HistoryPolicy) -> MediaLimits:
    """Return the limits of a policy: those of its provider, and what the texts of a view leave of `max_request_bytes`.

    >>> limits_of(HistoryPolicy(max_request_bytes=1_000_000, provider="mistralai"))
    MediaLimits(length=872000, images=8, pages=None, tokens=16000)
    """
    budget = policy.max_tokens
    length = policy.max_request_bytes
    if length is not None and budget is not None:
        length = max(length // 2, length - BYTES_PER_TOKEN * budget)
    rules = policy.rules
    return MediaLimits(
        length,
        rules.max_images if rules else None,
        rules.max_pages if rules else None,
        None if budget is None else budget // 2,
    )


def kept_media(
    current: Sequence[EntryMessage],
    earlier: Sequence[EntryMessage],
    limits: MediaLimits,
    tokens: Callable[[EntryMessage], int],
) -> dict[int, int]:
    """Return how many media, the newest ones, messages keep that have to give some up, by ordinal.

    Args:
        current: The messages with media of the turn in progress, oldest first.
        earlier: Those of finished turns that show theirs, oldest first.
        limits: What the media may take together.
        tokens: Returns the tokens of the media of a message.
    """
    sizes = [size for message in current for size in message.media]
    gone = _leaving(sizes, limits)
    kept = _without_first(current, gone)
    return kept | _kept_earlier(earlier, limits, sizes[gone:], tokens)


def _leaving(sizes: Sequence[MediaSize], limits: MediaLimits) -> int:
    """Return how many of the oldest media leave; the newest one stays, whatever its size."""
    most = 0
    for limit, amounts in (
        (limits.length, [size.length for size in sizes]),
        (limits.images, [int(size.is_image) for size in sizes]),
        (limits.pages, [size.pages for size in sizes]),
    ):
        if limit is not None:
            most = max(most, leaving(amounts, limit, max(1, limit // 2)))
    return max(0, min(most, len(sizes) - 1))


def _without_first(messages: Sequence[EntryMessage], gone: int) -> dict[int, int]:
    """Return how many media each message keeps that has some of the first ones, which leave."""
    kept = dict[int, int]()
    for message in messages:
        if gone <= 0:
            break
        kept[message.ordinal] = max(0, len(message.media) - gone)
        gone -= len(message.media)
    return kept


def _kept_earlier(
    messages: Sequence[EntryMessage],
    limits: MediaLimits,
    taken: Sequence[MediaSize],
    tokens: Callable[[EntryMessage], int],
) -> dict[int, int]:
    """Return the messages of finished turns that do not fit into the rest, and those before them: they keep none."""
    room = (limits.length, limits.images, limits.pages, limits.tokens)
    used = [*_amounts(taken), 0]
    for index in reversed(range(len(messages))):
        message = messages[index]
        amounts = (*_amounts(message.media), tokens(message))
        used = [before + more for before, more in zip(used, amounts, strict=True)]
        limited = zip(used, room, strict=True)
        if any(most is not None and amount > most for amount, most in limited):
            return {each.ordinal: 0 for each in messages[: index + 1]}
    return {}


def _amounts(sizes: Sequence[MediaSize]) -> tuple[int, int, int]:
    """Return the characters, the images and the pages of some media together."""
    length = sum([size.length for size in sizes])
    images = sum([size.is_image for size in sizes])
    return length, images, sum([size.pages for size in sizes])


def leaving(sizes: Sequence[int], gap: int, portion: int) -> int:
    """Return how many of the oldest parts leave, so that the others take at most `gap`.

    They leave in portions, counted from the first part: so the same parts leave while later ones are added.

    >>> leaving([30, 30, 30], 90, 50), leaving([30, 30, 30, 30], 90, 50), leaving([30, 30, 30, 30, 30], 90, 50)
    (0, 2, 2)
    """
    total = sum(sizes)
    if total <= gap:
        return 0
    for index, (before, after) in enumerate(pairwise(accumulate(sizes, initial=0)), 1):
        if after // portion > before // portion and total - after <= gap:
            return index
    return len(sizes)
