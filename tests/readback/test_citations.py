"""The citations of a message: numbers outside of code, those of providers, and numbers that mean nothing."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore
from convstore.exceptions import InvalidInputError, UnknownMessageError
from convstore.sources.citations import provider_citations
from convstore.sources.marks import MAX_CITED, marks_in
from convstore.sources.numbering import numbers_shown
from convstore.types import Source

_URL = "https://sea.example/whales"


def _numbers(text: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(text[mark.start : mark.end], mark.numbers) for mark in marks_in(text)]


def test_marks_are_found_in_all_their_forms() -> None:
    """Numbers in brackets, lists and ranges count; other text in brackets does not."""
    for text, numbers in (
        ("Fish[17].", (17,)),
        ("[17, 18]", (17, 18)),
        ("[17; 18 and 20-22]", (17, 18, 20, 21, 22)),
        ("[^17]", (17,)),
        ("[^17]: Whales, 2020", (17,)),
        ("\u301017\u2020source\u3011", (17,)),
        ("[17\u2020L1-L9]", (17,)),
        ("[source 17]", (17,)),
        ("[Sources: 17, 18]", (17, 18)),
        ("[source 17, source 18]", (17, 18)),
        ("[17](https://a.example)", (17,)),
        ("a [b [17] c]", (17,)),
        ("[11\u201313]", (11, 12, 13)),
    ):
        assert [number for _, found in _numbers(text) for number in found] == list(numbers), text
    for text in (
        "[see 17]", "[17 May]", "[]", "[ ]", "[x]", "[1.5]", "[9-1]", "[1-999999]", "(17)", "[17\n]",
        "\u301017:0\u2020source\u3011", "[-17]", "[1234567890]", "[\u0661]", "[17", "17]",
    ):  # fmt: skip
        assert _numbers(text) == [], text


def test_code_has_no_marks() -> None:
    """Fences and spans are skipped, whatever they hold; an unclosed span is text."""
    for text in (
        "`a[1]`", "``a ` [1]``", "```\na[1]\n```", "~~~ py\na[1]\n``` [1]\n~~~", "```py\n[1]",
        "> ```\n> [1]\n> ```", "  ````\n```\n[1]\n````", "`a\nb[1]`",
    ):  # fmt: skip
        assert _numbers(f"{text}\n\nSee [2].") in ([("[2]", (2,))], []), text
        assert all(numbers != (1,) for _, numbers in _numbers(f"{text}\n\nSee [2].")), text
    for text in ("`a [1]", "`` a [1] `", "`a\n\n[1]`", "\\`[1]\\`", "```a``` [1]", "a `b` [1] `c`"):
        assert _numbers(text) == [("[1]", (1,))], text
    text = "\ud800[1]\0 `x`\n\u2028[2] ~~~\n[3]"
    assert [text[mark.start : mark.end] for mark in marks_in(text)] == ["[1]", "[2]", "[3]"]


@pytest.mark.slow
def test_marks_of_hostile_texts_take_linear_time() -> None:
    """A hundred kilobytes of brackets, digits, fences or backticks take less than a second of CPU."""
    parts = (
        "[",
        "]",
        "[1",
        "[1,",
        "[1-99]",
        "`",
        "`` ` ",
        "\n```",
        "[" + "1" * 200,
        "\u3010",
        "\n\n`",
    )
    for part in parts:
        text = (part * 100_000)[:100_000]
        start = time.process_time()
        assert sum(len(mark.numbers) for mark in marks_in(text)) <= MAX_CITED
        assert time.process_time() - start < 1, part


def _cited(**fields: Any) -> dict[str, Any]:
    return {"type": "url_citation", "url": _URL, "title": "Whales", **fields}


def test_citations_of_providers_are_read_in_their_forms() -> None:
    """Each has its place in the text of the message, title, address and quotation; each is there once."""
    text = "Wale \u00fcber \U0001f40b singen. Ja."
    end = text.index(" Ja")
    part = {"start_index": 5, "end_index": end}
    size = len(text[:end].encode())
    flat = AIMessage(["A. ", {"type": "text", "text": text, "annotations": [_cited(**part)] * 2}])
    nested = {"type": "url_citation", "url_citation": {"url": _URL, "title": "Whales", **part}}
    chat = AIMessage(text, additional_kwargs={"annotations": [nested]})
    segment = {"startIndex": 5, "endIndex": size, "text": "x"}
    grounding = {
        "groundingChunks": [{"web": {"uri": _URL, "title": "Whales"}}],
        "groundingSupports": [{"segment": segment, "groundingChunkIndices": [0, 7, -1, "0"]}],
    }
    gemini = AIMessage(text, response_metadata={"grounding_metadata": grounding})
    for message, offset in ((flat, 3), (chat, 0), (gemini, 0)):
        [found] = provider_citations(message)
        assert (found.start, found.end) == (offset + 5, offset + end)
        assert (found.title, found.url) == ("Whales", _URL)
    block = {
        "type": "text",
        "text": "Yes.",
        "citations": [
            {
                "type": "search_result_location",
                "source": _URL,
                "title": "[2] Whales",
                "cited_text": "They sing.",
                "search_result_index": 0,
            },
            {
                "type": "char_location",
                "document_title": "Book",
                "cited_text": "So.",
                "document_index": 0,
            },
        ],
    }
    found = provider_citations(AIMessage([{"type": "thinking", "thinking": "hm"}, "So: ", block]))
    assert [(cited.start, cited.end) for cited in found] == [(4, 8), (4, 8)]
    assert [(cited.title, cited.quotation, cited.number) for cited in found] == [
        ("Whales", "They sing.", 2),
        ("Book", "So.", None),
    ]


def test_damaged_citations_are_left_out_or_cut() -> None:
    """Nothing that a provider may send raises, and places are within the text."""
    odd: list[Any] = [None, 7, [], {}, {"type": "file_path"}, {"type": ["url_citation"]}]
    odd += [_cited(start_index=-1, end_index=2), _cited(start_index=3, end_index=99)]
    odd += [_cited(start_index="0", end_index=None), _cited(start_index=10**30, end_index=10**31)]
    odd += [{"type": "file_citation", "filename": "a.pdf", "index": 99}]
    message = AIMessage([{"type": "text", "text": "Yes.", "annotations": odd}, {"type": "text"}])
    found = provider_citations(message)
    assert found
    assert all(0 <= cited.start <= cited.end <= 4 for cited in found)
    for metadata in (None, 7, [], {"groundingSupports": [None, {}, {"segment": {"endIndex": 9}}]}):
        message = AIMessage("Yes.", response_metadata={"grounding_metadata": metadata})
        assert provider_citations(message) == []
    many = [_cited(url=f"{_URL}/{number}") for number in range(2 * MAX_CITED)]
    message = AIMessage("Yes.", additional_kwargs={"annotations": many})
    assert len(provider_citations(message)) == MAX_CITED


async def test_citations_name_their_sources(chat: Conversation, store: ConversationStore) -> None:
    """By message and by id; another tenant's numbers and ids mean nothing, and long addresses are whole."""
    long = "https://sea.example/" + "a" * 600
    found = [
        Document("Whales sing. " * 9, metadata={"title": "Whales", "url": _URL}),
        Document("Seals bark. " * 9, metadata={"source": "seals.pdf", "page": 3}),
        Document("Squid hide. " * 9, metadata={"title": "Squid", "url": long}),
    ]
    call = {"name": "search", "args": {}, "id": "call-1"}
    result = ToolMessage("3", artifact=found, name="search", tool_call_id="call-1", id="result-1")
    text = "Whales [1], seals [2, 9], squid [source 3], `list[1]`."
    block = {"type": "text", "text": text, "annotations": [_cited(start_index=0, end_index=6)]}
    answer = AIMessage([block], id="answer-1")
    await chat.append([HumanMessage("q"), AIMessage("", tool_calls=[call]), result, answer])
    for given in (answer, "answer-1"):
        cited = await chat.citations(given)
        assert [(item.number, item.source_id) for item in cited] == [
            (None, None),
            (1, 1),
            (2, 2),
            (9, None),
            (3, 3),
        ]
        assert [text[item.start : item.end] for item in cited][1:4] == ["[1]", "[2, 9]", "[2, 9]"]
        assert [item.title for item in cited] == [
            "Whales",
            "Whales",
            "seals.pdf, page 3",
            "",
            "Squid",
        ]
        assert cited[4].url == long
        assert {item.tool_message_id for item in cited if item.source_id} == {"result-1"}
        assert json.loads(cited[0].model_dump_json())["given_by"] == "provider"
    other = store.conversation(user_id=f"eve-{chat.scope['user_id']}", thread_id="t")
    assert [item.source_id for item in await other.citations(answer)] == [None] * 5
    for known in (False, True):
        if known:
            await other.append(HumanMessage("mine"))
        with pytest.raises(UnknownMessageError):
            await other.citations("answer-1")
    for wrong in (7, None, b"x", ["answer-1"], ""):
        with pytest.raises(InvalidInputError):
            await chat.citations(wrong)
    empty = AIMessage("\ud800\0 nothing here")
    assert await chat.citations(empty) == []


