r"""Makes the scope of an imported conversation from constants, fields of its source, or parts of a field.

Floor 7. A session id such as ``"ada:orcas"`` holds a user and a thread; a regular expression takes it apart::

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeRule:
    """Makes the scope of each record. Its arguments are checked once, when it is created.

    A key takes the first value that exists of: `constant`, the field that `fields` names, a named group of `match`,
    the record's own scope (an export), and for the last key of the store the record's id.

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
                raise InvalidScopeError(f"{pattern!r} is not a regular expression: {error}") from error
            if not groups:
                raise InvalidScopeError(f"{pattern!r} names no scope key; write one as (?P<{self.keys[0]}>[^:]+)")
            self._check(groups)
        self._check(self.constant)
        self._check(self.fields)

    def __call__(self, record: ConversationRecord) -> dict[str, str]:
        """Return the scope of a record.

        Raises:
            InvalidScopeError: A key has no value, or an invalid one; names the key.
        """
        found: dict[str, Any] = {self.keys[-1]: record.id, **self._exported_scope(record), **record.scope}
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
                f"no value for {missing[0]}; name a value or a field for it (--scope, --scope-from)"
            )
        return dict(check_scope(self.keys, found))

    def _exported_scope(self, record: ConversationRecord) -> dict[str, str]:
        """Return the scope values that an export in OpenAI's format holds."""
        exported = record.fields.get("scope")
        return {key: exported[key] for key in self.keys if key in exported} if isinstance(exported, Mapping) else {}

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
