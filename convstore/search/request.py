"""Define a search request, which is checked before the log is read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from convstore.exceptions import InvalidInputError
from convstore.index.words import query_groups
from convstore.messages.encoding import MESSAGE_TYPES
from convstore.mongo.log import LOG_END
from convstore.values.plain import shown_value
from convstore.values.scope import check_number, check_ordinals

_MAX_HITS = 200


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """The words to search for, and the messages to search.

    Attributes:
        groups: The words, each with the terms that it may have in a text.
        limit: Maximum number of hits.
        types: Types of messages; None for all.
        before: Only messages with a lower ordinal.
        after: Only messages with a higher ordinal.
        is_for_model: Return the sources of a result one by one, and skip the question of the turn in progress.
        characters: Maximum length of a snippet.
        source_characters: Maximum length of a snippet of a source, for a model.
    """

    groups: tuple[tuple[str, ...], ...]
    limit: int
    types: frozenset[str] | None = None
    before: int = LOG_END
    after: int = 0
    is_for_model: bool = False
    characters: int = 300
    source_characters: int = 300


def search_request(
    text: str,
    *,
    limit: int,
    types: Collection[str] | None = None,
    before: int | None = None,
    after: int | None = None,
) -> SearchRequest:
    """Return the request for a query and its filters.

    Raises:
        InvalidInputError: The query or a filter is invalid.
    """
    if not isinstance(text, str):
        raise InvalidInputError(f"text must be a str, not {type(text).__name__}")
    check_number(limit, name="limit", minimum=1, maximum=_MAX_HITS)
    check_ordinals(before=before, after=after)
    return SearchRequest(
        tuple(query_groups(text)),
        limit,
        None if types is None else _checked_types(types),
        LOG_END if before is None else before,
        after or 0,
    )


def _checked_types(types: Collection[str]) -> frozenset[str]:
    known = ", ".join(sorted(MESSAGE_TYPES))
    if isinstance(types, str) or not isinstance(types, Collection):
        raise InvalidInputError(
            f'types must be a list of message types ({known}), such as ["human"], not '
            f"{shown_value(types)}"
        )
    if unknown := [
        name for name in types if not isinstance(name, str) or name not in MESSAGE_TYPES
    ]:
        raise InvalidInputError(
            f"unknown message type {shown_value(unknown[0])}; the types are {known}"
        )
    return frozenset(types)
