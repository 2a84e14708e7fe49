"""The node: reads a state, gives an update of it, and is a Runnable like any other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import Runnable
from pydantic import BaseModel, ConfigDict
from test_summarization import ScriptedModel, ids, talk

from convstore.summarization import RunningSummary, SummarizationNode


class State(BaseModel):
    """A state as a pydantic model."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    messages: list[Any] | None = None
    context: dict[str, Any] | None = None


def node_with(model: Any, **options: Any) -> SummarizationNode:
    """A node for which a message is a token."""
    return SummarizationNode(
        **{
            "model": model,
            "max_tokens": 4,
            "max_summary_tokens": 1,
            "token_counter": len,
            **options,
        }
    )


def run_sync(node: Runnable[Any, dict[str, Any]], state: Any) -> dict[str, Any]:
    """By `invoke`."""
    return node.invoke(state)


def run_async(node: Runnable[Any, dict[str, Any]], state: Any) -> dict[str, Any]:
    """By `ainvoke`."""
    return asyncio.run(node.ainvoke(state))


@pytest.fixture(params=[run_sync, run_async], ids=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Any:
    """Either way."""
    return request.param


@pytest.fixture(params=[dict, State], ids=["dict", "pydantic"])
def state_of(request: pytest.FixtureRequest) -> Any:
    """Either kind of state."""
    return request.param


def test_messages_come_out_under_their_own_key(run: Any, state_of: Any) -> None:
    """The state's messages are left alone, the summary goes into the context, with the other keys kept."""
    messages = talk(*"hahah")
    update = run(node_with(ScriptedModel()), state_of(messages=messages, context={"user": "ada"}))
    assert update.keys() == {"summarized_messages", "context"}
    assert ids(update["summarized_messages"]) == ["4:summary-0", "5"]
    assert update["context"] == {
        "user": "ada",
        "running_summary": RunningSummary("summary 1", set("1234"), "4"),
    }


def test_the_running_summary_is_read_from_the_context(run: Any, state_of: Any) -> None:
    """A later run sees only what is new."""
    model = ScriptedModel()
    running = RunningSummary("old", {"1", "2"}, "2")
    update = run(
        node_with(model),
        state_of(messages=talk(*"hahaha"), context={"running_summary": running, "n": 1}),
    )
    assert model.shown == [["3", "4"], ["5", "6"]]
    assert update["context"]["n"] == 1
    assert update["context"]["running_summary"].summarized_message_ids == set("123456")


@pytest.mark.parametrize("context", [None, {}, {"user": "ada"}])
def test_without_a_summary_the_context_is_not_touched(
    run: Any, state_of: Any, context: dict[str, Any] | None
) -> None:
    """An update names only what it changes."""
    messages = talk("h", "a")
    update = run(node_with(ScriptedModel()), state_of(messages=messages, context=context))
    assert update == {"summarized_messages": messages}


def test_a_state_without_context_will_do(run: Any) -> None:
    """A dict that lacks it, and a model without such a field."""

    class Bare(BaseModel):
        messages: list[Any]

    for state in ({"messages": talk("h")}, Bare(messages=talk("h"))):
        assert run(node_with(ScriptedModel()), state) == {"summarized_messages": talk("h")}


@pytest.mark.parametrize("kinds", ["h", "hahah", "shahah"])
def test_the_same_key_takes_the_place_of_the_messages(run: Any, state_of: Any, kinds: str) -> None:
    """The update begins with the removal of all messages, so that a reducer keeps exactly what comes out."""
    node = node_with(ScriptedModel(), output_messages_key="messages")
    [removal, *rest] = run(node, state_of(messages=talk(*kinds)))["messages"]
    assert removal == RemoveMessage(id="__remove_all__")
    other = run(node_with(ScriptedModel()), state_of(messages=talk(*kinds)))
    assert rest == other["summarized_messages"]


def test_keys_are_parameters(run: Any) -> None:
    """Messages are read and written where the caller says."""
    node = node_with(
        ScriptedModel(), input_messages_key="log", output_messages_key="view", name="shorten"
    )
    assert run(node, {"log": talk("h"), "messages": 7}) == {"view": talk("h")}
    assert node.get_name() == "shorten"


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (7, "Invalid input type: int"),
        (["m"], "Invalid input type: list"),
        ({}, "Missing required field `messages`"),
        ({"messages": None}, "Missing required field `messages`"),
        (State(), "Missing required field `messages`"),
        ({"messages": "hi"}, "`messages` of the input must be a list of messages"),
        (
            {"messages": [{"role": "user", "content": "hi"}]},
            "`messages` of the input must be a list of messages",
        ),
        ({"messages": [], "context": 7}, "`context` of the input must be a dict"),
        (
            {"messages": [], "context": {"running_summary": 7}},
            "running_summary must be a RunningSummary or None",
        ),
    ],
)
def test_a_wrong_state_is_refused(run: Any, state: Any, problem: str) -> None:
    """A ValueError says what is missing or wrong."""
    with pytest.raises(ValueError, match=problem):
        run(node_with(ScriptedModel()), state)


