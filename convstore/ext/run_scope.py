"""Find the scope of the conversation that a run of an agent or a graph works on.

The scope comes from the context or the configuration that the application gave the run, or from a function of both, and
never from a model's output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from convstore import ConversationStore
from convstore.exceptions import InvalidScopeError
from convstore.integration import check_store
from convstore.values.scope import PATH, check_partial_scope, scope_of_run


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


def scope_of(
    store: ConversationStore,
    *,
    context: Any = None,
    config: Mapping[str, Any] | None = None,
    chosen: ScopeChoice | None = None,
) -> dict[str, str]:
    """Return the scope of a run: each key from `chosen`, else from the context, else from ``config["configurable"]``.

    For example, the user may come from the context and the thread from the configuration. A key with different values
    in both is refused. None means absent. No I/O; errors of a function in `chosen` pass through.

    Args:
        store: The store, which has the scope keys.
        context: A dict, a dataclass, a pydantic model or any object with attributes; None if the run has none.
        config: The run's ``RunnableConfig``.
        chosen: Values that override the run's, or a function from a `Run` to them.

    Raises:
        InvalidScopeError: A key is missing, unknown or given twice, or a value is not a plain non-empty str.
    """
    run = Run(context, (config or {}).get("configurable") or {})
    given = _given(chosen, run)
    return dict(
        scope_of_run(store.scope_keys, context=context, configurable=run.configurable, given=given)
    )


def check_choice(store: ConversationStore, chosen: ScopeChoice | None) -> ScopeChoice | None:
    """Return a scope choice; raise an error for an invalid one, or for no store, now and not at the first run.

    Args:
        store: The store of the conversations.
        chosen: The argument `scope` of a node or middleware of your own.
    """
    check_store(store)
    if isinstance(chosen, Mapping):
        check_partial_scope((*store.scope_keys, PATH), chosen)
        return dict(chosen)
    if chosen is not None and not callable(chosen):
        raise InvalidScopeError(
            f"scope must be a mapping of scope values, or a function from a Run to one, not {type(chosen).__name__}"
        )
    return chosen


def _given(chosen: ScopeChoice | None, run: Run) -> Mapping[str, Any]:
    given: Any = chosen(run) if callable(chosen) else chosen or {}
    if isinstance(given, Mapping):
        return given
    if hasattr(given, "close"):  # a coroutine that is not awaited warns
        given.close()
    raise InvalidScopeError(
        f"the scope function must not be async, and must return a mapping of scope values, not {type(given).__name__}"
    )
