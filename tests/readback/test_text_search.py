"""Where a text is found in another, by full case folding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from convstore.messages.text import fold
from convstore.readback.page import find_matches


@given(
    st.text("aAsSßẞ\u017fﬁfiİI\u0131ŉnΐ\u0390 "), st.text("asSßẞfiﬁIİŉΐ", min_size=1, max_size=4)
)
def test_matches_are_those_of_the_folded_text(text: str, find: str) -> None:
    """Every range that is found says the same, the first is the first there is, and nothing is overlooked."""
    ranges = list(find_matches(text, find))
    assert all(fold(find) in fold(text[start:end]) for start, end in ranges)
    assert bool(ranges) == (fold(find) in fold(text))
    assert len(ranges) == fold(text).count(fold(find))
    if ranges:
        assert fold(find) not in fold(text[: ranges[0][1] - 1])
