"""Detection of sources in tool results, and of data that is none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from cases import each_case
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import ToolMessage
from properties import STRIDE, examples
from strategies import PureLog, any_text, same, values

from convstore import ConversationStore
from convstore.messages.encoding import decode_message, encode_message, fields_of
from convstore.messages.values import Codec
from convstore.sources import detection as finding
from convstore.sources.blocks import BLOCKS, HOLDERS
from convstore.sources.citations import CITED, MAX_MENTIONS
from convstore.sources.detection import find_sources, parse_json
from convstore.sources.source import MAX_SOURCES, FoundSource, FoundSources

_HITS = [
    {"title": "A", "url": "https://a", "text": "first", "score": 1},
    {"name": "B", "link": "b", "content": "second"},
]
_FACTS = [("A", "https://a", "first"), ("B", "b", "second")]
_ON = {"enabled": True}
_TEXTS_UNDER = ("sources", "documents", "docs", "passages", "chunks")


def _message(content: Any = "see artifact", artifact: Any = None, **fields: Any) -> ToolMessage:
    return ToolMessage(
        content, artifact=artifact, **({"id": "m", "tool_call_id": "c", "name": "search"} | fields)
    )


def _find(message: ToolMessage) -> FoundSources:
    return find_sources(
        message, parse_json(message.content) if isinstance(message.content, str) else None
    )


def _found(content: Any = "see artifact", artifact: Any = None) -> tuple[FoundSource, ...]:
    return _find(_message(content, artifact)).items


def _facts(found: Sequence[FoundSource]) -> list[tuple[str, str, str]]:
    return [(source.title, source.url, source.text) for source in found]


def _text(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


# ---------------------------------------------------------------------------------------------------------------------
# Every form


@dataclass(frozen=True)
class Form:
    """A tool result with the one source that it has; `url` and `metadata` as they are read."""

    blocks: list[Any]
    text: str = ""
    title: str = ""
    url: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def fact(self) -> tuple[str, str, str]:
        """Return the sources that are found."""
        return self.title, self.url, self.text


def forms(long: str = "") -> dict[str, Form]:
    """Blocks of every known form; `long` makes their texts so long that a stub is shorter."""
    song = f"Whales sing.{long}"
    said = _text(f"{song} Seals bark.")
    a = "https://sea.example/a"
    searched = {
        "type": "search_result",
        "source": a,
        "title": "Songs",
        "content": [_text(song)],
        "citations": _ON,
    }
    span = {"start_index": 0, "end_index": len(song)}
    web = {
        "type": "web_search_result",
        "url": a,
        "title": "Songs",
        "encrypted_content": "Eo8B",
        "page_age": "1 day",
    }
    file = {"file_id": "f-1", "filename": "songs.md", "score": 0.5, "attributes": {"year": 1970}}
    in_file = {"file_id": "f-1", "score": 0.5, "attributes": {"year": 1970}}
    document = {"type": "document", "title": "Songs", "context": "a book", "citations": _ON}
    fetched = {"type": "web_fetch_result", "url": a, "retrieved_at": "2026-01-01"}
    inner = {"uri": "sea://a", "mimeType": "text/plain", "text": song}
    hit = {"title": "Songs", "url": a, "text": song, "rank": 1}
    of_document = {"type": "document", "context": "a book", "citations": _ON}

    def cite(**annotation: Any) -> list[Any]:
        return [said | {"annotations": [annotation]}]

    return {
        "search_result": Form(
            [_text("1 hit"), searched],
            song,
            "Songs",
            a,
            {"type": "search_result", "citations": _ON},
        ),
        "document of text": Form(
            [document | {"source": {"type": "text", "media_type": "text/plain", "data": song}}],
            song,
            "Songs",
            "",
            of_document | {"source": {"type": "text", "media_type": "text/plain"}},
        ),
        "document of blocks": Form(
            [
                document
                | {"source": {"type": "content", "content": [_text(song), _text("Or hum.")]}}
            ],
            f"{song}\nOr hum.",
            "Songs",
            "",
            of_document | {"source": {"type": "content"}},
        ),
        "document at an address": Form(
            [document | {"source": {"type": "url", "url": a}}],
            "",
            "Songs",
            a,
            of_document | {"source": {"type": "url"}},
        ),
        "document of bytes": Form(
            [
                document
                | {
                    "source": {
                        "type": "base64",
                        "media_type": "application/pdf",
                        "data": "JVBERi0=" + long,
                    }
                }
            ],
            "",
            "Songs",
            "",
            of_document | {"source": {"type": "base64", "media_type": "application/pdf"}},
        ),
        "text-plain": Form(
            [
                {
                    "type": "text-plain",
                    "mime_type": "text/plain",
                    "text": song,
                    "title": "Songs",
                    "context": "a book",
                }
            ],
            song,
            "Songs",
            "",
            {"type": "text-plain", "mime_type": "text/plain", "context": "a book"},
        ),
        "web_search_result": Form(
            [web], "", "Songs", a, {"type": "web_search_result", "page_age": "1 day"}
        ),
        "web_search_tool_result": Form(
            [{"type": "web_search_tool_result", "tool_use_id": "s", "content": [web]}],
            "",
            "Songs",
            a,
            {"type": "web_search_result", "page_age": "1 day"},
        ),
        "web_search_result that is cited": Form(
            [
                web,
                said
                | {
                    "citations": [
                        {"type": "web_search_result_location", "url": a, "cited_text": song}
                    ]
                },
            ],
            song,
            "Songs",
            a,
            {"type": "web_search_result", "page_age": "1 day"},
        ),
        "web_fetch_tool_result": Form(
            [
                {
                    "type": "web_fetch_tool_result",
                    "content": fetched
                    | {
                        "content": {
                            "type": "document",
                            "title": "Songs",
                            "source": {"type": "text", "data": song},
                        }
                    },
                }
            ],
            song,
            "Songs",
            a,
            {"type": "web_fetch_result", "retrieved_at": "2026-01-01", "source": {"type": "text"}},
        ),
        "server_tool_result": Form(
            [
                {
                    "type": "server_tool_result",
                    "tool_call_id": "s",
                    "status": "success",
                    "output": [file | {"text": song}],
                }
            ],
            song,
            "songs.md",
            "",
            in_file,
        ),
        "file_search_call": Form(
            [
                {
                    "type": "file_search_call",
                    "id": "fs",
                    "queries": ["q"],
                    "results": [file | {"text": song}],
                }
            ],
            song,
            "songs.md",
            "",
            in_file,
        ),
        "web_search_call": Form(
            [
                {
                    "type": "web_search_call",
                    "action": {"type": "search", "sources": [{"type": "url", "url": a}]},
                }
            ],
            "",
            "",
            a,
            {"type": "url"},
        ),
        "vector store search": Form(
            [
                _text(
                    json.dumps(
                        {
                            "object": "page",
                            "data": [file | {"content": [_text(song), _text("Or hum.")]}],
                        }
                    )
                )
            ],
            f"{song}\nOr hum.",
            "songs.md",
            "",
            in_file,
        ),
        "url_citation": Form(
            cite(type="url_citation", url=a, title="Songs", **span),
            song,
            "Songs",
            a,
            {"type": "url_citation"} | span,
        ),
        "nested url_citation": Form(
            cite(type="url_citation", url_citation={"url": a, "title": "Songs", **span}),
            song,
            "Songs",
            a,
            {"type": "url_citation"} | span,
        ),
        "url_citation of a response": Form(
            [
                {"type": "reasoning", "summary": []},
                {
                    "type": "message",
                    "content": [
                        said
                        | {
                            "type": "output_text",
                            "annotations": [{"type": "url_citation", "url": a, **span}],
                        }
                    ],
                },
            ],
            song,
            "",
            a,
            {"type": "url_citation"} | span,
        ),
        "file_citation": Form(
            cite(type="file_citation", file_id="f-1", filename="songs.md", index=3),
            "",
            "songs.md",
            "",
            {"type": "file_citation", "file_id": "f-1", "index": 3},
        ),
        "nested file_citation": Form(
            cite(type="file_citation", text="[0]", file_citation={"file_id": "f-1", "quote": song}),
            song,
            "",
            "",
            {"type": "file_citation", "text": "[0]", "file_id": "f-1"},
        ),
        "citation": Form(
            cite(type="citation", url=a, title="Songs", cited_text=song, extras={"n": 1}, **span),
            song,
            "Songs",
            a,
            {"type": "citation", "extras": {"n": 1}} | span,
        ),
        "char_location": Form(
            [
                said
                | {
                    "citations": [
                        {"type": "char_location", "document_title": "Songs", "cited_text": song}
                    ]
                }
            ],
            song,
            "Songs",
            "",
            {"type": "char_location"},
        ),
        "search_result_location": Form(
            cite(
                type="non_standard_annotation",
                value={"type": "search_result_location", "source": a, "cited_text": song},
            ),
            song,
            "",
            a,
            {"type": "search_result_location"},
        ),
        "text that is JSON": Form(
            [_text(json.dumps({"results": [hit]}))], song, "Songs", a, {"rank": 1}
        ),
        "text that is a document in JSON": Form(
            [_text(json.dumps(hit))], song, "Songs", a, {"rank": 1}
        ),
        "resource": Form(
            [{"type": "resource", "resource": inner, "annotations": {"audience": ["user"]}}],
            song,
            "",
            "sea://a",
            {"type": "resource", "mimeType": "text/plain", "annotations": {"audience": ["user"]}},
        ),
        "resource_link": Form(
            [
                {
                    "type": "resource_link",
                    "uri": "sea://a",
                    "name": "a.md",
                    "title": "Songs",
                    "size": 7,
                }
            ],
            "",
            "Songs",
            "sea://a",
            {"type": "resource_link", "name": "a.md", "size": 7},
        ),
        "file": Form(
            [_text("see"), {"type": "file", "id": "lc_1", "url": a, "mime_type": "text/html"}],
            "",
            "",
            a,
            {"type": "file", "id": "lc_1", "mime_type": "text/html"},
        ),
    }


FORMS = forms()
LONG = forms(" Oo-oh." * 1_000)
by_form = pytest.mark.parametrize("name", FORMS)


@pytest.mark.costly
@by_form
@pytest.mark.parametrize("known", [FORMS, LONG], ids=["short", "long"])
def test_every_form_is_found_anywhere_in_a_result(name: Any, known: Any) -> None:
    """In the content, as JSON in the content, and in the artifact, each with text, title, address and the rest."""
    form = known[name]
    for message in (
        _message(form.blocks),
        _message(
            [*form.blocks, _text("That is all."), {"type": "image", "base64": "iVBORw0KGgo="}]
        ),
        _message(json.dumps(form.blocks)),
        _message(json.dumps({"content": form.blocks, "isError": False})),
        _message(artifact=form.blocks),
        _message(artifact={"output": form.blocks}),
    ):
        found = _find(message).items
        assert _facts(found) == [form.fact]
        assert found[0].label()[2] == form.metadata


@pytest.mark.costly
@by_form
async def test_every_form_is_read_back_by_its_number(name: Any) -> None:
    """A conversation gives the text, title, address and metadata of each, short or long, and the message as it was."""
    store = await ConversationStore.connect("memory://")
    async with store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id=name)
        sent = [
            _message(known[name].blocks, id=id_, tool_call_id=id_)
            for id_, known in (("s", FORMS), ("l", LONG))
        ]
        await chat.append(sent)
        page = await chat.get_sources(source_ids=[1, 2, 3], page_tokens=16_000)
        assert page.not_found == [3]
        for known, source in zip((FORMS, LONG), page.sources, strict=True):
            assert (source.title, source.url) == (known[name].title, known[name].url)
            assert source.metadata == known[name].metadata
            assert not known[name].text or source.content == known[name].text
        records = await chat.get_tool_messages(["s", "l"])
        assert [record.content for record in records] == [message.content for message in sent]


def test_the_samples_are_of_every_known_form() -> None:
    """A new form comes with a sample."""
    shown = json.dumps([form.blocks for form in FORMS.values()])
    rare = {
        "content_block_location",
        "page_location",
        "input_text",
        "tool_result",
        "mcp_tool_result",
        "non_standard",
    }
    assert {
        kind for kind in BLOCKS.keys() | HOLDERS.keys() | CITED if f'"{kind}"' not in shown
    } == rare


# ---------------------------------------------------------------------------------------------------------------------
# Lists of items


@pytest.mark.parametrize(
    "artifact",
    [
        _HITS,
        tuple(_HITS),
        {"sources": _HITS, "query": "q"},
        {"results": _HITS},
        {"documents": _HITS, "sources": "none", "results": []},
        {"sources": [1, 2], "results": _HITS},
        {"structured_content": {"results": _HITS}},
        {"structuredContent": {"result": _HITS}, "content": []},
        {"structured_content": _HITS},
        [("first", {"title": "A", "url": "https://a"}), ("second", {"title": "B", "uri": "b"})],
        [["first", {"name": "A", "link": "https://a"}], ("second", {"title": "B", "url": "b"})],
        [
            Document("first", metadata={"title": "A", "url": "https://a"}),
            Document("second", metadata=_HITS[1]),
        ],
        [Document("first", metadata={"filename": "A", "source": "https://a"}), _HITS[1]],
        [{"metadata": {"title": "A", "url": "https://a"}, "page_content": "first"}, _HITS[1]],
        [{"type": "video", **_HITS[0]}, {"type": "document", **_HITS[1]}],
        {"chunks": _HITS},
        {"hits": _HITS, "took": 3},
        {"matches": _HITS, "namespace": "ns"},
        {"passages": _HITS},
        {"docs": _HITS},
        {"data": {"sources": _HITS}, "success": True},
        {"data": {"results": _HITS, "total": 2}},
        {"hits": {"hits": _HITS, "total": 2}},
    ],
    ids=range(23),
)
def test_items_of_a_list_keep_their_place(artifact: Any) -> None:
    """Documents, pairs and dicts, in a list of their own or under a known key, stand in the artifact once."""
    found = _find(_message(artifact=artifact))
    assert _facts(found.items) == _FACTS
    assert found.rebuild is not None
    assert same(found.rebuild([source.item for source in found.items]), artifact)


@each_case(
    "content",
    [
        _HITS,
        {"sources": _HITS},
        {"results": _HITS, "n": 2},
        {"documents": _HITS},
        {"chunks": _HITS},
        {"hits": _HITS},
        {"matches": _HITS},
        {"data": {"sources": _HITS}},
        {"hits": {"hits": _HITS}},
    ],
)
def test_sources_in_json_content_are_found(content: Any) -> None:
    """A result that is JSON has its sources in the same places; the artifact goes first if it has any."""
    text = "  " + json.dumps(content)
    assert _facts(_found(text)) == _FACTS
    assert _facts(_found(text, artifact=[("own", {})])) == [("", "", "own")]
    assert _facts(_found(text, artifact={"rows": 3})) == _FACTS
    assert _facts(_found([_text(text)])) == _FACTS


@each_case(
    "wrap", [list, tuple, *(lambda texts, key=key: {key: texts, "n": 2} for key in _TEXTS_UNDER)]
)
def test_texts_in_an_artifact_are_sources(wrap: Any) -> None:
    """A list of them, or one under a key that says so; as content, or with other items, it is data."""
    artifact = wrap(["first", "second"])
    found = _find(_message(artifact=artifact))
    assert _facts(found.items) == [("", "", "first"), ("", "", "second")]
    assert found.rebuild is not None
    assert same(found.rebuild([source.item for source in found.items]), artifact)
    assert _found(json.dumps(artifact)) == ()
    for other in (["first", " "], ["first", None]):
        assert _facts(_found(artifact=wrap(other))) == [("", "", "first")]
    for other in ([" ", None], ["first", 2], ["first", " ", None]):
        assert _found(artifact=wrap(other)) == ()
    assert _found(artifact={"rows": ["first", "second"]}) == ()
    assert _found(artifact={"results": ["AA12", "BB7"]}) == ()


@each_case(
    "match",
    [
        {"id": "v1", "score": 0.9, "metadata": {"text": "first", "title": "A", "url": "https://a"}},
        {
            "_id": "v1",
            "_score": 0.9,
            "_source": {"body": "first", "title": "A", "url": "https://a"},
        },
        {
            "id": "v1",
            "score": 0.9,
            "payload": {"content": "first", "title": "A", "url": "https://a"},
        },
    ],
)
async def test_the_text_of_a_match_may_stand_among_its_details(match: dict[str, Any]) -> None:
    """The text of a match may be among its details. The rest is metadata, and the artifact is stored unchanged."""
    assert _facts(_found(artifact={"matches": [match, _HITS[1]]})) == _FACTS
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="m")
        long = {"hits": {"hits": [match, {**_HITS[1], "content": "second " * 900}]}}
        await chat.append([_message(artifact=long)])
        [source] = (await chat.get_sources([1])).sources
        assert (source.content, source.metadata.keys() & {"id", "_id"} != set()) == ("first", True)
        assert (await chat.get_tool_messages(["m"]))[0].artifact == long


async def test_bare_texts_are_read_back_by_their_numbers() -> None:
    """Short and long, with the artifact as it was."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="texts")
        for id_, texts in (("s", ["one", "two"]), ("l", ["three " * 900, "four " * 900])):
            await chat.append([_message(artifact=texts, id=id_, tool_call_id=id_)])
            assert (await chat.get_tool_messages([id_]))[0].artifact == texts
        page = await chat.get_sources([1, 2, 3, 4], page_tokens=16_000)
        assert [source.content for source in page.sources] == [
            "one",
            "two",
            "three " * 900,
            "four " * 900,
        ]
        assert await store.verify()