def test_all_options_reach_the_summarization(run: Any) -> None:
    """All options reach the summarization, such as the threshold and the overflow."""
    model = ScriptedModel()
    run(
        node_with(model, max_tokens_before_summary=6, overflow="trim"),
        {"messages": talk(*"hahaha")},
    )
    assert model.shown == [["3", "4", "5", "6"]]
    with pytest.raises(ValueError, match="max_summary_tokens"):
        run(node_with(model, max_summary_tokens=4), {"messages": []})


def test_it_is_a_runnable(run: Any) -> None:
    """The node is a Runnable: it can be piped, bound and run in batches, and has a name."""
    node = node_with(ScriptedModel())
    chain = node | (lambda update: len(update["summarized_messages"]))
    assert run(chain, {"messages": talk(*"hahah")}) == 2
    assert node.get_name() == "summarization"
    assert (
        len(run(node.bind(max_tokens=9), {"messages": talk(*"hahah")})["summarized_messages"]) == 5
    )
    assert len(node.batch([{"messages": talk("h")}, {"messages": talk("h", "a")}])) == 2


def test_what_is_configured_holds_for_the_model(run: Any) -> None:
    """Callbacks, tags and metadata: with the tag "nostream" a graph does not stream the summary to the user."""

    class Noting(BaseCallbackHandler):
        def on_chat_model_start(
            self, *_: Any, tags: Any = None, metadata: Any = None, **__: Any
        ) -> None:
            noted.append((tags, metadata["user"]))

    noted: list[Any] = []
    node = node_with(FakeListChatModel(responses=["summary"]))
    config = {"callbacks": [Noting()], "tags": ["nostream"], "metadata": {"user": "ada"}}
    run(node.with_config(config), {"messages": talk(*"hahah")})
    assert noted == [(["nostream"], "ada")]


def test_a_graph_that_overwrites_its_messages(run: Any) -> None:
    """State after state through the node: one summary at most, ids unique, the newest question always there."""
    node = node_with(ScriptedModel(), output_messages_key="messages", max_tokens=6)
    state: dict[str, Any] = {"messages": [], "context": {}}
    seen: set[str] = set()
    for number in range(0, 40, 2):
        question = HumanMessage("question", id=f"q{number}")
        state["messages"] = [*state["messages"], question]
        update = run(node, state)
        state = {"context": state["context"], **update}
        state["messages"] = update["messages"][1:]
        assert state["messages"][-1] is question
        assert sum(_is_summary(message) for message in state["messages"]) == bool(state["context"])
        assert len(state["messages"]) <= 6 + 1
        state["messages"] = [*state["messages"], AIMessage("answer", id=f"a{number}")]
        assert len(set(ids(state["messages"]))) == len(state["messages"])
        seen |= {question.id or "", f"a{number}"}
    kept = {message.id for message in state["messages"] if not _is_summary(message)}
    assert state["context"]["running_summary"].summarized_message_ids | kept == seen


def _is_summary(message: BaseMessage) -> bool:
    return message.additional_kwargs.get("convstore") == {"kind": "summary"}
