"""docs/api.md is the API: its names exist, its signatures are those of the code, and nothing public is missing."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from counting import STANDING, Commands
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel
from test_public_names import defined_in

import convstore
from convstore import Conversation, ConversationStore, ConvstoreError, integration, types
from convstore.summarization import CompactionRule, HeadTailSummarizer
from convstore.testing import rag_turn

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
OWNERS = {"store": ConversationStore, "chat": Conversation, "ConversationStore": ConversationStore}
UNDOCUMENTED = object()
"""A default that the page leaves to the code, written as an ellipsis."""


def rows(heading: str) -> list[list[str]]:
    """The cells of all tables whose first heading is given."""
    tables = re.findall(rf"^\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in "".join(tables).splitlines()]


def codes(cell: str) -> list[str]:
    """Return the code spans of a cell."""
    return [code.replace(r"\|", "|") for code in re.findall(r"`([^`]*)`", cell)]


class Documented(NamedTuple):
    """A name as the page writes it: how it is called, on what, and with which arguments; None if it is not called."""

    how: str
    owner: str
    name: str
    arguments: str | None

    def check(self, target: Callable[..., Any]) -> None:
        """It has the parameters that it is written with, and is awaited or iterated if it has to be."""
        documented, real = self._parameters(target), parameters_of(target)
        assert [one[:2] for one in documented] == [one[:2] for one in real], self
        for (_, _, default), (name, _, true) in zip(documented, real, strict=True):
            assert true is not inspect.Parameter.empty if default is UNDOCUMENTED else default == true, (name, self)
        loop = "async for" if inspect.isasyncgenfunction(target) else ""
        assert self.how == ("await" if inspect.iscoroutinefunction(target) else loop), self

    def _parameters(self, target: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
        """The parameters as written; names in them mean what they mean where the target is defined."""
        names = {**vars(sys.modules[target.__module__]), "UNDOCUMENTED": UNDOCUMENTED}
        exec(f"def documented({str(self.arguments).replace('…', 'UNDOCUMENTED')}): ...", names)  # noqa: S102 - our own page
        return parameters_of(names["documented"])


def documented(code: str) -> Documented:
    """Return the cells beside some code on the page."""
    found = re.fullmatch(r"(?:(await|async for) )?(?:\w+ in )?(?:(\w+)\.)?(\w+)(?:\((.*)\))?", code)
    assert found, code
    return Documented(found[1] or "", found[2] or "", found[3], found[4])


def parameters_of(target: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each parameter, the instance apart."""
    parameters = inspect.signature(target).parameters.values()
    return [(one.name, one.kind, one.default) for one in parameters if one.name != "self"]


def methods() -> Iterator[tuple[Documented, list[str]]]:
    """Return the first column of the tables of store and conversation, with the other cells."""
    return ((documented(code), others) for first, *others in rows("call") for code in codes(first))


def names() -> Iterator[tuple[ModuleType, Documented]]:
    """Return the table of tools, integrations and summarizers, with the module of each."""
    module = convstore
    for place, listed, *_ in rows("import from"):
        module = importlib.import_module(*codes(place)) if place else module
        yield from ((module, documented(code)) for code in codes(listed))


def properties_of(owner: type) -> dict[str, Any]:
    """The properties of a class."""
    own = (base for base in owner.__mro__ if base.__module__.startswith("convstore."))
    return {name: one for base in own for name, one in vars(base).items() if isinstance(one, property)}


def attributes_of(owner: type) -> set[str]:
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
    for module, one in names():
        of_module.setdefault(module, []).append(one.name)
    for module in (convstore, integration):
        assert set(of_module.pop(module)) <= exported(module)
    is_error = {error.__name__ for error in tree()}
    for module, listed in of_module.items():
        assert sorted(listed) == sorted(exported(module) - is_error), module.__name__


def exported(module: ModuleType) -> set[str]:
    """Return the public names of a module: those of its ``__all__``, or all that it defines."""
    return set(getattr(module, "__all__", None) or defined_in(module))


def test_every_method_is_described_as_it_is() -> None:
    """Store and conversation have the listed methods and attributes, with these signatures, and no others."""
    listed = {(OWNERS[one.owner], one.name): one for one, _ in methods()}
    for (owner, name), one in listed.items():
        if one.arguments is not None:
            one.check(getattr(owner, name))
    open_ = {(owner, name) for owner in OWNERS.values() for name in dir(owner) if not name.startswith("_")}
    attributes = {(owner, name) for owner in OWNERS.values() for name in {*attributes_of(owner), *properties_of(owner)}}
    assert set(listed) == open_ | attributes
    assert {key for key, one in listed.items() if one.arguments is None} == attributes


def test_every_function_is_described_as_it_is() -> None:
    """A tool, an integration or a summarizer that is listed with arguments has just these."""
    called = [(module, one) for module, one in names() if one.arguments is not None]
    assert called
    for module, one in called:
        one.check(getattr(module, one.name))


def test_the_arguments_of_a_store_are_documented() -> None:
    """Each with its default, in order."""
    first, *others = ["=".join(codes(name) + codes(default)) for name, default, _ in rows("argument")]
    Documented("", "", "ConversationStore", ", ".join([first, "*", *others])).check(ConversationStore)


