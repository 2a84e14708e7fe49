"""Writes conversations as JSON lines: in OpenAI's format, or in the lossless archive format.

Conversations are read one at a time, in pages, and each is written after it was read completely. So a long conversation
never has to fit in memory, and the output never has a partial conversation.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import IO, Any, Literal, TypeAlias

from convstore import (
    ConversationDeletedError,
    ConversationInfo,
    ConversationStore,
    ConvstoreError,
    InvalidInputError,
    StoreUnavailableError,
)
from convstore.edges import (
    check_store,
    each_conversation,
    with_children,
)
from convstore.exceptions import InvalidScopeError, StoreError
from convstore.integration import LogChanges, host_of, log_of
from convstore.transfer.archive import begin_line, end_line, item_line, message_line
from convstore.transfer.openai_lines import (
    as_training,
    openai_line,
    openai_message,
    training_problem,
)
from convstore.transfer.records import ExportReport, Problem
from convstore.values.models import Turn
from convstore.values.plain import counted, shown_value
from convstore.values.scope import PATH, check_number, check_partial_scope

ExportFormat: TypeAlias = Literal["convstore", "openai", "fine-tuning"]

_FORMATS = ("convstore", "openai", "fine-tuning")
_IN_MEMORY = 8 << 20
_COPY_BYTES = 1 << 20
_SKEW = timedelta(minutes=10)
"""Maximum clock difference between the machines that write to a database."""


async def export_conversations(
    store: ConversationStore,
    write: Callable[[bytes], object],
    *,
    format: ExportFormat = "convstore",  # noqa: A002 - the word for it
    scope: Mapping[str, str] | None = None,
    limit: int | None = None,
    on_problem: Callable[[Problem], object] = lambda _: None,
    on_conversation: Callable[[ExportReport], object] = lambda _: None,
) -> ExportReport:
    """Write every conversation, or those with some scope values, each as stored at the time when it is read.

    The conversations of sub-agents follow that of the agent that called them.

    - "convstore" is complete: messages with artifacts and ids, dates, source ids, rewinds, variants, events of turns,
      decisions about calls, items, titles, metadata, states and annotations. `read_file` and `import_conversations`
      restore all of it.
    - "openai" has one conversation a line, with its active messages, their ids and their fields in OpenAI's format.
    - "fine-tuning" only has finished turns that OpenAI's fine-tuning accepts. Other turns are left out and reported,
      and so are conversations without an answer.

    Fields that a format cannot store are reported. A conversation that cannot be read or written is left out and
    reported; one that is deleted meanwhile is skipped.

    Args:
        store: The store to read.
        write: Function that takes bytes, async or not, such as ``open(path, "wb").write``.
        format: "convstore", "openai" or "fine-tuning".
        scope: Values of some scope keys.
        limit: Maximum number of conversations to write, newest first, each with those of its sub-agents.
        on_problem: Called with each problem.
        on_conversation: Called with the report after each conversation.

    Raises:
        InvalidInputError: An argument is invalid.
        StoreUnavailableError: The server does not answer. Only complete conversations were written.
    """
    check_store(store)
    if format not in _FORMATS:
        raise InvalidInputError(
            f"format must be one of {', '.join(_FORMATS)}, not {shown_value(format)}"
        )
    if not callable(write):
        raise InvalidInputError(
            'write must be a function that takes bytes, such as open(path, "wb").write, '
            f"not {type(write).__name__}"
        )
    if limit is not None:
        check_number(limit, name="limit", minimum=1)
    partial = dict(check_partial_scope(store.scope_keys, scope or {}))
    report = ExportReport(on_problem=on_problem)
    work = _Export(store, report, format)
    written = 0
    async with aclosing(_conversations(store, partial)) as conversations:
        async for info in conversations:
            before = report.conversations
            async with aclosing(with_children(store, info)) as family:
                async for member in family:
                    await _export_conversation(work, member, write)
                    on_conversation(report)
            if report.conversations > before:
                written += 1
            if written == limit:
                break
    return report


async def _export_conversation(
    work: _Export, info: ConversationInfo, write: Callable[[bytes], object]
) -> None:
    """Write a conversation in pieces, after it was read completely."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
        if not await work.conversation(info, file):
            return
        work.report.size += file.tell()
        file.seek(0)
        while piece := file.read(_COPY_BYTES):
            done = write(piece)
            if isinstance(done, Awaitable):
                await done


async def _conversations(
    store: ConversationStore, scope: Mapping[str, str]
) -> AsyncGenerator[ConversationInfo, None]:
    """Yield every conversation that exists at the start once, and some conversations that are created meanwhile.

    Listings have the newest conversations first, so an append moves a conversation into the part that was listed
    already. Therefore the newest ones are listed again until no conversation was missed.
    """
    seen: set[bytes] = set()
    start: datetime | None = None
    missed = 1
    while missed:
        missed = 0
        is_first = start is None
        async with aclosing(_listed(store, scope, since=start and start - _SKEW)) as conversations:
            async for info in conversations:
                start = start or info.updated_at
                key = hashlib.sha256(json.dumps(info.scope, sort_keys=True).encode()).digest()
                if key not in seen:
                    seen.add(key)
                    missed += (
                        is_first or not (start and info.created_at) or info.created_at <= start
                    )
                    yield info


async def _listed(
    store: ConversationStore, scope: Mapping[str, str], *, since: datetime | None
) -> AsyncGenerator[ConversationInfo, None]:
    """Yield conversations, newest first, down to a date."""
    async with aclosing(each_conversation(store, scope)) as conversations:
        async for info in conversations:
            if since and info.updated_at and info.updated_at < since:
                return
            yield info


