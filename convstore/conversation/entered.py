"""Find the turns that the caller's context has entered, for agents and graphs that it runs within one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from convstore.turns.held import HeldTurn

Entered = tuple[Any, HeldTurn]
"""A conversation, and a turn of it that this process holds."""

_ENTERED: ContextVar[tuple[Entered, ...]] = ContextVar("_ENTERED", default=())
_FINDERS: list[Callable[[], Sequence[Entered]]] = []


def note_entry(chat: Any, held: HeldTurn) -> None:
    """Remember a turn that this context enters."""
    _ENTERED.set((*(other for other in _ENTERED.get() if other[1].is_entered), (chat, held)))


def note_exit(held: HeldTurn) -> None:
    """Forget a turn that this context leaves."""
    _ENTERED.set(tuple(other for other in _ENTERED.get() if other[1] is not held))


def find_turns_by(find: Callable[[], Sequence[Entered]]) -> None:
    """Register a function that returns further entered turns, the innermost last.

    The integration of a framework holds the turns of its runs. They are found by the current run, which only that
    integration knows. A context variable does not find them, as each node of a graph has a context of its own.
    """
    _FINDERS.append(find)


def all_turns(*, of_run: bool = True) -> Iterator[Entered]:
    """Yield the turns that this context has entered, including those left since, then those of its run."""
    yield from _ENTERED.get()
    for find in _FINDERS if of_run else ():
        yield from find()


def turns_of(chat: Any, *turn_ids: str | None, of_run: bool = True) -> list[HeldTurn]:
    """Return the turns of `all_turns` that belong to a conversation; only these turns if ids are given."""
    return [
        held
        for other, held in all_turns(of_run=of_run)
        if other.store is chat.store
        and other.scope == chat.scope
        and (not turn_ids or held.record.turn_id in turn_ids)
    ]


def entered_turn(chat: Any, *turn_ids: str | None, of_run: bool = True) -> HeldTurn | None:
    """Return the newest turn of `turns_of` that was not left; None without one.

    With ``of_run=False``, turns that a run of a framework holds are left out.
    """
    entered = [held for held in turns_of(chat, *turn_ids, of_run=of_run) if held.is_entered]
    return entered[-1] if entered else None
