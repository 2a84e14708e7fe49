"""Bytes that LangGraph's checkpointer for MongoDB writes per turn, measured by the benchmark's own code."""

from __future__ import annotations

import importlib.util
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "checkpoint_bytes.py"
TURNS = 8


@pytest.fixture(scope="module")
def script() -> Any:
    """The benchmark as a module."""
    spec = importlib.util.spec_from_file_location("checkpoint_bytes", SCRIPT)
    assert spec
    assert spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def measured(
    request: pytest.FixtureRequest, script: Any, server_uri: str, database_name: str
) -> Any:
    """Bytes by turn, with convstore or without."""
    name = f"{database_name}_bytes_{uuid.uuid4().hex[:8]}"
    yield await script.measure(
        server_uri, turns=TURNS, with_store=request.param, sources=5, words=100, database=name
    )
    with MongoClient[dict[str, Any]](server_uri) as client:
        client.drop_database(name)


@pytest.mark.slow
@pytest.mark.parametrize("measured", [True], indirect=True)
def test_with_convstore_a_turn_is_checkpointed_at_constant_size(measured: bool) -> None:
    """From the second turn on each writes as much as the one before, to a hundredth; so does convstore itself."""
    later = measured.checkpointer[1:]
    assert max(later) < 1.01 * min(later)
    assert min(later) > 0
    assert max(measured.store) < 2 * min(measured.store)
    assert sum(measured.store) < sum(measured.checkpointer) / 4


@pytest.mark.slow
@pytest.mark.parametrize("measured", [False], indirect=True)
def test_without_convstore_each_turn_writes_the_history_again(measured: bool) -> None:
    """Each writes more than the one before, by as much every time: the sum is quadratic."""
    steps = [
        later - earlier
        for earlier, later in zip(measured.checkpointer, measured.checkpointer[1:], strict=False)
    ]
    assert min(steps) > 0.9 * max(steps) > 0.5 * measured.checkpointer[0]
    assert measured.store == [0] * TURNS


async def test_the_server_counts_what_the_commands_say(
    script: Any, server_uri: str, database_name: str
) -> None:
    """The data that the server has in the end is what was sent, apart from the frame of the commands."""
    name = f"{database_name}_bytes_{uuid.uuid4().hex[:8]}"
    measured = await script.measure(
        server_uri, turns=3, with_store=False, sources=5, words=100, database=name
    )
    with MongoClient[dict[str, Any]](server_uri) as client:
        client.drop_database(name)
    on_server = measured.stored["checkpoints"] + measured.stored["checkpoint_writes"]
    assert 0.95 * sum(measured.checkpointer) < on_server < 1.05 * sum(measured.checkpointer)
