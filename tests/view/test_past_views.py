"""Past views: exactly as they were, from a stamp or as of a message, whatever happened to the conversation since."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from convstore import Conversation, ConversationStore, HistoryPolicy, InvalidInputError
from convstore.conversation.turn_access import TurnAccess
from convstore.exceptions import CorruptDocumentError, UnknownMessageError
from convstore.summarization import CompactionRule, HeadTailSummarizer
from convstore.testing.samples import new_id, rag_turn
from convstore.values.stamps import ViewStamp, write_stamp
from convstore.view import past

RULE = CompactionRule(max_tokens_before_summary=200, max_summary_tokens=100, keep_last_turns=2)
SMALL = HistoryPolicy(max_tokens=700)


@pytest.fixture
async def store(database: Any) -> AsyncIterator[ConversationStore]:
    """A store that can summarise."""
    async with ConversationStore(database, summarizer=HeadTailSummarizer(RULE)) as store:
        await store.setup()
        yield store


def other_process(store: ConversationStore, database: Any, **options: Any) -> ConversationStore:
    """A store that has nothing in its cache."""
    return ConversationStore(database, **options)


async def test_a_stamp_gives_the_view_again_whatever_came_later(
    store: ConversationStore, chat: Conversation, database: Any
) -> None:
    """Appends, a compaction, an undo and a rewind leave it as it was."""
    await chat.append(SystemMessage("Be brief."))
    for number in range(4):
        await chat.append(rag_turn(f"Question {number}?"))
    await chat.append(HumanMessage("And now?", id="now"))
    history = await chat.load_history()
    stamp = history.stamp
    await chat.append(AIMessage("Well.", id="answer"), stamp=stamp)
    await chat.compact(force=True)
    await chat.append(rag_turn("Later?"))
    await chat.rewind(before_id="now")
    other = other_process(store, database).conversation(**chat.scope)
    past = await other.view_at(stamp)
    assert (past.match, past.messages, past.tokens) == ("exact", history.messages, history.tokens)
    assert past.stamp == stamp
    [answer] = [
        message
        for message in await other.list_messages(rewound=True)
        if message.message.id == "answer"
    ]
    assert answer.stamp == stamp
    assert len(write_stamp(stamp)) < 300


async def test_the_parts_of_a_view_know_the_turn_in_progress(chat: Conversation) -> None:
    """A note after an answer opens no turn, and what a user adds to a turn in progress is in it."""
    await chat.append([HumanMessage("Orcas?", id="q1"), AIMessage("Yes.")])
    await chat.append(SystemMessage("The user is in a hurry."))
    over = (await chat.load_history()).stamp
    assert over is not None
    assert (over.parts.now, over.parts.turn > 0) == (0, True)
    call = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c"}])
    await chat.append([HumanMessage("Where?", id="q2"), call])
    before = (await chat.load_history()).stamp
    await chat.append(HumanMessage("Look to the north."), turn="q2")
    now = (await chat.load_history()).stamp
    assert before is not None
    assert now is not None
    assert now.parts.turn == before.parts.turn == over.parts.turn
    assert now.parts.now > before.parts.now > 0


async def test_a_stamp_shares_nothing_with_later_ones(chat: Conversation) -> None:
    """Each load returns its own stamp, so that a caller may change the policy in it."""
    policy = HistoryPolicy(never_stub={"search"})
    for _ in range(2):
        stamp = (await chat.load_history(policy)).stamp
        assert stamp.policy == {"never_stub": ["search"]}
        stamp.policy["never_stub"].append("another")


@pytest.mark.slow
async def test_every_load_has_a_stamp_and_the_view_of_now_is_the_load(
    store: ConversationStore, chat: Conversation
) -> None:
    """Every load has a stamp, even before the first message, and view_at() without a stamp equals the load."""
    stamp = (await chat.load_history()).stamp
    assert (stamp.conversation_id, stamp.entry) == ("", 0)
    assert ((await chat.view_at(stamp)).match, (await chat.view_at()).messages) == ("exact", [])
    for number in range(6):
        await chat.append(rag_turn(f"Question {number}?"))
        for policy in (None, SMALL, HistoryPolicy(view="conversation"), HistoryPolicy(max_turns=2)):
            history, past = await chat.load_history(policy), await chat.view_at(policy=policy)
            assert past.messages == history.messages
            assert past.stamp == history.stamp
            assert past.match == "rebuilt"
    assert pickle.loads(pickle.dumps(history)).stamp == history.stamp  # noqa: S301 - our own


@pytest.mark.slow
async def test_a_message_gives_the_view_directly_after_its_batch(
    store: ConversationStore, chat: Conversation
) -> None:
    """Named by id or by ordinal; a message in the middle gives the end of its batch."""
    seen = {}
    for number in range(3):
        turn = rag_turn(f"Question {number}?")
        receipt = await chat.append(turn)
        history = await chat.load_history()
        for id_, ordinal in zip(receipt.message_ids, receipt.ordinals, strict=True):
            seen[id_] = seen[ordinal] = history.messages
        await chat.compact(force=True)
    for at, messages in seen.items():
        assert (await chat.view_at(at)).messages == messages, at


@pytest.mark.slow
async def test_without_a_stamp_the_moves_of_that_time_count(
    store: ConversationStore, chat: Conversation, database: Any
) -> None:
    """A view by ordinal is the one that was loaded then, though the record moved on; beyond 32 moves it says so."""
    policy, loaded = HistoryPolicy(max_tokens=600), dict[int, Any]()
    for number in range(60):
        await chat.append([HumanMessage(f"q{number} " * 30), AIMessage(f"a{number} " * 60)])
        loaded[2 * number + 2] = (await chat.load_history(policy)).messages
    past = {
        at: await other_process(store, database)
        .conversation(**chat.scope)
        .view_at(at, policy=policy)
        for at in loaded
    }
    assert all(past[at].messages == loaded[at] for at in loaded if not past[at].is_first_use)
    assert not past[120].is_first_use
    assert len({past[at].messages[1].id for at in loaded if not past[at].is_first_use}) >= 5


async def test_a_summary_of_another_store_counts_from_the_last_entry_that_it_saw(
    store: ConversationStore, chat: Conversation, database: Any
) -> None:
    """A store that compacts need not have appended, or known of, the last entries."""
    other = other_process(store, database, summarizer=HeadTailSummarizer(RULE)).conversation(
        **chat.scope
    )
    await chat.append(rag_turn("Question 0?"))
    await other.load_history()
    for number in range(1, 4):
        receipt = await chat.append(rag_turn(f"Question {number}?"))
    seen = (await chat.load_history()).messages
    await other.compact(force=True)
    assert (
        (await chat.view_at(receipt.last)).messages == seen != (await chat.load_history()).messages
    )


async def test_reasons_cover_every_message(store: ConversationStore, chat: Conversation) -> None:
    """In order, without gaps or overlaps, with the summary's version and the limit."""
    await chat.append(SystemMessage("Be brief."))
    for number in range(3):
        await chat.append(rag_turn(f"Question {number}?"))
    await chat.compact(force=True)
    for number in range(3, 9):
        await chat.append(rag_turn(f"Question {number}?"))
    await chat.append([HumanMessage("Now?", id="now"), AIMessage("Wrong", id="wrong")])
    await chat.rewind(before_id="wrong")
    past = await chat.view_at(policy=SMALL)
    reasons = past.report.reasons
    assert reasons[0].first == 1
    assert reasons[-1].last == past.ordinal == (await chat.list_messages(rewound=True))[-1].ordinal
    assert all(reason.last + 1 == two.first for reason, two in pairwise(reasons))
    assert [reason.state for reason in reasons][:3] == ["whole", "summarised", "left_out"]
    assert reasons[-1].state == "rewound"
    assert reasons[1].summary == 1
    assert reasons[2].limit == "max_tokens"
    assert {reason.state for reason in reasons} >= {"stub"}
    shown = [
        message
        for message in past.messages
        if not (message.additional_kwargs or {}).get("convstore")
    ]
    counted = sum(
        reason.last - reason.first + 1 for reason in reasons if reason.state in ("whole", "stub")
    )
    assert counted == len(shown)


