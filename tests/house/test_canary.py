"""The suite's own alarm: a test that shows a password, or logs or raises contents, fails, whatever else it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from canary import LOGIN, PASSWORD, USER, Canary, has_contents, with_login
from langchain_core.messages import HumanMessage

from convstore import Conversation

SUPPORT = Path(__file__).parents[1] / "support"
CONFTEST = """
from canary import Canary

def pytest_configure(config):
    config.pluginmanager.register(Canary())
"""
SAMPLE = """
import logging, os, sys, warnings
import pytest
from canary import APPENDED, LOGIN
from convstore import InvalidInputError

def test_prints(): print(LOGIN)
def test_writes_to_stderr(): os.write(2, LOGIN.encode())
def test_logs(): logging.getLogger("convstore").error("connecting to %s", LOGIN)
def test_raises(): raise ValueError(LOGIN)
def test_raises_within():
    try:
        raise ValueError(LOGIN)
    except ValueError as error:
        raise RuntimeError("no login here") from error
def test_expects_the_error():
    with pytest.raises(InvalidInputError):
        raise InvalidInputError(f"cannot open {LOGIN}")
def test_compares(): assert LOGIN == ""
def test_logs_contents():
    APPENDED.append("My PIN is 4711")
    logging.getLogger("convstore").error("failed: %s", "My PIN is 4711, they said")
def test_raises_contents():
    APPENDED.append("My PIN is 4711")
    with pytest.raises(InvalidInputError):
        raise InvalidInputError("not 'My PIN is 4711'")
def test_quotes_the_contents_of_another_test(): logging.getLogger("convstore").error("My PIN is 4711")
@pytest.fixture
def printing():
    yield
    print(LOGIN)
def test_whose_fixture_prints(printing): pass
@pytest.mark.xfail(reason="a leak is no expected failure")
def test_is_expected_to_fail(): print(LOGIN); assert False
def test_hides():
    print("mongodb://…@host")
    with pytest.raises(InvalidInputError):
        raise InvalidInputError("cannot open it")
"""


def run(folder: Path, sample: str, *options: str) -> tuple[int, str]:
    """Run pytest on a sample in a process of its own; return its exit code and all that it prints."""
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (folder / "test_sample.py").write_text(sample, encoding="utf-8")
    own = {"PYTHONPATH": f"{SUPPORT}{os.pathsep}{SUPPORT.parents[1]}", "PYTHONIOENCODING": "utf-8"}
    ended = subprocess.run(  # noqa: S603 - our own code
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(folder),
            "-rA",
            *options,
        ],
        cwd=folder,
        env={**os.environ, **own, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [(), pytest.param(("-p", "xdist", "-n", "1"), marks=pytest.mark.slow)], ids=str
)
def test_every_way_to_show_the_password_fails(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Prints, logs, errors, expected errors and comparisons; the report does not repeat the password."""
    code, said = run(tmp_path, SAMPLE, *options)
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "10 failed, 3 passed, 1 error" in said
    assert "PASSED test_sample.py::test_hides" in said
    assert "ERROR test_sample.py::test_whose_fixture_prints" in said
    assert PASSWORD not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "sample",
    [
        "import pytest, canary\n@pytest.mark.parametrize('uri', [canary.LOGIN])\ndef test_named(uri): pass\n",
        "import warnings, canary\ndef test_warns(): warnings.warn(canary.LOGIN)\n",
    ],
    ids=["name", "warning"],
)
def test_names_and_warnings_fail_the_run(tmp_path: Path, sample: str) -> None:
    """Parameters become a part of a test's name; warnings are printed at the end of a run."""
    code, _ = run(tmp_path, sample)
    assert code == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
async def test_appended_texts_are_looked_for(chat: Conversation) -> None:
    """By their beginnings, whichever call appends them."""
    async with await chat.turn("q1", human="My PIN is 4711."):
        await chat.append([HumanMessage("And the other one is 0815. " * 9), HumanMessage("Yes")])
    assert has_contents("invalid: 'My PIN is 4711.'")
    assert has_contents("invalid: And the other one is 0815. And the other one is …")
    assert not has_contents("Yes, the PIN")


def test_the_login_is_added_to_any_address() -> None:
    """Hosts, database and options stay as they are."""
    assert (
        with_login("mongodb://a:1,b:2/app?w=1")
        == f"mongodb://{LOGIN}@a:1,b:2/app?w=1&authSource=admin"
    )
    assert with_login("mongodb://a:1/") == f"mongodb://{LOGIN}@a:1/?authSource=admin"


def test_the_password_of_a_given_server_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoded and decoded, unless it is so short that it may be a common word."""
    monkeypatch.setenv("CONVSTORE_TEST_URI", "mongodb://ada:long%40enough@db/app")
    assert Canary().secrets == {PASSWORD, "long%40enough", "long@enough"}
    monkeypatch.setenv("CONVSTORE_TEST_URI", "mongodb://ada:test@db/app")
    assert Canary().secrets == {PASSWORD}


async def test_the_server_of_the_tests_has_a_password(server_uri: str, pymongo_client: Any) -> None:
    """Clients of the tests are signed in as the canary, unless a server was given."""
    if "CONVSTORE_TEST_URI" not in os.environ:
        assert f"{LOGIN}@" in server_uri
        status = await pymongo_client.admin.command("connectionStatus")
        assert [user["user"] for user in status["authInfo"]["authenticatedUsers"]] == [USER]
