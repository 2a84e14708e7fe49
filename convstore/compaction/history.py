"""Manages the history of a conversation's summaries: lists them, expands them, undoes the current one.

Every summary is kept. The state names the current one, and each summary names the one that it extends. A summary whose
messages were rewound is set aside until the rewind is undone; until then, the newest earlier summary that is still
valid is the current one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from langchain_core.messages import BaseMessage

from convstore.exceptions import CorruptDocumentError, InvalidInputError
from convstore.log.state import State
from convstore.log.summary import SummaryRecord, summary_chain
from convstore.mongo.keys import SUMMARIES, summary_id
from convstore.runtime.log_end import LogEndReader
from convstore.runtime.log_reader import Snapshot
from convstore.runtime.retrying import WriteConflict, until_written
from convstore.values.models import Summary
from convstore.values.plain import shown_value
from convstore.values.scope import Scope


class SummaryHistory:
    """Reads stored summaries and selects the current one."""

    def __init__(self, ends: LogEndReader) -> None:
        self._reader = ends.reader
        self._ends = ends
        self._states = ends.states
        self._summaries = ends.summaries

    async def all(self, scope: Scope) -> list[Summary]:
        """Return all summaries, oldest first; see `Conversation.summaries`."""
        cached = await self._reader.find(scope)
        if cached is None:
            return []
        async with self._reader.reading(cached):
            state = await self._ends.state(cached)
            found = await self._summaries.all(cached.conversation) if state.newest else {}
            current = state.summary.token if state.summary else ""
            summaries = reversed(_whole_chain(cached.conversation, found, state.newest, "previous"))
            return [
                self.public(record, found, is_current=record.token == current)
                for record in summaries
            ]

    async def expand(self, scope: Scope, version: int) -> list[BaseMessage]:
        """Return the messages that a summary replaces; see `Conversation.expand_summary`."""
        cached = await self._reader.find(scope)
        committed: list[SummaryRecord] = []
        if cached is not None:
            async with self._reader.reading(cached):
                newest = (await self._ends.state(cached)).newest
                found = await self._summaries.all(cached.conversation)
                committed = _whole_chain(cached.conversation, found, newest, "previous")
        record = next((kept for kept in committed if kept.version == version), None)
        if record is None or cached is None:
            raise InvalidInputError(
                f"this conversation has no summary {shown_value(version)}; summaries() lists all "
                "versions"
            )
        async with self._reader.reading(cached):
            entries = await self._reader.entries(cached, start=1, before=record.entry + 1)
            messages = [
                message
                for entry in entries
                for message in entry.messages
                if record.covers(message.ordinal)
            ]
            return await self._reader.decode_all(cached, messages)

    async def undo(self, scope: Scope) -> bool:
        """Restore the summary before the current one; see `Conversation.undo_compaction`."""
        cached = await self._reader.find(scope)
        if cached is None:
            return False
        async with self._reader.reading(cached):
            end = await self._ends.read(cached)
            state = end.state
            if state.summary is None:
                return False
            found = await self._summaries.all(cached.conversation)
            parent = next(
                iter(_whole_chain(cached.conversation, found, state.summary.parent, "parent")), None
            )
        undone = state.summary.token
        aside = [token for token in state.aside if undone not in _tokens(found, token)]
        last = end.entries[-1].number if end.entries else 0
        return await self._states.commit(state, parent, entry=last, aside=aside)

    async def reselect(self, log: Snapshot) -> None:
        """Make the longest summary that fits the active messages of a log the current one.

        The candidates are the current summary, those it extends, and those that a rewind set aside. Call it after a
        rewind and after a restore; a second call does nothing.
        """
        await until_written(lambda: self._reselect_once(log), WriteConflict)

    async def _reselect_once(self, log: Snapshot) -> None:
        """Try `reselect` once; raise WriteConflict if another process changed the state meanwhile."""
        cached = log.cached
        # After a restore from a backup, this is not the same object as `log.cached`.
        known = await self._reader.find(cached.scope)
        if known is None or known.conversation != cached.conversation:
            return
        end = await self._ends.read(known)
        change = await self._selection(log, end.state)
        if change is None:
            return
        best, aside = change
        last = end.entries[-1].number if end.entries else 0
        if not await self._states.commit(end.state, best, entry=last, aside=aside):
            raise WriteConflict

    async def _selection(
        self, log: Snapshot, state: State
    ) -> tuple[SummaryRecord | None, list[str]] | None:
        """Return the summary to make current and the tokens of those set aside; None if nothing changes."""
        if not state.aside and (state.summary is None or _is_of_active(state.summary, log)):
            return None
        found = await self._summaries.all(log.cached.conversation)
        current = [state.summary.token] if state.summary else []
        ends = [*current, *state.aside]
        candidates = {token: found[token] for end in ends for token in _tokens(found, end)}
        best = _longest(candidates.values(), log)
        chosen = [best.token] if best else []
        if chosen == current:
            return None
        return best, _without_extended(found, ends, chosen)

    def public(
        self, record: SummaryRecord, found: Mapping[str, SummaryRecord], *, is_current: bool
    ) -> Summary:
        """Convert a stored summary to the public model; `found` has the summaries that it extends."""
        results = [
            result
            for kept in reversed(summary_chain(found, record.token, "parent"))
            for result in kept.folded
        ]
        return Summary(
            version=record.version,
            first=record.first,
            last=record.last,
            text=record.text,
            messages=self._reader.summary_messages(record),
            model=record.model,
            tokens_in=record.tokens_in,
            tokens_out=record.tokens_out,
            created_at=record.at,
            reason=record.reason,
            tool_message_ids=[id_ for id_, _ in results],
            source_ids=", ".join(sources for _, sources in results if sources),
            is_current=is_current,
        )


def _whole_chain(
    conversation: str, found: Mapping[str, SummaryRecord], token: str, link: str
) -> list[SummaryRecord]:
    """Follow a link from one summary back to the first one, newest first; raise an error if one is missing."""
    chain = summary_chain(found, token, link)
    if missing := getattr(chain[-1], link) if chain else token:
        raise CorruptDocumentError(
            summary_id(conversation, missing), "the summary is missing", collection=SUMMARIES
        )
    return chain


def _is_of_active(record: SummaryRecord, log: Snapshot) -> bool:
    """Return True if the summary's messages are active. It may end after `log`, if more was appended since."""
    return record.gaps == log.active.gaps(record.last)


def _longest(candidates: Iterable[SummaryRecord], log: Snapshot) -> SummaryRecord | None:
    """Return the newest of the longest summaries whose messages are active."""
    fitting = [record for record in candidates if _is_of_active(record, log)]
    return max(fitting, key=lambda record: (record.last, record.version), default=None)


def _tokens(found: Mapping[str, SummaryRecord], end: str) -> list[str]:
    """Return the tokens of a summary and of those that it extends, newest first."""
    return [record.token for record in summary_chain(found, end, "parent")]


def _without_extended(
    found: Mapping[str, SummaryRecord], ends: Sequence[str], chosen: Sequence[str]
) -> list[str]:
    """Return the tokens of summaries that are neither chosen nor extended by any of them."""
    extended = {token for end in (*ends, *chosen) for token in _tokens(found, end)[1:]}
    return [end for end in ends if end not in chosen and end not in extended]
