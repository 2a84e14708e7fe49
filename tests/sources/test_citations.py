"""Numbers of sources under load: random agents share one conversation, and whatever a model cited stays what it was.

The agents call tools in parallel, number sources in every way there is, repeat appends, cancel them in the middle,
retrieve the same documents again and rewind. Started as a program this is one process of several that do so.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Client
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool
from mongomock_motor import AsyncMongoMockClient
from properties import examples
from pymongo import AsyncMongoClient

from convstore import Conversation, ConversationStore, Receipt, Source
from convstore.exceptions import MessageRewoundError, SourceIdClashError
from convstore.messages.text import fold
from convstore.readback import pager
from convstore.readback.text_search import matches
from convstore.testing.samples import SHARED_FIXTURES

DOCUMENTS = 90
STORES = 3
PROCESSES, TURNS = 3, 12
_HEADER = re.compile(r"(?:\[(\d+)\] )?[^\n]*, characters (\d+)-(\d+) of (\d+)\n")
_LAST = re.compile(r'End\.|More: cursor="([^"\n]+)"; call again with this cursor alone\.')

seeds = st.integers(0, 2**32)
few = examples(5, suppress_health_check=SHARED_FIXTURES)
several = examples(8, suppress_health_check=SHARED_FIXTURES)


def text_of(document: int) -> str:
    """The text of a document: short or long, with lines that could pass for those of a page; no two are equal."""
    dice = random.Random(document)
    size = dice.choice([20, 80, 300, 1_500, 4_000, 9_000])
    signs = ["word ", "\n", "Ünï ", "🐋", '\nMore: cursor="1@0"\n', "\n[1] x, characters 0-1 of 1\n", "\x00", "End."]
    signs += ["\ud800"] if document % 9 == 0 else []
    return f"Document {document}.{'' if dice.random() < 0.5 else ' '}" + "".join(
        dice.choice(signs) if dice.random() < 0.2 else "fish " for _ in range(size // 5)
    )


def title_of(document: int) -> str:
    """The title of a document: one line or more, some longer than a small page."""
    return f"Title {document}" + (", or\nThere and Back Again" * 30 if document % 4 == 0 else "")


TEXTS = {text_of(document): document for document in range(DOCUMENTS)}


def result_of(form: str, found: Sequence[tuple[int, int | None]], **fields: Any) -> ToolMessage:
    """A tool result with some documents, each with the number it came with, in one of the forms that tools use."""
    said = [
        {"title": title_of(document), **({"source_id": number} if number is not None else {})}
        for document, number in found
    ]
    texts = [text_of(document) for document, _ in found]
    dicts = [{**one, "content": text} for one, text in zip(said, texts, strict=True)]
    if form == "documents" and not any("\ud800" in text for text in texts):
        documents = [Document(page_content=text, metadata=one) for one, text in zip(said, texts, strict=True)]
        return ToolMessage(f"{len(found)} hits", artifact=documents, **fields)
    if form == "json":
        return ToolMessage(json.dumps({"results": dicts}), **fields)
    artifact = {"pairs": list(zip(texts, said, strict=True)), "results": {"took": 7, "results": dicts}}.get(form, dicts)
    return ToolMessage("found " * 40, artifact=artifact, **fields)


@dataclass
class Agent:
    """Works on one conversation through several stores, and records its appends and their receipts."""

    name: str
    dice: random.Random
    chats: Sequence[Conversation]
    given: dict[str, list[tuple[int, int | None]]] = field(default_factory=dict)
    receipts: list[tuple[list[str], Receipt, bool]] = field(default_factory=list)
    rewound: set[str] = field(default_factory=set)
    questions: list[str] = field(default_factory=list)
    seen: set[tuple[int, int, str]] = field(default_factory=set)
    count: int = 0

    @property
    def chat(self) -> Conversation:
        """The conversation as one of the stores has it."""
        return self.dice.choice(self.chats)

    def new_id(self, kind: str) -> str:
        """Return an id for a message that names its agent."""
        self.count += 1
        return f"{self.name}-{kind}-{self.count}"

    async def result(self, call: str) -> ToolMessage:
        """A result with one to six documents, numbered in one of the ways that tools number them."""
        dice = self.dice
        found = [dice.randrange(DOCUMENTS) for _ in range(dice.randint(1, 6))]
        numbers: list[int | None] = [None] * len(found)
        way = dice.choice(["missing", "counted", "counted", "reserved", "some"])
        if way == "counted":
            numbers = list(range(1, len(found) + 1))
        elif way == "reserved":
            numbers = list(await self.chat.reserve_source_ids(len(found)))
        elif way == "some":
            numbers = [dice.choice([None, dice.randint(1, 60)]) for _ in found]
        id_ = self.new_id("result")
        self.given[id_] = list(zip(found, numbers, strict=True))
        form = dice.choice(["documents", "pairs", "dicts", "results", "json"])
        return result_of(form, self.given[id_], id=id_, tool_call_id=call, name="search")

    async def append(self, messages: Sequence[BaseMessage]) -> None:
        """Append until it is acknowledged; perhaps cancelled first, perhaps repeated afterwards."""
        cancelled = self.dice.random() < 0.2
        if cancelled:
            try:
                async with asyncio.timeout(self.dice.uniform(0, 0.004)):
                    await self.chat.append(messages, on_source_clash="renumber")
            except TimeoutError:
                pass
        try:
            receipt = await self.chat.append(messages, on_source_clash="renumber")
            self.receipts.append(([str(message.id) for message in messages], receipt, cancelled))
            if self.dice.random() < 0.2:
                again = await self.chat.append(messages, on_source_clash="renumber")
                assert (again.written, again.source_ids) == (0, None)
                assert (again.ordinals, again.renumbered) == (receipt.ordinals, receipt.renumbered)
        except MessageRewoundError:  # by another agent, between the first try and the repetition
            self.rewound |= {str(message.id) for message in messages}

    async def turn(self) -> None:
        """A question, some calls at once, their results in one batch or one by one from several stores, an answer."""
        calls = [f"call-{index}" for index in range(self.dice.randint(1, 3))]  # the same ids in every turn
        asked = HumanMessage("Where are whales?", id=self.new_id("question"))
        called = AIMessage(
            "", id=self.new_id("call"), tool_calls=[{"name": "search", "args": {}, "id": call} for call in calls]
        )
        results = [await self.result(call) for call in calls]
        answer = AIMessage("There.", id=self.new_id("answer"))
        if self.dice.random() < 0.4:
            await self.append([asked, called, *results, answer])
        else:
            await self.append([asked, called])
            await asyncio.gather(*(self.append([result]) for result in results))
            await self.append([answer])
        self.questions.append(str(asked.id))

    async def step(self) -> None:
        """Mostly a turn; else a rewind, or one taken back, or a result that is refused."""
        step = self.dice.choice(["turn", "turn", "turn", "rewind", "undo", "refused"])
        if step == "rewind" and self.questions:
            await self.chat.rewind(before=self.dice.choice(self.questions))
        elif step == "undo":
            await self.chat.undo_rewind()
        elif step == "refused" and self.seen:
            taken = self.dice.choice(sorted(self.seen))[0]
            with pytest.raises(SourceIdClashError):
                await self.chat.append(
                    result_of("dicts", [(0, taken)], id=self.new_id("refused"), tool_call_id="call-0")
                )
        else:
            await self.turn()
        await self.look()

    async def look(self) -> None:
        """Note what some numbers name now."""
        numbers = self.dice.sample(range(1, 100), 30) + [number for number, _, _ in self.seen]
        self.seen |= await named(self.chat, numbers)


async def named(chat: Conversation, numbers: Sequence[int]) -> set[tuple[int, int, str]]:
    """Return the documents and messages that some numbers name."""
    found, cursor = set(), ""
    numbers = list(dict.fromkeys(numbers))
    while True:
        page = await chat.get_sources(numbers, cursor=cursor, page_tokens=16_000)
        for source in page.sources:
            if start := re.match(r"Document (\d+)\.", source.content):
                found.add((source.source_id, int(start[1]), source.tool_message_id))
        if page.next_cursor is None:
            return found
        cursor = page.next_cursor


@dataclass
class World:
    """A conversation in which agents worked."""

    chats: list[Conversation]
    agents: list[Agent]
    log: list[BaseMessage]
    sources: list[Source]

    @property
    def given(self) -> dict[str, list[tuple[int, int | None]]]:
        """By tool message what each of its sources came with."""
        return {id_: found for agent in self.agents for id_, found in agent.given.items()}


Play = Callable[[int], Awaitable[World]]


@pytest.fixture(params=["server", pytest.param("memory", marks=pytest.mark.slow)])
async def play(request: pytest.FixtureRequest, pymongo_client: Client, database_name: str) -> Play:
    """Lets two agents work in a new conversation of the real server, or of one in memory."""
    database: Any = pymongo_client[database_name]
    if request.param == "memory":
        database = AsyncMongoMockClient()["citations"]
    await ConversationStore(database).setup()

    async def play(seed: int) -> World:
        dice = random.Random(seed)
        thread = uuid.uuid4().hex
        chats = [ConversationStore(database).conversation(user_id="a", thread_id=thread) for _ in range(STORES)]
        agents = [Agent(f"{thread[:6]}{name}", random.Random(dice.random()), chats) for name in "ab"]

        async def work(agent: Agent, steps: int) -> None:
            for _ in range(steps):
                await agent.step()

        await asyncio.gather(*(work(agent, dice.randint(1, 5)) for agent in agents))
        cold = ConversationStore(database).conversation(user_id="a", thread_id=thread)
        log = [message async for message in cold.messages()]
        return World([*chats, cold], agents, log, await sources_in(cold, log))

    return play


async def sources_in(chat: Conversation, log: Sequence[BaseMessage]) -> list[Source]:
    """All sources of a conversation in the order of its log."""
    ids = [str(message.id) for message in log]
    records = [
        record for index in range(0, len(ids), 200) for record in await chat.get_tool_messages(ids[index : index + 200])
    ]
    return [source for record in records for source in record.sources]


def assert_named_once(seen: set[tuple[int, int, str]], sources: Sequence[Source]) -> None:
    """Each number names the same source at every moment and in the final log, and no two sources."""
    numbers = [source.source_id for source in sources]
    assert len(numbers) == len(set(numbers)), "two sources have one number"
    final = {(source.source_id, TEXTS[source.content], source.tool_message_id) for source in sources}
    assert seen <= final, f"other sources had these numbers: {seen - final}"


@several
@given(seeds)
async def test_a_number_names_one_source_for_ever(play: Play, seed: int) -> None:
    """The same text and message at every moment, for every store, for one that comes later, and rewound or not."""
    world = await play(seed)
    assert_named_once({seen for agent in world.agents for seen in agent.seen}, world.sources)
    final = {(source.source_id, TEXTS[source.content], source.tool_message_id) for source in world.sources}
    for chat in world.chats:
        assert await named(chat, [number for number, _, _ in final]) == final


@several
@given(seeds)
async def test_every_result_has_the_sources_that_its_tool_gave(play: Play, seed: int) -> None:
    """All of them, in order, whole, with their titles; nothing is lost or there twice, however often it is repeated."""
    world = await play(seed)
    expected = [
        (str(message.id), text_of(document), title_of(document))
        for message in world.log
        for document, _ in world.given.get(str(message.id), ())
    ]
    assert [(source.tool_message_id, source.content, source.title) for source in world.sources] == expected
    acknowledged = {id_ for agent in world.agents for ids, _, _ in agent.receipts for id_ in ids}
    assert {str(message.id) for message in world.log} == acknowledged.union(*(agent.rewound for agent in world.agents))


@several
@given(seeds)
async def test_a_number_is_replaced_only_if_it_was_taken(play: Play, seed: int) -> None:
    """`given_id` is the number that a source came with, and an earlier source has that; other numbers are kept."""
    world = await play(seed)
    came = [number for message in world.log for _, number in world.given.get(str(message.id), ())]
    taken: set[int] = set()
    for source, number in zip(world.sources, came, strict=True):
        if source.given_id is None:
            assert number in (None, source.source_id)
        else:
            assert source.given_id == number
            assert source.given_id in taken
        taken.add(source.source_id)


@several
@given(seeds)
async def test_the_first_number_of_a_text_is_remembered(play: Play, seed: int) -> None:
    """`earlier_id` is the number of the first source with the same text, for all sources but that one."""
    world = await play(seed)
    first: dict[str, int] = {}
    for source in world.sources:
        assert source.earlier_id == first.get(source.content)
        first.setdefault(source.content, source.source_id)


@several
@given(seeds)
async def test_receipts_tell_the_truth(play: Play, seed: int) -> None:
    """Ordinals are places in the log; what was written, and under which numbers, is what is there."""
    world = await play(seed)
    indexes = [str(message.id) for message in world.log]
    for agent in world.agents:
        for ids, receipt, cancelled in agent.receipts:
            assert list(receipt.message_ids) == ids
            assert [indexes[ordinal - 1] for ordinal in receipt.ordinals] == ids
            assert (receipt.first, receipt.last) == (min(receipt.ordinals), max(receipt.ordinals))
            assert receipt.written in ((0, len(ids)) if cancelled else (len(ids),))
            sources = [source for source in world.sources if source.tool_message_id in ids]
            numbers = [source.source_id for source in sources if receipt.written]
            assert receipt.source_ids == ((min(numbers), max(numbers)) if numbers else None)
            renumbered: dict[str, dict[int, int]] = {}
            for source in sources:
                if source.given_id is not None:
                    renumbered.setdefault(source.tool_message_id, {})[source.given_id] = source.source_id
            assert receipt.renumbered == renumbered


@few
@given(seeds)
async def test_pages_of_sources_are_their_texts(play: Play, seed: int) -> None:
    """One after the other, by number or by message, they are the whole texts; none is larger than it may be."""
    world, dice = await play(seed), random.Random(seed)
    for asked in asked_of(world, dice):
        chat, page_tokens = dice.choice(world.chats), dice.choice([100, 250, 1_000, 16_000])
        found: dict[int, str] = {}
        cursor: str | None = ""
        while cursor is not None:
            page = await chat.get_sources(**asked, cursor=cursor, page_tokens=page_tokens)
            assert sum(len(source.content) for source in page.sources) <= page_tokens * 4
            for source in page.sources:
                found[source.source_id] = found.get(source.source_id, "") + source.content
            assert page.next_cursor != cursor
            cursor = page.next_cursor
        assert found == expected_of(world, asked)


@few
@given(seeds)
async def test_pages_of_the_tool_are_the_texts(play: Play, seed: int) -> None:
    """As a model reads them, with the cursor of each last line; none is longer than it may be."""
    world, dice = await play(seed), random.Random(seed)
    for asked in asked_of(world, dice):
        assert await read(dice.choice(world.chats), dice.choice([100, 300, 4_000]), asked) == expected_of(world, asked)


@few
@given(seeds)
async def test_every_match_is_on_some_page(play: Play, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Whole, in any case, once for each place, however little is read at once and wherever pages and reads end."""
    world, dice = await play(seed), random.Random(seed)
    for asked in dice.sample(asked_of(world, dice)[:2], 1):
        find = dice.choice(
            ["FISH word", "ünï", "\U0001f40b", "End.", "Document", "characters 0-1 OF 1", "fish Document"]
        )
        monkeypatch.setattr(pager, "_READ_AT_ONCE", dice.choice([100, 1_000, 4_000_000]))
        monkeypatch.setattr(pager, "_MAX_ROUNDS", dice.choice([1, 4]))
        chat, page_tokens = dice.choice(world.chats), dice.choice([100, 300, 4_000])
        found: dict[int, set[int]] = {}
        cursor = ""
        while True:
            page = await page_of(chat, page_tokens, {**asked, "find": find, "cursor": cursor})
            for number, start, body in page.parts:
                shown = found.setdefault(number, set())
                shown |= {start + first for first, _ in matches(body, find)}
            if page.cursor is None:
                break
            assert page.cursor != cursor
            cursor = page.cursor
        texts = expected_of(world, asked)
        expected = {number: {first for first, _ in matches(text, find)} for number, text in texts.items()}
        # a source without indexes was shown for its words
        assert {number: indexes for number, indexes in found.items() if number and indexes} == {
            number: indexes for number, indexes in expected.items() if indexes
        }


