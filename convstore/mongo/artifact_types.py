"""Register the types of PyMongo's values, which tools that read MongoDB have in their artifacts."""

from __future__ import annotations

from functools import partial
from typing import Any

from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.json_util import CANONICAL_JSON_OPTIONS, dumps, loads

from convstore.messages.values import Codec, Kind

_TYPES = (Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp)
_dump = partial(dumps, json_options=CANONICAL_JSON_OPTIONS)
_load = partial(loads, json_options=CANONICAL_JSON_OPTIONS)


def new_codec() -> Codec:
    """Return a codec of the standard types and those of PyMongo, which it writes as MongoDB's extended JSON.

    >>> codec = new_codec()
    >>> codec.decode(codec.encode([MinKey()]))
    [MinKey()]
    """
    codec = Codec()
    # Extended JSON gives bytes for Binary of the generic subtype.
    codec.register(Binary, Kind("bson.Binary", _dump_binary, _load_binary))
    for type_ in _TYPES:
        codec.register(type_, Kind(f"bson.{type_.__name__}", _dump, _load))
    return codec


def _dump_binary(value: Binary) -> list[Any]:
    return [bytes(value), value.subtype]


def _load_binary(plain: list[Any]) -> Binary:
    return Binary(*plain)
