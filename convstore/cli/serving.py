"""Serve the inspector on this machine until the command is interrupted.

``inspect`` and ``demo --inspect`` call it. Only 127.0.0.1 is listened on, and the address carries a token that works
once.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from convstore.cli.output import screen, write_json
from convstore.exceptions import InvalidInputError, MissingExtraError
from convstore.ext.inspector import LocalGate

try:
    import uvicorn
except ImportError as error:
    raise MissingExtraError(package="uvicorn", extra="inspector") from error

_STOP_SECONDS = 2


async def serve(pages: Any, *, port: int, open_browser: bool, as_document: bool) -> None:
    """Serve the inspector's pages, and print the address."""
    with _listening(port) as listener:
        number = listener.getsockname()[1]
        token = secrets.token_urlsafe(24)
        gate = LocalGate(pages, port=number, token=token)
        config = uvicorn.Config(
            gate,
            log_level="warning",
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        address = f"http://127.0.0.1:{number}/?token={token}"
        if as_document:
            write_json({"address": address})
            sys.stdout.flush()
        else:
            screen().print(
                f"The inspector is open at\n\n  {address}\n\nThe address works once. "
                "Press Ctrl-C to stop."
            )
        if open_browser and sys.stdout.isatty():
            await asyncio.to_thread(webbrowser.open, address)
        await _Server(config).serve(sockets=[listener])


class _Server(uvicorn.Server):
    """A server that ends at a signal without raising it again, so that the command can clean up."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle the signals that end the command."""
        before = {
            each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for signal_number, handler in before.items():
                signal.signal(signal_number, handler)


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise InvalidInputError(
            f"port {port} cannot be used: {error.strerror}; choose another with --port"
        ) from error
