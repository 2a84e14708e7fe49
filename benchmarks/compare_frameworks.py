"""The MongoDB stores of agent frameworks that `compare.py` measures, each beside this library's store for it.

A turn is given to each as its framework's own messages. Microsoft's Agent Framework and the Claude Agent SDK have no
store on MongoDB; deepagents uses LangGraph's.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from compare_stores import Place, Store
from langchain_core.messages import AIMessage, BaseMessage
from pymongo import MongoClient

from convstore import Conversation, ConversationStore


async def _result_of(chat: Conversation, turn: list[BaseMessage]) -> str:
    """Read one tool message, the third of the four of a turn."""
    number = int(str(turn[2].id)[1:])
    [result] = await chat.list_messages(after=4 * number + 2, limit=1, full=True)
    return str(result.message.content)


class AgentsSession(Store):
    """OpenAI Agents' MongoDBSession, one batch for each turn, everything loaded."""

    name = "openai-agents"

    def __init__(self) -> None:
        self._session: Any = None

    async def open(self, place: Place) -> None:
        """Open the session."""
        module = importlib.import_module("agents.extensions.memory")  # optional, and not typed
        self._session = module.MongoDBSession(
            "one", client=place.client, database=f"{place.database}_agents"
        )

    async def append(self, turn: list[BaseMessage]) -> None:
        """Add the items of a turn."""
        question, call, result, answer = turn
        arguments = {
            "type": "function_call",
            "call_id": result.id,
            "name": "search",
            "arguments": str(call.content),
        }
        output = {"type": "function_call_output", "call_id": result.id, "output": result.content}
        asked, said = (
            {"role": role, "content": message.content}
            for role, message in (("user", question), ("assistant", answer))
        )
        await self._session.add_items([asked, arguments, output, said])

    async def load(self) -> Sequence[Any]:
        """Load all items."""
        items: list[dict[str, Any]] = await self._session.get_items()
        return items

    async def result(self, turn: list[BaseMessage]) -> str:
        """Load all items and pick one, as there is no other way."""
        call = turn[2].id
        results = [item for item in await self.load() if "output" in item]
        return next(str(result["output"]) for result in results if result.get("call_id") == call)


class ConvstoreAgentsSession(AgentsSession):
    """Our session for OpenAI Agents, the same batches; a load is the view, a result is read by its ordinal."""

    name = "convstore for openai-agents"

    async def open(self, place: Place) -> None:
        """Set the store up."""
        store = ConversationStore(place.client[f"{place.database}_convstore_agents"])
        await store.setup()
        module = importlib.import_module("convstore.ext.openai_agents")  # needs the SDK
        self._session = module.ConvstoreSession(store, user_id="bench", thread_id="one")

    async def result(self, turn: list[BaseMessage]) -> str:
        """Read one tool message."""
        return await _result_of(self._session.conversation(), turn)


class PydanticStepStore(Store):
    """Pydantic AI's MongoStepStore, from pydantic-ai-harness: one complete snapshot for each turn, of all messages.

    Its capability takes more of them, one for each step. The history is held in memory meanwhile, as a run holds it.
    """

    name = "pydantic-ai-harness"

    async def open(self, place: Place) -> None:
        """Open the store."""
        self._module = importlib.import_module("pydantic_ai_harness.step_persistence")
        self._store = self._module.MongoStepStore(
            client=place.client, database=f"{place.database}_steps"
        )
        self._history: list[Any] = []

    async def append(self, turn: list[BaseMessage]) -> None:
        """Save a snapshot."""
        self._history = [*self._history, *_pydantic(turn)]
        snapshot = self._module.ContinuableSnapshot(
            run_id="one", step_index=0, messages=self._history
        )
        await self._store.save_snapshot(snapshot)

    async def load(self) -> Sequence[Any]:
        """Load all messages of the newest snapshot."""
        found: list[Any] = (await self._store.latest_snapshot(run_id="one")).messages
        return found

    async def result(self, turn: list[BaseMessage]) -> str:
        """Load all messages and pick one, as there is no other way."""
        parts = (
            part
            for message in await self.load()
            for part in message.parts
            if part.part_kind == "tool-return"
        )
        return next(str(part.content) for part in parts if part.tool_call_id == turn[2].id)


