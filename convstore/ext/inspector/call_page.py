"""Load the data that all tabs of a model call share: the view that the model got, its size, and the calls near it.

For an answer with a stamp it is exactly the view that the message answers. For any other message it is the view
directly after it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from shlex import quote
from typing import Any

from langchain_core.messages import message_to_dict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from convstore import Conversation
from convstore.edges import with_children
from convstore.exceptions import InvalidInputError
from convstore.ext.inspector.comparison import PARTS, AlignedView
from convstore.ext.inspector.rendering import number_in, render, what_if_in
from convstore.ext.inspector.strip import strip_of
from convstore.ext.inspector.text import as_json
from convstore.ext.model_calls import (
    AROUND,
    UNEXPECTED,
    CachedPrefix,
    Calls,
    ModelCall,
    cached_prefix,
)
from convstore.ext.sums import GroupSum, bill_for, billed_for
from convstore.integration import host_of, row_of
from convstore.messages.usage import usage_in
from convstore.transfer.openai_lines import openai_message
from convstore.types import ConversationInfo, PastView, StoredMessage
from convstore.values.explanations import MATCHES
from convstore.values.policy import HistoryPolicy
from convstore.values.stamps import ViewStamp, changed_options
from convstore.values.usage import Prices


async def moment_of(request: Request, chat: Conversation) -> StoredMessage | None:
    """Return the message whose ordinal is ``at=`` in the address; None without it. HTTPException if it is invalid."""
    ordinal = number_in(request, "at")
    return None if ordinal is None else await message_at(chat, ordinal)


async def message_at(chat: Conversation, ordinal: int, *, full: bool = False) -> StoredMessage:
    """Return the message with an ordinal, even if it is rewound; HTTPException if it does not exist."""
    after = max(0, ordinal - 1)
    found = await chat.list_messages(after=after, limit=1, full=full, rewound=True)
    if not found or found[0].ordinal != ordinal:
        raise HTTPException(404)
    return found[0]


async def calls_of(request: Request, chat: Conversation) -> Calls:
    """Return the calls near the message ``at=`` of the address, else near the end; HTTPException if it is missing."""
    at = number_in(request, "at")
    near = await chat.list_messages(around=at, limit=AROUND, rewound=True)
    moment = next((message for message in near if message.ordinal == at), None)
    if at is not None and moment is None:
        raise HTTPException(404)
    calls = Calls(near, moment)
    await calls.compare_views(chat)
    return calls


async def load_call(
    request: Request, chat: Conversation, calls: Calls, *, before: int | None = None
) -> AlignedView:
    """Load the view of the selected message, else of the next call; see `load_view`."""
    near = () if calls.moment else calls.near
    view = await load_view(request, chat, calls.moment, before=before, near=near)
    if calls.moment is None:
        _set_next_stamp(request, calls, view)
    return view


def _set_next_stamp(request: Request, calls: Calls, upcoming: AlignedView) -> None:
    """Set the stamp of the next call's view, so that it can be compared; not if the address has another policy."""
    if not what_if_in(request):
        calls.next_stamp = upcoming.history.stamp


async def load_view(
    request: Request,
    chat: Conversation,
    stored: StoredMessage | ModelCall | None = None,
    *,
    before: int | None = None,
    near: Sequence[StoredMessage] = (),
) -> AlignedView:
    """Load the view of a message, or of the next call, with the reasons that begin before an ordinal.

    `near` may have the last messages of the log. Their stamps save a search for the newest policy, which reads whole
    turns.
    """
    stamp = stored.stamp if stored else None
    policy, origin = await _policy_for(request, chat, stamp, near)
    if options := what_if_in(request):
        usual = stamp.history_policy if stamp else policy or chat.store.policy
        policy = _changed(usual, options)
        origin = "asked for here"
    at = stamp or (stored.ordinal if stored else None)
    counter = chat.store.token_counter
    reading = _view_at(chat, at, policy, before)
    if stored is None:
        history, row = await asyncio.gather(reading, row_of(chat))
        return AlignedView(history, counter, origin=origin, end=row.end)
    answer = stored.ordinal if stamp else 0
    return AlignedView(await reading, counter, origin=origin, answer=answer)


