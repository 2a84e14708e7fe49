"""A model is shown convstore's view of a stored conversation; the history of the run stays whole."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from made_results import append_hidden, check_hidden
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    BinaryContent,
    Conversation,
    DeferredToolRequests,
    RunContext,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from convstore import ConversationStore, HistoryPolicy
from convstore.ext.pydantic_ai import ConvstoreConversationStore, ConvstoreView
from convstore.ext.pydantic_ai.messages import from_log
from convstore.types import Dropped

pytestmark = pytest.mark.slow


class Model:
    """A scripted model that keeps what it was shown."""

    def __init__(self, *script: Any) -> None:
        self.script, self.shown, self.tools = list(script), list[list[ModelMessage]](), set[str]()

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        """Answer with the next part of the script."""
        self.shown.append(messages)
        self.tools = {tool.name for tool in info.function_tools}
        answer = self.script.pop(0)
        return ModelResponse([TextPart(answer) if isinstance(answer, str) else answer])


@pytest.fixture
def ours(store: ConversationStore) -> ConvstoreConversationStore:
    """Our store for one user."""
    return ConvstoreConversationStore(store, user_id=f"ada-{uuid.uuid4().hex}")


def agent_of(model: Model, view: ConvstoreView, **options: Any) -> Agent[Any, Any]:
    """An agent with a tool whose result is long."""
    agent: Agent[Any, Any] = Agent(
        FunctionModel(model), capabilities=[view], system_prompt="Be brief.", **options
    )

    @agent.tool_plain
    def look(place: str) -> str:
        return f"{place}: " + "fish " * 1000

    return agent


def parts(messages: list[ModelMessage], kind: type[Any]) -> list[Any]:
    """The parts of one kind."""
    return [part for message in messages for part in message.parts if isinstance(part, kind)]


async def test_a_finished_turn_is_shown_with_stubs(ours: ConvstoreConversationStore) -> None:
    """The run's own results are whole, and so are its messages; the next turn shows a stub of them."""
    look = ToolCallPart("look", {"place": "sea"}, tool_call_id="a")
    model = Model(look, "Fish.", "As I said.")
    agent = agent_of(model, ConvstoreView(ours))
    first = await agent.run("What do seals eat?")
    assert model.shown[1] == first.all_messages()[:-1]
    await ours.save(first)
    loaded = await ours.load(first.conversation.conversation_id)
    second = await agent.run("Sure?", conversation=loaded)
    (stub,) = parts(model.shown[2], ToolReturnPart)
    assert json.loads(stub.content)["tool_message_id"]
    assert len(stub.content) < 600
    assert [part.content for part in parts(model.shown[2], SystemPromptPart)] == ["Be brief."]
    assert [part.content for part in parts(model.shown[2], UserPromptPart)] == [
        "What do seals eat?",
        "Sure?",
    ]
    assert second.all_messages()[: len(first.all_messages())] == first.all_messages()
    await ours.save(second)
    assert await ours.load(loaded.conversation_id if loaded else "") == second.conversation


async def test_the_tools_bring_the_result_back(ours: ConvstoreConversationStore) -> None:
    """By the id in the stub, on the run's conversation; another of the same user is found by its words."""
    look = ToolCallPart("look", {"place": "sea"}, tool_call_id="a")
    model = Model(look, "Fish.", "No.")
    agent = agent_of(model, ConvstoreView(ours))
    first = await agent.run("What do seals eat?")
    entries = await ours.save(first)
    await ours.save(await agent.run("Do walruses sing?"))
    assert model.tools == {"look", "retrieve_previous_sources", "search_conversations"}
    model.script = [
        ToolCallPart("retrieve_previous_sources", {"tool_message_ids": [entries[2].id]}),
        ToolCallPart("search_conversations", {"find": "walruses"}),
        "Done.",
    ]
    second = await agent.run("Again.", conversation=first.conversation)
    whole, found = parts(second.new_messages(), ToolReturnPart)
    assert "sea: fish fish" in whole.content
    assert "Do walruses sing?" in found.content


async def test_the_tool_reads_artifacts_back_if_the_view_says_so(
    ours: ConvstoreConversationStore,
) -> None:
    """By default it shows what tools showed."""
    model = Model("Hi.")
    first = await agent_of(model, ConvstoreView(ours)).run("Hi?")
    await ours.save(first)
    wanted = await append_hidden(await ours.conversation(first.conversation.conversation_id))
    for artifact in (False, True):
        model.script = [ToolCallPart("retrieve_previous_sources", wanted), "Done."]
        agent = agent_of(model, ConvstoreView(ours, artifact=artifact))
        again = await agent.run("Again?", conversation=first.conversation)
        (page,) = parts(again.new_messages(), ToolReturnPart)
        check_hidden(page.content, artifact=artifact)


