"""Whose conversation a run of an agent or a graph works on.

Floor 7. Asked by the integrations beside it, and by nodes of an application. What counts is what the application said
when it started the run: its context or its configuration, or a function of both; nothing that a model wrote is looked
at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from convstore.exceptions import InvalidScopeError
from convstore.store import ConversationStore
from convstore.values.scope import check_partial_scope, scope_of_run

__all__ = ["Run", "ScopeChoice", "check_choice", "scope_of"]


@dataclass(frozen=True, slots=True)
class Run:
    """The settings an application gave a run when it started it.

    Attributes:
        context: As passed with ``context=``; None if nothing was.
        configurable: ``config["configurable"]`` of the run.
    """

    context: Any = None
    configurable: Mapping[str, Any] = field(default_factory=dict)


ScopeChoice: TypeAlias = Mapping[str, str] | Callable[[Run], Mapping[str, str]]
"""Values for some scope keys or for all: fixed ones, or a function that finds them in a run."""


def scope_of(
    store: ConversationStore,
    *,
    context: Any = None,
    config: Mapping[str, Any] | None = None,
    chosen: ScopeChoice | None = None,
) -> dict[str, str]:
    """The scope of a run: each key from `chosen`, else from the context, else from ``config["configurable"]``.

    So a user may stand in the context and a thread in the configuration. A key that context and configuration know by
    different values is refused, as one of them is another's. None stands for absent. No I/O; errors of a function that
    was chosen pass through as they are.

    Args:
        store: Whose scope keys are wanted.
        context: A dict, a dataclass, a pydantic model or any object with attributes; None if the run has none.
        config: The run's ``RunnableConfig``.
        chosen: Values that count whatever the run says, or a function from a `Run` to them.

    Raises:
        InvalidScopeError: A key is missing, unknown or said twice, or a value is not a plain non-empty str.
    """
    run = Run(context, (config or {}).get("configurable") or {})
    given = _given(chosen, run)
    return dict(scope_of_run(store.scope_keys, context=context, configurable=run.configurable, given=given))


def check_choice(store: ConversationStore, chosen: ScopeChoice | None) -> ScopeChoice | None:
    """The same choice, refused when it cannot be one: for constructors, so that nobody learns it from the first run.

    Raises:
        InvalidScopeError: Neither a mapping nor a function, or a mapping with keys or values that cannot be.
    """
    if isinstance(chosen, Mapping):
        check_partial_scope(store.scope_keys, chosen)
        return dict(chosen)
    if chosen is not None and not callable(chosen):
        raise InvalidScopeError(
            f"scope is a mapping of scope values, or a function from a Run to one, not {type(chosen).__name__}"
        )
    return chosen


def _given(chosen: ScopeChoice | None, run: Run) -> Mapping[str, Any]:
    """Return the scope values chosen for this run."""
    given: Any = chosen(run) if callable(chosen) else chosen or {}
    if isinstance(given, Mapping):
        return given
    if hasattr(given, "close"):  # a coroutine that nobody awaits would complain
        given.close()
    raise InvalidScopeError(
        f"the function for the scope is a plain one that gives a mapping of scope values, not {type(given).__name__}"
    )
