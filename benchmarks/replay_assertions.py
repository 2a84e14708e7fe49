"""Checks the promises of a store from outside: each check returns its problems as sentences, none on success.

It shares with the store only the text form of values and the rule which items of an artifact are sources.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile, zip_longest
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from replay_pages import ReadBack

from convstore.messages.encoding import PART_MINIMUM
from convstore.messages.media import is_media, media_description
from convstore.messages.values import Codec
from convstore.sources.detection import find_sources, parse_json
from convstore.sources.source import read_ids
from convstore.types import History, ToolRecord

_OWN_FIELDS = frozenset({"name", "tool_call_id", "status", "artifact"})
_NULL_MEANS_ABSENT = frozenset({"audio", "function_call"})

_PLACEHOLDER = re.compile(r"\[texts? of sources? ([\d, -]+)\]")
_LABEL = re.compile(r"\w+: ")
_BEGINNING = 60


def fingerprint(message: BaseMessage, *, sort_keys: bool = False) -> str:
    """Return class and fields of a message as text, in which NaN equals NaN and 1 differs from 1.0 and true."""
    return type(message).__name__ + json.dumps(
        message.model_dump(), default=repr, sort_keys=sort_keys
    )


def check_dict(raw: Mapping[str, Any], message: BaseMessage) -> list[str]:
    """Check that a message holds everything in the file's dict."""
    wrong = [key for key, value in raw.items() if not _is_kept(key, value, message)]
    return [f"message {message.id}: {key!r} is not what the file says" for key in wrong]


def check_log(appended: Sequence[BaseMessage], read: Sequence[BaseMessage]) -> list[str]:
    """Check that the log returns the appended messages: all, equal, in order, and no others."""
    wanted, found = (
        {str(message.id): message for message in messages} for messages in (appended, read)
    )
    problems = [f"message {id_} ({wanted[id_].type}) is lost" for id_ in wanted if id_ not in found]
    problems += [
        f"message {id_} ({found[id_].type}) was never appended"
        for id_ in found
        if id_ not in wanted
    ]
    problems += [
        change for id_ in wanted if id_ in found for change in _changes(wanted[id_], found[id_])
    ]
    if len(read) != len(found):
        problems.append(f"{len(read) - len(found)} messages were returned twice")
    if not problems and list(wanted) != list(found):
        problems.append("the messages are in another order")
    return problems


def check_records(appended: Sequence[ToolMessage], records: Sequence[ToolRecord]) -> list[str]:
    """Check that tool messages are returned by id, complete and in the requested order."""
    problems: list[str] = []
    for message, record in zip_longest(appended, records):
        if message is None or record is None or message.id != record.tool_message_id:
            return [
                *problems,
                f"of {len(appended)} tool messages read by id, {len(records)} were returned, or in another order",
            ]
        kept = {"content": record.content, "artifact": record.artifact, "status": record.status}
        wrong = [name for name, value in kept.items() if not _same(value, getattr(message, name))]
        problems.extend(f"message {message.id}, read by id: {name} changed" for name in wrong)
    return problems


def check_read_back(
    message: BaseMessage, found: ReadBack, *, maximum: int
) -> tuple[list[str], int]:
    """Check that the pages of a message hold all of it within `maximum`; also return the number of lost characters."""
    lost = _unreachable(message, found)
    problems = [f"message {message.id}, read back: {problem}" for problem in found.problems]
    if lost:
        problems.append(
            f"message {message.id} ({message.type}): {lost:,} characters are on no page"
        )
    if found.characters > maximum:
        problems.append(
            f"message {message.id}: a page has {found.characters:,} characters, more than {maximum:,}"
        )
    return problems, lost


def _unreachable(message: BaseMessage, found: ReadBack) -> int:
    """Count the characters of content, sources or artifact, and other large parts that are on no page."""
    pool = _Pool([*found.passages.values(), *found.headings], found.sources)
    parts = [message.content, *_large_parts(message)]
    if isinstance(message, ToolMessage) and message.artifact is not None:
        sources = [source.text for source in find_sources(message, None).items]
        parts.append(sources or message.artifact)
    return sum(map(pool.missing, parts))


def check_left_out(
    appended: Mapping[str, BaseMessage], history: History, *, budget: int
) -> list[str]:
    """Check that a view omits as many turns as it reports, and none that fit the budget."""
    shown = {message.id for message in history.messages}
    # Without tool messages: a result without a call is left out of a view that includes its turn.
    missing = [
        item.type
        for id_, item in appended.items()
        if id_ not in shown and not isinstance(item, ToolMessage)
    ]
    turns = max(missing.count("human"), 1) if missing else 0
    reported = history.report.left_out_turns
    problems = (
        [] if turns == reported else [f"it reports {reported} turns as left out, but {turns} are"]
    )
    if turns and history.report.tokens_before <= budget:
        problems.append(f"{turns} turns are left out, though the whole log fits in the budget")
    return problems


def is_beginning(before: Sequence[str], now: Sequence[str]) -> bool:
    """Return True if one list starts with another."""
    return list(now[: len(before)]) == list(before)


