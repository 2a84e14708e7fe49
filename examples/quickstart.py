"""The whole idea on one screen: store a turn with retrieved sources, load the next view, read the sources back.

    python examples/quickstart.py [mongodb://localhost:27017/app]

Without an address it takes that of MONGODB_URI, and without one it works in memory.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import ConversationStore

PASSAGES = [
    (
        "Orcas hunt in families. What a family eats is handed down: some live on salmon, some on seals, and neither "
        "touches the food of the other, even where they meet in the same bay.",
        {"title": "What orcas eat", "url": "https://example.org/orcas/food"},
    ),
    (
        "A family is led by its oldest female. She may live eighty years, and in a year with little salmon the others "
        "follow her to the places where she once found some.",
        {"title": "Who leads", "url": "https://example.org/orcas/families"},
    ),
    (
        "Each family has calls of its own. A young orca learns them in two years, and two families that share many "
        "calls had the same grandmother.",
        {"title": "How orcas talk", "url": "https://example.org/orcas/calls"},
    ),
]


async def main(uri: str) -> None:
    """Have two turns of a conversation."""
    async with await ConversationStore.connect(uri) as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)

        call = {"name": "search", "args": {"query": "orcas"}, "id": "call-1"}
        text = "\n\n".join(passage for passage, _ in PASSAGES)
        receipt = await chat.append(
            [
                HumanMessage("What do orcas eat?"),
                AIMessage("", tool_calls=[call]),
                ToolMessage(text, artifact=PASSAGES, name="search", tool_call_id="call-1", id="result-1"),
                AIMessage("It depends on the family: some eat salmon, some seals [1]."),
            ]
        )
        print(f"Stored messages {receipt.first}-{receipt.last}, sources {receipt.source_ids}.")

        await chat.append(HumanMessage("Who decides where they go?"))
        history = await chat.load_history()
        print("\nWhat the model gets in the next turn:")
        for message in history.messages:
            print(f"  {message.type:5}  {message.text or '(calls search)'}")
        print(f"{history.tokens} tokens instead of {history.report.tokens_before}.")

        print("\nWhat it reads back:")
        tool = chat.retrieve_previous_sources_tool()
        print(await tool.ainvoke({"tool_message_ids": ["result-1"]}))

        [record] = await chat.get_tool_messages(["result-1"])
        print(f"\nEqual to what was appended: {record.content == text and record.artifact == PASSAGES}")
        await chat.delete()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MONGODB_URI", "memory://")))
