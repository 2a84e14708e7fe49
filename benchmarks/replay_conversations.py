"""Replay files of recorded conversations against a store, several conversations at a time.

A failure in one conversation is a line of the
report and does not stop the others; a server that does not answer stops everything.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from replay_assertions import (
    check_dict,
    check_left_out,
    check_log,
    check_read_back,
    check_records,
    fingerprint,
    is_beginning,
    unexplained_change,
)
from replay_pages import read_back
from replay_report import FileReport

from convstore import (
    Conversation,
    ConversationStore,
    ConvstoreError,
    History,
    HistoryPolicy,
    InvalidInputError,
    StoreUnavailableError,
)
from convstore.append.inputs import normalize_messages
from convstore.cli.options import open_store
from convstore.messages.text import text_of
from convstore.messages.tokens import CHARACTERS_PER_TOKEN
from convstore.readback.request import MAXIMUM_PAGE_TOKENS
from convstore.sources.detection import find_sources, parse_json
from convstore.sources.source import MAX_SOURCES
from convstore.sources.stub import PAGE_TOKENS
from convstore.testing.pairing import check_pairing
from convstore.transfer import BadRecord, ConversationRecord, read_file
from convstore.transfer.dicts import as_item
from convstore.transfer.jobs import each_of, location_of, run_each
from convstore.values.scope import MAX_IDS

_Result = TypeVar("_Result")
_Message = BaseMessage | dict[str, Any]
_BUDGET = HistoryPolicy().max_tokens or sys.maxsize
_CLOSING: dict[str, Any] = {"role": "user", "content": "Thank you. Where did you find that?"}


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

    async def files(
        self, paths: Sequence[Path], *, on_progress: Callable[[int, int], object] = lambda *_: None
    ) -> list[FileReport]:
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
        self,
        path: Path,
        reports: Sequence[FileReport],
        store: ConversationStore,
        on_progress: Callable[[int, int], object],
    ) -> None:
        """Replay the conversations of a file, whose report is the last one."""
        report = reports[-1]
        ids = set[str]()
        size_before = sum(earlier.size for earlier in reports)

        def count(position: int) -> None:
            report.size = position
            on_progress(size_before + position, sum(known.conversations for known in reports))

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

        await run_each(each_of(records()), replay_one, jobs=self.jobs)

    async def _conversation(
        self,
        record: ConversationRecord,
        thread_id: str,
        shared: ConversationStore,
        report: FileReport,
    ) -> None:
        """Replay one conversation and delete it; an error is noted in the report unless the server is gone."""
        try:
            async with self._store(shared) as store:
                chat = store.conversation(user_id=self.user_id, thread_id=thread_id)
                clean_up = not self.keep
                try:
                    await _ReplayRunner(chat, record, report).play()
                except StoreUnavailableError:
                    # the server is gone: deleting would only wait for another timeout
                    clean_up = False
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


@dataclass(slots=True)
class _ReplayRunner:
    """Replay of one conversation, as an agent backend would do it: its record into an empty one.

    The human message of a turn is appended, the view is loaded for the model, the rest of the turn is appended. A
    closing question of our own makes the last turn an earlier one too. `last` is the newest view, also as text.
    """

    chat: Conversation
    record: ConversationRecord
    report: FileReport
    appended: dict[str, BaseMessage] = field(default_factory=dict)
    views: int = 0
    last: tuple[History, list[str]] | None = None

    async def play(self) -> None:
        """Append and load turn by turn, then check everything; problems are reported, not raised."""
        self.report.conversations += 1
        for turn in _turns(self.record):
            await self._turn(turn)
            self.report.messages += len(turn)
        history = await self._ask(_CLOSING)
        await self._check_log()
        await self._check_sources()
        await self._check_read_back({*self._results(), *history.report.placeholders})

    async def _turn(self, turn: list[_Message]) -> None:
        rest = turn
        if _is_question(turn[0]):
            await self._ask(turn[0])
            rest = turn[1:]
        if rest:
            await self._append(rest)

    async def _ask(self, question: _Message) -> History:
        """Append a human message and load the view that a model would get."""
        await self._append([question])
        history = await self._timed(self.chat.load_history(HistoryPolicy()), self.report.load_ms)
        self.views += 1
        self.report.loads += 1
        self.report.tokens_full += history.report.tokens_before
        self.report.tokens_loaded += history.tokens
        problems = check_pairing(history.messages) + check_left_out(
            self.appended, history, budget=_BUDGET
        )
        self._note([f"view {self.views}: {problem}" for problem in problems])
        self._measure_context(history.messages)
        self._compare_with_view_before(history)
        return history

    async def _append(self, batch: Sequence[Any]) -> None:
        key = f"{len(self.appended)}"
        wanted = normalize_messages(batch, key=key)
        for raw, message in zip(batch, wanted, strict=True):
            if isinstance(raw, dict):
                self._note(check_dict(raw, message))
        receipt = await self._timed(self.chat.append(batch, key=key), self.report.append_ms)
        if receipt.written != len(batch):
            self._note([f"{receipt.written} of {len(batch)} messages were written"])
        self.appended.update((str(message.id), message) for message in wanted)

    def _measure_context(self, view: Sequence[BaseMessage]) -> None:
        """Add up the results of earlier turns, in full and as shown; the view ends with a new human message."""
        for message in view:
            if isinstance(message, ToolMessage) and message.id in self.appended:
                self.report.context_full += len(text_of(self.appended[message.id].content))
                self.report.context_shown += len(text_of(message.content))

    def _compare_with_view_before(self, history: History) -> None:
        now = [fingerprint(message) for message in history.messages]
        if self.last is not None:
            old, prints = self.last
            self.report.prefixes += 1
            self.report.stable += is_beginning(prints, now)
            index = unexplained_change(old, history)
            if index is not None:
                self._note([f"view {self.views}: message {index} is not that of the view before"])
        self.last = history, now

    async def _check_log(self) -> None:
        self._note(
            check_log(
                list(self.appended.values()), [message async for message in self.chat.messages()]
            )
        )
        results = list(self._results().items())
        for start in range(0, len(results), MAX_IDS):
            asked = dict(results[start : start + MAX_IDS])
            self._note(
                check_records(list(asked.values()), await self.chat.get_tool_messages(list(asked)))
            )

    async def _check_sources(self) -> None:
        found_in = (
            find_sources(result, parse_json(text_of(result.content)))
            for result in self._results().values()
        )
        wanted = [source.text for found in found_in for source in found.items]
        self.report.sources += len(wanted)
        found: dict[int, str] = {}
        for start in range(1, len(wanted) + 1, MAX_SOURCES):
            numbers = range(start, min(start + MAX_SOURCES, len(wanted) + 1))
            cursor = ""
            while True:
                page = await self.chat.get_sources(
                    numbers, cursor=cursor, page_tokens=MAXIMUM_PAGE_TOKENS
                )
                for source in page.sources:
                    found[source.source_id] = found.get(source.source_id, "") + source.content
                if page.next_cursor is None:
                    break
                cursor = page.next_cursor
        wrong = [
            number for number, text in enumerate(wanted, 1) if text and found.get(number) != text
        ]
        self._note(
            [
                f"source {number}, read by its number, is not what its tool returned"
                for number in wrong
            ]
        )

    async def _check_read_back(self, ids: set[str]) -> None:
        """Read every tool result, and every message with placeholders, through the tool."""
        tool = self.chat.retrieve_previous_sources_tool(artifact=True)
        for id_ in sorted(ids & self.appended.keys()):
            found = await read_back(tool, id_)
            maximum = PAGE_TOKENS * CHARACTERS_PER_TOKEN
            problems, lost = check_read_back(self.appended[id_], found, maximum=maximum)
            self.report.pages += found.pages
            self.report.unreachable += lost
            self._note(problems)

    def _results(self) -> dict[str, ToolMessage]:
        return {
            id_: message
            for id_, message in self.appended.items()
            if isinstance(message, ToolMessage)
        }

    def _note(self, problems: Sequence[str]) -> None:
        for problem in problems:
            self.report.note(self.record.id, problem)

    async def _timed(self, work: Awaitable[_Result], times: list[float]) -> _Result:
        start = perf_counter()
        result = await work
        times.append((perf_counter() - start) * 1_000)
        return result


def _turns(record: ConversationRecord) -> Iterator[list[_Message]]:
    """Cut messages before each question; messages before the first one are a turn."""
    turn: list[_Message] = []
    for given in record.messages:
        item = as_item(given)
        if item.message is None:
            raise InvalidInputError(f"{item.where}: {item.problem}")
        message = item.message if isinstance(item.message, BaseMessage) else dict(item.message)
        if turn and _is_question(message):
            yield turn
            turn = []
        turn.append(message)
    if turn:
        yield turn


def _is_question(message: _Message) -> bool:
    return (
        message.get("role") == "user"
        if isinstance(message, dict)
        else isinstance(message, HumanMessage)
    )
