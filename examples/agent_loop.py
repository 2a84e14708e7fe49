"""A plain agent loop on the store: three questions, a search tool, and a look at an old source.

    python examples/agent_loop.py [mongodb://localhost:27017/app]

Without an address it takes that of MONGODB_URI, and without one it works in memory. Only the model is not real: it
plays a script, but each of its replies is made from the messages that it was given, as a model's would be.
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

from convstore import Conversation, ConversationStore

MOST_STEPS = 5
PROMPT = (
    "Answer from what the tool `search` finds. Older results are shortened in the history; "
    "`retrieve_previous_sources` brings them back. Cite sources by their numbers."
)
QUESTIONS = ("How do bees find flowers?", "Where do bees live in winter?", "How was the dance about distance again?")

CORPUS = (
    (
        "The waggle dance",
        "A bee that has found flowers dances for the others on the comb. She runs straight ahead, shaking her body, "
        "turns, comes back and runs again. The angle of the run to the vertical is the angle of the way to the sun, "
        "and the time that she shakes tells the distance: about one second stands for one kilometre.",
    ),
    (
        "What a bee sees",
        "Bees see ultraviolet and do not see red. Many flowers that look plain to us carry marks in ultraviolet that "
        "lead to the nectar like the lamps of a runway. A bee learns a colour in three visits and a scent in one.",
    ),
    (
        "The scent of flowers",
        "A dancing bee still smells of the flowers that she came from. Those who follow her dance in the dark of the "
        "hive take up the scent with their antennae, and look for it when they have come near the place.",
    ),
    (
        "The winter cluster",
        "In winter the bees of a hive sit together in a ball, the queen in the middle. Those inside tremble with their "
        "flight muscles to make heat, those outside form a coat; every bee takes her turn in both places.",
    ),
    (
        "Winter stores",
        "A hive eats fifteen to twenty kilograms of honey from autumn to spring. The cluster climbs the comb as it "
        "eats, and in a hard frost it may starve a hand's breadth from full cells that it can not reach.",
    ),
    (
        "Solitary bees in winter",
        "Most kinds of bees live alone and never see a winter as adults. Their young wait in cells in hollow stems or "
        "in the ground, as larvae or as finished bees that do not come out before the first warm days.",
    ),
)

Reply = Callable[[Sequence[BaseMessage]], AIMessage]


@tool(response_format="content_and_artifact")
def search(query: str) -> tuple[str, list[dict[str, str]]]:
    """Search the handbook on bees; finds three passages."""
    words = set(re.findall(r"\w+", query.lower()))
    ranked = sorted(CORPUS, key=lambda entry: -len(words & set(re.findall(r"\w+", " ".join(entry).lower()))))
    found = [{"title": title, "url": f"https://example.org/bees/{title}", "content": text} for title, text in ranked]
    return "\n\n".join(f"{one['title']}: {one['content']}" for one in found[:3]), found[:3]


class ScriptedModel(BaseChatModel):
    """Stands for a real chat model: makes its next reply from the messages that it is given."""

    replies: list[Reply]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> ScriptedModel:
        """A real model is told about the tools here; this one knows them from its script."""
        print("The model may use:", ", ".join(one.name for one in tools))
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
    """A reply that calls a tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call_{uuid.uuid4().hex[:8]}"}])


def say(text: str) -> Reply:
    """A reply that is the same whatever the messages are."""
    return lambda _: AIMessage(text)


def read_the_first_result_again(messages: Sequence[BaseMessage]) -> AIMessage:
    """Ask for the full content of the oldest result, by the id that its stub names."""
    stub = next(message for message in messages if isinstance(message, ToolMessage))
    return call("retrieve_previous_sources", tool_message_ids=[json.loads(stub.text)["tool_message_id"]])


def cite_the_dance(messages: Sequence[BaseMessage]) -> AIMessage:
    """Answer from what was read back, with the number of the source."""
    [found] = re.findall(r"\[(\d+)\] The waggle dance.*\n.*?(about one second[^.]*)\.", messages[-1].text)
    number, told = found
    return AIMessage(f"The time that the bee shakes: {told} [{number}].")


SCRIPT: list[Reply] = [
    lambda _: call("search", query="bees find flowers dance"),
    say("By dances that tell direction and distance, by colours we do not see, and by scent."),
    lambda _: call("search", query="winter cluster hive"),
    say("Honey bees stay in the hive as a warm ball; most other kinds wait in their cells for spring."),
    read_the_first_result_again,
    cite_the_dance,
]


async def answer(chat: Conversation, model: Any, tools: dict[str, BaseTool], question: str) -> None:
    """One turn: ask, let the model call tools until it answers, and keep each message as it comes."""
    await chat.append(HumanMessage(question))
    print(f"\nHuman: {question}")
    for _ in range(MOST_STEPS):
        history = await chat.load_history()
        stubs = len(history.report.stubbed)
        print(f"  [the model gets {len(history.messages)} messages; old results as stubs: {stubs}]")
        reply = await model.ainvoke(history.messages)
        await chat.append(reply)
        for wanted in reply.tool_calls:
            print(f"  Model calls {wanted['name']}({json.dumps(wanted['args'])})")
            result = await tools[wanted["name"]].ainvoke(wanted)
            receipt = await chat.append(result)
            print(f"  Tool gives {len(result.text)} characters, new source ids: {receipt.source_ids}")
        if not reply.tool_calls:
            print(f"Model: {reply.text}")
            return


async def main(uri: str) -> None:
    """Three turns; in the third the model reads a source of the first again."""
    async with await ConversationStore.connect(uri) as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
        await chat.append(SystemMessage(PROMPT))
        tools: dict[str, BaseTool] = {one.name: one for one in (search, chat.retrieve_previous_sources_tool())}
        model = ScriptedModel(replies=list(SCRIPT)).bind_tools(list(tools.values()))
        for question in QUESTIONS:
            await answer(chat, model, tools, question)

        history = await chat.load_history()
        log = [message async for message in chat.messages()]
        print(f"\nThe log keeps {len(log)} messages, {history.report.tokens_before} tokens; ", end="")
        print(f"the next call gets {history.tokens} tokens.")
        await chat.delete()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MONGODB_URI", "memory://")))
