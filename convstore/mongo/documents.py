"""Convert entries and totals to documents and back; sends nothing.

The documents of ``log``, whose order of keys `keys` explains::

    <conversation>#<token>#<chunk>   {conversation, data}                       a chunk of a payload
    <conversation>:<entry number>    {conversation, first, count, at, messages, totals, after, sources, lookup, items}
    <conversation>:~                 {conversation, revision, summary, starts, system}; see `state_documents`

The module is long because every field of an entry is written and read here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import itemgetter
from sys import intern
from typing import Any, get_args

from convstore.exceptions import BatchTooLargeError, CorruptDocumentError
from convstore.log.branch import finishes_variant
from convstore.log.entry import (
    NO_USAGE,
    RULES,
    UNREAD,
    Entry,
    EntryItem,
    EntryMessage,
    OpenCall,
    PayloadRef,
    Preview,
    Totals,
)
from convstore.log.rows import is_named
from convstore.log.standing import Standing, keys_of, of_variant, standing_from, standing_text
from convstore.log.stored_message import CONTENT_DIGEST_BYTES
from convstore.log.turn_event import Over, TurnEvent, events_of
from convstore.log.turns import turns_before
from convstore.messages.encoding import DIGEST_BYTES, MESSAGE_TYPES
from convstore.messages.sizes import bytes_of
from convstore.mongo.bson_values import (
    encoded,
    from_stored,
    sealed,
    stored_bytes,
    stored_list,
    stored_number,
    stored_numbers,
    stored_text,
    stored_texts,
    to_stored,
    unsealed,
    utc,
    wrong_with,
)
from convstore.mongo.keys import entry_id
from convstore.mongo.rewound import rewound_data, rewound_from
from convstore.mongo.source_columns import source_blocks, source_documents, sources_from
from convstore.mongo.versions import check_version, stamped

ENTRY_BYTES = 1_000_000
"""Maximum size of the document of an entry, without payloads."""


def entry_document(conversation: str, entry: Entry) -> dict[str, Any]:
    """Return the document of an entry, whose texts may have lone surrogates: see `bson_values.encoded`."""
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
    if entry.totals.rewind_entry == number:
        document["rewound"] = rewound_data(entry)
    if _has_results(entry):
        document["results_at"] = entry.first
    if entry.sources:
        document["sources"] = source_documents(entry)
    if kept := [*entry.claims, *(source.id for source in entry.sources if source.kept)]:
        document["kept_source_ids"] = (
            kept  # a unique index covers ids that the store did not choose
        )
    if entry.claimant:
        document["claimant"] = entry.claimant
    if lookup := lookup_of(entry):
        document["lookup"] = lookup
    if entry.items:
        document |= {"items": list(map(_item_document, entry.items))} | (
            {"only_items": 1} if entry.has_only_items else {}
        )
    if entry.rules > 1:
        document["rules"] = entry.rules
    return stamped(document | _turn_fields(entry, document["_id"]), "entry")


def _turn_fields(entry: Entry, key: str) -> dict[str, Any]:
    """Return the fields of an entry that say what it did to a turn and its variants."""
    fields = dict[str, Any]()
    if entry.event:
        fields["event"] = sealed(json.dumps(entry.event), key)
    if entry.branch:
        fields["branch"] = totals_document(entry.branch)
    if entry.standing:
        fields["standing"] = sealed(standing_text(entry.standing), key, "standing")
    return fields


def lookup_of(entry: Entry) -> list[str | int | bytes]:
    """Return the values by which an index finds an entry: calls, turns, variants, blocks of source ids, items."""
    calls = dict.fromkeys(message.call for message in entry.messages if message.call)
    turns = map(messages_of_turn, sorted(turns_before(entry)))
    variants = list[bytes]()
    if entry.event and entry.event.variant:
        variants.append(of_variant(entry.event.first_turn, entry.event.variant))
    elif entry.event and entry.event.kind in ("wait", "decide"):
        variants.append(events_of(entry.event.turn))
    if entry.standing:
        variants += keys_of(entry.standing, is_new=finishes_variant(entry))
    places = dict.fromkeys(_items_after(item.after) for item in entry.items)
    items = [*places, *(_item_name(item.id) for item in entry.items if item.id)]
    blocks = source_blocks([*entry.claims, *(source.id for source in entry.sources)])
    return [*calls, *turns, *variants, *blocks, *items]


def messages_of_turn(question: int) -> str:
    """Return the value by which entries are found that have messages of a turn after a later question."""
    return f"turn {question}"


def item_filter(ids: Iterable[str] | None, *, after: int, before: int) -> dict[str, Any]:
    """Return the filter on `lookup` for the entries of some items, or with items after a range of messages."""
    if ids is None:
        return {"$elemMatch": {"$gte": _items_after(after), "$lt": _items_after(before)}}
    return {"$in": [_item_name(id_) for id_ in ids]}


def _items_after(ordinal: int) -> str:
    return f"items {ordinal:016d}"  # sorts as the ordinal does


def _item_name(id_: str) -> str:
    return f"item {id_}"


def entry_from(
    document: Mapping[str, Any], known: Entry | None = None, *, has_messages: bool = False
) -> Entry:
    """Return the entry that a document holds, or `known` if it is the same.

    A projection may have left out its sources and, unless `has_messages`, its messages. Damage is a
    CorruptDocumentError.
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
    first = stored_number(document["first"])
    count = stored_number(document["count"])
    totals = totals_from(document["totals"])
    if document["_id"] != entry_id(stored_text(document["conversation"]), totals.entries):
        raise ValueError("the key does not match the conversation and the number of the entry")
    messages = stored_list(document.get("messages", ()))
    is_left_out = "messages" not in document and not has_messages
    if first + count - 1 != totals.messages or (len(messages) != count and not is_left_out):
        raise ValueError("the number of messages does not match their ordinals")
    entry = Entry(
        first=first,
        at=utc(document["at"]),
        messages=messages_from(messages, first, document["_id"]),
        totals=totals,
        after=stored_number(document["after"]),
        sources=sources_from(document, messages) if "sources" in document else (),
        rules=stored_number(document.get("rules", 1)),
        event=event_in(document),
        branch=totals_from(document["branch"]) if "branch" in document else None,
        standing=standing_in(document) if "standing" in document else None,
        items=tuple(map(_item_from, stored_list(document["items"]))) if "items" in document else (),
        claims=tuple(document.get("kept_source_ids", ())) if "claimant" in document else (),
        claimant=document.get("claimant", ""),
        **(
            rewound_from(document["rewound"], totals.entries)
            if totals.rewind_entry == totals.entries
            else {}
        ),
    )
    if entry.sources and document.get("kept_source_ids", []) != [
        source.id for source in entry.sources if source.kept
    ]:
        raise ValueError(
            "`kept_source_ids` does not match the entry's sources, so the index misses or misplaces it"
        )
    if ("only_items" in document) != entry.has_only_items:
        raise ValueError("`only_items` does not match the entry's links, so loads would skip it")
    if entry.rules != RULES:
        return entry
    if (
        (messages or entry.items)
        and "lookup" in document
        and document["lookup"] != lookup_of(entry)
    ):
        raise ValueError(
            "`lookup` does not match the entry's results and sources, so the index misses or misplaces it"
        )
    if messages and document.get("results_at") != (first if _has_results(entry) else None):
        raise ValueError(
            "`results_at` does not match the entry's results, so the index misses or misplaces it"
        )
    return entry


