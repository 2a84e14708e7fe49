"""Promise 8: another scope's data answers exactly like missing data.

Eve does the same things in two databases, of which one holds Ada's conversations too. Whatever she asks for, with ids,
cursors and texts of Ada's, she gets the same results, the same errors, for the same commands.
"""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from counting import Commands
from fixture_types import Client
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from properties import STRIDE, examples
from pydantic import BaseModel
from pymongo import AsyncMongoClient
from scripted_agents import ScriptedModel, calls

import convstore
from convstore import (
    Conversation,
    ConversationStore,
    ConvstoreError,
    HistoryPolicy,
    retrieve_previous_sources_tool,
)
from convstore.ext.chat_history import ChatMessageHistory, SessionHistories
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langgraph import append_node, load_node
from convstore.mongo.annotations import Annotations
from convstore.mongo.heads import Heads
from convstore.mongo.inspection import Inspection
from convstore.mongo.log import Log
from convstore.mongo.summaries import Summaries
from convstore.mongo.tombstones import Tombstones
from convstore.runtime.clock import Clock
from convstore.testing.samples import SHARED_FIXTURES, passages, same_messages
from convstore.types import Variant
from convstore.values.policy import CompactionRule

# ---------------------------------------------------------------------------------------------------------------------
# Signatures

WHOSE = {"conversation", "scope", "partial_scope"}
OVER_ALL = {
    "Log.check_size": "sends nothing",
    "Tombstones.write_tombstone": "takes the head that a scope was found by",
    "Tombstones.unswept_lost": "finishes deletions of conversations of which nobody knows the scope",
    "Tombstones.due": "sweeps what is left of all deleted conversations",
    "Tombstones.swept": "takes the tombstone of a conversation that was swept",
    "Tombstones.current": "takes the tombstone of a log that was replaced",
    "Tombstones.begin_repair": "takes the head whose log is copied",
    "Tombstones.replace_log": "takes the head whose log is replaced",
    "Tombstones.replaced": "takes the key of the head of one scope",
    "Annotations.find_named": "takes conversations of a listing, which its caller has by their scope",
    "Heads.first_questions": "takes conversations of a listing, which its caller has by their scope",
    "Heads.catch_up": "each change names the scope and the conversation of its head",
}
"""Commands that do not name one conversation or one scope, and the reason."""


@pytest.mark.parametrize("collection", [Log, Heads, Summaries, Annotations, Tombstones])
def test_every_method_takes_its_conversation_or_scope_first(collection: type) -> None:
    """No command can be sent without saying whose data it is on."""
    methods = [
        member
        for member in vars(collection).items()
        if inspect.isfunction(member[1]) and not member[0].startswith("_")
    ]
    assert methods
    for name, method in methods:
        is_scoped = any(
            first.name in WHOSE
            and first.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
            and first.default is inspect.Parameter.empty
            for first in [*inspect.signature(method).parameters.values()][1:2]
        )
        assert is_scoped or f"{collection.__name__}.{name}" in OVER_ALL, name


def test_what_looks_over_all_conversations_is_for_the_doctor_alone() -> None:
    """No module that serves a user reads across conversations. Only the doctor does."""
    package = Path(convstore.__file__).parent
    users = {
        path.stem
        for path in package.rglob("*.py")
        if Inspection.__name__ in path.read_text(encoding="utf-8")
    }
    serving = {
        "reader",
        "loader",
        "writer",
        "pager",
        "records",
        "turns",
        "directory",
        "rewinder",
        "conversation",
    }
    assert not users & (
        serving | {"compactor", "kept_summaries", "annotations", "numbering", "tools", "agent"}
    )


# ---------------------------------------------------------------------------------------------------------------------
# Two worlds

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
_NUMBERS = itertools.count(1)


class Writer:
    """A summarizer that says how many messages it was shown."""

    name = "scripted"
    rule = CompactionRule(max_tokens_before_summary=200, max_summary_tokens=20, keep_last_turns=0)

    async def summarize(self, messages: list[BaseMessage], *, summary: str | None) -> str:
        """A few words."""
        return f"{summary or 'So far'}+{len(messages)}"


