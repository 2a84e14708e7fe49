"""Find the scope of the conversation that a run of an agent or a graph works on.

The scope comes from the context or the configuration that the application gave the run, or from a function of both, and
never from a model's output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convstore import ConversationStore
from convstore.edges import as_mapping, check_store
from convstore.values.scope import Run, ScopeChoice, check_scope_choice, scope_of_run

__all__ = ["Run", "ScopeChoice", "check_choice", "scope_of"]


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
    check_store(store)
    run = Run(context, as_mapping(config, name="config").get("configurable") or {})
    return dict(scope_of_run(store.scope_keys, run, chosen))


def check_choice(store: ConversationStore, chosen: ScopeChoice | None) -> ScopeChoice | None:
    """Check a scope choice and a store where they are passed, instead of at the first run; return the choice.

    Args:
        store: The store of the conversations.
        chosen: The argument `scope` of a node or middleware of your own.
    """
    check_store(store)
    return check_scope_choice(store.scope_keys, chosen)
