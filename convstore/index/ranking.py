"""Rank messages for a query by BM25 over the windows of their texts.

Statistics are integers over all windows of all parts, including rewound messages, and equal scores are ordered by
ordinal. So the result does not depend on how a log is divided into parts. BM25 is defined as by Robertson and Zaragoza,
"The Probabilistic Relevance Framework" (2009).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from convstore.index.part import IndexedMessage, Posting, terms_of
from convstore.index.segment import Part
from convstore.index.words import is_common

_MAX_GROUPS = 64
"""Maximum number of words of a query; the rarest ones are used."""

_SATURATION = 1.2
_LENGTH_WEIGHT = 0.75
_FURTHER_WINDOWS = 0.1
"""Weight of the other windows of a message, in addition to its best one."""

_COMMON_WEIGHT = 0.3
"""Weight of question words, pronouns and articles, which are frequent in questions and rare in their answers."""
_HUMAN_WEIGHT = 1.1
"""Weight of a human message: users mostly look for facts that they said themselves."""

_NEIGHBOURS = 3
_NEIGHBOUR_WEIGHT = 0.3
"""Number of messages before and after a match whose words count for it, if it lacks them, and the weight of these
words: an answer seldom repeats its question."""
_SAME_QUESTION = 0.9
_ANSWERS = 8
_ANSWER_WEIGHT = 0.9
"""A human message with this share of the query is the same question, asked before. The next messages with a word of the
query, up to this number, make up this part of the difference between its score and theirs."""
_ENOUGH_WINDOWS = 3_000
"""Words are read from the rarest on until they have this number of windows, which bounds the time of a query."""

_MAX_NEIGHBOURED = 500
"""Number of windows above which a word does not count for neighbours, because it says little and costs time."""


class RankedMessage(NamedTuple):
    """A message that matches a query, with the index of its part and its matching windows, best first."""

    part: int
    message: IndexedMessage
    score: float
    windows: tuple[int, ...]


def ranked(
    parts: Sequence[Part],
    groups: Iterable[tuple[str, ...]],
    *,
    is_allowed: Callable[[int, IndexedMessage], bool],
    limit: int,
    by_source: bool = False,
) -> list[RankedMessage]:
    """Return the best allowed messages for the words of a query, best first; statistics include all messages.

    `is_allowed` is called with the index of a message's part and the message. With `by_source`, the sources of a
    message are ranked like messages.
    """
    log = _RankedLogs(parts)
    scores, nearby, covered = _scores(log, groups)
    values = _values(log, scores, nearby, by_source=by_source)
    repeated = [position for position, share in covered.items() if share >= _SAME_QUESTION]
    _raise_answers(log, values, repeated, is_allowed)
    for key in values:
        if key % log.size in log.humans:
            values[key] *= _HUMAN_WEIGHT
    best = sorted((-value, key % log.size, key // log.size) for key, value in values.items())
    found: list[RankedMessage] = []
    for value, position, source in best:
        if len(found) == limit:
            break
        part, message = log.message(position)
        if is_allowed(part, message):
            windows = log.windows(position, source if by_source else None, scores[part])
            found.append(RankedMessage(part, message, -value, windows))
    return found


def _raise_answers(
    log: _RankedLogs,
    values: dict[int, float],
    questions: Iterable[int],
    is_allowed: Callable[[int, IndexedMessage], bool],
) -> None:
    """Raise the lower values of messages that may answer a question, by `_ANSWER_WEIGHT` of the difference."""
    keys_at: dict[int, list[int]] = {}
    for key in values:
        keys_at.setdefault(key % log.size, []).append(key)
    for position in questions:
        if position not in values or not is_allowed(*log.message(position)):
            continue
        question = values[position]
        for answer in log.answered_at(position):
            for key in keys_at.get(answer, ()):
                missing = question - values[key]
                values[key] += max(0.0, _ANSWER_WEIGHT * missing)


class _RankedLogs:
    """The parts of a log, or of several logs, with their messages numbered from 0 through all parts."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.firsts = [0, *accumulate(part.size for part in parts)]
        self.size = self.firsts[-1]
        self.humans = {
            first + index
            for first, part in zip(self.firsts, parts, strict=False)
            for index in part.humans
        }

    def message(self, position: int) -> tuple[int, IndexedMessage]:
        """Return a message with the index of its part."""
        part = bisect_right(self.firsts, position) - 1
        return part, self.parts[part].message(position - self.firsts[part])

    def windows(
        self, position: int, source: int | None, scores: Mapping[int, float]
    ) -> tuple[int, ...]:
        """Return the windows of a message, or of one of its sources, that have a score, best first."""
        part = bisect_right(self.firsts, position) - 1
        message_of = self.parts[part].windows.message_of
        index = position - self.firsts[part]
        windows = range(bisect_left(message_of, index), bisect_right(message_of, index))
        sources = self.parts[part].windows.source_of
        found = [
            window for window in windows if window in scores and source in (None, sources[window])
        ]
        return tuple(sorted(found, key=lambda window: (-scores[window], window)))

    def answered_at(self, question: int) -> range:
        """Return the positions of messages that may answer a question: the next 8, up to the next human message."""
        end = min(question + 1 + _ANSWERS, self.size)
        return range(
            question + 1, next((at for at in range(question + 1, end) if at in self.humans), end)
        )


