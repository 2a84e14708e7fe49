"""What stands at a place: variants that were rewound, finished, cut by a fork, or listed in pages."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from convstore import Conversation, ConversationStore
from convstore.exceptions import InvalidInputError, MessageRewoundError, TurnClosedError
from convstore.ext.ui import ui_messages
from convstore.integration import TurnAccess
from convstore.testing.fixtures import result_id_of
from convstore.transfer import export_conversations, import_conversations, read_file
from convstore.types import Variant


@pytest.fixture
async def store() -> AsyncIterator[ConversationStore]:
    """A store in memory."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        yield store


async def asked(chat: Conversation, turn_id: str, text: str, **options: Any) -> None:
    """Ask a question, or for another answer, and answer it; the answer's id is its text."""
    async with await chat.turn(turn_id, **options) as turn:
        await turn.append(AIMessage(text, id=text))


async def shown(chat: Conversation) -> list[str]:
    """The texts that readers see; `verify` finds nothing."""
    assert (await chat.store.verify(**chat.scope)).findings == ()
    return [str(stored.message.text) for stored in await chat.list_messages()]


def active(variants: list[Variant]) -> list[tuple[int, int]]:
    """Number and count of the variant that is active."""
    return [(variant.number, variant.count) for variant in variants if variant.is_active]


@pytest.mark.slow
async def test_a_variant_that_was_rewound_comes_back_whole(store: ConversationStore) -> None:
    """With all that followed it, whether its answer, its question or a later undo took it away."""
    for cut, alone in (("B", ["Q"]), ("q2", []), ("first", ["Q"])):
        chat = store.conversation(user_id="ada", thread_id=cut)
        await asked(chat, "q", "A" if cut != "first" else "first", human="Q")
        if cut == "B":
            await asked(chat, "q", "B", regenerate="click")
        elif cut == "q2":
            await asked(chat, "q2", "B", human="Q2", instead_of="q")
        await asked(chat, "later", "C", human="L")
        before, variants = await shown(chat), await chat.variants("q")
        await chat.rewind(before_id=cut)
        assert await shown(chat) == alone
        assert not active(await chat.variants("q"))
        await chat.undo_rewind()
        assert active(await chat.variants("q")) == active(variants)
        await chat.rewind(before_id=cut)
        await chat.activate(variants[-1])
        await chat.activate(variants[-1])
        assert await shown(chat) == before
        assert active(await chat.variants("q")) == active(variants)


@pytest.mark.slow
async def test_a_question_that_is_answered_after_a_rewind_is_its_own_variant(
    store: ConversationStore,
) -> None:
    """The new answer is what stands there, of the first question and of an edited one; others can be shown again."""
    chat = store.conversation(user_id="ada", thread_id="t")
    await asked(chat, "q", "A", human="Q")
    await asked(chat, "q2", "B", human="Q2", instead_of="q")
    await asked(chat, "q2", "C", regenerate="click")
    await chat.rewind(before_id="C")
    await asked(chat, "q2", "D")
    assert active(await chat.variants("q")) == [(2, 3)]
    [page] = [
        message for message in (await ui_messages(chat)).messages if message["role"] == "assistant"
    ]
    assert page["metadata"]["variant"] == {"id": "q2", "number": 2, "count": 3}
    first, second, third = await chat.variants("q")
    for variant, texts in ((third, ["Q2", "C"]), (second, ["Q2", "D"]), (first, ["Q", "A"])):
        await chat.activate(variant)
        assert await shown(chat) == texts


async def test_a_place_that_is_gone_takes_no_variant(store: ConversationStore) -> None:
    """Nor does one with another question, or with a variant that was never finished."""
    chat = store.conversation(user_id="ada", thread_id="t")
    await asked(chat, "q", "A", human="Q")
    await asked(chat, "q", "B", regenerate="click")
    async with await chat.turn("q", regenerate="broken"):
        pass
    [first, second] = await chat.variants("q")
    with pytest.raises(InvalidInputError, match="broken"):
        await chat.activate(first.model_copy(update={"variant_id": "broken"}))
    await chat.rewind(before_id="q")
    await asked(chat, "other", "C", human="O")
    for variant in (first, second):
        with pytest.raises(MessageRewoundError):
            await chat.activate(variant)
    assert await shown(chat) == ["O", "C"]


async def test_a_finished_variant_is_part_of_the_conversation(store: ConversationStore) -> None:
    """Its repeated request finds it, with the view of the conversation; another one's is over and takes nothing."""
    chat = store.conversation(user_id="ada", thread_id="t")
    await asked(chat, "q", "A", human="Q")
    await asked(chat, "q", "B", regenerate="one")
    await asked(chat, "q2", "C", human="Q2", instead_of="q")
    await asked(chat, "later", "D", human="L")
    for turn_id, options, answer in (
        ("q2", {"human": "Q2", "instead_of": "q"}, "C"),
        ("q", {"regenerate": "one"}, "B"),
    ):
        async with await chat.turn(turn_id, **options) as turn:
            assert (turn.is_finished, turn.is_variant, turn.answer and turn.answer.text) == (
                True,
                False,
                answer,
            )
            assert [message.text for message in (await turn.load_history()).messages] == [
                "Q2",
                "C",
                "L",
                "D",
            ]
    async with await chat.turn("q", regenerate="one") as turn:
        with pytest.raises(TurnClosedError):
            await turn.append(AIMessage("more"))
    assert await shown(chat) == ["Q2", "C", "L", "D"]


