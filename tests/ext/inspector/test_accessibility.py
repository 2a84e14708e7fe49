"""Every page of the inspector can be read and used: axe, contrast of graphics, size of targets, positions."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from browsing import NEEDS_BROWSER, SIZES, served
from conftest import kind_of
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import ConversationStore
from convstore.cli.demo.conversations import opened_demo
from convstore.ext.inspector import EVERYTHING, inspector

pytestmark = NEEDS_BROWSER
STYLES = Path(__file__).parents[3] / "convstore/ext/inspector/static"
_RULES = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}
_LOOKS = {
    "wide-light": _RULES,
    "phone-dark": _RULES | {"runOnly": ["color-contrast", "target-size"]},
}
"""The rules for each look; on the phone and in the dark those that depend on them."""
_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def _luminance(colour: str) -> float:
    parts = (int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_graphics_have_a_contrast_of_three_to_one() -> None:
    """The colours of bars, edges and marks, on a card and on the selected call, light and dark."""
    light, dark, *_ = re.findall(
        r":root \{(.*?)\}", (STYLES / "inspector.css").read_text(encoding="utf-8"), re.DOTALL
    )
    for scheme in (light, dark):
        colours = {
            name: _luminance(value) for name, value in re.findall(r"--([\w-]+): (#\w{6})", scheme)
        }
        parts = ("system", "summary", "stub", "turn", "now", "bad")
        for name, ground in (*product(parts, ("card", "here")), ("edge", "card"), ("edge", "page")):
            low, high = sorted((colours[name], colours[ground]))
            assert (high + 0.05) / (low + 0.05) >= 3, (name, ground)


async def _add(store: ConversationStore) -> None:
    """Add what the demo's conversations lack: an image, a failed call, a sub-agent."""
    chat = store.conversation(user_id="grace", thread_id="measurements")
    image = {"type": "image", "base64": _PNG, "mime_type": "image/png"}
    await chat.append(
        [HumanMessage([{"type": "text", "text": "Is this right?"}, image], id="question")]
    )
    calls = [{"name": "fit_curve", "args": {"points": 3}, "id": "call"}]
    await chat.append(
        AIMessage("", tool_calls=calls, id="calling"), stamp=(await chat.load_history()).stamp
    )
    await chat.append(ToolMessage("too few points", tool_call_id="call", status="error"))
    await chat.append(AIMessage("Measure more points."), stamp=(await chat.load_history()).stamp)
    await chat.child("calling", "call").append(
        [HumanMessage("Fit a curve."), AIMessage("I cannot.")]
    )


@pytest.fixture(scope="module")
async def home() -> AsyncIterator[str]:
    """The address of an inspector of conversations with everything that pages show."""
    async with opened_demo("memory://") as store:
        await _add(store)
        app = inspector(store, authorize=lambda _: EVERYTHING)
        async with served(lambda _port: app) as port:
            yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("looks", _LOOKS)
async def test_axe_finds_nothing(browser: Any, home: str, looks: str) -> None:
    """On one page of each kind that links lead to, from the list on; targets have 24 pixels."""
    axe = pytest.importorskip("axe_playwright_python.async_playwright").Axe()
    size, scheme = looks.split("-")
    context = await browser.new_context(color_scheme=scheme, viewport=SIZES[size], bypass_csp=True)
    page, seen, found = await context.new_page(), dict[str, str](), list[tuple[str, str, str]]()
    waiting = ["/", "/search?q=learning", "/nothing"]
    while waiting:
        path = waiting.pop(0)
        if kind_of(path) in seen or re.search(r"/static/|/image/|\.json|\.csv", path):
            continue
        seen[kind_of(path)] = path
        # a row below the sticky head has half a target
        await page.goto(home + path.partition("#")[0])
        results = (await axe.run(page, options=_LOOKS[looks])).response
        found += [
            (path, violation["id"], node["html"][:200])
            for violation in results["violations"]
            for node in violation["nodes"]
        ]
        links = await page.eval_on_selector_all(
            "a[href^='/']", "all => all.map(one => one.getAttribute('href'))"
        )
        waiting += [link for link in links if kind_of(link) not in seen]
    await context.close()
    assert {"/c/id?", "/c/id/messages/n?", "/c/id/sources/n?", "/c/id/summaries/n?"} <= set(seen)
    assert not found, "\n".join(map(" ".join, found))
