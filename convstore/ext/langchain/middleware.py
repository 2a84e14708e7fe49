"""The middleware that attaches a store to an agent of LangChain's ``create_agent``.

The hooks find the conversation of the run and call the functions of `steps`. Async hooks use the store itself, sync
hooks its counterpart for sync callers. Placed first, the middleware is the outermost around calls of the model and of
tools, and its hook after the model runs last.

The module is long because each hook exists twice, sync and async, and the constructor documents every setting.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar, get_args
from uuid import uuid4

from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain.agents.middleware.types import (
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
)
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    RemoveMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.tools import BaseTool
from langgraph.errors import GraphInterrupt
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.runtime import Runtime
from langgraph.types import Command

from convstore import SOURCES_PROMPT, Conversation, ConversationStore
from convstore.edges import OWNER, OnDropped, report_dropped
from convstore.exceptions import InvalidScopeError
from convstore.ext.around import conversation_of_run, redactor_of, working_on
from convstore.ext.checkpoints import OnFork, check_owner, owner_of
from convstore.ext.langchain.asking import ask
from convstore.ext.langchain.beginning import begin
from convstore.ext.langchain.request_parts import RequestMeter
from convstore.ext.langchain.results import (
    OWN,
    ToolOutput,
    as_output,
    as_stored,
    as_stored_messages,
    call_position,
    child_key,
    cut_result,
    digests,
    ending,
    give_result_ids,
    hands_over,
    messages_to_log,
    schema_names,
    structured_response,
    with_digests,
    with_ids,
)
from convstore.ext.langchain.review import (
    Review,
    answer_in_log,
    check_resumable,
    give_answer,
    pauses_in,
    state_with,
    warn_of_review,
)
from convstore.ext.langchain.run import (
    CHANNEL,
    TURN,
    AgentRun,
    ConversationAgentState,
    RefusedRun,
    Rules,
    RunReference,
    run_in,
)
from convstore.ext.langchain.steps import append_missing, end, hold, prepare, rebuild_run
from convstore.ext.run_scope import ScopeChoice, check_choice
from convstore.ext.run_turns import done_in_graph, is_in_graph
from convstore.integration import ResultNumbering, agent_tools, host_of, run_sync
from convstore.messages.call_ids import with_own_call_ids
from convstore.messages.filing import ids_of
from convstore.sources.outputs import results_in, with_results
from convstore.sources.stub import PAGE_TOKENS
from convstore.values.append_options import check_trust
from convstore.values.policy import HistoryPolicy, check_policy
from convstore.values.scope import check_one_of
from convstore.values.turns import Busy

_Result = TypeVar("_Result")
_ModelOutput = ExtendedModelResponse[Any]
_WHEN = Literal["at_once", "after_hooks"]


class ConversationMiddleware(AgentMiddleware[ConversationAgentState, Any, Any]):
    """Keeps an agent's conversation in a store and shows the model its view.

    Every message that enters the agent's state is in the log before the next step, once, under its id in the state. The
    model is shown the view of the log followed by this turn. The state holds this turn only, which keeps checkpoints
    small. A step that the log has is not run again: a question repeated under its id is answered from the log, or
    continues where its run broke off. An agent that is called by a tool of another agent works on the child
    conversation of that call, see `Conversation.child`. Place the middleware first in ``middleware=[...]``.

    Async agents work on any store, sync agents on stores made by ``ConversationStore.connect``. The constructor does no
    I/O.

    Args:
        store: The store of the conversations.
        scope: Values for some of the store's scope keys, or a function from a `Run` to them. Other keys are taken from
            the run's context, a dict, a dataclass or a pydantic model, else from ``config["configurable"]``; never from
            the model.
        policy: Policy of the view; None for the store's. This turn is shown whole as long as the budget allows.
        number_sources: Tools, functions, or names of either, whose sources get numbers of the conversation before the
            model sees them. Results of other tools get numbers if their form shows that they hold sources: documents,
            ``search_result`` blocks, responses of known search services, and texts that count their sources. () for no
            numbers at all.
        tool_results: "at_once" appends the result of a tool at once, so that it survives a crash. "after_hooks" appends
            it before the next call of the model. Use it with middleware that changes results, such as
            ``PIIMiddleware(apply_to_tool_results=True)``, so that the log has the changed results.
        compact: Summarise after a turn if the rule of the store's summarizer requires it.
        prompt: Appended to the agent's system prompt; "" appends nothing.
        page_tokens: Size of a page of `retrieve_previous_sources`, 100 to 16,000.
        artifact: Show the model the rest of artifacts when it reads back, as `retrieve_previous_sources_tool` does.
        search_other_conversations: Scope keys such as ``("user_id",)``: the agent also gets `search_conversations`,
            for the other conversations with the same values. Without keys it does not get the tool.
        on_unencodable: As in `Conversation.append`.
        on_source_clash: As in `Conversation.append`.
        on_fork: The effect of a run that begins at an older checkpoint. "rewind" rewinds the conversation to that
            checkpoint; `undo_rewind` restores the abandoned messages. "raise" raises `OlderCheckpointError`.
        trust: The messages that are accepted from clients. "human" accepts only human messages and removes all others
            from the state. "all" is for inputs that your application makes itself. The default is as "human", but
            raises an error if a refused message may come from `update_state` or from another node of an outer graph.
        client_tools: As in `Conversation.append_history`.
        strict: As in `Conversation.append_history`.
        drafts: Keep a draft of the reply while an async run is streamed, as `TurnSession.stream` does, until the reply
            is appended. Pass a function to redact drafts: the text may have parts that other middleware removes later.
        review: LangChain's ``HumanInTheLoopMiddleware``, which asks a person before some tools run, passed here instead
            of to the agent. A waiting call is then in the log, marked as waiting, before the agent pauses, and
            `Conversation.decide` records the person's decision; see `resume_command`.
        busy: The effect of another run on the conversation: "wait" waits for its end, up to 30 seconds; "raise" raises
            `TurnBusyError`; "interrupt" asks another turn to stop, and waits.
        on_dropped: Called for each call of the model with the parts of the log that it is not sent: those that the
            `provider` of the policy does not support, and thinking that its model would refuse. Not called if nothing
            is left out.

    Attributes:
        store: The store.
        tools: `retrieve_previous_sources`, which the agent gets with the middleware.

    Raises:
        InvalidInputError: An argument is invalid. From a run: the conversation cannot accept a message, `trust` has to
            be chosen, `review` needs a checkpointer, or `number_sources` names a tool that the agent does not have.
        InvalidScopeError: From a run, before anything is written: a scope key is missing, or an enclosing agent works
            on the same conversation outside a tool call.
        OlderCheckpointError: From a run with ``on_fork="raise"``.
        SyncUnsupportedError: From a sync run on a store that works on your client.
    """

    state_schema = ConversationAgentState

    def __init__(
        self,
        store: ConversationStore,
        *,
        scope: ScopeChoice | None = None,
        policy: HistoryPolicy | None = None,
        number_sources: Collection[str | BaseTool | Callable[..., Any]] | None = None,
        tool_results: _WHEN = "at_once",
        compact: bool = True,
        prompt: str = SOURCES_PROMPT,
        page_tokens: int = PAGE_TOKENS,
        artifact: bool = False,
        search_other_conversations: Sequence[str] = (),
        on_unencodable: Literal["raise", "omit"] = "raise",
        on_source_clash: Literal["raise", "renumber"] = "raise",
        on_fork: OnFork = "rewind",
        trust: Literal["human", "all"] | None = None,
        client_tools: Collection[str] = (),
        strict: bool = False,
        drafts: bool | Callable[[str], str] = False,
        review: Review | None = None,
        busy: Busy = "wait",
        on_dropped: OnDropped | None = None,
    ) -> None:
        super().__init__()
        check_one_of(tool_results, *get_args(_WHEN), name="tool_results")
        check_one_of(on_fork, *get_args(OnFork), name="on_fork")
        check_one_of(busy, *get_args(Busy), name="busy")
        self.store = store
        self._scope = check_choice(store, scope)
        self._numbering = ResultNumbering(number_sources)
        self._appends_results = tool_results == "at_once"
        self._prompt = prompt
        self._own_tools = agent_tools(
            store, search_other_conversations, page_tokens=page_tokens, artifact=artifact
        )
        self.tools = [tool for tool, _ in self._own_tools]
        self._redact = redactor_of(drafts)
        self._meter = RequestMeter()
        self._on_dropped = on_dropped
        self._review = review
        if review is not None:
            self.state_schema = state_with(review, ConversationAgentState)
        self._rules = Rules(
            policy=check_policy(policy) or store.policy,
            compact=compact,
            on_unencodable=on_unencodable,
            on_source_clash=on_source_clash,
            on_fork=on_fork,
            trust=check_trust(trust, client_tools, strict),
            busy=busy,
        )

    @hook_config(can_jump_to=["end"])
    async def abefore_agent(
        self, state: ConversationAgentState, runtime: Runtime[Any]
    ) -> dict[str, Any] | None:
        """Load the view and remove earlier turns from the state; jump to the end if the question was answered."""
        return await self._begin(self._chat(runtime), state)

    @hook_config(can_jump_to=["end"])
    def before_agent(
        self, state: ConversationAgentState, runtime: Runtime[Any]
    ) -> dict[str, Any] | None:
        """`abefore_agent` for sync agents."""
        return self._wait(self._chat(runtime), lambda chat: self._begin(chat, state))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> _ModelOutput:
        """Append the messages of earlier hooks, then call the model with the view and this turn."""
        self._numbering.check(request.tools)
        chat = self._chat(request.runtime)
        step = await self._prepare(chat, request)
        if isinstance(step.shown, AIMessage):
            return _stored_reply(step, step.shown, request)
        shown = self._shown(request, step.run, step.shown)

        async def work() -> ModelResponse[Any]:
            return await handler(shown)

        with working_on(chat):
            response = await ask(chat, step.run.turn_id, work, self._redact)
        return _new_reply(step, response, request)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> _ModelOutput:
        """`awrap_model_call` for sync agents."""
        self._numbering.check(request.tools)
        chat = self._chat(request.runtime)
        step = self._wait(chat, lambda conversation: self._prepare(conversation, request))
        if isinstance(step.shown, AIMessage):
            return _stored_reply(step, step.shown, request)
        with working_on(chat):
            response = handler(self._shown(request, step.run, step.shown))
        return _new_reply(step, response, request)

    async def aafter_model(
        self, state: ConversationAgentState, runtime: Runtime[Any]
    ) -> dict[str, Any] | None:
        """Append the model's message as other middleware changed it; with `review`, ask a person about its calls."""
        chat = self._chat(runtime)
        run = await self._append_missing(chat, state)
        if self._review is None:
            return _run_reference(run, state) or None
        give_answer(await self._decided(run, state["messages"]))
        try:
            update: Any = await self._review.aafter_model(state, runtime)
        except GraphInterrupt as interrupt:
            update = interrupt
        return await self._reviewed(run, state, update)

    def after_model(
        self, state: ConversationAgentState, runtime: Runtime[Any]
    ) -> dict[str, Any] | None:
        """`aafter_model` for sync agents."""
        chat = self._chat(runtime)
        run = self._wait(chat, lambda conversation: self._append_missing(conversation, state))
        if self._review is None:
            return _run_reference(run, state) or None
        give_answer(self._wait(chat, lambda _: self._decided(run, state["messages"])))
        try:
            update: Any = self._review.after_model(state, runtime)
        except GraphInterrupt as interrupt:
            update = interrupt
        return self._wait(chat, lambda _: self._reviewed(run, state, update))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolOutput]]
    ) -> ToolOutput:
        """Take the result from the log, or run the tool and append its result."""
        chat = self._chat(request.runtime)
        run, stored = await self._stored(chat, request)
        if stored:
            return as_output(stored)
        equipped = self._equipped(chat, request)
        review = self._review
        give_answer(await self._decided(run, request.state["messages"], request.tool_call))
        try:
            with working_on(chat, child_key(request), turn_id=run.turn_id):
                output: Any = cut_result(request.state["messages"], request.tool_call) or await (
                    review.awrap_tool_call(equipped, handler) if review else handler(equipped)
                )
        except GraphInterrupt as interrupt:
            output = interrupt
        return await self._finished(run, request, output)

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolOutput]
    ) -> ToolOutput:
        """`awrap_tool_call` for sync agents."""
        chat = self._chat(request.runtime)
        run, stored = self._wait(chat, lambda conversation: self._stored(conversation, request))
        if stored:
            return as_output(stored)
        equipped = self._equipped(chat, request)
        review = self._review
        messages = request.state["messages"]
        call = request.tool_call
        give_answer(self._wait(chat, lambda _: self._decided(run, messages, call)))
        try:
            with working_on(chat, child_key(request), turn_id=run.turn_id):
                output: Any = cut_result(request.state["messages"], request.tool_call) or (
                    review.wrap_tool_call(equipped, handler) if review else handler(equipped)
                )
        except GraphInterrupt as interrupt:
            output = interrupt
        return self._wait(chat, lambda _: self._finished(run, request, output))

    async def aafter_agent(
        self, state: ConversationAgentState, runtime: Runtime[Any]
    ) -> dict[str, Any] | None:
        """Append the remaining messages, and summarise if a summary is due."""
        return await self._end(self._chat(runtime), state)

    def after_agent(
        self, state: ConversationAgentState, runtime: Runtime[Any]
    ) -> dict[str, Any] | None:
        """`aafter_agent` for sync agents."""
        return self._wait(self._chat(runtime), lambda chat: self._end(chat, state))

    def _chat(self, runtime: Any) -> Conversation:
        """Return the conversation of the run; no I/O."""
        return conversation_of_run(self.store, self._scope, context=runtime.context)

    def _wait(
        self, chat: Conversation, step: Callable[[Conversation], Coroutine[Any, Any, _Result]]
    ) -> _Result:
        """Run a step on the store's counterpart for sync callers."""
        return run_sync(chat, step, instead="`await agent.ainvoke(...)`")

    async def _begin(self, chat: Conversation, state: ConversationAgentState) -> dict[str, Any]:
        if self._review is not None:
            check_resumable()
        try:
            await check_owner(chat, state.get(OWNER), is_begin=True)
        except InvalidScopeError as refusal:
            # the state is emptied, because a run of the other conversation must not be shown this input
            return _begun(RefusedRun(chat, refusal), [RemoveMessage(REMOVE_ALL_MESSAGES)])
        run, changes = await begin(chat, self._rules, state)
        if isinstance(run, RefusedRun) and run.is_unimported:
            return _begun(run, changes)
        return _begun(run, changes) | {OWNER: state.get(OWNER) or owner_of(chat.scope)}

    async def _run(
        self, chat: Conversation, state: Any, messages: Sequence[BaseMessage]
    ) -> AgentRun:
        await check_owner(chat, state.get(OWNER))
        return run_in(state, chat) or await rebuild_run(
            chat, self._rules, messages, state.get(TURN) or None
        )

    async def _prepare(self, chat: Conversation, request: ModelRequest[Any]) -> _ModelStep:
        run = await self._run(chat, request.state, request.messages)
        shown = await prepare(run, request.messages, request.state["messages"])
        update = _run_reference(run, request.state) | await _owner(chat, request.state)
        return _ModelStep(run, shown, update)

    async def _append_missing(self, chat: Conversation, state: ConversationAgentState) -> AgentRun:
        run = await self._run(chat, state, state["messages"])
        if run_in(state, chat) is None and run.missing(state["messages"]):
            warn_of_review(state)
        await append_missing(run, state["messages"])
        return run

    async def _decided(
        self, run: AgentRun, messages: Sequence[BaseMessage], call: ToolCall | None = None
    ) -> Any:
        """Return the recorded decisions on the calls that the review asks about next; None if any is missing."""
        if self._review is None or (call and call["name"] not in self._review.interrupt_on):
            return None
        held = await hold(run)
        return answer_in_log(held.record, messages, call) if held else None

    async def _reviewed(
        self,
        run: AgentRun,
        state: ConversationAgentState,
        update: dict[str, Any] | GraphInterrupt | None,
    ) -> dict[str, Any] | None:
        """Return the update of a review. Its results are appended, or replaced by those that `decide` appended."""
        if isinstance(update, GraphInterrupt):
            await _pause(run, update, state["messages"])
        update = (update or {}) | _run_reference(run, state)
        if messages := update.get("messages"):
            give_result_ids(messages)
            update["messages"] = messages = as_stored_messages(messages, run.ahead)
            await append_missing(run, messages)
        return update or None

    async def _finished(self, run: AgentRun, request: ToolCallRequest, output: Any) -> ToolOutput:
        """Return the output of a tool with ids and numbers of sources, and append its messages."""
        if isinstance(output, GraphInterrupt):
            await _pause(run, output, request.state["messages"])
        call = request.tool_call
        place = call_position(request.state["messages"], request.tool_call)
        named: ToolOutput = with_ids(output, call, place, turn_id=run.turn_id, taken=run.abandoned)
        results = [each for each in messages_to_log(named, call) if isinstance(each, ToolMessage)]
        tools = {str(call["id"]): call["name"]}
        named = with_results(named, await self._numbering.number(run.chat, results, tools=tools))
        if _ends_agent(request):
            named = with_results(
                named, {id(result): ending(result) for result in results_in(named)}
            )
        named = as_stored(named, run.ahead)
        messages = messages_to_log(named, call)
        if not self._appends_results:
            return with_digests(named, messages)
        await append_missing(run, messages)
        return named

    async def _stored(
        self, chat: Conversation, request: ToolCallRequest
    ) -> tuple[AgentRun, list[BaseMessage]]:
        """Return the run, and the messages that an earlier run stored for a call: the result and the tool's additions.

        Empty for a tool that handed over to an outer graph, so that it runs and hands over again.
        """
        messages = request.state["messages"]
        run = await self._run(chat, request.state, messages)
        await hold(run)
        ai_message_id, position = call_position(messages, request.tool_call)
        stored = run.stored_results(ai_message_id, str(request.tool_call["id"]), position)
        done_in_graph().update(ids_of(stored))
        return run, [] if any(map(hands_over, stored)) else stored

    async def _end(
        self, chat: Conversation, state: ConversationAgentState
    ) -> dict[str, Any] | None:
        run = await self._run(chat, state, state["messages"])
        changes = await end(run, state["messages"])
        update = {"messages": changes} if changes else {}
        return update | await _owner(chat, state) or None

    def _shown(
        self, request: ModelRequest[Any], run: AgentRun, messages: list[Any]
    ) -> ModelRequest[Any]:
        """Return the request with the view and the whole prompt; measure its prompt and tools for the stamp."""
        prompt = _with_prompt(request.system_message, self._prompt)
        shown = request.override(messages=messages, system_message=prompt)
        run.view.beside = self._meter.measure(shown, self.store.token_counter)
        report_dropped(run.view.dropped, self._on_dropped)
        return shown

    def _equipped(self, chat: Conversation, request: ToolCallRequest) -> ToolCallRequest:
        """Return the call with a tool that is bound to the conversation, if the tool needs that."""
        tool = request.tool
        bound = next((bind(chat) for own, bind in self._own_tools if tool is own), None)
        if bound is None:
            bound = self._numbering.with_split_lists(tool, request.tool_call["name"])
        return request.override(tool=bound) if bound else request


