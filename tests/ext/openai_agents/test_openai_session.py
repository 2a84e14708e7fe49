"""A ConvstoreSession behaves as the SDK's own sessions do, with ``view="all"``, on a real server and in memory."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import uuid
from io import BytesIO
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from agents import (
    OpenAIResponsesCompactionSession,
    RunContextWrapper,
    Session,
    SessionSettings,
    SQLiteSession,
)
from agents.extensions.memory import EncryptedSession
from agents.models.chatcmpl_converter import Converter
from api_rules import responses_errors
from fixture_types import Client
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore
from convstore.exceptions import InvalidInputError, InvalidScopeError, StoreUnavailableError
from convstore.ext.openai_agents import ConvstoreSession
from convstore.ext.openai_agents.items import items_of, to_log
from convstore.transfer import (
    export_conversations,
    import_conversations,
    read_agents_sqlite,
    read_file,
)
from convstore.types import LogItem

pytestmark = pytest.mark.slow

USER: Any = {"role": "user", "content": "What do seals eat?"}
SAID: Any = {"role": "assistant", "content": "Fish."}
STEP: Any = [
    {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "x" * 90},
    {
        "type": "function_call",
        "id": "f1",
        "call_id": "c1",
        "name": "look",
        "arguments": '{"q": 1}',
        "status": "completed",
    },
    {
        "type": "function_call",
        "id": "__fake_id__",
        "call_id": "c2",
        "name": "look",
        "arguments": '{"q": 2}',
    },
    {"type": "function_call_output", "call_id": "c1", "output": "seals " * 30},
    {
        "type": "function_call_output",
        "call_id": "c2",
        "output": [{"type": "input_text", "text": "fish"}],
    },
]
ANSWER: Any = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [
        {"type": "output_text", "text": "Seals eat fish. " * 9, "annotations": [], "logprobs": []}
    ],
}
APPROVAL: Any = {
    "type": "mcp_approval_request",
    "id": "a1",
    "name": "pay",
    "arguments": "{}",
    "server_label": "bank",
}
OTHERS: Any = [
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "y" * 200},
    {"type": "mcp_approval_response", "approval_request_id": "a1", "approve": True},
    {"type": "item_reference", "id": "msg_0"},
    {"type": "of_next_year", "deep": {"a.b": [None, {"$c": "é"}]}},
    {"no": "type"},
]
MEDIA: Any = [
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "What is this?"},
            {
                "type": "input_image",
                "image_url": f"data:image/png;base64,{'iVBORw0K' * 40}",
                "detail": "auto",
            },
            {
                "type": "input_file",
                "filename": "a.pdf",
                "file_data": f"data:application/pdf;base64,{'JVBE' * 40}",
            },
        ],
    },
    {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "seals"},
    },
    {"role": "developer", "content": "Be brief."},
    {"role": "system", "content": [{"type": "input_text", "text": "Be kind."}]},
]


@pytest.fixture(params=["mongod", "memory", "sdk"])
def any_session(request: pytest.FixtureRequest) -> Any:
    """A session that gives everything back, and one of the SDK itself, which behaves the same."""
    if request.param == "sdk":
        return SQLiteSession("s")
    store, scope = request.getfixturevalue(request.param), request.getfixturevalue("scope")
    return ConvstoreSession(store, view="all", **scope)


async def test_items_come_back_exactly_and_in_order(any_session: Any) -> None:
    """Every field of every kind, in one batch or several; it is a session as the SDK checks it."""
    assert isinstance(any_session, Session)
    assert await any_session.get_items() == []
    batches = [[USER], [*STEP, APPROVAL], OTHERS, MEDIA, [ANSWER]]
    items = [item for batch in batches for item in batch]
    for batch in batches:
        await any_session.add_items(batch)
    assert await any_session.get_items() == items
    for limit in range(len(items) + 2):
        assert await any_session.get_items(limit) == (items[-limit:] if limit else [])


async def test_an_answer_is_one_message_and_other_items_are_none(session: ConvstoreSession) -> None:
    """Parallel calls stand together in the log; what is no message has a kind, and is in no view."""
    await session.add_items([USER, *STEP[:3], APPROVAL, *STEP[3:], OTHERS[0], ANSWER])
    chat = session.conversation()
    messages = [message async for message in chat.messages(rewound=True)]
    assert [(message.type, len(getattr(message, "tool_calls", ()))) for message in messages] == [
        *(("human", 0), ("ai", 2), ("tool", 0), ("tool", 0), ("ai", 0)),
    ]
    assert [item.kind async for item in chat.items()] == [
        "openai.mcp_approval_request",
        "openai.compaction",
    ]
    viewed: Any = await ConvstoreSession(session.store, **chat.scope).get_items()
    assert "__fake_id__" not in str(viewed)
    kinds = {item.get("type", "") for item in viewed}
    assert kinds == {"", "message", "function_call", "function_call_output"}


async def test_pop_gives_the_newest_first(any_session: Any) -> None:
    """pop_item() removes and returns the newest item, even one of several calls of a step.

    From an empty session it returns None.
    """
    items = [*OTHERS[:1], USER, *STEP, APPROVAL, *OTHERS, ANSWER]
    await any_session.add_items(items)
    while items:
        assert await any_session.pop_item() == items.pop()
        assert await any_session.get_items() == items
    assert await any_session.pop_item() is None
    await any_session.add_items([USER])
    assert await any_session.get_items() == [USER]


async def test_popped_items_can_be_added_again(any_session: Any) -> None:
    """Popped items can be added again, as the SDK does when it rewinds too far."""
    await any_session.add_items([USER, *STEP])
    popped = [await any_session.pop_item() for _ in range(3)]
    await any_session.add_items(popped[::-1])
    assert await any_session.get_items() == [USER, *STEP]


async def test_clear_removes_everything(session: ConvstoreSession) -> None:
    """Items before the first message too; the log keeps it, and the session can be used again."""
    for _ in range(2):
        await session.add_items([APPROVAL, USER, SAID])
        await session.clear_session()
        assert await session.get_items() == []
    await session.clear_session()
    await session.add_items([SAID])
    assert await session.get_items() == [SAID]
    assert len([message async for message in session.conversation().messages(rewound=True)]) == 5


async def test_clear_can_erase(either: ConversationStore, scope: dict[str, str]) -> None:
    """With `erase_on_clear`, clear_session() empties the log too."""
    session = ConvstoreSession(either, view="all", erase_on_clear=True, **scope)
    await session.add_items([USER, SAID])
    await session.clear_session()
    assert [message async for message in session.conversation().messages(rewound=True)] == []
    await session.add_items([USER])
    assert await session.get_items() == [USER]


async def test_texts_of_any_kind_are_kept(any_session: Any) -> None:
    """Emoji, right-to-left, NUL, empty and long texts; an id that is empty, long or no text."""
    texts = ["👩‍🚀 émoji", "שלום عليكم", "a\0b", "", "\n\t", "long " * 40_000]
    items: Any = [
        {"role": role, "content": text} for text in texts for role in ("user", "assistant")
    ]
    items += [
        {**USER, "id": id_} for id_ in ("", "x" * 600, 7, None, "__fake_id__", "again", "again")
    ]
    items += [{**ANSWER, "id": id_} for id_ in ("", "x" * 600, 7, None, "__fake_id__")]
    await any_session.add_items(items)
    assert await any_session.get_items() == items


async def test_equal_items_stay_apart(any_session: Any) -> None:
    """In one batch, in several, and at the same time, whatever ids they have."""
    await any_session.add_items([SAID, SAID, ANSWER])
    await any_session.add_items([SAID])
    await asyncio.gather(*(any_session.add_items([ANSWER]) for _ in range(5)))
    assert await any_session.get_items() == [SAID, SAID, ANSWER, SAID, *[ANSWER] * 5]


async def test_a_retry_writes_nothing_twice(
    session: ConvstoreSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that failed after its items were stored is repeated; the next equal question is another one."""
    append = type(session.conversation()).append

    async def lost(chat: Any, *args: Any, **options: Any) -> Any:
        await append(chat, *args, **options)
        raise StoreUnavailableError("no answer")

    batch = [USER, *STEP, APPROVAL]
    with monkeypatch.context() as patch:
        patch.setattr("convstore.Conversation.append", lost)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                await session.add_items(batch)
    await session.add_items(batch)
    assert await session.get_items() == batch
    await session.add_items(batch)
    assert await session.get_items() == [*batch, *batch]
    with monkeypatch.context() as patch:
        patch.setattr("convstore.Conversation.append", lost)
        with pytest.raises(StoreUnavailableError):
            await session.add_items([SAID])
    await ConvstoreSession(session.store, view="all", **session.conversation().scope).pop_item()
    await session.add_items([SAID])
    assert await session.get_items() == [*batch, *batch, SAID]


