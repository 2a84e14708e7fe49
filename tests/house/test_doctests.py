"""Every example in a docstring is true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest
from adapters import can_import

import convstore

ROOMS = [room.name for room in pkgutil.iter_modules(convstore.__path__, "convstore.") if room.name[-8:] != "__main__"]


@pytest.mark.parametrize("room", ROOMS)
def test_examples_in_docstrings_are_true(room: str) -> None:
    """The examples in the docstrings of a room are true, even those of private functions."""
    folder = getattr(importlib.import_module(room), "__path__", [])
    names = [room, *(module.name for module in pkgutil.walk_packages(folder, f"{room}."))]
    modules = [importlib.import_module(name) for name in names if "__main__" not in name and can_import(name)]
    failed = {module.__name__: doctest.testmod(module).failed for module in modules}
    assert not any(failed.values()), failed