def _values(
    log: _RankedLogs,
    scores: Sequence[Mapping[int, float]],
    nearby: Mapping[int, float],
    *,
    by_source: bool,
) -> dict[int, float]:
    """Return the value of each matching message, by its position; for a source, its id times `log.size` is added."""
    best: dict[int, float] = {}
    rest: dict[int, float] = {}
    for part, first, of_part in zip(log.parts, log.firsts, scores, strict=False):
        if not of_part:
            continue
        message_of = part.windows.message_of
        source_of = part.windows.source_of
        for window, score in of_part.items():
            key = first + message_of[window] + (log.size * source_of[window] if by_source else 0)
            known = best.get(key)
            if known is None:
                best[key] = score
            elif known < score:
                best[key] = score
                rest[key] = rest.get(key, 0.0) + known
            else:
                rest[key] = rest.get(key, 0.0) + score
    return {
        key: score + _FURTHER_WINDOWS * rest.get(key, 0.0) + nearby.get(key % log.size, 0.0)
        for key, score in best.items()
    }


def _scores(
    log: _RankedLogs, groups: Iterable[tuple[str, ...]]
) -> tuple[list[dict[int, float]], dict[int, float], dict[int, float]]:
    """Return the score of each matching window by part, and two values by message.

    The first is the score that its neighbours add. The second, for human messages, is the weighted share of the query's
    words that the message contains, at most 1.
    """
    count = sum(len(part.windows) for part in log.parts)
    average = sum(sum(part.windows.lengths) for part in log.parts) / count if count else 1.0
    scores: list[dict[int, float]] = [{} for _ in log.parts]
    nearby: dict[int, float] = {}
    covered: dict[int, float] = {}
    total_weight = 0.0
    for frequency, group, terms in _rarest(log.parts, groups):
        weight = math.log(1 + (max(count - frequency, 0) + 0.5) / (frequency + 0.5))
        if is_common(group):
            weight *= _COMMON_WEIGHT
        best = _add_word(log, scores, terms, weight, average)
        if frequency <= _MAX_NEIGHBOURED:
            _add_neighbours(nearby, best)
        total_weight += weight
        for message in best.keys() & log.humans:
            covered[message] = covered.get(message, 0.0) + weight
    return scores, nearby, {message: weight / total_weight for message, weight in covered.items()}


def _add_word(
    log: _RankedLogs,
    scores: Sequence[dict[int, float]],
    terms: Mapping[int, Sequence[str]],
    weight: float,
    average: float,
) -> dict[int, float]:
    """Add a word to the scores of its windows, by BM25; return its best score in each message.

    Args:
        log: The parts.
        scores: The scores of the windows, by part.
        terms: The forms of the word in each part.
        weight: Its weight, which is higher for a rarer word.
        average: Average length of a window.
    """
    factor = weight * (_SATURATION + 1)
    base = _SATURATION * (1 - _LENGTH_WEIGHT)
    slope = _SATURATION * _LENGTH_WEIGHT / average
    best: dict[int, float] = {}
    for index, of_word in terms.items():
        part = log.parts[index]
        first = log.firsts[index]
        of_part = scores[index]
        lengths = part.windows.lengths
        message_of = part.windows.message_of
        for window, times in _counts(part, of_word):
            gain = factor * times / (times + base + slope * lengths[window])
            of_part[window] = of_part.get(window, 0.0) + gain
            message = first + message_of[window]
            if gain > best.get(message, 0.0):
                best[message] = gain
    return best


def _add_neighbours(nearby: dict[int, float], best: Mapping[int, float]) -> None:
    """Add the score of a word to the neighbours of the messages with the word, from its best score in each message."""
    near: dict[int, float] = {}
    for message, score in best.items():
        for neighbour in range(message - _NEIGHBOURS, message + _NEIGHBOURS + 1):
            if score > near.get(neighbour, 0.0):
                near[neighbour] = score
    for message, score in near.items():
        more = _NEIGHBOUR_WEIGHT * score - best.get(message, 0.0)
        if more > 0:
            nearby[message] = nearby.get(message, 0.0) + more


_Word = tuple[int, tuple[str, ...], dict[int, list[str]]]
"""The number of windows with a word of a query, its alternative terms, and its terms in each part that has it."""


def _rarest(parts: Sequence[Part], groups: Iterable[tuple[str, ...]]) -> list[_Word]:
    """Return the rarest words of a query, rarest first.

    The most frequent words are left out if the others have enough windows.
    """
    counted: list[_Word] = []
    indexed = [(index, part) for index, part in enumerate(parts) if len(part.windows)]
    for group in groups:
        word = _counted(indexed, group)
        if word[0]:
            counted.append(word)
    counted.sort(key=lambda word: word[:2])
    kept: list[_Word] = []
    windows = 0
    for word in counted[:_MAX_GROUPS]:
        if windows >= _ENOUGH_WINDOWS:
            break
        kept.append(word)
        windows += word[0]
    return kept


def _counted(indexed: Sequence[tuple[int, Part]], group: tuple[str, ...]) -> _Word:
    """Return a word with the number of windows with any of its terms, and its terms in each part."""
    frequency = 0
    terms: dict[int, list[str]] = {}
    for index, part in indexed:
        for term in sorted(terms_of(part.containing, [group])):
            if times := part.frequency(term):
                frequency += times
                terms.setdefault(index, []).append(term)
    return frequency, group, terms


def _counts(part: Part, terms: Sequence[str]) -> Iterable[Posting]:
    """Return the windows that contain any of some terms, each with the number of occurrences."""
    if len(terms) == 1:
        return part.postings(terms[0])
    counts: dict[int, int] = {}
    for term in terms:
        for window, times in part.postings(term):
            counts[window] = counts.get(window, 0) + times
    return counts.items()
