"""Each door of a framework keeps, with each answer of a run, its model, its tokens and why the model stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import agent_framework as af
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableLambda

from convstore import Conversation, ConversationStore
from convstore.ext.chat_history import with_message_history
from convstore.types import StoredMessage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory is deprecated"),
]

MODEL = "model-1"
CALL = {"look": {"at": "seals"}}
COUNTS = ((100, 10, 40, 4), (150, 20, 90, 0))
"""Of each answer: the tokens of its request and its own, those of them that a cache read, and those of reasoning."""
REASONS = ("tool_calls", "stop")


def chat_usage(at: int) -> dict[str, Any]:
    """The token counts of an answer as Chat Completions has them."""
    given, said, read, thought = COUNTS[at]
    details = {
        "prompt_tokens_details": {"cached_tokens": read},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
    counts = {"prompt_tokens": given, "completion_tokens": said, "total_tokens": given + said}
    return counts | details


def completions() -> list[dict[str, Any]]:
    """The answers as Chat Completions returns them."""
    function = {"name": "look", "arguments": '{"at": "seals"}'}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    said: list[dict[str, Any]] = [{"content": None, "tool_calls": calls}, {"content": "Fish."}]
    return [
        {
            "object": "chat.completion",
            "model": MODEL,
            "usage": chat_usage(at),
            "choices": [{"message": {"role": "assistant", **fields}, "finish_reason": reason}],
        }
        for at, (fields, reason) in enumerate(zip(said, REASONS, strict=True))
    ]


async def own_loop(chat: Conversation) -> None:
    """Replies of an API."""
    async with await chat.turn("q", human="What do they eat?") as turn:
        for completion in completions():
            await turn.append(completion)
            for call in turn.open_calls:
                await turn.add_result(call, "fish")


async def streamed(chat: Conversation) -> None:
    """Streams of an API."""

    async def chunks(completion: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        [choice] = completion["choices"]
        about = {"object": "chat.completion.chunk", "model": MODEL}
        message = dict(choice["message"])
        for number, call in enumerate(message.get("tool_calls", ())):
            call["index"] = number
        yield {**about, "choices": [{"index": 0, "delta": message}]}
        yield {**about, "choices": [{"delta": {}, "finish_reason": choice["finish_reason"]}]}
        yield {**about, "choices": [], "usage": completion["usage"]}

    async with await chat.turn("q", human="What do they eat?") as turn:
        for completion in completions():
            async for _ in turn.stream(chunks(completion)):
                pass
            for call in turn.open_calls:
                await turn.add_result(call, "fish")


async def message_history(chat: Conversation) -> None:
    """A runnable of LangChain with a history, whose output is all that a run has added."""

    def run(_: Sequence[Any]) -> list[Any]:
        [calling, last] = langchain_answers()
        return [calling, ToolMessage("fish", tool_call_id="call_1"), last]

    chain = with_message_history(RunnableLambda(run), chat.store)
    config: Any = {"configurable": dict(chat.scope)}
    await chain.ainvoke([HumanMessage("What do they eat?")], config)


def langchain_answers() -> list[AIMessage]:
    """The answers as LangChain's packages return them."""
    from convstore.append.inputs import normalize_messages  # noqa: PLC0415

    found = [normalize_messages(completion)[0] for completion in completions()]
    return [message for message in found if isinstance(message, AIMessage)]


async def middleware(chat: Conversation) -> None:
    """An agent of LangChain."""
    from langchain.agents import create_agent  # noqa: PLC0415 - loads slowly
    from scripted_agents import ScriptedModel  # noqa: PLC0415

    from convstore.ext.langchain import ConversationMiddleware  # noqa: PLC0415

    model: BaseChatModel = ScriptedModel(replies=langchain_answers())
    agent = create_agent(model, [look], middleware=[ConversationMiddleware(chat.store)])
    config: Any = {"configurable": dict(chat.scope)}
    await agent.ainvoke({"messages": [HumanMessage("What do they eat?")]}, config)


def look(at: str) -> str:
    """Look at something."""
    return f"{at}: fish"


async def pydantic_ai(chat: Conversation) -> None:
    """A run of Pydantic AI."""
    from pydantic_ai import Agent  # noqa: PLC0415 - loads slowly
    from pydantic_ai.messages import (  # noqa: PLC0415
        ModelMessage,
        ModelResponse,
        TextPart,
        ToolCallPart,
    )
    from pydantic_ai.models.function import AgentInfo, FunctionModel  # noqa: PLC0415
    from pydantic_ai.usage import RequestUsage  # noqa: PLC0415

    from convstore.ext.pydantic_ai import ConvstoreConversationStore  # noqa: PLC0415

    parts = [[ToolCallPart("look", {"at": "seals"}, "call_1")], [TextPart("Fish.")]]
    reasons: Sequence[Any] = ("tool_call", "stop")

    def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        at = sum(isinstance(message, ModelResponse) for message in messages)
        given, said, read, thought = COUNTS[at]
        usage = RequestUsage(
            input_tokens=given,
            output_tokens=said,
            cache_read_tokens=read,
            output_reasoning_tokens=thought,
        )
        return ModelResponse(parts[at], usage=usage, model_name=MODEL, finish_reason=reasons[at])

    conversations = ConvstoreConversationStore(chat.store, user_id=chat.scope["user_id"])
    agent = Agent(FunctionModel(answer, model_name=MODEL), tools=[look])
    conversation = await conversations.load(chat.scope["thread_id"])
    assert conversation is None
    from pydantic_ai.conversation import Conversation as Saved  # noqa: PLC0415

    begun = Saved(conversation_id=chat.scope["thread_id"])
    await conversations.save(await agent.run("What do they eat?", conversation=begun))


