"""Names that users see: ``__all__`` lists them and no others, and each of them has a docstring."""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from adapters import can_import

import convstore
from convstore import exceptions, integration, summarization, types

PACKAGE = Path(__file__).parents[2] / "convstore"
FOR_USERS = {
    *(
        "convstore",
        "convstore.chain",
        "convstore.ext.inspector",
        "convstore.ext.langchain",
        "convstore.ext.langgraph",
    ),
    *("convstore.ext.claude_agent", "convstore.ext.microsoft", "convstore.ext.openai_agents"),
    *("convstore.ext.pydantic_ai", "convstore.ext.run_scope"),
    *(
        "convstore.cli",
        "convstore.conversation",
        "convstore.store",
        "convstore.summarization",
        "convstore.transfer",
    ),
    *("convstore.ext.ui", "convstore.integration", "convstore.public", "convstore.types"),
}
"""Packages and facades that users import from, and the two that `convstore` has its main classes from."""
ERRORS = {name for name, var in vars(exceptions).items() if inspect.isclass(var)}
RUNS_WHEN_IMPORTED = {"convstore.__main__"}


@cache
def modules() -> dict[str, ModuleType]:
    """All modules of the package that can be imported without running something."""
    paths = [
        path.relative_to(PACKAGE.parent).with_suffix("").parts
        for path in sorted(PACKAGE.rglob("*.py"))
    ]
    names = [".".join(part for part in parts if part != "__init__") for parts in paths]
    return {
        name: importlib.import_module(name)
        for name in names
        if name not in RUNS_WHEN_IMPORTED and can_import(name)
    }


def order(name: str) -> tuple[int, str]:
    """The order that ruff keeps: constants, classes, then the rest, each by name."""
    return 0 if name.isupper() else 1 if name[0].isupper() else 2, name


def names_in(statement: ast.stmt) -> set[str]:
    """Names that a statement defines."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {
                node.id
                for target in targets
                for node in ast.walk(target)
                if isinstance(node, ast.Name)
            }
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def defined_in(module: ModuleType) -> set[str]:
    """Public names that a module defines."""
    body = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body
    return {name for statement in body for name in names_in(statement) if not name.startswith("_")}


def parts_of(thing: object) -> dict[str, object]:
    """Return the parts of a public object that need a docstring: itself, and public methods and properties."""
    kinds = (property, classmethod, staticmethod)
    own = vars(thing) if inspect.isclass(thing) else {}
    public = {name: value for name, value in own.items() if not name.startswith("_")}
    return {"": thing} | {
        name: v for name, v in public.items() if inspect.isfunction(v) or isinstance(v, kinds)
    }


def drawn_tree(text: str) -> dict[str, str | None]:
    """Each error of the drawing with the one that it hangs on."""
    parents: dict[str, str | None] = {}
    branch: list[str] = []
    for line in text.splitlines():
        if found := re.match(r"    ((?:│   |    |├── |└── )*)(\w+Error)\b", line):
            depth = len(found[1]) // 4
            branch[depth:] = [found[2]]
            parents[found[2]] = branch[depth - 1] if depth else None
    return parents


def named_by() -> dict[str, list[str]]:
    """``__all__`` of the modules that have one."""
    return {
        name: list(module.__all__)
        for name, module in modules().items()
        if hasattr(module, "__all__")
    }


def test_all_is_sorted() -> None:
    """``__all__`` of every module is in order."""
    assert {
        name: names for name, names in named_by().items() if names != sorted(names, key=order)
    } == {}


def test_all_is_where_users_import_from() -> None:
    """In any other module it would repeat which names have no underscore."""
    assert {name for name in named_by() if not name.startswith("convstore.testing")} == set(
        filter(can_import, FOR_USERS)
    )


def test_all_is_complete() -> None:
    """``__all__`` has every public name that its module defines."""
    defined = {name: defined_in(modules()[name]) for name in named_by()}
    assert {
        name: missing
        for name, names in named_by().items()
        if (missing := defined[name] - set(names))
    } == {}


def test_the_package_has_what_is_typed_every_day() -> None:
    """All else is in a module whose name says what is there."""
    assert len(convstore.__all__) == 24
    assert {name for name in types.__all__ if hasattr(convstore, name)} < set(convstore.__all__)


def test_adapters_need_thirty_names() -> None:
    """What frameworks, transfer and the command line reach beneath the public API is one short list."""
    assert len(integration.__all__) <= 30


def test_the_package_shows_what_it_names() -> None:
    """``dir(convstore)`` has what ``__all__`` has, its modules and what they import apart."""
    shown = {name: getattr(convstore, name) for name in dir(convstore) if not name.startswith("_")}
    features = (ModuleType, __future__._Feature)
    own = {name for name, value in shown.items() if not isinstance(value, features)} - {
        "Any",
        "TYPE_CHECKING",
    }
    assert own == set(convstore.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    """A name that does not exist raises AttributeError with the name of the package."""
    with pytest.raises(AttributeError, match="module 'convstore' has no attribute 'nothing'"):
        _ = convstore.nothing
    with pytest.raises(
        AttributeError, match=r"module 'convstore\.summarization' has no attribute 'nothing'"
    ):
        _ = summarization.nothing


def test_every_public_object_is_explained() -> None:
    """Functions and classes have a docstring, and so have the public methods and properties of classes."""
    names = {
        name: {*named_by().get(name, ()), *defined_in(module)} for name, module in modules().items()
    }
    public = [
        (modules()[name], member, getattr(modules()[name], member))
        for name in names
        for member in names[name]
    ]
    missing = [
        f"{module.__name__}.{name}.{part}".rstrip(".")
        for module, name, thing in public
        if inspect.isclass(thing) or inspect.isfunction(thing)
        for part, member in parts_of(thing).items()
        if not (getattr(member, "__doc__", None) or "").strip()
    ]
    assert missing == []


def test_every_module_says_what_it_is_for() -> None:
    """The docstring of every module opens with a sentence."""
    assert [
        name
        for name, module in modules().items()
        if not re.match(r"[^.]{10,}[.:]", module.__doc__ or "")
    ] == []


def test_every_error_is_drawn() -> None:
    """The tree in the docstring of `convstore.exceptions` is the tree of its classes, and `convstore` has six."""
    bases = {name: getattr(exceptions, name).__bases__[0].__name__ for name in ERRORS}
    assert drawn_tree(str(exceptions.__doc__)) == {**bases, "ConvstoreError": None}
    assert len({name for name in convstore.__all__ if name in ERRORS}) == 6


def test_builtin_bases_are_drawn() -> None:
    """The tree names the built-in base of an error."""
    drawn = dict(re.findall(r"(\w+Error) \((\w+)\)", str(exceptions.__doc__)))
    bases = {name: getattr(exceptions, name).__bases__[1:] for name in ERRORS}
    assert drawn == {name: others[0].__name__ for name, others in bases.items() if others}
