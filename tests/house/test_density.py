"""The law of density: how much a reader has to hold at once, and how wide a line of code is.

Complexity counts branches, loops, handlers, conditional expressions, each further operand of `and` and `or`,
comprehensions and their conditions, cases of `match`, and functions given to `map` or `filter`. Docstrings, imports,
comments and `convstore/testing` are left out.
"""

from __future__ import annotations

import ast
from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

from test_house import module_paths, nodes_in, nodes_of, room_of

MAXIMUM = 15
USUAL = 10
UNUSUAL = 100
WIDTH = 100
"""The law: complexity up to 15, above 10 in at most 100 functions, no packed assignment, lines up to 100 characters."""

_BRANCHES = frozenset(
    {ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.match_case}
)
_COUNTED = _BRANCHES | {ast.BoolOp, ast.comprehension, ast.Call}


def test_functions_can_be_read_without_holding_your_breath() -> None:
    """Few functions are above the usual complexity, and none is above the maximum."""
    found = {
        f"{module}.{name}": complexity
        for module, path in own_modules().items()
        for name, complexity in complexities(path).items()
    }
    above = {name: total for name, total in found.items() if total > MAXIMUM}
    assert above == {}
    unusual = sorted(name for name, total in found.items() if total > USUAL)
    assert len(unusual) <= UNUSUAL, unusual


def test_an_assignment_gives_one_thing_a_name() -> None:
    """`a, b = x, y` is two lines, unless both sides have the same names: a swap."""
    packed = [
        f"{module}:{node.lineno}"
        for module, path in own_modules().items()
        for node in nodes_in(path)
        if isinstance(node, ast.Assign) and is_packed(node)
    ]
    assert packed == []


def test_lines_of_code_are_not_too_wide() -> None:
    """Docstrings and comments may be wider than code, as they are prose."""
    wide = [
        f"{module}:{number}"
        for module, path in own_modules().items()
        for number in wide_lines(path)
    ]
    assert wide == []


def own_modules() -> dict[str, Path]:
    """Return the modules under the law."""
    return {module: path for module, path in module_paths().items() if room_of(module) != "testing"}


def complexities(path: Path) -> dict[str, int]:
    """Return the complexity of each function in a file, by name and line; inner functions count for outer ones, too."""
    weights = Counter[int]()
    for node in nodes_in(path):
        if type(node) in _COUNTED and (weight := weight_of(node)):
            weights[line_of(node)] += weight
    lines = sorted(weights)
    sums = [0, *accumulate(weights[line] for line in lines)]
    found = dict[str, int]()
    for node in nodes_in(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            inside = bisect_left(lines, first), bisect_right(lines, node.end_lineno or first)
            found[f"{node.name}:{node.lineno}"] = 1 + sums[inside[1]] - sums[inside[0]]
    return found


def weight_of(node: ast.AST) -> int:
    """Return what a node adds to the complexity of its function."""
    if type(node) in _BRANCHES:
        return 1
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    return int(name in ("map", "filter"))


def line_of(node: Any) -> int:
    """Return the line of a node; comprehensions and cases have none of their own."""
    if isinstance(node, ast.comprehension):
        return node.target.lineno
    if isinstance(node, ast.match_case):
        return node.pattern.lineno
    return int(node.lineno)


def is_packed(node: ast.Assign) -> bool:
    """Return True for an assignment of several values to several names, but for a swap."""
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    names = {ast.unparse(name) for name in target.elts}
    return names != {ast.unparse(value) for value in node.value.elts}


def wide_lines(path: Path) -> list[int]:
    """Return the numbers of lines above the width, without those of docstrings, imports and comments."""
    prose = set[int]()
    for node in nodes_of(path, ast.Expr, ast.Import, ast.ImportFrom):
        if not isinstance(node, ast.Expr) or is_text(node.value):
            prose.update(range(node.lineno, node.end_lineno + 1))
    return [
        number
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > WIDTH and number not in prose and not line.lstrip().startswith("#")
    ]


def is_text(node: ast.expr) -> bool:
    """Return True for a text that stands alone, as docstrings do."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