async def test_an_answer_cites_by_the_numbers_that_its_results_showed(
    store: ConversationStore,
) -> None:
    """Imported results count from 1 each: [1] of the second answer is the log's source 3; [4] is that of the log.

    A tool that gave numbers under ``source_id`` that were taken is cited by these.
    """
    chat = store.conversation(user_id="ada", thread_id="imported")
    answers = [AIMessage(f"So [1], [4] of {name}.", id=name) for name in ("seals", "orcas")]
    for answer in answers:
        call = {"name": "find", "args": {}, "id": f"call-{answer.id}"}
        found = [
            {"title": f"{answer.id} {n}", "content": f"{answer.id}, part {n}."} for n in (1, 2)
        ]
        content = "\n".join(f"[{n}] {each['content']}" for n, each in enumerate(found, 1))
        result = ToolMessage(content, artifact=found, tool_call_id=f"call-{answer.id}")
        await chat.append([HumanMessage("q"), AIMessage("", tool_calls=[call]), result, answer])
    cited = [await chat.citations(answer) for answer in answers]
    assert [[each.title for each in found] for found in cited] == [
        ["seals 1", "orcas 2"],
        ["orcas 1", "orcas 2"],
    ]
    found = {"results": [{"source_id": n, "content": f"squid, part {n}."} for n in (1, 2)]}
    call = {"name": "find", "args": {}, "id": "call-squid"}
    result = ToolMessage(json.dumps(found), tool_call_id="call-squid")
    answer = AIMessage("So [1], [4] of squid.", id="squid")
    turn = [HumanMessage("q"), AIMessage("", tool_calls=[call]), result, answer]
    await chat.append(turn, on_source_clash="renumber")
    assert [each.source_id for each in await chat.citations("squid")] == [5, 4]
    tool = chat.retrieve_previous_sources_tool()
    page = await tool.ainvoke({"tool_message_ids": ["squid"]})
    assert "In m12, [1] is source 5." in page
    page = await tool.ainvoke({"tool_message_ids": ["orcas"]})
    assert "In m8, [1] is source 3." in page
    assert " is source " not in await tool.ainvoke({"tool_message_ids": ["seals"]})
    assert "In m8, [1] is source 3." in await tool.ainvoke({"find": "So of orcas"})


