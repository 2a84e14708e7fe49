"""Count the tokens of messages with the counter that the whole store uses.

The default is based on LangChain's approximation. A backend that needs exact counts passes its model's counter.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately

from convstore.exceptions import InvalidInputError
from convstore.messages.encoding import fields_of
from convstore.messages.media import is_media
from convstore.messages.media_figures import FIGURES, UNKNOWN, MediaFigures
from convstore.messages.media_sizes import MediaSize, media_of
from convstore.messages.text import text_of
from convstore.messages.tool_calls import called_in
from convstore.messages.values import Codec
from convstore.values.json_form import sendable_message
from convstore.values.scope import id_problem

_LOGGER = logging.getLogger("convstore")

TokenCounter = Callable[[Sequence[BaseMessage]], int]
"""Function that returns the tokens of a list of messages. Messages are counted one by one, and the counts added."""

CHARACTERS_PER_TOKEN = 4
"""LangChain's approximation for English text; it also determines the size of pages."""

_MAX_TOKENS = 2**40
_PANIC = "PanicException"
"""Class name of the error of a panicking tokenizer in Rust, which is not an `Exception` and cannot be imported."""
NO_NUMBER = "no whole number from 0"
"""Used in place of an error's class name if a counter did not return a whole number from 0."""
_MAX_NAME_CHARACTERS = 200
"""Maximum length of a counter's name, because every entry stores it."""

_ROLES = {"human": "user", "ai": "assistant", "tool": "tool"}
_TOKENS_PER_MESSAGE = 3
"""LangChain's figure. Its own function takes ten times as long for a short text as the one here."""

_PIECE = 50_000
_WIDE = re.compile("[\u1100-\u11ff\u2e80-\ud7ff\uf900-\ufaff\uff00-\uffef\U0001f000-\U0003ffff]")
_OTHER = re.compile("[\u0370-\u10ff\u1200-\u2dff]")


def approximate_tokens(messages: Sequence[BaseMessage], *, media: MediaFigures = UNKNOWN) -> int:
    """Count with LangChain's ``count_tokens_approximately``, corrected for wide scripts, images and tool calls.

    A Chinese, Japanese or Korean character counts as one token, a character of another non-Latin script as half a token
    (GPT-4o's tokenizer uses 0.7-1.0 and 0.3-0.6). Images, PDFs, audio and video count by their pixels, pages and
    seconds, which are read from their bytes, and not by their length. Views with a provider use the figures of that
    provider, unless `media` is given.

    Args:
        messages: The messages to count; the result is the sum of their counts.
        media: Tokens of images, pages and seconds; `MediaFigures.named` returns those of models.

    >>> from langchain_core.messages import HumanMessage
    >>> approximate_tokens([HumanMessage("Where is my order?")]), approximate_tokens([HumanMessage("我的订单在哪里")])
    (9, 11)
    """
    total = 0
    for message in messages:
        if isinstance(message.content, list):
            total += _with_blocks(message, media, media_of(message))
        else:
            total += _with_text(message)
    return total


