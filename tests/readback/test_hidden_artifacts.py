"""A model reads back what its tool showed it; the rest of an artifact only if the application asks for it."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore
from convstore.exceptions import InvalidInputError

HIDDEN = {"acl": "hr-only", "uploader": "bo@corp.example", "embedding": [0.123456] * 64}
SECRETS = ("hr-only", "bo@corp", "0.123456")


async def _append(chat: Conversation, number: int, content: Any, artifact: Any) -> None:
    call = {"name": "search", "args": {}, "id": f"call-{number}"}
    found = ToolMessage(
        content, artifact=artifact, tool_call_id=call["id"], name="search", id=f"r{number}"
    )
    await chat.append([HumanMessage("q"), AIMessage("", tool_calls=[call]), found, AIMessage("ok")])


async def _read(chat: Conversation, arguments: dict[str, Any], **options: Any) -> str:
    tool = chat.retrieve_previous_sources_tool(page_tokens=16_000, **options)
    pages: list[str] = []
    while True:
        call = {"name": tool.name, "args": arguments, "id": "c", "type": "tool_call"}
        page = await tool.ainvoke(call)
        pages.append(page.text)
        if page.artifact.next_cursor is None:
            return "\n".join(pages)
        arguments = {"cursor": page.artifact.next_cursor}


async def test_an_artifact_is_shown_and_found_only_if_asked_for(chat: Conversation) -> None:
    """Access lists, addresses and vectors are on no page, in no match and in no search, in any shape and size."""
    text = "The pay bands are three. "
    shapes = [
        [Document(text * 8, metadata={"title": "Pay", **HIDDEN})],
        {"sources": [{"content": text * 80, "title": "Pay", **HIDDEN}], "trace": HIDDEN},
        [{"title": "Pay", "url": "https://pay.example", **HIDDEN}],
        {"internal": HIDDEN},
        [(text * 200, HIDDEN), ("", {**HIDDEN, "title": "Empty"})],
    ]
    for number, artifact in enumerate(shapes):
        await _append(chat, number, f"Pay, result {number}.", artifact)
    ids = [f"r{number}" for number in range(len(shapes))]
    numbers = (await chat.get_sources("1-20", tool_message_ids=ids)).sources
    wanted = [
        {"tool_message_ids": ids},
        {"source_ids": f"1-{len({source.source_id for source in numbers})}"},
        {"tool_message_ids": ids, "find": "hr-only"},
        {"find": "uploader bo@corp.example"},
    ]
    for arguments in wanted:
        page = await _read(chat, arguments)
        page = page.replace(f"'{arguments.get('find')}'", "")
        assert [secret for secret in SECRETS if secret in page] == [], arguments
    page = await _read(chat, {"tool_message_ids": ids}, artifact=True)
    assert all(page.count(secret) >= len(ids) for secret in SECRETS)
    found = await _read(chat, {"tool_message_ids": ids, "find": "hr-only"}, artifact=True)
    assert found.count("hr-only") >= len(ids)
    with pytest.raises(InvalidInputError, match="artifact"):
        chat.retrieve_previous_sources_tool(artifact="yes")


async def test_a_store_shows_the_metadata_that_it_names() -> None:
    """In the header of each source, and found by `find`; whatever the shape, and by id and by number. Nothing else."""
    shown = {"author": "Ada  Ox", "tags": ["pay", "bands"], "when": date(2026, 11, 28), "page": 3}
    hidden = {**HIDDEN, "notes": {"by": "hr-only"}}
    text = "The pay bands are three. "
    shapes = [
        [Document(text * 8, metadata={"title": "Pay", **shown, **hidden})],
        {"sources": [{"content": text * 80, "title": "Pay", **shown, **hidden}]},
        [{"title": "Pay", **shown, **hidden, "more": text * 100}],
        [(text * 400, {**shown, **hidden, "title": "Pay by Ada  Ox"})],
    ]
    names = ("title", "author", "page", "tags", "when", "notes", "missing")
    async with await ConversationStore.connect("memory://", visible_metadata=names) as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        for number, artifact in enumerate(shapes):
            await _append(chat, number, f"Pay, result {number}.", artifact)
        for number in range(len(shapes)):
            for arguments in ({"tool_message_ids": [f"r{number}"]}, {"source_ids": [number + 1]}):
                page = await _read(chat, arguments)
                header = next(line for line in page.splitlines() if line.startswith("["))
                author = "" if number == 3 else ", author: Ada Ox"
                named = f"page 3{author}, tags: pay, bands, when: 2026-11-28, characters 0-"
                assert named in header, (header, arguments)
                assert [secret for secret in SECRETS if secret in page] == []
        found = await _read(chat, {"source_ids": "1-4", "find": "ADA OX"})
        assert found.count("author: Ada Ox") == found.count("characters 0-200 of ") == 2
        assert "No match" in await _read(chat, {"source_ids": "1-4", "find": "hr-only"})
    for wrong in ("title", [7], None):
        with pytest.raises(InvalidInputError, match="visible_metadata"):
            await ConversationStore.connect("memory://", visible_metadata=wrong)


async def test_a_field_is_shown_unless_its_heading_has_it_as_words() -> None:
    """Version 1 of source 1 was left out for the "1" of "[1]", and "en" for a word with these letters."""
    fields = {"title": "Frequent fares", "version": 1, "year": 2, "language": "en"}
    item = {**fields, "page": 2, "text": "A ticket is two. " * 40}
    names = ("title", "version", "year", "language")
    async with await ConversationStore.connect("memory://", visible_metadata=names) as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        await _append(chat, 0, "Fares.", [item])
        page = await _read(chat, {"source_ids": [1]})
        assert "[1] Frequent fares, page 2, version: 1, year: 2, language: en, characters" in page


async def test_a_page_of_a_numbered_result_has_each_source_once(chat: Conversation) -> None:
    """Headings and marks between the texts of sources are left out, and the words of the tool are not."""
    texts = [f"Passage {number} on owls, which is long enough. " * 8 for number in range(1, 4)]
    items = [
        {"title": f"Owl {number}", "url": f"https://owl.example/{number}", "text": text}
        for number, text in enumerate(texts, 1)
    ]
    forms = {
        "[{n}] {t}\n{x}": None,
        "[{n}] {t} (https://owl.example/{n}), already shown as [1]\n{x}": None,
        "[{n}] {x}": None,
        "{n}. {t}\nURL: https://owl.example/{n}\n{x}": None,
        '<doc id="{n}" title="{t}">\n{x}\n</doc>': None,
        "Title: {t}\n{x}": None,
        "[{n}] {t}, score 0.5\n{x}": ", score 0.5",
    }
    for index, (form, kept) in enumerate(forms.items()):
        first = 3 * index
        written = [
            form.format(n=first + n, t=f"Owl {n}", x=text) for n, text in enumerate(texts, 1)
        ]
        form_items = [
            {**item, "url": f"https://owl.example/{first + n}"} for n, item in enumerate(items, 1)
        ]
        content = "\n\n".join(["Prices exclude VAT.", *written, "End of the list."])
        await _append(chat, index, content, form_items)
        page = await _read(chat, {"tool_message_ids": [f"r{index}"]})
        assert page.count("Prices exclude VAT.") == page.count("End of the list.") == 1, form
        if kept is None:
            assert f"VAT. [texts of sources {first + 1}-{first + 3}] End" in " ".join(page.split())
            assert page.count("Owl 2") == 1
        else:
            assert page.count(kept) == 3
    await _append(
        chat, 90, "\n\n".join(f"[{22 + n}] {text}" for n, text in enumerate(texts)), items
    )
    page = await _read(chat, {"tool_message_ids": ["r90"]})
    assert "[text" not in page
    assert page.count("Owl 2") == 1
    plain = [{"title": item["title"], "content": item["text"]} for item in items]
    await _append(chat, 91, json.dumps(plain), None)
    page = await _read(chat, {"tool_message_ids": ["r91"]})
    assert "[text" not in page
    assert page.count("Owl 2") == 1