class ConvstorePydantic(Store):
    """Our ConversationStore of Pydantic AI: a turn is saved; a load is the history, then the model's view."""

    name = "convstore for pydantic-ai"

    async def open(self, place: Place) -> None:
        """Set the store up."""
        store = ConversationStore(place.client[f"{place.database}_convstore_pydantic"])
        await store.setup()
        module = importlib.import_module("convstore.ext.pydantic_ai")
        self._store = module.ConvstoreConversationStore(store, user_id="bench")
        self._conversation = importlib.import_module("pydantic_ai").Conversation(
            conversation_id="one"
        )

    async def append(self, turn: list[BaseMessage]) -> None:
        """Save the conversation with the messages of a turn."""
        self._conversation.messages.extend(_pydantic(turn))
        await self._store.save(self._conversation)

    async def load(self) -> Sequence[Any]:
        """Load all messages, as a run needs them, then the view that `ConvstoreView` makes of them."""
        await self._store.load("one")
        chat: Conversation = await self._store.conversation("one")
        return (await chat.load_history()).messages

    async def result(self, turn: list[BaseMessage]) -> str:
        """Read one tool message."""
        return await _result_of(await self._store.conversation("one"), turn)


class AdkSessions(Store):
    """Google ADK's MongoDbSessionService: four events for each turn, everything loaded."""

    name = "google-adk"
    _key = {"app_name": "bench", "user_id": "bench", "session_id": "one"}  # noqa: RUF012 - never changed

    async def open(self, place: Place) -> None:
        """Open the service and a session."""
        self._types = importlib.import_module("google.genai.types")
        self._event = importlib.import_module("google.adk.events.event").Event
        module = importlib.import_module("google.adk.integrations.mongodb")
        self._client: MongoClient[dict[str, Any]] = MongoClient(place.uri)
        self._service = module.MongoDbSessionService(
            database_name=f"{place.database}_adk", mongo_client=self._client
        )
        self._session = await self._service.create_session(**self._key)

    async def append(self, turn: list[BaseMessage]) -> None:
        """Append the events of a turn, one at a time, as its runner does."""
        question, call, result, answer = turn
        assert isinstance(call, AIMessage)
        part, named = self._types.Part, {"id": result.id, "name": "search"}
        called = self._types.FunctionCall(**named, args=call.tool_calls[0]["args"])
        answered = self._types.FunctionResponse(**named, response={"result": result.content})
        for role, said in (
            ("user", part(text=question.content)),
            ("model", part(function_call=called)),
            ("user", part(function_response=answered)),
            ("model", part(text=answer.content)),
        ):
            content = self._types.Content(role=role, parts=[said])
            await self._service.append_event(
                self._session, self._event(author=role, content=content)
            )

    async def load(self) -> Sequence[Any]:
        """Load all events."""
        found: list[Any] = (await self._service.get_session(**self._key)).events
        return found

    async def result(self, turn: list[BaseMessage]) -> str:
        """Load all events and pick one, as there is no other way."""
        answers = (
            answer for event in await self.load() for answer in event.get_function_responses()
        )
        return next(str(answer.response["result"]) for answer in answers if answer.id == turn[2].id)

    async def close(self) -> None:
        """Close the client."""
        self._client.close()


def _pydantic(turn: list[BaseMessage]) -> list[Any]:
    """Return a turn as messages of Pydantic AI."""
    module, (question, call, result, answer) = importlib.import_module("pydantic_ai.messages"), turn
    assert isinstance(call, AIMessage)
    named = {"tool_name": "search", "tool_call_id": result.id}
    return [
        module.ModelRequest([module.UserPromptPart(question.content)]),
        module.ModelResponse([module.ToolCallPart(**named, args=call.tool_calls[0]["args"])]),
        module.ModelRequest([module.ToolReturnPart(**named, content=result.content)]),
        module.ModelResponse([module.TextPart(answer.content)]),
    ]