def test_a_list_that_is_split_into_texts_is_found() -> None:
    """MCP servers give each item of a list a text of its own; a single item must be a whole document."""
    assert _facts(_found([_text(json.dumps(hit)) for hit in _HITS])) == _FACTS
    assert _facts(_found([_text(json.dumps(_HITS[0]))])) == _FACTS[:1]
    assert _found([_text(json.dumps(_HITS[1]))]) == ()
    assert _found([_text(json.dumps(_HITS[1])), _text("{}")]) == ()


def test_a_single_document_keeps_its_place() -> None:
    """A dict with text, title and address is one source, which may be the whole artifact."""
    found = _find(_message(artifact=_HITS[0]))
    assert _facts(found.items) == _FACTS[:1]
    assert found.rebuild is not None
    assert found.rebuild(["x"]) == "x"


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        7,
        {},
        [],
        {"sources": []},
        {"sources": {"a": 1}},
        {"sources": "a"},
        {"rows": _HITS},
        {"data": {"rows": _HITS}},
        {"data": {"data": {"sources": _HITS}}},
        [*_HITS, "a"],
        [None],
        [("a", "b")],
        [("a", {}, {})],
        [({}, "a")],
        [[1, {}]],
        _HITS * 501,
        ("first", {"title": "A"}),
        [*_HITS, {"flight": "X1"}],
        {"results": [{"flight": "X1", "price": 3}]},
        [{"name": "Ada", "email": "a@b"}],
        [{"filename": "a.txt", "size": 3}],
        {"results": [*_HITS, {"documents": _HITS}]},
        {"data": _HITS},
        {"result": _HITS},
        {"title": "A", "text": "first"},
        {"structured_content": {"rows": _HITS}, "x": [{"sources": _HITS}]},
        [_text("first"), _text("second", annotations=[], citations=None)],
        [
            {"type": "image", "url": "https://a"},
            {"type": "file", "base64": "eA==", "filename": "a.pdf"},
        ],
        [{"type": "file", "url": "data:text/plain,x"}],
        [{"type": "document", "source": {"type": "base64", "data": "eA=="}}],
        [{"type": "web_search_tool_result", "content": {"type": "web_search_tool_result_error"}}],
        [
            _text(
                "x",
                annotations=[{"type": "file_path", "file_id": "f"}, {"type": "citation"}, None, 7],
            )
        ],
    ],
    ids=range(34),
)
def test_anything_else_is_no_source(value: Any) -> None:
    """Strings, mixed lists, tables, records, texts, pictures, bytes, errors and other keys are data."""
    assert _found(artifact=value) == ()
    assert _found(json.dumps(value)) == ()
    assert _found([_text(json.dumps(value))]) == ()
    if type(value) is list and all(type(block) in (str, dict) for block in value):
        assert _found(value) == ()


