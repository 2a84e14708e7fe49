"""Replay files of recorded conversations against a store, several conversations at a time.

Floor 8. ``command`` runs it; a ``ReplayRunner`` replays each conversation. A failure in one conversation is a line of
the report and does not stop the others; a server that does not answer stops everything.
"""

from __future__ import annotations

import asyncio
import secrets
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from convstore.cli.options import open_store
from convstore.cli.recordings import BadLine, Recording, read_recordings
from convstore.cli.replay.report import FileReport
from convstore.cli.replay.runner import ReplayRunner
from convstore.exceptions import ConvstoreError, StoreUnavailableError
from convstore.store import ConversationStore

__all__ = ["Replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One replay of files.

    Attributes:
        uri: Address of the database.
        jobs: Conversations at a time.
        limit: Maximum number of conversations of a file; None for all.
        keep: Leave the conversations in the database.
        user_id: User id of the conversations; new for each run, so that no other user's are touched.
        on_conversation: Called after each conversation.
    """

    uri: str = field(repr=False)
    jobs: int = 4
    limit: int | None = None
    keep: bool = False
    user_id: str
    on_conversation: Callable[[], None] = lambda: None

    @staticmethod
    def new_user_id() -> str:
        """Return a user id that is not in use."""
        return f"replay-{secrets.token_hex(8)}"

    async def files(self, paths: Sequence[Path]) -> list[FileReport]:
        """Replay files one after another.

        Raises:
            StoreUnavailableError: The server does not answer; conversations of `user_id` may be left in it.
            ConvstoreError: The store cannot be opened or set up.
        """
        different = list(dict.fromkeys(paths))
        names = [path.name for path in different]
        if len(set(names)) != len(names):
            names = [str(path) for path in different]
        async with open_store(self.uri, setup=True) as store:
            return [await self._file(path, name, store) for path, name in zip(different, names, strict=True)]

    async def _file(self, path: Path, name: str, store: ConversationStore) -> FileReport:
        report = FileReport(name)
        running: set[asyncio.Task[None]] = set()
        threads = set[str]()
        try:
            for item in self._limited(read_recordings(path)):
                if isinstance(item, BadLine):
                    self._finished(report, f"line {item.line}", item.problem)
                    continue
                while len(running) >= self.jobs:
                    running = await self._wait(running, report)
                thread_id = f"{name}:{item.id}" if item.id not in threads else f"{name}:{item.line}:{item.id}"
                threads.add(item.id)
                work = self._conversation(item, thread_id, store, report)
                running.add(asyncio.create_task(work, name=item.id))
            while running:
                running = await self._wait(running, report)
        except StoreUnavailableError:
            # The other tasks fail by themselves. Cancelling PyMongo in server selection may hang forever.
            await asyncio.gather(*running, return_exceptions=True)
            raise
        finally:
            await _cancel(running)
        return report

    def _limited(self, items: Iterator[Recording | BadLine]) -> Iterator[Recording | BadLine]:
        """Yield items up to the limit of conversations."""
        left = self.limit
        for item in items:
            yield item
            if left is not None and isinstance(item, Recording):
                left -= 1
                if not left:
                    return

    async def _conversation(
        self, recording: Recording, thread_id: str, shared: ConversationStore, report: FileReport
    ) -> None:
        async with self._store(shared) as store:
            chat = store.conversation(user_id=self.user_id, thread_id=thread_id)
            clean_up = not self.keep
            try:
                await ReplayRunner(chat, recording, report).play()
            except StoreUnavailableError:
                clean_up = False  # the server is gone: deleting would only wait for another timeout
                raise
            finally:
                if clean_up:
                    await chat.delete()

    @asynccontextmanager
    async def _store(self, shared: ConversationStore) -> AsyncIterator[ConversationStore]:
        """Yield the store for a conversation; in memory each gets its own, because that store scans all documents."""
        if not self.uri.startswith("memory://"):
            yield shared
            return
        async with open_store(self.uri, setup=True) as store:
            yield store

    async def _wait(self, running: set[asyncio.Task[None]], report: FileReport) -> set[asyncio.Task[None]]:
        """Wait until a conversation is finished; return the others."""
        done, rest = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            error = task.exception()
            if isinstance(error, StoreUnavailableError):
                raise error
            self._finished(report, task.get_name(), "" if error is None else _described(error))
        return rest

    def _finished(self, report: FileReport, conversation: str, problem: str) -> None:
        if problem:
            report.note(conversation, problem)
        self.on_conversation()


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel running tasks and wait for them, because each deletes its conversation."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _described(error: BaseException) -> str:
    """Describe an error on one line; for an unexpected one, which is a bug, with its location."""
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, ConvstoreError):
        return what
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{what} ({Path(last.filename).name}, line {last.lineno})"
