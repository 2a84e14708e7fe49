"""The page of one conversation: its messages in one column, with the form that the model got at the right edge.

Only a row whose message the model got in another form opens in two halves. Messages that one summary covers share a
row. A page of the log begins and ends between turns if possible.

The module is long because one page is one template, with a part for each kind of row.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from urllib.parse import quote, urlencode

from langchain_core.messages import AIMessage, BaseMessage
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from convstore import Conversation
from convstore.exceptions import CorruptDocumentError
from convstore.ext.inspector.call_page import calls_of, load_call, render_call
from convstore.ext.inspector.comparison import (
    LEGEND,
    AlignedRow,
    AlignedView,
    ShownForm,
    begins_turn,
)
from convstore.ext.inspector.damage import damaged_page, doctor_command
from convstore.ext.inspector.rendering import number_in
from convstore.ext.inspector.text import Body, body_of, first_line
from convstore.ext.model_calls import Calls, ToolCall, is_answer
from convstore.integration import TurnAccess
from convstore.messages.text import call_text
from convstore.sources.marks import marks_in
from convstore.types import StoredItem, StoredMessage, ToolRecord
from convstore.values.explanations import ADDED

_PAGE = 25
_SCANNED = 300
_COMPARED = 30
"""Number of messages before a page that are read, so that its first call can be compared with an earlier one."""
_LATER = 6
_LOG_BYTES = 700
_VIEW_BYTES = 600
_LINE = 160
_SHORT = 100
_ARGUMENTS = 160
_RESULT_TOKENS = 8_000
_RESULTS_TOKENS = 40_000
_TITLES = 2
_TOOLS = 20
_CALLS = 12
_ITEMS = 40
_NAME = re.compile(r"m?(?P<ordinal>\d{1,15})|\[(?P<source>\d{1,15})\]", re.ASCII)
"""The ordinal of a message, also in the form of notes (m12), or the number of a source in brackets."""
_ONLY_TEXT = frozenset({*ADDED, "summarised", "left_out"})
"""States of messages that the store wrote; their texts are shown exactly as the model gets them."""

_REWOUND = "Rewound or replaced"
"""Title of turns that views no longer show."""

_HALVES = frozenset({"stub", "shortened", "placeholder", "late"})
"""States of messages that the model got in another form than the stored one."""

_SAME = frozenset({"whole", "answer", "later"})
"""States of messages that the model got unchanged, wrote itself, or has not got yet."""

ROLES = {"user": "human", "model": "ai", "result": "tool", "system": "system"}
"""Types of messages by their names on pages."""


@dataclass(frozen=True, slots=True)
class _PrintedMessage:
    """A stored message, ready to print.

    Attributes:
        stored: The message.
        body: Its text.
        line: The beginning of its text in one line.
        tool: Name of its tool, for a result.
        calls: Its first tool calls, each with its text in one line.
        more_calls: Number of further calls.
        caller: Ordinal of the message with its call, for a result; 0 if it is not loaded.
        sources: Numbers of its sources.
        damage: The reason why a result cannot be read in full; "" if it can.
    """

    stored: StoredMessage
    body: Body
    line: str
    tool: str
    calls: list[tuple[str, ToolCall]]
    more_calls: int
    caller: int
    sources: list[int]
    damage: str = ""

    @property
    def is_folded(self) -> bool:
        """True for a system message or a result that takes more than a line."""
        is_long = bool(self.body.left) or any(
            "\n" in piece.text.strip() for piece in self.body.pieces
        )
        return self.stored.message.type in ("system", "tool") and (
            is_long or len(self.line) > _SHORT
        )


@dataclass(frozen=True, slots=True)
class _PageRow:
    """One row of the page: stored messages, and the text that the model got if it differs."""

    entries: list[_PrintedMessage]
    given: ShownForm
    view: Body | None
    is_open: bool = False

    @property
    def first(self) -> StoredMessage | None:
        """Its first stored message; None for a message that only the view has."""
        return self.entries[0].stored if self.entries else None

    @property
    def is_run(self) -> bool:
        """True for messages that the view leaves out together, or replaces by one summary."""
        return bool(self.entries) and self.given.state in ("summarised", "left_out")

    @property
    def tokens(self) -> int:
        """The stored size of its messages."""
        return sum(entry.stored.tokens for entry in self.entries)


@dataclass(slots=True)
class _TurnSection:
    """The rows of a turn, or rows without a title that do not belong to a turn."""

    title: str = ""
    lines: list[_PageRow] = field(default_factory=list)

    @property
    def entries(self) -> list[_PrintedMessage]:
        """The stored messages in it."""
        return [entry for line in self.lines for entry in line.entries]

    @property
    def is_rewound(self) -> bool:
        """True for turns that were completely rewound or replaced; they have no number."""
        return self.title == _REWOUND


@dataclass(frozen=True, slots=True)
class _LogPage:
    """A page of the log, and the ordinals from which the adjacent pages are read; None without an adjacent page."""

    stored: Sequence[StoredMessage]
    older: int | None
    newer: int | None

    def has(self, ordinal: int | None) -> bool:
        """Return True if the page has the message with an ordinal."""
        return any(stored.ordinal == ordinal for stored in self.stored)


async def conversation_page(request: Request, chat: Conversation) -> Response:
    """Return the page of a conversation for the next call or for an earlier message, with one page of its log."""
    if (name := request.query_params.get("go")) is not None:
        kept = {
            key: value for key, value in request.query_params.items() if key not in ("go", "as")
        }
        here = quote(request.path_params["conversation_id"])
        is_prompt = request.query_params.get("as") == "sent"
        address = await _address_of(chat, name.strip(), kept, is_prompt=is_prompt)
        return RedirectResponse(here + address, 303)
    try:
        return await _whole_page(request, chat)
    except CorruptDocumentError as error:
        return await damaged_page(request, chat, error)


async def _address_of(
    chat: Conversation, name: str, kept: Mapping[str, str], *, is_prompt: bool
) -> str:
    """Return the address, below the conversation's, of a message by its ordinal or id, or of a source as ``[194]``.

    With `is_prompt`, the address of the view that the model got for the message. HTTPException if the message does not
    exist.
    """
    named = _NAME.fullmatch(name)
    if named and named["source"]:
        return f"/sources/{named['source']}?{urlencode(kept)}"
    if named:
        ordinal = int(named["ordinal"])
    else:
        found = await chat.get_tool_messages([name]) if name else []
        if not found:
            raise HTTPException(404)
        ordinal = found[0].ordinal
    if is_prompt:
        return f"/sent?{urlencode({**kept, 'at': ordinal})}"
    return f"?{urlencode({**kept, 'after': max(0, ordinal - 4)})}#m{ordinal}"


async def _whole_page(request: Request, chat: Conversation) -> Response:
    calls = await calls_of(request, chat)
    choice = _choice(request)
    page = await _read(request, chat, calls, _SCANNED if choice else _PAGE)
    end = page.stored[-1].ordinal + 1 if page.stored else None
    view, number, variants = await asyncio.gather(
        load_call(request, chat, calls, before=end), _last_turn(chat, page), _variants(chat, page)
    )
    rows = view.rows(page.stored)
    if choice:
        page, rows = _filtered(page, rows, choice)
    lines = await _lines(chat, rows, calls)
    return await render_call(
        request,
        chat,
        "conversation",
        calls,
        view,
        sections=[_TurnSection(lines=lines)] if choice else _sections(lines, page.stored, number),
        page=page,
        older=view.older(page.stored[0].ordinal) if page.stored and not choice else [],
        items={} if choice else await _items(chat, page),
        most_items=_ITEMS,
        on_page={message.ordinal for row in rows for message in row.stored},
        cited_sources=await _cited_sources(chat, [each for row in rows for each in row.stored]),
        replaced=_replaced(page.stored),
        causes=await _causes(chat, page, calls),
        variants=variants,
        choice=choice,
        roles=ROLES,
        tools=_tools_of(calls),
        legend=_legend(lines),
        is_live=_is_live(page, view),
    )


def _is_live(page: _LogPage, view: AlignedView) -> bool:
    """Return True for the end of a log whose newest turn is running or waits for a person."""
    return page.newer is None and view.end is not None and view.end.status in ("running", "waiting")


@dataclass(frozen=True, slots=True)
class _AnswerPosition:
    """The position of an answer among variants: its number, 0 if hidden, their count, and the question's ordinal."""

    number: int
    count: int
    question: int


