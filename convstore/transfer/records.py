"""The records that an import reads, the rule that finds their scope, and the reports of imports and exports.

A source yields a `ConversationRecord` for each conversation, and a `BadRecord` for anything else. A report has counts
and a list of everything that was left out or changed.

The module is long because it documents each value that programs pass to an import, and each value of its report.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple, TypeAlias

from langchain_core.messages import BaseMessage

from convstore.exceptions import InvalidScopeError
from convstore.values.log_records import LogChange, PlacedItem, RecordItem
from convstore.values.scope import PATH, check_scope

DAMAGED = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    OSError,
    RecursionError,
)
"""Errors of reading a document that lacks a field, or has a value of another type."""

_MAX_REASON = 500
_MAX_WHERE = 200
_MAX_PROBLEMS = 1_000
"""Number of problems of each kind that a report keeps; `on_problem` receives all of them."""
_COUNTERS = {"conversation": "left_out", "message": "messages_left_out", "changed": "changed"}


Message: TypeAlias = BaseMessage | Mapping[str, Any] | RecordItem
"""A message of a record. A dict is in OpenAI's or LangChain's format, and its date is one of its fields."""


class _Conflicting:
    """The type of `CONFLICTING`."""

    def __repr__(self) -> str:
        return "CONFLICTING"


CONFLICTING = _Conflicting()
"""The value of a record's field that has several values within the conversation."""


