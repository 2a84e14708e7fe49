"""Messages as JSON files have them: OpenAI's format, and the two that LangChain writes.

Layer 6. ``{"role": …}`` is OpenAI's and goes to `append` as it is. ``{"type": …, "data": {…}}`` is what
``message_to_dict`` writes, ``{"type": …, "content": …}`` what ``model_dump`` does, LangGraph's API too. They only ever
become one of LangChain's message classes; ``langchain_core.load``, which makes objects by their names, is not used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from langchain_core.messages import BaseMessage, messages_from_dict
from pydantic import ValidationError

from convstore.transfer.records import RecordItem

__all__ = ["item_of", "moment_of", "with_artifact"]

_TIMES = ("created_at", "timestamp", "create_time")
_MILLISECONDS = 1e11
"""Seconds up to the year 5138; more of them are milliseconds."""


def item_of(raw: Any, *, where: str = "", key: str = "", at: datetime | None = None) -> RecordItem:
    """A message of a file; one that can not be read says why.

    >>> item_of({"type": "human", "data": {"content": "Hi"}}).message.text
    'Hi'
    >>> item_of(["Hi"]).problem
    'a message is an object, not list'
    """
    if not isinstance(raw, dict):
        return RecordItem(message=None, problem=f"a message is an object, not {type(raw).__name__}", where=where)
    at = at or moment_of(raw)
    if "type" not in raw or ("role" in raw and raw["type"] != "chat"):
        return RecordItem(message=with_artifact(raw), where=where, key=key, at=at)
    try:
        return RecordItem(message=_from_langchain(raw), where=where, key=key, at=at)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        problem = f"LangChain refuses it: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        problem = f"not a message of LangChain: {error if isinstance(error, ValueError) else repr(error)}"
    return RecordItem(message=None, problem=problem, where=where)


def moment_of(raw: Mapping[str, Any]) -> datetime | None:
    """When something was written, by its own words: a number of seconds or a date of ISO 8601; None if it says none.

    >>> moment_of({"timestamp": 1724708469}).isoformat(), moment_of({"created_at": "2024-08-26"}).isoformat()
    ('2024-08-26T21:41:09+00:00', '2024-08-26T00:00:00+00:00')
    """
    for name in _TIMES:
        if (moment := _moment(raw.get(name))) is not None:
            return moment
    return None


def _moment(value: Any) -> datetime | None:
    """A date in the past; what else stands there is nobody's date of a message."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found = datetime.fromtimestamp(value / 1_000 if value > _MILLISECONDS else value, UTC)
        elif isinstance(value, str):
            found = datetime.fromisoformat(value)
        else:
            return None
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    if not datetime(1970, 1, 2, tzinfo=UTC) < found < datetime.now(UTC) + timedelta(days=1):
        return None
    return found.replace(microsecond=found.microsecond // 1_000 * 1_000)  # MongoDB keeps milliseconds


def _from_langchain(raw: dict[str, Any]) -> BaseMessage:
    data = raw.get("data")
    if not isinstance(data, dict):
        data = {name: value for name, value in raw.items() if name != "type"}
    [message] = messages_from_dict([{"type": raw["type"], "data": data}])
    return message


def with_artifact(raw: dict[str, Any]) -> dict[str, Any]:
    """What a tool message retrieved, under the key that `append` takes it from."""
    if raw.get("role") != "tool" or "sources" not in raw or "artifact" in raw:
        return raw
    return {("artifact" if key == "sources" else key): value for key, value in raw.items()}