class World:
    """A database with Eve's conversations, and Ada's beside them if she is there."""

    def __init__(self, client: Client, name: str, commands: Commands, *, has_ada: bool) -> None:
        self.database, self.commands, self.has_ada = client[name], commands, has_ada
        self.seconds = 0.0
        # a timer's commands would be counted as those of a call
        self.clock = Clock(
            now=lambda: START + timedelta(seconds=self.seconds),
            monotonic=lambda: self.seconds,
            call_later=lambda _seconds, _callback: None,
        )
        self.store = ConversationStore(self.database, clock=self.clock, summarizer=Writer())
        self.unbound = retrieve_previous_sources_tool(self.store)

    def eve(self, thread: str) -> Conversation:
        """Eve's conversation; Ada has one of the same name."""
        return self.store.conversation(user_id="eve", thread_id=thread)

    def ada(self, thread: str) -> Conversation:
        """Ada's conversation, in a store of her own."""
        return ConversationStore(self.database, clock=self.clock, summarizer=Writer()).conversation(
            user_id="ada", thread_id=thread
        )

    async def outcome_of(self, work: Awaitable[Any]) -> tuple[Any, list[tuple[str, str]]]:
        """Return the result of a call, and the commands that it sends."""
        with self.commands.counted() as counted:
            try:
                outcome = plain(await work)
            except ConvstoreError as error:
                outcome = (type(error).__name__, str(error))
        return outcome, sorted((name, str(command[name])) for name, command in counted.own)


def plain(value: Any) -> Any:
    """A result as it is compared: ids of conversations are random."""
    if isinstance(value, BaseModel):
        fields = [name for name in type(value).model_fields if name != "conversation_id"]
        return {name: plain(getattr(value, name)) for name in fields}
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else repr(value)


@pytest.fixture(scope="session")
async def worlds(server_uri: str, database_name: str) -> AsyncIterator[list[World]]:
    """Yield two worlds on two databases: one with Ada's data, one without."""
    listeners = [Commands(), Commands()]
    clients = [
        AsyncMongoClient[dict[str, Any]](server_uri, event_listeners=[listener])
        for listener in listeners
    ]
    names = [f"{database_name}_with", f"{database_name}_without"]
    made = [
        World(*each, has_ada=not index)
        for index, each in enumerate(zip(clients, names, listeners, strict=True))
    ]
    for world in made:
        await world.store.setup()
    yield made
    for client, name in zip(clients, names, strict=True):
        await client.drop_database(name)
        await client.close()


SECRET = "SECRET-OF-ADA"  # noqa: S105 - what must not be seen


def hers() -> list[BaseMessage]:
    """Ada's messages; her ids are known to Eve."""
    found = [(f"{SECRET} {text}", said) for text, said in passages(3)]
    call = {"name": "search", "args": {"q": SECRET}, "id": "ada-call"}
    return [
        HumanMessage(SECRET, id="ada-1"),
        AIMessage("", id="ada-2", tool_calls=[call]),
        ToolMessage(
            SECRET * 90, id="ada-3", tool_call_id="ada-call", name="search", artifact=found
        ),
        AIMessage(SECRET, id="ada-4"),
        HumanMessage(SECRET * 2_000, id="ada-5"),
        AIMessage(SECRET, id="ada-6"),
    ]


