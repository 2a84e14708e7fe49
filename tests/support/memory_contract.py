"""The whole contract suite of an installed package, in memory: `.ci/run` tries the lowest versions with it."""

from __future__ import annotations

from typing import Any

import pytest
from mongomock_motor import AsyncMongoMockClient

pytest.register_assert_rewrite("convstore.testing")

from convstore.testing import StoreContract  # noqa: E402 - after the rewriting of its asserts was asked for


class TestInstalled(StoreContract):
    """The package as it was installed."""

    @pytest.fixture
    async def database(self) -> Any:
        """A database of its own for each test."""
        return AsyncMongoMockClient()["app"]
