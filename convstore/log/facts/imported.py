"""Record that an import wrote an entry, so that a turn that was open in its source is not listed as broken off here.

An archive keeps the mark only for entries that the exported log itself had imported.
"""

from __future__ import annotations

from typing import Any

from convstore.log.facts.kind import FactKind


class ImportedKind(FactKind[bool]):
    """Kind of fact: an import wrote the entry."""

    name = "imported"
    is_archived = True

    def restored(self, archived: Any) -> bool:
        """Return True, the only value."""
        if archived is not True:
            raise ValueError("the mark of an import is damaged")
        return True


IMPORTED = ImportedKind()