@pytest.mark.parametrize("options", [CompactionRule])
def test_every_option_is_documented(options: Any) -> None:
    """Each field of policy and rule with its default, in order."""
    listed = [(*codes(name), *codes(default)) for name, default, _ in rows(f"`{options.__name__}`")]
    values = [(name, eval(default)) for name, default in listed]  # noqa: S307 - our own page
    assert values == [(one.name, one.default) for one in fields(options)]


def test_every_field_of_every_value_is_documented() -> None:
    """Of all models in `convstore.types`, in order and with types; what is computed from other fields, too."""
    listed: dict[str, list[tuple[str, ...]]] = {}
    current: list[tuple[str, ...]] = []
    for value, field, type_, _ in rows("value"):
        current = listed.setdefault(codes(value)[0], []) if value else current
        current.append((*codes(field), *codes(type_)))
    exported = {name: getattr(types, name) for name in types.__all__}
    models = {name: one for name, one in exported.items() if inspect.isclass(one) and issubclass(one, BaseModel)}
    assert listed == {name: list(types_of(model).items()) for name, model in models.items()}


def types_of(model: type[BaseModel]) -> dict[str, str]:
    """The type of each field and property as its source writes it; how it is serialized apart."""
    computed = {name: inspect.get_annotations(one.fget)["return"] for name, one in properties_of(model).items()}
    written = {**inspect.get_annotations(model), **computed}
    hidden = {"model_config", "_stamp"}
    types = {name: re.sub(r"SerializeAsAny\[(\w+)\]", r"\1", type_) for name, type_ in written.items()}
    return {name: type_.replace('"', "'") for name, type_ in types.items() if name not in hidden}


def test_every_error_is_documented() -> None:
    """With its bases and attributes, and no other."""
    listed = {}
    for error, bases, *_ in rows("error"):
        name, *attributes = codes(error)
        listed[name] = codes(bases), set(attributes)
    assert listed == {
        one.__name__: ([base.__name__ for base in one.__bases__], {f".{name}" for name in attributes_of(one)})
        for one in tree()
    }


def test_what_a_call_raises_exists() -> None:
    """The errors of a row are errors of the package; a row may lead to those of another."""
    raised = {code for one, (_, _, errors) in methods() for code in codes(errors)}
    assert raised - {"append"} <= {error.__name__ for error in tree()}


async def test_the_commands_are_counted(client: Client, database_name: str, commands: Commands) -> None:
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
        await chat.append([HumanMessage(f"{number}?", id=f"q{number}"), AIMessage("Well. " * 60, id=f"a{number}")])
    switched = store.conversation(user_id=uuid.uuid4().hex, thread_id="page")
    await switched.append_turn("q1", human="1?", messages=AIMessage("One."))
    async with await switched.turn("q1", regenerate="click") as turn:
        await turn.append(AIMessage("Two."))
    first, _ = await switched.variants("q1")
    calls: dict[tuple[str, str], Callable[[], Awaitable[object]]] = {
        ("chat", "append"): lambda: chat.append(rag_turn("And orcas?")),
        ("chat", "append_turn"): lambda: chat.append_turn("asked", human="And bees?"),
        ("chat", "turn"): lambda: chat.turn("run", human="And whales?"),
        ("chat", "stop"): lambda: chat.stop("run"),
        ("chat", "load_history"): chat.load_history,
        ("chat", "compact"): chat.compact,
        ("chat", "summaries"): chat.summaries,
        ("chat", "undo_compaction"): chat.undo_compaction,
        ("chat", "get_tool_messages"): lambda: chat.get_tool_messages(["q1"]),
        ("store", "get_tool_messages"): lambda: store.get_tool_messages(tool_message_ids=["q1"], **chat.scope),
        ("chat", "get_sources"): lambda: chat.get_sources([1]),
        ("chat", "reserve_source_ids"): lambda: chat.reserve_source_ids(2),
        ("chat", "find_shown_sources"): lambda: chat.find_shown_sources(["Orcas"]),
        ("chat", "get_turn"): lambda: chat.get_turn("q1"),
        ("chat", "list_messages"): chat.list_messages,
        ("chat", "search"): lambda: chat.search("orcas", limit=1),
        ("chat", "annotate"): lambda: chat.annotate("q1", rating=1),
        ("chat", "annotations"): lambda: chat.annotations(["q1"]),
        ("chat", "rewind"): lambda: chat.rewind(before="q4"),
        ("chat", "undo_rewind"): lambda: chat.undo_rewind(before="q4"),
        ("chat", "variants"): lambda: switched.variants("q1"),
        ("chat", "activate"): lambda: switched.activate(first),
        ("chat", "view_at"): lambda: chat.view_at("q4"),
        ("chat", "outline"): chat.outline,
        ("chat", "info"): chat.info,
        ("chat", "children"): chat.children,
        ("chat", "update"): lambda: chat.update(title="Fish"),
        ("store", "migrations"): store.migrations,
        ("store", "stats"): lambda: store.stats(user_id="nobody"),
        ("store", "find_conversation"): lambda: store.find_conversation("0" * 24),
        ("store", "search"): lambda: store.search("orcas", user_id="nobody"),
        ("store", "list_conversations"): lambda: store.list_conversations(limit=1, user_id="nobody"),
    }
    took: dict[tuple[str, str], int] = {}
    for name, call in calls.items():
        with commands.counted():
            await call()
        took[name] = len(commands.sent)
    listed = {(one.owner, one.name): number for one, (_, number, _) in methods() if number}
    assert {name: int(number.rstrip("+")) for name, number in listed.items()} == took
    await store.close()
