"""How much of a batch is a conversation that a client sends again: the rule of ``append(resent=...)``.

Layer 1, pure. Messages are compared by their content digests. Known is the longest beginning of the batch that equals
the end of the live log, or all of it. Nothing in the middle of a batch is ever taken for known.
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

__all__ = [
    "Comparable",
    "Match",
    "comparable",
    "compare",
    "is_enough",
    "is_history",
    "known_prefix",
    "leading_systems",
    "parting",
    "stored",
]


class Comparable(NamedTuple):
    """A message as the comparison sees it.

    Attributes:
        type: "human", "ai", "tool", …
        calls: Whether it makes tool calls.
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
        """Whether it ends a turn."""
        return self.type == "ai" and not self.calls


class Match(NamedTuple):
    """What a comparison found.

    Attributes:
        known: How many messages of the batch, from the first, are in the log or skipped; None if batch and log diverge.
        places: The messages of the log that the known ones are, in order; skipped system messages have none.
        after: If they diverge, the last message of the log up to which they agree; None if they agree on none.
        before: If they diverge, the live message that follows `after` in the log; None if there is none.
    """

    known: int | None
    places: tuple[Comparable, ...] = ()
    after: Comparable | None = None
    before: Comparable | None = None


def is_history(messages: Iterable[BaseMessage]) -> bool:
    """Return True for a batch with two or more human messages; one turn alone is always new."""
    return sum(message.type == "human" for message in messages) > 1


def comparable(message: BaseMessage, codec: Codec) -> Comparable:
    """A message of a batch."""
    return Comparable(message.type, has_calls(message), content_digest(message, codec), str(message.id))


def stored(message: EntryMessage) -> Comparable:
    """A message of the log."""
    return Comparable(message.type, message.calls > 0, message.content_digest, message.id, message.ordinal)


def leading_systems(messages: Sequence[Comparable]) -> int:
    """How many system messages come first."""
    return sum(1 for _ in takewhile(lambda one: one.type == "system", messages))


def compare(batch: Sequence[Comparable], log: Sequence[Comparable]) -> Match:
    """Find out how much of a batch the log has.

    Leading system messages of both are skipped. A batch without tool messages is compared with the human messages and
    the AI messages without calls only; if it has calls, with those that have some as well, where more is known so. The
    end of the log is its last message, or its last question if that has no answer yet. An empty log knows nothing of a
    batch and takes all of it.

    Args:
        batch: The messages that a client sent.
        log: The live messages of the log, in order; or its end, with as many messages as could be known.

    >>> a, b, c = (Comparable("human", False, name.encode(), name) for name in "abc")
    >>> compare([b, c], [a, b]).known, compare([a, c], [a, b]).after.id
    (1, 'a')
    """
    if not log:
        return Match(0)
    skipped, start = leading_systems(batch), leading_systems(log)
    systems = tuple(log[:start]) if _digests(batch[:skipped]) == _digests(log[:start]) else ()
    live = log[start:]
    if not live:
        return Match(skipped, systems)
    places = _known(batch[skipped:], live, _compared(batch, live))
    if any(one.calls for one in batch) and all(one.type != "tool" for one in batch):
        without_results = [one for one in live if one.type != "tool"]
        places = max(places, _known(batch[skipped:], live, without_results), key=len)
    known = skipped + len(places)
    following = next((one for one in live if places and one.ordinal > places[-1].ordinal), None)
    if not places or (following and _digests(batch[known : known + 1]) == [following.digest]):
        return parting(batch, live)
    return Match(known, (*systems, *places))


def _known(sent: Sequence[Comparable], live: Sequence[Comparable], compared: Sequence[Comparable]) -> list[Comparable]:
    """The messages of the log that the first ones of a batch are; none if they do not end it."""
    length, end = known_prefix(_digests(sent), _digests(compared), _open_question(live, compared))
    return list(compared[end - length : end])


def is_enough(batch: Sequence[Comparable], end: Sequence[Comparable]) -> bool:
    """Return True if messages before this end of a log cannot matter: to its last question it is as long as the batch.

    >>> is_enough([Comparable("human", False, b"")], [Comparable("human", False, b""), Comparable("tool", False, b"")])
    True
    """
    compared = _compared(batch, end)
    question = next((at for at in range(len(compared) - 1, -1, -1) if compared[at].type == "human"), -1)
    return question + 1 >= len(batch)


def parting(batch: Sequence[Comparable], log: Sequence[Comparable]) -> Match:
    """Find where batch and log part: after their common beginning, else after the last longest one found in the log."""
    live = log[leading_systems(log) :]
    compared = _compared(batch, live)
    lengths = _agreements(_digests(batch[leading_systems(batch) :]), _digests(compared))
    longest = max(lengths, default=0)
    if not longest:
        return Match(None, before=live[0] if live else None)
    places = [at for at, length in enumerate(lengths) if length == longest]
    after = compared[places[0] if places[0] == longest - 1 else places[-1]]
    return Match(None, after=after, before=next((one for one in live if one.ordinal > after.ordinal), None))


def known_prefix(batch: Sequence[bytes], log: Sequence[bytes], question: int | None = None) -> tuple[int, int]:
    """The longest beginning of a batch with which a log ends, and the index after its last message in the log.

    The log may also end directly after its open question, unless the batch goes on as the log does: then a part of the
    turn in progress came again, and taking it for new would double it. (0, …) if there is no such beginning.

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
    goes_on = at_question < len(batch) and question + 1 < len(log) and batch[at_question] == log[question + 1]
    return (0 if goes_on else at_question), question + 1


def _agreements(batch: Sequence[bytes], log: Sequence[bytes]) -> list[int]:
    """For each message of the log, how long a beginning of the batch ends there (Knuth, Morris, Pratt)."""
    borders = [0]
    for place in range(1, len(batch)):
        borders.append(_extended(borders, batch, borders[-1], batch[place]))
    lengths: list[int] = []
    length = 0
    for digest in log:
        length = _extended(borders, batch, length, digest)
        lengths.append(length)
    return lengths


def _extended(borders: Sequence[int], batch: Sequence[bytes], length: int, digest: bytes) -> int:
    """The longest beginning of the batch that ends with one more digest, after one of a given length."""
    while length and (length == len(batch) or batch[length] != digest):
        length = borders[length - 1]
    return length + 1 if batch and batch[length] == digest else 0


def _open_question(live: Sequence[Comparable], compared: Sequence[Comparable]) -> int | None:
    """Index of the last human message among the compared ones, if the log's last turn is not finished."""
    if live[-1].is_answer:
        return None
    return next((at for at in range(len(compared) - 1, -1, -1) if compared[at].type == "human"), None)


def _compared(batch: Sequence[Comparable], live: Sequence[Comparable]) -> list[Comparable]:
    """The messages of the log that a batch is compared with: all, if it has tool messages."""
    with_tools = any(one.type == "tool" for one in batch)
    return [one for one in live if with_tools or one.type == "human" or one.is_answer]


def _digests(messages: Iterable[Comparable]) -> list[bytes]:
    return [one.digest for one in messages]
