"""Values of libraries that convstore does not depend on, in artifacts: stored, and restored equal, or refused."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import numpy
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import ConversationStore
from convstore.exceptions import UnencodableError
from convstore.mongo.artifact_types import new_codec

CODEC = new_codec()
NEW_YORK = ZoneInfo("America/New_York")


def _back(value: Any) -> Any:
    return CODEC.decode(CODEC.encode(value))


def test_values_of_pymongo_come_back_equal() -> None:
    """Each type that PyMongo decodes documents to comes back as that type."""
    owner = ObjectId()
    values = [
        *(
            owner,
            Decimal128("1.50"),
            Decimal128("NaN"),
            Int64(2**62),
            Timestamp(5, 6),
            MinKey(),
            MaxKey(),
        ),
        *(
            Regex("a\\b", "im"),
            Code("f"),
            Code("f", {"a": owner}),
            DBRef("c", owner, "db", a=owner),
        ),
        *(Binary(b"\xff", 4), Binary(b"x", 0)),
    ]
    for value in values:
        [found] = _back({"in": [value]})["in"]
        assert (type(found), str(found), repr(found)) == (type(value), str(value), repr(value))
    assert _back({owner: {owner}}) == {owner: {owner}}


def test_scalars_of_numpy_come_back_as_the_equal_python_value() -> None:
    """Also as keys and in sets, with the same stored text as that value; others and arrays are refused."""
    plain = {
        numpy.float32(0.9): float(numpy.float32(0.9)),
        numpy.float64(0.1): 0.1,
        numpy.float16(0.5): 0.5,
        numpy.int64(-3): -3,
        numpy.uint64(2**63 - 1): 2**63 - 1,
        numpy.bool_(True): True,
        numpy.str_("a"): "a",
        numpy.bytes_(b"a"): b"a",
        numpy.complex64(1 + 2j): 1 + 2j,
        numpy.datetime64("2026-01-02"): date(2026, 1, 2),
        numpy.timedelta64(5, "s"): timedelta(seconds=5),
    }
    for value, expected in plain.items():
        assert CODEC.encode([value]) == CODEC.encode([expected])
        found = _back({"in": (value,), value: {value, "x"}})
        assert found == {"in": (expected,), expected: {expected, "x"}}
        assert type(found["in"][0]) is type(expected)
    assert CODEC.encode({numpy.int64(3), 1, numpy.int64(2)}) == CODEC.encode({1, 2, 3})
    strangers = [
        numpy.longdouble(1),
        numpy.timedelta64(5, "ns"),
        numpy.datetime64("NaT"),
        numpy.zeros(2),
    ]
    for stranger in strangers:
        with pytest.raises(UnencodableError, match=type(stranger).__name__):
            CODEC.encode([stranger])


class _Zone(tzinfo):
    """A zone of a class of its own, with the hours of New York; `shift` makes it another one."""

    def __init__(self, shift: int = 0, **names: str) -> None:
        self._shift = timedelta(hours=shift)
        vars(self).update(names)

    def utcoffset(self, when: datetime | None) -> timedelta | None:
        offset = NEW_YORK.utcoffset(when)
        return None if offset is None else offset + self._shift

    def dst(self, when: datetime | None) -> timedelta | None:
        return NEW_YORK.dst(when)

    def tzname(self, when: datetime | None) -> str | None:
        return NEW_YORK.tzname(when)


class _Summer(_Zone):
    """The example of Python's documentation: without a date it says the offset of the winter."""

    def utcoffset(self, when: datetime | None) -> timedelta | None:
        return timedelta(hours=-5) if when is None else NEW_YORK.utcoffset(when)


class _Pass(tzinfo):
    """As of pytz: a fixed offset with the name of its zone."""

    def __init__(self, hours: int) -> None:
        self.zone = "America/New_York"
        self._offset = timedelta(hours=hours)

    def utcoffset(self, _when: datetime | None) -> timedelta:
        return self._offset

    def dst(self, _when: datetime | None) -> timedelta | None:
        return None

    def tzname(self, _when: datetime | None) -> str | None:
        return None


