"""Write the pictures of the documentation: the inspector with a conversation of the demo, light and dark.

    python docs/screenshots.py           # write them
    python docs/screenshots.py --check   # fail if the page says something else than the pictures do

The check compares text, because every machine draws letters differently. Needs the extra ``test`` and a Chromium, by
default /usr/bin/chromium; CHROMIUM names another one.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from pathlib import Path
from typing import Literal

import uvicorn
from playwright.async_api import ViewportSize, async_playwright

from convstore.cli.demo.conversations import opened_demo
from convstore.ext.inspector import EVERYTHING, inspector

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
]
FOLDER = Path(__file__).parent / "images"
TEXT = FOLDER / "inspector.txt"
SIZE: ViewportSize = {"width": 1200, "height": 640}
PICTURES: tuple[tuple[str, Literal["light", "dark"], str], ...] = (
    ("inspector", "light", "?at=7"),
    ("inspector", "dark", "?at=7"),
    ("changes", "light", "/changes?at=7"),
)
"""Name, colour scheme and page of each: the second call of the demo's lesson, with a stub for the first result."""


async def main() -> None:
    """Serve the demo's conversations, and write or check the pictures."""
    is_check, texts = "--check" in sys.argv, list[str]()
    async with opened_demo("memory://") as store:
        app = inspector(store, authorize=lambda _: EVERYTHING)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
                for name, scheme, path in PICTURES:
                    context = await browser.new_context(
                        color_scheme=scheme, viewport=SIZE, device_scale_factor=2
                    )
                    page = await context.new_page()
                    await page.goto(f"http://127.0.0.1:{listener.getsockname()[1]}")
                    await page.get_by_role(
                        "link", name=re.compile("^Machine learning")
                    ).first.click()
                    await page.goto(page.url + path)
                    texts.append(f"{name}-{scheme}\n{await page.locator('main').inner_text()}")
                    if not is_check:
                        await page.screenshot(path=FOLDER / f"{name}-{scheme}.png")
                    await context.close()
                await browser.close()
            server.should_exit = True
            await serving
    text = without_chance("\n".join(texts))
    if not is_check:
        TEXT.write_text(text, encoding="utf-8")
    elif TEXT.read_text(encoding="utf-8") != text:
        sys.exit(f"the pictures in {FOLDER} are stale: run python docs/screenshots.py")


def without_chance(text: str) -> str:
    """Return the text of the pages without ids, times and sizes, which differ from run to run."""
    constants = {
        r"\b(ada|grace)-[0-9a-f]{8}": r"\1",
        r"just now|\d+ min ago": "now",
        r"[\d.]+ kB": "kB",
        r"\s*\n": "\n",
    }
    for pattern, constant in constants.items():
        text = re.sub(pattern, constant, text)
    return text + "\n"


if __name__ == "__main__":
    asyncio.run(main())
