"""Rank messages for a query by BM25 over the windows of their texts.

Floor 1, pure. Statistics are integers over all windows of all parts, rewound messages included, and equal scores are
ordered by ordinal. So the result does not depend on how a log is divided into parts. BM25 is that of Robertson and
Zaragoza, "The Probabilistic Relevance Framework" (2009).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from convstore.index.part import IndexedMessage, Part, Posting
from convstore.index.words import is_common, is_single

__all__ = ["Found", "ranked"]

_MAX_GROUPS = 64
"""Number of words of a query that count; the rarest are taken."""

_SATURATION, _LENGTH_WEIGHT = 1.2, 0.75
_FURTHER_WINDOWS = 0.1
"""Weight of the other windows of a message, in addition to its best one."""

_COMMON_WEIGHT = 0.3
"""Weight of question words, pronouns and articles: in a question they are frequent, in its answer rare."""
_HUMAN_WEIGHT = 1.1
"""Weight of a human message: what a question is about was mostly said by the user."""

_NEIGHBOURS, _NEIGHBOUR_WEIGHT = 3, 0.3
"""A word in one of so many messages before or after a match counts as well, if the match lacks it: an answer seldom
repeats its question."""
_SAME_QUESTION, _ANSWERS, _ANSWER_WEIGHT = 0.9, 8, 0.9
"""A human message with so much of the query is the same question, asked before. So many messages after it, if they have
a word of the query, come shortly behind it."""
_ENOUGH_WINDOWS = 3_000
"""Words are read, the rarest first, until they have so many windows together; this bounds the time of a query."""

_MAX_NEIGHBOURED = 500
"""Words in more windows than this do not count for neighbours: they say little about them, and cost time."""


class Found(NamedTuple):
    """A message that a query found.

    Attributes:
        part: Index of the part that holds it.
        message: The message.
        source_id: The source, if sources are ranked one by one and one of them matches, else 0.
        score: Its score.
        windows: Numbers of its matching windows, best first.
    """

    part: int
    message: IndexedMessage
    source_id: int
    score: float
    windows: tuple[int, ...]


def ranked(
    parts: Sequence[Part],
    groups: Iterable[tuple[str, ...]],
    *,
    is_allowed: Callable[[int, IndexedMessage], bool],
    limit: int,
    by_source: bool = False,
) -> list[Found]:
    """Return the best messages for a query, best first.

    Args:
        parts: The parts to search.
        groups: The words of the query, from `query_groups`.
        is_allowed: Filter by the index of the part and the message; statistics ignore it.
        limit: Maximum number of messages.
        by_source: Rank the sources of a message as if they were messages.
    """
    scores, nearby, covered = _scores(parts, groups)
    found: list[tuple[int, Found]] = []
    answers: dict[int, float] = {}
    first = 0
    for index, part in enumerate(parts):
        matches: dict[tuple[int, int], list[tuple[float, int]]] = {}
        message_of = part.message_of
        for window, score in scores[index].items():
            source = part.window(window).source_id if by_source else 0
            matches.setdefault((message_of[window], source), []).append((score, window))
        for (number, source), windows in matches.items():
            message = part.messages[number]
            if is_allowed(index, message):
                windows.sort(key=lambda one: (-one[0], one[1]))
                score = windows[0][0] + _FURTHER_WINDOWS * sum(score for score, _ in windows[1:])
                score += nearby.get(first + number, 0.0)
                one = Found(index, message, source, score, tuple(window for _, window in windows))
                found.append((first + number, one))
                if message.type == "human" and covered[first + number] >= _SAME_QUESTION:
                    answers |= dict.fromkeys(_answered_at(parts, index, number, first), score)
        first += len(part.messages)
    ranking = [one._replace(score=_final(one, answers.get(position, 0.0))) for position, one in found]
    return sorted(ranking, key=lambda one: (-one.score, one.part, one.message.ordinal, one.source_id))[:limit]


def _answered_at(parts: Sequence[Part], index: int, number: int, first: int) -> range:
    """Return where the messages are that may answer a question: those after it in its turn, up to a number."""
    following = list(parts[index].messages[number + 1 : number + 1 + _ANSWERS])
    for part in parts[index + 1 :]:
        following += part.messages[: _ANSWERS - len(following)]
    end = next((count for count, message in enumerate(following) if message.type == "human"), len(following))
    return range(first + number + 1, first + number + 1 + end)


def _final(one: Found, question: float) -> float:
    """Return the score of a message, given the score of the same question before it, if any."""
    score = max(one.score, one.score + _ANSWER_WEIGHT * (question - one.score))
    return score * _HUMAN_WEIGHT if one.message.type == "human" else score


def _scores(
    parts: Sequence[Part], groups: Iterable[tuple[str, ...]]
) -> tuple[list[dict[int, float]], dict[int, float], dict[int, float]]:
    """Return the score of each matching window by part, and two figures by message.

    The first is what the neighbours of a message add, the second the weight of the query's words that it contains, of 1
    for all of them. Messages are numbered from 0 through all parts.
    """
    count = sum(len(part.lengths) for part in parts)
    average = sum(sum(part.lengths) for part in parts) / count if count else 1.0
    base, slope = _SATURATION * (1 - _LENGTH_WEIGHT), _SATURATION * _LENGTH_WEIGHT / average
    scores: list[dict[int, float]] = [{} for _ in parts]
    nearby: dict[int, float] = {}
    covered: dict[int, float] = {}
    total_weight = 0.0
    for frequency, group, terms in _rarest(parts, groups):
        weight = math.log(1 + (max(count - frequency, 0) + 0.5) / (frequency + 0.5))
        weight *= _COMMON_WEIGHT if is_common(group) else 1
        best, first = dict[int, float](), 0
        for part, of_part, of_word in zip(parts, scores, terms, strict=True):
            lengths, message_of = part.lengths, part.message_of
            for window, times in _counts(part, of_word):
                gain = weight * (_SATURATION + 1) * times / (times + base + slope * lengths[window])
                of_part[window] = of_part.get(window, 0.0) + gain
                message = first + message_of[window]
                if gain > best.get(message, 0.0):
                    best[message] = gain
            first += len(part.messages)
        if frequency <= _MAX_NEIGHBOURED:
            _add_neighbours(nearby, best)
        total_weight += weight
        for message in best:
            covered[message] = covered.get(message, 0.0) + weight
    return scores, nearby, {message: weight / total_weight for message, weight in covered.items()}


def _add_neighbours(nearby: dict[int, float], best: Mapping[int, float]) -> None:
    """Add what a word gives to the neighbours of the messages that have it, from its best score in each message."""
    near: dict[int, float] = {}
    for message, score in best.items():
        for neighbour in range(message - _NEIGHBOURS, message + _NEIGHBOURS + 1):
            near[neighbour] = max(_NEIGHBOUR_WEIGHT * score, near.get(neighbour, 0.0))
    for message, score in near.items():
        if score > best.get(message, 0.0):
            nearby[message] = nearby.get(message, 0.0) + score - best.get(message, 0.0)


_Word = tuple[int, tuple[str, ...], list[list[str]]]
"""The number of windows with a word of a query, its alternatives, and by part its terms."""


def _rarest(parts: Sequence[Part], groups: Iterable[tuple[str, ...]]) -> list[_Word]:
    """Return the rarest words of a query, rarest first.

    The most frequent words are left out once the others have enough windows.
    """
    counted: list[_Word] = []
    for group in groups:
        terms = [_terms_in(part, group) for part in parts]
        frequency = sum(part.frequency(term) for part, found in zip(parts, terms, strict=True) for term in found)
        if frequency:
            counted.append((frequency, group, terms))
    counted.sort(key=lambda one: one[:2])
    before = accumulate((frequency for frequency, *_ in counted), initial=0)
    kept = [one for one, windows in zip(counted, before, strict=False) if windows < _ENOUGH_WINDOWS]
    return kept[:_MAX_GROUPS]


def _terms_in(part: Part, group: tuple[str, ...]) -> list[str]:
    """Return the terms by which a part may have a word."""
    if not is_single(group):
        return [term for term in group if part.frequency(term)]
    return sorted({term for sign in group for term in part.containing(sign)})


def _counts(part: Part, terms: Sequence[str]) -> Iterable[Posting]:
    """Return the windows that contain any of some terms, each with the number of times."""
    if len(terms) == 1:
        return part.postings(terms[0])
    counts: dict[int, int] = {}
    for term in terms:
        for window, times in part.postings(term):
            counts[window] = counts.get(window, 0) + times
    return counts.items()