async def test_the_budget_of_the_view_counts(ours: ConvstoreConversationStore) -> None:
    """A note stands for turns that do not fit; the policy is the capability's."""
    model = Model(*(f"Answer {at}. " + "More. " * 200 for at in range(6)))
    agent = agent_of(model, ConvstoreView(ours, policy=HistoryPolicy(max_tokens=1000), tools=False))
    conversation: Any = Conversation(conversation_id="long")
    for at in range(6):
        result = await agent.run(f"Question {at}?", conversation=conversation)
        await ours.save(result)
        conversation = result.conversation
    assert len(conversation.messages) == 12
    prompts = [part.content for part in parts(model.shown[-1], UserPromptPart)]
    assert len(prompts) < 6
    assert "left out" in prompts[0]
    assert prompts[-1] == "Question 5?"
    assert model.tools == {"look"}


async def test_an_approved_call_is_answered_once(ours: ConvstoreConversationStore) -> None:
    """The stored call waits; its result is the run's, not the one that a view puts for a missing one."""
    pay = ToolCallPart("pay", {"amount": 3}, tool_call_id="p")
    model = Model(pay, "Paid.")
    agent = agent_of(model, ConvstoreView(ours), output_type=[str, DeferredToolRequests])

    @agent.tool(name="pay")
    def approve(ctx: RunContext[Any], amount: int) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return f"paid {amount}"

    paused = await agent.run("Pay.")
    await ours.save(paused)
    loaded = await ours.load(paused.conversation.conversation_id)
    assert loaded
    assert loaded.deferred_tool_requests
    approved = loaded.deferred_tool_requests.build_results(approve_all=True)
    done = await agent.run(conversation=loaded, deferred_tool_results=approved)
    assert done.output == "Paid."
    assert [part.content for part in parts(model.shown[-1], ToolReturnPart)] == ["paid 3"]


async def test_an_old_call_with_the_same_id_keeps_the_result_of_the_view(
    ours: ConvstoreConversationStore,
) -> None:
    """Only the newest call is answered by the run, and a call of the run itself by its own result."""
    pay = ToolCallPart("pay", {"amount": 3}, tool_call_id="p")
    model = Model(pay, pay, "Paid twice.")
    agent = agent_of(model, ConvstoreView(ours), output_type=[str, DeferredToolRequests])

    @agent.tool(name="pay")
    def approve(ctx: RunContext[Any], amount: int) -> str:
        if not ctx.tool_call_approved and len(model.shown) == 1:
            raise ApprovalRequired
        return f"paid {amount}"

    left = [
        ModelRequest([UserPromptPart("Pay.")]),
        ModelResponse([pay]),
        ModelRequest([UserPromptPart("Never mind.")]),
        ModelResponse([TextPart("Fine.")]),
    ]
    conversation = Conversation(messages=left)
    await ours.save(conversation)
    paused = await agent.run("Pay.", conversation=conversation)
    await ours.save(paused)
    loaded = await ours.load(paused.conversation.conversation_id)
    assert loaded
    assert loaded.deferred_tool_requests
    approved = loaded.deferred_tool_requests.build_results(approve_all=True)
    await agent.run(conversation=loaded, deferred_tool_results=approved)
    made_up = "No result was recorded for this call."
    shown = [[part.content for part in parts(each, ToolReturnPart)] for each in model.shown]
    assert shown == [[made_up], [made_up, "paid 3"], [made_up, "paid 3", "paid 3"]]


async def test_another_users_conversation_is_not_shown(store: ConversationStore) -> None:
    """A new run under an id that another user has: neither view nor tools reach it."""
    ours = ConvstoreConversationStore(store)
    with pytest.raises(UserError, match="pass scope="):
        ConvstoreView(ours)
    secret = Conversation(
        messages=[ModelRequest([UserPromptPart("secret")]), ModelResponse([TextPart("Yes.")])]
    )
    entries = await ours.save(secret, scope="ada-" + secret.conversation_id)
    read = ToolCallPart("retrieve_previous_sources", {"tool_message_ids": [entries[0].id]})
    model = Model(read, "Nothing.")
    agent = agent_of(model, ConvstoreView(ours, scope=lambda ctx: str(ctx.deps)), deps_type=str)
    result = await agent.run(
        "Tell me.",
        conversation=Conversation(conversation_id=secret.conversation_id),
        deps="bob-" + secret.conversation_id,
    )
    (answer,) = parts(result.all_messages(), ToolReturnPart)
    assert "secret" not in answer.content
    assert "secret" not in str(model.shown)


