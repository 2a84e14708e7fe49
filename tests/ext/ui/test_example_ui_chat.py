"""The page of examples/ui_chat in a real browser: it streams, reloads, stops, edits and switches, on a phone, too.

Its numbers open the right sources, also without a browser.
"""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

import httpx
import pytest
from browsing import ARGUMENTS, CHROMIUM, NEEDS_BROWSER, SIZES, served
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from programs import ROOT


@pytest.fixture(scope="module")
async def app() -> AsyncIterator[Any]:
    """The example, with a store in memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CONVSTORE_URI", raising=False)
        patch.syspath_prepend(str(ROOT / "examples" / "ui_chat"))
        app = import_module("ui_chat_app").app
        async with app.router.lifespan_context(app):
            yield app
        for name in ("ui_chat_app", "scripted_sdk"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
async def address(app: Any) -> AsyncIterator[str]:
    """The address of the example."""
    async with served(lambda _: app) as port:
        yield f"http://127.0.0.1:{port}/"


async def test_a_number_opens_the_source_that_its_answer_means(app: Any) -> None:
    """[1] of an imported answer is its own first source; without the answer it is that of the log."""
    chat = app.state.store.conversation(user_id="ada", thread_id="imported")
    for name in ("seals", "orcas"):
        found = [{"title": name, "content": f"On {name}: they swim."}]
        call = {"name": "search", "args": {}, "id": name}
        result = ToolMessage(f"[1] On {name}: they swim.", artifact=found, tool_call_id=name)
        answer = AIMessage("They swim [1], [7].", id=f"{name}/answer")
        await chat.append([HumanMessage("?"), AIMessage("", tool_calls=[call]), result, answer])
    wanted = {(1, ""): ["seals"], (1, "seals/answer"): ["seals"], (1, "orcas/answer"): ["orcas"]}
    wanted |= {(2, ""): ["orcas"], (7, "orcas/answer"): []}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://chat") as client:
        for (number, answer), titles in wanted.items():
            address = f"/api/chat/imported/sources/{number}"
            opened = await client.get(address, params={"cited_by": answer})
            assert [source["title"] for source in opened.json()["sources"]] == titles


@pytest.fixture(params=[pytest.param(size, marks=NEEDS_BROWSER) for size in ("wide", "phone")])
async def page(request: pytest.FixtureRequest, address: str) -> AsyncIterator[Any]:
    """An empty conversation in a window; the console stays empty."""
    playwright = pytest.importorskip(
        "playwright.async_api", reason="the browser tests need playwright"
    )
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = await browser.new_page(viewport=SIZES[request.param])
        page.set_default_timeout(20_000)
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        await page.goto(f"{address}?thread={uuid.uuid4().hex}")
        yield page
        await browser.close()
    assert problems == []


async def ask(page: Any, text: str) -> None:
    """Send a question."""
    await page.get_by_role("textbox").fill(text)
    await page.get_by_role("button", name="Send").click()


async def answered(page: Any) -> str:
    """Wait for the end of the answer, and return its text."""
    await page.get_by_role("button", name="Send").wait_for()
    text: str = await page.locator("article.assistant").last.inner_text()
    return text


async def test_an_answer_cites_its_sources_and_has_variants(page: Any) -> None:
    """A number opens its passage; another answer stands beside the first, and so does another question."""
    await ask(page, "What do orcas eat?")
    first = await answered(page)
    assert "They eat fish [1] and hunt in groups [2]." in first
    await page.get_by_role("button", name="[1]").first.click()
    await page.get_by_role("dialog").get_by_text("Orcas eat fish, seals and squid.").wait_for()
    await page.get_by_role("button", name="Close").click()
    await page.get_by_role("button", name="Regenerate").click()
    await page.get_by_text("2 of 2").wait_for()
    assert re.findall(r"Answer \d+", first) != re.findall(r"Answer \d+", await answered(page))
    await page.get_by_role("button", name="Previous variant").click()
    await page.get_by_text("1 of 2").wait_for()
    page.once("dialog", lambda dialog: dialog.accept("What do seals eat?"))
    await page.get_by_role("button", name="Edit").click()
    await page.get_by_text("3 of 3").wait_for()
    assert await page.get_by_text("What do orcas eat?").count() == 0
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_a_reload_in_mid_stream_goes_on(page: Any) -> None:
    """The page follows the answer that it left, and stops it; what was said stays."""
    await ask(page, "Tell me a story.")
    await page.get_by_text("fish number 9,").wait_for()
    await page.reload()
    await page.get_by_text("fish number 30,").wait_for()
    await page.get_by_role("button", name="Stop").click()
    await page.get_by_text("stopped").wait_for()
    said = await answered(page)
    assert "fish number 30," in said
    assert "fish number 499" not in said
    await page.reload()
    assert await answered(page) == said


async def test_a_person_decides_on_the_page(page: Any) -> None:
    """After a reload, too; then the answer goes on."""
    await ask(page, "I want a refund.")
    await page.get_by_role("button", name="Approve").wait_for()
    await page.reload()
    await page.get_by_role("button", name="Approve").click()
    await page.get_by_text("Refunded 90 euros.").last.wait_for()