async def _variants(chat: Conversation, page: _LogPage) -> dict[int, _AnswerPosition]:
    """Return the positions of the answers on a page among the variants of their turns, by the answers' ordinals."""
    questions = {
        str(stored.message.id): stored.ordinal
        for stored in page.stored
        if begins_turn(stored) and not stored.is_rewound
    }
    found: dict[int, _AnswerPosition] = {}
    places = await TurnAccess(chat).at_places(list(questions)) if questions else {}
    for stored in page.stored:
        standing = places.get(stored.turn_id)
        if standing and is_answer(stored.message):
            number = 0 if stored.is_rewound else standing.shown.number
            question = questions[stored.turn_id]
            found[stored.ordinal] = _AnswerPosition(number, standing.variants, question)
    return found


async def _causes(chat: Conversation, page: _LogPage, calls: Calls) -> dict[int, str]:
    """Return the causes of the broken prompt caches of a page's calls, by the ordinals of the calls' answers."""
    if not page.stored or _is_near(page, calls):
        return dict(calls.cuts())
    earlier = await chat.list_messages(before=page.stored[0].ordinal, limit=_COMPARED, rewound=True)
    calls_of_page = Calls([*earlier, *page.stored], None)
    await calls_of_page.compare_views(chat)
    return dict(calls_of_page.cuts())


