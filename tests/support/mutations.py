"""Break the package on purpose and list the changes that no test notices.

``python tests/support/mutations.py --count 20 --seed 1`` picks places in ``convstore`` at random, by a seed, and
changes one at a time in a copy of the checkout: a comparison, a number, a condition or a statement. The tests of its
room, those named after its module and the contract in memory run first, then the quick tests, then the slow ones, up
to the stage ``--until`` and until a test fails. That test must pass without the change; a test that fails anyway is
left out. A change that all tests pass is printed as a survivor: something is not tested, or the change has no effect.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
COPIED = (
    ".ci",
    "convstore",
    "migrations",
    "examples",
    "benchmarks",
    "docs",
    "tests",
    "pyproject.toml",
    "README.md",
)
ALSO = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "mkdocs.yml")
LEFT_OUT = ("testing", "devserver.py", "__main__.py")
"""Parts of the package that only tests and demonstrations use."""
SECONDS = 1_800.0
STAGES = ("near", "quick", "slow")
SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


class Mutation(NamedTuple):
    """A change of one expression or statement of a file."""

    path: Path
    node: ast.expr | ast.stmt
    new: str

    def __str__(self) -> str:
        return (
            f"{self.path}:{self.node.lineno}: {ast.unparse(self.node)[:70]!r} -> {self.new[:70]!r}"
        )

    def applied(self, source: str) -> str:
        """Return the source with the change."""
        lines = source.encode().splitlines(keepends=True)  # columns count bytes
        start = sum(map(len, lines[: self.node.lineno - 1])) + self.node.col_offset
        end = sum(map(len, lines[: (self.node.end_lineno or 0) - 1])) + (
            self.node.end_col_offset or 0
        )
        whole = b"".join(lines)
        return (whole[:start] + self.new.encode() + whole[end:]).decode()


def mutations_of(path: Path) -> Iterator[Mutation]:
    """Yield every change that can be made to a file."""
    inside_text = set[int]()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            inside_text |= {id(inner) for inner in ast.walk(node)}
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield Mutation(path, node.test, f"(not ({ast.unparse(node.test)}))")
        if (
            isinstance(node, ast.expr | ast.stmt)
            and id(node) not in inside_text
            and (new := changed(node))
        ):
            yield Mutation(path, node, new)


def changed(node: ast.expr | ast.stmt) -> str | None:
    """Return other code for a node, or None if there is none."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=right) if type(op) in SWAPPED:
            return f"({ast.unparse(ast.Compare(left, [SWAPPED[type(op)]()], right))})"
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return f"({number + 1})"
        case ast.BoolOp(op=op, values=values):
            return f"({ast.unparse(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"({ast.unparse(operand)})"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign():
            return "pass"
    return None


def chosen(count: int, seed: int) -> list[Mutation]:
    """Return some changes, the same for the same seed and code."""
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / "convstore").rglob("*.py"))]
    every = [
        mutation
        for path in paths
        if not set(path.parts) & set(LEFT_OUT)
        for mutation in mutations_of(path)
    ]
    return random.Random(seed).sample(every, count)


def stages(mutation: Mutation, *, until: str) -> Iterator[tuple[str, list[str]]]:
    """Yield what to run, the cheapest first: a name and arguments of pytest."""
    names = {*mutation.path.with_suffix("").parts[1:]} - {"services", "__init__"}
    tests = ROOT / "tests"
    found = {path for name in names for path in tests.rglob(f"test_{name}*.py")} | {
        *(tests / mutation.path.parts[1]).rglob("test_*.py")
    }
    named = sorted(path.relative_to(ROOT) for path in found)
    in_memory = ["tests/contract/test_contract.py", "-k", "not TestPyMongo and not TestMotor"]
    every = {"near": ["-n0", *map(str, named), *in_memory], "quick": [], "slow": ["-m", "slow"]}
    yield from list(every.items())[: STAGES.index(until) + 1]


def caught_by(mutation: Mutation, copy: Path, red: set[str], *, until: str) -> str:
    """Return the name of the stage and of the test that fails only with the change, "" if none does.

    Args:
        mutation: The change.
        copy: A copy of the checkout, unchanged before and after the call.
        red: Tests that fail without any change; more are added.
        until: The last stage.
    """
    for name, arguments in stages(mutation, until=until):
        while failed := failure_with(mutation, arguments, copy, red):
            alone = ["-m", "slow or not slow", "-n0", failed] if "::" in failed else arguments
            if not first_failure(alone, copy, red):
                return f"{name}: {failed}"
            if failed in red or "::" not in failed:
                raise SystemExit(f"the tests of stage {name} fail without a change: {failed}")
            red.add(failed)
    return ""


def failure_with(mutation: Mutation, arguments: Sequence[str], copy: Path, red: set[str]) -> str:
    """Make the change, run tests until one fails, and take the change back; return the test's name, "" if all pass."""
    target, source = copy / mutation.path, (ROOT / mutation.path).read_text(encoding="utf-8")
    target.write_text(mutation.applied(source), encoding="utf-8")
    try:
        return first_failure(arguments, copy, red)
    finally:
        target.write_text(source, encoding="utf-8")


def first_failure(arguments: Sequence[str], copy: Path, red: set[str]) -> str:
    """Run tests other than those in `red` until one fails; return its name, "" if all pass."""
    left_out = [f"--deselect={name}" for name in sorted(red)]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-qq",
        "-x",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        *left_out,
        *arguments,
    ]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(  # noqa: S603 - our own tests
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "it hangs"
    if ended.returncode in (0, 5):
        return ""
    named = [
        line.split(" ", 1)[1]
        for line in ended.stdout.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]
    return named[0].split(" - ")[0] if named else f"exit code {ended.returncode}"


def main() -> None:
    """Try each change and print what caught it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--until", choices=STAGES, default="quick", help="the last stage to run")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in (*COPIED, *ALSO):
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, copy / name)
        caught, red = 0, set[str]()
        for mutation in chosen(asked.count, asked.seed):
            by = caught_by(mutation, copy, red, until=asked.until)
            caught += bool(by)
            print(f"{'caught' if by else 'SURVIVED':8} {mutation}\n         {by}", flush=True)  # noqa: T201
    print(  # noqa: T201
        f"{caught} of {asked.count} caught; tests that fail without a change: {sorted(red) or 'none'}"
    )


if __name__ == "__main__":
    main()
