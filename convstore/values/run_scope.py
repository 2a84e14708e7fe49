"""The scope of a run of an agent or a graph, as the application chooses it: values, or a function of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from convstore.exceptions import InvalidScopeError
from convstore.values.scope import PATH, check_partial_scope


@dataclass(frozen=True, slots=True)
class Run:
    """The settings an application gave a run when it started it.

    Attributes:
        context: The value of ``context=``, None by default.
        configurable: ``config["configurable"]`` of the run.
    """

    context: Any = None
    configurable: Mapping[str, Any] = field(default_factory=dict)


ScopeChoice: TypeAlias = Mapping[str, str] | Callable[[Run], Mapping[str, str]]
"""Values for some or all scope keys, or a function that finds them in a run."""


def check_scope_choice(keys: Sequence[str], chosen: ScopeChoice | None) -> ScopeChoice | None:
    """Return a scope choice; raise an InvalidScopeError for an invalid one, now and not at the first run."""
    if isinstance(chosen, Mapping):
        check_partial_scope((*keys, PATH), chosen)
        return dict(chosen)
    if chosen is not None and not callable(chosen):
        raise InvalidScopeError(
            "scope must be a mapping of scope values, or a function from a Run to one, "
            f"not {type(chosen).__name__}"
        )
    return chosen


def chosen_values(chosen: ScopeChoice | None, run: Run) -> Mapping[str, Any]:
    """Return the scope values that a choice gives a run; errors of a function pass through.

    >>> chosen_values(lambda run: run.context, Run({"user_id": "ada"}))
    {'user_id': 'ada'}
    """
    given: Any = chosen(run) if callable(chosen) else chosen or {}
    if isinstance(given, Mapping):
        return given
    if hasattr(given, "close"):  # a coroutine that is not awaited warns
        given.close()
    raise InvalidScopeError(
        "the scope function must not be async, and must return a mapping of scope values, "
        f"not {type(given).__name__}"
    )