def event_in(document: Mapping[str, Any]) -> TurnEvent | None:
    """Return the event that the document of an entry holds, None without one."""
    found = document.get("event")
    return TurnEvent(*json.loads(unsealed(found, document["_id"]))) if found else None


def standing_in(document: Mapping[str, Any]) -> Standing:
    """Return what the document of an entry says of a place."""
    return standing_from(unsealed(document["standing"], document["_id"], "standing"))


def _has_results(entry: Entry) -> bool:
    return any(message.is_named for message in entry.messages)


_any_number = partial(stored_number, minimum=None)

_TOTALS = (
    *("turn", "entries", "messages", "active", "turns", "results", "tokens", "view_tokens"),
    *("stored_bytes", "rewind_entry", "sources_through", "given_through", "shown_at", "link"),
)
_TOTALS_NUMBERS = itemgetter(*_TOTALS)
_MESSAGE_FIELDS = itemgetter("id", "type", "body", "digest", "tokens", "view_tokens")


def totals_document(totals: Totals) -> dict[str, Any]:
    """Return the totals in the form that entries store."""
    return {name: getattr(totals, name) for name in _TOTALS} | {
        "counter": to_stored(totals.counter),
        "usage": [[to_stored(model), *counts] for model, counts in totals.usage.items()],
        "calls": [[*map(to_stored, call[:4]), call.turn] for call in totals.calls],
        "preview": [to_stored(part) for part in totals.preview] if totals.preview else None,
        "updated_at": totals.updated_at,
        **({"whole_list": totals.whole_list} if totals.whole_list else {}),
        **({"over": totals.over} if totals.over else {}),
        **({"failed": totals.failed} if totals.failed else {}),
    }


