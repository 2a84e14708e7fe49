"""The contract suite on every driver: PyMongo and Motor with a real server, mongomock-motor in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from mongomock_motor import AsyncMongoMockClient
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient

from convstore.testing import StoreContract


class TestPyMongo(StoreContract):
    """PyMongo's own async API."""

    @pytest.fixture
    async def database(self, pymongo_client: AsyncMongoClient[dict[str, Any]], database_name: str) -> Any:
        """A real database."""
        return pymongo_client[database_name]


class TestMotor(StoreContract):
    """Motor, for backends that still run on it."""

    @pytest.fixture
    async def database(self, server_uri: str, database_name: str) -> AsyncIterator[Any]:
        """A real database."""
        client: Any = AsyncIOMotorClient(server_uri)
        yield client[database_name]
        client.close()


class TestInMemory(StoreContract):
    """mongomock-motor, for demos and users' unit tests."""

    @pytest.fixture
    async def database(self) -> Any:
        """A database of its own for each test: every operation scans all of it."""
        return AsyncMongoMockClient()["app"]
