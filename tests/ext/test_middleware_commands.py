"""Messages that a tool's command adds to its result, such as a screenshot, are part of the agent's turn."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from scripted_agents import ScriptedModel, calls, elsewhere, kinds, log_of

from convstore import ConversationStore
from convstore.ext.langchain import ConversationMiddleware
from convstore.messages.filing import added_to, without_marks

IMAGE = "IMAGE OF THE SCREEN"
TURN = [
    ("human", "Look!"),
    ("ai", ""),
    ("tool", "See the image."),
    ("human", IMAGE),
    ("ai", "A seal."),
]


class BrokenOffError(Exception):
    """Simulates a crash."""


def make_agent(
    store: ConversationStore, replies: list[Any], beside: BaseMessage | None = None, **options: Any
) -> tuple[Any, ScriptedModel, list[str]]:
    """An agent that takes screenshots; a new one acts as another worker."""
    ran: list[str] = []

    @tool
    def screenshot(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Show the screen."""
        ran.append(call_id)
        seen = beside or HumanMessage([{"type": "text", "text": IMAGE}])
        return Command(
            update={"messages": [ToolMessage("See the image.", tool_call_id=call_id), seen]}
        )

    @tool
    def search(query: str = "") -> str:
        """Search."""
        ran.append(query)
        return f"found {query}"

    model = ScriptedModel(replies=replies)
    agent = create_agent(
        model, [screenshot, search], middleware=[ConversationMiddleware(store)], **options
    )
    return agent, model, ran


async def ask(agent: Any, scope: dict[str, str], text: str = "Look!", id_: str = "q1") -> Any:
    """A question under an id."""
    return await agent.ainvoke({"messages": [HumanMessage(text, id=id_)]}, {"configurable": scope})


@pytest.fixture(params=[False, True], ids=["no checkpointer", "checkpointer"])
def saver(request: pytest.FixtureRequest) -> InMemorySaver | None:
    """With and without checkpoints."""
    return InMemorySaver() if request.param else None


@pytest.mark.costly
async def test_the_model_sees_the_image_when_a_turn_goes_on(
    store: ConversationStore, database: Any, scope: dict[str, str], saver: Any
) -> None:
    """The run broke off after the tool: another worker shows the image, the tool does not run again."""
    agent, _, _ = make_agent(store, [calls("screenshot"), BrokenOffError()], checkpointer=saver)
    with pytest.raises(BrokenOffError):
        await ask(agent, scope)
    agent, model, ran = make_agent(
        elsewhere(store, database), [AIMessage("A seal.")], checkpointer=saver
    )
    result = await ask(agent, scope)
    assert kinds(model.shown[-1]) == TURN[:-1]
    assert ran == []
    assert await log_of(store.conversation(**scope)) == without_marks(result["messages"])
    assert kinds(result["messages"]) == TURN


@pytest.mark.costly
async def test_an_answer_about_an_image_is_given_again(
    store: ConversationStore, database: Any, scope: dict[str, str], saver: Any
) -> None:
    """The question is asked again: the same messages with the image, the model is not asked, nothing is written."""
    agent, _, _ = make_agent(store, [calls("screenshot"), AIMessage("A seal.")], checkpointer=saver)
    first = await ask(agent, scope)
    agent, model, _ = make_agent(elsewhere(store, database), [], checkpointer=saver)
    again = await ask(agent, scope)
    assert again["messages"] == first["messages"]
    assert without_marks(first["messages"]) == await log_of(store.conversation(**scope))
    assert kinds(again["messages"]) == TURN
    assert model.shown == []


