"""How large a message is for a model: the counter that the whole store uses.

Layer 1. LangChain's own approximation is the default; a backend that wants exact figures passes its model's counter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from langchain_core.messages import BaseMessage
from langchain_core.messages.utils import count_tokens_approximately

from convstore.codec import Codec, fields_of
from convstore.exceptions import InvalidInputError

__all__ = ["CHARACTERS_PER_TOKEN", "TokenCounter", "approximate_tokens", "count"]

TokenCounter = Callable[[Sequence[BaseMessage]], int]
"""Gives the tokens of a list of messages; must be additive enough that messages can be counted one by one."""

CHARACTERS_PER_TOKEN = 4
"""What LangChain's approximation takes for English text; pages are cut by it."""


def approximate_tokens(messages: Sequence[BaseMessage]) -> int:
    """LangChain's ``count_tokens_approximately``, and for what it can not count a quarter of the stored text.

    >>> from langchain_core.messages import HumanMessage
    >>> approximate_tokens([HumanMessage("Where is my order?")])
    9
    """
    try:
        return count_tokens_approximately(messages)
    except (RecursionError, TypeError, ValueError):
        # Nesting beyond the interpreter's limit, or blocks of a shape that it does not expect.
        codec = Codec()
        return sum(len(codec.encode(fields_of(message), omitted=[])) // CHARACTERS_PER_TOKEN for message in messages)


def count(counter: TokenCounter, message: BaseMessage) -> int:
    """Tokens of one message.

    Raises:
        InvalidInputError: The counter gives something else than a whole number from 0.
    """
    tokens = counter([message])
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise InvalidInputError(f"the token counter gave {tokens!r} instead of a whole number")
    return tokens
