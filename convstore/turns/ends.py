"""Read the state of the newest turn of a conversation, for lists.

If the turn is over, one command reads its state from the last entry and the state document. Any other turn is read by
`Watcher`, so that lists, pages and watchers agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from convstore.log.entry import EntryMessage, OpenCall, Totals
from convstore.log.facts.event import EVENT
from convstore.mongo.drafts import Drafts
from convstore.mongo.states import LogTip, States
from convstore.turns.watching import Watcher
from convstore.values.list_rows import ConversationEnd
from convstore.values.models import TurnState
from convstore.values.scope import Scope


class EndReader:
    """Reads the ends of conversations."""

    def __init__(self, states: States, drafts: Drafts, watcher: Watcher) -> None:
        self._states = states
        self._drafts = drafts
        self._watcher = watcher

    async def read(self, scope: Scope, conversation: str) -> ConversationEnd:
        """Return the end of a conversation.

        One command if its turn is over; two if no worker holds it and no call can wait for a person; else about seven.

        Raises:
            CorruptDocumentError: The last entry is damaged.
        """
        tip = await self._states.tip(conversation)
        if tip is None:
            return ConversationEnd()
        end = await self._at_rest(conversation, tip)
        return end or await self._in_progress(scope, conversation, tip)

    async def _at_rest(self, conversation: str, tip: LogTip) -> ConversationEnd | None:
        """Return the end of a conversation that no worker holds and that waits for no person; else None."""
        totals = tip.entry.totals
        if tip.has_lease or totals.has_variant or EVENT.of(tip.entry):
            return None
        state = totals.state
        if state not in ("open", "imported"):
            return ConversationEnd(state)
        error = await self._error(conversation, totals.messages)
        if state == "imported" and not error:
            return ConversationEnd(state)
        if tip.message is None or _has_earlier_calls(totals, tip.message):
            return None
        is_only_asked = tip.message.ordinal == totals.turn and not error
        return ConversationEnd(
            "interrupted",
            error=error,
            step=_step(tip),
            is_only_asked=is_only_asked,
            since=tip.entry.at,
            open_calls=_result_ids(_open_calls(tip)),
        )

    async def _in_progress(self, scope: Scope, conversation: str, tip: LogTip) -> ConversationEnd:
        """Return the end of a conversation as a watcher reads it."""
        state = await self._state(scope)
        if state is None:
            return ConversationEnd()
        totals = tip.entry.totals
        if state.status == "finished" and totals.ended in ("cut", "refused"):
            return ConversationEnd("imported" if totals.is_imported else totals.ended)
        waiting = tuple(call.name for call in state.waiting_calls)
        end = ConversationEnd(state.status, waiting, since=tip.entry.at)
        if state.status != "interrupted":
            return end
        error = await self._error(conversation, totals.messages)
        open_calls = _result_ids(_open_calls(tip))
        return end._replace(error=error, step=_step(tip), open_calls=open_calls)

    async def _state(self, scope: Scope) -> TurnState | None:
        watching = self._watcher.watch(scope, after=None, limit=1, full=False)
        async with aclosing(watching) as updates:
            return (await anext(updates)).turn

    async def _error(self, conversation: str, last: int) -> str:
        """Return the error that interrupted the turn, if nothing was appended since; else ""."""
        draft = await self._drafts.find(conversation)
        return draft.error if draft and draft.after == last else ""


def _step(tip: LogTip) -> str:
    """Return how far the newest turn got: during its open calls, or after its last message; "" for a variant."""
    totals = tip.entry.totals
    if totals.has_variant:
        return ""
    open_tools = [call.tool for call in _open_calls(tip)]
    if open_tools:
        return f"during {', '.join(dict.fromkeys(open_tools))}"
    if tip.message and tip.message.ordinal == totals.turn:
        return "after its question"
    return f"after {tip.message.tool}" if tip.message and tip.message.tool else ""


def _open_calls(tip: LogTip) -> list[OpenCall]:
    """Return the calls of the newest turn that have no result; an empty list if a variant may be unfinished."""
    totals = tip.entry.totals
    is_shown = not totals.has_variant
    return [call for call in totals.calls if is_shown and call.turn == totals.turn]


def _result_ids(calls: Sequence[OpenCall]) -> tuple[str, ...]:
    return tuple(call.result for call in calls)


def _has_earlier_calls(totals: Totals, last: EntryMessage) -> bool:
    """Return True if calls of the newest turn before the last message are open, so that they may wait for a person.

    A call of the last message cannot wait yet: the event that records this would follow the message.
    """
    earlier = (call for call in totals.calls if call.result not in last.calls)
    return any(call.turn == totals.turn for call in earlier)
