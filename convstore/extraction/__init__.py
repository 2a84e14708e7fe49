"""Finds the sources in a tool result, wherever tools of all kinds put them.

Layer 1. Which forms are known stands in three tables, one module each:

====================  =================================================================================================
``finding.LISTS``     keys under which a list of items is one of sources: ``sources``, ``results``, ``documents``, …
``blocks.BLOCKS``     content blocks that are a source each: ``search_result``, ``document``, ``resource``, …
``citations.CITED``   annotations of a text that name what it cites: ``url_citation``, ``file_citation``, …
====================  =================================================================================================

``items`` says what one item of such a list must have. A tool that answers in another form gets an extractor of its own.
"""

from __future__ import annotations

from convstore.extraction.finding import (
    SourceExtractor,
    extract_sources,
    find_sources,
    parse_json,
    read_back_ids,
)

__all__ = ["SourceExtractor", "extract_sources", "find_sources", "parse_json", "read_back_ids"]