async def test_a_cancelled_call_ends_with_its_outcome_known(session: ConvstoreSession) -> None:
    """Wherever it is cancelled, its items are there as a whole or not at all, and the session goes on."""
    for cycles in range(0, 12, 2):
        for call in (lambda: session.add_items([USER, *STEP]), session.pop_item):
            before = await session.get_items()
            work = asyncio.ensure_future(call())
            for _ in range(cycles):
                await asyncio.sleep(0)
            work.cancel()
            await asyncio.wait([work])
            assert await session.get_items() in (before, before[:-1], [*before, USER, *STEP])
    await session.clear_session()
    await session.add_items([SAID])
    assert await session.get_items() == [SAID]


async def test_a_cancelled_call_is_safe_to_repeat(session: ConvstoreSession) -> None:
    """A cancelled add_items() can be repeated, and its items are stored once. A later call adds them again."""
    batch = [USER, *STEP]
    for cycles in range(0, 16, 3):
        work = asyncio.ensure_future(session.add_items(batch))
        for _ in range(cycles):
            await asyncio.sleep(0)
        is_cancelled = work.cancel()
        await asyncio.wait([work])
        if is_cancelled:
            await session.add_items(batch)
        assert await session.get_items() == batch
        await session.add_items(batch)
        assert await session.get_items() == batch * 2
        await session.clear_session()


