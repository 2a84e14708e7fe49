"""Record the request that a model answered with signed thinking, which is valid only after the same request.

Claude's newer models refuse thinking after a changed request. A load compares its view with the request of the last
such answer. If the view begins with that request, it leaves out the same thinking as the request; else it leaves out
all thinking so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from convstore.log.entry import Entry
from convstore.log.facts.kind import FactKind
from convstore.messages.values import Codec


class Thinking(NamedTuple):
    """The request of an answer with signed thinking.

    Attributes:
        answer: Id of the answer.
        messages: Number of messages of the view that it answers.
        digest: Digest of these messages.
        through: Thinking up to this ordinal was left out of the view; 0 if it had all thinking.
    """

    answer: str
    messages: int
    digest: str
    through: int


class ThinkingKind(FactKind[Thinking]):
    """Kind of fact: requests of answers with signed thinking; an entry has that of its first such answer."""

    name = "thinking"
    is_loaded = True
    is_archived = True

    def renumbered(self, value: Thinking, place: Callable[[int], int]) -> Thinking:
        """Return the request with the ordinal of the other log."""
        return value._replace(through=place(value.through))

    def problems(
        self, value: Thinking, entry: Entry, payloads: Mapping[str, str], codec: Codec
    ) -> Iterator[str]:
        """Yield a problem for an ordinal that is not before the entry."""
        if value.through >= entry.first:
            yield "the thinking that its request left out is not older than the entry"

    def archived(self, value: Thinking) -> Any:
        """Return the fields as a list."""
        return list(value)

    def restored(self, archived: Any) -> Thinking:
        """Return the request that `archived` converted."""
        answer, messages, digest, through = archived
        is_valid = type(answer) is type(digest) is str and type(messages) is type(through) is int
        if not is_valid or messages < 0 or through < 0:
            raise ValueError("the request of an answer with thinking is damaged")
        return Thinking(answer, messages, digest, through)


THINKING = ThinkingKind()
