"""The README is true: its blocks run and print what it says, its commands and tables are those of the code."""

from __future__ import annotations

import ast
import doctest
import re
import textwrap
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from programs import ROOT, run_program
from pymongo import MongoClient

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.cli.commands import app

README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST_SCREEN = 60
MOST_LINES = 24


class Block(NamedTuple):
    """A fenced block: its language, its text and the line that it begins on."""

    language: str
    text: str
    line: int


BLOCKS = [
    Block(found[1], found[2], README[: found.start()].count("\n") + 1)
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
]
PYTHON = [block for block in BLOCKS if block.language == "python"]
SHELL = [block for block in BLOCKS if block.language == "sh"]
WHOLE = [block for block in PYTHON if "asyncio.run(" in block.text]


def script_of(block: Block) -> str:
    """A block as a program; one that is no program is the body of a coroutine, with store and chat as README says."""
    if block in WHOLE:
        return block.text
    first, _, _ = WHOLE[0].text.partition("async def main")
    body = textwrap.indent(block.text, " " * 8)
    return (
        f"{first}async def main():\n"
        '    async with await ConversationStore.connect("memory://") as store:\n'
        "        await store.setup()\n"
        '        chat = store.conversation(user_id="ada", thread_id="orcas")\n'
        "        await chat.append(turn)\n"
        f"{body}\n"
        "asyncio.run(main())\n"
    )


def run(script: str, folder: Path, **variables: str) -> str:
    """Return the output of a program; it must succeed without output on stderr."""
    path = folder / "block.py"
    path.write_text(script, encoding="utf-8")
    return run_program(path, **variables)


def section(heading: str) -> str:
    """The text below a heading."""
    return README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows_below(heading: str) -> list[list[str]]:
    """The cells of the rows of the table whose first heading is given."""
    table = README.partition(f"\n| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


@pytest.fixture
def mongodb_uri(server_uri: str, database_name: str) -> Iterator[Any]:
    """The address that blocks read from MONGODB_URI; its database is dropped."""
    name = f"{database_name}_{uuid.uuid4().hex[:8]}"
    yield urlsplit(server_uri)._replace(path=f"/{name}").geturl()
    with MongoClient(server_uri) as client:
        client.drop_database(name)


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: f"line {block.line}")
def test_every_python_block_runs(block: Any, mongodb_uri: Any, tmp_path: Path) -> None:
    """As a program of its own, with an address in MONGODB_URI; none is left out."""
    assert run(script_of(block), tmp_path, MONGODB_URI=mongodb_uri)


def test_the_first_block_prints_what_it_is_said_to(tmp_path: Path) -> None:
    """The output under it is its output, an ellipsis standing for what is left out."""
    documented = BLOCKS[BLOCKS.index(PYTHON[0]) + 1]
    printed = run(script_of(PYTHON[0]), tmp_path)
    assert documented.language == "text"
    assert doctest.OutputChecker().check_output(documented.text, printed, doctest.ELLIPSIS), printed


def test_the_first_screen_shows_it_working() -> None:
    """The one sentence, and a program of fewer than 25 lines, before anything else."""
    opening = README.partition("```")[0].lower()
    assert "the log is complete and immutable; the view is small, valid and stable; " in opening
    assert "everything left out of the view has an id that brings it back" in opening
    assert PYTHON[0].text.count("\n") <= MOST_LINES
    assert SHELL[1].line < FIRST_SCREEN + 10


def test_no_block_is_left_out() -> None:
    """Python code is in python blocks, so that all of it is run."""
    assert {block.language for block in BLOCKS} == {"python", "sh", "text"}
    for block in PYTHON:
        ast.parse(script_of(block))


def test_two_commands_are_enough() -> None:
    """One runs the demo and one the tests, each from an empty folder with Python alone."""
    demo, tests = (block.text.strip() for block in SHELL)
    start = "python3.11 -m venv .venv && .venv/bin/pip install -q -e "
    assert demo == f"{start}'.[cli,memory]' && .venv/bin/convstore demo"
    assert tests == f"{start}'.[test]' && .venv/bin/pytest"


def test_the_checks_before_a_merge_run_the_same_command() -> None:
    """`.ci/run` takes the command from here, and finds exactly one."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    [pattern] = re.findall(r"grep -E '(.+)' README\.md", script)
    assert [line for line in README.splitlines() if re.search(pattern, line)] == [SHELL[1].text.strip()]
    assert "\n.venv/bin/pytest -m slow |" in script
    assert "`.venv/bin/pytest -m slow`" in README


def test_the_policy_table_is_the_policy() -> None:
    """Every field with its default, in order."""
    documented = [
        (name.strip("`"), ast.literal_eval(default.strip("`"))) for name, default, _ in rows_below("policy")[:5]
    ]
    assert documented == [(field.name, field.default) for field in fields(HistoryPolicy)[:5]]
    names = [name.strip("`") for name, *_ in rows_below("policy")]
    assert names == [field.name for field in fields(HistoryPolicy)]


def test_the_extras_are_those_of_the_project() -> None:
    """Each extra that can be installed is listed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    documented = {name.strip("`") for row in rows_below("extra") for name in row[0].split(", ")}
    assert documented == set(project["optional-dependencies"])


def test_the_commands_are_those_of_the_command_line() -> None:
    """Each command of ``convstore`` is listed, and no other."""
    documented = {row[0].split()[1].strip("`") for row in rows_below("command")}
    assert documented == {command.name for command in app.registered_commands}


def test_every_method_is_named() -> None:
    """Every method of store and conversation is on the page."""
    methods = {name for class_ in (Conversation, ConversationStore) for name in dir(class_) if name[0] != "_"}
    inner = {"codec", "services", "run_sync"}
    assert {name for name in methods - inner if not re.search(rf"\b{name}\b", README)} == set()


def test_what_is_said_to_be_missing_is_missing() -> None:
    """A feature that comes leaves the list."""
    missing = section("Not in this version")
    assert missing
    names = re.findall(r"`(\w+)`", missing)
    assert [name for name in names if hasattr(Conversation, name) or hasattr(ConversationStore, name)] == []
