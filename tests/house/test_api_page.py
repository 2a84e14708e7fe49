"""docs/api.md lists the API in the words of the docstrings, and the docstrings say all that a caller needs."""

from __future__ import annotations

import importlib
import inspect
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

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
    integration,
    types,
)
from convstore.summarization import CompactionRule, HeadTailSummarizer
from convstore.testing import rag_turn

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
OWNERS = {"store": ConversationStore, "chat": Conversation, "ConversationStore": ConversationStore}
FOR_ADAPTERS = {"convstore.devserver", "convstore.integration", "convstore.testing"}
"""Modules whose functions may leave their arguments to the names and types."""
TWIN = "asummarize_messages"
"""Has the parameters of , and says so."""


def rows(heading: str) -> list[list[str]]:
    """The cells of all tables whose first heading is given."""
    tables = re.findall(rf"^\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        for row in "".join(tables).splitlines()
    ]


def codes(cell: str) -> list[str]:
    """Return the code spans of a cell."""
    return [code.replace(r"\|", "|") for code in re.findall(r"`([^`]*)`", cell)]


def parameters_of(target: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each parameter, the instance apart."""
    parameters = inspect.signature(target).parameters.values()
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in parameters
        if parameter.name != "self"
    ]


class Row(NamedTuple):
    """A call as the overview lists it."""

    how: str
    owner: str
    name: str
    link: str
    does: str
    commands: str


def methods() -> list[Row]:
    """Return the rows of the tables of store and conversation; their last rows list attributes."""
    call = re.compile(r"\[`(?:(await|async for … in) )?(\w+)\.(\w+)\([…]?\)`\]\((\S+)\)")
    found = [(call.fullmatch(first), *others) for first, *others in rows("call")]
    return [
        Row(match[1] or "", match[2], match[3], match[4], *others)
        for match, *others in found
        if match
    ]


def names() -> Iterator[tuple[ModuleType, str]]:
    """Return the table of tools, integrations and summarizers, with the module of each."""
    module = convstore
    for place, listed, *_ in rows("import from"):
        module = importlib.import_module(*codes(place)) if place else module
        yield from ((module, name) for name in codes(listed))


def first_sentence(target: object) -> str:
    """Return the promise at the beginning of a docstring."""
    paragraph = " ".join((inspect.getdoc(target) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]


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


def test_every_exported_name_is_documented() -> None:
    """Every export of ``convstore`` is on the page in code."""
    documented = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", PAGE))))
    assert set(convstore.__all__) - documented == set()


def test_every_name_of_the_other_modules_is_documented() -> None:
    """The table lists all that they export, errors and what only our own adapters need apart, and nothing else."""
    of_module: dict[ModuleType, list[str]] = {}
    for module, name in names():
        of_module.setdefault(module, []).append(name)
    for module in (convstore, integration):
        assert set(of_module.pop(module)) <= exported(module)
    is_error = {error.__name__ for error in tree()}
    for module, listed in of_module.items():
        assert sorted(listed) == sorted(exported(module) - is_error), module.__name__


def exported(module: ModuleType) -> set[str]:
    """Return the public names of a module: those of its ``__all__``, or all that it defines."""
    return set(getattr(module, "__all__", None) or defined_in(module))


def test_every_method_is_listed() -> None:
    """In the words of its docstring, with the way to call it, and a link to its place in the reference."""
    for row in methods():
        owner = OWNERS[row.owner]
        target = getattr(owner, row.name)
        assert row.does == first_sentence(target), row
        loop = "async for … in" if inspect.isasyncgenfunction(target) else ""
        assert row.how == ("await" if inspect.iscoroutinefunction(target) else loop), row
        page = "store" if owner is ConversationStore else "conversation"
        assert row.link == f"reference/{page}.md#convstore.{owner.__name__}.{row.name}"
    open_ = {
        (owner, name)
        for owner in OWNERS.values()
        for name in dir(owner)
        if not name.startswith("_")
    }
    attributes = {
        (owner, name)
        for owner in OWNERS.values()
        for name in {*attributes_of(owner), *properties_of(owner)}
    }
    assert {(OWNERS[row.owner], row.name) for row in methods()} == open_ - attributes
    assert all(
        f"`{name}`" in PAGE.replace("store.", "").replace("chat.", "") for _, name in attributes
    )


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
    """Each model of `convstore.types` is listed in the words of its docstring, which names each field."""
    listed = {codes(value)[0]: does for value, does, _ in rows("value")}
    models = {
        name: class_
        for name in types.__all__
        if inspect.isclass(class_ := getattr(types, name)) and issubclass(class_, BaseModel)
    }
    assert listed == {name: first_sentence(model) for name, model in models.items()}
    for model in models.values():
        documented = {name for base in model.__mro__ for name in attributes_of(base)}
        assert set(model.model_fields) <= documented, model
        assert all(inspect.getdoc(member) for member in properties_of(model).values()), model
    assert {name for name in types.__all__ if f"`{name}" not in PAGE} == set()


def test_every_error_is_documented() -> None:
    """With its bases and attributes, and no other."""
    listed = {}
    for error, bases, *_ in rows("error"):
        name, *attributes = codes(error)
        listed[name] = codes(bases), set(attributes)
    assert listed == {
        error.__name__: (
            [base.__name__ for base in error.__bases__],
            {f".{name}" for name in attributes_of(error)},
        )
        for error in tree()
    }


async def test_the_commands_are_counted(
    client: Client, database_name: str, commands: Commands
) -> None:
    """A call with a number takes so many when warm; with a ``+`` too, as nothing here makes it take more."""
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
    calls: dict[tuple[str, str], Callable[[], Awaitable[object]]] = {
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
        ("store", "stats"): lambda: store.stats(user_id="nobody"),
        ("store", "find_conversation"): lambda: store.find_conversation("0" * 24),
        ("store", "search"): lambda: store.search("orcas", user_id="nobody"),
        ("store", "list_conversations"): lambda: store.list_conversations(
            limit=1, user_id="nobody"
        ),
    }
    took: dict[tuple[str, str], int] = {}
    for name, call in calls.items():
        with commands.counted():
            await call()
        took[name] = len(commands.sent)
    listed = {(row.owner, row.name): row.commands for row in methods() if row.commands}
    assert {name: int(number.rstrip("+")) for name, number in listed.items()} == took
    await store.close()
