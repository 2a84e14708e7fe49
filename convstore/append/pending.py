"""Hold the state of one append: the messages still to write, the chunks sent, and the receipt.

Floor 4; `writer` drives it. It holds no connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from convstore.append.batch import Batch
from convstore.append.compose import Composed, compose
from convstore.log.entry import EntrySource, Totals
from convstore.runtime.cache import CachedPayload
from convstore.values.models import Receipt

__all__ = ["PendingAppend", "renumbered_by"]


@dataclass(slots=True)
class PendingAppend:
    """The state of one append.

    Attributes:
        batch: All messages of the append.
        pending: The messages that are still to be written.
        reserve: Number of source ids to reserve.
        turn: The id of the human message whose turn the batch belongs to; "" for no turn.
        after: The tail that the entry has to follow directly; None for any.
        stored: Ordinals of the messages found in the log, by id.
        renumbered: Old and new numbers of sources found in the log, by message id.
        taken: Source numbers of the batch that are in use, if they may be renumbered.
        sent: Numbers of the chunks that are written.
        composed: The entry that was tried last, None if it was refused.
        number: The number of that entry.
    """

    batch: Batch
    pending: Batch
    reserve: int = 0
    turn: str = ""
    after: Totals | None = None
    stored: dict[str, int] = field(default_factory=dict)
    renumbered: dict[str, dict[int, int]] = field(default_factory=dict)
    taken: frozenset[int] = frozenset()
    sent: set[int] = field(default_factory=set)
    composed: Composed | None = None
    number: int = 0

    def may_follow(self, tail: Totals) -> bool:
        """Return True if the entry may directly follow this tail."""
        return self.after is None or (self.after.entries, self.after.link) == (tail.entries, tail.link)

    @property
    def is_done(self) -> bool:
        """Return True if there is nothing to write."""
        return not self.pending.prepared and not self.reserve

    def must_look_up(self, tail: Totals, last_question: tuple[str, int, int]) -> bool:
        """Return True if it continues a turn whose question is not known to be the last message before this tail."""
        continues = bool(self.turn) and self.turn not in self.batch.ids
        return continues and last_question != (self.turn, tail.active, tail.rewind_entry)

    @property
    def needs_shown(self) -> bool:
        """Return True if composing needs the sources that were shown before."""
        return bool(self.reserve) or any(one.sources for one in self.pending.prepared)

    @property
    def totals(self) -> Totals:
        """Return the totals of the log including the composed entry."""
        assert self.composed is not None  # noqa: S101 - used only after `compose`
        return self.composed.entry.totals

    def compose(self, tail: Totals, at: datetime, link: int) -> None:
        """Compose the entry that follows this tail."""
        self.composed = compose(self.pending, tail, at=at, link=link, reserve=self.reserve, taken=self.taken)
        self.number = self.composed.entry.number

    def payloads(self, finished: int) -> dict[str, CachedPayload]:
        """Return the payloads that loads will need, by message id.

        Args:
            finished: Number of the first messages that are in finished turns; only what views show of them is needed.
        """
        assert self.composed is not None  # noqa: S101 - used only after `compose`
        found = dict[str, CachedPayload]()
        for index, (one, message) in enumerate(zip(self.pending.prepared, self.composed.entry.messages, strict=True)):
            shown = one.ref.shown if one.ref and not message.stub else 0
            if one.ref and index >= finished:  # a load in the middle of this turn needs all of it
                found[one.id] = CachedPayload(one.payload, shown)
            elif shown:
                found[one.id] = CachedPayload(one.payload[:shown], shown, is_lasting=True)
        return found

    def receipt(self) -> Receipt:
        """Return the receipt of the finished append."""
        ordinals = tuple(self.stored[id_] for id_ in self.batch.ids)
        entry = self.composed.entry if self.composed else None
        numbers = [source.id for source in entry.sources] if entry else []
        return Receipt(
            message_ids=tuple(self.batch.ids),
            first=min(ordinals),
            last=max(ordinals),
            ordinals=ordinals,
            written=len(entry.messages) if entry else 0,
            entry=entry.number if entry else 0,
            source_ids=(min(numbers), max(numbers)) if numbers else None,
            omitted=self.batch.omitted,
            renumbered=self.renumbered | renumbered_by(entry.sources if entry else ()),
        )


def renumbered_by(sources: Sequence[EntrySource]) -> dict[str, dict[int, int]]:
    """Return old and new numbers of renumbered sources, by message id."""
    changed: dict[str, dict[int, int]] = {}
    for source in sources:
        if source.given is not None:
            changed.setdefault(source.message_id, {})[source.given] = source.id
    return changed
