"""Return a page of a conversation for a chat front end, in the format that its client library reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage

from convstore import Conversation
from convstore.ext.ui.ag_ui import ag_ui_messages
from convstore.ext.ui.ai_sdk import ai_sdk_messages
from convstore.ext.ui.parts import PartWriter, plain
from convstore.ext.ui.turns import ShownTurn, answer_id, read_turn
from convstore.integration import variants_at_places
from convstore.types import ConversationUpdate, Dropped, ToolRecord, Turn, TurnState, Variant
from convstore.values.models import Value
from convstore.values.scope import MAX_IDS, check_choice, check_names, check_number

Format = Literal["ai-sdk", "ag-ui"]
_WRITERS = {"ai-sdk": ai_sdk_messages, "ag-ui": ag_ui_messages}


class UIPage(Value):
    """A page of a conversation, as JSON for a front end.

    Attributes:
        messages: `UIMessage`s of the AI SDK, or messages of AG-UI: plain dicts, oldest first.
        before: Pass it as `before` to get the page before this one; None if nothing precedes it.
        last: The highest ordinal on the page, for `Conversation.watch`; 0 without messages.
        turn: On the newest page the state of the last turn, or of another answer or question that is not shown yet.
        report: The parts of messages that the format has no place for, or that are longer than the page allows.
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
    """Return what a page needs to show a conversation, by default its newest turns.

    It shows what was said: full texts and results, not the view of a model. Turns are whole, so a page may have more
    messages of the log than `limit`. The same log gives the same ids and parts, whatever page they are on. Nothing is
    left out silently: `UIPage.report` names it. About twelve commands, eight for an earlier page; two more for 200
    messages, four for each turn with variants, and two for each append that stored large results.

    Args:
        chat: The conversation.
        format: "ai-sdk" for `UIMessage`s of the AI SDK 7, "ag-ui" for messages of AG-UI 1.0.
        before: `UIPage.before` of the page after this one; None for the newest page.
        limit: How many messages of the log are enough; a turn that they begin in is whole.
        output_limit: Maximum characters of a result; a longer one is its beginning and the id of its message.
        media_limit: Maximum characters of the data of an image or a file, as Base64; a larger one is a placeholder with
            the id of its message, for `Conversation.get_tool_messages`.
        system: Also system messages, which are not meant for users.
        client_tools: Names of tools that run on the client, whose calls wait for a result and no approval.

    Raises:
        InvalidInputError: `format` is neither, or a number is out of bounds.
    """
    check_choice(format, *_WRITERS, name="format")
    check_number(limit, name="limit", minimum=1, maximum=1_000)
    names = check_names(client_tools, name="client_tools")
    check_number(output_limit, name="output_limit", minimum=1)
    check_number(media_limit, name="media_limit", minimum=0)
    writer = PartWriter(output_limit=output_limit, media_limit=media_limit)
    newest = ConversationUpdate(replaces_from=0)
    if before is None:
        async with aclosing(chat.watch(limit=1)) as updates:
            newest = await anext(updates)
    turns = await _turns(chat, before, limit)
    known = await _facts(chat, turns, newest)
    shown = [_shown(turn, known, writer, system=system, client_tools=names) for turn in turns]
    is_first = not turns or turns[0].first == 1 or not turns[0].number
    return UIPage(
        messages=[message for turn in shown for message in _WRITERS[format](turn)],
        before=None if is_first else turns[0].first,
        last=max((turn.last for turn in turns), default=0),
        turn=newest.turn,
        report=tuple(writer.report),
    )


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a page knows of its messages by id, of its turns by id, and of the last turn."""

    records: Mapping[str, ToolRecord]
    annotations: Mapping[str, dict[str, Any]]
    variants: Mapping[str, Sequence[Variant]]
    state: TurnState | None

    def state_of(self, turn: Turn) -> TurnState | None:
        """Return the state of a turn if it is the last one, and shows all of its answer."""
        is_it = self.state and (self.state.turn_id, self.state.variant_id) == (turn.turn_id, "")
        return self.state if is_it else None


async def _turns(chat: Conversation, before: int | None, limit: int) -> list[Turn]:
    """Return the turns of a page, in order."""
    found = list[Turn]()
    async with aclosing(chat.turns(newest_first=True, before=before)) as turns:  # type: ignore[type-var]
        async for turn in turns:
            found.append(turn)
            limit -= len(turn.messages)
            if limit <= 0:
                break
    return found[::-1]


async def _facts(chat: Conversation, turns: Sequence[Turn], newest: ConversationUpdate) -> _Facts:
    """Read what is known of the turns of a page. The last turn's state counts if it knows the same messages."""
    ids = [_id(message) for turn in turns for message in turn.messages]
    records, annotations = dict[str, ToolRecord](), dict[str, dict[str, Any]]()
    for start in range(0, len(ids), MAX_IDS):
        batch = ids[start : start + MAX_IDS]
        records |= {record.tool_message_id: record for record in await chat.get_tool_messages(batch)}
        annotations |= await chat.annotations(batch)
    variants = await variants_at_places(chat, [turn.turn_id for turn in turns if turn.number])
    is_same = newest.messages and turns and newest.messages[-1].ordinal == max(turn.last for turn in turns)
    return _Facts(records, annotations, variants, newest.turn if is_same else None)


def _shown(turn: Turn, known: _Facts, writer: PartWriter, *, system: bool, client_tools: Collection[str]) -> ShownTurn:
    state = known.state_of(turn)
    shown = read_turn(
        turn.turn_id,
        turn.messages,
        writer,
        waiting=[call.result_id for call in state.waiting_calls] if state else [],
        client_tools=client_tools,
        sources={id_: known.records[id_].sources for id_ in map(_id, turn.messages) if id_ in known.records},
        metadata=_metadata(turn, known),
        draft=state.draft if state else "",
        is_over=turn.is_finished,
    )
    for step in [] if system else [step for step in shown.steps if step.role == "system"]:
        shown.steps.remove(step)
        writer.report.append(Dropped(step.id, "system message", "it is not meant for users; system=True returns it"))
    return shown


def _metadata(turn: Turn, known: _Facts) -> dict[str, dict[str, Any]]:
    """Return the metadata of the messages of a turn by id, and of its answer as a whole."""
    found = dict[str, dict[str, Any]]()
    shown = next((variant for variant in known.variants.get(turn.turn_id, ()) if variant.is_active), None)
    variant = {"variant": {"id": shown.variant_id, "number": shown.number, "count": shown.count}} if shown else {}
    for message in turn.messages:
        id_ = _id(message)
        if record := known.records.get(id_):
            at = {"ordinal": record.ordinal, "createdAt": record.created_at.isoformat(), "turnId": turn.turn_id}
            own = known.annotations.get(id_)
            found[id_] = {**at, **variant, **({"annotations": plain(own)} if own else {})}
    state, said = known.state_of(turn), [_id(message) for message in turn.messages if isinstance(message, AIMessage)]
    last = found.get(said[-1] if said else turn.turn_id, {})
    marks = {"draft": bool(state and state.draft), "stopped": bool(state and state.status == "stopped")}
    marked = {name: True for name, is_set in marks.items() if is_set}
    found[answer_id(turn.turn_id)] = {**last, **({"messageId": said[-1]} if said else {}), **marked}
    return found


def _id(message: BaseMessage) -> str:
    return str(message.id)
