"""Mark the costly tests of the contract, whose own modules know no marks of this project."""

from __future__ import annotations

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
