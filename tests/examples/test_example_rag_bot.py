"""The RAG bot of the examples: what each of its models is shown, what its state holds, what its transcript shows."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixture_types import Client
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from programs import run_program
from test_examples import address, run_example, server_address

from convstore import ConversationStore
from convstore.exceptions import MissingExtraError
from convstore.testing.samples import new_id

__all__ = ["address", "server_address"]  # fixtures

FOLDER = Path(__file__).parents[2] / "examples" / "rag_bot"
LOCAL = "Which keeper stayed in the tower in the great storm?"
WEB = "What does a return with the cable railway cost?"
NOWHERE = "Which opera has zebras?"
TALK = "What have I asked you so far?"


@pytest.fixture(scope="module")
def modules() -> Iterator[Any]:
    """The example's modules, as they are when main.py runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        import main  # noqa: PLC0415 - found once the folder is on the path
        import rag_corpus  # noqa: PLC0415 - likewise
        import rag_graph  # noqa: PLC0415 - likewise
        import rag_models  # noqa: PLC0415 - likewise

        yield SimpleNamespace(main=main, corpus=rag_corpus, graph=rag_graph, models=rag_models)
    for name in ("main", "rag_corpus", "rag_graph", "rag_models"):
        del sys.modules[name]  # another example has a main too


