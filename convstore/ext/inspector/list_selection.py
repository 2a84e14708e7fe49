"""What the form of the list selects: of the newest conversations that a request may see, those for which it asks.

Addresses hold no scope values: the conversations of one user are found by one of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from convstore import ConversationStore
from convstore.ext.inspector.rendering import number_in
from convstore.integration import host_of
from convstore.values.list_rows import (
    CHIPS,
    ORDERS,
    TIMES,
    ListRow,
    in_order,
    may_be_since,
    since,
    with_chip,
)
from convstore.values.plain import counted
from convstore.values.reports import SearchResult

_MOST_HITS = 200
SEARCHED = 500
"""Conversations in which the list looks for words, the newest ones."""
_QUERY_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class ScopeChoice:
    """The conversations that have the same value of a scope key as the one with the id `like`; all without a key."""

    key: str = ""
    like: str = ""
    scope: dict[str, str] = field(default_factory=dict)


async def choice_of(
    request: Request, store: ConversationStore, permitted: Mapping[str, str]
) -> ScopeChoice:
    """Return the choice that ``scope=key:id`` in the address names; HTTPException if it does not exist."""
    key, _, like = request.query_params.get("scope", "").partition(":")
    if not key and not like:
        return ScopeChoice()
    chat = await store.find_conversation(like, **permitted) if like else None
    if chat is None or key not in store.scope_keys:
        raise HTTPException(404)
    return ScopeChoice(key, like, {key: chat.scope[key]})


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The fields of the list's form: words, a state, a time, an order; the first row to show, and the page's cursor."""

    words: str
    chip: str
    time: str
    order: str
    start: int
    cursor: str | None

    @classmethod
    def of(cls, request: Request) -> ListQuery:
        """Return the fields that an address has; HTTPException if the form does not offer one."""
        query = request.query_params
        # the button that was pressed comes after the hidden field with the chip of the page
        chip = (query.getlist("show") or [""])[-1]
        found = cls(
            words_in(request),
            chip,
            query.get("since", ""),
            query.get("order", ""),
            number_in(request, "from", 0) or 0,
            query.get("cursor"),
        )
        if (chip and chip not in CHIPS) or found.time not in TIMES or found.order not in ORDERS:
            raise HTTPException(404)
        return found

    @property
    def wanted(self) -> Callable[[ListRow], bool] | None:
        """The rule of its state, for which more conversations are read; None without a state, or with words."""
        return CHIPS[self.chip][1] if self.chip and not self.words.strip() else None


@dataclass(frozen=True, slots=True)
class Selection:
    """The conversations that the form selects.

    Attributes:
        query: The fields of the form.
        choice: The scope value that it names.
        covered: The conversations from which it selects, newest first.
        in_time: Those with its words and in its time, in any state.
        rows: Those in its state, in its order.
        missed: Why more conversations may have its words; "" if none does.
        next_cursor: Cursor of the conversations before these; None if there are none.
        milliseconds: The time that all this took.
    """

    query: ListQuery
    choice: ScopeChoice
    covered: Sequence[ListRow]
    in_time: Sequence[ListRow]
    rows: Sequence[ListRow]
    missed: str
    next_cursor: str | None
    milliseconds: int

    @property
    def headline(self) -> str:
        """How many it selects of how many, as the beginning of a sentence."""
        return self.headline_of(len(self.rows), len(self.covered))

    @property
    def is_last(self) -> bool:
        """True if it selects none of the conversations before these; words are looked for in the newest alone."""
        if self.next_cursor is None or self.query.words.strip():
            return True
        span = TIMES[self.query.time][1]
        return not may_be_since(self.covered[-1].info, datetime.now(UTC) - span if span else None)

    def headline_of(self, selected: int, covered: int) -> str:
        """Return the headline of so many conversations of so many, of which these are the last."""
        of = counted(covered, "conversation")
        if self.query.cursor:
            of = f"the {of} before"
        elif self.next_cursor:
            of = f"the newest {of}"
        if selected == covered:
            return f"{of[0].upper()}{of[1:]}"
        return f"{counted(selected)} of {of}"


async def select(
    request: Request,
    store: ConversationStore,
    permitted: Mapping[str, str],
    *,
    cursor: str | None = None,
) -> Selection:
    """Return what the address selects of a page of conversations, by default that of its cursor.

    HTTPException if it asks for something unknown.
    """
    began = time.perf_counter()
    query = ListQuery.of(request)
    choice = await choice_of(request, store, permitted)
    scope: dict[str, Any] = {**permitted, **choice.scope}
    covered, following = await host_of(store).newest(
        scope, cursor=cursor or query.cursor, wanted=query.wanted
    )
    matching, missed = await _with_words(store, covered, query, scope)
    in_time = since(matching, TIMES[query.time][1], datetime.now(UTC))
    rows = in_order(with_chip(in_time, query.chip), query.order)
    milliseconds = round(1_000 * (time.perf_counter() - began))
    return Selection(query, choice, covered, in_time, rows, missed, following, milliseconds)


async def _with_words(
    store: ConversationStore, rows: Sequence[ListRow], query: ListQuery, scope: dict[str, Any]
) -> tuple[list[ListRow], str]:
    """Return the rows of conversations with messages that match the words, and why others may match, too.

    All rows without words.
    """
    if not query.words.strip():
        return list(rows), ""
    found = await store.search(
        query.words, limit=_MOST_HITS, conversations=SEARCHED, everything=not scope, **scope
    )
    matching = {conversation.conversation_id for conversation in found.conversations}
    kept = [row for row in rows if row.info.conversation_id in matching]
    is_older = bool(query.cursor) or len(rows) > SEARCHED
    return kept, missed_by(found, is_older=is_older)


def missed_by(found: SearchResult, *, is_older: bool) -> str:
    """Return why conversations that a search did not find may match, too; "" if none does."""
    hits = sum(len(conversation.hits) for conversation in found.conversations)
    if hits >= _MOST_HITS:
        return f"only those with the {_MOST_HITS} best messages are listed"
    if found.incomplete:
        return f"{counted(len(found.incomplete), 'conversation')} could not be searched whole yet"
    if is_older and found.searched >= SEARCHED:
        return f"only the newest {SEARCHED} were searched"
    return ""


def words_in(request: Request) -> str:
    """Return the words that an address has."""
    return request.query_params.get("q", "")[:_QUERY_CHARACTERS]