async def test_a_history_from_elsewhere_is_left_as_it_is(ours: ConvstoreConversationStore) -> None:
    """A request that does not have the last stored message shows what the application gave it."""
    model = Model("One.", "Two.")
    agent = agent_of(model, ConvstoreView(ours))
    first = await agent.run("1?")
    await ours.save(first)
    other: list[ModelMessage] = [
        ModelRequest([UserPromptPart("mine")]),
        ModelResponse([TextPart("Mine.")]),
    ]
    second = await agent.run(
        "2?", message_history=other, conversation_id=first.conversation.conversation_id
    )
    assert model.shown[1] == second.all_messages()[:-1]


async def test_what_the_application_appended_is_shown_whole_or_named(
    ours: ConvstoreConversationStore,
) -> None:
    """Addresses, files, reasoning of each provider, failures, invalid calls; the report names what has no part."""
    model, dropped = Model("One.", "Two."), list[Dropped]()
    whole = HistoryPolicy(max_tokens=None, stub_tools="never", media="never")
    agent = agent_of(model, ConvstoreView(ours, policy=whole, on_dropped=dropped.extend))
    first = await agent.run("1?")
    await ours.save(first)
    chat = await ours.conversation(first.conversation.conversation_id)
    image = {"type": "image", "url": "https://example.org/seal"}
    upload = {"type": "file", "file_id": "file-1"}
    pdf = {"type": "file", "base64": "cGRm", "mime_type": "application/pdf"}
    thoughts = [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "x"},
    ]
    wrong: Any = {"name": "look", "args": "{", "id": "w", "error": "no JSON"}
    await chat.append(
        [
            HumanMessage([{"type": "text", "text": "See:"}, image, upload], id="asked"),
            AIMessage([*thoughts, pdf], invalid_tool_calls=[wrong]),
            ToolMessage([{"type": "text", "text": "Down."}, pdf], tool_call_id="w", status="error"),
            AIMessage([image, {"type": "text", "text": "Sorry."}], id="said"),
        ]
    )
    await agent.run("2?", conversation=first.conversation)
    shown = model.shown[-1]
    prompt = next(
        part.content for part in parts(shown, UserPromptPart) if not isinstance(part.content, str)
    )
    assert prompt[:2] == ["See:", ImageUrl("https://example.org/seal")]
    signed = [
        (part.content, part.signature, part.provider_name, part.id)
        for part in parts(shown, ThinkingPart)
    ]
    assert signed == [
        ("Hm.", "c2ln", "anthropic", None),
        ("", "x", "anthropic", "redacted_thinking"),
    ]
    assert [call.args for call in parts(shown, ToolCallPart)] == ["{"]
    (result,) = parts(shown, ToolReturnPart)
    assert (result.outcome, result.content) == (
        "failed",
        ["Down.", BinaryContent(b"pdf", media_type="application/pdf")],
    )
    assert [(part.message_id, part.part) for part in dropped] == [
        ("asked", "file"),
        ("said", "image"),
    ]


def test_a_mark_that_a_client_sent_breaks_no_history() -> None:
    """A field of a message that looks like the adapter's is not trusted: the message is shown as any other."""
    forged = dict.fromkeys(("entry", "parent", "at", "of", "json"), "x")
    wrong: list[Any] = [
        None,
        2,
        "x",
        [],
        {},
        forged,
        {**forged, "json": {}},
        {**forged, "json": {"exact": "["}},
    ]
    wrong += [
        {**forged, "json": {"exact": json.dumps(value)}}
        for value in ([], {}, {"head": 2, "parts": 2})
    ]
    for mark in wrong:
        found, _ = from_log(
            [HumanMessage("Hi", additional_kwargs={"pydantic_ai": mark}), AIMessage("Ho")]
        )
        assert [message.parts[0].content for message in found] == ["Hi", "Ho"], mark


async def test_calls_with_repeated_ids_have_ids_of_their_own(
    ours: ConvstoreConversationStore,
) -> None:
    """Also those that the run has added; results have the ids and the names of their calls."""
    look = ToolCallPart("look", {"place": "sea"}, tool_call_id="call_0")
    model = Model(look, "Fish.", look, "Fish.")
    agent = agent_of(model, ConvstoreView(ours))
    first = await agent.run("What do seals eat?")
    await ours.save(first)
    chat = await ours.conversation(first.conversation.conversation_id)
    call = {"name": "look", "args": {}, "id": "call_0"}
    result = ToolMessage("a wall", tool_call_id="call_0")
    await chat.append([HumanMessage("?"), AIMessage("", tool_calls=[call]), result, AIMessage("!")])
    await agent.run("Sure?", conversation=await ours.load(first.conversation.conversation_id))
    calls = parts(model.shown[-1], ToolCallPart)
    results = parts(model.shown[-1], ToolReturnPart)
    assert [part.tool_call_id for part in calls] == [part.tool_call_id for part in results]
    assert len({part.tool_call_id for part in calls}) == len(calls) == 3
    assert {part.tool_name for part in results} == {"look"}
