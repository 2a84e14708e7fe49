"""The signatures of all public names; run it to write them to the file that `tests/house/test_signatures.py` holds."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adapters import can_import
from pydantic import BaseModel

FILE = Path(__file__).parents[1] / "house" / "signatures.txt"
MODULES = (
    *(
        "convstore",
        "convstore.types",
        "convstore.exceptions",
        "convstore.summarization",
        "convstore.chain",
    ),
    *(
        "convstore.transfer",
        "convstore.integration",
        "convstore.ext.langchain",
        "convstore.ext.langgraph",
    ),
    *("convstore.ext.openai_agents", "convstore.ext.pydantic_ai", "convstore.ext.claude_agent"),
    *("convstore.ext.microsoft", "convstore.ext.ui", "convstore.ext.inspector"),
)
"""Where users import from; a name belongs to the first of them that has it."""


def signatures() -> dict[str, list[str]]:
    """Return a line for each public function, method and field, by module, of those that can be imported here."""
    known, found = set[int](), dict[str, list[str]]()
    for name in filter(can_import, MODULES):
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None) or [
            key for key in vars(module) if key.endswith("Error")
        ]
        things = {key: getattr(module, key) for key in sorted(public)}
        found[name] = [
            line
            for key, thing in things.items()
            if id(thing) not in known
            for line in _lines(key, thing)
        ]
        known |= set(map(id, things.values()))
    return found


def _lines(name: str, thing: Any) -> Iterator[str]:
    if not inspect.isclass(thing):
        yield f"{name}{_signature(thing)}" if inspect.isroutine(thing) else name
        return
    yield f"class {name}({', '.join(base.__name__ for base in thing.__bases__)})"
    fields = vars(thing).get("__annotations__", {})
    kinds = {field: getattr(kind, "__forward_arg__", kind) for field, kind in fields.items()}
    defaults = _defaults(thing) if kinds else {}
    for field in (field for field in kinds if not field.startswith("_")):
        yield f"    {name}.{field}: {kinds[field]}" + (
            f" = {defaults[field]!r}" if field in defaults else ""
        )
    for key, value in sorted(vars(thing).items()):
        if key.startswith("_") and key != "__init__":
            continue
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(function) and function.__module__.startswith("convstore"):
            is_generated = key == "__init__" and not fields.keys().isdisjoint(
                inspect.signature(function).parameters
            )
            if not is_generated:
                yield f"    {name}.{key}{_signature(function)}"
        elif isinstance(value, property):
            yield f"    {name}.{key}"


def _defaults(class_: type) -> dict[str, Any]:
    """Return the defaults of the fields of a model, a dataclass or a named tuple, as a signature shows them."""
    if issubclass(class_, BaseModel):
        found = class_.model_fields.items()
        return {
            name: _named(info.default)
            for name, info in found
            if not info.is_required() and not info.default_factory
        }
    if issubclass(class_, dict):
        return {}
    parts = inspect.signature(class_).parameters
    return {
        name: _named(part.default) for name, part in parts.items() if part.default is not part.empty
    }


class _Text(str):
    """A text that stands for itself where a signature would quote it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    parts = [
        part.replace(annotation=_as_written(part.annotation), default=_named(part.default))
        for part in signature.parameters.values()
    ]
    return str(
        signature.replace(
            parameters=parts, return_annotation=_as_written(signature.return_annotation)
        )
    )


def _as_written(annotation: Any) -> Any:
    return _Text(annotation.strip('"')) if isinstance(annotation, str) else annotation


def _named(default: Any) -> Any:
    if inspect.isroutine(default):
        return _Text(f"<{default.__name__}>")
    is_plain = default is inspect.Parameter.empty or isinstance(
        default, str | int | float | tuple | None
    )
    return default if is_plain else _Text(f"<{type(default).__name__}>")


def written(found: dict[str, list[str]]) -> str:
    """Return the text of the file."""
    return "\n".join("\n".join([f"[{name}]", *lines, ""]) for name, lines in found.items())


def read() -> dict[str, list[str]]:
    """Return what the file has."""
    parts = re.split(r"^\[([\w.]+)\]\n", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        name: lines.strip("\n").split("\n")
        for name, lines in zip(parts[1::2], parts[2::2], strict=True)
    }


if __name__ == "__main__":
    FILE.write_text(written(signatures()), encoding="utf-8")
