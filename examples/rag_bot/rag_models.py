"""Scripted chat models of the bot; each replies from its messages, which are recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult

__all__ = ["Recorder", "ScriptedModel", "answer", "choose", "route", "summarize", "talk"]

_ABOUT_THE_TALK = re.compile(r"\b(our|we|i|my|so far)\b", re.IGNORECASE)
_ASKING = {"does", "have", "much", "that", "what", "when", "where", "which", "with"}


class Recorder:
    """Record of the models' input, in order: the role of the model, and its messages."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[BaseMessage]]] = []


class ScriptedModel(BaseChatModel):
    """A scripted chat model for one of the bot's prompts."""

    role: str
    reply: Callable[[Sequence[BaseMessage]], AIMessage]
    recorder: Recorder

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - the base class has it
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002 - likewise
        **_: Any,
    ) -> ChatResult:
        self.recorder.calls.append((self.role, list(messages)))
        return ChatResult(generations=[ChatGeneration(message=self.reply(messages))])


def route(messages: Sequence[BaseMessage]) -> AIMessage:
    """Distinguish a question about the conversation from one that needs the handbook."""
    return AIMessage("conversation" if _ABOUT_THE_TALK.search(messages[-1].text) else "rag")


def choose(messages: Sequence[BaseMessage]) -> AIMessage:
    """Call the search tool with the key words of the question."""
    words = sorted(_words(messages[-1].text) - _ASKING)
    call = {
        "name": "retrieve_context",
        "args": {"query": " ".join(words)},
        "id": f"call_{'_'.join(words)}",
    }
    return AIMessage("", tool_calls=[{**call, "type": "tool_call"}])


def answer(messages: Sequence[BaseMessage]) -> AIMessage:
    """Return the sentence of the context that shares the most words with the question, and cite its passage."""
    question, _, context = messages[-1].text.partition("\n\nContext:\n")
    wanted = _words(question)
    passages = re.findall(r"^\[(\d+)\] .+?: (.+)$", context, re.MULTILINE)
    sentences = [
        (name, number) for number, text in passages for name in re.split(r"(?<=[.]) +", text)
    ]
    if not sentences:
        return AIMessage("Neither the handbook nor the web says anything on that.")
    best, number = max(sentences, key=lambda sentence: len(wanted & _words(sentence[0])))
    return AIMessage(f"{best} [{number}]")


def talk(messages: Sequence[BaseMessage]) -> AIMessage:
    """List the user's questions, from the messages and the summary, and the cited passages."""
    shown = [message.text for message in messages[1:-1] if isinstance(message, HumanMessage)]
    asked = [line for text in shown for line in re.findall(r"[^\n]*\?", text)]
    if "first" in messages[-1].text:
        return AIMessage(f"Your first question was: {asked[0]}")
    answers = [message.text for message in messages if isinstance(message, AIMessage)]
    cited = " ".join(mark for text in answers for mark in re.findall(r"\[\d+\]", text))
    return AIMessage(f"You asked {len(asked)} questions: {' '.join(asked)} I cited {cited}.")


def summarize(messages: Sequence[BaseMessage]) -> AIMessage:
    """Return the questions of the earlier summary and of the new messages, each once."""
    return AIMessage("\n".join(dict.fromkeys(re.findall(r"[A-Z][^\n?>]*\?", messages[-1].text))))


def _words(text: str) -> set[str]:
    """Return the words that carry meaning."""
    return set(re.findall(r"[a-z]{4,}", text.lower()))
