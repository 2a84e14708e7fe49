"""An agent of Microsoft's framework keeps its sessions in a convstore, and is shown the view of them."""

from __future__ import annotations

import json
import uuid
from base64 import b64encode
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import pytest
from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    FunctionTool,
    Message,
    tool,
)
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from made_results import append_hidden, check_hidden

from convstore import ConversationStore, HistoryPolicy, InvalidInputError
from convstore.exceptions import (
    ContentConflictError,
    InvalidScopeError,
    MessageRewoundError,
    TurnClosedError,
    TurnConflictError,
)
from convstore.ext.microsoft import ConvstoreHistoryProvider
from convstore.ext.microsoft.messages import from_log
from convstore.types import Dropped


class Scripted(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """A chat client with written answers that keeps what it was shown."""

    def __init__(self, *script: Any) -> None:
        super().__init__()
        self.script, self.shown, self.tools = list(script), list[list[Message]](), list[str]()

    def _inner_get_response(
        self, *, messages: Sequence[Message], options: Mapping[str, Any], **_: Any
    ) -> Awaitable[ChatResponse]:
        self.shown.append([Message.from_dict(message.to_dict()) for message in messages])
        self.tools = [tool.name for tool in options.get("tools") or ()]
        answer = self.script.pop(0)
        message = Message(
            "assistant", answer if isinstance(answer, list) else [answer], message_id="msg_same"
        )

        async def respond() -> ChatResponse:
            return ChatResponse(messages=[message], model="gpt-5")

        return respond()


@tool(approval_mode="never_require")
def look(place: str) -> str:
    """Look at a place."""
    return f"{place}: " + "fish " * 1000


@pytest.fixture
def user() -> str:
    """A user that no other test has."""
    return f"ada-{uuid.uuid4().hex}"


def dumped(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return all fields of the messages as dicts."""
    return [message.to_dict() for message in messages]


@pytest.mark.slow
async def test_the_next_run_is_shown_stubs(store: ConversationStore, user: str) -> None:
    """The next run is shown the stored messages, with a long result as a stub that the tool can read again."""
    client = Scripted(
        Content.from_function_call("c1", "look", arguments='{"place":"sea"}'), "Fish.", "Yes."
    )
    provider = ConvstoreHistoryProvider(store, user_id=user)
    agent = Agent(client, tools=[look], context_providers=[provider])
    session = agent.create_session(session_id="seals")
    await agent.run("What do seals eat?", session=session)
    assert client.tools == ["look", "retrieve_previous_sources"]
    await agent.run("Sure?", session=agent.create_session(session_id="seals"))
    shown = client.shown[-1]
    assert [message.role for message in shown] == ["user", "assistant", "tool", "assistant", "user"]
    stub = json.loads(shown[2].contents[0].result)
    client.script = [
        Content.from_function_call(
            "c2",
            "retrieve_previous_sources",
            arguments={"tool_message_ids": [stub["tool_message_id"]]},
        ),
        "Done.",
    ]
    await agent.run("Again.", session=session)
    assert "sea: fish fish" in client.shown[-1][-1].contents[0].result
    everything = ConvstoreHistoryProvider(store, user_id=user, view="all")
    assert (await everything.get_messages("seals"))[2].contents[0].result.startswith("sea: fish")
    assert len(await everything.get_messages("seals")) == 10
    log = [message async for message in provider.conversation("seals").messages()]
    models = [message.response_metadata for message in log if isinstance(message, AIMessage)]
    assert models == [{"model_name": "gpt-5"}] * len(models)


@pytest.mark.slow
async def test_the_tool_reads_artifacts_back_if_the_provider_says_so(
    store: ConversationStore, user: str
) -> None:
    """By default it shows what tools showed."""
    wanted = await append_hidden(store.conversation(user_id=user, thread_id="seals"))
    call = Content.from_function_call("c1", "retrieve_previous_sources", arguments=wanted)
    for artifact in (False, True):
        client = Scripted(call, "Done.")
        provider = ConvstoreHistoryProvider(store, artifact=artifact, user_id=user)
        agent = Agent(client, context_providers=[provider])
        await agent.run("Again?", session=agent.create_session(session_id="seals"))
        check_hidden(client.shown[-1][-1].contents[0].result, artifact=artifact)


EVERYTHING = [
    Message("system", ["Be brief."]),
    Message(
        "user",
        [
            "Look:",
            Content.from_data(b"\xff\xfe\0", "image/png"),
            Content.from_uri("https://x.example/a.png", media_type="image/png"),
        ],
        author_name="Ada",
        additional_properties={"text": "Look:"},
    ),
    Message(
        "assistant",
        [
            Content.from_text_reasoning(text="Hm.", protected_data="sig"),
            Content.from_text("One moment."),
            Content.from_function_call("a", "look", arguments='{"place": "sea"}'),
            Content.from_function_call("b", "look", arguments={"place": "ice"}),
            Content.from_function_call("c", "look", arguments="{"),
            Content.from_function_call("d", "look"),
            Content.from_hosted_file("file-1"),
        ],
    ),
    Message(
        "tool",
        [
            Content.from_function_result("a", result={"deep": [1, 2.0, None]}),
            Content.from_function_result("b", result="no", exception="ValueError"),
            Content.from_function_result("c", result=["invalid"]),
            Content.from_function_result(
                "d", result=[Content.from_text("a"), Content.from_data(b"png", "image/png")]
            ),
        ],
    ),
    Message("assistant", []),
    Message("assistant", ["Fish."]),
]


@pytest.mark.slow
async def test_every_kind_of_content_comes_back(store: ConversationStore, user: str) -> None:
    """Files, reasoning, parallel and invalid calls, errors, hosted files, no content at all."""
    provider = ConvstoreHistoryProvider(store, user_id=user, view="all")
    await provider.save_messages("s", EVERYTHING)
    assert dumped(await provider.get_messages("s")) == dumped(EVERYTHING)
    kinds = [message.type async for message in provider.conversation("s").messages()]
    assert kinds == ["system", "human", "ai", *["tool"] * 4, "ai", "ai"]


@pytest.mark.slow
async def test_what_the_application_appended_is_shown_whole_or_named(
    store: ConversationStore, user: str
) -> None:
    """Images, files, failures and invalid calls; reasoning, uploads and what a model painted are named."""
    dropped = list[Dropped]()
    provider = ConvstoreHistoryProvider(store, user_id=user, view="all", on_dropped=dropped.extend)
    png = {"type": "image", "base64": "cG5n", "mime_type": "image/png"}
    pdf = {
        "type": "file",
        "base64": "cGRm",
        "mime_type": "application/pdf",
        "filename": "seals.pdf",
    }
    wrong: Any = {"name": "look", "args": "{", "id": "w", "error": "no JSON"}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    await provider.conversation("s").append(
        [
            HumanMessage(
                [
                    {"type": "image", "url": "https://x.example/a"},
                    pdf,
                    {"type": "file", "file_id": "f"},
                ]
            ),
            AIMessage(
                [thought, {"type": "text", "text": "Look."}, png], invalid_tool_calls=[wrong]
            ),
            ToolMessage([{"type": "text", "text": "Down."}, png], tool_call_id="w", status="error"),
        ]
    )
    asked, said, result = (message.contents for message in await provider.get_messages("s"))
    assert [content.uri for content in asked[:2]] == [
        "https://x.example/a",
        "data:application/pdf;base64,cGRm",
    ]
    assert [(content.media_type, content.name) for content in asked[:2]] == [
        ("image/*", None),
        ("application/pdf", "seals.pdf"),
    ]
    assert [content.type for content in said] == ["text", "text", "function_call"]
    assert (said[-1].call_id, said[-1].arguments) == ("w", "{")
    assert result[0].exception
    assert [content.text or content.uri for content in result[0].items or ()] == [
        "Down.",
        "data:image/png;base64,cG5n",
    ]
    assert [part for _, part, _ in dropped] == ["file", "reasoning", "image"]


PDF, SHOT, TEXT = (
    b64encode(data).decode() for data in (b"%PDF-1.4", b"\x89PNG\r\n\x1a\n", b"Fish.")
)
SENT = {
    "RawAnthropicClient": {"image", "image of a result"},
    "RawOpenAIChatClient": {"image", "image of a result", "file", "file of a result"},
    "RawOpenAIChatCompletionClient": {"image", "image of a result", "file", "file of a result"},
    "BedrockChatClient": {"image", "image of a result"},
    "RawMistralChatClient": {"image"},
}
"""What the classes of the framework's clients send of files, the last two in a question after the results."""


@pytest.mark.parametrize("name", SENT)
async def test_what_a_client_leaves_out_is_named(
    store: ConversationStore, user: str, name: str
) -> None:
    """Files that the agent's client would drop silently are texts, and reported; a text file is its text."""
    client = type(name, (Scripted,), {})("Yes.")
    dropped = list[Dropped]()
    whole = HistoryPolicy(media="never", stub_tools="never")
    provider = ConvstoreHistoryProvider(
        store, policy=whole, on_dropped=dropped.extend, user_id=user
    )
    files = [("image/png", SHOT, "image"), ("application/pdf", PDF, "file")]
    asked = [
        Content.from_uri(f"data:{mime};base64,{data}", media_type=mime) for mime, data, _ in files
    ]
    words = Content.from_uri(f"data:text/plain;base64,{TEXT}", media_type="text/plain")
    call = Content.from_function_call("c1", "look", arguments={})
    await provider.save_messages(
        "seals",
        [
            Message("user", ["Look:", *asked, words]),
            Message("assistant", [call]),
            Message(
                "tool",
                [Content.from_function_result("c1", result=[Content.from_text("Here."), *asked])],
            ),
            Message("assistant", [Content.from_text_reasoning(text="Hm."), "So."]),
        ],
    )
    model = "mistral-large-latest" if "Mistral" in name else "claude-opus-4-1"
    agent = Agent(client, context_providers=[provider], default_options={"model": model})
    await agent.run("Sure?", session=agent.create_session(session_id="seals"))
    [shown] = client.shown
    sent = set[str]()
    for at, message in enumerate(shown):
        for content in message.contents:
            for item in content.items or [content]:
                kinds = [
                    kind for _, data, kind in files if item.type == "data" and data in item.uri
                ]
                sent |= {f"{kind} of a result" if at else kind for kind in kinds}
    assert sent == SENT[name]
    thoughts = [c for each in shown for c in each.contents if c.type == "text_reasoning"]
    assert len(thoughts) == (name != "RawMistralChatClient")
    unsaid = [] if thoughts else ["reasoning"]
    assert [
        part for _, part, why in dropped if why == "the client does not send reasoning"
    ] == unsaid
    assert "Fish." in shown[0].text
    lost = {"image", "file", "image of a result", "file of a result"} - SENT[name]
    files_lost = [kind.split()[0] for kind in lost]
    assert sorted(part.part for part in dropped) == sorted([*files_lost, *unsaid])


@pytest.mark.slow
async def test_a_repeated_save_writes_nothing(store: ConversationStore, user: str) -> None:
    """By the same objects, by those that were loaded, and by the id that a client gave its question."""
    provider = ConvstoreHistoryProvider(store, user_id=user, view="all")
    said = [
        Message("user", ["Hi"], message_id="request-1"),
        Message("assistant", ["Hello"]),
        Message("user", ["Hi"]),
    ]
    await provider.save_messages("s", said)
    await provider.save_messages("s", said)
    await provider.save_messages("s", await provider.get_messages("s"))
    await provider.save_messages("s", [Message("user", ["Hi"], message_id="request-1")])
    assert [message.text for message in await provider.get_messages("s")] == ["Hi", "Hello", "Hi"]
    with pytest.raises(ContentConflictError):
        await provider.save_messages("s", [Message("user", ["Other"], message_id="request-1")])


@pytest.mark.slow
async def test_the_budget_of_the_view_counts(store: ConversationStore, user: str) -> None:
    """A note stands for turns that do not fit."""
    provider = ConvstoreHistoryProvider(store, user_id=user, policy=HistoryPolicy(max_tokens=1000))
    for at in range(6):
        await provider.save_messages(
            "s", [Message("user", [f"Q{at}"]), Message("assistant", ["More. " * 200])]
        )
    shown = await provider.get_messages("s")
    assert len(shown) < 12
    assert "left out" in shown[0].text


@pytest.mark.slow
async def test_the_scope_may_come_from_the_session(store: ConversationStore, user: str) -> None:
    """Scope values that the constructor does not name come from the session's state. Without them a run is refused.

    Values that the constructor names take precedence over the state.
    """
    client = Scripted("Hello.", "Hello.")
    agent = Agent(client, context_providers=[ConvstoreHistoryProvider(store)])
    session = agent.create_session(session_id="s")
    with pytest.raises(InvalidScopeError):
        await agent.run("Hi", session=session)
    session.state["convstore"] = {"user_id": user}
    await agent.run("Hi", session=session)
    chat = store.conversation(user_id=user, thread_id="s")
    assert [message.text async for message in chat.messages()] == ["Hi", "Hello."]
    bound = ConvstoreHistoryProvider(store, user_id="somebody else")
    assert bound.conversation("s", {"user_id": user}).scope == {
        "user_id": "somebody else",
        "thread_id": "s",
    }


@pytest.mark.slow
@pytest.mark.parametrize("view", ["policy", "all"])
async def test_each_view_of_a_run_follows_the_rules_of_its_model(
    store: ConversationStore, user: str, view: Any
) -> None:
    """An answer stands between a result and the next question for Mistral; outside a run all is as it was saved."""
    client = Scripted("Yes.")
    provider = ConvstoreHistoryProvider(store, view=view, user_id=user)
    call = Content.from_function_call("c1", "look", arguments={})
    result = Content.from_function_result("c1", result="Fish.")
    saved = [Message("user", ["Look."]), Message("assistant", [call]), Message("tool", [result])]
    saved += [Message("user", ["And?"]), Message("assistant", ["So."])]
    await provider.save_messages("seals", saved)
    model = {"model": "mistral-large-latest"}
    agent = Agent(client, context_providers=[provider], default_options=model)
    await agent.run("Sure?", session=agent.create_session(session_id="seals"))
    [shown] = client.shown
    roles = [message.role for message in shown]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant", "user"]
    everything = ConvstoreHistoryProvider(store, view="all", user_id=user)
    assert dumped((await everything.get_messages("seals"))[:5]) == dumped(saved)


@pytest.mark.slow
@pytest.mark.slow
async def test_everything_has_no_tool_and_the_rules_that_are_given(
    store: ConversationStore, user: str
) -> None:
    """Nothing is left out that a tool could bring back; a provider that is given counts outside a run, too."""
    call = Content.from_function_call("c1", "mcp.look", arguments="{}")
    said = [Message("user", ["Look."]), Message("assistant", [call])]
    everything = ConvstoreHistoryProvider(store, user_id=user, view="all")
    await everything.save_messages("seals", said)
    ruled = ConvstoreHistoryProvider(store, user_id=user, view="all", provider="openai")
    names = [
        (await provider.get_messages("seals"))[1].contents[0].name
        for provider in (everything, ruled)
    ]
    assert names == ["mcp.look", "mcp_look"]
    client = Scripted("Yes.")
    agent = Agent(client, context_providers=[everything])
    await agent.run("Hi", session=agent.create_session(session_id="other"))
    assert client.tools == []


def test_arguments_are_checked(store: ConversationStore) -> None:
    """An unknown scope key or kind of view is refused at once."""
    with pytest.raises(InvalidScopeError, match="scope keys"):
        ConvstoreHistoryProvider(store, course="x")
    wrong: Any = "some"
    with pytest.raises(InvalidInputError, match="view"):
        ConvstoreHistoryProvider(store, view=wrong)
    with pytest.raises(InvalidInputError, match="artifact"):
        ConvstoreHistoryProvider(store, view="all", artifact=wrong)


@pytest.mark.slow
def test_a_mark_that_a_client_sent_breaks_no_history() -> None:
    """A field of a message that looks like the adapter's is not trusted: the message is shown as any other."""
    kept: list[Any] = [2, {}, {"exact": "["}]
    kept += [{"exact": json.dumps(value)} for value in ([], {}, {"head": 2, "contents": 2})]
    wrong: list[Any] = [
        None,
        2,
        "x",
        [],
        {},
        {"message": "m"},
        *({"message": "m", "json": value} for value in kept),
    ]
    for mark in wrong:
        found, _ = from_log(
            [HumanMessage("Hi", additional_kwargs={"agent_framework": mark}), AIMessage("Ho")]
        )
        assert [message.text for message in found] == ["Hi", "Ho"], mark


@pytest.mark.slow
async def test_calls_of_servers_that_repeat_ids_or_leave_them_empty(
    store: ConversationStore, user: str
) -> None:
    """Each call has an id of its own in a view, and its result the same one, each time."""
    provider = ConvstoreHistoryProvider(store, user_id=user)
    chat = provider.conversation("seals")
    for number in (1, 2):
        calls = [{"name": "look", "args": {"at": at}, "id": "call_0"} for at in (1, 2)]
        results = [ToolMessage(f"{number}", tool_call_id="call_0") for _ in calls]
        empty = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": ""}])
        await chat.append([HumanMessage("?"), AIMessage("", tool_calls=calls), *results, empty])
        await chat.append(AIMessage("So."))
    views = [await provider.get_messages("seals") for _ in range(2)]
    parts = [part for message in views[0] for part in message.contents]
    called = [part.call_id for part in parts if part.type == "function_call"]
    assert called == [part.call_id for part in parts if part.type == "function_result"]
    assert len(set(called)) == 6
    assert all(called)
    assert dumped(views[0]) == dumped(views[1])


@pytest.mark.slow
async def test_an_approval_without_text_is_no_question(store: ConversationStore, user: str) -> None:
    """It belongs to the turn that waits for it, and comes back as it was."""
    provider = ConvstoreHistoryProvider(store, user_id=user)
    call = Content.from_function_call("c1", "book", arguments="{}")
    request = Content.from_function_approval_request(id="c1", function_call=call)
    said = [
        Message("user", ["Book it."]),
        Message("assistant", [request]),
        Message("user", [request.to_function_approval_response(approved=True)]),
        Message("user", ["Thanks."]),
    ]
    await provider.save_messages("seals", said)
    chat = provider.conversation("seals")
    texts = [turn.messages[0].text async for turn in chat.turns()]
    assert texts == ["Book it.", "Thanks."]
    loaded = await provider.get_messages("seals")
    assert dumped(loaded) == dumped(said)


@tool(approval_mode="always_require")
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


def results_in(shown: Sequence[Message]) -> list[tuple[str, str]]:
    """Return the calls of a request and their results, each with its id."""
    found = list[tuple[str, str]]()
    for content in (content for message in shown for content in message.contents):
        if content.type in ("function_call", "function_result"):
            found.append((str(content.call_id), str(content.result or "")))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True])
