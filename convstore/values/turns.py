"""Define what a turn in progress hands out: its calls, what a person decided about them, and the variants of a turn."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict

from convstore.exceptions import InvalidInputError
from convstore.values.json_form import Value
from convstore.values.plain import shown_value
from convstore.values.scope import check_choice, check_id

Verdict = Literal["approve", "edit", "reject", "respond"]

Busy = Literal["raise", "wait", "interrupt"]
"""What a turn does while a worker is at another one of its conversation."""

OverBy = Literal["", "answered", "finished", "stopped", "superseded"]
"""Why a turn is over: it was answered, finished, stopped, or a later question was asked; "" if it is in progress."""


class Decision(Value):
    """A person's decision about a call.

    Attributes:
        verdict: "approve" runs it, "edit" runs it with other arguments, "reject" answers it with an error, "respond"
            with a text instead of a run.
        args: For "edit" the arguments.
        message: For "reject" the reason, for "respond" the text.
        by: Who decided, as the application names people.
    """

    verdict: Verdict
    args: dict[str, Any] | None = None
    message: str = ""
    by: str = ""

    @property
    def runs(self) -> bool:
        """Return True if the call is run, as it is or with other arguments."""
        return self.verdict in ("approve", "edit")

    @classmethod
    def read(cls, text: str) -> Decision:
        """Return the decision that the log has as JSON; a ValueError or TypeError if it is damaged."""
        return cls(**json.loads(text))


def check_decision(verdict: Verdict, *, args: Any, message: Any, by: Any) -> Decision:
    """Return a decision; raise an InvalidInputError if it is incomplete, or JSON lacks a value of it."""
    check_choice(verdict, *get_args(Verdict), name="verdict")
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
    """How an agent pauses until a person has decided about a call.

    Attributes:
        interrupt: Id of the interrupt of its graph, "" for a loop that an application wrote.
        is_batch: The interrupt is about all calls of a message, and takes a list of decisions.
        allowed: The verdicts that the agent takes; empty if it takes all.
    """

    interrupt: str = ""
    is_batch: bool = False
    allowed: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> Pause:
        """Return the pause that the log has as JSON, "" for that of a loop; a ValueError or TypeError if damaged."""
        if not text:
            return cls()
        interrupt, is_batch, allowed = json.loads(text)
        named = [interrupt, *allowed]
        if type(is_batch) is not bool or not all(type(name) is str for name in named):
            raise ValueError("it names no interrupt and no verdicts")
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
        decision: What a person decided, None if nobody was asked.
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
    """Return the `result_id` of a call, which is given as itself or by this id.

    Raises:
        InvalidInputError: It is neither.
    """
    if isinstance(call, TurnCall):
        return call.result_id
    if type(call) is not str:
        raise InvalidInputError(
            f"call must be a TurnCall or its result_id, not {type(call).__name__}"
        )
    return check_id(call, name="call")


class Variant(BaseModel):
    """One of several turns that stand at one place of a conversation: another answer, or another question.

    Attributes:
        turn_id: Id of its question.
        variant_id: The `regenerate` key of an answer; else the id of the question.
        number: Its number among the variants of the place, from 1, in the order in which they were finished.
        count: Number of variants of the place.
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
