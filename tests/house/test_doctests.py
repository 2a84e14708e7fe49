"""Every example in a docstring is true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from adapters import ADAPTERS, can_import

import convstore

ROOMS = [
    room.name
    for room in pkgutil.iter_modules(convstore.__path__, "convstore.")
    if room.name[-8:] != "__main__"
]


def examples_of(room: str) -> Iterator[str]:
    """Return the modules of a room whose source has an example; importing the others takes longer than the examples."""
    package = Path(*convstore.__path__).parent
    place = package.joinpath(*room.split("."))
    for path in [*place.rglob("*.py"), place.with_suffix(".py")]:
        if (
            path.exists()
            and path.name != "__main__.py"
            and ">>> " in path.read_text(encoding="utf-8")
        ):
            yield ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(
                ".__init__"
            )


@pytest.mark.parametrize(
    "room", [*ROOMS, *(pytest.param(adapter, marks=pytest.mark.slow) for adapter in ADAPTERS)]
)
def test_examples_in_docstrings_are_true(room: str) -> None:
    """The examples in the docstrings of a room are true, even those of private functions."""
    names = [
        name
        for name in examples_of(room)
        if room in ADAPTERS or not name.startswith(tuple(ADAPTERS))
    ]
    modules = [importlib.import_module(name) for name in names if can_import(name)]
    failed = {module.__name__: doctest.testmod(module).failed for module in modules}
    assert not any(failed.values()), failed
