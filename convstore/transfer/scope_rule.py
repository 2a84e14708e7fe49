r"""Says whose an imported conversation is: from constants, from fields of its source, from parts of a field.

Layer 6. A session id such as ``"ada:orcas"`` holds a user and a thread; a regular expression takes it apart::

    ScopeRule(match={"SessionId": r"(?P<user_id>[^:]+):(?P<thread_id>.+)"})
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from convstore.exceptions import InvalidScopeError
from convstore.transfer.records import ConversationRecord
from convstore.values.scope import check_scope

__all__ = ["ScopeRule"]

_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeRule:
    """Makes the scope of a record; made once for a store and checked then.

    A key's value is the first of: what `constant` says, the field that `fields` names, a named group of `match`, what
    the record itself knows (an export), and for the last key of the store the record's id.

    Attributes:
        keys: The store's scope keys, in order.
        constant: Values that are the same for all, by key.
        fields: Names of fields by key; ``meta.user`` is a field inside one.
        match: Regular expressions by name of a field; their named groups are scope keys.
    """

    keys: Sequence[str]
    constant: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    fields: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    match: Mapping[str, str] = field(default_factory=lambda: _NOTHING)

    def __post_init__(self) -> None:
        for pattern in self.match.values():
            try:
                groups = re.compile(pattern).groupindex
            except re.error as error:
                raise InvalidScopeError(f"{pattern!r} is no regular expression: {error}") from error
            if not groups:
                raise InvalidScopeError(f"{pattern!r} names no scope key; write one as (?P<{self.keys[0]}>[^:]+)")
            self._check(groups)
        self._check(self.constant)
        self._check(self.fields)

    def __call__(self, record: ConversationRecord) -> dict[str, str]:
        """The scope of a record.

        Raises:
            InvalidScopeError: A key has no value, or one that cannot be; says which.
        """
        found: dict[str, Any] = {self.keys[-1]: record.id, **self._told(record), **record.scope}
        for name, pattern in self.match.items():
            found |= _groups(name, pattern, _field(record, name))
        found |= {key: _field(record, name) for key, name in self.fields.items()}
        found |= self.constant
        if unknown := [key for key in record.scope if key not in self.keys]:
            raise InvalidScopeError(
                f"the export's scope has {unknown[0]!r}; this store's is {', '.join(self.keys)} (--scope-key)"
            )
        if missing := [key for key in self.keys if key not in found]:
            raise InvalidScopeError(
                f"nothing says its {missing[0]}; name a value or a field for it (--scope, --scope-from)"
            )
        return dict(check_scope(self.keys, found))

    def _told(self, record: ConversationRecord) -> dict[str, str]:
        """What an export in OpenAI's format says of the scope."""
        told = record.fields.get("scope")
        return {key: told[key] for key in self.keys if key in told} if isinstance(told, Mapping) else {}

    def _check(self, keys: Mapping[str, Any]) -> None:
        if unknown := [key for key in keys if key not in self.keys]:
            raise InvalidScopeError(f"{unknown[0]!r} is not in this store's scope: {', '.join(self.keys)}")


def _field(record: ConversationRecord, name: str) -> str:
    value: Any = record.fields.get(name)
    if value is None:
        value = record.fields
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        found = f"is a {type(value).__name__}" if value is not None else f"is not among {', '.join(record.fields)}"
        raise InvalidScopeError(f"the field {name!r} {found[:300]}; a text or a whole number is needed")
    return value


def _groups(name: str, pattern: str, text: str) -> dict[str, str]:
    found = re.fullmatch(pattern, text)
    if found is None:
        raise InvalidScopeError(f"{name} is {text[:80]!r}, which {pattern!r} does not match")
    return {key: value for key, value in found.groupdict().items() if value is not None}
