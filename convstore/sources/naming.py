"""Name a source by the metadata of loaders and vector stores: title or file, position in the file, and address."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import PurePath
from typing import Any

from convstore.messages.foreign_values import numpy_scalar
from convstore.messages.values import is_text

URL_KEYS = (
    *("url", "link", "uri", "sourceUri", "source_uri"),
    *("webUrl", "web_url", "sourceURL", "source_url"),
)
"""Keys of the address, in order of preference; ``source`` also counts if its value looks like an address."""

_TITLE_KEYS = (
    *("title", "name", "Title", "sourceDisplayName", "source_display_name"),
    *("document_title", "document_name", "subject"),
)
_FILE_KEYS = ("filename", "file_name", "fileName", "metadata_storage_name")
_PATH_KEYS = ("source", "file_path", "filepath", "path", "file")
_OF_FILES = frozenset((*_FILE_KEYS, *_PATH_KEYS))
_POSITION_KEYS = {
    "page": (
        *("page_label", "page", "page_number", "pageNumber"),
        *("page_identifier", "x-amz-bedrock-kb-document-page-number"),
    ),
    "slide": ("slide", "slide_number"),
    "sheet": ("sheet", "sheet_name", "page_name"),
    "row": ("row",),
    "section": ("section", "section_title"),
    "line": ("start_line",),
}
"""Keys of the position in a file, by the word in the heading. Numbers are shown as the loader counts them."""
_HEADERS = tuple(f"Header {level}" for level in range(1, 7))
"""Keys under which LangChain's Markdown and HTML splitters store the headings above a passage."""
_IN_A_FILE = frozenset((*_HEADERS, *(key for keys in _POSITION_KEYS.values() for key in keys)))

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{1,30}://\S", re.IGNORECASE)
_ABSOLUTE = re.compile(r"[/\\~]|[A-Za-z]:[/\\]")
_EXTENSION = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,5}")
_POSITION_CHARACTERS = 80
_PATH_CHARACTERS = 120
_FIELD_CHARACTERS = 200
_LISTED = 20
"""Maximum number of values of a list that is shown as a field."""


