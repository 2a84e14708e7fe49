"""The graph of the bot: its nodes, the input of each node's model, and the values in the state.

Only the conversational node shows history to its model. The others show only the current message, so that no earlier
subject affects a search or an answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import bm25s  # type: ignore[import-untyped]
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from rag_corpus import HANDBOOK, WEB, Passage

from convstore import ConversationStore, HistoryPolicy, Source, number_sources
from convstore.ext.langgraph import ConversationState, answer_of, append_node, load_node, view_of
from convstore.ext.run_scope import scope_of

__all__ = ["AGENT", "ROUTER", "SYSTEM", "Models", "RagBot", "RagState"]

ROUTER = "Is the message about this conversation itself, or a question to look up? Answer: conversation, or rag."
AGENT = "Call retrieve_context with a query that finds what the message asks for."
SYSTEM = "You are the guide of the tide clock of Brinewick. Answer briefly, and cite passages by their numbers."

Found = tuple[str, list[tuple[str, dict[str, str]]]]


class RagState(MessagesState):
    """State of a turn: its messages, and values that are reset with each question."""

    route: Literal["rag", "conversation"]
    original_query: str
    documents: list[Document]
    last_retrieval_source: Literal["local", "web"] | None
    web_search_attempted: bool


@dataclass(frozen=True, slots=True)
class Models:
    """The chat models; one model may serve for all."""

    router: BaseChatModel
    agent: BaseChatModel
    answer: BaseChatModel
    talk: BaseChatModel


class Library:
    """Passages, searched with BM25."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages, self._index = passages, bm25s.BM25()
        texts = [f"{passage.title}. {passage.text}" for passage in passages]
        self._index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)

    def search(self, query: str, *, maximum: int = 3) -> list[Passage]:
        """Return the best passages for a query; an empty list if they do not share a word with it."""
        words = bm25s.tokenize(query, show_progress=False)
        maximum = min(maximum, len(self._passages))
        [places], [scores] = self._index.retrieve(words, k=maximum, show_progress=False)
        return [
            self._passages[place]
            for place, score in zip(places, scores, strict=True)
            if score > max(scores) / 2
        ]


_HANDBOOK, _WEB = Library(HANDBOOK), Library(WEB)


@tool(response_format="content_and_artifact")
def retrieve_context(query: str) -> Found:
    """Search the handbook of the tide clock."""
    return _found(_HANDBOOK.search(query))


@tool(response_format="content_and_artifact")
def search_web(query: str) -> Found:
    """Search the web; in this example, two stored pages."""
    return _found(_WEB.search(query))


def _found(passages: list[Passage]) -> Found:
    artifact = [(each.text, {"title": each.title, "chapter": each.chapter}) for each in passages]
    return f"Found {len(passages)} passages.", artifact


def _titles(sources: list[Source]) -> str:
    """Return the content of a result: numbers and titles. The texts are in the artifact, which models do not see."""
    return f"Found {len(sources)} passages: " + ", ".join(
        f"[{source.source_id}] {source.title}" for source in sources
    )


