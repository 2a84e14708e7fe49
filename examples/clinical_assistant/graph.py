"""The agent: a LangGraph graph that reasons, looks things up, answers, and saves its turn.

Its state lives for one request. The store keeps the rest: the endpoint saves the question before the graph runs, and
the last node saves the agent's turn under the id of the interaction.
"""

from __future__ import annotations

import logging
from typing import Any, Literal, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.messages.tool import ToolCall
from langchain_core.tools import BaseTool
from langgraph.graph import END, START, StateGraph

from clinical_assistant.knowledge import retrieve_knowledge_base
from convstore import (
    SOURCES_PROMPT,
    Conversation,
    ConversationStore,
    InvalidInputError,
    StoreUnavailableError,
    Turn,
    number_sources,
)
from convstore.exceptions import StoreError, TurnConflictError, UnknownMessageError

__all__ = ["PROMPT", "AgentState", "Assistant", "answer_of", "error_of"]

PROMPT = f"You help nurses with the handbook of their ward. Cite sources by their numbers, as [3]. {SOURCES_PROMPT}"
MOST_ROUNDS = 4
_log = logging.getLogger(__name__)
NO_HISTORY, NO_MODEL = "the history of the session cannot be loaded", "the model does not answer"
_PASSING = {NO_HISTORY, NO_MODEL}
"""Temporary failures, which are never saved as an answer: a repeated request asks again."""

_SORRY = "Something went wrong, so there is no answer yet. Please send this again."
_ERROR = "error_message"


class AgentState(TypedDict):
    """State of the graph. `agent_turn` holds calls, results and answer as they are saved."""

    user_input: str
    user_id: str
    session_id: str
    interaction_id: str
    conversation_history: list[BaseMessage]
    llm_response_with_actions: AIMessage | None
    executed_tool_responses: list[ToolMessage]
    rag_context: list[str]
    agent_turn: list[BaseMessage]
    final_response_text: str | None
    error_message: str | None
    agent_turn_interaction_id: str | None