class Guesses:
    """Arguments that Eve tries: ids of Ada's, of her own and of nobody."""

    def __init__(self, seed: int, conversation: str, cursor: str) -> None:
        self.dice = random.Random(seed)
        head_id = cursor[:64] or "0" * 64
        self.pool = [
            *(f"ada-{number}" for number in range(1, 7)),
            "ada-call",
            "summary-1",
            "note-1",
            "nobody's",
        ]
        self.pool += [
            conversation,
            f"{conversation}:000000000001",
            f"deleted:{conversation}",
            head_id,
        ]
        self.pool += [f"eve-{number}" for number in range(4)]
        self.cursors = ["", "1@0", "m3@0", "m5@0", "2@9", cursor]

    def id(self) -> str:
        """Return a random id from the pool."""
        return self.dice.choice(self.pool)

    def ids(self) -> list[str]:
        """Return one to five random ids from the pool."""
        return [self.id() for _ in range(self.dice.randint(1, 5))]

    def variant(self) -> Variant:
        """A variant of one of Ada's turns, or of no turn."""
        at, turn = datetime(2026, 1, 1, tzinfo=UTC), self.id()
        return Variant(
            turn_id=turn, variant_id=turn, number=1, count=1, is_active=False, created_at=at
        )

    def number(self) -> int:
        """A source, an ordinal or a version."""
        return self.dice.choice([1, 1, 2, 3, 7, 40])

    def cursor(self) -> str:
        """A place to go on."""
        return self.dice.choice(self.cursors)

    def messages(self) -> list[BaseMessage]:
        """Messages to append: Ada's own, others under her ids, or Eve's."""
        n = self.dice.randint(0, 9)
        if n < 3:
            return hers()[: self.dice.randint(1, 6)]
        found = [(f"Eve's {n}. " * 30, {"title": "E", **({"source_id": 1} if n == 4 else {})})]
        call = {
            "name": "search",
            "args": {"q": n},
            "id": self.dice.choice(["ada-call", "eve-call"]),
        }
        return [
            HumanMessage(f"Eve {n}", id=f"eve-{n % 4}" if n > 5 else self.id()),
            AIMessage("", id=f"eve-{n}-a", tool_calls=[call]),
            ToolMessage("x" * 900, id=f"eve-{n}-t", tool_call_id=call["id"], artifact=found),
            *([AIMessage("done", id=f"eve-{n}-b")] if n % 2 else []),
        ]


async def _first(found: AsyncGenerator[Any]) -> Any:
    async with aclosing(found):
        return await anext(found)


async def _all(reading: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in reading]


async def _worked_on(chat: Conversation, guess: Guesses) -> Any:
    async with await chat.turn(guess.id(), human=guess.dice.choice([None, "hi"])) as turn:
        return await turn.append(AIMessage("so", id=guess.id()))


