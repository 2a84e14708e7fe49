"""The pages with lists: conversations, and hits of a search.

Addresses hold no scope values: the conversations of one user are found by one of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from convstore import Conversation, ConversationStore
from convstore.edges import with_children
from convstore.ext.inspector.call_page import titled_info
from convstore.ext.inspector.list_rows import (
    CHIPS,
    ORDERS,
    TIMES,
    ListRow,
    chips_of,
    in_order,
    scope_choices,
    since,
    with_chip,
)
from convstore.ext.inspector.rendering import number_in, render
from convstore.integration import host_of, marks_of
from convstore.types import ConversationInfo
from convstore.values.ends import ConversationEnd
from convstore.values.plain import counted
from convstore.values.reports import ConversationHits, SearchResult

_COVERED = 200
"""Conversations that the list covers: the form asks for some of them."""

_PAGE = 50
_CHILDREN = 5
_HITS = 30
_MOST_HITS = 200
_SEARCHED = 500
"""Conversations in which the list looks for words, the newest ones."""
_QUERY_CHARACTERS = 500
_NO_END = 2**53 - 1


@dataclass(frozen=True, slots=True)
class _Choice:
    """The conversations that have the same value of a scope key as the one with the id `like`; all without a key."""

    key: str = ""
    like: str = ""
    scope: dict[str, str] = field(default_factory=dict)


async def _choice_of(
    request: Request, store: ConversationStore, permitted: Mapping[str, str]
) -> _Choice:
    """Return the choice that ``scope=key:id`` in the address names; HTTPException if it does not exist."""
    key, _, like = request.query_params.get("scope", "").partition(":")
    if not key and not like:
        return _Choice()
    chat = await store.find_conversation(like, **permitted) if like else None
    if chat is None or key not in store.scope_keys:
        raise HTTPException(404)
    return _Choice(key, like, {key: chat.scope[key]})


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the form of the list asks for: words, a state, a time, an order, and the first row to show."""

    words: str
    chip: str
    time: str
    order: str
    start: int

    @classmethod
    def of(cls, request: Request) -> _Asked:
        """Return what an address asks for; HTTPException if the form does not offer it."""
        query = request.query_params
        # the button that was pressed comes after the hidden field with the chip of the page
        chip = (query.getlist("show") or [""])[-1]
        asked = cls(
            _text(request),
            chip,
            query.get("since", ""),
            query.get("order", ""),
            number_in(request, "from", 0) or 0,
        )
        if (chip and chip not in CHIPS) or asked.time not in TIMES or asked.order not in ORDERS:
            raise HTTPException(404)
        return asked


async def listing_page(
    request: Request, store: ConversationStore, permitted: Mapping[str, str]
) -> Response:
    """Return the list: of the newest conversations that a request may see, those for which its form asks."""
    began = time.perf_counter()
    asked = _Asked.of(request)
    choice = await _choice_of(request, store, permitted)
    cursor = request.query_params.get("cursor")
    scope: dict[str, Any] = {**permitted, **choice.scope}
    found = await store.list_conversations(
        limit=_COVERED, cursor=cursor, everything=not scope, **scope
    )
    newest = await _rows(store, found.conversations)
    matching, missed = await _with_words(store, newest, asked.words, scope, is_older=bool(cursor))
    kept = since(matching, asked.time, datetime.now(UTC))
    ordered = in_order(with_chip(kept, asked.chip), asked.order)
    end = asked.start + _PAGE
    rows, more = await _with_sub_agents(store, ordered[asked.start : end])
    return render(
        "listing.html",
        request,
        rows=rows,
        more=more,
        asked=asked,
        chips=chips_of(kept),
        times=TIMES,
        orders=ORDERS,
        scopes=scope_choices(newest, store.scope_keys),
        covered=len(newest),
        kept=len(ordered),
        missed=missed,
        following=end if end < len(ordered) else 0,
        next_cursor=found.next_cursor,
        cursor=cursor,
        choice=choice,
        address=partial(_address, request),
        scope_keys=store.scope_keys,
        milliseconds=round(1_000 * (time.perf_counter() - began)),
    )


def _address(request: Request, **changes: Any) -> str:
    """Return the query of the list with other values; without those that are empty."""
    query = {**request.query_params, **changes}
    return urlencode({name: value for name, value in query.items() if value})


