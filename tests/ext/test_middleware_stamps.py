"""The middleware stores beside each answer what the model saw, so that the view of any call can be built again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware.types import ModelRequest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.tools import tool

from convstore import ConversationStore, HistoryPolicy
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langchain.request_parts import RequestMeter
from convstore.messages.filing import last_question
from convstore.messages.tokens import count
from convstore.summarization import CompactionRule, HeadTailSummarizer
from convstore.testing.samples import new_id, same_messages
from convstore.values.stamps import PROMPT_CHANGED, break_between

RULE = CompactionRule(max_tokens_before_summary=900, max_summary_tokens=200, keep_last_turns=1)


@tool
def search(query: str) -> str:
    """Search."""
    return f"Long result about {query}. " * 200


class Model(GenericFakeChatModel):
    """Notes what it is shown; searches twice in every turn, then answers."""

    seen: Any = None

    def __init__(self) -> None:
        super().__init__(messages=iter(()), seen=[])  # type: ignore[call-arg]

    def bind_tools(self, tools: Any, **_: Any) -> Any:  # noqa: ARG002 - the base class has it
        """Take any tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> Any:
        self.seen.append(list(messages))
        results = 0
        for message in reversed(messages):
            if message.type == "human":
                break
            results += message.type == "tool"
        self.messages = iter([AIMessage("Done.") if results >= 2 else called(len(self.seen))])
        return super()._generate(messages, *args, **options)


def called(number: Any) -> Any:
    """A call of the search."""
    return AIMessage(
        "", tool_calls=[{"name": "search", "args": {"query": f"q{number}"}, "id": f"call-{number}"}]
    )


@pytest.mark.costly
@pytest.mark.parametrize("policy", [HistoryPolicy(), HistoryPolicy(provider="openai")])
async def test_every_call_of_a_model_can_be_seen_again(database: Any, policy: Any) -> None:
    """After later turns and compactions, from another store: message for message what the model was given."""
    store = ConversationStore(database, policy=policy, summarizer=HeadTailSummarizer(RULE))
    await store.setup()
    model, scope = Model(), {"user_id": "ada", "thread_id": new_id()}
    agent = create_agent(model, [search], middleware=[ConversationMiddleware(store, prompt="")])
    for number in range(5):
        question = {"messages": [("human", f"Question {number}?")]}
        await agent.ainvoke(question, {"configurable": scope})
    chat = ConversationStore(database, policy=policy).conversation(**scope)
    answers = [message for message in await chat.list_messages() if message.message.type == "ai"]
    assert len(answers) == len(model.seen) == 15
    for answer, seen in zip(answers, model.seen, strict=True):
        assert answer.stamp is not None
        past = await chat.view_at(answer.stamp)
        assert past.match == "exact", past.difference
        assert same_messages(past.messages, seen)
        sizes = (answer.stamp.tokens, sum(answer.stamp.parts))
        assert sizes == (past.tokens, past.tokens)
        whole = [count(store.token_counter, message) for message in seen]
        assert past.tokens == sum(whole)
        assert answer.stamp.parts.now == sum(whole[last_question(seen) :])
    await store.close()


@pytest.mark.slow
@pytest.mark.costly
@pytest.mark.parametrize("max_tokens", [3_000, 6_000])
async def test_every_call_of_a_long_turn_can_be_seen_again(database: Any, max_tokens: int) -> None:
    """Above the budget the store decides what leaves, within a turn too, and the stamp says it."""
    store = ConversationStore(database, policy=HistoryPolicy(max_tokens=max_tokens))
    await store.setup()
    model, scope = Model(), {"user_id": "ada", "thread_id": new_id()}
    agent = create_agent(model, [search], middleware=[ConversationMiddleware(store, prompt="")])
    for number in range(4):
        await agent.ainvoke(
            {"messages": [("human", f"Question {number}? {'word ' * 900}")]},
            {"configurable": scope},
        )
    chat = store.conversation(**scope)
    stamps = [
        message.stamp for message in await chat.list_messages() if message.message.type == "ai"
    ]
    for stamp, seen in zip(stamps, model.seen, strict=True):
        past = await chat.view_at(stamp)
        assert (past.match, past.difference) == ("exact", "")
        assert same_messages(past.messages, seen)
        assert stamp
        assert stamp.tokens == past.tokens
    await store.close()


async def test_a_stamp_has_digest_and_sizes_of_prompt_and_tools() -> None:
    """They are measured, not stored; the digest changes with either of them, and only then."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        for prompt in ("Be brief.", "Be brief.", "Be long."):
            middleware = [ConversationMiddleware(store, prompt="")]
            agent = create_agent(Model(), [search], system_prompt=prompt, middleware=middleware)
            question = {"messages": [("human", "Seals?")]}
            await agent.ainvoke(question, {"configurable": chat.scope})
        stamps = [stored.stamp for stored in await chat.list_messages() if stored.stamp]
    beside = [stamp.beside for stamp in stamps]
    assert len(beside) == 9
    assert len({parts.digest for parts in beside[:6]}) == 1
    assert len({parts.digest for parts in beside}) == 2
    tokens = count(store.token_counter, SystemMessage("Be brief."))
    assert {parts.prompt for parts in beside[:6]} == {tokens}
    assert all(parts.tools > 20 for parts in beside)
    causes = [break_between(before, after) for before, after in pairwise(stamps)]
    assert [cause == PROMPT_CHANGED for cause in causes] == [False] * 5 + [True] + [False] * 2


async def test_the_end_of_a_first_turn_is_what_broke_the_cache() -> None:
    """The first view of an agent is loaded before the log has anything; none of its turns is left out afterwards."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        agent = create_agent(
            Model(), [search], middleware=[ConversationMiddleware(store, prompt="")]
        )
        for question in ("Seals?", "Orcas?"):
            await agent.ainvoke({"messages": [("human", question)]}, {"configurable": chat.scope})
        stamps = [stored.stamp for stored in await chat.list_messages() if stored.stamp]
    causes = [break_between(before, after) for before, after in pairwise(stamps)]
    assert causes == ["", "", "turn ended", "", ""]


def _one_token(_: Sequence[BaseMessage]) -> int:
    return 1


def test_two_threads_measure_their_own_prompts() -> None:
    """Sync agents share a middleware: one that measures gives another the sizes of its own prompt, not of the last."""
    meter = RequestMeter()
    begun = threading.Event()
    measured = threading.Event()

    def slow(_: Sequence[BaseMessage]) -> int:
        begun.set()
        assert measured.wait(20)
        return 4

    def request(prompt: str) -> ModelRequest[Any]:
        return ModelRequest(
            model=Model(), messages=[], system_message=SystemMessage(prompt), tools=[]
        )

    first = meter.measure(request("Be brief."), _one_token)
    with ThreadPoolExecutor() as threads:
        other = threads.submit(meter.measure, request("Be long."), slow)
        assert begun.wait(20)
        here = meter.measure(request("Be long."), _one_token)
        measured.set()
    assert here.digest != first.digest
    assert other.result().digest == here.digest
