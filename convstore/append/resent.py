"""Find the part of a resent history that the log already has: the rule of ``append(resent=...)``.

Messages are compared by their content digests. The known part is the longest prefix of the batch that equals the end of
the active log, or all of it. A match in the middle of a batch never counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from langchain_core.messages import BaseMessage

from convstore.log.comparison import content_digest
from convstore.log.entry import EntryMessage
from convstore.messages.tool_calls import has_calls
from convstore.messages.values import Codec


class Comparable(NamedTuple):
    """A message reduced to the fields that are compared.

    Attributes:
        type: "human", "ai", "tool", …
        calls: True if it makes tool calls.
        digest: Its content digest.
        id: Its id.
        ordinal: Its ordinal; 0 for a message of a batch.
    """

    type: str
    calls: bool
    digest: bytes
    id: str = ""
    ordinal: int = 0

    @property
    def is_answer(self) -> bool:
        """Return True if the message ends a turn."""
        return self.type == "ai" and not self.calls


class Match(NamedTuple):
    """The result of a comparison.

    Attributes:
        known: Number of the batch's leading messages that are in the log or skipped; None if batch and log diverge.
        matched: The messages of the log that equal the known ones, in order; skipped system messages have none.
        after: If they diverge, the last message of the log up to which they agree; None if they agree on none.
        before: If they diverge, the active message that follows `after` in the log; None if there is none.
    """

    known: int | None
    matched: tuple[Comparable, ...] = ()
    after: Comparable | None = None
    before: Comparable | None = None


def is_history(messages: Iterable[BaseMessage]) -> bool:
    """Return True for a batch with two or more human messages; one turn alone is always new."""
    return sum(message.type == "human" for message in messages) > 1


def comparable(message: BaseMessage, codec: Codec) -> Comparable:
    """Return the comparable form of a batch's message."""
    return Comparable(message.type, has_calls(message), content_digest(message, codec), str(message.id))


def stored(message: EntryMessage) -> Comparable:
    """Return the comparable form of a stored message."""
    return Comparable(message.type, message.calls > 0, message.content_digest, message.id, message.ordinal)


def leading_systems(messages: Sequence[Comparable]) -> int:
    """Count the leading system messages."""
    return sum(1 for _ in takewhile(lambda one: one.type == "system", messages))


def compare(batch: Sequence[Comparable], log: Sequence[Comparable]) -> Match:
    """Find the prefix of a batch that the log has.

    - Leading system messages of both are skipped.
    - A batch without tool messages is compared only with the human messages and the AI messages without calls. If it
      has calls, it is also compared with all messages except tool results, and the longer match counts.
    - The end of the log is its last message, or its last question if that has no answer yet.
    - With an empty log, all of the batch is new.

    >>> a, b, c = (Comparable("human", False, name.encode(), name) for name in "abc")
    >>> compare([b, c], [a, b]).known, compare([a, c], [a, b]).after.id
    (1, 'a')
    """
    if not log:
        return Match(0)
    skipped, start = leading_systems(batch), leading_systems(log)
    systems = tuple(log[:start]) if _digests(batch[:skipped]) == _digests(log[:start]) else ()
    active = log[start:]
    if not active:
        return Match(skipped, systems)
    matched = _matched(batch[skipped:], active, _compared(batch, active))
    if any(one.calls for one in batch) and all(one.type != "tool" for one in batch):
        without_results = [one for one in active if one.type != "tool"]
        matched = max(matched, _matched(batch[skipped:], active, without_results), key=len)
    known = skipped + len(matched)
    following = next((one for one in active if matched and one.ordinal > matched[-1].ordinal), None)
    if not matched or (following and _digests(batch[known : known + 1]) == [following.digest]):
        return parting(batch, active)
    return Match(known, (*systems, *matched))


def _matched(
    sent: Sequence[Comparable], active: Sequence[Comparable], compared: Sequence[Comparable]
) -> list[Comparable]:
    """Return the messages at the end of the log that equal the first ones of a batch."""
    length, end = known_prefix(_digests(sent), _digests(compared), _open_question(active, compared))
    return list(compared[end - length : end])


