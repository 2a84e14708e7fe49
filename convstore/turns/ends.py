"""Read the end of a conversation at a glance: the state of its newest turn, and how its last answer ended.

A turn that is over is known from the last entry and the document of the state, which one command reads. Any other
turn is read as `Watcher` reads it, so that lists, pages and watchers say the same.
"""

from __future__ import annotations

from contextlib import aclosing

from langchain_core.messages import AIMessage

from convstore.log.entry import EntryMessage, Totals
from convstore.log.facts.event import EVENT
from convstore.log.stored_message import read_message
from convstore.messages.stop_reasons import cut_reason
from convstore.mongo.drafts import Drafts
from convstore.mongo.states import LogTip, States
from convstore.runtime.log_reader import LogReader
from convstore.turns.watching import Watcher
from convstore.values.list_rows import ConversationEnd
from convstore.values.models import TurnState
from convstore.values.scope import Scope


class EndReader:
    """Reads the ends of conversations."""

    def __init__(self, reader: LogReader, states: States, drafts: Drafts, watcher: Watcher) -> None:
        self._reader = reader
        self._states = states
        self._drafts = drafts
        self._watcher = watcher

    async def read(self, scope: Scope, conversation: str) -> ConversationEnd:
        """Return the end of a conversation.

        One command if its turn is over; two if messages were rewound before its question, or if nobody works on it and
        no call can wait for a person; else about seven.

        Raises:
            CorruptDocumentError: The last entry is damaged.
        """
        tip = await self._states.tip(conversation)
        if tip is None:
            return ConversationEnd()
        end = await self._at_rest(conversation, tip)
        if end is None:
            end = await self._in_progress(scope, conversation, tip)
        return end._replace(cut=self._cut(tip))

    async def _at_rest(self, conversation: str, tip: LogTip) -> ConversationEnd | None:
        """Return the end of a conversation for which no worker and no person has to do anything, else None."""
        totals = tip.entry.totals
        if tip.has_lease or EVENT.of(tip.entry):
            return None
        if await self._reader.hides_since_question(conversation, totals):  # perhaps another answer
            return None
        if not totals.turn:
            return ConversationEnd()
        if totals.over:
            return ConversationEnd("stopped" if totals.over == "stopped" else "finished")
        if tip.message is None or _has_earlier_calls(totals, tip.message):
            return None
        error = await self._error(conversation, totals.messages)
        is_only_asked = tip.message.ordinal == totals.turn and not error
        return ConversationEnd("interrupted", error=error, is_only_asked=is_only_asked)

    async def _in_progress(self, scope: Scope, conversation: str, tip: LogTip) -> ConversationEnd:
        """Return the end of a conversation as a watcher is told it."""
        state = await self._state(scope)
        if state is None:
            return ConversationEnd()
        waiting = tuple(call.name for call in state.waiting_calls)
        end = ConversationEnd(state.status, waiting)
        if state.status != "interrupted":
            return end
        return end._replace(error=await self._error(conversation, tip.entry.totals.messages))

    def _cut(self, tip: LogTip) -> str:
        """Return the stop reason of the last message, if it is an answer that was cut off."""
        if tip.message is None or tip.message.type != "ai":
            return ""
        message = read_message(self._reader.codec, tip.message)
        return cut_reason(message.response_metadata) if isinstance(message, AIMessage) else ""

    async def _state(self, scope: Scope) -> TurnState | None:
        watching = self._watcher.watch(scope, after=None, limit=1, full=False)
        async with aclosing(watching) as updates:
            return (await anext(updates)).turn

    async def _error(self, conversation: str, last: int) -> str:
        """Return the error by which the turn broke off, if nothing was appended since."""
        draft = await self._drafts.find(conversation)
        return draft.error if draft and draft.after == last else ""


def _has_earlier_calls(totals: Totals, last: EntryMessage) -> bool:
    """Return True if calls of the newest turn before the last message are open, so that they may wait for a person.

    Nothing can have said that a call of the last message waits: an event would follow it.
    """
    earlier = (call for call in totals.calls if call.result not in last.calls)
    return any(call.turn == totals.turn for call in earlier)
