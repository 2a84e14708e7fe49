"""Select the conversations that the form of the list describes, among the newest that a request may see.

Addresses do not contain scope values: the conversations of a user are named by the id of one of them.
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
    may_be_since,
    since,
    sorted_rows,
    with_chip,
)
from convstore.values.plain import counted
from convstore.values.reports import SearchResult

_MOST_HITS = 200
SEARCHED = 500
"""Number of the newest conversations that the list searches for words."""
_QUERY_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class ScopeChoice:
    """The conversations with the same value of a scope key as the conversation `like`; without a key, all of them."""

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
        """Return the fields of an address; HTTPException if the form does not offer a value."""
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
    def state_rule(self) -> Callable[[ListRow], bool] | None:
        """The rule of its state, for which further conversations are read; None without a state, and with words."""
        return CHIPS[self.chip][1] if self.chip and not self.words.strip() else None


@dataclass(frozen=True, slots=True)
class Selection:
    """The conversations that the form selects.

    Attributes:
        query: The fields of the form.
        choice: Its scope value.
        covered: The conversations from which it selects, newest first.
        in_time: The conversations with its words and in its time, in any state.
        rows: The conversations of these in its state, in its order.
        missed: The reason why more conversations may have its words; "" if all were searched.
        next_cursor: Cursor of the older conversations; None if there are no older ones.
        milliseconds: The time that the selection took.
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
        """The numbers of selected and of covered conversations, as the beginning of a sentence."""
        return self.headline_of(len(self.rows), len(self.covered))

    @property
    def is_last(self) -> bool:
        """True if it cannot select older conversations; words are only searched in the newest ones."""
        if self.next_cursor is None or self.query.words.strip():
            return True
        span = TIMES[self.query.time][1]
        return not may_be_since(self.covered[-1].info, datetime.now(UTC) - span if span else None)

    def headline_of(self, selected: int, covered: int) -> str:
        """Return the headline for numbers of conversations that include earlier pages."""
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
    """Return the selection of an address from one page of conversations, by default the page of the address's cursor.

    HTTPException for an unknown value.
    """
    began = time.perf_counter()
    query = ListQuery.of(request)
    choice = await choice_of(request, store, permitted)
    scope: dict[str, Any] = {**permitted, **choice.scope}
    covered, following = await host_of(store).newest(
        scope, cursor=cursor or query.cursor, wanted=query.state_rule
    )
    matching, missed = await _with_words(store, covered, query, scope)
    in_time = since(matching, TIMES[query.time][1], datetime.now(UTC))
    rows = sorted_rows(with_chip(in_time, query.chip), query.order)
    milliseconds = round(1_000 * (time.perf_counter() - began))
    return Selection(query, choice, covered, in_time, rows, missed, following, milliseconds)


async def _with_words(
    store: ConversationStore, rows: Sequence[ListRow], query: ListQuery, scope: dict[str, Any]
) -> tuple[list[ListRow], str]:
    """Return the rows of conversations with messages that match the words, and the reason why others may match, too.

    Without words, return all rows.
    """
    if not query.words.strip():
        return list(rows), ""
    found = await store.search(
        query.words, limit=_MOST_HITS, conversations=SEARCHED, everything=not scope, **scope
    )
    matching = {conversation.conversation_id for conversation in found.conversations}
    kept = [row for row in rows if row.info.conversation_id in matching]
    is_older = bool(query.cursor) or len(rows) > SEARCHED
    return kept, reason_for_more(found, is_older=is_older)


def reason_for_more(found: SearchResult, *, is_older: bool) -> str:
    """Return the reason why conversations that a search did not find may match, too; "" if the search was complete."""
    hits = sum(len(conversation.hits) for conversation in found.conversations)
    if hits >= _MOST_HITS:
        return f"only those with the {_MOST_HITS} best messages are listed"
    if found.incomplete:
        return f"{counted(len(found.incomplete), 'conversation')} could not be searched whole yet"
    if is_older and found.searched >= SEARCHED:
        return f"only the newest {SEARCHED} were searched"
    return ""


def words_in(request: Request) -> str:
    """Return the search words of an address, cut at a maximum length."""
    return request.query_params.get("q", "")[:_QUERY_CHARACTERS]
