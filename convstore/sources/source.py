"""Represent a source, which is one retrieved item of a tool result, and read and write ranges of source ids.

An item is a ``Document``, a ``(text, metadata)`` pair, a dict or a bare text. `sources.detection` finds the items in a
tool result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from langchain_core.documents import Document

from convstore.messages.encoding import digest_of
from convstore.messages.json_text import TEXT_TYPES
from convstore.messages.values import Codec, DocumentFields, is_text

MAX_SOURCES = 1_000
"""Maximum number of sources in one result; a longer list is data, such as the rows of a table."""

TEXT_DIGEST_BYTES = 8
"""Length of a source's digest; sufficient to distinguish the sources of one conversation."""

_LABEL_CHARACTERS = 150

TEXT_KEYS = ("content", "page_content", "text", "snippet", "body")
"""Keys of the text in a dict item, in order of preference."""

_TITLE_KEYS = ("title", "name", "filename")

_URL_KEYS = ("url", "link", "uri")

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{1,30}://\S", re.IGNORECASE)

_DETAILS = ("metadata", "_source", "payload")
"""Keys under which vector stores nest the text and other fields of a match: Pinecone, Elasticsearch, Qdrant."""


def retrieved(value: Any) -> FoundSource | None:
    """Return the source in an item of a list; None if nothing indicates that the item was retrieved.

    A ``Document`` and a ``(text, metadata)`` pair indicate it, and so does a dict with a text, a title, an address, a
    file id or a source id. A name alone does not, because people and products have names too.

    >>> retrieved({"title": "Fares", "rank": 1}).title
    'Fares'
    >>> retrieved({"flight": "X1", "price": 3}) is None
    True
    """
    if type(value) is dict and type(value.get("content")) is list and (text := text_in(value["content"])):
        return source_in(plain_item(value, text))
    found = source_in(value)
    if found is None or type(value) is not dict or found.text_key:
        return found
    if match := _match(value):
        return source_in(match)
    is_named = found.url or found.kept_id is not None or first_text(found.fields, ("title", "file_id"))
    return found if is_named else None


def retrieved_file(value: Any) -> FoundSource | None:
    """Return the source in an item of a list of files; None if it has no file id.

    >>> retrieved_file({"file_id": "f1", "filename": "a.md", "content": [{"type": "text", "text": "…"}]}).title
    'a.md'
    >>> retrieved_file({"title": "a.md"}) is None
    True
    """
    return retrieved(value) if type(value) is dict and first_text(value, ("file_id",)) else None


def retrieved_text(value: Any) -> FoundSource | None:
    """Return a bare text as a source; None if it is blank or not a text.

    >>> retrieved_text("Whales sing.").text, retrieved_text(" ")
    ('Whales sing.', None)
    """
    return FoundSource(value, value, {}) if is_text(value) and value.strip() else None


def _match(value: dict[Any, Any]) -> dict[Any, Any] | None:
    """Convert a match with its text nested among its details to an item; None if it has no such text."""
    for name in _DETAILS:
        details = value.get(name)
        if type(details) is dict and (key := first_text(details, TEXT_KEYS)):
            rest = {field: one for field, one in details.items() if field != key}
            around = {field: one for field, one in value.items() if field != name}
            return plain_item({**rest, **around}, details[key])
    return None


def plain_item(
    fields: dict[Any, Any],
    text: str,
    *,
    title: Sequence[str] = (),
    url: Sequence[str] = (),
    without: Collection[str] = (),
) -> dict[Any, Any]:
    """Return a dict item with its text under ``content``, along with its other fields but those `without`.

    `title` and `url` are further keys that title and address may have.

    >>> plain_item({"source": "https://a", "rank": 1, "title": None}, "text", url=["source"])
    {'content': 'text', 'url': 'https://a', 'rank': 1, 'title': None}
    """
    label_keys = {
        label: key
        for label, keys in (("title", ("title", *title)), ("url", ("url", *url)))
        if (key := first_text(fields, keys))
    }
    item = {"content": text} | {label: fields[key] for label, key in label_keys.items()}
    rest = {key: value for key, value in fields.items() if key not in without and key not in label_keys.values()}
    return item | {key: value for key, value in rest.items() if key not in item}


def first_text(fields: dict[Any, Any], keys: Sequence[str]) -> str:
    """Return the first of the keys whose value is a text, "" if there is none.

    >>> first_text({"title": 7, "name": "N"}, ["title", "name"])
    'name'
    """
    for key in keys:
        if type(fields.get(key)) in TEXT_TYPES:
            return key
    return ""


def text_in(value: Any) -> str:
    r"""Return a text, or the texts of a list of text blocks joined by line breaks; "" for anything else.

    >>> text_in([{"type": "text", "text": "one"}, {"type": "image"}, "two"])
    'one\ntwo'
    """
    if is_text(value):
        return value
    if type(value) not in (list, tuple):
        return ""
    texts = (part.get("text") if type(part) is dict else part for part in value)
    return "\n".join(text for text in texts if is_text(text))


