"""Validate scopes, ids and numbers before they reach a query.

A scope value or a message id must be a plain, non-empty str of at most 512 bytes. A dict such as ``{"$ne": ""}`` would
be an operator that matches other users' conversations.

The application chooses the scope of an agent's or a graph's run: fixed values, or a function of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias
from urllib.parse import quote, unquote
from uuid import UUID

from convstore.exceptions import InvalidInputError, InvalidScopeError, TooManyIdsError
from convstore.values.plain import duration, part_of, shown_value

Scope = tuple[tuple[str, str], ...]
"""A checked scope: pairs of key and value in the order of the store's keys."""

PATH = "path"
"""Additional key in the scope of a child: its path from the outermost conversation.

Each step of the path is one or two ids, URL-quoted and joined by ":"; "/" separates steps.
"""

MAX_ID_BYTES = 512

MAX_IDS = 200
"""Maximum number of ids in one call."""

_RESERVED = frozenset(
    {
        "conversations",
        "cursor",
        "dry_run",
        "everything",
        "limit",
        "lost",
        "older_than",
        PATH,
        "progress",
        "repair",
        "sizes",
        "text",
        "tool_message_ids",
    }
)
"""Names of other parameters of the store's methods."""

_LEAST_AGE = timedelta(minutes=5)
"""Lower limit for `older_than`. A process that writes without refreshing the head did so less than 10 seconds ago. So a
head older than this can be replaced without losing an append in flight."""

_MAX_KEYS = 8
_MAX_DEPTH = 8


def check_one_of(value: object, *choices: str | bool | None, name: str) -> None:
    """Raise an InvalidInputError that lists the choices unless a value is one of them.

    >>> check_one_of("skip", "skip", "raise", name="on_resent")
    """
    if not any(
        value is choice or (isinstance(value, str) and value == choice) for choice in choices
    ):
        *first, last = [
            f'"{choice}"' if isinstance(choice, str) else repr(choice) for choice in choices
        ]
        raise InvalidInputError(
            f"{name} must be {', '.join(first)} or {last}, not {shown_value(value)}"
        )


def check_flags(**given: object) -> None:
    """Raise an InvalidInputError for a value other than True and False; a text such as "no" would count as True.

    >>> check_flags(dry_run=True, repair=False)
    """
    for name, value in given.items():
        check_one_of(value, True, False, name=name)


def check_names(names: Iterable[str], *, name: str) -> frozenset[str]:
    """Return the tool names of a collection; raise an InvalidInputError for anything else, such as a single text.

    >>> check_names(["search"], name="client_tools")
    frozenset({'search'})
    """
    found = None if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    if found is None or not all(isinstance(part, str) for part in found):
        raise InvalidInputError(
            f"{name} must be a collection of tool names, each a str, not {shown_value(names)}"
        )
    return frozenset(found)


def check_field_names(names: Sequence[str], *, name: str) -> tuple[str, ...]:
    """Return a list of field names in order, without repetitions; raise an InvalidInputError for anything else."""
    is_list = isinstance(names, list | tuple)
    if not is_list or not all(isinstance(part, str) for part in names):
        raise InvalidInputError(
            f"{name} must be a list of names, each a str, not {shown_value(names)}"
        )
    return tuple(dict.fromkeys(names))


def check_number(value: int, *, name: str, minimum: int, maximum: int | None = None) -> int:
    """Return a number if it is an int within bounds; else, and for booleans, raise an InvalidInputError.

    >>> check_number(7, name="limit", minimum=1, maximum=1_000)
    7
    """
    if type(value) is not int or value < minimum or (maximum is not None and value > maximum):
        bounds = f"from {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise InvalidInputError(f"{name} must be a whole number {bounds}, not {shown_value(value)}")
    return value


