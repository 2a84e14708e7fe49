"""Sums of conversations, on the page of the inspector and by ``convstore sums``: they agree with the API."""

from __future__ import annotations

import asyncio
import html
import io
import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from command_line import convstore, emptied_address
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from rich.console import Console

from convstore import ConversationStore
from convstore.cli.sums import _show as show
from convstore.edges import each_conversation
from convstore.exceptions import InvalidInputError
from convstore.ext.inspector import inspector
from convstore.ext.model_calls import Calls
from convstore.ext.sums import GroupSum, Sums, ToolSum, by_tool, read_back_in
from convstore.integration import log_of
from convstore.messages.tool_calls import result_id
from convstore.testing.samples import new_id, rag_turn
from convstore.types import ConversationInfo, ConversationPage, StoredMessage
from convstore.values.usage import Usage, check_prices, cost_of

PRICE = (3, 15, 0.3, 3.75)
COUNTS: Any = {
    "input_tokens": 1_000,
    "output_tokens": 200,
    "total_tokens": 1_200,
    "input_token_details": {"cache_read": 700, "cache_creation": 100},
}

ONE = Usage(1_000, 200, 1_200, 700, 100)


async def fill(store: ConversationStore) -> None:
    """Five conversations of two users: a rewound answer, a result that is read again, a failed tool, a sub-agent."""
    for number in range(5):
        user = "ada" if number < 3 else "bob"
        chat = store.conversation(user_id=user, thread_id=f"t{number}")
        await chat.append(rag_turn("Orcas?", sources=3))
        call = {"name": "retrieve_previous_sources", "args": {"source_ids": "1-2, 3"}, "id": "c"}
        read = await chat.retrieve_previous_sources_tool().ainvoke({**call, "type": "tool_call"})
        results = [
            AIMessage("", id="asks", tool_calls=[call], usage_metadata=COUNTS),
            read,
            AIMessage("", tool_calls=[{"name": "pay", "args": {}, "id": "d"}]),
            ToolMessage("Timeout", tool_call_id="d", name="pay", status="error"),
        ]
        await chat.append([HumanMessage("Again?"), *results])
        said = AIMessage("So.", id="so", response_metadata={"model_name": "m"})
        await chat.append(said.model_copy(update={"usage_metadata": COUNTS}))
        await chat.update(metadata={"release": "1.4" if number else "1.3"})
    await chat.append(rag_turn("And rays?", sources=2))
    await chat.rewind(before_id="so")
    await chat.child("asks", "c").append(
        [*results[2:], said.model_copy(update={"usage_metadata": COUNTS})]
    )


async def filled(uri: str) -> tuple[list[ConversationInfo], list[list[StoredMessage]]]:
    """The conversations of a database that is filled here, the last a sub-agent's, and the messages of each."""
    async with await ConversationStore.connect(uri) as store:
        await store.setup()
        await fill(store)
        infos = list((await store.list_conversations(everything=True)).conversations)
        infos += await store.conversation(**infos[0].scope).children()
        chats = [store.conversation(**info.scope) for info in infos]
        return infos, [await chat.list_messages(limit=100, full=True) for chat in chats]


