"""The pages under docs are true: their programs run and print what they say, their names and links exist."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import io
import json
import pkgutil
import re
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from adapters import can_import
from langchain_core.messages import HumanMessage
from pymongo import MongoClient

import convstore
from convstore import (
    Conversation,
    ConversationStore,
    HistoryPolicy,
    exceptions,
    summarization,
    types,
)
from convstore.cli.commands import app
from convstore.ext import langchain, langgraph, ui
from convstore.sources import detection
from convstore.tools import retrieval
from convstore.types import ApplicationState, History, TurnSession
from convstore.values.reports import ServerReport

DOCS = Path(__file__).parents[2] / "docs"
MOST_WORDS, MOST_WORDS_OF_A_CELL = 60, 30
MOST_LINES = 25
MOST_WORDS_OF_ALL_GUIDES, MOST_WORDS_OF_A_GUIDE = 37_000, 2_700
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
BLOCKS = {
    name: re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    for name, text in PAGES.items()
}
FRAMEWORKS = ("agent_framework", "agents", "claude_agent_sdk", "deepagents", "pydantic_ai")
"""Packages of frameworks, which load slowly."""


EXTRAS = {
    r"memory://": "memory",
    r"^from langchain\.": "langchain",
    r"^from langgraph\.graph": "langgraph",
    r"^from agent_framework": "agent-framework",
    r"^from agents ": "openai-agents",
    r"^from claude_agent_sdk": "claude-agent",
    r"^from pydantic_ai": "pydantic-ai",
    r"convstore\.ext\.inspector": "inspector",
    r"convstore\.ext\.otel": "otel",
    r"DevServer\(": "test",
}
"""What a program has in it, by the extra that it needs then."""


def takes_long(program: str) -> bool:
    """Return True if a program imports a framework or starts a server."""
    imports = re.search(rf"^from ({'|'.join(FRAMEWORKS)})[. ]", program, re.MULTILINE)
    return imports is not None or "DevServer(" in program


def programs_of(blocks: list[tuple[str, str]]) -> Iterator[tuple[int, str, list[tuple[str, str]]]]:
    """Yield each program of a page, with its number on the page and the block below it, which has its output.

    Blocks of Python that follow each other are one program: the page explains each part before the next one.
    """
    parts = list[str]()
    for at, (language, text) in enumerate(blocks):
        if language != "python":
            continue
        parts.append(text)
        below = blocks[at + 1 : at + 2]
        if [language for language, _ in below] != ["python"]:
            yield at, "\n".join(parts), below
            parts.clear()


PROGRAMS = [
    pytest.param(program, output, id=f"{name}-{at}", marks=[pytest.mark.slow] * takes_long(program))
    for name, blocks in BLOCKS.items()
    for at, program, output in programs_of(blocks)
]


def rows_below(page: str, heading: str) -> list[list[str]]:
    """The cells of the rows of the table whose first heading is given."""
    table = PAGES[page].partition(f"\n| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


@pytest.fixture
def mongodb_uri(
    server_uri: str, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """An address in CONVSTORE_URI; its database is dropped."""
    name = f"{database_name}_{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("CONVSTORE_URI", urlsplit(server_uri)._replace(path=f"/{name}").geturl())
    yield
    with MongoClient(server_uri) as client:
        client.drop_database(name)


@pytest.mark.parametrize(("program", "output"), PROGRAMS)
def test_programs_print_what_is_said(program: Any, output: Any, request: Any) -> None:
    """Each alone, nothing carried over from the one before; its output is printed below it."""
    if "opentelemetry.sdk" in program:
        pytest.importorskip(
            "opentelemetry.sdk", reason="the SDK of OpenTelemetry is in the extra test"
        )
    if "CONVSTORE_URI" in program:
        request.getfixturevalue("mongodb_uri")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.parse(program), "docs", "exec"), {"__name__": "__main__"})  # noqa: S102 - our own page
    assert [("text", printed.getvalue())] == output


def test_programs_are_short() -> None:
    """A block of a program has at most 25 lines with code or a comment; a longer program is explained in between."""
    longer = [
        (name, text.partition("\n")[0])
        for name, blocks in BLOCKS.items()
        for language, text in blocks
        if language == "python"
        if sum(bool(line.strip()) for line in text.splitlines()) > MOST_LINES
    ]
    assert longer == []


def test_loops_look_for_a_stop_before_they_ask_the_model() -> None:
    """A stop may come during a tool; a request to the model after it would be paid for nothing."""
    programs = [program for blocks in BLOCKS.values() for _, program, _ in programs_of(blocks)]
    loops = [
        rest.partition("load_history()")[0]
        for text in programs
        for rest in text.split("in turn.open_calls:")[1:]
        if "load_history()" in rest
    ]
    assert len(loops) >= 3
    assert [loop for loop in loops if "turn.is_running" not in loop] == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def documented_calls() -> dict[str, list[Any]]:
    """Return the public functions and methods, by their names."""
    found = dict[str, list[Any]]()
    for module in (convstore, summarization, langchain, langgraph, ui):
        for name in module.__all__:
            found.setdefault(name, []).append(getattr(module, name))
    for owner in (Conversation, ConversationStore, ApplicationState, TurnSession, History):
        for name, method in inspect.getmembers(owner, callable):
            if not name.startswith("_"):
                found.setdefault(name, []).append(method)
    return found


def takes(call: Any, argument: str) -> bool:
    """Return True if a call takes an argument by its name."""
    if not callable(call):
        return False
    parameters = inspect.signature(call).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return takes_any or argument in parameters


def test_calls_in_the_text_name_arguments_that_exist() -> None:
    """Programs are run; this reads the calls of single lines and tables, of the public functions and methods."""
    calls = documented_calls()
    wrong = list[str]()
    for path in (*DOCS.parent.glob("*.md"), *DOCS.rglob("*.md")):
        for code in re.findall(r"`([^`\n]+)`", path.read_text(encoding="utf-8")):
            for name, given in re.findall(r"(\w+)\(([^()]*)", code):
                for argument in re.findall(r"(?:^|, )(\w+)=", given):
                    known = calls.get(name, ())
                    if known and not any(takes(call, argument) for call in known):
                        wrong.append(f"{path.name}: {code}")
    assert wrong == []


def test_links_lead_somewhere() -> None:
    """Every link to a file of the project finds it, and its heading; its text is a title and no name of a file."""
    for path in (*DOCS.parent.glob("*.md"), *DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"\[`?[\w/.-]+\.md`?\]\(", text) == [], path
        for link in re.findall(r"\]\(([^)]+)\)", text):
            file, _, anchor = link.partition("#")
            target = path.parent / file if file else path
            assert "://" in link or target.exists(), (path, link)
            if target.parent.name == "reference" and anchor:
                assert anchor in anchors(target) or is_defined(anchor), (path, link)
            else:
                assert "://" in link or not anchor or anchor in anchors(target), (path, link)


def is_defined(name: str) -> bool:
    """True if an object of the reference exists; where its framework is not installed, its package has to name it."""
    try:
        pkgutil.resolve_name(name)
    except AttributeError:
        package, _, member = name.rpartition(".")
        if not package.startswith("convstore.ext."):
            return False
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            return False
        return f'"{member}"' in Path(spec.origin).read_text(encoding="utf-8")
    return True


async def test_what_is_to_be_watched_is_visible(emptied_database: Any) -> None:
    """The page's commands for mongosh find a due sweep and the numbers that it names, and the listener its metrics."""
    page = PAGES["operations.md"].partition("\n## What to watch\n")[2].partition("\n## ")[0]
    sweep, status = [
        json.loads(text) for text in re.findall(r"^db\.runCommand\((.*)\)$", page, re.MULTILINE)
    ]
    store = convstore.ConversationStore(emptied_database)
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append(HumanMessage("Hello"))
    await chat.delete()
    await store.close()
    [tombstone] = (await emptied_database.command(sweep))["cursor"]["firstBatch"]
    assert tombstone["sweep_at"] > datetime.now(UTC).replace(tzinfo=None)
    numbers = await emptied_database.client.admin.command(status)
    for name in re.findall(r"`(metrics\.[\w.]+)`", page):
        found = numbers
        for part in name.split("."):
            found = found[part]
        assert found >= 0
    assert "clock_ahead" in ServerReport.model_fields
    assert "`convstore.append.duration`" in PAGES["telemetry.md"]