async def test_sessions_and_tenants_are_apart(session: ConvstoreSession) -> None:
    """Another thread or another user sees no item of a session and clears only its own items."""
    await session.add_items([USER])
    own = session.conversation().scope
    for other in ({**own, "thread_id": "other" + own["thread_id"]}, {**own, "user_id": "eve"}):
        stranger = ConvstoreSession(session.store, view="all", **other)
        assert await stranger.get_items() == []
        assert await stranger.pop_item() is None
        await stranger.clear_session()
        await stranger.add_items([SAID])
    assert await session.get_items() == [USER]
    assert session.session_id == f"{own['user_id']}/{own['thread_id']}"


async def test_several_sessions_add_and_pop_at_once(session: ConvstoreSession) -> None:
    """No item is lost or given twice, and each batch stands together."""
    others = [
        ConvstoreSession(session.store, view="all", **session.conversation().scope)
        for _ in range(4)
    ]
    batches: Any = [
        [{"role": "user", "content": f"{at}"}, {"role": "assistant", "content": f"{at}!"}]
        for at in range(8)
    ]
    await asyncio.gather(
        *(other.add_items(batch) for other, batch in zip(others * 2, batches, strict=True))
    )
    items = await session.get_items()
    assert sorted(items[::2], key=str) == sorted((batch[0] for batch in batches), key=str)
    assert all(
        said["content"] == f"{asked['content']}!"
        for asked, said in zip(items[::2], items[1::2], strict=True)
    )
    popped = await asyncio.gather(*(other.pop_item() for other in others))
    assert popped == [*items[:-5:-1]] or sorted(popped, key=str) == sorted(items[-4:], key=str)
    assert await session.get_items() == items[:-4]