@each_case(
    "item",
    [
        {"text": ""},
        {"title": ""},
        {"uri": "u"},
        {"file_id": "f"},
        {"source_id": 3},
        {"source": "https://a"},
    ],
)
def test_one_sign_of_a_source_is_enough(item: dict[str, Any]) -> None:
    """A text, a title, an address, a file or a number, also where its value is in ``metadata``."""
    assert (
        len(_found(artifact={"results": [item, {"score": 1, "metadata": item | {"title": "T"}}]}))
        == 2
    )
    assert _found(artifact={"results": [item, {"score": 1}]}) == ()


def test_a_thousand_items_are_sources_one_more_are_not() -> None:
    """The limit is exactly 1,000, in every form."""
    for block in ({"text": "x"}, {"type": "search_result", "source": "s", "content": [_text("x")]}):
        assert len(_found(artifact=[block] * MAX_SOURCES)) == MAX_SOURCES == 1_000
        assert _found(artifact=[block] * (MAX_SOURCES + 1)) == ()
    cited = [
        _text("x", annotations=[{"type": "url_citation", "url": f"u{n}"}])
        for n in range(MAX_SOURCES + 1)
    ]
    assert len(_found(cited[1:])) == MAX_SOURCES
    assert _found(cited) == ()
    assert len(_found(cited[:1] * MAX_MENTIONS)) == 1
    assert _found(cited[:1] * (MAX_MENTIONS + 1)) == ()
    assert _found([cited[0] | {"annotations": cited[0]["annotations"] * (MAX_MENTIONS + 1)}]) == ()


