"""Runs the command line in the tests' own process, on recordings that are made here."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.testing
from canary import checked
from pymongo import MongoClient

from convstore.cli.commands import app

COLLECTIONS = {
    "annotations",
    "convstore_migrations",
    "deletions",
    "drafts",
    "heads",
    "log",
    "search",
    "summaries",
}

LONG = "The tide comes in twice a day, and what it brings it takes again. "

# The runner would build the parsers of all commands for each call, which takes longer than most commands.
typer.testing._get_command = functools.cache(typer.main.get_command)  # type: ignore[attr-defined]


def convstore(
    *arguments: str | Path, width: int = 80, application: typer.Typer = app, **environment: str
) -> typer.testing.Result:
    """Run the command line; it must not end in an exception of Python, nor show a password."""
    runner = typer.testing.CliRunner(
        env={"COLUMNS": str(width), "FORCE_COLOR": None, **environment}
    )
    result = runner.invoke(application, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return checked(result, result.output, complaints=result.stderr)


def complaints(result: typer.testing.Result) -> str:
    """Return what a command printed on stderr, without the line that names the database of a table."""
    return re.sub(r"(?m)^Database: mongodb://\S+\n", "", result.stderr)


def recording(name: str, *, turns: int = 3) -> dict[str, Any]:
    """Return a conversation that searches once a turn."""
    messages = [message for number in range(turns) for message in turn(number)]
    return {"id": name, "messages": messages}


def turn(number: int) -> list[dict[str, Any]]:
    """Return a question, a call, its result with two sources, and the answer."""
    call = {
        "id": f"c{number}",
        "type": "function",
        "function": {"name": "search", "arguments": '{"q": "tide"}'},
    }
    sources: list[dict[str, Any]] = [
        {"title": f"T{number}.{index}", "text": f"{number}.{index} {LONG * 30}", "score": 0.5}
        for index in (1, 2)
    ]
    shown = "\n".join(source["text"] for source in sources)
    return [
        {"role": "user", "content": f"What of the tide, {number}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": f"c{number}",
            "name": "search",
            "content": shown,
            "sources": sources,
        },
        {"role": "assistant", "content": "It comes and goes [1].", "timestamp": 1_724_708_469.5},
    ]


def lines(*records: Any) -> str:
    """Return the text of a file with one record in each line; a string is a line as it is."""
    return "".join(
        f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records
    )


@contextlib.contextmanager
def own_address(server_uri: str) -> Iterator[str]:
    """The address of an empty database, which is dropped in the end."""
    name = f"convstore_cli_{uuid.uuid4().hex[:8]}"
    yield server_uri.replace("/?", f"/{name}?")
    with MongoClient[dict[str, Any]](server_uri) as client:
        client.drop_database(name)


_EMPTIED: dict[str, list[str]] = {}
"""Names of empty databases, by the address of their server: setting up a new one takes 100 ms."""


@contextlib.contextmanager
def emptied_address(server_uri: str) -> Iterator[str]:
    """The address of a database without documents that may be set up, for tests that leave indexes as they are."""
    names = _EMPTIED.setdefault(server_uri, [])
    name = names.pop() if names else f"convstore_cli_{uuid.uuid4().hex[:8]}"
    yield server_uri.replace("/?", f"/{name}?")
    with MongoClient[dict[str, Any]](server_uri) as client:
        _empty(client[name])
    names.append(name)


def _empty(database: Any) -> None:
    """Remove the documents of the store's collections, but for the record of migrations, and all other collections."""
    for collection in database.list_collection_names():
        if collection not in COLLECTIONS:
            database.drop_collection(collection)
        elif collection != "convstore_migrations":
            database[collection].delete_many({})