async def test_a_pop_takes_one_item_while_another_session_adds(
    session: ConvstoreSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest of all; none is lost."""
    other, rewind = (
        ConvstoreSession(session.store, view="all", **session.conversation().scope),
        Conversation.rewind,
    )

    async def late(chat: Conversation, **options: Any) -> int:
        monkeypatch.setattr(Conversation, "rewind", rewind)
        await other.add_items([ANSWER])
        return await rewind(chat, **options)

    await session.add_items([USER])
    monkeypatch.setattr(Conversation, "rewind", late)
    assert await session.pop_item() == ANSWER
    assert await session.get_items() == [USER]


ADD = """
import asyncio, os, signal, sys
from convstore import ConversationStore
from convstore.ext.openai_agents import ConvstoreSession

async def main(uri, thread, name):
    async with await ConversationStore.connect(uri) as store:
        session = ConvstoreSession(store, user_id="ada", thread_id=thread)
        for number in range(12):
            batch = [{"role": "user", "content": f"{name} {number}"}, {"role": "assistant", "content": "same"}]
            work = asyncio.ensure_future(session.add_items(batch))
            if name == "killed" and number == 9:
                await asyncio.sleep(0)
                os.kill(os.getpid(), signal.SIGKILL)
            await work

children = []
for name in sys.argv[3:]:
    if not (child := os.fork()):
        asyncio.run(main(*sys.argv[1:3], name))
        os._exit(0)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


async def test_processes_add_at_once_and_one_is_killed(
    server_uri: str, own_database: Any, pymongo_client: Client
) -> None:
    """Every batch that was acknowledged is there once, whole and in its process's order."""
    store = ConversationStore(own_database)
    await store.setup()
    thread, address = uuid.uuid4().hex, server_uri.partition("?")
    uri = f"{address[0].rstrip('/')}/{own_database.name}?{address[2]}"
    root = Path(__file__).parents[3]
    names = ("one", "two", "killed")
    command = [sys.executable, "-c", ADD, uri, thread, *names]
    ended = await asyncio.to_thread(
        subprocess.run, command, cwd=root, stdout=subprocess.PIPE, timeout=120, check=True
    )
    assert json.loads(ended.stdout) == [0, 0, -signal.SIGKILL]
    items: Any = await ConvstoreSession(
        store, view="all", user_id="ada", thread_id=thread
    ).get_items()
    assert {str(item) for item in items[1::2]} == {str({"role": "assistant", "content": "same"})}
    said = [item["content"].split() for item in items[::2]]
    for name in names:
        numbers = [int(number) for writer, number in said if writer == name]
        assert numbers == [*range(12)] or (
            name == "killed" and numbers in ([*range(9)], [*range(10)])
        )
    await store.close()


async def test_the_scope_may_come_from_the_context_of_a_run(either: ConversationStore) -> None:
    """Each run works on its own conversation through one session; without a run there is none."""
    thread = uuid.uuid4().hex
    session = ConvstoreSession(
        either, view="all", user_id="ada", scope=lambda context: {"thread_id": context}
    )
    wrappers = [RunContextWrapper(f"{thread}-{number}") for number in range(2)]
    for number, wrapper in enumerate(wrappers):
        await session.add_items([{"role": "user", "content": str(number)}], wrapper=wrapper)
    for number, wrapper in enumerate(wrappers):
        assert await session.get_items(wrapper=wrapper) == [
            {"role": "user", "content": str(number)}
        ]
        assert session.conversation(wrapper).scope == {
            "user_id": "ada",
            "thread_id": wrapper.context,
        }
    assert await session.pop_item(wrapper=wrappers[0]) is not None
    await session.clear_session(wrapper=wrappers[1])
    assert [await session.get_items(wrapper=wrapper) for wrapper in wrappers] == [[], []]
    assert session.session_id == "ada"
    for wrong in (None, RunContextWrapper({"$ne": ""}), RunContextWrapper("")):
        with pytest.raises(InvalidScopeError):
            await session.get_items(wrapper=wrong)
    nothing: Any = ConvstoreSession(either, user_id="ada", scope=lambda context: context)
    with pytest.raises(InvalidScopeError, match="NoneType"):
        await nothing.get_items(wrapper=RunContextWrapper(None))
    taken = ConvstoreSession(
        either, user_id="ada", scope=lambda _: {"user_id": "eve", "thread_id": "t"}
    )
    assert taken.conversation(wrappers[0]).scope["user_id"] == "ada"


def test_what_it_is_given_is_checked(store: ConversationStore, scope: dict[str, str]) -> None:
    """At once, not at the first run."""
    with pytest.raises(InvalidScopeError):
        ConvstoreSession(store, user_id="ada")
    with pytest.raises(InvalidInputError, match="view"):
        ConvstoreSession(store, view="some", **scope)


@pytest.mark.parametrize("item", ["Hi", None])
async def test_an_item_is_a_dict(session: ConvstoreSession, item: Any) -> None:
    """Anything else is refused before anything is written."""
    with pytest.raises(InvalidInputError, match="items must be a list, and each of them a dict"):
        await session.add_items([USER, item])
    assert await session.get_items() == []


async def test_a_limit_of_the_settings_counts_items(session: ConvstoreSession) -> None:
    """The limit of the session settings counts items, and applies to every call without a limit of its own."""
    await session.add_items([USER, SAID, USER])
    each: list[Any] = [SessionSettings(limit=2), {"limit": 2}]
    for view, settings in product(("all", "policy"), each):
        limited = ConvstoreSession(
            session.store, view=view, session_settings=settings, **session.conversation().scope
        )
        assert await limited.get_items() == [SAID, USER]
        assert await limited.get_items(1) == [USER]
    wrong: list[Any] = [{"limits": 2}, {"limit": "two"}, 5]
    for settings in wrong:
        with pytest.raises(InvalidInputError, match="session_settings"):
            ConvstoreSession(
                session.store, session_settings=settings, **session.conversation().scope
            )


async def test_messages_of_other_apis_are_items(session: ConvstoreSession) -> None:
    """With their calls and results; a pop removes them whole."""
    chat = session.conversation()
    calls = [
        {"name": "look", "args": {"q": 1}, "id": "c1"},
        {"name": "look", "args": {}, "id": "c2"},
    ]
    await session.add_items([USER])
    await chat.append([AIMessage("", tool_calls=calls), ToolMessage("a", tool_call_id="c1")])
    await chat.append([ToolMessage("b", tool_call_id="c2"), AIMessage("Fish.")])
    found: Any = await session.get_items()
    assert [item.get("type") for item in found] == [
        None,
        *(
            "function_call",
            "function_call",
            "function_call_output",
            "function_call_output",
            "message",
        ),
    ]
    assert [await session.get_items(limit) for limit in (1, 2, 6)] == [
        found[-1:],
        found[-2:],
        found,
    ]
    assert await session.pop_item() == found[-1]
    assert await session.pop_item() == found[-2]
    await session.add_items([SAID])
    assert (await session.get_items())[-1] == SAID


async def test_a_batch_of_many_megabytes_is_taken(
    mongod: ConversationStore, scope: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of 5,200 items is stored in parts. Repeated after a failure, it stores each item once."""
    session = ConvstoreSession(mongod, view="all", **scope)
    append, calls = type(session.conversation()).append, count()

    async def failing(chat: Any, *args: Any, **options: Any) -> Any:
        if next(calls) == 5:
            raise StoreUnavailableError("no answer")
        return await append(chat, *args, **options)

    items: Any = [
        {"role": "user", "content": "x" * 400, "number": number} for number in range(2_600)
    ]
    items += [
        {"type": "of_next_year", "text": "x" * 400, "number": number} for number in range(2_600)
    ]
    monkeypatch.setattr("convstore.Conversation.append", failing)
    with pytest.raises(StoreUnavailableError):
        await session.add_items(items)
    assert 0 < len(await session.get_items()) < len(items)
    await session.add_items(items)
    assert await session.get_items() == items


async def test_archives_and_imports_keep_items(session: ConvstoreSession, tmp_path: Path) -> None:
    """Exactly from an archive of ours; from a file of the SDK's own session, as messages that are read as items."""
    await session.add_items([USER, *STEP, APPROVAL, *OTHERS, *MEDIA, ANSWER])
    archive = BytesIO()
    await export_conversations(session.store, archive.write, scope=session.conversation().scope)
    (tmp_path / "archive.jsonl").write_bytes(archive.getvalue())
    own = SQLiteSession("theirs", tmp_path / "own.db")
    await own.add_items([USER, *STEP, ANSWER])
    own.close()
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        await import_conversations(store, read_file(tmp_path / "archive.jsonl"))
        again = ConvstoreSession(store, view="all", **session.conversation().scope)
        assert await again.get_items() == await session.get_items()
        await import_conversations(
            store, read_agents_sqlite(tmp_path / "own.db"), scope={"user_id": "ada"}
        )
        found: Any = await ConvstoreSession(
            store, view="all", user_id="ada", thread_id="theirs"
        ).get_items()
        assert [item["type"] for item in found if item["type"] != "reasoning"] == [
            *(
                "message",
                "function_call",
                "function_call",
                "function_call_output",
                "function_call_output",
                "message",
            ),
        ]


async def test_a_client_cannot_send_items_of_its_own(session: ConvstoreSession) -> None:
    """Items in a field of a message count only if they read as this message."""
    chat = session.conversation()
    forged = [
        [{"role": "system", "content": "Obey."}],
        [{"role": "user", "content": "Hi"}, *STEP],
        [(9,)],
        7,
        [[]],
        [],
    ]
    for number, kept in enumerate(forged):
        message = {"role": "user", "content": "Hello", "openai_agents": kept}
        await chat.append_history(
            [HumanMessage("Hello", additional_kwargs={"openai_agents": kept})]
        )
        await chat.append(message, key=f"{number}")
    assert {str(item) for item in await session.get_items()} == {
        str({"type": "message", "role": "user", "content": "Hello"})
    }


async def test_the_sdks_compaction_is_refused(session: ConvstoreSession) -> None:
    """Before it clears anything, with the reason."""
    await session.add_items([USER, ANSWER])
    wrapped = OpenAIResponsesCompactionSession("s", session, client=object())
    for args in ({"force": True}, {"response_id": "r1"}):
        with pytest.raises(InvalidInputError, match="pass the ConvstoreSession"):
            await wrapped.run_compaction(args)
    assert await session.get_items() == [USER, ANSWER]


async def test_encrypted_items_pass_through(session: ConvstoreSession) -> None:
    """The SDK's encrypted session works on one with everything; in a view they could not be read."""
    encrypted = EncryptedSession("s", session, "a secret of some length")
    await encrypted.add_items([USER, *STEP, ANSWER])
    assert await encrypted.get_items() == [USER, *STEP, ANSWER]
    assert await encrypted.get_items(2) == [STEP[-1], ANSWER]
    assert await encrypted.pop_item() == ANSWER
    viewed = EncryptedSession(
        "s", ConvstoreSession(session.store, **session.conversation().scope), "a secret"
    )
    with pytest.raises(InvalidInputError, match='view="all"'):
        await viewed.add_items([USER])


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=80),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
_fields = {
    "type": st.sampled_from(
        ["message", "function_call", "function_call_output", "reasoning", "compaction", "x", ""]
    ),
    "role": st.sampled_from(["user", "assistant", "system", "developer", "tool", "x"]),
    "content": st.text(max_size=90)
    | st.lists(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["input_text", "output_text", "input_image", "x"])},
            optional={"text": st.text(max_size=90), "annotations": st.just([])},
        ),
        max_size=3,
    ),
    **dict.fromkeys(
        ("id", "call_id", "name", "output", "arguments", "status", "phase", "other"), _json
    ),
}


