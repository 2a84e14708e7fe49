"""Give each call of a request an id of its own, and each result the id and the name of its call.

The writers of frameworks use it on the framework's own objects: servers number their calls anew in each reply, or leave
their ids empty, and the APIs behind a framework look up a result by its id.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from convstore.messages.call_ids import CallIdTemplate, NewIds
from convstore.messages.tool_calls import Call

_FORM: Final = CallIdTemplate("call_{r:24:x}")


class CallName(NamedTuple):
    """Id and tool of a call in a request."""

    id: str
    tool: str


class CallEdits:
    """Names the calls of a request in order; equal requests get equal names, also at the beginning of a longer one.

    >>> edits = CallEdits()
    >>> [edits.call("call_0", "look").id, edits.result("call_0")]
    ['call_0', CallName(id='call_0', tool='look')]
    >>> edits.begin_answer()
    >>> edits.call("call_0", "look").id == edits.result("call_0").id != "call_0"
    True
    """

    def __init__(self) -> None:
        self._ids = NewIds(_FORM, unique=True, any_form=True)
        self._seen = Counter[str]()
        self._open = dict[str, list[CallName]]()

    def begin_answer(self) -> None:
        """Begin another answer of the model: results that follow answer its calls."""
        self._open = {}

    def call(self, id_: str, tool: str) -> CallName:
        """Return the name of the next call; the same id if no call before has it."""
        self._seen[id_] += 1
        call = Call(id_, tool, 0)
        new = id_
        if not self._ids.keeps(call):
            new = self._ids.make(id_, tool=tool, key=str(self._seen[id_]))
        name = CallName(new, tool)
        self._open.setdefault(id_, []).append(name)
        return name

    def result(self, id_: str) -> CallName:
        """Return the name of the call that the next result answers: the first with its id that has none."""
        waiting = self._open.get(id_, [])
        if not waiting:
            return CallName(id_, "")
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]