def label_of(fields: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return the title for a source, its address, and the fields that these two do not show completely.

    The title is that of the metadata, else the file. If there is no address, the file follows the title. Then follows
    the position: page, slide, sheet, row, section, line. The title is "" if a source has none of these.

    >>> label_of({"source": "contracts/acme.pdf", "page": 3, "page_label": "4"})[0]
    'contracts/acme.pdf, page 4'
    >>> label_of({"title": "Fares", "link": "https://a.example", "rank": 1})
    ('Fares', 'https://a.example', {'rank': 1})
    """
    url_key = _url_key(fields)
    title_key = _first_filled(fields, _TITLE_KEYS)
    file_key = _file_key(fields, without=url_key)
    title = fields[title_key] if title_key else ""
    parts = [title]
    if file_key and not (title_key and url_key):
        parts.append(_file(fields[file_key], title))
    parts += _position(fields)
    shown = [*filter(None, parts)]
    own_key = title_key or file_key
    rest = dict(fields)
    url = rest.pop(url_key) if url_key else ""
    if own_key and shown == [fields[own_key]]:
        rest.pop(own_key, None)
    return ", ".join(shown), url, rest


def own_names(fields: Mapping[str, Any]) -> list[str]:
    """Return the texts with which a tool may refer to a source in its content: title, address, path and file name.

    >>> own_names({"title": "Acme", "source": "contracts/acme.pdf"})
    ['Acme', 'contracts/acme.pdf', 'acme.pdf']
    """
    keys = _own_keys(fields)
    names = [str(fields[key]) for key in keys if key]
    if keys[-1]:
        names.append(_base(names[-1]))
    return list(dict.fromkeys(names))


def _own_keys(fields: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the keys of the title, the address and the file, "" for each that is missing."""
    title = _first_filled(fields, _TITLE_KEYS)
    return title, _url_key(fields), _file_key(fields, without="")


def named_fields(fields: Mapping[str, Any], names: Iterable[str], heading: str) -> str:
    """Return the fields with some names in one line, without those that the heading of the source shows.

    >>> fields = {"title": "Frequent fares", "version": 1, "language": "en", "acl": "hr"}
    >>> named_fields(fields, ("title", "version", "language"), "[1] Frequent fares")
    'version: 1, language: en'
    """
    own = _own_keys(fields)
    shown: list[str] = []
    for name in names:
        value = _one_line(fields[name]) if name in fields else ""
        is_own = name in own and value in heading
        is_in_heading = name in _IN_A_FILE or is_own or _has_words(heading, value)
        if value and not is_in_heading:
            shown.append(f"{name}: {value}")
    return ", ".join(shown)


def _has_words(heading: str, value: str) -> bool:
    """Return True if a heading contains a value as words; values without letters never count."""
    if not any(map(str.isalpha, value)):
        return False
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", heading) is not None


def _one_line(value: Any) -> str:
    """Return a text, a number, a date or a list of these on one line, cut if it is long; "" for anything else."""
    values = value[:_LISTED] if isinstance(value, list | tuple) else [value]
    text = ", ".join(filter(None, map(_plain_text, values)))
    return " ".join(text.split())[:_FIELD_CHARACTERS]


def _plain_text(value: Any) -> str:
    """Return a text, a number or a date as text; "" for anything else."""
    if is_text(value):
        return value[: 2 * _FIELD_CHARACTERS]
    plain = numpy_scalar(value)
    return str(plain) if isinstance(plain, int | float | date) else ""


def _url_key(fields: Mapping[str, Any]) -> str:
    if key := _first_filled(fields, URL_KEYS):
        return key
    source = fields.get("source")
    return "source" if is_text(source) and _ADDRESS.match(source) else ""


def _first_filled(fields: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return the first of the keys with a text that is not blank, or ""."""
    for key in keys:
        if key in fields and is_text(value := fields[key]) and value and not value.isspace():
            return key
    return ""


def _file_key(fields: Mapping[str, Any], *, without: str) -> str:
    """Return the key of the file: of a relative path, else of its name, else of an absolute path."""
    if _OF_FILES.isdisjoint(fields):
        return ""
    paths = [key for key in _PATH_KEYS if key != without and _is_path(fields.get(key))]
    path = paths[0] if paths else ""
    if path and not _ABSOLUTE.match(str(fields[path])):
        return path
    return _first_filled(fields, _FILE_KEYS) or path


def _is_path(value: Any) -> bool:
    """Return True for a path object and for a text on one line that is not an address."""
    if isinstance(value, PurePath):
        return True
    return is_text(value) and bool(value.strip()) and not _ADDRESS.match(value)


def _file(value: Any, title: str) -> str:
    """Return a file as a title, or as an addition to a title: then only its name, and only if it has an extension."""
    path = str(value)
    base = _base(path)
    if title:
        return base if _EXTENSION.search(base) and base not in title else ""
    if is_text(value) and len(value) <= _PATH_CHARACTERS:
        return value
    return path if len(path) <= _PATH_CHARACTERS else base


def _base(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def _first_value(fields: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Return the first short value under some keys, or ""."""
    for key in keys:
        value = _short(fields[key]) if key in fields else ""
        if value:
            return value
    return ""


def _position(fields: Mapping[str, Any]) -> list[str]:
    """Return the position in a file, such as ``page 4`` and ``section Fees``."""
    if _IN_A_FILE.isdisjoint(fields):
        return []
    found: list[str] = []
    for word, keys in _POSITION_KEYS.items():
        value = _first_value(fields, keys)
        if value:
            found.append(f"{word} {value}")
    headers = [header for key in _HEADERS if key in fields and (header := _short(fields[key]))]
    if headers:
        found.append(f"section {' > '.join(headers)}")
    return found


def _short(value: Any) -> str:
    """Return a number or a short text on one line; "" for anything else."""
    plain = numpy_scalar(value)
    if type(plain) is float and plain.is_integer():
        plain = int(plain)
    if type(plain) is int:
        return str(plain) if abs(plain) < 10**12 else ""
    text = " ".join(plain[:1_000].split()) if is_text(plain) else ""
    return text if len(text) <= _POSITION_CHARACTERS else ""