async def test_an_approved_call_is_answered_once(
    store: ConversationStore, user: str, kept: bool
) -> None:
    """A run that a person approves has the result of the call, and not also one that the view puts for it.

    So does one with a session that was kept as JSON meanwhile.
    """
    call = Content.from_function_call("c1", "pay", arguments='{"euros":5}')
    client = Scripted(call, "Paid.")
    provider = ConvstoreHistoryProvider(store, user_id=user)
    agent = Agent(client, tools=[pay], context_providers=[provider])
    session = agent.create_session(session_id="seals")
    [asked] = (await agent.run("Pay.", session=session)).user_input_requests
    if kept:
        session = AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))
    await agent.run(Message("user", [asked.to_function_approval_response(True)]), session=session)
    assert results_in(client.shown[-1]) == [("c1", ""), ("c1", "paid 5")]
    log = [message async for message in provider.conversation("seals").messages()]
    assert [message.type for message in log] == ["human", "ai", "system", "tool", "ai"]


@pytest.mark.slow
@pytest.mark.parametrize("view", ["policy", "all"])
async def test_a_result_that_the_application_brings_answers_the_newest_call(
    store: ConversationStore, user: str, view: Any
) -> None:
    """Under the id that the server gave it, though an earlier call has the same id and never got a result."""
    locate = FunctionTool(name="locate", description="Where?", func=None)
    call = Content.from_function_call("c1", "locate", arguments="{}")
    client = Scripted(call, call, "There.")
    provider = ConvstoreHistoryProvider(store, user_id=user, view=view)
    agent = Agent(client, tools=[locate], context_providers=[provider])
    session = agent.create_session(session_id="seals")
    await agent.run("Where?", session=session)
    await agent.run("And now?", session=session)
    result = Content.from_function_result("c1", result="Paris")
    await agent.run(Message("tool", [result]), session=session)
    calls = [id_ for id_, said in results_in(client.shown[-1]) if not said]
    said = {id_: text for id_, text in results_in(client.shown[-1]) if text}
    assert len(set(calls)) == len(calls) == 2
    assert calls[-1] == "c1"
    assert said.pop("c1") == "Paris"
    assert list(said) == ([] if view == "all" else calls[:1])


