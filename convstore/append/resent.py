"""Find the part of a resent history that the log already has: the rule of ``append_history``.

Messages are compared by their content digests. The questions align a history with the log: the longest prefix of its
questions that is a suffix of the questions of the log is known. In each known turn, the messages that the log has in
the same order are known, too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from langchain_core.messages import BaseMessage

from convstore.log.comparison import content_digest
from convstore.log.entry import EntryMessage
from convstore.messages.tool_calls import calls_of, is_paused
from convstore.messages.values import Codec

_EVIDENCE = 8
"""Number of turns whose answers are compared where questions repeat."""


class HistoryMatch(NamedTuple):
    """The part of a history that the log has.

    Attributes:
        matched: The equal messages of the log, by index in the batch.
        start: Index of the last known question; 0 if no question is known.
        skipped: Number of leading system messages that are not written, because the log is not empty.
        differs: True if batch and log diverge.
    """

    matched: Mapping[int, EntryMessage] = {}
    start: int = 0
    skipped: int = 0
    differs: bool = False

    @property
    def known(self) -> int:
        """Return the number of leading messages up to the last known one."""
        return max(max(self.matched, default=-1) + 1, self.skipped)


def comparable(message: BaseMessage, codec: Codec) -> EntryMessage:
    """Return the stored form of a message, with only the fields that are compared."""
    return EntryMessage(
        ordinal=0,
        id=str(message.id),
        type=message.type,
        body="",
        digest=b"",
        tokens=0,
        view_tokens=0,
        content_digest=content_digest(message, codec),
        calls=tuple([call.id for call in calls_of(message)]),
        is_paused=is_paused(message),
    )


def leading_systems(messages: Sequence[EntryMessage]) -> int:
    """Count the leading system messages."""
    return sum(1 for _ in takewhile(lambda message: message.type == "system", messages))


def compare(
    batch: Sequence[EntryMessage], log: Sequence[EntryMessage], *, turns: int, exactly: bool
) -> HistoryMatch:
    """Find the messages of a batch that the log has.

    A question is new if it is the only one of the batch and nothing follows it. Where questions repeat, the answers
    decide which of them are known.

    Args:
        batch: The messages of a history.
        log: The active messages at the end of the log.
        turns: Number of all turns of the log.
        exactly: True if the batch must have every answer of its known turns, and only known messages before new ones.

    >>> from langchain_core.messages import AIMessage, HumanMessage
    >>> said = (HumanMessage("Why?"), AIMessage("So."), HumanMessage("And?"))
    >>> q, a, p = (comparable(message, Codec()) for message in said)
    >>> sorted(compare([q, a, p], [q, a], turns=1, exactly=True).matched)
    [0, 1]
    """
    sent_turns = _turns(batch)
    log_turns = _turns(log)
    known = 0
    is_new = len(sent_turns) == 2 and len(sent_turns[1]) == 1
    if not is_new:
        known = _known_questions(sent_turns[1:], log_turns[1:], whole=0 if exactly else turns)
    if not known and len(sent_turns) > 2 and log_turns[1:]:
        return HistoryMatch(differs=True)
    aligned = log_turns[len(log_turns) - 1 - known :]
    leading = leading_systems(batch)
    # Leading system messages are written only to an empty log, so they match only those that begin it.
    begun = leading_systems([message for _, message in aligned[0]])
    mine = [sent_turns[0][:leading], sent_turns[0][leading:], *sent_turns[1 : known + 1]]
    theirs = [aligned[0][:begun], aligned[0][begun:], *aligned[1:]]
    matched: dict[int, EntryMessage] = {}
    for sent, stored in zip(mine, theirs, strict=True):
        matched |= _in_order(sent, stored)
    match = HistoryMatch(matched, sent_turns[known][0][0] if known else 0, leading if log else 0)
    return match._replace(differs=exactly and not _is_exact(match, aligned[1:]))


def divergence(
    batch: Sequence[EntryMessage], log: Sequence[EntryMessage], *, exactly: bool
) -> tuple[EntryMessage | None, EntryMessage | None]:
    """Find the point where batch and log diverge: after their common prefix, else after the last longest match.

    Only questions are compared. With `exactly` answers are compared, too, and all messages if the batch has tool
    messages.

    Returns:
        The last message of the log up to which the two agree, and the active message after it; each may be None.
    """
    active = log[leading_systems(log) :]
    sent = batch[leading_systems(batch) :]
    if exactly and any(message.type == "tool" for message in batch):
        compared = active
    else:
        sent = _compared(sent, answers=exactly)
        compared = _compared(active, answers=exactly)
    last = _last_agreement(sent, compared)
    if last is None:
        return None, next(iter(active), None)
    later = active if exactly else compared
    before = next((message for message in later if message.ordinal > last.ordinal), None)
    if before is None:
        return active[-1], None
    agreed = [message for message in active if message.ordinal < before.ordinal]
    return agreed[-1], before


def _compared(messages: Sequence[EntryMessage], *, answers: bool) -> list[EntryMessage]:
    """Return the questions among messages, and the answers, too, if `answers` is true."""
    return [
        message
        for message in messages
        if message.type == "human" or (answers and message.is_answer)
    ]


def _last_agreement(
    sent: Sequence[EntryMessage], log: Sequence[EntryMessage]
) -> EntryMessage | None:
    """Return the last message of the longest match between the log and a prefix of the history, if any matches."""
    lengths = _agreements(
        [message.content_digest for message in sent],
        [message.content_digest for message in log],
    )
    longest = max(lengths, default=0)
    if not longest:
        return None
    ends = [index for index, length in enumerate(lengths) if length == longest]
    is_prefix = ends[0] == longest - 1
    return log[ends[0] if is_prefix else ends[-1]]


_Turn = list[tuple[int, EntryMessage]]
"""The messages from a question to the next one, with their indexes."""


def _turns(messages: Sequence[EntryMessage]) -> list[_Turn]:
    """Split messages at questions: the first list has those before the first question, each other list is a turn."""
    turns: list[_Turn] = [[]]
    for index, message in enumerate(messages):
        if message.type == "human":
            turns.append([])
        turns[-1].append((index, message))
    return turns


def _known_questions(sent_turns: Sequence[_Turn], log_turns: Sequence[_Turn], *, whole: int) -> int:
    """Return how many of a batch's first questions are the last questions of the log.

    Where questions repeat, several numbers are possible. The one with the most equal answers is chosen, then `whole`,
    then the one with the fewest different answers, then the largest.
    """
    questions = [turn[0][1].content_digest for turn in sent_turns]
    lengths = _agreements(questions, [turn[0][1].content_digest for turn in log_turns])
    answers = list(map(_answer, sent_turns))
    stored_answers = list(map(_answer, log_turns[-len(sent_turns) :] if sent_turns else ()))

    def candidates() -> Iterator[tuple[int, bool, int, int]]:
        borders = _borders(questions)
        number = lengths[-1] if lengths else 0
        while number:
            compared = min(number, _EVIDENCE)
            equal = sum(
                answers[number - back] == stored_answers[-back] for back in range(1, compared + 1)
            )
            yield equal, number == whole, equal - compared, number
            number = borders[number - 1]

    return max(candidates(), default=(0,))[-1]


def _answer(turn: _Turn) -> bytes:
    """Return the digest of the last answer of a turn, or b"" if it has no answer."""
    return next((message.content_digest for _, message in reversed(turn) if message.is_answer), b"")


def _in_order(mine: _Turn, theirs: _Turn) -> dict[int, EntryMessage]:
    """Match the messages of a batch's turn with equal messages of the log's turn in the same order; by index."""
    positions = defaultdict[bytes, deque[int]](deque)
    for position, (_, message) in enumerate(theirs):
        positions[message.content_digest].append(position)
    found: dict[int, EntryMessage] = {}
    reached = -1
    for index, message in mine:
        same = positions[message.content_digest]
        while same and same[0] <= reached:
            same.popleft()
        if same:
            reached = same[0]
            found[index] = theirs[reached][1]
    return found


def _is_exact(match: HistoryMatch, known_turns: Iterable[_Turn]) -> bool:
    """Return True if the batch has every answer of its known turns, and only known messages before its new ones."""
    matched = {message.ordinal for message in match.matched.values()}
    answers = [message.ordinal for turn in known_turns for _, message in turn if message.is_answer]
    return matched.issuperset(answers) and match.matched.keys() >= set(
        range(match.skipped, match.known)
    )


def _borders(digests: Sequence[bytes]) -> list[int]:
    """Return the length of the longest border of each prefix of the digests (Knuth-Morris-Pratt)."""
    borders: list[int] = []
    for index, digest in enumerate(digests):
        length = borders[-1] if borders else 0
        while length and digests[length] != digest:
            length = borders[length - 1]
        borders.append(length + (index > 0 and digests[length] == digest))
    return borders


def _agreements(batch: Sequence[bytes], log: Sequence[bytes]) -> list[int]:
    """Return for each message of the log the length of the longest prefix of the batch that ends there."""
    return _borders([*batch, b"", *log])[len(batch) + 1 :]