@pytest.mark.slow
async def test_a_variant_whose_end_was_rewound_goes_on(store: ConversationStore) -> None:
    """As the conversation shows it, and the same request answers it."""
    chat = store.conversation(user_id="ada", thread_id="t")
    await asked(chat, "q", "A", human="Q")
    async with await chat.turn("q", regenerate="click") as turn:
        await turn.append(AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c"}]))
        await turn.add_result(turn.open_calls[0], "found")
        await turn.append(AIMessage("B", id="B"))
    await chat.rewind(before_id="B")
    async with await chat.turn("q", regenerate="click") as turn:
        assert (turn.is_running, turn.is_variant, len(turn.messages)) == (True, False, 3)
        await turn.append(AIMessage("C"))
    assert await shown(chat) == ["Q", "", "found", "C"]
    assert active(await chat.variants("q")) == [(2, 2)]


@pytest.mark.slow
async def test_a_fork_cut_at_a_variant_has_its_page(store: ConversationStore) -> None:
    """What was replaced can be shown again, and other answers are made as anywhere."""
    chat = store.conversation(user_id="ada", thread_id="t")
    await asked(chat, "q", "A", human="Q")
    await asked(chat, "q", "B", regenerate="one")
    await asked(chat, "q2", "C", human="Q2", instead_of="q")
    for before, texts, again in (("B", ["Q"], ["Q", "A"]), ("q2", [], ["Q", "B"])):
        if before == "B":
            await chat.activate((await chat.variants("q"))[1])
        else:
            await chat.activate((await chat.variants("q"))[2])
        fork = await chat.fork(
            before_id=before, key="k", new_scope={"user_id": "bob", "thread_id": before}
        )
        assert await shown(fork) == texts
        found = await fork.variants("q")
        assert (len(found), active(found)) == (1 if before == "B" else 2, [])
        assert len((await ui_messages(fork)).messages) == len(texts)
        await fork.activate(found[-1])
        assert await shown(fork) == again
        await asked(fork, "q", "E", regenerate="new")
        assert active(await fork.variants("q")) == [(len(found) + 1, len(found) + 1)]


@pytest.mark.slow
async def test_a_fork_cut_inside_an_answer_is_unfinished_wherever_it_is_read(
    store: ConversationStore, tmp_path: Path
) -> None:
    """It has the call that is open, continues, and is the variant that stands there, after an import, too."""
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append([HumanMessage("Q", id="q"), AIMessage("A", id="A")])
    for turn_id, options in (
        ("q2", {"human": "Q2", "instead_of": "q"}),
        ("q2", {"regenerate": "click"}),
    ):
        async with await chat.turn(turn_id, **options) as turn:
            await turn.append(
                AIMessage(
                    "", tool_calls=[{"name": "look", "args": {}, "id": f"c{n}"} for n in (1, 2)]
                )
            )
            second = turn.open_calls[1].result_id
            for call in turn.open_calls:
                await turn.add_result(call, "found")
            await turn.append(AIMessage("B"))
        scope = {"user_id": "bob", "thread_id": options.get("regenerate", "edit")}
        fork, archive = await chat.fork(before_id=second, key="k", new_scope=scope), io.BytesIO()
        await export_conversations(store, archive.write, scope=scope)
        (tmp_path / "archive.jsonl").write_bytes(archive.getvalue())
        async with await ConversationStore.connect(f"memory://{scope['thread_id']}") as other:
            await other.setup()
            await import_conversations(other, read_file(tmp_path / "archive.jsonl"))
            for made in (fork, other.conversation(**scope)):
                async with await made.turn(turn_id, **options) as turn:
                    assert (turn.is_running, turn.is_variant) == (True, False)
                    [call] = turn.open_calls
                    assert call.id == "c2"
                    await turn.add_result(call, "found")
                    await turn.append(AIMessage("E"))
                assert await shown(made) == ["Q2", "", "found", "found", "E"]
                assert active(await made.variants("q2")) == [(len(await made.variants("q")),) * 2]


@pytest.mark.slow
async def test_a_decision_stands_where_many_entries_are_rewound(store: ConversationStore) -> None:
    """A rejected call is not open again, though reads leave out the entry that says so."""
    chat = store.conversation(user_id="ada", thread_id="t")
    async with await chat.turn("q", human="Q") as turn:
        await turn.append(AIMessage("", tool_calls=[{"name": "pay", "args": {}, "id": "c"}]))
        [call] = turn.open_calls
        await turn.wait_for(call)
    await chat.decide("q", await result_id_of(chat, "c"), "reject", message="no")
    async with await chat.turn("q") as turn:
        for number in range(20):
            await turn.append(
                AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": f"d{number}"}])
            )
            await turn.add_result(turn.open_calls[0], "found")
    await chat.rewind(before_id=call.result_id)
    async with await chat.turn("q") as turn:
        assert turn.open_calls == []
        assert turn.messages[-1].text.endswith("reason: no")
        async with aclosing(chat.watch()) as updates:
            state = await anext(update.turn async for update in updates if update.turn)
        assert (state.status, state.waiting_calls) == ("running", ())


@pytest.mark.slow
async def test_variants_come_in_pages(store: ConversationStore) -> None:
    """The newest ones first, in order, numbered as they were finished; each page says how many there are."""
    chat = store.conversation(user_id="ada", thread_id="t")
    await asked(chat, "q", "A", human="Q")
    late = await chat.turn("q", regenerate="late")
    async with late:
        await late.append(AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c"}]))
    for number in range(2, 7):
        await asked(chat, "q", f"B{number}", regenerate=f"k{number}")
    async with await chat.turn("q", regenerate="late") as turn:
        await turn.add_result(turn.open_calls[0], "found")
        await turn.append(AIMessage("late"))
    pages = [await chat.variants("q", limit=3)]
    while pages[0][0].number > 1:
        pages.insert(0, await chat.variants("q", before_number=pages[0][0].number, limit=3))
    found = [variant for page in pages for variant in page]
    assert found == await chat.variants("q")
    assert [variant.variant_id for variant in found] == ["q", "k2", "k3", "k4", "k5", "k6", "late"]
    assert [(variant.number, variant.count) for variant in found] == [
        (number, 7) for number in range(1, 8)
    ]
    assert found[-1].created_at < found[1].created_at
    assert await chat.variants("q", before_number=1) == []
    for wrong in ({"limit": 0}, {"limit": 201}, {"before_number": -1}):
        with pytest.raises(InvalidInputError):
            await chat.variants("q", **wrong)


async def test_the_same_turns_live_in_two_scopes(store: ConversationStore) -> None:
    """Each has its own answers, and its own place."""
    chats = [store.conversation(user_id=name, thread_id="t") for name in ("ada", "bob", "eve")]
    for count, chat in enumerate(chats, 2):
        for number in range(count):
            options = {"regenerate": f"k{number}"} if number else {"human": "Q"}
            await asked(chat, "q", f"{chat.scope['user_id']} {number}", **options)
    for count, chat in enumerate(chats, 2):
        await chat.activate((await chat.variants("q"))[0])
        assert (await chat.load_history()).messages[-1].text == f"{chat.scope['user_id']} 0"
        assert active(await chat.variants("q")) == [(1, count)]
    edited = store.conversation(user_id="max", thread_id="t")
    await asked(edited, "p", "A", human="P")
    await asked(edited, "q", "B", human="Q", instead_of="p")
    for chat in (*chats, edited):
        place = (await TurnAccess(chat).at_places(["q"]))["q"].place
        assert place == ("p" if chat is edited else "q")


async def test_the_same_calls_wait_in_two_scopes(store: ConversationStore) -> None:
    """What was decided of one says nothing of the other, also where many entries are rewound."""
    decided = store.conversation(user_id="ada", thread_id="t")
    assert await _waiting(decided, decides=True) == 0
    assert await _waiting(store.conversation(user_id="bob", thread_id="t"), decides=False) == 1


async def _waiting(chat: Conversation, *, decides: bool) -> int:
    """Let a call wait, perhaps decide about it, and rewind many entries; return how many calls wait then."""
    call = {"name": "t", "args": {}, "id": "c"}
    async with await chat.turn("r", human="R") as turn:
        await turn.append(AIMessage("", id="r1", tool_calls=[call]))
        [open_call] = turn.open_calls
        await turn.wait_for(open_call)
    for number in range(17):
        await chat.append(SystemMessage("So.", id=f"s{number}"), turn="r")
    if decides:
        await chat.decide("r", open_call.result_id, "approve")
    await chat.rewind(before_id="s0")
    found = await chat.get_turn("r")
    assert found is not None
    return len(found.waiting_calls)


async def test_a_first_answer_that_never_was_finished_is_listed(store: ConversationStore) -> None:
    """It is the first of the place; while the turn that stands there is in progress, none is active."""
    chat = store.conversation(user_id="ada", thread_id="first")
    async with await chat.turn("q", human="Q"):
        pass
    await asked(chat, "q", "B", regenerate="click")
    assert [variant.variant_id for variant in await chat.variants("q")] == ["q", "click"]
    assert active(await chat.variants("q")) == [(2, 2)]
    await chat.rewind(before_id="B")
    assert active(await chat.variants("q")) == []