@given(st.text("aAsSßẞ\u017fﬁfiİI\u0131ŉnΐ\u0390 "), st.text("asSßẞfiﬁIİŉΐ", min_size=1, max_size=4))
def test_matches_are_those_of_the_folded_text(text: str, find: str) -> None:
    """Every range that is found says the same, the first is the first there is, and nothing is overlooked."""
    ranges = list(matches(text, find))
    assert all(fold(find) in fold(text[start:end]) for start, end in ranges)
    assert bool(ranges) == (fold(find) in fold(text))
    assert len(ranges) == fold(text).count(fold(find))
    if ranges:
        assert fold(find) not in fold(text[: ranges[0][1] - 1])


def asked_of(world: World, dice: random.Random) -> list[dict[str, Any]]:
    """Some questions for sources, by number and by message; numbers that name nothing among them."""
    if not world.sources:
        return []
    numbers = [source.source_id for source in dice.sample(world.sources, min(4, len(world.sources)))]
    numbers.insert(dice.randrange(len(numbers)), 900_000)
    ids = [dice.choice(world.sources).tool_message_id for _ in range(2)]
    return [{"source_ids": numbers}, {"tool_message_ids": ids}, {"source_ids": numbers[:1], "tool_message_ids": ids}]


def expected_of(world: World, asked: dict[str, Any]) -> dict[int, str]:
    """The texts that a question asks for, by number."""
    return {
        source.source_id: source.content
        for source in world.sources
        if source.source_id in asked.get("source_ids", ())
        or source.tool_message_id in asked.get("tool_message_ids", ())
    }


