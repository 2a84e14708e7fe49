"""Templates that describe the tool call ids of a provider."""

from __future__ import annotations

import hashlib
import re
import string
import struct
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final

from convstore.exceptions import InvalidInputError
from convstore.values.plain import shown_value

_CHARSETS: Final = {
    "d": string.digits,
    "l": string.ascii_lowercase,
    "u": string.ascii_uppercase,
    "a": string.ascii_letters,
    "x": string.ascii_letters + string.digits,
    "h": string.digits + "abcdef",
    "H": string.digits + "ABCDEF",
    "b": string.digits + string.ascii_uppercase + string.ascii_lowercase,
}
"""The characters of each character set."""
_PART: Final = re.compile(r"\{(?:r:(\d+):(\w+)|(f))\}")
_LONGEST: Final = 512


@dataclass(frozen=True, slots=True)
class CallIdTemplate:
    """A pattern of ids: fixed text, ``{r:LENGTH:CHARSET}`` for random characters, ``{f}`` for the tool's name.

    Charsets: d digits, l lower, u upper, a letters, x letters and digits, h hex, H upper-case hex, b base 62.

    Raises:
        InvalidInputError: The template has no ``{r:...}``, an unknown charset or a length that is not 1 to 512.
    """

    template: str

    def __post_init__(self) -> None:
        if not isinstance(self.template, str):
            raise InvalidInputError(
                f"a template of call ids must be a str, not {shown_value(self.template)}"
            )
        random = [part for part in _PART.finditer(self.template) if not part[3]]
        for part in random:
            if part[2] not in _CHARSETS or not 1 <= int(part[1][:9]) <= _LONGEST:
                raise InvalidInputError(
                    f"{part[0]!r} in a template of call ids: the length is 1 to {_LONGEST}, "
                    f"the charset one of {', '.join(_CHARSETS)}"
                )
        if not random or re.search(r"[{}]", _PART.sub("", self.template)):
            raise InvalidInputError(
                f"{self.template!r} is not a template of call ids; write one such as "
                f"'call_{{r:24:x}}' or '{{f}}_{{r:8:h}}'"
            )

    def fits(self, call_id: str, *, tool: str) -> bool:
        """Return True if an id matches this template.

        >>> CallIdTemplate("call_{r:4:d}").fits("call_0815", tool="search")
        True
        """
        return _pattern(self.template, tool).fullmatch(call_id) is not None

    def make(self, seed: str, *, tool: str) -> str:
        """Return an id that matches this template; the same seed gives the same id.

        >>> CallIdTemplate("call_{r:8:h}").make("toolu_1", tool="search")
        'call_fd7287a5'
        """
        return _id_from_seed(self.template, seed, tool)


@lru_cache(maxsize=1_000)
def _pattern(template: str, tool: str) -> re.Pattern[str]:
    """Compile the pattern of a tool's call ids."""
    pattern = ""
    end = 0
    for part in _PART.finditer(template):
        pattern += re.escape(template[end : part.start()])
        pattern += re.escape(tool) if part[3] else f"[{_CHARSETS[part[2]]}]{{{part[1]}}}"
        end = part.end()
    return re.compile(pattern + re.escape(template[end:]))


@lru_cache(maxsize=10_000)
def _id_from_seed(template: str, seed: str, tool: str) -> str:
    """Return the id that a seed gives; cached, because each load of a conversation needs the same ids again."""
    length = sum(int(part[1]) for part in _PART.finditer(template) if not part[3])
    stream = hashlib.shake_256(seed.encode("utf-8", "surrogatepass"))
    draws = iter(struct.unpack(f">{length}H", stream.digest(2 * length)))

    def fill(part: re.Match[str]) -> str:
        if part[3]:
            return tool
        chars = _CHARSETS[part[2]]
        return "".join([chars[draw % len(chars)] for draw in islice(draws, int(part[1]))])

    return _PART.sub(fill, template)
