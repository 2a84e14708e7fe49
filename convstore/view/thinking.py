"""Leaves thinking of Claude out of a view if messages before it have changed since it was written.

Claude's newer models bind a block of thinking to all messages before it in its request. They refuse the block once one
of these has changed, for example became a stub, a placeholder or part of a summary. So each conversation has a limit,
an ordinal: thinking up to this message is left out of all later requests. The limit never moves back. Later thinking is
sent, also in finished turns.

The limit follows from the last answer with thinking. Its entry stores the digest of the view that it answers, and the
limit of that time. If the view still begins with the same messages, the limit stays; else it becomes this answer.

An answer that was appended without the stamp of its view has no such digest. If the view leaves out and shortens
nothing, thinking in the turn in progress is sent, and thinking in finished turns as long as these have no stubs and
placeholders. Otherwise the limit becomes the last answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from langchain_core.messages import BaseMessage

from convstore.log.facts.thinking import THINKING, Thinking
from convstore.log.rows import Row
from convstore.messages.encoding import digest_of_messages
from convstore.messages.reasoning import has_bound_thinking, without_reasoning
from convstore.messages.tokens import TokenCounter, count
from convstore.messages.tool_calls import calls_of
from convstore.view.render import View
from convstore.wire.edits import NO_TEXT
from convstore.wire.requests import Dropped


def with_bound_thinking(
    view: View, rows: Sequence[Row], counter: TokenCounter, *, is_cut: bool
) -> View:
    """Return a view without thinking that the model would refuse; the same object if it has no such thinking.

    Args:
        view: The view.
        rows: The rows that it may show, in order.
        counter: Measures changed messages.
        is_cut: True if the view leaves messages out or shortens them, or has a summary.
    """
    thought = {
        str(each.id): at for at, each in enumerate(view.messages) if has_bound_thinking(each)
    }
    if not thought:
        return view
    answers = [row for row in rows if row.message.id in thought]
    last = answers[-1]
    known = next((row for row in reversed(answers) if _request_of(row)), None)
    through = 0
    if known is not None:
        through = _limit_by_request(view, known, thought, answers)
    if known is not last:
        by_view = _limit_by_view(view, rows, last.message.ordinal, is_cut=is_cut)
        through = _combined_limit(through, by_view, known, last)
    return _without_thinking_through(view, thought, answers, through, counter)


def _combined_limit(through: int, by_view: int, known: Row | None, last: Row) -> int:
    """Combine the limits by an earlier request and by the view, if the request of the last answer is unknown."""
    if known is None:
        return by_view
    # The last answer may have been written with thinking that would be left out now.
    return last.message.ordinal if by_view > through else through


def _request_of(row: Row) -> Thinking | None:
    """Return the request of an answer, None if it was appended without the stamp of its view."""
    request = THINKING.of(row.entry)
    return request if request and request.answer == row.message.id else None


def _limit_by_request(
    view: View, row: Row, thought: Mapping[str, int], answers: Sequence[Row]
) -> int:
    """Return the limit by the last answer whose request is known."""
    request = _request_of(row)
    if request is None or thought[request.answer] != request.messages:
        return row.message.ordinal
    left_out = _left_out(thought, answers, request.through)
    shown = [
        _without_thinking(message) if message.id in left_out else message
        for message in view.messages[: request.messages]
    ]
    is_same = digest_of_messages(shown) == request.digest
    return request.through if is_same else row.message.ordinal


def _left_out(thought: Mapping[str, int], answers: Sequence[Row], through: int) -> list[str]:
    """Return the ids of the answers up to an ordinal; answers without a row are older and included."""
    later = {row.message.id for row in answers if row.message.ordinal > through}
    return [id_ for id_ in thought if id_ not in later]


def _limit_by_view(view: View, rows: Sequence[Row], answer: int, *, is_cut: bool) -> int:
    """Return the limit by the view alone, without the request of an answer."""
    if is_cut or view.shortened or view.moved or view.late_results:
        return answer
    if not view.stubbed and not view.placeholders:
        return 0
    turn = rows[-1].turn
    return max((row.message.ordinal for row in rows if row.turn != turn), default=0)


def _without_thinking_through(
    view: View,
    thought: Mapping[str, int],
    answers: Sequence[Row],
    through: int,
    counter: TokenCounter,
) -> View:
    """Return a view without the thinking of answers up to an ordinal."""
    left_out = _left_out(thought, answers, through)
    reason = "messages before it have changed"
    withheld = [Dropped(id_, "reasoning", reason) for id_ in left_out]
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
        dropped=(*view.dropped, *withheld),
        thinking_through=through,
    )


def _without_thinking(message: BaseMessage) -> BaseMessage:
    """Return an answer without its thinking; an answer with nothing else gets a placeholder text."""
    clean = without_reasoning(message)
    if clean.content or calls_of(clean):
        return clean
    return clean.model_copy(update={"content": NO_TEXT})
