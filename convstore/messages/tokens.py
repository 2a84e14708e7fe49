"""How large a message is for a model: the counter that the whole store uses.

Layer 1. LangChain's own approximation is the default; a backend that wants exact figures passes its model's counter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from types import ModuleType
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.utils import count_tokens_approximately

from convstore.exceptions import InvalidInputError
from convstore.messages.encoding import fields_of
from convstore.messages.text import text_of
from convstore.messages.values import Codec
from convstore.values.scope import id_problem

__all__ = [
    "CHARACTERS_PER_TOKEN",
    "IMAGE_TOKENS",
    "NamedCounter",
    "TokenCounter",
    "approximate_tokens",
    "count",
    "counter_name",
    "fitting",
    "named",
    "weight",
]

TokenCounter = Callable[[Sequence[BaseMessage]], int]
"""Gives the tokens of a list of messages; must be additive enough that messages can be counted one by one."""

CHARACTERS_PER_TOKEN = 4
"""What LangChain's approximation takes for English text; pages are cut by it."""

_MOST_TOKENS = 2**40
_MOST_NAME_CHARACTERS = 200
"""A counter's name is stored with every entry."""

IMAGE_TOKENS = 1_000
"""What an image of common size takes with OpenAI (765 at 1024 x 1024) and Anthropic (width x height / 750)."""

_PIECE = 50_000
_WIDE = re.compile("[\u1100-\u11ff\u2e80-\ud7ff\uf900-\ufaff\uff00-\uffef\U0001f000-\U0003ffff]")
_OTHER = re.compile("[\u0370-\u10ff\u1200-\u2dff]")


def approximate_tokens(messages: Sequence[BaseMessage]) -> int:
    """LangChain's ``count_tokens_approximately``, made right for wide scripts, images and calls beside blocks.

    A character of Chinese, Japanese or Korean counts one token, one of another script than Latin half a token (GPT-4o's
    tokenizer takes 0.7-1.0 and 0.3-0.6 of one), an image `IMAGE_TOKENS`, whatever its bytes.

    >>> from langchain_core.messages import HumanMessage
    >>> approximate_tokens([HumanMessage("Where is my order?")]), approximate_tokens([HumanMessage("我的订单在哪里")])
    (9, 11)
    """
    return sum(map(_approximately, messages))


def _approximately(message: BaseMessage) -> int:
    if not isinstance(message.content, list):
        return _by_langchain(message) + _extra_for_script(message.content)
    said = [block for block in message.content if not _is_image(block)]
    images = len(message.content) - len(said)
    plain = message.model_copy(update={"content": said}) if images else message
    beside = len(text_of(calls)) // CHARACTERS_PER_TOKEN if (calls := _calls_beside(message, said)) else 0
    return _by_langchain(plain) + _extra_for_script(said) + images * IMAGE_TOKENS + beside


def _calls_beside(message: BaseMessage, blocks: Sequence[Any]) -> list[Any]:
    """Calls that no block of the content repeats; some providers write both, and LangChain counts the blocks alone."""
    if not isinstance(message, AIMessage):
        return []
    named = {block.get("id") for block in blocks if isinstance(block, dict)}
    named |= {block.get("call_id") for block in blocks if isinstance(block, dict)}
    return [call for call in message.tool_calls if call.get("id") not in named]


def _by_langchain(message: BaseMessage) -> int:
    try:
        return count_tokens_approximately([message])
    except (RecursionError, TypeError, ValueError):
        # Nesting beyond the interpreter's limit, or blocks of a shape that it does not expect.
        return len(Codec().encode(fields_of(message), omitted=[])) // CHARACTERS_PER_TOKEN


def _extra_for_script(content: Any) -> int:
    """What characters take that are not Latin, beyond a quarter of a token."""
    text = text_of(content)
    return (weight(text) - len(text)) // CHARACTERS_PER_TOKEN


def weight(text: str) -> int:
    """How many characters of English text take as many tokens as a text, by `approximate_tokens`.

    >>> weight("order"), weight("заказ"), weight("订单")
    (5, 10, 8)
    """
    if text.isascii():
        return len(text)
    wide, other = (_count(script, text) for script in (_WIDE, _OTHER))
    return len(text) + 3 * wide + other


