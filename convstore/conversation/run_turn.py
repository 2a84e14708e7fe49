"""A turn that a run of a framework holds: from the run's first step until the run ends, in whatever way.

An endpoint that enters `chat.turn` itself holds the turn for the agents and graphs that it runs; this is for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from convstore.conversation.host import host_of
from convstore.conversation.turn import TurnSession
from convstore.turns.held import CHECK_SECONDS, HeldTurn
from convstore.values.turns import Busy

WAIT_SECONDS = 30.0
"""How long a run waits for another one that works on the conversation."""

_UNATTENDED_SECONDS = 900.0
"""How long the lease of a run is renewed after its last step, such as that of a stream that nobody reads or closes."""


class RunTurn:
    """A turn that a run holds.

    Attributes:
        held: The turn.
        chat: The conversation.
        loop: The event loop that took it.
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
        """Take the lease, or share that of another turn on which the caller works.

        The log may lack the question, which the run appends like the rest. With `is_new` it is not asked for it. The
        lease is renewed while `is_at_work` returns True, however long a step takes, and 15 minutes after that.

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
        """Return True if it is a turn of a conversation."""
        return self.chat.store is chat.store and self.chat.scope == chat.scope

    def touch(self) -> None:
        """Note that the run works on the turn, so that its lease is renewed."""
        self._unattended = 0.0

    def _goes_on(self) -> bool:
        """Count a look at the lease; False if the run has done nothing for too long."""
        self._unattended += CHECK_SECONDS
        if self._unattended >= _UNATTENDED_SECONDS and self._is_at_work():
            self.touch()
        return self._unattended < _UNATTENDED_SECONDS

    async def leave(self, error: BaseException | None = None) -> None:
        """Give the lease back, on the event loop that took it; `error` is the one that ended the run."""
        await self._session._exit(error)