class _ModelStep(NamedTuple):
    """A call of the model, or a stored reply that replaces the call.

    Attributes:
        run: The run.
        shown: The messages for the model, or its stored reply to this step.
        update: The update that adds the run and the owner to a state that lacks them.
    """

    run: AgentRun
    shown: AIMessage | list[BaseMessage]
    update: dict[str, Any]


def _begun(run: AgentRun | RefusedRun, changes: list[BaseMessage]) -> dict[str, Any]:
    update: dict[str, Any] = {CHANNEL: RunReference.to(run), TURN: run.turn_id or "", OWN: [""]}
    if changes:
        update["messages"] = changes
    if isinstance(run, RefusedRun) or run.is_answered:
        update["jump_to"] = "end"
    return update


def _run_reference(run: AgentRun, state: Any) -> dict[str, Any]:
    """Return the update that adds the run to the state; {} if the state has it."""
    return {} if run_in(state, run.chat) is run else {CHANNEL: RunReference.to(run)}


async def _pause(
    run: AgentRun, interrupt: GraphInterrupt, messages: Sequence[BaseMessage]
) -> NoReturn:
    """Record the calls that wait for a person in the log, then raise the interrupt that asks the person."""
    pauses = pauses_in(interrupt, messages)
    if pauses and (held := await hold(run)):
        await held.pause(pauses)
    raise interrupt


