"""Name the option that a misspelt keyword argument means, as Python itself does from 3.13 on."""

from __future__ import annotations

from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

_Class = TypeVar("_Class")


def suggests_options(class_: type[_Class]) -> type[_Class]:
    """Decorate a class: the TypeError for a keyword argument that it does not take names the one most like it."""
    init: Any = class_.__init__
    known = [name for name in signature(init).parameters if name != "self"]

    @wraps(init)
    def checked(self: _Class, *arguments: Any, **options: Any) -> None:
        for name in options:
            if name not in known:
                raise TypeError(_unknown(class_.__name__, name, known))
        init(self, *arguments, **options)

    decorated: Any = class_
    decorated.__init__ = checked
    return class_


def _unknown(owner: str, name: str, known: list[str]) -> str:
    text = f"{owner} has no option {name!r}"
    alike = get_close_matches(name, known, n=1)
    return f"{text}. Did you mean {alike[0]}?" if alike else text
