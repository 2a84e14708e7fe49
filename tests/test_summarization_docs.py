"""The page about summaries tells the truth: its programs run and print what it says, its names and links exist."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path

import pytest

import convstore
from convstore import summarization

PAGE = Path(__file__).parent.parent / "docs" / "summaries.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
PROGRAMS = [(program, BLOCKS[at + 1]) for at, (language, program) in enumerate(BLOCKS[:-1]) if language == "python"]


def test_every_program_has_its_output():
    """Python and the text that it prints, in turn."""
    assert [language for language, _ in BLOCKS] == ["python", "text"] * len(PROGRAMS)
    assert PROGRAMS


@pytest.mark.parametrize(("program", "output"), PROGRAMS, ids=range(len(PROGRAMS)))
def test_programs_print_what_is_said(program, output):
    """Each alone, nothing carried over from the one before."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.parse(program), str(PAGE), "exec"), {"__name__": "__main__"})  # noqa: S102 - our own page
    assert printed.getvalue() == output[1]


def test_the_names_are_ours():
    """Classes and functions that the page names can be imported."""
    named = set(re.findall(r"`(\w*(?:Summary|Summarization|summarize_)\w*)`", TEXT)) - {"SummaryError"}
    assert {"RunningSummary", "SummarizationNode", "asummarize_messages"} <= named <= set(summarization.__all__)
    assert {"SummaryError", "InvalidInputError", "ConvstoreError"} <= set(convstore.__all__)


def test_links_lead_somewhere():
    """Every link to a file of the project finds it."""
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert [link for link in links if "://" not in link and not (PAGE.parent / link).exists()] == []
