"""Represent a source, which is one retrieved item of a tool result, and read and write ranges of source ids.

An item is a ``Document``, a ``(text, metadata)`` pair, a dict or a plain text. `sources.detection` finds the items in a
tool result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from langchain_core.documents import Document

from convstore.messages.encoding import digest_of
from convstore.messages.foreign_values import numpy_scalar
from convstore.messages.json_text import TEXT_TYPES
from convstore.messages.values import Codec, DocumentFields, is_text
from convstore.sources.naming import URL_KEYS, label_of

MAX_SOURCES = 1_000
"""Maximum number of sources in one result; a longer list counts as data, such as the rows of a table."""

TEXT_DIGEST_BYTES = 8
"""Length of a source's digest; sufficient to distinguish the sources of one conversation."""

_LABEL_CHARACTERS = 150
_TITLE_CHARACTERS = 200
URL_CHARACTERS = 500
"""Maximum length of an address in an entry; a longer one is cut."""

TEXT_KEYS = ("content", "page_content", "text", "snippet", "body")
"""Keys of the text in a dict item, in order of preference."""

_DETAILS = {"metadata": "", "_source": "", "payload": "", "node": "score"}
"""Keys under which Pinecone, Elasticsearch, Qdrant and LlamaIndex nest the text of a match, each with a key that the
match must have, too."""

_PASSAGE_CHARACTERS = 100
_PASSAGE_WORDS = 10


def retrieved(
    value: Any, *, needs: str = "", inside: str = "", text_key: str = ""
) -> FoundSource | None:
    """Return an item of a list as a source; None if the item does not look retrieved.

    A ``Document`` and a ``(text, metadata)`` pair are sources, and so is a dict with a text, a title, an address, a
    file id or a source id. A name alone is not enough, because people and products have names, too. The text may also
    be in the dict under the key `inside`, or under `text_key`. With `needs`, the item must be a dict with that key.

    >>> retrieved({"title": "Fares", "rank": 1}).title
    'Fares'
    >>> retrieved({"flight": "X1", "price": 3}) is None
    True
    """
    if needs and not (type(value) is dict and value.get(needs)):
        return None
    if type(value) is not dict:
        return source_in(value)
    blocks = value.get("content")
    text = text_in(blocks) if type(blocks) is list else ""
    found = source_in(plain_item(value, text) if text else value)
    if found is None or found.text_key:
        return found
    details = {inside: "", **_DETAILS} if inside else _DETAILS
    item = _match(value, details)
    if item is None and text_key and is_text(value.get(text_key)):
        item = plain_item(value, value[text_key], without=(text_key,))
    if item is not None:
        return source_in(item)
    return found if _is_named(found) else None


def _is_named(found: FoundSource) -> bool:
    """Return True if an item without a text has an address, a number, a title or the id of a file."""
    has_label = first_text(found.fields, ("title", "file_id"))
    return bool(found.url or found.kept_id is not None or has_label)


def retrieved_text(value: Any) -> FoundSource | None:
    """Return a plain text as a source; None if it is blank or not a text.

    >>> retrieved_text("Whales sing.").text, retrieved_text(" ")
    ('Whales sing.', None)
    """
    return FoundSource(value, value, {}) if is_text(value) and value.strip() else None


def is_passage(text: str) -> bool:
    """Return True if a text begins with prose, not with a record, a path, a log line or a tag.

    >>> is_passage("Whales sing their songs to each other. " * 3), is_passage("https://sea.example/" + "a" * 100)
    (True, False)
    """
    beginning = text[: 2 * _PASSAGE_CHARACTERS]
    words = len(beginning.split())
    # scripts such as Chinese
    is_without_spaces = len(beginning.encode(errors="replace")) > 2 * len(beginning)
    has_words = words >= _PASSAGE_WORDS or is_without_spaces
    letters = sum(map(str.isalpha, beginning)) + words
    return len(beginning) >= _PASSAGE_CHARACTERS and has_words and 5 * letters >= 4 * len(beginning)


def _match(value: dict[Any, Any], inside: Mapping[str, str]) -> dict[Any, Any] | None:
    """Convert a match with its text nested among its details to an item; None if it has no such text."""
    for name, sign in inside.items():
        details = value.get(name) if not sign or sign in value else None
        if type(details) is dict and (key := first_text(details, (*TEXT_KEYS, "document"))):
            rest = {field: detail for field, detail in details.items() if field != key}
            around = {field: detail for field, detail in value.items() if field != name}
            return plain_item(
                {**rest, **_address_in(value.get("location")), **around}, details[key]
            )
    return None