async def read(chat: Conversation, page_tokens: int, asked: dict[str, Any]) -> dict[int, str]:
    """The texts of sources as the tool shows them, page by page to the end."""
    found: dict[int, str] = {}
    cursor = ""
    while True:
        page = await page_of(chat, page_tokens, {**asked, "cursor": cursor})
        for number, start, body in page.parts:
            if number:
                assert body
                assert start == len(found.get(number, ""))
                found[number] = found.get(number, "") + body
        if page.cursor is None:
            return found
        assert page.cursor != cursor
        cursor = page.cursor


@dataclass
class Page:
    """A page as a model can read it: numbers of sources, or 0, with place and text; and the cursor of the last line."""

    parts: list[tuple[int, int, str]]
    cursor: str | None


async def page_of(chat: Conversation, page_tokens: int, asked: dict[str, Any]) -> Page:
    """Ask the tool for a page, and take it apart by its header lines."""
    tool = chat.retrieve_previous_sources_tool(page_tokens=page_tokens)
    text = str((await tool.ainvoke({"type": "tool_call", "id": "c", "name": tool.name, "args": asked})).content)
    assert len(text) <= page_tokens * 4
    page, index = Page([], None), 0
    while header := _HEADER.match(text, index):
        start, end, length = (int(number) for number in header.group(2, 3, 4))
        assert start <= end <= length
        page.parts.append((int(header[1] or 0), start, text[header.end() : header.end() + end - start]))
        index = header.end() + end - start + 1
    *remarks, last = text[index:].split("\n")
    assert all(line.startswith(("Not found: 900000.", "No match for ", "What follows is ")) for line in remarks)
    cursor = _LAST.fullmatch(last)
    assert cursor, text[-200:]
    page.cursor = cursor[1]
    return page


