"""Every example in a docstring is true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from typing import Any

import pytest

import convstore

MODULES = [
    module.name for module in pkgutil.walk_packages(convstore.__path__, "convstore.") if "__main__" not in module.name
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: Any) -> None:
    """Of every module, those of private functions too."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0
