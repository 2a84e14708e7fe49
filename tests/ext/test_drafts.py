"""A streamed run of an agent keeps a draft of its reply, and is stopped in the midst of it."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware, PIIMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGenerationChunk
from properties import soaked
from scripted_agents import PausingModel, ScriptedModel, log_of

from convstore import Conversation, ConversationStore
from convstore.exceptions import TurnClosedError
from convstore.ext.langchain import ConversationMiddleware
from convstore.testing.fixtures import ahead

ASKED = {"messages": [HumanMessage("Do seals sleep?", id="r1")]}


@pytest.fixture
async def chat(database: Any) -> AsyncIterator[Conversation]:
    """A conversation in a worker that waits a hundred times shorter."""
    async with ConversationStore(database, clock=ahead(0, hurry=100)) as store:
        await store.setup()
        yield store.conversation(user_id="ada", thread_id="drafts")
        await store.conversation(user_id="ada", thread_id="drafts").delete()


def agent_of(chat: Conversation, *said: Any, beside: Any = (), **options: Any) -> Any:
    """An agent whose model says these words."""
    own = ConversationMiddleware(chat.store, **options)
    return create_agent(PausingModel(replies=list(said)), middleware=[own, *beside])


async def stream(agent: Any, chat: Conversation) -> list[str]:
    """The texts of a streamed run."""
    run = agent.astream(ASKED, {"configurable": chat.scope}, stream_mode="messages")
    return [chunk.text async for chunk, _ in run if chunk.type == "AIMessageChunk"]


async def draft_in(chat: Conversation, text: str) -> None:
    """Wait until the turn has this draft."""
    async with asyncio.timeout(60):
        while (turn := await chat.get_turn("r1")) is None or turn.draft != text:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)


@pytest.mark.costly
@pytest.mark.parametrize("in_turn", [True, False])
async def test_a_streamed_run_keeps_a_redacted_draft_until_its_answer_is_appended(
    chat: Conversation, database: Any, in_turn: bool
) -> None:
    """The draft of a streamed run is redacted by its function, and is removed when the answer is appended.

    The answer itself is redacted by other middleware.
    """
    going = asyncio.Event()
    pii = PIIMiddleware("email", apply_to_output=True)
    said = ("Ask ", "bob@example.org ", going, "now.")
    agent = agent_of(
        chat, *said, beside=[pii], drafts=lambda text: text.replace("bob@example.org", "[…]")
    )

    async def work() -> list[str]:
        if not in_turn:
            return await stream(agent, chat)
        heard = list[str]()
        async with await chat.turn("r1", human="Do seals sleep?"):
            heard += await stream(agent, chat)
        return heard

    working = asyncio.ensure_future(work())
    await draft_in(chat, "Ask […] ")
    going.set()
    assert (await working)[:3] == ["Ask ", "bob@example.org ", "now."]
    assert [message.text for message in await log_of(chat)] == [
        "Do seals sleep?",
        "Ask [REDACTED_EMAIL] now.",
    ]
    assert (
        await database["drafts"].count_documents(
            {"conversation": (await chat.info()).conversation_id}
        )
        == 0
    )


async def test_a_run_that_is_cancelled_leaves_a_draft(chat: Conversation) -> None:
    """The same request asks again; a run that is not streamed keeps none."""
    going = asyncio.Event()
    working = asyncio.ensure_future(stream(agent_of(chat, "They ", going, drafts=True), chat))
    await draft_in(chat, "They ")
    working.cancel()
    await asyncio.wait({working})
    assert (turn := await chat.get_turn("r1"))
    assert (turn.is_finished, turn.draft) == (False, "They ")
    again = create_agent(
        ScriptedModel(replies=[AIMessage("They do.")]),
        middleware=[ConversationMiddleware(chat.store, drafts=True)],
    )
    await again.ainvoke(ASKED, {"configurable": chat.scope})
    assert (turn := await chat.get_turn("r1"))
    assert (turn.is_finished, turn.draft, turn.messages[-1].text) == (True, "", "They do.")


async def test_a_call_that_is_repeated_begins_its_draft_again(chat: Conversation) -> None:
    """A model call that is retried begins a new draft, without the words of the failed call."""

    class BreakingOff(PausingModel):
        async def _astream(
            self, messages: Any, *_: Any, **__: Any
        ) -> AsyncIterator[ChatGenerationChunk]:
            async for chunk in super()._astream(messages):
                yield chunk
                if len(self.shown) == 1:
                    raise ConnectionError("broken off")

    own, retry = (
        ConversationMiddleware(chat.store, drafts=True),
        ModelRetryMiddleware(initial_delay=0, jitter=False),
    )
    model = BreakingOff(replies=["They ", "never ", asyncio.Event()])
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        working = asyncio.ensure_future(stream(create_agent(model, middleware=[own, retry]), chat))
        await draft_in(chat, "They never ")
        await chat.stop("r1")
        await working
    assert turn.answer
    assert turn.answer.text == "They never "


@pytest.mark.costly
@pytest.mark.parametrize("said", ["They ", ""])
async def test_a_stop_ends_the_call_of_the_model(chat: Conversation, said: str) -> None:
    """Stopping a turn ends the model call, and the words so far become the answer.

    Without any words the run raises TurnClosedError, and the turn has no answer.
    """
    agent = agent_of(chat, *([said] if said else []), begun := asyncio.Event(), drafts=True)
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        working = asyncio.ensure_future(stream(agent, chat))
        if said:
            await draft_in(chat, said)
        await chat.stop("r1")
        if said:
            await working
        else:
            with pytest.raises(TurnClosedError):
                await working
    assert not begun.is_set()
    assert (turn.is_stopped, turn.answer and turn.answer.text) == (True, said or None)
    stored = await chat.get_turn("r1")
    assert stored is not None
    assert stored.over == "stopped"
    assert (await chat.info()).message_count == 1 + bool(said)


@pytest.mark.slow
@pytest.mark.parametrize("in_turn", ["0", "1"])
@pytest.mark.parametrize("number", soaked(range(3), first=1))
async def test_a_run_that_is_killed_leaves_a_prefix(
    server_uri: str, database: Any, tmp_path: Path, in_turn: str, number: int
) -> None:
    """At random moments: the draft is the beginning of what was yielded, and has what a reader had seen of it."""
    store, script = (
        ConversationStore(database),
        Path(__file__).parents[1] / "support" / "draft_crash.py",
    )
    await store.setup()
    thread, journal = f"killed-{in_turn}-{number}", tmp_path / f"{in_turn}-{number}"
    arguments = (server_uri, database.name, thread, str(journal), in_turn)
    worker = await asyncio.create_subprocess_exec(sys.executable, str(script), *arguments)
    chat, seen = store.conversation(user_id="ada", thread_id=thread), ""
    async with asyncio.timeout(120):
        while not seen:
            turn = await chat.get_turn("r1")
            seen = turn.draft if turn else ""
            await asyncio.sleep(0.01)
    await asyncio.sleep(random.uniform(0, 1.5))
    worker.kill()
    await worker.wait()
    turn = await chat.get_turn("r1")
    assert turn is not None
    assert not turn.is_finished
    assert turn.draft.startswith(seen)
    assert journal.read_text().startswith(turn.draft)
