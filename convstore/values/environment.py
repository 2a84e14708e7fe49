"""Read the options of a store from the environment, for `ConversationStore.from_env` and the command line.

An empty variable counts as unset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, unquote

from convstore.exceptions import InvalidInputError
from convstore.values.addresses import check_address
from convstore.values.policy import parse_policy
from convstore.values.scope import check_scope_keys

URI = "CONVSTORE_URI"
DATABASE = "CONVSTORE_DATABASE"
DEFAULT_DATABASE = "convstore"
"""The database if neither the address nor the environment names one."""

SCOPE_KEYS = "CONVSTORE_SCOPE_KEYS"
COLLECTION_PREFIX = "CONVSTORE_COLLECTION_PREFIX"
POLICY = "CONVSTORE_POLICY"


def address_in(variables: Mapping[str, str]) -> str:
    """Return the address of the database; errors never contain a part of it.

    >>> address_in({"CONVSTORE_URI": "mongodb://db/?tls=true", "CONVSTORE_DATABASE": "chats"})
    'mongodb://db/chats?tls=true'

    Raises:
        InvalidInputError: It is missing or malformed, or it names another database than ``CONVSTORE_DATABASE``.
    """
    uri = variables.get(URI, "")
    database = variables.get(DATABASE, "")
    if not uri:
        raise InvalidInputError(
            f"{URI} must be set to an address such as mongodb://localhost:27017/app"
        )
    return with_database(_read(URI, check_address, uri), database, URI, DATABASE)


def with_database(uri: str, database: str, uri_name: str, database_name: str) -> str:
    """Add the name of a database to a valid address, unless the address has one.

    Raises:
        InvalidInputError: The address names another database. The error names the settings, not their values.
    """
    scheme, _, rest = uri.partition("://")
    place, question, options = rest.partition("?")
    hosts, _, named = ("", "", place.strip("/")) if scheme == "memory" else place.partition("/")
    if named and database and unquote(named) != database:
        raise InvalidInputError(
            f"{uri_name} names another database than {database_name}; name it in one of them only"
        )
    return f"{scheme}://{hosts}/{named or quote(database, safe='')}{question}{options}"


def options_in(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of `ConversationStore` that the environment sets.

    >>> options_in({"CONVSTORE_SCOPE_KEYS": "team_id, user_id", "CONVSTORE_POLICY": ""})
    {'scope_keys': ('team_id', 'user_id')}

    Raises:
        InvalidInputError: A value is invalid; the error names the variable.
    """
    read: dict[str, tuple[str, Callable[[str], Any]]] = {
        "scope_keys": (SCOPE_KEYS, _keys),
        "collection_prefix": (COLLECTION_PREFIX, str),
        "policy": (POLICY, parse_policy),
    }
    return {
        option: _read(name, how, text)
        for option, (name, how) in read.items()
        if (text := variables.get(name))
    }


def _keys(text: str) -> tuple[str, ...]:
    return check_scope_keys([key.strip() for key in text.split(",")])


def _read(name: str, read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except InvalidInputError as error:
        raise InvalidInputError(f"{name}: {error}") from error
