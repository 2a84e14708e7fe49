"""The examples run as they are, in memory and on a real server, and show what they are said to show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from programs import ROOT, run_program
from pymongo import MongoClient


@pytest.fixture
def server_address(server_uri: str, database_name: str) -> Iterator[str]:
    """The address of an empty database on a real server, which must hold no message at the end."""
    name = f"{database_name}_{uuid.uuid4().hex[:8]}"
    yield urlsplit(server_uri)._replace(path=f"/{name}").geturl()
    with MongoClient[dict[str, Any]](server_uri) as client:
        assert client[name].list_collection_names()
        assert client[name]["log"].count_documents({}) == 0
        client.drop_database(name)


@pytest.fixture(params=["memory", pytest.param("server", marks=pytest.mark.slow)])
def address(request: pytest.FixtureRequest) -> str:
    """Return the address at which an example runs."""
    return "memory://" if request.param == "memory" else request.getfixturevalue("server_address")


def run_example(name: str, *arguments: str, **variables: str) -> str:
    """Return the output of an example; it must succeed without output on stderr."""
    return run_program(ROOT / "examples" / name, *arguments, **variables)


def test_every_example_is_run_here() -> None:
    """A new example gets a test."""
    names = {path.name for path in (ROOT / "examples").glob("*.py")}
    programs = {
        "agent_loop",
        "agent_service",
        "create_agent",
        "fastapi_chat",
        "langgraph_summaries",
        "openai_loop",
    }
    assert names == {
        f"{name}.py" for name in (*programs, "quickstart", "scripted_sdk", "two_providers")
    }
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/*.py")}
    tested = {
        path.stem.removeprefix("test_example_")
        for path in (ROOT / "tests").rglob("test_example_*.py")
    }
    assert folders == tested - {path.stem for path in (ROOT / "examples").glob("*.py")}


PROGRAMS = [
    path
    for path in sorted((ROOT / "examples").rglob("*.py"))
    if "__main__" in path.read_text(encoding="utf-8")
]


@pytest.mark.slow
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_example_is_a_program_of_its_own(path: Any) -> None:
    """In a process that has imported nothing else, and where convstore is not installed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, str(path), "memory://"]
    ended = subprocess.run(  # noqa: S603
        command, env=environment, capture_output=True, encoding="utf-8", timeout=300, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout


def test_the_quickstart_shows_stub_and_read_back(address: str) -> None:
    """The next turn's view has the stubs and saves most of the tokens; the tool gives a passage back by its number."""
    shown = run_example("quickstart.py", address)
    assert "Stored messages 1-4, sources (1, 5)." in shown
    assert "Stored messages 13-16, sources (16, 20)." in shown
    assert '"tool_message_id": "result-food", "source_ids": "1-5"}' in shown
    sizes = re.search(r"(\d+) tokens instead of (\d+): saved (\d+) %\.", shown)
    assert sizes
    assert int(sizes[1]) < int(sizes[2]) / 8
    assert int(sizes[3]) >= 88
    assert "[1] Orcas: food, part 1 (https://example.org/food/1), characters 0-" in shown
    assert shown.endswith("Equal to what was appended: True\n")


def test_the_agent_reads_old_sources_back_and_cites_them(address: str) -> None:
    """Sources 1-10 and 11-20; a look back by message id and one by number; every citation is what was read."""
    shown = run_example("agent_loop.py", address)
    first, second, third, fourth = shown.partition("\nCited:")[0].split("\nHuman: ")[1:]
    assert "new source ids: (1, 10)" in first
    assert "and by scent [1][6]." in first
    assert "new source ids: (11, 20)" in second
    assert "eat their stores [14][15]." in second
    assert 'retrieve_previous_sources({"tool_message_ids": ["' in third
    assert "new source ids: None" in third
    assert "about one kilometre [1]." in third
    assert 'retrieve_previous_sources({"source_ids": [15]})' in fourth
    assert "Tool gives 237 characters" in fourth
    assert "from full cells [15]." in fourth
    for turn in (second, third, fourth):
        view, log = map(int, re.findall(r"gets (\d+) tokens of (\d+)\]", turn)[0])
        assert view < log / 2
    cited = shown.partition("\nCited:\n")[2].partition("\n\n")[0].split("\n  ")
    assert [line.split("] ")[1] for line in cited] == [
        "The waggle dance",
        "The scent of flowers",
        "The winter cluster",
        "Winter stores",
    ]
    assert "The log keeps 17 messages" in shown


def test_a_person_approves_a_call_of_the_openai_loop(address: str) -> None:
    """The search's sources are cited, a repeated request asks no model, and the call runs as a person changed it."""
    shown = run_example("openai_loop.py", address)
    assert shown.count("From November to January in Skjervoy [1].") == 1
    assert "book{'place': 'Skjervoy', 'persons': 20} waits for a person." in shown
    assert "Done: booked Skjervoy for 2" in shown
    assert shown.endswith("Source 1 is Skjervoy. The log has 9 messages.\n")


@pytest.mark.slow
def test_an_agent_is_a_service(address: str) -> None:
    """A repeat asks no model, another answer replaces the first, a stop keeps what was said, a person approves.

    Its page in docs has this output.
    """
    shown = run_example("agent_service.py", address)
    assert shown.splitlines()[3:6] == ["stopped: True", "kept what was said: True", "waits: True"]
    assert f"```text\n{shown}```\n" in (ROOT / "docs" / "fastapi.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_fastapi_backend_streams_and_stops(address: str) -> None:
    """Repeats, conflicts, another answer, a reload, a stop, an approval, a prompt that stays, an error in a stream."""
    shown = run_example("fastapi_chat.py", address).splitlines()
    assert shown[:2] == ["200 Half of it does."] * 2
    assert shown.pop(3) == "nothing asked: 422 404"
    assert shown[3:5] == ["another answer: Half of it does. 2 of 2", "the first again: 200"]
    assert [line.split()[-1] for line in (shown[2], shown[5], shown[7])] == ["409", "409", "True"]
    assert shown[6].startswith("after a reload: Once upon a time")
    assert shown[8:10] == ["kept: stopped True True", "approved: Refunded 90 euros."]
    assert shown[10:] == [
        "the page got the prompt: False",
        "turn r5 broke off: RuntimeError",
        "an overload: The answer broke off. Please send the question again.",
    ]


def test_graphs_remember_by_their_summaries(address: str) -> None:
    """The name from the first message is known in the end, in the state of one graph and in the store of the other."""
    shown = run_example("langgraph_summaries.py", address)
    in_state, in_store = shown.split("\nA summary in the store:\n")
    assert "Your name is Ada. Its summary: Hello, my name is Ada and I keep bees." in in_state
    sizes = [int(size) for size in re.findall(r"messages, (\d+) tokens", in_store)]
    assert len(sizes) == 10
    assert max(sizes) < 800
    assert in_store.splitlines()[0].endswith("14 tokens of 14; summary: None")
    assert "Your name is Ada. Summary 2 covers messages 1-12, the log keeps all 20." in in_store


def test_a_conversation_changes_its_provider_and_comes_back(address: str) -> None:
    """The log as it is would be refused; views are taken, own reasoning in them, and the log keeps that of both."""
    shown = run_example("two_providers.py", address)
    first, second, third = re.split(r"(?m)^(?:anthropic|openai): ", shown)[1:]
    assert "Looked at 1, 2, 3, 4, 5, 6, 7, 8, 9." in first
    assert "\"call id 'toolu_" in first
    assert "Looked at 10, 11." in second
    assert "came back to it: ['reasoning', 'reasoning']" in second
    assert "Looked at 12." in third
    assert (
        "Messages 2-12 are shown as: human, ai, tool. Read so far: day 1 fog, day 2 gale from the west"
        in third
    )
    assert (
        "The log keeps all 31 messages, with the reasoning of both: {'anthropic': 12, 'openai': 3}."
        in third
    )


@pytest.mark.slow
def test_the_address_may_come_from_the_environment(server_address: str) -> None:
    """CONVSTORE_URI does what the argument does."""
    assert "Equal to what was appended: True" in run_example(
        "quickstart.py", CONVSTORE_URI=server_address
    )