@pytest.mark.slow
def test_sums_of_the_command_line_are_those_of_the_api(server_uri: str) -> None:
    """Each figure is computed again from `list_conversations` and the messages."""
    with emptied_address(server_uri) as uri:
        infos, logs = asyncio.run(filled(uri))
        arguments = ["sums", "--uri", uri, "--tools", "--price", "m=3,15,0.3,3.75"]
        done = convstore(*arguments, "--json")
        found = json.loads(done.stdout)
        printed = convstore(*arguments, "--since", "1h", width=120).stdout
        older = convstore("sums", "--uri", uri, "--since", "1m", "--scope", "user_id=eve")
    usages = [Usage(**counts) for info in infos for counts in info.usage.values()]
    together = found["together"]
    for name in Usage._fields:
        assert (
            together[name]
            == sum(getattr(usage, name) for usage in usages)
            == 11 * getattr(ONE, name)
        )
    # of the models only "m" has a price, which wrote half of the answers, and that of the sub-agent
    assert together["cost"] == pytest.approx(6 * cost_of(ONE, PRICE))
    assert {model["name"]: model["input_tokens"] for model in found["models"]} == {
        "m": 6_000,
        "unknown": 5_000,
    }
    # the sub-agent is bob's
    by_user = {group["name"]: group["input_tokens"] for group in found["by"]["user_id"]}
    assert by_user == {"ada": 6_000, "bob": 5_000}
    assert together["tokens_without_price"] == 5 * 1_200
    assert {group["name"]: group["conversations"] for group in found["by"]["user_id"]} == {
        "ada": 3,
        "bob": 2,
    }
    assert "thread_id" not in found["by"]
    assert [group["name"] for group in found["by"]["metadata release"]] == ["1.4", "1.3"]
    tools = {tool["name"]: tool for tool in found["tools"]}
    calls = Counter[str]()
    sizes = {name: list[int]() for name in tools}
    for log in logs:
        for stored in log:
            calls.update(call["name"] for call in getattr(stored.message, "tool_calls", ()))
            if isinstance(stored.message, ToolMessage):
                sizes[stored.message.name or ""].append(stored.tokens)
    for name, tool in tools.items():
        assert (tool["calls"], tool["tokens"]) == (calls[name], sum(sizes[name]))
        assert tool["tokens_p50"] == sorted(sizes[name])[2]
        assert tool["tokens_p95"] == max(sizes[name])
    assert [tools[name]["read_back"] for name in ("search", "pay")] == [5, 0]
    assert tools["retrieve_previous_sources"]["read_back"] == 0
    assert (tools["pay"]["failed"], tools["search"]["failed"]) == (6, 0)
    assert (together["failed"], together["turns"], together["conversations"]) == (6, 10, 5)
    assert together["tokens"] == sum(info.tokens for info in infos)
    children, replaced, _ = found["apart"]
    assert (replaced["number"], replaced["input_tokens"]) == (3, 1_000)
    assert (children["number"], children["output_tokens"]) == (1, 200)
    assert (found["logs_read"], found["logs_not_read"], found["damaged"]) == (5, 0, 0)
    assert re.search(r"all +0\.025 .* 5 +10 ", printed)
    assert re.search(r"pay +6 +6 ", printed)
    assert found["tools"][0]["name"] == "pay"
    assert "Without a price: unknown." in printed
    assert "There are no such conversations." in older.stdout


async def test_the_log_and_a_page_of_messages_say_the_same(store: ConversationStore) -> None:
    """Calls, results, their sizes, and what was read again."""
    await fill(store)
    for number in range(5):
        user = "ada" if number < 3 else "bob"
        chat = store.conversation(user_id=user, thread_id=f"t{number}")
        log = [stored async for stored in log_of(chat).skim() if not stored.is_rewound]
        page = await chat.list_messages(limit=100)
        assert by_tool(log) == by_tool(page)
        assert read_back_in(log) == read_back_in(page) != set()


def call_of(tool: str, id_: str) -> AIMessage:
    """A call under an id that other runs give their calls, too."""
    return AIMessage("", tool_calls=[{"name": tool, "args": {}, "id": "call_1"}], id=id_)


async def test_results_count_for_the_calls_of_their_own_run(store: ConversationStore) -> None:
    """Two runs at once that name their calls alike, and two steps of a run whose results come late."""
    chat = store.conversation(user_id=new_id(), thread_id="t")
    await chat.append([HumanMessage("A?", id="a"), call_of("search", "a1")])
    await chat.append([HumanMessage("B?", id="b"), call_of("pay", "b1")])
    nameless = ToolMessage("Down.", tool_call_id="call_1", status="error")
    await chat.append(nameless, turn="a")
    await chat.append(ToolMessage("Paid.", tool_call_id="call_1"), turn="b")
    late = [
        HumanMessage("C?", id="c"),
        call_of("search", "c1"),
        call_of("pay", "c2"),
        ToolMessage("x", tool_call_id="call_1", id=result_id("c1", "call_1"), status="error"),
        ToolMessage("y", tool_call_id="call_1", id=result_id("c2", "call_1")),
    ]
    await chat.append(late)
    page = await chat.list_messages(limit=100)
    failed = {tool.name: tool.failed for tool in by_tool(page)}
    assert failed == {"search": 2, "pay": 0}
    calls = Calls(page, None)
    assert {call.message_id: call.failed for call in calls.all} == {
        "a1": 1,
        "b1": 0,
        "c1": 1,
        "c2": 0,
    }
    pairs = {(tool.caller, tool.result) for tool in calls.tools().values()}
    assert pairs == {(2, 5), (4, 6), (8, 10), (9, 11)}


