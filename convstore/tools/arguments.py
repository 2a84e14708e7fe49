"""Reads the arguments that a model passes to ``retrieve_previous_sources``, in any form that is clear.

Null and empty values mean nothing; one value means a list of one, and the text of a list means the list. A number is a
source. Other names of an argument are understood, and those that are not are named in the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.tools import ToolException

from convstore.messages.tokens import weight
from convstore.readback.cursor import MAX_CHARACTERS, quoted
from convstore.readback.names import meaning_of
from convstore.readback.passages import in_line
from convstore.readback.request import Request
from convstore.sources.source import MAX_SOURCES
from convstore.values.scope import MAX_ID_BYTES, MAX_IDS

ARGUMENTS = {
    "tool_message_ids": "tool_message_id message_ids message_id ids id tool_call_ids tool_call_id results result",
    "source_ids": "source_id sources source numbers number",
    "find": "query q search text words keywords",
    "cursor": "page next_cursor next",
}
"""The arguments, and other names under which models pass them."""
_KNOWN = {name for one, others in ARGUMENTS.items() for name in (one, *others.split())}
_FIND_CHARACTERS = 400
_NUMBERS_CHARACTERS = 4_000
"""Maximum characters read of a text that names sources; a thousand numbers take no more."""
_MAX_ITEMS = 20_000
_ERROR_CHARACTERS = 400
_LARGEST = 10**15
_FIRST_PAGE = frozenset({"", "0", "1", "none", "null", "first", "start", "undefined"})
_NO_PAGES = "There are no page numbers: to read on, pass the cursor of the last line of a page, alone."


def read_arguments(given: Mapping[str, Any], page_tokens: int) -> Request:
    """Return the request in a model's arguments, limited to what one call reads, with remarks about the rest.

    Raises:
        ToolException: An argument has a value of a wrong kind; the message says what is expected.
    """
    values = {name: _values(given, (name, *others.split())) for name, others in ARGUMENTS.items()}
    ids = [_listed(one) if isinstance(one, str) else one for one in values["tool_message_ids"]]
    texts, numbers, problems = dict[str, None](), dict[int, None](), list[str]()
    for name, given_values, expected in (
        ("tool_message_ids", ids, 'a list of ids as shortened results show them, such as ["call_7"]'),
        ("source_ids", values["source_ids"], 'numbers of sources, such as [3, 11], or a text such as "3, 11-20"'),
    ):
        for one in _items(given_values):
            if (number := _whole_number(one)) is None and not isinstance(one, str):
                problems.append(f"{name}: expected {expected}, not {_kind(one)}.")
            if problems or len(numbers) > MAX_SOURCES:
                break
            for part in [number] if number is not None else _numbers(one) if name == "source_ids" else [one]:
                if isinstance(part, str):
                    texts |= {part[: MAX_ID_BYTES + 1]: None} if part else {}  # a longer one is no id
                else:
                    numbers[part] = None
    found = " ".join(_texts("find", values["find"], "a text to look for", problems))
    cursor = "".join(_texts("cursor", values["cursor"], "the text from the last line of the page before", problems)[:1])
    if problems:
        raise ToolException(" ".join(problems)[:_ERROR_CHARACTERS])
    request = Request(list(texts), list(numbers), found, _cursor(cursor), page_tokens)
    return _limited(request, [in_line(name, 40) for name in given if name not in _KNOWN])


def _limited(request: Request, unknown: Sequence[str]) -> Request:
    """Return what one call reads of a request, with remarks; a cursor holds a request of its own."""
    find, cursor = request.find[:_FIND_CHARACTERS], request.cursor
    while weight(quoted(find)) > request.characters // 8:
        find = find[: len(find) * 7 // 8]
    texts, numbers = request.tool_message_ids, request.source_ids
    named = f"{'s' * (len(unknown) > 1)}: {', '.join(unknown[:5])}. There are {', '.join(ARGUMENTS)}."
    remarks = {
        f"Unknown argument{named}": unknown,
        _NO_PAGES: cursor not in _FIRST_PAGE and cursor.isdigit(),
        f"Only the first {MAX_IDS} tool_message_ids are read.": len(texts) > MAX_IDS,
        f"Only the first {MAX_SOURCES} source_ids are read.": len(numbers) > MAX_SOURCES,
        f"Only the first {len(find)} characters of find are looked for.": len(request.find) > len(find),
    }
    said = [remark for remark, applies in remarks.items() if applies]
    if cursor not in _FIRST_PAGE and not cursor.isdigit():
        return Request.continued(cursor, page_tokens=request.page_tokens, remarks=said[: bool(unknown)])
    return Request(texts[:MAX_IDS], numbers[:MAX_SOURCES], find, page_tokens=request.page_tokens, remarks=said)


def _values(given: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """Return what a model passed under some names, without nulls."""
    return [given[name] for name in names if given.get(name) is not None]


def _items(values: Sequence[Any]) -> Iterator[Any]:
    """Yield the items of all lists without nulls; any other value counts as a list of one."""
    for value in values:
        for one in value[:_MAX_ITEMS] if isinstance(value, list | tuple) else [value]:
            if one is not None:
                yield one


def _numbers(text: str) -> Iterator[str | int]:
    """Yield the numbers in a text, and any other part of it as an id."""
    is_cut = len(text) > _NUMBERS_CHARACTERS
    parts = text[:_NUMBERS_CHARACTERS].strip("[]() ").replace(";", ",").split(",")
    for part in parts[:-1] if is_cut and len(parts) > 1 else parts:
        meaning = meaning_of(part)
        if meaning.numbers:
            yield from meaning.numbers
        else:
            yield part.strip()


def _listed(text: str) -> Sequence[Any]:
    """Return the list that a text is in JSON, or that its commas separate."""
    if text.lstrip()[:1] == "[" and len(text) <= MAX_IDS * MAX_ID_BYTES * 2:
        try:
            return list(json.loads(text))
        except (ValueError, RecursionError):
            pass
    return [one.strip() for one in text.split(",", MAX_IDS + 1)]


def _texts(name: str, values: Sequence[Any], expected: str, problems: list[str]) -> list[str]:
    """Return the texts of an argument; a number becomes its digits. Another value is added to the problems."""
    found = list[str]()
    for one in _items(values):
        if isinstance(one, str):
            found += [one.strip()] if one.strip() else []
        elif type(one) is float or (type(one) is int and abs(one) < _LARGEST):
            found.append(str(one))
        else:
            problems.append(f"{name}: expected {expected}, not {_kind(one)}.")
            break
    return found


def _cursor(said: str) -> str:
    """Return a cursor, also from the whole last line of a page."""
    _, is_line, rest = said[: 2 * MAX_CHARACTERS].partition('cursor="')
    return rest.partition('"')[0] if is_line else said.strip("\"' ") if len(said) <= MAX_CHARACTERS else said[:100]


def _whole_number(value: Any) -> int | None:
    """Return the source number that a value is; None if it is none."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < _LARGEST else None


def _kind(value: Any) -> str:
    """Describe a value that a model passed, in a few words."""
    if type(value) in (bool, float) or (type(value) is int and abs(value) < _LARGEST):
        return json.dumps(value)
    kinds = {dict: "an object", list: "a list", int: "a number of that size"}
    return kinds.get(type(value), "that")
