"""The handle of the state that the application keeps for a conversation."""

from __future__ import annotations

from typing import Any

from convstore.conversation.host import Host
from convstore.values.models import StateSnapshot
from convstore.values.scope import Scope


class ApplicationState:
    """A small state of one conversation, such as the step of a form; no view shows it.

    It is stored outside the log, with a revision that rises by 1 with each change, and is exported and deleted with its
    conversation.
    """

    def __init__(self, host: Host, scope: Scope) -> None:
        self._services = host.services
        self._scope = scope

    async def get(self) -> StateSnapshot:
        """Return the values and their revision; empty and 0 if no state was ever stored. Two commands.

        Raises:
            CorruptDocumentError: The stored state is damaged.
        """
        return await (await self._services()).states.get(self._scope)

    async def update(
        self, changes: dict[str, Any], *, revision: int | None = None
    ) -> StateSnapshot:
        """Set values by name and remove those that are None; the others stay. Returns the new state.

        Atomic: of several concurrent updates with one revision, one is stored. Without a revision each is applied to
        the stored values. Creates a missing conversation. Three commands; two more for each concurrent update.

        Args:
            changes: Values that the store can encode, by name. All values together take at most 256 KB.
            revision: Write only if this is the stored revision; `StateSnapshot.revision`.

        Raises:
            StateConflictError: The state has another revision. Nothing was written.
            InvalidInputError: `changes` is not a dict of values, or the state would be too large. Nothing was written.
            UnencodableError: A value has a type that cannot be restored exactly.
        """
        return await (await self._services()).states.update(self._scope, changes, revision)
