"""Cut the part of a window that shows the words of a query best.

Floor 1, pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from convstore.index.words import language_of, spans, token_terms

__all__ = ["Snippets"]


class Snippets:
    """Cuts the snippets of one query, whose words are given as in `query_groups`.

    >>> text = "Whales sing. " * 40 + "Seals bark. " + "Whales sing. " * 40
    >>> Snippets([("seals", "seal")]).of(text, characters=40)
    'Whales sing. Seals bark. Whales'
    """

    def __init__(self, groups: Iterable[tuple[str, ...]]) -> None:
        self._word_of = {term: number for number, group in enumerate(groups) for term in group}
        self._words_of: dict[tuple[str, str], set[int]] = {}

    def of(self, text: str, *, characters: int = 300) -> str:
        """Return the part of a text with the most different words, unchanged; its beginning if it has none."""
        if len(text) <= characters:
            return text.strip()
        language = language_of(text)
        matches = [
            (start, end, words) for start, end, token in spans(text) if (words := self._words_in(token, language))
        ]
        start, end = _densest(matches, characters)
        room = max(0, characters - (end - start))
        begin = max(0, min(start - room // 2, len(text) - characters))
        shown = text[begin : begin + characters]
        if begin and not text[begin - 1].isspace():
            shown = shown.partition(" ")[2] or shown
        if begin + characters < len(text) and not text[begin + characters].isspace():
            shown = shown.rpartition(" ")[0] or shown
        return shown.strip()

    def _words_in(self, token: str, language: str) -> set[int]:
        """Return the numbers of the query's words that a token has."""
        if (token, language) not in self._words_of:
            # A single character of a script without spaces is found inside pairs.
            terms = {*token_terms(token, language), *(token if len(token) <= 2 else ())}
            self._words_of[token, language] = {self._word_of[term] for term in terms if term in self._word_of}
        return self._words_of[token, language]


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
