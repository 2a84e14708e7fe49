"""Find the turns that the caller's context has entered, for agents and graphs that it runs within one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from convstore.turns.held import HeldTurn

Entered = tuple[Any, HeldTurn]
"""A conversation, and a turn of it as its worker holds it."""

_ENTERED: ContextVar[tuple[Entered, ...]] = ContextVar("_ENTERED", default=())
_FINDERS: list[Callable[[], Sequence[Entered]]] = []


def note_entry(chat: Any, held: HeldTurn) -> None:
    """Add a turn that this context enters."""
    _ENTERED.set((*(other for other in _ENTERED.get() if other[1].is_entered), (chat, held)))


def note_exit(held: HeldTurn) -> None:
    """Remove a turn that this context leaves."""
    _ENTERED.set(tuple(other for other in _ENTERED.get() if other[1] is not held))


def find_turns_by(find: Callable[[], Sequence[Entered]]) -> None:
    """Also take the turns that a function returns as entered, the innermost last.

    A framework holds the turns of its runs: they are found by the run that the current code is a part of, which only
    the framework's integration knows, and not by the context, as each node of a graph has its own.
    """
    _FINDERS.append(find)


def all_turns(*, of_run: bool = True) -> Iterator[Entered]:
    """Yield the turns that this context has entered, those that were left since included, and those of its run."""
    yield from _ENTERED.get()
    for find in _FINDERS if of_run else ():
        yield from find()


def turns_of(chat: Any, *turn_ids: str | None, of_run: bool = True) -> list[HeldTurn]:
    """Return what `all_turns` has of a conversation, of these turns if any are given."""
    return [
        held
        for other, held in all_turns(of_run=of_run)
        if other.store is chat.store
        and other.scope == chat.scope
        and (not turn_ids or held.record.turn_id in turn_ids)
    ]


def entered_turn(chat: Any, *turn_ids: str | None, of_run: bool = True) -> HeldTurn | None:
    """Return the newest turn that was entered and not left, of these if any are given; None without one.

    Without `of_run` turns that a run has taken are left out.
    """
    entered = [held for held in turns_of(chat, *turn_ids, of_run=of_run) if held.is_entered]
    return entered[-1] if entered else None
