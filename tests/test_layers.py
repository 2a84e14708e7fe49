"""The layers of the architecture, read from the source: who imports whom, who speaks to MongoDB, who is how long."""

from __future__ import annotations

import ast
import graphlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "convstore"

# A package stands for all its modules.
LAYERS = (
    ("addresses", "bounds", "exceptions", "models", "policy"),
    (
        *("chain", "codec", "entries", "extraction", "marks", "pairing", "scopes"),
        *("shortening", "sources", "stubs", "summaries", "summarization", "tokens", "view"),
    ),
    ("indexes", "schema"),
    ("driver", "repository"),
    ("migrate", "services", "tools"),
    ("agent", "bound", "conversation", "store"),
    ("", "__main__", "cli", "devserver", "ext", "testing", "transfer"),
)
LAYER_OF = {unit: layer for layer, units in enumerate(LAYERS) for unit in units}

# Who may import what is not in the standard library; a star stands for everybody.
ALLOWED = {
    "bson": {"driver", "repository", "services"},
    "hypothesis": {"testing"},
    "langchain": {"ext", "summarization"},
    "langchain_core": {"*"},
    "langgraph": {"ext"},
    "mongomock_motor": {"driver"},
    "motor": {"driver"},
    "pydantic": {"*"},
    "pymongo": {"devserver", "driver", "migrate", "repository"},
    "pytest": {"testing"},
    "rich": {"cli"},
    "typer": {"cli"},
    "zstandard": {"codec"},
}
SPEAKS_MONGODB = {"driver", "migrate", "repository"}
HOSTILE_INPUT = {"testing"}  # operators there are what a scope must refuse
OPERATOR = re.compile(r"\$\$?[A-Za-z]")
CLOCKS = {"now", "utcnow", "today"}
IMPURE = {"asyncio", "random", "secrets", "socket", "time"}
WAITS_FOR_A_MODEL = {
    "chain.summarizer",
    "summarization.folders",
    "summarization.node",
    "summarization.summarize",
    "summarization.summarizers",
}
WORKS_IN_THREADS = {"chain.summarizer", "summarization.folders"}
MOST_LINES = 450

# Imports that only a type checker makes, where one at run time would be a circle or go up.
FOR_TYPES_ONLY = {("bound", "store"), ("conversation", "store")}


class Import(NamedTuple):
    """One import statement: the full name of what it names, and whether only a type checker makes it."""

    target: str
    line: int
    for_types: bool


@cache
def module_paths() -> dict[str, Path]:
    """Every module of the package by its name below ``convstore``, "" for the package itself."""
    paths = {path: path.relative_to(PACKAGE).with_suffix("").parts for path in sorted(PACKAGE.rglob("*.py"))}
    return {".".join(part for part in parts if part != "__init__"): path for path, parts in paths.items()}


