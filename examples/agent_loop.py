"""A plain agent loop on the store: four questions, cited sources from a search tool, two results read again.

    python examples/agent_loop.py [mongodb://localhost:27017/app]

The address defaults to CONVSTORE_URI, then to memory. Only the model is scripted, but it builds each reply from the
messages that it gets, like a real one. The first search finds sources 1-10, the second 11-20. Then the model reads the
first result again by its message id, and a source of the second by its number. At the end every citation is looked up.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, tool

from convstore import SOURCES_PROMPT, Conversation, ConversationStore, number_sources

MOST_STEPS = 5
PROMPT = (
    f"Answer from what the tool `search` finds, and cite sources by their numbers. {SOURCES_PROMPT}"
)
QUESTIONS = (
    "How do bees tell others the way to flowers?",
    "Where do bees live in winter?",
    "How was the dance about distance again?",
    "And what was that about hard frost?",
)

CORPUS = {
    "The waggle dance": "A bee that has found flowers dances for the others on the comb. She runs straight ahead, "
    "shaking her body, turns, comes back and runs again. The angle of the run to the vertical is the angle of the way "
    "to the sun, and the time that she shakes tells the distance: about one second stands for one kilometre.",
    "What a bee sees": "Bees see ultraviolet and do not see red. Many flowers that look plain to us carry marks in "
    "ultraviolet that lead to the nectar like the lamps of a runway. A bee learns a colour in three visits.",
    "The scent of flowers": "A dancing bee still smells of the flowers that she came from. Those who follow her dance "
    "in the dark of the hive take up the scent with their antennae, and look for it when they are near the place.",
    "The round dance": "Flowers close to the hive need no direction. The bee runs in small circles, now left, now "
    "right, and the others fly out and search all around for the scent that she brought.",
    "The sun behind clouds": "One patch of blue sky is enough for bees to tell the way: they see how its light is "
    "polarised, and from that where the sun stands. They also know how far it wanders in an hour.",
    "Landmarks": "A young bee learns the place of her hive in flights that begin as small loops and grow. Later she "
    "follows the edges of woods, roads and rivers on her way to flowers and back.",
    "The dance floor": "Dances for flowers are held near the entrance of the hive, on cells that are empty. A comb "
    "that can swing freely passes the shaking on better than one that is full and sealed.",
    "How many follow": "Three to six bees follow a dancer closely, heads towards her. Few of them find the way after "
    "one dance; most have followed eight to ten runs before they leave for the flowers.",
    "The stop signal": "A bee that met danger at the flowers butts a dancer with her head and hums. After a few such "
    "signals the dance ends, and nobody more is sent on that way.",
    "Trembling for help": "When too much nectar comes in, a bee walks through the hive trembling. That tells others "
    "to take over the nectar from those who bring it, instead of flying to flowers themselves.",
    "The winter cluster": "In winter the bees of a hive sit together in a ball, the queen in the middle. Those inside "
    "tremble with their flight muscles to make heat, those outside form a coat; every bee takes her turn in both.",
    "Winter stores": "A hive eats fifteen to twenty kilograms of honey in winter. The cluster climbs the comb as it "
    "eats, and in a hard frost it may starve a hand's breadth from full cells that it cannot reach.",
    "Winter bees": "Bees that live through winter hatch in autumn. They feed no brood at first, store fat and protein "
    "in their bodies, and live six months where a summer bee lives six weeks.",
    "Solitary bees in winter": "Most kinds of bees live alone and never see a winter as adults. Their young wait in "
    "cells in hollow stems or in the ground, as larvae or as finished bees that wait for the first warm days.",
    "The cleansing flight": "Bees do not soil their hive. They wait, for months in a long winter, until a day above "
    "ten degrees lets them fly out together for a short time.",
}

Reply = Callable[[Sequence[BaseMessage]], AIMessage]


@tool(response_format="content_and_artifact")
def search(query: str) -> tuple[str, list[dict[str, str]]]:
    """Search the handbook on bees; finds ten passages."""
    words = set(re.findall(r"\w+", query.lower()))
    found = {
        title: words & set(re.findall(r"\w+", f"{title} {text}".lower()))
        for title, text in CORPUS.items()
    }
    ranked = sorted(CORPUS, key=lambda title: -len(found[title]))
    passages = [{"title": title, "content": CORPUS[title]} for title in ranked[:10]]
    shown = [f"[{n}] {each['title']}\n{each['content']}" for n, each in enumerate(passages, 1)]
    return "\n\n".join(shown), passages


class ScriptedModel(BaseChatModel):
    """Replace a real chat model: build the next reply from the given messages."""

    replies: list[Reply]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> ScriptedModel:
        """Print the names of the tools; the script already knows them."""
        print("The model may use:", ", ".join(tool.name for tool in tools))
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - the base class has it
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002 - likewise
        **_: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.replies.pop(0)(messages))])


def call(name: str, **arguments: Any) -> AIMessage:
    """Return a reply that calls a tool."""
    return AIMessage(
        "", tool_calls=[{"name": name, "args": arguments, "id": f"call_{uuid.uuid4().hex[:8]}"}]
    )


def cite(text: str, *titles: str) -> Reply:
    """Return a reply that cites sources of the newest tool result, found by their titles."""

    def reply(messages: Sequence[BaseMessage]) -> AIMessage:
        numbers = [re.findall(rf"\[(\d+)\] {title}", messages[-1].text)[0] for title in titles]
        return AIMessage(f"{text} {''.join(f'[{number}]' for number in numbers)}.")

    return reply


def read_the_first_result_again(messages: Sequence[BaseMessage]) -> AIMessage:
    """Ask for the full content of the oldest result, by the id in its stub."""
    stub = next(message for message in messages if isinstance(message, ToolMessage))
    return call(
        "retrieve_previous_sources", tool_message_ids=[json.loads(stub.text)["tool_message_id"]]
    )


def read_a_cited_source_again(messages: Sequence[BaseMessage]) -> AIMessage:
    """Ask for the last source that the answer on winter cited."""
    answer = next(message for message in messages if "warm ball" in message.text)
    return call(
        "retrieve_previous_sources", source_ids=[int(re.findall(r"\[(\d+)\]", answer.text)[-1])]
    )


SCRIPT: list[Reply] = [
    lambda _: call("search", query="bees tell others the way to flowers, dance, scent"),
    cite(
        "By dances that tell direction and distance, and by scent",
        "The waggle dance",
        "The scent of flowers",
    ),
    lambda _: call("search", query="where do bees live in winter, hive, cells"),
    cite(
        "Honey bees stay in the hive as a warm ball and eat their stores",
        "The winter cluster",
        "Winter stores",
    ),
    read_the_first_result_again,
    cite("One second of shaking stands for about one kilometre", "The waggle dance"),
    read_a_cited_source_again,
    cite("A hive may starve a hand's breadth from full cells", "Winter stores"),
]


async def answer(chat: Conversation, model: Any, tools: dict[str, BaseTool], question: str) -> None:
    """Run one turn: ask, let the model call tools until it answers, and append each message at once."""
    await chat.append(HumanMessage(question))
    print(f"\nHuman: {question}")
    for _ in range(MOST_STEPS):
        history = await chat.load_history()
        print(f"  [the model gets {history.tokens} tokens of {history.report.tokens_before}]")
        reply = await model.ainvoke(history.messages)
        await chat.append(reply)
        for wanted in reply.tool_calls:
            print(f"  Model calls {wanted['name']}({json.dumps(wanted['args'])})")
            result = await tools[wanted["name"]].ainvoke(wanted)
            receipt = await chat.append(result)
            print(
                f"  Tool gives {len(result.text)} characters, new source ids: {receipt.source_ids}"
            )
        if not reply.tool_calls:
            print(f"Model: {reply.text}")
            return


async def check_citations(chat: Conversation) -> None:
    """Check that every cited number is a passage that the model read, in this or an earlier turn."""
    answers = [message.text async for message in chat.messages() if isinstance(message, AIMessage)]
    numbers = sorted({int(number) for text in answers for number in re.findall(r"\[(\d+)\]", text)})
    page = await chat.get_sources(numbers)
    print("\nCited:")
    for source in page.sources:
        assert CORPUS[source.title] == source.content  # noqa: S101 - the point of the example
        print(f"  [{source.source_id}] {source.title}")


async def main(uri: str) -> None:
    """Run four turns; in the third and fourth the model reads sources of the first two again."""
    async with await ConversationStore.connect(uri) as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
        await chat.append(SystemMessage(PROMPT))
        tools = {
            tool.name: tool
            for tool in (number_sources(search, chat), chat.retrieve_previous_sources_tool())
        }
        model = ScriptedModel(replies=list(SCRIPT)).bind_tools(list(tools.values()))
        for question in QUESTIONS:
            await answer(chat, model, tools, question)
        await check_citations(chat)

        history = await chat.load_history()
        log = [message async for message in chat.messages()]
        print(
            f"\nThe log keeps {len(log)} messages, {history.report.tokens_before} tokens; ", end=""
        )
        print(f"the next call gets {history.tokens} tokens.")
        await chat.delete()


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("CONVSTORE_URI", "memory://"))
    )
