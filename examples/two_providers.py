"""A conversation that starts with one provider, continues with another, and returns to the first.

    python examples/two_providers.py [mongodb://localhost:27017/app]

The address defaults to CONVSTORE_URI, then to memory. A provider refuses a whole request if it has another provider's
content: call ids in another format, reasoning with a foreign signature. The log keeps the original messages; each load
adapts them to the provider that is asked next. Chain summaries replace old calls of a long run. Only the models are
scripted: they write in the formats of the providers, and refuse the same requests.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.chain import ChainSummarizer, ChainSummarizerConfig
from convstore.summarization import CompactionRule

Provider = Literal["anthropic", "openai"]
ID_FORMS = {"anthropic": r"toolu_[0-9A-Za-z]{24}", "openai": r"call_[0-9A-Za-z]{24}"}
REASONING = {"anthropic": "thinking", "openai": "reasoning"}
WEATHER = (
    "calm",
    "fog",
    "gale from the west",
    "drizzle",
    "clear",
    "swell",
    "fog until noon",
    "thunder",
)


def read_page(day: int) -> str:
    """Return one page of the log book of a lighthouse."""
    weather = WEATHER[day % len(WEATHER)]
    lines = (
        f"Watch {watch}: lamp lit, {weather}, {watch * day % 7} ships passed."
        for watch in range(1, 25)
    )
    return f"Day {day}\n" + "\n".join(lines)


class Model:
    """A scripted model of a provider: read some pages, one after the other, and then answer."""

    def __init__(self, provider: Provider) -> None:
        self.provider: Provider = provider
        self.given: list[BaseMessage] = []

    def invoke(self, messages: Sequence[BaseMessage]) -> AIMessage:
        """Return the next call of the turn, or the answer.

        Raises:
            ValueError: The provider would refuse these messages, with the reason.
        """
        if problems := list(self.problems(messages)):
            raise ValueError(f"{self.provider} refuses the request: {problems[0]}")
        self.given = list(messages)
        [asked] = [index for index, message in enumerate(messages) if message.type == "human"][-1:]
        days = [int(day) for day in re.findall(r"\d+", messages[asked].text)]
        seen = "\n".join(message.text for message in messages[asked:] if message.type == "tool")
        for day in days:
            if not re.search(rf"\b[Dd]ay {day}\b", seen):  # not in a page or a summary
                return self._call(day)
        return self._message(
            "Looked at " + ", ".join(map(str, days)) + ".", thought="That is all of them."
        )

    def problems(self, messages: Sequence[BaseMessage]) -> Iterator[str]:
        """Yield each reason for which the provider would refuse the messages."""
        foreign = next(name for own, name in REASONING.items() if own != self.provider)
        for index, message in enumerate(messages):
            if isinstance(message, AIMessage):
                ids = [str(call["id"]) for call in message.tool_calls]
                yield from (
                    f"call id {id_!r}"
                    for id_ in ids
                    if not re.fullmatch(ID_FORMS[self.provider], id_)
                )
                blocks = message.content if isinstance(message.content, list) else []
                yield from (
                    f"a {foreign} block"
                    for block in blocks
                    if isinstance(block, dict) and block["type"] == foreign
                )
                after = messages[index + 1 : index + 1 + len(ids)]
                if ids != [
                    result.tool_call_id for result in after if isinstance(result, ToolMessage)
                ]:
                    yield "a call without its result"
            elif message.type == "system" and index:
                yield "a system message in the middle"

    def _call(self, day: int) -> AIMessage:
        made = uuid.uuid5(uuid.NAMESPACE_OID, f"{self.provider}{day}").hex[:24]
        call = {
            "name": "read_page",
            "args": {"day": day},
            "id": f"{'toolu' if self.is_first else 'call'}_{made}",
        }
        return self._message("", thought=f"I should look at day {day}.", tool_calls=[call])

    @property
    def is_first(self) -> bool:
        """True for the provider of the first turn."""
        return self.provider == "anthropic"

    def _message(self, text: str, *, thought: str, **more: Any) -> AIMessage:
        signature = uuid.uuid5(uuid.NAMESPACE_OID, thought).hex
        thinking: dict[str, Any] = {"type": "thinking", "thinking": thought, "signature": signature}
        summary = [{"type": "summary_text", "text": thought}]
        reasoning = {
            "type": "reasoning",
            "id": f"rs_{signature}",
            "summary": summary,
            "encrypted_content": signature,
        }
        said: list[str | dict[Any, Any]] = [thinking if self.is_first else reasoning]
        said += [{"type": "text", "text": text}] if text else []
        return AIMessage(said, response_metadata={"model_provider": self.provider}, **more)


async def run_turn(chat: Conversation, model: Model, question: str) -> None:
    """Run an agent's turn: ask the model until it makes no more calls, and append every message unchanged."""
    await chat.append(HumanMessage(question))
    while True:
        history = await chat.load_history(HistoryPolicy(provider=model.provider))
        answer = model.invoke(history.messages)
        await chat.append(answer)
        if not answer.tool_calls:
            break
        results = [
            ToolMessage(
                read_page(call["args"]["day"]), name="read_page", tool_call_id=str(call["id"])
            )
            for call in answer.tool_calls
        ]
        await chat.append(results)
        await chat.compact()
    print(f"{model.provider}: {question}\n  {answer.text}")
    print(
        f"  The model got {len(history.messages)} messages, {history.tokens} tokens of {history.report.tokens_before}."
    )