async def test_the_page_goes_on_to_the_oldest(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its time is over it says what it covers, and links to the sums of the conversations before these."""
    monkeypatch.setattr("convstore.conversation.host._LISTED", 2)
    monkeypatch.setattr("convstore.ext.inspector.sums_page._SECONDS", 0)
    user = new_id()
    for number in range(5):
        await store.conversation(user_id=user, thread_id=f"t{number}").append(HumanMessage("?"))
    pages = inspector(store, authorize=lambda _: {"user_id": user})
    seen = list[str]()
    path: str | None = "/sums"
    transport = httpx.ASGITransport(pages)
    async with httpx.AsyncClient(transport=transport, base_url="http://inspector") as client:
        while path:
            page = (await client.get(path)).text
            seen += re.findall(r"<h1>Sums</h1><p>([^.<]*)", page)
            if len(seen) < 3:
                assert "<h2>Tools of 1 of 2 conversations, the newest</h2>" in page
                assert "The logs of 1 conversation were not read." in page
                [replaced] = re.findall(r"Replaced answers.*?</tr>", page)
                assert "<td>0</td>" not in replaced
                assert "in 1 of 2 conversations" in replaced
                [link] = re.findall(r'href="(/sums\?[^"]*whole=1)">Read it too', page)
                every = (await client.get(html.unescape(link))).text
                assert "<td>0</td>" in re.findall(r"Replaced answers.*?</tr>", every)[0]
                assert "not read" not in every
            link = re.search(r'href="(/sums\?cursor=[^"]*)"', page)
            path = link and link[1]
        monkeypatch.setattr("convstore.ext.inspector.sums_page._SECONDS", 60)
        whole = (await client.get("/sums?since=1h")).text
    assert seen == [
        "The newest 2 conversations",
        "The 2 conversations before",
        "The 1 conversation before",
    ]
    assert "5 conversations" in whole
    assert "cursor=" not in whole


async def test_the_list_ends_at_its_time() -> None:
    """Conversations may be listed a little out of order, but none far behind the time is read."""
    now = datetime.now(UTC)
    ages = [(1, 30), (59, 90), (61, 80), (5, 200)]

    class Pages:
        read = 0

        async def list_conversations(self, **_: object) -> ConversationPage:
            page = ages[self.read]
            self.read += 1
            dates = [now - timedelta(seconds=age) for age in page]
            infos = [info_of(age, updated_at=date) for age, date in zip(page, dates, strict=True)]
            return ConversationPage(conversations=infos, next_cursor="more")

    store: Any = Pages()
    since = now - timedelta(seconds=60)
    found = [info.scope["user_id"] async for info in each_conversation(store, {}, since=since)]
    assert found == ["u1", "u30", "u59", "u5"]
    assert store.read == 4
    store.read = 0
    since = now - timedelta(seconds=15)
    assert [info async for info in each_conversation(store, {}, since=since)][1:] == []
    assert store.read == 2


def info_of(number: int, **values: Any) -> ConversationInfo:
    """Information about a conversation."""
    return ConversationInfo(scope={"user_id": f"u{number}", "thread_id": "t"}, **values)


def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values that come last are summed together; those without a value are counted from the first on."""
    monkeypatch.setattr("convstore.ext.sums._MOST_GROUPS", 3)
    sums = Sums(["user_id", "thread_id"], {})
    for number in range(9):
        metadata = {"n": number % 2, "a": [1], "b": 2, "c": 3, "d": 4} if number > 4 else {}
        info = info_of(number % 5, metadata=metadata, tokens=10, problem="?" * (number == 8))
        sums.add([info])
    tables = {
        title: {group["name"]: group["conversations"] for group in groups}
        for title, groups in sums.document()["by"].items()
    }
    users = tables["user_id"]
    assert users == {"u0": 2, "u1": 2, "u2": 2, "(others)": 3}
    assert tables["thread_id"] == {"t": 9}
    assert tables["metadata n"] == {"": 5, "1": 2, "0": 2}
    assert "metadata d" not in tables  # the first four fields
    assert "metadata a" not in tables  # no value that is a text or a number
    assert (sums.document()["damaged"], sums.together.tokens) == (1, 90)


def test_tools_that_failed_come_first() -> None:
    """The tool with the most failed results is the first, however seldom it was called."""
    counts = {"alert": (9, 0), "book": (1, 1), "cancel": (2, 2), "draw": (10, 0), "edit": (9, 0)}
    tools = {name: ToolSum(name, calls, failed) for name, (calls, failed) in counts.items()}
    found = [tool.name for tool in by_tool((), tools)]
    assert found == ["cancel", "book", "draw", "alert", "edit"]


def test_a_scope_key_may_have_the_name_of_a_table() -> None:
    """The table of a key named "model" is printed beside that of the models."""
    sums = Sums(["model"], {})
    for _ in range(2):
        sums.add([ConversationInfo(scope={"model": "of a user"}, usage={"gpt": ONE._asdict()})])
    file = io.StringIO()
    show(Console(file=file, width=120), sums.document())
    printed = file.getvalue()
    assert "of a user" in printed
    assert "gpt" in printed


LONG = ["customer-of-the-north-" + "0" * 90 + end for end in ("1", "2")]


def printed(monkeypatch: pytest.MonkeyPatch, prices: Any, *, width: int = 0) -> str:
    """Return the tables for two users whose names differ at their end, on a terminal if it has a width."""
    sums = Sums(["user_id"], prices)
    for name in LONG * 2:
        usage = {"gpt-4o": ONE._asdict(), "gpt-5": ONE._asdict()}
        sums.add([ConversationInfo(scope={"user_id": name}, usage=usage)])
    monkeypatch.setattr("convstore.cli.sums.is_terminal", lambda: bool(width))
    file = io.StringIO()
    show(Console(file=file, width=width or 80), sums.document(), prices)
    return file.getvalue()


def test_names_that_differ_at_their_end_look_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets them whole, in one line; a terminal their beginning and end."""
    piped = printed(monkeypatch, {}).splitlines()
    assert all(any(line.startswith(f"{name} ") for line in piped) for name in LONG)
    shown = re.findall(r"^customer\S*…\S*", printed(monkeypatch, {}, width=100), re.MULTILINE)
    assert [name[-3:] for name in shown] == ["001", "002"]


def test_each_row_says_what_has_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column next to the cost; a price of a model that was never billed is named, and so are those that were."""
    known = printed(monkeypatch, {"gpt-5": PRICE}, width=120)
    assert re.search(r"^ +cost +price +", known, re.MULTILINE)
    assert re.search(r"^all +0\.017 +4\.80k ", known, re.MULTILINE)
    assert re.search(r"^customer\S+ +0\.0084 +2\.40k ", known, re.MULTILINE)
    assert "Without a price: gpt-4o." in known
    assert "Nothing was billed" not in known
    unknown = printed(monkeypatch, {"gpt5": PRICE}, width=120)
    assert "Nothing was billed for: gpt5." in unknown
    assert re.search(r"Without a price: gpt-(4o|5), gpt-(4o|5)\.", unknown)
    assert "cost" not in unknown
    assert "Without a price" not in printed(monkeypatch, {}, width=120)
    assert re.search(
        r"^all +0\.00 ", printed(monkeypatch, {"gpt-5": (0, 0)}, width=120), re.MULTILINE
    )


@pytest.mark.parametrize("percent", [1, 50, 95, 100])
def test_percentiles_are_sizes_of_results(percent: int) -> None:
    """The smallest size that so many percent do not exceed."""
    for number in range(1, 60):
        sizes = [size * size % 97 for size in range(number)]
        tool = ToolSum("t", sizes=Counter(sizes))
        found = tool.percentile(percent)
        assert sum(size <= found for size in sizes) * 100 >= percent * number
        assert sum(size < found for size in sizes) * 100 < percent * number
    assert ToolSum("t").percentile(percent) == 0


def test_a_cache_costs_what_its_price_says() -> None:
    """The full price where there is none; no cost where no token has one."""
    usage = Usage(1_000_000, 100_000, 1_100_000, 700_000, 100_000)
    assert cost_of(usage, (3, 15)) == pytest.approx(4.5)
    assert cost_of(usage, (3, 15, 0.3)) == pytest.approx(0.9 + 0.21 + 1.5)
    assert cost_of(usage, PRICE) == pytest.approx(0.6 + 0.21 + 0.375 + 1.5)
    group = GroupSum("g")
    assert group.document()["cost"] is None
    group.add_billed(usage, None)
    assert group.document()["cost"] is None
    assert group.document()["tokens_without_price"] == 1_100_000


@pytest.mark.parametrize(
    "price", [3, (1,), (1, -1), (1, 2, 3, 4, 5), ("1", 2), (1, float("nan")), (True, 2), (1, 1e999)]
)
def test_a_price_is_two_to_four_numbers(price: Any) -> None:
    """Those of a million tokens in, out, and of input from and to a cache."""
    with pytest.raises(InvalidInputError, match="two to four numbers"):
        check_prices({"m": price})
