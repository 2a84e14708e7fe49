"""A password in every address that the tests use, and a plugin that fails a test which shows it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator
from typing import Any, TypeVar
from urllib.parse import unquote_plus, urlsplit

import pytest
from pymongo import MongoClient

from convstore.exceptions import ConvstoreError
from convstore.values.addresses import safe_address

USER, PASSWORD = "AdaCanary", "S3cretCanary"
LOGIN = f"{USER}:{PASSWORD}"

_T = TypeVar("_T")
_SHORTEST = 8
"""A given server's password is looked for if it has so many characters: a common word occurs in other texts too."""


class Address(str):
    """An address whose `repr`, which pytest prints for the arguments of a failed test, has no password."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(safe_address(self))


def with_login(uri: str) -> str:
    """Return an address without user info with the canary's name and password in it."""
    head, _, options = uri.partition("?")
    return f"{head.replace('//', f'//{LOGIN}@', 1)}?{options and f'{options}&'}authSource=admin"


def sign_up(uri: str) -> str:
    """Create the canary as a user of a private server; return the server's address with its name and password."""
    with MongoClient[dict[str, Any]](uri) as client:
        # The fewest that a server takes; tests make hundreds of clients, and each computes them.
        client.admin.command("setParameter", 1, scramSHA256IterationCount=5000)
        client.admin.command("createUser", USER, pwd=PASSWORD, roles=["root"], mechanisms=["SCRAM-SHA-256"])
    return Address(with_login(uri))


def checked(result: _T, *texts: str) -> _T:
    """Return the result of a program if what it printed has no password of the canary."""
    assert not any(PASSWORD in text for text in texts)
    return result


def _secrets() -> set[str]:
    given = urlsplit(os.environ.get("CONVSTORE_TEST_URI", "")).password or ""
    return {PASSWORD, *(text for text in (given, unquote_plus(given)) if len(text) >= _SHORTEST)}


class Canary:
    """Fails each test that prints, logs or raises a password; and the run, if a warning has it.

    Reports are searched where they are made, so that workers of pytest-xdist report the failure.
    """

    def __init__(self) -> None:
        self.secrets = _secrets()
        self.raised: list[str] = []
        self.has_leaked = False
        self._patch = pytest.MonkeyPatch()

    def is_in(self, *texts: str) -> bool:
        """Return True if a text has a password."""
        return any(secret in text for text in texts for secret in self.secrets)

    def redacted(self, text: str) -> str:
        """Return the text without passwords."""
        for secret in self.secrets:
            text = text.replace(secret, "<password>")
        return text

    def pytest_configure(self) -> None:
        """Look at each error of convstore, including those that a test expects."""

        def init(error: ConvstoreError, *args: Any) -> None:
            super(ConvstoreError, error).__init__(*args)
            if self.is_in(str(error), repr(error)):
                self.raised.append(type(error).__name__)

        self._patch.setattr(ConvstoreError, "__init__", init)

    def pytest_unconfigure(self) -> None:
        """Leave errors as they were."""
        self._patch.undo()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Fail a test that shows a password, or whose name has it because a parameter does."""
        report = yield
        shown = report.longreprtext if report.longrepr else ""
        leaks = [name for name, text in report.sections if name.endswith(report.when) and self.is_in(text)]
        leaks += [name for name, text in (("traceback", shown), ("name", report.nodeid)) if self.is_in(text)]
        leaks += [f"message of {name}" for name in self.raised]
        self.raised.clear()
        report.sections = [(name, self.redacted(text)) for name, text in report.sections]
        if leaks:
            report.outcome = "failed"
            report.longrepr = f"{self.redacted(shown)}\npassword of an address found: {', '.join(leaks)}".strip()
        return report

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        """Look at each warning that the summary shows."""
        self.has_leaked |= self.is_in(str(warning_message.message))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run if a warning has a password."""
        if self.has_leaked:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
