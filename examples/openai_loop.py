"""A loop on OpenAI's SDK: streamed replies, cited sources, a repeated request, and a call that a person approves.

    python examples/openai_loop.py [mongodb://localhost:27017/app]
    MODEL=gpt-5 python examples/openai_loop.py      # a real model instead of the script

The address defaults to CONVSTORE_URI, then to memory. Any worker can continue a turn that another one left.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from typing import Any

from langchain_core.documents import Document
from scripted_sdk import MODEL, Calls, client

from convstore import SOURCES_PROMPT, Conversation, ConversationStore

SYSTEM = f"You book whale watching. Cite what `search` finds by number, and book with `book`. {SOURCES_PROMPT}"
TOURS = {
    "Skjervoy": "Orcas follow the herring into the fjords of Skjervoy from November to January.",
    "Husavik": "Humpbacks feed in the bay of Husavik from May to September.",
}
SPECS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }
    for name, properties in (
        ("search", {"words": {"type": "string"}}),
        ("book", {"place": {"type": "string"}, "persons": {"type": "integer"}}),
    )
]
TOOLS = {"search", "book"}
NEEDS_APPROVAL = {"book"}


def script(messages: list[dict[str, Any]]) -> str | Calls:
    """Return the reply of a scripted model: search, then offer; book when asked to, then confirm."""
    last, asked = (
        messages[-1],
        [message["content"] for message in messages if message["role"] == "user"][-1],
    )
    if last["role"] == "user":
        return (
            [("book", {"place": "Skjervoy", "persons": 20})]
            if "Book" in asked
            else [("search", {"words": asked})]
        )
    return (
        f"Done: {last['content']}"
        if "Book" in asked
        else "From November to January in Skjervoy [1]."
    )


async def run_tool(name: str, args: dict[str, Any]) -> tuple[str, list[Document]]:
    """Return the text and the sources of a tool."""
    if name == "search":
        return "", [Document(text, metadata={"title": title}) for title, text in TOURS.items()]
    return f"booked {args['place']} for {args['persons']}", []


async def work(
    chat: Conversation, model: Any, turn_id: str, question: str | None = None
) -> list[str]:
    """Run a turn until it is answered or waits for a person; return the ids of the waiting calls."""
    retrieve = chat.retrieve_previous_sources_tool()  # reads results that later turns show as stubs
    async with await chat.turn(turn_id, human=question) as turn:
        while turn.is_running:
            for call in turn.open_calls:  # new, left by a worker that died, or approved since
                if call.error:
                    await turn.add_result(call, call.error, error=True)
                elif call.name in NEEDS_APPROVAL and call.decision is None:
                    print(f"  {call.name}{call.args} waits for a person.")
                    await turn.wait_for(call)
                elif call.name == retrieve.name:
                    await turn.add_result(call, await retrieve.ainvoke(call.args))
                elif call.name in TOOLS:
                    text, sources = await run_tool(call.name, call.args)
                    await turn.add_result(call, text, sources=sources)
                else:
                    await turn.add_result(call, f"There is no tool {call.name!r}.", error=True)
            if turn.is_running:  # all calls have results
                history = await turn.load_history()
                stream = await model.chat.completions.create(
                    model=MODEL,
                    messages=history.to_openai(),
                    tools=[*SPECS, retrieve.to_openai()],
                    stream=True,
                    stream_options={"include_usage": True},  # tokens for chat.info().usage
                )
                async for chunk in turn.stream(stream):
                    if chunk.choices:  # the last chunk has only the usage
                        print(end=getattr(chunk.choices[0].delta, "content", None) or "")
    print("" if turn.answer else "  The worker leaves the turn.")
    return [call.result_id for call in turn.waiting_calls]


async def main(uri: str) -> None:
    """Ask a question, repeat it, and make a booking that a person approves."""
    async with await ConversationStore.connect(uri) as store:
        await store.setup()
        chat, model = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex), client(script)
        await chat.append({"role": "system", "content": SYSTEM})

        print("Human: When can I see orcas?")
        await work(chat, model, "request-1", "When can I see orcas?")
        # a repeated request does not ask the model
        await work(chat, None, "request-1", "When can I see orcas?")

        print("Human: Book it for 20 persons")
        waiting = await work(chat, model, "request-2", "Book it for 20 persons")
        for result_id in waiting:  # perhaps days later, in any worker
            await chat.decide(
                "request-2", result_id, "edit", args={"place": "Skjervoy", "persons": 2}, by="bob"
            )
            print("  Bob changes it to 2 persons.")
        await work(chat, model, "request-2")

        page = await chat.get_sources([1])
        print(
            f"Source 1 is {page.sources[0].title}. The log has {(await chat.info()).message_count} messages."
        )
        await chat.delete()


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("CONVSTORE_URI", "memory://"))
    )