@each_case(
    "text",
    [
        "",
        "{",
        "[1",
        "text",
        "NaN",
        '"[]"',
        "[" * 100_000,
        "[" + "9" * 5_000 + "]",
        "\ufeff[]",
        "\ud800",
        "nul",
    ],
)
def test_what_is_no_json_list_or_object_is_not_parsed(text: Any) -> None:
    """Any other text, hostile ones too, is simply not JSON."""
    assert parse_json(text) is None


def test_texts_without_citations_are_no_sources() -> None:
    """The blocks of a result are its text, not items that a tool retrieved."""
    stored = PureLog().append([_message([_text("x" * 3_000)])])
    assert stored.sources == ()
    assert stored.messages[0].sources == ""


# ---------------------------------------------------------------------------------------------------------------------
# Citations


def test_a_thing_that_is_cited_again_is_one_source() -> None:
    """By address, file or title; its texts are joined, each once, in all blocks of the result."""
    blocks = [
        _text(
            "Whales sing. Seals bark.",
            annotations=[
                {
                    "type": "url_citation",
                    "url": "a",
                    "title": "A",
                    "start_index": 0,
                    "end_index": 12,
                },
                {
                    "type": "url_citation",
                    "url": "b",
                    "title": "A",
                    "start_index": 0,
                    "end_index": 12,
                },
                {"type": "url_citation", "url": "a", "start_index": 13, "end_index": 24},
            ],
        ),
        _text("x", annotations=[{"type": "citation", "url": "a", "cited_text": "Seals bark."}]),
        _text("x", annotations=[{"type": "citation", "title": "f", "extras": {"file_id": "1"}}]),
        _text("x", annotations=[{"type": "file_citation", "filename": "f", "file_id": "2"}]),
        _text("x", citations=[{"type": "page_location", "cited_text": "Orcas."}] * 2),
        _text("x", citations=[{"type": "file_citation", "quote": "Too.", "file_id": "2"}]),
    ]
    assert _facts(_found(blocks)) == [
        ("A", "a", "Whales sing.\n\nSeals bark."),
        ("A", "b", "Whales sing."),
        ("f", "", ""),
        ("f", "", "Too."),
        ("", "", "Orcas."),
    ]