class Scripted(
    af.FunctionInvocationLayer[Any], af.ChatMiddlewareLayer[Any], af.BaseChatClient[Any]
):
    """A client of the Agent Framework with written answers."""

    def _inner_get_response(self, *, messages: Sequence[af.Message], stream: bool, **_: Any) -> Any:
        at = sum(message.role == "assistant" for message in messages)
        call = af.Content.from_function_call("call_1", "look", arguments={"at": "seals"})
        said: list[Any] = [[call], [af.Content.from_text("Fish.")]][at]
        given, wrote, read, thought = COUNTS[at]
        usage = af.UsageDetails(
            input_token_count=given,
            output_token_count=wrote,
            total_token_count=given + wrote,
            cache_read_input_token_count=read,
            reasoning_output_token_count=thought,
        )
        about: dict[str, Any] = {"model": MODEL, "finish_reason": REASONS[at]}

        async def respond() -> af.ChatResponse:
            return af.ChatResponse(
                messages=[af.Message("assistant", said)], usage_details=usage, **about
            )

        async def updates() -> AsyncIterator[af.ChatResponseUpdate]:
            yield af.ChatResponseUpdate(contents=said, role="assistant", model=MODEL)
            yield af.ChatResponseUpdate(contents=[af.Content.from_usage(usage)], **about)

        if stream:
            return af.ResponseStream(updates(), finalizer=af.ChatResponse.from_updates)
        return respond()


async def agent_framework(chat: Conversation) -> None:
    """A run of Microsoft's framework."""
    agent, session = agent_of(chat)
    await agent.run("What do they eat?", session=session)


async def agent_framework_streamed(chat: Conversation) -> None:
    """A streamed run of Microsoft's framework."""
    agent, session = agent_of(chat)
    async for _ in agent.run("What do they eat?", session=session, stream=True):
        pass


def agent_of(chat: Conversation) -> tuple[Any, Any]:
    """An agent of Microsoft's framework and a session."""
    from convstore.ext.microsoft import ConvstoreHistoryProvider  # noqa: PLC0415

    provider = ConvstoreHistoryProvider(chat.store, user_id=chat.scope["user_id"])
    tool = af.tool(approval_mode="never_require")(look)
    agent = af.Agent(Scripted(), tools=[tool], context_providers=[provider])
    return agent, agent.create_session(session_id=chat.scope["thread_id"])


async def agents_sdk(chat: Conversation) -> None:
    """A run of OpenAI's Agents SDK, which gives a session the token counts of its requests, and no stop reason."""
    import agents  # noqa: PLC0415 - loads slowly
    from agents.testing import ScriptedModel, assistant_message, function_call  # noqa: PLC0415
    from openai.types.responses.response_usage import (  # noqa: PLC0415
        InputTokensDetails,
        OutputTokensDetails,
    )

    from convstore.ext.openai_agents import ConvstoreSession  # noqa: PLC0415

    calling = function_call("look", {"at": "seals"}, call_id="call_1")
    steps = list[Any]()
    for item, (given, said, read, thought) in zip(
        (calling, assistant_message("Fish.")), COUNTS, strict=True
    ):
        item.provider_data = {"model": MODEL}
        usage = agents.Usage(
            requests=1,
            input_tokens=given,
            output_tokens=said,
            total_tokens=given + said,
            input_tokens_details=InputTokensDetails(cached_tokens=read, cache_write_tokens=0),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=thought),
        )
        steps.append(agents.ModelResponse(output=[item], usage=usage, response_id=None))
    agent: Any = agents.Agent("a", model=ScriptedModel(steps), tools=[agents.function_tool(look)])
    await agents.Runner.run(
        agent, "What do they eat?", session=ConvstoreSession(chat.store, **chat.scope)
    )


Door = Callable[[Conversation], Awaitable[None]]
DOORS: tuple[Door, ...] = (
    own_loop,
    streamed,
    message_history,
    middleware,
    pydantic_ai,
    agent_framework,
    agent_framework_streamed,
    agents_sdk,
)
WITHOUT_REASON = (agents_sdk,)
"""Doors that are not told why a model stopped."""


def facts_of(stored: StoredMessage) -> tuple[Any, ...]:
    """Model, token counts and stop reason of an answer, as a reader of the log finds them."""
    message: Any = stored.message
    usage = message.usage_metadata or {}
    metadata = message.response_metadata
    return (
        metadata.get("model_name"),
        usage.get("input_tokens"),
        usage.get("output_tokens"),
        usage.get("input_token_details", {}).get("cache_read"),
        usage.get("output_token_details", {}).get("reasoning", 0),
        metadata.get("finish_reason"),
    )


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
async def test_each_answer_has_its_model_tokens_and_reason(door: Door) -> None:
    """Of a run with two answers, in each message; the sums of the conversation are those of its answers."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="seals")
        await door(chat)
        answers = [row for row in await chat.list_messages() if row.message.type == "ai"]
        found = [facts_of(row) for row in answers]
        reasons = (None, None) if door in WITHOUT_REASON else REASONS
        if door is pydantic_ai:
            reasons = ("tool_call", "stop")
        wanted = [
            (MODEL, given, said, read, thought, reason)
            for (given, said, read, thought), reason in zip(COUNTS, reasons, strict=True)
        ]
        assert found == wanted
        usage = (await chat.info()).usage[MODEL]
        assert (usage["input_tokens"], usage["output_tokens"]) == (250, 30)
