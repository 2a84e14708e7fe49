"""Templates name attributes and methods that neither a type checker nor a search for callers sees."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, nodes
from jinja2.runtime import LoopContext
from langchain_core.messages import BaseMessage

from convstore.ext import model_calls
from convstore.ext.inspector import (
    answers_page,
    call_tabs,
    changes,
    comparison,
    conversation_page,
    damage,
    detail_pages,
    list_selection,
    overview,
    rendering,
    strip,
)
from convstore.ext.inspector.text import Body, BodyPart
from convstore.types import (
    ConversationInfo,
    Source,
    StoredItem,
    StoredMessage,
    Summary,
    ToolRecord,
    Variant,
)
from convstore.values.list_rows import Chip, ConversationEnd, ListRow
from convstore.values.reports import ConversationHits, SearchHit, SearchResult
from convstore.values.stamps import RequestParts, ViewReason

HTML = Path(rendering.__file__).parent / "html"
HANDED: Mapping[str, tuple[Any, ...]] = {
    "annotations": (dict,),
    "bar": (strip.Bar,),
    "before": (comparison.AlignedView,),
    "beside": (RequestParts,),
    "billed": (dict[str, Any],),
    "body": (Body,),
    "call": (
        model_calls.ModelCall,
        model_calls.ToolCall,
        ConversationInfo.model_fields["last_call"].annotation,
    ),
    "calls": (model_calls.Calls,),
    "causes": (dict,),
    "changes": (changes.ViewChanges,),
    "child": (ConversationInfo,),
    "children": (dict, list),
    "chip": (Chip,),
    "chips": (dict[str, Chip],),
    "choice": (list_selection.ScopeChoice, tuple),
    "cited_sources": (dict,),
    "compared": (model_calls.ModelCall,),
    "css_classes": (dict,),
    "end": (ConversationEnd,),
    "entry": (conversation_page._PrintedMessage,),
    "found": (list_selection.Selection, SearchResult),
    "given": (comparison.ShownForm,),
    "group": (dict[str, Any], ConversationHits),
    "hit": (SearchHit,),
    "info": (ConversationInfo,),
    "item": (StoredItem,),
    "items": (dict,),
    "jumps": (dict,),
    "kept": (dict,),
    "labels": (dict,),
    "legend": (dict,),
    "line": (conversation_page._PageRow, changes.DiffLine),
    "loop": (LoopContext,),
    "message": (BaseMessage,),
    "metadata": (dict,),
    "model": (dict[str, Any],),
    "moment": (StoredMessage,),
    "more": (dict, list),
    "one": (StoredMessage, Variant, Summary, call_tabs._SentRow),
    "orders": (dict,),
    "overview": (overview.Overview,),
    "own_numbers": (dict,),
    "page": (conversation_page._LogPage,),
    "part": (detail_pages._PartSlice,),
    "parts_of": (dict,),
    "piece": (BodyPart,),
    "query": (list_selection.ListQuery,),
    "question": (StoredMessage,),
    "reason": (ViewReason,),
    "record": (ToolRecord,),
    "replaced": (dict,),
    "result": (call_tabs._ToolResult,),
    "row": (ListRow, damage._LogRow),
    "scanned": (list[StoredMessage],),
    "scope": (dict,),
    "section": (conversation_page._TurnSection,),
    "sections": (list[conversation_page._TurnSection],),
    "side": (answers_page._Side,),
    "source": (Source,),
    "stored": (StoredMessage,),
    "strip": (strip.Strip,),
    "summary": (Summary,),
    "sums": (dict[str, Any],),
    "times": (dict,),
    "titles": (dict,),
    "together": (dict[str, Any],),
    "tool": (dict[str, Any], str),
    "value": (str,),
    "variant": (conversation_page._AnswerPosition, Variant),
    "variants": (dict, list),
    "view": (comparison.AlignedView,),
}
"""The types of what pages hand over by a name, and of the variables in templates."""


def chains(environment: Environment) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the template, the variable and the attributes of each expression that names some."""
    for path in sorted(HTML.glob("*.html")):
        template = environment.parse(path.read_text(encoding="utf-8"))
        for found in template.find_all(nodes.Getattr):
            names = list[str]()
            node: Any = found
            while isinstance(node, nodes.Getattr | nodes.Getitem | nodes.Call):
                if isinstance(node, nodes.Getattr):
                    names.insert(0, node.attr)
                node = node.node
            if isinstance(node, nodes.Name):
                yield path.name, node.name, tuple(names)