def _address_in(location: Any) -> dict[str, str]:
    """Return the address in a location of Amazon Bedrock, under the key of its kind."""
    kinds = location.values() if type(location) is dict else ()
    return next(
        (
            {"url": kind[key]}
            for kind in kinds
            if type(kind) is dict and (key := first_text(kind, URL_KEYS))
        ),
        {},
    )


def plain_item(
    fields: dict[Any, Any],
    text: str,
    *,
    title: Sequence[str] = (),
    url: Sequence[str] = (),
    without: Collection[str] = (),
) -> dict[Any, Any]:
    """Return a dict item with its text under ``content`` and all other fields except those in `without`.

    `title` and `url` are further keys under which title and address may be.

    >>> plain_item({"source": "https://a", "rank": 1, "title": None}, "text", url=["source"])
    {'content': 'text', 'url': 'https://a', 'rank': 1, 'title': None}
    """
    label_keys = {
        label: key
        for label, keys in (("title", ("title", *title)), ("url", ("url", *url)))
        if (key := first_text(fields, keys))
    }
    item = {"content": text} | {label: fields[key] for label, key in label_keys.items()}
    rest = {
        key: value
        for key, value in fields.items()
        if key not in without and key not in label_keys.values()
    }
    return item | {key: value for key, value in rest.items() if key not in item}


def first_text(fields: dict[Any, Any], keys: Sequence[str]) -> str:
    """Return the first of the keys whose value is a text, or "".

    >>> first_text({"title": 7, "name": "N"}, ["title", "name"])
    'name'
    """
    for key in keys:
        if key in fields and type(fields[key]) in TEXT_TYPES:
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
        text: The text to read and cite; "" if the item has no text.
        fields: All other fields that the tool gave.
        text_key: Key of the text in a dict item.
        origin: The value in the tool's list if the item was converted from it, else None.
    """

    item: Any
    text: str
    fields: dict[str, Any]
    text_key: str = ""
    origin: Any = None

    @property
    def kept_id(self) -> int | None:
        """The number that the tool gave, if it is a positive int under ``source_id``; else None."""
        number = self.fields.get("source_id")
        return number if type(number) is int and 0 < number < 2**53 else None

    def digest(self, codec: Codec) -> bytes:
        """Return the digest of its text or, if it has none, of its fields without the number."""
        if self.text:
            return text_digest(self.text)
        fields = {key: value for key, value in self.fields.items() if key != "source_id"}
        return text_digest(codec.encode(fields, omitted=[]))

    def label(self) -> tuple[str, str, dict[str, Any]]:
        """Return its title, its address, and its other fields without the number; see `label_of`."""
        title, url, rest = label_of(self.fields)
        if "source_id" in rest and self.kept_id:
            del rest["source_id"]
        return title, url, rest

    def shown(self) -> tuple[str, str, bool]:
        """Return the beginnings of its title and address, and True if it has no other data and both fit in one line."""
        title, url, metadata = self.label()
        says_more = (
            len(title) + len(url) > _LABEL_CHARACTERS
            or metadata
            or getattr(self.item, "id", None) is not None
        )
        return title[:_TITLE_CHARACTERS], url[:URL_CHARACTERS], not says_more

    @property
    def title(self) -> str:
        """The title to show, with file and position, or ""."""
        return self.label()[0]

    @property
    def url(self) -> str:
        """Its address, or ""."""
        return self.label()[1]

    def with_number(self, number: int) -> Any:
        """Return the item with a number, which replaces any earlier one."""
        if isinstance(self.item, Document):
            numbered = {**self.item.metadata, "source_id": number}
            return Document(page_content=self.item.page_content, id=self.item.id, metadata=numbered)
        if isinstance(self.item, dict):
            return {**self.item, "source_id": number}
        if isinstance(self.item, str):
            return {"content": self.item, "source_id": number}
        if scored := _scored(self.item):
            return type(self.item)([scored.with_number(number), self.item[1]])
        return type(self.item)([self.item[0], {**self.item[1], "source_id": number}])

    def with_text(self, text: Any) -> Any:
        """Return the item with its text replaced."""
        if isinstance(self.item, Document):
            return DocumentFields(
                {"id": self.item.id, "page_content": text, "metadata": self.item.metadata}
            )
        if isinstance(self.item, dict):
            return {**self.item, self.text_key: text} if self.text_key else self.item
        if isinstance(self.item, str):
            return text
        if scored := _scored(self.item):
            return type(self.item)([scored.with_text(text), self.item[1]])
        return type(self.item)([text, self.item[1]])


class FoundSources(NamedTuple):
    """The sources of one tool result.

    Attributes:
        items: The sources in the tool's order.
        rebuild: Returns the artifact with its items replaced; None if the sources are not items of the artifact.
        is_named: True if they are certainly sources: from a response of a search service, a list under ``sources``, or
            an extractor.
        is_shown: True if they are items of the JSON that is the tool's content.
    """

    items: tuple[FoundSource, ...] = ()
    rebuild: Callable[[list[Any]], Any] | None = None
    is_named: bool = False
    is_shown: bool = False


def text_digest(text: str) -> bytes:
    """Return the digest of a source's text, the first bytes of its SHA-256."""
    return digest_of(text)[:TEXT_DIGEST_BYTES]


