"""A capability of Pydantic AI that shows a model convstore's view of the stored conversation.

It only changes requests. The history of the run stays complete, so that a save appends the messages of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ToolCallPart, ToolReturnPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import RunContext, Tool
from pydantic_ai.toolsets import FunctionToolset

from convstore import Conversation, HistoryPolicy
from convstore.edges import OnDropped, report_dropped
from convstore.exceptions import InvalidInputError
from convstore.ext.pydantic_ai.edited import edited
from convstore.ext.pydantic_ai.messages import from_log
from convstore.ext.pydantic_ai.store import ConvstoreConversationStore
from convstore.integration import agent_tools
from convstore.messages.call_ids import with_own_call_ids
from convstore.messages.provenance import without_generated_results
from convstore.types import ProviderRules
from convstore.values.policy import check_policy
from convstore.values.providers import rules_of_framework
from convstore.wire.edits import RequestEdits

ScopeOfRun: TypeAlias = str | Callable[[RunContext[Any]], str] | None
"""The scope of the conversations that an agent continues, or a function that returns it for a run."""


class ConvstoreView(AbstractCapability[Any]):
    """Replaces the stored messages of a request by the view of them: stubs, summary and note, within a budget.

    Messages that the run has added are shown in full. The run's ``all_messages()`` is unchanged. A request without the
    last stored message is not changed. The model gets tools that read left out content again, and that search the other
    conversations with the same scope values. A request takes seven commands.

    Args:
        conversations: The store that the run's conversation was loaded from.
        scope: As for the methods of `conversations`; required if scopes are values of a scope key.
        policy: Limits of the view; None for the store's.
        tools: Give the model these tools.
        artifact: Show the model the rest of artifacts when it reads back, as `retrieve_previous_sources_tool` does.
        provider: The rules of the model's provider, by name or your own, for a model whose name does not imply them.
        on_dropped: Called for each request with the parts of the log that it lacks: those that Pydantic AI does not
            support, such as an uploaded file that the application appended itself, and reasoning of another provider's
            model. Not called if nothing is left out.

    Raises:
        UserError: `scope` is missing.
        InvalidInputError: `conversations` or `policy` has another type, `provider` is not known, or `artifact` is not a
            bool.
    """

    def __init__(
        self,
        conversations: ConvstoreConversationStore,
        *,
        scope: ScopeOfRun = None,
        policy: HistoryPolicy | None = None,
        tools: bool = True,
        artifact: bool = False,
        provider: str | ProviderRules | None = None,
        on_dropped: OnDropped | None = None,
    ) -> None:
        if not isinstance(conversations, ConvstoreConversationStore):
            raise InvalidInputError(
                "conversations must be a ConvstoreConversationStore, not "
                f"{type(conversations).__name__}"
            )
        if conversations.owner_key and scope is None:
            raise UserError(
                "pass scope=, such as lambda ctx: ctx.deps.user: the value of the scope key "
                f"{conversations.owner_key}"
            )
        self._conversations = conversations
        self._scope = scope
        self._policy = check_policy(policy)
        own_tools = agent_tools(conversations.store, conversations.shared_keys, artifact=artifact)
        self._own_tools = own_tools if tools else []
        rules_of_framework(provider, None)  # refuses a wrong name
        self._provider = provider
        self._on_dropped = on_dropped

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Return the request with the view in place of the stored messages."""
        messages = request_context.messages
        if (found := await self._stored(ctx)) is None or found[1] not in messages:
            return request_context
        chat, last = found
        added = messages[max(at for at, message in enumerate(messages, 1) if message == last) :]
        view = (await chat.load_history(self._policy)).messages
        model = request_context.model.model_name
        edits = RequestEdits(rules_of_framework(self._provider, model), asked=model)
        shown, dropped = from_log(with_own_call_ids(_without_answered(view, added)), edits)
        for message in added:
            shown += edited(message, edits)
        dropped += edits.dropped
        report_dropped(dropped, self._on_dropped)
        return replace(request_context, messages=shown)

    def get_toolset(self) -> FunctionToolset[Any] | None:
        """Return the tools that read back and search; None if they are turned off."""
        if not self._own_tools:
            return None
        return FunctionToolset([self._tool(tool, bind) for tool, bind in self._own_tools])

    async def _stored(self, ctx: RunContext[Any]) -> tuple[Conversation, ModelMessage] | None:
        """Return the run's conversation and its last stored message; None if it is not stored with the run's scope."""
        scope = self._scope(ctx) if callable(self._scope) else self._scope
        if self._conversations.owner_key and scope is None:
            raise UserError(
                "the function scope= of ConvstoreView returned None; it must return the value of "
                f"the scope key {self._conversations.owner_key}"
            )
        id_ = str(ctx.conversation_id)
        entries = await self._conversations.load_entries(id_, limit=1, scope=scope)
        if not entries:
            return None
        return await self._conversations.conversation(id_, scope=scope), entries[0].message

    def _tool(self, unbound: Any, bind: Callable[[Conversation], Any]) -> Tool[Any]:
        """Return a tool of convstore as one of Pydantic AI, on the conversation of the run."""

        async def run(ctx: RunContext[Any], **arguments: Any) -> str:
            found = await self._stored(ctx)
            if found is None:
                return "Nothing of this conversation is stored."
            return str(await bind(found[0]).ainvoke(arguments))

        spec = unbound.to_openai()["function"]
        return Tool.from_schema(
            run, spec["name"], spec["description"], spec["parameters"], takes_ctx=True
        )


def _without_answered(
    view: Sequence[BaseMessage], added: Sequence[ModelMessage]
) -> list[BaseMessage]:
    """Return a view without the placeholder results for calls that the run has answered."""
    parts = [part for message in added for part in message.parts]
    calls = [part.tool_call_id for part in parts if isinstance(part, ToolCallPart)]
    results = [part.tool_call_id for part in parts if isinstance(part, ToolReturnPart)]
    return without_generated_results(view, calls=calls, results=results)
