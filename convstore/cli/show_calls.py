"""``convstore show --why``: the model calls, and the cause that broke the prompt cache of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.text import Text

from convstore.cli.list_ import name_of
from convstore.cli.output import Answer, new_table, plain
from convstore.exceptions import InvalidInputError
from convstore.values.plain import counted, money

if TYPE_CHECKING:
    from convstore import Conversation
    from convstore.ext.model_calls import ModelCall
    from convstore.types import PastView
    from convstore.values.list_rows import ListRow
    from convstore.values.stamps import ViewStamp

_MOST_MESSAGES = 1_000
_KEPT_VIEWS = 4
"""Number of cached views: each is compared with that of the call before, or of the last call of the same model."""


async def calls_answer(chat: Conversation, *, limit: int, before: int | None) -> Answer:
    """Answer with the model calls of the newest messages, and the next call."""
    from convstore.ext.model_calls import AROUND, Calls  # noqa: PLC0415 - loads langchain
    from convstore.ext.sums import row_documents  # noqa: PLC0415 - as above
    from convstore.integration import row_of  # noqa: PLC0415 - as above

    # including calls before the first shown one, to compare it with
    most = min(limit + AROUND, _MOST_MESSAGES)
    near = await chat.list_messages(limit=most, before=before, rewound=True)
    calls = Calls(near, None)
    first = near[-limit:][0].ordinal if near else 0
    shown = [call for call in calls.all if call.ordinal >= first]
    is_prompt_known = any(call.stamp and call.stamp.beside.digest for call in shown)
    if before is None:
        view = await chat.view_at(None, policy=await chat.last_policy())
        calls.next_stamp = view.stamp
        shown.append(calls.upcoming)
    views = _Views(chat)
    has_first = calls.has_beginning
    calls_shown = [await _row(views, call, has_first=has_first) for call in shown]
    row = await row_of(chat)
    [conversation] = await row_documents(chat.store, [row], {})

    def document() -> dict[str, Any]:
        return {
            "conversation": conversation,
            "is_prompt_known": is_prompt_known,
            "calls": [call._asdict() for call in calls_shown],
        }

    printed = partial(
        _print_calls, conversation=row, rows=calls_shown, is_prompt_known=is_prompt_known
    )
    return Answer(document, printed, is_long=True)


class _CallRow(NamedTuple):
    """A model call in the table and in JSON.

    Attributes:
        ordinal: Ordinal of its answer; None for the next call.
        tokens: The size of the view that the model got; None without a stamp.
        cache: "held", "broken", "first call", or "not known".
        cause: The cause that broke the cache; "" if it did not break.
        held: The size of the part that the cache could reuse; None if it is not known.
        is_rewound: True if its answer was rewound or replaced later.
    """

    ordinal: int | None
    tokens: int | None
    cache: str
    cause: str
    held: int | None = None
    is_rewound: bool = False


class _Views:
    """Loads the views of calls in order, and caches the last ones."""

    def __init__(self, chat: Conversation) -> None:
        self._chat = chat
        self._kept: dict[str, PastView] = {}
        self.counter = chat.store.token_counter

    async def load(self, stamp: ViewStamp) -> PastView:
        """Return the view of a stamp; InvalidInputError if this version does not support the stamp's policy."""
        key = f"{stamp.entry}/{stamp.digest}/{stamp.policy}"
        view = self._kept.pop(key, None) or await self._chat.view_at(stamp)
        self._kept[key] = view
        if len(self._kept) > _KEPT_VIEWS:
            del self._kept[next(iter(self._kept))]
        return view