@cache
def nodes_in(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def unit_of(module: str) -> str:
    """The entry of the layer table that a module belongs to."""
    return module.partition(".")[0]


@cache
def imports_of(path: Path) -> list[Import]:
    """All imports of a file, those inside functions too."""
    nodes = nodes_in(path)
    for_types = {id(node) for block in nodes if is_for_types(block) for node in ast.walk(block)}
    return [
        Import(target, node.lineno, id(node) in for_types)
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for target in targets_of(node)
    ]


def is_for_types(node: ast.AST) -> bool:
    """Whether a node is ``if TYPE_CHECKING``."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def targets_of(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Full names of the modules that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    assert node.level == 0, f"line {node.lineno}: relative import"
    for alias in node.names:
        inner = f"{node.module}.{alias.name}"
        yield inner if inner.removeprefix("convstore.") in module_paths() else str(node.module)


def nodes_of(path: Path, *kinds: type[ast.AST]) -> list[Any]:
    """Every node of some kinds in a file."""
    return [node for node in nodes_in(path) if isinstance(node, kinds)]


def foreign_imports(path: Path) -> set[tuple[str, int]]:
    """Packages of others that a file imports, with the line."""
    found = {(found.target.partition(".")[0], found.line) for found in imports_of(path)}
    return {(name, line) for name, line in found if name not in sys.stdlib_module_names | {"convstore"}}


def internal(path: Path, *, for_types: bool = False) -> set[str]:
    """Names below ``convstore`` of the modules of ours that a file imports."""
    return {
        found.target.removeprefix("convstore").removeprefix(".")
        for found in imports_of(path)
        if found.target.partition(".")[0] == "convstore" and found.for_types is for_types
    }


def test_every_module_has_a_layer():
    """A new module is put into the table before it is merged, and the table names nothing that is gone."""
    assert {unit_of(module) for module in module_paths()} == set(LAYER_OF)


def test_a_layer_never_imports_a_higher_one():
    """What a module imports at run time is in its own layer or below it."""
    found = {
        (module, target)
        for module, path in module_paths().items()
        for target in internal(path)
        if LAYER_OF[unit_of(target)] > LAYER_OF[unit_of(module)]
    }
    assert found == set()


def test_imports_for_types_that_go_up_or_sideways_are_few():
    """Only those that are listed name a module of the same or a higher layer for a type checker alone."""
    found = {
        (module, target)
        for module, path in module_paths().items()
        for target in internal(path, for_types=True)
        if LAYER_OF[unit_of(target)] >= LAYER_OF[unit_of(module)]
    }
    assert found == FOR_TYPES_ONLY


def test_no_modules_import_each_other_in_a_circle():
    """Inside a layer too there is an order."""
    graph = {module: internal(path) - {module} for module, path in module_paths().items()}
    graphlib.TopologicalSorter(graph).prepare()


def test_no_packages_import_each_other_in_a_circle():
    """What an ``__init__`` leaves out is a part of its package, too."""
    graph: dict[str, set[str]] = {unit: set() for unit in LAYER_OF if unit}
    for module, path in module_paths().items():
        if unit := unit_of(module):
            graph[unit] |= {unit_of(target) for target in internal(path)} - {"", unit}
    graphlib.TopologicalSorter(graph).prepare()


def test_other_packages_are_imported_where_they_belong():
    """The database driver from layer 3 on, an extra only where it is for; langchain also makes a model of its name."""
    found = {
        (module, line, name)
        for module, path in module_paths().items()
        for name, line in foreign_imports(path)
        if not ALLOWED.get(name, set()) & {"*", unit_of(module)}
    }
    assert found == set()


def test_no_import_is_hidden_from_these_tests():
    """Nothing of ours is imported by a text, which could go up."""
    found = {
        (module, name)
        for module, path in module_paths().items()
        for node in nodes_of(path, ast.Name, ast.Attribute, ast.alias)
        if (name := getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "name", None))
        in {"__import__", "import_module"}
    }
    assert found == set()


def test_the_table_of_packages_keeps_drivers_above_the_rules():
    """Nobody below layer 3 is allowed a package that speaks to MongoDB."""
    drivers = ALLOWED["bson"] | ALLOWED["pymongo"] | ALLOWED["motor"] | ALLOWED["mongomock_motor"]
    assert {unit for unit in drivers if LAYER_OF[unit] < LAYER_OF["driver"]} == set()


def test_rules_and_shapes_neither_wait_nor_ask_the_time():
    """Layers 0 to 2 give the same for the same: no coroutines but a summarizer's model call, no clock, no dice.

    One summarizer waits for several answers at once and reads long chains in threads, which needs asyncio; nothing
    else of what is impure.
    """
    pure = [path for module, path in module_paths().items() if LAYER_OF[unit_of(module)] < LAYER_OF["driver"]]
    still = set(pure) - {module_paths()[module] for module in WAITS_FOR_A_MODEL}
    waits = [node for path in still for node in nodes_of(path, ast.AsyncFunctionDef, ast.Await)]
    clocks = [node for path in pure for node in nodes_of(path, ast.Attribute) if node.attr in CLOCKS]
    several = {(module_paths()[module], "asyncio") for module in WORKS_IN_THREADS}
    impure = [
        found
        for path in pure
        for found in imports_of(path)
        if found.target in IMPURE and (path, found.target) not in several
    ]
    assert (waits, clocks, impure) == ([], [], [])


def test_only_a_few_modules_hold_operators():
    """A string that begins like ``$set`` stands where commands are made, so that no other module can make one."""
    found = {
        (module, node.lineno, node.value)
        for module, path in module_paths().items()
        if unit_of(module) not in SPEAKS_MONGODB | HOSTILE_INPUT
        for node in nodes_of(path, ast.Constant)
        if isinstance(node.value, str) and OPERATOR.match(node.value)
    }
    assert found == set()


def test_a_module_can_be_read_at_one_sitting():
    """No module has 450 lines."""
    lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in module_paths().items()}
    assert {module: number for module, number in lines.items() if number >= MOST_LINES} == {}


def test_a_migration_sees_only_what_it_may_do():
    """Migrations of all times depend on `convstore.migrate` alone, so the rest may change under them."""
    for path in (ROOT / "migrations").glob("*.py"):
        assert {found.target for found in imports_of(path)} <= {"__future__", "convstore.migrate"}
