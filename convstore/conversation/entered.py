"""Find the turns that the caller's context has entered, for agents and graphs that it runs within one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from convstore.turns.held import HeldTurn
from convstore.turns.streaming import is_streaming
from convstore.values.policy import HistoryPolicy
from convstore.values.scope import Scope
from convstore.wire.history import History
from convstore.wire.streams import StreamedReply


class _Session(Protocol):
    """A `TurnSession`, whose module imports this one."""

    _chat: Any
    _held: HeldTurn
    _is_entered: bool
    _unsaid: StreamedReply
    _notes: dict[type, Any]

    @property
    def turn_id(self) -> str: ...

    @property
    def is_variant(self) -> bool: ...

    async def load_history(self, policy: HistoryPolicy | None = None) -> History: ...

    async def reserve(self, number: int) -> range: ...


_ENTERED: ContextVar[tuple[_Session, ...]] = ContextVar("_ENTERED", default=())
_FINDERS: list[Callable[[], Sequence[_Session]]] = []


def _all_sessions() -> list[_Session]:
    """Return the sessions that this context has entered, those that were left since included, and those of its run."""
    of_run = [session for find in _FINDERS for session in find()]
    return [*_ENTERED.get(), *of_run]


def note_entry(session: _Session) -> None:
    """Add a session that this context enters."""
    _ENTERED.set((*(other for other in _ENTERED.get() if other._is_entered), session))


def note_exit(session: _Session) -> None:
    """Remove a session that this context leaves."""
    _ENTERED.set(tuple(other for other in _ENTERED.get() if other is not session))


def _sessions(store: Any, scope: Scope, *, of_run: bool = True) -> list[_Session]:
    """Return the sessions that this context has entered for a conversation, those that were left since included."""
    known = _all_sessions() if of_run else _ENTERED.get()
    own = (session for session in known if session._chat.store is store)
    return [session for session in own if tuple(session._chat.scope.items()) == scope]


def entered_turn(
    store: Any, scope: Scope, *turn_ids: str | None, of_run: bool = True
) -> _Session | None:
    """Return the newest session that was entered and not left, of these turns if any are given; None without one.

    Without `of_run` turns that a run has taken are left out.
    """
    sessions = [each for each in _sessions(store, scope, of_run=of_run) if each._is_entered]
    if turn_ids:
        sessions = [session for session in sessions if session.turn_id in turn_ids]
    return sessions[-1] if sessions else None


class EnteredTurn(NamedTuple):
    """A turn that this context has entered, for frameworks that hear the models which work on it.

    Attributes:
        session: The session.
    """

    session: _Session

    @classmethod
    def of(cls, chat: Any, *turn_ids: str | None, of_run: bool = True) -> EnteredTurn | None:
        """Return the turn of a conversation that `entered_turn` finds."""
        scope = tuple(chat.scope.items())
        session = entered_turn(chat.store, scope, *turn_ids, of_run=of_run)
        return cls(session) if session else None

    @classmethod
    def begun(cls, chat: Any, turn_id: str | None) -> list[EnteredTurn]:
        """Return what this context has entered of a turn, also in sessions that were left since, the newest last."""
        sessions = _sessions(chat.store, tuple(chat.scope.items()))
        return [cls(session) for session in sessions if session.turn_id == turn_id]

    @classmethod
    def innermost(cls) -> EnteredTurn | None:
        """Return the turn that was entered last and not left; None without one, and for the source of its stream.

        A session's stream hears its source itself.
        """
        session = next((each for each in reversed(_all_sessions()) if each._is_entered), None)
        return cls(session) if session and not is_streaming() else None

    @staticmethod
    def find_by(find: Callable[[], Sequence[_Session]]) -> None:
        """Also take the sessions that a function returns as entered, the innermost last.

        A framework holds the turns of its runs: they are found by the run that the current code is a part of, which
        only the framework's integration knows, and not by the context, as each node of a graph has its own.
        """
        _FINDERS.append(find)

    @property
    def held(self) -> HeldTurn:
        """The turn, as its worker holds it."""
        return self.session._held

    @property
    def is_left(self) -> bool:
        """True if its session was left."""
        return not self.session._is_entered

    @property
    def chat(self) -> Any:
        """Its conversation."""
        return self.session._chat

    @property
    def notes(self) -> dict[type, Any]:
        """Notes that frameworks keep with the session as long as it lives, by their classes."""
        return self.session._notes

    def hear(self, reply: StreamedReply) -> None:
        """Make what a model says by then the answer of the turn if it is left because somebody stopped it."""
        self.session._unsaid = reply

    def forget(self, reply: StreamedReply) -> None:
        """Undo `hear`, unless another reply is heard by now."""
        if self.session._unsaid is reply:
            self.session._unsaid = StreamedReply()
