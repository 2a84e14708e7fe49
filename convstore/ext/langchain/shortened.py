"""Messages of a long turn that are shown shortened: by deepagents, or as the stubs of this package.

Floor 7, pure. The ``FilesystemMiddleware`` of deepagents moves a large result or question to a file. It is placed
around ours and replaces the content by a preview and the path of the file. The log has both in full; the model is shown
what deepagents made of them.

Policies stub the results of finished turns. An agent that works for an hour is in one turn all the time, so its own
older results become stubs once they exceed a budget, down to half of it. That happens in large steps, so a provider's
prompt cache lives from one step to the next. Results that the model has not answered yet are never stubbed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

__all__ = ["SETTING", "as_in_state", "is_evicted", "stubbed_until"]

SETTING = "FilesystemMiddleware(tool_token_limit_before_evict=None, human_message_token_limit_before_evict=None)"
"""The middleware of deepagents that moves nothing."""

_RESULT = "Tool result too large, the result of this tool call "
_TAG = "lc_evicted_to"


def is_evicted(message: BaseMessage, logged: BaseMessage) -> bool:
    """Return True if deepagents moved the content of a logged message to a file, and changed nothing else of it.

    >>> whole = ToolMessage("a" * 100_000, tool_call_id="c1", id="r1")
    >>> is_evicted(ToolMessage(_RESULT + "c1 was saved …", tool_call_id="c1", id="r1"), whole)
    True
    """
    if isinstance(message, ToolMessage) and isinstance(logged, ToolMessage):
        return message.text.startswith(_RESULT) and message.model_copy(update={"content": logged.content}) == logged
    if isinstance(message, HumanMessage) and _TAG in message.additional_kwargs:
        return _untagged(message) == _untagged(logged)
    return False


def as_in_state(messages: Sequence[BaseMessage], state: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages of a request, with questions that deepagents shortened as the state has them."""
    shortened = {one.id for one in messages if _TAG in one.additional_kwargs and isinstance(one, HumanMessage)} - {None}
    whole = {one.id: one for one in state if one.id in shortened and isinstance(one, HumanMessage)}
    return [whole.get(one.id, one) for one in messages]


def stubbed_until(
    messages: Sequence[BaseMessage],
    stubs: Mapping[str, ToolMessage | None],
    *,
    budget: int,
    size_of: Callable[[BaseMessage], int],
) -> tuple[int, bool]:
    """Return the index after the last result shown as a stub, and True if that depends on a stub that was not read.

    A step is taken when the turn exceeds its budget and the step saves at least half of that. So a turn whose texts and
    stubs alone are large does not lose a result at every call. Depends on the turn alone, and never goes back. `stubs`
    are those read so far, by message id; None for a result that has none.
    """
    sizes = list(map(size_of, messages))
    unread = [isinstance(message, ToolMessage) and message.id not in stubs for message in messages]
    saved = [_saved(message, stubs, size_of) for message in messages]
    moments = [index for index, message in enumerate(messages) if isinstance(message, AIMessage)]
    until = size = seen = saving = 0
    is_guess = False
    for moment in [*moments, len(messages)]:
        size += sum(sizes[seen:moment])
        if size > budget and saving >= budget // 2:
            is_guess = is_guess or any(unread[until:seen])
            while until < seen and size > budget // 2:
                size, saving = size - saved[until], saving - saved[until]
                until += 1
        # At its next call, the model has seen everything before this AI message.
        saving += sum(saved[seen:moment])
        seen = moment
    return until, is_guess


def _saved(message: BaseMessage, stubs: Mapping[str, ToolMessage | None], size_of: Callable[[BaseMessage], int]) -> int:
    """Return the tokens that a stub saves; all of them while its size is unknown."""
    if not isinstance(message, ToolMessage):
        return 0
    stub = stubs.get(str(message.id), message)
    if stub is message:
        return size_of(message)
    return max(size_of(message) - size_of(stub), 0) if stub else 0


def _untagged(message: BaseMessage) -> BaseMessage:
    kept = {key: value for key, value in message.additional_kwargs.items() if key != _TAG}
    return message.model_copy(update={"additional_kwargs": kept})
