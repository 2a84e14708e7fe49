"""Write counts for people."""

from __future__ import annotations


def counted(number: int, singular: str, many: str = "") -> str:
    """Format a count with its noun.

    >>> counted(1, "message"), counted(2_000, "summary", "summaries")
    ('1 message', '2,000 summaries')
    """
    return f"{number:,} {singular if number == 1 else many or singular + 's'}"