@cache
def hints_of(type_: type) -> dict[str, Any]:
    """Return the types of a class' fields, properties and methods, `Any` where they are not known."""
    found = dict[str, Any].fromkeys(dir(type_), Any)
    for base in reversed(type_.__mro__):
        for name, value in vars(base).items():
            function = value.fget if isinstance(value, property) else value
            if isinstance(function, types.FunctionType):
                found[name] = _hints(function).get("return", Any)
        found |= dict.fromkeys(_set_in_init(base), Any)
        found |= _hints(base)
    return found


def _set_in_init(type_: type) -> list[str]:
    """Return the attributes that a class sets in its own `__init__`, where it has no fields."""
    init = vars(type_).get("__init__")
    if not isinstance(init, types.FunctionType) or not type_.__module__.startswith("convstore"):
        return []
    if dataclasses.is_dataclass(type_):
        return []
    tree = ast.parse(textwrap.dedent(inspect.getsource(init)))
    return [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]


def _hints(of: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(of)
    except (NameError, AttributeError):  # types that are imported for the checker alone
        return dict.fromkeys(getattr(of, "__annotations__", {}), Any)


def attributes(type_: Any, name: str) -> list[Any]:
    """Return the types that an attribute may have in a value of a type; none if no such value has it."""
    if type_ is Any or type_ is type(None):
        return [Any] if type_ is Any else []
    origin = typing.get_origin(type_) or type_
    parts = typing.get_args(type_)
    if origin in (typing.Union, types.UnionType):
        return [found for part in parts for found in attributes(part, name)]
    if not isinstance(origin, type) or origin.__module__ == builtins.__name__ or parts:
        return _of_container(origin, parts, name)
    hints = hints_of(origin)
    return [hints[name]] if name in hints else []


def _of_container(origin: Any, parts: tuple[Any, ...], name: str) -> list[Any]:
    """Return those of a container, or of what is in it: Jinja looks there, too, and `[0]` is left out of a chain."""
    if hasattr(origin, name):
        return [Any]
    inner = [part for part in parts[-1:] if part is not Ellipsis] or list(parts[:1])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return inner or [Any]
    return [found for part in inner for found in attributes(part, name)]


def missing(handed: Mapping[str, Iterable[Any]]) -> list[str]:
    """Return the expressions of templates whose attributes none of the types has."""
    environment = rendering._environment()
    macros = set(environment.get_template("parts.html").module.__dict__)
    wrong = list[str]()
    for template, variable, names in chains(environment):
        if variable == "parts":
            is_known = names[0] in macros
        else:
            possible = list(handed.get(variable, ()))
            for name in names:
                possible = [found for type_ in possible for found in attributes(type_, name)]
            is_known = bool(possible)
        if not is_known:
            wrong.append(f"{template}: {'.'.join([variable, *names])}")
    return wrong


def test_templates_name_what_pages_hand_over() -> None:
    """A name that no value has is an error of the page that shows it; a renamed method is found here."""
    assert missing(HANDED) == []
    used = {variable for _, variable, _ in chains(rendering._environment())}
    assert used - {"parts"} == set(HANDED)


@pytest.mark.parametrize(
    ("type_", "name", "expression"),
    [
        (ConversationEnd, "line", "parts.html: end.line"),
        (overview.Overview, "links", "overview.html: overview.links"),
        (strip.Scale, "budget_at", "call.html: strip.scale.budget_at"),
        (model_calls.Calls, "cuts", "changes.html: calls.cuts"),
    ],
)
def test_a_method_that_is_missing_is_found(
    monkeypatch: pytest.MonkeyPatch, type_: type, name: str, expression: str
) -> None:
    """Also where a property or a field leads to it, and if another type has one of its name."""
    monkeypatch.delattr(type_, name)
    hints_of.cache_clear()
    try:
        assert set(missing(HANDED)) == {expression}
    finally:
        hints_of.cache_clear()
