"""What the pages say is true: the policy of the application, past views that stay past, sizes of the same moment."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from itertools import pairwise

import httpx
import pytest
from conftest import text_in
from fixture_types import Browse
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore, HistoryPolicy, InvalidInputError
from convstore.cli.demo.conversations import opened_demo
from convstore.ext.inspector import EVERYTHING, inspector
from convstore.testing.samples import new_id, rag_turn
from convstore.types import ViewStamp
from convstore.values.stamps import RequestParts, break_between

SMALL = HistoryPolicy(max_tokens=400, stub_tools="never")


async def talk(
    store: ConversationStore, policy: HistoryPolicy | None, *, turns: int = 6
) -> Conversation:
    """A conversation whose application loads every view under a policy and appends its stamp."""
    chat = store.conversation(user_id="ada", thread_id=new_id())
    for number in range(turns):
        await chat.append(HumanMessage(f"Question {number}? {'Please explain. ' * 12}"))
        stamp = (await chat.load_history(policy)).stamp
        await chat.append(AIMessage(f"Answer {number}."), stamp=stamp)
    return chat


async def address(chat: Conversation) -> str:
    """The path of the page of a conversation."""
    return f"/c/{(await chat.info()).conversation_id}"


async def body(client: httpx.AsyncClient, path: str) -> str:
    """The body of a page that must be there."""
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_the_next_call_is_shown_under_the_policy_of_the_newest_stamp(
    store: ConversationStore, browse: Browse
) -> None:
    """The next call is shown under the policy of the newest stamp, which the application loads too.

    The page of the conversation and the page of a message both name that policy.
    """
    chat = await talk(store, SMALL, turns=9)
    loaded, here = await chat.load_history(SMALL), await address(chat)
    assert loaded.tokens < (await chat.load_history()).tokens
    shown = text_in(await body(browse(), here))
    assert f"{loaded.tokens:,} of 400 tokens" in shown
    named = "max_tokens=400,stub_tools=never, as in the last call"
    assert named in shown
    message = text_in(await body(browse(), f"{here}/messages/1"))
    assert "left out" in message
    assert named in message
    exported = (await browse().get(f"{here}/view.json")).json()
    assert len(exported) == len(loaded.messages)


async def test_without_a_stamp_the_policy_is_that_of_the_store(
    store: ConversationStore, browse: Browse
) -> None:
    """Without a stamp the view has the policy of the store, and the page says that no call has a stamp."""
    store.policy = HistoryPolicy(max_tokens=777)
    chat = store.conversation(user_id="ada", thread_id="plain")
    await chat.append(rag_turn("What about orcas?"))
    assert "max_tokens=777, of the store, as no call has a stamp" in text_in(
        await body(browse(), await address(chat))
    )


async def test_a_policy_that_this_version_does_not_know_is_passed_over(
    store: ConversationStore, browse: Browse
) -> None:
    """The newest stamp that can be read counts."""
    chat = await talk(store, SMALL, turns=2)
    id_ = (await chat.info()).conversation_id
    await chat.append(
        [HumanMessage("And?"), AIMessage("So.")],
        stamp=ViewStamp(conversation_id=id_, policy={"new": 1}),
    )
    assert "max_tokens=400,stub_tools=never" in text_in(await body(browse(), f"/c/{id_}"))


async def test_a_given_policy_is_taken_where_no_call_has_its_own(store: ConversationStore) -> None:
    """For the next call and for moments without a stamp; a stamped call keeps its policy."""
    chat, given = await talk(store, SMALL), HistoryPolicy(max_tokens=200)
    await chat.append(HumanMessage("Last?"))
    transport = httpx.ASGITransport(inspector(store, authorize=lambda _: EVERYTHING, policy=given))
    async with httpx.AsyncClient(transport=transport, base_url="http://inspector") as client:
        here = await address(chat)
        for path in (here, f"{here}?at=13"):
            assert "max_tokens=200, chosen for these pages" in text_in(await body(client, path))
        assert "max_tokens=400,stub_tools=never, that of the call" in text_in(
            await body(client, f"{here}?at=12")
        )
    with pytest.raises(InvalidInputError, match="policy"):
        inspector(store, authorize=lambda _: EVERYTHING, policy=400)


@pytest.mark.slow
async def test_links_of_a_past_view_stay_in_it(
    browse: Browse, chat: Conversation, here: str
) -> None:
    """Links of a past view lead to pages of the same moment, or to pages that are not of a moment.

    The title of a past view names its moment.
    """
    client = browse()
    now = await body(client, here)
    waiting, seen = [f"{here}?at=9"], set[str]()
    while waiting and len(seen) < 60:
        path = waiting.pop()
        seen.add(path)
        page = await body(client, path)
        if "/view.json" in path:
            continue
        links = {
            link.replace("&amp;", "&").partition("#")[0]
            for link in re.findall(r' href="(/c/[^"]+)"', page)
        }
        elsewhere = {link for link in links if "at=9" not in link}
        own = {
            link
            for link in elsewhere
            if link in (here, f"{here}/sent", f"{here}/changes", f"{here}/tools")
            or re.fullmatch(r".*\?at=\d+", link)
        }
        assert elsewhere == own, path
        waiting += links - elsewhere - seen
    assert {text.partition("?")[0].removeprefix(here).rpartition("/")[0] for text in seen} >= {
        "/messages",
        "/sources",
    }
    for tag in ("title", "h1"):
        then = re.search(
            rf"<{tag}[^>]*>(.*?)</{tag}>", await body(client, f"{here}?at=9"), re.DOTALL
        )[1]
        assert "as of message 9" in text_in(then)
        assert then != re.search(rf"<{tag}[^>]*>(.*?)</{tag}>", now, re.DOTALL)[1]


async def test_a_message_opened_from_a_past_view_shows_what_the_model_got_then(
    browse: Browse, store: ConversationStore
) -> None:
    """A result is whole in the view of its turn, and a stub later."""
    chat = store.conversation(user_id="ada", thread_id="then")
    for topic in ("orcas", "seals"):
        for message in rag_turn(f"What about {topic}?"):
            seen = (await chat.load_history()).stamp if message.type == "ai" else None
            await chat.append(message, stamp=seen)
    here, client = await address(chat), browse()
    then, now = [
        text_in(await body(client, f"{here}/messages/3{query}")) for query in ("?at=4", "")
    ]
    assert "What the model got of it for message 4 whole" in then
    assert "What the model gets of it stub" in now
    assert (await client.get(f"{here}/messages/3?at=99")).status_code == 404


async def test_a_search_from_a_past_view_finds_what_was_there(
    browse: Browse, store: ConversationStore
) -> None:
    """No message that came later."""
    chat = store.conversation(user_id="ada", thread_id="search")
    await chat.append([HumanMessage("Orcas?"), AIMessage("Whales.")])
    await chat.append([HumanMessage("More orcas?"), AIMessage("No.")])
    here, client = await address(chat), browse()
    assert '<input type="hidden" name="at" value="2">' in await body(client, f"{here}?at=2")
    assert '#m3"' in await body(client, f"{here}/search?q=orcas")
    assert '#m3"' not in await body(client, f"{here}/search?q=orcas&at=2")


async def test_what_a_page_of_the_log_leaves_out_is_said(
    store: ConversationStore, browse: Browse
) -> None:
    """An image is named there; the page of the message has all of it."""
    chat = store.conversation(user_id="ada", thread_id="image")
    picture = "QUJD" * 300
    await chat.append(
        [
            HumanMessage([{"type": "image", "base64": picture, "mime_type": "image/png"}]),
            AIMessage("A."),
        ]
    )
    here, client = await address(chat), browse()
    log = await body(client, here)
    assert picture not in log
    assert picture in await body(client, f"{here}/messages/1")


@pytest.mark.costly
@pytest.mark.parametrize("failure", ["status", "content", "stub"])
async def test_a_failed_call_is_marked(
    store: ConversationStore, browse: Browse, failure: str
) -> None:
    """By its status or by its content, also once a stub stands for it, at call and result; a good one is not."""
    chat = store.conversation(user_id="ada", thread_id=failure)
    calls = [{"name": "look_up", "args": {}, "id": id_} for id_ in ("bad", "good")]
    text = '{"success": false, "error": "no such order"}' + " " * (
        10_000 if failure == "stub" else 0
    )
    status = "error" if failure == "status" else "success"
    bad = ToolMessage("Timeout" if failure == "status" else text, tool_call_id="bad", status=status)
    good = ToolMessage('{"success": true}', tool_call_id="good")
    await chat.append(
        [HumanMessage("Q?"), AIMessage("", tool_calls=calls), bad, good, AIMessage("A.")]
    )
    here, client = await address(chat), browse()
    rows = (await body(client, here)).split('<li class="m p-')[1:]
    assert [row.count(">failed</span>") for row in rows] == [0, 1, 1, 0, 0]
    for ordinal, is_marked in ((3, True), (4, False)):
        assert (">failed</span>" in await body(client, f"{here}/messages/{ordinal}")) is is_marked


@pytest.fixture
async def lesson() -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """A client of an inspector of the demo's conversations, and the path of the one that has everything."""
    async with opened_demo("memory://") as store:
        listed = await store.list_conversations(everything=True)
        [id_] = [
            info.conversation_id
            for info in listed.conversations
            if (info.title or "").startswith("Machine")
        ]
        transport = httpx.ASGITransport(inspector(store, authorize=lambda _: EVERYTHING))
        async with httpx.AsyncClient(transport=transport, base_url="http://inspector") as client:
            yield client, f"/c/{id_}"


