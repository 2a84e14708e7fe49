"""The clinical assistant on a real server: what the model is shown, and what clients get when things go wrong."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from canary import LOGIN, sign_up
from fastapi import FastAPI
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from programs import ROOT, run_program
from properties import sampled
from pymongo import MongoClient

from convstore import Conversation, ConversationStore, StoreUnavailableError
from convstore.append.inputs import normalize_messages
from convstore.devserver import DevServer
from convstore.messages.tool_calls import calls_of
from convstore.mongo.log import Log
from convstore.runtime import background

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from clinical_assistant import graph
from clinical_assistant.app import app_from_environment, create_app
from clinical_assistant.knowledge import HANDBOOK
from clinical_assistant.model import ScriptedModel

ADA, GRACE = "token-of-ada", "token-of-grace"
DOSE = "How is Velorin given by mouth?"
RASH = "What is to be done about moonlace rash?"


class Site:
    """A running application, and the users who have tokens for it."""

    def __init__(self, app: FastAPI, model: ScriptedModel) -> None:
        self.app, self.model = app, model
        self.session = uuid.uuid4().hex

    @property
    def chat(self) -> Conversation:
        """Ada's session as the application sees it."""
        return self.app.state.assistant.conversation("ada", self.session)

    def client(self, token: str = ADA, **options: Any) -> httpx.AsyncClient:
        """A client without a network."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        transport = httpx.ASGITransport(self.app, **options)
        return httpx.AsyncClient(
            transport=transport, base_url="http://assistant.example", headers=headers
        )

    async def ask(self, request: str, message: str, *, token: str = ADA) -> httpx.Response:
        """Ask something in the session."""
        body = {"session_id": self.session, "message": message}
        async with self.client(token) as client:
            return await client.post("/chat", json=body, headers={"X-Request-ID": request})

    async def get(self, path: str, *, token: str = ADA, **query: Any) -> httpx.Response:
        """Read something."""
        async with self.client(token) as client:
            return await client.get(path.replace("SESSION", self.session), params=query or None)

    async def log(self) -> list[BaseMessage]:
        """All that was appended to the session."""
        return [message async for message in self.chat.messages()]


def new_app(uri: str, model: ScriptedModel) -> FastAPI:
    """The application for Ada and Grace."""
    return create_app(uri, model=model, tokens={ADA: "ada", GRACE: "grace"})


@pytest.fixture
def uri(server_uri: str, database_name: str) -> str:
    """The address of the database of this run."""
    return urlsplit(server_uri)._replace(path=f"/{database_name}_clinical").geturl()


@pytest.fixture
async def new_site(uri: str) -> AsyncIterator[Callable[[], Awaitable[Site]]]:
    """Starts the application, as another process would."""
    async with AsyncExitStack() as stack:

        async def start() -> Site:
            model = ScriptedModel()
            app = new_app(uri, model)
            await stack.enter_async_context(app.router.lifespan_context(app))
            return Site(app, model)

        yield start


@pytest.fixture
async def site(new_site: Callable[[], Awaitable[Site]]) -> AsyncIterator[Site]:
    """A running application; its session is deleted in the end."""
    site = await new_site()
    yield site
    await site.chat.delete()


@pytest.fixture(scope="module", autouse=True)
async def no_trace(pymongo_client: Any, database_name: str) -> AsyncIterator[None]:
    """The database of these tests goes with them."""
    yield
    await pymongo_client.drop_database(f"{database_name}_clinical")


def shown(messages: list[BaseMessage]) -> list[str]:
    """Return the types of messages; stubs are distinguished from results."""
    return [
        "stub" if message.text.startswith('{"success": ') else message.type for message in messages
    ]


@pytest.mark.slow
async def test_the_model_sees_prompt_history_and_this_turn(site: Site) -> None:
    """The first call has the question last; the second call and result, in full; later turns have stubs of it."""
    await site.ask("r1", DOSE)
    await site.ask("r2", RASH)
    first, second, third, fourth = site.model.seen
    assert [shown(messages) for messages in site.model.seen] == [
        ["system", "human"],
        ["system", "human", "ai", "tool"],
        ["system", "human", "ai", "stub", "ai", "human"],
        ["system", "human", "ai", "stub", "ai", "human", "ai", "tool"],
    ]
    assert {messages[0].text for messages in site.model.seen} == {graph.PROMPT}
    assert (first[1].text, first[1].id) == (DOSE, "r1")
    assert HANDBOOK["Velorin, dose"] in second[3].text
    assert "\n\n[1] Velorin, dose\n" in second[3].text
    assert json.loads(third[3].text)["source_ids"] == "1-3"
    assert HANDBOOK["Moonlace rash"] in fourth[7].text
    assert "\n\n[4] Moonlace rash" in fourth[7].text
    assert HANDBOOK["Velorin, dose"] not in str(fourth)


@pytest.mark.slow
async def test_an_old_passage_is_read_again(site: Site) -> None:
    """The stub names the result, the read-back tool gives it, and the answer cites the old number."""
    await site.ask("r1", DOSE)
    answer = await site.ask("r2", "How was the dose again?")
    [call] = site.model.seen[-1][-2].tool_calls
    stub = json.loads(site.model.seen[-2][3].text)
    assert (call["name"], call["args"]) == (
        "retrieve_previous_sources",
        {"tool_message_ids": [stub["tool_message_id"]]},
    )
    assert HANDBOOK["Velorin, dose"] in site.model.seen[-1][-1].text
    assert answer.json()["response"].endswith("at night. [1]")


async def test_a_turn_is_saved_under_its_interaction(site: Site) -> None:
    """Question, call, result and answer, in one turn whose id is that of the request."""
    response = await site.ask("r1", DOSE)
    assert response.json() == {
        "session_id": site.session,
        "interaction_id": "r1",
        "response": "Velorin is given by mouth, 4 mg in the morning and 4 mg at night. [1]",
        "error_message": None,
        "is_repeated": False,
    }
    turn = await site.chat.get_turn("r1")
    assert turn is not None
    assert [message.type for message in turn.messages] == ["human", "ai", "tool", "ai"]
    assert turn.is_finished
    assert turn.messages[-1].text == response.json()["response"]


async def test_the_question_is_in_the_log_before_the_model_is_asked(site: Site, uri: str) -> None:
    """The question is logged before the model is called, so that another process can read it meanwhile."""
    seen: list[list[str]] = []

    async def look(question: str) -> None:
        async with await ConversationStore.connect(
            uri, scope_keys=("user_id", "session_id")
        ) as store:
            chat = store.conversation(**site.chat.scope)
            seen.append([str(message.id) async for message in chat.messages()])

    site.model.before_reply = look
    await site.ask("r1", "hello")
    assert seen == [["r1"]]


async def test_the_user_comes_from_the_token(site: Site) -> None:
    """A user in the body of a request is ignored."""
    body = {"session_id": site.session, "message": "hello", "user_id": "grace"}
    async with site.client() as client:
        assert (
            await client.post("/chat", json=body, headers={"X-Request-ID": "r1"})
        ).status_code == 200
    listed = {
        token: (await site.get("/sessions", token=f"token-of-{token}", limit=100)).json()
        for token in ("ada", "grace")
    }
    found = {
        user: [session["session_id"] for session in page["sessions"]]
        for user, page in listed.items()
    }
    assert (site.session in found["ada"], site.session in found["grace"]) == (True, False)


@pytest.mark.costly
@pytest.mark.parametrize("token", ["", "made up", "token-of-eve", "ada"])
async def test_without_a_token_nothing_is_done(site: Site, token: str) -> None:
    """401, and no trace of the question."""
    for response in (
        await site.ask("r1", DOSE, token=token),
        await site.get("/sessions", token=token),
    ):
        assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert (await site.chat.info()).created_at is None


@pytest.mark.slow
async def test_a_repeated_request_is_answered_from_the_log(
    site: Site, new_site: Callable[[], Awaitable[Site]]
) -> None:
    """By any process, without a call of the model; the log does not grow. Other words under the id are refused."""
    first = await site.ask("r1", DOSE)
    calls = len(site.model.seen)
    other = await new_site()
    other.session = site.session
    for worker in (site, other):
        again = await worker.ask("r1", DOSE)
        assert again.json() == first.json() | {"is_repeated": True}
        assert (await worker.ask("r1", RASH)).status_code == 409
    assert (len(site.model.seen), len(other.model.seen), len(await site.log())) == (calls, 0, 4)


@pytest.mark.slow
async def test_the_same_request_twice_at_once_gets_one_answer(
    site: Site, new_site: Callable[[], Awaitable[Site]]
) -> None:
    """Two processes work on it; one answer is stored, and both clients get that one."""
    other = await new_site()
    other.session = site.session
    both = asyncio.Barrier(2)

    async def meet(question: str) -> None:
        await both.wait()

    site.model.before_reply = other.model.before_reply = meet
    first, second = await asyncio.gather(site.ask("r1", DOSE), other.ask("r1", DOSE))
    assert (first.status_code, first.json()["response"]) == (
        second.status_code,
        second.json()["response"],
    )
    assert first.status_code == 200
    log = await site.log()
    assert [message.type for message in log] == ["human", "ai", "tool", "ai"]
    assert log[-1].text == first.json()["response"]


@pytest.mark.slow
async def test_two_questions_at_once(site: Site) -> None:
    """The later one is answered; the earlier one is refused, as no answer can follow it any more, and stays."""
    asked, answered = asyncio.Event(), asyncio.Event()

    async def wait_for_the_other(question: str) -> None:
        if question == DOSE:
            asked.set()
            await answered.wait()

    site.model.before_reply = wait_for_the_other
    first = asyncio.create_task(site.ask("r1", DOSE))
    await asked.wait()
    second = await site.ask("r2", RASH)
    answered.set()
    refused = await first
    assert (second.status_code, refused.status_code) == (200, 409)
    assert "newest" in refused.json()["detail"]
    assert [message.type for message in await site.log()] == ["human", "human", "ai", "tool", "ai"]
    calls = len(site.model.seen)
    assert (await site.ask("r1", DOSE)).status_code == 409
    assert len(site.model.seen) == calls


@pytest.mark.costly
@pytest.mark.parametrize("steps", sampled([1, 30, *range(100, 1_500, 100)], every=4))
async def test_a_request_that_ends_anywhere_is_repeated(site: Site, steps: Any) -> None:
    """A request that is cancelled at any step can be repeated: question and answer are then in the log once."""
    # opens connections: one that is cancelled in the middle of that leaves a socket
    await site.ask("r0", DOSE)
    await site.chat.delete()
    task = asyncio.create_task(site.ask("r1", DOSE))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await check_that_it_is_repeated(site)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_request_that_ends_with_a_write_is_repeated(
    site: Site, monkeypatch: pytest.MonkeyPatch, number: int, after: bool
) -> None:
    """Before or after each of the three: the question, the numbers of the sources, the answer."""
    insert, writes, ended = Log.insert, itertools.count(), asyncio.Event()

    async def dying_insert(*arguments: Any, **named: Any) -> Any:
        is_last = next(writes) == number
        if not is_last or after:
            size = await insert(*arguments, **named)
        if is_last:
            ended.set()
            await asyncio.Event().wait()
        return size

    monkeypatch.setattr(Log, "insert", dying_insert)
    monkeypatch.setattr(background, "SETTLE_SECONDS", 0.0)  # this insert never ends
    task = asyncio.create_task(site.ask("r1", DOSE))
    await ended.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    monkeypatch.undo()
    log = await site.log()
    assert len(log) == [0, 1, 1, 1, 1, 4][2 * number + after]
    again = await check_that_it_is_repeated(site)
    assert again.json()["is_repeated"] == (len(log) == 4)


async def check_that_it_is_repeated(site: Site) -> httpx.Response:
    """The same request is answered, and the log holds one question and one answer."""
    again = await site.ask("r1", DOSE)
    assert again.status_code == 200
    log = await site.log()
    assert [message.type for message in log] == ["human", "ai", "tool", "ai"]
    assert again.json()["response"] == log[-1].text
    return again


@pytest.mark.slow
async def test_an_unknown_tool_ends_in_a_reply(site: Site) -> None:
    """The user gets a message; every call has a result; the model is not asked a second time."""
    answer = await site.ask("r1", "Please order it.")
    assert answer.json()["response"] == "I cannot do that here: order_medication is not available."
    assert answer.json()["error_message"] == "not available: order_medication"
    assert len(site.model.seen) == 1
    human, call, result, reply = await site.log()
    assert calls_of(call)[0].id == result.tool_call_id
    assert (result.status, reply.text) == ("error", answer.json()["response"])
    assert (await site.chat.load_history()).report.missing_results == ()
    assert human.text == "Please order it."


@pytest.mark.slow
async def test_an_error_of_the_model_is_returned_and_not_saved(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same request asks the model again, and its answer is stored; the next question works, too."""
    answer = await site.ask("r1", "Is there an outage?")
    assert answer.json()["error_message"] == "the model does not answer"
    assert "ConnectionError" not in answer.text
    assert [message.type for message in await site.log()] == ["human"]
    again = await site.ask("r1", "Is there an outage?")
    assert again.json() == answer.json()
    with monkeypatch.context() as over:
        over.setattr("clinical_assistant.model._reply", lambda _: AIMessage("No, all is well."))
        good = (await site.ask("r1", "Is there an outage?")).json()
    assert (good["response"], good["error_message"], good["is_repeated"]) == (
        "No, all is well.",
        None,
        False,
    )
    assert (await site.ask("r1", "Is there an outage?")).json() == good | {"is_repeated": True}
    assert (await site.ask("r2", DOSE)).json()["error_message"] is None


