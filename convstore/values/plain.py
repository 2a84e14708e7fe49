"""Small functions on plain values, such as counts in words, lengths of time and parts by name."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from itertools import takewhile
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Class = TypeVar("_Class")

_ROLES = {"human": "user", "ai": "model", "tool": "result"}
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def counted(number: int, singular: str = "", many: str = "") -> str:
    """Format a count with its noun, if it is given.

    >>> counted(1, "message"), counted(2_000, "summary", "summaries"), counted(2_000)
    ('1 message', '2,000 summaries', '2,000')
    """
    if not singular:
        return f"{number:,}"
    return f"{number:,} {singular if number == 1 else many or singular + 's'}"


def slices(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """Yield items in slices of `size`; the last one may have fewer.

    >>> list(slices([1, 2, 3], 2))
    [[1, 2], [3]]
    """
    for start in range(0, len(items), size):
        yield items[start : start + size]


def equal_at_start(items: Iterable[object], others: Iterable[object]) -> int:
    """Return the length of the common beginning of two sequences.

    >>> equal_at_start("seals", "seats"), equal_at_start([1, 2], [1, 2, 3])
    (3, 2)
    """
    pairs = zip(items, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def money(value: float) -> str:
    """Format a cost with two decimals, or with more until it shows two significant digits.

    >>> money(1_234.5), money(0.17), money(0.003875), money(0)
    ('1,234.50', '0.17', '0.0039', '0.00')
    """
    decimals = max(2, 1 - math.floor(math.log10(value))) if 0 < value < 1 else 2
    return f"{value:,.{decimals}f}"


def percent(share: float, *, decimals: int = 0) -> str:
    """Format a share as percent, rounded down, so that only the whole is 100.

    >>> percent(0.908), percent(0.29), percent(0.9999, decimals=1), percent(1)
    ('90', '29', '99.9', '100')
    """
    unit = 10**decimals
    # a share such as 0.29 is a little less as a float
    return f"{math.floor(round(share * 100 * unit, 6)) / unit:.{decimals}f}"


def duration(time: timedelta | float) -> str:
    """Format a time span in its largest whole unit, as the command line accepts it; a number is in seconds.

    >>> duration(timedelta(days=90)), duration(60), duration(90), duration(0.25)
    ('90d', '1m', '90s', '0.25s')
    """
    seconds = time.total_seconds() if isinstance(time, timedelta) else time
    for size, unit in _UNITS:
        if seconds and seconds % size == 0:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.15g}s"


def age(at: datetime, now: datetime) -> str:
    """Format the time from `at` to `now` in its largest unit, rounded down.

    >>> age(datetime(2026, 11, 22, 8), datetime(2026, 11, 22, 10))
    '2 h'
    """
    seconds = max(0, int((now - at).total_seconds()))
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size or (seconds >= size and unit != "days"):
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def shown_value(value: object) -> str:
    """Return a value as text for an error; of a long or deep one, the beginning and the end. It never raises.

    >>> shown_value({"$ne": ""}), shown_value("x" * 99), shown_value(10**5_000)
    ("{'$ne': ''}", "'xxxxxxxxxxxx...xxxxxxxxxxxxx'", 'a value of type int')
    """
    with suppress(ValueError):  # more digits than Python writes
        return reprlib.repr(value)
    return f"a value of type {type(value).__name__}"


def role_label(message_type: str) -> str:
    """Return the name that people use for a message type.

    >>> role_label("human"), role_label("system")
    ('user', 'system')
    """
    return _ROLES.get(message_type, message_type)


def with_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply a function to each part of a value that is neither a dict nor a list, at any depth.

    >>> with_leaves({"a": [1, {"b": 2}]}, str)
    {'a': ['1', {'b': '2'}]}
    """
    if isinstance(value, Mapping):
        return {name: with_leaves(part, change) for name, part in value.items()}
    return (
        [with_leaves(part, change) for part in value] if isinstance(value, list) else change(value)
    )


def part_of(value: Any, name: str) -> Any:
    """Return a value of a dict, or an attribute of any other object; None if it is missing.

    >>> part_of({"id": 1}, "id"), part_of(object(), "id")
    (1, None)
    """
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def suggests_options(class_: type[_Class]) -> type[_Class]:
    """Decorate a class so that the TypeError for an unknown keyword argument suggests the most similar one.

    Python itself does so from 3.13 on.
    """
    init: Any = class_.__init__
    known = [name for name in signature(init).parameters if name != "self"]

    @wraps(init)
    def checked(self: _Class, *arguments: Any, **options: Any) -> None:
        for name in options:
            if name not in known:
                raise TypeError(_unknown(class_.__name__, name, known))
        init(self, *arguments, **options)

    decorated: Any = class_
    decorated.__init__ = checked
    return class_


def _unknown(owner: str, name: str, known: list[str]) -> str:
    text = f"{owner} has no option {name!r}"
    alike = get_close_matches(name, known, n=1)
    return f"{text}. Did you mean {alike[0]}?" if alike else text
