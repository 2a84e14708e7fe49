"""Forks of conversations with everything in them; and a fork whose process is killed."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from programs import killed

from convstore import ConversationStore, HistoryPolicy
from convstore.conversation import Conversation
from convstore.integration import host_of
from convstore.mongo import copies
from convstore.summarization import CompactionRule, HeadTailSummarizer
from convstore.testing import rag_turn
from convstore.testing.fixtures import ahead
from convstore.transfer import export_conversations

pytestmark = pytest.mark.slow

POLICIES = (
    HistoryPolicy(),
    HistoryPolicy(max_tokens=1_500),
    HistoryPolicy(max_tokens=3_000, shorten_over=200),
    HistoryPolicy(max_turns=2),
    HistoryPolicy(view="conversation"),
)


@pytest.fixture
async def store() -> AsyncIterator[ConversationStore]:
    """A store in memory that summarises soon."""
    rule = CompactionRule(
        max_tokens_before_summary=1_500, max_summary_tokens=300, keep_last_turns=1
    )
    async with await ConversationStore.connect(
        "memory://", summarizer=HeadTailSummarizer(rule)
    ) as store:
        await store.setup()
        yield store


async def _turn(chat: Conversation, rng: random.Random, number: int) -> None:
    """Append a turn: in one batch or several, large or small, with parallel calls, or with a sub-agent's sources."""
    turn: list[BaseMessage] = rag_turn(
        f"Q{number} about topic{number}?", words=rng.choice([5, 60, 900])
    )
    if rng.random() < 0.3:
        calls = [{"name": "look", "args": {"at": at}, "id": f"same{at}"} for at in range(2)]
        results = [
            ToolMessage(f"{at} " * rng.choice([1, 900]), tool_call_id=f"same{at}", name="look")
            for at in (1, 0)
        ]
        turn[3:3] = [AIMessage("", tool_calls=calls), *results]
    if rng.random() < 0.3:
        await chat.child(f"agent{number}").append(rag_turn(f"What about child{number}?"))
    if rng.random() < 0.2:
        await chat.reserve_source_ids(2)
    cut = rng.randrange(1, len(turn))
    await chat.append(turn[:cut])
    if rng.random() < 0.5:
        await chat.load_history(rng.choice(POLICIES))
    await chat.append(turn[cut:])


async def _change(chat: Conversation, rng: random.Random, number: int) -> None:
    """Rewind, undo that, answer again, ask otherwise, activate what stood there, load, or summarise."""
    listed = [stored.message for stored in await chat.list_messages(limit=500)]
    questions = [str(message.id) for message in listed if message.type == "human"]
    match rng.randrange(8):
        case 0:
            await chat.rewind(before_id=str(rng.choice(listed[1:]).id))
        case 1:
            await chat.undo_rewind()
        case 2 | 3 if questions:
            asked: dict[str, Any] = {"regenerate": f"v{number}"}
            turn_id = rng.choice(questions[-3:])
            if rng.random() < 0.4:
                asked, turn_id = (
                    {"instead_of": turn_id, "human": f"Other {number}"},
                    f"other{number}",
                )
            async with await chat.turn(turn_id, **asked) as turn:
                await turn.append(rag_turn(f"again {number}?")[1:3])
                if rng.random() < 0.8:
                    await turn.append(AIMessage(f"Again {number}. " * rng.choice([1, 500])))
        case 4 if questions:
            stood = await chat.variants(rng.choice(questions))
            await chat.activate(rng.choice(stood))
        case 5:
            await chat.compact(force=True)
        case 6:
            await chat.undo_compaction()
        case _:
            for policy in POLICIES:
                await chat.load_history(policy)


