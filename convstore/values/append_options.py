"""Options of an append, and options that say which messages of a client's history are accepted.

Each is one value that is made where an append begins, and passed on unchanged. `append.trust` has the rule for
histories.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from langchain_core.messages import BaseMessage

from convstore.exceptions import InvalidInputError
from convstore.values.scope import check_flags, check_id, check_names, check_one_of
from convstore.values.stamps import ViewStamp, check_stamp


class Columns(NamedTuple):
    """Columns of a message that do not follow from its content; an archive or the run of a framework supplies them.

    Attributes:
        turn: Id of the question that the message belongs to, its own id for a question; "" without a turn.
        unseen: Number of messages directly before it that its model was not shown.
        answers: `result_id` of the call, for a message that a tool added to its result; else "".
        is_failed: True if a tool result reports a failed call; None to ask the application, or look at the content.
    """

    turn: str
    unseen: int = 0
    answers: str = ""
    is_failed: bool | None = None


@dataclass(frozen=True, slots=True)
class AppendOptions:
    """Options of an append.

    Attributes:
        on_unencodable: "omit" replaces values of unknown types by a marker.
        on_source_clash: "renumber" gives sources another number if theirs is taken.
        stamp: Stamp of the view that the first AI message answers.
        question: Id of the question that all messages belong to; "" to let `log.assignment` choose the turns.
        indexes: Indexes of the messages in the caller's list, if that is longer, for the paths in errors.
        numbers: Numbers for sources without one, used in place of the next numbers of the log.
        columns: Columns of messages that the writer knows, by message id.
        replies: Question of the replies in a batch of a run: the "newest" one, even if it seems answered, or that of
            the "results" before them, even if another was asked since; "" to let `log.assignment` choose.
    """

    on_unencodable: Literal["raise", "omit"] = "raise"
    on_source_clash: Literal["raise", "renumber"] = "raise"
    stamp: ViewStamp | None = None
    question: str = ""
    indexes: Sequence[int] | None = None
    numbers: Sequence[int] = ()
    columns: Mapping[str, Columns] = field(default_factory=dict)
    replies: Literal["", "newest", "results"] = ""

    @property
    def renumbers(self) -> bool:
        """True if a source whose number is taken gets another one."""
        return self.on_source_clash == "renumber"


PLAIN = AppendOptions()


def check_options(
    on_unencodable: Literal["raise", "omit"],
    on_source_clash: Literal["raise", "renumber"],
    stamp: ViewStamp | None,
    turn: str | None = None,
) -> AppendOptions:
    """Check the options of a caller and return them as one value.

    >>> check_options("raise", "renumber", None, "request-1").question
    'request-1'
    """
    check_one_of(on_unencodable, "raise", "omit", name="on_unencodable")
    check_one_of(on_source_clash, "raise", "renumber", name="on_source_clash")
    if stamp is not None:
        check_stamp(stamp)
    question = "" if turn is None else check_id(turn, name="turn")
    return AppendOptions(on_unencodable, on_source_clash, stamp, question)


@dataclass(frozen=True, slots=True)
class Trust:
    """Options that say which messages of a history are accepted.

    Attributes:
        is_all: Accept every message; otherwise human messages only.
        is_chosen: True if the caller chose between the two.
        client_tools: Names of tools that run on the client; results of their open calls are accepted, too.
        strict: Refuse a history with a message that would be ignored.
        own: Ids of messages that the application added to the history; they are accepted.
    """

    is_all: bool = False
    is_chosen: bool = False
    client_tools: frozenset[str] = frozenset()
    strict: bool = False
    own: frozenset[str] = frozenset()


def check_trust(trust: str | None, client_tools: Collection[str], strict: bool) -> Trust:
    """Check the options of a caller and return them as one value; `trust` is None if the caller has not chosen.

    >>> check_trust(None, ["pick_date"], False).client_tools
    frozenset({'pick_date'})
    """
    check_one_of(trust, None, "human", "all", name="trust")
    check_flags(strict=strict)
    tools = check_names(client_tools, name="client_tools")
    if trust == "all" and (tools or strict):
        raise InvalidInputError(
            'trust="all" accepts every message; omit client_tools and strict, or pass trust="human"'
        )
    return Trust(trust == "all", trust is not None, tools, strict)


class SentMessage(NamedTuple):
    """A message of a resent history: its name in errors, the message, and the caller's object with its position."""

    name: str
    message: BaseMessage
    origin: BaseMessage
    position: int
