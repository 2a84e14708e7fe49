"""Measure what an installation costs a program that calls OpenAI: packages, bytes, processor time of the imports.

    python benchmarks/install.py

Installs `openai` alone, with `langchain-core`, and with this checkout, each into an environment of its own, with the
package index that pip is configured for. The imports are the fastest of 30. Takes about four minutes.
"""

from __future__ import annotations

import subprocess
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
RUNS = 30
TOOLS = {"pip", "setuptools", "pkg_resources", "_distutils_hack", "__pycache__"}
OPENAI = "from openai import AsyncOpenAI\n"
CASES = {
    "openai": (["openai"], OPENAI),
    "and langchain-core": (
        ["openai", "langchain-core"],
        f"{OPENAI}from langchain_core.messages import AIMessage",
    ),
    "and convstore": (["openai", str(ROOT)], f"{OPENAI}from convstore import ConversationStore"),
}


class Cost(NamedTuple):
    """The cost of one environment: packages, bytes of their archives and files, and seconds of the imports."""

    packages: int
    download: int
    installed: int
    seconds: float


def cost_of(packages: list[str], imports: str, folder: Path) -> Cost:
    """Install packages into a folder, and measure them."""
    venv.create(folder, with_pip=True)
    python, wheels = folder / "bin" / "python", folder / "wheels"
    run(python, "-m", "pip", "wheel", "-q", "--wheel-dir", wheels, *packages)
    archives = list(wheels.iterdir())
    run(python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", *archives)
    [site] = folder.glob("lib/python*/site-packages")
    files = [
        path for path in site.rglob("*") if path.is_file() and not is_tool(path.relative_to(site))
    ]
    timed = (
        f"import time\nbegan = time.process_time()\n{imports}\nprint(time.process_time() - began)"
    )
    seconds = min(float(run(python, "-c", timed)) for _ in range(RUNS))
    return Cost(len(archives), size(archives), size(files), seconds)


def is_tool(path: Path) -> bool:
    """Return True for files of pip and of its like, and for compiled ones, which imports write."""
    return not TOOLS.isdisjoint(part.partition("-")[0] for part in path.parts)


def size(files: list[Path]) -> int:
    """Return the bytes of some files."""
    return sum(file.stat().st_size for file in files)


def run(*command: str | Path) -> str:
    """Return what a command prints."""
    found = subprocess.run(  # noqa: S603
        [str(path) for path in command], check=True, capture_output=True, text=True
    )
    return found.stdout


def main() -> None:
    """Print the table."""
    print("| | packages | download | installed | imports |\n|---|---|---|---|---|")
    for name, (packages, imports) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            cost = cost_of(packages, imports, Path(folder))
        megabytes = [f"{number / 1e6:.0f} MB" for number in (cost.download, cost.installed)]
        print(f"| {name} | {cost.packages} | {' | '.join(megabytes)} | {cost.seconds:.2f} s |")


if __name__ == "__main__":
    main()