def test_a_source_is_not_cited_twice() -> None:
    """A citation of a result in the same message is that result, with the text that it has of its own."""
    results = [
        {"file_id": "1", "filename": "f", "text": "own", "score": 0.5},
        {"file_id": "1", "filename": "f", "text": "more", "score": 0.4},
    ]
    cited = [{"type": "file_citation", "file_id": "1", "filename": "f", "quote": "other"}]
    found = _found(
        [{"type": "file_search_call", "results": results}, _text("x", annotations=cited)]
    )
    assert [source.text for source in found] == ["own", "more"]


@each_case(
    ("start", "end", "text"),
    [
        (0, 3, "abc"),
        (1, 99, "bc"),
        (3, 9, ""),
        (2, 2, ""),
        (-1, 2, ""),
        (True, 2, ""),
        (0, 2.0, ""),
        ("0", None, ""),
    ],
)
def test_a_place_in_a_text_is_read_with_care(
    start: Any, end: float | int | None, text: str
) -> None:
    """Places that make no sense give no text; the cited thing is a source all the same."""
    cited = {"type": "url_citation", "url": "a", "start_index": start, "end_index": end}
    assert _facts(_found([_text("abc", annotations=[cited])])) == [("", "a", text)]


# ---------------------------------------------------------------------------------------------------------------------
# Whatever a tool gives

