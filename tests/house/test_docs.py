"""The pages under docs are true: their programs run and print what they say, their names and links exist."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from convstore import exceptions, summarization
from convstore.sources import detection
from convstore.tools import retrieval

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
BLOCKS = {name: re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) for name, text in PAGES.items()}
PROGRAMS = [
    pytest.param(program, blocks[at + 1 : at + 2], id=f"{name}-{at}")
    for name, blocks in BLOCKS.items()
    for at, (language, program) in enumerate(blocks)
    if language == "python"
]


@pytest.mark.parametrize(("program", "output"), PROGRAMS)
def test_programs_print_what_is_said(program: Any, output: Any) -> None:
    """Each alone, nothing carried over from the one before; its output is printed below it."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.parse(program), "docs", "exec"), {"__name__": "__main__"})  # noqa: S102 - our own page
    assert [("text", printed.getvalue())] == output


def test_links_lead_somewhere() -> None:
    """Every link to a file of the project finds it."""
    for path in (*DOCS.parent.glob("*.md"), *DOCS.glob("*.md")):
        links = re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8"))
        assert [(path, link) for link in links if "://" not in link and not (path.parent / link).exists()] == []


def test_the_names_of_summaries_are_ours() -> None:
    """Classes and functions that the page names can be imported."""
    named = set(re.findall(r"`(\w*(?:Summary|Summarization|summarize_)\w*)`", PAGES["summaries.md"])) - {"SummaryError"}
    assert {"RunningSummary", "SummarizationNode", "asummarize_messages"} <= named <= set(summarization.__all__)
    assert {"SummaryError", "InvalidInputError", "ConvstoreError"} <= set(dir(exceptions))


def test_the_arguments_of_the_tool_are_those_documented() -> None:
    """The page has a row for each argument of the tool, and for each key that sources are looked for under."""
    rows = re.findall(r"^\| `(\w+)` \|", PAGES["read-back.md"], re.MULTILINE)
    assert rows == list(retrieval.RetrieveArguments.model_json_schema()["properties"])
    assert {"sources", "results", "documents"} <= set(detection.SHAPES)