def test_the_names_of_summaries_are_ours() -> None:
    """Classes and functions that the pages on summaries name can be imported."""
    compared = PAGES["differences.md"].partition("## langmem")[2].partition("\n## ")[0]
    text = PAGES["summaries.md"] + compared
    named = set(re.findall(r"`(\w*(?:Summary|Summarization|summarize_)\w*)`", text)) - {
        "SummaryError"
    }
    assert (
        {"RunningSummary", "SummarizationNode", "asummarize_messages"}
        <= named
        <= set(summarization.__all__)
    )
    assert {"SummaryError", "InvalidInputError", "ConvstoreError"} <= set(dir(exceptions))


def test_the_arguments_of_the_tool_are_those_documented() -> None:
    """The page has a row for each argument of the tool, and sources are looked for under the usual keys."""
    rows = re.findall(r"^\| `(\w+)` \|", PAGES["read-back.md"], re.MULTILINE)
    assert rows == list(retrieval.RetrieveArguments.model_json_schema()["properties"])
    assert {"sources", "results", "documents"} <= set(detection.SHAPES)


def test_the_policy_table_is_the_policy() -> None:
    """Every field with its default, in order."""
    rows = rows_below("policies.md", "policy")
    documented = [(name.strip("`"), eval(default.strip("`"))) for name, default, _ in rows]  # noqa: S307 - our own page
    assert documented == [(field.name, field.default) for field in fields(HistoryPolicy)]