def check_idle_time(older_than: timedelta) -> None:
    """Raise an InvalidInputError unless conversations that were not written to for this time may be removed.

    >>> check_idle_time(timedelta(days=90))
    """
    if not isinstance(older_than, timedelta):
        raise InvalidInputError(f"older_than must be a timedelta, not {shown_value(older_than)}")
    if older_than < _LEAST_AGE:
        raise InvalidInputError(
            f"older_than must be at least {duration(_LEAST_AGE)}, not {duration(older_than)}"
        )


def check_text_keys(values: Mapping[Any, Any], *, name: str) -> None:
    """Raise an InvalidInputError if a key is not a text.

    >>> check_text_keys({"release": 4}, name="metadata")
    """
    for key in values:
        if not isinstance(key, str):
            raise InvalidInputError(f"each key of {name} must be a str, not {shown_value(key)}")


def check_ordinals(**given: int | None) -> None:
    """Raise an InvalidInputError for an ordinal that is not a whole number from 0; None is allowed."""
    for name, ordinal in given.items():
        if ordinal is not None:
            check_number(ordinal, name=name, minimum=0, maximum=2**53)


def check_scope_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """Return a store's scope keys as a tuple; raise an InvalidScopeError unless they are 1 to 8 different valid names.

    >>> check_scope_keys(["user_id", "course_id"])
    ('user_id', 'course_id')
    """
    names = tuple(keys) if not isinstance(keys, str) and isinstance(keys, Iterable) else ()
    for key in names:
        if type(key) is not str or not key.isidentifier() or key in _RESERVED:
            raise InvalidScopeError(
                "a scope key must be a Python name other than "
                f"{', '.join(sorted(_RESERVED))}, not {shown_value(key)}"
            )
    if not 1 <= len(names) <= _MAX_KEYS or len(set(names)) != len(names):
        raise InvalidScopeError(
            f"scope_keys must be 1 to {_MAX_KEYS} different names, not {shown_value(keys)}"
        )
    return names


def check_listings(keys: Sequence[str], listings: object) -> list[tuple[str, ...]]:
    """Return combinations of scope keys to list conversations by; raise an InvalidScopeError for anything else."""
    if not isinstance(listings, list | tuple):
        raise InvalidScopeError(
            "listings must be a list of combinations of scope keys, not " + shown_value(listings)
        )
    return [_check_listing(keys, listing) for listing in listings]


def _check_listing(keys: Sequence[str], listing: object) -> tuple[str, ...]:
    names = tuple(listing) if isinstance(listing, list | tuple) else ()
    is_known = all(isinstance(name, str) and name in keys for name in names)
    if not names or not is_known or len(set(names)) != len(names):
        raise InvalidScopeError(
            f"a listing names some of this store's scope keys, {', '.join(keys)}, not "
            f"{shown_value(listing)}"
        )
    return names


