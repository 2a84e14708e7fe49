"""The responses of search engines and vector stores, and ordinary results that look a little like them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cases import each_case
from langchain_core.documents import Document
from langchain_core.messages import ToolMessage
from strategies import same

from convstore import ConversationStore
from convstore.sources.detection import find_sources, parse_json
from convstore.sources.source import FoundSource, is_passage

_SONG = "Whales sing, and each song is passed on from group to group. "
_A = "https://sea.example/a"

_BEDROCK = {
    "content": {"text": _SONG, "type": "TEXT"},
    "location": {"type": "S3", "s3Location": {"uri": _A}},
    "score": 0.6,
    "metadata": {"year": 1970},
}
_LLAMA = {
    "node": {
        "id_": "n",
        "text": _SONG,
        "metadata": {"file_name": "Songs", "url": _A},
        "class_name": "TextNode",
    },
    "score": 0.8,
    "class_name": "NodeWithScore",
}
_POINT = {
    "id": 7,
    "version": 1,
    "score": 0.9,
    "payload": {"document": _SONG, "title": "Songs", "url": _A},
}
_VERTEX = {"sourceUri": _A, "sourceDisplayName": "Songs", "text": _SONG, "score": 0.3}
_CITED = {"content": _SONG, "title": "Songs", "url": _A, "filepath": "a.md", "chunk_id": "0"}
_WEB = {"title": "Songs", "link": _A, "snippet": _SONG}

SHAPES: dict[str, Any] = {
    "vertex": {"contexts": {"contexts": [_VERTEX]}},
    "vertex in snake case": {
        "contexts": {
            "contexts": [{"source_uri": _A, "source_display_name": "Songs", "text": _SONG}]
        }
    },
    "bedrock": {"ResponseMetadata": {"HTTPStatusCode": 200}, "retrievalResults": [_BEDROCK]},
    "azure ai search": {
        "@odata.count": 1,
        "value": [{"@search.score": 1, "title": "Songs", "url": _A, "chunk": _SONG}],
    },
    "azure openai": {"citations": [_CITED], "intent": '["songs"]'},
    "azure openai, newer": {"context": {"citations": [_CITED], "intent": "songs"}},
    "bing": {
        "_type": "SearchResponse",
        "webPages": {"value": [{"id": "b", "name": "Songs", "url": _A, "snippet": _SONG}]},
    },
    "serper": {
        "searchParameters": {"q": "whales"},
        "organic": [{**_WEB, "position": 1}],
        "credits": 1,
    },
    "serpapi": {"search_metadata": {"id": "1"}, "organic_results": [_WEB]},
    "google": {
        "kind": "customsearch#search",
        "queries": {},
        "items": [{**_WEB, "displayLink": "sea.example"}],
    },
    "brave": {
        "type": "search",
        "web": {"results": [{"title": "Songs", "url": _A, "description": _SONG}]},
    },
    "qdrant": {"points": [_POINT]},
    "qdrant over http": {"result": {"points": [_POINT]}, "status": "ok", "time": 0.1},
    "qdrant search": {"result": [_POINT], "status": "ok"},
    "qdrant list": [_POINT],
    "weaviate": {
        "data": {
            "Get": {
                "Song": [{"text": _SONG, "title": "Songs", "url": _A, "_additional": {"id": "w"}}]
            }
        }
    },
    "weaviate objects": {
        "objects": [{"uuid": "w", "properties": {"text": _SONG, "title": "Songs", "url": _A}}]
    },
    "chroma": {
        "ids": [["c"]],
        "documents": [[_SONG]],
        "metadatas": [[{"title": "Songs", "url": _A}]],
        "distances": [[0.1]],
        "embeddings": None,
    },
    "chroma get": {
        "ids": ["c"],
        "documents": [_SONG],
        "metadatas": [{"title": "Songs", "url": _A}],
    },
    "llamaindex": [_LLAMA],
    "llamaindex response": {"response": "They sing.", "source_nodes": [_LLAMA]},
}


def _found(content: Any = "see artifact", artifact: Any = None) -> tuple[FoundSource, ...]:
    message = ToolMessage(content, artifact=artifact, tool_call_id="c", id="m", name="search")
    return find_sources(message, parse_json(content) if isinstance(content, str) else None).items


@each_case("shape", SHAPES)
def test_a_response_is_found_with_text_title_and_address(shape: Any) -> None:
    """In the artifact and as JSON in the content; nothing else of the item is lost."""
    response = SHAPES[shape]
    for found in (_found(artifact=response), _found(json.dumps(response))):
        assert [source.text for source in found] == [_SONG]
        assert found[0].url == _A
        assert found[0].title == ("" if shape == "bedrock" else "Songs")


_TEXT_KEYS = {"text", "chunk", "snippet", "description", "document", "content"}


def _emptied(item: Any) -> Any:
    """Return an item without its text."""
    if type(item) is not dict:
        return None
    return {
        key: _emptied(value) if key in ("node", "payload", "properties") else value
        for key, value in item.items()
    } | (dict.fromkeys(_TEXT_KEYS & item.keys()))


def _with_emptied(value: Any) -> Any:
    """Return a response whose list has its item twice, and once without text between them."""
    if type(value) is list:
        return (
            [value[0], _emptied(value[0]), value[0]]
            if type(value[0]) is not list
            else [_with_emptied(value[0])]
        )
    if type(value) is dict:
        return {
            key: item if key == "intent" else _with_emptied(item) for key, item in value.items()
        }
    return value


@each_case("shape", SHAPES)
def test_an_item_without_text_does_not_cost_the_others_their_numbers(shape: Any) -> None:
    """An item without text does not cost the other items their sources, in an artifact or in JSON content."""
    response = _with_emptied(SHAPES[shape])
    for found in (_found(artifact=response), _found(json.dumps(response))):
        assert [source.text for source in found if source.text] == [_SONG] * 2


@pytest.mark.parametrize(
    "items",
    [
        [{"title": "A", "text": "x"}, {"title": None, "text": None}],
        [("x", {"title": "A"}), (None, {"title": "B"})],
        [Document("x"), None],
        ["x", None, "y"],
        [(Document("x"), 0.5), (None, 0.1)],
    ],
    ids=range(5),
)
async def test_the_rest_of_a_list_keeps_its_place(items: Any) -> None:
    """Items without text stay where they are in the artifact; the others get numbers."""
    message = ToolMessage("found", artifact={"documents": items}, tool_call_id="c")
    found = find_sources(message, None)
    assert found.rebuild is not None
    assert same(found.rebuild([source.item for source in found.items]), message.artifact)
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        receipt = await chat.append(
            [ToolMessage("found", artifact=items, tool_call_id="c", id="m")]
        )
        assert receipt.source_ids == (1, len(found.items))
        assert same((await chat.get_tool_messages(["m"]))[0].artifact, items)
        assert (await store.verify()).ok


@each_case("pair", [tuple, list])
async def test_documents_with_scores_are_read_back(pair: Any) -> None:
    """Documents with scores, as `similarity_search_with_score` returns, are sources with the score as metadata."""
    hits = [
        pair([Document(text, metadata={"title": "Songs"}, id="d"), 0.25])
        for text in (_SONG, _SONG * 100)
    ]
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        await chat.append([ToolMessage("2 hits", artifact=hits, tool_call_id="c", id="m")])
        page = await chat.get_sources([1, 2], page_tokens=16_000)
        assert [source.content for source in page.sources] == [_SONG, _SONG * 100]
        assert [(source.title, source.metadata["score"]) for source in page.sources] == [
            ("Songs", 0.25)
        ] * 2
        assert same((await chat.get_tool_messages(["m"]))[0].artifact, hits)
        assert (await store.verify()).ok


_PASSAGE = _SONG * 3
_CHINESE = "鲸鱼会唱歌每一首歌都从一个群体传到另一个群体" * 8


@each_case(
    "texts", [[_PASSAGE], [_PASSAGE, "Too short."], [_CHINESE], [_PASSAGE] * 20, ["word " * 60]]
)
async def test_passages_in_content_are_sources(texts: Any) -> None:
    """A JSON list of strings, or a list as content, if at least every other one reads like prose."""
    assert [source.text for source in _found(json.dumps(texts))] == texts
    assert [source.text for source in _found(texts)] == texts
    assert [source.text for source in _found(json.dumps({"passages": texts}))] == texts
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        await chat.append([ToolMessage(json.dumps(texts), tool_call_id="c", id="m")])
        assert [
            source.content for source in (await chat.get_sources([1], page_tokens=8_000)).sources
        ] == texts[:1]


_LOG_LINE = "2024-11-23 00:14:22,123 ERROR [main-7] com.foo.Bar(217): 10.0.0.5:27017 refused, retry=3/5, 250ms, #a8"


@pytest.mark.parametrize(
    "value",
    [
        ["AA12", "BB7"],
        ["whales", "songs of the sea", "orcas"],
        [
            f"/srv/data/{n}/quarter/summary-of-all-regions/and-of-all-products/as-of-this-morning/{n}.parquet"
            for n in "abc"
        ],
        [
            f"https://sea.example/{n}/the-songs-of-whales-and-how-they-are-passed-from-group-to-group-{n}"
            for n in "abc"
        ],
        [_LOG_LINE] * 5,
        [
            json.dumps(
                {
                    "flight": "HAT1",
                    "from": "JFK",
                    "to": "LAX",
                    "departs": "08:00",
                    "seats": 3,
                    "price": 120,
                }
            )
        ]
        * 4,
        ["c29tZSBieXRlcyBvZiBhIHBpY3R1cmU" * 9],
        [_PASSAGE, "AA12", "BB7"],
        [{"flight": "HAT001", "price": 3, "date": "2024-05-20"}],
        {
            "reservation_id": "ZFA04Y",
            "items": [{"name": "Shirt", "price": 3, "options": {"size": "L"}}],
        },
        {"items": [{"name": "Shirt", "description": _PASSAGE, "url": None}]},
        {"value": [{"displayName": "Ada", "mail": "a@b", "content": "hello"}]},
        {"value": [1, 2, 3]},
        {"points": [{"x": 1, "y": 2}, {"x": 2, "y": 3}]},
        {"result": [{"title": "Ada", "text": "hi"}]},
        {"objects": [{"id": 1, "text": "hi"}]},
        {"nodes": [{"id": 1, "text": "hi"}], "edges": [{"node": {"text": "hi"}}]},
        [{"node": {"text": "hi"}, "cursor": "x"}],
        {"citations": 7, "context": {"citations": "none"}},
        {"data": {"Get": {"Song": [1, 2]}}},
        {"data": {"Get": [1, 2]}},
        {"ids": ["a", "b"], "documents": ["AA12"]},
        {"ids": ["a"], "names": ["b"]},
        {"web": {"results": [{"title": "Ada"}]}},
        {"organic": True, "items": [{"name": "Apple", "organic": True}]},
        {"contexts": {"contexts": [{"user": "ada"}]}},
        [["a", 1], ["b", 2]],
        [[{"id": 1}, 0.5]],
        [[{"rows": 3}, True]],
    ],
    ids=range(29),
)
def test_an_ordinary_result_has_no_sources(value: Any) -> None:
    """Records, tables, tags, ids, paths, log lines, charts and graphs are data, as JSON and as a list in content."""
    assert _found(json.dumps(value)) == ()
    if type(value) is list and all(type(element) is str for element in value):
        assert _found(value) == ()
    else:
        assert _found(artifact=value) == ()


def test_a_passage_is_prose() -> None:
    """By its length, its words and its letters."""
    assert is_passage(_PASSAGE)
    assert is_passage(_CHINESE)
    assert not any(map(is_passage, ["", _SONG, _LOG_LINE, "a" * 500, "12 " * 200]))
