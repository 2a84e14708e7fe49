"""Decide which results of tools are numbered unless an application says so: those that say that they hold sources.

Many lists look like sources: tickets, products, records, lines of code. Numbers in them would only cost tokens.
"""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import ToolMessage

from convstore.messages.media import block_type
from convstore.sources.detection import parse_json, sources_in_json_are_named
from convstore.sources.source import FoundSource, FoundSources, first_text

_BLOCKS = frozenset({"search_result", "web_search_result"})
_URLS = ("link", "url", "href")


def says_sources(message: ToolMessage, found: FoundSources) -> bool:
    """Return True if a result says that it holds sources.

    These are documents of LangChain, ``search_result`` blocks, results of known retrieval and search services, a list
    under ``sources``, and the sources that the tool's extractor returned.

    >>> page = FoundSource({"page_content": "Seals sleep."}, "Seals sleep.", {}, "page_content")
    >>> ticket = FoundSource({"title": "Broken", "body": "It is."}, "It is.", {"title": "Broken"}, "body")
    >>> message = ToolMessage("", tool_call_id="1")
    >>> [says_sources(message, FoundSources((item,))) for item in (page, ticket)]
    [True, False]
    """
    if found.is_named or all(map(_is_retrieved, found.items)):
        return True
    if not isinstance(message.content, list):
        return False
    texts = [block.get("text") for block in message.content if isinstance(block, dict)]
    values = [parse_json(text) for text in texts if isinstance(text, str)]
    return any(map(sources_in_json_are_named, values))


def _is_retrieved(found: FoundSource) -> bool:
    item: Any = found.item
    if isinstance(item, list | tuple) and item:
        item = item[0]
    if isinstance(item, Document):
        return True
    if type(item) is not dict:
        return False
    is_document = found.text_key == "page_content" or block_type(item) in _BLOCKS
    return is_document or _is_found_on_the_web(item)


def _is_found_on_the_web(item: dict[Any, Any]) -> bool:
    """Return True for an item of a web search: an address with a snippet, or with content and score (Tavily)."""
    if not first_text(item, _URLS):
        return False
    return bool(first_text(item, ("snippet",))) or ("content" in item and "score" in item)
