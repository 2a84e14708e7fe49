"""Leaves thinking of Claude out of a view if it is bound to messages that have changed since.

Claude's newer models bind a block of thinking to every message before it, in the request that made it, and refuse it
for good once one of them has changed: a result that became a stub, a note, a placeholder, a summary. So one number is
kept for a conversation: thinking up to that message stays out of every later request. It never goes back. Thinking
written after it goes along, in finished turns too.

The number follows from the last answer with thinking. Its entry has the digest of the view that it answers, and the
number of that time. If the view still begins with the same messages, the number is the same; else it is that answer.
Of an answer that was appended without the stamp of its view, that view is not known. Its thinking goes along if views
have only changed by finishing turns: that of finished turns as long as nothing in them has another form, that of the
turn in progress always.
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
    """Return a view without thinking that the model would refuse; the same object if it has none such.

    Args:
        view: The view.
        rows: The rows that it may show, in order.
        counter: Measures what is changed.
        is_cut: True if the view left something out for want of room, or has a summary.
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
        through = _through_of(view, known, thought, answers)
    if known is not last:
        alone = _through(view, rows, last.message.ordinal, is_cut=is_cut)
        through = _joined(through, alone, known, last)
    return _without(view, thought, answers, through, counter)


def _joined(through: int, alone: int, known: Row | None, last: Row) -> int:
    """Return up to which ordinal thinking stays out, if the request of the last answer is not known."""
    if known is None:
        return alone
    # The last answer was perhaps made with thinking that would be left out now.
    return last.message.ordinal if alone > through else through


def _request_of(row: Row) -> Thinking | None:
    """Return the request of an answer, None if it was appended without the stamp of its view."""
    request = THINKING.of(row.entry)
    return request if request and request.answer == row.message.id else None


def _through_of(view: View, row: Row, thought: Mapping[str, int], answers: Sequence[Row]) -> int:
    """Return up to which ordinal thinking stays out by the last answer whose request is known."""
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
    """Return the ids of the answers up to an ordinal; those without a row are older."""
    later = {row.message.id for row in answers if row.message.ordinal > through}
    return [id_ for id_ in thought if id_ not in later]


def _through(view: View, rows: Sequence[Row], answer: int, *, is_cut: bool) -> int:
    """Return up to which ordinal thinking stays out if the request of the last answer is not known."""
    if is_cut or view.shortened or view.moved or view.late_results:
        return answer
    if not view.stubbed and not view.placeholders:
        return 0
    turn = rows[-1].turn
    return max((row.message.ordinal for row in rows if row.turn != turn), default=0)


def _without(
    view: View,
    thought: Mapping[str, int],
    answers: Sequence[Row],
    through: int,
    counter: TokenCounter,
) -> View:
    """Return a view without the thinking of answers up to an ordinal."""
    left_out = _left_out(thought, answers, through)
    reason = "what stands before it has changed"
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
    """Return an answer without its thinking; a text stands for an answer that has nothing else."""
    clean = without_reasoning(message)
    if clean.content or calls_of(clean):
        return clean
    return clean.model_copy(update={"content": NO_TEXT})
