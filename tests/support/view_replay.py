"""Replays a script on stores, and compares each view that they load with the oracle's."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from langchain_core.messages import BaseMessage
from oracle import Decision, Log, Record, decide, essence
from view_scripts import Append, Event, Load, Rewind, Script

from convstore import Conversation, ConversationStore, History, HistoryPolicy

SYNTHETIC = "convstore"
"""Key of `additional_kwargs` that marks a message of a view that is not in the log."""


def kinds(messages: Sequence[BaseMessage]) -> list[str]:
    """The kinds of the messages that a view added."""
    return [
        message.additional_kwargs[SYNTHETIC]["kind"]
        for message in messages
        if SYNTHETIC in message.additional_kwargs
    ]


def differences(history: History, decision: Decision, budget: int) -> list[str]:
    """Describe how a view of the store differs from the oracle's."""
    report = history.report
    forms = {
        form: {str(piece.line.message.id) for piece in decision.shown if piece.form == form}
        for form in _FORMS
    }
    pairs = [
        ("messages in another order", _ids(history.messages), _ids(decision.messages())),
        ("tokens", history.tokens, decision.size),
        ("over_budget", report.over_budget, decision.size > budget),
        ("left_out_turns", report.left_out_turns, decision.left_turns),
        ("note", "note" in kinds(history.messages), decision.has_note),
        ("stubbed", sorted(report.stubbed), sorted(forms["stub"])),
        ("shortened", sorted(report.shortened), sorted(forms["shortened"])),
    ]
    others = [
        f"{name}: store {found}, oracle {wanted}"
        for name, found, wanted in pairs
        if found != wanted
    ]
    return [*_unequal(history, decision), *others]


_FORMS = ("stub", "shortened")


def _ids(messages: Sequence[BaseMessage]) -> list[str]:
    return [str(message.id) for message in messages if SYNTHETIC not in message.additional_kwargs]


def _unequal(history: History, decision: Decision) -> list[str]:
    """Describe each message that the store shows in another form than the oracle."""
    found = {
        str(message.id): message
        for message in history.messages
        if SYNTHETIC not in message.additional_kwargs
    }
    wanted = {str(message.id): message for message in decision.messages()}
    lines = []
    for piece in decision.shown:
        message, key = piece.line.message, str(piece.line.message.id)
        sides = [essence([side[key]]) if key in side else [] for side in (found, wanted)]
        if sides[0] != sides[1]:
            whole = essence([message])
            form = (
                "absent"
                if not sides[0]
                else "whole"
                if sides[0] == whole
                else f"as {_brief(sides[0])}"
            )
            limit = f"({piece.limit})" if piece.limit else ""
            wanted_form = f"oracle {piece.form}{limit}"
            lines.append(
                f"{piece.line.ordinal} {message.type} of {piece.line.size} tokens: store {form}, {wanted_form}"
            )
    return lines


def _brief(texts: list[str]) -> str:
    text = "".join(texts)
    return f"{len(text)} characters: {text[:80]}"


@dataclass
class Replay:
    """A script on the handles of one conversation, one for each process.

    Attributes:
        script: What happens.
        chats: The handles.
        policies: By the number that a load names.
        records: The oracle's record of each policy.
        calls: Views loaded so far.
    """

    script: Script
    chats: Sequence[Conversation]
    policies: Sequence[HistoryPolicy]
    records: dict[int, Record | None] = field(default_factory=dict)
    calls: int = 0

    @property
    def log(self) -> Log:
        """The log that the script keeps."""
        return self.script.log

    async def run(self, calls: int) -> None:
        """Make the events of the script; raise at the first view that differs from the oracle's."""
        for event in self.script.events(calls):
            await self.make(event)

    async def make(self, event: Event) -> None:
        """Make one event."""
        chat = self.chats[0]
        if isinstance(event, Append):
            await chat.append(event.messages)
        elif isinstance(event, Rewind):
            await (chat.rewind(before_id=event.before) if event.before else chat.undo_rewind())
        else:
            await self.load(event)

    async def load(self, event: Load) -> History:
        """Load a view, and compare it with the oracle's."""
        policy = self.policies[event.policy]
        history = await self.chats[event.process].load_history(policy)
        self.calls += 1
        self.compare(history, event.policy)
        return history

    def compare(self, history: History, number: int) -> None:
        """Raise unless a view equals the oracle's."""
        policy, record = self.policies[number], self.records.get(number)
        budget = policy.max_tokens
        assert budget is not None
        decision = decide(self.log, policy, record)
        found = differences(history, decision, budget)
        self.records[number] = decision.record
        if not found:
            return
        lines = [
            f"call {self.calls}, policy {policy}, log of {self.log.last}, record before {record}",
            f"oracle: {decision.marks}, stores {decision.record}, excursion {decision.is_excursion}, "
            f"unseen {decision.unseen}; store: {history.stamp}",
            *found,
        ]
        raise AssertionError("\n".join(lines))


def handles(stores: Sequence[ConversationStore]) -> list[Conversation]:
    """A new conversation, as each process sees it."""
    thread = uuid.uuid4().hex
    return [store.conversation(user_id="ada", thread_id=thread) for store in stores]