async def test_a_number_of_a_passage_that_is_no_source_means_nothing(
    store: ConversationStore,
) -> None:
    """Not source 1 of an earlier turn; a source of the same turn or of a sub-agent keeps its number."""
    chat = store.conversation(user_id="ada", thread_id="counted")
    found = [{"title": f"Seals {n}", "content": f"Seals, part {n}."} for n in (1, 2)]
    texts = [
        f"[{n}] Orcas sing in part {n} of the sea, as {'long ' * 20}books say." for n in (1, 2)
    ]
    counted, as_blocks = (
        "[1] Orcas.\n[2] Squid.",
        [{"type": "text", "text": text} for text in texts],
    )

    async def cited(name: str, *results: tuple[Any, Any], by: str = "find") -> list[int | None]:
        calls = [
            {"name": "find" if n else by, "args": {}, "id": f"{name}-{n}"}
            for n in range(len(results))
        ]
        messages = [
            ToolMessage(content, artifact=artifact, name=call["name"], tool_call_id=call["id"])
            for call, (content, artifact) in zip(calls, results, strict=True)
        ]
        answer = AIMessage("So [1], [2].", id=name)
        await chat.append([HumanMessage("q"), AIMessage("", tool_calls=calls), *messages, answer])
        return [each.source_id for each in await chat.citations(name)]

    numbered = [{**item, "source_id": n} for n, item in enumerate(found, 1)]
    assert await cited("same turn", ("2", numbered), (counted, None)) == [1, 2]
    assert await cited("no list", ("[1] Orcas.", None)) == [1, 2]
    assert await cited(
        "read back", (counted, None), ("0", None), by="retrieve_previous_sources"
    ) == [1, 2]
    assert await cited("text", (counted, None)) == [None, None]
    assert await cited("JSON of texts", ('["[1] Orcas.", "[2] Squid."]', None)) == [None, None]
    assert await cited("blocks", (as_blocks, None)) == [None, None]
    assert await cited("JSON of passages", (json.dumps(texts), None)) == [3, 4]
    assert await cited("both", ("\n".join(texts), texts), (counted, None)) == [5, 6]
    shown = [Source(source_id=n, title="", content=text) for n, text in enumerate(texts, 8)]
    content = "\n".join(f"[{source.source_id}] {source.content}" for source in shown)
    assert numbers_shown(content, shown) == {}
    tool = chat.retrieve_previous_sources_tool()
    page = await tool.ainvoke({"tool_message_ids": ["text"]})
    assert "[1] is no source, [2] is no source." in page
    chat = store.conversation(user_id="ada", thread_id="sub-agent")
    await chat.append([HumanMessage("Hello"), AIMessage("Hello.")])
    result = ToolMessage("2", artifact=numbered, tool_call_id="c")
    call = {"name": "find", "args": {}, "id": "c"}
    await chat.child("finder").append([HumanMessage("q"), AIMessage("", tool_calls=[call]), result])
    assert await cited("report", ("Sources:\n" + counted, None)) == [1, 2]
