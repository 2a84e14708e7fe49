"""The laws of the house, read from the source: imports between rooms, MongoDB in one room, sizes of modules."""

from __future__ import annotations

import ast
import graphlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "convstore"

# Rooms by floor, from the ground up; a package includes all its modules.
FLOORS = (
    ("devserver", "exceptions", "messages", "values"),
    ("chain", "index", "log", "sources", "summarization", "wire"),
    ("mongo",),
    ("runtime",),
    ("admin", "append", "readback", "search", "verify", "view"),
    ("compaction", "tools", "turns"),
    ("conversation", "store"),
    ("", "edges", "ext", "integration", "public", "testing", "transfer", "types"),
    ("__main__", "cli"),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
USE_CASES = frozenset(FLOORS[4])
MONGODB = FLOOR_OF["mongo"]

# Modules of others that a room may import, standard library apart; a star means every room.
ALLOWED = {
    "Stemmer": {"index"},
    "agent_framework": {"ext"},
    "agents": {"ext"},
    "bson": {"mongo", "runtime", "verify"},
    "claude_agent_sdk": {"ext"},
    "hypothesis": {"testing"},
    "jinja2": {"ext"},
    "langchain": {"ext", "summarization"},
    "langchain_core": {"*"},
    "langgraph": {"ext", "transfer"},
    "markdown_it": {"ext"},
    "markupsafe": {"ext"},
    "mongomock_motor": {"mongo"},
    "motor": {"mongo"},
    "pydantic": {"*"},
    "psycopg": {"transfer"},
    "pydantic_ai": {"ext"},
    "pydantic_core": {"values"},
    "pymongo": {"devserver", "mongo"},
    "pytest": {"testing"},
    "rich": {"cli"},
    "starlette": {"ext"},
    "typer": {"cli"},
    "uvicorn": {"cli"},
    "opentelemetry": {"ext"},
    "orjson": {"messages", "values"},
    "zstandard": {"messages"},
}
EDGES = {"cli", "edges", "ext", "transfer"}
OPEN_TO_EDGES = EDGES | {
    "",
    "chain",
    "devserver",
    "exceptions",
    "integration",
    "messages",
    "sources",
    "summarization",
}
LEAVES = (ast.Await, ast.Break, ast.Raise, ast.Return, ast.Yield, ast.AsyncFor, ast.AsyncWith)
"""Nodes that may end a loop early: an ``await`` may be cancelled, and the generator of a ``yield`` closed."""

OPEN_TO_EDGES |= {"public", "types", "values", "wire"}
HOSTILE_INPUT = {"testing"}  # operators there are values that a scope must refuse
OPERATOR = re.compile(r"\$\$?[A-Za-z]")
CLOCKS = {"now", "utcnow", "today"}
IMPURE = {"asyncio", "random", "secrets", "socket", "time"}
ASKS_A_MODEL = "summarization.engine"
RUN_BY_ENGINE = {"drive_async", "_run", "_acall_with_config"}
"""Functions that run a strategy with a model, as `ASKS_A_MODEL` does; LangChain calls one of them back."""
MAX_LINES = 450

_NOTHING = "_*(?:ones?|some|none|somebody|nobody)_*"
NAMES_NOTHING = re.compile(
    rf"\bfor (?:\w+, )*{_NOTHING}(?:, \w+)* in\b|\b(?:lambda|def) {_NOTHING}\b|^ *{_NOTHING} = ",
    re.MULTILINE,
)
"""A loop over, a function called or an assignment to a name that says nothing; its text is read, as docs hold code."""

KNOW_REWINDS = {
    "append.forker",
    "append.rewinder",
    "conversation.handle",
    "conversation.log",
    "conversation.services",
    "exceptions",
    "log.active_totals",
    "log.branch",
    "log.changes",
    "log.copied",
    "log.entry",
    "log.facts.items",
    "log.facts.rewound",
    "log.facts.table",
    "log.rewind",
    "readback.records",
    "runtime.cache",
    "runtime.log_reader",
    "turns.activating",
    "turns.variants",
    "values.log_records",
    "values.models",
    "verify.entry",
}
"""The modules that may know of rewinds; all others read active messages."""


class Import(NamedTuple):
    """An import statement: the full name that it imports, its line, and if it is for type checkers only."""

    target: str
    line: int
    for_types: bool


@cache
def module_paths() -> dict[str, Path]:
    """Every module of the package by its name below ``convstore``, "" for the package itself."""
    paths = {
        path: path.relative_to(PACKAGE).with_suffix("").parts
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    return {
        ".".join(part for part in parts if part != "__init__"): path
        for path, parts in paths.items()
    }


@cache
def nodes_in(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def room_of(module: str) -> str:
    """Return the room, an entry of the table of floors, that a module belongs to."""
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
    """Return True if a node is ``if TYPE_CHECKING``."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )


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


def left_open(function: ast.AsyncFunctionDef) -> list[str]:
    """Return the iterators of loops that may end early, but for arguments, which the caller closes, and closed ones."""
    nodes = list(ast.walk(function))
    closed = {argument.arg for argument in nodes if isinstance(argument, ast.arg)}
    for block in nodes:
        if isinstance(block, ast.AsyncWith):
            closed |= {
                item.optional_vars.id
                for item in block.items
                if isinstance(item.optional_vars, ast.Name)
            }
    loops = [node for node in nodes if isinstance(node, ast.AsyncFor)]
    early = [
        loop
        for loop in loops
        if any(isinstance(node, LEAVES) for part in loop.body for node in ast.walk(part))
    ]
    return [name for loop in early if (name := ast.unparse(loop.iter)) not in closed]


def foreign_imports(path: Path) -> set[tuple[str, int]]:
    """Packages of others that a file imports, with the line."""
    found = {(found.target.partition(".")[0], found.line) for found in imports_of(path)}
    return {
        (name, line) for name, line in found if name not in sys.stdlib_module_names | {"convstore"}
    }


def internal(path: Path) -> set[str]:
    """Names below ``convstore`` of the modules of ours that a file imports."""
    return {
        found.target.removeprefix("convstore").removeprefix(".")
        for found in imports_of(path)
        if found.target.partition(".")[0] == "convstore"
    }


def test_every_module_has_a_floor() -> None:
    """A new room is put into the table before it is merged, and the table names no room that was removed."""
    assert {room_of(module) for module in module_paths()} == set(FLOOR_OF)


def test_a_room_never_imports_a_higher_floor() -> None:
    """Imports go down or stay on their floor, those for a type checker alone included."""
    found = {
        (module, target)
        for module, path in module_paths().items()
        for target in internal(path)
        if FLOOR_OF[room_of(target)] > FLOOR_OF[room_of(module)]
    }
    assert found == set()


def test_a_use_case_imports_no_other_one() -> None:
    """The rooms of floor 4 do not know each other."""
    found = {
        (module, target)
        for module, path in module_paths().items()
        for target in internal(path)
        if {room_of(module), room_of(target)} <= USE_CASES and room_of(module) != room_of(target)
    }
    assert found == set()


def test_the_edges_import_the_public_side() -> None:
    """Frameworks, transfer and the command line call the public API, pure rules, and the module made for them."""
    found = {
        (module, target)
        for module, path in module_paths().items()
        for target in internal(path)
        if room_of(module) in EDGES and room_of(target) not in OPEN_TO_EDGES
    }
    assert found == set()


def test_the_conversation_does_not_know_the_store() -> None:
    """The conversation does not import the store: it is given a `Host`."""
    assert "store" not in map(room_of, internal(module_paths()["conversation"]))


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Inside a room too there is an order, for a type checker as well."""
    graph = {module: internal(path) - {module} for module, path in module_paths().items()}
    graphlib.TopologicalSorter(graph).prepare()


def test_no_rooms_import_each_other_in_a_circle() -> None:
    """A room has one direction in which it is read."""
    graph: dict[str, set[str]] = {room: set() for room in FLOOR_OF if room}
    for module, path in module_paths().items():
        if room := room_of(module):
            graph[room] |= {room_of(target) for target in internal(path)} - {"", room}
    graphlib.TopologicalSorter(graph).prepare()


def test_every_room_says_what_it_is_for() -> None:
    """The docstring of a folder is a sentence, not a heading."""
    for module, path in module_paths().items():
        if path.name == "__init__.py":
            assert (
                len((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())
                >= 8
            ), module


def test_iterators_that_may_be_left_early_are_closed() -> None:
    """By ``async with aclosing(...)``: one that Python collects keeps cursors and locks until then, and closes late."""
    found = [
        (module, name)
        for module, path in module_paths().items()
        if room_of(module) != "testing"
        for function in nodes_of(path, ast.AsyncFunctionDef)
        for name in left_open(function)
    ]
    assert found == [("turns.streaming", "source")]  # of any kind; `_close` closes it
    body = "async def f(given):\n    async for x in g():\n        {}\n"
    for statement in ("break", "await h(x)", "yield x", "if x: return"):
        assert [*map(left_open, ast.parse(body.format(statement)).body)] == [["g()"]]


def test_other_packages_are_imported_where_they_belong() -> None:
    """The database driver in one room, an extra only where it is for; langchain also makes a model of its name."""
    found = {
        (module, line, name)
        for module, path in module_paths().items()
        for name, line in foreign_imports(path)
        if not ALLOWED.get(name, set()) & {"*", room_of(module)}
    }
    assert found == set()


def test_no_import_is_hidden_from_these_tests() -> None:
    """No module is imported by a name in a string, which these tests could not see."""
    found = {
        (module, name)
        for module, path in module_paths().items()
        for node in nodes_of(path, ast.Name, ast.Attribute, ast.alias)
        if (
            name := getattr(node, "id", None)
            or getattr(node, "attr", None)
            or getattr(node, "name", None)
        )
        in {"__import__", "import_module"}
    }
    assert found == set()


def test_the_table_of_packages_keeps_drivers_above_the_rules() -> None:
    """No room below `mongo` may import a package that speaks to MongoDB; `devserver` starts one."""
    drivers = ALLOWED["bson"] | ALLOWED["pymongo"] | ALLOWED["motor"] | ALLOWED["mongomock_motor"]
    assert {room for room in drivers if FLOOR_OF[room] < MONGODB} == {"devserver"}


def _called(node: ast.expr) -> str:
    """The name of the function or method that is called, without its object."""
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def test_rules_and_shapes_neither_wait_nor_ask_the_time() -> None:
    """Floors 0 and 1 give the same for the same: no clock, no dice, and all that they await runs in one module.

    It asks models, several at once, and runs long rules in threads, which needs asyncio; nothing else that is impure.
    """
    pure = [
        path
        for module, path in module_paths().items()
        if FLOOR_OF[room_of(module)] < MONGODB and module != "devserver"
    ]
    engine = module_paths()[ASKS_A_MODEL]
    still = set(pure) - {engine}
    waits = [
        node
        for path in still
        for node in nodes_of(path, ast.Await, ast.AsyncFor, ast.AsyncWith)
        if not (isinstance(node, ast.Await) and _called(node.value) in RUN_BY_ENGINE)
    ]
    clocks = [
        node for path in pure for node in nodes_of(path, ast.Attribute) if node.attr in CLOCKS
    ]
    impure = [
        found
        for path in pure
        for found in imports_of(path)
        if found.target in IMPURE and (path, found.target) != (engine, "asyncio")
    ]
    assert (waits, clocks, impure) == ([], [], [])


def test_only_a_few_modules_hold_operators() -> None:
    """A string that begins like ``$set`` occurs only where commands are made, so no other module can make one."""
    found = {
        (module, node.lineno, node.value)
        for module, path in module_paths().items()
        if room_of(module) not in {"mongo"} | HOSTILE_INPUT
        for node in nodes_of(path, ast.Constant)
        if isinstance(node.value, str) and OPERATOR.match(node.value)
    }
    assert found == set()


def test_a_module_can_be_read_at_one_sitting() -> None:
    """A module of 450 lines says in its docstring why it is one thing, and is no longer than twice that."""
    texts = {
        module: path.read_text(encoding="utf-8")
        for module, path in module_paths().items()
        if room_of(module) != "testing"
    }
    long = {module: text for module, text in texts.items() if len(text.splitlines()) >= MAX_LINES}
    assert {
        module for module, text in long.items() if len(text.splitlines()) >= 2 * MAX_LINES
    } == set()
    docstrings = {
        module: " ".join((ast.get_docstring(ast.parse(text)) or "").split())
        for module, text in long.items()
    }
    assert {
        module
        for module, docstring in docstrings.items()
        if "module is long because" not in docstring
    } == set()


def names_in(path: Path) -> set[str]:
    """All names that the code of a file uses, without its texts and comments."""
    parts = ("arg", "asname", "attr", "id", "module", "name")
    return {
        str(getattr(node, part)) for node in nodes_in(path) for part in parts if hasattr(node, part)
    }


def test_names_say_what_they_hold() -> None:
    """No variable, parameter or function is called "one", "some" or "none", in tests, examples and docs neither."""
    folders = ("tests", "examples", "benchmarks", "migrations", "docs")
    paths = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".md")
    ]
    texts = {str(path): NAMES_NOTHING.findall(path.read_text(encoding="utf-8")) for path in paths}
    assert {path: names for path, names in texts.items() if names} == {}
    found = {
        (module, node.lineno)
        for module, path in module_paths().items()
        for node in nodes_of(path, ast.Name, ast.arg, ast.FunctionDef, ast.AsyncFunctionDef)
        if (
            getattr(node, "id", None) or getattr(node, "arg", None) or getattr(node, "name", "")
        ).strip("_")
        in {"one", "ones", "some", "none", "somebody", "nobody"}
    }
    assert found == set()


def test_a_class_name_stands_for_one_thing() -> None:
    """No two classes have the same name, whatever their modules; the contract's stand-ins apart."""
    names = Counter(
        node.name
        for module, path in module_paths().items()
        if room_of(module) != "testing"
        for node in nodes_of(path, ast.ClassDef)
    )
    assert [name for name, number in names.items() if number > 1] == []


def test_only_a_few_modules_know_of_rewinds() -> None:
    """Readers see active messages; the edges use what a conversation offers."""
    inner = {
        name: path
        for name, path in module_paths().items()
        if room_of(name) not in EDGES | {"testing"}
    }
    knowing = {
        name
        for name, path in inner.items()
        if re.search("(?i)rewind(?!ows)|rewound", " ".join(names_in(path)))
    }
    assert knowing == KNOW_REWINDS


def test_a_migration_sees_only_what_it_may_do() -> None:
    """Migrations of all times depend on `convstore.mongo.migrator` alone, so the rest may change under them."""
    for path in (ROOT / "migrations").glob("*.py"):
        assert {found.target for found in imports_of(path)} <= {
            "__future__",
            "convstore.mongo.migrator",
        }


def test_an_error_leaves_nothing_in_flight() -> None:
    """What is awaited at once is awaited by `together`: `asyncio.gather` raises while commands are on their way."""
    gathers = [
        (module, call.lineno)
        for module, path in module_paths().items()
        if room_of(module) not in EDGES | {"testing"}
        for call in nodes_of(path, ast.Call)
        if ast.unparse(call.func) == "asyncio.gather"
        and "return_exceptions" not in {keyword.arg for keyword in call.keywords}
    ]
    assert [module for module, _ in gathers if module != "runtime.background"] == []


def test_test_files_have_names_of_their_own() -> None:
    """Pytest imports them by their names: of two files with one name it collects the first."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, number in names.items() if number > 1] == []
