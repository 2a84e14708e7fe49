"""Return a page of a conversation for a chat front end, in the format that its client library reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import aclosing
from typing import Any

from langchain_core.messages import AIMessage, SystemMessage

from convstore import Conversation
from convstore.edges import check_conversation
from convstore.ext.ui.ag_ui import ag_ui_messages
from convstore.ext.ui.ai_sdk import ai_sdk_messages
from convstore.ext.ui.turns import ANSWER, Format, ShownTurn, TurnReader
from convstore.integration import TurnAccess
from convstore.types import ConversationUpdate, Dropped, Turn, TurnState
from convstore.values.json_form import Value, valid_text
from convstore.values.plain import slices
from convstore.values.scope import MAX_IDS, check_names, check_number, check_one_of
from convstore.wire.parts import json_value
from convstore.wire.streams import StreamedReply

_WRITERS = {"ai-sdk": ai_sdk_messages, "ag-ui": ag_ui_messages}


class UIPage(Value):
    """A page of a conversation, as JSON for a front end.

    Attributes:
        messages: `UIMessage`s of the AI SDK, or messages of AG-UI: plain dicts, oldest first.
        before: Pass it as `before` to get the page before this one; None if nothing precedes it.
        last: The highest ordinal on the page, for `Conversation.watch`; 0 without messages.
        turn: On the newest page, the state of the last turn, or of a variant in progress that is not active yet.
        report: The parts of messages that the format does not support, or that are longer than the page allows.
    """

    messages: list[dict[str, Any]]
    before: int | None = None
    last: int = 0
    turn: TurnState | None = None
    report: tuple[Dropped, ...] = ()


async def ui_messages(
    chat: Conversation,
    *,
    format: Format = "ai-sdk",  # noqa: A002 - the word for it
    before: int | None = None,
    limit: int = 50,
    output_limit: int = 20_000,
    media_limit: int = 500_000,
    system: bool = False,
    client_tools: Collection[str] = (),
) -> UIPage:
    """Return a page of messages to show a conversation, by default its newest turns.

    The page has the log with full texts and results, not the view of a model. Turns are whole, so a page may have more
    messages of the log than `limit`. The same log gives the same ids and parts, whatever page they are on.
    `UIPage.report` lists everything that is left out.

    A page takes about twelve commands, an earlier page eight. Added to that are two for each 200 messages, four for
    each turn with variants, and two for each 2 million characters of large results.

    Args:
        chat: The conversation.
        format: "ai-sdk" for `UIMessage`s of the AI SDK 7, "ag-ui" for messages of AG-UI 1.0.
        before: `UIPage.before` of the page after this one; None for the newest page.
        limit: Whole turns are added until the page has at least so many messages of the log.
        output_limit: Maximum characters of a result. A longer one is cut, with the id of its message at the end.
        media_limit: Maximum characters of the data of an image or a file, as Base64. Larger data is replaced by a
            placeholder with the id of its message, for `Conversation.get_tool_messages`.
        system: Include system messages, which are not meant for users.
        client_tools: Names of tools that run on the client; their calls wait for a result, not for an approval.

    Raises:
        InvalidInputError: `format` is invalid, or a number is out of bounds.
    """
    check_conversation(chat)
    check_one_of(format, *_WRITERS, name="format")
    check_number(limit, name="limit", minimum=1, maximum=1_000)
    names = check_names(client_tools, name="client_tools")
    check_number(output_limit, name="output_limit", minimum=1)
    check_number(media_limit, name="media_limit", minimum=0)
    reader = TurnReader(names, output_limit=output_limit, media_limit=media_limit)
    now = await newest(chat) if before is None else ConversationUpdate(replaces_from=0)
    turns = await _turns_before(chat, before, limit)
    await _look_up(chat, turns, reader)
    last = max((turn.last for turn in turns), default=0)
    state = _state_of_page(now, last)
    shown: list[ShownTurn] = []
    for turn in turns:
        own = state if state and state.turn_id == turn.turn_id else None
        shown.append(_shown(turn, own, reader, system=system))
    return UIPage(
        messages=[message for turn in shown for message in _WRITERS[format](turn)],
        before=_first_of(turns),
        last=last,
        turn=_sendable(now.turn),
        report=tuple(reader.dropped),
    )


def _sendable(state: TurnState | None) -> TurnState | None:
    """Return a state that JSON can represent; arguments that it cannot represent become one text."""
    calls = []
    for call in state.waiting_calls if state else ():
        args = json_value(call.args)
        texts = {name: valid_text(getattr(call, name)) for name in ("id", "name", "error")}
        shown = {"args": args if isinstance(args, dict) else {"arguments": args}}
        calls.append(call.model_copy(update=texts | shown))
    return state and state.model_copy(
        update={"draft": valid_text(state.draft), "waiting_calls": tuple(calls)}
    )


async def newest(chat: Conversation) -> ConversationUpdate:
    """Return the last message, and the state of the last turn or of its variant that is not active yet."""
    async with aclosing(chat.watch(limit=1)) as updates:
        return await anext(updates)


async def _look_up(chat: Conversation, turns: Sequence[Turn], reader: TurnReader) -> None:
    """Give a reader the sources and the metadata of the messages of a page."""
    turn_ids = {str(message.id): turn.turn_id for turn in turns for message in turn.messages}
    places = await TurnAccess(chat).at_places([turn.turn_id for turn in turns if turn.number])
    for ids in slices(list(turn_ids), MAX_IDS):
        annotations = await chat.annotations(ids)
        for record in await chat.get_tool_messages(ids):
            id_ = record.tool_message_id
            turn_id = turn_ids[record.tool_message_id]
            own = {
                "ordinal": record.ordinal,
                "createdAt": record.created_at.isoformat(),
                "turnId": turn_id,
            }
            if place := places.get(turn_id):
                own["variant"] = {
                    "id": place.shown.variant,
                    "number": place.shown.number,
                    "count": place.variants,
                }
            if id_ in annotations:
                own["annotations"] = json_value(annotations[id_])
            reader.sources[id_] = record.sources
            reader.metadata[id_] = own


async def _turns_before(chat: Conversation, before: int | None, limit: int) -> list[Turn]:
    """Return the last turns before an ordinal, oldest first, that together have `limit` messages or more."""
    turns: list[Turn] = []
    messages = 0
    async with aclosing(chat.turns(newest_first=True, before=before)) as found:
        async for turn in found:
            turns.insert(0, turn)
            messages += len(turn.messages)
            if messages >= limit:
                break
    return turns


def _state_of_page(now: ConversationUpdate, last: int) -> TurnState | None:
    """Return the state of the last turn; None for a page that ends earlier or shows another variant of the turn."""
    if not now.messages or now.messages[-1].ordinal != last:
        return None
    state = now.turn
    return state if state and not state.variant_id else None


def _first_of(turns: Sequence[Turn]) -> int | None:
    """Return the ordinal before which the page before this one ends; None if this is the first page."""
    if not turns or turns[0].first == 1 or not turns[0].number:
        return None
    return turns[0].first


def _answer_of(turn: Turn) -> str:
    """Return the id of the last AI message of a turn; "" without one. A later reminder does not belong to the turn."""
    for message in reversed(turn.messages):
        if isinstance(message, AIMessage) and message.id not in turn.others:
            return str(message.id)
    return ""


def _shown(turn: Turn, state: TurnState | None, reader: TurnReader, *, system: bool) -> ShownTurn:
    """Return a turn in the form that pages show; `state` is that of the last turn, None for all others."""
    if not system:
        _drop_system(turn, reader)
    shown = reader.turn(turn.turn_id, turn.messages, turn.waiting_calls, is_over=turn.is_finished)
    answer_id = _answer_of(turn)
    about = dict(reader.metadata.get(answer_id or turn.turn_id, {}))
    if answer_id:
        about["messageId"] = answer_id
    if state and state.draft:
        reply = StreamedReply()
        reply.add(state.draft)
        shown = reader.streaming(shown, reply)
        about["draft"] = True
        own = reader.metadata.get(turn.turn_id, {})
        reader.metadata[shown.steps[-1].id] = {**own, "draft": True}
    if state and state.status == "stopped":
        about["stopped"] = True
    reader.metadata[ANSWER + turn.turn_id] = about
    return shown


def _drop_system(turn: Turn, reader: TurnReader) -> None:
    """Remove system messages from a turn and report them."""
    for message in [*turn.messages]:
        if isinstance(message, SystemMessage):
            turn.messages.remove(message)
            reader.drop(
                message, "system message", "it is not meant for users; system=True returns it"
            )
