"""Our store keeps what Pydantic AI documents for a `ConversationStore`: each test also runs on Pydantic's own one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    BinaryContent,
    Conversation,
    DeferredToolRequests,
    RunContext,
)
from pydantic_ai.conversation import ConversationTypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    InMemoryConversationStore,
)
from pydantic_ai.conversation_store import ConversationStore as PydanticStore
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    CachePoint,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage, RunUsage

from convstore import ConversationStore, StoreUnavailableError
from convstore.exceptions import InvalidScopeError
from convstore.ext.pydantic_ai import ConvstoreConversationStore
from convstore.ext.pydantic_ai.record import RecordState

pytestmark = pytest.mark.slow

Make = Callable[[], PydanticStore]


@pytest.fixture(params=["pydantic", "bound", "mapped"])
def conversations(request: Any) -> PydanticStore:
    """Pydantic's store, ours for one user, and ours with the user as the scope of the methods."""
    if request.param == "pydantic":
        return InMemoryConversationStore()
    store: ConversationStore = request.getfixturevalue("store")
    keys = {"user_id": f"ada-{uuid.uuid4().hex}"} if request.param == "bound" else {}
    return ConvstoreConversationStore(store, **keys)


@pytest.fixture
def user() -> str:
    """A scope that no other test uses."""
    return f"ada-{uuid.uuid4().hex}"


@pytest.fixture
def ours(store: ConversationStore, user: str) -> ConvstoreConversationStore:
    """Our store for one user."""
    return ConvstoreConversationStore(store, user_id=user)


def said(*texts: str) -> list[ModelMessage]:
    """Questions and answers in turn."""
    return [
        ModelResponse([TextPart(text)]) if at % 2 else ModelRequest([UserPromptPart(text)])
        for at, text in enumerate(texts)
    ]


async def saved(conversations: PydanticStore, user: str, *texts: str) -> Conversation:
    """A stored conversation."""
    conversation = Conversation(messages=said(*texts))
    await conversations.save(conversation, scope=user)
    return conversation


def texts_of(messages: Any) -> list[str]:
    """The texts of messages or entries."""
    return [getattr(message, "message", message).parts[0].content for message in messages]


async def test_a_run_is_loaded_as_it_was_saved(conversations: PydanticStore, user: str) -> None:
    """Messages, usage and id; the next run goes on, and each message is stored once."""
    agent = Agent(TestModel())

    @agent.tool_plain
    def look(place: str) -> dict[str, Any]:
        return {"place": place, "found": [1, 2.5, None, True]}

    first = await agent.run("What do seals eat?")
    assert len(await conversations.save(first, scope=user)) == len(first.all_messages())
    loaded = await conversations.load(first.conversation.conversation_id)
    assert loaded
    assert loaded == first.conversation
    second = await agent.run("And walruses?", conversation=loaded)
    new = await conversations.save(second)
    assert [entry.message for entry in new] == second.new_messages()
    assert await conversations.load(loaded.conversation_id, scope=user) == second.conversation
    assert await conversations.save(second) == []


