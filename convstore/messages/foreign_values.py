"""Convert values of libraries that convstore does not depend on: scalars of numpy, and other time zone classes."""

from __future__ import annotations

import sys
from datetime import date, datetime, time, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

_PLAIN_TYPES = frozenset({bool, int, float, complex, str, bytes, date, datetime, timedelta})
_ZONE_FOLDER = "zoneinfo/"


def numpy_scalar(value: Any) -> Any:
    """Return the Python value that is equal to a scalar of numpy; other values unchanged.

    Scalars without an equal Python value are unchanged, too, such as ``longdouble`` and times with nanoseconds.

    >>> numpy_scalar(1.5)
    1.5
    """
    generic = getattr(sys.modules.get("numpy"), "generic", None)
    if generic is None or not isinstance(value, generic):
        return value
    plain = value.item()
    # `item` converts times that Python cannot represent to integers.
    is_rounded = value.dtype.kind in "mM" and type(plain) is int
    return plain if type(plain) in _PLAIN_TYPES and not is_rounded else value


def zone_name(zone: tzinfo) -> str:
    """Return the name of a time zone in the IANA database, "" without a name.

    It reads ``key`` of `ZoneInfo` and its subclasses, ``zone`` of pytz, and the file of dateutil's ``tzfile``.

    >>> zone_name(ZoneInfo("Europe/Oslo"))
    'Europe/Oslo'
    """
    for attribute in ("key", "zone"):
        name = getattr(zone, attribute, None)
        if isinstance(name, str) and name:
            return name
    path = getattr(zone, "_filename", None)
    if not isinstance(path, str):
        return ""
    _, folder, name = path.rpartition(_ZONE_FOLDER)
    return name if folder else ""


def in_named_zone(value: datetime | time, name: str) -> datetime | time:
    """Return the same clock time in the `ZoneInfo` with this name.

    Raises:
        ValueError: That zone has another offset at this time.
    """
    zone = ZoneInfo(name)
    # pytz distinguishes the two passes of a repeated hour by the zone object, not by `fold`.
    for fold in (value.fold, 1 - value.fold):
        named = value.replace(tzinfo=zone, fold=fold)
        if named.utcoffset() == value.utcoffset():
            return named
    raise ValueError(f"its time zone differs from {name!r} of the time zone database")


def has_fixed_offset(zone: tzinfo, year: int) -> bool:
    """Return True if a time zone has the same offset in January and July of a year, and without a date."""
    months = (1, 7)
    offsets = {zone.utcoffset(datetime(year, month, 1, tzinfo=zone)) for month in months}
    offsets.add(zone.utcoffset(None))
    return len(offsets) == 1 and None not in offsets