class _Fixed(_Pass):
    """As of dateutil and PyMongo: a fixed offset without a name."""

    def __init__(self, hours: int) -> None:
        super().__init__(hours)
        self.zone = ""


def test_a_date_keeps_the_name_of_its_time_zone_whatever_the_class() -> None:
    """With the names that dateutil, pytz and pendulum give it; the day after, it is the same hour as the original."""
    names = [
        {"key": "America/New_York"},
        {"zone": "America/New_York"},
        {"_filename": "/usr/share/zoneinfo/America/New_York"},
    ]
    for name in names:
        due = datetime(2026, 3, 7, 9, tzinfo=_Zone(**name))
        found = _back({"due": due})["due"]
        assert found == due
        assert found.tzinfo == NEW_YORK
        assert (found + timedelta(days=1)).astimezone(UTC) == (due + timedelta(days=1)).astimezone(
            UTC
        )
    clock = _back(time(9, tzinfo=_Zone(key="America/New_York")))
    assert clock == time(9, tzinfo=NEW_YORK)


def test_both_passes_of_a_repeated_hour_come_back() -> None:
    """In pytz they differ by the zone object, in `ZoneInfo` by `fold`."""
    offsets = [
        _back(datetime(2026, 11, 1, 1, 30, tzinfo=_Pass(hours))).utcoffset() for hours in (-4, -5)
    ]
    assert offsets == [timedelta(hours=-4), timedelta(hours=-5)]


def test_a_zone_with_a_fixed_offset_becomes_that_offset() -> None:
    """It has no name to keep, and no other hour on any day."""
    for value in (datetime(2026, 7, 1, tzinfo=_Fixed(2)), time(9, tzinfo=_Fixed(2))):
        found = _back(value)
        assert found == value
        assert found.utcoffset() == timedelta(hours=2)


def test_a_zone_without_a_name_is_refused() -> None:
    """So is a name that the time zone database does not have, or has with other hours."""
    refused = [
        *(
            _Zone(),
            _Summer(),
            _Zone(_filename="local.tz"),
            _Zone(key="Nowhere/Town"),
            _Zone(key="../etc/passwd"),
        ),
        *(_Zone(1, key="America/New_York"), _Pass(-3)),
    ]
    for zone in refused:
        with pytest.raises(UnencodableError):
            CODEC.encode({"due": datetime(2026, 3, 7, 9, tzinfo=zone)})


async def test_values_of_libraries_reach_sources_pages_and_the_model(
    store: ConversationStore,
) -> None:
    """Pairs with a score of numpy are sources; their metadata may have an ObjectId, which the model reads as text."""
    owner = ObjectId()
    pairs = [
        (Document(f"Passage {number}. " * 9, metadata={"_id": owner}), numpy.float32(0.5))
        for number in (1, 2)
    ]
    call = {"name": "search", "args": {}, "id": "c1"}
    result = ToolMessage("2 hits", id="r1", artifact=pairs, tool_call_id="c1", name="search")
    chat = store.conversation(user_id="ada", thread_id="numpy")
    receipt = await chat.append([HumanMessage("q"), AIMessage("", tool_calls=[call]), result])
    assert receipt.source_ids == (1, 2)
    assert (await chat.append([result])).written == 0
    [record] = await chat.get_tool_messages(["r1"])
    assert record.artifact == pairs
    assert record.sources[0].metadata == {"score": 0.5, "_id": owner}
    page = await chat.retrieve_previous_sources_tool().ainvoke({"source_ids": [1]})
    assert re.search(r"Passage 1\.", page)
    again = result.model_copy(update={"id": "r2"})
    receipt = await chat.append([again], on_unencodable="omit")
    assert receipt.source_ids == (3, 4)