async def _view_at(
    chat: Conversation, at: ViewStamp | int | None, policy: HistoryPolicy | None, before: int | None
) -> PastView:
    """Load a view with all its reasons; if there are too many, with those that begin before an ordinal."""
    first = 1 if before == 1 else None
    history = await chat.view_at(at, policy=policy, reasons_before=first)
    earliest = history.report.reasons_before
    if before is None or before == 1 or earliest is None:
        return history
    return await chat.view_at(at, policy=policy, reasons_before=before)


async def _policy_for(
    request: Request,
    chat: Conversation,
    stamp: ViewStamp | None,
    near: Sequence[StoredMessage],
) -> tuple[HistoryPolicy | None, str]:
    """Return the policy of a view and its origin in words; None for the policy of the stamp or of the store."""
    if stamp is not None:
        return None, "that of the call"
    if request.state.policy is not None:
        return request.state.policy, "chosen for these pages"
    policy = _newest_policy(near) or await chat.last_policy()
    return policy, "as in the last call" if policy else "of the store, as no call has a stamp"


def _newest_policy(near: Sequence[StoredMessage]) -> HistoryPolicy | None:
    """Return the policy of the newest stamp that this version can read."""
    for message in reversed(near):
        with suppress(InvalidInputError):
            if message.stamp:
                return message.stamp.history_policy
    return None


def _changed(policy: HistoryPolicy, options: Mapping[str, str]) -> HistoryPolicy:
    """Return a policy with other options, from the texts of a form; InvalidInputError if they are not valid.

    >>> str(_changed(HistoryPolicy(max_turns=3), {"max_tokens": "", "stub_tools": "never"}))
    'max_tokens=None,max_turns=3,stub_tools=never'
    """
    values: dict[str, Any] = {
        name: int(text) if text.isascii() and text.isdigit() else text or None
        for name, text in options.items()
    }
    return replace(policy, **values)


async def titled_info(chat: Conversation) -> ConversationInfo:
    """Return information about a conversation; if it has no title, the title is its first question."""
    [info] = await host_of(chat.store).titled([await chat.info()])
    return info


async def render_call(
    request: Request,
    chat: Conversation,
    tab: str,
    calls: Calls,
    view: AlignedView,
    *,
    before: AlignedView | None = None,
    **more: Any,
) -> Response:
    """Return the page of a tab, with the header that all tabs share; pass `before` if that view is loaded already."""
    info = await titled_info(chat)
    children = [member async for member in with_children(chat.store, info)][1:]
    history = view.history
    moment = calls.moment
    is_what_if = bool(what_if_in(request))
    policy = None if _has_own_policy(moment, is_what_if=is_what_if) else view.policy
    full = history.report.tokens_before or info.tokens
    upcoming = await _upcoming(request, chat, calls, view)
    before, kept = await _compared(request, chat, calls, view, before)
    cut = "" if is_what_if else kept.cause
    return render(
        f"{tab}.html",
        request,
        tab=tab,
        as_python=_as_python(info.conversation_id, moment, policy),
        as_command=_as_command(info.conversation_id, moment, policy),
        what_if=is_what_if,
        tab_path="" if tab == "conversation" else f"/{tab}",
        info=info,
        metadata=as_json(info.metadata),
        children=children,
        usage=_usage_of(request.state.prices, info, children),
        calls=calls,
        strip=strip_of(calls, view, upcoming, cut),
        cut=cut,
        broken_last=None if is_what_if else calls.last_cut,
        billed=usage_in(moment.message) if moment else None,
        prices=request.state.prices,
        is_expected=cut not in UNEXPECTED,
        held=sum(view.sizes[: kept.messages]),
        is_known=_is_known(before, view),
        before=before,
        view=view,
        match=MATCHES.get(history.difference or history.match, ""),
        parts_of={title: (key, view.parts()[key]) for key, title in PARTS.items()},
        full=full,
        saved=max(0, full - history.tokens) / max(1, full),
        **more,
    )