def _is_pair(item: Any) -> bool:
    """Return True for a text with its metadata."""
    if type(item) not in (tuple, list) or len(item) != 2:
        return False
    return is_text(item[0]) and type(item[1]) is dict


def source_in(item: Any) -> FoundSource | None:
    """Return an item of a list as a source; None if its type is unknown."""
    if type(item) is dict:
        key = first_text(item, TEXT_KEYS)
        return FoundSource(item, item[key] if key else "", _fields(item, key), key)
    if _is_pair(item):
        return FoundSource(item, item[0], _named(item[1]))
    if type(item) is Document and is_text(item.page_content) and type(item.metadata) is dict:
        return FoundSource(item, item.page_content, _named(item.metadata))
    scored = _scored(item)
    return scored and scored._replace(item=item)


def _scored(item: Any) -> FoundSource | None:
    """Return the source in a pair of a document and its score, as vector stores of LangChain return it."""
    if type(item) not in (list, tuple) or len(item) != 2:
        return None
    score = numpy_scalar(item[1])
    if type(score) not in (int, float):
        return None
    found = source_in(item[0]) if type(item[0]) in (dict, Document) else None
    is_source = found and (found.text_key or type(item[0]) is Document)
    return found._replace(fields={"score": score, **found.fields}) if found and is_source else None


def write_ids(ids: Iterable[int]) -> str:
    """Format source ids as stubs show them: sorted, with runs as ranges.

    >>> write_ids([12, 3, 11, 13])
    '3, 11-13'
    """
    numbers = sorted(set(ids))
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    breaks = [index for index, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1]
    runs = [numbers[a:b] for a, b in pairwise([0, *breaks, len(numbers)])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs if run)


def read_ids(text: str) -> list[int]:
    """Parse the source ids in a text such as `write_ids` returns, in the order of the text.

    Returns at most `MAX_SOURCES` + 1 ids, so that callers can detect too many.

    >>> read_ids("11-13, 3")
    [11, 12, 13, 3]

    Raises:
        ValueError: The text is malformed, or has more than `MAX_SOURCES` ranges of the same ids.
    """
    numbers: dict[int, None] = {}
    parts = dict.fromkeys(filter(None, (part.strip() for part in text.split(","))))
    for count, part in enumerate(parts):
        first, _, last = part.partition("-")
        low = _number(first)
        high = _number(last or first)
        numbers |= dict.fromkeys(range(low, min(high, low + MAX_SOURCES) + 1))
        if len(numbers) > MAX_SOURCES:
            break
        if count > MAX_SOURCES:
            raise ValueError(f"more than {MAX_SOURCES:,} ranges name the same source ids")
    return list(numbers)[: MAX_SOURCES + 1]


def _number(text: str) -> int:
    digits = text.strip().strip("[]")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 15:
        raise ValueError(f"{text[:50]!r} is not a source id")
    return int(digits)


def _fields(item: dict[Any, Any], text_key: str) -> dict[str, Any]:
    """Return the fields of a dict item without its text; a ``metadata`` dict in it is flattened."""
    inner = item.get("metadata")
    own = _named(item)
    if text_key:
        del own[text_key]
    return own | _named(inner) | own if type(inner) is dict else own


def _named(fields: dict[Any, Any]) -> dict[str, Any]:
    """Return fields with every key as a str, as `Source` requires; the artifact itself is unchanged."""
    if set(map(type, fields)) <= {str}:
        return dict(fields)
    return {
        key if is_text(key) else Codec().encode(key, omitted=[]): value
        for key, value in fields.items()
    }
