"""Leaves thinking of Claude out of a view if it is bound to messages that have changed since.

Claude's newer models bind a block of thinking to every message before it, in the request that made it, and refuse it
for good once one of them has changed: a result that became a stub, a note, a placeholder, a summary. So one number is
kept for a conversation: thinking up to that message stays out of every later request. It never goes back. Thinking
written after it goes along, in finished turns too.

The number follows from the last answer with thinking. Its entry has the digest of the view that it answers, and the
number of that time. If the view still begins with the same messages, the number is the same; else it is that answer.
An answer that was appended without the stamp of its view counts as changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from langchain_core.messages import BaseMessage

from convstore.log.facts.thinking import THINKING, Thinking
from convstore.log.rows import Row
from convstore.messages.encoding import digest_of_messages
from convstore.messages.reasoning import without_reasoning
from convstore.messages.tokens import TokenCounter, count
from convstore.messages.tool_calls import has_calls
from convstore.view.render import View
from convstore.wire.bound_thinking import has_bound_thinking
from convstore.wire.steps import NO_TEXT


def with_bound_thinking(view: View, rows: Sequence[Row], counter: TokenCounter) -> View:
    """Return a view without thinking that the model would refuse; the same object if it has none such.

    Args:
        view: The view.
        rows: The rows that it may show, in order.
        counter: Measures what is changed.
    """
    thought = {
        str(each.id): at for at, each in enumerate(view.messages) if has_bound_thinking(each)
    }
    if not thought:
        return view
    places = {row.message.id: row.message.ordinal for row in rows if row.message.id in thought}
    last = next(row for row in reversed(rows) if row.message.id in thought)
    request = THINKING.of(last.entry)
    if request is None or request.answer != last.message.id:
        return _without(view, thought, places, last.message.ordinal, counter)
    same = _without(view, thought, places, request.through, counter)
    if thought[request.answer] == request.messages and _begins_with(same.messages, request):
        return same
    return _without(view, thought, places, last.message.ordinal, counter)


def _begins_with(messages: Sequence[BaseMessage], request: Thinking) -> bool:
    """Return True if a view begins with the messages of a request."""
    return digest_of_messages(messages[: request.messages]) == request.digest


def _without(
    view: View,
    thought: Mapping[str, int],
    places: Mapping[str, int],
    through: int,
    counter: TokenCounter,
) -> View:
    """Return a view without the thinking of answers up to an ordinal; those without an ordinal are older."""
    left_out = [id_ for id_ in thought if places.get(id_, 0) <= through]
    messages = list(view.messages)
    sizes = list(view.sizes)
    for id_ in left_out:
        at = thought[id_]
        messages[at] = _without_thinking(messages[at])
        sizes[at] = count(counter, messages[at])
    return replace(
        view,
        messages=messages,
        sizes=sizes,
        withheld=tuple(left_out),
        thinking_through=through,
    )


def _without_thinking(message: BaseMessage) -> BaseMessage:
    """Return an answer without its thinking; a text stands for an answer that has nothing else."""
    clean = without_reasoning(message)
    if clean.content or has_calls(clean):
        return clean
    return clean.model_copy(update={"content": NO_TEXT})
