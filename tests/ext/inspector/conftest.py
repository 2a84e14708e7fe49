"""A store in memory with one conversation that has everything the inspector shows, and its pages over HTTP."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest
from fixture_types import Browse
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from convstore import Conversation, ConversationStore
from convstore.ext.inspector import EVERYTHING, Authorize, inspector
from convstore.summarization import CompactionRule, HeadTailSummarizer
from convstore.testing.samples import new_id, rag_turn

RULE = CompactionRule(max_tokens_before_summary=200, max_summary_tokens=100, keep_last_turns=2)


@pytest.fixture
async def store() -> AsyncIterator[ConversationStore]:
    """A store in memory, of this test alone."""
    async with await ConversationStore.connect("memory://", summarizer=HeadTailSummarizer(RULE)) as store:
        await store.setup()
        yield store


@pytest.fixture
async def chat(store: ConversationStore) -> Conversation:
    """Five turns: the oldest summarised, one with a rewound answer, the last in progress; a rating on an answer."""
    chat = store.conversation(user_id="ada", thread_id=new_id())
    await chat.append(SystemMessage("Cite sources by number.", id="system"))
    for number, topic in enumerate(("orcas", "seals"), 1):
        turn = rag_turn(f"What about {topic}?", sources=3)
        await chat.append([*turn[:-1], AIMessage(f"**Fish**, see [{number}].", id=f"answer-{number}")])
    await chat.compact(force=True)
    for topic in ("squid", "whales"):
        await chat.append(rag_turn(f"What about {topic}?", sources=3))
    await chat.append([HumanMessage("And now?", id="now"), AIMessage("A wrong answer", id="wrong")])
    await chat.rewind(before="wrong")
    await chat.annotate("answer-1", rating=1)
    await chat.update(title="On whales", metadata={"team": "sea"})
    return chat


@pytest.fixture
async def browse(store: ConversationStore) -> AsyncIterator[Browse]:
    """Open a client of the inspector of this store, by default with permission to see everything."""
    clients: list[httpx.AsyncClient] = []

    def make(authorize: Authorize = lambda _: EVERYTHING) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(inspector(store, authorize=authorize))
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://inspector"))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()


@pytest.fixture
async def here(chat: Conversation) -> str:
    """The path of the conversation's page."""
    return f"/c/{(await chat.info()).conversation_id}"


def text_in(page: str) -> str:
    """The text of a page, without tags, in one line."""
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())