def bars_in(page: str) -> tuple[list[int], list[float]]:
    """The tokens of each bar of the strip, by its title, and the height of each bar as it is drawn."""
    titles = re.findall(r'title="(?:Call|The next)[^:]*: ([\d,]+) tokens', page)
    tokens = [int(size.replace(",", "")) for size in titles]
    tops: dict[int, float] = {}
    for left, top in re.findall(r"M(\d+) ([\d.]+)h18V68h-18z", page):
        tops[int(left)] = min(float(top), tops.get(int(left), 68))
    return tokens, [68 - top for _, top in sorted(tops.items())]


@pytest.mark.slow
async def test_bars_are_to_scale(lesson: tuple[httpx.AsyncClient, str]) -> None:
    """However small a call or a part of it is; the bar of the next call is there whichever call is shown."""
    client, here = lesson
    for query in ("", "?at=3", "?at=7", "?at=18"):
        tokens, heights = bars_in(await body(client, here + query))
        assert len(tokens) == len(heights) == 10, query
        scale = max(heights) / max(tokens)
        assert all(
            abs(high - size * scale) < 0.02 for size, high in zip(tokens, heights, strict=True)
        ), query
        assert tokens[-1] == 467


@pytest.mark.slow
async def test_parts_of_bars_are_to_scale(lesson: tuple[httpx.AsyncClient, str]) -> None:
    """Each is drawn before the parts below it and reaches above them by its size; none is raised to be seen."""
    page = await body(lesson[0], lesson[1] + "?at=18")
    _, heights = bars_in(page)
    paths = re.findall(r'<path class="f-(\w+)" d="([^"]*h18V[^"]*)"', page)
    drawn = {
        part: [float(top) for top in re.findall(r"M229 ([\d.]+)h18V68", path)]
        for part, path in paths
    }
    assert list(drawn) == ["now", "turn", "stub", "summary", "system"]
    tops = [68 - top for [top] in reversed(drawn.values())]
    sizes = {
        "System": 21,
        "Summary, note": 158,
        "Stubs, shortened": 61,
        "Finished turns": 153,
        "Turn in progress": 20,
    }
    for size, low, high in zip(sizes.values(), [0, *tops], tops, strict=False):
        assert abs(high - low - size * max(heights) / 2_017) < 0.02
    assert all(f"{name} <strong>{size}</strong>" in page for name, size in sizes.items())


