"""Shows old results of a long turn as stubs, in large steps.

Floor 7. Policies stub the results of finished turns. An agent that works for an hour is one turn all the while; here
its own older results become stubs once they fill a budget, down to half of it, so that a provider's prompt cache lives
until the next step. Results that the model has not answered yet are never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.messages.tokens import approximate_tokens

__all__ = ["stubbed_until"]

_Counter = Callable[[BaseMessage], int]


def _count(message: BaseMessage) -> int:
    return approximate_tokens([message])


def stubbed_until(
    messages: Sequence[BaseMessage],
    stubs: Mapping[str, ToolMessage | None],
    *,
    budget: int,
    count: _Counter = _count,
) -> tuple[int, bool]:
    """Up to which message of a turn results are shown as stubs, and whether stubs have to be read to be sure.

    A step is taken when the turn is over its budget and at least half of that is saved, so that a turn whose texts and
    stubs alone are large does not lose a result at every call. A function of the turn alone, which never goes back.

    Args:
        messages: The turn so far; the model is called next.
        stubs: The stubs that were read, by message id; None for a result that has none.
        budget: Tokens that the turn may take before results become stubs.
        count: Gives the size of a message.

    Returns:
        The place behind the last stub; and whether a result counted whose stub was not read.
    """
    sizes = [count(message) for message in messages]
    unread = [isinstance(message, ToolMessage) and message.id not in stubs for message in messages]
    saved = [_saved(message, stubs, size, count) for message, size in zip(messages, sizes, strict=True)]
    moments = [place for place, message in enumerate(messages) if isinstance(message, AIMessage)]
    until = size = place = seen = 0
    is_guess = False
    for moment in [*moments, len(messages)]:
        size += sum(sizes[place:moment])
        if size > budget and sum(saved[until:seen]) >= budget // 2:
            is_guess = is_guess or any(unread[until:seen])
            while until < seen and size > budget // 2:
                size -= saved[until]
                until += 1
        # What stands before an AI message the model has seen when it is called the next time.
        place = seen = moment
    return until, is_guess


def _saved(message: BaseMessage, stubs: Mapping[str, ToolMessage | None], size: int, count: _Counter) -> int:
    """Return the tokens that a stub saves; all of them while its size is unknown."""
    if not isinstance(message, ToolMessage):
        return 0
    message_id = str(message.id)
    if message_id not in stubs:
        return size
    stub = stubs[message_id]
    return size - min(size, count(stub)) if stub else 0
