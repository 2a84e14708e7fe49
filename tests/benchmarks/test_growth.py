"""The table of costs has a line for each size, on small sizes."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import growth

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("section", growth.SECTIONS)
async def test_each_section_is_measured_at_each_size(
    server_uri: str, database_name: str, monkeypatch: pytest.MonkeyPatch, section: Any
) -> None:
    """Calls send commands, and none of them grows from 2 turns to 4."""
    monkeypatch.setattr(growth, "_SAMPLES", 1)
    counter, prefix = growth.Counter(), f"{database_name}_{uuid.uuid4().hex[:6]}"
    async with AsyncMongoClient(server_uri, event_listeners=[counter]) as client:
        benchmark = growth.Benchmark(client, counter, prefix)
        heading, *lines = [line async for line in growth.table(benchmark, section, [2, 4])]
        await client.drop_database(f"{prefix}_{section}")
    assert heading.startswith(f"\n| {section} | ")
    assert [line.count("|") for line in lines] == [heading.splitlines()[1].count("|")] * 2
