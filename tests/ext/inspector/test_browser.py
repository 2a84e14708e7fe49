"""The inspector in a real browser: pages as people see them, by keyboard, on a phone, in both colour schemes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from browsing import NEEDS_BROWSER, served
from langchain_core.messages import AIMessage, ToolMessage

from convstore.ext.inspector import EVERYTHING, inspector

CALL = {"name": "refund", "args": {}, "id": "c"}
pytestmark = NEEDS_BROWSER


@pytest.fixture
async def page(window: Any, address: str) -> AsyncIterator[Any]:
    """The list of conversations; nothing may be logged to the console or loaded from elsewhere."""
    page, problems = window
    await page.goto(address.partition("?")[0])
    yield page
    assert problems == []


async def follow(page: Any, link: Any) -> None:
    """Click a link or a button, and wait until its page is loaded with its style sheet."""
    async with page.expect_event("load"):
        await link.click()


async def open_lesson(page: Any) -> None:
    """Open the conversation with everything in it."""
    await follow(page, page.get_by_role("link", name=re.compile("^Machine learning")).first)


async def fits(page: Any) -> Any:
    """Return True if nothing is wider than the window."""
    box = await page.locator("body").bounding_box()
    main = await page.locator("main").bounding_box()
    return main["width"] <= box["width"] <= page.viewport_size["width"]


async def test_a_newcomer_sees_what_the_model_gets_and_why(page: Any) -> None:
    """A page marks messages as rewound, summarised or shown as stubs. Summaries and messages can be opened."""
    assert await page.get_by_role("rowheader").count() == 3
    await open_lesson(page)
    for name in ("in summary 1", "stub", "rewound"):
        assert await page.locator(".got", has_text=name).first.is_visible(), name
    assert not await page.get_by_text("Deep learning learns its own features").last.is_visible()
    await page.get_by_text(
        re.compile("replaces 8 messages: The user is new to machine learning")
    ).click()
    assert await page.get_by_text("Deep learning learns its own features").last.is_visible()
    assert await page.get_by_text("clear at last").is_visible()
    assert await fits(page)
    await follow(page, page.get_by_role("link", name="Open the whole message").last)
    assert await page.get_by_role("heading", name=re.compile("^Content")).is_visible()
    assert await fits(page)
    await follow(page, page.get_by_role("link", name="[21]", exact=True))
    assert await page.get_by_text("same text as").is_visible()
    assert await fits(page)


async def test_the_first_message_stands_high(page: Any) -> None:
    """Most of a window is for messages: the header ends at 200 pixels, and on a phone the first message is in sight."""
    await open_lesson(page)
    tools, first = [
        (await page.locator(selector).first.bounding_box())["y"] for selector in (".tools", ".m")
    ]
    assert first <= (260 if page.viewport_size["width"] > 700 else 420)
    assert tools <= 200 or page.viewport_size["width"] < 700


@pytest.mark.parametrize("window", ["wide-light"], indirect=True)
async def test_the_head_of_a_call_stands_still(page: Any) -> None:
    """From call to call nothing above the messages moves, all calls that fit are there, and the marks take one line.

    The state is not cut, and the head does not hide the message that "Go to" leads to.
    """
    await open_lesson(page)
    here, seen = page.url, set[tuple[float, ...]]()
    for query in ("", "?at=3", "?at=7", "?at=11", "?at=14", "?at=18"):
        await page.goto(here + query)
        places = (
            ".tools",
            ".links",
            ".about .keys >> nth=0",
            ".marks",
            ".lane a >> nth=0",
            ".lane a >> nth=9",
        )
        boxes = [await page.locator(place).first.bounding_box() for place in places]
        assert boxes[3]["height"] <= 22
        seen.add((*(box["y"] for box in boxes), boxes[4]["x"], boxes[5]["x"]))
    assert len(seen) == 1, seen
    await page.emulate_media(reduced_motion="reduce")  # scroll at once
    await page.goto(f"{here}?go=12")
    cut = "state => state.scrollWidth - state.clientWidth"
    assert await page.locator(".title .state").evaluate(cut, timeout=3_000) == 0
    target, head = [await page.locator(place).bounding_box() for place in (":target", ".sticky")]
    await page.emulate_media(reduced_motion="null")
    assert target["y"] >= head["y"] + head["height"] + 24  # a line more in the head hides nothing


@pytest.mark.parametrize("window", ["phone-light"], indirect=True)
async def test_a_phone_folds_the_filters_of_the_list_and_leaves_out_empty_cells(page: Any) -> None:
    """They took the first screen; the button of those in need stays."""
    order = page.get_by_label("Order")
    assert await page.get_by_role("button", name="needs attention").is_visible()
    assert not await order.is_visible()
    await page.get_by_label("Filters").check()
    assert await order.is_visible()
    empty = await page.locator(".list .none").count()
    shown = await page.locator(".list .none:visible").count()
    assert (empty > 0, shown) == (True, 0)
    assert await fits(page)


@pytest.mark.parametrize("window", ["wide-light", "phone-dark"], indirect=True)
async def test_the_tabs_of_a_call_tell_what_changed(page: Any) -> None:
    """Previous and next call stay on the tab."""
    await open_lesson(page)
    await follow(page, page.get_by_role("link", name="Last call, 413 tokens"))
    assert await page.get_by_text("exactly as sent").is_visible()
    for tab, words in (
        ("As sent", "exactly as the model got them"),
        ("Tools", "Tools called in messages"),
        ("Changes", "because message 15 is now shown by a stub, as its turn ended"),
    ):
        await follow(page, page.get_by_role("link", name=tab, exact=True))
        assert await page.get_by_text(words).is_visible()
        assert await fits(page)
    await follow(page, page.get_by_role("link", name="Previous call"))
    assert await page.get_by_role("heading", name="from the call for message 14").is_visible()


@pytest.mark.parametrize("window", ["wide-light", "phone-dark"], indirect=True)
async def test_why_the_cache_broke_is_two_clicks_from_the_list(page: Any) -> None:
    """The conversation's page names the cause at the answer, and the link leads to what changed before that call."""
    await open_lesson(page)
    cause = page.get_by_role("link", name="cache broken: turn ended", exact=True).last
    await follow(page, cause)
    assert "/changes?at=" in page.url
    assert await page.get_by_text("Cache broken, as expected").is_visible()
    assert await fits(page)


