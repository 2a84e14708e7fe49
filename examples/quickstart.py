"""A first conversation: store turns with retrieved sources, load the next view, read the sources back.

    python examples/quickstart.py [mongodb://localhost:27017/app]

The address defaults to CONVSTORE_URI, then to memory.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore import ConversationStore

FACTS = {
    "food": "Some families of orcas live on salmon, some on seals, and neither touches the food of the other.",
    "families": "A family is led by its oldest female, who knows where salmon was found in the years without any.",
    "calls": "Each family has calls of its own, which a young orca learns in two years.",
    "sleep": "One half of the brain sleeps at a time, while the family swims slowly side by side.",
}
QUESTIONS = {
    "food": ("What do orcas eat?", "It depends on the family [1]."),
    "families": ("Who decides where they go?", "The oldest female [6]."),
    "calls": ("How do they talk?", "In calls of their own [11]."),
    "sleep": ("Do they sleep?", "With one half of the brain at a time [16]."),
}


def search(topic: str) -> list[tuple[str, dict[str, str]]]:
    """Find five passages of the usual length of search results."""
    observed = (
        "Observers in the bay have noted it year after year, from boats, by drones and with microphones. "
        * 8
    )
    return [
        (
            f"{FACTS[topic]} {observed}",
            {"title": f"Orcas: {topic}, part {part}", "url": f"https://example.org/{topic}/{part}"},
        )
        for part in range(1, 6)
    ]


def turn(topic: str) -> list[BaseMessage]:
    """Return a question, the model's call, the result with its sources, and the answer."""
    question, answer = QUESTIONS[topic]
    passages = search(topic)
    call = {"name": "search", "args": {"topic": topic}, "id": f"call-{topic}"}
    text = "\n\n".join(passage for passage, _ in passages)
    return [
        HumanMessage(question),
        AIMessage("", tool_calls=[call]),
        ToolMessage(
            text, artifact=passages, name="search", tool_call_id=call["id"], id=f"result-{topic}"
        ),
        AIMessage(answer),
    ]


async def main(uri: str) -> None:
    """Run five turns of a conversation."""
    async with await ConversationStore.connect(uri) as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
        for topic in QUESTIONS:
            receipt = await chat.append(turn(topic))
            print(f"Stored messages {receipt.first}-{receipt.last}, sources {receipt.source_ids}.")

        await chat.append(HumanMessage("What was it that some families eat?"))
        history = await chat.load_history()
        print("\nWhat the model gets in the next turn:")
        for message in history.messages:
            print(f"  {message.type:5}  {message.text or '(calls search)'}")
        full = history.report.tokens_before
        print(
            f"{history.tokens} tokens instead of {full}: saved {100 * (1 - history.tokens / full):.0f} %."
        )

        print("\nWhat it reads back:")
        tool = chat.retrieve_previous_sources_tool()
        print(await tool.ainvoke({"source_ids": [1], "find": "salmon"}))

        [record] = await chat.get_tool_messages(["result-food"])
        print(f"\nEqual to what was appended: {record.artifact == search('food')}")
        await chat.delete()


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("CONVSTORE_URI", "memory://"))
    )
