"""Read the databases of other applications, with the errors of this package."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from convstore.mongo.driver import close_client, driver_errors, open_client


@asynccontextmanager
async def open_database(uri: str, *, default: str) -> AsyncIterator[Any]:
    """Open the database that an address names, or the default one, and close its client at the end."""
    client, database = open_client(uri, default=default)
    try:
        yield database
    finally:
        await close_client(client)


async def documents_of(cursor: Any) -> AsyncIterator[dict[str, Any]]:
    """Iterate over the documents of a cursor, with the errors of this package."""
    found = aiter(cursor)
    while True:
        async with driver_errors():
            document = await anext(found, None)
        if document is None:
            return
        yield document


async def estimated_count(collection: Any) -> int:
    """Return the number of documents of a collection, from its metadata. One command."""
    async with driver_errors():
        return int(await collection.estimated_document_count())
