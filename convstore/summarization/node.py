"""The summarization as a step of a graph.

Floor 1. A Runnable of langchain-core, which LangGraph takes as a node; LangGraph itself is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from langchain_core.language_models import LanguageModelLike
from langchain_core.messages import BaseMessage, RemoveMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableConfig
from pydantic import BaseModel

from convstore.exceptions import InvalidInputError
from convstore.summarization.fold import Overflow, SummaryTokenCounter
from convstore.summarization.models import (
    DEFAULT_EXISTING_SUMMARY_PROMPT,
    DEFAULT_FINAL_SUMMARY_PROMPT,
    DEFAULT_INITIAL_SUMMARY_PROMPT,
    RunningSummary,
    SummarizationResult,
    as_running_summary,
)
from convstore.summarization.summarize import asummarize_messages, summarize_messages

__all__ = ["SummarizationNode"]

_REMOVE_ALL: Final = "__remove_all__"  # LangGraph's REMOVE_ALL_MESSAGES


class SummarizationNode(Runnable[Any, dict[str, Any]]):
    """A node that puts summarised messages into a state: `summarize_messages`, sync and async.

    Takes a dict or a pydantic model, reads the messages and ``context["running_summary"]``, and gives an update of
    the state: the messages that come out, and once there is a summary a ``context`` with it and all other keys as
    they were. By default the messages go under a key of their own, and the state keeps the whole conversation. With
    the same key for both, the update begins with the removal of all messages, so it takes the conversation's place.

    Args:
        model: See `summarize_messages`, as for all parameters that are not named here.
        max_tokens: See there.
        max_tokens_before_summary: See there.
        max_summary_tokens: See there.
        token_counter: See there.
        initial_summary_prompt: See there.
        existing_summary_prompt: See there.
        final_prompt: See there.
        overflow: See there.
        input_messages_key: Key of the state with the messages.
        output_messages_key: Key of the update for those that come out.
        name: The node's name in a graph.
    """

    def __init__(
        self,
        *,
        model: LanguageModelLike,
        max_tokens: int,
        max_tokens_before_summary: int | None = None,
        max_summary_tokens: int = 256,
        token_counter: SummaryTokenCounter = count_tokens_approximately,
        initial_summary_prompt: ChatPromptTemplate = DEFAULT_INITIAL_SUMMARY_PROMPT,
        existing_summary_prompt: ChatPromptTemplate = DEFAULT_EXISTING_SUMMARY_PROMPT,
        final_prompt: ChatPromptTemplate = DEFAULT_FINAL_SUMMARY_PROMPT,
        overflow: Overflow = "fold",
        input_messages_key: str = "messages",
        output_messages_key: str = "summarized_messages",
        name: str = "summarization",
    ) -> None:
        self.model = model
        self.max_tokens = max_tokens
        self.max_tokens_before_summary = max_tokens_before_summary
        self.max_summary_tokens = max_summary_tokens
        self.token_counter = token_counter
        self.initial_summary_prompt = initial_summary_prompt
        self.existing_summary_prompt = existing_summary_prompt
        self.final_prompt = final_prompt
        self.overflow: Overflow = overflow
        self.input_messages_key = input_messages_key
        self.output_messages_key = output_messages_key
        self.name = name

    def invoke(
        self,
        input: Any,  # noqa: A002 - the name is LangChain's
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Summarise the messages of a state and give its update.

        Options that were bound to the node go before its own. Callbacks, tags and metadata of `config` hold for the
        model, too, which finds them where LangChain keeps them.

        Raises:
            InvalidInputError: A ValueError: the state is no dict or pydantic model, or lacks messages; or see
                `summarize_messages`.
            SummaryError: The model answered without text.
        """
        return self._call_with_config(self._run, input, config, **kwargs)

    async def ainvoke(
        self,
        input: Any,  # noqa: A002 - the name is LangChain's
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """`invoke` with a model that is waited for."""
        return await self._acall_with_config(self._arun, input, config, **kwargs)

    def _run(self, given: Any, **bound: Any) -> dict[str, Any]:
        state = self._read(given)
        done = summarize_messages(state.messages, running_summary=state.running, **self._options(bound))
        return self._update(state, done)

    async def _arun(self, given: Any, **bound: Any) -> dict[str, Any]:
        state = self._read(given)
        done = await asummarize_messages(state.messages, running_summary=state.running, **self._options(bound))
        return self._update(state, done)

    def _options(self, bound: dict[str, Any]) -> dict[str, Any]:
        return {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "max_tokens_before_summary": self.max_tokens_before_summary,
            "max_summary_tokens": self.max_summary_tokens,
            "token_counter": self.token_counter,
            "initial_summary_prompt": self.initial_summary_prompt,
            "existing_summary_prompt": self.existing_summary_prompt,
            "final_prompt": self.final_prompt,
            "overflow": self.overflow,
            **bound,
        }

    def _read(self, state: Any) -> _State:
        if not isinstance(state, Mapping | BaseModel):
            raise InvalidInputError(
                f"Invalid input type: {type(state).__name__}; a state is a dict or a pydantic model."
            )
        key = self.input_messages_key
        messages, context = (_value(state, name) for name in (key, "context"))
        if messages is None:
            raise InvalidInputError(f"Missing required field `{key}` in the input.")
        if not isinstance(messages, list | tuple) or not all(isinstance(each, BaseMessage) for each in messages):
            raise InvalidInputError(f"Field `{key}` of the input must be a list of messages.")
        if not isinstance(context, Mapping | None):
            raise InvalidInputError(f"Field `context` of the input must be a dict, not {type(context).__name__}.")
        context = dict(context or {})
        return _State(
            messages=list(messages), context=context, running=as_running_summary(context.get("running_summary"))
        )

    def _update(self, state: _State, done: SummarizationResult) -> dict[str, Any]:
        replaces = self.input_messages_key == self.output_messages_key
        removal = [RemoveMessage(_REMOVE_ALL)] if replaces else []
        update: dict[str, Any] = {self.output_messages_key: [*removal, *done.messages]}
        if done.running_summary:
            update["context"] = {**state.context, "running_summary": done.running_summary}
        return update


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The part of a state that a node reads."""

    messages: list[BaseMessage]
    context: dict[str, Any]
    running: RunningSummary | None


def _value(state: Mapping[str, Any] | BaseModel, name: str) -> Any:
    return state.get(name) if isinstance(state, Mapping) else getattr(state, name, None)
