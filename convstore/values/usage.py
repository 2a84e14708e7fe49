"""Token counts of models, and their cost at prices that the application or the command line passes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from convstore.exceptions import InvalidInputError
from convstore.values.plain import shown_value

_MILLION = 1_000_000


class Usage(NamedTuple):
    """Token counts of models, summed.

    Attributes:
        input_tokens: Tokens of requests, including those read from or written to a cache.
        output_tokens: Tokens of replies.
        total_tokens: The provider's sum of both.
        cache_read_tokens: The input tokens that the provider read from its cache.
        cache_write_tokens: The input tokens that the provider wrote to its cache; 0 if it does not count them.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def tokens(self) -> int:
        """The sum of the tokens of requests and replies."""
        return self.input_tokens + self.output_tokens

    def plus(self, other: Usage) -> Usage:
        """Add the counts of another usage.

        >>> Usage(1, 2, 3).plus(Usage(10, 20, 30, 5))
        Usage(input_tokens=11, output_tokens=22, total_tokens=33, cache_read_tokens=5, cache_write_tokens=0)
        """
        return Usage._make(map(sum, zip(self, other, strict=True)))


Prices = Mapping[str, Sequence[float]]
"""The prices of a million tokens by model: of input, output, input read from a cache, and input written to a cache.

Without the last two, cached tokens cost as much as other input. Input that was written to a cache has one price however
long the cache keeps it: Anthropic bills five minutes at 1.25 times the price of input, and an hour at twice the price.
"""


def check_prices(prices: Any) -> Prices:
    """Return prices, {} for None; raise an InvalidInputError unless each model has two to four numbers.

    >>> check_prices({"gpt-5": (1.25, 10)})
    {'gpt-5': (1.25, 10)}
    """
    if prices is None:
        return {}
    if not isinstance(prices, Mapping):
        raise InvalidInputError(f"prices must be a dict, not {type(prices).__name__}")
    for model, price in prices.items():
        if not isinstance(model, str) or not _is_price(price):
            raise InvalidInputError(
                f"the price of {model!r} must be two to four numbers that are not negative, not "
                f"{shown_value(price)}: the prices of a million tokens of input, of output, and of "
                "input read from and written to a cache, such as 2.5, 10 and 0.25"
            )
    return dict(prices)


def _is_price(price: Any) -> bool:
    if not isinstance(price, tuple | list) or not 2 <= len(price) <= 4:
        return False
    return all(
        type(number) in (int, float) and number >= 0 and math.isfinite(number) for number in price
    )


def cost_of(usage: Usage, price: Sequence[float]) -> float:
    """Return the cost of tokens at a price.

    >>> cost_of(Usage(1_000_000, 100_000, 0, 600_000, 100_000), (3, 15, 0.3, 3.75))
    2.955
    """
    count_in, count_out, read, written = [*price, *[price[0]] * (4 - len(price))]
    whole = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
    cost = whole * count_in + usage.output_tokens * count_out
    cost += usage.cache_read_tokens * read + usage.cache_write_tokens * written
    return cost / _MILLION
