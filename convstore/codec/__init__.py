"""Turns messages into text that MongoDB can keep and back again, equal to what went in.

Layer 1. Three steps, one module each: ``values`` writes any Python value of a known type as JSON text,
``messages`` splits a message into a small body and a payload, ``payloads`` cuts a payload into compressed chunks;
``media`` tells images, audio and files from text.
No pickle, no import by stored name: a stored document can only ever become a value of a type known here.
"""

from __future__ import annotations

from convstore.codec.media import is_media, media_description
from convstore.codec.messages import (
    EDGE_CHARACTERS,
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
    link_of,
)
from convstore.codec.payloads import CHUNK_BYTES, compress, cut, decompress
from convstore.codec.ranges import PayloadRange
from convstore.codec.registered import functions_of
from convstore.codec.values import Codec, DocumentFields, Kind, Omitted, is_text

__all__ = [
    "CHUNK_BYTES",
    "EDGE_CHARACTERS",
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
    "is_media",
    "is_text",
    "link_of",
    "media_description",
]
