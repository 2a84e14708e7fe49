"""Run `summarize_messages` as a node of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from langchain_core.language_models import LanguageModelLike
from langchain_core.messages import BaseMessage, RemoveMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableConfig
from pydantic import BaseModel

from convstore.exceptions import InvalidInputError
from convstore.summarization.engine import Steps, drive, drive_async
from convstore.summarization.models import (
    DEFAULT_EXISTING_SUMMARY_PROMPT,
    DEFAULT_FINAL_SUMMARY_PROMPT,
    DEFAULT_INITIAL_SUMMARY_PROMPT,
)
from convstore.summarization.summarize import (
    Options,
    Overflow,
    SummaryTokenCounter,
    summarization_steps,
)
from convstore.values.plain import part_of

_REMOVE_ALL: Final = "__remove_all__"  # LangGraph's REMOVE_ALL_MESSAGES


class SummarizationNode(Runnable[Any, dict[str, Any]]):
    """A node of a graph that calls `summarize_messages`, sync or async.

    The state is a dict or a pydantic model; the node reads its messages and ``context["running_summary"]``. The update
    has the resulting messages and, once a summary exists, the ``context`` with it and all other keys unchanged. By
    default the messages get a key of their own, and the state keeps the whole conversation. If both keys are the same,
    the update begins with the removal of all messages, so that the result replaces the conversation.

    Args:
        model: See `summarize_messages`, also for the parameters that are not listed here.
        input_messages_key: Key of the messages in the state.
        output_messages_key: Key of the resulting messages in the update.
        name: Name of the node in a graph.
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
        self.options = Options.among(locals())
        self.input_messages_key = input_messages_key
        self.output_messages_key = output_messages_key
        self.name = name

    def invoke(
        self,
        input: Any,  # noqa: A002 - the name is LangChain's
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Summarise the messages of a state and return its update.

        Options bound to the node override its own. The model runs with the callbacks, tags and metadata of `config`.

        Raises:
            InvalidInputError: A ValueError: the state is not a dict or pydantic model, or lacks messages; or see
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
        """`invoke` with a model that is awaited."""
        return await self._acall_with_config(self._arun, input, config, **kwargs)

    def _run(self, given: Any, **bound: Any) -> dict[str, Any]:
        model = bound.pop("model", self.model)
        return drive(self._steps(given, bound), model.invoke)

    async def _arun(self, given: Any, **bound: Any) -> dict[str, Any]:
        model = bound.pop("model", self.model)
        return await drive_async(self._steps(given, bound), model.ainvoke)

    def _steps(self, state: Any, bound: dict[str, Any]) -> Steps[dict[str, Any]]:
        messages, context = self._read(state)
        options = replace(self.options, **bound)
        done = yield from summarization_steps(messages, context.get("running_summary"), options)
        is_replaced = self.input_messages_key == self.output_messages_key
        removal = [RemoveMessage(_REMOVE_ALL)] if is_replaced else []
        update: dict[str, Any] = {self.output_messages_key: [*removal, *done.messages]}
        if done.running_summary:
            update["context"] = {**context, "running_summary": done.running_summary}
        return update

    def _read(self, state: Any) -> tuple[list[BaseMessage], dict[str, Any]]:
        key = self.input_messages_key
        if not isinstance(state, Mapping | BaseModel):
            problem = (
                f"Invalid input type: {type(state).__name__}; a state is a dict or a "
                "pydantic model."
            )
            raise InvalidInputError(problem)
        messages = part_of(state, key)
        context = part_of(state, "context")
        if messages is None:
            raise InvalidInputError(f"Missing required field `{key}` in the input.")
        if not isinstance(messages, list | tuple) or not all(
            isinstance(each, BaseMessage) for each in messages
        ):
            raise InvalidInputError(f"Field `{key}` of the input must be a list of messages.")
        if not isinstance(context, Mapping | None):
            raise InvalidInputError(
                f"Field `context` of the input must be a dict, not {type(context).__name__}."
            )
        return list(messages), dict(context or {})
