"""The comparison with other stores runs on a few turns, and each store gives back what was appended."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pymongo import MongoClient

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import compare
from charts import line_charts

pytestmark = pytest.mark.slow


async def test_every_installed_store_is_measured_at_every_length(
    server_uri: str, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each figure is there, the content of a result comes back, and the chart is a document."""
    monkeypatch.setattr(compare, "_SAMPLES", 2)
    database = f"{database_name}_{uuid.uuid4().hex[:6]}"
    async with compare.opened(server_uri, database) as stores:
        run = compare.Run(server_uri, stores)
        for turns in (2, 4):
            await run.measure(turns)
        for store in stores:
            assert await store.result(run.turns[1]) == run.turns[1][2].content
        run.close()
    names = {store.name for store in stores}
    assert {"convstore", "floor (bare driver)"} <= names
    assert all(
        by_length.keys() == {2, 4}
        for series in run.figures.values()
        for by_length in series.values()
    )
    assert all(series.keys() == names for series in run.figures.values())
    assert len(list(compare.table(run.figures, [2, 4]))) == len(compare.MEASURES) * (len(names) + 1)
    assert ElementTree.fromstring(line_charts("all", run.figures)).tag.endswith("svg")  # noqa: S314 - our own
    with MongoClient(server_uri) as client:
        for name in client.list_database_names():
            if name.startswith(database):
                client.drop_database(name)