def merged_fields(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of all parts of a conversation, such as its documents.

    A field that some parts lack gets the value of the others. A field with several values is `CONFLICTING`.

    >>> merged_fields({"user": "ada", "step": 1}, {"step": 2})
    {'user': 'ada', 'step': CONFLICTING}
    """
    merged: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            merged[name] = _merged(merged.get(name), value)
    return merged


def _merged(known: Any, value: Any) -> Any:
    """Return the value that two parts agree on."""
    if isinstance(known, Mapping) and isinstance(value, Mapping):
        return merged_fields(known, value)
    if value is None or value == known:
        return known
    return value if known is None else CONFLICTING


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecord:
    """A conversation of another store, or of an export.

    Attributes:
        id: Stable id in its source. Messages without an id get ids that are derived from it.
        messages: The messages, in order. `RecordItem.at` is the date of a LangChain message; a dict has a field for it.
        where: Location in the source, for reports.
        fields: Fields of the source, from which a `ScopeRule` makes the scope. A field that has several values within
            the conversation, as if it belonged to two users, is `CONFLICTING`.
        scope: Its scope, if the source knows it.
        title: The title, see `Conversation.update`.
        metadata: The metadata, see `Conversation.update`.
        state: Values of `Conversation.state`.
        items: Items that are not messages, each with the position, from 1, of the message that it follows.
        rewound: Rewinds: first and last position, from 1, of the messages that each rewound. Each is made after its
            last message, unless `changes` make them.
        changes: The other changes of an exported log besides messages and items, in order.
        sources_through: Highest source id that was in use or reserved.
        other_fields: Names of `fields` that an import reports as left out, unless the id or the scope has their values.
        notes: Descriptions of the parts of the source that an import cannot keep.
    """

    id: str
    messages: Sequence[Message]
    where: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    scope: Mapping[str, str] = field(default_factory=dict)
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    items: Sequence[PlacedItem] = ()
    rewound: Sequence[tuple[int, int]] = ()
    changes: Sequence[LogChange] = ()
    sources_through: int = 0
    other_fields: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def rewinds(self) -> Sequence[tuple[int, int]]:
        """The rewinds of `rewound` that `changes` do not make."""
        moves = (change for change in self.changes if not (change.is_event or change.is_fact))
        return () if any(moves) else self.rewound


@dataclass(frozen=True, slots=True)
class BadRecord:
    """Part of a source that is not a conversation, with the reason."""

    where: str
    problem: str


def where_of(kind: str, name: object) -> str:
    """Return the location of an object in a source; its name may be any value.

    >>> where_of("session", {"user": 1})
    "session {'user': 1}"
    """
    return f"{kind} {name!r}"[:_MAX_WHERE]


async def record_or_bad(
    where: str, reading: Awaitable[ConversationRecord]
) -> ConversationRecord | BadRecord:
    """Return the record of a conversation; if its documents are damaged, a `BadRecord`, so that others can follow."""
    try:
        return await reading
    except DAMAGED as error:
        return BadRecord(where, f"its documents are damaged: {error!r}"[:_MAX_REASON])


@dataclass(frozen=True, slots=True)
class Problem:
    """A conversation or message that was left out or changed.

    Attributes:
        what: "conversation" or "message" if one was left out, "changed" otherwise.
        where: Location in the source.
        conversation: The record's id; "" without a record.
        reason: The reason, and how to solve it.
    """

    what: Literal["conversation", "message", "changed"]
    where: str
    conversation: str
    reason: str


class AssignedScope(NamedTuple):
    """The scope that a conversation of a source gets.

    Attributes:
        conversation: The record's id.
        where: Location in the source.
        scope: Values by scope key.
    """

    conversation: str
    where: str
    scope: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class _Report:
    on_problem: Callable[[Problem], object] = field(default=lambda _: None, repr=False)
    problems: list[Problem] = field(default_factory=list)
    left_out: int = 0
    messages_left_out: int = 0
    changed: int = 0

    def note(self, problem: Problem) -> None:
        """Count a problem, pass it to `on_problem`, and keep it if there is room for its kind."""
        counter = _COUNTERS[problem.what]
        setattr(self, counter, getattr(self, counter) + 1)
        if getattr(self, counter) <= _MAX_PROBLEMS:
            self.problems.append(problem)
        self.on_problem(problem)

    @property
    def is_complete(self) -> bool:
        """Return True if nothing was left out."""
        return not self.left_out and not self.messages_left_out

    @property
    def counts(self) -> dict[str, int]:
        """Return the counts by name, without those of problems."""
        of_all = {attribute.name for attribute in fields(_Report)}
        own = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        return {
            name: value
            for name, value in own.items()
            if name not in of_all and isinstance(value, int)
        }

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        problems = {
            name: getattr(self, name) for name in ("left_out", "messages_left_out", "changed")
        }
        more = sum(problems.values()) - len(self.problems)
        kept = {
            "problems": [asdict(problem) for problem in self.problems],
            "problems_not_listed": more,
        }
        return {"ok": self.is_complete, **self.counts, **problems, **kept}


@dataclass(slots=True, kw_only=True)
class ImportReport(_Report):
    """Counts of an import; with `dry_run`, those of the import that would be made.

    Attributes:
        conversations: Records read, including bad ones.
        imported: Conversations created by this import.
        extended: Conversations whose missing last messages were written.
        unchanged: Conversations that were complete already.
        messages: Messages written.
        known: Messages that were stored already.
        left_out: Conversations that were not imported, or not completed.
        messages_left_out: Messages left out of imported conversations (``skip_messages``).
        changed: Differences from the source, such as a message with a new id.
        problems: The first thousand problems of each kind.
        on_problem: Called with each problem.
        scopes: With `dry_run`, the scope that each conversation of the source would get.
    """

    scopes: list[AssignedScope] = field(default_factory=list)
    conversations: int = 0
    imported: int = 0
    extended: int = 0
    unchanged: int = 0
    messages: int = 0
    known: int = 0

    def add(self, part: ImportReport) -> None:
        """Add the counts of another import, except its problems, which the caller adds by `note`."""
        for name, number in part.counts.items():
            setattr(self, name, getattr(self, name) + number)
        self.scopes += part.scopes

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        document = _Report.as_json(self)
        if self.scopes:
            document["scopes"] = [assigned._asdict() for assigned in self.scopes]
        return document


@dataclass(slots=True, kw_only=True)
class ExportReport(_Report):
    """Counts of an export.

    Attributes:
        conversations: Conversations written, including those of sub-agents.
        sub_agents: Conversations of sub-agents among them.
        messages: Messages written.
        size: Bytes written.
        left_out: Conversations that could not be written.
        messages_left_out: Turns left out of conversations that were written ("fine-tuning").
        changed: Conversations that lost fields which the format cannot hold, such as artifacts.
        problems: The first thousand problems of each kind.
        on_problem: Called with each problem.
    """

    conversations: int = 0
    sub_agents: int = 0
    messages: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeRule:
    r"""Makes the scope of each record. Its arguments are checked once, when it is created.

    A session id such as ``"ada:orcas"`` contains a user and a thread; a regular expression splits it::

        ScopeRule(keys=store.scope_keys, match={"SessionId": r"(?P<user_id>[^:]+):(?P<thread_id>[^:]+)"})

    The expression should not match ambiguous ids, as this one does not match ``"carl:x:7"``: a group ``.+`` would give
    a session of the user ``carl:x`` to the user ``carl``.

    The value of a key is the first that exists of: `constant`, the field that `fields` names, a named group of `match`,
    and the record's own scope, which only exports have. If the record has no own scope, the last key gets the record's
    id. A record's scope with other keys than `keys` is refused, unless the rule names a value for every key.

    Attributes:
        keys: The store's scope keys, in order.
        constant: Values for all records, by key.
        fields: Names of fields by key; ``meta.user`` is a field inside ``meta``.
        match: Regular expressions by name of a field; their named groups are scope keys.
    """

    keys: Sequence[str]
    constant: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    match: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pattern in self.match.values():
            try:
                groups = re.compile(pattern).groupindex
            except re.error as error:
                raise InvalidScopeError(
                    f"{pattern!r} is not a regular expression: {error}"
                ) from error
            if not groups:
                raise InvalidScopeError(
                    f"{pattern!r} names no scope key; write one as (?P<{self.keys[0]}>[^:]+)"
                )
            self._check(groups)
        self._check(self.constant)
        self._check(self.fields)

    def __call__(self, record: ConversationRecord) -> dict[str, str]:
        """Return the scope of a record.

        Raises:
            InvalidScopeError: A key has no value, or an invalid one; names the key.
        """
        own = self._own_scope(record)
        found: dict[str, Any] = own or {self.keys[-1]: record.id}
        for name, pattern in self.match.items():
            found |= _groups(name, pattern, _field(record, name))
        found |= {key: _field(record, name) for key, name in self.fields.items()}
        found |= self.constant
        if missing := [key for key in self.keys if key not in found]:
            raise InvalidScopeError(
                f"no value for {missing[0]}; name a value or a field for it (--scope, --scope-from)"
            )
        return dict(check_scope(self.keys, found))

    def _own_scope(self, record: ConversationRecord) -> dict[str, Any]:
        """Return the values of an exported scope for the store's keys; empty if the source knows no scope.

        An export with other keys is refused, because its values would be lost, unless the rule names every key.
        """
        exported = record.scope or record.fields.get("scope")
        own = dict(exported) if isinstance(exported, Mapping) else {}
        known = [key for key in own if key in self.keys or key == PATH]
        if len(known) < len(own) and not self._named().issuperset(self.keys):
            raise InvalidScopeError(
                f"its scope has the keys {_listed(own)}, and this import writes "
                f"{', '.join(self.keys)}; name other keys (--scope-key), or a value or a field "
                "for each of these (--scope, --scope-from)"
            )
        return {key: own[key] for key in known}

    def _named(self) -> set[str]:
        """Return the keys whose values come from the rule, not from a record's own scope."""
        groups = (re.compile(pattern).groupindex for pattern in self.match.values())
        return {*self.constant, *self.fields, *(key for names in groups for key in names)}

    def _check(self, keys: Mapping[str, Any]) -> None:
        if unknown := [key for key in keys if key not in self.keys]:
            raise InvalidScopeError(
                f"{unknown[0]!r} is not in this store's scope: {', '.join(self.keys)}"
            )


def _listed(scope: Mapping[str, Any]) -> str:
    return ", ".join(str(key)[:80] for key in scope if key != PATH)


def _field(record: ConversationRecord, name: str) -> str:
    value: Any = record.fields.get(name)
    if value is None:
        value = record.fields
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if value is CONFLICTING:
        raise InvalidScopeError(
            f"the field {name!r} has several values in this conversation, so it does not show "
            "whose it is; give this conversation its scope in another way"
        )
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        found = f"is a {type(value).__name__}" if value is not None else "is missing"
        known = f"{', '.join(record.fields):.300}"
        raise InvalidScopeError(
            f"the field {name!r} {found}; a text or a whole number is needed (the fields "
            f"are {known})"
        )
    return value


def _groups(name: str, pattern: str, text: str) -> dict[str, str]:
    found = re.fullmatch(pattern, text)
    if found is None:
        raise InvalidScopeError(f"{name} is {text[:80]!r}, which {pattern!r} does not match")
    return {key: value for key, value in found.groupdict().items() if value is not None}
