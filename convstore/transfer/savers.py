"""Opens LangGraph's checkpointers for a command, and lists the threads and namespaces of a checkpointer.

LangGraph's interface can only list checkpoints. So the names of threads and of subgraphs' namespaces are read from the
collection or table of a saver for MongoDB, Postgres or SQLite, with one ``distinct`` for each.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from convstore.exceptions import InvalidInputError
from convstore.integration import driver_errors, open_database

POSTGRES = ("postgresql://", "postgres://")
COLLECTION = "checkpoints"
DATABASE = "checkpointing_db"
"""Default names of ``MongoDBSaver``."""
WRITES_COLLECTION = "checkpoint_writes"

_THREADS = "SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id"
_NAMESPACES = (
    "SELECT DISTINCT checkpoint_ns FROM checkpoints WHERE thread_id = {} AND checkpoint_ns <> ''"
)


async def thread_ids_of(saver: Any) -> list[str]:
    """Return the ids of all threads of a saver for MongoDB, Postgres or SQLite."""
    if hasattr(saver, "checkpoint_collection"):
        async with driver_errors():
            return sorted(
                await asyncio.to_thread(saver.checkpoint_collection.distinct, "thread_id")
            )
    if hasattr(saver, "storage"):  # InMemorySaver
        return sorted(saver.storage)
    if hasattr(saver, "conn"):
        return await _first_column(saver, _THREADS)
    raise InvalidInputError(
        f"the threads of a {type(saver).__name__} cannot be listed; pass their ids: "
        "read_checkpoints(saver, thread_ids=[…])"
    )


async def other_namespaces_of(saver: Any, thread_id: str) -> int:
    """Return the number of namespaces of a thread, except the root; 0 if a saver of this class cannot list them."""
    if hasattr(saver, "checkpoint_collection"):
        query = {"thread_id": thread_id}
        async with driver_errors():
            found = await asyncio.to_thread(
                saver.checkpoint_collection.distinct, "checkpoint_ns", query
            )
    elif hasattr(saver, "storage"):
        found = list(saver.storage.get(thread_id) or ())
    elif hasattr(saver, "conn"):
        placeholder = "?" if "Sqlite" in type(saver).__name__ else "%s"
        found = await _first_column(saver, _NAMESPACES.format(placeholder), thread_id)
    else:
        found = []
    return len(set(found) - {""})


async def _first_column(saver: Any, query: str, *values: str) -> list[str]:
    """Return the first column of a query's rows, from a saver for Postgres or SQLite."""
    if type(saver).__name__.startswith("Async"):
        async with saver.lock, _connection(saver.conn) as connection:
            cursor = await connection.execute(query, values)
            return [_first_of(row) for row in await cursor.fetchall()]
    return await asyncio.to_thread(_first_column_now, saver, query, values)


def _first_column_now(saver: Any, query: str, values: tuple[str, ...]) -> list[str]:
    with saver.lock, _connection(saver.conn) as connection:
        return [_first_of(row) for row in connection.execute(query, values).fetchall()]


def _first_of(row: Any) -> str:
    """Return the first value of a row, which is a dict or a tuple."""
    values = row.values() if isinstance(row, dict) else row
    return str(next(iter(values)))


def _connection(source: Any) -> Any:
    """Return a context manager for a connection, which may come from a pool; asynchronous for async connections."""
    return source.connection() if hasattr(source, "getconn") else nullcontext(source)


@asynccontextmanager
async def open_saver(
    source: str, *, collection: str = COLLECTION, writes_collection: str = WRITES_COLLECTION
) -> AsyncIterator[Any]:
    """Open a saver for reading: an address of MongoDB or Postgres, or the path of a SQLite file.

    Only LangGraph's and LangChain's own classes are built from stored values.

    Raises:
        InvalidInputError: The source has no checkpoints, the server cannot be reached, or a package is missing.
    """
    if source.startswith(POSTGRES):
        with _opened_postgres(source) as saver:
            yield saver
    elif _is_file(source):
        with _opened_sqlite(source) as saver:
            yield saver
    else:
        async with _opened_mongodb(source, collection, writes_collection) as saver:
            yield saver


def _is_file(source: str) -> bool:
    return Path(source).exists()


async def _database_with(uri: str, collection: str) -> str:
    """Return the name of the database in an address, or the default one; it must have the collection."""
    async with open_database(uri, default=DATABASE) as database:
        async with driver_errors():
            names = await database.list_collection_names(filter={"name": collection})
        if not names:
            raise InvalidInputError(
                f"the database {database.name!r} has no collection {collection!r}; "
                "name the database in the address"
            )
        return str(database.name)


@asynccontextmanager
async def _opened_mongodb(
    source: str, collection: str, writes_collection: str
) -> AsyncIterator[Any]:
    try:
        from langgraph.checkpoint.mongodb import MongoDBSaver  # noqa: PLC0415 - reads one kind of source
    except ImportError as error:
        raise _missing("langgraph-checkpoint-mongodb") from error
    # The saver would create collections with indexes in another database.
    database = await _database_with(source, collection)
    opening = MongoDBSaver.from_conn_string(
        source, database, collection, writes_collection, serde=_serde()
    )
    async with driver_errors():
        saver = await asyncio.to_thread(opening.__enter__)
    try:
        yield saver
    finally:
        await asyncio.to_thread(opening.__exit__, None, None, None)


@contextmanager
def _opened_sqlite(source: str) -> Iterator[Any]:
    try:
        from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415 - reads one kind of source
    except ImportError as error:
        raise _missing("langgraph-checkpoint-sqlite") from error
    address = f"{Path(source).absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, check_same_thread=False)) as connection:
            connection.execute("SELECT checkpoint_id FROM checkpoints LIMIT 1").fetchall()
            yield SqliteSaver(connection, serde=_serde())
    except sqlite3.Error as error:
        raise InvalidInputError(
            f"{Path(source).name} is not a database of SqliteSaver: {error}"
        ) from error


@contextmanager
def _opened_postgres(source: str) -> Iterator[Any]:
    try:
        from langgraph.checkpoint.postgres import (  # noqa: PLC0415  # pyright: ignore[reportMissingImports]
            PostgresSaver,
        )
        from psycopg import Error  # noqa: PLC0415  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise _missing("langgraph-checkpoint-postgres psycopg[binary]") from error
    try:
        with PostgresSaver.from_conn_string(source) as saver:
            saver.serde = _serde()
            saver.conn.execute("SET default_transaction_read_only = on")
            yield saver
    except Error as error:
        # The text of the error may quote the address.
        raise InvalidInputError(
            f"the Postgres database cannot be read: {type(error).__name__}"
        ) from error


def _serde() -> Any:
    """Return a serializer that only builds classes of LangGraph and LangChain; other values stay plain."""
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer  # noqa: PLC0415 - as above

    return JsonPlusSerializer(allowed_msgpack_modules=None)


def _missing(package: str) -> InvalidInputError:
    return InvalidInputError(
        f"a package that reads these checkpoints is not installed; run: pip install {package}"
    )
