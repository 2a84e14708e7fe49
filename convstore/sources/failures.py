"""Call the application's function that decides if a tool result reports a failed call in words."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from typing import Any, TypeAlias

from langchain_core.messages import ToolMessage

from convstore.exceptions import InvalidInputError

FailureJudge: TypeAlias = Callable[[str, ToolMessage], bool | None]
"""Takes the tool's name and a result; returns True if it reports a failed call, None to use status and content."""


def check_judge(judge: Any) -> FailureJudge | None:
    """Return the function, or None.

    Raises:
        InvalidInputError: The value is something else, such as an async function.
    """
    if judge is None:
        return None
    if not callable(judge) or iscoroutinefunction(judge):
        kind = "an async function" if callable(judge) else type(judge).__name__
        raise InvalidInputError(
            "is_failed must be a plain function from the name of a tool and its ToolMessage to "
            f"True, False or None, not {kind}"
        )
    return judge  # type: ignore[no-any-return]


def has_failed_by(judge: FailureJudge | None, tool: str, message: ToolMessage) -> bool | None:
    """Return the application's decision on a result; None if it makes none, and for a tool without a name.

    Raises:
        InvalidInputError: The function raised, or returned something other than True, False or None.
    """
    if judge is None or not tool:
        return None
    try:
        decision: Any = judge(tool, message)
    except Exception as error:
        raise InvalidInputError(
            f"is_failed raised for a result of {tool!r}: {type(error).__name__}: {error}"
        ) from error
    if decision is None or isinstance(decision, bool):
        return decision
    if isinstance(decision, Coroutine):
        decision.close()
    raise InvalidInputError(
        f"is_failed must return True, False or None; for a result of {tool!r} it returned "
        f"{type(decision).__name__}"
    )
