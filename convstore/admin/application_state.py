"""Keep a small state for each conversation, such as the step of a form or the state of a front end.

The state is one document outside the log, which loads do not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convstore.exceptions import CorruptDocumentError, InvalidInputError, StateConflictError
from convstore.mongo.annotations import Annotations
from convstore.mongo.heads import Head
from convstore.mongo.keys import ANNOTATIONS, application_state_id
from convstore.runtime.log_reader import LogReader
from convstore.runtime.retrying import WriteConflict, until_written
from convstore.values.json_form import without_nulls
from convstore.values.models import StateSnapshot
from convstore.values.scope import Scope, check_ordinals, check_text_keys

_MAX_BYTES = 256 * 1024


class StateKeeper:
    """Reads and changes the states of conversations."""

    def __init__(self, reader: LogReader, annotations: Annotations) -> None:
        self._heads = reader.heads
        self._codec = reader.codec
        self._clock = reader.clock
        self._stored = annotations

    async def get(self, scope: Scope) -> StateSnapshot:
        """Return the state; see `ApplicationState.get`."""
        head = await self._heads.find(dict(scope))
        return await self._find(head.conversation) if head else StateSnapshot()

    async def update(
        self, scope: Scope, changes: dict[str, Any], revision: int | None, *, conversation: str = ""
    ) -> StateSnapshot:
        """Set and remove values; see `ApplicationState.update`.

        Raises:
            StateConflictError: The state has another revision, or `conversation` is not the id of the scope's
                conversation.
        """
        _check_changes(changes)
        check_ordinals(revision=revision)
        self._encode(without_nulls(changes))
        head = await self._head(scope, revision, conversation)

        async def write() -> StateSnapshot:
            before = await self._find(head.conversation)
            if revision not in (None, before.revision):
                raise StateConflictError(revision, revision=before.revision)
            text = self._encode(without_nulls(before.values | changes))
            if not await self._stored.write_state(
                head.conversation, text, after=before.revision, at=self._clock.now()
            ):
                raise WriteConflict
            return StateSnapshot(values=self._codec.decode(text), revision=before.revision + 1)

        return await until_written(write, WriteConflict)

    async def _head(self, scope: Scope, revision: int | None, conversation: str) -> Head:
        """Return the head; create it only for an update that may be the first one.

        An update that names a revision or a conversation must not create an empty conversation after a deletion.
        """
        dates: Any = {"updated_at": self._clock.now(), "written_at": self._clock.undated()}
        if not revision and not conversation:
            return (await self._heads.claim(dict(scope), **dates))[0]
        head = await self._heads.touch(dict(scope), **dates)
        if head is None or conversation not in ("", head.conversation):
            raise StateConflictError(revision or 0, revision=0)
        return head

    async def _find(self, conversation: str) -> StateSnapshot:
        revision, text = await self._stored.find_state(conversation)
        try:
            if revision:
                return StateSnapshot(values=self._codec.decode(text), revision=revision)
            return StateSnapshot()
        except ValueError as error:
            key = application_state_id(conversation)
            raise CorruptDocumentError(key, str(error), collection=ANNOTATIONS) from error

    def _encode(self, values: Mapping[str, Any]) -> str:
        text = self._codec.encode(dict(values), path="state")
        if (size := len(text.encode("utf-8", "surrogatepass"))) > _MAX_BYTES:
            raise InvalidInputError(
                f"the state would take {size:,} bytes; the limit is {_MAX_BYTES:,}. "
                "Remove values by setting them to None, and keep large ones elsewhere"
            )
        return text


def _check_changes(changes: object) -> None:
    if type(changes) is not dict or not changes:
        raise InvalidInputError(
            'changes must be a dict with at least one value, such as {"step": 2}'
        )
    check_text_keys(changes, name="changes")