@pytest.mark.slow
async def test_a_run_that_stores_each_call_is_shown_each_result_once(
    store: ConversationStore, user: str
) -> None:
    """And its answer belongs to its question, though another run has asked and answered one meanwhile."""
    provider = ConvstoreHistoryProvider(store, user_id=user)
    call = Content.from_function_call("c1", "look", arguments='{"place":"sea"}')
    slow, fast = Scripted(call, "Fish."), Scripted("Yes.")
    agents = [
        Agent(
            client,
            context_providers=[provider],
            require_per_service_call_history_persistence=True,
        )
        for client in (slow, fast)
    ]

    @tool(approval_mode="never_require", name="look")
    async def look_meanwhile(place: str) -> str:
        """Look at a place, while another run asks."""
        await agents[1].run("Sure?", session=agents[1].create_session(session_id="seals"))
        return place

    session = agents[0].create_session(session_id="seals")
    await agents[0].run("What?", session=session, tools=[look_meanwhile])
    assert results_in(slow.shown[-1]) == [("c1", ""), ("c1", "sea")]
    chat = provider.conversation("seals")
    turns = [[message.text for message in turn.messages] async for turn in chat.turns()]
    assert turns == [["What?", "", "sea", "Fish."], ["Sure?", "Yes."]]
    assert not (await store.verify(**chat.scope)).findings


