"""The table of all kinds of facts, and functions that apply to all facts of an entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from convstore.log.entry import NO_FACTS, Entry, Facts
from convstore.log.facts.branch import BRANCH
from convstore.log.facts.claim import CLAIM
from convstore.log.facts.event import EVENT
from convstore.log.facts.imported import IMPORTED
from convstore.log.facts.items import ITEMS
from convstore.log.facts.kind import CopyPositions, FactKind, Key, UnknownKind
from convstore.log.facts.rewound import REWOUND
from convstore.log.facts.standing import STANDING
from convstore.log.facts.thinking import THINKING

KINDS: dict[str, FactKind[Any]] = {
    kind.name: kind for kind in (EVENT, BRANCH, STANDING, REWOUND, ITEMS, CLAIM, THINKING, IMPORTED)
}
"""All kinds by their names. A new kind only has to be registered here."""

_UNKNOWN = UnknownKind()


def kind_named(name: str) -> FactKind[Any]:
    """Return the kind with a name, or the kind for unknown facts."""
    return KINDS.get(name, _UNKNOWN)


def each(facts: Facts) -> Iterator[tuple[FactKind[Any], Any]]:
    """Yield facts with their kinds."""
    for name, value in facts.items():
        yield kind_named(name), value


def keys_of(entry: Entry) -> list[Key]:
    """Return the look-up values of an entry's facts, in the order of the table."""
    facts = entry.facts
    ordered = [*(name for name in KINDS if name in facts), *(facts.keys() - KINDS.keys())]
    found = dict.fromkeys(
        key for name in ordered for key in kind_named(name).keys(facts[name], entry)
    )
    return [*found]


def kept_source_ids(entry: Entry) -> list[int]:
    """Return the source ids of an entry that tools gave or claims reserve; a unique index has them."""
    return [*CLAIM.ids_in(entry.facts), *(source.id for source in entry.sources if source.kept)]


def version_of(facts: Facts) -> int:
    """Return the lowest version of an entry with some facts."""
    return max((kind.version for kind, _ in each(facts)), default=1)


def newest_version() -> int:
    """Return the highest version of entries that this convstore reads."""
    return max(kind.version for kind in KINDS.values())


def archived(facts: Facts) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the facts that an archive stores unchanged; None for a value that it cannot store."""
    for name, value in facts.items():
        kind = kind_named(name)
        if kind.is_archived:
            yield name, kind.archived(value)


def cut(facts: Facts, before: int, *, has_messages: bool) -> Facts:
    """Return the part of an entry's facts that a fork keeps if it is cut before an ordinal of the entry."""
    kept = NO_FACTS
    for name, value in facts.items():
        kind = kind_named(name)
        part = kind.cut(value, before, has_messages=has_messages) if kind.is_forked else None
        if part is not None and part != ():
            kept = {**kept, name: part}
    return kept


def moved(entry: Entry, copy: CopyPositions) -> Facts:
    """Return the facts of an entry for a copy of the log, without those that the copy writes itself."""
    found = NO_FACTS
    for name, value in entry.facts.items():
        kind = kind_named(name)
        part = kind.moved(value, entry, copy) if kind.is_copied else None
        if part is not None and part != ():
            found = {**found, name: part}
    return found
