"""Every figure of every page is computed again through the API, on generated conversations.

They have other answers, edited questions, rewinds, sub-agents, summaries, images, failed tools, damaged results, and a
last turn that is answered, runs, waits for a person or broke off.
"""

from __future__ import annotations

import base64
import html
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from itertools import takewhile

import httpx
import pytest
from conftest import text_in
from fixture_types import Client
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from properties import soaked

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.conversation.host import host_of
from convstore.ext.inspector import EVERYTHING, inspector
from convstore.messages.tokens import count
from convstore.sources.detection import has_failed
from convstore.summarization import CompactionRule, HeadTailSummarizer
from convstore.testing.samples import new_id, rag_turn
from convstore.types import PastView, StoredMessage, Variant

RULE = CompactionRule(max_tokens_before_summary=500, max_summary_tokens=150, keep_last_turns=2)
POLICIES = (HistoryPolicy(max_tokens=900), HistoryPolicy(max_tokens=2_500, max_turns=6))
PRICE = (2.5, 10, 0.25, 3)
USAGE = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
ENDS = ("answered", "running", "waiting", "broken")
PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(900)).decode()


class Talk:
    """A conversation that a random application makes, with a stamp and the provider's usage for most answers."""

    def __init__(self, store: ConversationStore, pick: random.Random) -> None:
        self.chat = store.conversation(user_id="ada", thread_id=new_id())
        self.policy = pick.choice(POLICIES)
        self.pick = pick
        self.number = 0

    async def make(self, end: str, held: AsyncExitStack) -> Conversation:
        """Make turns of all kinds; the last of them ends in a way."""
        await self.chat.append(SystemMessage("Cite sources by number."))
        await self.chat.append(rag_turn("What is in the whole handbook?", sources=40))
        for _ in range(self.pick.randint(8, 14)):
            kind = self.pick.choice(("rag", "rag", "fail", "image", "again", "edit", "rewind"))
            await self._turn(kind)
            if self.pick.random() < 0.2:
                await self.chat.compact()
        [*_, last] = [stored async for stored in self.chat.messages()]
        *asked, answer = rag_turn("What do krill eat?")
        billed = {"input_tokens": 2_000, "output_tokens": 7, "total_tokens": 2_007}
        said = answer.model_copy(update={"usage_metadata": billed})
        await self.chat.child(str(last.id), "call").append([*asked, said])
        await self._end(end, held)
        return self.chat

    async def _turn(self, kind: str) -> None:
        self.number += 1
        id_ = f"q{self.number}"
        question = f"Question {self.number}? {'Please explain. ' * self.pick.randint(1, 12)}"
        if kind in ("rag", "fail"):
            asked, call, result, answer = rag_turn(question, sources=self.pick.randint(1, 5))
            if kind == "fail" and isinstance(result, ToolMessage):
                result = ToolMessage(
                    "Timeout", tool_call_id=result.tool_call_id, name="search", status="error"
                )
            await self.chat.append(asked)
            await self._say(call)
            await self.chat.append(result)
            await self._say(answer)
            return
        content: list[str | dict[str, str]] = [question]
        if kind == "image":
            content.append({"type": "image", "base64": PICTURE, "mime_type": "image/png"})
        async with await self.chat.turn(id_, human=HumanMessage(content, id=id_)) as turn:
            await turn.load_history(self.policy)
            await turn.append(AIMessage(f"Answer {self.number}.", id=f"a{self.number}"))
        if kind == "again":
            for key in ("x", "y"):
                async with await self.chat.turn(id_, regenerate=f"{id_}{key}") as turn:
                    await turn.append(AIMessage(f"Another {key}.", id=f"a{self.number}{key}"))
        elif kind == "edit":
            edited = f"{id_}e"
            asking = self.chat.turn(edited, human="Rather this.", instead_of=id_)
            async with await asking as turn:
                await turn.append(AIMessage("Edited.", id=f"a{self.number}e"))
        elif kind == "rewind":
            await self.chat.rewind(before_id=f"a{self.number}")

    async def _say(self, message: BaseMessage) -> None:
        """Append an answer; seldom without the stamp of its view."""
        stamp = (await self.chat.load_history(self.policy)).stamp
        billed = self.pick.randint(50, 5_000)
        usage = {
            "input_tokens": billed,
            "output_tokens": 9,
            "total_tokens": billed + 9,
            "input_token_details": {
                "cache_read": self.pick.choice((0, billed // 3)),
                "cache_creation": self.pick.choice((0, billed // 5)),
            },
        }
        said = message.model_copy(update={"usage_metadata": usage})
        await self.chat.append(said, stamp=stamp if self.pick.random() < 0.9 else None)

    async def _end(self, end: str, held: AsyncExitStack) -> None:
        if end == "answered":
            return
        call = AIMessage("", tool_calls=[{"name": "refund", "args": {}, "id": "c"}])
        with suppress(RuntimeError):
            turn = await self.chat.turn("last", human="Refund me?")
            if end == "running":
                await (await held.enter_async_context(turn)).append(call)
                return
            async with turn:
                await turn.append(call)
                if end == "broken":
                    raise RuntimeError("no shop")
                await turn.wait_for(turn.open_calls[0])


@pytest.fixture(
    scope="module",
    params=soaked(range(8), first=4),
    ids=lambda seed: f"{ENDS[seed % 4]}-{seed}",
)
async def made(
    request: pytest.FixtureRequest, pymongo_client: Client, database_name: str
) -> AsyncIterator[tuple[Conversation, httpx.AsyncClient]]:
    """A generated conversation, alone in its store, and a client of the inspector; the last test damages it."""
    seed = request.param
    database = pymongo_client[f"{database_name}_figures_{seed}"]
    summarizer = HeadTailSummarizer(RULE)
    async with (
        ConversationStore(database, summarizer=summarizer) as store,
        AsyncExitStack() as held,
    ):
        await store.setup()
        pick = random.Random(seed)
        chat = await Talk(store, pick).make(ENDS[seed % 4], held)
        pages = inspector(store, authorize=lambda _: EVERYTHING, prices={"unknown": PRICE})
        transport = httpx.ASGITransport(pages)
        async with httpx.AsyncClient(transport=transport, base_url="http://inspector") as client:
            yield chat, client
    await pymongo_client.drop_database(database.name)


async def body(client: httpx.AsyncClient, path: str) -> str:
    """The body of a page that must be there."""
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return html.unescape(answer.text)


def figure(text: str) -> int:
    """A number as pages write it."""
    return int(text.replace(",", ""))


async def whole(chat: Conversation) -> list[StoredMessage]:
    """All messages of the log."""
    return await chat.list_messages(limit=1_000, rewound=True)


def usage_in(stored: StoredMessage) -> tuple[int, int, int, int]:
    """The tokens in, from and to a cache, and out that the provider counted for an answer."""
    usage = getattr(stored.message, "usage_metadata", None) or {}
    details = usage.get("input_token_details", {})
    cached = details.get("cache_read", 0), details.get("cache_creation", 0)
    return usage.get("input_tokens", 0), *cached, usage.get("output_tokens", 0)


def cost_of(billed: list[int]) -> str:
    """What such tokens cost."""
    whole, read, written, out = billed
    numbers = (whole - read - written, out, read, written)
    cost = sum(number * price for number, price in zip(numbers, PRICE, strict=True))
    return shown_cost(cost / 1e6)


def shown_cost(cost: float) -> str:
    """A cost as pages write it: two decimals, or more for two digits that count."""
    decimals = next((number for number in range(2, 12) if cost * 10**number >= 10), 2)
    return f"{cost:,.{decimals}f}"


def tools_in(active: list[StoredMessage]) -> dict[str, list[int]]:
    """Calls, failures, tokens, p50 and p95 of each tool."""
    calls = Counter[str]()
    failed = Counter[str]()
    sizes = defaultdict[str, list[int]](list)
    for stored in active:
        calls.update(call["name"] for call in getattr(stored.message, "tool_calls", ()))
        if isinstance(stored.message, ToolMessage):
            name = stored.message.name or ""
            failed[name] += has_failed(stored.message)
            sizes[name].append(stored.tokens)
    rows = dict[str, list[int]]()
    for name, number in calls.items():
        ranked = [0, *sorted(sizes[name])]
        shares = [ranked[math.ceil((len(ranked) - 1) * percent / 100)] for percent in (50, 95)]
        rows[name] = [number, failed[name], sum(ranked), *shares]
    return rows


def rows_in(page: str) -> dict[int, tuple[str, list[int]]]:
    """What stands at the right edge of each message's own row, and the figures in it, by ordinal."""
    rows = dict[int, tuple[str, list[int]]]()
    for row in page.split('<li class="m')[1:]:
        number = re.match(r'[^>]* id="m(\d+)"', row)
        edge = re.search(r'class="got">(.*?)</(?:p|span)>', row, re.DOTALL)
        if number and edge and not re.search("in summary|left out", edge[1]):
            text = text_in(edge[1])
            rows[int(number[1])] = text, [figure(size) for size in re.findall(r"[\d,]+", text)]
    return rows


def sizes_in(view: PastView, chat: Conversation) -> list[int]:
    """The size of each message of a view, by the store's counter."""
    return [count(chat.store.token_counter, message) for message in view.messages]


@pytest.mark.slow
async def test_the_figures_of_the_list(made: tuple[Conversation, httpx.AsyncClient]) -> None:
    """Turns, tokens, the last call and its share, billed tokens, failed tools, the state."""
    chat, client = made
    stored = await whole(chat)
    active = [message for message in stored if not message.is_rewound]
    row = re.findall(r"<tr><th scope=\"row\".*?</tr>", await body(client, "/"), re.DOTALL)[0]
    cells = [text_in(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
    _, state, turns, tokens, call, billed, failed, _ = cells
    assert figure(turns) == sum(message.turn_id == message.message.id for message in active)
    assert figure(tokens) == sum(message.tokens for message in active)
    stamp = [message.stamp for message in stored if message.stamp][-1]
    assert stamp
    budget = stamp.history_policy.max_tokens
    assert budget
    assert call == f"{stamp.tokens:,} {100 * stamp.tokens // budget} %"
    sums = [sum(counts) for counts in zip(*map(usage_in, stored), strict=True)]
    assert billed == f"{sums[0]:,} / {sums[3]:,}"
    failures = sum(has_failed(message.message) for message in active)
    assert failed == (f"{failures:,}" if failures else "\u2013")
    watching = chat.watch(limit=1)
    turn = (await anext(watching)).turn
    await watching.aclose()
    assert turn
    words = {"running": "running", "waiting": "waits", "interrupted": "broke off"}
    assert state.startswith(words.get(turn.status, state))
    assert bool(state) == (turn.status in words)


@pytest.mark.slow
async def test_the_figures_of_the_sums(made: tuple[Conversation, httpx.AsyncClient]) -> None:
    """What is stored and billed, the cost, the calls of tools, replaced answers and summaries."""
    chat, client = made
    page = await body(client, "/sums")
    cells = {
        text_in(name): [text_in(cell) for cell in re.findall(r"<td.*?</td>", row)]
        for name, row in re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', page, re.DOTALL)
    }
    stored = await whole(chat)
    active = [message for message in stored if not message.is_rewound]
    answers = [message for message in stored if isinstance(message.message, AIMessage)]
    billed = [sum(counts) for counts in zip(*map(usage_in, answers), strict=True)]
    failed = sum(has_failed(message.message) for message in active)
    families = [await chat.info(), *await chat.children()]
    of_children = [
        message
        for child in families[1:]
        for message in await whole(chat.store.conversation(**child.scope))
    ]
    failed += sum(has_failed(message.message) for message in of_children)
    counts = [info.usage.get("unknown", {}) for info in families]
    [billed_by_children] = [[count.get(name, 0) for name in USAGE] for count in counts[1:]]
    billed = [sum(pair) for pair in zip(billed, billed_by_children, strict=True)]
    assert cells["all"] == [
        cost_of(billed),
        *(f"{number:,}" for number in billed),
        "1",
        f"{sum(message.turn_id == message.message.id for message in active):,}",
        f"{sum(message.tokens for message in (*active, *of_children)):,}",
        f"{failed:,}" if failed else "\u2013",
    ]
    assert cells["unknown"] == [*cells["all"][:5], "1"]
    replaced = [message for message in answers if message.is_rewound]
    sums = [sum(usage_in(message)[at] for message in replaced) for at in range(4)]
    [row] = [figures for name, figures in cells.items() if name.startswith("Replaced answers")]
    assert [figure(text.replace("\u2013", "0")) for text in row[1:]] == [*sums, len(replaced)]
    assert row[0] == (cost_of(sums) if any(sums) else "\u2013")
    summaries = await chat.summaries()
    [row] = [figures for name, figures in cells.items() if name.startswith("Summaries,")]
    assert [figure(text) for text in (row[5], row[1], row[4])] == [
        len(summaries),
        sum(summary.tokens_in for summary in summaries),
        sum(summary.tokens_out for summary in summaries),
    ]
    for name, figures in tools_in([*active, *of_children]).items():
        assert [figure(text.replace("\u2013", "0")) for text in cells[name][:5]] == figures
    [row] = [figures for name, figures in cells.items() if name.startswith("Sub-agents")]
    assert row == [
        cost_of(billed_by_children),
        *(f"{number:,}" for number in billed_by_children),
        "1",
    ]


async def test_sums_of_what_is_not_known(store: ConversationStore) -> None:
    """Without usage, or without a price, there is no figure; a sum says which part has no price."""
    usage = {"input_tokens": 600_000, "output_tokens": 1_000, "total_tokens": 601_000}
    cached = usage | {"input_token_details": {"cache_read": 500_000}}
    for user, models in {"ada": ("priced", "other"), "bob": ("other",), "eve": ("",)}.items():
        chat = store.conversation(user_id=user, thread_id=new_id())
        for model in models:
            answer = AIMessage("A.", response_metadata={"model_name": model})
            said = answer
            if model:
                counts = cached if model == "priced" else usage
                said = answer.model_copy(update={"usage_metadata": counts})
            await chat.append([HumanMessage("Q?"), said])
        await store.conversation(user_id=user, thread_id=new_id()).append(HumanMessage("Q?"))
    pages = inspector(store, authorize=lambda _: EVERYTHING, prices={"priced": (1, 20, 0.1)})
    transport = httpx.ASGITransport(pages)
    async with httpx.AsyncClient(transport=transport, base_url="http://inspector") as client:
        page = await body(client, "/sums")
        exported = (await client.get("/list.json")).json()
        assert (await client.get("/list.csv")).text.count("0.17") == 1
    billed = {
        text_in(name): [text_in(cell) for cell in re.findall(r"<td.*?</td>", row)][:5]
        for name, row in re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', page, re.DOTALL)
    }
    cost = "0.17 + 601,000 tokens without a price"
    assert billed["ada"] == [cost, "1,200,000", "500,000", "0", "2,000"]
    assert billed["bob"] == ["\u2013", "600,000", "0", "0", "1,000"]
    assert billed["eve"] == ["\u2013"] * 5
    costs = [
        (row["scope"]["user_id"], row["cost"], row["tokens_without_price"]) for row in exported
    ]
    assert ("bob", None, 601_000) in costs
    assert ("ada", pytest.approx(0.17), 601_000) in costs
    assert billed["priced"][0] == "0.17"
    assert billed["other"][0] == "\u2013"
    assert "a model without a price for its cache pays the full one" in page


@pytest.mark.slow
async def test_the_figures_of_the_overview(made: tuple[Conversation, httpx.AsyncClient]) -> None:
    """Each call has the size of its stamp, its failed results, and the mark that the strip has."""
    chat, client = made
    stored = await whole(chat)
    here = f"/c/{(await chat.info()).conversation_id}"
    page = await body(client, f"{here}/overview")
    rows = {
        int(text_in(name)): [text_in(cell) for cell in re.findall(r"<td.*?</td>", row)]
        for name, row in re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', page, re.DOTALL)
    }
    answers = [message for message in stored if message.message.type == "ai"]
    assert list(rows) == [answer.ordinal for answer in answers][-50:]
    failed = Counter(
        message.message.tool_call_id
        for message in stored
        if isinstance(message.message, ToolMessage) and has_failed(message.message)
    )
    failures = dict[int, int]()
    for answer in answers:
        calls = getattr(answer.message, "tool_calls", ())
        failures[answer.ordinal] = sum(failed[call["id"]] for call in calls)
        tokens, failing, _ = rows[answer.ordinal]
        assert tokens == (f"{answer.stamp.tokens:,}" if answer.stamp else "\u2013")
        assert failing == (str(failures[answer.ordinal]) if any(failed.values()) else "\u2013")
    with_failures = sum(map(bool, failures.values()))
    assert re.search(rf"\b{with_failures} calls? with failed tools", text_in(page))
    causes = [cause for *_, cause in rows.values() if "cache broken" in cause]
    ended = sum("turn ended" in cause for cause in causes)
    summaries = sum("summary made" in cause for *_, cause in rows.values())
    for number, words in (
        (ended, "cache breaks? at a turn"),
        (len(causes) - ended, "other cache breaks?"),
        (summaries, "summar"),
    ):
        assert len(rows) < len(answers) or re.search(rf"\b{number} {words}", text_in(page)), words
    marks = dict[str, str]()
    for answer in (*answers[::12], answers[-1]):  # a strip has fifteen calls
        strip = await body(client, f"{here}?at={answer.ordinal}")
        marks |= dict(re.findall(r'title="Call for message (\d+): (.*?)">', strip))
    assert len(marks) == len(answers)
    for ordinal, title in marks.items():
        happened = rows[int(ordinal)][2].removeprefix("rewound").strip()
        cause = re.search(r"the cache broke \((.*)\)", title)
        assert happened == (f"cache broken: {cause[1]}" if cause else "")
        assert ("a summary was made" in title) == ("summary made" in happened)


@pytest.mark.slow
async def test_the_figures_of_calls(made: tuple[Conversation, httpx.AsyncClient]) -> None:
    """Sizes of the view and its parts, what was billed, the strip, each row, the cache and the messages as sent.

    Of every fourth call and the last one, whose page takes a second with all that it is compared with.
    """
    chat, client = made
    stored = await whole(chat)
    here = f"/c/{(await chat.info()).conversation_id}"
    calls = [message for message in stored if message.message.type == "ai"]
    for call in [*calls[::4], calls[-1], None]:
        at = f"?at={call.ordinal}" if call else ""
        moment = (call.stamp or call.ordinal) if call else None
        has_own = call is not None and call.stamp is not None
        view = await chat.view_at(moment, policy=None if has_own else await chat.last_policy())
        sizes = sizes_in(view, chat)
        page = await body(client, here + at)
        check_head(page, view, sizes, call)
        await check_about(page, chat, stored)
        check_strip(page, view, stored, call)
        check_rows(page, view, sizes, stored)
        check_sent(await body(client, f"{here}/sent{at}"), sizes)
        await check_changes(await body(client, f"{here}/changes{at}"), chat, view, sizes, stored)


def check_head(page: str, view: PastView, sizes: list[int], call: StoredMessage | None) -> None:
    """The size of the view, that of what is stored, its parts, and the provider's own count."""
    text = text_in(page)
    assert view.tokens == sum(sizes)
    found = re.search(r"([\d,]+) of ([\d,]+) tokens counted approximately", text)
    assert found
    assert [figure(found[1]), figure(found[2])] == [view.tokens, view.policy.max_tokens]
    before = view.report.tokens_before
    if saved := max(0, before - view.tokens) * 100 // max(1, before):
        assert f"{saved} % less than the {before:,} stored" in text
    [keys] = re.findall(r'<ul class="keys" aria-label="Parts.*?</ul>', page, re.DOTALL)
    assert sum(map(figure, re.findall(r"<strong>([\d,]+)</strong>", keys))) == view.tokens
    usage = getattr(call.message, "usage_metadata", None) if call else None
    assert ("billed" in text) == bool(usage)
    if usage:
        cached = usage["input_token_details"]["cache_read"]
        written = usage["input_token_details"]["cache_creation"]
        share = f", {cached:,} from the cache" if cached else ""
        share += f", {written:,} to the cache" if written else ""
        shown = re.sub(r" (?=,|;)", "", text)
        words = f"billed: {usage['input_tokens']:,} input{share}; {usage['output_tokens']} output"
        assert words in shown


async def check_about(page: str, chat: Conversation, stored: list[StoredMessage]) -> None:
    """What the conversation and its sub-agent were billed, the share of that one, and the costs."""
    [table] = re.findall(r"Usage by model</caption>.*?</table>", page, re.DOTALL)
    [child] = await chat.children()
    counts = child.usage["unknown"]
    of_child = [counts.get(name, 0) for name in USAGE]
    own = [sum(numbers) for numbers in zip(*map(usage_in, stored), strict=True)]
    billed = [sum(pair) for pair in zip(own, of_child, strict=True)]
    cells = {
        text_in(name): [text_in(cell) for cell in re.findall(r"<td.*?</td>", row)]
        for name, row in re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', table, re.DOTALL)
    }
    assert cells == {
        "unknown": [cost_of(billed), *(f"{number:,}" for number in billed)],
        "sub-agents, of all": [cost_of(of_child), *(f"{number:,}" for number in of_child)],
    }


def check_strip(
    page: str, view: PastView, stored: list[StoredMessage], call: StoredMessage | None
) -> None:
    """Each bar has the size of its stamp; that of the page has the size of the view."""
    stamps = {message.ordinal: message.stamp for message in stored}
    bars = re.findall(r'title="Call for message (\d+): ([\d,]+ tokens|no stamp)', page)
    assert bars
    for ordinal, size in bars:
        stamp = stamps[int(ordinal)]
        if call and call.ordinal == int(ordinal):
            assert size == f"{view.tokens:,} tokens"
        elif stamp is None:
            assert size == "no stamp"
        else:
            assert figure(size.removesuffix(" tokens")) == stamp.tokens == sum(stamp.parts)
    [following] = re.findall(r'title="The next call: ([\d,]+) tokens', page) or ["0"]
    assert call or figure(following) == view.tokens


def check_rows(page: str, view: PastView, sizes: list[int], stored: list[StoredMessage]) -> None:
    """Each message has its stored size, and the one that the model got; a summary says how many it stands for."""
    shown = {message.id: size for message, size in zip(view.messages, sizes, strict=True)}
    by_ordinal = {message.ordinal: message for message in stored}
    for number, (got, counts) in rows_in(page).items():
        message = by_ordinal[number]
        assert counts[0] == message.tokens, (number, got)
        if "\u2192" in got:
            assert counts[1] == shown.get(message.message.id, 0), (number, got)
    ranges = [reason for reason in view.report.reasons if reason.state == "summarised"]
    covered = sum(reason.last - reason.first + 1 for reason in ranges)
    for part, total in re.findall(
        r"</strong>.*?replaces (?:([\d,]+) of )?([\d,]+) messages?:", page
    ):
        assert figure(total) == covered
        assert not part or figure(part) < covered


def check_sent(page: str, sizes: list[int]) -> None:
    """Each message as it was sent has its size, and the sum is that of the view."""
    shown = re.findall(r'</pre><p class="got">([\d,]+)', page)
    assert [figure(size) for size in shown] == sizes[: len(shown)]
    words = re.search(r"([\d,]+) messages?, ([\d,]+) tokens?", text_in(page))
    assert words
    assert [figure(words[1]), figure(words[2])] == [len(sizes), sum(sizes)]


async def check_changes(
    page: str, chat: Conversation, view: PastView, sizes: list[int], stored: list[StoredMessage]
) -> None:
    """What a cache held is the size of the messages with which both calls begin; the three parts are the whole."""
    text = text_in(page)
    found = re.search(
        r"From the cache ([\d,]+) Sent again or in another form ([\d,]+) New ([\d,]+) "
        r"Compared with the call for message (\d+)",
        text,
    )
    if found is None:
        assert "There is no call before this one" in text
        return
    held, again, new = (figure(found[at]) for at in (1, 2, 3))
    assert held + again + new == view.tokens
    [before] = [message for message in stored if message.ordinal == int(found[4])]
    policy = None if before.stamp else await chat.last_policy()
    earlier = await chat.view_at(before.stamp or before.ordinal, policy=policy)
    pairs = zip(earlier.messages, view.messages, strict=False)
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    assert held == sum(sizes[:same])


@pytest.mark.slow
async def test_the_figures_of_the_other_pages(
    made: tuple[Conversation, httpx.AsyncClient],
) -> None:
    """Those of each message and source, of the answers to a question, and of summaries."""
    chat, client = made
    stored = await whole(chat)
    here = f"/c/{(await chat.info()).conversation_id}"
    for message in stored:
        text = text_in(await body(client, f"{here}/messages/{message.ordinal}"))
        [record] = await chat.get_tool_messages([str(message.message.id)])
        assert f"stored {message.tokens:,} token" in text
        assert (f"{len(record.sources):,} source" in text) == bool(record.sources)
        for source in record.sources[:1]:
            page = text_in(await body(client, f"{here}/sources/{source.source_id}"))
            assert f"Source {source.source_id} " in page
        is_question = message.turn_id == message.message.id and not message.is_rewound
        variants = await chat.variants(str(message.message.id)) if is_question else []
        if len(variants) > 1:
            check_answers(await body(client, f"{here}/answers/{message.ordinal}"), variants)
    for summary in await chat.summaries():
        page = await body(client, f"{here}/summaries/{summary.version}")
        text = text_in(page)
        assert f"covers messages {summary.first:,} to {summary.last:,}" in text
        assert f"read {summary.tokens_in:,} token" in text
        assert f"wrote {summary.tokens_out:,} token" in text
        sizes = {message.ordinal: message.tokens for message in stored}
        covered = re.findall(r' id="m(\d+)".*?([\d,]+) tokens?</p></li>', page, re.DOTALL)
        assert covered
        for ordinal, size in covered:
            assert figure(size) == sizes[int(ordinal)]


def check_answers(page: str, variants: list[Variant]) -> None:
    """Each answer has its number among all of them; one of the two that stand side by side is shown."""
    count_ = variants[0].count
    offered = re.findall(r">answer (\d+) of (\d+)(, shown)?</option>", page)
    for number, of, is_shown in offered:
        [variant] = [variant for variant in variants if variant.number == int(number)]
        assert (int(of), bool(is_shown)) == (count_, variant.is_active)
    assert len(offered) == 2 * len(variants)
    sides = re.findall(r"<h2>Answer (\d+) of (\d+) <span[^>]*>(\w+)<", page)
    assert [of for _, of, _ in sides] == [str(count_)] * 2
    assert [state for *_, state in sides].count("shown") == 1


@pytest.mark.slow
async def test_what_is_followed_live_and_what_go_to_leads_to(
    made: tuple[Conversation, httpx.AsyncClient],
) -> None:
    """A turn that runs or waits is followed; each message is on the page that its number leads to."""
    chat, client = made
    here = f"/c/{(await chat.info()).conversation_id}"
    watching = chat.watch(limit=1)
    turn = (await anext(watching)).turn
    await watching.aclose()
    assert turn
    assert ('id="live"' in await body(client, here)) == (turn.status in ("running", "waiting"))
    stored = await whole(chat)
    for message in stored[::7]:
        went = await client.get(here, params={"go": str(message.ordinal)}, follow_redirects=True)
        assert f'id="m{message.ordinal}"' in went.text
        below = re.search(r"; below, messages ([\d,]+) to ([\d,]+)", text_in(went.text))
        assert below or f'id="m{stored[-1].ordinal}"' in went.text
        assert not below or figure(below[1]) <= message.ordinal <= figure(below[2])


@pytest.mark.slow
async def test_the_figures_of_the_tools(made: tuple[Conversation, httpx.AsyncClient]) -> None:
    """Calls, failures and tokens of each tool are those of the messages that are not rewound."""
    chat, client = made
    active = [message for message in await whole(chat) if not message.is_rewound]
    page = await body(client, f"/c/{(await chat.info()).conversation_id}/tools")
    tables = re.search(r'aria-label="By tool".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    table = tables[1] if tables else ""
    rows = [text_in(row).split() for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)]
    found = {
        name: [figure(size.replace("\u2013", "0")) for size in sizes[:3]] for name, *sizes in rows
    }
    assert found == {name: figures[:3] for name, figures in tools_in(active).items()}


@pytest.mark.slow
async def test_a_damaged_result_leaves_the_other_figures_true(
    made: tuple[Conversation, httpx.AsyncClient],
) -> None:
    """The page of the conversation still says the sizes of all messages."""
    chat, client = made
    log = host_of(chat.store).driver.collection("log")
    changed = await log.update_many({"data": {"$exists": True}}, {"$set": {"data": b"x"}})
    stored = {message.ordinal: message for message in await whole(chat)}
    page = await body(client, f"/c/{(await chat.info()).conversation_id}")
    rows = rows_in(page)
    assert changed.modified_count
    assert rows
    for number, (_, counts) in rows.items():
        assert counts[0] == stored[number].tokens
