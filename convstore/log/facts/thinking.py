"""Record the messages that a model had been shown when it wrote signed thinking, which is bound to them.

Claude's newer models refuse thinking whose request has changed since. A load compares its view with the request of the
last such answer: if it still begins with that, the same thinking stays out as there; else all thinking so far.
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
        digest: Digest of these.
        through: Thinking up to this ordinal was left out of it, 0 for none.
    """

    answer: str
    messages: int
    digest: str
    through: int


class ThinkingKind(FactKind[Thinking]):
    """Requests of answers with signed thinking; the first such answer of an entry has one."""

    name = "thinking"
    is_loaded = True
    is_archived = True

    def renumbered(self, value: Thinking, place: Callable[[int], int]) -> Thinking:
        """Return it with the ordinal that the other log has."""
        return value._replace(through=place(value.through))

    def problems(
        self, value: Thinking, entry: Entry, payloads: Mapping[str, str], codec: Codec
    ) -> Iterator[str]:
        """Yield a problem for an ordinal that is not before the entry."""
        if value.through >= entry.first:
            yield "it says that thinking was left out which came later"

    def archived(self, value: Thinking) -> Any:
        """Return its fields."""
        return list(value)

    def restored(self, archived: Any) -> Thinking:
        """Return what `archived` was given."""
        answer, messages, digest, through = archived
        is_valid = type(answer) is type(digest) is str and type(messages) is type(through) is int
        if not is_valid or messages < 0 or through < 0:
            raise ValueError("the request of an answer with thinking is damaged")
        return Thinking(answer, messages, digest, through)


THINKING = ThinkingKind()
