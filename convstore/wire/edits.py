"""The edits that the rules of a provider require in a request, decided once for all writers.

A writer reports the messages, calls and results of its request in order, and applies the edits that it gets back: a
message to insert before, another role, an id, a name, or reasoning to leave out. Everything else stays unchanged.

Servers number their calls again in each reply, or leave their ids empty, and the APIs behind a framework look up a
result by its id. So each call gets an id that is unique in the request, and each result the id and the name of its
call.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from langchain_core.messages import BaseMessage

from convstore.messages.call_ids import NewIds
from convstore.messages.tool_calls import Call, calls_of
from convstore.values.call_id_templates import CallIdTemplate
from convstore.values.json_form import valid_text
from convstore.values.providers import ProviderRules
from convstore.wire.requests import Dropped

INSTRUCTION: Final = "[Instruction of the application]"
"""First line of a system message that is sent as a user message."""
MOVED: Final = "[Images and files in the tool results above]"
"""First line of the message to which media of results move."""
NO_TEXT: Final = "(no text)"
"""Placeholder text of a message without content, which the APIs reject."""
SYSTEM: Final = ("system", "developer")

_NOT_IN_TOOLS: Final = re.compile(r"[^a-zA-Z0-9_-]")
_NOT_IN_USERS: Final = re.compile(r"[\s<|\\/>]+")


_Part = TypeVar("_Part")


class Inserted(NamedTuple):
    """A message that is in the request but not in the log; `kind` is the kind of its mark in a view."""

    kind: str
    role: str
    text: str


BEGINNING: Final = Inserted("beginning", "user", "(The conversation begins.)")
"""Inserted before an answer that would be the first message, if the provider requires a user message there."""
NO_ANSWER: Final = Inserted("no_answer", "assistant", "(No answer.)")
"""Inserted between tool results and a user message, if the provider requires an answer there."""


class Placement(NamedTuple):
    """The role with which a message is sent, and a message to insert before it."""

    role: str
    before: Inserted | None


class CallName(NamedTuple):
    """Id and tool of a call in a request."""

    id: str
    tool: str


class _AnyCallId(CallIdTemplate):
    """Accepts the ids that all APIs accept; new ids look like OpenAI's."""

    def fits(self, call_id: str, *, tool: str) -> bool:  # noqa: ARG002 - as in the base class
        return re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", call_id) is not None


_CALL_ID: Final = _AnyCallId("call_{r:24:x}")


