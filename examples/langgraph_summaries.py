"""The same conversation in two LangGraph graphs: one summary in the graph's state, one stored by convstore.

    python examples/langgraph_summaries.py [mongodb://localhost:27017/app]

It needs langgraph. The address defaults to CONVSTORE_URI, then to memory. The first graph uses convstore's
`SummarizationNode` in place of langmem's; its checkpoints have every message at every step. The state of the second
graph has only the current question and answer; messages and summaries are in the store. Only the models are scripted:
one answers from its messages, the other writes summaries by picking lines.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Sequence
from typing import Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, MessagesState, StateGraph

from convstore import ConversationStore
from convstore.summarization import RunningSummarizer, SummarizationNode

QUESTIONS = (
    "Hello, my name is Ada and I keep bees.",
    *(f"Tell me something about bees, part {number}, please." for number in range(1, 9)),
    "What is my name?",
)
FACT = "A bee visits some hundred flowers on one flight, and a spoon of honey is the work of her whole life. "


def answer(messages: Sequence[BaseMessage]) -> AIMessage:
    """A scripted chat model, which knows only the given messages."""
    if "name?" not in messages[-1].text:
        return AIMessage(FACT * 6)
    return AIMessage(
        "Your name is Ada."
        if any("Ada" in message.text for message in messages)
        else "I do not know."
    )


def summarize(messages: list[BaseMessage]) -> AIMessage:
    """A scripted summary model: keep the lines in which users introduce themselves."""
    lines = [line for message in messages for line in message.text.splitlines()]
    return AIMessage(
        "\n".join(dict.fromkeys(line for line in lines if "my name is" in line)) or "Small talk."
    )


SUMMARY_MODEL: Any = RunnableLambda(summarize)


class State(MessagesState):
    """State of the first graph at every step."""

    context: dict[str, Any]


class Input(TypedDict):
    """Input of its model."""

    summarized_messages: list[AnyMessage]


def thread_of(config: RunnableConfig) -> str:
    """Return the thread id of a run."""
    thread: str = config.get("configurable", {})["thread_id"]
    return thread


def graph_with_a_node() -> Any:
    """Build a graph that summarises in its state, as with langmem."""

    def call_model(state: Input) -> dict[str, Any]:
        return {"messages": [answer(state["summarized_messages"])]}

    summarizer = SummarizationNode(model=SUMMARY_MODEL, max_tokens=700, max_summary_tokens=100)
    graph = StateGraph(State)
    graph.add_node("summarize", summarizer)
    graph.add_node("call_model", call_model, input_schema=Input)
    graph.add_edge(START, "summarize")
    graph.add_edge("summarize", "call_model")
    graph.add_edge("call_model", END)
    known = [("convstore.summarization.models", "RunningSummary")]
    return graph.compile(
        checkpointer=InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=known))
    )


class Turn(TypedDict):
    """State of the second graph."""

    question: str
    answer: str


def graph_with_a_store(store: ConversationStore) -> Any:
    """Build a graph that loads, appends, and summarises after the answer."""

    async def call_model(state: Turn, config: RunnableConfig) -> dict[str, str]:
        chat = store.conversation(user_id="ada", thread_id=thread_of(config))
        await chat.append(HumanMessage(state["question"]))
        history = await chat.load_history()
        print(f"  the model gets {len(history.messages)} messages, {history.tokens} tokens", end="")
        print(f" of {history.report.tokens_before}; summary: {history.summary}")
        reply = answer(history.messages)
        await chat.append(reply)
        return {"answer": reply.text}

    async def compact(state: Turn, config: RunnableConfig) -> dict[str, str]:  # noqa: ARG001 - a node gets it
        await store.conversation(user_id="ada", thread_id=thread_of(config)).compact()
        return {}

    graph = StateGraph(Turn)
    graph.add_node("call_model", call_model)
    graph.add_node("compact", compact)
    graph.add_edge(START, "call_model")
    graph.add_edge("call_model", "compact")
    graph.add_edge("compact", END)
    return graph.compile()


async def main(uri: str) -> None:
    """Let both graphs answer the last question from a summary of the first one."""
    thread: RunnableConfig = {"configurable": {"thread_id": uuid.uuid4().hex}}
    first, state, turn = graph_with_a_node(), dict[str, Any](), dict[str, Any]()
    for question in QUESTIONS:
        state = await first.ainvoke({"messages": HumanMessage(question)}, thread)
    print("A summary in the graph's state:")
    print(
        f"  {state['messages'][-1].text} Its summary: {state['context']['running_summary'].summary}"
    )

    summarizer = RunningSummarizer(
        SUMMARY_MODEL, max_tokens_before_summary=700, max_summary_tokens=100, keep_last_turns=2
    )
    async with await ConversationStore.connect(uri, summarizer=summarizer) as store:
        await store.setup()
        second = graph_with_a_store(store)
        print("\nA summary in the store:")
        for question in QUESTIONS:
            turn = await second.ainvoke({"question": question}, thread)
        chat = store.conversation(user_id="ada", thread_id=thread_of(thread))
        [*_, last] = await chat.summaries()
        print(
            f"  {turn['answer']} Summary {last.version} covers messages {last.first}-{last.last}",
            end="",
        )
        print(f", the log keeps all {len([message async for message in chat.messages()])}.")
        await chat.delete()


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("CONVSTORE_URI", "memory://"))
    )