def test_the_extras_are_those_of_the_project() -> None:
    """Each extra that can be installed is listed."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    documented = {
        name.strip("`")
        for row in rows_below("getting-started.md", "extra")
        for name in row[0].split(", ")
    }
    assert documented == set(project["optional-dependencies"])


def test_pages_name_the_extras_of_their_programs() -> None:
    """A reader who installs what a page names can run its programs."""
    missing = [
        (name, extra)
        for name, blocks in BLOCKS.items()
        for language, program in blocks
        for sign, extra in EXTRAS.items()
        if language == "python" and re.search(sign, program, re.MULTILINE)
        if not re.search(rf"`{extra}`|[\[,]{extra}[\],]", PAGES[name])
    ]
    assert missing == []


def test_the_tests_that_a_page_names_exist() -> None:
    """The threat model and the pages for contributors name files and folders of tests."""
    for path in (*DOCS.parent.glob("*.md"), *DOCS.glob("*.md")):
        for name in re.findall(r"`(tests/[\w/.]+)`", path.read_text(encoding="utf-8")):
            assert (DOCS.parent / name).exists(), (path.name, name)


def test_the_commands_are_those_of_the_command_line() -> None:
    """Each command of ``convstore`` is listed, and no other, in the order of its help."""
    documented = re.findall(r"^\| `convstore (\w+)", PAGES["command-line.md"], re.MULTILINE)
    assert documented == [command.name for command in app.registered_commands]


def test_the_site_has_every_page() -> None:
    """The navigation names each page of the documentation once."""
    root = DOCS.parent
    named = re.findall(
        r"^ +- (?:\w+: )?(\S+\.md)$",
        (root / "mkdocs.yml").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert sorted(named) == sorted(
        str(path.relative_to(root)) for path in (*root.glob("*.md"), *DOCS.rglob("*.md"))
    )


def test_the_guides_are_short() -> None:
    """What another guide or the reference says is a link: all guides together, and each of them, have a limit."""
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    guides = navigation.partition("\n  - Reference:\n")[0]
    words = {
        name: len(PAGES[name].split())
        for name in re.findall(r"- docs/([\w-]+\.md)$", guides, re.MULTILINE)
    }
    assert len(words) > 25
    assert {name for name, count in words.items() if count > MOST_WORDS_OF_A_GUIDE} == set()
    assert sum(words.values()) <= MOST_WORDS_OF_ALL_GUIDES


def test_the_reference_has_every_public_name() -> None:
    """Each name that ``convstore`` exports is shown by itself or with its module, and what is shown exists.

    The methods of a conversation stand in groups, by what they are for.
    """
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    for name in filter(can_import, shown):
        pkgutil.resolve_name(name)
    methods = dict(inspect.getmembers(Conversation, inspect.isfunction))
    assert {f"convstore.Conversation.{name}" for name in methods if name[0] != "_"} == {
        name for name in shown if name.startswith("convstore.Conversation.")
    }
    with_modules = {f"convstore.{name}" for name in (*types.__all__, *vars(exceptions))} | shown
    assert {f"convstore.{name}" for name in convstore.__all__} - with_modules == {
        "convstore.SOURCES_PROMPT"
    }


def test_no_paragraph_is_long() -> None:
    """At most 60 words in a paragraph or an item of a list, and 30 in a cell of a table; programs apart."""
    long = list[tuple[str, str]]()
    for path in (*DOCS.parent.glob("*.md"), *DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        for part in re.split(r"\n\s*\n|\n(?=[-*|#] |\d+\. |\|)", prose):
            is_row = part.lstrip().startswith("|")
            pieces = re.split(r"(?<!\\)\|", part) if is_row else [part]
            most = MOST_WORDS_OF_A_CELL if is_row else MOST_WORDS
            long += [(path.name, piece[:60]) for piece in pieces if len(piece.split()) > most]
    assert long == []
