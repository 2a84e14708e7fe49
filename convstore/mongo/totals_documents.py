"""Convert the running totals of a log to documents and back."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from sys import intern
from typing import Any, get_args

from convstore.log.entry import NO_USAGE, UNREAD, OpenCall, Over, Preview, StampedCall, Totals
from convstore.mongo.bson_values import (
    from_stored,
    stored_list,
    stored_number,
    stored_numbers,
    to_stored,
    utc,
)
from convstore.values.usage import Usage

_TOTALS = (
    *("turn", "entries", "messages", "active", "turns", "tokens", "view_tokens"),
    *("stored_bytes", "rewind_entry", "sources_through", "given_through", "shown_at", "link"),
)
_TOTALS_NUMBERS = itemgetter(*_TOTALS)
_ENDS: tuple[Over, ...] = get_args(Over)


def totals_document(totals: Totals) -> dict[str, Any]:
    """Return the totals in the form that entries store."""
    optional = {
        "whole_list": totals.whole_list,
        "over": totals.over,
        "failed": totals.failed,
        "call": [*(totals.call or ())],
        "cut": to_stored(totals.cut),
        "imported": int(totals.is_imported),
        "branched": totals.branched,
    }
    document = {name: getattr(totals, name) for name in _TOTALS} | {
        "counter": to_stored(totals.counter),
        "usage": [[to_stored(model), *counts] for model, counts in totals.usage.items()],
        "calls": [[*map(to_stored, call[:4]), call.turn] for call in totals.calls],
        "preview": [to_stored(part) for part in totals.preview] if totals.preview else None,
        "updated_at": totals.updated_at,
    }
    return document | {name: value for name, value in optional.items() if value}


def totals_from(document: Mapping[str, Any]) -> Totals:
    """Return the totals that `totals_document` wrote."""
    get = document.get
    usage = stored_list(document["usage"])
    at = document["updated_at"]
    by_model = {
        from_stored(model): Usage._make(map(stored_number, counts)) for model, *counts in usage
    }
    call = None
    if "call" in document:
        call = StampedCall(*stored_numbers(stored_list(document["call"])))
    rare = get("whole_list", 0), get("failed", 0), get("imported", 0), get("branched", 0)
    whole_list, failed, imported, branched = stored_numbers(rare)
    return Totals(  # by position: names take four times as long
        intern(from_stored(document["counter"])),
        by_model or NO_USAGE,
        tuple(map(_open_call_from, stored_list(document["calls"]))),
        _preview_from(document["preview"]) if "preview" in document else UNREAD,
        None if document["shown_at"] else {},
        None if at is None else utc(at),
        whole_list,
        _over_from(get("over", "")),
        failed,
        call,
        from_stored(get("cut", "")),
        bool(imported),
        branched,
        *stored_numbers(_TOTALS_NUMBERS(document)),
    )


def _open_call_from(value: Any) -> OpenCall:
    *texts, turn = stored_list(value)
    id_, tool, arguments, result = map(from_stored, texts)
    return OpenCall(id_, tool, arguments, result, stored_number(turn))


def _over_from(value: Any) -> Over:
    if value not in _ENDS:
        raise ValueError(f"unknown end of a turn {value!r}")
    return value  # type: ignore[no-any-return]


def _preview_from(value: Any) -> Preview | None:
    return None if value is None else Preview(*map(from_stored, stored_list(value)))