EVERYTHING: list[ModelMessage] = [
    ModelRequest(
        [
            SystemPromptPart("Be brief."),
            UserPromptPart(
                [
                    "Look:",
                    ImageUrl("https://example.org/a.png"),
                    BinaryContent(b"\xff\xfe\0", media_type="image/png"),
                    CachePoint(),
                ]
            ),
        ],
        instructions="Answer.",
        metadata={"request": {"content": "Look:"}},
    ),
    ModelResponse(
        [
            ThinkingPart("Hm.", signature="abc", provider_name="x"),
            TextPart("One moment."),
            NativeToolCallPart(
                "web_search", {"query": "seals"}, tool_call_id="n", provider_name="x"
            ),
            NativeToolReturnPart(
                "web_search", {"results": []}, tool_call_id="n", provider_name="x"
            ),
            ToolCallPart("look", '{"place":"sea"}', tool_call_id="a"),
            ToolCallPart("look", {"place": "ice"}, tool_call_id="b"),
            ToolCallPart("look", '{"place": ', tool_call_id="c"),
            TextPart("Two."),
        ],
        usage=RequestUsage(input_tokens=3, output_tokens=4, details={"reasoning": 1}),
        model_name="m",
        provider_details={"raw": [1]},
    ),
    ModelRequest(
        [
            ToolReturnPart(
                "look",
                {"url": "x", "n": 1.0, "deep": {"content": "fish"}},
                tool_call_id="a",
                metadata={"k": 1},
            ),
            ToolReturnPart(
                "look",
                ["a file", BinaryContent(b"pdf", media_type="application/pdf")],
                tool_call_id="b",
            ),
            ToolReturnPart("look", "Invalid arguments.", tool_call_id="c", outcome="retried"),
            UserPromptPart("And quickly."),
        ],
    ),
    ModelResponse([], finish_reason="stop"),
    ModelRequest([]),
    ModelResponse([TextPart("Fish.")]),
]


async def test_every_kind_of_part_comes_back(conversations: PydanticStore, user: str) -> None:
    """Prompts with files, thinking, native tools, parallel and invalid calls, errors, empty messages; all equal."""
    whole = Conversation(messages=EVERYTHING, usage=RunUsage(requests=3, tool_calls=3))
    conversation = ConversationTypeAdapter.validate_json(ConversationTypeAdapter.dump_json(whole))
    await conversations.save(conversation, scope=user)
    assert await conversations.load(conversation.conversation_id) == conversation


async def test_a_window_is_the_end_of_the_history(conversations: PydanticStore, user: str) -> None:
    """A run of a window still appends to the whole; nothing and more than all can be asked for."""
    conversation = await saved(conversations, user, "1", "2", "3", "4")
    window = await conversations.load(conversation.conversation_id, limit=1)
    assert window
    assert texts_of(window.messages) == ["4"]
    window.messages += said("5")
    await conversations.save(window)
    for limit, expected in ((0, []), (2, ["4", "5"]), (9, ["1", "2", "3", "4", "5"])):
        entries = await conversations.load_entries(conversation.conversation_id, limit=limit)
        assert texts_of(entries) == expected
    with pytest.raises(UserError, match="negative"):
        await conversations.load(conversation.conversation_id, limit=-1)


async def test_entries_are_named_for_ever(conversations: PydanticStore, user: str) -> None:
    """The ids that a save returns are those of later loads, each with the one before; an entry is found by its id."""
    conversation = Conversation(messages=said("1", "2"))
    entries = await conversations.save(conversation, scope=user)
    assert await conversations.load_entries(conversation.conversation_id) == entries
    assert [entry.parent_id for entry in entries] == [None, entries[0].id]
    assert await conversations.read_entry(entries[0].id) == entries[0]


async def test_an_old_copy_cannot_be_saved(conversations: PydanticStore, user: str) -> None:
    """A stale copy cannot be saved: one saved or deleted since, or a new one under a stored id."""
    conversation = await saved(conversations, user, "1", "2")
    old = await conversations.load(conversation.conversation_id)
    assert old
    conversation.messages += said("3")
    await conversations.save(conversation)
    old.messages += said("other")
    for stale in (old, Conversation(conversation_id=old.conversation_id)):
        with pytest.raises(ConversationConflict):
            await conversations.save(stale)
    await conversations.delete(conversation.conversation_id)
    with pytest.raises(ConversationConflict):
        await conversations.save(conversation)


