"""A plugin that fails a test which shows a password, or which logs or raises the text of a message that it appended.

Every address that the tests use has a password.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import deque
from collections.abc import Generator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote_plus, urlsplit

import pytest
from pymongo import MongoClient

from convstore.exceptions import ConvstoreError
from convstore.values.addresses import safe_address

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

USER, PASSWORD = "AdaCanary", "S3cretCanary"
LOGIN = f"{USER}:{PASSWORD}"

_T = TypeVar("_T")
_SHORTEST = 8
"""A given server's password is looked for if it has so many characters: a common word occurs in other texts too."""
_SENTENCE, _BEGINNING = 12, 40
"""A text with so many characters and a space is looked for, by its beginning: a word occurs in other texts too."""

APPENDED = deque[str](maxlen=300)
"""Beginnings of the texts that the running test appended last."""


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
        client.admin.command(
            "createUser", USER, pwd=PASSWORD, roles=["root"], mechanisms=["SCRAM-SHA-256"]
        )
    return Address(with_login(uri))


def checked(result: _T, *texts: str, complaints: str = "") -> _T:
    """Return the result of a program if it printed no password of the canary, and complained without contents."""
    assert not any(PASSWORD in text for text in (*texts, complaints))
    assert not has_contents(complaints)
    return result


def has_contents(text: str) -> bool:
    """Return True if a text quotes a message that this test appended."""
    return any(beginning in text for beginning in APPENDED)


def _note(messages: Sequence[BaseMessage]) -> None:
    texts = [message.text for message in messages]
    APPENDED.extend(text[:_BEGINNING] for text in texts if len(text) >= _SENTENCE and " " in text)


def _secrets() -> set[str]:
    given = urlsplit(os.environ.get("CONVSTORE_TEST_URI", "")).password or ""
    return {PASSWORD, *(text for text in (given, unquote_plus(given)) if len(text) >= _SHORTEST)}


class Canary:
    """Fails each test that prints, logs or raises a password, or that logs or raises contents.

    A warning that has a password fails the run.

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
            if self.is_in(str(error), repr(error)) or has_contents(str(error)):
                self.raised.append(type(error).__name__)

        self._patch.setattr(ConvstoreError, "__init__", init)
        if loaded := sys.modules.get("convstore.append.writer"):  # importing it takes 0.4 s
            self._note_appends(loaded.Writer)

    def _note_appends(self, writer: Any) -> None:
        append = writer.append

        @wraps(append)
        async def noted(
            self: Any, scope: Any, messages: Sequence[BaseMessage], **options: Any
        ) -> Any:
            _note(messages)
            return await append(self, scope, messages, **options)

        self._patch.setattr(writer, "append", noted)

    def pytest_unconfigure(self) -> None:
        """Leave errors as they were."""
        self._patch.undo()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Fail a test that shows a password, or whose name has it because a parameter does."""
        report = yield
        shown = report.longreprtext if report.longrepr else ""
        sections = [(name, text) for name, text in report.sections if name.endswith(report.when)]
        leaks = [name for name, text in sections if self.is_in(text)]
        leaks += [
            name
            for name, text in (("traceback", shown), ("name", report.nodeid))
            if self.is_in(text)
        ]
        leaks += [name for name, text in sections if "log" in name and has_contents(text)]
        leaks += [f"message of {name}" for name in self.raised]
        self.raised.clear()
        if report.when == "teardown":
            APPENDED.clear()
        report.sections = [(name, self.redacted(text)) for name, text in report.sections]
        if leaks:
            report.outcome = "failed"
            report.longrepr = (
                f"{self.redacted(shown)}\npassword or contents found: {', '.join(leaks)}".strip()
            )
        return report

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        """Look at each warning that the summary shows."""
        self.has_leaked |= self.is_in(str(warning_message.message))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run if a warning has a password."""
        if self.has_leaked:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
