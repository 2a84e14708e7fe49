"""A turn that was written through any door is read through every other: each part is there, or named in the report."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.ext.openai_agents import ConvstoreSession
from convstore.ext.ui import read_request, ui_messages
from convstore.types import Dropped

pytestmark = pytest.mark.slow

WHOLE = HistoryPolicy(max_tokens=None, stub_tools="never", media="never")
IMAGE, PDF, SHOT = (
    b64encode(text * 9).decode() for text in (b"an image", b"%PDF a file", b"a screenshot")
)
ASKED, SAID, FOUND, FAILED = (
    "What do seals eat?",
    "Seals eat fish.",
    "They eat fish and squid.",
    "The index is down.",
)
CALLS = {"call_a": {"query": "seals"}, "call_b": {"query": "whales"}}


def arguments(call: str) -> str:
    """The arguments of a call as JSON text."""
    return json.dumps(CALLS[call])


def answer() -> list[BaseMessage]:
    """Messages of LangChain that answer, with a thought of Anthropic."""
    thought = {"type": "thinking", "thinking": "Let me look.", "signature": "c2lnbmVk"}
    shot = {"type": "image", "base64": SHOT, "mime_type": "image/png"}
    calls = [{"name": "search", "args": args, "id": id_} for id_, args in CALLS.items()]
    return [
        AIMessage([thought], tool_calls=calls, response_metadata={"model_provider": "anthropic"}),
        ToolMessage([{"type": "text", "text": FOUND}, shot], tool_call_id="call_a"),
        ToolMessage(FAILED, tool_call_id="call_b", status="error"),
        AIMessage(SAID),
    ]


async def langchain(chat: Conversation) -> None:
    """Messages of LangChain."""
    media = [
        {"type": "image", "base64": IMAGE, "mime_type": "image/png"},
        {"type": "file", "base64": PDF, "mime_type": "application/pdf", "filename": "seals.pdf"},
    ]
    await chat.append([HumanMessage([{"type": "text", "text": ASKED}, *media]), *answer()])


async def ai_sdk(chat: Conversation) -> None:
    """A question of the AI SDK, which sends no answers."""
    files = [
        {"type": "file", "mediaType": mime, "url": f"data:{mime};base64,{data}", "filename": name}
        for mime, data, name in (
            ("image/png", IMAGE, "seal.png"),
            ("application/pdf", PDF, "seals.pdf"),
        )
    ]
    parts = [{"type": "text", "text": ASKED}, *files]
    body = {"id": "page", "messages": [{"id": "q", "role": "user", "parts": parts}]}
    async with await read_request(body).turn(chat) as turn:
        await turn.append(answer())


async def ag_ui(chat: Conversation) -> None:
    """A question of AG-UI, which sends no answers."""
    sources = {
        "image": {"type": "data", "value": IMAGE, "mimeType": "image/png"},
        "document": {"type": "data", "value": PDF, "mimeType": "application/pdf"},
    }
    files = [
        {"type": kind, "source": source, "metadata": {"filename": "seals.pdf"}}
        for kind, source in sources.items()
    ]
    message = {"id": "q", "role": "user", "content": [{"type": "text", "text": ASKED}, *files]}
    request = read_request(
        {"threadId": "page", "runId": "run", "messages": [message]}, format="ag-ui"
    )
    async with await request.turn(chat) as turn:
        await turn.append(answer())


async def openai_chat(chat: Conversation) -> None:
    """Messages of Chat Completions; results there are text, and have no mark of a failure."""
    media = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}},
        {
            "type": "file",
            "file": {"file_data": f"data:application/pdf;base64,{PDF}", "filename": "seals.pdf"},
        },
    ]
    calls = [
        {"id": id_, "type": "function", "function": {"name": "search", "arguments": arguments(id_)}}
        for id_ in CALLS
    ]
    await chat.append(
        [
            {"role": "user", "content": [{"type": "text", "text": ASKED}, *media]},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "Let me look.",
                "tool_calls": calls,
            },
            {"role": "tool", "tool_call_id": "call_a", "content": FOUND},
            {"role": "tool", "tool_call_id": "call_b", "content": FAILED},
            {"role": "assistant", "content": SAID},
        ]
    )


def items() -> list[dict[str, Any]]:
    """Items of OpenAI's Responses API."""
    media = [
        {"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}", "detail": "auto"},
        {
            "type": "input_file",
            "file_data": f"data:application/pdf;base64,{PDF}",
            "filename": "seals.pdf",
        },
    ]
    thought = {"type": "summary_text", "text": "Let me look."}
    shot = {"type": "input_image", "image_url": f"data:image/png;base64,{SHOT}", "detail": "auto"}
    calls = [
        {
            "type": "function_call",
            "id": f"fc_{id_}",
            "call_id": id_,
            "name": "search",
            "arguments": arguments(id_),
        }
        for id_ in CALLS
    ]
    said = [{"type": "output_text", "text": SAID, "annotations": []}]
    return [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": ASKED}, *media],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [thought], "encrypted_content": "c2lnbmVk"},
        *calls,
        {
            "type": "function_call_output",
            "call_id": "call_a",
            "output": [{"type": "input_text", "text": FOUND}, shot],
        },
        {"type": "function_call_output", "call_id": "call_b", "output": FAILED},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": said,
        },
    ]


