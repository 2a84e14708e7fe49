"""``convstore show``: print a conversation, the view that a model gets or got, or one source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from convstore.cli.list_ import name_of
from convstore.cli.named import opened_conversation
from convstore.cli.options import (
    Policy,
    PriceOptions,
    StoreTarget,
    on_database,
    read_policy,
    read_prices,
    wrong_usage,
)
from convstore.cli.output import Answer, plain, short
from convstore.cli.show_calls import calls_answer, print_bill, print_totals
from convstore.exceptions import InvalidInputError
from convstore.values.plain import counted, role_label
from convstore.values.scope import check_id, check_number

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

    from convstore import Conversation, Source, StoredMessage
    from convstore.types import ConversationInfo, PastView, StoredItem, ViewReason, ViewStamp
    from convstore.values.list_rows import ListRow
    from convstore.values.policy import HistoryPolicy
    from convstore.values.usage import Prices


_SHOWN = 600
_NONE: Mapping[str, Any] = MappingProxyType({})
_STYLES = {"human": "bold cyan", "ai": "bold green", "tool": "bold yellow"}


@on_database
async def show_command(
    target: StoreTarget,
    *,
    conversation: Annotated[list[str], typer.Argument(metavar="CONVERSATION", hidden=True)],
    view: Annotated[bool, typer.Option("--view", help="What the model gets.")] = False,
    at: Annotated[
        str | None, typer.Option(metavar="MESSAGE", help="What it got for this message.")
    ] = None,
    policy: Policy = None,
    full: Annotated[
        bool, typer.Option("--full", help="Texts and results whole, lines unwrapped.")
    ] = False,
    price: PriceOptions = None,
    why: Annotated[
        bool, typer.Option("--why", help="What broke the prompt cache of each call.")
    ] = False,
    source: Annotated[int | None, typer.Option(min=1, help="The source with this number.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000, help="Messages of the log, the newest.")
    ] = 50,
    before: Annotated[
        int | None, typer.Option(min=1, help="Only messages before this one.")
    ] = None,
) -> Answer:
    """Show one conversation: its totals and state, then its messages.

    \b
    CONVERSATION is
      - the number of its row in `convstore list`, with the same --scope;
      - its id;
      - its scope, a value for each key: user_id=ada thread_id=orcas.
    Old tool results are shown as stubs, and long texts are cut. Billed tokens,
    and with --price their cost, include sub-agents.

    \b
    --view      the view that the model gets at the next call, under the policy
                of the newest answer with a stamp, else the default policy
    --at 16     the view that it got for message 16: exactly, if the message was
                appended with the stamp of its view; else the view directly after
                it. Takes a number, the id of a message, or a stamp as JSON.
    --why       the size of each model call, and the cause that broke its prompt
                cache: for the answers in these messages, and the next call

    \b
    Examples:
      convstore show 1
      convstore show user_id=ada thread_id=orcas --view
      convstore show 4213ea0c1214ffa97aacd24d --at 16
      convstore show 1 --scope user_id=ada --json --full
    """
    views = view + (at is not None) + (source is not None) + why
    if views > 1:
        raise typer.BadParameter("give only one of --view, --at, --why and --source")
    if views and price:
        raise typer.BadParameter("--price is for the whole conversation")
    if policy and not view and at is None:
        raise typer.BadParameter("--policy is for --view and --at")
    _check_values(at, source=source, before=before)
    limits = read_policy(policy)
    prices = read_prices(price)
    async with opened_conversation(target, conversation) as chat:
        if source is not None:
            return await _source_answer(chat, source, full=full)
        if view or at is not None:
            return await _view_answer(chat, at, limits, full=full)
        if why:
            return await calls_answer(chat, limit=limit, before=before)
        return await _log_answer(chat, prices, limit=limit, before=before, full=full)


def _check_values(at: str | None, *, source: int | None, before: int | None) -> None:
    """Raise a typer.BadParameter for values that messages or sources cannot have."""
    with wrong_usage():
        if at is not None and not at.startswith("{"):
            check_id(at, name="--at")
        if source is not None:
            check_number(source, name="--source", minimum=1, maximum=2**53 - 1)
        if before is not None:
            check_number(before, name="--before", minimum=1, maximum=2**53)


async def _source_answer(chat: Conversation, number: int, *, full: bool) -> Answer:
    """Answer with a source and its whole text; InvalidInputError if the conversation does not have the source."""
    from convstore.edges import find_source  # noqa: PLC0415 - loads the database driver

    if not (found := await find_source(chat, number)):
        raise InvalidInputError(
            f"there is no source {number}; `convstore show` names them in stubs"
        )
    *_, source = found
    return Answer(source.model_dump, partial(_print_source, source=source, full=full), is_long=True)


async def _view_answer(
    chat: Conversation, at: str | None, limits: HistoryPolicy | None, *, full: bool
) -> Answer:
    """Answer with a view. The default policy is that of its stamp, else of the newest stamp, else of the store."""
    from convstore.integration import row_of  # noqa: PLC0415 - loads the database driver

    moment = None if at is None else await _moment(chat, at)
    has_policy = limits or not (moment is None or isinstance(moment, str | int))
    view = await chat.view_at(moment, policy=limits if has_policy else await chat.last_policy())
    is_past = at is not None and limits is None
    stamp = None if moment is None or isinstance(moment, str | int) else moment
    shown = partial(
        _print_view, row=await row_of(chat), view=view, full=full, is_past=is_past, stamp=stamp
    )
    return Answer(view.model_dump, shown, is_long=True)


async def _log_answer(
    chat: Conversation, prices: Prices, *, limit: int, before: int | None, full: bool
) -> Answer:
    from convstore.edges import with_children  # noqa: PLC0415 - loads the database driver
    from convstore.ext.sums import bill_for, row_documents  # noqa: PLC0415 - as above
    from convstore.integration import host_of, row_of  # noqa: PLC0415 - as above

    messages = await chat.list_messages(limit=limit, before=before, full=full)
    first = messages[0].ordinal if len(messages) == limit else 0
    items = [item async for item in chat.items(after=first, before=before)]
    row = await row_of(chat)
    family = [member async for member in with_children(chat.store, row.info)]
    children = family[1:]
    bill = bill_for("", family, prices).bill()
    child_rows = await host_of(chat.store).rows(children) if children else []
    conversation, *child_documents = await row_documents(chat.store, [row, *child_rows], prices)

    def document() -> dict[str, Any]:
        found = {
            "conversation": conversation,
            "billed": bill,
            "messages": [message.model_dump() for message in messages],
        }
        lists = {"items": [item.model_dump() for item in items], "children": child_documents}
        return found | {name: values for name, values in lists.items() if values}

    shown = partial(
        _print_log,
        row=row,
        bill=bill,
        messages=messages,
        items=items,
        children=children,
        full=full,
    )
    return Answer(document, shown, is_long=True)


async def _moment(chat: Conversation, text: str) -> ViewStamp | str | int:
    """Parse the value of ``--at``: a stamp, or a message by its ordinal or id.

    Returns:
        The given stamp or the stamp of the message; without a stamp the ordinal of the message, or an unknown id.

    Raises:
        typer.BadParameter: The text begins like a stamp but is invalid.
        InvalidInputError: The log ends before the message.
    """
    if text.startswith("{"):
        return _read_stamp(text)
    ordinal = int(text) if text.isdecimal() else 0
    if not ordinal:
        records = await chat.get_tool_messages([text])
        if not records:
            return text
        ordinal = records[0].ordinal
    found: list[StoredMessage] = []
    if ordinal < 2**53:
        found = await chat.list_messages(after=ordinal - 1, limit=1, rewound=True)
    if not found:
        newest = await chat.list_messages(limit=1, rewound=True)
        last = newest[0].ordinal if newest else 0
        raise InvalidInputError(f"the conversation has {counted(last, 'message')}, not {ordinal}")
    [message] = found
    if message.stamp and message.ordinal == ordinal:
        return message.stamp
    return ordinal


def _read_stamp(text: str) -> ViewStamp:
    from pydantic import ValidationError  # noqa: PLC0415 - loads slowly

    from convstore.types import ViewStamp  # noqa: PLC0415 - loads pydantic
    from convstore.values.json_form import first_problem  # noqa: PLC0415 - loads pydantic

    try:
        return ViewStamp.model_validate_json(text)
    except ValidationError as error:
        raise typer.BadParameter(
            "--at is not a stamp, such as the field `stamp` of `show --json`: "
            f"{first_problem(error)}"
        ) from error


def _print_source(console: Console, source: Source, *, full: bool) -> None:
    console.print(Text(plain(f"[{source.source_id}] {source.title}"), style="bold"))
    for name, value in {
        "url": source.url,
        "message": source.tool_message_id,
        **source.metadata,
    }.items():
        console.print(Text(short(f"{name}: {value}", maximum=_SHOWN), style="dim"), soft_wrap=True)
    console.print(f"\n{plain(source.content, lines=True)}", soft_wrap=full)


def _print_view(
    console: Console,
    *,
    row: ListRow,
    view: PastView,
    full: bool,
    is_past: bool,
    stamp: ViewStamp | None = None,
) -> None:
    from convstore.sources.detection import has_failed  # noqa: PLC0415 - loaded with the messages
    from convstore.values.explanations import cause_of_stub  # noqa: PLC0415 - as above
    from convstore.wire.history import ids_in_progress  # noqa: PLC0415 - as above

    print_totals(console, row)
    report = view.report
    console.print(
        f"View: {counted(len(view.messages), 'message')}, {counted(view.tokens, 'token')}; "
        f"the log has {report.tokens_before:,}; {counted(len(report.stubbed), 'stub')}, "
        f"{counted(report.left_out_turns, 'turn')} left out.\nPolicy: {plain(str(view.policy))}.",
        soft_wrap=True,
    )
    if is_past:
        from convstore.values.explanations import MATCHES  # noqa: PLC0415 - loads pydantic

        console.print(MATCHES[view.difference or view.match], style="bold", soft_wrap=True)
    if stamp and stamp.beside.digest:
        prompt = counted(stamp.beside.prompt, "token")
        tools = counted(stamp.beside.tools, "token")
        text = f"a system prompt of {prompt} and tools of {tools}, digest {stamp.beside.digest}"
        console.print(f"Sent too, not stored: {text}.", soft_wrap=True)
    for reason in report.reasons:
        console.print(_why(reason), style="dim")
    console.print()
    current = ids_in_progress(view)
    for message in view.messages:
        cause = cause_of_stub(message.id not in current)
        failed = has_failed(message)
        _print_message(console, "", message, full=full, is_failed=failed, stub=f"stub, {cause}")


def _why(reason: ViewReason) -> str:
    from convstore.values.explanations import label_of  # noqa: PLC0415 - loaded with the view

    span = f"{reason.first:,}" + (f" to {reason.last:,}" if reason.last != reason.first else "")
    limit = ""
    if reason.limit and not reason.summary:
        limit = f" because of {reason.limit}"
    return f"{span:>15}  {label_of(reason)}{limit}"


def _print_log(
    console: Console,
    *,
    row: ListRow,
    bill: Mapping[str, Any],
    messages: Sequence[StoredMessage],
    items: Sequence[StoredItem],
    children: Sequence[ConversationInfo],
    full: bool,
) -> None:
    print_totals(console, row)
    print_bill(console, bill)
    if any(_is_stub(stored.message) for stored in messages):
        console.print("Old tool results are stubs; --full shows them whole.\n", style="dim")
    _print_items(console, (item for item in items if not item.after), full=full)
    for stored in messages:
        position = f"{stored.ordinal}  {stored.created_at:%Y-%m-%d %H:%M}"
        _print_message(
            console,
            position,
            stored.message,
            full=full,
            is_failed=stored.is_failed,
            annotations=stored.annotations,
        )
        _print_items(console, (item for item in items if item.after == stored.ordinal), full=full)
    for child in children:
        size = counted(child.message_count, "message"), counted(child.tokens, "token")
        console.print(f"↳ {name_of(child.scope)}\n  {', '.join(size)}", soft_wrap=True)


def _print_items(console: Console, items: Iterable[StoredItem], *, full: bool) -> None:
    for item in items:
        text = f"item  {item.kind}: {item.data}"
        console.print(
            Text(plain(text) if full else short(text, maximum=_SHOWN), style="magenta"),
            soft_wrap=True,
        )
        console.print()


def _print_message(
    console: Console,
    position: str,
    message: BaseMessage,
    *,
    full: bool,
    is_failed: bool = False,
    annotations: Mapping[str, Any] = _NONE,
    stub: str = "stub",
) -> None:
    """Print a message: a heading with its position, type, tool and id, then its text, calls and annotations.

    `stub` is the label for a stub.
    """
    words = [position, role_label(message.type), message.name, message.id]
    if is_failed:
        words.append("failed")
    if _is_stub(message):
        words.append(stub)
    heading = plain("  ".join(filter(None, words)))
    console.print(Text(heading, style=_STYLES.get(message.type, "bold")), soft_wrap=True)
    for text in (_text(message), *_calls(message)):
        if not text:
            continue
        shown = text
        if len(text) > _SHOWN and not full:
            shown = f"{text[:_SHOWN]}… ({len(text):,} characters; --full)"
        console.print(plain(shown, lines=True), soft_wrap=full)
    for name, value in annotations.items():
        console.print(Text(short(f"{name}: {value}", maximum=_SHOWN), style="cyan"), soft_wrap=True)
    console.print()


def _is_stub(message: BaseMessage) -> bool:
    from convstore.sources.stub import is_stub  # noqa: PLC0415 - loaded with the message

    return message.type == "tool" and is_stub(str(message.text), message.id)


def _text(message: BaseMessage) -> str:
    """Return the text of a message; if its content has other blocks, the whole content as a text."""
    from convstore.messages.text import text_of  # noqa: PLC0415 - loaded with the message

    blocks = message.content if isinstance(message.content, list) else []
    if all(isinstance(block, str) or block.get("type") == "text" for block in blocks):
        return str(message.text)
    return text_of(message.content)


def _calls(message: BaseMessage) -> Iterator[str]:
    from convstore.messages.text import call_text  # noqa: PLC0415 - loaded with the message

    for call in getattr(message, "tool_calls", ()):
        yield f"→ {call_text(call)}"
    for invalid in getattr(message, "invalid_tool_calls", ()):
        yield f"→ {invalid.get('name')} with invalid arguments: {invalid.get('args') or 'none'}"
