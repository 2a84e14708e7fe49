"""A store in memory with one conversation that has everything the inspector shows, and its pages over HTTP."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from browsing import ARGUMENTS, CHROMIUM, SIZES, served
from fixture_types import Browse
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from convstore import Conversation, ConversationStore
from convstore.cli.demo.conversations import opened_demo
from convstore.ext.inspector import EVERYTHING, Authorize, LocalGate, inspector
from convstore.summarization import CompactionRule, HeadTailSummarizer
from convstore.testing.samples import new_id, rag_turn

RULE = CompactionRule(max_tokens_before_summary=200, max_summary_tokens=100, keep_last_turns=2)


@pytest.fixture
async def store() -> AsyncIterator[ConversationStore]:
    """A store in memory, of this test alone."""
    async with await ConversationStore.connect(
        "memory://", summarizer=HeadTailSummarizer(RULE)
    ) as store:
        await store.setup()
        yield store


@pytest.fixture
async def chat(store: ConversationStore) -> Conversation:
    """Five turns: the oldest summarised, one with a rewound answer, the last in progress; a rating on an answer."""
    chat = store.conversation(user_id="ada", thread_id=new_id())
    await chat.append(SystemMessage("Cite sources by number.", id="system"))
    for number, topic in enumerate(("orcas", "seals"), 1):
        turn = rag_turn(f"What about {topic}?", sources=3)
        await chat.append(
            [*turn[:-1], AIMessage(f"**Fish**, see [{number}].", id=f"answer-{number}")]
        )
    await chat.compact(force=True)
    for topic in ("squid", "whales"):
        await chat.append(rag_turn(f"What about {topic}?", sources=3))
    await chat.append([HumanMessage("And now?", id="now"), AIMessage("A wrong answer", id="wrong")])
    await chat.rewind(before_id="wrong")
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


@pytest.fixture(scope="module")
async def address() -> AsyncIterator[str]:
    """The address, with the token, of an inspector of the demo's conversations."""
    async with opened_demo("memory://") as store:
        app = inspector(store, authorize=lambda _: EVERYTHING)
        async with served(lambda port: LocalGate(app, port=port, token="token")) as port:
            yield f"http://127.0.0.1:{port}/?token=token"


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Any]:
    """A Chromium without a window."""
    playwright = pytest.importorskip(
        "playwright.async_api", reason="the browser tests need playwright"
    )
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        await browser.close()


@pytest.fixture(scope="module")
async def cookies(browser: Any, address: str) -> Any:
    """The cookie that the first visit gets; the address is clean afterwards."""
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(address)
    assert "token" not in page.url
    found = await context.cookies()
    assert [(cookie["httpOnly"], cookie["sameSite"]) for cookie in found] == [(True, "Strict")]
    await context.close()
    return found


@pytest.fixture(
    scope="module",
    params=["wide-light", "wide-dark", "phone-light", "phone-dark"],
)
async def window(
    request: pytest.FixtureRequest, browser: Any, address: str, cookies: Any
) -> AsyncIterator[Any]:
    """A window without JavaScript, and what is wrong with its pages: console messages, requests to other servers."""
    size, scheme = request.param.split("-")
    context = await browser.new_context(
        color_scheme=scheme, viewport=SIZES[size], java_script_enabled=False
    )
    await context.add_cookies(cookies)
    page = await context.new_page()
    problems: list[str] = []
    home = address.partition("?")[0]
    page.on("console", lambda message: problems.append(message.text))
    page.on(
        "request", lambda item: problems.append(item.url) if not item.url.startswith(home) else None
    )
    yield page, problems
    await context.close()


def text_in(page: str) -> str:
    """The text of a page, without tags, in one line."""
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def kind_of(address: str) -> str:
    """Return which page an address leads to, without the numbers and ids in it."""
    path, _, query = address.partition("#")[0].partition("?")
    names = sorted(re.sub(r"=\d+", "", text) for text in query.split("&"))
    return re.sub(r"/\d+", "/n", re.sub(r"/c/[\da-f~]+", "/c/id", path)) + "?" + "&".join(names)
