"""Validate database addresses, and redact them for display.

User info and options of an address can be secrets. A malformed address may contain them anywhere, so errors never quote
an address.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

from convstore.exceptions import InvalidInputError

ADDRESS_FORM = (
    "mongodb://user:password@host:27017/database?option=value, with user and password "
    "percent-encoded"
)

_HIDDEN = "…"
_SCHEMES = ("mongodb://", "mongodb+srv://", "memory://")
# "@" is allowed only between user info and hosts, and ports are numeric, so no part of a password can pass for a host.
_HOST = r"(?:\[[^]@/?,]+]|[^][@/?,:]+)(?::\d{1,5})?"
_WELL_FORMED = re.compile(
    rf"""(?P<scheme>mongodb(?:\+srv)?://) (?P<user>[^@/?]*@)?
            (?P<hosts>{_HOST}(?:,{_HOST})*(?:/[^@?]*)?) (?:\?[^@]*)?
        | (?P<memory>memory://[^@?:]*)""",
    re.VERBOSE,
)
_PLAIN_OPTION = re.compile(
    r"(?:replicaSet|tls|ssl|authSource|authMechanism|directConnection|loadBalanced|retryWrites"
    r"|retryReads|w|readPreference|serverSelectionTimeoutMS|connectTimeoutMS|socketTimeoutMS"
    r"|timeoutMS)=[\w$.-]+",
    re.IGNORECASE,
)
_AROUND = " \t\r\n\v\f\"'`<>\u201c\u201d\u2018\u2019"
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
# A scheme followed by a host, or "user:password@" without a scheme; excludes the examples in our own messages.
_BEGINNING = re.compile(
    r"""(?<![\w+.-]) (?! (?:mongodb://)? (?:localhost:27017/app\b | user:password@host) )
        (?: [\w+.-]*://(?=[^\s/,…'")]) | mongo[\w+]*:/?(?=[^\s/,'"])
            | [^\s'"(:/]+:(?!//)[^\s@]+@ )""",
    re.VERBOSE | re.IGNORECASE,
)


def check_address(uri: object) -> str:
    """Return the address if it is well-formed; the driver checks the rest. Errors never contain a part of it."""
    if not isinstance(uri, str):
        raise InvalidInputError(
            "an address must be a str such as 'mongodb://localhost:27017/app', "
            f"not {type(uri).__name__}"
        )
    if uri != uri.strip(_AROUND):
        raise InvalidInputError(
            "the address has a blank, a line break or a quote at its beginning or end: remove it"
        )
    if not uri.startswith(_SCHEMES):
        raise InvalidInputError(
            "an address begins with mongodb://, mongodb+srv:// or memory://, in lower case; "
            "this one does not"
        )
    if _UNPRINTABLE.search(uri) or not _WELL_FORMED.fullmatch(uri):
        raise InvalidInputError(
            f"the address is malformed; it must have the form {ADDRESS_FORM}: inside the password "
            "write '@' as %40, '/' as %2F and ':' as %3A, as urllib.parse.quote_plus does"
        )
    return uri


def is_address(text: str) -> bool:
    """Return True if a text is an address, even a malformed one, rather than the name of a file.

    >>> is_address("mongodb://db/app"), is_address(" 'mongo:ada:secret@db/app"), is_address("chats/mongodb.jsonl")
    (True, True, False)
    """
    return _BEGINNING.search(text) is not None or text.strip(_AROUND).startswith(_SCHEMES)


def safe_address(uri: str) -> str:
    """Return an address without user info and options, or "…" for one that is malformed.

    >>> safe_address("mongodb://ada:secret@db.example.org/app?tlsCertificateKeyFilePassword=secret")
    'mongodb://…@db.example.org/app'
    >>> safe_address("mongodb://ada:se/cret@db.example.org/app")
    '…'
    """
    found = _WELL_FORMED.fullmatch(uri)
    if not found or not uri.isprintable():
        return _HIDDEN
    if found["memory"]:
        return found["memory"]
    user = f"{_HIDDEN}@" if found["user"] else ""
    return f"{found['scheme']}{user}{found['hosts']}"


def address_to_print(uri: str) -> tuple[str, bool]:
    """Return an address without secrets, and True if nothing had to be hidden, so that it can be used again.

    "…" replaces the user info, and all options but those that are known to be harmless.

    >>> address_to_print("mongodb://ada:secret@db/app?tls=true&tlsCertificateKeyFilePassword=secret")
    ('mongodb://…@db/app?tls=true&…', False)
    """
    shown = safe_address(uri)
    options = uri.partition("?")[2].split("&") if shown != _HIDDEN and "?" in uri else []
    plain = [option for option in options if _PLAIN_OPTION.fullmatch(option)]
    if hidden := len(plain) < len(options):
        plain.append(_HIDDEN)
    return f"{shown}{'?' if plain else ''}{'&'.join(plain)}", not hidden and _HIDDEN not in shown


def without_addresses(text: str) -> str:
    """Cut a text before the first address in it that may contain a secret.

    Everything after it is removed too, because the end of a malformed address cannot be determined.

    >>> without_addresses("unexpected argument (mongo://ada:S3 cret@db/app)")
    'unexpected argument (…'
    """
    found = _BEGINNING.search(text)
    return f"{text[: found.start()]}{_HIDDEN}" if found else text


def contains_part_of(text: str, uri: str) -> bool:
    """Return True if a text contains a word of the address, encoded or decoded, which may be part of a secret."""
    secret = uri.partition("://")[2].lower()
    words = re.findall(r"[^\W_]+", f"{secret} {unquote_plus(secret)}")
    return any(word in text.lower() for word in words)