@pytest.mark.slow
async def test_every_citation_near_a_call_is_a_link(lesson: tuple[httpx.AsyncClient, str]) -> None:
    """Also of a source that is not among the first of its result, and came after the call."""
    client, here = lesson
    for query in ("", "?at=5", "?at=7", "?at=9", "?at=11"):
        prose = " ".join(
            re.findall(r'<div class="prose">.*?</div>', await body(client, here + query), re.DOTALL)
        )
        numbers = re.findall(r"\[(?:<a[^>]*>)?(\d+)", prose.replace("like [3]", ""))
        assert numbers, query
        assert re.findall(r'class="cite"[^>]*>(\d+)', prose) == numbers, query


async def test_links_of_numbers_are_those_of_citations(
    store: ConversationStore, browse: Browse
) -> None:
    """A number that a result without sources counts is none, unless it is a source of the same turn."""
    chat = store.conversation(user_id="ada", thread_id=new_id())
    passages = [
        {"title": f"Seals {n}", "content": f"Seals, part {n}.", "source_id": n} for n in (1, 2)
    ]
    results = {"both": [passages, None], "text": [None]}
    for turn, artifacts in results.items():
        calls = [{"name": "find", "args": {}, "id": f"{turn}-{n}"} for n in range(len(artifacts))]
        found = [
            ToolMessage(
                "[1] Orcas.\n[2] Squid.", artifact=artifact, name="find", tool_call_id=call["id"]
            )
            for call, artifact in zip(calls, artifacts, strict=True)
        ]
        answer = AIMessage("So [1], [2].", id=f"{chat.scope['thread_id']}-{turn}")
        await chat.append([HumanMessage("q"), AIMessage("", tool_calls=calls), *found, answer])
        prose = (await body(browse(), await address(chat))).rpartition('<div class="prose">')[2]
        linked = re.findall(r'class="cite" href="[^"]*/sources/(\d+)', prose)
        cited = [each.source_id for each in await chat.citations(str(answer.id))]
        assert linked == [str(number) for number in cited if number], turn
    assert cited == [None, None]