class RagBot:
    """Nodes and edges of the graph."""

    def __init__(self, store: ConversationStore, models: Models) -> None:
        self.store, self.models = store, models

    def graph(self) -> StateGraph[RagState]:
        """Return the graph, to be compiled with or without a checkpointer."""
        # The conversation numbers the sources, so that [7] is the same passage in all its turns.
        tools: list[BaseTool] = [
            number_sources(each, self.store, render=_titles)
            for each in (retrieve_context, search_web)
        ]
        graph: StateGraph[RagState] = StateGraph(RagState)
        graph.add_node("load", load_node(self.store, policy=HistoryPolicy(view="conversation")))
        graph.add_node("router", self.router)
        graph.add_node("agent", self.agent)
        graph.add_node("tools", ToolNode(tools))
        graph.add_node("process_tool_output", self.process_tool_output)
        graph.add_node("web_fallback", self.web_fallback)
        graph.add_node("final_answer", self.final_answer)
        graph.add_node("conversational", self.conversational)
        graph.add_node("append", append_node(self.store))
        graph.add_node("summarization", self.summarization)

        graph.add_edge(START, "load")
        graph.add_conditional_edges("load", _after_load, ["router", END])
        graph.add_conditional_edges("router", _after_router, ["agent", "conversational"])
        graph.add_edge("agent", "tools")
        graph.add_edge("tools", "process_tool_output")
        graph.add_conditional_edges(
            "process_tool_output", _after_output, ["web_fallback", "final_answer"]
        )
        graph.add_edge("web_fallback", "tools")
        graph.add_edge("final_answer", "append")
        graph.add_edge("conversational", "append")
        graph.add_edge("append", "summarization")
        graph.add_edge("summarization", END)
        return graph

    async def router(self, state: RagState) -> dict[str, Any]:
        """Classify the current message, without history, and reset the values of the turn."""
        question = str(state["messages"][-1].text)
        reply = await self.models.router.ainvoke([SystemMessage(ROUTER), HumanMessage(question)])
        return {
            "route": "conversation" if reply.text == "conversation" else "rag",
            "original_query": question,
            "documents": [],
            "last_retrieval_source": None,
            "web_search_attempted": False,
        }

    async def agent(self, state: RagState) -> dict[str, Any]:
        """Ask for a tool call for the current message, without history."""
        shown = [SystemMessage(AGENT), HumanMessage(state["original_query"])]
        return {"messages": [await self.models.agent.ainvoke(shown)]}

    def process_tool_output(self, state: RagState) -> dict[str, Any]:
        """Take the documents from the artifact of the result."""
        result = state["messages"][-1]
        artifact = result.artifact if isinstance(result, ToolMessage) else []
        documents = [Document(text, metadata=metadata) for text, metadata in artifact]
        is_web = result.name == search_web.name
        source = ("web" if is_web else "local") if documents else None
        return {
            "documents": documents,
            "last_retrieval_source": source,
            "web_search_attempted": is_web,
        }

    def web_fallback(self, state: RagState) -> dict[str, Any]:
        """Call the web search with the question, without a model."""
        call = {
            "name": search_web.name,
            "args": {"query": state["original_query"]},
            "id": f"call_{uuid.uuid4().hex}",
        }
        return {"messages": [AIMessage("", tool_calls=[{**call, "type": "tool_call"}])]}

    async def final_answer(self, state: RagState) -> dict[str, Any]:
        """Answer only from the question and the retrieved passages."""
        context = "\n".join(
            f"[{each.metadata['source_id']}] {each.metadata['title']}: {each.page_content}"
            for each in state["documents"]
        )
        asked = (
            f"Question: {state['original_query']}\n\nContext:\n{context or 'Nothing was found.'}"
        )
        return {
            "messages": [
                await self.models.answer.ainvoke([SystemMessage(SYSTEM), HumanMessage(asked)])
            ]
        }

    async def conversational(self, state: ConversationState) -> dict[str, Any]:
        """Answer from the history without tools, its summary, and the current message."""
        return {
            "messages": [await self.models.talk.ainvoke([SystemMessage(SYSTEM), *view_of(state)])]
        }

    async def summarization(self, state: RagState, config: RunnableConfig) -> dict[str, Any]:  # noqa: ARG002 - every node gets it
        """Summarise old turns once a summary is due; the log keeps every message."""
        await self.store.conversation(**scope_of(self.store, config=config)).compact()
        return {}


def _after_load(state: ConversationState) -> str:
    """End the run if the question was already answered under its id."""
    return "router" if answer_of(state) is None else END


def _after_router(state: RagState) -> str:
    return "conversational" if state["route"] == "conversation" else "agent"


def _after_output(state: RagState) -> str:
    return "final_answer" if state["documents"] or state["web_search_attempted"] else "web_fallback"
