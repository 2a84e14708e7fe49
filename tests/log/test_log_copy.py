"""What the copy of a log that lost entries knows of the log."""

from __future__ import annotations

from datetime import UTC, datetime

from convstore.log.copied import LogCopy
from convstore.log.entry import Entry, Totals
from convstore.messages.values import Codec


def test_a_copy_knows_the_highest_source_id_of_its_log() -> None:
    """An entry that does not follow the one before it may say of lower numbers; those above them were given away."""
    copy = LogCopy(Codec())
    for number, through in enumerate((10, 5), 1):
        totals = Totals(entries=number, sources_through=through)
        copy.match(Entry(1, datetime.now(UTC), (), totals))
    assert copy.log_sources == 10