async def responses(chat: Conversation) -> None:
    """Items of OpenAI's Responses API; results there have no mark of a failure."""
    await chat.append(items())


async def agents_sdk(chat: Conversation) -> None:
    """Items of OpenAI's Agents SDK."""
    await ConvstoreSession(chat.store, **chat.scope).add_items(items())


def anthropic_messages() -> list[dict[str, Any]]:
    """Messages of Anthropic's API."""
    image, pdf, shot = (
        {"type": kind, "source": {"type": "base64", "media_type": mime, "data": data}}
        for kind, mime, data in (
            ("image", "image/png", IMAGE),
            ("document", "application/pdf", PDF),
            ("image", "image/png", SHOT),
        )
    )
    thought = {"type": "thinking", "thinking": "Let me look.", "signature": "c2lnbmVk"}
    pdf["title"] = "seals.pdf"
    calls = [
        {"type": "tool_use", "id": id_, "name": "search", "input": args}
        for id_, args in CALLS.items()
    ]
    found = {
        "type": "tool_result",
        "tool_use_id": "call_a",
        "content": [{"type": "text", "text": FOUND}, shot],
    }
    failed = {"type": "tool_result", "tool_use_id": "call_b", "content": FAILED, "is_error": True}
    return [
        {"role": "user", "content": [{"type": "text", "text": ASKED}, image, pdf]},
        {"role": "assistant", "content": [thought, *calls]},
        {"role": "user", "content": [found, failed]},
        {"role": "assistant", "content": [{"type": "text", "text": SAID}]},
    ]


async def anthropic(chat: Conversation) -> None:
    """Messages of Anthropic's API."""
    await chat.append(anthropic_messages())


async def claude_agent(chat: Conversation) -> None:
    """Entries of a transcript of the Claude Agent SDK."""
    from convstore.ext.claude_agent import ConvstoreSessionStore  # noqa: PLC0415 - loads slowly

    sessions = ConvstoreSessionStore(chat.store, user_id=chat.scope["user_id"])
    key: Any = {name: chat.scope[name] for name in ("project_key", "session_id")}
    entries: list[Any] = [
        {"type": message["role"], "uuid": f"entry-{number}", "message": message}
        for number, message in enumerate(anthropic_messages())
    ]
    await sessions.append(key, entries)


