"""Headings of sources: the table in docs/reference/sources.md, and metadata of any kind."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from langchain_core.documents import Document

from convstore.messages.values import Codec
from convstore.sources.naming import label_of, own_names
from convstore.sources.source import source_in

_DOCS = Path(__file__).parents[2] / "docs" / "reference" / "sources.md"
_ROW = re.compile(r"^\| ([^|`]+) \| `(\{.*\})` \| `(.*)` \|$", re.MULTILINE)


def _heading(metadata: dict[str, Any]) -> str:
    found = source_in(Document("text", metadata=metadata))
    assert found is not None
    title, url, _ = found.label()
    address = f"({url})" if url else ""
    return " ".join(filter(None, (title, address)))


def test_each_row_of_the_table_has_its_heading() -> None:
    """A heading says where a passage comes from in the shapes that loaders and vector stores give."""
    section = _DOCS.read_text(encoding="utf-8").partition("## Headings")[2].partition("\n## ")[0]
    rows = _ROW.findall(section)
    assert len(rows) == section.count("\n| ") - 1 >= 20
    for name, written, heading in rows:
        metadata = eval(written, {"Path": Path})  # noqa: S307 - the project's own page
        assert _heading(metadata) == heading, name
        title, url, rest = label_of(metadata)
        assert metadata.keys() - rest.keys() <= {
            key for key in metadata if metadata[key] in (title, url)
        }, name


def test_values_that_say_nothing_are_left_out() -> None:
    """Blank texts, long ones, and values of other types make no heading; nothing of the metadata is lost."""
    deep = {"page": [[]], "row": {}, "section": "x" * 81, "sheet": None, "slide": float("nan")}
    for metadata in (
        {"title": " ", "source": "", "page": True, **deep},
        {"title": 7, "source": ["a.pdf"], "page_label": " \n", "row": 10**400, "Header 1": b"x"},
    ):
        assert label_of(metadata) == ("", "", metadata)
    assert _heading({"source": "a.pdf", "page_label": "", "page": 0}) == "a.pdf, page 0"
    assert _heading({"title": "A\nB", "section": "one\ntwo"}) == "A\nB, section one two"
    assert _heading({"source": "/" + "deep/" * 40 + "a.pdf", "page": 2.0}) == "a.pdf, page 2"
    assert _heading({"source": "\ud800.pdf"}) == "\ud800.pdf"


def test_a_tool_may_name_a_source_by_each_of_its_names() -> None:
    """The texts by which content may name a source are those of its metadata, without the position."""
    metadata = {"title": "Acme", "source": "contracts/acme.pdf", "page": 3}
    assert own_names(metadata) == ["Acme", "contracts/acme.pdf", "acme.pdf"]
    assert own_names({"page": 3}) == []


def test_paths_come_back_equal() -> None:
    """An artifact may hold the path objects that loaders put into metadata."""
    codec = Codec()
    for path in (Path("a/b.pdf"), PurePosixPath("/x"), PureWindowsPath("C:/x")):
        found = codec.decode(codec.encode({"source": path}))["source"]
        assert found == path
        assert type(found) is type(path)