def is_enough(batch: Sequence[Comparable], end: Sequence[Comparable]) -> bool:
    """Return True if this end of a log is long enough: up to its last question it has as many messages as the batch.

    >>> is_enough([Comparable("human", False, b"")], [Comparable("human", False, b""), Comparable("tool", False, b"")])
    True
    """
    compared = _compared(batch, end)
    question = next((at for at in range(len(compared) - 1, -1, -1) if compared[at].type == "human"), -1)
    return question + 1 >= len(batch)


def parting(batch: Sequence[Comparable], log: Sequence[Comparable]) -> Match:
    """Find the divergence of batch and log: after their common prefix, else after the last longest match in the log."""
    active = log[leading_systems(log) :]
    compared = _compared(batch, active)
    lengths = _agreements(_digests(batch[leading_systems(batch) :]), _digests(compared))
    longest = max(lengths, default=0)
    if not longest:
        return Match(None, before=active[0] if active else None)
    ends = [index for index, length in enumerate(lengths) if length == longest]
    after = compared[ends[0] if ends[0] == longest - 1 else ends[-1]]
    return Match(None, after=after, before=next((one for one in active if one.ordinal > after.ordinal), None))


def known_prefix(batch: Sequence[bytes], log: Sequence[bytes], question: int | None = None) -> tuple[int, int]:
    """Return the length of the longest prefix of a batch with which a log ends, and its end index in the log.

    The log may also end directly after its open question. If the batch then continues as the log does, it repeats a
    part of the turn in progress, which must not be written twice: the length is 0. It is also 0 without a match.

    Args:
        batch: Digests of the batch.
        log: Digests of the log.
        question: Index of the open question in the log; None if the last turn is finished.

    >>> known_prefix([b"n", b"d", b"n"], [b"n", b"d", b"n", b"d"]), known_prefix([b"n", b"x"], [b"n", b"c"], 0)
    ((2, 4), (1, 1))
    """
    lengths = _agreements(batch, log)
    at_end = lengths[-1] if lengths else 0
    at_question = lengths[question] if question is not None else 0
    if question is None or at_question <= at_end:
        return at_end, len(log)
    continues = at_question < len(batch) and question + 1 < len(log) and batch[at_question] == log[question + 1]
    return (0 if continues else at_question), question + 1


def _agreements(batch: Sequence[bytes], log: Sequence[bytes]) -> list[int]:
    """Return for each message of the log the length of the batch's prefix that ends there (Knuth-Morris-Pratt)."""
    borders = [0]
    for index in range(1, len(batch)):
        borders.append(_extended(borders, batch, borders[-1], batch[index]))
    lengths: list[int] = []
    length = 0
    for digest in log:
        length = _extended(borders, batch, length, digest)
        lengths.append(length)
    return lengths


def _extended(borders: Sequence[int], batch: Sequence[bytes], length: int, digest: bytes) -> int:
    """Return the length of the longest prefix that ends with one more digest, after a prefix of a given length."""
    while length and (length == len(batch) or batch[length] != digest):
        length = borders[length - 1]
    return length + 1 if batch and batch[length] == digest else 0


def _open_question(active: Sequence[Comparable], compared: Sequence[Comparable]) -> int | None:
    """Return the index of the last human message among the compared ones, if the log's last turn is not finished."""
    if active[-1].is_answer:
        return None
    return next((at for at in range(len(compared) - 1, -1, -1) if compared[at].type == "human"), None)


def _compared(batch: Sequence[Comparable], active: Sequence[Comparable]) -> list[Comparable]:
    """Return the messages of the log that a batch is compared with: all, if it has tool messages."""
    with_tools = any(one.type == "tool" for one in batch)
    return [one for one in active if with_tools or one.type == "human" or one.is_answer]


def _digests(messages: Iterable[Comparable]) -> list[bytes]:
    return [one.digest for one in messages]