@pytest.mark.slow
async def test_a_model_that_fails_after_a_search_leaves_nothing_behind(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that fails after a search leaves neither call nor result in the log, so the request can be repeated."""
    replies = iter(
        [
            AIMessage(
                "",
                tool_calls=[{"name": "retrieve_knowledge_base", "args": {"query": "x"}, "id": "c"}],
            )
        ]
    )
    with monkeypatch.context() as broken:
        broken.setattr("clinical_assistant.model._reply", lambda _: next(replies))
        assert (await site.ask("r1", DOSE)).json()["error_message"] == "the model does not answer"
    assert [message.type for message in await site.log()] == ["human"]
    assert (await site.ask("r1", DOSE)).json()["error_message"] is None
    assert [message.type for message in await site.log()] == ["human", "ai", "tool", "ai"]


@pytest.mark.slow
async def test_a_history_that_cannot_be_loaded_is_an_error_message(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets a reply with the error, nothing of where the store is, and the model is not asked."""

    async def fail(self: Any, policy: Any = None) -> None:
        raise StoreUnavailableError("mongodb://secret-host does not answer")

    with monkeypatch.context() as broken:
        broken.setattr(Conversation, "load_history", fail)
        answer = await site.ask("r1", "hello")
    assert (answer.status_code, answer.json()["error_message"]) == (
        200,
        "the history of the session cannot be loaded",
    )
    assert "secret-host" not in answer.text
    assert site.model.seen == []
    assert (await site.ask("r1", "hello")).json()["error_message"] is None


async def test_an_error_of_a_tool_is_shown_to_the_model(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call gets a result that says so, and the model answers."""

    def fail(query: str) -> None:
        raise OSError("the index is gone")

    monkeypatch.setattr(graph.retrieve_knowledge_base, "func", fail)
    answer = await site.ask("r1", DOSE)
    assert answer.json()["response"] == "The handbook says nothing about that."
    assert (site.model.seen[-1][-1].status, site.model.seen[-1][-1].text) == (
        "error",
        "OSError: the index is gone",
    )


@pytest.mark.slow
async def test_a_model_that_never_ends_is_stopped(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some rounds of calls there is a reply, and the log is whole."""

    def look_up_again(messages: list[BaseMessage]) -> AIMessage:
        call = {
            "name": "retrieve_knowledge_base",
            "args": {"query": "velorin"},
            "id": f"call_{len(messages)}",
        }
        return AIMessage("", tool_calls=[call])

    monkeypatch.setattr("clinical_assistant.model._reply", look_up_again)
    answer = await site.ask("r1", DOSE)
    assert answer.json()["error_message"] == "more than 4 rounds of tool calls"
    assert len(site.model.seen) == graph.MOST_ROUNDS + 1
    assert [message.type for message in await site.log()] == ["human", *["ai", "tool"] * 5, "ai"]


PATHS = [
    "/sessions/SESSION/history",
    "/sessions/SESSION/audit.jsonl",
    "/sessions/SESSION/fine-tuning.jsonl",
]


@pytest.mark.costly
@pytest.mark.parametrize("path", PATHS)
async def test_a_foreign_session_answers_like_a_missing_one(site: Site, path: Any) -> None:
    """Status and body are the same; deleting it does nothing."""
    await site.ask("r1", "hello")
    foreign = await site.get(path, token=GRACE)
    missing = await site.get(path.replace("SESSION", "no-such-session"))
    assert (foreign.status_code, foreign.content) == (missing.status_code, missing.content)
    assert foreign.status_code == 404
    async with site.client(GRACE) as client:
        assert (await client.delete(f"/sessions/{site.session}")).status_code == 204
    assert (await site.get(path)).status_code == 200


@pytest.mark.costly
@pytest.mark.parametrize(
    ("body", "request_id"),
    [
        ('{"message": "hello"}', "r1"),
        ('{"session_id": "", "message": "hello"}', "r1"),
        ('{"session_id": {"$ne": ""}, "message": "hello"}', "r1"),
        ('{"session_id": "s", "message": ""}', "r1"),
        ('{"session_id": "s", "message": {"$ne": ""}}', "r1"),
        ('{"session_id": "\\ud800", "message": "hello"}', "r1"),
        ('{"session_id": "s", "message": "\\ud800"}', "r1"),
        ('{"\\ud800": 1, "message": "\\ud800"}', "r1"),
        (json.dumps({"session_id": "s" * 600, "message": "hello"}), "r1"),
        (json.dumps({"session_id": "\u6f22" * 128, "message": "hello" * 5_000}), "r1"),
        ('{"session_id": "s", "message": "hello"', "r1"),
        ('{"session_id": "s", "message": "hello"}', None),
        ('{"session_id": "s", "message": "hello"}', ""),
        ('{"session_id": "s", "message": "hello"}', "r" * 600),
    ],
)
async def test_bad_input_is_refused(site: Site, body: Any, request_id: str | None) -> None:
    """422 with a reason, whatever it is; the model is not asked and no session begins."""
    headers = {"Content-Type": "application/json"} | (
        {"X-Request-ID": request_id} if request_id is not None else {}
    )
    async with site.client() as client:
        response = await client.post("/chat", content=body, headers=headers)
        listed = (await client.get("/sessions", params={"limit": 100})).json()["sessions"]
    assert (response.status_code, bool(response.json()["detail"])) == (422, True)
    assert site.model.seen == []
    assert [session for session in listed if session["session_id"][:1] in ("s", "\u6f22")] == []


@pytest.mark.costly
@pytest.mark.parametrize(
    "path",
    [
        "/sessions?cursor=made-up",
        "/sessions?limit=0",
        "/sessions/SESSION/history?cursor=0",
        "/sessions/SESSION/history?cursor=x",
        "/sessions/SESSION/history?cursor=100000000000000000000000",
        "/sessions/SESSION/history?limit=1000000",
        "/sessions/SESSION/audit.jsonl?after=-1",
        "/sessions/SESSION/audit.jsonl?after=100000000000000000000000",
        f"/sessions/{'x' * 600}/history",
    ],
)
async def test_bad_pages_are_refused(site: Site, path: str) -> None:
    """422, also for cursors that nobody gave."""
    await site.ask("r1", "hello")
    assert (await site.get(path)).status_code == 422


@pytest.mark.slow
async def test_sessions_and_history_come_by_pages(site: Site) -> None:
    """All of them, each once; sessions newest first, messages the newest page first, without results of tools."""
    names = [f"{site.session}-{number}" for number in range(5)]
    whole = site.session
    for number, name in enumerate([*names, whole]):
        site.session = name
        for request in range(6 if name == whole else 1):
            await site.ask(f"r{request}", DOSE if request == 2 else f"hello {number}.{request}")
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = (
            await site.get("/sessions", limit=2, **({"cursor": cursor} if cursor else {}))
        ).json()
        found += [session["session_id"] for session in page["sessions"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert sorted(name for name in found if name.startswith(whole)) == sorted([*names, whole])
    assert len(found) == len(set(found))

    reported: list[dict[str, Any]] = []
    before: int | None = None
    while True:
        page = (
            await site.get(
                "/sessions/SESSION/history", limit=3, **({"cursor": before} if before else {})
            )
        ).json()
        reported = page["messages"] + reported
        if (before := page["next_cursor"]) is None:
            break
    assert [message["author"] for message in reported] == ["human", "ai"] * 6
    assert [message["text"] for message in reported][::2] == [
        f"hello 5.{n}" if n != 2 else DOSE for n in range(6)
    ]
    assert [message["ordinal"] for message in reported] == [1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14]
    for name in names:
        await site.app.state.assistant.conversation("ada", name).delete()


@pytest.mark.slow
async def test_good_turns_are_exported_for_fine_tuning(site: Site) -> None:
    """In OpenAI's format, from the prompt to the answer, results in full; failures and look-backs are left out."""
    for request, message in enumerate(
        [DOSE, "hello", "Please order it.", "Is there an outage?", "The dose again?"]
    ):
        await site.ask(f"r{request}", message)
    response = await site.get("/sessions/SESSION/fine-tuning.jsonl")
    assert response.headers["Content-Type"].startswith("application/x-ndjson")
    first, second = map(json.loads, response.text.splitlines())
    assert [message["role"] for message in first["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["retrieve_knowledge_base"]
    [call] = first["messages"][2]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"query": DOSE.lower()}
    assert first["messages"][3]["tool_call_id"] == call["id"]
    assert HANDBOOK["Velorin, dose"] in first["messages"][3]["content"]
    assert (second["messages"][1]["content"], second["tools"]) == ("hello", [])
    turn = await site.chat.get_turn("r0")
    assert turn is not None
    again = normalize_messages(first["messages"])[1:]
    expected = [(message.type, message.text) for message in turn.messages]
    assert [(message.type, message.text) for message in again] == expected


@pytest.mark.slow
async def test_the_audit_trail_has_every_turn(site: Site) -> None:
    """A line has user, time, tools with arguments and outputs, sources used, the answer and errors."""
    for request, message in enumerate([DOSE, "The dose again?", "Is there an outage?"]):
        await site.ask(f"r{request}", message)
    await site.chat.append(HumanMessage("And?", id="r3"))
    lines = [
        json.loads(line)
        for line in (await site.get("/sessions/SESSION/audit.jsonl")).text.splitlines()
    ]
    first, again, failed, open_ = lines
    assert {line["user_id"] for line in lines} == {"ada"}
    assert {line["session_id"] for line in lines} == {site.session}
    turn = await site.chat.get_turn("r0")
    assert turn is not None
    assert (first["interaction_id"], first["at"], first["ordinal"]) == (
        "r0",
        turn.created_at.isoformat(),
        1,
    )
    arguments = {"query": DOSE.lower()}
    output = first["tools"][0].pop("output")
    assert "[1] Velorin, dose" in output
    assert first["tools"] == [
        {
            "tool": "retrieve_knowledge_base",
            "arguments": arguments,
            "status": "success",
            "source_ids": [1, 2, 3],
        }
    ]
    assert (
        first["sources_used"]
        == again["sources_used"]
        == [{"source_id": 1, "title": "Velorin, dose"}]
    )
    assert first["answer"] == turn.messages[-1].text
    assert [tool["tool"] for tool in again["tools"]] == ["retrieve_previous_sources"]
    assert (failed["tools"], failed["error"]) == ([], "no answer")
    assert (open_["answer"], open_["error"]) == (None, "no answer")
    rest = await site.get("/sessions/SESSION/audit.jsonl", after=first["ordinal"])
    assert [json.loads(line) for line in rest.text.splitlines()] == lines[1:]
    end = await site.get("/sessions/SESSION/audit.jsonl", after=open_["ordinal"])
    assert (end.status_code, end.text) == (200, "")


@pytest.mark.slow
async def test_numbers_that_a_model_made_up_are_not_sources(site: Site) -> None:
    """An answer may cite anything; the trail names what there is."""
    await site.ask("r1", DOSE)
    made_up = AIMessage(f"So it is [2] [99] [0] [{10**30}] [x].")
    await site.chat.append([HumanMessage("Is it so?", id="r2"), made_up])
    lines = (await site.get("/sessions/SESSION/audit.jsonl", after=4)).text.splitlines()
    assert [source["source_id"] for source in json.loads(lines[0])["sources_used"]] == [2]


@pytest.mark.slow
async def test_a_session_deleted_during_a_turn_is_not_found(site: Site) -> None:
    """If the session is deleted during a turn, the client gets status 404 and no answer is saved."""

    async def delete(question: str) -> None:
        async with site.client() as client:
            await client.delete(f"/sessions/{site.session}")

    site.model.before_reply = delete
    assert (await site.ask("r1", "hello")).status_code == 404
    assert await site.log() == []


@pytest.mark.slow
async def test_a_store_that_does_not_answer() -> None:
    """503 with a time to come back, and nothing of where the store is; once it answers again all is well."""
    broken = {
        "failCommands": ["aggregate", "find", "insert", "findAndModify", "update"],
        "closeConnection": True,
    }
    with DevServer() as server, MongoClient[dict[str, Any]](server.uri) as admin:
        model = ScriptedModel()
        app = new_app(sign_up(server.uri), model)
        async with app.router.lifespan_context(app):
            site = Site(app, model)
            assert (await site.ask("r1", "hello")).status_code == 200
            admin.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=broken)
            answers = [
                await site.ask("r2", DOSE),
                await site.get("/sessions"),
                *[await site.get(p) for p in PATHS],
            ]
            admin.admin.command("configureFailPoint", "failCommand", mode="off")
            again = await site.ask("r2", DOSE)
    assert {answer.status_code for answer in answers} == {503}
    assert {answer.headers["Retry-After"] for answer in answers} == {"1"}
    assert not any("127.0.0.1" in answer.text for answer in answers)
    assert (again.status_code, again.json()["error_message"]) == (200, None)


@pytest.mark.costly
@pytest.mark.parametrize("where", ["memory", "server"])
def test_the_demonstration_prints_what_happens(where: str, uri: str) -> None:
    """Run as a script it drives itself through all of this, and leaves nothing behind."""
    shown = run_program(
        ROOT / "examples" / "clinical_assistant" / "main.py",
        "memory://" if where == "memory" else uri,
    )
    parts = dict(zip(*[iter(re.split(r"(?m)^(?=\S)(.*):$\n", shown)[1:])] * 2, strict=True))
    titles = [title.partition(",")[0].partition(";")[0].partition(":")[0] for title in parts]
    assert titles == [
        "Ada asks",
        "Grace asks for Ada's session",
        "A request comes again",
        "The server dies while the model thinks",
        "Two questions at once",
        "The history by pages",
        "Exports",
    ]
    asked, foreign, again, died, at_once, pages, exports = parts.values()
    assert "-> 401 no valid token" in asked
    assert (
        asked.count(
            "-> 200 'Velorin is given by mouth, 4 mg in the morning and 4 mg at night. [1]'"
        )
        == 2
    )
    assert '"tool_message_id": "' in asked
    assert re.findall(r"-> (\d+)", foreign) == ["404", "404"]
    assert "at night. [1]', from the log\n  calls of the model for it: 0\n" in again
    assert re.findall(r"-> (\d+)", died) == ["200"]
    assert re.findall(r"-> (\d+)", at_once) == ["200", "409"]
    assert [int(ordinal) for ordinal in re.findall(r"(?m)^ +(\d+) (?:human|ai) ", pages)][-3:] == [
        1,
        4,
        5,
    ]
    assert "4 examples; the first: system, user, assistant, tool, assistant" in exports
    assert "r1 ada-" in exports
    assert "r7 ada-" in exports
    if where == "server":
        with MongoClient[dict[str, Any]](uri) as client:
            assert client.get_default_database()["log"].count_documents({}) == 0


def test_a_server_starts_it_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app is made from the environment without a connection, and keeps no token in plain text."""
    monkeypatch.setenv("CONVSTORE_URI", f"mongodb://{LOGIN}@localhost:1/nowhere")
    monkeypatch.setenv("ASSISTANT_TOKENS", "ada=secret-1, grace=secret-2,=x,y=")
    app = app_from_environment()
    assert sorted(app.state.users.values()) == ["ada", "grace"]
    assert "secret" not in str(vars(app.state))
