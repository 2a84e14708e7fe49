"""The values that the writers return: request arguments, with a list of the parts that could not be sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

ReportDropped: TypeAlias = Callable[[str, str], None]
"""Function that is called with the name of a part that a request does not contain, and the reason."""


class Dropped(NamedTuple):
    """A part of a message that a request does not contain as it was appended.

    Attributes:
        message_id: Id of the message; "" if it has no id.
        part: The part, such as "reasoning", "image" or "arguments of search".
        reason: Why it could not be sent.
    """

    message_id: str
    part: str
    reason: str


class OpenAIMessages(list[Any]):
    """The `messages` of OpenAI's Chat Completions, or the `input` of its Responses API: a list of plain dicts.

    Attributes:
        dropped: The parts of messages that the API does not accept, in order.
    """

    def __init__(self, messages: Iterable[Any], dropped: Iterable[Dropped]) -> None:
        super().__init__(messages)
        self.dropped = tuple(dropped)


class AnthropicMessages(dict[str, Any]):
    """The arguments `messages` and, if there are system messages, `system` of Anthropic's API, to pass with ``**``.

    Attributes:
        dropped: The parts of messages that the API does not accept, in order.
    """

    def __init__(self, arguments: Mapping[str, Any], dropped: Iterable[Dropped]) -> None:
        super().__init__(arguments)
        self.dropped = tuple(dropped)
