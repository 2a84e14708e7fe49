"""Tools for an agent to register: the read-back tool, and wrappers that number the sources of its own tools.

A tool works on the conversation that it is created for, or on the conversation that the application names in the
context or configuration of the run. A model can never choose the conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from convstore.conversation import Conversation
from convstore.conversation.host import both_ways, host_of, read_back
from convstore.exceptions import InvalidInputError, InvalidScopeError
from convstore.readback.request import check_page_tokens
from convstore.sources.prompt import RenderSources
from convstore.sources.stub import PAGE_TOKENS
from convstore.store.handle import ConversationStore
from convstore.values.plain import shown_value
from convstore.values.scope import (
    Run,
    Scope,
    ScopeChoice,
    check_scope_choice,
    chosen_values,
    scope_of_run,
)

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import BaseTool

    from convstore.runtime.loop_thread import BothWays
    from convstore.sources.source import FoundSources
    from convstore.tools.agent_tool import AgentTool
    from convstore.tools.conversation_search import OtherConversations
    from convstore.tools.numbering import SourceNumberer
    from convstore.values.models import StoredMessage
    from convstore.values.reports import SearchResult

_RUNTIME = "__pregel_runtime"
"""Key under which LangGraph keeps the context of a run in its configuration; LangGraph itself is an extra."""


def retrieve_previous_sources_tool(
    store: ConversationStore,
    *,
    scope: ScopeChoice | None = None,
    page_tokens: int = PAGE_TOKENS,
    artifact: bool = False,
) -> AgentTool:
    """Return the tool that reads full content again, for an agent that serves many conversations.

    It reads the conversation of the run. The scope values come from `scope`, from the context of a graph's run or from
    ``config["configurable"]``, which the application sets on the server side; they never come from the model.

    Args:
        store: The store of the conversations.
        scope: Values for some or all scope keys, or a function from a `Run` to them, as nodes and middleware have it.
        page_tokens: Size of a page, 100 to 16,000.
        artifact: Show the model everything in artifacts, such as access lists and scores. By default it reads the
            sources and the content of a result, as its tool showed them.

    Raises:
        InvalidInputError: `store` is not a store, or a value has a wrong type.
        InvalidScopeError: From the tool, if the run lacks a scope key, or has two different values for it.
    """
    if not isinstance(store, ConversationStore):
        raise InvalidInputError(f"store must be a ConversationStore, not {type(store).__name__}")
    chosen = check_scope_choice(store.scope_keys, scope)
    from convstore.tools.retrieval import make_retrieval_tool  # noqa: PLC0415 - LangChain's tools load slowly

    return make_retrieval_tool(
        lambda config: read_back(store, _scope_of(store.scope_keys, config, chosen)),
        page_tokens=page_tokens,
        artifact=artifact,
    )


def search_conversations_tool(
    store: ConversationStore | Conversation,
    shared_keys: Sequence[str] = ("user_id",),
    *,
    scope: ScopeChoice | None = None,
    page_tokens: int = PAGE_TOKENS,
) -> AgentTool:
    """Return a tool that searches the other conversations of the same user, for an agent that should have it.

    The conversations share scope values with the run, which come from the application as for
    `retrieve_previous_sources_tool`, never from the model. The run's own conversation is left out. If the agent repeats
    a text from another conversation, this text remains even after that conversation is erased.

    Args:
        store: The store of the conversations; or the agent's conversation, whose scope values are used instead of those
            of a run.
        shared_keys: Names of scope keys whose values the conversations share, at least one.
        scope: As for `retrieve_previous_sources_tool`; not for a conversation.
        page_tokens: Size of an answer, 100 to 16,000.

    Raises:
        InvalidInputError: `store` is neither a store nor a conversation, `shared_keys` are not scope keys of it, or
            `scope` was passed with a conversation.
        InvalidScopeError: From the tool, if the run lacks one of the keys.
    """
    if not isinstance(store, ConversationStore | Conversation):
        raise InvalidInputError(
            f"store must be a ConversationStore or a Conversation, not {type(store).__name__}"
        )
    chat = store if isinstance(store, Conversation) else None
    owner: ConversationStore = store.store if isinstance(store, Conversation) else store
    keys = _check_keys(shared_keys, owner)
    chosen = _chosen(store, scope)
    from convstore.tools.conversation_search import make_search_tool  # noqa: PLC0415 - LangChain's tools load slowly

    def with_others(
        config: RunnableConfig, answer: Callable[..., Coroutine[Any, Any, str]]
    ) -> BothWays:
        if chat is None:
            shared, own = _scopes_of_run(owner, keys, config, chosen)
        else:
            own = chat.scope
            shared = {key: own[key] for key in keys}
        return both_ways(
            owner, lambda store, arguments: answer(_others(store, shared, own), arguments)
        )

    return make_search_tool(with_others, page_tokens=check_page_tokens(page_tokens))


def _check_keys(names: object, owner: ConversationStore) -> tuple[str, ...]:
    if isinstance(names, Sequence) and not isinstance(names, str):
        keys = tuple(names)
        if keys and all(key in owner.scope_keys for key in keys):
            return keys
    raise InvalidInputError(
        f"shared_keys must name some of the store's keys, {owner.scope_keys}, not "
        f"{shown_value(names)}"
    )


def _scopes_of_run(
    owner: ConversationStore,
    keys: Sequence[str],
    config: RunnableConfig,
    chosen: ScopeChoice | None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the scope values of a run under some keys, and those of its conversation, if it has one."""

    def shared_of(run: Run) -> dict[str, Any]:
        return {key: value for key, value in chosen_values(chosen, run).items() if key in keys}

    shared = dict(_scope_of(keys, config, shared_of))
    try:
        return shared, dict(_scope_of(owner.scope_keys, config, chosen))
    except InvalidScopeError:
        return shared, {}


