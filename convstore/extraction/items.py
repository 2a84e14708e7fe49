"""What one item of a list must have to be a source, and how a source that stands in another form is made an item.

Layer 1. Nothing here raises, whatever a tool gives.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from convstore.codec import is_text
from convstore.sources import TEXT_KEYS, FoundSource, source_in

__all__ = ["first_text", "plain_item", "retrieved", "retrieved_file", "retrieved_text", "text_in"]


_DETAILS = ("metadata", "_source", "payload")
"""Where vector stores keep the text and all else they know of a match: Pinecone, Elasticsearch, Qdrant."""


def retrieved(value: Any) -> FoundSource | None:
    """The source that an item of a list stands for; None if nothing in it shows that it was retrieved.

    That is shown by a ``Document``, a ``(text, metadata)`` pair, or in a dict by a text, a title, an address, the id of
    a file or a number of a source. A name alone does not show it: people and products have one too.

    >>> retrieved({"title": "Fares", "rank": 1}).title
    'Fares'
    >>> retrieved({"flight": "X1", "price": 3}) is None
    True
    """
    if type(value) is dict and type(value.get("content")) is list and (text := text_in(value["content"])):
        return source_in(plain_item(value, text))
    if type(value) is dict and (match := _match(value)):
        return source_in(match)
    found = source_in(value)
    if found is None or type(value) is not dict or found.text_key or found.url or found.kept_id is not None:
        return found
    return found if first_text(found.fields, ("title", "file_id")) else None


def retrieved_file(value: Any) -> FoundSource | None:
    """The source that an item of a list of files stands for; None if it has no id of a file.

    >>> retrieved_file({"file_id": "f1", "filename": "a.md", "content": [{"type": "text", "text": "…"}]}).title
    'a.md'
    >>> retrieved_file({"title": "a.md"}) is None
    True
    """
    return retrieved(value) if type(value) is dict and first_text(value, ("file_id",)) else None


def retrieved_text(value: Any) -> FoundSource | None:
    """The source that a bare text stands for; None for a blank one, or anything else.

    >>> retrieved_text("Whales sing.").text, retrieved_text(" ")
    ('Whales sing.', None)
    """
    return FoundSource(value, value, {}) if is_text(value) and value.strip() else None


def _match(value: dict[Any, Any]) -> dict[Any, Any] | None:
    """A match whose text stands among its details, as an item; None if it has a text of its own or none at all."""
    if first_text(value, TEXT_KEYS):
        return None
    for name in _DETAILS:
        details = value.get(name)
        if type(details) is dict and (key := first_text(details, TEXT_KEYS)):
            rest = {field: one for field, one in details.items() if field != key}
            around = {field: one for field, one in value.items() if field != name}
            return plain_item({**rest, **around}, details[key])
    return None


def plain_item(
    said: dict[Any, Any],
    text: str,
    *,
    title: Sequence[str] = (),
    url: Sequence[str] = (),
    without: Collection[str] = (),
) -> dict[Any, Any]:
    """A dict item with a text under ``content`` and everything else that is said of it beside.

    >>> plain_item({"source": "https://a", "rank": 1, "title": None}, "text", url=["source"])
    {'content': 'text', 'url': 'https://a', 'rank': 1, 'title': None}

    Args:
        said: What the tool says of the source.
        text: Its text.
        title: Where the title stands if not under ``title``.
        url: Where the address stands if not under ``url``.
        without: What is left out, as it stands elsewhere in the item or is no text but bytes.
    """
    places = {
        label: key
        for label, keys in (("title", ("title", *title)), ("url", ("url", *url)))
        if (key := first_text(said, keys))
    }
    item = {"content": text} | {label: said[key] for label, key in places.items()}
    rest = {key: value for key, value in said.items() if key not in without and key not in places.values()}
    return item | {key: value for key, value in rest.items() if key not in item}


def first_text(fields: dict[Any, Any], keys: Sequence[str]) -> str:
    """The first of some keys under which a text stands, "" if there is none.

    >>> first_text({"title": 7, "name": "N"}, ["title", "name"])
    'name'
    """
    return next((key for key in keys if is_text(fields.get(key))), "")


def text_in(value: Any) -> str:
    r"""A text, or the texts of a list of text blocks joined by line breaks; "" for anything else.

    >>> text_in([{"type": "text", "text": "one"}, {"type": "image"}, "two"])
    'one\ntwo'
    """
    if is_text(value):
        return value
    if type(value) not in (list, tuple):
        return ""
    texts = (part.get("text") if type(part) is dict else part for part in value)
    return "\n".join(text for text in texts if is_text(text))