def _span(first: int, last: int) -> str:
    return f"message {first}" if first == last else f"messages {first}-{last}"


class _Export:
    def __init__(
        self, store: ConversationStore, report: ExportReport, format_: ExportFormat
    ) -> None:
        self._store = store
        self.report = report
        self._format = format_

    async def conversation(self, info: ConversationInfo, file: IO[bytes]) -> bool:
        """Write one conversation; return False if it was left out."""
        name = json.dumps(info.scope, ensure_ascii=False)
        try:
            if info.problem:
                raise StoreError(info.problem)
            if info.scope.keys() - {PATH} != set(self._store.scope_keys):
                keys = ", ".join(info.scope)
                raise InvalidScopeError(
                    f"its scope keys are {keys}; make the store with these (--scope-key, "
                    "once for each)"
                )
            if self._format == "convstore":
                messages = await self._whole(info, file, name)
            else:
                messages = await self._openai(info, file, name)
        except StoreUnavailableError:
            raise
        except ConversationDeletedError:
            return False
        except (ConvstoreError, ValueError) as error:
            self.report.note(Problem("conversation", name, name, str(error)))
            return False
        if messages is None:
            return False
        self.report.conversations += 1
        self.report.sub_agents += PATH in info.scope
        self.report.messages += messages
        return True

    async def _whole(self, info: ConversationInfo, file: IO[bytes], name: str) -> int | None:
        chat = self._store.conversation(**info.scope)
        codec = host_of(self._store).codec
        end = await log_of(chat).snapshot()
        if end is None:
            return None
        state = (await chat.state.get()).values
        file.write(begin_line(codec, info, state=state))
        changes = LogChanges(codec)
        turn: int | None = None
        # entries without messages are not counted, because an import writes its own
        messages = entry = last = 0
        async for item in log_of(chat).read(end, changes):
            messages += 1
            entry += item.entry != last
            last = item.entry
            file.write(message_line(codec, item, ordinal=messages, entry=entry, turn_before=turn))
            turn = item.turn
        async for other in log_of(chat).items():
            file.write(item_line(codec, other, after=min(other.after, messages)))
        for kind in sorted(changes.left_out):
            reason = (
                f"facts of the kind {kind!r} are left out: export them with the newer convstore"
            )
            self.report.note(Problem("changed", name, name, reason))
        file.write(
            end_line(
                messages=messages,
                rewound=changes.rewinds.gaps(messages),
                changes=changes.found,
                sources_through=end.sources_through,
                summaries=await chat.summaries(),
            )
        )
        return messages

    async def _openai(self, info: ConversationInfo, file: IO[bytes], name: str) -> int | None:
        work = _OpenAIConversation(info, file, is_training=self._format == "fine-tuning")
        skipped: list[Problem] = []
        async for turn in self._store.conversation(**info.scope).turns():
            if problem := work.add(turn):
                where = f"{_span(turn.first, turn.last)} of {name}"
                skipped.append(Problem("message", where, name, f"turn {turn.number}: {problem}"))
        if not work.messages and not skipped:
            return None
        if work.is_training and not work.answers:
            reason = skipped[0].reason if skipped else "it has no answer"
            raise ValueError(f"no turn of it can be used: {reason}")
        for left_out in skipped:
            self.report.note(left_out)
        work.end()
        if work.missing_fields:
            shown = ", ".join(work.counted_fields())
            self.report.note(
                Problem("changed", name, name, f"the format has no place for: {shown}")
            )
        return work.messages


class _OpenAIConversation:
    """Writes the turns of a conversation to a file as one line in OpenAI's format.

    Attributes:
        is_training: True for fine-tuning, which only accepts some turns and fields.
        messages: Number of messages written.
        answers: Number of answers among them.
        missing_fields: For each field that the format cannot store, the number of messages that have it.
    """

    def __init__(self, info: ConversationInfo, file: IO[bytes], *, is_training: bool) -> None:
        self._info = info
        self._file = file
        self.is_training = is_training
        self.messages = 0
        self.answers = 0
        self.missing_fields = Counter[str]()

    def add(self, turn: Turn) -> str:
        """Write a turn; if OpenAI's fine-tuning would reject it, return the reason instead, else ""."""
        messages: list[dict[str, Any]] = []
        missing_fields: list[str] = []
        for message in turn.messages:
            made, left_out = openai_message(message, bare=self.is_training)
            messages.append(as_training(made) if self.is_training else made)
            missing_fields += left_out
        if self.is_training:
            problem = training_problem(messages, needs_answer=turn.number > 0)
            if problem:
                return problem
        self.missing_fields.update(missing_fields)
        for made in messages:
            self._file.write(b", " if self.messages else self._begin())
            self._file.write(openai_line(made).rstrip(b"\n"))
            self.messages += 1
            if made["role"] == "assistant":
                self.answers += 1
        return ""

    def end(self) -> None:
        """Close the line."""
        self._file.write(b"]}\n")

    def counted_fields(self) -> list[str]:
        """Return the missing fields by name, each with its number of messages."""
        fields = sorted(self.missing_fields.items())
        return [f"{field} ({counted(number, 'message')})" for field, number in fields]

    def _begin(self) -> bytes:
        if self.is_training:
            return b'{"messages": ['
        info = self._info
        header: dict[str, Any] = {"id": list(info.scope.values())[-1], "scope": info.scope}
        if info.title is not None:
            header["title"] = info.title
        if info.created_at is not None:
            header["created_at"] = info.created_at.isoformat()
        if info.updated_at is not None:
            header["updated_at"] = info.updated_at.isoformat()
        if info.forked_from:
            header["forked_from"] = info.forked_from.model_dump()
        return openai_line(header).removesuffix(b"}\n") + b', "messages": ['
