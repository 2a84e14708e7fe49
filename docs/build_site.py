"""Build the site of the documentation: python docs/build_site.py.

Needs the extra ``docs``. Writes build/site: every page as HTML and as Markdown, and llms.txt. The pages keep their
places in the repository, so that every link that works there works here. The build fails on a warning, and if a page
loads anything from elsewhere.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
FILES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "LICENSE",
    "tests/contract/test_contract.py",
)
FOLDERS = ("docs", "examples", "benchmarks")
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*\shref=["']?(?:https?:)?//"""
    r"""|@import\s+["']?(?:url\()?["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
)


def main() -> None:
    """Copy the pages, build the site, add the Markdown and llms.txt, and check what the pages load."""
    copy_pages()
    subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT, check=True
    )
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    for page in pages_of(nav):
        shutil.copy(PAGES / page, SITE / page)
    (SITE / "llms.txt").write_text(llms(nav), encoding="utf-8")
    strangers = [
        path
        for path in SITE.rglob("*")
        if path.suffix in {".html", ".css"} and LOADED.search(path.read_text())
    ]
    if strangers:
        sys.exit(f"these pages load something from elsewhere: {', '.join(map(str, strangers))}")


def copy_pages() -> None:
    """Copy all that a page may link to, in the places of the repository."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, PAGES / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        (PAGES / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, PAGES / file)


def pages_of(nav: Any) -> Iterator[str]:
    """Yield each page of the navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(part)


def llms(nav: list[dict[str, Any]]) -> str:
    """Return the index for language models: each section with its pages in Markdown and their first paragraphs."""
    lines = ["# convstore", "", f"> {opening('README.md')}"]
    for part in nav:
        [(section, pages)] = part.items()
        lines += ["", f"## {section}", ""]
        lines += [f"- [{title(page)}]({page}): {opening(page)}" for page in pages_of(pages)]
    return "\n".join(lines) + "\n"


def title(page: str) -> str:
    """Return the first heading of a page."""
    return (ROOT / page).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def opening(page: str) -> str:
    """Return the first paragraph of a page on one line, without links."""
    paragraph = (ROOT / page).read_text(encoding="utf-8").split("\n\n")[1]
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", paragraph.replace("\n", " "))


if __name__ == "__main__":
    main()