async def pydantic_ai(chat: Conversation) -> None:
    """Messages of Pydantic AI; a file has no name there."""
    from pydantic_ai import BinaryContent, messages  # noqa: PLC0415 - loads slowly
    from pydantic_ai.conversation import Conversation as Saved  # noqa: PLC0415

    from convstore.ext.pydantic_ai import ConvstoreConversationStore  # noqa: PLC0415

    image, pdf, shot = (
        BinaryContent(b64decode(data), media_type=mime)
        for data, mime in ((IMAGE, "image/png"), (PDF, "application/pdf"), (SHOT, "image/png"))
    )
    thought = messages.ThinkingPart("Let me look.", signature="c2lnbmVk", provider_name="anthropic")
    calls = [messages.ToolCallPart("search", args, tool_call_id=id_) for id_, args in CALLS.items()]
    turn = [
        messages.ModelRequest([messages.UserPromptPart([ASKED, image, pdf])]),
        messages.ModelResponse([thought, *calls]),
        messages.ModelRequest(
            [
                messages.ToolReturnPart("search", [FOUND, shot], tool_call_id="call_a"),
                messages.ToolReturnPart("search", FAILED, tool_call_id="call_b", outcome="failed"),
            ]
        ),
        messages.ModelResponse([messages.TextPart(SAID)]),
    ]
    conversations = ConvstoreConversationStore(chat.store, user_id=chat.scope["user_id"])
    await conversations.save(Saved(conversation_id=chat.scope["thread_id"], messages=turn))


async def microsoft(chat: Conversation) -> None:
    """Messages of Microsoft's Agent Framework."""
    from agent_framework import Content, Message  # noqa: PLC0415 - loads slowly

    from convstore.ext.microsoft import ConvstoreHistoryProvider  # noqa: PLC0415

    image, pdf, shot = (
        Content.from_uri(f"data:{mime};base64,{data}", media_type=mime, name=name)
        for data, mime, name in (
            (IMAGE, "image/png", None),
            (PDF, "application/pdf", "seals.pdf"),
            (SHOT, "image/png", None),
        )
    )
    thought = Content.from_text_reasoning(text="Let me look.", protected_data="c2lnbmVk")
    calls = [
        Content.from_function_call(id_, "search", arguments=args) for id_, args in CALLS.items()
    ]
    results = [
        Content.from_function_result("call_a", result=[Content.from_text(FOUND), shot]),
        Content.from_function_result("call_b", result=FAILED, exception="OSError"),
    ]
    turn = [
        Message("user", [ASKED, image, pdf]),
        Message("assistant", [thought, *calls]),
        Message("tool", results),
        Message("assistant", [SAID]),
    ]
    await ConvstoreHistoryProvider(chat.store, **chat.scope).save_messages(None, turn)


Read = tuple[Any, Iterable[Dropped]]