@few
@given(seeds)
async def test_foreign_ids_answer_like_missing_ones(play: Play, seed: int) -> None:
    """Numbers, message ids and cursors of another conversation: the same text, character by character but the names."""
    one, other = await play(seed), await play(seed + 1)
    own = {source.source_id for source in one.sources}
    numbers = {source.source_id for source in other.sources} - own
    free = set(range(1, 1_000)) - own - numbers
    pairs: list[tuple[Any, Any]] = []
    for number in sorted(numbers)[:5]:
        if alike := [missing for missing in sorted(free) if len(str(missing)) == len(str(number))]:
            free.remove(alike[-1])
            pairs.append((number, alike[-1]))
    pairs += [(str(message.id), "z" * 5 + str(message.id)[5:]) for message in other.log[:5]]
    tool, chat = one.chats[0].retrieve_previous_sources_tool(page_tokens=200), one.chats[0]
    for find in ("", "fish"):
        foreign, missing = [await answer(tool, [pair[which] for pair in pairs], find) for which in (0, 1)]
        for name, alike in pairs:
            foreign = re.sub(rf"(?m)^(Not found: .*?)(?<![\w-]){name}(?=[,.])", rf"\g<1>{alike}", foreign)
        assert foreign == missing
    names = [[pair[which] for pair in pairs] for which in (0, 1)]
    foreign_page, missing_page = [await chat.get_sources(**split(asked)) for asked in names]
    assert foreign_page.sources == missing_page.sources == []
    assert [sorted(map(str, page.not_found)) for page in (foreign_page, missing_page)] == [
        sorted(map(str, asked)) for asked in names
    ]