@pytest.mark.slow
async def test_reasons_are_paged(
    store: ConversationStore, chat: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last ranges come first; each page names the one before it, and together they cover the log."""
    assert past._MAX_REASONS == 500
    monkeypatch.setattr(past, "_MAX_REASONS", 25)
    for number in range(30):
        await chat.append(
            [HumanMessage(f"q{number}", id=f"q{number}"), AIMessage("a", id=f"a{number}")]
        )
        await chat.rewind(before_id=f"a{number}")
    whole, before = [], None
    for _ in range(9):
        report = (
            await chat.view_at(policy=HistoryPolicy(max_tokens=None), reasons_before=before)
        ).report
        whole[:0] = report.reasons
        before = report.reasons_before
        if before is None:
            break
    assert [message.first for message in whole] == list(range(1, 61))


async def test_another_counter_is_named(
    store: ConversationStore, chat: Conversation, database: Any
) -> None:
    """A view that differs says so if another counter may have changed it."""
    for number in range(8):
        await chat.append(rag_turn(f"Question {number}?"))
    stamp = (await chat.load_history(SMALL)).stamp

    def longer(messages: Any) -> Any:
        return 400 * len(messages)

    other = other_process(store, database, token_counter=longer, token_counter_name="longer")
    past = await other.conversation(**chat.scope).view_at(stamp.model_copy(update={"digest": "x"}))
    assert (past.match, past.difference) == ("differs", "counter")
    past = await other.conversation(**chat.scope).view_at(stamp)
    assert (past.match, past.difference) == ("exact", "")  # the stamp says what is shown
    again = await chat.view_at(stamp)
    assert (again.match, again.difference) == ("exact", "")


async def test_an_adapted_view_is_named(store: ConversationStore, chat: Conversation) -> None:
    """A middleware that shortened it marks its stamp."""
    await chat.append(rag_turn("Question?"))
    stamp = (await chat.load_history()).stamp.model_copy(
        update={"adapted": True, "digest": "0" * 32}
    )
    past = await chat.view_at(stamp)
    assert (past.match, past.difference) == ("differs", "adapted")


async def test_another_format_is_named(store: ConversationStore, chat: Conversation) -> None:
    """A stamp of another view format is reported as a difference, as after an upgrade with other rules."""
    await chat.append(rag_turn("Question?"))
    stamp = (await chat.load_history()).stamp.model_copy(update={"format": 0, "digest": "0" * 32})
    assert (await chat.view_at(stamp)).difference == "view format"


class Unregistered:
    """A value that only the application knows."""


async def test_a_type_that_is_not_registered_is_named(
    store: ConversationStore, chat: Conversation, database: Any
) -> None:
    """A value of a type that is not registered is reported as a difference, and all messages are shown."""
    store.register_artifact_type(Unregistered, dump=lambda _: 1, load=lambda _: Unregistered())
    message = HumanMessage("Look at this", additional_kwargs={"value": Unregistered()}, id="q")
    await chat.append([message, AIMessage("Yes.", id="a")])
    stamp = (await chat.load_history()).stamp
    past = await other_process(store, database).conversation(**chat.scope).view_at(stamp)
    assert (past.match, past.difference) == ("differs", "type")
    assert [message.text for message in past.messages] == ["Look at this", "Yes."]


async def test_of_a_deleted_conversation_it_answers_as_for_a_missing_one(
    store: ConversationStore, chat: Conversation
) -> None:
    """view_at() in a deleted conversation raises UnknownMessageError, as in a missing one.

    A stamp of another conversation and a missing message raise the same error.
    """
    await chat.append(HumanMessage("Hi", id="hi"))
    stamp = (await chat.load_history()).stamp
    await chat.delete()
    missing = store.conversation(user_id="ada", thread_id=new_id())
    for at in (stamp, "hi", 1):
        for conversation in (chat, missing):
            with pytest.raises(UnknownMessageError):
                await conversation.view_at(at)
    await chat.append(HumanMessage("Hi", id="again"))
    for at in (stamp, "hi", 2):
        with pytest.raises(UnknownMessageError):
            await chat.view_at(at)


async def test_a_view_before_the_first_message_is_compared_like_any_other(
    chat: Conversation,
) -> None:
    """A stamp of messages that the log never had is not exact, whatever entry it names."""
    await chat.update(title="Empty")
    empty = await chat.load_history()
    asked = empty.stamp_for([HumanMessage("Not stored.")])
    await chat.append(HumanMessage("Hi"))
    assert (await chat.view_at(empty.stamp)).match == "exact"
    assert (await chat.view_at(empty.stamp, policy=SMALL)).match == "rebuilt"
    past = await chat.view_at(asked)
    assert (past.match, past.difference, past.messages) == ("differs", "log", [])


@pytest.mark.costly
@pytest.mark.parametrize(
    "change", [{"entry": 9}, {"entry": -1}, {"summary": "none"}, {"entry": 0, "summary": "none"}]
)
async def test_a_stamp_of_what_never_was_is_unknown_not_damage(
    store: ConversationStore, chat: Conversation, database: Any, change: dict[str, Any]
) -> None:
    """The error says so, in a store that read the log before and in one that did not."""
    await chat.append(HumanMessage("Hi"))
    stamp = (await chat.load_history()).stamp.model_copy(update=change)
    for conversation in (chat, other_process(store, database).conversation(**chat.scope)):
        with pytest.raises(UnknownMessageError, match="never had a view with this stamp"):
            await conversation.view_at(stamp)


async def test_a_view_whose_summary_is_lost_is_damage(
    store: ConversationStore, chat: Conversation, database: Any
) -> None:
    """The state knows that there was one."""
    for number in range(3):
        await chat.append(rag_turn(f"Question {number}?"))
    await chat.compact(force=True)
    stamp = (await chat.load_history()).stamp
    await database["summaries"].delete_one({"token": stamp.summary})
    with pytest.raises(CorruptDocumentError, match="the summary of a past view is missing"):
        await other_process(store, database).conversation(**chat.scope).view_at(stamp)


@pytest.mark.costly
@pytest.mark.parametrize(
    "change",
    [
        *({name: "x\ud800"} for name in ("conversation_id", "summary", "counter", "digest")),
        {"policy": {"never_stub": ["\ud800"]}},
        {"policy": {"never_stub": object()}},
        {"entry": "1"},
        {"counter": "x" * 4_000},
        *({name: -1} for name in ("ordinal", "messages", "thinking_through")),
    ],
)
async def test_a_stamp_that_can_not_be_stored_is_refused(chat: Conversation, change: Any) -> None:
    """A stamp with text that UTF-8 cannot encode, or with numbers that no reader takes, is refused before any write."""
    await chat.append(HumanMessage("Hi", id="q"))
    stamp = (await chat.load_history()).stamp.model_copy(update=change)
    async with await chat.turn("q") as turn:
        answer = AIMessage("No.")
        refused = (
            chat.view_at(stamp),
            chat.append(answer, stamp=stamp),
            turn.append(answer, stamp=stamp),
        )
        for call in refused:
            with pytest.raises(InvalidInputError, match="stamp"):
                await call
    assert (await chat.info()).message_count == 1


@pytest.mark.parametrize(
    "tools", [{f"a_tool_with_a_long_name_{number}" for number in range(150)}, {"\ud800"}]
)
async def test_a_view_whose_policy_no_stamp_can_hold_is_answered_without_one(
    chat: Conversation, tools: set[str]
) -> None:
    """The answer is stored and the log can be read; its view is built again as one without a stamp is."""
    policy = HistoryPolicy(never_stub=tools)
    async with await chat.turn("q", human="Hi") as turn:
        history = await turn.load_history(policy)
        assert history.stamp is None
        await turn.append(AIMessage("Hello.", id="a"))
    stored = (await chat.list_messages())[-1]
    assert (stored.message.id, stored.stamp) == ("a", None)
    assert (await chat.view_at("a", policy=policy)).match == "rebuilt"
    assert (await chat.store.verify(**chat.scope)).findings == ()


async def test_the_stamp_of_another_conversation_is_refused(
    store: ConversationStore, chat: Conversation, database: Any
) -> None:
    """The stamp of another conversation is refused: no message is written, and no conversation begins.

    A stamp from the same scope before its first message is accepted.
    """
    await chat.append(HumanMessage("Hi"))
    stamp, new = (
        (await chat.load_history()).stamp,
        store.conversation(user_id="ada", thread_id=new_id()),
    )
    for handle in (new, other_process(store, database).conversation(**new.scope)):
        for message in (AIMessage("Hello."), [HumanMessage("Hi"), AIMessage("Hello.")]):
            with pytest.raises(InvalidInputError, match="another conversation"):
                await handle.append(message, stamp=stamp)
        with pytest.raises(InvalidInputError, match="another conversation"):
            await handle.append([HumanMessage("Hi", id="t"), AIMessage("Hello.")], stamp=stamp)
        assert (await handle.info()).conversation_id == ""
    empty = (await new.load_history()).stamp
    await new.append(HumanMessage("Hi"))
    await new.append(AIMessage("Hello."), stamp=empty)
    with pytest.raises(InvalidInputError, match="another conversation"):
        await new.append(AIMessage("Hello."), stamp=stamp)
    assert [stored.stamp is not None for stored in await new.list_messages()] == [False, True]


@pytest.mark.parametrize("door", ["append", "append_history", "turn", "step of a run", "whole run"])
async def test_the_stamp_of_an_entry_that_is_not_there_yet_is_refused(
    chat: Conversation, door: str
) -> None:
    """Every door that takes a stamp refuses one of a later entry before it writes; the right one is accepted then."""
    await chat.append(HumanMessage("Hi", id="q"))
    right = (await chat.load_history()).stamp
    answer = AIMessage("Hello.", id="a")

    async def append(stamp: ViewStamp) -> None:
        match door:
            case "append":
                await chat.append(answer, stamp=stamp)
            case "append_history":
                history = [HumanMessage("Hi"), answer]
                await chat.append_history(history, trust="all", stamp=stamp)
            case "whole run":
                await TurnAccess(chat).append_run([answer], stamp=stamp)
            case "turn":
                async with await chat.turn("q") as turn:
                    await turn.append(answer, stamp=stamp)
            case _:
                async with await chat.turn("q") as turn:
                    await TurnAccess(chat).append(turn._held, [answer], stamp=stamp)

    for entry in (2, 99, -1):
        with pytest.raises(InvalidInputError, match="does not have yet"):
            await append(right.model_copy(update={"entry": entry}))
        assert (await chat.info()).message_count == 1
    await append(right)
    assert (await chat.list_messages())[-1].stamp == right
    await chat.append(answer, stamp=right.model_copy(update={"entry": 99}))  # it is there


async def test_the_stamp_of_a_view_that_another_worker_loaded_is_accepted(
    store: ConversationStore, chat: Conversation, database: Any
) -> None:
    """It may name an entry that this worker does not know yet. No conversation begins with such a stamp."""
    await chat.append(HumanMessage("Hi"))
    elsewhere = other_process(store, database).conversation(**chat.scope)
    await elsewhere.append(HumanMessage("And seals?"))
    stamp = (await elsewhere.load_history()).stamp
    assert stamp.entry == 2
    await chat.append(AIMessage("Hello."), stamp=stamp)
    assert (await chat.list_messages())[-1].stamp == stamp
    new = store.conversation(user_id="ada", thread_id=new_id())
    with pytest.raises(InvalidInputError, match="does not have yet"):
        await new.append(
            [HumanMessage("Hi"), AIMessage("Hello.")],
            stamp=stamp.model_copy(update={"conversation_id": ""}),
        )
    assert (await new.info()).conversation_id == ""


async def test_a_stamp_leaves_no_thinking_out_that_comes_later(chat: Conversation) -> None:
    """`verify` finds the log of a forged stamp whole."""
    await chat.append(HumanMessage("Hi"))
    stamp = (await chat.load_history()).stamp.model_copy(update={"thinking_through": 99})
    thought: Any = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    answer = AIMessage([thought, "So."], response_metadata={"model_name": "claude-opus-5-5"})
    await chat.append(answer, stamp=stamp)
    assert (await chat.store.verify(**chat.scope)).findings == ()


async def test_in_a_loop_each_step_of_a_turn_keeps_its_own_stamp(chat: Conversation) -> None:
    """The stamp belongs to the first AI message that a call writes, not to the first one that it names."""
    await chat.append(HumanMessage("Where?", id="t"))
    steps, stamps = list[Any](), []
    for number in range(2):
        call = {"name": "find", "args": {}, "id": f"k{number}"}
        stamps.append((await chat.load_history()).stamp)
        steps += [AIMessage("", tool_calls=[call]), ToolMessage("there", tool_call_id=f"k{number}")]
        await chat.append(steps, turn="t", stamp=stamps[-1])
    stamps.append((await chat.load_history()).stamp)
    answer = AIMessage("There.")
    await chat.append([*steps, answer], turn="t", stamp=stamps[-1])
    await chat.append([*steps, answer], turn="t", stamp=stamps[0])  # nothing is written now
    found = [
        message.stamp for message in await chat.list_messages() if message.message.type == "ai"
    ]
    assert found == stamps


@pytest.mark.parametrize(
    "at", ["", 0, -1, 2**60, True, 1.5, b"x", {"$ne": ""}, [1], "x" * 600, "\ud800"]
)
async def test_anything_else_is_refused(chat: Conversation, at: Any) -> None:
    """Before anything is read."""
    with pytest.raises(InvalidInputError):
        await chat.view_at(at)
    with pytest.raises(InvalidInputError):
        await chat.append(HumanMessage("Hi"), stamp=at)


@pytest.mark.slow
async def test_a_view_after_many_rewound_entries_is_rebuilt(
    store: ConversationStore, chat: Conversation, database: Any
) -> None:
    """A view is rebuilt exactly, although 120 rewound entries follow the entry that it shows."""
    await chat.append(rag_turn("Seals?"))
    asked = [HumanMessage(f"Whale {number}?", id=new_id()) for number in range(120)]
    for question in asked:
        await chat.append([question, AIMessage("Yes.")])
    await chat.rewind(before_id=str(asked[0].id))
    history = await chat.load_history(HistoryPolicy(max_tokens=2_000))
    past = await other_process(store, database).conversation(**chat.scope).view_at(history.stamp)
    assert (past.match, past.messages) == ("exact", history.messages)
