"""What a source is: one retrieved item of a tool result, its number, and ranges of such numbers.

Layer 1. An item is a ``Document``, a ``(text, metadata)`` pair, a dict or a bare text; where items stand in a
tool result is known by ``extraction``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from langchain_core.documents import Document

from convstore.messages.encoding import digest_of
from convstore.messages.values import Codec, DocumentFields, is_text

__all__ = [
    "DIGEST_BYTES",
    "MAX_SOURCES",
    "TEXT_KEYS",
    "FoundSource",
    "FoundSources",
    "first_text",
    "plain_item",
    "read_ids",
    "retrieved",
    "retrieved_file",
    "retrieved_text",
    "source_in",
    "text_digest",
    "text_in",
    "write_ids",
]

MAX_SOURCES = 1_000
"""A list with more items is data, not sources: nobody cites row 40,000 of a table."""


DIGEST_BYTES = 8
"""Enough to tell the sources of one conversation apart."""


_LABEL_CHARACTERS = 150


TEXT_KEYS = ("content", "page_content", "text", "snippet", "body")
"""Where the text of a dict item stands."""


_TITLE_KEYS = ("title", "name", "filename")


_URL_KEYS = ("url", "link", "uri")


_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{1,30}://\S", re.IGNORECASE)


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


@dataclass(frozen=True, slots=True)
class FoundSource:
    """One source as the tool gave it.

    Attributes:
        item: The value in the tool's list.
        text: What is read and cited; "" if the item has no text of its own.
        fields: What the tool says of it, its text apart.
        text_key: Where the text stands in a dict item.
    """

    item: Any
    text: str
    fields: dict[str, Any]
    text_key: str = ""

    @property
    def kept_id(self) -> int | None:
        """The number that the tool gave it: a positive int under ``source_id``, nothing else."""
        number = self.fields.get("source_id")
        return number if type(number) is int and 0 < number < 2**53 else None

    def digest(self, codec: Codec) -> bytes:
        """What tells it from other sources: the beginning of the sha256 of its text, or of all that is said of it."""
        said = {key: value for key, value in self.fields.items() if key != "source_id"}
        return text_digest(self.text or codec.encode(said, omitted=[]))

    @property
    def title(self) -> str:
        """Its title, "" if there is none."""
        return _first_text(self.fields, _TITLE_KEYS)[1]

    @property
    def url(self) -> str:
        """Its address, "" if there is none."""
        return _address(self.fields)[1]

    @property
    def metadata(self) -> dict[str, Any]:
        """Everything that the tool said of it but number, title and address."""
        shown = [key for key in (_first_text(self.fields, _TITLE_KEYS)[0], _address(self.fields)[0]) if key]
        if self.kept_id is not None:
            shown.append("source_id")
        return {key: value for key, value in self.fields.items() if key not in shown}

    @property
    def says_more(self) -> bool:
        """Whether the item holds more than its text, its number and what a line shows of title and address."""
        is_cut = len(self.title) + len(self.url) > _LABEL_CHARACTERS
        return is_cut or bool(self.metadata) or getattr(self.item, "id", None) is not None

    def with_number(self, number: int) -> Any:
        """The item with a number, whatever number it had."""
        if isinstance(self.item, Document):
            numbered = {**self.item.metadata, "source_id": number}
            return Document(page_content=self.item.page_content, id=self.item.id, metadata=numbered)
        if isinstance(self.item, dict):
            return {**self.item, "source_id": number}
        if isinstance(self.item, str):
            return {"content": self.item, "source_id": number}
        return type(self.item)([self.item[0], {**self.item[1], "source_id": number}])

    def with_text(self, text: Any) -> Any:
        """The item with something else in the place of its text."""
        if isinstance(self.item, Document):
            return DocumentFields({"id": self.item.id, "page_content": text, "metadata": self.item.metadata})
        if isinstance(self.item, dict):
            return {**self.item, self.text_key: text} if self.text_key else self.item
        if isinstance(self.item, str):
            return text
        return type(self.item)([text, self.item[1]])


@dataclass(frozen=True, slots=True)
class FoundSources:
    """The sources of one tool result.

    Attributes:
        items: In the tool's order.
        rebuild: The artifact with something else in the place of each item; None if they do not stand in it as such.
    """

    items: tuple[FoundSource, ...] = ()
    rebuild: Callable[[list[Any]], Any] | None = None


def text_digest(text: str) -> bytes:
    """What tells the text of one source from that of another: the beginning of its sha256."""
    return digest_of(text)[:DIGEST_BYTES]


def source_in(item: Any) -> FoundSource | None:
    """The source that an item of a list stands for; None if it is none."""
    if type(item) is Document and is_text(item.page_content) and type(item.metadata) is dict:
        return FoundSource(item, item.page_content, _named(item.metadata))
    if type(item) is dict:
        key, text = _first_text(item, TEXT_KEYS)
        return FoundSource(item, text, _fields(item, key), key)
    if (
        isinstance(item, tuple | list)
        and type(item) in (tuple, list)
        and len(item) == 2
        and is_text(item[0])
        and type(item[1]) is dict
    ):
        return FoundSource(item, item[0], _named(item[1]))
    return None


def write_ids(ids: Iterable[int]) -> str:
    """Source ids as stubs show them: sorted, runs joined.

    >>> write_ids([12, 3, 11, 13])
    '3, 11-13'
    """
    numbers = sorted(set(ids))
    breaks = [place for place, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1]
    runs = [numbers[a:b] for a, b in pairwise([0, *breaks, len(numbers)])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs if run)


def read_ids(text: str) -> list[int]:
    """The numbers that a text such as stubs show names, in its order; of more than `MAX_SOURCES` one too many.

    >>> read_ids("11-13, 3")
    [11, 12, 13, 3]

    Raises:
        ValueError: Not such a text.
    """
    numbers: dict[int, None] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, _, last = part.partition("-")
        low, high = _number(first), _number(last or first)
        numbers |= dict.fromkeys(range(low, min(high, low + MAX_SOURCES) + 1))
        if len(numbers) > MAX_SOURCES:
            break
    return list(numbers)[: MAX_SOURCES + 1]


def _number(text: str) -> int:
    digits = text.strip().strip("[]")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 15:
        raise ValueError(f"{text[:50]!r} is not a source id")
    return int(digits)


def _first_text(fields: dict[str, Any], keys: Sequence[str]) -> tuple[str, str]:
    """The first of some keys under which a text stands, and the text."""
    return next(((key, fields[key]) for key in keys if is_text(fields.get(key))), ("", ""))


def _address(fields: dict[str, Any]) -> tuple[str, str]:
    """Where an address stands, and the address; the ``source`` of a document is one only if it looks like one."""
    key, url = _first_text(fields, _URL_KEYS)
    source = fields.get("source")
    if not key and is_text(source) and _ADDRESS.match(source):
        return "source", source
    return key, url


def _fields(item: dict[Any, Any], text_key: str) -> dict[str, Any]:
    """What a dict item says of its source; a ``metadata`` dict in it is taken apart."""
    inner = item.get("metadata")
    own = _named({key: value for key, value in item.items() if not text_key or key != text_key})
    return own | {key: value for key, value in _named(inner).items() if key not in own} if type(inner) is dict else own


def _named(fields: dict[Any, Any]) -> dict[str, Any]:
    """Fields under names, as `Source` shows them; the artifact itself keeps keys of other types."""
    return {key if is_text(key) else Codec().encode(key, omitted=[]): value for key, value in fields.items()}