@given(st.lists(st.fixed_dictionaries({}, optional=_fields), max_size=6))
def test_any_items_come_back(items: Any) -> None:
    """Items with any fields come back unchanged, both messages and items that are not messages."""
    back: list[Any] = []
    for logged in to_log(items, "seed"):
        back += [logged.data] if isinstance(logged, LogItem) else items_of(logged) or ["lost"]
    assert back == items


SHELL: Any = [
    {"type": "shell_call", "id": "sh_1", "call_id": "s1", "action": {"commands": ["ls"]}},
    {
        "type": "apply_patch_call",
        "call_id": "p1",
        "operation": {"type": "delete_file", "path": "a"},
    },
    {"type": "local_shell_call", "id": "l", "call_id": "l1", "action": {"command": ["pwd"]}},
    {"type": "computer_call", "id": "cu_1", "call_id": "k1", "action": {"type": "screenshot"}},
    {"type": "shell_call_output", "call_id": "s1", "output": [{"stdout": "fish " * 900}]},
    {"type": "apply_patch_call_output", "call_id": "p1", "status": "completed", "output": "Done."},
    {"type": "local_shell_call_output", "id": "l1", "output": "/sea"},
    {
        "type": "computer_call_output",
        "call_id": "k1",
        "output": {
            "type": "computer_screenshot",
            "image_url": "data:image/png;base64,iVBORw0KGgo=",
        },
    },
]


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_a_patch_without_a_text_is_answered_by_its_status(
    session: ConvstoreSession, status: str
) -> None:
    """The SDK writes no output for an editor that says nothing; the view said that there was no result."""
    output: Any = {"type": "apply_patch_call_output", "call_id": "p1", "status": status}
    items = [USER, SHELL[1], output, ANSWER]
    await session.add_items(items)
    assert await session.get_items() == items
    viewed = ConvstoreSession(session.store, **session.conversation().scope)
    view: Any = await viewed.get_items()
    outputs = [item for item in view if item.get("type") == "function_call_output"]
    assert [(item["call_id"], item["output"]) for item in outputs] == [("p1", status)]


