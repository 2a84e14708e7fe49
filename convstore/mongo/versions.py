"""Decide which stored documents this version of convstore can read.

A document has the version of its format as ``v``; the default is 1. The version of a kind rises with a change that
earlier versions would misread, but not with a new field that has a default. A newer entry or head makes calls for its
conversation fail, a newer annotation calls for annotations. Newer drafts and derived data are ignored, and never
overwritten or repaired: states, summaries, and segments of the search index, whose version is the name of their
analyzer. Deletions remove documents of any version.

A kind of fact that earlier versions would misread has a version, too. Only entries with such a fact get this version.

`log.entry.RULES` is the version of the rules for an entry's derived fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from convstore.exceptions import SchemaVersionError
from convstore.log.facts.table import newest_version

Kind = Literal["entry", "head", "state", "summary", "annotation", "draft"]

FORMATS: dict[Kind, int] = dict.fromkeys(get_args(Kind), 1)
"""The newest version of each kind of document, which this version writes."""

LEVEL = 1
"""The level of this version. It rises with a change that earlier processes must not see: a migration defines the lowest
level that may read and write, and processes of lower levels notice that within 10 seconds."""


def is_newer(document: Mapping[str, Any], kind: Kind) -> bool:
    """Return True if a newer convstore wrote a document, or the copy of the summary in a state."""
    if kind == "state":
        copy = document.get("summary")
        if isinstance(copy, Mapping) and is_newer(copy, "summary"):
            return True
    version = document.get("v", 1)
    if not isinstance(version, int) or version <= FORMATS[kind]:
        return False
    return kind != "entry" or version > newest_version()


def check_version(document: Mapping[str, Any], kind: Kind) -> None:
    """Raise a SchemaVersionError if a newer convstore wrote a document."""
    if is_newer(document, kind):
        raise SchemaVersionError(
            f"the {kind} {document.get('_id')!r} was written by a newer convstore; "
            "upgrade the package to use its conversation"
        )


def stamped(document: dict[str, Any], kind: Kind, *, version: int = 1) -> dict[str, Any]:
    """Return a document with the version of its kind, or a higher one that its contents need."""
    needed = max(FORMATS[kind], version)
    return document if needed == 1 else document | {"v": needed}


def readable(kind: Kind) -> dict[str, Any]:
    """Return the filter for documents of which `is_newer` is False."""
    newer = [{"v": {"$gt": FORMATS[kind]}}]
    return {
        "$nor": [*newer, {"summary.v": {"$gt": FORMATS["summary"]}}] if kind == "state" else newer
    }