@pytest.mark.slow
async def test_a_change_is_shown_whole_or_with_an_ellipsis(
    lesson: tuple[httpx.AsyncClient, str],
) -> None:
    """A stub is never cut within its JSON."""
    client, here = lesson
    for at, numbers in ((7, "1-10"), (18, "21-23")):
        shown = html.unescape(await body(client, f"{here}/changes?at={at}"))
        assert f'"source_ids": "{numbers}"}}' in shown
    assert "the part of the work where ex…" in shown


@pytest.mark.slow
async def test_a_lost_cache_says_how_much_held_and_whether_that_is_expected(
    lesson: tuple[httpx.AsyncClient, str],
) -> None:
    """On each tab; what is sent again is told from what is new."""
    client, here = lesson
    for at, held, cause in (
        (7, "68 of 200", "turn ended"),
        (11, "21 of 195", "summary made"),
        (18, "306 of 413", ""),
    ):
        for tab in ("", "/changes"):
            page = text_in(await body(client, f"{here}{tab}?at={at}"))
            assert f"cache broken: {held} tokens held; expected, {cause}" in page
    shown = text_in(await body(client, f"{here}/changes?at=18"))
    assert "From the cache 306 Sent again or in another form 61 New 46" in shown
    assert "held;" not in await body(client, f"{here}?at=14")


