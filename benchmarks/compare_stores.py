"""The stores that `compare.py` measures, each with one conversation: this library, the bare driver, LangChain's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from langchain_core.messages import BaseMessage, ToolMessage, message_to_dict, messages_from_dict
from pymongo import AsyncMongoClient, MongoClient, WriteConcern
from typing_extensions import TypedDict

from convstore import ConversationStore

_LAST_TURNS = 50


class Place(NamedTuple):
    """Where a store is: its server, and the beginning of the name of its database."""

    client: AsyncMongoClient[dict[str, Any]]
    uri: str
    database: str


class Store(ABC):
    """A store with one conversation."""

    name: str

    @abstractmethod
    async def open(self, place: Place) -> None:
        """Open the store, in a database of its own."""

    @abstractmethod
    async def append(self, turn: list[BaseMessage]) -> None:
        """Store the messages of a turn."""

    @abstractmethod
    async def load(self) -> Sequence[Any]:
        """Return the messages for the next model call."""

    @abstractmethod
    async def result(self, turn: list[BaseMessage]) -> str:
        """Return the content of the tool result of a turn."""

    async def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Close what the store opened."""


class Convstore(Store):
    """This library, with its defaults."""

    name = "convstore"

    async def open(self, place: Place) -> None:
        """Set the store up."""
        store = ConversationStore(place.client[f"{place.database}_convstore"])
        await store.setup()
        self._chat = store.conversation(user_id="bench", thread_id="one")

    async def append(self, turn: list[BaseMessage]) -> None:
        """Append a turn."""
        await self._chat.append(turn)

    async def load(self) -> Sequence[Any]:
        """Load the view."""
        return (await self._chat.load_history()).messages

    async def result(self, turn: list[BaseMessage]) -> str:
        """Read one tool message."""
        [record] = await self._chat.get_tool_messages([str(turn[2].id)])
        return str(record.content)


class Floor(Store):
    """The bare driver: no order between writers, no idempotency, no checks."""

    name = "floor (bare driver)"

    async def open(self, place: Place) -> None:
        """Create the index by result."""
        majority = WriteConcern("majority", j=True)
        self._turns = place.client[f"{place.database}_floor"].get_collection(
            "turns", write_concern=majority
        )
        await self._turns.create_index("call")
        self._count = 0

    async def append(self, turn: list[BaseMessage]) -> None:
        """Insert one document, the result beside the other messages."""
        self._count += 1
        result, others = (
            turn[2],
            [message_to_dict(message) for message in turn if not isinstance(message, ToolMessage)],
        )
        call, content = result.id, {"result": message_to_dict(result)}
        await self._turns.insert_one(
            {"_id": self._count, "call": call, "messages": others, **content}
        )

    async def load(self) -> Sequence[Any]:
        """Read the last turns without their results."""
        last = (
            await self._turns.find({}, {"result": 0})
            .sort("_id", -1)
            .limit(_LAST_TURNS)
            .to_list(None)
        )
        return messages_from_dict(
            [message for document in reversed(last) for message in document["messages"]]
        )

    async def result(self, turn: list[BaseMessage]) -> str:
        """Read one document."""
        document = await self._turns.find_one({"call": turn[2].id})
        assert document
        return str(messages_from_dict([document["result"]])[0].content)


class LangChainHistory(Store):
    """langchain-mongodb's MongoDBChatMessageHistory, with one client and one creation of its index."""

    name = "langchain-mongodb"

    async def open(self, place: Place) -> None:
        """Open the history."""
        from langchain_mongodb import MongoDBChatMessageHistory  # noqa: PLC0415 - optional

        self._client: MongoClient[dict[str, Any]] = MongoClient(place.uri)
        self._history = MongoDBChatMessageHistory(
            None,
            "one",
            client=self._client,
            database_name=f"{place.database}_langchain",
            collection_name="history",
        )

    async def append(self, turn: list[BaseMessage]) -> None:
        """Add messages, one document for each."""
        await self._history.aadd_messages(turn)

    async def load(self) -> Sequence[Any]:
        """Load all messages."""
        return await self._history.aget_messages()

    async def result(self, turn: list[BaseMessage]) -> str:
        """Load all messages and pick one, as there is no other way."""
        return next(
            str(message.content) for message in await self.load() if message.id == turn[2].id
        )

    async def close(self) -> None:
        """Close the client."""
        self._client.close()


def _nothing(state: Any) -> dict[str, list[Any]]:  # noqa: ARG001 - LangGraph's signature
    return {"messages": []}


class LangGraphSaver(Store):
    """LangGraph's MongoDBSaver under a graph that only adds messages, one step for each turn."""

    name = "langgraph-checkpoint-mongodb"
    _config = {"configurable": {"thread_id": "one"}}  # noqa: RUF012 - never changed

    async def open(self, place: Place) -> None:
        """Compile the graph."""
        from langgraph.checkpoint.mongodb import MongoDBSaver  # noqa: PLC0415 - optional
        from langgraph.graph import START, StateGraph  # noqa: PLC0415
        from langgraph.graph.message import add_messages  # noqa: PLC0415

        state = TypedDict("state", {"messages": Annotated[list[Any], add_messages]})  # noqa: UP013 - made at run time
        graph = StateGraph(state)
        graph.add_node("agent", _nothing)
        graph.add_edge(START, "agent")
        self._client: MongoClient[dict[str, Any]] = MongoClient(place.uri)
        self._graph: Any = graph.compile(
            checkpointer=MongoDBSaver(self._client, db_name=f"{place.database}_langgraph")
        )

    async def append(self, turn: list[BaseMessage]) -> None:
        """Run the graph for a turn."""
        await self._graph.ainvoke({"messages": turn}, self._config)

    async def load(self) -> Sequence[Any]:
        """Load the state."""
        messages: list[BaseMessage] = (await self._graph.aget_state(self._config)).values[
            "messages"
        ]
        return messages

    async def result(self, turn: list[BaseMessage]) -> str:
        """Load the state and pick a message, as there is no other way."""
        return next(
            str(message.content) for message in await self.load() if message.id == turn[2].id
        )

    async def close(self) -> None:
        """Close the client."""
        self._client.close()