@pytest.mark.parametrize(
    ("package", "help_"),
    [
        ("langgraph", str(MissingExtraError(package="langgraph", extra="langgraph"))),
        ("bm25s", "run: pip install bm25s"),
        ("mongomock_motor", str(MissingExtraError(package="mongomock-motor", extra="memory"))),
    ],
)
def test_the_program_says_what_it_lacks(
    package: str, help_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program ends with one line that says how to install the missing package, without a traceback."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as ended:
        run_program(FOLDER / "main.py", "memory://")
    assert str(ended.value).startswith("The RAG bot ")
    assert str(ended.value).endswith(help_)
    assert "\n" not in str(ended.value)


class Bot:
    """A bot with a conversation of its own, and what its models were shown in the last turn."""

    def __init__(self, modules: Any, store: ConversationStore, models: Any, recorder: Any) -> None:
        self.recorder, self.calls = recorder, list[tuple[str, list[BaseMessage]]]()
        self.config: RunnableConfig = {"configurable": {"user_id": "ada", "thread_id": new_id()}}
        self.chat = store.conversation(**self.config["configurable"])
        self.graph = (
            modules.graph.RagBot(store, models).graph().compile(checkpointer=InMemorySaver())
        )

    async def ask(self, question: str, message_id: str | None = None) -> dict[str, Any]:
        """Ask a question in one turn, and return the state after it."""
        self.recorder.calls.clear()
        state: dict[str, Any] = await self.graph.ainvoke(
            {"messages": [HumanMessage(question, id=message_id)]}, self.config
        )
        self.calls = list(self.recorder.calls)
        return state

    def shown(self, role: str) -> list[BaseMessage]:
        """Return the messages that the only model call of the last turn was shown."""
        [messages] = [messages for who, messages in self.calls if who == role]
        return messages


@pytest.fixture
async def bot(modules: Any, pymongo_client: Client, database_name: str) -> AsyncIterator[Bot]:
    """A bot on a real server."""
    recorder = modules.models.Recorder()
    models, summarizer = modules.main.models_for(recorder)
    store = ConversationStore(
        pymongo_client[database_name], collection_prefix="rag_bot_", summarizer=summarizer
    )
    await store.setup()
    yield Bot(modules, store, models, recorder)
    await store.close()


@pytest.mark.slow
async def test_router_and_agent_are_shown_the_current_message_alone(bot: Bot, modules: Any) -> None:
    """System prompt and message, nothing else, also when there is history."""
    for question in (LOCAL, WEB, LOCAL.replace("Which", "What")):
        await bot.ask(question)
        assert bot.shown("router") == [SystemMessage(modules.graph.ROUTER), HumanMessage(question)]
        assert bot.shown("agent") == [SystemMessage(modules.graph.AGENT), HumanMessage(question)]


async def test_the_final_answer_is_shown_question_and_context_and_no_history(
    bot: Bot, modules: Any
) -> None:
    """The context is the texts that were retrieved, under their numbers; nothing of the turn before is in it."""
    await bot.ask("How many stairs are there?")
    state = await bot.ask(LOCAL)
    system, asked = bot.shown("answer")
    assert system == SystemMessage(modules.graph.SYSTEM)
    context = "\n".join(
        f"[{each.metadata['source_id']}] {each.metadata['title']}: {each.page_content}"
        for each in state["documents"]
    )
    assert asked == HumanMessage(f"Question: {LOCAL}\n\nContext:\n{context}")
    assert "Ansel Rook, stayed in the tower" in context
    assert "stairs" not in asked.text
    assert state["messages"][-1].text.startswith("The keeper, Ansel Rook, stayed in the tower")


async def test_the_conversational_node_alone_is_shown_history_without_tools(
    bot: Bot, modules: Any
) -> None:
    """Questions and answers of all turns in order and the current message, each once; no call and no result."""
    answers = [(await bot.ask(question))["messages"][-1].text for question in (LOCAL, WEB)]
    await bot.ask(TALK)
    assert [role for role, _ in bot.calls] == ["router", "talk"]
    system, *history = bot.shown("talk")
    assert system == SystemMessage(modules.graph.SYSTEM)
    assert [message.text for message in history] == [LOCAL, answers[0], WEB, answers[1], TALK]
    assert not any(
        isinstance(each, ToolMessage) or getattr(each, "tool_calls", None) for each in history
    )
    logged = [message.type async for message in bot.chat.messages()]
    assert logged == [
        "human",
        "ai",
        "tool",
        "ai",
        "human",
        "ai",
        "tool",
        "ai",
        "tool",
        "ai",
        "human",
        "ai",
    ]


async def test_the_artifact_becomes_documents(bot: Bot, modules: Any) -> None:
    """Passages found by the search are documents in the state, and their source is named."""
    state = await bot.ask(LOCAL)
    passages = {passage.title: passage for passage in modules.corpus.HANDBOOK}
    assert state["documents"][0].metadata["title"] == "The great storm"
    for document in state["documents"]:
        passage = passages[document.metadata["title"]]
        assert (document.page_content, document.metadata["chapter"]) == (
            passage.text,
            passage.chapter,
        )
    assert (state["last_retrieval_source"], state["web_search_attempted"]) == ("local", False)
    assert state["original_query"] == LOCAL
    result = state["messages"][2]
    assert result.text == f"Found {len(state['documents'])} passages: " + ", ".join(
        f"[{each.metadata['source_id']}] {each.metadata['title']}" for each in state["documents"]
    )


async def test_a_search_that_finds_nothing_goes_on_to_the_web(bot: Bot) -> None:
    """Once; the code calls the tool, no model is asked, and the documents are those of the web."""
    state = await bot.ask(WEB)
    assert [role for role, _ in bot.calls] == ["router", "agent", "answer"]
    calls = [
        call
        for each in state["messages"]
        if isinstance(each, AIMessage)
        for call in each.tool_calls
    ]
    assert [(call["name"], call["args"]["query"]) for call in calls] == [
        ("retrieve_context", "cable cost railway return"),
        ("search_web", WEB),
    ]
    assert [each.metadata["title"] for each in state["documents"]] == ["Cable railway fares"]
    assert (state["last_retrieval_source"], state["web_search_attempted"]) == ("web", True)


async def test_a_search_that_finds_nothing_anywhere_ends(bot: Bot) -> None:
    """The answer is shown that nothing was found; the web is asked once."""
    state = await bot.ask(NOWHERE)
    assert bot.shown("answer")[1].text.endswith("Context:\nNothing was found.")
    assert (state["documents"], state["last_retrieval_source"], state["web_search_attempted"]) == (
        [],
        None,
        True,
    )
    assert [message.type for message in state["messages"]] == [
        "human",
        "ai",
        "tool",
        "ai",
        "tool",
        "ai",
    ]


async def test_each_turn_begins_with_a_clean_state(bot: Bot) -> None:
    """Documents and messages of the turn before are gone, though a checkpointer keeps the state."""
    await bot.ask(WEB)
    state = await bot.ask(TALK)
    assert (state["documents"], state["last_retrieval_source"], state["web_search_attempted"]) == (
        [],
        None,
        False,
    )
    asked, _ = state["messages"]
    assert asked.text == TALK


async def test_numbers_of_sources_run_through_the_conversation(bot: Bot) -> None:
    """Each turn's passages have numbers of their own, which lead to their texts."""
    first, second = await bot.ask(LOCAL), await bot.ask(WEB)
    numbers = [
        each.metadata["source_id"] for state in (first, second) for each in state["documents"]
    ]
    assert numbers == list(range(1, len(numbers) + 1))
    page = await bot.chat.get_sources(numbers)
    texts = [each.page_content for state in (first, second) for each in state["documents"]]
    assert [source.content for source in page.sources] == texts


@pytest.mark.slow
async def test_the_summary_replaces_old_turns_and_the_log_keeps_them(
    bot: Bot, modules: Any
) -> None:
    """The summarizer is shown turns, the conversational node its summary in their place, and nothing is lost."""
    for question in modules.main.QUESTIONS[:-1]:
        await bot.ask(question)
    [summary] = await bot.chat.summaries()
    last = modules.main.QUESTIONS[-1]
    await bot.ask(last)
    shown = bot.shown("talk")
    assert shown[1].additional_kwargs["convstore"]["kind"] == "summary"
    assert modules.main.QUESTIONS[0] in shown[1].text
    assert modules.main.QUESTIONS[0] not in [message.text for message in shown]
    original = await bot.chat.expand_summary(summary.version)
    assert original[0].text == modules.main.QUESTIONS[0]
    assert len(original) == summary.last


async def test_a_repeated_request_is_answered_from_the_log(bot: Bot) -> None:
    """Under the id of its question; no model is asked."""
    question = new_id()
    first = await bot.ask(LOCAL, question)
    again = await bot.ask(LOCAL, question)
    assert bot.calls == []
    assert again["messages"][-1] == first["messages"][-1]


def test_bm25_finds_every_passage_by_its_own_words(modules: Any) -> None:
    """The title of each of the forty passages finds it among the best three; unknown words find nothing."""
    library = modules.graph.Library(modules.corpus.HANDBOOK)
    assert len(modules.corpus.HANDBOOK) == 40
    for passage in modules.corpus.HANDBOOK:
        assert passage in library.search(f"{passage.title} {passage.text.split('.')[0]}"), (
            passage.title
        )
    assert library.search("zebra opera") == library.search("") == []


@pytest.mark.slow
def test_the_transcript_can_be_followed(address: Any) -> None:
    """In memory and on a server it shows the input of each model, the way through the graph, and where numbers lead."""
    shown = run_example("rag_bot/main.py", address)
    turns = shown.split("\n> ")[1:]
    assert len(turns) == 8
    assert [turn.splitlines()[0] for turn in turns][3] == TALK
    for turn in turns:
        assert "  router is shown: system, question\n" in turn
        assert ("talk is shown: system" in turn) == (
            "answer is shown: system, question with context" not in turn
        )
    assert "  found, nowhere: nothing\n  found, web: [4] Cable railway fares\n" in turns[2]
    assert (
        "> web_fallback > tools > process_tool_output > final_answer > append > summarization\n"
        in turns[2]
    )
    assert "  card: [3] The great storm\n" in turns[1]
    cards = re.findall(r"^  card: (.+)$", turns[3], re.MULTILINE)
    assert cards == ["[1] The chain", "[3] The great storm", "[4] Cable railway fares"]
    assert "  summarizer is shown: system, turns to summarise\n" in shown
    assert "  talk is shown: system, summary, question, answer" in turns[7]
    assert "Your first question was: How does the float drive the drum?" in turns[7]
    assert "The log keeps 32 messages; a view shows" in turns[7]
    assert "The state of the graph keeps 2 messages" in turns[7]
    cited = re.findall(r"^  \[(\d+)\] (.+)$", shown.partition("\nCited:\n")[2], re.MULTILINE)
    assert ("3", "The great storm, History") in cited
    assert len(cited) == 5
    assert "Read again:\n[1] The chain, characters 0-191 of 191\n" in shown