def _others(
    store: ConversationStore, shared: dict[str, str], own: dict[str, str]
) -> OtherConversations:
    """Return the functions that search and read the conversations with some scope values, except one."""
    from convstore.tools.conversation_search import MAX_HITS, OtherConversations  # noqa: PLC0415 - see above

    async def search(words: str) -> SearchResult:
        options: dict[str, Any] = {"limit": MAX_HITS, **shared}
        result = await store.search(words, **options)
        return result.model_copy(
            update={"conversations": [hit for hit in result.conversations if hit.scope != own]}
        )

    async def read(conversation_id: str, ordinal: int) -> StoredMessage | None:
        chat = await store.find_conversation(conversation_id, **shared)
        if chat is None or chat.scope == own:
            return None
        page = await chat.list_messages(around=ordinal, limit=1, full=True)
        return next((message for message in page if message.ordinal == ordinal), None)

    return OtherConversations(search, read)


def number_sources(
    tool: BaseTool | Callable[..., Any],
    chat: Conversation | ConversationStore,
    *,
    scope: ScopeChoice | None = None,
    render: RenderSources | None = None,
) -> BaseTool:
    """Return the tool with results whose source ids are unique in the conversation before a model sees them.

    Sources are detected as in `append`; a result without sources is unchanged. Numbers are added to the text that the
    tool wrote, which is not changed otherwise: in place of its own marks ``[1]``, before each passage, in the items of
    JSON, or, if the text does not show every source, in lines above it. Content of the artifact that the text does not
    show stays hidden from the model. Each source also gets its ``source_id`` in the artifact. If a tool or a function
    returns a list of sources as its content, each is written as ``[11] title (url)`` with the text below; a passage
    that was shown before also has its earlier number. One command for each result.

    Args:
        tool: A retriever tool, any other tool, or a function, sync or async.
        chat: The conversation; or a store, which takes it from the run as for `retrieve_previous_sources_tool`.
        scope: As for `retrieve_previous_sources_tool`; not for a conversation.
        render: Writes the content from the sources, in place of the tool's own content; JSON is not replaced.

    Raises:
        InvalidInputError: `tool` is neither a tool nor a function, `chat` is neither a conversation nor a store, or
            `scope` was passed with a conversation.
        InvalidScopeError: From the tool, as for `retrieve_previous_sources_tool`.
    """
    if not isinstance(chat, Conversation | ConversationStore):
        raise InvalidInputError(
            f"chat must be a conversation or a store, not {type(chat).__name__}"
        )
    chosen = _chosen(chat, scope)
    from convstore.tools.numbering import make_numbered_tool  # noqa: PLC0415 - LangChain's tools load slowly

    return make_numbered_tool(tool, lambda config: _numbering(chat, config, chosen), render=render)


def _chosen(
    owner: Conversation | ConversationStore, scope: ScopeChoice | None
) -> ScopeChoice | None:
    """Return the checked scope choice of a tool.

    Raises:
        InvalidInputError: It was passed with a conversation, which has its own scope.
    """
    if isinstance(owner, ConversationStore):
        return check_scope_choice(owner.scope_keys, scope)
    if scope is not None:
        raise InvalidInputError("pass scope= with a store; a conversation has a scope of its own")
    return None


def _scope_of(keys: Sequence[str], config: RunnableConfig, chosen: ScopeChoice | None) -> Scope:
    configurable = config.get("configurable") or {}
    context = getattr(configurable.get(_RUNTIME), "context", None)
    return scope_of_run(keys, Run(context, configurable), chosen)


def _numbering(
    owner: Conversation | ConversationStore, config: RunnableConfig, chosen: ScopeChoice | None
) -> SourceNumberer:
    """Return the functions that number the sources of a conversation, or of the conversation of a run."""
    run = (
        {} if isinstance(owner, Conversation) else dict(_scope_of(owner.scope_keys, config, chosen))
    )
    chat = owner if isinstance(owner, Conversation) else owner.conversation(**run)

    async def give(store: ConversationStore, found: FoundSources) -> tuple[range, list[int | None]]:
        handle = store.conversation(**chat.scope)
        texts = [source.text for source in found.items]
        return await handle.reserve_source_ids(len(texts)), await handle.find_shown_sources(texts)

    from convstore.tools.numbering import SourceNumberer  # noqa: PLC0415 - loaded by now

    return SourceNumberer(*both_ways(chat.store, give), host_of(chat).source_extractors)
