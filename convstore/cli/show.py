"""``convstore show``: one conversation, what a model gets or got of it, or one source."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from convstore.cli.list_ import print_row
from convstore.cli.options import Json, Policy, Prefix, Uri, open_store, read_pairs, read_policy
from convstore.cli.output import Answer, answer, number_of, plain, short
from convstore.exceptions import InvalidInputError
from convstore.values.scope import PATH

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

    from convstore import Conversation, ConversationStore, Source, StoredMessage
    from convstore.types import ConversationInfo, PastView, ViewReason, ViewStamp
    from convstore.values.policy import HistoryPolicy


_SHOWN = 600
_STYLES = {"human": "bold cyan", "ai": "bold green", "tool": "bold yellow"}
_MATCHES = {
    "exact": "Exactly what the model got.",
    "rebuilt": "The view directly after the message; no stamp says what the model got.",
    "differs": "Not what the model got; the difference: ",
}


def show_command(
    scope: Annotated[list[str], typer.Argument(metavar="SCOPE", help="KEY=VALUE, for each scope key.")],
    *,
    uri: Uri,
    collection_prefix: Prefix = "",
    view: Annotated[bool, typer.Option("--view", help="What the model gets.")] = False,
    at: Annotated[str | None, typer.Option(help="What it got for this message.")] = None,
    policy: Policy = None,
    full: Annotated[bool, typer.Option("--full", help="Texts and tool results whole.")] = False,
    source: Annotated[int | None, typer.Option(min=1, help="The source with this number.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Messages of the log, the newest.")] = 50,
    before: Annotated[int | None, typer.Option(min=1, help="Only messages before this number.")] = None,
    as_document: Json = False,
) -> None:
    """Show one conversation.

    \b
    SCOPE names it, as `convstore list` prints it: user_id=ada thread_id=orcas.
    Old tool results are shown as stubs, and long texts by their beginning.

    \b
    --view      what the model gets at the next call, under the policy of the
                newest answer with a stamp, else the default one
    --at 16     what it got for message 16: exactly, if the message was appended
                with the stamp of its view; else the view directly after it.
                Takes a number, the id of a message, or a stamp as JSON.
    --policy max_tokens=8000,stub_tools=never
                the view under this policy; JSON works, too
    --full      texts and tool results whole
    --source 7  the source with this number, whole

    \b
    Examples:
      convstore show user_id=ada thread_id=orcas --uri mongodb://…
      convstore show user_id=ada thread_id=orcas --uri mongodb://… --view
      convstore show user_id=ada thread_id=orcas --uri mongodb://… --at 16
      convstore show user_id=ada thread_id=orcas --uri mongodb://… --json --full
    """
    if view + (at is not None) + (source is not None) > 1:
        raise typer.BadParameter("give only one of --view, --at and --source")
    if policy and not view and at is None:
        raise typer.BadParameter("--policy is for --view and --at")
    chosen, limits = read_pairs("SCOPE", scope), read_policy(policy)

    async def work() -> Answer:
        async with open_store(uri, [key for key in chosen if key != PATH], collection_prefix) as store:
            chat = store.conversation(**chosen)
            if (await chat.info()).created_at is None:
                raise InvalidInputError(await _reason_not_found(store, chosen))
            if source is not None:
                text = await _read_source(chat, source)
                return Answer(text.model_dump, partial(_print_source, source=text), is_long=True)
            if view or at is not None:
                past = await _read_view(chat, at, limits)
                is_past = at is not None and limits is None
                printed = partial(_print_view, view=past, full=full, is_past=is_past)
                return Answer(past.model_dump, printed, is_long=True)
            messages = await chat.list_messages(limit=limit, before=before, full=full)
            children = await chat.children()
            printed = partial(_print_log, messages=messages, children=children, full=full)
            return Answer(partial(_log_document, messages, children), printed, is_long=True)

    answer(work(), as_document=as_document)


def _log_document(messages: Sequence[StoredMessage], children: Sequence[ConversationInfo]) -> dict[str, Any]:
    found = {"messages": [one.model_dump() for one in messages]}
    return found | ({"children": [one.model_dump() for one in children]} if children else {})


async def _reason_not_found(store: ConversationStore, chosen: dict[str, str]) -> str:
    chosen = {key: value for key, value in chosen.items() if key != PATH}
    name = shlex.join(f"{key}={value}" for key, value in chosen.items())
    if (await store.list_conversations(limit=1, everything=not chosen, **chosen)).conversations:
        values = shlex.join(part for key, value in chosen.items() for part in ("--scope", f"{key}={value}"))
        return f"{name} is not a whole scope; `convstore list {values}` lists the conversations that have it"
    return f"no conversation has the scope {name}; `convstore list` lists all with theirs"


async def _read_view(chat: Conversation, at: str | None, policy: HistoryPolicy | None) -> PastView:
    """Return a view, by default under the policy of its stamp, else of the newest stamp, else of the store."""
    moment = None if at is None else await _moment(chat, at)
    if policy is None and (moment is None or isinstance(moment, str | int)):
        policy = await chat.last_policy()
    return await chat.view_at(moment, policy=policy)


async def _moment(chat: Conversation, text: str) -> ViewStamp | str | int:
    """Return the stamp that a text is, or that the message has which it names; else the message.

    Raises:
        InvalidInputError: The text begins like a stamp but is invalid, or the log ends before the message.
        UnknownMessageError: There is no such message.
    """
    from convstore.types import ViewStamp  # noqa: PLC0415 - loads pydantic

    if text.startswith("{"):
        try:
            return ViewStamp.model_validate_json(text)
        except ValueError as error:
            raise InvalidInputError(f"--at is no stamp, such as the field `stamp` of `show --json`: {error}") from error
    ordinal = int(text) if text.isdecimal() else 0
    if not ordinal:
        ordinal = next((one.ordinal for one in await chat.get_tool_messages([text])), 0)
    found = await chat.list_messages(after=ordinal - 1, limit=1, rewound=True) if 0 < ordinal < 2**53 else []
    if ordinal and not found:
        raise InvalidInputError(f"the log ends before message {ordinal}")
    return next((one.stamp for one in found if one.stamp and one.ordinal == ordinal), None) or ordinal or text


async def _read_source(chat: Conversation, number: int) -> Source:
    """Return one source with its whole text; InvalidInputError if the conversation has none with the number."""
    from convstore.integration import with_source  # noqa: PLC0415 - loads the database driver

    if not (found := await with_source(chat, number)):
        raise InvalidInputError(f"the conversation has no source {number}")
    [record] = await found[0].get_tool_messages([found[1]])
    return next(source for source in record.sources if source.source_id == number)


def _print_source(console: Console, source: Source) -> None:
    console.print(Text(plain(f"[{source.source_id}] {source.title}"), style="bold"))
    for name, value in {"url": source.url, "message": source.tool_message_id, **source.metadata}.items():
        console.print(Text(short(f"{name}: {value}", maximum=_SHOWN), style="dim"), soft_wrap=True)
    console.print(f"\n{plain(source.content, lines=True)}", soft_wrap=True)


def _print_view(console: Console, view: PastView, *, full: bool, is_past: bool) -> None:
    for message in view.messages:
        _print_message(console, "", message, full=full)
    report = view.report
    if is_past:
        console.print(_MATCHES[view.match] + view.difference, style="bold")
    for reason in report.reasons:
        console.print(f"{_range(reason):>15}  {_why(reason)}", style="dim")
    console.print(
        f"{number_of(len(view.messages), 'message')}, {number_of(view.tokens, 'token')}; "
        f"the whole log has {report.tokens_before:,}. "
        f"{number_of(len(report.stubbed), 'stub')}, {number_of(report.left_out_turns, 'turn')} left out. "
        f"Policy: {plain(str(view.policy))}.",
        style="dim",
    )


def _range(reason: ViewReason) -> str:
    return f"{reason.first:,}" if reason.first == reason.last else f"{reason.first:,} to {reason.last:,}"


def _why(reason: ViewReason) -> str:
    if reason.summary:
        return f"in summary {reason.summary}"
    return f"{reason.state.replace('_', ' ')}{f' because of {reason.limit}' if reason.limit else ''}"


def _print_log(
    console: Console, messages: Sequence[StoredMessage], *, children: Sequence[ConversationInfo], full: bool
) -> None:
    for stored in messages:
        _print_message(console, f"{stored.ordinal}  {stored.created_at:%Y-%m-%d %H:%M}", stored.message, full=full)
        for name, value in stored.annotations.items():
            console.print(Text(short(f"{name}: {value}", maximum=_SHOWN), style="cyan"), soft_wrap=True)
    for info in children:
        print_row(console, info)


def _print_message(console: Console, position: str, message: BaseMessage, *, full: bool) -> None:
    """Print a message: a heading with its position, type, tool and id, then its text and calls."""
    from convstore.messages.text import text_of  # noqa: PLC0415 - loaded with the message
    from convstore.sources.detection import has_failed  # noqa: PLC0415 - likewise

    words = (position, message.type, message.name or "", message.id or "", "failed" if has_failed(message) else "")
    console.print(Text(plain("  ".join(filter(None, words))), style=_STYLES.get(message.type, "bold")), soft_wrap=True)
    for text in (text_of(message.content), *_calls(message)):
        if text:
            shown = text if full or len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text):,} characters; --full)"
            console.print(plain(shown, lines=True), soft_wrap=full)
    console.print()


def _calls(message: BaseMessage) -> Iterator[str]:
    for call in getattr(message, "tool_calls", ()):
        yield f"→ {call['name']}({json.dumps(call['args'], ensure_ascii=False, default=repr)})"
