"""``convstore show``: one conversation, its view, or one source.

Floor 8. Parses the options of `list_messages`, `load_history` and `get_sources`, and prints what they return.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console
from rich.text import Text

from convstore.cli.options import Json, Prefix, Uri, open_store, read_pairs
from convstore.cli.output import in_pager, plain, run, screen, short, write_json
from convstore.exceptions import InvalidInputError

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

    from convstore import Conversation, History, Source, StoredMessage

__all__ = ["SHOW", "show_command"]

SHOW = """Show one conversation.

\b
SCOPE names it, as `convstore list` prints it: user_id=ada thread_id=orcas.
Old tool results are shown as stubs, and long texts by their beginning.

\b
--view      what the model gets at the next call, under the default policy
--full      texts and tool results whole
--source 7  the source with this number, whole

\b
Examples:
  convstore show user_id=ada thread_id=orcas --uri mongodb://…
  convstore show user_id=ada thread_id=orcas --uri mongodb://… --view
  convstore show user_id=ada thread_id=orcas --uri mongodb://… --json --full
"""

_SHOWN = 600
_PAGE_TOKENS = 16_000
_STYLES = {"human": "bold cyan", "ai": "bold green", "tool": "bold yellow"}


def show_command(
    scope: Annotated[list[str], typer.Argument(metavar="SCOPE", help="KEY=VALUE, for each scope key.")],
    *,
    uri: Uri,
    collection_prefix: Prefix = "",
    view: Annotated[bool, typer.Option("--view", help="What the model gets.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Texts and tool results whole.")] = False,
    source: Annotated[int | None, typer.Option(min=1, help="The source with this number.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Messages of the log, the newest.")] = 50,
    before: Annotated[int | None, typer.Option(min=1, help="Only messages before this number.")] = None,
    as_document: Json = False,
) -> None:
    """See `SHOW`."""
    if view and source is not None:
        raise typer.BadParameter("give --view or --source, not both")
    chosen = read_pairs("SCOPE", scope)

    async def work() -> History | Source | list[StoredMessage]:
        async with open_store(uri, list(chosen), collection_prefix) as store:
            chat = store.conversation(**chosen)
            if (await chat.info()).created_at is None:
                name = shlex.join(f"{key}={value}" for key, value in chosen.items())
                raise InvalidInputError(f"no conversation has the scope {name}; `convstore list` lists all with theirs")
            if source is not None:
                return await _read_source(chat, source)
            return await (chat.load_history() if view else chat.list_messages(limit=limit, before=before, full=full))

    found = run(work(), as_document=as_document)
    if as_document:
        write_json({"messages": [one.model_dump() for one in found]} if isinstance(found, list) else found.model_dump())
        return
    console = screen()
    with in_pager(console):
        if isinstance(found, list):
            _print_log(console, found, full=full)
        elif view:
            _print_view(console, cast("History", found), full=full)
        else:
            _print_source(console, cast("Source", found))


async def _read_source(chat: Conversation, number: int) -> Source:
    """Return one source with its whole text.

    Raises:
        InvalidInputError: The conversation has no such source.
    """
    page = await chat.get_sources([number], page_tokens=_PAGE_TOKENS)
    if not page.sources:
        raise InvalidInputError(f"the conversation has no source {number}")
    found, texts = page.sources[0], [page.sources[0].content]
    while page.next_cursor is not None:
        page = await chat.get_sources([number], cursor=page.next_cursor, page_tokens=_PAGE_TOKENS)
        texts += [source.content for source in page.sources]
    return found.model_copy(update={"content": "".join(texts)})


def _print_source(console: Console, source: Source) -> None:
    console.print(Text(plain(f"[{source.source_id}] {source.title}"), style="bold"))
    for name, value in {"url": source.url, "message": source.tool_message_id, **source.metadata}.items():
        console.print(Text(short(f"{name}: {value}", maximum=_SHOWN), style="dim"), soft_wrap=True)
    console.print(f"\n{plain(source.content, lines=True)}", soft_wrap=True)


def _print_view(console: Console, history: History, *, full: bool) -> None:
    for message in history.messages:
        _print_message(console, "", message, full=full)
    report = history.report
    console.print(
        f"{len(history.messages):,} messages, {history.tokens:,} tokens; the whole log has {report.tokens_before:,}. "
        f"{len(report.stubbed):,} results are stubs, {report.left_out_turns:,} turns are left out.",
        style="dim",
    )


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
