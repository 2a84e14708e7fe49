"""A RAG bot as a LangGraph graph on convstore, in which only one node sees the history.

    python examples/rag_bot/main.py [mongodb://localhost:27017/app]

It needs the extras `langgraph` and `memory`, and bm25s. The address defaults to CONVSTORE_URI, then to memory. The
retrieval is real, BM25 over a small handbook; only the chat models are scripted. The conversational node gets the
history, but no tools; router, choice of the tool and final answer work without the history. After a search without
results, the web search follows. Old turns are summarised after the answer. Below each answer are the cards of its
citations; those of the fourth answer are from earlier turns. The last question is asked after a restart, from the log
alone; then a passage is read again.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from typing import Any

import rag_models as scripted
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig

from convstore import Conversation, ConversationStore
from convstore.exceptions import MissingExtraError
from convstore.summarization import RunningSummarizer

try:
    from langgraph.checkpoint.memory import InMemorySaver
    from rag_graph import Models, RagBot
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    if package == "bm25s":
        sys.exit("The RAG bot cannot run: bm25s is not installed; run: pip install bm25s")
    if package == "langgraph":
        missing = MissingExtraError(package=package, extra="langgraph")
        sys.exit(f"The RAG bot cannot run: {missing}")
    raise

QUESTIONS = (
    "How does the float drive the drum?",
    "Which keeper stayed in the tower in the great storm?",
    "What does a return with the cable railway cost?",
    "What have I asked you so far?",
    "Which grease is good for the great drum?",
    "Which opera has zebras?",
    "How many stairs are there?",
    "What was my first question to you?",
)


def models_for(recorder: scripted.Recorder) -> tuple[Models, RunningSummarizer]:
    """Create a model for each prompt and one for summaries; the recorder keeps their input."""

    def model(role: str) -> scripted.ScriptedModel:
        replies = {"router": "route", "agent": "choose", "summarizer": "summarize"}
        return scripted.ScriptedModel(
            role=role, reply=getattr(scripted, replies.get(role, role)), recorder=recorder
        )

    models = Models(
        router=model("router"), agent=model("agent"), answer=model("answer"), talk=model("talk")
    )
    summarizer = RunningSummarizer(
        model("summarizer"),
        max_tokens_before_summary=600,
        max_summary_tokens=150,
        keep_last_turns=2,
    )
    return models, summarizer


def name_of(message: BaseMessage) -> str:
    """Return a message as a line of the transcript."""
    if message.text.startswith("Question: "):
        return "question with context"
    if message.text.startswith("<record>"):
        return "turns to summarise"
    made = message.additional_kwargs.get("convstore", {}).get("kind")
    return made or {"human": "question", "ai": "answer"}.get(message.type, message.type)


async def ask(
    graph: Any, chat: Conversation, question: str, recorder: scripted.Recorder
) -> AIMessage:
    """Run one turn, print its steps and the card of each citation, and return the answer."""
    print(f"\n> {question}")
    recorder.calls.clear()
    path, answer = list[str](), AIMessage("")
    config: RunnableConfig = {"configurable": chat.scope}
    async for update in graph.astream(
        {"messages": [HumanMessage(question)]}, config, stream_mode="updates"
    ):
        for node, change in update.items():
            path.append(node)
            if node == "process_tool_output":
                found = [
                    f"[{each.metadata['source_id']}] {each.metadata['title']}"
                    for each in change["documents"]
                ]
                print(
                    f"  found, {change['last_retrieval_source'] or 'nowhere'}: {', '.join(found) or 'nothing'}"
                )
            if node in ("final_answer", "conversational"):
                answer = change["messages"][-1]
    for role, messages in recorder.calls:
        print(f"  {role} is shown: {', '.join(name_of(message) for message in messages)}")
    print(f"  way: {' > '.join(path)}\n{answer.text}")
    for cited in await chat.citations(answer):
        print(f"  card: [{cited.number}] {cited.title}")
    return answer


async def tell_the_end(chat: Conversation, answers: list[AIMessage], kept: int) -> None:
    """Print the contents of state, log and summaries, the sources that were cited, and a passage read again."""
    history, info = await chat.load_history(), await chat.info()
    print(f"\nThe log keeps {info.message_count} messages; a view shows {len(history.messages)}.")
    print(f"The state of the graph keeps {kept} messages, those of the last turn.")
    for summary in await chat.summaries():
        print(f"Summary {summary.version} covers messages {summary.first}-{summary.last}.")
    cited = [card for answer in answers for card in await chat.citations(answer)]
    numbers = sorted({card.source_id for card in cited if card.source_id})
    print("Cited:")
    for source in (await chat.get_sources(numbers)).sources:
        print(f"  [{source.source_id}] {source.title}, {source.metadata['chapter']}")
    tool = chat.retrieve_previous_sources_tool()
    print(f"Read again:\n{await tool.ainvoke({'source_ids': numbers[:1]})}")


async def main(uri: str) -> None:
    """Run a conversation with the bot."""
    recorder = scripted.Recorder()
    models, summarizer = models_for(recorder)
    config: RunnableConfig = {"configurable": {"user_id": "ada", "thread_id": uuid.uuid4().hex}}
    async with await ConversationStore.connect(uri, summarizer=summarizer) as store:
        await store.setup()
        graph = RagBot(store, models).graph().compile(checkpointer=InMemorySaver())
        chat = store.conversation(**config["configurable"])
        answers = [await ask(graph, chat, question, recorder) for question in QUESTIONS[:-1]]
        # After a restart the new process has an empty state; the log has the conversation.
        graph = RagBot(store, models).graph().compile(checkpointer=InMemorySaver())
        answers.append(await ask(graph, chat, QUESTIONS[-1], recorder))
        await tell_the_end(chat, answers, len((await graph.aget_state(config)).values["messages"]))
        await chat.delete()


if __name__ == "__main__":
    try:
        asyncio.run(
            main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("CONVSTORE_URI", "memory://"))
        )
    except MissingExtraError as error:
        sys.exit(f"The RAG bot cannot run: {error}")