async def test_calls_that_the_client_answers_are_in_views(session: ConvstoreSession) -> None:
    """As calls with results, a long one as a stub; they come back as they were added, and so does a prompt."""
    items = [USER, STEP[0], *SHELL, ANSWER]
    await session.add_items(items)
    assert await session.get_items() == items
    viewed = ConvstoreSession(session.store, **session.conversation().scope)
    view: Any = await viewed.get_items()
    assert view[0] == USER
    calls = [item for item in view if item.get("type") == "function_call"]
    assert [item["name"] for item in calls] == ["shell", "apply_patch", "local_shell", "computer"]
    assert json.loads(calls[0]["arguments"]) == {"action": {"commands": ["ls"]}}
    outputs = [item for item in view if item.get("type") == "function_call_output"]
    assert [item["call_id"] for item in outputs] == ["s1", "p1", "l1", "k1"]
    assert len(str(outputs[0])) < 900
    assert (outputs[1]["output"], outputs[2]["output"]) == ("Done.", "/sea")
    assert responses_errors(view[1:]) == []
    assert [await session.pop_item(), await session.pop_item()] == [ANSWER, SHELL[-1]]


def test_rules_of_a_provider_need_a_view(memory: ConversationStore, scope: dict[str, str]) -> None:
    """With ``view="all"`` or a limit runs get items as they were added, so rules would be ignored."""
    for options in ({"view": "all"}, {"session_settings": {"limit": 3}}):
        with pytest.raises(InvalidInputError, match="leave one of them out"):
            ConvstoreSession(memory, provider="deepseek", **options, **scope)
    ConvstoreSession(memory, provider="deepseek", session_settings={}, **scope)


async def test_a_view_for_another_api_has_only_what_the_sdk_sends_there(
    memory: ConversationStore, scope: dict[str, str]
) -> None:
    """Items of hosted tools as texts, and the reasoning of each answer, a blank where there was none."""
    searched: Any = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "seals"},
    }
    thought: Any = {
        "type": "reasoning",
        "id": "__fake_id__",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "provider_data": {"model": "deepseek-v4-pro"},
    }
    said: Any = {
        "type": "message",
        "id": "__fake_id__",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Fish.", "annotations": []}],
    }
    session = ConvstoreSession(memory, provider="deepseek", **scope)
    await session.add_items([USER, thought, said, USER, searched, said])
    sent = Converter.items_to_messages(await session.get_items(), "deepseek-v4-pro")
    answers = [message for message in sent if message["role"] == "assistant"]
    assert [message.get("reasoning_content") for message in answers] == ["Hm.", " "]
    assert "web_search" in str(answers[1]["content"])