async def test_one_of_concurrent_saves_is_stored(conversations: PydanticStore, user: str) -> None:
    """The others conflict, and none of their messages is in the history."""
    first = await saved(conversations, user, "1", "2")
    copies = [await conversations.load(first.conversation_id) for _ in range(4)]
    for at, copy in enumerate(copies):
        assert copy
        copy.messages += said(f"from {at}")
    done = await asyncio.gather(
        *(conversations.save(copy) for copy in copies if copy), return_exceptions=True
    )
    (winner,) = [at for at, result in enumerate(done) if isinstance(result, list)]
    assert all(isinstance(result, list | ConversationConflict) for result in done)
    assert texts_of(await conversations.load_entries(first.conversation_id)) == [
        "1",
        "2",
        f"from {winner}",
    ]


async def test_a_rewritten_history_leaves_a_branch(conversations: PydanticStore, user: str) -> None:
    """A rewritten history continues after the last message that both share.

    The old messages stay as a branch, which can be returned to.
    """
    conversation = await saved(conversations, user, "1", "2", "3", "4")
    copy = ConversationTypeAdapter.validate_json(ConversationTypeAdapter.dump_json(conversation))
    copy.messages[2:] = said("3b", "4b")
    copy.new_message_index = None
    entries = await conversations.save(copy)
    assert texts_of(entries) == ["3b", "4b"]
    record = await conversations.read_record(copy.conversation_id)
    assert record
    (left,) = record.branches
    back = await conversations.branch(
        copy.conversation_id, from_entry=left, expected_revision=copy.revision
    )
    assert texts_of(back.messages) == ["1", "2", "3", "4"]
    back.messages += said("5")
    await conversations.save(back)
    assert texts_of(await conversations.load_entries(copy.conversation_id)) == [
        "1",
        "2",
        "3",
        "4",
        "5",
    ]


async def test_a_branch_goes_on_from_an_earlier_message(
    conversations: PydanticStore, user: str
) -> None:
    """A branch continues from an earlier message or from the beginning.

    It needs the current revision, and an index or an entry that exists.
    """
    conversation = await saved(conversations, user, "1", "2", "3")
    key: Any = {"conversation_id": conversation.conversation_id}
    branched = await conversations.branch(**key, at=2, expected_revision=conversation.revision)
    assert texts_of(branched.messages) == ["1", "2"]
    with pytest.raises(ConversationConflict):
        await conversations.branch(**key, at=1, expected_revision=conversation.revision)
    wrongs: list[Any] = [{"at": 3}, {"from_entry": "nowhere"}, {}]
    for wrong in wrongs:
        with pytest.raises(UserError):
            await conversations.branch(**key, **wrong, expected_revision=branched.revision)
    branched.messages += said("3b")
    await conversations.save(branched)
    empty = await conversations.branch(**key, at=0, expected_revision=branched.revision)
    assert empty.messages == []
    empty.messages += said("another")
    await conversations.save(empty)
    record = await conversations.read_record(conversation.conversation_id)
    assert record
    assert len(record.branches) == 2
    assert texts_of(await conversations.load_entries(**key)) == ["another"]


async def test_a_fork_goes_its_own_way(conversations: PydanticStore, user: str) -> None:
    """A fork has the same entries up to its point, and outlives the conversation that it comes from."""
    conversation = await saved(conversations, user, "1", "2", "3")
    fork = await conversations.fork(
        conversation.conversation_id, at=2, new_conversation_id=uuid.uuid4().hex
    )
    again = await conversations.fork(conversation.conversation_id)
    assert texts_of(again.messages) == ["1", "2", "3"]
    fork.messages += said("3b")
    await conversations.save(fork)
    entries = await conversations.load_entries(conversation.conversation_id) or []
    assert (await conversations.load_entries(fork.conversation_id) or [])[:2] == entries[:2]
    with pytest.raises(ConversationConflict):
        await conversations.fork(
            conversation.conversation_id, new_conversation_id=fork.conversation_id
        )
    await conversations.delete(conversation.conversation_id)
    assert await conversations.load(conversation.conversation_id) is None
    assert texts_of(await conversations.load_entries(fork.conversation_id)) == ["1", "2", "3b"]
    record = await conversations.read_record(fork.conversation_id)
    assert record
    assert (record.forked_from, record.forked_at) == (conversation.conversation_id, entries[1].id)


