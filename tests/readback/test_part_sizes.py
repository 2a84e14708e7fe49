"""A result is read back whole at every size at which one of its parts moves between the entry and the payload."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore
from convstore.append import batch
from convstore.exceptions import ConvstoreError
from convstore.messages.compression import chunk_ends
from convstore.messages.encoding import PART_MINIMUM, RESULT_MINIMUM, SMALLEST_PART
from convstore.messages.values import Codec
from convstore.readback import passages

SMALL = 40
SOURCES = ("list", "scored", "wrapped", "pairs", "documents", "columns", "content")
FITTING = ("none", "list", "scored", "pairs", "documents")
"""Artifacts that are as large as their sources."""
SHAPES = ("none", "note", *SOURCES)
FAILURES = (AssertionError, AttributeError, ConvstoreError)
WORDS = ("mycontent", "mynote", "myfield", "mysource")
HEADER = re.compile(r"(?:^|\n)(.*), characters (\d+)-(\d+) of (\d+)\n")


class Sizes(NamedTuple):
    """The characters of each part of a result.

    `shape` is the form of its artifact; "content" has the sources in the content. `source` is the size of each of
    `sources` texts, `field` that of another large field.
    """

    shape: str
    content: int = SMALL
    artifact: int = SMALL
    source: int = SMALL
    sources: int = 1
    field: int = 0


@dataclass
class Case:
    """A result with the text of each of its parts, and the texts of its sources in order."""

    sizes: Sizes
    message: ToolMessage
    parts: dict[str, str]
    sources: list[str] = field(default_factory=list)


def text_of(name: str, size: int) -> str:
    """Return a text of a size, of its own words, which ends with a name."""
    rest = max(size - len(name), 0)
    word = f"{name[::-1]} "
    return (word * (rest // len(word) + 1))[:rest] + name[:size]


def case_of(number: int, sizes: Sizes) -> Case:
    """Return a result with parts of these sizes; each text has words of its own."""
    texts = [text_of(f"mysource{number}x{n}", sizes.source) for n in range(sizes.sources)]
    items = [
        {"title": f"T{number} {n}", "url": f"https://a/{n}", "content": text}
        for n, text in enumerate(texts)
    ]
    labels = [{"title": item["title"], "url": item["url"]} for item in items]
    scored = [{**item, "score": 0.5, "author": "A"} for item in items]
    forms: dict[str, Any] = {
        "none": None,
        "note": {},
        "list": items,
        "scored": scored,
        "wrapped": {"results": items},
        "pairs": list(zip(texts, labels, strict=True)),
        "documents": [
            Document(text, metadata=label) for text, label in zip(texts, labels, strict=True)
        ],
        "columns": {
            "ids": [item["url"] for item in items],
            "documents": texts,
            "metadatas": labels,
        },
        "content": {},
    }
    artifact = forms[sizes.shape]
    parts = dict[str, str]()
    if isinstance(artifact, dict):
        missing = sizes.artifact - len(Codec().encode({**artifact, "note": ""}))
        parts["note"] = text_of(f"mynote{number}", max(missing, len(f"mynote{number}")))
        artifact = {**artifact, "note": parts["note"]}
    content = parts["content"] = text_of(f"mycontent{number}", sizes.content)
    if sizes.shape == "content":
        missing = sizes.content - len(json.dumps({"results": items, "more": ""}))
        parts["content"] = text_of(f"mycontent{number}", max(missing, len(f"mycontent{number}")))
        content = json.dumps({"results": items, "more": parts["content"]})
    parts["field"] = text_of(f"myfield{number}", sizes.field)
    message = ToolMessage(
        content,
        id=f"result-{number}",
        name="search",
        tool_call_id=f"call-{number}",
        artifact=artifact,
        additional_kwargs={"more": parts["field"]} if sizes.field else {},
    )
    return Case(sizes, message, parts, texts if sizes.shape in SOURCES else [])


async def passages_in(chat: Conversation, page_tokens: int, **asked: Any) -> dict[str, str]:
    """Return the text of each passage on all pages that the tool answers with, by its label."""
    tool = chat.retrieve_previous_sources_tool(page_tokens=page_tokens, artifact=True)
    found = dict[str, str]()
    cursor: str | None = ""
    cursors = set[str | None]()
    while cursor is not None:
        call = {
            "type": "tool_call",
            "id": "c",
            "name": tool.name,
            "args": {**asked, "cursor": cursor},
        }
        page = await tool.ainvoke(call)
        position = 0
        while header := HEADER.match(page.content, position):
            label, start, end = header[1], int(header[2]), int(header[3])
            assert len(found.setdefault(label, "")) == start or asked.get("find")
            position = header.end() + end - start
            found[label] += page.content[header.end() : position]
        cursor = page.artifact.next_cursor
        assert cursor not in cursors
        cursors.add(cursor)
    return found


async def check(chat: Conversation, cases: Sequence[Case]) -> None:
    """Read results by their ids, their numbers and their words, on large pages and on small ones."""
    ids, texts = (
        [str(case.message.id) for case in cases],
        [text for case in cases for text in case.sources],
    )
    parts = [text for case in cases for text in case.parts.values()]
    records = await chat.get_tool_messages(ids)
    assert [(record.content, record.artifact) for record in records] == [
        (case.message.content, case.message.artifact) for case in cases
    ]
    sources = [source for record in records for source in record.sources]
    assert [source.content for source in sources] == texts

    whole = await passages_in(chat, 16_000, tool_message_ids=ids)
    shown = "\n".join(whole.values())
    assert [text for text in (*parts, *texts) if text not in shown] == []
    assert await passages_in(chat, 1_500, tool_message_ids=ids) == whole

    numbers = [source.source_id for source in sources]
    for page_tokens in (16_000, 1_500) if numbers else ():
        named = await passages_in(chat, page_tokens, source_ids=numbers)
        assert [
            text for text, read in zip(texts, named.values(), strict=True) if text not in read
        ] == []
    for word in WORDS:
        found = await passages_in(chat, 16_000, tool_message_ids=ids, find=word)
        assert sum(word in text for text in whole.values()) == len(found), word


async def check_all(store: ConversationStore, sizes: Iterable[Sizes], *, at_once: int = 10) -> None:
    """Append results with parts of these sizes, some turns to a conversation, and read all of them back."""
    each = [case_of(number, each_size) for number, each_size in enumerate(sizes)]
    wrong = list[tuple[Sizes, str]]()
    for first in range(0, len(each), at_once):
        chat = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
        cases, messages = each[first : first + at_once], list[Any]()
        for case in cases:
            call = {"name": "search", "args": {}, "id": case.message.tool_call_id}
            messages += [
                HumanMessage("q"),
                AIMessage("", tool_calls=[call]),
                case.message,
                AIMessage("a"),
            ]
        await chat.append(messages)
        try:
            await check(chat, cases)
        except FAILURES:
            wrong += [
                (case.sizes, problem) for case in cases if (problem := await problem_of(chat, case))
            ]
            if not wrong:
                raise
    assert not wrong, (len(wrong), wrong[:9])


async def problem_of(chat: Conversation, case: Case) -> str:
    """Return the failure to read one result, "" if it is read alone."""
    try:
        await check(chat, [case])
    except FAILURES as error:
        return repr(error)[:200]
    return ""


def combinations(
    shape: str, around: Sequence[int], fields: Sequence[int], *, pairs: bool = False
) -> Iterator[Sizes]:
    """Yield combinations of the sizes of parts, around the sizes at which they move.

    These are all combinations of content, artifact, sources and their number, each with one of the sizes of the other
    field; with `pairs` a few, in which each size of a part occurs with each size of each other part.
    """
    sizes, content = (SMALL, *around), (0, SMALL, *around)
    artifact = (SMALL,) if shape in FITTING else sizes
    source = content if shape in SOURCES else (0,)
    # nine copies move, one does not
    counts = {"columns": (1, 9), "none": (0,), "note": (0,)}.get(shape, (1, 3))
    for c, a, s, n in product(*map(range, map(len, (content, artifact, source, counts)))):
        chosen = fields if shape not in SOURCES else [fields[(c + a + s + n) % len(fields)]]
        is_pair = a == (c + s) % len(artifact) and n == (c // 2 + s) % len(counts)
        if is_pair or not pairs or shape not in SOURCES:
            parts = (content[c], artifact[a], source[s], counts[n])
            yield from (Sizes(shape, *parts, field) for field in chosen)


QUICK = [
    Sizes("pairs", content=2_000),
    Sizes("list", content=2_000, source=RESULT_MINIMUM),
    Sizes("wrapped", content=0, artifact=RESULT_MINIMUM),
    Sizes("content", content=RESULT_MINIMUM, artifact=RESULT_MINIMUM),
    Sizes("columns", sources=9, field=PART_MINIMUM),
    Sizes("columns", content=RESULT_MINIMUM, source=0, sources=2),
]


async def test_a_result_is_read_back_whole(store: ConversationStore) -> None:
    """Each part is read by id, number, words and cursor, whatever part of it stands in the entry."""
    await check_all(store, QUICK)


CHANGES = [
    "nothing",
    "small parts",
    "small chunks",
    "large payloads",
    pytest.param("every combination", marks=pytest.mark.soak),
]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("change", CHANGES)
async def test_a_result_is_read_back_whole_at_every_size(
    store: ConversationStore, shape: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Likewise in pairs of sizes, in a crowded entry, in payloads of many chunks and in large ones; all as soak."""
    around, fields = [RESULT_MINIMUM - 1, RESULT_MINIMUM], [0, PART_MINIMUM]
    if change == "small parts":  # the entry would be too large, so its smallest parts move
        monkeypatch.setattr(batch, "_ENTRY_BYTES", 0)
        around, fields = [SMALLEST_PART, RESULT_MINIMUM], [0]
    elif change == "small chunks":
        monkeypatch.setattr(batch, "chunk_ends", partial(chunk_ends, size=700))
        around, fields = [700, 1_400], [0]
    elif change == "large payloads":  # which are not compared
        monkeypatch.setattr(passages, "_MAX_COMPARED", 2_000)
        around, fields = [1_501, 2_001], [0]
    await check_all(store, combinations(shape, around, fields, pairs=change != "every combination"))
