"""Claims of source ids that the tools of a child, a sub-agent's conversation, gave.

They are stored in the root conversation of the child, because no index keeps the ids of several conversations unique.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from convstore.log.entry import Facts
from convstore.log.facts.kind import FactKind


class Claim(NamedTuple):
    """A claim of source ids.

    Attributes:
        by: The conversation of the child.
        ids: The source ids; no other conversation of the same root may use them.
    """

    by: str
    ids: tuple[int, ...]


class ClaimKind(FactKind[Claim]):
    """Kind of fact: claims of source ids."""

    name = "claim"

    def restored(self, archived: Any) -> Claim:
        """Return the claim with these fields."""
        by, ids = archived
        return Claim(by, tuple(ids))

    def ids_in(self, facts: Facts) -> tuple[int, ...]:
        """Return the source ids that some facts claim."""
        claim = self.among(facts)
        return claim.ids if claim else ()


CLAIM = ClaimKind()
