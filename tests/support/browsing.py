"""A real Chromium for the tests of the inspector, and the address of an inspector on this machine."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
]
SIZES = {"wide": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 844}}

NEEDS_BROWSER = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.skipif(
        not Path(CHROMIUM).exists() and not os.environ.get("CONVSTORE_BROWSER"),
        reason=f"the browser tests need a Chromium, and {CHROMIUM} is missing; CHROMIUM names another one",
    ),
]


@asynccontextmanager
async def served(make: Any) -> AsyncIterator[int]:
    """Serve the application that `make` makes for a port, and return the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(make(port), log_level="warning", lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield port
        server.should_exit = True
        await serving
