"""Tests of source numbers: each number is allotted once, never changes and is never shared."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore.conversation import Conversation
from convstore.exceptions import InvalidInputError, SourceIdClashError
from convstore.store import ConversationStore
from convstore.testing.fixtures import NewStore
from convstore.testing.samples import new_id, passages

__all__ = ["SourcesContract"]


def _result(
    *sources: Any, id_: str = "", call: str = "c", tool: str = "search", content: str = "found"
) -> ToolMessage:
    """A tool result with these sources."""
    return ToolMessage(
        content, id=id_ or new_id(), tool_call_id=call, name=tool, artifact=list(sources)
    )


def _numbered(number: int, text: str) -> dict[str, Any]:
    """A source that came with a number."""
    return {"source_id": number, "title": f"T{number}", "content": text}


def _cursor(page: str) -> str:
    """Return the cursor in the last line of a page."""
    return page.splitlines()[-1].removeprefix('More: cursor="').partition('"')[0]


def _texts(number: int) -> list[tuple[str, str]]:
    """Return topics, each with a long line about it."""
    found = [
        (topic, passages(1, topic=topic, words=90))
        for topic in ("whales", "seals", "orcas")[:number]
    ]
    return [(topic, text) for topic, [(text, _)] in found]


_LONG = "Seals sleep. " * 150

_JSON = {
    "a list said twice": f'{{"results":[{{"text":"old {_LONG}"}}],"results":[{{"text":"{_LONG}","title":"T"}}]}}',
    "a key like a tag": json.dumps(
        {"results": [{"text": _LONG, "title": "T", "m": {"$": ["bytes", "eA=="]}}]}
    ),
    "numbers beyond 64 bits": json.dumps([{"text": _LONG, "title": "T", "n": 2**70}]),
    "escapes, in lines of their own": json.dumps(
        [{"text": f'é\n\t"{_LONG}', "title": "T"}], indent=3
    ),
    "a lone surrogate": json.dumps([{"text": f"\ud83d{_LONG}", "title": "T"}]),
    "a megabyte and a half": json.dumps(
        {"data": {"hits": [{"text": "\n" * 800_000, "title": "T"}]}}
    ),
}
"""Results that a reader may take for others, or whose source cannot be read in place."""


class SourcesContract:
    """Numbers of sources, and where sources are found."""

    async def test_a_kept_number_that_is_taken_is_refused(self, chat: Conversation) -> None:
        """A tool's own number that is already taken raises SourceIdClashError, and nothing is written."""
        await chat.append(_result(_numbered(1, "one")))
        with pytest.raises(SourceIdClashError, match="number_sources"):
            await chat.append([HumanMessage("q"), _result(_numbered(1, "other"))])
        assert (await chat.info()).message_count == 1

    async def test_taken_numbers_are_replaced_on_request(self, chat: Conversation) -> None:
        """The message is unchanged; receipt and sources have old and new numbers; a repeated append changes nothing."""
        await chat.append(_result(_numbered(1, "one"), _numbered(2, "two")))
        again = _result(
            _numbered(1, "eins"),
            _numbered(3, "drei"),
            _numbered(1, "uno"),
            {"content": "vier"},
            id_="again",
        )
        receipt = await chat.append([again], on_source_clash="renumber")
        assert receipt.renumbered == {"again": {1: 5}}
        page = await chat.get_sources(tool_message_ids=["again"])
        assert [(source.source_id, source.given_id, source.content) for source in page.sources] == [
            (4, 1, "eins"),
            (3, None, "drei"),
            (5, 1, "uno"),
            (6, None, "vier"),
        ]
        [record] = await chat.get_tool_messages(["again"])
        assert (record.artifact, record.sources) == (again.artifact, page.sources)
        repeated = await chat.append([again], on_source_clash="renumber")
        assert (repeated.written, repeated.renumbered) == (0, receipt.renumbered)
        assert (await chat.get_sources([1])).sources[0].content == "one"

    async def test_tools_that_number_from_one_each_time_never_share_a_number(
        self, chat: Conversation, new_store: NewStore
    ) -> None:
        """Several stores append at once; every source has a number of its own."""
        chats = [chat, *(new_store().conversation(**chat.scope) for _ in range(3))]
        found = [
            _result(*(_numbered(n, f"{index} {n}") for n in (1, 2, 3)), id_=f"r{index}")
            for index in range(12)
        ]
        await asyncio.gather(
            *(
                chats[index % 4].append([result], on_source_clash="renumber")
                for index, result in enumerate(found)
            )
        )
        records = await chat.get_tool_messages([f"r{index}" for index in range(12)])
        sources = [source for record in records for source in record.sources]
        assert len({source.source_id for source in sources}) == len(sources) == 36
        assert [source.content for source in sources] == [
            f"{index} {n}" for index in range(12) for n in (1, 2, 3)
        ]

    async def test_a_document_that_comes_again_remembers_its_first_number(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A repeated document gets a new number. Every process and the model also get its first number."""
        await chat.append(_result(("whales", {"title": "A"}), ("seals", {"title": "B"})))
        await chat.append([HumanMessage("and?"), AIMessage("so")])
        await elsewhere.append(_result(("seals", {"title": "again"}), ("orcas", {})))
        await chat.append(_result(("seals", {}), ("orcas", {})))
        page = await chat.get_sources(range(1, 7))
        assert [source.earlier_id for source in page.sources] == [None, None, 2, None, 2, 4]
        read = await chat.retrieve_previous_sources_tool().ainvoke({"source_ids": [3]})
        assert read.startswith("[3] again, the same as [2], characters 0-5 of 5\nseals")

    async def test_a_number_from_the_future_is_metadata(self, chat: Conversation) -> None:
        """An invalid or huge number of a tool stays metadata, so that it cannot use up the numbers."""
        await chat.append(
            _result({"source_id": 2**60, "content": "x"}, {"source_id": "7", "content": "y"})
        )
        await chat.append(_result(_numbered(10**9, "z")))
        page = await chat.get_sources([1, 2, 3])
        assert [source.metadata for source in page.sources] == [
            {"source_id": 2**60},
            {"source_id": "7"},
            {},
        ]
        assert [source.given_id for source in page.sources] == [None, None, 10**9]

    async def test_an_extractor_says_where_the_sources_are(
        self, chat: Conversation, store: ConversationStore, elsewhere: Conversation
    ) -> None:
        """An extractor is called for its tool only, at append; stored results are read without it."""

        def lines(message: ToolMessage) -> list[Any]:
            pairs = (line.split(": ", 1) for line in message.text.splitlines())
            return [Document(page_content=text, metadata={"title": title}) for title, text in pairs]

        store.register_source_extractor("grep", lines)
        hits = "\n".join(f"file {number}: line {'x' * 300} {number}" for number in range(1, 4))
        small = _result(id_="small", tool="grep", content="a: b")
        await chat.append(
            [_result(id_="hits", tool="grep", content=hits), small, _result(id_="o", content=hits)]
        )
        page = await elsewhere.get_sources(tool_message_ids=["hits", "small", "o"])
        assert [(source.source_id, source.title) for source in page.sources] == [
            (1, "file 1"),
            (2, "file 2"),
            (3, "file 3"),
            (4, "a"),
        ]
        assert page.sources[2].content == f"line {'x' * 300} 3"
        [record] = await chat.get_tool_messages(["hits"])
        assert (record.content, record.sources) == (hits, page.sources[:3])

    @pytest.mark.parametrize(
        "wrong", [lambda _: 1 / 0, lambda _: [7], lambda _: None, lambda _: [("x", {})] * 1_001]
    )
    async def test_an_extractor_that_fails_is_named(
        self, chat: Conversation, store: ConversationStore, wrong: Any
    ) -> None:
        """If a source extractor fails, the append raises an error that names its tool and writes nothing."""
        store.register_source_extractor("broken", wrong)
        with pytest.raises(InvalidInputError, match="extractor of 'broken'"):
            await chat.append(_result(tool="broken"))
        assert (await chat.info()).message_count == 0
        await chat.append(_result(tool="search"))

    async def test_a_tool_call_id_reads_its_results(self, chat: Conversation) -> None:
        """A call id returns all its results, in order; if it equals a message id, the message is returned."""
        first = _result(("one", {}), call="call-1")
        second = _result(("two", {}), call="call-1")
        await chat.append(
            [
                first,
                second,
                _result(("three", {}), id_="call-2"),
                _result(("four", {}), call="call-2"),
            ]
        )
        page = await chat.get_sources(tool_message_ids=["call-1", "call-2", "call-3"])
        assert [source.content for source in page.sources] == ["one", "two", "three"]
        assert page.not_found == ["call-3"]

    async def test_a_cursor_alone_goes_on_through_all_that_was_asked_for(
        self, chat: Conversation
    ) -> None:
        """A cursor continues the request, for sources and for other results; other arguments have no effect."""
        log = ToolMessage("*" * 4_000, id="log", tool_call_id="c")
        await chat.append([_result(("#" * 3_000, {}), ("%" * 3_000, {})), log])
        tool = chat.retrieve_previous_sources_tool(page_tokens=400)

        async def pages(cursor: str, **arguments: Any) -> list[str]:
            seen = []
            while cursor != "End.":
                seen.append(str(await tool.ainvoke({**arguments, "cursor": cursor})))
                cursor = _cursor(seen[-1])
            return seen

        sources = await pages("", source_ids=[1, 2])
        assert ["".join(sources).count(sign) for sign in "#%"] == [3_000, 3_000]
        alone = "".join([sources[0], *await pages(_cursor(sources[0]))])
        assert [alone.count(sign) for sign in "#%"] == [3_000, 3_000]
        lines = await pages("", tool_message_ids=["log"])
        assert "".join(lines).count("*") == 4_000
        assert _cursor(lines[0]).startswith("m2@")
        assert await pages(_cursor(lines[0])) == lines[1:]

    @pytest.mark.parametrize(
        "form", ["texts", "numbered", "indented", "json", "json, and an artifact", "blocks"]
    )
    async def test_a_result_is_not_read_back_twice(self, chat: Conversation, form: str) -> None:
        """Texts that content and artifact share are shown once, and so are those that only one of them has."""
        texts = [f"{text}\nA «second» line of {topic}, long enough." for topic, text in _texts(3)]
        items = [
            {"title": f"T{index}", "content": text, "score": 0.5}
            for index, text in enumerate(texts)
        ]
        content: Any = {
            "texts": "\n\n".join(texts),
            "numbered": "\n".join(
                f"[{index}] ONLY CONTENT {index}: {text}" for index, text in enumerate(texts)
            ),
            "indented": "ONLY CONTENT\n" + "\n".join(texts).replace("\n", "\n    "),
            "json": json.dumps({"success": True, "sources": items, "note": "ONLY CONTENT"}),
            "json, and an artifact": json.dumps({"sources": items}, indent=2),
            "blocks": [{"type": "text", "text": "\n".join(["ONLY CONTENT", *texts])}],
        }[form]
        more = {} if form == "json, and an artifact" else {"more": "ONLY ARTIFACT"}
        artifact = None if form == "json" else {"sources": items, **more}
        await chat.append(
            ToolMessage(content, artifact=artifact, id="r", tool_call_id="c", name="search")
        )
        for page_tokens in (4_000, 300):
            tool = chat.retrieve_previous_sources_tool(page_tokens=page_tokens, artifact=True)
            pages: list[str] = []
            cursor = ""
            while cursor != "End.":
                pages.append(str(await tool.ainvoke({"tool_message_ids": ["r"], "cursor": cursor})))
                cursor = _cursor(pages[-1])
            read = "".join(page.split("\n", 1)[1].rsplit("\n", 1)[0] for page in pages)
            lines = [line for text in texts for line in text.splitlines()]
            if page_tokens == 4_000:
                counts = [
                    sum(read.count(said) for said in {line, json.dumps(line)[1:-1]})
                    for line in lines
                ]
                assert counts == [1] * len(lines)
            assert len(read) < sum(map(len, texts)) * 1.35 + 800
            assert (form in ("texts", "json, and an artifact")) == ("ONLY CONTENT" not in read)
            assert ("ONLY ARTIFACT" in read) == (form not in ("json", "json, and an artifact"))

    async def test_an_artifact_that_repeats_the_content_is_not_read_back_twice(
        self, chat: Conversation
    ) -> None:
        """An artifact without sources is left out if it equals the content, is a part of it, or is its JSON."""
        log = "\n".join(f"line {number} of the listing, which is long" for number in range(300))
        value = {"rows": [{"line": line, "n": 1} for line in log.splitlines()], "exit": 0}
        kinds: list[tuple[str, Any]] = [
            (log, log),
            (log, {"out": log, "ONLY": "HERE"}),
            (json.dumps(value), value),
        ]
        tool = chat.retrieve_previous_sources_tool(page_tokens=16_000, artifact=True)
        for index, (content, artifact) in enumerate(kinds):
            result = ToolMessage(
                content, artifact=artifact, id=f"r{index}", tool_call_id="c", name="run"
            )
            await chat.append(result)
            read = str(await tool.ainvoke({"tool_message_ids": [f"r{index}"]}))
            assert (read.count("line 7 of the listing"), _cursor(read)) == (1, "End.")
            assert ("HERE" in read) == ("ONLY" in str(artifact))
            assert (await chat.get_tool_messages([f"r{index}"]))[0].artifact == artifact

    @pytest.mark.parametrize("form", ["message", "without its artifact", "a dict"])
    async def test_what_was_read_back_names_its_sources_and_claims_none(
        self, chat: Conversation, new_store: NewStore, form: str
    ) -> None:
        """The stub of a read-back page lists the page's source numbers. The page itself takes no new numbers."""
        await chat.append(_result(*passages(12, words=60), id_="r"))
        tool = chat.retrieve_previous_sources_tool(page_tokens=1_500)
        asked = {
            "name": tool.name,
            "args": {"source_ids": [7, 3, 4]},
            "id": "call-again",
            "type": "tool_call",
        }
        page: Any = await tool.ainvoke(asked)
        page.id = "again"
        if form != "message":
            page.artifact = None
        if form == "a dict":
            page = {
                "role": "tool",
                "id": "again",
                "tool_call_id": "call-again",
                "content": page.content,
            }
        call = AIMessage(
            "", tool_calls=[{name: asked[name] for name in ("name", "args", "id", "type")}]
        )
        await chat.append([HumanMessage("And seals?"), call, page, AIMessage("So.")])
        other = new_store().conversation(**chat.scope)
        [shown] = [
            message for message in (await other.load_history()).messages if message.id == "again"
        ]
        stub = json.loads(str(shown.content))
        assert (stub["result_count"], stub["source_ids"], stub["tool_message_id"]) == (
            3,
            "3-4, 7",
            "again",
        )
        assert list(stub) == [
            "success",
            "tool",
            "result_count",
            "message",
            "tool_message_id",
            "source_ids",
        ]
        listed = await other.retrieve_previous_sources_tool().ainvoke({})
        assert "again: retrieve_previous_sources" not in listed
        assert (await other.append(_result(("new", {})))).source_ids == (13, 13)
        assert (await other.get_tool_messages(["again"]))[0].sources == []
        report = await new_store().verify(
            user_id=chat.scope["user_id"], thread_id=chat.scope["thread_id"]
        )
        found = {finding.kind for finding in report.findings}
        assert not found & {"source", "stub", "message", "damaged", "totals"}

    @pytest.mark.parametrize("how", ["first", 1, None, True])
    async def test_an_unknown_way_with_clashes_is_refused(
        self, chat: Conversation, how: Any
    ) -> None:
        """The error is typed and comes before anything is written."""
        with pytest.raises(InvalidInputError, match="on_source_clash"):
            await chat.append(HumanMessage("x"), on_source_clash=how)

    async def test_every_page_of_many_sources_is_one_read(self, chat: Conversation) -> None:
        """The texts on a page equal the appended ones, whichever results have them."""
        found = [_result(*passages(5, topic=f"fish{index}"), id_=f"f{index}") for index in range(4)]
        for result in found:
            await chat.append(result)
        page = await chat.get_sources("20, 1, 7-9", page_tokens=16_000)
        texts = [text for message in found for text, _ in message.artifact]
        assert [source.content for source in page.sources] == [
            texts[n - 1] for n in (20, 1, 7, 8, 9)
        ]

    async def test_a_batch_with_numbers_may_be_repeated_by_another_process(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Repeating a batch with its own source numbers in another process writes nothing and raises no error."""
        await elsewhere.append(HumanMessage("What about seals?"))
        batch = [_result(_numbered(7, "one"), _numbered(9, "two"))]
        await chat.append(batch)
        again = await elsewhere.append(batch)
        assert (again.written, again.ordinals) == (0, (2,))

    async def test_the_newest_number_is_taken_too(self, chat: Conversation) -> None:
        """A source that has the newest number gets the next one on request."""
        await chat.append(_result(_numbered(7, "one")))
        receipt = await chat.append(
            _result(_numbered(7, "two"), id_="again"), on_source_clash="renumber"
        )
        assert receipt.renumbered == {"again": {7: 8}}

    async def test_a_process_that_appends_something_else_first_remembers_the_first_number(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A process that has not read the shown sources reads them when it needs them."""
        found = {"title": "T", "content": "Seals sleep."}
        await chat.append(_result(found))
        await chat.append(HumanMessage("Thanks."))
        await elsewhere.append(HumanMessage("And now?"))
        await elsewhere.append(_result(found))
        [source] = (await elsewhere.get_sources([2])).sources
        assert source.earlier_id == 1

    @pytest.mark.parametrize("name", sorted(_JSON))
    async def test_a_source_in_json_is_read_as_it_was_found(
        self, chat: Conversation, name: str
    ) -> None:
        """A source comes back equal from any form of JSON, both in the record and page by page."""
        found: Any = json.loads(_JSON[name])
        while isinstance(found, dict):
            [found] = found.values()
        [item] = found
        receipt = await chat.append(
            ToolMessage(_JSON[name], id=new_id(), tool_call_id="c", name="search")
        )
        [record] = await chat.get_tool_messages(receipt.message_ids)
        [source] = record.sources
        assert (source.title, source.content) == ("T", item["text"])
        assert source.metadata == {
            key: value for key, value in item.items() if key not in ("text", "title")
        }
        text = ""
        cursor: str | None = ""
        while cursor is not None:
            page = await chat.get_sources([1], cursor=cursor)
            text += "".join(part.content for part in page.sources)
            cursor = page.next_cursor
        assert text == item["text"]

    @pytest.mark.parametrize("is_warm", [True, False])
    async def test_a_number_that_the_store_gave_is_taken(
        self, chat: Conversation, elsewhere: Conversation, is_warm: bool
    ) -> None:
        """A tool's number that the store has allotted is refused, or replaced on request; a reserved one is kept."""
        reserved = await chat.reserve_source_ids(1)
        await chat.append(_result({"title": "T", "content": "given"}))
        other = chat if is_warm else elsewhere
        with pytest.raises(SourceIdClashError):
            await other.append(_result(_numbered(2, "two")))
        receipt = await other.append(
            _result(_numbered(2, "two"), id_="again"), on_source_clash="renumber"
        )
        assert receipt.renumbered == {"again": {2: 3}}
        assert (await other.append(_result(_numbered(reserved[0], "one")))).source_ids == (1, 1)
        with pytest.raises(SourceIdClashError):
            await other.append(_result(_numbered(1, "eins")))
