"""Reads messages from JSON objects: OpenAI's format, and the two formats that LangChain writes.

``{"role": …}`` is OpenAI's format, which `append` accepts. ``{"type": …, "data": {…}}`` is written by
``message_to_dict``, ``{"type": …, "content": …}`` by ``model_dump`` and LangGraph's API. Only LangChain's message
classes are built; ``langchain_core.load`` is not used, because it builds any class by name.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic import TypeAdapter, ValidationError

from convstore.messages.langchain_dicts import from_langchain, is_langchain
from convstore.transfer.records import DAMAGED, Message
from convstore.values.json_form import first_problem
from convstore.values.log_records import RecordItem

CREATED = ("created_at", "timestamp", "create_time")
UPDATED = ("updated_at", "update_time")
"""Fields with the date of the last message of a conversation."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = 80
_MONGOEXPORT = re.compile(r"[$](date|numberLong)")

_FIRST = datetime(1970, 1, 2, tzinfo=UTC)
_TIMESTAMP = TypeAdapter(datetime)


def as_item(given: Message) -> RecordItem:
    """Return a message of a record as an item; a dict is read like a message of a file.

    >>> as_item({"role": "user", "content": "Hi", "timestamp": 1724708469}).at.year
    2024
    """
    item = given if isinstance(given, RecordItem) else RecordItem(message=given)
    if not isinstance(item.message, Mapping):
        return item
    read = item_of(dict(item.message), at=item.at)
    problem = item.problem or read.problem
    return replace(
        item, message=read.message, problem=problem, at=read.at, unread_date=read.unread_date
    )


def item_of(raw: Any, *, where: str = "", key: str = "", at: datetime | None = None) -> RecordItem:
    """Read a message of a file; the item of an unreadable message has the problem.

    >>> item_of({"type": "human", "data": {"content": "Hi"}}).message.text
    'Hi'
    >>> item_of(["Hi"]).problem
    'a message must be an object, not list'
    """
    if not isinstance(raw, dict):
        problem = f"a message must be an object, not {type(raw).__name__}"
        return RecordItem(message=None, problem=problem, where=where)
    try:
        message = from_langchain(raw) if is_langchain(raw) else with_artifact(raw)
        at = at or moment_of(raw)
        return RecordItem(
            message=message, where=where, key=key, at=at, unread_date="" if at else unread_date(raw)
        )
    except ValidationError as error:
        problem = f"LangChain refuses it: {first_problem(error)}"
    except DAMAGED as error:
        problem = (
            f"not a message of LangChain: {error if isinstance(error, ValueError) else repr(error)}"
        )
    return RecordItem(message=None, problem=problem, where=where)


def without_id(message: Any) -> Any:
    """Return a message, or a dict of one, without its id; any other value is unchanged."""
    if isinstance(message, BaseMessage):
        return message.model_copy(update={"id": None})
    return {**message, "id": None} if isinstance(message, Mapping) else message


def moment_of(raw: Mapping[str, Any], names: Sequence[str] = CREATED) -> datetime | None:
    """Return the date from the first of `names` with a readable one; None without a readable date.

    A date is a number of seconds or milliseconds, also as text; a date of ISO 8601; a datetime; or the form that
    mongoexport writes. A date without a time zone is UTC.

    >>> moment_of({"timestamp": 1724708469}).isoformat(), moment_of({"created_at": "2024-08-26"}).isoformat()
    ('2024-08-26T21:41:09+00:00', '2024-08-26T00:00:00+00:00')
    """
    return next((moment for name in names if (moment := _moment(raw.get(name))) is not None), None)


def unread_date(raw: Mapping[str, Any], names: Sequence[str] = CREATED) -> str:
    """Return the first of `names` that is not empty, with its value, for a report; "" if all are empty.

    >>> unread_date({"created_at": None, "timestamp": "yesterday"})
    "timestamp 'yesterday'"
    """
    for name in names:
        if (value := raw.get(name)) not in (None, ""):
            return f"{name} {_SHORT.repr(value)}"
    return ""


def _moment(value: Any) -> datetime | None:
    """Return a date in the past in UTC; None for any other value, which cannot be the date of a message."""
    value = _plain(_plain(value))  # a `$date` may contain a `$numberLong`
    for parse in _PARSERS if isinstance(value, str) else (_TIMESTAMP.validate_python,):
        with suppress(ValueError, OverflowError):
            found = parse(value)
            found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
            if not _FIRST < found < datetime.now(UTC) + timedelta(days=1):
                return None
            # MongoDB keeps milliseconds
            return found.replace(microsecond=found.microsecond // 1_000 * 1_000)
    return None


def _from_digits(text: str) -> datetime:
    """Parse seconds or milliseconds; eight digits are a date of ISO 8601."""
    if len(text) <= len("20240826"):
        raise ValueError(text)
    return _TIMESTAMP.validate_python(text)


_PARSERS: Sequence[Callable[[Any], datetime]] = (datetime.fromisoformat, _from_digits)


def _plain(value: Any) -> Any:
    """Unwrap mongoexport's ``{"$date": …}`` or ``{"$numberLong": …}``."""
    if isinstance(value, Mapping) and len(value) == 1:
        [(name, inner)] = value.items()
        return inner if _MONGOEXPORT.fullmatch(str(name)) else value
    return value


def with_artifact(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a tool message with its ``sources`` renamed to ``artifact``, the key that `append` reads."""
    if raw.get("role") != "tool" or "sources" not in raw or "artifact" in raw:
        return raw
    return {("artifact" if key == "sources" else key): value for key, value in raw.items()}
