"""Cut the part of a window that shows the words of a query best.

Floor 1, pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from convstore.index.words import language_of, spans, token_terms

__all__ = ["snippet"]


def snippet(text: str, groups: Iterable[tuple[str, ...]], *, characters: int = 300) -> str:
    """Return the part of a text with the most different words of a query, unchanged; its beginning if it has none.

    >>> snippet("Whales sing. " * 40 + "Seals bark. " + "Whales sing. " * 40, [("seals", "seal")], characters=40)
    'Whales sing. Seals bark. Whales'
    """
    if len(text) <= characters:
        return text.strip()
    language = language_of(text)
    group_of = {term: number for number, group in enumerate(groups) for term in group}
    matches = []
    for start, end, token in spans(text):
        # A single character of a script without spaces is found inside pairs.
        found = {*token_terms(token, language), *(token if end - start <= 2 else ())}
        if numbers := {group_of[term] for term in found if term in group_of}:
            matches.append((start, end, numbers))
    start, end = _densest(matches, characters)
    room = max(0, characters - (end - start))
    begin = max(0, min(start - room // 2, len(text) - characters))
    shown = text[begin : begin + characters]
    if begin and not text[begin - 1].isspace():
        shown = shown.partition(" ")[2] or shown
    if begin + characters < len(text) and not text[begin + characters].isspace():
        shown = shown.rpartition(" ")[0] or shown
    return shown.strip()


def _densest(matches: list[tuple[int, int, set[int]]], characters: int) -> tuple[int, int]:
    """Return the range with the most different words that fits; an empty range at the beginning without matches."""
    best, found = (0, 0), 0
    for index, (start, _, _) in enumerate(matches):
        words, end = set[int](), start
        for _, match_end, numbers in matches[index:]:
            if match_end - start > characters:
                break
            words |= numbers
            end = match_end
        if len(words) > found:
            best, found = (start, end), len(words)
    return best