def _is_near(page: _LogPage, calls: Calls) -> bool:
    """Return True if `calls` has the calls of a page and enough calls before them to compare with."""
    if page.stored[-1].ordinal > calls.near[-1].ordinal:
        return False
    before = page.stored[0].ordinal - calls.near[0].ordinal
    return calls.has_beginning or before >= _COMPARED


def _filtered(
    page: _LogPage, rows: Sequence[AlignedRow], choice: tuple[str, str]
) -> tuple[_LogPage, list[AlignedRow]]:
    """Return the page and the last rows that pass a filter."""
    rows = [row for row in rows if _matches(row, choice)]
    if len(rows) > _PAGE:
        rows = rows[-_PAGE:]
        page = _LogPage(page.stored, rows[0].stored[0].ordinal, page.newer)
    return page, rows


def _legend(lines: Sequence[_PageRow]) -> dict[str, str]:
    """Return the meaning of each label on the page."""
    return {
        line.given.label: LEGEND[line.given.state][1]
        for line in lines
        if line.given.state in LEGEND
    }


async def _items(chat: Conversation, page: _LogPage) -> dict[int, list[StoredItem]]:
    """Return the first items of a page of the log, by the ordinal of the message that they follow."""
    found: dict[int, list[StoredItem]] = {}
    first = page.stored[0].ordinal if page.older else 0
    end = page.stored[-1].ordinal + 1 if page.newer else None
    async with aclosing(chat.items(after=first, before=end)) as items:
        async for item in items:
            found.setdefault(item.after, []).append(item)
            if sum(map(len, found.values())) == _ITEMS:
                break
    return found


async def _last_turn(chat: Conversation, page: _LogPage) -> int | None:
    """Return the number of the last message's turn; None for a page inside a turn, which would have to be read."""
    if page.newer is None:
        return (await chat.info()).turns
    if all(message.message.type != "human" or message.is_rewound for message in page.stored):
        return None
    turns = await chat.outline(before=page.stored[-1].ordinal + 1, limit=1)
    return turns[-1].number if turns else 0


def _tools_of(calls: Calls) -> list[str]:
    """Return the names of the tools that were called near the selected message, if an address can contain them."""
    named = {
        call["name"] for stored in calls.near for call in getattr(stored.message, "tool_calls", ())
    }
    return sorted(name for name in named if name.isprintable())[:_TOOLS]


async def _read(request: Request, chat: Conversation, calls: Calls, limit: int) -> _LogPage:
    """Return the page of the log from the address: before or after an ordinal, else near ``at=``, else the end."""
    before = number_in(request, "before")
    after = number_in(request, "after")
    if before is None and after is not None:
        return await _read_after(chat, after, limit)
    end = before
    if not end and calls.moment:
        end = calls.moment.ordinal + _LATER
    stored = await chat.list_messages(before=end, limit=limit + 1, rewound=True)
    shown = _from_turn(stored[-limit:]) if len(stored) > limit else stored
    if not shown:
        return _LogPage(shown, None, None)
    last = shown[-1].ordinal
    has_newer = before is not None or last < calls.near[-1].ordinal
    older = shown[0].ordinal if len(stored) > len(shown) else None
    return _LogPage(shown, older, last if has_newer else None)


async def _read_after(chat: Conversation, after: int, limit: int) -> _LogPage:
    """Return the page of the log after an ordinal."""
    stored = await chat.list_messages(after=after, limit=limit + 1, rewound=True)
    shown = _until_turn(stored[:limit]) if len(stored) > limit else stored
    if not shown:
        return _LogPage(shown, None, None)
    older = shown[0].ordinal if shown[0].ordinal > 1 else None
    return _LogPage(shown, older, shown[-1].ordinal if len(stored) > len(shown) else None)