async def _owner(chat: Conversation, state: Any) -> dict[str, Any]:
    """Return the update that adds the conversation's id to a state; {} if the state has it or it does not exist yet."""
    is_named = not str(state.get(OWNER) or " ").endswith(" ")
    if is_named:
        return {}
    conversation = await host_of(chat).conversation_id(chat.scope)
    return {OWNER: owner_of(chat.scope, conversation)} if conversation else {}


def _ends_agent(request: ToolCallRequest) -> bool:
    """Return True if a nested agent ends with the results of this step, because all its tools are `return_direct`."""
    replies = [each for each in request.state["messages"] if isinstance(each, AIMessage)]
    if not is_in_graph() or not replies:
        return False
    called = {call["name"] for call in replies[-1].tool_calls}
    tools = [tool for tool in request.runtime.tools if tool.name in called]
    return bool(tools) and all(tool.return_direct for tool in tools)


def _response(step: _ModelStep, result: list[Any], structured: Any) -> _ModelOutput:
    update = {OWN: ["", *digests(result)]} | step.update
    return ExtendedModelResponse(
        ModelResponse(result=result, structured_response=structured), Command(update=update)
    )


def _stored_reply(step: _ModelStep, answer: AIMessage, request: ModelRequest[Any]) -> _ModelOutput:
    """Return a reply from the log, with the results that LangChain added to it and its structured response."""
    results = step.run.results_of(answer, schema_names(request.response_format))
    done_in_graph().update(ids_of(results))
    structured = structured_response(request.response_format, answer)
    return _response(step, [answer, *results], structured)


