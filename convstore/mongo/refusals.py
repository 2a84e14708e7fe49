"""Find out which constructs a server refuses, so that the store uses those that replace them.

Only constructs that have a replacement are tried, on documents that do not exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

from convstore.exceptions import MissingPrivilegeError, StoreError
from convstore.mongo.collection import Collection
from convstore.mongo.driver import DOCUMENT_SIZE, JOIN, Driver, is_refusal
from convstore.mongo.heads import join_of_last_entry
from convstore.mongo.keys import LOG, MIGRATIONS
from convstore.mongo.statistics import GROUP_BY_DAY
from convstore.mongo.times import SERVER_TIME, is_past_now, setting_from_now

_NO_DOCUMENT = {"_id": ""}
_NOTHING = {"$match": _NO_DOCUMENT}
_AT = "at"


async def refused_by(driver: Driver) -> set[str]:
    """Return the names of the constructs that the server refuses, as in `Driver.refused`. Three commands.

    They work on the collection of migrations, find nothing, and so change nothing.
    """
    if driver.name == "memory":  # it never sends them
        return set()
    documents = Collection(driver, MIGRATIONS)
    update = setting_from_now({}, field=_AT, ahead=timedelta(seconds=1))
    join = join_of_last_entry(driver.prefix + LOG)
    commands: dict[str, Callable[[], Awaitable[object]]] = {
        SERVER_TIME: partial(documents.update, _NO_DOCUMENT | is_past_now(_AT), update),
        JOIN: partial(documents.aggregate, [_NOTHING, join]),
        DOCUMENT_SIZE: partial(documents.aggregate, [_NOTHING, {"$group": GROUP_BY_DAY}]),
    }
    return {construct for construct, command in commands.items() if await _is_refused(command)}


async def _is_refused(command: Callable[[], Awaitable[object]]) -> bool:
    """Return True if the server refuses a command; an error that says nothing about that is raised."""
    try:
        await command()
    except MissingPrivilegeError:
        return False  # the first use shows it
    except StoreError as error:
        if is_refusal(error):
            return True
        raise
    return False
