"""Decides which images, files and recordings a request can hold; older ones become placeholders.

Pure. Providers refuse requests above a size, a number of images or a number of pages. So the oldest media of the turn
in progress are left out in portions of half of the limit, counted from the first one. Then the same media are left out
in each later view of the turn. Finished turns keep their newest media, as far as the turn in progress leaves room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from convstore.log.entry import EntryMessage
from convstore.messages.media_sizes import MediaSize
from convstore.values.policy import HistoryPolicy

BYTES_PER_TOKEN = 4
"""Estimated bytes of a token of text in a request; in most scripts a token has at most as many."""


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Limits for all media of a request together; None without a limit.

    Attributes:
        length: Characters of Base64.
        images: Number of images.
        pages: Number of PDF pages.
        tokens: Tokens, for the media of finished turns only.
    """

    length: int | None = None
    images: int | None = None
    pages: int | None = None
    tokens: int | None = None


def limits_of(policy: HistoryPolicy) -> MediaLimits:
    """Return the limits of a policy's provider, and the share of `max_request_bytes` that is left beside texts.

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
    """Return the number of newest media that are kept, by the ordinal of each message that has to leave some out.

    Args:
        current: The messages of the turn in progress with media, oldest first.
        earlier: The messages of finished turns that show their media, oldest first.
        limits: Limits for all media together.
        tokens: Returns the tokens of the media of a message.
    """
    sizes = [size for message in current for size in message.media]
    gone = _leaving(sizes, limits)
    kept = _without_first(current, gone)
    return kept | _kept_earlier(earlier, limits, sizes[gone:], tokens)


def _leaving(sizes: Sequence[MediaSize], limits: MediaLimits) -> int:
    """Return how many of the oldest media are left out; the newest one is always kept."""
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
    """Return how many media are kept in each message that contains some of the first `gone` media."""
    kept: dict[int, int] = {}
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
    """Return 0 for the newest message of finished turns that does not fit, and for all older ones."""
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
    """Return the total characters, images and pages of some media."""
    length = sum([size.length for size in sizes])
    images = sum([size.is_image for size in sizes])
    return length, images, sum([size.pages for size in sizes])


def leaving(sizes: Sequence[int], gap: int, portion: int) -> int:
    """Return how many of the oldest parts are left out, so that the others take at most `gap`.

    Parts are left out in portions, counted from the first part, so that the result seldom changes as parts are added.

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