def check_scope(keys: Sequence[str], values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a complete scope, in the order of the store's keys, else raise an InvalidScopeError.

    In the scope of a child, the path is the last pair.
    """
    if PATH in values:
        outer = check_scope(keys, {key: value for key, value in values.items() if key != PATH})
        return (*outer, (PATH, _check_path(values[PATH])))
    checked = dict(check_partial_scope(keys, values))
    if missing := [key for key in keys if key not in values]:
        raise InvalidScopeError(
            f"the scope lacks {', '.join(missing)}; this store's scope is {', '.join(keys)}"
        )
    return tuple((key, checked[key]) for key in keys)


def as_scope(scope: Any) -> dict[str, Any]:
    """Return a scope that was passed as a mapping as a dict; the keys and values are not checked yet.

    Raises:
        InvalidScopeError: The scope is not a mapping with text keys.
    """
    if not isinstance(scope, Mapping) or not all(isinstance(key, str) for key in scope):
        raise InvalidScopeError(
            f"a scope must be a dict of its keys and values, not {type(scope).__name__}"
        )
    return dict(scope)


def child_scope(scope: Scope, ids: Sequence[str]) -> Scope:
    """Return the scope of a child that is identified by one or two ids, such as a message id and a call id.

    >>> child_scope(child_scope((("user_id", "ada"),), ["m1", "call/1"]), ["critic"])
    (('user_id', 'ada'), ('path', 'm1:call%2F1/critic'))
    """
    step = ":".join(quote(check_id(id_, name="an id of a child"), safe="") for id_ in ids)
    above = dict(scope).get(PATH)
    path = step if above is None else f"{above}/{step}"
    if path.count("/") >= _MAX_DEPTH:
        raise InvalidInputError(
            f"a child is at most {_MAX_DEPTH} levels below the outermost conversation, not {path}"
        )
    return (*root_scope(scope), (PATH, path))


def child_ids(scope: Mapping[str, str]) -> list[str]:
    """Return the ids that identify a child below its parent, as passed to `child_scope`.

    >>> child_ids(dict(child_scope((("user_id", "ada"),), ["m1", "call/1"])))
    ['m1', 'call/1']
    """
    return [unquote(id_) for id_ in scope[PATH].rpartition("/")[2].split(":")]


def root_scope(scope: Scope) -> Scope:
    """Return the scope of the outermost conversation above a child; other scopes are returned unchanged."""
    return tuple(pair for pair in scope if pair[0] != PATH)


def parent_scope(scope: Mapping[str, str]) -> dict[str, str] | None:
    """Return the scope of a child's parent; None for an outermost conversation."""
    if PATH not in scope:
        return None
    above, _, _ = scope[PATH].rpartition("/")
    root = {key: value for key, value in scope.items() if key != PATH}
    return root | {PATH: above} if above else root


def _check_path(path: Any) -> str:
    """Return the path of a child if `child_scope` could have made it, else raise an InvalidScopeError."""
    steps = path.split("/") if type(path) is str else []
    ids = [id_ for step in steps for id_ in step.split(":", 1)]
    is_made = not any(
        id_problem(unquote(id_)) or quote(unquote(id_), safe="") != id_ for id_ in ids
    )
    if not is_made or not 1 <= len(steps) <= _MAX_DEPTH:
        raise InvalidScopeError(
            f"path must be the path of a child, as in `chat.child(...).scope`, not "
            f"{shown_value(path)}"
        )
    return str(path)


def check_partial_scope(
    keys: Sequence[str], values: Mapping[str, Any]
) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a partial scope; raise an InvalidScopeError for unknown keys and unusable values."""
    if not isinstance(values, Mapping):
        raise InvalidScopeError(
            f"scope must be a mapping of scope values, not {shown_value(values)}"
        )
    if unknown := [key for key in values if key not in keys]:
        raise InvalidScopeError(
            f"{', '.join(map(repr, unknown))} is not in this store's scope: {', '.join(keys)}"
        )
    for key, value in values.items():
        if problem := id_problem(value):
            hint = ""
            if isinstance(value, int | str | UUID) and type(value) is not str:
                hint = f"; pass str({key})"
            raise InvalidScopeError(f"scope value {key} {problem}{hint}")
    return tuple(values.items())


def check_selection(
    keys: Sequence[str], values: Mapping[str, Any], *, everything: bool
) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a partial scope, or () with `everything`; raise an InvalidInputError for both or neither.

    So a scope that is empty by mistake never selects the conversations of all users.
    """
    check_flags(everything=everything)
    pairs = check_partial_scope(keys, values)
    if everything == bool(pairs):
        raise InvalidInputError(
            "name scope values to select their conversations, or pass everything=True for all"
        )
    return pairs


def scope_of_run(keys: Sequence[str], run: Run, chosen: ScopeChoice | None) -> Scope:
    """Return the complete scope of an agent or graph run, from values with which the application started it.

    Chosen values take precedence over the run's context, which is a mapping or an object with attributes, and over its
    ``config["configurable"]``. None counts as absent in the run, but is rejected among the chosen values.

    >>> scope_of_run(["user_id", "thread_id"], Run({"user_id": "ada"}, {"thread_id": "t1"}), None)
    (('user_id', 'ada'), ('thread_id', 't1'))

    Raises:
        InvalidScopeError: A key is missing, unknown or ambiguous, or a value is not usable.
    """
    given = chosen_values(chosen, run)
    values = {**_values_of_run([key for key in keys if key not in given], run), **given}
    if missing := [key for key in keys if key not in values]:
        raise InvalidScopeError(
            f"the run lacks {', '.join(missing)}: pass it in the run's context or in "
            "config['configurable'], or set it where the tool or the integration is created; "
            f"this store's scope is {', '.join(keys)}"
        )
    return check_scope(keys, values)


def _values_of_run(keys: Iterable[str], run: Run) -> dict[str, Any]:
    """Return a run's values for some keys; refuse two different values for one key, as one may be another user's."""
    found: dict[str, Any] = {}
    for key in keys:
        given = (part_of(run.context, key), run.configurable.get(key))
        values = [value for value in given if value is not None]
        if len(values) == 2 and not (
            type(values[0]) is type(values[1]) is str and values[0] == values[1]
        ):
            raise InvalidScopeError(
                f"{key} has different values in the run's context and in config['configurable']; "
                "pass it once, or set it where the tool or the integration is created"
            )
        if values:
            found[key] = values[0]
    return found


def check_id(value: str, *, name: str) -> str:
    """Return a caller's message id if it is valid, else raise an InvalidInputError."""
    if problem := id_problem(value):
        raise InvalidInputError(f"{name} {problem}")
    return value


def check_ids(ids: Any, *, name: str) -> list[str]:
    """Return a caller's message ids as a list if all are valid; raise a TooManyIdsError for more than `MAX_IDS`."""
    if isinstance(ids, str | bytes | Mapping) or not isinstance(ids, Iterable):
        raise InvalidInputError(f"{name} must be a list of message ids, not {type(ids).__name__}")
    values = list(ids)
    if len(values) > MAX_IDS:
        raise TooManyIdsError(f"{len(values)} ids in one call; ask for at most {MAX_IDS} at a time")
    return [check_id(value, name=f"{name}[{index}]") for index, value in enumerate(values)]


def id_problem(value: Any) -> str:
    """Return the reason why a value is not a valid id or scope value, "" if it is valid."""
    if type(value) is not str:
        return f"must be a plain str, not {type(value).__name__}"
    if not value:
        return "must not be empty"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "must be text that UTF-8 can encode, without lone surrogates"
    if size > MAX_ID_BYTES:
        return f"must be at most {MAX_ID_BYTES} bytes in UTF-8, not {size:,}"
    return ""


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


def check_scope_choice(keys: Sequence[str], chosen: ScopeChoice | None) -> ScopeChoice | None:
    """Return a scope choice; raise an InvalidScopeError for an invalid one, before the first run."""
    if isinstance(chosen, Mapping):
        check_partial_scope((*keys, PATH), chosen)
        return dict(chosen)
    if chosen is not None and not callable(chosen):
        raise InvalidScopeError(
            "scope must be a mapping of scope values, or a function from a Run to one, "
            f"not {type(chosen).__name__}"
        )
    return chosen


def chosen_values(chosen: ScopeChoice | None, run: Run) -> Mapping[str, Any]:
    """Return the scope values that a choice gives for a run; errors of a function pass through.

    >>> chosen_values(lambda run: run.context, Run({"user_id": "ada"}))
    {'user_id': 'ada'}
    """
    given: Any = chosen(run) if callable(chosen) else chosen or {}
    if isinstance(given, Mapping):
        return given
    if hasattr(given, "close"):  # a coroutine that is not awaited warns
        given.close()
    raise InvalidScopeError(
        "the scope function must not be async, and must return a mapping of scope values, "
        f"not {type(given).__name__}"
    )
