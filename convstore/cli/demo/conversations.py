"""The demo's conversations for the inspector, which together have an example of everything that its pages show.

``command`` fills a store with them; the pictures of the documentation are made from them.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from convstore import Conversation, ConversationStore
from convstore.cli.demo.corpus import (
    DEEP_LEARNING,
    MACHINE_LEARNING,
    THIRD_QUESTION,
    TURNS,
    search_call,
    search_messages,
    usage_fields,
)
from convstore.cli.options import open_store
from convstore.values.policy import CompactionRule, HistoryPolicy

_BUDGET = 4_000
_SYSTEM = SystemMessage("You are a patient tutor. Cite your sources by number, like [3].")
_SUMMARY = (
    "The user is new to machine learning and asked for an introduction, "
    "then about deep learning.\n\n"
    "- Machine learning finds a function from examples; with answers it is supervised [2], "
    "without them unsupervised [3]. Models are judged on data they have not seen [6].\n"
    "- Deep learning learns its own features in many layers [11] and wins on images, "
    "sound and text [20]."
)
_WRONG = "You cannot notice it; just train longer."
_THIRD = (
    "It does much better on what it was trained on than on what it was not [6]:\n\n"
    "| data | error |\n|---|--:|\n| seen in training | 2 % |\n| held back | 19 % |\n\n"
    "Plot both errors while you train, and stop when the second one rises [19]."
)
_FOURTH = "Sources [21] to [23]. The second of them is the passage that I cited before as [6]."


@asynccontextmanager
async def opened_demo(uri: str) -> AsyncIterator[ConversationStore]:
    """Open a store with the demo's conversations."""
    policy = HistoryPolicy(max_tokens=_BUDGET)
    run = secrets.token_hex(4)
    async with open_store(uri, setup=True, policy=policy, summarizer=_DemoSummarizer()) as store:
        await _reading_list(store.conversation(user_id=f"grace-{run}", thread_id="reading-list"))
        # a turn in progress, so that its result is not a stub
        question = store.conversation(user_id=f"ada-{run}", thread_id="one-question")
        await question.append(
            [_SYSTEM, *search_messages(1, "What are transformers?", DEEP_LEARNING[:2])]
        )
        await _lesson(store.conversation(user_id=f"ada-{run}", thread_id="ml-101"))
        yield store


class _DemoSummarizer:
    name = "demo-model"
    rule = CompactionRule(max_tokens_before_summary=300, max_summary_tokens=200, keep_last_turns=1)

    async def summarize(
        self,
        messages: Sequence[BaseMessage],  # noqa: ARG002 - scripted
        *,
        summary: str | None,  # noqa: ARG002 - scripted
    ) -> str:
        """Return the scripted summary."""
        return _SUMMARY


async def _lesson(chat: Conversation) -> None:
    """Append a conversation with a summary, stubs, a rewound answer, a rating and a turn in progress."""
    await chat.append(_SYSTEM)
    for number, (question, passages, answer) in enumerate(TURNS, 1):
        await _ask(chat, search_messages(number, question, passages), answer)
    await chat.compact(force=True)
    wrong = await _ask(chat, [HumanMessage(THIRD_QUESTION)], _WRONG)
    await chat.rewind(before_id=wrong)
    right = await _ask(chat, [], _THIRD)
    await chat.annotate(right, rating=1, comment="clear at last")
    await _ask(
        chat,
        search_messages(4, "Which sources say so? Look again.", MACHINE_LEARNING[4:7]),
        _FOURTH,
    )
    last = HumanMessage("And is it worth training a network on my table of 5,000 rows?")
    await _append_each(chat, [last, search_call(5, "deep learning on small tables")])
    await chat.update(
        title="Machine learning, the basics", metadata={"course": "ml-101", "language": "en"}
    )


async def _reading_list(chat: Conversation) -> None:
    for passage in [*MACHINE_LEARNING, *DEEP_LEARNING] * 2:
        await _ask(
            chat, [HumanMessage(f"Explain this chapter: {passage['title']}")], passage["text"]
        )
    await chat.update(title="A reading list, chapter by chapter")


async def _ask(chat: Conversation, question: Sequence[BaseMessage], answer: str) -> str:
    reply = AIMessage(
        answer, id=f"answer-{secrets.token_hex(6)}", **usage_fields(1_200, len(answer) // 4)
    )
    await _append_each(chat, [*question, reply])
    return str(reply.id)


async def _append_each(chat: Conversation, messages: Sequence[BaseMessage]) -> None:
    """Append messages one by one; those of the model get the stamp of the view that it would get."""
    for message in messages:
        stamp = (await chat.load_history()).stamp if isinstance(message, AIMessage) else None
        await chat.append(message, stamp=stamp)
