"""What a store promises of a conversation, checked from outside: each check gives sentences, none if all is well.

Talks to ``replay``. Pure; compares what went in with what came out, and shares with the store only how a value is
written as text and which items of an artifact are sources.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from os.path import commonprefix
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.cli.readback import ReadBack
from convstore.codec import PART_MINIMUM, Codec
from convstore.models import History, ToolRecord
from convstore.sources import find_sources
from convstore.stubs import text_of

__all__ = [
    "check_dict",
    "check_log",
    "check_read_back",
    "check_records",
    "fingerprint",
    "first_difference",
    "is_explained",
    "unreachable",
]

_OWN_FIELDS = frozenset({"name", "tool_call_id", "status", "artifact"})
_NULL_MEANS_ABSENT = frozenset({"audio", "function_call"})


def fingerprint(message: BaseMessage, *, sort_keys: bool = False) -> str:
    """Class and every field of a message as text; NaN is like NaN, 1 is not like 1.0 or true."""
    return type(message).__name__ + json.dumps(message.model_dump(), default=repr, sort_keys=sort_keys)


def check_dict(raw: Mapping[str, Any], message: BaseMessage) -> list[str]:
    """Whether a message says all that the file's dict says."""
    wrong = [key for key, value in raw.items() if not _is_kept(key, value, message)]
    return [f"message {message.id}: {key!r} is not what the file says" for key in wrong]


def check_log(appended: Sequence[BaseMessage], read: Sequence[BaseMessage]) -> list[str]:
    """Whether the log gives back what was appended: every message, equal, in order, and nothing else."""
    wanted, found = ({str(message.id): message for message in messages} for messages in (appended, read))
    problems = [f"message {id_} ({wanted[id_].type}) is lost" for id_ in wanted if id_ not in found]
    problems += [f"message {id_} ({found[id_].type}) was never appended" for id_ in found if id_ not in wanted]
    problems += [change for id_ in wanted if id_ in found for change in _changes(wanted[id_], found[id_])]
    if len(read) != len(found):
        problems.append(f"{len(read) - len(found)} messages came twice")
    if not problems and list(wanted) != list(found):
        problems.append("the messages came in another order")
    return problems


def check_records(appended: Sequence[ToolMessage], records: Sequence[ToolRecord]) -> list[str]:
    """Whether tool messages asked for by id come whole, in the order asked for."""
    problems = []
    for message, record in zip_longest(appended, records):
        if message is None or record is None or message.id != record.tool_message_id:
            return [*problems, f"{len(appended)} tool messages were asked for by id, {len(records)} came, or in disorder"]
        kept = {"content": record.content, "artifact": record.artifact, "status": record.status}
        wrong = [name for name, value in kept.items() if not _same(value, getattr(message, name))]
        problems.extend(f"message {message.id}, asked for by id: {name} changed" for name in wrong)
    return problems


def check_read_back(message: BaseMessage, found: ReadBack, *, most: int) -> tuple[list[str], int]:
    """Whether the pages of a message hold all of it, and are no longer than they may be.

    Gives the problems and the number of characters that no page holds.

    Args:
        message: As it was appended.
        found: What came back.
        most: Characters that a page may have.
    """
    lost = unreachable(message, found)
    problems = [f"message {message.id}, read back: {problem}" for problem in found.problems]
    if lost:
        problems.append(f"message {message.id} ({message.type}): {lost:,} characters are on no page")
    if found.characters > most:
        problems.append(f"message {message.id}: a page has {found.characters:,} characters, more than {most:,}")
    return problems, lost


def unreachable(message: BaseMessage, found: ReadBack) -> int:
    """Characters of content, sources, artifact and large arguments that are on no page."""
    texts = list(found.passages.values())
    lost = _lost_of_content(message.content, texts)
    if isinstance(message, ToolMessage) and message.artifact is not None:
        sources = [source.text for source in find_sources(message, None).items]
        lost += min(_lost_of_sources(sources, list(found.sources.values())), _lost_of_value(message.artifact, texts))
    if isinstance(message, AIMessage):
        large = [args for args in map(_arguments, message.tool_calls) if len(text_of(args)) > PART_MINIMUM]
        lost += sum(_lost_of_value(args, texts) for args in large)
    return lost


def first_difference(before: Sequence[str], now: Sequence[str]) -> int | None:
    """Where a view stops being the beginning of the next one; None if it is it to its end."""
    pairs = zip_longest(before, now[: len(before)])
    return next((place for place, (old, new) in enumerate(pairs) if old != new), None)


def is_explained(before: History, now: History) -> bool:
    """Whether a view may begin otherwise than the one before: budget, late result, or a new placeholder."""
    kinds = ("left_out_turns", "placeholders", "moved", "missing_results")
    return any(getattr(before.report, kind) != getattr(now.report, kind) for kind in kinds)


def _is_kept(key: str, value: Any, message: BaseMessage) -> bool:
    if key == "role":
        return True
    if key == "content":
        return _same("" if value is None else value, message.content)
    if key == "tool_calls" and isinstance(message, AIMessage):
        made = [*message.tool_calls, *message.invalid_tool_calls]
        return sorted(str(call["id"]) for call in made) == sorted(str(call.get("id")) for call in value or ())
    if key == "id" or (key in _OWN_FIELDS and hasattr(message, key)):
        return value is None or _same(value, getattr(message, key))
    return (value is None and key in _NULL_MEANS_ABSENT) or _same(value, message.additional_kwargs.get(key))


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal, NaN to NaN."""
    written = (json.dumps(value, default=repr, sort_keys=True) for value in (one, other))
    return one == other or next(written) == next(written)


def _changes(wanted: BaseMessage, found: BaseMessage) -> list[str]:
    if fingerprint(wanted, sort_keys=True) == fingerprint(found, sort_keys=True):
        return []
    old, new = wanted.model_dump(), found.model_dump()
    fields = [key for key in {**old, **new} if not _same(old.get(key), new.get(key))]
    return [f"message {wanted.id} ({wanted.type}) changed: {', '.join(fields) or 'its class or the type of a value'}"]


def _lost_of_content(content: Any, texts: list[str]) -> int:
    """A list may come whole, or block by block where a block is large."""
    lost = _lost_of_value(content, texts)
    if lost and isinstance(content, list):
        return min(lost, sum(_lost_of_value(block, texts) for block in content))
    return lost


def _lost_of_sources(wanted: list[str], found: list[str]) -> int:
    """Sources come in their order; with none known, nothing of the artifact is read as sources."""
    if not wanted or len(wanted) != len(found):
        return max(1, sum(map(len, wanted)))
    return sum(_lost(text, back) for text, back in zip(wanted, found, strict=True) if text)


def _lost_of_value(value: Any, texts: list[str]) -> int:
    """A text comes as it is, any other value as text that stands for it."""
    if isinstance(value, str):
        return min((_lost(value, text) for text in texts), default=len(value))
    return 0 if any(_stands_for(text, value) for text in texts) else len(text_of(value))


def _lost(wanted: str, found: str) -> int:
    return 0 if wanted == found else max(1, len(wanted) - len(commonprefix([wanted, found])))


def _stands_for(text: str, value: Any) -> bool:
    if text == text_of(value):
        return True
    try:
        return _same(Codec().decode(text), value)
    except ValueError:
        return False  # some other passage of the message


def _arguments(call: Mapping[str, Any]) -> Any:
    return call["args"]
