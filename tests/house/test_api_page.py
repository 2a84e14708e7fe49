"""docs/api.md names every call and its commands, and the docstrings say all that a caller needs."""

from __future__ import annotations

import inspect
import pkgutil
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from adapters import ADAPTERS
from counting import STANDING, Commands
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel
from test_public_names import defined_in

import convstore
from convstore import (
    Conversation,
    ConversationStore,
    ConvstoreError,
    HistoryPolicy,
    types,
)
from convstore.summarization import CompactionRule, HeadTailSummarizer
from convstore.testing import rag_turn

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "api.md").read_text(encoding="utf-8")
REFERENCE = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
OWNERS = {"store": ConversationStore, "chat": Conversation, "ConversationStore": ConversationStore}
FOR_ADAPTERS = {"convstore.devserver", "convstore.integration", "convstore.testing"}
"""Modules whose functions may leave their arguments to the names and types."""
TWIN = "asummarize_messages"
"""Has the parameters of `summarize_messages`, and says so."""


def parameters_of(target: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each parameter, the instance apart."""
    parameters = inspect.signature(target).parameters.values()
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in parameters
        if parameter.name != "self"
    ]


def listed() -> dict[tuple[str, str], str]:
    """Return the calls and attributes that the page lists, by owner and name, each with its number of commands."""
    table = PAGE.partition("\n| to |")[2].partition("\n## ")[0]
    found = re.findall(r"`(\w+)\.(\w+)`(?: (≈?\d+))?", table)
    return {(owner, name): commands for owner, name, commands in found}


def names() -> Iterator[tuple[ModuleType, str]]:
    """Return the public names of the package and of the modules that the reference shows, slow frameworks apart."""
    shown = re.findall(r"^::: (convstore[.\w]*)$", REFERENCE, re.MULTILINE)
    for found in (convstore, *map(pkgutil.resolve_name, sorted({*shown} - {*ADAPTERS}))):
        if inspect.ismodule(found):
            yield from ((found, name) for name in exported(found))


def arguments_of(target: object) -> set[str]:
    """The names under "Args:" in a docstring."""
    section = (inspect.getdoc(target) or "").partition("Args:\n")[2]
    return set(
        re.findall(
            r"^    (\w+):",
            re.split(r"^\S", section, maxsplit=1, flags=re.MULTILINE)[0],
            re.MULTILINE,
        )
    )


def properties_of(owner: type) -> dict[str, Any]:
    """The properties of a class."""
    own = (base for base in owner.__mro__ if base.__module__.startswith("convstore."))
    return {
        name: member
        for base in own
        for name, member in vars(base).items()
        if isinstance(member, property)
    }


def attributes_of(owner: Any) -> set[str]:
    """The names under "Attributes:" in the docstring of a class."""
    section = (inspect.getdoc(owner) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    return set(re.findall(r"^    (\w+):", section, re.MULTILINE))


def tree(base: type[ConvstoreError] = ConvstoreError) -> Iterator[type[ConvstoreError]]:
    """An error and all below it that the package defines, as far as it is imported."""
    if base.__module__.startswith("convstore."):
        yield base
        for child in base.__subclasses__():
            yield from tree(child)


def exported(module: ModuleType) -> set[str]:
    """Return the public names of a module: those of its ``__all__``, or all that it defines."""
    return set(getattr(module, "__all__", None) or defined_in(module))


def test_every_method_is_listed() -> None:
    """The page names each method and attribute of store and conversation, and no other."""
    open_ = {
        (owner, name)
        for owner in (ConversationStore, Conversation)
        for name in {*dir(owner), *attributes_of(owner)}
        if not name.startswith("_")
    }
    assert {(OWNERS[owner], name) for owner, name in listed()} == open_


def calls() -> Iterator[Callable[..., Any]]:
    """Yield every method of store and conversation, the classes themselves, and every function for users."""
    for owner in (ConversationStore, Conversation):
        yield from (
            getattr(owner, name)
            for name in dir(owner)
            if name[0] != "_" and callable(getattr(owner, name))
        )
    yield from (ConversationStore, HistoryPolicy, CompactionRule)
    for module, name in names():
        if (
            module.__name__ not in FOR_ADAPTERS
            and inspect.isfunction(getattr(module, name))
            and name != TWIN
        ):
            yield getattr(module, name)


def test_every_argument_is_documented() -> None:
    """The docstring of a call names each of its arguments."""
    missing = {
        f"{call.__qualname__}: {name}"
        for call in calls()
        for name in {name for name, *_ in parameters_of(call)}
        - arguments_of(call)
        - attributes_of(call)
    }
    assert missing == set()


def test_errors_in_docstrings_exist() -> None:
    """Every error under "Raises:" in a docstring is an error of the package or a built-in one."""
    known = {error.__name__ for error in tree()} | {
        "Exception",
        "ValueError",
        "RuntimeError",
        "TypeError",
        "OSError",
    }
    for call in calls():
        section = (inspect.getdoc(call) or "").partition("Raises:\n")[2]
        assert set(re.findall(r"^    (\w+):", section, re.MULTILINE)) <= known, call


def test_every_value_is_documented() -> None:
    """The docstring of each model of `convstore.types` names each field."""
    for name in types.__all__:
        model = getattr(types, name)
        if inspect.isclass(model) and issubclass(model, BaseModel):
            documented = {name for base in model.__mro__ for name in attributes_of(base)}
            assert set(model.model_fields) <= documented, model
            assert all(inspect.getdoc(member) for member in properties_of(model).values()), model


def test_every_error_has_a_remedy() -> None:
    """The page of troubles has each error as a symptom, or says in its beginning what its kind means."""
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    symptoms = page.partition("\n## ")[0] + "".join(re.findall(r"^\| (.+?) \|", page, re.MULTILINE))
    assert {error.__name__ for error in tree()} == set(re.findall(r"`(\w+Error)`", symptoms)) - {
        "ValueError"
    }


async def test_the_commands_are_counted(
    client: Client, database_name: str, commands: Commands
) -> None:
    """A call takes as many as its number when warm; without a ``≈`` also in a conversation of one turn."""
    rule = CompactionRule(max_tokens_before_summary=200, max_summary_tokens=100, keep_last_turns=1)
    database = client[database_name]
    store = ConversationStore(
        database,
        summarizer=HeadTailSummarizer(rule),
        clock=STANDING,
        collection_prefix="counted_",  # a search of everything reads what other tests wrote
    )
    await store.setup()
    chat = store.conversation(user_id=uuid.uuid4().hex, thread_id="page")
    await chat.append(rag_turn("And seals?"))
    for number in range(1, 5):
        await chat.append(
            [HumanMessage(f"{number}?", id=f"q{number}"), AIMessage("Well. " * 60, id=f"a{number}")]
        )
    switched = store.conversation(user_id=uuid.uuid4().hex, thread_id="page")
    await switched.append([HumanMessage("1?", id="q1"), AIMessage("One.")])
    async with await switched.turn("q1", regenerate="click") as turn:
        await turn.append(AIMessage("Two."))
    first, _ = await switched.variants("q1")

    def calls_of(chat: Conversation) -> dict[tuple[str, str], Callable[[], Awaitable[object]]]:
        return {
            ("chat", "append"): lambda: chat.append(rag_turn("And orcas?")),
            ("chat", "append_history"): lambda: chat.append_history(
                [*rag_turn("And orcas?"), HumanMessage("And crabs?")]
            ),
            ("chat", "turn"): lambda: chat.turn("run", human="And whales?"),
            ("chat", "stop"): lambda: chat.stop("run"),
            ("chat", "load_history"): chat.load_history,
            ("chat", "compact"): chat.compact,
            ("chat", "summaries"): chat.summaries,
            ("chat", "undo_compaction"): chat.undo_compaction,
            ("chat", "get_tool_messages"): lambda: chat.get_tool_messages(["q1"]),
            ("store", "get_tool_messages"): lambda: store.get_tool_messages(
                tool_message_ids=["q1"], **chat.scope
            ),
            ("chat", "get_sources"): lambda: chat.get_sources([1]),
            ("chat", "citations"): lambda: chat.citations(AIMessage("Fish [1].")),
            ("chat", "reserve_source_ids"): lambda: chat.reserve_source_ids(2),
            ("chat", "find_shown_sources"): lambda: chat.find_shown_sources(["Orcas"]),
            ("chat", "get_turn"): lambda: chat.get_turn("q1"),
            ("chat", "items"): lambda: anext(chat.items(), None),
            ("chat", "list_messages"): chat.list_messages,
            ("chat", "search"): lambda: chat.search("orcas", limit=1),
            ("chat", "annotate"): lambda: chat.annotate("q1", rating=1),
            ("chat", "annotations"): lambda: chat.annotations(["q1"]),
            ("chat", "rewind"): lambda: chat.rewind(before_id="q4"),
            ("chat", "undo_rewind"): lambda: chat.undo_rewind(before_id="q4"),
            ("chat", "variants"): lambda: switched.variants("q1"),
            ("chat", "activate"): lambda: switched.activate(first),
            ("chat", "view_at"): lambda: chat.view_at("q4"),
            ("chat", "outline"): chat.outline,
            ("chat", "info"): chat.info,
            ("chat", "children"): chat.children,
            ("chat", "update"): lambda: chat.update(title="Fish"),
            ("store", "migrations"): store.migrations,
            ("store", "ping"): store.ping,
            ("store", "stats"): lambda: store.stats(user_id=chat.scope["user_id"]),
            ("store", "find_conversation"): lambda: store.find_conversation("0" * 24),
            ("store", "search"): lambda: store.search("orcas", user_id=chat.scope["user_id"]),
            ("store", "list_conversations"): lambda: store.list_conversations(
                limit=1, user_id=chat.scope["user_id"]
            ),
        }

    took: dict[tuple[str, str], int] = {}
    for name, call in calls_of(chat).items():
        with commands.counted():
            await call()
        took[name] = len(commands.sent)
    said = {name: int(number.lstrip("≈")) for name, number in listed().items() if number}
    assert said == took
    constant = {name for name, number in listed().items() if number.isdecimal()}
    for name in constant:
        with commands.counted():
            await calls_of(switched)[name]()
        assert (name, len(commands.sent)) == (name, said[name])
    await store.close()