@pytest.mark.slow
async def test_a_run_that_is_repeated_asks_its_question_once(
    store: ConversationStore, user: str
) -> None:
    """One that broke off goes on after it; one that was answered is refused before a model or a tool runs again."""
    provider = ConvstoreHistoryProvider(store, user_id=user)
    call = Content.from_function_call("c1", "look", arguments='{"place":"sea"}')
    client = Scripted(call)
    agent = Agent(
        client,
        tools=[look],
        context_providers=[provider],
        require_per_service_call_history_persistence=True,
    )

    async def ask(text: str = "What?") -> None:
        question = Message("user", [text], message_id="request-1")
        await agent.run(question, session=agent.create_session(session_id="seals"))

    with pytest.raises(IndexError):  # the client breaks off
        await ask()
    client.script = ["Fish."]
    with pytest.raises(ContentConflictError):
        await ask("Who?")
    await ask()
    assert [message.role for message in client.shown[-1]] == ["user", "assistant", "tool"]
    with pytest.raises(TurnClosedError):
        await ask()
    with pytest.raises(ContentConflictError):  # what is refused is the question, not a repetition
        await ask("Who?")
    assert len(client.shown) == 3
    assert [m.text async for m in provider.conversation("seals").messages()][-1] == "Fish."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "text", "refusal"),
    [
        ("", "What?", TurnClosedError),
        ("", "Who?", ContentConflictError),
        ("ask", "What?", TurnClosedError),
        ("ask", "Who?", ContentConflictError),
        ("rewind", "What?", MessageRewoundError),
        ("rewind", "Who?", ContentConflictError),
    ],
)
async def test_no_model_is_asked_for_a_question_whose_id_is_taken(
    store: ConversationStore, user: str, then: str, text: str, refusal: type[Exception]
) -> None:
    """Whatever the view shows of its turn: the append at the end of the run would be refused."""
    provider = ConvstoreHistoryProvider(store, user_id=user)
    client = Scripted("Fish.", "Yes.", "No.")
    agent = Agent(client, context_providers=[provider])

    async def ask(text: str, message_id: str) -> None:
        question = Message("user", [text], message_id=message_id)
        await agent.run(question, session=agent.create_session(session_id="seals"))

    await ask("What?", "request-1")
    if then == "ask":
        await ask("Sure?", "request-2")
    elif then == "rewind":
        await provider.conversation("seals").rewind(before_id="request-1")
    asked = len(client.shown)
    with pytest.raises(refusal):
        await ask(text, "request-1")
    assert len(client.shown) == asked


@pytest.mark.slow
async def test_the_answer_to_an_old_question_does_not_end_up_in_a_later_turn(
    store: ConversationStore, user: str
) -> None:
    """A question that never got an answer is not asked again after a later one."""
    provider = ConvstoreHistoryProvider(store, user_id=user)
    client = Scripted("Yes.", "Fish.")
    agent = Agent(client, context_providers=[provider])
    old = Message("user", ["What?"], message_id="request-1")
    await provider.save_messages("seals", [old])
    await agent.run("Sure?", session=agent.create_session(session_id="seals"))
    with pytest.raises(TurnConflictError):
        await agent.run(old, session=agent.create_session(session_id="seals"))
    chat = provider.conversation("seals")
    turns = [[message.text for message in turn.messages] async for turn in chat.turns()]
    assert (turns, len(client.shown)) == ([["What?"], ["Sure?", "Yes."]], 1)
