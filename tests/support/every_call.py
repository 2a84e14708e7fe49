"""Every public call of a conversation and of a store, in an order in which each finds what it needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore import Conversation, ConversationStore, ConvstoreError
from convstore.summarization import HeadTailSummarizer
from convstore.testing.fixtures import result_id_of
from convstore.testing.samples import rag_turn
from convstore.values.policy import CompactionRule

RULE = CompactionRule(max_tokens_before_summary=200, max_summary_tokens=100, keep_last_turns=1)
EVERYTHING = "it is about the conversations of all users"
NOT_TRIED = {
    "close": "sends nothing of its own",
    "connect": "opens a store",
    "conversation": "sends nothing",
    "from_env": "opens a store",
    "migrations": "reads the collection of migrations",
    "ping": "reads the collection of migrations",
    "register_artifact_type": "sends nothing",
    "register_source_extractor": "sends nothing",
    "retrieve_previous_sources_tool": "sends nothing; get_sources reads what it returns",
    "scope": "sends nothing",
    "setup": "reads the collection of migrations, and a hundred heads",
    "state": "sends nothing; its methods are tried",
    "store": "sends nothing",
    "verify": EVERYTHING,
}
"""Public names whose commands are not counted here, and the reason."""


class Ids(NamedTuple):
    """Messages of the user's log."""

    question: str
    result: str
    last_question: str


def summarizing(database: Any) -> ConversationStore:
    """A store whose conversations are summarised early."""
    return ConversationStore(database, summarizer=HeadTailSummarizer(RULE))


async def prepared(chat: Conversation) -> Ids:
    """Write what the calls find: three turns, a summary, a search segment, an annotation and a state."""
    turns = [rag_turn(f"What of seals, {number}?") for number in range(3)]
    for turn in turns:
        await chat.append(turn)
    await chat.compact(force=True)
    await chat.search("seals")
    await chat.annotate(str(turns[0][0].id), rating=5)
    await chat.state.update({"step": 1})
    return Ids(str(turns[0][0].id), str(turns[0][2].id), str(turns[-1][0].id))


Call = Callable[[Conversation, Ids], Awaitable[Any]]


async def _all(found: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in found]


async def _first(found: Any) -> Any:
    async with aclosing(found):
        return await anext(found)


async def _turn(chat: Conversation, _: Ids) -> None:
    async with await chat.turn("turn", human="And now?") as turn:
        await turn.append(AIMessage("Now.", id="now"))


async def _regenerate(chat: Conversation, _: Ids) -> None:
    async with await chat.turn("turn", regenerate="again") as turn:
        await turn.append(AIMessage("Later.", id="later"))


async def _activate(chat: Conversation, _: Ids) -> None:
    first, _other = await chat.variants("turn")
    await chat.activate(first)


async def _decide(chat: Conversation, _: Ids) -> None:
    with pytest.raises(ConvstoreError):  # nobody asked
        await chat.decide("turn", await result_id_of(chat, "call"), "approve")


async def _append_history(chat: Conversation, _: Ids) -> None:
    known = [message async for message in chat.messages()]
    await chat.append_history([*known, HumanMessage("And?", id="again")])


# In this order: some need what others wrote.
CALLS: dict[str, Call] = {
    "append": lambda chat, _: chat.append(rag_turn("What of bears?")),
    "append_history": _append_history,
    "turn": _turn,
    "turn, again": _regenerate,
    "variants": lambda chat, _: chat.variants("turn"),
    "activate": _activate,
    "stop": lambda chat, _: chat.stop("turn"),
    "decide": _decide,
    "reserve_source_ids": lambda chat, _: chat.reserve_source_ids(3),
    "find_shown_sources": lambda chat, _: chat.find_shown_sources(["Seals sleep."]),
    "load_history": lambda chat, _: chat.load_history(),
    "compact": lambda chat, _: chat.compact(force=True),
    "summaries": lambda chat, _: chat.summaries(),
    "expand_summary": lambda chat, _: chat.expand_summary(1),
    "undo_compaction": lambda chat, _: chat.undo_compaction(),
    "get_tool_messages": lambda chat, ids: chat.get_tool_messages([ids.result]),
    "citations": lambda chat, ids: chat.citations(ids.result),
    "get_sources": lambda chat, ids: chat.get_sources([1, 2], tool_message_ids=[ids.result]),
    "messages": lambda chat, _: _all(chat.messages(rewound=True)),
    "items": lambda chat, _: _all(chat.items()),
    "turns": lambda chat, _: _all(chat.turns()),
    "get_turn": lambda chat, _: chat.get_turn("turn"),
    "list_messages": lambda chat, _: chat.list_messages(around=5, limit=4),
    "outline": lambda chat, _: chat.outline(),
    "watch": lambda chat, _: _first(chat.watch(limit=3)),
    "search": lambda chat, _: chat.search("seals"),
    "view_at": lambda chat, ids: chat.view_at(ids.last_question),
    "last_policy": lambda chat, _: chat.last_policy(),
    "annotate": lambda chat, ids: chat.annotate(ids.question, rating=1),
    "annotations": lambda chat, ids: chat.annotations([ids.question]),
    "state, update": lambda chat, _: chat.state.update({"step": 2}),
    "state, get": lambda chat, _: chat.state.get(),
    "rewind": lambda chat, ids: chat.rewind(before_id=ids.last_question),
    "undo_rewind": lambda chat, _: chat.undo_rewind(),
    "fork": lambda chat, _: chat.fork(key="f", new_scope={**chat.scope, "thread_id": "fork"}),
    "info": lambda chat, _: chat.info(),
    "update": lambda chat, _: chat.update(title="Seals"),
    "child": lambda chat, ids: chat.child(ids.question).append(rag_turn("What of whales?")),
    "children": lambda chat, _: chat.children(),
    "find_conversation": lambda chat, _: _found(chat),
    "store.get_tool_messages": lambda chat, ids: chat.store.get_tool_messages(
        tool_message_ids=[ids.result], **chat.scope
    ),
    "list_conversations": lambda chat, _: chat.store.list_conversations(user_id="ada"),
    "stats": lambda chat, _: chat.store.stats(user_id="ada"),
    "search, across": lambda chat, _: chat.store.search("seals", user_id="ada"),
    "prune": lambda chat, _: chat.store.prune(older_than=timedelta(days=1), user_id="ada"),
    "delete": lambda chat, _: chat.delete(),
    "erase, by id": lambda chat, _: _erased_by_id(chat),
    "erase": lambda chat, _: chat.store.erase(user_id="ada"),
}


async def _found(chat: Conversation) -> None:
    id_ = (await chat.info()).conversation_id
    assert await chat.store.find_conversation(id_, user_id="ada")


async def _erased_by_id(chat: Conversation) -> None:
    await chat.append(HumanMessage("Again."))
    assert (await chat.store.erase((await chat.info()).conversation_id)).conversations == 1