def _new_reply(
    step: _ModelStep, response: ModelResponse[Any], request: ModelRequest[Any]
) -> _ModelOutput:
    """Return the model's messages; each message and call gets a unique id before it enters the state."""
    run = step.run
    taken = ids_of(request.messages) | set(run.logged) | run.abandoned | run.view.ids
    result: list[BaseMessage] = []
    for message in response.result:
        named = message.model_copy()
        if isinstance(named, AIMessage):
            named.id = named.id if named.id and named.id not in taken else str(uuid4())
            taken.add(named.id)
        elif named.id is None and not isinstance(named, ToolMessage):
            named.id = str(uuid4())
        result.append(named)
    result = with_own_call_ids(result)
    give_result_ids(result)
    if response.structured_response is not None and is_in_graph():
        result = [ending(each) if isinstance(each, ToolMessage) else each for each in result]
    return _response(step, result, response.structured_response)


def _with_prompt(system: SystemMessage | None, prompt: str) -> SystemMessage | None:
    """Return the system message of a request with the paragraph on shortened results appended."""
    if not prompt or (system is not None and prompt in system.text):
        return system
    if system is None:
        return SystemMessage(prompt)
    if isinstance(system.content, str):
        return system.model_copy(update={"content": f"{system.content}\n\n{prompt}"})
    return system.model_copy(
        update={"content": [*system.content, {"type": "text", "text": prompt}]}
    )