async def summarize(text: str) -> str:
    """Return a scripted summary."""
    days = sorted(set(map(int, re.findall(r"Day (\d+)", text))))
    weather = ", ".join(f"day {day} {WEATHER[day % len(WEATHER)]}" for day in days)
    return f"Read so far: {weather}." if days else "Nothing of note."


async def main(uri: str) -> None:
    """Run three turns with two providers, and print the log at the end."""
    summarizer = ChainSummarizer(
        summarize,
        config=ChainSummarizerConfig(last_section_bytes=6_000),
        rule=CompactionRule(
            max_tokens_before_summary=2_500, max_summary_tokens=200, keep_last_turns=1
        ),
    )
    async with await ConversationStore.connect(uri, summarizer=summarizer) as store:
        await store.setup()
        chat = store.conversation(user_id="keeper", thread_id=uuid.uuid4().hex)
        first, second = Model("anthropic"), Model("openai")
        await chat.append(SystemMessage("You read the log book of a lighthouse."))
        await run_turn(chat, first, "What happened on days 1, 2, 3, 4, 5, 6, 7, 8 and 9?")
        log = [message async for message in chat.messages()]
        print(
            f"  Given the log as it is, {next(second.problems(log))!r} is what openai refuses first."
        )
        await run_turn(chat, second, "And on day 10 and day 11?")
        own = [
            message
            for message in second.given
            if message.response_metadata.get("model_provider") == "openai"
        ]
        print(
            f"  Its own reasoning of this turn came back to it: {[block_of(message) for message in own]}"
        )
        await run_turn(chat, first, "What was day 12 like?")

        for summary in await chat.summaries():
            kinds = ", ".join(message.type for message in summary.messages)
            print(f"Messages {summary.first}-{summary.last} are shown as: {kinds}. {summary.text}")
        log = [message async for message in chat.messages()]
        kept = {
            provider: sum(block_of(message) == name for message in log)
            for provider, name in REASONING.items()
        }
        print(f"The log keeps all {len(log)} messages, with the reasoning of both: {kept}.")
        await chat.delete()


def block_of(message: BaseMessage) -> str:
    """Return the type of a message's first content block."""
    first = message.content[0] if isinstance(message.content, list) and message.content else ""
    return str(first["type"]) if isinstance(first, dict) else ""


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("CONVSTORE_URI", "memory://"))
    )