Call = Callable[[World, Conversation, Guesses], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "append": lambda _, chat, guess: chat.append(guess.messages()),
    "append_history": lambda _, chat, guess: chat.append_history(guess.messages()),
    "append with a turn": lambda _, chat, guess: chat.append(
        [AIMessage("so", id=guess.id())], turn=guess.id()
    ),
    "turn": lambda _, chat, guess: _worked_on(chat, guess),
    "citations": lambda _, chat, guess: chat.citations(guess.id()),
    "stop": lambda _, chat, guess: chat.stop(guess.id()),
    "variants": lambda _, chat, guess: chat.variants(guess.id()),
    "activate": lambda _, chat, guess: chat.activate(guess.variant()),
    "decide": lambda _, chat, guess: chat.decide(guess.id(), "ada-call", "approve"),
    "reserve_source_ids": lambda _, chat, guess: chat.reserve_source_ids(guess.number()),
    "find_shown_sources": lambda _, chat, __: chat.find_shown_sources(
        [f"{SECRET} {text}" for text, _ in passages(3)] + ["Eve's 4. " * 30]
    ),
    "load_history": lambda _, chat, guess: chat.load_history(
        guess.dice.choice([None, HistoryPolicy(max_tokens=300), HistoryPolicy(stub_tools="never")])
    ),
    "compact": lambda _, chat, guess: chat.compact(force=guess.dice.random() < 0.5),
    "summaries": lambda _, chat, __: chat.summaries(),
    "expand_summary": lambda _, chat, guess: chat.expand_summary(guess.number()),
    "undo_compaction": lambda _, chat, __: chat.undo_compaction(),
    "get_tool_messages": lambda _, chat, guess: chat.get_tool_messages(guess.ids()),
    "messages": lambda _, chat, __: _all(chat.messages(rewound=True)),
    "items": lambda _, chat, __: _all(chat.items()),
    "turns": lambda _, chat, guess: _all(
        chat.turns(after=guess.number(), newest_first=guess.dice.random() < 0.5)
    ),
    "watch": lambda _, chat, guess: _first(chat.watch(after=guess.number(), limit=7)),
    "get_turn": lambda _, chat, guess: chat.get_turn(guess.id()),
    "list_messages": lambda _, chat, guess: chat.list_messages(
        after=guess.number(), limit=7, full=guess.dice.random() < 0.5
    ),
    "search": lambda _, chat, guess: chat.search(f"{SECRET} {guess.id()}"),
    "view_at": lambda _, chat, guess: chat.view_at(
        guess.dice.choice([None, guess.id(), guess.number()])
    ),
    "outline": lambda _, chat, __: chat.outline(),
    "last_policy": lambda _, chat, __: chat.last_policy(),
    "annotate": lambda _, chat, guess: chat.annotate(guess.id(), rating=guess.number()),
    "annotations": lambda _, chat, guess: chat.annotations(guess.ids()),
    "state": lambda _, chat, __: chat.state.get(),
    "state, changed": lambda _, chat, guess: chat.state.update(
        {guess.id(): 1}, revision=guess.number()
    ),
    "rewind": lambda _, chat, guess: chat.rewind(before_id=guess.id()),
    "undo_rewind": lambda _, chat, __: chat.undo_rewind(),
    "fork": lambda _, chat, guess: chat.fork(
        before_id=guess.dice.choice([None, guess.id()]),
        key=guess.id(),
        new_scope={"user_id": "eve", "thread_id": f"{chat.scope['thread_id']} {guess.id()}"},
    ),
    "info": lambda _, chat, __: chat.info(),
    "child": lambda _, chat, guess: chat.child(*guess.ids()[:2]).get_tool_messages(guess.ids()),
    "children": lambda _, chat, __: chat.children(),
    "update": lambda _, chat, guess: chat.update(title=guess.id(), metadata={guess.id(): 1}),
    "delete": lambda _, chat, __: chat.delete(),
    "get_sources": lambda _, chat, guess: chat.get_sources(
        [guess.number()],
        tool_message_ids=guess.ids(),
        cursor=guess.cursor(),
        find=guess.dice.choice(["", SECRET]),
    ),
    "retrieve_previous_sources_tool": lambda _, chat, guess: (
        chat.retrieve_previous_sources_tool().ainvoke(
            {
                "tool_message_ids": guess.ids(),
                "source_ids": [guess.number()],
                "cursor": guess.cursor(),
                "user_id": "ada",
            }
        )
    ),
    "the unbound tool": lambda world, chat, guess: world.unbound.ainvoke(
        {
            "tool_message_ids": guess.ids(),
            "find": SECRET,
            "config": {"configurable": {"user_id": "ada"}},
        },
        {"configurable": chat.scope},
    ),
    "the unbound tool, searching": lambda world, chat, guess: world.unbound.ainvoke(
        {"find": SECRET, "cursor": guess.dice.choice(["", "f9@0"])}, {"configurable": chat.scope}
    ),
    "the unbound tool, listing": lambda world, chat, _: world.unbound.ainvoke(
        {}, {"configurable": chat.scope}
    ),
    "store.get_tool_messages": lambda world, chat, guess: world.store.get_tool_messages(
        tool_message_ids=guess.ids(), **chat.scope
    ),
    "store.list_conversations": lambda world, _, guess: world.store.list_conversations(
        user_id="eve", limit=5, cursor=guess.dice.choice([None, guess.cursors[-1]])
    ),
    "store.erase": lambda world, chat, _: world.store.erase(**chat.scope),
    "store.prune": lambda world, _, __: world.store.prune(
        older_than=timedelta(days=1), user_id="eve"
    ),
    "history.aget_messages": lambda _, chat, __: ChatMessageHistory(chat).aget_messages(),
    "history.aadd_messages": lambda _, chat, guess: ChatMessageHistory(chat).aadd_messages(
        guess.messages()
    ),
    "history.aclear": lambda _, chat, __: ChatMessageHistory(chat, clear="rewind").aclear(),
    "histories": lambda world, chat, _: SessionHistories(world.store, scope={"user_id": "eve"})(
        chat.scope["thread_id"]
    ).aget_messages(),
    "graph, load": lambda world, chat, guess: load_node(world.store).ainvoke(
        {"messages": guess.messages()}, {"configurable": chat.scope}
    ),
    "graph, append": lambda world, chat, guess: append_node(world.store).ainvoke(
        {"messages": guess.messages()}, {"configurable": chat.scope}
    ),
}


