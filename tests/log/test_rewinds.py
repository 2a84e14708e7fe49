"""Rewound ranges: what lies in them, what reading passes over, and which list a difference continues."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from convstore.log.entry import Entry, EntryMessage, Totals
from convstore.log.facts.rewound import REWOUND, Rewound, RewoundRange
from convstore.log.rewind import NO_REWINDS, Rewinds


@pytest.mark.parametrize(("ordinal", "expected"), [(2, True), (3, False), (4, False), (5, True)])
def test_what_is_in_a_gap_is_not_live(ordinal: int, expected: bool) -> None:
    """Both ends of a rewound range belong to the range."""
    assert Rewinds(ranges=(RewoundRange(3, 4, 2, 3),)).has(ordinal) == expected


def test_reading_passes_over_entries_without_live_messages() -> None:
    """Back from any of them."""
    rewinds = Rewinds(ranges=(RewoundRange(3, 4, 2, 3), RewoundRange(6, 9, 5, 8)))
    assert [rewinds.end_before(number) for number in range(1, 11)] == [
        1,
        2,
        2,
        2,
        5,
        5,
        5,
        5,
        5,
        10,
    ]


def test_an_entry_of_which_a_part_was_rewound_counts_the_rest() -> None:
    """If a part of an entry was rewound, the entry has the messages and totals of the rest."""
    kinds = enumerate(("human", "ai", "human", "tool"), 1)
    messages = tuple(
        EntryMessage(ordinal, str(ordinal), kind, "", b"", 5, 3, turn=(ordinal + 1) // 2 * 2 - 1)
        for ordinal, kind in kinds
    )
    totals = Totals(entries=1, messages=4, active=4, turns=2, tokens=20, view_tokens=12)
    entry = Entry(1, datetime.now(UTC), messages, totals)
    [rest] = Rewinds(ranges=(RewoundRange(3, 4, 2, 1),)).of([entry])
    assert rest.messages == messages[:2]
    assert rest.totals == replace(totals, active=2, turns=1, tokens=10, view_tokens=6)


def test_a_difference_needs_the_whole_list_that_it_continues() -> None:
    """Counts that happen to agree with another list are no proof."""
    totals = Totals(entries=9, messages=10, active=8, rewind_entry=9, whole_list=5)
    entry = Entry(9, datetime.now(UTC), (), totals)
    entry = REWOUND.on(entry, Rewound((RewoundRange(3, 4, 2, 3),)))
    with pytest.raises(
        ValueError, match="the whole list of rewound ranges that it continues is missing"
    ):
        NO_REWINDS.after(entry)
    assert NO_REWINDS.after(replace(entry, totals=replace(totals, whole_list=9))).gaps(9) == (
        (3, 4),
    )


@pytest.mark.parametrize("active", [7, 9])
def test_ranges_agree_with_the_number_of_active_messages(active: int) -> None:
    """A rewind entry whose ranges hide more or fewer messages than its totals say is damaged."""
    totals = Totals(entries=9, messages=10, active=8, rewind_entry=9)
    entry = REWOUND.on(
        Entry(11, datetime.now(UTC), (), totals), Rewound((RewoundRange(3, 4, 2, 3),))
    )
    assert not NO_REWINDS.after(entry).has(3)
    with pytest.raises(ValueError, match="do not agree with its count of active messages"):
        NO_REWINDS.after(replace(entry, totals=replace(totals, active=active)))