async def test_the_log_has_a_column_in_place_of_the_mark(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The state marks what a tool added to its result; the body in the log and the model's messages have no mark."""
    note = AIMessage("A note of the tool.", response_metadata={"model_name": "eye"})
    agent, model, _ = make_agent(store, [calls("screenshot"), AIMessage("A seal.")], note)
    state = (await ask(agent, scope))["messages"]
    chat = store.conversation(**scope)
    log = await log_of(chat)
    assert [bool(added_to(message)) for message in state] == [False, False, False, True, False]
    assert not any(added_to(message) for message in [*log, *model.shown[-1]])
    assert log[3].response_metadata == {"model_name": "eye"}
    assert (await chat.load_history()).messages == log
    assert not (await store.verify(**scope)).findings


async def test_a_resumed_run_still_answers_the_question(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Taken up from its checkpoint after the image, the answer is that of the question and is found under its id."""
    saver = InMemorySaver()
    replies = [calls("screenshot"), BrokenOffError(), AIMessage("A seal.")]
    agent, model, _ = make_agent(store, replies, checkpointer=saver)
    with pytest.raises(BrokenOffError):
        await ask(agent, scope)
    resumed = await agent.ainvoke(None, {"configurable": scope})
    again = await ask(make_agent(store, [])[0], scope)
    assert kinds(resumed["messages"]) == kinds(again["messages"]) == TURN
    assert len(model.shown) == 3


@pytest.mark.costly
async def test_the_next_question_is_shown_the_image_once(
    store: ConversationStore, scope: dict[str, str], saver: Any
) -> None:
    """Behind the turn that it belongs to; the state keeps the new turn only."""
    replies = [calls("screenshot"), AIMessage("A seal."), AIMessage("Yes.")]
    agent, model, _ = make_agent(store, replies, checkpointer=saver)
    await ask(agent, scope)
    result = await ask(agent, scope, "Sure?", "q2")
    assert kinds(model.shown[-1]) == [*TURN, ("human", "Sure?")]
    assert kinds(result["messages"]) == [("human", "Sure?"), ("ai", "Yes.")]


@pytest.mark.slow
async def test_an_image_next_to_another_result_keeps_its_position(
    store: ConversationStore, database: Any, scope: dict[str, str]
) -> None:
    """Of two parallel tools each gets its own result and image back, in any order of the log."""
    script = [calls("screenshot", "search"), BrokenOffError()]
    with pytest.raises(BrokenOffError):
        await ask(make_agent(store, script)[0], scope)
    agent, model, ran = make_agent(elsewhere(store, database), [AIMessage("A seal.")])
    result = await ask(agent, scope)
    found = ("tool", "found ")
    assert kinds(result["messages"]) == [*TURN[:4], found, TURN[4]]
    # results directly after their calls
    assert kinds(model.shown[-1]) == [
        *TURN[:3],
        found,
        TURN[3],
    ]
    assert ran == []


async def test_an_ai_message_of_a_tool_is_no_answer(
    store: ConversationStore, database: Any, scope: dict[str, str]
) -> None:
    """A turn that broke off after it goes on: the model is asked, no result is lost, under ids of the tool's too."""
    note = AIMessage("A note of the tool.", id="note")
    with pytest.raises(BrokenOffError):
        await ask(
            make_agent(store, [calls("screenshot", "search"), BrokenOffError()], note)[0], scope
        )
    agent, model, ran = make_agent(elsewhere(store, database), [AIMessage("A seal.")], note)
    result = await ask(agent, scope)
    assert ran == []
    assert len(model.shown) == 1
    assert [message.text for message in result["messages"]] == [
        *("Look!", "", "See the image.", "A note of the tool.", "found ", "A seal.")
    ]


async def test_an_image_is_its_own_run_s_when_two_run_at_once(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """An image stays in the turn of its own run, although another question was appended before the answer."""
    chat = store.conversation(**scope)

    agent, _, _ = make_agent(store, [calls("screenshot"), BrokenOffError()])
    with pytest.raises(BrokenOffError):
        await ask(agent, scope)
    await chat.append([HumanMessage("And you?", id="q2"), AIMessage("Fine.")])
    again, model, _ = make_agent(store, [AIMessage("A seal.")])
    result = await ask(again, scope)
    assert kinds(result["messages"]) == TURN
    assert kinds(model.shown[-1]) == TURN[:-1]
    other = await ask(make_agent(store, [])[0], scope, "And you?", "q2")
    assert kinds(other["messages"]) == [("human", "And you?"), ("ai", "Fine.")]
