"""Emulate servers that answer in another way than MongoDB 6.0, for PyMongo and Motor in this process.

Both drivers encode each command with one function, which is replaced here. A test of each emulation shows that it is in
effect, as the function is private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from pymongo import message
from pymongo.errors import OperationFailure
from refusing_server import documentdb

Command = dict[str, Any]

_SWAPPED = {"$lt": "$lte", "$lte": "$lt", "$gt": "$gte", "$gte": "$gt"}


@contextmanager
def on_the_wire(change: Callable[[Command], Command]) -> Iterator[None]:
    """Send what `change` makes of each command; it may raise the error of a server."""
    encode = message._op_msg

    def changed(flags: int, command: Command, *values: Any, **options: Any) -> Any:
        return encode(flags, change(command), *values, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message, "_op_msg", changed)
        yield


@contextmanager
def swapped_bounds() -> Iterator[None]:
    """Emulate SERVER-121822 of MongoDB 8.0.19 and 8.2.6 for all collections whose names end in "log".

    A descending scan of a clustered collection by `_id` excludes the bound of `$gte` and includes that of `$lt`.
    """
    with on_the_wire(_with_swapped_bounds):
        yield


def _with_swapped_bounds(command: Command) -> Command:
    if str(command.get("find", "")).endswith("log") and _is_descending(command.get("sort")):
        return {**command, "filter": _swapped(command.get("filter", {}))}
    if str(command.get("aggregate", "")).endswith("log"):
        return {**command, "pipeline": _swapped_pipeline(command["pipeline"])}
    return command


def _swapped_pipeline(stages: list[Command]) -> list[Command]:
    if not any(_is_descending(stage.get("$sort")) for stage in stages):
        return stages
    return [
        {"$match": _swapped(stage["$match"])} if "$match" in stage else stage for stage in stages
    ]


def _is_descending(sort: Mapping[str, int] | None) -> bool:
    if not sort:
        return False
    return next(iter(sort.items())) == ("_id", -1)


def _swapped(query: Command) -> Command:
    swapped = dict(query)
    for name, value in query.items():
        if name in ("$or", "$and"):
            swapped[name] = [_swapped(part) for part in value]
        elif name == "_id" and isinstance(value, Mapping):
            swapped[name] = {
                _SWAPPED.get(operator, operator): bound for operator, bound in value.items()
            }
    return swapped


@contextmanager
def refusing() -> Iterator[None]:
    """Emulate a server that refuses what Amazon DocumentDB refuses, except options of collections."""
    with on_the_wire(_without_refused):
        yield


def _without_refused(command: Command) -> Command:
    reply = None if "create" in command else documentdb(command)
    if reply is not None:
        raise OperationFailure(reply["errmsg"], reply["code"], dict(reply))
    return command
