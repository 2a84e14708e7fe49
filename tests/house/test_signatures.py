"""Names, parameters and defaults of the public interface change only on purpose."""

from __future__ import annotations

from signatures import MODULES, read, signatures


def test_the_public_signatures_are_those_that_are_written_down() -> None:
    """A change that is meant is written with `python tests/support/signatures.py`, and stands in the changelog."""
    written, found = read(), signatures()
    assert set(written) == set(MODULES)
    assert {name: lines for name, lines in found.items() if lines != written[name]} == {}