class FoundSource(NamedTuple):
    """One source as the tool returned it.

    Attributes:
        item: The value in the tool's list.
        text: The text to read and cite; "" if the item has none.
        fields: All other fields that the tool gave.
        text_key: Key of the text in a dict item.
    """

    item: Any
    text: str
    fields: dict[str, Any]
    text_key: str = ""

    @property
    def kept_id(self) -> int | None:
        """The number that the tool gave it, a positive int under ``source_id``; else None."""
        number = self.fields.get("source_id")
        return number if type(number) is int and 0 < number < 2**53 else None

    def digest(self, codec: Codec) -> bytes:
        """Return the digest of its text or, if it has none, of its fields without the number."""
        if self.text:
            return digest_of(self.text)[:TEXT_DIGEST_BYTES]
        fields = {key: value for key, value in self.fields.items() if key != "source_id"}
        return text_digest(codec.encode(fields, omitted=[]))

    def label(self) -> tuple[str, str, dict[str, Any]]:
        """Return its title, its address, and its other fields without the number; "" for a missing text."""
        rest = self.fields.copy()
        if "source_id" in rest and self.kept_id:
            del rest["source_id"]
        title_key, url_key = first_text(rest, _TITLE_KEYS), _address(rest)
        return rest.pop(title_key) if title_key else "", rest.pop(url_key) if url_key else "", rest

    @property
    def title(self) -> str:
        """Its title, "" if there is none."""
        return self.label()[0]

    @property
    def url(self) -> str:
        """Its address, "" if there is none."""
        return self.label()[1]

    @property
    def metadata(self) -> dict[str, Any]:
        """All fields that the tool gave, without number, title and address."""
        return self.label()[2]

    def with_number(self, number: int) -> Any:
        """Return the item with a number, which replaces any earlier one."""
        if isinstance(self.item, Document):
            numbered = {**self.item.metadata, "source_id": number}
            return Document(page_content=self.item.page_content, id=self.item.id, metadata=numbered)
        if isinstance(self.item, dict):
            return {**self.item, "source_id": number}
        if isinstance(self.item, str):
            return {"content": self.item, "source_id": number}
        return type(self.item)([self.item[0], {**self.item[1], "source_id": number}])

    def with_text(self, text: Any) -> Any:
        """Return the item with its text replaced."""
        if isinstance(self.item, Document):
            return DocumentFields({"id": self.item.id, "page_content": text, "metadata": self.item.metadata})
        if isinstance(self.item, dict):
            return {**self.item, self.text_key: text} if self.text_key else self.item
        if isinstance(self.item, str):
            return text
        return type(self.item)([text, self.item[1]])


class FoundSources(NamedTuple):
    """The sources of one tool result.

    Attributes:
        items: The sources in the tool's order.
        rebuild: Returns the artifact with its items replaced; None if the sources are not items of the artifact.
    """

    items: tuple[FoundSource, ...] = ()
    rebuild: Callable[[list[Any]], Any] | None = None


def says_more(item: Any, title: str, url: str, metadata: dict[str, Any]) -> bool:
    """Return True if an item holds more than its text, its number, and title and address as shown in one line."""
    is_cut = len(title) + len(url) > _LABEL_CHARACTERS
    return is_cut or bool(metadata) or getattr(item, "id", None) is not None


def text_digest(text: str) -> bytes:
    """Return the digest of a source's text: the beginning of its sha256."""
    return digest_of(text)[:TEXT_DIGEST_BYTES]


def source_in(item: Any) -> FoundSource | None:
    """Return an item of a list as a source; None if its type is unknown."""
    if type(item) is Document and is_text(item.page_content) and type(item.metadata) is dict:
        return FoundSource(item, item.page_content, _named(item.metadata))
    if type(item) is dict:
        key = first_text(item, TEXT_KEYS)
        return FoundSource(item, item[key] if key else "", _fields(item, key), key)
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
    """Format source ids as stubs show them: sorted, with runs as ranges.

    >>> write_ids([12, 3, 11, 13])
    '3, 11-13'
    """
    numbers = sorted(set(ids))
    breaks = [index for index, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1]
    runs = [numbers[a:b] for a, b in pairwise([0, *breaks, len(numbers)])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs if run)


def read_ids(text: str) -> list[int]:
    """Parse the source ids in a text such as `write_ids` returns, in the order of the text.

    Returns at most `MAX_SOURCES` + 1 ids, so that callers can detect too many.

    >>> read_ids("11-13, 3")
    [11, 12, 13, 3]

    Raises:
        ValueError: The text is malformed.
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


def _address(fields: dict[str, Any]) -> str:
    """Return the key of the address, "" if there is none; ``source`` counts only if its value looks like an address."""
    if key := first_text(fields, _URL_KEYS):
        return key
    source = fields.get("source")
    return "source" if is_text(source) and _ADDRESS.match(source) else ""


def _fields(item: dict[Any, Any], text_key: str) -> dict[str, Any]:
    """Return the fields of a dict item without its text; a ``metadata`` dict in it is flattened."""
    inner, own = item.get("metadata"), _named(item)
    if text_key:
        del own[text_key]
    return own | {key: value for key, value in _named(inner).items() if key not in own} if type(inner) is dict else own


def _named(fields: dict[Any, Any]) -> dict[str, Any]:
    """Return fields with every key as a str, as `Source` requires; the artifact itself is unchanged."""
    if set(map(type, fields)) <= {str}:
        return dict(fields)
    return {key if is_text(key) else Codec().encode(key, omitted=[]): value for key, value in fields.items()}
