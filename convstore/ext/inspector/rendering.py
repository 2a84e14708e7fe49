"""Render the templates: escaping, dates, numbers, and addresses below the path where the inspector is mounted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.filters import do_filesizeformat
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from convstore.ext.inspector.security import WITH_SCRIPT
from convstore.ext.inspector.text import (
    as_json,
    finalize,
    marked,
    shorten,
    shorten_at_word,
    with_citations,
)
from convstore.values.plain import age, counted, money, percent, role_label

_MAX_NUMBER = 2**53 - 1
_OPTIONS = (
    "max_tokens",
    "max_turns",
    "shorten_over",
    "stub_tools",
    "media",
    "view",
)
_JUST_NOW = timedelta(minutes=1)
_LONG_AGO = timedelta(days=14)


def render(name: str, request: Request, status_code: int = 200, **context: Any) -> HTMLResponse:
    """Return the response with a page; `is_live` in the context allows the page to run the inspector's script."""
    base = str(request.scope.get("root_path", "")).rstrip("/")
    template = _environment().get_template(name)
    at = number_in(request, "at") if context.get("info") else None
    kept = {"at": at, **what_if_in(request)} if at else what_if_in(request)

    def stay(address: str, call: int | None = at) -> str:
        """Return an address in the same conversation with the selected call and policy of the current page."""
        page, mark, anchor = address.partition("#")
        query = urlencode({"at": call, **what_if_in(request)} if call else what_if_in(request))
        if not query:
            return address
        joint = "&" if "?" in page else "?"
        return f"{page}{joint}{query}{mark}{anchor}"

    values = {"base": base, "now": datetime.now(UTC), "at": at, "stay": stay, "kept": kept}
    headers = WITH_SCRIPT if context.get("is_live") else None
    return HTMLResponse(template.render(values | context), status_code, headers)


def what_if_in(request: Request) -> dict[str, str]:
    """Return the policy options in the address, which replace those of the call's policy."""
    return {
        name: request.query_params[name][:16] for name in _OPTIONS if name in request.query_params
    }


def number_in(request: Request, name: str, default: int | None = None) -> int | None:
    """Return a number of the path or query, or the default. HTTPException for other values than 0 to 2**53 - 1."""
    text = request.path_params.get(name, request.query_params.get(name))
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= _MAX_NUMBER):
        raise HTTPException(404)
    return int(text)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "age": age,
        "ago": _ago,
        "bytes": _bytes,
        "cited": with_citations,
        "clip": shorten,
        "clip_words": shorten_at_word,
        "count": counted,
        "date": "{:%d %b %Y, %H:%M:%S} UTC".format,
        "json": as_json,
        "iso": lambda at: at.isoformat(timespec="seconds"),
        "marked": marked,
        "money": money,
        "percent": percent,
        "role": role_label,
    }
    return environment


def _bytes(number: int) -> str:
    """Return a size in a readable unit.

    >>> _bytes(284), _bytes(55_300)
    ('284 bytes', '55.3 kB')
    """
    return do_filesizeformat(number).replace("Byte", "byte")


def _ago(at: datetime, now: datetime) -> str:
    """Return the time that passed since a moment, or its date if it is long ago.

    >>> now = datetime(2026, 11, 22, 10, tzinfo=UTC)
    >>> [_ago(now.replace(day=day, hour=hour), now) for day, hour in ((22, 10), (22, 8), (20, 9), (1, 1))]
    ['just now', '2 h ago', '2 days ago', '01 Nov 2026']
    """
    if now - at < _JUST_NOW:
        return "just now"
    return f"{age(at, now)} ago" if now - at < _LONG_AGO else f"{at:%d %b %Y}"