def split(asked: Sequence[Any]) -> dict[str, Any]:
    """Names by the argument that takes them."""
    numbers = [name for name in asked if isinstance(name, int)]
    return {"source_ids": numbers, "tool_message_ids": [name for name in asked if isinstance(name, str)]}


async def answer(tool: BaseTool, asked: Sequence[Any], find: str) -> str:
    """Return the tool's answer for some names, and for a cursor in each of the numbers."""
    texts = [await tool.ainvoke({**split(asked), "find": find})]
    for number in split(asked)["source_ids"]:
        alone = await tool.ainvoke({"cursor": f"{number}@3", "find": find})
        assert alone == f"Unknown cursor '{number}@3'. Ask again without a cursor.\nEnd."
    return "\n".join(texts)


@pytest.mark.slow
async def test_several_processes_never_share_a_number(
    pymongo_client: Client, database_name: str, server_uri: str
) -> None:
    """Each process sees a number as the final log has it, at every moment."""
    thread = uuid.uuid4().hex
    await ConversationStore(pymongo_client[database_name]).setup()

    async def run(name: str) -> Any:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, server_uri, database_name, thread, name),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # for the helpers of the tests
        )
        out, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()[-3_000:]
        return json.loads(out)

    reports = await asyncio.gather(*(run(f"p{number}") for number in range(PROCESSES)), return_exceptions=True)
    assert not [report for report in reports if isinstance(report, BaseException)]
    chat = ConversationStore(pymongo_client[database_name]).conversation(user_id="a", thread_id=thread)
    log = [message async for message in chat.messages()]
    sources = await sources_in(chat, log)
    assert_named_once(
        {(number, document, id_) for report in reports for number, document, id_ in report["seen"]}, sources
    )
    given = {id_: found for report in reports for id_, found in report["given"].items()}
    expected = [(str(one.id), document) for one in log for document, _ in given.get(str(one.id), ())]
    assert [(source.tool_message_id, TEXTS[source.content]) for source in sources] == expected
    assert set(given) <= {str(message.id) for message in log}


async def main(uri: str, database: str, thread: str, name: str) -> None:
    """One process: two agents with stores of their own; prints what they gave and saw."""
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        stores = [ConversationStore(client[database]) for _ in range(2)]
        chats = [store.conversation(user_id="a", thread_id=thread) for store in stores]
        agents = [Agent(f"{name}{letter}", random.Random(f"{name}{letter}"), chats) for letter in "ab"]

        async def work(agent: Agent) -> None:
            for _ in range(TURNS):
                await agent.step()

        await asyncio.gather(*map(work, agents))
        seen = [one for agent in agents for one in sorted(agent.seen)]
        given_ = {id_: found for agent in agents for id_, found in agent.given.items()}
        sys.stdout.write(json.dumps({"seen": seen, "given": given_}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