async def _with_sub_agents(
    store: ConversationStore, rows: Sequence[ListRow]
) -> tuple[list[ListRow], dict[str, int]]:
    """Return rows, each followed by those of its first sub-agents, and how many more there are below a row.

    Their titles are first questions, where they have none. The number stands by the last row before them.
    """
    shown = list[ListRow]()
    more = dict[str, int]()
    for row in rows:
        family = [member async for member in with_children(store, row.info)]
        children = family[1 : 1 + _CHILDREN]
        shown += [row, *(ListRow(child, ConversationEnd()) for child in children)]
        if left := len(family) - 1 - len(children):
            more[shown[-1].info.conversation_id] = left
    named = await host_of(store).titled([row.info for row in shown])
    return [replace(row, info=info) for row, info in zip(shown, named, strict=True)], more


async def _rows(
    store: ConversationStore, conversations: Sequence[ConversationInfo]
) -> list[ListRow]:
    """Return the rows of conversations, with their ends; those that are damaged have none."""
    whole = [info for info in conversations if not info.problem]
    read = await host_of(store).ends([(info.scope, info.conversation_id) for info in whole])
    ends = {info.conversation_id: end for info, end in zip(whole, read, strict=True)}
    return [
        ListRow(info, ends.get(info.conversation_id, ConversationEnd())) for info in conversations
    ]


async def _with_words(
    store: ConversationStore,
    rows: Sequence[ListRow],
    words: str,
    scope: dict[str, Any],
    *,
    is_older: bool,
) -> tuple[list[ListRow], str]:
    """Return the rows of conversations with messages that match some words, and why others may match, too.

    All rows without words. `is_older` is True for rows that are not the newest.
    """
    if not words.strip():
        return list(rows), ""
    found = await store.search(
        words, limit=_MOST_HITS, conversations=_SEARCHED, everything=not scope, **scope
    )
    matching = {conversation.conversation_id for conversation in found.conversations}
    kept = [row for row in rows if row.info.conversation_id in matching]
    return kept, missed_by(found, is_older=is_older)


def missed_by(found: SearchResult, *, is_older: bool) -> str:
    """Return why conversations that a search did not find may match, too; "" if none does."""
    hits = sum(len(conversation.hits) for conversation in found.conversations)
    if hits >= _MOST_HITS:
        return f"only those with the {_MOST_HITS} best messages are listed"
    if found.incomplete:
        return f"{counted(len(found.incomplete), 'conversation')} could not be searched whole yet"
    if is_older and found.searched >= _SEARCHED:
        return f"only the newest {_SEARCHED} were searched"
    return ""


async def search_page(request: Request, chat: Conversation) -> Response:
    """Return the messages of a conversation that match the words of the query."""
    text = _text(request)
    end = (number_in(request, "at") or _NO_END) + 1
    info, hits = await asyncio.gather(titled_info(chat), chat.search(text, limit=_HITS, before=end))
    groups = [
        ConversationHits(
            scope=info.scope, conversation_id=info.conversation_id, title=info.title, hits=hits
        )
    ]
    found = SearchResult(conversations=groups if hits else [], searched=1)
    return _hits(request, text, found, info=info, choice=_Choice())


async def search_all_page(
    request: Request, store: ConversationStore, permitted: Mapping[str, str]
) -> Response:
    """Return the messages that match the words of the query, from the conversations that the request may see."""
    text = _text(request)
    choice = await _choice_of(request, store, permitted)
    scope: dict[str, Any] = {**permitted, **choice.scope}
    found = await store.search(text, limit=_HITS, everything=not scope, **scope)
    found = found.model_copy(
        update={"conversations": await host_of(store).titled(found.conversations)}
    )
    return _hits(request, text, found, info=None, choice=choice)


def _hits(request: Request, text: str, found: SearchResult, **context: Any) -> Response:
    """Return the page of the messages found, with the words of the query marked."""
    hits = sum(len(conversation.hits) for conversation in found.conversations)
    marks = marks_of(text)
    return render(
        "search.html",
        request,
        text=text,
        found=found,
        hits=hits,
        is_cut=hits == _HITS,
        marks=marks,
        **context,
    )


def _text(request: Request) -> str:
    return request.query_params.get("q", "")[:_QUERY_CHARACTERS]