@pytest.mark.parametrize("seed", range(25))
async def test_a_fork_shows_what_the_conversation_shows_after_a_rewind_to_the_same_place(
    store: ConversationStore, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under every policy, at any message, with summaries, variants, rewinds, large results; verify finds nothing."""
    monkeypatch.setattr(copies, "_MOST_DOCUMENTS", 3)
    rng = random.Random(seed)
    chat = store.conversation(user_id="u", thread_id="t")
    if rng.random() < 0.5:
        await chat.append(SystemMessage("Be kind."))
    for number in range(rng.randrange(2, 9)):
        await _turn(chat, rng, number)
        if rng.random() < 0.5:
            await _change(chat, rng, number)
    before = str(rng.choice(await chat.list_messages(limit=500)).message.id)
    fork = await chat.fork(before_id=before, key="r", new_scope={"user_id": "v", "thread_id": "t"})
    await chat.rewind(before_id=before)
    for number in range(4):
        for policy in rng.sample(POLICIES, len(POLICIES)):
            ours, theirs = await fork.load_history(policy), await chat.load_history(policy)
            assert [*map(_shown, ours.messages)] == [*map(_shown, theirs.messages)], policy
            assert (ours.tokens, ours.summary) == (theirs.tokens, theirs.summary)
        for log in (fork, chat):
            call = AIMessage(
                "",
                id=f"call{number}",
                tool_calls=[{"name": "look", "args": {}, "id": f"c{number}"}],
            )
            result = ToolMessage("Found. " * 900, id=f"result{number}", tool_call_id=f"c{number}")
            said = AIMessage("More. " * 300 * number, id=f"a{number}")
            await log.append([HumanMessage("More?", id=f"m{number}"), call, result, said])
    await _turn(fork, rng, 100)
    assert (await store.verify(user_id="v")).findings == ()
    assert (await store.verify(user_id="u")).findings == ()


def _shown(message: BaseMessage) -> dict[str, Any]:
    """Return what a model is shown; the id of a summary has its version, which counts only those of the fork."""
    return message.model_dump(exclude={"id"})


async def test_a_fork_has_the_leading_system_messages_before_its_end(
    store: ConversationStore,
) -> None:
    """A fork has the leading system messages before its end, and no later one."""
    chat = store.conversation(user_id="u", thread_id="t")
    for number in range(8):
        system = (
            [SystemMessage("Be kind.", id="kind"), SystemMessage("Be brief.", id="brief")]
            if number == 0
            else []
        )
        await chat.append([*system, *rag_turn(f"What about topic{number}?", words=900)])
        for policy in POLICIES:
            await chat.load_history(policy)
    fork = await chat.fork(before_id="brief", key="r", new_scope={"user_id": "v", "thread_id": "t"})
    await fork.append(HumanMessage("What else?"))
    assert [message.text for message in (await fork.load_history()).messages] == [
        "Be kind.",
        "What else?",
    ]


async def test_a_fork_within_an_answer_goes_on_with_it(store: ConversationStore) -> None:
    """A fork that ends within an answer has an unfinished turn, although one append brought the whole answer."""
    chat, steps = store.conversation(user_id="u", thread_id="t"), rag_turn("What about whales?")[1:]
    async with await chat.turn("q", human="What about whales?") as turn:
        await turn.append(AIMessage("First."))
    async with await chat.turn("q", regenerate="again") as turn:
        await turn.append(steps)
    fork = await chat.fork(
        before_id=str(steps[-1].id), key="r", new_scope={"user_id": "v", "thread_id": "t"}
    )
    async with await fork.turn("q") as turn:
        assert turn.is_running
        await turn.append(AIMessage("Better."))
    assert [message.text for message in (await fork.load_history()).messages][-1] == "Better."
    assert (await store.verify()).findings == ()


@pytest.mark.parametrize("form", ["convstore", "openai"])
async def test_an_export_says_where_a_fork_comes_from(store: ConversationStore, form: Any) -> None:
    """The id and the ordinal, never the scope; an import takes the messages."""
    chat = store.conversation(user_id="secret", thread_id="t")
    await chat.append(rag_turn("What about whales?"))
    fork = await chat.fork(key="r", new_scope={"user_id": "bob", "thread_id": "t"})
    lines = list[bytes]()
    await export_conversations(store, lines.append, format=form, scope={"user_id": "bob"})
    origin = (await fork.info()).forked_from
    assert origin is not None
    whole = b"".join(lines)
    head = json.loads(whole if form == "openai" else whole.splitlines()[0])
    assert head["forked_from"] == origin.model_dump()
    assert b"secret" not in whole


async def test_a_killed_fork_is_invisible_until_it_is_repeated_and_its_copy_is_swept(
    own_database: Any, server_uri: str
) -> None:
    """Wherever it dies, there is no fork or a whole one; the same call makes it; an hour later no rest is left."""
    store = ConversationStore(own_database)
    await store.setup()
    chat = store.conversation(user_id="parent", thread_id="t")
    for topic in ("whales", "seals", "walruses"):
        await chat.append(turn := rag_turn(f"What about {topic}?", words=900))
        await chat.annotate(str(turn[0].id), rating=1)
    points = range(1, 16)
    codes = await killed(server_uri, own_database, *(f"fork u{point} {point}" for point in points))
    assert codes[0] == -signal.SIGKILL
    assert codes[-1] == 0
    for point, code in zip(points, codes, strict=True):
        fork = store.conversation(user_id=f"u{point}", thread_id="t")
        assert (await fork.info()).message_count in ((0, 12) if code else (12,))
        assert await chat.fork(key="r", new_scope=fork.scope)
        assert (await fork.load_history()).messages == (await chat.load_history()).messages
    later = await host_of(ConversationStore(own_database, clock=ahead(3_600))).services()
    await later.retention.sweep()
    known = await own_database["heads"].distinct("conversation", {"scope": {"$exists": True}})
    for name in ("log", "annotations"):
        assert sorted(await own_database[name].distinct("conversation")) == sorted(known)
    assert (await store.verify()).ok