def unexplained_change(before: History, now: History) -> int | None:
    """Return the index where a view differs from the next one without an allowed reason; None if it does not.

    Allowed are a cut by the budget, a view that made room for what the model had not read yet, a late result, and once
    for each message the placeholder that replaces its media, or the shortening of its texts, when its turn is finished.
    """
    old = before.report
    new = now.report
    if new.left_out_turns > old.left_out_turns or new.moved != old.moved:
        return None
    if new.left_out_steps != old.left_out_steps or new.is_excursion or old.is_excursion:
        return None
    if set(old.missing_results) - set(new.missing_results):
        return None
    fresh = {*new.placeholders, *new.shortened} - {*old.placeholders, *old.shortened}
    for index, (message, other) in enumerate(
        zip_longest(before.messages, now.messages[: len(before.messages)])
    ):
        if other is None or (fingerprint(message) != fingerprint(other) and other.id not in fresh):
            return index
    return None


def _is_kept(key: str, value: Any, message: BaseMessage) -> bool:
    if key == "role":
        return True
    if key == "content":
        return _same("" if value is None else value, message.content)
    if key == "tool_calls" and isinstance(message, AIMessage):
        made = [*message.tool_calls, *message.invalid_tool_calls]
        return sorted(str(call["id"]) for call in made) == sorted(
            str(call.get("id")) for call in value or ()
        )
    if key == "id" or (key in _OWN_FIELDS and hasattr(message, key)):
        return value is None or _same(value, getattr(message, key))
    return (value is None and key in _NULL_MEANS_ABSENT) or _same(
        value, message.additional_kwargs.get(key)
    )


def _same(item: Any, other: Any) -> bool:
    """Return True if two values are equal; NaN equals NaN."""
    written = (json.dumps(value, default=repr, sort_keys=True) for value in (item, other))
    return item == other or next(written) == next(written)


def _changes(wanted: BaseMessage, found: BaseMessage) -> list[str]:
    if fingerprint(wanted, sort_keys=True) == fingerprint(found, sort_keys=True):
        return []
    old = wanted.model_dump()
    new = found.model_dump()
    fields = [key for key in {**old, **new} if not _same(old.get(key), new.get(key))]
    return [
        f"message {wanted.id} ({wanted.type}) changed: {', '.join(fields) or 'its class or the type of a value'}"
    ]


def _large_parts(message: BaseMessage) -> list[Any]:
    """Return parts other than content and artifact that are too large for the view of a finished turn."""
    calls = [call["args"] for call in message.tool_calls] if isinstance(message, AIMessage) else []
    parts = [*calls, *message.additional_kwargs.values(), *message.response_metadata.values()]
    return [
        part
        for part in parts
        if len(part if isinstance(part, str) else Codec().encode(part)) >= PART_MINIMUM
    ]


class _Pool:
    """Every text that was read back of one message.

    A page says `[text of source 3]` for a text that content or artifact repeat, so the text of that source replaces it,
    as it is and as JSON writes it, before a line is searched for.
    """

    def __init__(self, passages: Sequence[str], sources: Mapping[int, str]) -> None:
        self._sources = sources
        texts = dict.fromkeys(text for passage in passages for text in _unpacked(passage))
        self._texts = [
            *sources.values(),
            *(text for outer in texts for text in self._expanded(outer)),
        ]

    def missing(self, value: Any) -> int:
        """Count the characters of a value, by lines and other leaves, that are in none of the texts."""
        if isinstance(value, list) and any(map(is_media, value)):
            described = (
                f"[{media_description(part)}]" if is_media(part) else part for part in value
            )
            return sum(map(self.missing, described))
        # Values of other types than JSON's are shown as they are stored.
        plain = value if isinstance(value, str) else parse_json(Codec().encode(value, omitted=[]))
        lost = (leaf for leaf in _leaves(plain) if not self._holds(leaf))
        return sum(
            len(line)
            for leaf in lost
            for line in leaf.splitlines()
            if not self._holds(line.strip()) and not self._holds(_LABEL.sub("", line.strip(), 1))
        )

    def _expanded(self, text: str) -> Iterator[str]:
        yield text
        for form in (str, _quoted, _in_ascii) if _PLACEHOLDER.search(text) else ():
            yield _PLACEHOLDER.sub(partial(self._written, form), text)

    def _written(self, form: Callable[[str], str], found: re.Match[str]) -> str:
        texts = (self._sources.get(number, "") for number in read_ids(found[1]))
        return form("\n".join(texts))

    def _holds(self, line: str) -> bool:
        if any(line in text for text in self._texts):
            return True
        # A truncated line is shown together with the whole line of its source.
        for text in self._texts if len(line) > _BEGINNING else ():
            if (start := text.find(line[:_BEGINNING])) >= 0:
                alike = takewhile(
                    lambda signs: signs[0] == signs[1], zip(line, text[start:], strict=False)
                )
                rest = line[sum(1 for _ in alike) :].strip()
                if any(rest in text for text in self._texts):
                    return True
        return False


def _unpacked(text: str) -> Iterator[str]:
    """Yield a text, and if it is JSON the texts in it."""
    yield text
    if (value := parse_json(text)) is not None:
        yield from (inner for leaf in _leaves(value) for inner in _unpacked(leaf))


def _leaves(value: Any) -> Iterator[str]:
    """Yield every text in a value, and every other leaf as JSON."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list | tuple):
            todo.extend(item)
        elif isinstance(item, dict):
            todo.extend([*item.keys(), *item.values()])
        else:
            yield json.dumps(item, default=repr)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _in_ascii(text: str) -> str:
    return json.dumps(text)[1:-1]