async def _row(views: _Views, call: ModelCall, *, has_first: bool) -> _CallRow:
    """Return the row of a call, with the cause that broke its cache and the size that the cache could reuse.

    With `has_first`, a call without an earlier one to compare it with is the first call of the log.
    """
    from convstore.values.stamps import WHOLE_CACHE_LOST  # noqa: PLC0415 - loads pydantic

    ordinal = call.ordinal if call.message_id else None
    row = _CallRow(ordinal, call.tokens, "not known", call.cut_by, is_rewound=call.is_rewound)
    if call.before is None and has_first:
        return row._replace(cache="first call")
    earlier = call.before.stamp if call.before else None
    if earlier is None or call.stamp is None:
        return row
    row = row._replace(cache="broken" if call.cut_by else "held")
    if call.cut_by not in WHOLE_CACHE_LOST:
        with suppress(InvalidInputError):  # this version does not support the policy
            return _with_views(row, await views.load(earlier), await views.load(call.stamp), views)
    return row


def _with_views(row: _CallRow, before: PastView, after: PastView, views: _Views) -> _CallRow:
    """Return the row with the cause and the reused size from the views, if they are those that the model got."""
    from convstore.ext.model_calls import cached_prefix  # noqa: PLC0415 - loads langchain
    from convstore.messages.tokens import count  # noqa: PLC0415 - as above

    if "differs" in (before.match, after.match):
        return row
    kept = cached_prefix(before, after, row.cause)
    cache = "broken" if kept.cause else "held"
    held = sum(count(views.counter, message) for message in after.messages[: kept.messages])
    return row._replace(cache=cache, cause=kept.cause, held=held)


def _print_calls(
    console: Console, *, conversation: ListRow, rows: Sequence[_CallRow], is_prompt_known: bool
) -> None:
    from convstore.values.explanations import PROMPT_UNKNOWN  # noqa: PLC0415 - loads pydantic

    print_totals(console, conversation)
    table = new_table("call", "tokens", "held", "prompt cache", numbers=("tokens", "held"))
    for row in rows:
        name = f"for message {row.ordinal:,}" if row.ordinal else "the next one"
        size = "-" if row.tokens is None else f"{row.tokens:,}"
        held = "" if row.held is None else f"{row.held:,}"
        cache = f"{row.cache}: {row.cause}" if row.cause else row.cache
        if row.is_rewound:
            cache = f"rewound or replaced since; {cache}"
        table.add_row(name, size, held, cache)
    if not is_prompt_known:
        console.print(f"{PROMPT_UNKNOWN}\n", soft_wrap=True)
    console.print(table)


def print_totals(console: Console, row: ListRow) -> None:
    """Print title, scope, id, state, counts and dates of a conversation."""
    info = row.info
    if info.title:
        console.print(Text(plain(info.title), style="bold"), soft_wrap=True)
    console.print(Text(f"{name_of(info.scope)}  {info.conversation_id}"), soft_wrap=True)
    if state := row.state_line(datetime.now(UTC)):
        console.print(Text(plain(state), style="yellow"), soft_wrap=True)
    began, ended = (
        f"{at:%Y-%m-%d %H:%M}" if at else "-" for at in (info.created_at, info.updated_at)
    )
    counts = (
        counted(info.message_count, "message"),
        counted(info.turns, "turn"),
        counted(info.tokens, "token"),
    )
    console.print(f"{', '.join(counts)}; {began} to {ended} UTC\n", soft_wrap=True)


def print_bill(console: Console, bill: Mapping[str, Any]) -> None:
    """Print the tokens that providers counted, and their cost if it is known; nothing without counts."""
    if bill["input_tokens"] is None:
        return
    counts = {
        "input": bill["input_tokens"],
        "of it from the cache": bill["cache_read_tokens"],
        "to the cache": bill["cache_write_tokens"],
        "output": bill["output_tokens"],
    }
    parts = [f"{count:,} {name}" for name, count in counts.items() if count or "put" in name]
    if bill["cost"] is not None:
        parts.append(f"cost {money(bill['cost'])}")
        if without := bill["tokens_without_price"]:
            parts.append(f"{counted(without, 'token')} without a price")
    console.print(f"Billed: {', '.join(parts)}.\n", soft_wrap=True)