def _from_turn(stored: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
    """Leave out the messages before the first question, if the question is in the first half."""
    half = range(len(stored) // 2)
    return stored[next((index for index in half if begins_turn(stored[index])), 0) :]


def _until_turn(stored: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
    """Leave out the messages from the last question on, if the question is in the second half."""
    half = range(len(stored) - 1, len(stored) // 2, -1)
    return stored[: next((index for index in half if begins_turn(stored[index])), len(stored))]


def _choice(request: Request) -> tuple[str, str] | None:
    """Return the filter of the address, ``show=`` or ``tool=``, with its value; None without a filter."""
    query = request.query_params
    return next(((name, query[name][:200]) for name in ("show", "tool") if query.get(name)), None)


def _matches(row: AlignedRow, choice: tuple[str, str]) -> bool:
    """Return True if a row passes a filter."""
    kind, name = choice
    messages = [message.message for message in row.stored]
    if kind == "tool":
        return any(_is_of_tool(message, name) for message in messages)
    if name == "differs":
        return bool(row.stored) and row.given.state not in _SAME
    if name == "failed":
        return any(message.is_failed for message in row.stored)
    return any(message.type == ROLES.get(name) for message in messages)


def _is_of_tool(message: BaseMessage, name: str) -> bool:
    """Return True for a result of a tool, or a message that calls it."""
    if message.type == "tool":
        return message.name == name
    return any(call["name"] == name for call in getattr(message, "tool_calls", ()))


async def _lines(chat: Conversation, rows: Sequence[AlignedRow], calls: Calls) -> list[_PageRow]:
    records, damage = await _results(chat, [message for row in rows for message in row.stored])
    found = calls.tools()
    opened: set[str] = set()
    lines: list[_PageRow] = []
    for row in rows:
        entries = [_entry(message, records, found) for message in row.stored]
        entries = [
            replace(entry, damage=damage.get(str(entry.stored.message.id), "")) for entry in entries
        ]
        state = row.given.state
        message = row.given.message if state not in ("whole", "answer") else None
        shown = None
        if message is not None:
            shown = body_of(message, _VIEW_BYTES, is_plain=state in _ONLY_TEXT)
        lines.append(_PageRow(entries, row.given, shown, is_open=state in _HALVES - opened))
        opened.add(state)
    return lines


async def _results(
    chat: Conversation, shown: Sequence[StoredMessage]
) -> tuple[dict[str, ToolRecord], dict[str, str]]:
    """Return the tool results of a page in full, smaller ones first, up to a total size.

    The second value has the problem of each damaged result, with the command that checks it; the page shows these
    results as stubs.
    """
    tools = sorted(
        (result for result in shown if result.message.type == "tool"),
        key=lambda result: result.tokens,
    )
    ids: list[str] = []
    total = 0
    for message in tools:
        total += message.tokens
        if message.tokens > _RESULT_TOKENS or total > _RESULTS_TOKENS:
            break
        ids.append(str(message.message.id))
    try:
        return {record.tool_message_id: record for record in await chat.get_tool_messages(ids)}, {}
    except CorruptDocumentError:
        return await _sound_results(chat, ids)


async def _sound_results(
    chat: Conversation, ids: Sequence[str]
) -> tuple[dict[str, ToolRecord], dict[str, str]]:
    """Read results one by one, because one of them is damaged; the return value is that of `_results`."""
    records: dict[str, ToolRecord] = {}
    damage: dict[str, str] = {}
    for id_ in ids:
        try:
            records |= {
                record.tool_message_id: record for record in await chat.get_tool_messages([id_])
            }
        except CorruptDocumentError as error:
            damage[id_] = f"{error}. Check it: {doctor_command(chat)}"
    return records, damage


def _entry(
    stored: StoredMessage,
    records: Mapping[str, ToolRecord],
    tools: Mapping[tuple[int, str], ToolCall],
) -> _PrintedMessage:
    message = stored.message
    record = records.get(str(stored.message.id))
    numbers = [source.source_id for source in record.sources] if record else []
    whole = message if record is None else message.model_copy(update={"content": record.content})
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    lost = ToolCall(stored.ordinal)
    return _PrintedMessage(
        stored,
        body_of(whole, _LOG_BYTES, is_stored=True, with_calls=False),
        _line_of(record, first_line(whole, _LINE)),
        (record.tool if record else "") or message.name or "",
        [
            (call_text(call, _ARGUMENTS), tools.get((stored.ordinal, str(call["id"])), lost))
            for call in calls[:_CALLS]
        ],
        len(calls[_CALLS:]),
        tools.get((stored.ordinal, str(getattr(message, "tool_call_id", ""))), ToolCall(0)).caller,
        numbers,
    )


async def _cited_sources(
    chat: Conversation, stored: Sequence[StoredMessage]
) -> dict[int, dict[int, int]]:
    """Return the sources that answers cite, by the ordinals of the answers and the numbers in their texts."""
    marked = await asyncio.to_thread(_with_marks, stored)
    found = await asyncio.gather(*(_citations(chat, answer) for answer in marked))
    return {answer.ordinal: cited for answer, cited in zip(marked, found, strict=True)}


def _with_marks(stored: Sequence[StoredMessage]) -> list[StoredMessage]:
    """Return the answers with marks of citations. Slow for long answers."""
    answers = (message for message in stored if message.message.type == "ai")
    return [answer for answer in answers if any(True for _ in marks_in(answer.message.text))]


async def _citations(chat: Conversation, answer: StoredMessage) -> dict[int, int]:
    """Return the sources of an answer by their numbers in it; {} if a result of its turn is damaged."""
    with suppress(CorruptDocumentError):  # the page shows the problem at the result itself
        return {
            citation.number: citation.source_id
            for citation in await chat.citations(answer.message)
            if citation.number is not None and citation.source_id is not None
        }
    return {}


def _replaced(stored: Sequence[StoredMessage]) -> dict[int, int]:
    """Map the first message of each rewound range to the message after the range, and the reverse, by their ordinals.

    Only pairs of two questions or two answers are included, as one replaced the other.
    """
    firsts = [next(run) for _, run in groupby(stored, key=lambda message: message.is_rewound)]
    pairs = [
        (first.ordinal, other.ordinal)
        for first, other in pairwise(firsts)
        if first.is_rewound
        and first is not stored[0]
        and first.message.type == other.message.type in ("human", "ai")
    ]
    return {**dict(pairs), **{other: first for first, other in pairs}}


def _line_of(record: ToolRecord | None, text: str) -> str:
    """Return the titles of a result's first sources; without titles, the text."""
    if record is None:
        return text
    shown = [source.title for source in record.sources[:_TITLES] if source.title]
    if not shown:
        return text
    if more := len(record.sources) - len(shown):
        shown.append(f"{more} more")
    return ", ".join(shown)


def _sections(
    lines: Sequence[_PageRow], stored: Sequence[StoredMessage], last: int | None
) -> list[_TurnSection]:
    """Divide rows into turns; `last` is the number of the last message's turn, None if it is not known."""
    title_of = _titles(stored, last)
    sections: list[_TurnSection] = []
    for line in lines:
        if not sections or _begins(line, sections[-1]):
            sections.append(_TurnSection(title_of(line)))
        elif sections[-1].is_rewound and _is_active_question(line):
            sections[-1].title = title_of(line)
        sections[-1].lines.append(line)
    return sections


def _titles(stored: Sequence[StoredMessage], last: int | None) -> Callable[[_PageRow], str]:
    """Return a function from the first row of a section to its title; `last` is as in `_sections`."""
    if last is None:
        return lambda _: "Turn, continued"
    active = [message for message in stored if not message.is_rewound]
    questions = [message.ordinal for message in active if begins_turn(message)]
    earlier = last - len(questions)
    return lambda line: _title(line, lambda ordinal: earlier + bisect_right(questions, ordinal))


def _begins(line: _PageRow, section: _TurnSection) -> bool:
    """Return True if a row begins a section: a question after rows that are not all rewound, and each row at a run."""
    if line.is_run or any(entry.is_run for entry in section.lines):
        return line.first is not None
    if section.is_rewound and line.first and not line.first.is_rewound:
        return not _is_active_question(line)
    is_rewound = all(entry.given.state == "rewound" for entry in section.lines)
    return line.first is not None and begins_turn(line.first) and not is_rewound


def _is_active_question(line: _PageRow) -> bool:
    return line.first is not None and begins_turn(line.first) and not line.first.is_rewound


def _title(line: _PageRow, turn_at: Callable[[int], int]) -> str:
    if line.first is None or line.first.message.type == "system":
        return ""
    if begins_turn(line.first) and line.first.is_rewound and not line.is_run:
        return _REWOUND
    first = turn_at(line.first.ordinal)
    last = turn_at(line.entries[-1].stored.ordinal)
    if last <= 0:
        return "Before the first turn"
    is_begun = line.first.message.type != "human" and not line.is_run
    if last > first:
        return f"Turns {max(first, 1)} to {last}"
    return f"Turn {last}{', continued' if is_begun else ''}"