def _usage_of(
    prices: Prices, info: ConversationInfo, children: Sequence[ConversationInfo]
) -> list[dict[str, Any]]:
    """Return the billed tokens of a conversation by model, in total, and those of its sub-agents (in the total)."""
    family = [info, *children]
    rows: list[GroupSum] = []
    for name, usage in billed_for(family).items():
        rows.append(GroupSum(name))
        rows[-1].add_billed(usage, prices.get(name))
    if len(rows) > 1:
        rows.append(bill_for("all", family, prices))
    rows.append(bill_for("sub-agents, of all", children, prices))
    return [group.document() for group in rows if any(group.usage)]


def _has_own_policy(moment: StoredMessage | None, *, is_what_if: bool) -> bool:
    """Return True if the view is the one that the model got, whose stamp has its policy."""
    return moment is not None and moment.stamp is not None and not is_what_if


async def _compared(
    request: Request,
    chat: Conversation,
    calls: Calls,
    view: AlignedView,
    before: AlignedView | None,
) -> tuple[AlignedView | None, CachedPrefix]:
    """Return the view of the call before, and the prefix of the view that a prompt cache can reuse.

    If this version does not know the policy of the call before, only the stamps are compared. The cause is not known
    without stamps.
    """
    call = calls.current
    earlier = call.before
    cut = "" if what_if_in(request) else call.cut_by
    if before is None and earlier and earlier.stamp and call.stamp:
        with suppress(InvalidInputError):
            before = await load_view(request, chat, earlier, before=1)
    if before is None:
        return None, CachedPrefix(0, cut)
    return before, cached_prefix(before.history, view.history, cut)


async def _upcoming(
    request: Request, chat: Conversation, calls: Calls, view: AlignedView
) -> AlignedView | None:
    """Return the view that the next call would get; None if the strip does not show the next call."""
    if calls.moment is None:
        return view
    if not calls.has_end:
        return None
    upcoming = await load_view(request, chat, before=1, near=calls.near)
    _set_next_stamp(request, calls, upcoming)
    return upcoming


def _is_known(before: AlignedView | None, view: AlignedView) -> bool:
    """Return False if the model got another view in this call or in the one before, so that they cannot be compared."""
    views = (view, before) if before else (view,)
    return all(each.history.match != "differs" for each in views)


def _as_command(
    conversation_id: str, moment: StoredMessage | None, policy: HistoryPolicy | None
) -> str:
    """Return the command that prints the view."""
    command = f"convstore show {conversation_id} "
    command += f"--at {moment.ordinal}" if moment else "--view"
    if policy:
        command += f" --policy {quote(str(policy))}"
    return command


def _as_python(
    conversation_id: str, moment: StoredMessage | None, policy: HistoryPolicy | None
) -> str:
    """Return the lines of Python that load the view."""
    lines = [f'chat = await store.find_conversation("{conversation_id}")']
    at = str(moment.ordinal) if moment else "None"
    if moment and moment.stamp:
        lines.append(
            f"[answer] = await chat.list_messages(after={moment.ordinal - 1}, limit=1, "
            "rewound=True)"
        )
        at = "answer.stamp"
    options = ""
    if policy:
        options = ", ".join(f"{name}={value!r}" for name, value in changed_options(policy).items())
    lines.append(
        f"view = await chat.view_at({at}{f', policy=HistoryPolicy({options})' if policy else ''})"
    )
    return "\n".join(lines)


async def export_page(request: Request, chat: Conversation) -> Response:
    """Return the messages of the view as a JSON list, in LangChain's form or OpenAI's."""
    form = request.query_params.get("form", "langchain")
    if form not in ("langchain", "openai"):
        raise HTTPException(404)
    view = await load_view(request, chat, await moment_of(request, chat))
    values: list[Any] = [message_to_dict(message) for message in view.history.messages]
    if form == "openai":
        values = [openai_message(message, bare=True)[0] for message in view.history.messages]
    text = json.dumps(values, indent=1, default=repr)  # in ASCII, so that lone surrogates survive
    headers = {"Content-Disposition": f'attachment; filename="view-{form}.json"'}
    return Response(text, media_type="application/json", headers=headers)