async def test_a_scope_keeps_conversations_to_their_owner(
    conversations: PydanticStore, user: str
) -> None:
    """Under another scope one is missing: it neither loads nor is deleted, branched, forked or saved."""
    conversation = await saved(conversations, user, "1", "2")
    key: Any = {"conversation_id": conversation.conversation_id}
    assert await conversations.load(**key, scope="bob") is None
    await conversations.delete(**key, scope="bob")
    with pytest.raises(UserError):
        await conversations.branch(
            **key, at=1, expected_revision=conversation.revision, scope="bob"
        )
    with pytest.raises(UserError):
        await conversations.fork(**key, source_scope="bob")
    with pytest.raises(ConversationConflict):
        await conversations.save(conversation, scope="bob")
    fork = await conversations.fork(**key, scope="bob", source_scope=user)
    assert await conversations.load(fork.conversation_id, scope=user) is None
    assert await conversations.load(**key, scope=user) == conversation


async def test_records_are_listed_newest_first(conversations: PydanticStore, user: str) -> None:
    """By their last save, and at most as many as asked for."""
    made = [await saved(conversations, user, "1") for _ in range(3)]
    made[0].messages += said("2")
    await conversations.save(made[0])
    expected = [made[at].conversation_id for at in (0, 2, 1)]
    assert [
        listed.conversation_id for listed in await conversations.list_conversations(scope=user)
    ] == expected
    first = await conversations.list_conversations(scope=user, limit=2)
    assert [listed.conversation_id for listed in first] == expected[:2]
    with pytest.raises(UserError, match="negative"):
        await conversations.list_conversations(limit=-1)


async def test_a_deleted_conversation_can_be_made_again(
    conversations: PydanticStore, user: str
) -> None:
    """A deleted conversation can be created again and is new. Deleting a missing conversation does nothing."""
    conversation = await saved(conversations, user, "1", "2")
    await conversations.delete(conversation.conversation_id)
    await conversations.delete(conversation.conversation_id)
    again = Conversation(conversation_id=conversation.conversation_id, messages=said("new"))
    await conversations.save(again, scope=user)
    assert texts_of(await conversations.load_entries(again.conversation_id)) == ["new"]


async def test_a_run_that_waits_for_approval_is_resumed(
    conversations: PydanticStore, user: str
) -> None:
    """The requests are loaded with their metadata; the answer continues the run."""
    agent = Agent(TestModel(), output_type=[str, DeferredToolRequests])

    @agent.tool
    def pay(ctx: RunContext[Any], amount: int) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"amount": amount})
        return "paid"

    paused = await agent.run("Pay it.")
    await conversations.save(paused, scope=user)
    loaded = await conversations.load(paused.conversation.conversation_id)
    assert loaded
    assert loaded.deferred_tool_requests
    results = loaded.deferred_tool_requests.build_results(approve_all=True)
    done = await agent.run(conversation=loaded, deferred_tool_results=results)
    await conversations.save(done)
    assert await conversations.load(loaded.conversation_id) == done.conversation
    assert done.conversation.deferred_tool_requests is None


async def test_a_record_names_an_entry_that_exists(conversations: PydanticStore, user: str) -> None:
    """A head that neither the store nor the new entries have is a conflict."""
    record = ConversationRecord(conversation_id="c", head_id="nowhere", scope=user)
    with pytest.raises(ConversationConflict):
        await conversations.write_record(record, expected_revision=None)


# What our store adds.


