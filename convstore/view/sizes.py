"""Computes sizes of messages in finished turns under policies that show texts or media differently from the default.

Floor 4, pure. The loader calls it. No payload is read: if a policy shows more of a long text than its entry holds, the
size is estimated.
"""

from __future__ import annotations

from collections.abc import Sequence

from convstore.log.entry import EntryMessage
from convstore.log.rows import Row
from convstore.log.stored_message import payload_needed, read_message
from convstore.messages.tokens import CHARACTERS_PER_TOKEN, TokenCounter, count
from convstore.messages.values import Codec
from convstore.sources.shortening import SHORTENED, leave_out, with_short_texts, without_media
from convstore.values.policy import HistoryPolicy


def shown_sizes(rows: Sequence[Row], policy: HistoryPolicy, *, codec: Codec, counter: TokenCounter) -> list[int] | None:
    """Return the size of each message once its turn is finished; None if all have their size in the default view.

    Raises:
        CorruptDocumentError: A stored message is damaged.
    """
    if policy.shorten_over is None and policy.media == "finished_turns":
        return None
    return [_size(row.message, policy, codec, counter) for row in rows]


def _size(message: EntryMessage, policy: HistoryPolicy, codec: Codec, counter: TokenCounter) -> int:
    if message.type == "tool":
        return message.view_tokens
    media = message.tokens - message.view_tokens if policy.media == "never" else 0
    length = len(message.body) + (message.payload.shown if message.payload else 0)
    if policy.shorten_over is None or message.type not in SHORTENED or length <= policy.shorten_over:
        return message.view_tokens + media
    if payload_needed(message, shorten_over=policy.shorten_over):
        # Estimate: the part that remains if the payload is a single text.
        return min(message.view_tokens, message.view_tokens * policy.shorten_over * CHARACTERS_PER_TOKEN // length)
    decoded = read_message(codec, message)
    shown = with_short_texts(decoded, policy.shorten_over)
    if shown is decoded:
        return message.view_tokens + media
    return count(counter, without_media(leave_out(shown))) + media