def totals_from(document: Mapping[str, Any]) -> Totals:
    """Return the totals that `totals_document` wrote."""
    usage = stored_list(document["usage"])
    at = document["updated_at"]
    return Totals(
        intern(from_stored(document["counter"])),
        {
            from_stored(model): (_any_number(a), _any_number(b), _any_number(c))
            for model, a, b, c in usage
        }
        or NO_USAGE,
        tuple(map(_open_call_from, stored_list(document["calls"]))),
        _preview_from(document["preview"]) if "preview" in document else UNREAD,
        None if document["shown_at"] else {},
        None if at is None else utc(at),
        stored_number(document.get("whole_list", 0)),
        _over_from(document.get("over", "")),
        stored_number(document.get("failed", 0)),
        *stored_numbers(_TOTALS_NUMBERS(document)),
    )


def _open_call_from(value: Any) -> OpenCall:
    *texts, turn = stored_list(value)
    id_, tool, arguments, result = map(from_stored, texts)
    return OpenCall(id_, tool, arguments, result, stored_number(turn))


def _over_from(value: Any) -> Over:
    if value not in get_args(Over):
        raise ValueError(f"unknown end of a turn {value!r}")
    return value  # type: ignore[no-any-return]


def _preview_from(value: Any) -> Preview | None:
    return None if value is None else Preview(*map(from_stored, stored_list(value)))


def _message_documents(messages: Sequence[EntryMessage]) -> list[dict[str, Any]]:
    """Return messages in the form that entries store; each has its turn unless that is the one before it has."""
    documents = list[dict[str, Any]]()
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
    """Return the messages of the entry with a key, the first of which has an ordinal."""
    messages = list[EntryMessage]()
    turn = 0
    for ordinal, document in enumerate(documents, first):
        turn = document["turn"] if ordinal == first else document.get("turn", turn)
        if type(turn) is not int or not 0 <= turn <= ordinal:
            raise ValueError("the turn of a message is no question before it")
        messages.append(message_from(document, ordinal, entry, turn))
    return tuple(messages)


def message_document(message: EntryMessage) -> dict[str, Any]:
    """Return a message in the form that entries store, but for its turn; its texts may have lone surrogates."""
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
        "payload": _payload_document(message.payload) if message.payload else None,
        "stamp": sealed(message.stamp, message.id) if message.stamp else None,
        "failed": int(message.is_failed),
        "paused": int(message.is_paused),
        "reasoning": int(message.is_reasoning),
    }
    return document | {key: value for key, value in optional.items() if value}


def message_from(document: Mapping[str, Any], ordinal: int, entry: str, turn: int) -> EntryMessage:
    """Return the message that `message_document` wrote, which has an ordinal and a turn in the entry with a key."""
    id_, type_, body, digest, tokens, view_tokens = _MESSAGE_FIELDS(document)
    get = document.get
    if type_ not in MESSAGE_TYPES:
        raise ValueError(f"unknown message type {type_!r}")
    id_, call, answers, sources = stored_texts(
        (id_, get("call", ""), get("answers", ""), get("sources", ""))
    )
    stamp = unsealed(found, id_) if (found := get("stamp")) else ""
    tokens, view_tokens, unseen = stored_numbers((tokens, view_tokens, get("unseen", 0)))
    if unseen >= ordinal:
        raise ValueError("a message was written by a model that had seen less than nothing")
    payload = get("payload")
    stub = get("stub")
    tool = get("tool", "")
    arguments = get("arguments", "")
    return EntryMessage(
        ordinal,
        id_,
        intern(type_),
        body if type(body) is str else from_stored(body),
        stored_bytes(digest, length=DIGEST_BYTES),
        tokens,
        view_tokens,
        stored_bytes(found, length=CONTENT_DIGEST_BYTES)
        if (found := get("content_digest"))
        else b"",
        turn,
        ordinal - 1 - unseen if type_ == "ai" else 0,
        tuple(stored_texts(found)) if (found := get("calls")) else (),
        answers,
        intern(tool if type(tool) is str else from_stored(tool)),
        call,
        arguments if type(arguments) is str else from_stored(arguments),
        sources,
        None if stub is None else stored_text(stub),
        None if payload is None else _payload_from(payload),
        entry,
        is_named(type_, view_tokens),
        stamp,
        "failed" in document,
        "paused" in document,
        "reasoning" in document,
    )


