"""Define a kind of fact: something that an entry says besides its messages, sources and totals.

A kind is one field of the stored ``facts``, and one subclass of `FactKind`. Everything that handles whole entries goes
through the table of kinds and calls these methods: storage, append, fork, `verify`, repair and archives. Most methods
have a default that suits a fact which refers neither to ordinals nor to entries.

A kind is pure. It says what to store as numbers, texts, bytes, dates, lists and dicts, with `Sealed` for a text that
needs a checksum; `mongo.facts` stores them, and restores them by the kind's `shape`.
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
"""Levels of a fact of an unknown kind; a document has 100, and its entry some around it."""

Key = str | int | bytes
"""A look-up value of an entry."""


def digest_key(*parts: str | int) -> bytes:
    """Return a look-up value, which the ids of calls and of items, texts that are keys too, never equal."""
    return digest_of(json.dumps(parts))


class Sealed(NamedTuple):
    """A text that follows from nothing else in the log, so it is stored with a checksum."""

    text: str


class LogCopy(Protocol):
    """A copy of a log that may lack entries; see `log.copied` for the attributes."""

    places: dict[int, int]
    items: dict[str, tuple[int, int]]
    variants: dict[tuple[str, str], Any]
    standings: dict[str, Any]

    def place_before(self, ordinal: int) -> int:
        """Return where the copy has the last message up to an ordinal that it has, 0 for none."""
        ...

    def entry_after(self, ordinal: int) -> int:
        """Return the number of the first entry of the copy that has only messages after an ordinal."""
        ...

    def is_active(self, ordinal: int) -> bool:
        """Return True if a message of the copy is active."""
        ...

    def item_from(self, place: tuple[int, int]) -> tuple[int, int] | None:
        """Return the place in the copy of the first item that the log has at a place or after it."""
        ...


class FactKind(Generic[Value]):
    """A kind of fact; an entry has at most one fact of each.

    Attributes:
        name: Its field in the stored ``facts``.
        shape: The type of its stored form, to which storage restores what it reads: `Sealed`, `str`, `int` (from 0),
            `bytes`, `Totals` or `PayloadRef`; a list with the type of its items; a dict of types by names, any of which
            may be missing. Storage raises ValueError or TypeError for a value of another type.
        version: The lowest version of entries that may have it. A kind that changes which messages are active, whose
            turn they are or how they are numbered takes a new one, so that an earlier convstore refuses the entry. It
            carries along kinds that it does not know.
        is_loaded: True if reads of messages need it; they leave out others.
        is_archived: True if an archive has it as it is. An archive has others in a form of its own.
        is_forked: False if no fork has it that is cut at its entry, or if the fork makes its own.
        is_copied: False if a repaired copy of the log makes its own.
    """

    name: str
    shape: Any = Sealed
    version: int = 1
    is_loaded: bool = False
    is_archived: bool = False
    is_forked: bool = True
    is_copied: bool = True

    def of(self, entry: Entry) -> Value | None:
        """Return the fact of an entry, None without one."""
        return entry.facts.get(self.name)

    def among(self, facts: Facts) -> Value | None:
        """Return the fact of this kind among some, None without one."""
        return facts.get(self.name)

    def put(self, value: Value | None, facts: Facts = NO_FACTS) -> Facts:
        """Return facts with another value for this kind; without it, if the value is None or empty."""
        others = {name: fact for name, fact in facts.items() if name != self.name}
        if value is not None and value != ():
            others[self.name] = value
        return others or NO_FACTS

    def on(self, entry: Entry, value: Value | None) -> Entry:
        """Return an entry with another fact of this kind, or without one."""
        return replace(entry, facts=self.put(value, entry.facts))

    def encode(self, value: Value, entry: Entry) -> Any:
        """Return the stored form of a fact; by default JSON with a checksum."""
        return Sealed(json.dumps(value, ensure_ascii=False))

    def decode(self, stored: Any, number: int) -> Value:
        """Return the fact that `encode` wrote, given the number of its entry; the stored form has the kind's `shape`.

        Raises:
            ValueError, TypeError, KeyError, IndexError: It is damaged.
        """
        return self.restored(json.loads(stored.text))

    def keys(self, value: Value, entry: Entry) -> Iterable[Key]:
        """Return the look-up values by which its entry is found."""
        return ()

    def cut(self, value: Value, before: int, *, has_messages: bool) -> Value | None:
        """Return the part that a fork keeps which is cut before an ordinal in the fact's entry, None for nothing."""
        return value if has_messages else None

    def moved(self, value: Value, entry: Entry, copy: LogCopy) -> Value | None:
        """Return the fact in a copy of the log, None if the copy cannot have it or makes it again."""
        return self.renumbered(value, copy.place_before)

    def renumbered(self, value: Value, place: Callable[[int], int]) -> Value:
        """Return the fact in a log that has fewer messages; `place` is as `LogCopy.place_before`."""
        return value

    def payloads(self, value: Value) -> Iterable[tuple[str, PayloadRef]]:
        """Return the names and locations of its payloads."""
        return ()

    def problems(
        self, value: Value, entry: Entry, payloads: Mapping[str, str], codec: Codec
    ) -> Iterator[str]:
        """Yield the problems of a fact, for `verify`; payloads that cannot be read are reported already."""
        yield from ()

    def archived(self, value: Value) -> Any:
        """Return a fact as an archive has it: a value of the types that messages may hold; None if it cannot."""
        return value

    def restored(self, archived: Any) -> Value:
        """Return the fact of its JSON, or that an archive has; a ValueError, TypeError or KeyError if it is damaged."""
        return archived  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class UnknownFact:
    """A fact of a newer convstore, which this one carries along.

    Attributes:
        stored: Its stored form.
        keys: The look-up values of its entry that no known fact explains.
    """

    stored: Any
    keys: tuple[Key, ...] = ()


