"""Write the pictures of the documentation: pages of the inspector with the conversations of the demo.

    python docs/screenshots.py [FOLDER]

Needs the extra ``test`` and a Chromium, by default /usr/bin/chromium; CHROMIUM names another one.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from pathlib import Path

import uvicorn
from playwright.async_api import Browser, async_playwright

from convstore.cli.demo.conversations import opened_demo
from convstore.ext.inspector import EVERYTHING, inspector

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
WIDE, PHONE = {"width": 1200, "height": 600}, {"width": 390, "height": 844}


async def main() -> None:
    """Serve the demo's conversations, and take every picture."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images"
    folder.mkdir(parents=True, exist_ok=True)
    async with opened_demo("memory://") as store:
        app = inspector(store, authorize=lambda _: EVERYTHING)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
                await take(browser, f"http://127.0.0.1:{listener.getsockname()[1]}", folder)
                await browser.close()
            server.should_exit = True
            await serving


async def take(browser: Browser, address: str, folder: Path) -> None:
    """Take the pictures in both colour schemes and on a phone."""
    for name, scheme, size in (("light", "light", WIDE), ("dark", "dark", WIDE), ("phone", "dark", PHONE)):
        context = await browser.new_context(color_scheme=scheme, viewport=size)  # type: ignore[arg-type]
        page = await context.new_page()
        await page.goto(address)
        await page.get_by_role("link", name=re.compile("^Machine learning")).first.click()
        await page.screenshot(path=folder / f"log-{name}.png")
        await page.get_by_role("link", name="Previous call").click()
        await page.get_by_role("link", name="Changes").click()
        await page.screenshot(path=folder / f"changes-{name}.png")
        await context.close()


if __name__ == "__main__":
    asyncio.run(main())