async def test_a_cache_that_the_application_lost_is_not_expected(
    store: ConversationStore, browse: Browse
) -> None:
    """Another policy than that of the call before."""
    chat = await talk(store, SMALL, turns=2)
    await chat.append([*rag_turn("Seals?"), HumanMessage("More?")])
    for policy in (SMALL, HistoryPolicy(max_tokens=4_000, media="never")):
        stamp = (await chat.load_history(policy)).stamp
        await chat.append(AIMessage("So."), stamp=stamp)
        await chat.append(HumanMessage("And?"))
    here, client = await address(chat), browse()
    shown = text_in(await body(client, f"{here}?at=12"))
    assert re.search(r"cache broken: \d+ of \d+ tokens held; another policy", shown)
    shown = text_in(await body(client, f"{here}/changes?at=12"))
    assert "as expected" not in shown
    policies = "max_tokens=400,stub_tools=never and is max_tokens=4000,media=never"
    assert f"because the policy was {policies}: messages" in shown


async def test_pages_say_that_prompt_and_tools_are_not_known(
    store: ConversationStore, browse: Browse
) -> None:
    """In a loop of one's own a cache "held" although the prompt changed; with a digest in the stamp that is told."""
    chat = await talk(store, SMALL, turns=2)
    unknown, changes = "The system prompt and the tools of these calls are not", "/changes?at=6"
    await chat.append(HumanMessage("And?"))
    stamp = (await chat.load_history(SMALL)).stamp
    known = stamp.model_copy(update={"beside": RequestParts("digest", 9, 2)})
    await chat.append(AIMessage("So."), stamp=known)
    here, client = await address(chat), browse()
    assert unknown in text_in(await body(client, f"{here}/changes?at=4"))
    assert unknown not in text_in(await body(client, f"{here}{changes}"))


async def test_something_is_left_out_although_the_view_is_hardly_smaller(
    store: ConversationStore, browse: Browse
) -> None:
    """Instead of short turns the model gets a note about them, which has as many tokens."""
    chat = store.conversation(user_id="ada", thread_id="short")
    await chat.append([HumanMessage("Hi"), AIMessage("Ha")])
    await chat.append(HumanMessage("And?"))
    history = await chat.load_history(HistoryPolicy(max_turns=1))
    assert history.report.left_out_turns == 1
    assert history.tokens >= history.report.tokens_before
    await chat.append(AIMessage("So."), stamp=history.stamp)
    shown = text_in(await body(browse(), f"{await address(chat)}?at=4"))
    assert "0 % less than the" in shown
    assert "nothing left out" not in shown


@pytest.mark.slow
async def test_a_stub_of_a_turn_in_progress_is_not_said_to_be_of_a_finished_one(
    store: ConversationStore, browse: Browse
) -> None:
    """A long turn settles its own results."""
    policy = HistoryPolicy(max_tokens=1_200)
    chat = store.conversation(user_id="ada", thread_id="long-turn")
    await chat.append(HumanMessage("Count the seals."))
    for number in range(8):
        call = {"name": "count", "args": {}, "id": f"call-{number}"}
        stamp = (await chat.load_history(policy)).stamp
        await chat.append(AIMessage("", tool_calls=[call]), stamp=stamp)
        await chat.append(ToolMessage("seal " * 300, tool_call_id=f"call-{number}", name="count"))
    here, client = await address(chat), browse()
    pages = [await body(client, f"{here}/changes?at={ordinal}") for ordinal in range(2, 18, 2)]
    assert any("shown by a stub, as its turn is long" in page for page in pages)
    assert not any("turn ended" in page for page in pages)
    assert any("held; expected, results became stubs" in page for page in pages)