class RequestEdits:
    """Edits one request; equal requests get equal edits, also at the beginning of a longer one.

    Attributes:
        rules: The rules of the requested provider.
        ids: Assigns ids to calls.
        dropped: The parts of the log that the request does not contain.

    >>> edits = RequestEdits(ProviderRules(name="own"))
    >>> [edits.call("call_0", "look").id, edits.result("call_0")]
    ['call_0', CallName(id='call_0', tool='look')]
    >>> edits.place("assistant")
    Placement(role='assistant', before=None)
    >>> edits.call("call_0", "look").id == edits.result("call_0").id != "call_0"
    True
    """

    def __init__(
        self,
        rules: ProviderRules,
        *,
        asked: str = "",
        in_own_form: bool = False,
        kept: Mapping[str, int] | None = None,
    ) -> None:
        """Begin a request to a model.

        Args:
            rules: The rules of the model's provider.
            asked: Name of the model.
            in_own_form: True to give all calls ids in the provider's form.
            kept: For some ids, the number of the only call that keeps the id, because its result is already in the
                request; see `kept_ids`.
        """
        is_own_form = in_own_form or rules.own_call_ids
        form = CallIdTemplate(rules.call_ids) if is_own_form else _CALL_ID
        self.rules = rules
        self.ids = NewIds(form, unique=True)
        self.dropped: list[Dropped] = []
        self._asked = asked
        self._kept = kept or {}
        self._seen = Counter[str]()
        self._open: dict[str, list[CallName]] = {}
        self._at_head = True
        self._last = ""

    def place(self, role: str) -> Placement:
        """Return the placement of the next message, which is not a tool result."""
        was_head = self._at_head
        self._at_head = was_head and role in SYSTEM
        own = self._role_of(role)
        before = None
        if was_head and own == "assistant" and self.rules.human_first:
            before = BEGINNING
        elif self._last == "tool" and own == "user" and self.rules.answer_after_results:
            before = NO_ANSWER
        if role == "assistant":
            self._open = {}
        self._last = own
        return Placement(own, before)

    def _role_of(self, role: str) -> str:
        """Return the role of a message; a system message where the API does not accept one gets "user"."""
        if role not in SYSTEM or self._at_head or self.rules.system == "anywhere":
            return role
        is_after_user = self._last not in ("assistant", "tool")
        return role if self.rules.system == "before_answers" and is_after_user else "user"

    def drop(self, message: BaseMessage | None, part: str, reason: str) -> None:
        """Record that a part of a message is not sent; `message` is None if it is not a message of the log."""
        id_ = message.id if message else ""
        self.dropped.append(Dropped(id_ or "", part, reason))

    def turn_problem(self, *, is_open: bool) -> str:
        """Return the reason why the reasoning of a turn is left out of the request, "" if it may be sent.

        Requests through the packages of frameworks do not use this rule, because the packages have their own.
        """
        if self.rules.reasoning == "never":
            return "the API does not accept it"
        if self.rules.reasoning == "open_turn" and not is_open:
            return "its turn is over"
        return ""

    def writer_problem(self, writer: str) -> str:
        """Return the reason why the reasoning of a model, "" if unknown, is left out of the request, else ""."""
        is_taken = self.rules.takes_reasoning_of(writer, self._asked)
        return "" if is_taken else "another model wrote it"

    def answer(
        self,
        parts: Sequence[_Part],
        kind_of: Callable[[_Part], str],
        logged: BaseMessage | None,
        *,
        writer: str,
        blank: _Part,
        problem: str = "",
    ) -> list[list[_Part]]:
        """Return the parts of an answer to send, as one message, or as two if text and calls must be separate.

        Args:
            parts: The parts, of any type.
            kind_of: Returns the kind of a part: "reasoning", "call" or another one.
            logged: The message of the log.
            writer: The model that wrote the answer; reasoning of an unknown model "" is sent.
            blank: The part to send if everything else is left out.
            problem: Reason to leave all reasoning out, else "".
        """
        unsaid = problem or (self.writer_problem(writer) if writer else "")
        kept = list(parts)
        if unsaid and any(kind_of(part) == "reasoning" for part in parts):
            self.drop(logged, "reasoning", unsaid)
            kept = [part for part in parts if kind_of(part) != "reasoning"] or [blank]
        return [kept] if self.rules.text_beside_calls else _separate_calls(kept, kind_of)

    def call(self, id_: str, tool: str) -> CallName:
        """Return the id and the tool name of the next call; the id stays if it fits and is not used before."""
        self._seen[id_] += 1
        new = id_
        if not self._keeps(id_, tool):
            new = self.ids.make(id_, tool=tool, key=str(self._seen[id_]))
        name = CallName(new, tool_name(tool))
        self._open.setdefault(id_, []).append(name)
        return name

    def _keeps(self, id_: str, tool: str) -> bool:
        """Return True if the last counted call keeps its id."""
        if id_ in self._kept:
            return self._seen[id_] == self._kept[id_]
        return self.ids.keeps(Call(id_, tool, 0))

    def result(self, id_: str) -> CallName:
        """Return the id and the tool name of the call that the next result answers: the first unanswered one."""
        self._last = "tool"
        waiting = self._open.get(id_, [])
        if not waiting:
            return CallName(id_, "")
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    def note_results(self) -> None:
        """Record that tool results follow, for a writer that does not call `result` for each."""
        self._last = "tool"


def kept_ids(view: Sequence[BaseMessage], results: Collection[str]) -> dict[str, int]:
    """Return the ids of results that follow a view, each with the number of the last call in the view with this id.

    >>> from langchain_core.messages import AIMessage
    >>> again = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "call_0"}])
    >>> edits = RequestEdits(ProviderRules(name="own"), kept=kept_ids([again, again], {"call_0"}))
    >>> [edits.call("call_0", "look").id == "call_0" for _ in range(2)]
    [False, True]
    """
    ids = Counter(call.id for message in view for call in calls_of(message))
    return {id_: ids[id_] for id_ in results if ids[id_]}


def _separate_calls(parts: list[_Part], kind_of: Callable[[_Part], str]) -> list[list[_Part]]:
    """Separate calls from other parts; return one list if either is empty."""
    said = [part for part in parts if kind_of(part) != "call"]
    calls = [part for part in parts if kind_of(part) == "call"]
    return [said, calls] if said and calls else [parts]


@lru_cache(maxsize=1_000)
def tool_name(name: str) -> str:
    """Return the name of a tool in a form that all APIs accept.

    >>> tool_name("mcp.files:read"), tool_name("")
    ('mcp_files_read', 'tool')
    """
    return _NOT_IN_TOOLS.sub("_", name)[:64] or "tool"


def user_name(name: str) -> str:
    """Return the name of a user or an agent in a form that OpenAI accepts.

    >>> user_name("Ada <Lovelace>")
    'Ada_Lovelace_'
    """
    return _NOT_IN_USERS.sub("_", valid_text(name))[:64]
