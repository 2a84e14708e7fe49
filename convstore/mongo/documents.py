"""Convert entries and totals to documents and back; this module sends no command.

The documents of ``log``; `keys` explains the order of their keys::

    <conversation>#<token>#<chunk>   {conversation, data}                       a chunk of a payload
    <conversation>:<entry number>    {conversation, first, count, at, messages, totals, after, sources, lookup, facts}
    <conversation>:~                 {conversation, revision, summary, starts, system}; see `state_documents`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from sys import intern
from typing import Any

from convstore.exceptions import BatchTooLargeError, CorruptDocumentError
from convstore.log.entry import NO_FACTS, RULES, Entry, EntryMessage
from convstore.log.facts.claim import CLAIM
from convstore.log.facts.items import ITEMS
from convstore.log.facts.kind import Key
from convstore.log.facts.table import kept_source_ids, keys_of, version_of
from convstore.log.rows import is_named
from convstore.log.stored_message import CONTENT_DIGEST_BYTES
from convstore.log.turns import turns_before
from convstore.messages.encoding import DIGEST_BYTES, MESSAGE_TYPES
from convstore.messages.media_sizes import stored_media
from convstore.messages.sizes import bytes_of
from convstore.mongo.bson_values import (
    encoded,
    from_stored,
    sealed,
    stored_bytes,
    stored_list,
    stored_numbers,
    stored_text,
    stored_texts,
    unsealed,
    utc,
    wrong_with,
)
from convstore.mongo.facts import LEFT_OUT, facts_document, facts_from, with_unknown_keys
from convstore.mongo.keys import entry_id
from convstore.mongo.payloads import payload_document, payload_from
from convstore.mongo.source_columns import source_blocks, source_documents, sources_from
from convstore.mongo.totals_documents import totals_document, totals_from
from convstore.mongo.versions import check_version, stamped

ENTRY_BYTES = 1_000_000
"""Maximum size of the document of an entry, without payloads."""

LEAN = {"sources": 0, "lookup": 0, "kept_source_ids": 0, "totals.preview": 0, **LEFT_OUT}
"""Projection that drops the fields of an entry that few readers use."""

NO_MESSAGES = {"messages": 0, "sources": 0, "lookup": 0, **LEFT_OUT}
"""Projection that drops the messages of an entry, their sources and look-up values."""


def entry_document(conversation: str, entry: Entry) -> dict[str, Any]:
    """Return the document of an entry; its texts may have lone surrogates, see `bson_values.encoded`."""
    number = entry.totals.entries
    last = entry.totals.messages
    document: dict[str, Any] = {
        "_id": entry_id(conversation, number),
        "conversation": conversation,
        "first": entry.first,
        "count": last - entry.first + 1,
        "at": entry.at,
        "messages": _message_documents(entry.messages),
        "totals": totals_document(entry.totals),
        "after": entry.after,
    }
    if not entry.messages:
        del document["messages"]  # the unique index covers documents that have message ids
    if _has_results(entry):
        document["results_at"] = entry.first
    if entry.sources:
        document["sources"] = source_documents(entry)
    if kept := kept_source_ids(entry):
        document["kept_source_ids"] = kept
    if lookup := lookup_of(entry):
        document["lookup"] = lookup
    if entry.facts:
        document["facts"] = facts_document(entry)
    if entry.has_only_items:
        document["only_items"] = 1
    if entry.rules > 1:
        document["rules"] = entry.rules
    return stamped(document, "entry", version=version_of(entry.facts))


def lookup_of(entry: Entry) -> list[Key]:
    """Return the look-up values of an entry: calls, earlier turns, blocks of source ids, and keys of facts."""
    calls = dict.fromkeys(message.call for message in entry.messages if message.call)
    turns = map(messages_of_turn, sorted(turns_before(entry)))
    sources = [source.id for source in entry.sources]
    if not entry.facts:
        return [*calls, *turns, *source_blocks(sources)]
    blocks = source_blocks([*CLAIM.ids_in(entry.facts), *sources])
    return [*calls, *turns, *blocks, *keys_of(entry)]


def messages_of_turn(question: int) -> str:
    """Return the look-up value of entries with messages of a turn that are later than the next question."""
    return f"turn {question}"


def entry_from(
    document: Mapping[str, Any], known: Entry | None = None, *, has_messages: bool = False
) -> Entry:
    """Return the entry in a document, or `known` if it is the same entry.

    A projection may have left out its sources and, unless `has_messages` is true, its messages.

    Raises:
        CorruptDocumentError: The document is damaged.
    """
    try:
        totals = document["totals"] if known else {}
        if known and (totals["link"], totals["entries"]) == (known.totals.link, known.number):
            return known
        return _entry_from(document, has_messages=has_messages)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CorruptDocumentError(str(document.get("_id")), wrong_with(error)) from error


def _entry_from(document: Mapping[str, Any], *, has_messages: bool) -> Entry:
    check_version(document, "entry")
    first, count, after, rules = stored_numbers(
        (document["first"], document["count"], document["after"], document.get("rules", 1))
    )
    totals = totals_from(document["totals"])
    if document["_id"] != entry_id(stored_text(document["conversation"]), totals.entries):
        raise ValueError("the key does not match the conversation and the number of the entry")
    messages = stored_list(document.get("messages", ()))
    is_left_out = "messages" not in document and not has_messages
    if first + count - 1 != totals.messages or (len(messages) != count and not is_left_out):
        raise ValueError("the number of messages does not match their ordinals")
    entry = Entry(
        first,
        utc(document["at"]),
        messages_from(messages, first, document["_id"]),
        totals,
        after,
        sources_from(document, messages) if "sources" in document else (),
        facts_from(facts, totals) if (facts := document.get("facts")) else NO_FACTS,
        rules,
    )
    _check_index_fields(entry, document)
    is_whole = len(messages) == count
    if is_whole and "lookup" in document and entry.rules == RULES:
        _check_lookup(entry, document["lookup"])
    return entry


def _check_index_fields(entry: Entry, document: Mapping[str, Any]) -> None:
    """Compare the fields of an entry that only indexes use."""
    if entry.sources and document.get("kept_source_ids", []) != kept_source_ids(entry):
        raise ValueError(
            "`kept_source_ids` does not match the entry's sources, so the index misses or "
            "misplaces it"
        )
    if ("only_items" in document) != entry.has_only_items:
        raise ValueError("`only_items` does not match the entry's links, so loads would skip it")
    if not entry.messages or entry.rules != RULES:
        return
    expected = entry.first if _has_results(entry) else None
    if document.get("results_at") != expected:
        raise ValueError(
            "`results_at` does not match the entry's results, so the index misses or misplaces it"
        )


def _check_lookup(entry: Entry, stored: Any) -> None:
    """Compare the look-up values of an entry; unexpected ones belong to facts of a newer convstore."""
    expected = lookup_of(entry)
    if stored == expected:
        return
    others = tuple(key for key in stored_list(stored) if key not in expected)
    entry.facts = with_unknown_keys(entry.facts, others)
    if sorted(map(repr, stored)) != sorted(map(repr, lookup_of(entry))):
        raise ValueError(
            "`lookup` does not match the contents of the entry, so the index misses or misplaces it"
        )


def _has_results(entry: Entry) -> bool:
    return any(message.is_named for message in entry.messages)


_MESSAGE_FIELDS = itemgetter("id", "type", "body", "digest", "tokens", "view_tokens")


def _message_documents(messages: Sequence[EntryMessage]) -> list[dict[str, Any]]:
    """Return messages in the form that entries store; the turn is left out if it equals that of the message before."""
    documents: list[dict[str, Any]] = []
    before = -1
    for message in messages:
        document = message_document(message)
        if message.turn != before:
            document["turn"] = before = message.turn
        documents.append(document)
    return documents


def messages_from(
    documents: Sequence[Mapping[str, Any]], first: int, entry: str
) -> tuple[EntryMessage, ...]:
    """Return the messages of the entry with a key; `first` is the ordinal of the first message."""
    messages: list[EntryMessage] = []
    turn = 0
    for ordinal, document in enumerate(documents, first):
        turn = document["turn"] if ordinal == first else document.get("turn", turn)
        if type(turn) is not int or not 0 <= turn <= ordinal:
            raise ValueError("the turn of a message is not the ordinal of an earlier question")
        messages.append(message_from(document, ordinal, entry, turn))
    return tuple(messages)


def message_document(message: EntryMessage) -> dict[str, Any]:
    """Return a message in the form that entries store, without its turn; its texts may have lone surrogates."""
    document: dict[str, Any] = {
        "id": message.id,
        "type": message.type,
        "body": message.body,
        "digest": message.digest,
        "tokens": message.tokens,
        "view_tokens": message.view_tokens,
    }
    optional = {
        "content_digest": message.content_digest,
        "calls": list(message.calls),
        "answers": message.answers,
        "unseen": message.unseen,
        "tool": message.tool,
        "call": message.call,
        "arguments": message.arguments,
        "sources": message.sources,
        "stub": message.stub,
        "payload": payload_document(message.payload) if message.payload else None,
        "stamp": sealed(message.stamp, message.id) if message.stamp else None,
        "failed": int(message.is_failed),
        "judged": sealed(str(message.is_failed), message.id) if message.is_judged else None,
        "paused": int(message.is_paused),
        "reasoning": int(message.is_reasoning),
        "media": [[size.kind, size.length, *size.shape] for size in message.media],
    }
    return document | {key: value for key, value in optional.items() if value}


def message_from(document: Mapping[str, Any], ordinal: int, entry: str, turn: int) -> EntryMessage:
    """Return the message that `message_document` wrote, with its ordinal, the key of its entry, and its turn."""
    id_, type_, body, digest, tokens, view_tokens = _MESSAGE_FIELDS(document)
    get = document.get
    if type_ not in MESSAGE_TYPES:
        raise ValueError(f"unknown message type {type_!r}")
    id_, call, answers, sources = stored_texts(
        (id_, get("call", ""), get("answers", ""), get("sources", ""))
    )
    stamp = unsealed(found, id_) if (found := get("stamp")) else ""
    content_digest = b""
    if found := get("content_digest"):
        content_digest = stored_bytes(found, length=CONTENT_DIGEST_BYTES)
    tokens, view_tokens, unseen = stored_numbers((tokens, view_tokens, get("unseen", 0)))
    if unseen >= ordinal:
        raise ValueError(
            "the messages that a model had not seen are more than those before its own"
        )
    payload = get("payload")
    stub = get("stub")
    tool = get("tool", "")
    tool = intern(tool if type(tool) is str else from_stored(tool))
    arguments = get("arguments", "")
    return EntryMessage(  # by position: names take four times as long
        ordinal,
        id_,
        intern(type_),
        body if type(body) is str else from_stored(body),
        stored_bytes(digest, length=DIGEST_BYTES),
        tokens,
        view_tokens,
        content_digest,
        turn,
        ordinal - 1 - unseen if type_ == "ai" and not answers else 0,
        tuple(stored_texts(found)) if (found := get("calls")) else (),
        answers,
        tool,
        call,
        arguments if type(arguments) is str else from_stored(arguments),
        sources,
        None if stub is None else stored_text(stub),
        None if payload is None else payload_from(payload),
        entry,
        is_named(type_, view_tokens, tool),
        stamp,
        "failed" in document,
        "judged" in document and _is_judged(document, id_),
        "paused" in document,
        "reasoning" in document,
        stored_media(found) if (found := get("media")) else (),
    )


def _is_judged(document: Mapping[str, Any], id_: str) -> bool:
    """Check the sealed decision of the application if a result failed, and return True.

    Raises:
        ValueError: The result is marked otherwise.
    """
    if unsealed(document["judged"], id_) != str("failed" in document):
        raise ValueError("its mark as failed does not match the decision of the application")
    return True


def entry_bytes(conversation: str, entry: Entry) -> bytes:
    """Return the document of an entry in BSON.

    Raises:
        BatchTooLargeError: It is larger than 1 MB.
    """
    data = encoded(entry_document(conversation, entry))
    if len(data) > ENTRY_BYTES:
        raise BatchTooLargeError(
            f"the batch takes {len(data):,} bytes without its large results, and the limit is "
            f"{ENTRY_BYTES:,}; " + _way_out_of_size(entry, ENTRY_BYTES)
        )
    return data


def _way_out_of_size(entry: Entry, limit: int) -> str:
    """Return the advice for a batch whose entry exceeds a limit of bytes."""
    sizes = {message.id: bytes_of(message.body) for message in entry.messages}
    largest = max(sizes, key=sizes.__getitem__, default="")
    if largest and sizes[largest] > limit // 2:
        return (
            f"message {largest!r} has {sizes[largest]:,} of them in parts that are not stored "
            "apart: names, ids, and "
            "fields of fewer than 500 characters each; join these to longer ones"
        )
    is_one = len(entry.messages) + len(ITEMS.of(entry) or ()) <= 1
    return "append a smaller message" if is_one else "append it in several smaller batches"