async def test_one_cause_of_a_broken_cache_on_every_page(
    store: ConversationStore, browse: Browse
) -> None:
    """A view of a long turn that makes stubs and leaves steps out begins to differ at the note: steps were left out.

    A result that is left out has no size in the view.
    """
    chat = store.conversation(user_id="ada", thread_id="steps-left-out")
    policy = HistoryPolicy(max_tokens=1_200)
    await chat.append(HumanMessage("Count the seals."))
    for number in range(5):
        call = {"name": "count", "args": {}, "id": f"call-{number}"}
        stamp = (await chat.load_history(policy)).stamp
        await chat.append(AIMessage("", tool_calls=[call]), stamp=stamp)
        await chat.append(ToolMessage("seal " * 300, tool_call_id=f"call-{number}", name="count"))
    stamp = (await chat.load_history(policy)).stamp
    await chat.append(AIMessage("Five."), stamp=stamp)
    here, client = await address(chat), browse()
    cause = "older steps left out"
    page = text_in(await body(client, f"{here}/changes?at=12"))
    assert re.search(r"can come from it, because messages \d to \d are now left out", page)
    assert f"held; expected, {cause}" in page
    assert f"12 ({cause})" in page
    assert f"cache broken: {cause}" in text_in(await body(client, f"{here}/overview"))
    tools = text_in(await body(client, f"{here}/tools?at=12"))
    for path, calls in ((here, (2, 4)), (f"{here}/messages/4", (4,)), (f"{here}/messages/3", ())):
        links = re.findall(
            r'at=(\d+)">What the model got for this: call (\d+)<', await body(client, path)
        )
        assert links == [(str(call), str(call)) for call in calls]
    part = text_in(await body(client, f"{here}?after=3&at=12"))
    assert re.search(r"Left out : 2 of 4 messages: left out 405 → \d+ for all 4 ", part)
    left_out = re.findall(r"\d count left out 382 (\S+)", tools)
    shown = re.findall(r"\d count (?:whole|stub) 382 (\d+)", tools)
    assert left_out == ["\u2013", "\u2013"]
    assert f"count 5 \u2013 1,910 {sum(map(int, shown))} 0" in tools


async def test_a_turn_that_ended_is_named_where_no_text_was_shortened(
    store: ConversationStore,
) -> None:
    """The mark of shortened turns moves over turns with short texts alone: their results became stubs."""
    chat = store.conversation(user_id="ada", thread_id="short-texts")
    policy = HistoryPolicy(max_tokens=600)
    stamps = list[ViewStamp]()
    for number in range(4):
        call = {"name": "look", "args": {}, "id": f"call-{number}"}
        said = [AIMessage("", tool_calls=[call]), AIMessage("Fish. " * 15)]
        await chat.append(HumanMessage("What do seals eat? " * 20))
        for answer in said:
            history = await chat.load_history(policy)
            assert not history.report.shortened
            stamps.append(history.stamp)
            await chat.append(answer, stamp=history.stamp)
            if answer.tool_calls:
                await chat.append(ToolMessage("seal " * 560, tool_call_id=f"call-{number}"))
    causes = [break_between(before, after) for before, after in pairwise(stamps)]
    assert any(old.marks.short_through != new.marks.short_through for old, new in pairwise(stamps))
    assert set(causes) == {"", "turn ended", "turns left out"}


async def test_the_headline_is_about_the_change_that_the_badge_names(
    store: ConversationStore, browse: Browse
) -> None:
    """An earlier text is shortened, too, but the note stands before it in the view."""
    chat = store.conversation(user_id="ada", thread_id="two-changes")
    policy = HistoryPolicy(max_tokens=1_200)
    await chat.append([HumanMessage("What do seals eat?"), AIMessage("fish " * 300)])
    await chat.append(HumanMessage("Count the seals."))
    for number, words in enumerate((150, 150, 150, 520)):
        call = {"name": "count", "args": {}, "id": f"call-{number}"}
        stamp = (await chat.load_history(policy)).stamp
        await chat.append(AIMessage("", tool_calls=[call]), stamp=stamp)
        await chat.append(ToolMessage("seal " * words, tool_call_id=str(call["id"]), name="count"))
    page = text_in(await body(browse(), f"{await address(chat)}/changes"))
    assert "held; expected, older steps left out" in page
    assert "because messages 4 to 7 are now left out" in page