@pytest.mark.parametrize("window", ["wide-dark", "phone-light"], indirect=True)
async def test_a_search_and_a_summary_lead_back_to_the_log(page: Any) -> None:
    """Forms work without JavaScript too."""
    await open_lesson(page)
    here = page.url
    if not await page.get_by_role(
        "searchbox"
    ).is_visible():  # a phone has a link in the place of the field
        await follow(page, page.get_by_role("link", name="Search"))
    await page.get_by_role("searchbox").fill("overfitting")
    await follow(page, page.get_by_role("button", name="Search"))
    await follow(page, page.get_by_role("link", name=re.compile("^Message")).first)
    assert page.url.startswith(here)
    await page.goto(here)
    await page.get_by_text("replaces 8 messages").click()
    await follow(page, page.get_by_role("link", name=re.compile("Open summary 1")).first)
    assert await page.get_by_text("What it covers").is_visible()
    assert await fits(page)


@pytest.mark.parametrize("window", ["wide-light"], indirect=True)
async def test_usage_opens_and_a_view_is_downloaded(page: Any) -> None:
    """Tokens by model are in a table; the exported call is a list of messages in both forms."""
    await open_lesson(page)
    await page.get_by_text("About ▾").click()
    assert await page.get_by_role("rowheader", name="demo-model").is_visible()
    assert await page.get_by_text('"course": "ml-101"').is_visible()
    for form, key in (("LangChain messages", "type"), ("OpenAI messages", "role")):
        if not await page.get_by_role("link", name=form).is_visible():
            await page.get_by_text("JSON ▾").click()
        async with page.expect_download() as started:
            await page.get_by_role("link", name=form).click()
        exported = json.loads(
            await asyncio.to_thread(Path(await (await started.value).path()).read_bytes)
        )
        assert exported[0][key] == "system"


@pytest.mark.parametrize("window", ["wide-dark"], indirect=True)
async def test_everything_is_reached_by_keyboard(page: Any) -> None:
    """The first stop skips to the content; every stop is visible."""
    await open_lesson(page)
    await page.keyboard.press("Tab")
    assert await page.locator(":focus").inner_text() == "Skip to content"
    names = set()
    for _ in range(40):
        await page.keyboard.press("Tab")
        focused = page.locator(":focus")
        assert await focused.is_visible()
        names.add(
            (
                (await focused.inner_text()) or await focused.get_attribute("aria-label") or ""
            ).strip()
        )
    assert {"Search", "As sent", "JSON ▾", "Failed", "First", "Last"} <= names


async def test_a_running_turn_is_followed_until_it_is_over(browser: Any, store: Any) -> None:
    """The page shows what is appended, but not while it is paused, and stops at the end of the turn."""
    chat = store.conversation(user_id="ada", thread_id="live")
    app = inspector(store, authorize=lambda _: EVERYTHING)
    context = await browser.new_context()
    page = await context.new_page()
    async with served(lambda _port: app) as port:
        async with await chat.turn("q", human="Refund me?") as turn:
            await page.goto(f"http://127.0.0.1:{port}/c/{(await chat.info()).conversation_id}")
            await page.get_by_role("button", name="Pause").click()
            await turn.append(AIMessage("Soon.", tool_calls=[CALL]))
            await asyncio.sleep(2.5)
            assert await page.get_by_text("Soon.").count() == 0
            await page.get_by_role("button", name="Follow").click()
            await page.get_by_text("Soon.").first.wait_for()
            await turn.append([ToolMessage("Paid", tool_call_id="c"), AIMessage("Done.")])
        await page.get_by_text("Done.").first.wait_for()
        await page.get_by_role("button", name="Pause").wait_for(state="detached")
    await context.close()


async def test_the_token_of_the_address_works_once(
    browser: Any, address: str, cookies: Any
) -> None:
    """The token in the address works once: another browser that opens the same address gets status 403."""
    assert cookies
    context = await browser.new_context()
    answer = await (await context.new_page()).goto(address)
    assert answer.status == 403
    await context.close()
