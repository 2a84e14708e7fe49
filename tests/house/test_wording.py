"""What users read in terminal, pages and errors has their words, not those of the code: message 34, not ordinal 34.

Texts about damage name documents as they are stored, and the field `ordinal` is a name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from command_line import convstore

import convstore as package
from convstore.cli.commands import app

ROOT = Path(package.__file__).parent
INNER = re.compile(
    r"\b(entry|entries|payloads?|records?|heads?|segments?|compact(?:ed|ing|ions?|s)?|ordinals?)\b",
    re.IGNORECASE,
)
STORED = {
    "chain",
    "index",
    "log",
    "messages",
    "mongo",
    "runtime",
    "verify",
    "view/load.py",
    "view/past.py",
}
"""Rooms and modules that raise errors about damaged documents, which name these as they are stored."""
ALLOWED = {
    "a record must be a ConversationRecord",
    "archived message cannot refer to a payload",
    "have an entry",  # the word of Pydantic AI
    "its ordinal is",  # a field of an archive's line
    "leave `compact` out",  # an option
    "must be pairs of ordinals",  # as above
    "records must come from read_file",
    "two facts of the kind",
}


IN_QUOTES = re.compile(rf"[\"'][^\"'\n]*{INNER.pattern}[^\"'\n]*[\"']", re.IGNORECASE)


def nodes_of(path: Path) -> list[ast.AST]:
    """The syntax of a module; nothing of one that has no such word in quotes, as parsing takes long."""
    source = path.read_text(encoding="utf-8")
    return list(ast.walk(ast.parse(source))) if IN_QUOTES.search(source) else []


def texts_of(node: ast.AST) -> str:
    """The literal text of an expression."""
    constants = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return " ".join(value for value in constants if isinstance(value, str))


def errors() -> Iterator[tuple[str, str]]:
    """The module and the text of each error that is raised, those about damage apart."""
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name in STORED or name.partition("/")[0] in STORED or name.startswith("testing/"):
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                yield name, texts_of(node.exc)


def printed() -> Iterator[tuple[str, str]]:
    """The texts with a blank in modules whose texts are printed, docstrings apart."""
    paths = [ROOT / "exceptions.py", ROOT / "values" / "explanations.py"]
    for folder in (ROOT / "cli", ROOT / "ext" / "inspector"):
        paths += sorted(folder.rglob("*.py"))
    for path in paths:
        nodes = nodes_of(path)
        docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = [
            texts_of(node)
            for node in nodes
            if isinstance(node, ast.Constant) and id(node) not in docs
        ]
        yield from ((path.name, text) for text in texts if " " in text)


def pages() -> Iterator[tuple[str, str]]:
    """The texts of the inspector's templates, with those that the pointer shows."""
    for path in sorted((ROOT / "ext" / "inspector" / "html").glob("*.html")):
        text = re.sub(r"{[#%{].*?[#%}]}", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        named = re.findall(r'(?:title|aria-label|placeholder|alt)="([^"]*)"', text)
        yield path.name, " ".join([re.sub(r"<[^>]+>", " ", text), *named])


def helps() -> Iterator[tuple[str, str]]:
    """The help of each command, without the names of its options."""
    for command in app.registered_commands:
        shown = convstore(str(command.name), "-h").stdout
        yield str(command.name), re.sub(r"--[\w-]+|`\w+`", "", shown)


def test_users_read_their_words() -> None:
    """A word of the code in a text is a fault, unless the text is about what is stored."""
    found = [
        (name, match[0], text)
        for source in (errors, printed, pages, helps)
        for name, text in source()
        if (match := INNER.search(text)) and not any(part in text for part in ALLOWED)
    ]
    assert found == []
