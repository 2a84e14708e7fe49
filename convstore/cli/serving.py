"""Serve the inspector on this machine until the command is interrupted.

``inspect`` and ``demo --inspect`` call it. The server only listens on 127.0.0.1, and the address has a token that works
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
from contextlib import contextmanager, suppress
from typing import Any

from convstore.cli.output import screen, write_json
from convstore.exceptions import InvalidInputError, MissingExtraError
from convstore.ext.inspector import LocalGate

try:
    import uvicorn
except ImportError as error:
    raise MissingExtraError(package="uvicorn", extra="inspector") from error

_STOP_SECONDS = 2


PORT = 7171
"""The default port, so that bookmarks stay valid; if another program uses it, a free one is taken."""


async def serve(pages: Any, *, port: int | None, open_browser: bool, as_document: bool) -> None:
    """Serve the inspector's pages, and print the address; print it again with a new token if a browser is refused."""
    with _listening(port) as listener:
        number = listener.getsockname()[1]
        token = secrets.token_urlsafe(24)

        def show(token: str) -> str:
            address = f"http://127.0.0.1:{number}/?token={token}"
            _print(address, as_document=as_document)
            return address

        gate = LocalGate(pages, port=number, token=token, on_refused=show)
        config = uvicorn.Config(
            gate,
            log_level="warning",
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        address = show(token)
        if open_browser and sys.stdout.isatty():
            await asyncio.to_thread(webbrowser.open, address)
        await _Server(config).serve(sockets=[listener])


def _print(address: str, *, as_document: bool) -> None:
    if as_document:
        write_json({"address": address})
        sys.stdout.flush()
    else:
        screen().print(
            f"The inspector is open at\n\n  {address}\n\nThe address works once. "
            "Press Ctrl-C to stop."
        )


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


def _listening(port: int | None) -> socket.socket:
    """Return the socket of a port; for None that of the default port, or of a free one if another program uses it."""
    if port is None:
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", PORT))
    try:
        return socket.create_server(("127.0.0.1", port or 0))
    except OSError as error:
        raise InvalidInputError(
            f"port {port} cannot be used: {error.strerror}; choose another with --port"
        ) from error
