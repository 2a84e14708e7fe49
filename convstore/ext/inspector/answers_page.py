"""The page of the variants of one turn, its answers and edited questions: two of them are shown side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import BaseMessage
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from convstore import Conversation
from convstore.ext.inspector.call_page import message_at, titled_info
from convstore.ext.inspector.comparison import begins_turn
from convstore.ext.inspector.rendering import number_in, render
from convstore.ext.inspector.text import Body, body_of
from convstore.ext.model_calls import is_answer
from convstore.integration import TurnAccess
from convstore.types import StoredMessage, TurnState, Variant

_LISTED = 50
_BODY_BYTES = 4_000
_MOST_MESSAGES = 40


@dataclass(frozen=True, slots=True)
class _Side:
    """A variant that the page shows.

    Attributes:
        variant: The variant.
        messages: Its first messages: ordinal, message, text, and True for a result that reports a failed call.
        left: The number of messages that are not shown.
    """

    variant: Variant
    messages: list[tuple[int, BaseMessage, Body, bool]]
    left: int


async def answers_page(request: Request, chat: Conversation) -> Response:
    """Return the page of all variants of a question or its answer; two of them are shown in full."""
    question = await _question(request, chat)
    variants = await chat.variants(str(question.message.id), limit=_LISTED)
    numbers = [variant.number for variant in variants]
    shown = [number_in(request, name) for name in ("first", "second")]
    if shown == [None, None]:
        shown = list[int | None](_two_of(variants))
    if not set(shown) <= {*numbers, None}:
        raise HTTPException(404)
    sides = [
        await _side(chat, question, variant)
        for number in shown
        for variant in variants
        if variant.number == number
    ]
    return render(
        "answers.html",
        request,
        info=await titled_info(chat),
        question=question,
        variants=variants,
        sides=sides,
        shown=shown,
    )


async def _question(request: Request, chat: Conversation) -> StoredMessage:
    """Return the question that the address names; HTTPException for any other message."""
    found = await message_at(chat, number_in(request, "ordinal") or 0)
    if not begins_turn(found):
        raise HTTPException(404)
    return found


def _two_of(variants: Sequence[Variant]) -> list[int]:
    """Return the numbers of the active variant and of the one before it; without an active one, of the newest two."""
    numbers = [variant.number for variant in variants]
    active = [variant.number for variant in variants if variant.is_active]
    at = numbers.index(active[0]) if active else len(numbers) - 1
    start = max(0, min(at - 1, len(numbers) - 2))
    return numbers[start : start + 2]


async def _side(chat: Conversation, question: StoredMessage, variant: Variant) -> _Side:
    """Return a variant with its messages, except the question that the page shows once."""
    messages = await _messages(chat, question, variant)
    messages = [message for message in messages if message.id != question.message.id]
    shown = messages[:_MOST_MESSAGES]
    records = await chat.get_tool_messages([str(message.id) for message in shown])
    known = {record.tool_message_id: (record.ordinal, record.is_failed) for record in records}
    rows: list[tuple[int, BaseMessage, Body, bool]] = []
    for message in shown:
        ordinal, is_failed = known.get(str(message.id), (0, False))
        rows.append((ordinal, message, body_of(message, _BODY_BYTES), is_failed))
    return _Side(variant, rows, len(messages) - len(shown))


async def _messages(
    chat: Conversation, question: StoredMessage, variant: Variant
) -> list[BaseMessage]:
    """Return the messages of a variant; for the turn's first answer, those up to the answer."""
    state = TurnState(turn_id=variant.turn_id, variant_id=variant.variant_id, status="finished")
    messages, _ = await TurnAccess(chat).hidden_variant(state)
    if messages:
        return messages
    first = question
    if variant.turn_id != question.message.id:
        [record] = await chat.get_tool_messages([variant.turn_id])
        first = await message_at(chat, record.ordinal)
    following = await chat.list_messages(
        after=first.ordinal - 1, limit=_MOST_MESSAGES, rewound=True
    )
    own: list[BaseMessage] = []
    for stored in following:
        if stored.turn_id == variant.turn_id:
            own.append(stored.message)
        if is_answer(stored.message):
            break
    return own
