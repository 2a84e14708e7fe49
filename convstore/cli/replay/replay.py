"""Replay files of recorded conversations against a store, several conversations at a time.

Floor 8. ``command`` runs it; a ``ReplayRunner`` replays each conversation. A failure in one conversation is a line of
the report and does not stop the others; a server that does not answer stops everything.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from convstore import ConversationStore, ConvstoreError, StoreUnavailableError
from convstore.cli.options import open_store
from convstore.cli.replay.report import FileReport
from convstore.cli.replay.runner import ReplayRunner
from convstore.transfer import BadRecord, ConversationRecord, read_file
from convstore.transfer.jobs import in_a_thread, location_of, run_each

__all__ = ["OnProgress", "Replay"]

OnProgress = Callable[[int, int], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One replay of files, a few conversations at a time; `keep` leaves them in the database.

    Their user id is new for each run, so that no other user's conversations are touched.
    """

    uri: str = field(repr=False)
    jobs: int = 4
    limit: int | None = None
    keep: bool = False
    user_id: str = field(default_factory=lambda: f"replay-{secrets.token_hex(8)}")

    async def files(self, paths: Sequence[Path], *, on_progress: OnProgress = lambda *_: None) -> list[FileReport]:
        """Replay files one after another; `on_progress` gets the bytes and the conversations of all files so far."""
        different = list(dict.fromkeys(paths))
        names = [path.name for path in different]
        if len(set(names)) != len(names):
            names = [str(path) for path in different]
        reports: list[FileReport] = []
        async with open_store(self.uri, setup=True) as store:
            for path, name in zip(different, names, strict=True):
                reports.append(FileReport(name))
                await self._file(path, reports, store, on_progress)
        return reports

    async def _file(
        self, path: Path, reports: Sequence[FileReport], store: ConversationStore, on_progress: OnProgress
    ) -> None:
        """Replay the conversations of a file, whose report is the last one."""
        report, ids = reports[-1], set[str]()
        size_before = sum(one.size for one in reports)

        def count(position: int) -> None:
            report.size = position
            on_progress(size_before + position, sum(one.conversations for one in reports))

        def records() -> Iterator[ConversationRecord]:
            left = self.limit
            for record in read_file(path, on_bytes=count):
                if isinstance(record, BadRecord):
                    report.note(record.where.removeprefix(f"{path.name}, "), record.problem)
                    continue
                yield record
                if left is not None and (left := left - 1) == 0:
                    return

        async def replay_one(record: ConversationRecord) -> None:
            is_known = record.id in ids
            ids.add(record.id)
            thread_id = f"{report.file}:{f'{record.where}:' if is_known else ''}{record.id}"
            await self._conversation(record, thread_id, store, report)

        await run_each(in_a_thread(records()), replay_one, jobs=self.jobs)

    async def _conversation(
        self, record: ConversationRecord, thread_id: str, shared: ConversationStore, report: FileReport
    ) -> None:
        """Replay one conversation and delete it; an error is noted in the report unless the server is gone."""
        try:
            async with self._store(shared) as store:
                chat = store.conversation(user_id=self.user_id, thread_id=thread_id)
                clean_up = not self.keep
                try:
                    await ReplayRunner(chat, record, report).play()
                except StoreUnavailableError:
                    clean_up = False  # the server is gone: deleting would only wait for another timeout
                    raise
                finally:
                    if clean_up:
                        await chat.delete()
        except StoreUnavailableError:
            raise
        except ConvstoreError as error:
            report.note(record.id, f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - a bug in the store; continue with the next conversation
            report.note(record.id, f"{type(error).__name__}: {error} ({location_of(error)})")

    def _store(self, shared: ConversationStore) -> AbstractAsyncContextManager[ConversationStore]:
        """Return the store for a conversation; in memory each gets its own, because that store scans all documents."""
        is_memory = self.uri.startswith("memory://")
        return open_store(self.uri, setup=True) if is_memory else nullcontext(shared)
