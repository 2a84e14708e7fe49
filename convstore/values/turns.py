"""The calls of a turn, the decisions of a person about them, and the variants of a turn."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict

from convstore.exceptions import InvalidInputError
from convstore.values.json_form import Value
from convstore.values.plain import shown_value
from convstore.values.scope import check_id, check_one_of

Verdict = Literal["approve", "edit", "reject", "respond"]

Busy = Literal["raise", "wait", "interrupt"]
"""Option of `Conversation.turn` for a conversation in which another worker holds a turn."""

OverBy = Literal["", "answered", "finished", "stopped", "superseded"]
"""Why a turn is over: it was answered, finished, stopped, or a later question was asked; "" if it is in progress."""


class Decision(Value):
    """A person's decision about a call.

    Attributes:
        verdict: "approve" runs the call, "edit" runs it with other arguments, "reject" gives it an error as its result,
            and "respond" gives it a text as its result.
        args: For "edit", the arguments.
        message: For "reject", the reason; for "respond", the text.
        by: The person who decided, as named by the application.
    """

    verdict: Verdict
    args: dict[str, Any] | None = None
    message: str = ""
    by: str = ""

    @property
    def runs(self) -> bool:
        """True if the call is run, as it is or with other arguments."""
        return self.verdict in ("approve", "edit")

    @classmethod
    def read(cls, text: str) -> Decision:
        """Parse a decision from the JSON in the log; raise a ValueError or TypeError if it is damaged."""
        return cls(**json.loads(text))


def check_decision(verdict: Verdict, *, args: Any, message: Any, by: Any) -> Decision:
    """Return a decision; raise an InvalidInputError if it is incomplete, or JSON cannot express its arguments."""
    check_one_of(verdict, *get_args(Verdict), name="verdict")
    if (verdict == "edit") != isinstance(args, dict):
        raise InvalidInputError('args must be a dict for "edit", and cannot be passed otherwise')
    if verdict == "respond" and not message:
        raise InvalidInputError('message must be the text that answers the call, for "respond"')
    for name, text in (("message", message), ("by", by)):
        if not isinstance(text, str):
            raise InvalidInputError(f"{name} must be a str, not {shown_value(text)}")
    try:
        values = json.loads(json.dumps({"args": args, "message": message, "by": by}))
        return Decision(verdict=verdict, **values)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"args must be values that JSON has: {error}") from error


class Pause(NamedTuple):
    """The pause of an agent until a person has decided about a call.

    Attributes:
        interrupt: Id of the interrupt of a graph, "" in an application's own loop.
        is_batch: True if the interrupt is about all calls of a message, and accepts a list of decisions.
        allowed: The verdicts that the agent accepts; empty if it accepts all.
    """

    interrupt: str = ""
    is_batch: bool = False
    allowed: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> Pause:
        """Parse a pause from the JSON in the log, "" for an own loop; raise a ValueError or TypeError if damaged."""
        if not text:
            return cls()
        interrupt, is_batch, allowed = json.loads(text)
        named = [interrupt, *allowed]
        if type(is_batch) is not bool or not all(type(name) is str for name in named):
            raise ValueError("its interrupt or its verdicts are not texts")
        return cls(interrupt, is_batch, tuple(allowed))


class TurnCall(Value):
    """A call of a turn that has no result yet.

    Attributes:
        id: The tool call id, as the model wrote it.
        name: Name of the tool.
        namespace: Namespace of the tool, which OpenAI's Responses API has; "" without one.
        args: Its arguments, as a person may have edited them; {} if they are invalid.
        error: Why the call cannot be run, "" if it can: pass it to `add_result` with ``error=True``.
        message_id: Id of the AI message that made it.
        result_id: Id that its result gets.
        decision: The decision of a person; None if the call needed no decision, or before the decision.
    """

    id: str
    name: str
    namespace: str = ""
    args: dict[str, Any] = {}
    error: str = ""
    message_id: str
    result_id: str
    decision: Decision | None = None


def call_named(call: Any) -> str:
    """Return the `result_id` of a call that was passed as a `TurnCall` or by this id.

    Raises:
        InvalidInputError: The argument is neither.
    """
    if isinstance(call, TurnCall):
        return call.result_id
    if type(call) is not str:
        raise InvalidInputError(
            f"call must be a TurnCall or its result_id, not {type(call).__name__}"
        )
    return check_id(call, name="call")


class Variant(BaseModel):
    """One of several alternatives for a turn: another answer, or another question in place of the first one.

    Attributes:
        turn_id: Id of its question.
        variant_id: The `regenerate` key of an answer; else the id of the question.
        number: Number among the variants of the turn, from 1, in the order in which they were finished.
        count: Number of variants of the turn.
        is_active: True if views and listings show it.
        created_at: When it began (UTC).
    """

    model_config = ConfigDict(frozen=True)  # built at once, as FastAPI warns of a deferred body

    turn_id: str
    variant_id: str
    number: int
    count: int
    is_active: bool
    created_at: datetime
