"""The wheel works without the checkout, and the core without any extra."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest

from convstore import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
THIS = f"3.{sys.version_info.minor}"
EXTRAS = ("motor", "mongomock", "mongomock_motor", "typer", "rich", "pytest", "hypothesis")


def run(*arguments: str | Path, folder: Path, path: Path | None = None) -> str:
    """Run Python in a folder, with another folder first on its path; return its output. It must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(path or ""), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, *arguments]
    ended = subprocess.run(  # noqa: S603
        command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def build(kind: str, source: Path, target: Path) -> Path:
    """Build a distribution with hatchling itself, which needs no index."""
    script = f"from hatchling.build import build_{kind} as build; print(build({str(target)!r}))"
    return target / run("-c", script, folder=source).splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as an installer unpacks it, far from the checkout."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)  # noqa: S202 - our own wheel
    return folder


def names_in(wheel: Path) -> set[str]:
    """Names of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_migration(wheel: Path) -> None:
    """The wheel contains every module, every migration, and the file that marks the package as typed."""
    sources = [*(ROOT / "convstore").rglob("*.py"), ROOT / "convstore" / "py.typed"]
    migrations = [
        f"convstore/_migrations/{path.name}" for path in (ROOT / "migrations").glob("[0-9]*.py")
    ]
    assert migrations
    assert {str(path.relative_to(ROOT)) for path in sources} | set(migrations) <= names_in(wheel)


@pytest.mark.slow
def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    """No tests, no examples, no caches."""
    assert {name.partition("/")[0] for name in names_in(wheel)} == {
        "convstore",
        f"convstore-{__version__}.dist-info",
    }
    assert [name for name in names_in(wheel) if "__pycache__" in name] == []


@pytest.mark.slow
def test_the_wheel_says_what_it_needs(wheel: Path) -> None:
    """The metadata of the wheel are those of the project: version, Python, extras, licence and command."""
    folder = f"convstore-{__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_bytes(archive.read(f"{folder}/METADATA"))
        commands = archive.read(f"{folder}/entry_points.txt").decode()
    assert (metadata["Version"], metadata["Requires-Python"]) == (
        __version__,
        PROJECT["requires-python"],
    )
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert f"{folder}/licenses/LICENSE" in names_in(wheel)
    assert "convstore = convstore.cli:main" in commands


@pytest.mark.slow
def test_a_wheel_made_from_the_sdist_is_the_same(wheel: Path, tmp_path: Path) -> None:
    """The source distribution has all that building and testing needs."""
    sdist = build("sdist", ROOT, tmp_path)
    with tarfile.open(sdist) as archive:
        # from 3.11.4 on
        options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path, **options)  # noqa: S202 - our own archive
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    (tmp_path / "wheel").mkdir()
    assert names_in(build("wheel", source, tmp_path / "wheel")) == names_in(wheel)
    assert {path.name for path in source.iterdir()} >= {
        ".ci",
        "docs",
        "examples",
        "migrations",
        "README.md",
        "tests",
    }


@pytest.mark.slow
def test_the_lowest_versions_are_those_that_are_tried() -> None:
    """The constraints with which .ci/run installs everything once have each bound of the package, and nothing else."""
    extras = PROJECT["optional-dependencies"]
    others = {"frameworks", "test", "dev", "docs"}
    # one version each
    frameworks = {
        "ag-ui",
        "agent-framework",
        "claude-agent",
        "openai-agents",
        "pydantic-ai",
    }
    bounds = [
        *PROJECT["dependencies"],
        *(
            requirement
            for name in extras
            if name not in others | frameworks
            for requirement in extras[name]
        ),
    ]
    lines = (ROOT / ".ci" / "lowest.txt").read_text(encoding="utf-8").splitlines()
    assert sorted(bound.replace(">=", "==") for bound in bounds) == sorted(
        line for line in lines if not line.startswith("#")
    )


@pytest.mark.slow
def test_the_wheel_runs_without_the_checkout(unpacked: Path, tmp_path: Path) -> None:
    """Turns, an agent and the commands, in memory, with the migrations that are in it."""
    run(ROOT / "tests" / "support" / "smoke.py", folder=tmp_path, path=unpacked)
    where = run(
        "-c",
        "import convstore.mongo.migrator as m; print(m.discover()[0].name, m.__file__)",
        folder=tmp_path,
        path=unpacked,
    )
    assert where.split()[0] == next(
        path.stem for path in sorted((ROOT / "migrations").glob("[0-9]*.py"))
    )
    assert Path(where.split()[1]).is_relative_to(unpacked)


@pytest.mark.slow
@pytest.mark.soak
def test_the_wheel_runs_a_turn_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    """On another Python, with the lowest versions that it allows, from the index.

    `.ci/run` tries the newest versions on two Pythons, and the lowest ones on this.
    """
    python = next(text for text in ("3.12", "3.13", "3.11") if text != THIS)
    interpreter = found_python(python)
    if interpreter is None:
        pytest.skip(f"no python{python} on this machine")
    command([interpreter, "-m", "venv", "--without-pip", tmp_path / "venv"], tmp_path)
    pip = [sys.executable, "-m", "pip", "--python", tmp_path / "venv/bin/python", "install", "-q"]
    constraints = ["-c", ROOT / ".ci" / "lowest.txt"]
    installed = ["--no-compile", "--only-binary", ":all:", f"{wheel}[cli,memory]", *constraints]
    command([*pip, *installed], tmp_path)
    command([tmp_path / "venv/bin/python", ROOT / "tests/support/smoke.py"], tmp_path)


def found_python(version: str) -> str | None:
    """Return the path of a Python: on the PATH, or among those of pyenv, whose names on the PATH may not run."""
    for ask in ([f"python{version}"], ["pyenv", "exec", f"python{version}"]):
        environment = {**os.environ, "PYENV_VERSION": version}
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            return command(
                [*ask, "-c", "import sys; print(sys.executable)"], ROOT, environment
            ).strip()
    return None


def command(
    words: list[str | Path], folder: Path, environment: dict[str, str] | None = None
) -> str:
    """Run a command without the address of a database; return its output. It must succeed."""
    names = {
        name: value
        for name, value in (environment or os.environ).items()
        if name != "CONVSTORE_URI"
    }
    return subprocess.run(  # noqa: S603
        words, cwd=folder, env=names, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_the_description_links_to_the_repository(wheel: Path) -> None:
    """On the page of an index a relative link leads nowhere; links and pictures lead to the version's tag."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_bytes(archive.read(f"convstore-{__version__}.dist-info/METADATA"))
    source = PROJECT["urls"]["Source"]
    text = str(metadata.get_payload())
    links = [*re.findall(r"\]\(([^)]+)\)", text), *re.findall(r'src="([^"]+)"', text)]
    assert f"{source}/blob/v{__version__}/docs/langchain.md" in links
    assert f"{source}/raw/v{__version__}/docs/images/idea.svg" in links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_the_core_needs_no_extra(tmp_path: Path) -> None:
    """Importing the package imports none of the optional packages."""
    script = f"import sys, convstore, convstore.devserver; print(*set({EXTRAS}) & set(sys.modules))"
    assert run("-c", script, folder=tmp_path, path=ROOT).strip() == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "script", "problem"),
    [
        (
            "mongomock_motor",
            "asyncio.run(convstore.ConversationStore.connect('memory://'))",
            "[memory]",
        ),
        ("hypothesis", "import convstore.testing", "[test]"),
        *(
            pytest.param(
                name,
                "import convstore.cli; convstore.cli.main()",
                "[cli]",
                marks=pytest.mark.slow,
            )
            for name in ("typer", "rich")
        ),
    ],
)
def test_a_missing_extra_is_named(tmp_path: Path, hidden: Any, script: Any, problem: Any) -> None:
    """Without an extra the message says what to install."""
    prelude = f"import sys, asyncio, convstore\nsys.modules[{hidden!r}] = None\nsys.argv = ['convstore', 'demo']\n"
    code = f"{prelude}try:\n    {script}\nexcept (convstore.ConvstoreError, SystemExit) as error:\n    print(error)\n"
    said = run("-c", code, folder=tmp_path, path=ROOT)
    assert "is not installed; run: pip install " in said
    assert problem in said