def _with_text(message: BaseMessage) -> int:
    content: Any = message.content
    is_text = type(content) is str
    extra = 0 if is_text and content.isascii() else _extra_for_script(content)
    if not is_text or message.type not in _ROLES:
        return _by_langchain(message) + extra
    try:
        characters = len(content) + len(_ROLES[message.type]) + len(message.name or "")
        if isinstance(message, AIMessage) and message.tool_calls:
            characters += len(repr(message.tool_calls))
        elif isinstance(message, ToolMessage):
            characters += len(message.tool_call_id)
    except (RecursionError, TypeError, ValueError):
        return _by_langchain(message) + extra
    return -(-characters // CHARACTERS_PER_TOKEN) + _TOKENS_PER_MESSAGE + extra


def _with_blocks(message: BaseMessage, figures: MediaFigures, sizes: Sequence[MediaSize]) -> int:
    """Return the tokens of a message with a list of blocks, given the sizes of its media."""
    others = [block for block in message.content if not is_media(block)]
    plain = message.model_copy(update={"content": others}) if sizes else message
    calls = _calls_without_block(message, others)
    call_tokens = len(text_of(calls)) // CHARACTERS_PER_TOKEN if calls else 0
    media = figures.all_tokens(sizes, by_model=isinstance(message, AIMessage))
    return _by_langchain(plain) + _extra_for_script(others) + media + call_tokens


def _calls_without_block(message: BaseMessage, blocks: Sequence[Any]) -> list[Any]:
    """Return the calls that content blocks do not repeat. With blocks, LangChain counts only the blocks."""
    if not isinstance(message, AIMessage):
        return []
    repeated = set(map(called_in, blocks))
    return [call for call in message.tool_calls if (call.get("id") or "") not in repeated]


def _by_langchain(message: BaseMessage) -> int:
    try:
        return count_tokens_approximately([message])
    except (RecursionError, TypeError, ValueError):
        # The content is nested beyond the recursion limit, or has blocks of an unexpected shape.
        return len(Codec().encode(fields_of(message), omitted=[])) // CHARACTERS_PER_TOKEN


def _extra_for_script(content: Any) -> int:
    """Return the tokens of non-Latin characters beyond LangChain's quarter of a token for each."""
    text = text_of(content)
    return (weight(text) - len(text)) // CHARACTERS_PER_TOKEN


def weight(text: str) -> int:
    """Return the number of English characters with as many tokens as a text, by `approximate_tokens`.

    >>> weight("order"), weight("заказ"), weight("订单")
    (5, 10, 8)
    """
    if text.isascii():
        return len(text)
    wide, other = (_count(script, text) for script in (_WIDE, _OTHER))
    return len(text) + 3 * wide + other


def fitting(text: str, room: int) -> int:
    """Return the length of the longest beginning of a text whose `weight` is at most `room`.

    >>> fitting("order", 3), fitting("a订单", 8)
    (3, 2)
    """
    if text.isascii():
        return max(0, min(len(text), room))
    end = 0
    step = len(text)
    while step:
        needed = weight(text[end : end + step])
        if needed <= room:
            room -= needed
            end = min(end + step, len(text))
        step = (step + 1) // 2 if step > 1 else 0
    return end


def _count(script: re.Pattern[str], text: str) -> int:
    """Count the characters of a script, in pieces so that other threads can run in between."""
    pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
    return sum(len(piece) - len(script.sub("", piece)) for piece in pieces)


APPROXIMATE = "approximate"
"""Name of `approximate_tokens`."""


@dataclass(frozen=True, slots=True)
class NamedCounter:
    """A token counter with a name; counters with the same counts share a name.

    `errors` has the class name of the last error that it raised, or `NO_NUMBER`; it is empty if it never failed.
    """

    name: str
    counter: TokenCounter
    errors: list[str] = field(default_factory=list, compare=False, repr=False)

    def __post_init__(self) -> None:
        if id_problem(self.name) or len(self.name) > _MAX_NAME_CHARACTERS:
            raise InvalidInputError(
                "the name of a token counter must be a str of 1 to "
                f"{_MAX_NAME_CHARACTERS} characters"
            )

    def __call__(self, messages: Sequence[BaseMessage]) -> int:
        """Return the tokens of the messages."""
        return self.counter(messages)


def named_counter(counter: TokenCounter, name: str | None = None) -> NamedCounter:
    """Return a token counter with the given name, or with its `counter_name` at the time of this call.

    Raises:
        InvalidInputError: `counter` is not callable, or asynchronous, or the name is not valid.
    """
    if iscoroutinefunction(counter):
        raise InvalidInputError(
            "token_counter must be a function that returns a number, not a coroutine function; "
            "pass the sync function of your tokenizer"
        )
    if not callable(counter):
        raise InvalidInputError(
            "token_counter must be a function from a list of messages to a number"
        )
    return NamedCounter(counter_name(counter) if name is None else name, counter)


_BY_PROVIDER = {
    provider: partial(approximate_tokens, media=figures) for provider, figures in FIGURES.items()
}


def counter_for(counter: TokenCounter, package: str | None) -> TokenCounter:
    """Return the counter of a view for a provider; the default counter then uses the provider's figures for media.

    `package` is the name of LangChain's package of the provider. For None and unknown names the counter is unchanged.
    """
    plain = counter.counter if isinstance(counter, NamedCounter) else counter
    if package not in _BY_PROVIDER or plain is not approximate_tokens:
        return counter
    return _BY_PROVIDER[package]


def figures_of(counter: TokenCounter) -> MediaFigures | None:
    """Return the figures by which a counter counts media; None for a counter that is not `approximate_tokens`.

    >>> figures_of(counter_for(approximate_tokens, "openai")) is FIGURES["openai"]
    True
    """
    plain = counter.counter if isinstance(counter, NamedCounter) else counter
    if isinstance(plain, partial) and plain.func is approximate_tokens:
        figures = plain.keywords.get("media", UNKNOWN)
        return figures if isinstance(figures, MediaFigures) else None
    return UNKNOWN if plain is approximate_tokens else None


def counter_name(counter: TokenCounter) -> str:
    """Return the name of a token counter. Stored counts made under another name are recomputed.

    The name of a function is its module and qualified name. For a partial, the bound arguments are added; for a method
    of a chat model, the model's name.

    >>> counter_name(approximate_tokens), counter_name(len), counter_name(partial(sum, start=3))
    ('approximate', 'builtins.len', 'builtins.sum(start=3)')

    Raises:
        InvalidInputError: Another counter may have the same name: a lambda, a closure, an instance without a model.
    """
    if counter is approximate_tokens:
        return APPROXIMATE
    name = _name_of(counter)
    bound = _bound_by(counter)
    if "<" in name or " at 0x" in bound:
        raise InvalidInputError(
            f"the token counter {name + bound:.200} has no unique name, which stored counts need; "
            "pass token_counter_name=..., and change it whenever the counting changes"
        )
    if len(name + bound) <= _MAX_NAME_CHARACTERS:
        return name + bound
    return f"{name + bound:.100}…{sha256((name + bound).encode()).hexdigest()}"


def _name_of(counter: TokenCounter) -> str:
    """Return module and name of a function, or class and model of a model's method.

    Angle brackets in the result mark a counter without a unique name.
    """
    function: Any = counter.func if isinstance(counter, partial) else counter
    is_named = hasattr(function, "__qualname__")
    owner = getattr(function, "__self__", None) if is_named else function
    if owner is None or isinstance(owner, type | ModuleType):
        return f"{function.__module__}.{function.__qualname__}"
    model = getattr(owner, "model_name", None) or getattr(owner, "model", None)
    kind = f"{type(owner).__module__}.{type(owner).__qualname__}"
    return f"{kind}:{model}" if isinstance(model, str) else f"<an instance of {kind}>"


def _bound_by(counter: TokenCounter) -> str:
    """Return the arguments that a partial binds as text, "" without any."""
    if not isinstance(counter, partial):
        return ""
    bound = [
        *map(repr, counter.args),
        *(f"{key}={value!r}" for key, value in sorted(counter.keywords.items())),
    ]
    return f"({', '.join(bound)})" if bound else ""


def count(counter: TokenCounter, message: BaseMessage) -> int:
    """Return the tokens of one message.

    The message is estimated if the counter fails: it may refuse a single message, not reach its server, or return no
    number.
    """
    try:
        tokens = counter([message])
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        valid = sendable_message(message)
        if valid is not message:  # tokenizers may refuse lone surrogates
            return count(counter, valid)
        return _estimate(counter, message, type(error).__name__)
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 <= tokens < _MAX_TOKENS:
        return _estimate(counter, message, NO_NUMBER)
    return tokens


def count_with_media(
    counter: TokenCounter, message: BaseMessage
) -> tuple[int, tuple[MediaSize, ...]]:
    """Return the tokens of a message like `count`, and the sizes of its media, which are measured only once."""
    sizes = media_of(message)
    figures = figures_of(counter) if sizes else None
    if figures is None:
        return count(counter, message), sizes
    return _with_blocks(message, figures, sizes), sizes


def _estimate(counter: TokenCounter, message: BaseMessage, problem: str) -> int:
    """Estimate a message that a counter cannot count, and record the problem; the first one is logged."""
    if isinstance(counter, NamedCounter):
        if not counter.errors:
            line = "the token counter %s fails: %s; sizes that it cannot count are estimates"
            _LOGGER.warning(line, counter.name, problem)
        counter.errors[:] = [problem]
    return approximate_tokens([message])
