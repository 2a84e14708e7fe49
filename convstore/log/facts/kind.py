"""Define a kind of fact: a value that an entry records besides its messages, sources and totals.

A kind is one field of the stored ``facts``, and one subclass of `FactKind`. Everything that handles whole entries calls
these methods for each kind of the table: storage, append, fork, `verify`, repair and archives. The defaults of most
methods suit a fact that refers neither to ordinals nor to entries.

A kind is pure. It encodes a fact as numbers, texts, bytes, dates, lists and dicts, with `Sealed` for a text that needs
a checksum. `mongo.facts` stores these values, and restores them by the kind's `shape`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from convstore.log.entry import NO_FACTS, Entry, Facts, PayloadRef
from convstore.messages.encoding import digest_of
from convstore.messages.values import Codec
from convstore.values.plain import with_leaves

Value = TypeVar("Value")

_MAX_DEPTH = 60
"""Maximum levels of a fact of an unknown kind; a document may have 100, some of which its entry needs."""

Key = str | int | bytes
"""A look-up value of an entry."""


def digest_key(*parts: str | int) -> bytes:
    """Return a look-up value as bytes, so that it never equals one that is a text, such as the id of a call."""
    return digest_of(json.dumps(parts))


class Sealed(NamedTuple):
    """A text that cannot be derived from the rest of the log, so it is stored with a checksum."""

    text: str


class CopyPositions(Protocol):
    """Positions in a copy of a log that may lack entries; see `log.copied.LogCopy`, which has them."""

    ordinals: dict[int, int]
    items: dict[str, tuple[int, int]]
    variants: dict[tuple[str, str], Any]
    standings: dict[str, Any]

    def ordinal_before(self, ordinal: int) -> int:
        """Return the ordinal in the copy of the last message up to an ordinal of the log that the copy has, or 0."""
        ...

    def entry_after(self, ordinal: int) -> int:
        """Return the number of the first entry of the copy that has only messages after an ordinal."""
        ...

    def is_active(self, ordinal: int) -> bool:
        """Return True if a message of the copy is active."""
        ...

    def item_from(self, place: tuple[int, int]) -> tuple[int, int] | None:
        """Return the position in the copy of the first item that is at a position of the log or later."""
        ...


class FactKind(Generic[Value]):
    """A kind of fact; an entry has at most one fact of each.

    Attributes:
        name: Its field in the stored ``facts``.
        shape: The type of its stored form, which storage restores: `Sealed`, `str`, `int` (from 0), `bytes`, `Totals`
            or `PayloadRef`; a list with the type of its items; a dict of types by names, any of which may be missing.
            Storage raises ValueError or TypeError for a value of another type.
        version: The lowest version of entries that may have it. A kind that changes active messages, turns or numbers
            of messages takes a new version, so that an earlier convstore refuses the entry. An earlier convstore keeps
            facts of any other kind that it does not know.
        is_loaded: True if reads of messages need it; they do not load other kinds.
        is_archived: True if an archive stores its facts unchanged; facts of other kinds have a form of their own there.
        is_forked: False if a fork that is cut in the entry has no such fact, or writes its own.
        is_copied: False if a repaired copy of the log writes its own facts.
    """

    name: str
    shape: Any = Sealed
    version: int = 1
    is_loaded: bool = False
    is_archived: bool = False
    is_forked: bool = True
    is_copied: bool = True

    def of(self, entry: Entry) -> Value | None:
        """Return the fact of an entry, if it has one."""
        return entry.facts.get(self.name)

    def among(self, facts: Facts) -> Value | None:
        """Return the fact of this kind in `facts`, if there is one."""
        return facts.get(self.name)

    def put(self, value: Value | None, facts: Facts = NO_FACTS) -> Facts:
        """Return the facts with this value for this kind; without the kind if the value is None or empty."""
        others = {name: fact for name, fact in facts.items() if name != self.name}
        if value is not None and value != ():
            others[self.name] = value
        return others or NO_FACTS

    def on(self, entry: Entry, value: Value | None) -> Entry:
        """Return an entry with this fact, or without a fact of this kind if the value is None or empty."""
        return replace(entry, facts=self.put(value, entry.facts))

    def encode(self, value: Value, entry: Entry) -> Any:
        """Return the stored form of a fact; by default JSON with a checksum."""
        return Sealed(json.dumps(value, ensure_ascii=False))

    def decode(self, stored: Any, number: int) -> Value:
        """Return the fact that `encode` wrote, given the number of its entry; the stored form has the kind's `shape`.

        Raises:
            ValueError, TypeError, KeyError, IndexError: The stored form is damaged.
        """
        return self.restored(json.loads(stored.text))

    def keys(self, value: Value, entry: Entry) -> Iterable[Key]:
        """Return the look-up values by which its entry is found."""
        return ()

    def cut(self, value: Value, before: int, *, has_messages: bool) -> Value | None:
        """Return the part of a fact that a fork keeps if it is cut before an ordinal of the entry; None if no part."""
        return value if has_messages else None

    def moved(self, value: Value, entry: Entry, copy: CopyPositions) -> Value | None:
        """Return the fact for a copy of the log; None if the copy cannot have it or writes its own."""
        return self.renumbered(value, copy.ordinal_before)

    def renumbered(self, value: Value, place: Callable[[int], int]) -> Value:
        """Return the fact for a log that lacks messages; `place` is `CopyPositions.ordinal_before`."""
        return value

    def payloads(self, value: Value) -> Iterable[tuple[str, PayloadRef]]:
        """Return the names and locations of its payloads."""
        return ()

    def problems(
        self, value: Value, entry: Entry, payloads: Mapping[str, str], codec: Codec
    ) -> Iterator[str]:
        """Yield the problems of a fact, for `verify`, which itself reports payloads that cannot be read."""
        yield from ()

    def archived(self, value: Value) -> Any:
        """Return a fact as an archive stores it, with types that messages may have; None if that is impossible."""
        return value

    def restored(self, archived: Any) -> Value:
        """Return the fact for its JSON, or for its form in an archive.

        Raises:
            ValueError, TypeError, KeyError: The form is damaged.
        """
        return archived  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class UnknownFact:
    """A fact of a newer convstore, which this one keeps unchanged.

    Attributes:
        stored: Its stored form.
        keys: The look-up values of its entry that do not come from a known fact.
    """

    stored: Any
    keys: tuple[Key, ...] = ()


class UnknownKind(FactKind[UnknownFact]):
    """All kinds that this version does not know."""

    is_archived = True

    def encode(self, value: UnknownFact, entry: Entry) -> Any:
        """Return the stored form."""
        return value.stored

    def keys(self, value: UnknownFact, entry: Entry) -> Iterable[Key]:
        """Return the look-up values as they were stored."""
        return value.keys

    def archived(self, value: UnknownFact) -> Any:
        """Return stored form and look-up values; None for a fact with payloads, which an archive does not have."""
        if _has_payload(value.stored):
            return None
        # A sealed text becomes a tuple, a type that no stored value has.
        opened = with_leaves(
            value.stored, lambda part: (part.text,) if isinstance(part, Sealed) else part
        )
        return [opened, list(value.keys)]

    def restored(self, archived: Any) -> UnknownFact:
        """Return the fact that `archived` converted.

        Raises:
            ValueError, TypeError: A log cannot store the value.
        """
        opened, keys = archived
        if not {type(key) for key in keys} <= {str, int, bytes}:
            raise ValueError("its look-up values must be texts, whole numbers or bytes")
        _check_stored([opened, keys], _MAX_DEPTH)
        stored = with_leaves(
            opened, lambda part: Sealed(*part) if isinstance(part, tuple) else part
        )
        return UnknownFact(stored, tuple(keys))


def _check_stored(value: Any, depth: int) -> None:
    """Raise a ValueError for a value that a document cannot store unchanged."""
    if not depth:
        raise ValueError("it is nested too deeply")
    parts = value
    if isinstance(value, Mapping):
        for name in value:
            _check_name(name)
        parts = list(value.values())
    if isinstance(parts, list):
        for part in parts:
            _check_stored(part, depth - 1)
    elif not _is_exact(value):
        raise ValueError(f"a document cannot store its value {value!r:.80}")


def _is_exact(value: Any) -> bool:
    """Return True for a value that a document stores unchanged; its dates have whole milliseconds."""
    match value:
        case None | bool() | float() | str() | bytes() | (str(),):
            return True
        case int():
            return -(2**63) <= value < 2**63
        case datetime():
            return value.microsecond % 1_000 == 0
    return False


def _check_name(name: Any) -> None:
    """Raise a ValueError for a key that a document cannot have."""
    if not isinstance(name, str) or "\0" in name:
        raise ValueError(f"a document cannot have its key {name!r:.80}")
    name.encode()


def _has_payload(stored: Any) -> bool:
    if isinstance(stored, Mapping):
        return "token" in stored or any(map(_has_payload, stored.values()))
    return isinstance(stored, list) and any(map(_has_payload, stored))
