"""Images and files come back as content blocks, within the budget of a page, in a form that the provider accepts."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, HistoryPolicy
from convstore.messages.tokens import approximate_tokens

PDF = {
    "type": "file",
    "base64": "QUJD" * 40_000,
    "mime_type": "application/pdf",
    "filename": "terms.pdf",
}


def image(size: int, form: str = "image") -> dict[str, Any]:
    """An image of some bytes, in a provider's form."""
    data = base64.b64encode(bytes(range(256)) * (size // 256 + 1)).decode()
    if form == "image_url":
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    if form == "anthropic":
        return {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": data},
        }
    return {"type": "image", "base64": data, "mime_type": "image/png"}


async def pages_of(chat: Conversation, page_tokens: int = 4_000, **asked: Any) -> list[ToolMessage]:
    """All pages, the later ones by the cursor alone; each within its budget."""
    tool, pages, arguments = (
        chat.retrieve_previous_sources_tool(page_tokens=page_tokens),
        list[ToolMessage](),
        asked,
    )
    while not pages or pages[-1].artifact.next_cursor:
        pages.append(
            await tool.ainvoke(
                {"type": "tool_call", "id": "c", "name": tool.name, "args": arguments}
            )
        )
        assert approximate_tokens([pages[-1]]) <= page_tokens + 20
        assert "QUJD" not in pages[-1].text
        arguments = {"cursor": pages[-1].artifact.next_cursor}
    return pages


def blocks_of(pages: list[ToolMessage]) -> list[Any]:
    """All blocks that are no text."""
    contents = [page.content for page in pages if isinstance(page.content, list)]
    return [
        block
        for content in contents
        for block in content
        if isinstance(block, dict) and block["type"] != "text"
    ]


@pytest.mark.costly
@pytest.mark.parametrize("size", [300, 40_000, 1_500_000])
@pytest.mark.parametrize("form", ["image", "image_url", "anthropic"])
@pytest.mark.parametrize("kind", ["human", "tool"])
async def test_an_image_comes_back_as_a_block(
    chat: Conversation, kind: str, form: str, size: int
) -> None:
    """An image of a message or of a result, small or large, comes back as a block.

    A view without a large image names the tool that reads it back.
    """
    shown = image(size, form)
    content: Any = [{"type": "text", "text": "Look:"}, shown, {"type": "text", "text": "Pretty?"}]
    call = {"name": "draw", "args": {}, "id": "call-1"}
    turn = (
        [HumanMessage(content, id="it")]
        if kind == "human"
        else [
            HumanMessage("Draw!"),
            AIMessage("", tool_calls=[call]),
            ToolMessage(content, id="it", tool_call_id="call-1", name="draw"),
        ]
    )
    await chat.append([*turn, AIMessage("Yes."), HumanMessage("And now?")])
    view = str([message.content for message in (await chat.load_history()).messages])
    assert "retrieve_previous_sources" in view or size == 300
    pages = await pages_of(chat, tool_message_ids=["it"])
    assert blocks_of(pages) == [shown]
    text = "".join(page.text for page in pages)
    assert "[image, " in text
    assert "\nLook:\n" in text
    assert "\nPretty?\n" in text
    assert len(text) < 1_000


async def test_images_fill_no_more_than_a_page(chat: Conversation) -> None:
    """Nine images take three pages; on a page that is smaller than an image, a text says what it is."""
    content: Any = [image(3_000 + 256 * number) for number in range(9)]
    await chat.append([HumanMessage(content, id="it"), AIMessage("Nine.")])
    pages = await pages_of(chat, tool_message_ids=["it"])
    assert blocks_of(pages) == content
    assert len(pages) == 3
    small = await pages_of(chat, 400, tool_message_ids=["it"])
    assert blocks_of(small) == []
    assert "".join(page.text for page in small).count("[image, image/png, ") == 9


async def test_a_file_that_is_larger_than_a_page_is_named(chat: Conversation) -> None:
    """A small one is returned, a large one is not cut into pages of base64."""
    small = {**PDF, "base64": "QUJE" * 500}
    await chat.append([HumanMessage([PDF, small], id="it"), AIMessage("Two.")])
    pages = await pages_of(chat, tool_message_ids=["it"])
    assert blocks_of(pages) == [small]
    assert '[file "terms.pdf", application/pdf, 120,000 bytes]' in pages[0].text


async def test_an_image_costs_no_command_more(chat: Conversation) -> None:
    """A page with an image can be appended and then read again like any other result."""
    await chat.append([HumanMessage([image(9_000)], id="it"), AIMessage("One.")])
    [page] = await pages_of(chat, tool_message_ids=["it"])
    call = {"name": "retrieve_previous_sources", "args": {"ids": ["it"]}, "id": "c"}
    page.id = "page"
    await chat.append(
        [HumanMessage("Again?"), AIMessage("", tool_calls=[call]), page, AIMessage("So.")]
    )
    assert blocks_of(await pages_of(chat, tool_message_ids=["page"])) == [image(9_000)]


@pytest.mark.parametrize(
    ("provider", "where"),
    [("anthropic", "kept"), ("google_genai", "kept"), ("openai", "moved"), ("mistralai", "named")],
)
async def test_a_view_has_an_image_where_the_provider_takes_it(
    chat: Conversation, provider: str, where: str
) -> None:
    """In the result; after all results of the step, in a human message; or as a text that says what it is."""
    await chat.append([HumanMessage([image(9_000)], id="it"), AIMessage("One.")])
    calls = [
        {"name": "retrieve_previous_sources", "args": {}, "id": f"call-{number}"}
        for number in (1, 2)
    ]
    [page] = await pages_of(chat, tool_message_ids=["it"])
    page.tool_call_id = "call-1"
    other = ToolMessage("other", tool_call_id="call-2")
    await chat.append([HumanMessage("Again?"), AIMessage("", tool_calls=calls), page, other])
    policy: Any = HistoryPolicy(provider=provider)
    shown = (await chat.load_history(policy)).messages
    in_results = [
        message for message in shown if message.type == "tool" and "base64" in str(message.content)
    ]
    assert len(in_results) == (where == "kept")
    last = shown[-1]
    assert (last.type == "human") == (where == "moved")
    assert (image(9_000) in list(last.content)) == (where == "moved")
    if where == "moved":
        assert last.additional_kwargs["convstore"] == {"kind": "media"}
    if where != "kept":
        assert any(
            "[image, image/png, " in str(message.content)
            for message in shown
            if message.type == "tool"
        )
    assert (await chat.load_history(policy)).messages == shown
