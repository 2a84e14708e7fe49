"""Turns messages into text that MongoDB can keep and back again, equal to what went in.

Layer 1. Three steps, one module each: ``values`` writes any Python value of a known type as JSON text,
``messages`` splits a message into a small body and a payload, ``payloads`` cuts a payload into compressed chunks.
No pickle, no import by stored name: a stored document can only ever become a value of a type known here.
"""

from __future__ import annotations

from convstore.codec.messages import (
    MESSAGE_TYPES,
    PART_MINIMUM,
    EncodedMessage,
    SourceItem,
    SourcePlace,
    decode_message,
    digest_of,
    encode_message,
    encode_source,
    fields_of,
    leave_out,
    with_stub,
)
from convstore.codec.payloads import CHUNK_BYTES, compress, cut, decompress
from convstore.codec.registered import functions_of
from convstore.codec.values import Codec, DocumentFields, Kind, Omitted, PayloadRange, is_text

__all__ = [
    "CHUNK_BYTES",
    "MESSAGE_TYPES",
    "PART_MINIMUM",
    "Codec",
    "DocumentFields",
    "EncodedMessage",
    "Kind",
    "Omitted",
    "PayloadRange",
    "SourceItem",
    "SourcePlace",
    "compress",
    "cut",
    "decode_message",
    "decompress",
    "digest_of",
    "encode_message",
    "encode_source",
    "fields_of",
    "functions_of",
    "is_text",
    "leave_out",
    "with_stub",
]
