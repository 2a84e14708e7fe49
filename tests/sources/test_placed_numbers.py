"""Numbers in what a tool wrote: its characters stay, its artifact stays hidden, each number is beside its passage.

`tests/ext/test_number_doors.py` has the same at each door, and what each number reads.
"""

from __future__ import annotations

import random

from made_results import FIRST, FORMS, check_beside, check_content, make

from convstore.sources.numbering import sources_in, sources_of, with_numbers


def test_numbers_are_added_and_nothing_else_changes() -> None:
    """200 results of all shapes."""
    rng = random.Random(7)
    last = FIRST
    for index in range(200):
        result = make(rng, index, FORMS[index % len(FORMS)])
        found = sources_in(result.message, {})
        numbers = range(last + 1, last + 1 + len(found.items))
        last = numbers[-1]
        given = (numbers, [None] * len(numbers))
        shown = with_numbers(result.message, found, given).content
        sources = sources_of(found.items, given)
        check_content(result, shown, sources)
        if result.shows:
            for source in sources:
                check_beside(str(shown), source)