def test_every_public_call_of_a_conversation_is_tried() -> None:
    """A call that is added later is added to the list, too."""
    public = {name for name in vars(Conversation) if not name.startswith("_")} - {"store", "scope"}
    assert public <= CALLS.keys()


async def compare(worlds: list[World], script: list[tuple[str, int]]) -> None:
    """Do the same in both worlds; beside it Ada has a conversation of the same name in one of them."""
    thread = f"thread {next(_NUMBERS)}"
    for world in worlds:  # an earlier deletion may become due, by the server's clock, between the calls in both worlds
        await world.database["heads"].delete_many({"_id": {"$regex": "^deleted:"}})
    ada = worlds[0].ada(thread)
    await ada.append(hers())
    await ada.compact(force=True)
    await ada.annotate("ada-1", rating=5)
    await ada.state.update({"ada": 5})
    before = (
        [message async for message in ada.messages(rewound=True)],
        (await ada.load_history()).messages,
    )
    head = await worlds[0].database["heads"].find_one({"scope": ada.scope})
    page, _ = [await world.store.list_conversations(everything=True, limit=1) for world in worlds]
    assert head is not None
    for name, seed in script:
        outcomes = []
        for world in worlds:
            world.seconds += 3
            guesses = Guesses(seed, head["conversation"], page.next_cursor or "")
            outcomes.append(await world.outcome_of(CALLS[name](world, world.eve(thread), guesses)))
        assert outcomes[0] == outcomes[1], name
    late = worlds[0].ada(thread)
    assert same_messages([message async for message in late.messages(rewound=True)], before[0])
    assert same_messages((await late.load_history()).messages, before[1])
    assert (await late.annotations(["ada-1"])) == {"ada-1": {"rating": 5}}
    assert (await late.state.get()).values == {"ada": 5}


@pytest.mark.costly
@pytest.mark.parametrize("is_empty", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_does_not_tell_whether_another_is_there(
    worlds: list[World], name: str, is_empty: bool
) -> None:
    """Same results, same errors, same commands, from a conversation of one's own and from none."""
    await compare(
        worlds,
        ([] if is_empty else [("append", 5)])
        + [(name, seed) for seed in range(max(2, 6 // STRIDE))],
    )


@pytest.mark.slow
@examples(15, suppress_health_check=SHARED_FIXTURES)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(CALLS)), st.integers(0, 2**32)), min_size=4, max_size=25
    )
)
async def test_many_calls_do_not_tell_whether_another_is_there(
    worlds: list[World], script: list[tuple[str, int]]
) -> None:
    """In any order; and what is the other's stays as it was."""
    await compare(worlds, [("append", 5), *script])


@pytest.mark.slow
async def test_an_agents_model_learns_nothing_of_others(worlds: list[World]) -> None:
    """The tool reveals nothing for any ids and names of other users in its arguments."""
    thread, shown = f"thread {next(_NUMBERS)}", []
    await worlds[0].ada(thread).append(hers())
    for world in worlds:
        reads = [
            calls(world.unbound.name, tool_message_ids=["ada-3", "ada-call"], source_ids="1-9"),
            calls(
                world.unbound.name,
                cursor="m3@0",
                user_id="ada",
                config={"configurable": {"user_id": "ada"}},
            ),
            calls(world.unbound.name),
        ]
        for index, read in enumerate(reads):
            read.id = f"read-{index}"
        model = ScriptedModel(replies=[*reads, AIMessage("I found nothing.", id="end")])
        agent = create_agent(model, [], middleware=[ConversationMiddleware(world.store)])
        config: Any = {"configurable": world.eve(thread).scope}
        await agent.ainvoke({"messages": [HumanMessage("What does Ada say?", id="q")]}, config)
        shown.append(
            [[(message.type, message.content) for message in messages] for messages in model.shown]
        )
    assert shown[0] == shown[1]
    assert len(shown[0]) == 4
    assert SECRET not in str(shown[0])