def _item_document(item: EntryItem) -> dict[str, Any]:
    if item.cut:
        return {"after": item.after, "cut": list(item.cut)}
    document = {"id": item.id, "kind": item.kind, "after": item.after, "digest": item.digest}
    return document | (
        {"payload": _payload_document(item.payload)}
        if item.payload
        else {"body": to_stored(item.body)}
    )


def _item_from(document: Mapping[str, Any]) -> EntryItem:
    after = stored_number(document["after"])
    payload = document.get("payload")
    if "cut" in document:
        number, index = map(stored_number, stored_list(document["cut"]))
        return EntryItem("", "", after, cut=(number, index))
    id_, kind = stored_texts((document["id"], document["kind"]))
    return EntryItem(
        id_,
        kind,
        after,
        "" if payload else from_stored(document["body"]),
        stored_bytes(document["digest"], length=DIGEST_BYTES),
        _payload_from(payload) if payload else None,
    )


def _payload_document(ref: PayloadRef) -> dict[str, Any]:
    document = {
        "token": ref.token,
        "chunk": ref.chunk,
        "ends": list(ref.ends),
        "digest": ref.digest,
        "size": ref.size,
    }
    document["shown"] = ref.shown
    optional = {
        "own": ref.own if ref.own != ref.ends[-1] else None,
        "body": ref.body or None,
        "shown_digest": ref.shown_digest or None,
        "edged": int(ref.is_edged) or None,
        "alone": ref.alone,
    }
    return document | {key: value for key, value in optional.items() if value is not None}


def _payload_from(document: Mapping[str, Any]) -> PayloadRef:
    ends = tuple(stored_number(end) for end in stored_list(document["ends"], minimum=1))
    if any(start >= end for start, end in pairwise(ends)):
        raise ValueError("the ends of a payload's chunks are not in ascending order")
    if (shown := stored_number(document["shown"])) and shown not in ends:
        raise ValueError("no chunk ends where the part of the payload that views show ends")
    if (own := stored_number(document.get("own", ends[-1]))) > ends[-1]:
        raise ValueError("the message's part of the payload ends after the payload")
    body, part = (
        b"" if (found := document.get(key)) is None else stored_bytes(found, length=DIGEST_BYTES)
        for key in ("body", "shown_digest")
    )
    alone = None if (found := document.get("alone")) is None else stored_bytes(found)
    token = stored_text(document["token"])
    chunk = stored_number(document["chunk"])
    digest = stored_bytes(document["digest"], length=DIGEST_BYTES)
    size = stored_number(document["size"])
    return PayloadRef(
        token,
        chunk,
        ends,
        own,
        digest,
        size,
        body,
        shown,
        part,
        bool(document.get("edged", 0)),
        alone,
    )


def entry_bytes(conversation: str, entry: Entry) -> bytes:
    """Return the document of an entry in BSON; raise a BatchTooLargeError for one that is too large."""
    data = encoded(entry_document(conversation, entry))
    if len(data) > ENTRY_BYTES:
        raise BatchTooLargeError(
            f"the batch makes an entry of {len(data):,} bytes without payloads, and the limit is {ENTRY_BYTES:,}; "
            + _way_out_of_size(entry, ENTRY_BYTES)
        )
    return data


def _way_out_of_size(entry: Entry, limit: int) -> str:
    """Return what to do about an entry whose document exceeds a limit of bytes."""
    sizes = {message.id: bytes_of(message.body) for message in entry.messages}
    largest = max(sizes, key=sizes.__getitem__, default="")
    if largest and sizes[largest] > limit // 2:
        return (
            f"message {largest!r} has {sizes[largest]:,} of them in parts that are not stored apart: names, ids, and "
            "fields of fewer than 500 characters each; join these to longer ones"
        )
    is_one = len(entry.messages) + len(entry.items) <= 1
    return "append a smaller message" if is_one else "append it in several smaller batches"
