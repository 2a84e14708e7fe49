"""Prints what ``convstore show`` found: messages of the log, a view with its reasons, or a source.

Floor 8. Everything stored is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from convstore.cli.output import plain, short

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

    from convstore import PastView, Source, StoredMessage, ViewReason

__all__ = ["print_found"]

_SHOWN = 600
_STYLES = {"human": "bold cyan", "ai": "bold green", "tool": "bold yellow"}
_MATCHES = {
    "exact": "Exactly what the model got.",
    "rebuilt": "The view directly after the message; no stamp says what the model got.",
    "differs": "Not what the model got; the difference: ",
}


def print_found(
    console: Console, found: PastView | Source | Sequence[StoredMessage], *, full: bool, is_past: bool
) -> None:
    """Print what was found; with `is_past`, say how a view compares with what the model got."""
    from convstore import PastView, Source  # noqa: PLC0415 - loaded with what was found

    if isinstance(found, PastView):
        _print_view(console, found, full=full, is_past=is_past)
    elif isinstance(found, Source):
        _print_source(console, found)
    else:
        _print_log(console, found, full=full)


def _print_source(console: Console, source: Source) -> None:
    console.print(Text(plain(f"[{source.source_id}] {source.title}"), style="bold"))
    for name, value in {"url": source.url, "message": source.tool_message_id, **source.metadata}.items():
        console.print(Text(short(f"{name}: {value}", maximum=_SHOWN), style="dim"), soft_wrap=True)
    console.print(f"\n{plain(source.content, lines=True)}", soft_wrap=True)


def _print_view(console: Console, view: PastView, *, full: bool, is_past: bool) -> None:
    """Print the messages of a view, then what each range of the log became and why."""
    for message in view.messages:
        _print_message(console, "", message, full=full)
    report = view.report
    if is_past:
        console.print(_MATCHES[view.match] + view.difference, style="bold")
    for reason in report.reasons:
        console.print(f"{_range(reason):>15}  {_why(reason)}", style="dim")
    console.print(
        f"{len(view.messages):,} messages, {view.tokens:,} tokens; the whole log has {report.tokens_before:,}. "
        f"{len(report.stubbed):,} results are stubs, {report.left_out_turns:,} turns are left out.",
        style="dim",
    )


def _range(reason: ViewReason) -> str:
    return f"{reason.first:,}" if reason.first == reason.last else f"{reason.first:,} to {reason.last:,}"


def _why(reason: ViewReason) -> str:
    if reason.summary:
        return f"in summary {reason.summary}"
    return f"{reason.state.replace('_', ' ')}{f' because of {reason.limit}' if reason.limit else ''}"


def _print_log(console: Console, messages: Sequence[StoredMessage], *, full: bool) -> None:
    for stored in messages:
        _print_message(console, f"{stored.ordinal}  {stored.created_at:%Y-%m-%d %H:%M}", stored.message, full=full)
        for name, value in stored.annotations.items():
            console.print(Text(short(f"{name}: {value}", maximum=_SHOWN), style="cyan"), soft_wrap=True)


def _print_message(console: Console, position: str, message: BaseMessage, *, full: bool) -> None:
    """Print a message: a heading with its position, type, tool and id, then its text and calls."""
    from convstore.messages.text import text_of  # noqa: PLC0415 - loaded with the message

    words = (position, message.type, message.name or "", message.id or "")
    console.print(Text(plain("  ".join(filter(None, words))), style=_STYLES.get(message.type, "bold")), soft_wrap=True)
    for text in (text_of(message.content), *_calls(message)):
        if text:
            shown = text if full or len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text):,} characters; --full)"
            console.print(plain(shown, lines=True), soft_wrap=full)
    console.print()


def _calls(message: BaseMessage) -> Iterator[str]:
    for call in getattr(message, "tool_calls", ()):
        yield f"→ {call['name']}({json.dumps(call['args'], ensure_ascii=False, default=repr)})"
