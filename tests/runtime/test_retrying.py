"""A write that others outrun is tried again, but not for ever."""

from __future__ import annotations

import pytest

from convstore.exceptions import StoreError
from convstore.runtime import retrying
from convstore.runtime.retrying import WriteConflict, until_written


async def outrun_for(times: int) -> int:
    """Write until it succeeds after so many lost attempts; return how many it took."""
    made = 0

    async def write() -> int:
        nonlocal made
        made += 1
        if made <= times:
            raise WriteConflict
        return made

    return await until_written(write, WriteConflict)


async def test_a_write_is_tried_a_thousand_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to do; another error than the expected ones is raised at once."""
    monkeypatch.setattr(retrying, "_LONGEST_BACKOFF", 0.0)
    assert await outrun_for(999) == 1_000
    with pytest.raises(StoreError, match=r"faster 1,000 times; call again, with fewer writers"):
        await outrun_for(1_001)

    async def failing() -> int:
        raise ValueError("of the caller")

    with pytest.raises(ValueError, match="of the caller"):
        await until_written(failing, WriteConflict)
