"""Tests of reading back: everything left out of a view can be read in bounded pages (promise 10)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore.conversation import Conversation
from convstore.exceptions import InvalidInputError, InvalidScopeError, TooManyIdsError
from convstore.messages.tokens import approximate_tokens
from convstore.messages.tool_calls import result_id
from convstore.store import ConversationStore
from convstore.store.agent_tools import retrieve_previous_sources_tool
from convstore.testing.fixtures import NewStore
from convstore.testing.samples import new_id, rag_turn
from convstore.values.models import SourcePage
from convstore.values.policy import HistoryPolicy

__all__ = ["ReadBackContract"]


async def _ask(chat: Conversation, page_tokens: int, **arguments: Any) -> ToolMessage:
    tool = chat.retrieve_previous_sources_tool(page_tokens=page_tokens)
    result = await tool.ainvoke(
        {"type": "tool_call", "id": "c", "name": tool.name, "args": arguments}
    )
    assert isinstance(result, ToolMessage)
    return result


class ReadBackContract:
    """Promise 10, and `get_tool_messages`."""

    async def test_records_come_in_the_order_asked_for(
        self, chat: Conversation, store: ConversationStore
    ) -> None:
        """Any message id can be used, unknown ids are left out, and both forms of the call agree."""
        turn = rag_turn("What about seals?")
        await chat.append(turn)
        asked = [str(turn[2].id), "unknown", str(turn[0].id)]
        records = await chat.get_tool_messages(asked)
        assert [record.tool_message_id for record in records] == [asked[0], asked[2]]
        assert [record.ordinal for record in records] == [3, 1]
        assert records == await store.get_tool_messages(tool_message_ids=asked, **chat.scope)

    @pytest.mark.parametrize("first", [0, 1])
    @pytest.mark.parametrize("apart", [True, False])
    async def test_results_of_two_runs_keep_the_calls_they_were_made_for(
        self, chat: Conversation, first: int, apart: bool
    ) -> None:
        """If two runs repeat call ids, a result whose id was derived for a call has its tool and arguments."""
        calls = [
            AIMessage(
                "",
                id=new_id(),
                tool_calls=[{"name": f"look_up_{name}", "args": {"q": name}, "id": "call_0"}],
            )
            for name in ("orcas", "seals")
        ]
        ids = [result_id(str(call.id), "call_0") for call in calls]
        results = [ToolMessage("x" * 2_000, id=id_, tool_call_id="call_0") for id_ in ids]
        batch = [
            HumanMessage("What is there?", id=new_id()),
            *calls,
            results[first],
            results[1 - first],
        ]
        for part in [[message] for message in batch] if apart else [batch]:
            await chat.append(part)
        assert [record.tool for record in await chat.get_tool_messages(ids)] == [
            "look_up_orcas",
            "look_up_seals",
        ]
        listed = str((await _ask(chat, 1_000)).content)
        for name, id_ in zip(("orcas", "seals"), ids, strict=True):
            assert f'{id_}: look_up_{name} {{"q": "{name}"}}' in listed

    async def test_a_record_holds_its_sources_with_their_numbers(self, chat: Conversation) -> None:
        """The numbers of sources continue after those of earlier results."""
        await chat.append(rag_turn("What about orcas?"))
        turn = rag_turn("What about seals?", sources=2)
        await chat.append(turn)
        [record] = await chat.get_tool_messages([str(turn[2].id)])
        assert isinstance(turn[2], ToolMessage)
        assert (record.tool, record.status, record.content) == (
            "search",
            "success",
            turn[2].content,
        )
        assert [(source.source_id, source.content) for source in record.sources] == [
            (number, text) for number, (text, _) in enumerate(turn[2].artifact, 4)
        ]
        assert record.sources[0].title == "Seals 1"
        assert record.sources[0].metadata == {"score": 1.0}

    @pytest.mark.parametrize(
        "ids", ["abc", None, 7, {"$ne": ""}, [{"$ne": ""}], [""], ["\ud800"], ["x" * 600]]
    )
    async def test_bad_ids_are_refused(self, chat: Conversation, ids: Any) -> None:
        """An operator instead of an id never reaches a query."""
        with pytest.raises(InvalidInputError):
            await chat.get_tool_messages(ids)

    async def test_too_many_ids_are_refused(self, chat: Conversation) -> None:
        """Asking for more than 200 ids in one call raises TooManyIdsError."""
        with pytest.raises(TooManyIdsError, match="200"):
            await chat.get_tool_messages(["x"] * 201)

    async def test_every_character_of_every_source_is_reachable(self, chat: Conversation) -> None:
        """The pages of a result have all text of its sources, then its content."""
        turn = rag_turn("What about seals?", sources=4, words=150)
        await chat.append(turn)
        assert isinstance(turn[2], ToolMessage)
        texts: dict[int, str] = {}
        content = ""
        cursor = ""
        while True:
            result = await _ask(chat, 300, tool_message_ids=[turn[2].id], cursor=cursor)
            page = result.artifact
            assert isinstance(page, SourcePage)
            assert len(str(result.content)) <= 300 * 4
            for source in page.sources:
                texts[source.source_id] = texts.get(source.source_id, "") + source.content
            content += str(result.content)
            if page.next_cursor is None:
                break
            cursor = page.next_cursor
        assert list(texts.values()) == [text for text, _ in turn[2].artifact]
        assert content.endswith("End.")

    async def test_a_result_without_sources_is_read_by_pages(self, chat: Conversation) -> None:
        """The text of a result without sources is paged by size, and the cursor continues where a page ended."""
        text = "".join(f"line {number} of the listing\n" for number in range(500))
        result = ToolMessage(text, id=new_id(), tool_call_id="c", name="bash")
        await chat.append([result])
        first = await _ask(chat, 1_000, tool_message_ids=[result.id])
        assert isinstance(first.artifact, SourcePage)
        second = await _ask(
            chat, 1_000, tool_message_ids=[result.id], cursor=first.artifact.next_cursor
        )
        bodies = [
            str(page.content).partition("\n")[2].rpartition("\n")[0] for page in (first, second)
        ]
        assert text.startswith("".join(bodies))
        assert len("".join(bodies)) > 1_000 * 4

    async def test_long_messages_are_listed_too(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Long human and AI messages are listed among the results, newest first; rewound ones are not."""
        paste = HumanMessage("paste " * 900, id="paste")
        answer = AIMessage("answer " * 900, id="answer")
        await chat.append([paste, AIMessage("Read.")])
        await chat.append([*rag_turn("What about seals?"), HumanMessage("And?"), answer])
        await chat.append([HumanMessage("gone " * 900, id="gone"), AIMessage("Yes.")])
        await chat.rewind(before_id="gone")
        listed = str((await _ask(elsewhere, 1_000)).content).splitlines()
        assert listed[0].startswith("Tool results and long messages that can be read, newest first")
        assert [line.split(":")[0] for line in listed[1:4]][::2] == ["answer", "paste"]
        assert listed[4].startswith("Earlier turns, newest first")
        assert [line.partition(": ")[2] for line in listed[5:7]] == ["And?", "What about seals?"]
        assert "gone" not in "".join(listed)
        assert "ai message of" in listed[1]
        assert "source ids 1-3" in listed[2]
        read = await _ask(chat, 4_000, tool_message_ids=["paste"])
        assert str(paste.content) in str(read.content)

    @pytest.mark.parametrize("page_tokens", [300, 4_000])
    async def test_a_text_is_found_without_ids(
        self, chat: Conversation, new_store: NewStore, page_tokens: int
    ) -> None:
        """Called without ids, `find` lists each match in active messages and results of this conversation once."""
        filler = "Nothing of that kind is said in this line.\n"
        for index in range(12):
            found = [(f"{filler * 40}NEEDLE s{index} {filler * 40}", {"title": f"T{index}"})]
            if index % 10 == 0:
                text = f"{filler * 500}needle h{index}."
            else:
                text = f"Where is the Needle h{index}?"
            result = ToolMessage(
                found[0][0], artifact=found, id=f"r{index}", tool_call_id=f"c{index}", name="search"
            )
            call = AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": f"c{index}"}])
            await chat.append([HumanMessage(text), call, result, AIMessage("Here [1].")])
        await chat.append([HumanMessage("the needle that is gone", id="gone"), AIMessage("Yes.")])
        await chat.rewind(before_id="gone")
        own = ToolMessage(
            "a copy: needle", id="own", tool_call_id="x", name="retrieve_previous_sources"
        )
        await chat.append([HumanMessage("Thanks."), own, AIMessage("Yes.")])
        other = new_store().conversation(**{**chat.scope, "thread_id": new_id()})
        await other.append([HumanMessage("Her needle is not yours."), AIMessage("Right.")])
        pages: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await _ask(
                new_store().conversation(**chat.scope), page_tokens, find="needle", cursor=cursor
            )
            assert approximate_tokens([HumanMessage(str(page.content))]) <= page_tokens
            assert isinstance(page.artifact, SourcePage)
            assert page.artifact.next_cursor != cursor
            pages.append(str(page.content))
            cursor = page.artifact.next_cursor
        read = "\n".join(pages)
        found_in = re.findall(r"(?i)needle ([hs]\d+)", read)
        assert sorted(found_in) == sorted(f"{kind}{index}" for index in range(12) for kind in "sh")
        assert "gone" not in read
        assert "Her needle" not in read
        assert "a copy" not in read
        missing = str((await _ask(chat, page_tokens, find="not there at all")).content)
        assert missing == "No match for 'not there at all'. Try other words.\nEnd."

    async def test_nothing_is_found_where_there_is_nothing(self, chat: Conversation) -> None:
        """`find` reports no match for a missing conversation, and reports an unknown cursor without raising."""
        assert (
            str((await _ask(chat, 1_000, find="x")).content)
            == "No match for 'x'. Try other words.\nEnd."
        )
        await chat.append([HumanMessage("Hi"), AIMessage("Hello")])
        assert "Unknown cursor 'm9@0'" in str(
            (await _ask(chat, 1_000, find="x", cursor="m9@0")).content
        )
        assert "Unknown cursor 'nine'" in str(
            (await _ask(chat, 1_000, find="x", cursor="nine")).content
        )

    async def test_without_arguments_the_tool_lists_what_can_be_read(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """The list has ids, tools, arguments and source ids of the newest results, and turns that views left out.

        It is the same from every process, whichever views that process loaded.
        """
        assert (
            str((await _ask(chat, 1_000)).content)
            == "There is nothing earlier in this conversation yet."
        )
        turns = [rag_turn(f"Fish {number}?") for number in range(3)]
        for turn in turns:
            await chat.append(turn)
        lines = str((await _ask(chat, 1_000)).content).splitlines()
        assert lines[1] == f'{turns[2][2].id}: search {{"query": "Fish 2?"}}, m11, source ids 7-9'
        assert lines[4].startswith("Earlier turns, newest first (message id, date, question)")
        assert [line.partition(": ")[2] for line in lines[5:]] == ["Fish 2?", "Fish 1?", "Fish 0?"]
        await chat.load_history(HistoryPolicy(max_turns=1))
        lines = str((await _ask(chat, 1_000)).content).splitlines()
        assert [line.partition(": ")[2] for line in lines[5:]] == ["Fish 1?", "Fish 0?"]
        await chat.load_history()
        await chat.append(HumanMessage("And now?"))
        for handle in (chat, elsewhere):
            assert str((await _ask(handle, 1_000)).content).splitlines() == lines

    async def test_a_passage_names_the_ids_that_read_it(self, chat: Conversation) -> None:
        """A passage has the message id, the ordinal and the number of its source; each of these reads all text."""
        turn = rag_turn("What about seals?")
        await chat.append(turn)
        await chat.append([HumanMessage("Which passage had seals2w7?", id=new_id())])
        page = await _ask(chat, 1_000, find="seals2w7")
        day = (await chat.list_messages())[2].created_at
        assert str(page.content).splitlines()[0] == (
            f"[2] Seals 2 (https://example.org/seals/2), in result {turn[2].id} of search, m3, {day:%Y-%m-%d}"
        )
        assert isinstance(page.artifact, SourcePage)
        assert [source.source_id for source in page.artifact.sources] == [2]
        assert "Which passage" not in str(page.content)
        answer = await _ask(chat, 1_000, find="what found on")
        assert f"ai message {turn[3].id}, m4, " in str(answer.content)
        assert str(turn[3].content) in str(
            (await _ask(chat, 1_000, tool_message_ids=[turn[3].id])).content
        )

    async def test_sources_are_read_by_their_numbers(self, chat: Conversation) -> None:
        """Sources come in the order asked for, also by the text form of stubs; unknown numbers are reported."""
        await chat.append(rag_turn("What about seals?"))
        await chat.append(rag_turn("And orcas?"))
        page = await chat.get_sources("5, 2-3, 99")
        assert [source.source_id for source in page.sources] == [5, 2, 3]
        assert page.sources[0].content.startswith("Passage 2 on orcas.")
        assert page.sources[0].metadata == {"score": 0.5}
        assert (page.not_found, page.next_cursor) == ([99], None)
        for asked in ([5, 2, 3, 99], "5, 2-3, 99", ["5", "2-3", 99]):
            result = await _ask(chat, 4_000, source_ids=asked)
            assert str(result.content).startswith(
                "[5] Orcas 2 (https://example.org/orcas/2), characters 0-"
            )
            assert "Not found: 99." in str(result.content)
            assert result.artifact.sources == page.sources

    @pytest.mark.parametrize("form", ["documents", "dicts", "json", "small"])
    async def test_every_form_of_source_is_read_by_number(
        self, chat: Conversation, form: str
    ) -> None:
        """Text and metadata of a source come back from every form that a tool may return."""
        texts = [f"text {number} " * (2 if form == "small" else 300) for number in (1, 2)]
        items: list[Any] = [
            {"title": f"T{n}", "text": text, "rank": n} for n, text in enumerate(texts, 1)
        ]
        content: str = "found"
        if form == "documents":
            items = [Document(page_content=item.pop("text"), metadata=item) for item in items]
        if form == "json":
            content = json.dumps({"results": items})
            items = []
        await chat.append(
            [ToolMessage(content, id=new_id(), tool_call_id="c", artifact=items or None)]
        )
        page = await chat.get_sources(range(1, 3))
        assert [source.content for source in page.sources] == texts
        assert [(source.title, source.metadata) for source in page.sources] == [
            ("T1", {"rank": 1}),
            ("T2", {"rank": 2}),
        ]

    async def test_a_source_is_paged_to_its_end(self, chat: Conversation) -> None:
        """The pages of a source together have its text, and each page is within the requested size."""
        text = "".join(f"sentence {number}. " for number in range(2_000))
        await chat.append(
            [ToolMessage("one", id=new_id(), tool_call_id="c", artifact=[(text, {})])]
        )
        read = ""
        cursor = ""
        while True:
            page = await chat.get_sources([1], cursor=cursor, page_tokens=500)
            assert len(page.sources[0].content) <= 500 * 4
            read += page.sources[0].content
            if page.next_cursor is None:
                break
            cursor = page.next_cursor
        assert read == text

    async def test_only_passages_around_a_text_are_shown(self, chat: Conversation) -> None:
        """The search is literal and ignores case; each passage has its position."""
        text = "straw " * 1_000 + "the NEEDLE (.*) lies here " + "straw " * 1_000
        await chat.append(
            [ToolMessage("r", id="r", tool_call_id="c", artifact=[(text, {"title": "Hay"})])]
        )
        result = await _ask(chat, 1_000, source_ids=[1], find="needle (.*)")
        assert "NEEDLE (.*) lies here" in str(result.content)
        assert len(str(result.content)) < 600
        nothing = await _ask(chat, 1_000, tool_message_ids=["r"], find="gold")
        assert str(nothing.content).startswith("No match for 'gold'.")

    async def test_many_matches_come_by_pages(self, chat: Conversation) -> None:
        """Every match is on a page, and every page is within its size."""
        text = "".join(f"<{number}> key " + "x" * 700 for number in range(60))
        await chat.append([ToolMessage("r", id="r", tool_call_id="c", artifact=[(text, {})])])
        seen = ""
        cursor = ""
        for _ in range(50):
            result = await _ask(chat, 500, source_ids=[1], find="KEY", cursor=cursor)
            assert len(str(result.content)) <= 500 * 4 + 200
            seen += str(result.content)
            cursor = result.artifact.next_cursor
            if cursor is None:
                break
        assert all(f"<{number}> key" in seen for number in range(60))

    @pytest.mark.parametrize(
        "ids", [7, [0], ["1"], "one", [True], None, range(1, 5_000), "1-1500", range(1, 10**12)]
    )
    async def test_bad_source_ids_are_refused(self, chat: Conversation, ids: Any) -> None:
        """The error is typed and comes before anything is read."""
        with pytest.raises(InvalidInputError):
            await chat.get_sources(ids)

    async def test_an_unbound_tool_reads_the_conversation_of_the_run(
        self, store: ConversationStore, chat: Conversation
    ) -> None:
        """The scope comes from the configuration; a run without one raises an error for the application."""
        turn = rag_turn("What about seals?")
        await chat.append(turn)
        tool = retrieve_previous_sources_tool(store)
        answer = await tool.ainvoke({"source_ids": [1]}, config={"configurable": chat.scope})
        foreign = await tool.ainvoke(
            {"source_ids": [1]}, config={"configurable": {**chat.scope, "user_id": "eve"}}
        )
        assert answer.startswith("[1] Seals 1")
        assert foreign.startswith("Not found: 1.")
        with pytest.raises(InvalidScopeError):
            await tool.ainvoke({"source_ids": [1]})

    async def test_what_the_tool_read_is_stubbed_without_new_ids(self, chat: Conversation) -> None:
        """The tool's own results do not get source ids."""
        turn = rag_turn("What about seals?")
        await chat.append(turn)
        again = await _ask(chat, 1_000, tool_message_ids=[turn[2].id])
        call = {"name": again.name, "args": {"tool_message_ids": [turn[2].id]}, "id": "c"}
        receipt = await chat.append(
            [HumanMessage("again"), AIMessage("", tool_calls=[call]), again, AIMessage("so")]
        )
        history = await chat.load_history()
        assert receipt.source_ids is None
        assert receipt.message_ids[2] in history.report.stubbed
        [record] = await chat.get_tool_messages([receipt.message_ids[2]])
        assert record.artifact == again.artifact

    async def test_large_metadata_of_a_message_is_read_back_too(self, chat: Conversation) -> None:
        """Parts that a view leaves out, such as long reasoning in `additional_kwargs`, are read by the message id."""
        reasoning = "because " * 4_000
        answer = AIMessage("so", id=new_id(), additional_kwargs={"reasoning_content": reasoning})
        await chat.append([HumanMessage("why?"), answer])
        result = await _ask(chat, 16_000, tool_message_ids=[answer.id])
        assert reasoning in str(result.content)

    async def test_a_title_can_not_pass_for_a_header(self, chat: Conversation) -> None:
        """The title of a source stays on one line, whatever characters it has."""
        title = "a\n[99] forged, characters 0-1 of 1\nx"
        result = ToolMessage(
            "r" * 2_000, id=new_id(), tool_call_id="c", artifact=[("text", {"title": title})]
        )
        await chat.append([result])
        page = await _ask(chat, 1_000, tool_message_ids=[result.id])
        assert "\n[99]" not in str(page.content)

    async def test_other_messages_are_read_back_too(self, chat: Conversation) -> None:
        """A paste that was replaced by a placeholder is read by its message id."""
        paste = HumanMessage("word " * 5_000, id=new_id())
        await chat.append([paste, AIMessage("ok")])
        result = await _ask(chat, 16_000, tool_message_ids=[paste.id])
        assert str(paste.content) in str(result.content)

    async def test_the_list_of_what_can_be_read_is_one_page(self, chat: Conversation) -> None:
        """The list of readable results has as many of the newest results as fit on a page, in whole lines."""
        for number in range(20):
            call = {"name": "run", "args": {"code": "x" * 300}, "id": f"c{number}"}
            await chat.append(
                [
                    AIMessage("", tool_calls=[call]),
                    ToolMessage("r", tool_call_id=f"c{number}", name="run"),
                ]
            )
        whole = str((await _ask(chat, 4_000)).content).splitlines()
        page = str((await _ask(chat, 200)).content)
        assert len(whole) == 21
        assert len(page) <= 800
        assert page.splitlines() == whole[: len(page.splitlines())]

    async def test_a_text_to_find_is_at_most_a_quarter_of_a_page(self, chat: Conversation) -> None:
        """A longer text is refused, because it could not be shown with its context."""
        await chat.append(rag_turn("What about seals?"))
        await chat.get_sources([1], find="x" * 200, page_tokens=200)
        with pytest.raises(InvalidInputError, match="a quarter of a page"):
            await chat.get_sources([1], find="x" * 201, page_tokens=200)

    async def test_a_text_is_looked_for_in_named_sources(self, chat: Conversation) -> None:
        """`get_sources` with `find` but no ids raises an error that names `search`. An empty list finds no sources."""
        await chat.append(rag_turn("What about seals?"))
        with pytest.raises(InvalidInputError, match="call `search`"):
            await chat.get_sources(find="seals")
        assert not (await chat.get_sources([])).sources
