"""Types of fixtures that many tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
from pymongo import AsyncMongoClient

Client = AsyncMongoClient[dict[str, Any]]
"""A client of MongoDB."""

Browse = Callable[..., httpx.AsyncClient]
"""Opens a client of the inspector."""