def fitting(text: str, room: int) -> int:
    """How many characters a text can begin with whose `weight` is not above a room.

    >>> fitting("order", 3), fitting("a订单", 8)
    (3, 2)
    """
    if text.isascii():
        return max(0, min(len(text), room))
    end, step = 0, len(text)
    while step:
        taken = weight(text[end : end + step])
        if taken <= room:
            room -= taken
            end = min(end + step, len(text))
        step = (step + 1) // 2 if step > 1 else 0
    return end


def _count(script: re.Pattern[str], text: str) -> int:
    """How many characters are of a script; looks at a piece at a time, so that other threads get their turn."""
    pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
    return sum(len(piece) - len(script.sub("", piece)) for piece in pieces)


def _is_image(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in ("image", "image_url", "input_image")


@dataclass(frozen=True, slots=True)
class NamedCounter:
    """A token counter under a name of the caller's: two that count alike have the same one."""

    name: str
    counter: TokenCounter

    def __post_init__(self) -> None:
        if id_problem(self.name) or len(self.name) > _MOST_NAME_CHARACTERS:
            raise InvalidInputError(f"the name of a token counter is a str of 1 to {_MOST_NAME_CHARACTERS} characters")

    def __call__(self, messages: Sequence[BaseMessage]) -> int:
        """Count."""
        return self.counter(messages)


def named(counter: TokenCounter, name: str | None = None) -> NamedCounter:
    """A token counter under the name that the caller gave it, or else its `counter_name`, whatever it binds later.

    Raises:
        InvalidInputError: It is no counter, or no name.
    """
    if not callable(counter):
        raise InvalidInputError("token_counter is a function from a list of messages to a number")
    return NamedCounter(counter_name(counter) if name is None else name, counter)


def counter_name(counter: TokenCounter) -> str:
    """What stored counts are known by: another name means that they have to be counted anew.

    A function has its module and name; a partial what it binds, too, and the method of a chat model the model's name.

    >>> counter_name(approximate_tokens), counter_name(len), counter_name(partial(sum, start=3))
    ('approximate', 'builtins.len', 'builtins.sum(start=3)')

    Raises:
        InvalidInputError: Another counter may have the same name: a lambda, a closure, an instance without a model.
    """
    if counter is approximate_tokens:
        return "approximate"
    name, bound = _name_of(counter), _bound_by(counter)
    if "<" in name or " at 0x" in bound:
        raise InvalidInputError(
            f"the token counter {name + bound:.200} has no name that tells it from others, which stored counts need; "
            "pass token_counter_name=..., another one whenever it counts otherwise"
        )
    if len(name + bound) <= _MOST_NAME_CHARACTERS:
        return name + bound
    return f"{name + bound:.100}…{sha256((name + bound).encode()).hexdigest()}"


def _name_of(counter: TokenCounter) -> str:
    """Module and name, of a model's method class and model; what has none of its own in angle brackets."""
    function: Any = counter.func if isinstance(counter, partial) else counter
    is_named = hasattr(function, "__qualname__")
    owner = getattr(function, "__self__", None) if is_named else function
    if owner is None or isinstance(owner, type | ModuleType):
        return f"{function.__module__}.{function.__qualname__}"
    model = getattr(owner, "model_name", None) or getattr(owner, "model", None)
    kind = f"{type(owner).__module__}.{type(owner).__qualname__}"
    return f"{kind}:{model}" if isinstance(model, str) else f"<an instance of {kind}>"


def _bound_by(counter: TokenCounter) -> str:
    """The arguments that a partial binds, "" for none."""
    if not isinstance(counter, partial):
        return ""
    bound = [*map(repr, counter.args), *(f"{key}={value!r}" for key, value in sorted(counter.keywords.items()))]
    return f"({', '.join(bound)})" if bound else ""


def count(counter: TokenCounter, message: BaseMessage) -> int:
    """Tokens of one message.

    Raises:
        InvalidInputError: The counter raises, or gives something else than a whole number from 0.
    """
    try:
        tokens = counter([message])
    except Exception as error:
        name = counter.name if isinstance(counter, NamedCounter) else _name_of(counter)
        raise InvalidInputError(f"the token counter {name} raised {error!r}; mend it") from error
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 <= tokens < _MOST_TOKENS:
        raise InvalidInputError(f"the token counter gave {tokens!r} instead of a whole number")
    return tokens
