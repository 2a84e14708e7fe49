"""Everything that reads a conversation: what one of them cannot read must not be stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.ext.ui import ui_messages
from convstore.integration import fit_for
from convstore.transfer import export_conversations
from convstore.transfer.records import Problem
from convstore.types import ProviderRules

_PROVIDERS = ("anthropic", "bedrock_converse", "google_genai", "mistralai", "openai")
_POLICIES = (
    HistoryPolicy(),
    HistoryPolicy(max_tokens=600, shorten_over=20, provider="anthropic"),
    HistoryPolicy(max_tokens=None, stub_tools="never", media="never", view="conversation"),
)


async def read_everything(store: ConversationStore, chat: Conversation) -> None:
    """Call all readers of a conversation, and whatever writes after what is stored; any error is raised."""
    for policy in _POLICIES:
        await _request(chat, policy)
    messages = [message async for message in chat.messages(rewound=True)]
    for provider in _PROVIDERS:
        fit_for(messages, ProviderRules.named(provider))
    scope: Any = chat.scope
    ids = [str(message.id) for message in messages]
    async with aclosing(chat.turns()) as turns:
        found = [turn async for turn in turns]
    await chat.get_turn(found[-1].turn_id)
    async with aclosing(chat.watch(limit=1)) as updates:
        await anext(updates)
    readers: list[Callable[[], Awaitable[Any]]] = [
        lambda: chat.list_messages(full=True),
        chat.outline,
        lambda: chat.search("question"),
        lambda: chat.get_tool_messages(ids),
        lambda: chat.retrieve_previous_sources_tool().ainvoke({"tool_message_ids": ids}),
        lambda: ui_messages(chat, system=True),
        lambda: ui_messages(chat, format="ag-ui", system=True),
        chat.info,
        lambda: store.stats(**scope),
    ]
    stamps = [outline.stamp for outline in await chat.outline() if outline.stamp]
    readers += [partial(chat.view_at, stamp) for stamp in stamps]
    for read in readers:
        await read()
    for format_ in ("convstore", "openai", "fine-tuning"):
        problems = list[Problem]()
        await export_conversations(
            store,
            lambda _: None,
            format=format_,
            scope=chat.scope,
            on_problem=problems.append,
        )
        assert not [problem.reason for problem in problems if "Error" in problem.reason]
    report = await store.verify(**scope)
    assert not report.findings, report
    fork = await chat.fork(
        key="fork", new_scope={**chat.scope, "thread_id": f"fork of {chat.scope['thread_id']}"}
    )
    await fork.rewind(before_id=ids[-1])


async def _request(chat: Conversation, policy: HistoryPolicy) -> None:
    """Load a view, and write it for each API."""
    history = await chat.load_history(policy)
    for model in (None, "model"):
        history.to_openai(model=model)
        history.to_openai(api="responses", model=model)
        history.to_anthropic(cache="5m", model=model)
