"""Recount the tokens of stored messages for a store with another token counter.

Entries store sizes with the name of the counter that made them. Messages without a payload are counted. Payloads are
not read: long texts are estimated from their beginning and end, and media are counted by the sizes that entries store.
Other parts that views do not show are scaled by the ratio of new and old sizes of the parts that views show. Where a
size is an estimate, views count the message itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from langchain_core.messages import HumanMessage

from convstore.log.entry import Entry, EntryMessage
from convstore.log.stored_message import as_in_finished_turn, payload_needed, read_message
from convstore.messages.payload_ranges import PayloadRange
from convstore.messages.provenance import without_mark
from convstore.messages.tokens import NamedCounter, count, figures_of
from convstore.messages.values import Codec
from convstore.sources.shortening import SHORTENED, without_media


def recount(entries: Sequence[Entry], *, codec: Codec, counter: NamedCounter) -> list[Entry]:
    """Return the entries with message sizes by `counter`; entries that it counted already are unchanged.

    Raises:
        ValueError: A stored message is damaged; the text names it.
    """
    return [
        entry if entry.totals.counter == counter.name else _recounted(entry, codec, counter)
        for entry in entries
    ]


def _recounted(entry: Entry, codec: Codec, counter: NamedCounter) -> Entry:
    shown = [_shown_tokens(message, codec, counter) for message in entry.messages]
    ratio = sum(shown) / max(1, sum(message.view_tokens for message in entry.messages))
    whole: list[int] = []
    for message, view in zip(entry.messages, shown, strict=True):
        if message.payload:
            whole.append(_hidden_tokens(message, ratio, counter) + view)
        else:
            whole.append(_whole_tokens(message, view, codec, counter))
    sizes = zip(entry.messages, whole, shown, strict=True)
    return replace(entry, messages=tuple(_resized(message, *tokens) for message, *tokens in sizes))


def _hidden_tokens(message: EntryMessage, ratio: float, counter: NamedCounter) -> int:
    """Return the size of the parts of a message with a payload that views do not show.

    For a human or AI message these are its media.
    """
    figures = figures_of(counter)
    if figures is not None and message.media and message.type in SHORTENED:
        return figures.all_tokens(message.media, by_model=message.type == "ai")
    return round(max(0, message.tokens - message.view_tokens) * ratio)


def _shown_tokens(message: EntryMessage, codec: Codec, counter: NamedCounter) -> int:
    """Return the size of a message as views show it; an estimate if some of its texts are in its payload."""
    ref = payload_needed(message)
    if ref is None:
        return count(counter, as_in_finished_turn(codec, message, {}))
    content = read_message(codec, message).content
    blocks = content if isinstance(content, list) else [content]
    parts = [block.get("text") if isinstance(block, dict) else block for block in blocks]
    edges = "".join(part.head + part.tail for part in parts if isinstance(part, PayloadRange))
    sample = edges or message.body
    return (
        count(counter, HumanMessage(sample))
        * (ref.shown + len(message.body) - len(edges))
        // len(sample)
    )


def _whole_tokens(
    message: EntryMessage, view_tokens: int, codec: Codec, counter: NamedCounter
) -> int:
    """Return the full size of a message without a payload; `view_tokens` is its size as views show it."""
    whole = without_mark(read_message(codec, message))
    is_shown = message.stub is None and without_media(whole) is whole
    return view_tokens if is_shown else count(counter, whole)


def _resized(message: EntryMessage, tokens: int, view_tokens: int) -> EntryMessage:
    return replace(
        message, tokens=tokens, view_tokens=view_tokens, is_estimate=message.payload is not None
    )
