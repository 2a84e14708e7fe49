"""Define how a batch is appended: one value that is made where an append begins, and handed on as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from convstore.values.stamps import ViewStamp


class Columns(NamedTuple):
    """Columns of a message that its content does not say, as an archive or the run of a framework knows them.

    Attributes:
        turn: Id of the question that it belongs to, its own if it is one; "" for none.
        unseen: Number of messages directly before it that its model was not shown.
        answers: For a message that a tool added to its result the `result_id` of the call, "" for any other.
    """

    turn: str
    unseen: int = 0
    answers: str = ""


@dataclass(frozen=True, slots=True)
class AppendOptions:
    """How a batch is appended.

    Attributes:
        on_unencodable: "omit" replaces values of unknown types by a marker.
        on_source_clash: "renumber" gives sources another number if theirs is taken.
        stamp: Stamp of the view that the first AI message answers.
        question: Id of the question that all messages belong to; "" if each belongs to the turn that `log.assignment`
            says.
        indexes: Indexes of the messages in the caller's list, if that is longer, for the paths of values.
        numbers: Numbers for sources that have none, if they do not come from the log that the batch is for.
        columns: Columns of messages that the writer knows, by the ids of the messages.
    """

    on_unencodable: Literal["raise", "omit"] = "raise"
    on_source_clash: Literal["raise", "renumber"] = "raise"
    stamp: ViewStamp | None = None
    question: str = ""
    indexes: Sequence[int] | None = None
    numbers: Sequence[int] = ()
    columns: Mapping[str, Columns] = field(default_factory=dict)

    @property
    def omits(self) -> bool:
        """True if values of unknown types are replaced by a marker."""
        return self.on_unencodable == "omit"

    @property
    def renumbers(self) -> bool:
        """True if a source whose number is taken gets another one."""
        return self.on_source_clash == "renumber"


PLAIN = AppendOptions()
