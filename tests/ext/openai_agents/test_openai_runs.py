"""Runs of the SDK's own runner with a ConvstoreSession: what is stored, and what the model is shown next."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    OpenAIResponsesCompactionSession,
    RunConfig,
    RunContextWrapper,
    Runner,
    RunState,
    SessionSettings,
    Usage,
    function_tool,
)
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from api_rules import responses_errors
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from made_results import append_hidden, check_hidden
from openai.types.responses.response_reasoning_item import ResponseReasoningItem

from convstore import ConversationStore, HistoryPolicy
from convstore.exceptions import InvalidInputError
from convstore.ext.openai_agents import ConvstoreSession, read_back_tools
from convstore.messages.tokens import count as tokens

pytestmark = pytest.mark.slow

LONG = "Seals eat fish, squid and crabs. " * 60


@function_tool
def look(what: str) -> str:
    """Look something up."""
    return f"{what}: {LONG}"


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def thought(text: str = "hm") -> Any:
    """Reasoning that can be sent again."""
    return ResponseReasoningItem(
        id=f"rs_{text}", summary=[], type="reasoning", encrypted_content=text
    )


def step(output: list[Any], tokens: int) -> ModelStep:
    """A step of a model with the number of its input tokens."""
    return ModelStep(output, Usage(requests=1, input_tokens=tokens, total_tokens=tokens))


def looks(*names: str) -> list[Any]:
    """An answer that looks several things up at once."""
    return [
        thought(),
        *(function_call("look", {"what": name}, call_id=f"call_{name}") for name in names),
    ]


def agent_of(*steps: Any, **options: Any) -> tuple[Agent[Any], ScriptedModel]:
    """An agent and its model, which plays these steps."""
    model = ScriptedModel(steps)
    return Agent(name="biologist", model=model, tools=[look, pay], **options), model


async def ask(
    agent: Agent[Any], text: str, session: Any, *, streamed: bool = False, **options: Any
) -> Any:
    """Run an agent to its end."""
    if not streamed:
        return await Runner.run(agent, text, session=session, **options)
    result = Runner.run_streamed(agent, text, session=session, **options)
    async for _ in result.stream_events():
        pass
    return result


def shown(model: ScriptedModel, call: int = -1) -> list[Any]:
    """Return the items that the model was shown in a call, after checking that the API accepts them."""
    items: Any = model.calls[call].input
    assert responses_errors([{"type": "message", **item} for item in items]) == []
    return list(items)


@pytest.fixture
def viewed(either: ConversationStore, scope: dict[str, str]) -> ConvstoreSession:
    """A session that gives the view."""
    return ConvstoreSession(either, **scope)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_run_is_shown_the_view_of_the_turns_before(
    viewed: ConvstoreSession, streamed: bool
) -> None:
    """Results of finished turns are stubs, all else is whole; the log has one AI message for parallel calls."""
    agent, model = agent_of(
        looks("seals", "orcas"), [assistant_message("Fish.")], [assistant_message("Same.")]
    )
    for text in ("What do they eat?", "And whales?"):
        await ask(agent, text, viewed, streamed=streamed)
    assert [item["output"][:6] for item in model.calls[1].input if "output" in item] == [
        "seals:",
        "orcas:",
    ]
    items = shown(model)
    assert [item.get("role") or item["type"] for item in items] == [
        *(
            "user",
            "function_call",
            "function_call",
            "function_call_output",
            "function_call_output",
            "assistant",
            "user",
        ),
    ]
    assert all("retrieve_previous_sources" in item["output"] for item in items if "output" in item)
    log: list[BaseMessage] = [message async for message in viewed.conversation().messages()]
    assert [message.type for message in log] == ["human", "ai", "tool", "tool", "ai", "human", "ai"]
    assert (await viewed.get_items(8))[0]["type"] == "reasoning"
    model.assert_complete()


async def test_an_answer_names_the_view_that_it_answers(viewed: ConvstoreSession) -> None:
    """Each answer has the stamp of what it answers: a view and what its run added, which the inspector shows."""
    agent, _ = agent_of(looks("seals"), [assistant_message("Fish.")], [assistant_message("Same.")])
    for text in ("What do they eat?", "And whales?"):
        await ask(agent, text, viewed)
    chat = viewed.conversation()
    stamps = [row.stamp for row in await chat.list_messages() if isinstance(row.message, AIMessage)]
    for stamp, count, begin in zip(stamps, (1, 3, 5), (0, 0, 4), strict=True):
        past = await chat.view_at(stamp)
        assert (past.match, len(past.messages)) == ("exact", count)
        assert stamp
        turn = past.messages[begin:]
        assert stamp.parts.now == sum(tokens(viewed.store.token_counter, each) for each in turn)


async def test_each_run_begins_with_what_the_run_before_it_began_with(
    viewed: ConvstoreSession,
) -> None:
    """The view of each run begins with the view of the run before, so that prompt caches hold."""
    steps = [
        step
        for number in range(4)
        for step in (looks(f"seals {number}"), [assistant_message("Fish.")])
    ]
    agent, model = agent_of(*steps)
    for number in range(4):
        await ask(agent, f"What about {number}?", viewed)
    starts = [shown(model, call)[:-1] for call in (0, 2, 4, 6)]
    assert [len(start) for start in starts] == [0, 4, 8, 12]
    assert all(after[: len(start)] == start for start, after in pairwise(starts))


async def test_results_may_number_their_sources_alike(viewed: ConvstoreSession) -> None:
    """Each run begins with 1 again; what is stored gets numbers of its own, and nothing fails."""
    found = {"results": [{"source_id": 1, "title": "Seals", "content": LONG}]}
    items: Any = []
    for number in range(2):
        call = {
            "type": "function_call",
            "call_id": f"c{number}",
            "name": "search",
            "arguments": "{}",
        }
        output = json.dumps({**found, "page": number})
        items += [call, {"type": "function_call_output", "call_id": f"c{number}", "output": output}]
        await viewed.add_items(items[-2:])
    assert await viewed.get_items(9) == items
    assert len((await viewed.conversation().get_sources("1-2")).sources) == 2


async def test_everything_is_shown_as_it_was_added(session: ConvstoreSession) -> None:
    """With ``view="all"``; equal questions and equal answers stay apart."""
    answer = [assistant_message("Fish.")]
    agent, model = agent_of(looks("seals"), answer, answer, answer)
    for _ in range(3):
        await ask(agent, "What?", session)
    stored: Any = await session.get_items()
    assert [item.get("role") or item["type"] for item in stored] == [
        *("user", "reasoning", "function_call", "function_call_output", "assistant"),
        *("user", "assistant", "user", "assistant"),
    ]
    assert LONG in str(model.calls[-1].input)


async def test_a_handoff_is_stored_and_shown(viewed: ConvstoreSession) -> None:
    """The call of the handoff has its result, and the next run its history."""
    other, second = agent_of(
        [assistant_message("I am the other.")], [assistant_message("Still me.")]
    )
    agent, _ = agent_of(
        [function_call("transfer_to_biologist", {}, call_id="h1")], handoffs=[other]
    )
    result = await ask(agent, "Give me the other", viewed)
    assert result.last_agent is other
    await ask(other, "Who are you?", viewed)
    assert [item.get("role") or item["type"] for item in shown(second)] == [
        *("user", "function_call", "function_call_output", "assistant", "user"),
    ]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_guardrail_stops_a_run(viewed: ConvstoreSession, streamed: bool) -> None:
    """The question stays, without an answer, as in the SDK's sessions; the next run goes on, or pops it first."""

    async def check(_: Any, __: Any, given: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, tripwire_triggered="bad" in str(given))

    rail = InputGuardrail(check, run_in_parallel=False)
    agent, model = agent_of([assistant_message("Fine.")], input_guardrails=[rail])
    with pytest.raises(InputGuardrailTripwireTriggered):
        await ask(agent, "bad words", viewed, streamed=streamed)
    assert [item.get("content") for item in await viewed.get_items(5)] == ["bad words"]
    assert await viewed.pop_item() == {"content": "bad words", "role": "user"}
    await ask(agent, "good words", viewed, streamed=streamed)
    assert [item["content"] for item in shown(model)] == ["good words"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_failed_run_is_tried_again(viewed: ConvstoreSession, streamed: bool) -> None:
    """After the steps that were stored; the view is valid though the first run has no answer."""
    agent, model = agent_of(
        looks("seals"), RuntimeError("overloaded"), [assistant_message("Fish.")]
    )
    with pytest.raises(RuntimeError, match="overloaded"):
        await ask(agent, "What?", viewed, streamed=streamed)
    result = await ask(agent, "What?", viewed, streamed=streamed)
    assert result.final_output == "Fish."
    assert [
        item.get("role") or item["type"] for item in shown(model) if item.get("type") != "reasoning"
    ] == [
        *("user", "function_call", "function_call_output", "user"),
    ]


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_approval_goes_on_from_its_state(viewed: ConvstoreSession, streamed: bool) -> None:
    """The state is resumed with a session made again; every item is stored once."""
    steps = [
        [
            function_call("pay", {"amount": 3}, call_id="p1"),
            function_call("look", {"what": "x"}, call_id="l1"),
        ]
    ]
    agent, model = agent_of(*steps, [assistant_message("Paid.")], [assistant_message("Bye.")])
    paused = await ask(agent, "Pay 3", viewed, streamed=streamed)
    assert [waiting.tool_name for waiting in paused.interruptions] == ["pay"]
    state = await RunState.from_json(agent, paused.to_state().to_json())
    state.approve(state.get_interruptions()[0])
    again = ConvstoreSession(viewed.store, **viewed.conversation().scope)
    assert (await ask(agent, state, again, streamed=streamed)).final_output == "Paid."
    await ask(agent, "Thanks", again, streamed=streamed)
    stored: Any = await again.get_items(20)
    kinds = [item.get("role") or item["type"] for item in stored]
    assert sorted(kinds[:-3]) == ["function_call"] * 2 + ["function_call_output"] * 2 + ["user"]
    assert kinds[-3:] == ["assistant", "user", "assistant"]
    assert [
        item["output"] for item in shown(model) if item.get("call_id") == "p1" and "output" in item
    ] == ["paid 3"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_run_that_is_resumed_answers_its_own_question(
    viewed: ConvstoreSession, streamed: bool
) -> None:
    """Though another run has asked one since; the answer of that one is its own, too."""
    agent, _ = agent_of(
        [function_call("pay", {"amount": 3}, call_id="p1")],
        looks("seals"),
        [assistant_message("Paid.")],
    )
    paused = await ask(agent, "Pay 3", viewed, streamed=streamed)
    other, _ = agent_of([assistant_message("Yes.")])
    await ask(other, "Sure?", viewed)
    state = await RunState.from_json(agent, paused.to_state().to_json())
    state.approve(state.get_interruptions()[0])
    again = ConvstoreSession(viewed.store, **viewed.conversation().scope)
    await ask(agent, state, again, streamed=streamed)
    turns = [
        [message.text for message in turn.messages] async for turn in viewed.conversation().turns()
    ]
    assert turns == [["Pay 3", "", "paid 3", "", f"seals: {LONG}", "Paid."], ["Sure?", "Yes."]]


async def test_a_limit_of_a_run_shows_the_newest_items(viewed: ConvstoreSession) -> None:
    """Exactly as they were added; calls that lost their results are left out by the SDK."""
    agent, model = agent_of(
        looks("seals"), *([assistant_message(text)] for text in ("Fish.", "Yes."))
    )
    await ask(agent, "What?", viewed)
    config = RunConfig(session_settings=SessionSettings(limit=2))
    await ask(agent, "Sure?", viewed, run_config=config)
    assert [item.get("role") or item["type"] for item in model.calls[-1].input] == [
        "assistant",
        "user",
    ]


async def test_an_agent_reads_old_results_back(viewed: ConvstoreSession) -> None:
    """With the conversation of its run, never one that the model names; bad arguments are answered."""
    read, search = read_back_tools(viewed)
    assert (read.name, search.name) == ("retrieve_previous_sources", "search_conversations")
    assert read.params_json_schema["properties"].keys() == {
        "tool_message_ids",
        "source_ids",
        "find",
        "cursor",
    }
    other = viewed.store.conversation(user_id="eve", thread_id="t")
    await other.append([HumanMessage("Seals of Eve")])
    own = viewed.conversation().scope
    await viewed.store.conversation(**own | {"thread_id": own["thread_id"] + "2"}).append(
        [HumanMessage("My seals")]
    )
    model = ScriptedModel(
        [
            looks("seals"),
            [assistant_message("Fish.")],
            [
                function_call(
                    "retrieve_previous_sources", {"find": "squid", "user_id": "eve"}, call_id="r1"
                ),
                function_call("retrieve_previous_sources", "no json", call_id="r2"),
                function_call(
                    "search_conversations", {"find": "seals", "thread_id": "t"}, call_id="r3"
                ),
            ],
            [assistant_message("And squid.")],
        ]
    )
    agent = Agent(name="biologist", model=model, tools=[look, read, search])
    for text in ("What?", "What else?"):
        await ask(agent, text, viewed)
    found, refused, searched = [
        item["output"] for item in model.calls[-1].input if "output" in item
    ][-3:]
    assert "squid and crabs" in found
    assert "valid" in refused or "JSON" in refused
    assert "My seals" in searched
    assert "Eve" not in searched + found


async def test_an_agent_reads_artifacts_back_if_its_tools_say_so(
    memory: ConversationStore, scope: dict[str, str]
) -> None:
    """By default its tool shows what tools showed."""
    session = ConvstoreSession(memory, **scope)
    wanted = await append_hidden(session.conversation())
    for artifact in (False, True):
        call = function_call("retrieve_previous_sources", wanted, call_id="r")
        model = ScriptedModel([[call], [assistant_message("Done.")]])
        tools = read_back_tools(session, artifact=artifact)
        await ask(Agent(name="biologist", model=model, tools=[*tools]), "Again?", session)
        check_hidden(model.calls[-1].input[-1]["output"], artifact=artifact)


async def test_the_tools_take_the_scope_of_the_run(
    either: ConversationStore, scope: dict[str, str]
) -> None:
    """From its context, as the session does."""
    session = ConvstoreSession(either, user_id="ada", scope=lambda context: {"thread_id": context})
    read, *others = read_back_tools(session, search=())
    assert others == []
    model = ScriptedModel(
        [
            [function_call("look", {"what": "seals"}, call_id="l1")],
            [function_call("retrieve_previous_sources", {"find": "squid"}, call_id="r1")],
            [assistant_message("Squid.")],
        ]
    )
    agent = Agent(name="biologist", model=model, tools=[look, read])
    await ask(agent, "What?", session, context=scope["thread_id"])
    assert "squid" in model.calls[-1].input[-1]["output"]
    assert len([message async for message in either.conversation(**scope).messages()]) == 6


async def test_answers_are_summarised_by_the_store(
    own_database: Any, scope: dict[str, str]
) -> None:
    """After an answer, if it is time; the next run is shown the summary, and everything is still there."""
    store = ConversationStore(
        own_database, summarizer=_summarizer, policy=HistoryPolicy(max_tokens=600)
    )
    await store.setup()
    session = ConvstoreSession(store, **scope)
    agent, model = agent_of(*([assistant_message("Fish. " * 80)] for _ in range(8)))
    for number in range(8):
        await ask(agent, f"What about {number}?", session)
    assert "They talked about seals." in str(model.calls[-1].input[0])
    everything = ConvstoreSession(store, view="all", **scope)
    assert len(await everything.get_items()) == 16
    await session.run_compaction({"force": True})
    await store.close()


async def _summarizer(messages: Any, previous: Any) -> str:
    return "They talked about seals."


async def test_a_compaction_without_a_summarizer_does_nothing(viewed: ConvstoreSession) -> None:
    """Unless it is asked for."""
    await viewed.run_compaction({"response_id": "r1"})
    with pytest.raises(InvalidInputError, match="summarizer"):
        await viewed.run_compaction({"force": True})


async def test_the_sdks_compaction_fails_at_the_first_answer(viewed: ConvstoreSession) -> None:
    """With the reason, before it cleared anything."""
    wrapped = OpenAIResponsesCompactionSession("s", viewed, client=object())
    agent, _ = agent_of([assistant_message("Fish.")])
    with pytest.raises(InvalidInputError, match="pass the ConvstoreSession"):
        await ask(agent, "What?", wrapped)
    assert len(await viewed.get_items(9)) == 2


@pytest.mark.parametrize("shared", [True, False])
async def test_a_run_answers_its_own_question(
    either: ConversationStore, scope: dict[str, str], shared: bool
) -> None:
    """Though another run asks and answers one while its tool works; its answers name its own view."""
    session, other = ConvstoreSession(either, **scope), ConvstoreSession(either, **scope)
    fast, _ = agent_of([assistant_message("Yes.")])

    @function_tool
    async def meanwhile() -> str:
        """Ask something else."""
        await ask(fast, "Sure?", session if shared else other)
        return "sea"

    slow = Agent(
        name="slow",
        model=ScriptedModel(
            [[function_call("meanwhile", {}, call_id="c")], [assistant_message("Fish.")]]
        ),
        tools=[meanwhile],
    )
    await ask(slow, "What?", session)
    chat = session.conversation()
    turns = [[message.text for message in turn.messages] async for turn in chat.turns()]
    assert turns == [["What?", "", "sea", "Fish."], ["Sure?", "Yes."]]
    for row in await chat.list_messages():
        if isinstance(row.message, AIMessage):
            assert row.stamp


@pytest.mark.parametrize("streamed", [False, True])
async def test_each_answer_of_a_run_has_its_tokens_and_its_stamp(
    viewed: ConvstoreSession, streamed: bool
) -> None:
    """Also where the SDK reads the session in the midst of a run, as it does at a streamed handoff."""
    last = Agent(name="last", model=ScriptedModel([step([assistant_message("Fish.")], 3)]))
    first = Agent(
        name="first",
        model=ScriptedModel(
            [
                step(looks("seals"), 1),
                step([function_call("transfer_to_last", {}, call_id="c")], 2),
            ]
        ),
        tools=[look],
        handoffs=[last],
    )
    await ask(first, "What?", viewed, streamed=streamed)
    rows = await viewed.conversation().list_messages()
    usages = [row.message.usage_metadata for row in rows if isinstance(row.message, AIMessage)]
    assert [usage and usage["input_tokens"] for usage in usages] == [1, 2, 3]
    assert all(row.stamp for row in rows if isinstance(row.message, AIMessage))


async def test_a_reminder_that_the_application_adds_answers_nothing(
    session: ConvstoreSession,
) -> None:
    """Calls outside a run may be anything: the answer of a finished turn stays its answer."""
    for role, text in (("user", "What?"), ("assistant", "Fish."), ("assistant", "A reminder.")):
        item: Any = {"role": role, "content": text}
        await session.add_items([item])
    rows = await session.conversation().list_messages()
    assert [bool(row.turn_id) for row in rows] == [True, True, False]


async def test_a_run_whose_question_was_removed_goes_on(session: ConvstoreSession) -> None:
    """What it adds is stored, and answers no other question."""
    wrapper: Any = RunContextWrapper(None)
    await session.get_items(wrapper=wrapper)
    await session.add_items([{"role": "user", "content": "What?"}], wrapper=wrapper)
    assert await session.pop_item(wrapper=wrapper)
    await session.add_items([{"role": "assistant", "content": "Fish."}], wrapper=wrapper)
    rows = await session.conversation().list_messages()
    assert [(row.message.text, row.turn_id) for row in rows] == [("Fish.", "")]