class Assistant:
    """Graph on a store and a model."""

    def __init__(self, store: ConversationStore, model: BaseChatModel) -> None:
        self.store, self._model = store, model
        self._graph = self._compile()

    def conversation(self, user_id: str, session_id: str) -> Conversation:
        """Return a user's session; the same id of another user is another conversation."""
        return self.store.conversation(user_id=user_id, session_id=session_id)

    async def run(
        self, *, user_input: str, user_id: str, session_id: str, interaction_id: str
    ) -> AgentState:
        """Answer a question that is already in the store."""
        start = AgentState(
            user_input=user_input,
            user_id=user_id,
            session_id=session_id,
            interaction_id=interaction_id,
            conversation_history=[],
            llm_response_with_actions=None,
            executed_tool_responses=[],
            rag_context=[],
            agent_turn=[],
            final_response_text=None,
            error_message=None,
            agent_turn_interaction_id=None,
        )
        state: AgentState = await self._graph.ainvoke(start)
        return state

    def _compile(self) -> Any:
        graph = StateGraph(AgentState)
        graph.add_node("get_session_history", self.get_session_history)
        graph.add_node("llm_reasoner", self.llm_reasoner)
        graph.add_node("execute_rag_tool", self.execute_rag_tool)
        graph.add_node("final_response", self.final_response)
        graph.add_node("save_agent_interaction", self.save_agent_interaction)
        graph.add_edge(START, "get_session_history")
        graph.add_edge("get_session_history", "llm_reasoner")
        graph.add_conditional_edges("llm_reasoner", self.should_execute_tools)
        graph.add_edge("execute_rag_tool", "llm_reasoner")
        graph.add_edge("final_response", "save_agent_interaction")
        graph.add_edge("save_agent_interaction", END)
        return graph.compile()

    def _chat(self, state: AgentState) -> Conversation:
        return self.conversation(state["user_id"], state["session_id"])

    def _tools(self, chat: Conversation) -> dict[str, BaseTool]:
        """Return the search, with source numbers of the session, and the retrieval tool."""
        tools: list[BaseTool] = [
            number_sources(retrieve_knowledge_base, chat),
            chat.retrieve_previous_sources_tool(),
        ]
        return {tool.name: tool for tool in tools}

    async def get_session_history(self, state: AgentState) -> dict[str, Any]:
        """Load the view of the session: old results are stubs, the question is the last message."""
        try:
            history = await self._chat(state).load_history()
        except StoreUnavailableError:
            _log.exception(
                "the history of interaction %s cannot be loaded", state["interaction_id"]
            )
            return {"error_message": NO_HISTORY}
        return {"conversation_history": history.messages}

    async def llm_reasoner(self, state: AgentState) -> dict[str, Any]:
        """Ask the model, which answers or calls tools."""
        if state["error_message"]:
            return {}
        tools = self._tools(self._chat(state))
        messages = [SystemMessage(PROMPT), *state["conversation_history"], *state["agent_turn"]]
        try:
            response = await self._model.bind_tools(list(tools.values())).ainvoke(messages)
        except Exception:  # noqa: BLE001 - clients raise anything; the text may name hosts and keys
            _log.exception("the model failed in interaction %s", state["interaction_id"])
            return {"llm_response_with_actions": None, "error_message": NO_MODEL}
        return {
            "llm_response_with_actions": response,
            "executed_tool_responses": [],
            "rag_context": [],
        }

    def should_execute_tools(
        self, state: AgentState
    ) -> Literal["execute_rag_tool", "final_response"]:
        """Route to the tools if all called ones exist; otherwise end the turn."""
        response = state["llm_response_with_actions"]
        if response is None or state["error_message"]:
            return "final_response"
        rounds = sum(isinstance(message, AIMessage) for message in state["agent_turn"])
        known = _names(response) & self._tools(self._chat(state)).keys()
        return "execute_rag_tool" if known and rounds < MOST_ROUNDS else "final_response"

    async def execute_rag_tool(self, state: AgentState) -> dict[str, Any]:
        """Answer every call, also of a tool that does not exist: each call needs a result."""
        response = state["llm_response_with_actions"]
        tools = self._tools(self._chat(state))
        calls = response.tool_calls if response else []
        results = [await _execute(tools.get(call["name"]), call) for call in calls]
        return {
            "executed_tool_responses": results,
            "rag_context": [result.text for result in results if result.status == "success"],
            "agent_turn": [*state["agent_turn"], *([response] if response else []), *results],
        }

    async def final_response(self, state: AgentState) -> dict[str, Any]:
        """Set the text for the user: the model's answer, or the reason for its absence."""
        response, error, turn = (
            state["llm_response_with_actions"],
            state["error_message"],
            state["agent_turn"],
        )
        if response is not None and not error and not response.tool_calls:
            return {"final_response_text": response.text, "agent_turn": [*turn, response]}
        text = _SORRY
        if response is not None and not error:
            text, error = _refusal(_names(response) - self._tools(self._chat(state)).keys())
            turn = [*turn, response, *(_failed(call, "Not done.") for call in response.tool_calls)]
        reply = AIMessage(text, additional_kwargs={_ERROR: error})
        return {"final_response_text": text, "error_message": error, "agent_turn": [*turn, reply]}

    async def save_agent_interaction(self, state: AgentState) -> dict[str, Any]:
        """Save calls, results and answer together, under the id of the interaction.

        A temporary failure is not saved, so the same request asks the model again. If another worker answered the
        same request first, its answer counts. If another question came meanwhile, this one can no longer be answered,
        and the error says so.
        """
        chat, interaction_id = self._chat(state), state["interaction_id"]
        saved = {"agent_turn": [], "agent_turn_interaction_id": interaction_id}
        if state["error_message"] in _PASSING:
            return saved | {"agent_turn_interaction_id": None}
        try:
            async with await chat.turn(interaction_id, busy="wait") as turn:
                if not turn.is_finished:
                    await turn.append(state["agent_turn"])
                    return saved
        except UnknownMessageError:
            raise  # the session was deleted in the meantime
        except InvalidInputError as error:
            raise RuntimeError("what the model or a tool made cannot be saved") from error
        except StoreUnavailableError:
            _log.exception("the turn of interaction %s cannot be saved", state["interaction_id"])
            return saved | {
                "agent_turn_interaction_id": None,
                "error_message": "the answer cannot be saved",
            }
        answer = answer_of(await chat.get_turn(interaction_id))
        if answer is None:
            raise TurnConflictError(interaction_id, is_newest=False)
        return saved | {"final_response_text": answer.text, "error_message": error_of(answer)}


def _names(response: AIMessage) -> set[str]:
    return {call["name"] for call in response.tool_calls}


def _refusal(missing: set[str]) -> tuple[str, str]:
    """Return text for the user, and the error, when a model calls tools that are unknown or no longer allowed."""
    if not missing:
        return (
            "I looked that up several times and found no answer.",
            f"more than {MOST_ROUNDS} rounds of tool calls",
        )
    names = ", ".join(sorted(missing))
    return f"I cannot do that here: {names} is not available.", f"not available: {names}"


async def _execute(tool: BaseTool | None, call: ToolCall) -> ToolMessage:
    if tool is None:
        return _failed(call, f"There is no tool {call['name']}.")
    try:
        result: ToolMessage = await tool.ainvoke({**call, "type": "tool_call"})
    except StoreError:
        raise  # not an error of the tool
    except Exception as error:  # noqa: BLE001 - tools raise anything; the model sees the error, and it is saved
        return _failed(call, f"{type(error).__name__}: {error}")
    return result


def _failed(call: ToolCall, text: str) -> ToolMessage:
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"] or "", status="error")


def answer_of(turn: Turn | None) -> AIMessage | None:
    """Return the answer at the end of a turn, if there is one."""
    last = turn.messages[-1] if turn else None
    return last if isinstance(last, AIMessage) and not last.tool_calls else None


def error_of(answer: AIMessage) -> str | None:
    """Return the error of a turn that ends with this answer."""
    error: str | None = answer.additional_kwargs.get(_ERROR)
    return error
