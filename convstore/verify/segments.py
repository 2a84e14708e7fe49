"""Checks the segments of the search index of one conversation.

Floor 4. `heads` calls it. Segments are derived from the log: damaged ones are removed, and the next search or append
has them built again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convstore.mongo.inspection import Inspection
from convstore.mongo.keys import SEARCH, entry_id
from convstore.mongo.segments import segment_from

__all__ = ["SegmentProblem", "check_segments"]

SegmentProblem = tuple[str, str]
"""The key of a segment, and its problem."""


async def check_segments(
    inspection: Inspection, conversation: str, *, repair: bool
) -> tuple[int, list[SegmentProblem]]:
    """Return the number of segments and their problems; remove the damaged ones if `repair` is set.

    Args:
        inspection: Reads and removes documents.
        conversation: Id of the conversation.
        repair: Remove damaged segments.
    """
    checked, problems, after = 0, list[SegmentProblem](), ""
    while documents := await inspection.documents_of(SEARCH, conversation, after=after):
        checked += len(documents)
        for document in documents:
            if problem := await _problem(inspection, conversation, document):
                problems.append((str(document["_id"]), problem))
        after = str(documents[-1]["_id"])
    if repair and problems:
        await inspection.remove(SEARCH, [key for key, _ in problems])
    return checked, problems


async def _problem(inspection: Inspection, conversation: str, document: Mapping[str, Any]) -> str:
    """Return the problem of a segment, "" if it has none."""
    try:
        segment = segment_from(document)
    except ValueError as error:
        return str(error)
    entry = await inspection.entry(entry_id(conversation, segment.until))
    if entry is None:
        return "its last entry is missing"
    totals = entry.get("totals")
    link = totals.get("link") if isinstance(totals, Mapping) else None
    return "" if link == segment.link else "it was made from a log that a backup replaced"
