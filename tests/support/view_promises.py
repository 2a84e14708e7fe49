"""Says which promises a view breaks, given the conversation that it shows; an independent check of `load_history`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from awkward_talk import Talk
from langchain_core.messages import BaseMessage
from view_replay import kinds

from convstore import History, HistoryPolicy
from convstore.messages.media import has_media
from convstore.messages.media_figures import UNKNOWN
from convstore.messages.media_sizes import media_of
from convstore.messages.tokens import approximate_tokens
from convstore.messages.tool_calls import calls_of
from convstore.sources.shortening import without_media
from convstore.testing.pairing import check_pairing

NOTE_TOKENS = 210


def broken(history: History, talk: Talk, policy: HistoryPolicy, counter: Any) -> list[str]:
    """Return the promises that a view of a conversation without summaries breaks."""
    problems = [*_sizes(history, talk, policy, counter), *check_pairing(history.messages)]
    ids = [message.id for message in history.messages]
    problems += ["an id twice"] if len({*ids}) < len(ids) else []
    return [
        *problems,
        *_altered(history, talk),
        *(_unseen_altered(history, talk) if policy.view == "full" else ()),
    ]


def _sizes(history: History, talk: Talk, policy: HistoryPolicy, counter: Any) -> Iterator[str]:
    sizes = [counter([message]) for message in history.messages]
    if sum(sizes) != history.tokens:
        yield f"says {history.tokens} tokens, has {sum(sizes)}"
    unseen = {message.id for message in unseen_in(talk.active)}
    asked = note = 0
    for message, size in zip(history.messages, sizes, strict=True):
        note += size if kinds([message]) == ["note"] else 0
        asked += size if _belongs_to(message, unseen) else 0
    assert policy.max_tokens is not None
    if counter is approximate_tokens and note > NOTE_TOKENS:
        yield f"a note of {note} tokens"
    most = max(policy.max_tokens, asked)
    if (
        4 * asked > 3 * policy.max_tokens
    ):  # unread media leave earlier turns a quarter of the budget
        media = sum(
            _of_media(message, size, counter)
            for message, size in zip(history.messages, sizes, strict=True)
            if _belongs_to(message, unseen) and has_media(message)
        )
        most = max(most, policy.max_tokens + media)
    if sum(sizes) > most + note:
        yield f"{sum(sizes)} tokens of {policy.max_tokens}, unseen are {asked}, the note has {note}"
    if history.report.over_budget != (sum(sizes) > policy.max_tokens):
        yield "over_budget"


def _of_media(message: BaseMessage, size: int, counter: Any) -> int:
    """Return the tokens of the media in a message; by another counter, in a result, at most those of the message."""
    if counter is approximate_tokens:
        return UNKNOWN.all_tokens(media_of(message), by_model=message.type == "ai")
    if message.type == "tool":
        return size
    return size - int(counter([without_media(message)]))


def _belongs_to(message: BaseMessage, unseen: set[str | None]) -> bool:
    """Return True if a message of a view is among these, or was made for one of them."""
    made_for = {
        "missing_result": str(message.id).split(":missing-result")[0],
        "late_result": str(message.id)[:-1],
    }
    return message.id in unseen or any(made_for.get(kind) in unseen for kind in kinds([message]))


def unseen_in(active: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return what the model has not read: leading system messages, the open question, and the last step.

    A question that was answered is not open; an AI message that follows belongs to no turn.
    """
    leading = next(
        (at for at, message in enumerate(active) if message.type != "system"), len(active)
    )
    begin = max([leading, *(at for at, message in enumerate(active) if message.type == "human")])
    said = [at for at in range(begin, len(active)) if active[at].type == "ai"]
    if not all(calls_of(active[at]) for at in said):
        return [*active[:leading]]
    head = active[begin : said[0] if said else len(active)]
    return [*active[:leading], *head, *(active[said[-1] :] if said else [])]


def _altered(history: History, talk: Talk) -> Iterator[str]:
    report = history.report
    reported = {*report.stubbed, *report.shortened, *report.placeholders}
    for message in history.messages:
        if message.id in reported or kinds([message]):
            continue
        if _fields(message) != _fields(talk.written[str(message.id)]):
            yield f"{message.id} is not as it was appended"


def _fields(message: BaseMessage) -> dict[str, Any]:
    return message.model_dump() | {"artifact": None}


def _unseen_altered(history: History, talk: Talk) -> Iterator[str]:
    report = history.report
    shown = {message.id for message in history.messages} - {
        *report.stubbed,
        *report.shortened,
        *report.placeholders,
    }
    shown |= {*report.orphans, *report.late_results}
    yield from (
        f"{message.id} is unseen, not whole"
        for message in unseen_in(talk.active)
        if message.id not in shown
    )