async def test_the_log_has_the_active_history(ours: ConvstoreConversationStore) -> None:
    """Views and search show what the record shows, after branches too; results and questions are their own messages."""
    conversation = Conversation(messages=EVERYTHING[:3])
    await ours.save(conversation)
    chat = await ours.conversation(conversation.conversation_id)
    kinds = [message.type async for message in chat.messages()]
    assert kinds == ["system", "human", "ai", "tool", "tool", "tool", "human"]
    assert (await chat.info()).usage["m"]["input_tokens"] == 3
    branched = await ours.branch(
        conversation.conversation_id, at=1, expected_revision=conversation.revision
    )
    assert len(await chat.list_messages()) == 2
    branched.messages += said("Yes?")[:1]
    await ours.save(branched)
    assert [stored.message.type for stored in await chat.list_messages()] == [
        "system",
        "human",
        "human",
    ]
    assert await chat.search("quickly") == []


async def test_a_killed_save_is_as_if_it_had_never_begun(
    ours: ConvstoreConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers see the record before; after 90 seconds the next save goes on from there, without its messages."""
    conversation = await saved(ours, "", "1", "2")
    chat = type(await ours.conversation(conversation.conversation_id))

    async def killed(*_: Any, **__: Any) -> Any:
        raise asyncio.CancelledError

    lost = await ours.load(conversation.conversation_id)
    assert lost
    lost.messages += said("lost")
    with monkeypatch.context() as patched:
        patched.setattr(chat, "append", killed)
        patched.setattr(RecordState, "restore", killed)
        with pytest.raises(asyncio.CancelledError):
            await ours.save(lost)
    assert await ours.load(conversation.conversation_id) == conversation
    conversation.messages += said("3")
    with pytest.raises(ConversationConflict):
        await ours.save(conversation)
    monkeypatch.setattr("convstore.ext.pydantic_ai.record.RUNNING_SECONDS", 0)
    await ours.save(conversation)
    assert texts_of(await ours.load_entries(conversation.conversation_id)) == ["1", "2", "3"]


@pytest.mark.parametrize("error", [StoreUnavailableError("no"), asyncio.CancelledError()])
async def test_a_failed_save_can_be_repeated_at_once(
    ours: ConvstoreConversationStore, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """An error after the messages were appended, too, or a cancellation: they are in the history once."""
    conversation = await saved(ours, "", "1", "2")
    chat = type(await ours.conversation(conversation.conversation_id))

    append = chat.append

    async def failing(*given: Any, **named: Any) -> Any:
        await append(*given, **named)
        raise error

    conversation.messages += said("3")
    with monkeypatch.context() as patched:
        patched.setattr(chat, "append", failing)
        with pytest.raises(type(error)):
            await ours.save(conversation)
    assert await ours.load(conversation.conversation_id) != conversation
    await ours.save(conversation)
    assert texts_of(await ours.load_entries(conversation.conversation_id)) == ["1", "2", "3"]
    assert len(await (await ours.conversation(conversation.conversation_id)).list_messages()) == 3


@pytest.mark.parametrize("error", [StoreUnavailableError("no"), asyncio.CancelledError()])
@pytest.mark.parametrize("texts", [(), ("1", "2")])
async def test_a_save_that_failed_at_its_record_can_be_repeated_at_once(
    ours: ConvstoreConversationStore,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    texts: tuple[str, ...],
) -> None:
    """An error or a cancellation while the record is stored leaves no save that seems to be running."""
    conversation = (
        await saved(ours, "", *texts) if texts else Conversation(conversation_id=uuid.uuid4().hex)
    )
    state = type((await ours.conversation(conversation.conversation_id)).state)
    update, errors = state.update, [error]

    async def failing(*given: Any, **named: Any) -> Any:
        await update(*given, **named)
        if errors:
            raise errors.pop()

    conversation.messages += said("3")
    monkeypatch.setattr(state, "update", failing)
    with pytest.raises(type(error)):
        await ours.save(conversation)
    await ours.save(conversation)
    assert texts_of(await ours.load_entries(conversation.conversation_id)) == [*texts, "3"]


async def test_a_deletion_keeps_what_was_saved_since_it_looked(
    ours: ConvstoreConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either the save or the deletion is a conflict, whichever is second."""
    conversation = Conversation(messages=said("1"))
    await ours.save(conversation)
    chat = await ours.conversation(conversation.conversation_id)
    stored = await ours.read_record(conversation.conversation_id)
    assert stored
    read_state = ours._state_of
    conversation.messages += said("2")

    async def saved_after(*given: Any) -> Any:
        found = await read_state(*given)
        monkeypatch.undo()
        await ours.save(conversation)
        return found

    monkeypatch.setattr(ours, "_state_of", saved_after)
    with pytest.raises(ConversationConflict):
        await ours.delete_record(conversation.conversation_id, expected_revision=stored.revision)
    assert texts_of(await ours.load_entries(conversation.conversation_id)) == ["1", "2"]
    delete = type(chat).delete
    conversation.messages += said("3")

    async def save_before(*given: Any) -> None:
        monkeypatch.undo()
        with pytest.raises(ConversationConflict):
            await ours.save(conversation)
        await delete(*given)

    monkeypatch.setattr(type(chat), "delete", save_before)
    await ours.delete(conversation.conversation_id)
    assert await ours.load(conversation.conversation_id) is None


async def test_a_deletion_that_fails_leaves_the_conversation(
    ours: ConvstoreConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be saved at once, not only after the time of a save whose process was killed."""
    conversation = Conversation(messages=said("1"))
    await ours.save(conversation)
    chat = await ours.conversation(conversation.conversation_id)

    async def failing(*_: Any) -> None:
        raise StoreUnavailableError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(type(chat), "delete", failing)
        with pytest.raises(StoreUnavailableError):
            await ours.delete(conversation.conversation_id)
    conversation.messages += said("2")
    await ours.save(conversation)
    assert texts_of(await ours.load_entries(conversation.conversation_id)) == ["1", "2"]


async def test_a_first_save_that_a_deletion_overtakes_leaves_nothing(
    ours: ConvstoreConversationStore, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a conflict, and no message is stored without a record; a later save begins anew."""
    conversation = Conversation(messages=said("1", "2"))
    chat = await ours.conversation(conversation.conversation_id)
    append = type(chat).append

    async def late(*given: Any, **named: Any) -> Any:
        await chat.delete()
        return await append(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(type(chat), "append", late)
        with pytest.raises(ConversationConflict):
            await ours.save(conversation)
    assert (await ours.store.list_conversations(user_id=user)).conversations == []
    await ours.save(conversation)
    assert texts_of(await ours.load_entries(conversation.conversation_id)) == ["1", "2"]


async def test_a_failed_save_does_not_undo_one_of_others(
    ours: ConvstoreConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save that failed before it stored its record leaves the record that was stored meanwhile."""
    conversation = await saved(ours, "", "1", "2")
    other = await ours.load(conversation.conversation_id)
    assert other
    conversation.messages += said("3")
    other.messages += said("4")
    write = RecordState._write

    async def failing(*given: Any) -> bool:
        monkeypatch.setattr(RecordState, "_write", write)
        await ours.save(other)
        raise StoreUnavailableError("no")

    monkeypatch.setattr(RecordState, "_write", failing)
    with pytest.raises(StoreUnavailableError):
        await ours.save(conversation)
    assert texts_of(await ours.load_entries(conversation.conversation_id)) == ["1", "2", "4"]


async def test_a_save_goes_on_after_messages_of_others(ours: ConvstoreConversationStore) -> None:
    """A save continues after messages that other code appended. These stay in the log and are not entries."""
    conversation = await saved(ours, "", "1", "2")
    chat = await ours.conversation(conversation.conversation_id)
    await chat.append([{"role": "user", "content": "Hello?"}])
    conversation.messages += said("3")
    await ours.save(conversation)
    assert texts_of(await ours.load_entries(conversation.conversation_id)) == ["1", "2", "3"]
    assert [stored.message.text for stored in await chat.list_messages()] == [
        "1",
        "2",
        "Hello?",
        "3",
    ]


async def test_scope_keys_are_checked(store: ConversationStore) -> None:
    """The fixed scope must leave one or two keys open. A new conversation needs `scope=` if two are open."""
    for wrong in ({"user_id": "ada", "thread_id": "x"}, {"course_id": "x"}):
        with pytest.raises(InvalidScopeError, match="scope keys"):
            ConvstoreConversationStore(store, **wrong)
    with pytest.raises(UserError, match="pass scope="):
        await ConvstoreConversationStore(store).save(Conversation(messages=said("1")))


async def test_an_entry_is_found_by_another_process(store: ConversationStore, user: str) -> None:
    """By its id alone; an unknown one is an error."""
    (entry,) = await ConvstoreConversationStore(store, user_id=user).save(
        Conversation(messages=said("1"))
    )
    other = ConvstoreConversationStore(store, user_id=user)
    assert await other.read_entry(entry.id) == entry
    with pytest.raises(LookupError):
        await other.read_entry(ConversationEntry(parent_id=None, message=entry.message).id)


async def test_a_history_that_another_worker_deleted_is_unknown(
    database: Any, ours: ConvstoreConversationStore, user: str
) -> None:
    """At the first read, as this object knew its conversation."""
    conversation = await saved(ours, user, "Do seals sleep?", "They do.")
    record = await ours.read_record(conversation.conversation_id)
    head = str(record and record.head_id)
    assert len(await ours.read_history(head)) == 2
    elsewhere = ConversationStore(database)
    await elsewhere.erase(**(await ours.conversation(conversation.conversation_id)).scope)
    await elsewhere.close()
    with pytest.raises(LookupError):
        await ours.read_history(head)


async def test_an_id_of_several_owners_is_an_error_without_its_owner(
    store: ConversationStore,
) -> None:
    """Nothing chooses an owner; a thread that another part of the application made is not adopted either."""
    ours, id_ = ConvstoreConversationStore(store), uuid.uuid4().hex
    await store.conversation(user_id="eve", thread_id=id_).append(HumanMessage("Hello?"))
    with pytest.raises(UserError, match="pass scope="):
        await ours.save(Conversation(messages=said("My PIN is 4711."), conversation_id=id_))
    await ours.save(
        Conversation(messages=said("My PIN is 4711."), conversation_id=id_), scope="ada"
    )
    calls: list[Callable[[], Any]] = [
        lambda: ours.load(id_),
        lambda: ours.load_entries(id_),
        lambda: ours.save(Conversation(conversation_id=id_)),
        lambda: ours.fork(id_),
        lambda: ours.delete(id_),
        lambda: ours.read_record(id_),
        lambda: ours.conversation(id_),
    ]
    for call in calls:
        with pytest.raises(UserError, match="Several owners"):
            await call()
    assert (await store.conversation(user_id="eve", thread_id=id_).info()).message_count == 1
    assert (await store.erase(user_id="ada")).conversations >= 1
    assert await ours.load(id_, scope="ada") is None


async def test_an_entry_id_of_two_owners_leads_to_the_entry_of_the_caller(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if this object has forgotten which conversation has the entry, and looks through those of the owner."""
    monkeypatch.setattr("convstore.ext.pydantic_ai.store._MAX_TIPS", 0)
    ours, id_ = ConvstoreConversationStore(store), uuid.uuid4().hex
    owners = (f"ada-{id_}", f"eve-{id_}")
    for owner in owners:
        record = ConversationRecord(conversation_id=id_, head_id=id_, scope=owner)
        entry = ConversationEntry(id=id_, parent_id=None, message=said(f"The PIN of {owner}.")[0])
        await ours.write_record(record, new_entries=[entry], expected_revision=None)
    for owner in owners:
        loaded = await ours.load(id_, scope=owner)
        assert loaded is not None
        assert texts_of(loaded.messages) == [f"The PIN of {owner}."]
