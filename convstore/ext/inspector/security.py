"""Protect the pages: security headers, only GET, the authorization of a mounted inspector, and the local gate.

A mounted inspector calls `authorize` at every request. The command line's inspector only accepts connections from this
machine, with a token that works once.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from convstore.exceptions import InvalidScopeError


class Everything(Enum):
    """The type of `EVERYTHING`."""

    EVERYTHING = "everything"


EVERYTHING: Final = Everything.EVERYTHING
"""Returned by `authorize` for a person who may see the conversations of all users."""

_Permission = Mapping[str, str] | Everything | None

Authorize = Callable[[Request], _Permission | Awaitable[_Permission]]
"""Returns the scope values whose conversations a request may see, None if it may see nothing, or `EVERYTHING`."""

_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
WITH_SCRIPT = {
    "Content-Security-Policy": f"{_POLICY}; script-src 'self'; connect-src 'self'",
}
"""Header of a page that follows a running turn with the inspector's script; other pages may not run scripts."""

_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Guard:
    """Sets the security headers on every response, including errors, and refuses every method except GET."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        app = self._app
        if scope["method"] != "GET":
            app = PlainTextResponse("The inspector only reads: use GET.", 405, {"Allow": "GET"})
        await app(scope, receive, send_with_headers)


async def scope_for(authorize: Authorize, request: Request) -> dict[str, str]:
    """Return the scope values that limit a request; an empty dict for `EVERYTHING`.

    Raises:
        HTTPException: The request may not see any conversation.
        InvalidScopeError: `authorize` returned a value that is not a mapping, None or `EVERYTHING`.
    """
    permission: Any = await run_in_threadpool(authorize, request)  # a sync function may block
    if inspect.isawaitable(permission):
        permission = await permission
    if permission is EVERYTHING:
        return {}
    if permission is None:
        raise HTTPException(403, "You may not see conversations here.")
    if not isinstance(permission, Mapping):
        raise InvalidScopeError(
            f"authorize returns scope values, None or EVERYTHING, not {type(permission).__name__}"
        )
    if not permission:
        raise HTTPException(
            403,
            "authorize returned no scope values; it returns EVERYTHING to show all conversations.",
        )
    return dict(permission)


class LocalGate:
    """Admits the browser that opens an address with the token; it works once and is replaced by a cookie.

    Args:
        app: The application.
        port: The port on which it is served; requests must name it and this machine as their host.
        token: The token.
        on_refused: Called with a new token when another browser, or a bookmark, is refused after the token was used.
            By default no new token is made.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        port: int,
        token: str,
        on_refused: Callable[[str], object] | None = None,
    ) -> None:
        self._app = app
        self._token = token
        self._on_refused = on_refused
        self._session = secrets.token_urlsafe(32)
        self._cookie = f"convstore_inspector_{port}"
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._is_used = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        await Guard(self._admitted)(scope, receive, send)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = (self._admit(Request(scope)) or self._app) if scope["type"] == "http" else self._app
        await app(scope, receive, send)

    def _admit(self, request: Request) -> Response | None:
        """Return None for a request that is admitted, else the response to it."""
        if request.headers.getlist("host") not in [[host] for host in self._hosts]:
            return PlainTextResponse("This address belongs to this machine only.", 403)
        is_known = _is_equal(request.cookies.get(self._cookie, ""), self._session)
        if (token := request.query_params.get("token")) is not None:
            if is_known:
                return RedirectResponse("/", 303)
            if not self._is_used and _is_equal(token, self._token):
                self._is_used = True
                answer = RedirectResponse("/", 303)
                answer.set_cookie(
                    self._cookie, self._session, httponly=True, samesite="strict", path="/"
                )
                return answer
        if is_known:
            return None
        return self._refusal()

    def _refusal(self) -> Response:
        """Return a response that explains how to get access; make a new token if the last one was used."""
        reason = "This address was opened before, or has no valid token."
        if self._on_refused is None:
            return PlainTextResponse(f"{reason} Run convstore inspect again for a new one.", 403)
        if self._is_used:
            self._token = secrets.token_urlsafe(24)
            self._is_used = False
            self._on_refused(self._token)
        text = "Open the last address that convstore inspect printed: after that, this one works."
        return PlainTextResponse(f"{reason} {text}", 403)


def _is_equal(given: str, expected: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), expected.encode())
