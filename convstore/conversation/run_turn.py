"""A turn that a run of a framework holds, from its first step until it ends, by an answer, an error or a cancellation.

It serves endpoints that do not enter `chat.turn` around the agents and graphs that they run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from convstore.conversation.host import host_of
from convstore.conversation.turn import TurnSession
from convstore.turns.held import HeldTurn
from convstore.turns.held_lease import CHECK_SECONDS
from convstore.values.turns import Busy

WAIT_SECONDS = 30.0
"""How long a run waits for another run of the same conversation."""

_UNATTENDED_SECONDS = 900.0
"""How long a lease is renewed after the last step of its run, such as a stream that is neither read nor closed."""


class RunTurn:
    """A turn that a run holds.

    Attributes:
        held: The turn.
        chat: The conversation.
        loop: The event loop on which the turn was taken.
    """

    def __init__(
        self, chat: Any, session: TurnSession, held: HeldTurn, is_at_work: Callable[[], bool]
    ) -> None:
        self.chat = chat
        self._session = session
        self.held = held
        self._is_at_work = is_at_work
        self._unattended = 0.0  # seconds since the run worked on it
        self.loop = asyncio.get_running_loop()

    @classmethod
    async def enter(
        cls,
        chat: Any,
        turn_id: str,
        *,
        busy: Busy,
        is_at_work: Callable[[], bool],
        is_new: bool = False,
        around: HeldTurn | None = None,
    ) -> RunTurn:
        """Take the lease of a turn, or share the lease of the turn `around` that the caller holds.

        The log need not have the question: the run appends it with its other messages. With `is_new` the log is not
        searched for it. The lease is renewed while `is_at_work` returns True, however long a step takes, and for 15
        minutes after that.

        Raises:
            TurnBusyError: Another run works on the conversation, and did not end in time.
        """
        services = await host_of(chat).services()
        entrance = services.turn_entrance
        if around is not None:
            held = await entrance.join(around, turn_id)
        else:
            held = await entrance.enter_for_run(
                tuple(chat.scope.items()), turn_id, busy=busy, seconds=WAIT_SECONDS, is_new=is_new
            )
        session = TurnSession(chat, held, services.past)
        turn = cls(chat, session, held, is_at_work)
        session._enter(goes_on=turn._goes_on)
        return turn

    def is_of(self, chat: Any) -> bool:
        """Return True if the turn belongs to this conversation."""
        return self.chat.store is chat.store and self.chat.scope == chat.scope

    def touch(self) -> None:
        """Restart the 15 minutes in which the lease is renewed, because the run works on the turn."""
        self._unattended = 0.0

    def _goes_on(self) -> bool:
        """Count the time since the last check of the lease; return False if the run was idle for too long."""
        self._unattended += CHECK_SECONDS
        if self._unattended >= _UNATTENDED_SECONDS and self._is_at_work():
            self.touch()
        return self._unattended < _UNATTENDED_SECONDS

    async def leave(self, error: BaseException | None = None) -> None:
        """Give the lease back, on the event loop that took it; `error` is the one that ended the run."""
        await self._session._exit(error)