async def as_pydantic(chat: Conversation) -> Read:
    """The view, as Pydantic AI's messages; the outcome of an error is "failed" there."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter  # noqa: PLC0415 - loads slowly

    from convstore.ext.pydantic_ai.messages import from_log  # noqa: PLC0415

    found, dropped = from_log((await chat.load_history(WHOLE)).messages)
    dumped = ModelMessagesTypeAdapter.dump_json(found).decode()
    return json.loads(dumped.replace('"outcome":"failed"', '"outcome":"error"')), dropped


async def as_microsoft(chat: Conversation) -> Read:
    """The view, as messages of the Agent Framework; an error has a class of its own there."""
    from convstore.ext.microsoft import ConvstoreHistoryProvider  # noqa: PLC0415 - loads slowly

    dropped = list[Dropped]()
    provider = ConvstoreHistoryProvider(
        chat.store, policy=WHOLE, on_dropped=dropped.extend, **chat.scope
    )
    found = json.dumps([message.to_dict() for message in await provider.get_messages(None)])
    return json.loads(found.replace('"FunctionInvocationError"', '"error"')), dropped


async def as_messages(chat: Conversation) -> Read:
    """The view, as LangChain messages."""
    return [message.model_dump() for message in (await chat.load_history(WHOLE)).messages], ()


def as_request(form: str) -> Callable[[Conversation], Awaitable[Read]]:
    """The request for an API."""

    async def read(chat: Conversation) -> Read:
        history = await chat.load_history(WHOLE)
        request: Any = (
            history.to_anthropic() if form == "anthropic" else history.to_openai(api=form)
        )
        return request, request.dropped

    return read


def as_page(form: Any) -> Callable[[Conversation], Awaitable[Read]]:
    """The page of a front end."""

    async def read(chat: Conversation) -> Read:
        page = await ui_messages(chat, format=form)
        return page.messages, page.report

    return read


def as_session(view: Any) -> Callable[[Conversation], Awaitable[Read]]:
    """The items of a session of the Agents SDK."""

    async def read(chat: Conversation) -> Read:
        found: Any = await ConvstoreSession(
            chat.store, view=view, policy=WHOLE, **chat.scope
        ).get_items()
        return found, getattr(found, "dropped", ())

    return read


DOORS = (
    langchain,
    openai_chat,
    responses,
    agents_sdk,
    anthropic,
    claude_agent,
    pydantic_ai,
    microsoft,
    ai_sdk,
    ag_ui,
)
READERS = {
    "messages": as_messages,
    "chat": as_request("chat"),
    "responses": as_request("responses"),
    "anthropic": as_request("anthropic"),
    "ai-sdk": as_page("ai-sdk"),
    "ag-ui": as_page("ag-ui"),
    "agents view": as_session("policy"),
    "agents all": as_session("all"),
    "pydantic": as_pydantic,
    "microsoft": as_microsoft,
}
PARTS = {
    "question": (ASKED,),
    "answer": (SAID,),
    "calls": ("call_a", "call_b", "seals", "whales", "search"),
    "results": (FOUND, FAILED),
    "image": (IMAGE,),
    "file": (PDF,),
    "name of the file": ("seals.pdf",),
    "image of a result": (SHOT,),
    "reasoning": ("Let me look.",),
    "signature": ("c2lnbmVk",),
    "error": ('error"',),
}
"""What must be in what is read; for an error a field or a value that ends so."""
NAMES = {"image of a result": "image", "signature": "reasoning", "error": "status"}
"""How a report names a part."""
CANNOT_SEND = {
    "openai_chat": {"image of a result", "signature", "error"},
    "responses": {"error"},
    "agents_sdk": {"error"},
    "anthropic": set[str](),
    "claude_agent": set[str](),
    "langchain": set[str](),
    "pydantic_ai": {"name of the file", "signature"},  # which goes back to Pydantic AI alone
    "microsoft": {"signature"},  # the same
    "ai_sdk": set[str](),
    "ag_ui": set[str](),
}
"""What a door has no place for."""


@pytest.fixture
async def chats() -> Any:
    """A conversation for each door, in memory; the SDK of Claude needs other scope keys."""
    keys = ("user_id", "project_key", "session_id")
    async with (
        await ConversationStore.connect("memory://") as store,
        await ConversationStore.connect("memory://", scope_keys=keys) as other,
    ):
        made = dict[str, Conversation]()
        for door in DOORS:
            chosen = other if door is claude_agent else store
            await chosen.setup()
            made[door.__name__] = chosen.conversation(
                **dict.fromkeys(chosen.scope_keys, door.__name__)
            )
            await door(made[door.__name__])
        yield made


@pytest.mark.parametrize("reader", READERS)
async def test_each_part_is_read_or_named(chats: dict[str, Conversation], reader: str) -> None:
    """Calls, parallel ones, results, failures, images, files, reasoning; no part is dropped silently."""
    lost = set[tuple[str, str]]()
    for door, chat in chats.items():
        read, report = await READERS[reader](chat)
        text = json.dumps(read, ensure_ascii=False, default=str)
        named = {dropped.part for dropped in report}
        for part, tokens in PARTS.items():
            is_read = all(token in text for token in tokens)
            if not is_read and NAMES.get(part, part) not in named and part not in CANNOT_SEND[door]:
                lost.add((door, part))
    assert lost == set()


async def test_parallel_calls_stand_together(chats: dict[str, Conversation]) -> None:
    """In one AI message with two calls, and its results follow; whichever door they came through."""
    for door, chat in chats.items():
        types = [
            (message.type, len(getattr(message, "tool_calls", ())))
            async for message in chat.messages()
        ]
        assert types == [("human", 0), ("ai", 2), ("tool", 0), ("tool", 0), ("ai", 0)], door
