"""Mark the costly tests of the contract, whose own modules know no marks of this project, and choose their servers."""

from __future__ import annotations

from zlib import crc32

import pytest

COSTLY = {
    "test_a_damaged_entry_is_named_once",
    "test_a_damaged_state_is_found_and_restored",
    "test_a_source_in_json_is_read_as_it_was_found",
    "test_a_text_is_found_without_ids",
    "test_a_view_with_a_paste_begins_with_the_view_before",
    "test_chunks_are_not_removed_while_an_entry_is_damaged",
    "test_damaged_segments_cost_only_time",
    "test_summaries_are_not_removed_while_their_state_is_damaged",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them before the further cases are left out."""
    for item in items:
        if isinstance(item, pytest.Function) and item.originalname in COSTLY:
            item.add_marker("costly")


BOUNDS = ("bounds as sent", "swapped bounds")
"""How the server takes the bounds of descending scans: see `server_kinds.swapped_bounds`."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let a test run with one of both `BOUNDS`, which its name decides; with `-m slow` it runs with the other one."""
    if "bounds" not in metafunc.fixturenames:
        return
    chosen = crc32(metafunc.function.__name__.encode()) % 2
    ways = [BOUNDS[chosen]]
    if metafunc.config.option.markexpr != "not slow":  # making cases only to leave them out takes time
        ways.append(pytest.param(BOUNDS[1 - chosen], marks=pytest.mark.slow))
    metafunc.parametrize("bounds", ways, indirect=True)