class UnknownKind(FactKind[UnknownFact]):
    """All kinds of a newer convstore."""

    is_archived = True

    def encode(self, value: UnknownFact, entry: Entry) -> Any:
        """Return it as it was stored."""
        return value.stored

    def keys(self, value: UnknownFact, entry: Entry) -> Iterable[Key]:
        """Return the look-up values as they were stored."""
        return value.keys

    def archived(self, value: UnknownFact) -> Any:
        """Return its stored form and its look-up values; None if it has payloads, which are not in an archive."""
        if _has_payload(value.stored):
            return None
        # A tuple stands for a sealed text: no stored value has one.
        opened = with_leaves(
            value.stored, lambda part: (part.text,) if isinstance(part, Sealed) else part
        )
        return [opened, list(value.keys)]

    def restored(self, archived: Any) -> UnknownFact:
        """Return what `archived` was given; a ValueError or TypeError if no log can have stored it."""
        opened, keys = archived
        if not {type(key) for key in keys} <= {str, int, bytes}:
            raise ValueError("its look-up values must be texts, whole numbers or bytes")
        _check_stored([opened, keys], _MAX_DEPTH)
        stored = with_leaves(
            opened, lambda part: Sealed(*part) if isinstance(part, tuple) else part
        )
        return UnknownFact(stored, tuple(keys))


def _check_stored(value: Any, depth: int) -> None:
    """Raise a ValueError for a value that a document cannot hold, or not without a change."""
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
        raise ValueError(f"no document can hold its value {value!r:.80}")


def _is_exact(value: Any) -> bool:
    """Return True for a value that a document has as it is: dates have whole milliseconds there."""
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
        raise ValueError(f"no document can have its key {name!r:.80}")
    name.encode()


def _has_payload(stored: Any) -> bool:
    if isinstance(stored, Mapping):
        return "token" in stored or any(map(_has_payload, stored.values()))
    return isinstance(stored, list) and any(map(_has_payload, stored))
