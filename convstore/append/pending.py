"""One append under way: what of a batch is left to write, what was sent, and what its caller is told in the end.

Layer 4. Holds no connection; `writer` drives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from convstore.append.batch import Batch
from convstore.append.compose import Composed, compose
from convstore.log.entry import EntrySource, Totals
from convstore.values.models import Receipt

__all__ = ["PendingAppend", "renumbered_by"]


@dataclass(slots=True)
class PendingAppend:
    """One append under way.

    Attributes:
        batch: What is to be in the log in the end.
        turn: The turn that all of it is in, by the id of its human message; "" if it may follow anything.
        after: The tail that it has to follow directly; None if it may follow any.
        pending: What of it is left to write.
        token: Names its chunks.
        reserve: Source ids to set aside.
        stored: Ordinals of what is found in the log.
        renumbered: Old and new numbers of the sources that are found in the log.
        taken: Numbers of its sources that others have, if those may be renumbered.
        sent: Chunks that are written.
        composed: The entry that was tried last, None if it was refused.
        number: The number of that entry.
    """

    batch: Batch
    pending: Batch
    token: str
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
        """Return True if the entry may stand directly after this tail."""
        return self.after is None or (self.after.entries, self.after.link) == (tail.entries, tail.link)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to write."""
        return not self.pending.prepared and not self.reserve

    def must_look(self, tail: Totals, asked: tuple[str, int, int]) -> bool:
        """Whether it goes on with a turn that, for all that is known, is not the last question behind this tail."""
        goes_on = bool(self.turn) and self.turn not in self.batch.ids
        return goes_on and asked != (self.turn, tail.live, tail.marker)

    @property
    def shows(self) -> bool:
        """Whether it has to know which sources were shown before."""
        return bool(self.reserve) or any(one.found.items for one in self.pending.prepared)

    @property
    def totals(self) -> Totals:
        """What the log holds once the composed entry is in it."""
        assert self.composed is not None  # noqa: S101 - asked only then
        return self.composed.entry.totals

    def compose(self, tail: Totals, at: datetime, link: int) -> None:
        """Make the entry that stands behind this tail."""
        self.composed = compose(
            self.pending, tail, at=at, token=self.token, link=link, reserve=self.reserve, taken=self.taken
        )
        self.number = self.composed.entry.number

    def receipt(self) -> Receipt:
        """What the caller is told once it is done."""
        ordinals = tuple(self.stored[id_] for id_ in self.batch.ids)
        entry = self.composed.entry if self.composed else None
        numbers = [source.id for source in entry.sources] if entry else []
        return Receipt(
            message_ids=tuple(self.batch.ids),
            first=min(ordinals),
            last=max(ordinals),
            ordinals=ordinals,
            written=len(entry.messages) if entry else 0,
            source_ids=(min(numbers), max(numbers)) if numbers else None,
            omitted=self.batch.omitted,
            renumbered=self.renumbered | renumbered_by(entry.sources if entry else ()),
        )


def renumbered_by(sources: Sequence[EntrySource]) -> dict[str, dict[int, int]]:
    """Old and new numbers of those sources that got new ones, by message id."""
    changed: dict[str, dict[int, int]] = {}
    for source in sources:
        if source.given is not None:
            changed.setdefault(source.message_id, {})[source.given] = source.id
    return changed