async def test_the_next_call_after_an_answer_has_the_stubs_of_a_turn_that_ended(
    store: ConversationStore, browse: Browse
) -> None:
    """Also while nobody has asked again: the turn is over, whether long or not."""
    chat = store.conversation(user_id="ada", thread_id="ended-turn")
    *turn, answer = rag_turn("Seals?")
    await chat.append(turn)
    await chat.append(answer, stamp=(await chat.load_history()).stamp)
    page = text_in(await body(browse(), f"{await address(chat)}/changes"))
    assert "held; expected, turn ended" in page
    assert "shown by a stub, as its turn ended" in page


async def test_what_stands_in_the_place_of_a_rewound_message_is_linked(
    store: ConversationStore, browse: Browse
) -> None:
    """Another answer or another question, both ways; nothing is said of what went back to another kind."""
    chat = store.conversation(user_id="ada", thread_id="rewound")
    await chat.append([HumanMessage("Seals?", id="q"), AIMessage("No.", id="wrong")])
    await chat.rewind(before_id="wrong")
    await chat.append([AIMessage("Yes."), HumanMessage("Whales?", id="edited"), AIMessage("Big.")])
    await chat.rewind(before_id="edited")
    await chat.append([HumanMessage("Orcas?"), AIMessage("Black.", id="last")])
    await chat.rewind(before_id="last")
    await chat.append(HumanMessage("And krill?"))
    page = await body(browse(), await address(chat))
    rows = dict(re.findall(r'<li class="m p-\w+" id="m(\d+)">(.*?)</li>', page, re.DOTALL))
    links = {
        int(at): re.findall(r'(Another \w+)[^<]*<a href="#m(\d+)">', row)
        for at, row in rows.items()
    }
    expected = {2: ("Another answer", "3"), 3: ("Another answer", "2")}
    expected |= {4: ("Another question", "6"), 6: ("Another question", "4")}
    assert {at: found[0] for at, found in links.items() if found} == expected


@pytest.mark.slow
async def test_a_call_without_a_result_is_explained(lesson: tuple[httpx.AsyncClient, str]) -> None:
    """Where the placeholder stands: it is in the view only."""
    client, here = lesson
    shown = text_in(await body(client, here))
    assert "The agent stopped before the result was recorded" in shown
    assert "Only the view has this message." in shown
    assert "no result, only in the view" in text_in(await body(client, f"{here}/sent"))
    changes = text_in(await body(client, f"{here}/changes"))
    assert "No result was recorded for this call. The agent stopped before" in changes
    assert "missing_result" not in changes


async def test_an_answer_among_several_has_its_number_and_a_page_with_all(
    store: ConversationStore, browse: Browse
) -> None:
    """The middle one that is shown is "answer 2 of 3"; any two of them stand side by side, with their messages."""
    chat = store.conversation(user_id="ada", thread_id="variants")
    async with await chat.turn("q", human="What do orcas eat?") as turn:
        await turn.append(AIMessage("Fish.", id="first"))
    for key in ("second", "third"):
        async with await chat.turn("q", regenerate=key) as turn:
            await turn.append(AIMessage(f"Answer {key}.", id=key))
    await chat.activate((await chat.variants("q"))[1])
    here, client = await address(chat), browse()
    shown = text_in(await body(client, here))
    assert "Answer second. Answer 2 of 3: compare the answers" in shown
    assert shown.count("One of 3 answers: compare the answers") == 2
    both = text_in(await body(client, f"{here}/answers/1"))
    assert "Answer 1 of 3 hidden" in both
    assert "2 model Fish." in both
    assert "Answer 2 of 3 shown" in both
    assert "Answer second." in both
    others = text_in(await body(client, f"{here}/answers/1?first=3&second=1"))
    assert others.index("Answer third.") < others.index("Fish.")
    for path in ("/answers/2", "/answers/9", "/answers/1?first=4"):
        assert (await client.get(here + path)).status_code == 404, path