_words = st.sampled_from(
    sorted(
        {
            *BLOCKS,
            *HOLDERS,
            *CITED,
            *finding._BY_KEY,
            "image",
            "reasoning",
            "https://a",
            "data:x",
            "\ud800",
            "[{}]",
            "",
        }
    )
)
_keys = st.sampled_from(
    sorted(
        {
            *finding._BY_KEY,
            *HOLDERS.values(),
            *CITED,
            "structured_content",
            "structuredContent",
            "result",
            "resource",
        }
        | {
            "type",
            "text",
            "title",
            "url",
            "uri",
            "source",
            "content",
            "annotations",
            "citations",
            "extras",
            "metadata",
        }
        | {
            "source_id",
            "file_id",
            "filename",
            "cited_text",
            "quote",
            "start_index",
            "end_index",
            "base64",
            "",
        }
    )
)
_atoms = st.none() | st.booleans() | st.integers(-2, 12) | st.floats() | _words | any_text


def _inside(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    typed = st.dictionaries(_keys, inner, max_size=4)
    return (
        st.lists(inner, max_size=3)
        | typed
        | st.builds(lambda kind, more: {**more, "type": kind}, _words, typed)
        | inner.map(lambda value: {"type": "text", "text": json.dumps(value)})
    )


hostile = st.recursive(_atoms, _inside, max_leaves=20)
_SAMPLES: list[Any] = [block for form in FORMS.values() for block in form.blocks] + _HITS


@st.composite
def _spoiled(draw: st.DrawFn) -> Any:
    """A sample with anything in some place of it."""
    value = draw(st.sampled_from(_SAMPLES))

    def spoil(part: Any) -> Any:
        if type(part) not in (dict, list) or not part or draw(st.integers(0, 4)) == 0:
            return draw(hostile)
        position = draw(st.sampled_from(sorted(part) if type(part) is dict else range(len(part))))
        changed = spoil(part[position])
        if type(part) is dict:
            return {**part, position: changed}
        return [*part[:position], changed, *part[position + 1 :]]

    return spoil(value)


def _contents(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(strategy, min_size=1, max_size=4)
    return lists | st.builds(lambda key, inner: {key: inner}, _keys, lists)


any_content = _contents(_spoiled() | st.sampled_from(_SAMPLES)) | _contents(hostile) | hostile


def _as_content(value: Any) -> Any:
    is_list = type(value) is list and all(type(block) in (str, dict) for block in value)
    return value if is_list else json.dumps(value)


def _said(found: FoundSources) -> list[Any]:
    return [(*source.label(), source.text, source.kept_id) for source in found.items]


@example([{"type": [], "text": "1 hit"}], None)
@examples(400)
@given(any_content.map(_as_content), st.none() | any_content | values)
def test_anything_is_read_and_read_again(content: Any, artifact: Any) -> None:
    """Any content and artifact are read without an error, and the restored message has the same sources."""
    message = _message(content, artifact)
    found = _find(message)
    codec = Codec()
    assert len(found.items) <= MAX_SOURCES
    for source in found.items:
        source.digest(codec)
        assert all(type(said) is str for said in (source.title, source.url, source.text))
    encoded = encode_message(codec, fields_of(message))
    restored = decode_message(
        codec, encoded.body, fetch=lambda start, end: encoded.payload[start:end]
    )
    assert same(restored, message)
    assert same(_said(_find(restored)), _said(found))
    PureLog().append([message])


def _nested(key: str, depth: int, last: Any) -> Any:
    value = last
    for _ in range(depth):
        value = {"type": "message", key: [value]} if key == "content" else {key: value}
    return value


@pytest.mark.costly
@pytest.mark.parametrize("key", ["content", "structured_content", "results", "output", "documents"])
def test_deep_nesting_is_data(key: str) -> None:
    """No form is more than a few values deep; the rest is not looked at."""
    hit = {"type": "search_result", "source": "a", "title": "A"}
    assert _facts(
        _found(artifact=_nested(key, 1, hit) if key == "content" else {"results": [hit]})
    ) == [("A", "a", "")]
    assert _found(artifact=_nested(key, 50_000, hit)) == ()


@pytest.mark.slow
def test_a_great_many_of_anything_are_looked_at_once() -> None:
    """Texts, numbers, annotations and results in such numbers give no sources, and take no time to speak of."""
    many = 100_000 // STRIDE
    for value in (
        _text("x"),
        _text("{}"),
        _HITS[0],
        {"type": "search_result", "source": "a"},
        7,
        "[]",
        None,
        {},
    ):
        assert _found(artifact=[value] * many) == ()
        assert _found(json.dumps({"content": [value] * many})) == ()
    cited = {"type": "url_citation", "url": "u", "start_index": 0, "end_index": many}
    assert _found([_text("x" * many, annotations=[cited] * many)]) == ()
    [found] = _found(
        [_text("x" * many, annotations=[cited | {"start_index": n} for n in range(100)])]
    )
    assert len(found.text) < 1_002_000
