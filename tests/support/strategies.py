"""Values, messages and logs that the tests of the pure rules share, and an equality that owes nothing to convstore."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import BaseModel

from convstore.append.batch import prepare_batch
from convstore.append.compose import compose_entry
from convstore.log.entry import Entry, PayloadRef, Totals
from convstore.log.rows import leading_system, rows_of
from convstore.log.state import NamedMessage
from convstore.messages.tokens import TokenCounter, approximate_tokens, named_counter
from convstore.messages.values import Codec
from convstore.values.policy import HistoryPolicy
from convstore.values.stamps import ViewMarks
from convstore.view.active_rows import ActiveRows
from convstore.view.decoder import Decoder, payloads_needed
from convstore.view.render import NOTE_RESULTS, View
from convstore.view.rule import ViewPlan

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)

# ---------------------------------------------------------------------------------------------------------------------
# Equality: same types, same order, NaN equal to NaN, -0.0 not equal to 0.0, any nesting.


def same(left: Any, right: Any) -> bool:
    """Return True if two values are equal in every way that a program could notice."""
    todo = [(left, right)]
    while todo:
        a, b = todo.pop()
        if type(a) is not type(b):
            return False
        if type(a) in (list, tuple):
            pairs = zip(a, b, strict=False)
        elif type(a) is dict:
            pairs = zip([*a, *a.values()], [*b, *b.values()], strict=False)
        elif isinstance(a, BaseModel):
            todo.append((_state(a), _state(b)))
            continue
        elif type(a) in (set, frozenset):
            pairs = zip(sorted(a, key=_sort_key), sorted(b, key=_sort_key), strict=False)
        elif _leaf(a) == _leaf(b):
            continue
        else:
            return False
        if len(a) != len(b):
            return False
        todo.extend(pairs)
    return True


def _state(model: BaseModel) -> list[Any]:
    return [dict(sorted(model.__dict__.items())), model.__pydantic_extra__]


def _sort_key(element: Any) -> str:
    if type(element) in (frozenset, tuple):
        parts = [_sort_key(part) for part in element]
        return f"{type(element).__name__}{sorted(parts) if type(element) is frozenset else parts}"
    return f"{type(element).__name__}{_leaf(element)!r}"


def _leaf(value: Any) -> Any:
    if type(value) is float:
        return "nan" if math.isnan(value) else struct.pack(">d", value)
    if type(value) is complex:
        return _leaf(value.real), _leaf(value.imag)
    if type(value) in (datetime, time):
        return value.replace(tzinfo=None), value.fold, str(value.tzinfo), value.utcoffset()
    if type(value) is Decimal:
        return str(value)
    return hex(value) if type(value) is int else value


# ---------------------------------------------------------------------------------------------------------------------
# Values

any_text = st.text(st.characters(exclude_categories=()), max_size=20)
"""Text of any code points, lone surrogates and NUL too."""

_awkward_text = st.sampled_from(
    [
        "",
        "\0",
        "\ud800",
        "\udc00",
        "\ud83d\ude00",
        "😀",
        "a.b",
        "$set",
        "$",
        "\n",
        "\u2028",
        '"\\',
        '{"$":1}',
        "NaN",
    ]
)
_zones = st.sampled_from(
    [
        None,
        UTC,
        timezone(timedelta(hours=5, minutes=45)),
        ZoneInfo("Europe/Berlin"),
        ZoneInfo("Australia/Lord_Howe"),
    ]
)
_moments = st.builds(datetime.replace, st.datetimes(), tzinfo=_zones, fold=st.integers(0, 1))
_times = st.builds(time.replace, st.times(), tzinfo=_zones, fold=st.integers(0, 1))
_numbers = (
    st.integers(-(2**70), 2**70)
    | st.sampled_from([2**63, 2**63 - 1, -(2**63), 2**64])
    | st.floats()
    | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324])
    | st.complex_numbers()
)
hashable = st.recursive(
    st.none()
    | st.booleans()
    | _numbers
    | any_text
    | _awkward_text
    | st.binary(max_size=10)
    | _moments
    | st.dates()
    | _times
    | st.timedeltas()
    | st.decimals().filter(lambda number: not number.is_snan())
    | st.uuids(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
keys = any_text | _awkward_text | st.sampled_from(["a.b", "$", "$set", "line", "type", "id"])


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.sets(hashable, max_size=3)
        | st.builds(
            Document,
            any_text,
            id=st.none() | any_text,
            metadata=st.dictionaries(keys, inner, max_size=3),
        )
        | st.builds(
            lambda name, value: {"$": [name, value]},
            st.sampled_from(["bytes", "line", "payload", "x"]),
            inner,
        )
    )


values = st.recursive(hashable | st.binary(max_size=10).map(bytearray), _containers, max_leaves=15)
"""Values of every type that the codec knows, nested."""

# ---------------------------------------------------------------------------------------------------------------------
# Messages

_extras = st.dictionaries(keys, values, max_size=3)
_blocks = st.lists(
    any_text
    | st.fixed_dictionaries(
        {"type": st.just("text"), "text": any_text}, optional={"cache_control": _extras}
    )
    | st.fixed_dictionaries(
        {"type": st.just("thinking"), "thinking": any_text, "signature": any_text}
    )
    | st.fixed_dictionaries(
        {"type": st.just("reasoning"), "encrypted_content": any_text, "summary": values}
    ),
    max_size=3,
)
_content = any_text | _blocks
_calls = st.lists(
    st.fixed_dictionaries(
        {
            "name": any_text,
            "args": _extras,
            "id": st.none() | any_text,
            "type": st.just("tool_call"),
        },
    ),
    max_size=2,
)
_bad_calls = st.lists(
    st.fixed_dictionaries(
        {"name": any_text, "args": any_text, "id": any_text, "error": st.none() | any_text},
        optional={"type": st.just("invalid_tool_call")},
    ),
    max_size=2,
)
_usage = st.none() | st.fixed_dictionaries(
    {
        "input_tokens": st.integers(0, 2**70),
        "output_tokens": st.just(1),
        "total_tokens": st.integers(),
    },
    optional={"input_token_details": _extras},
)


_common = st.fixed_dictionaries(
    {"content": _content, "id": st.text(min_size=1, max_size=5)},
    optional={
        "additional_kwargs": _extras,
        "response_metadata": _extras,
        "name": st.none() | any_text,
    },
)
_with_extra_fields = st.fixed_dictionaries(
    {}, optional={"example": st.booleans(), "a.b": values, "_x": values}
)


def _message(
    class_: type[BaseMessage], **fields: st.SearchStrategy[Any]
) -> st.SearchStrategy[BaseMessage]:
    """Messages with fields set behind the back of their validators, which would fill in and convert."""

    def build(common: dict[str, Any], extra: dict[str, Any], **given: Any) -> BaseMessage:
        message = class_.model_construct(**_REQUIRED, **extra)
        for name in _REQUIRED.keys() - class_.model_fields.keys():
            del message.__pydantic_extra__[name]  # type: ignore[union-attr]
        message.__dict__.update(common, **given)
        return message

    return st.builds(build, _common, _with_extra_fields, **fields)


_REQUIRED: dict[str, Any] = {"content": "", "tool_call_id": "c", "role": "r", "name": "n"}
messages = st.one_of(
    _message(HumanMessage),
    _message(SystemMessage),
    _message(AIMessage, tool_calls=_calls, invalid_tool_calls=_bad_calls, usage_metadata=_usage),
    _message(
        ToolMessage,
        tool_call_id=any_text,
        artifact=values,
        status=st.sampled_from(["success", "error"]),
    ),
    _message(FunctionMessage, name=any_text),
    _message(ChatMessage, role=any_text),
)
"""Messages of all six classes with awkward values everywhere."""

# ---------------------------------------------------------------------------------------------------------------------
# Logs, as the writer makes them and as the reader reads them


@dataclass
class PureLog:
    """A log in memory: entries made by `prepare_batch` and `compose_entry`, views made as the reader makes them."""

    counter: TokenCounter = approximate_tokens
    codec: Codec = field(default_factory=Codec)
    entries: list[Entry] = field(default_factory=list)
    payloads: dict[str, str] = field(default_factory=dict)

    @property
    def totals(self) -> Totals:
        """Return the totals of the last entry."""
        return self.entries[-1].totals if self.entries else Totals()

    def append(self, messages: Sequence[BaseMessage]) -> Entry:
        """Add one entry with these messages."""
        batch = prepare_batch(
            messages,
            codec=self.codec,
            counter=named_counter(self.counter, "test"),
            token=f"t{len(self.entries)}",
        )
        entry = compose_entry(batch, self.totals, at=NOW)
        self.entries.append(entry)
        for prepared, message in zip(batch.prepared, entry.messages, strict=True):
            if message.payload:
                self.payloads[message.id] = prepared.payload
        return entry

    def until(self, entry: int) -> PureLog:
        """The log as it was after an entry."""
        return replace(self, entries=self.entries[:entry])

    def decide(
        self, policy: HistoryPolicy, record: tuple[int, int, int] = (1, 0, 0), *, since: int = 1
    ) -> ViewPlan | None:
        """Return the plan of `rule.decide` for the rows from an entry on; None if more must be read."""
        active, decoder = self._active(since), self._decoder(policy)
        is_read = (
            bool(active.rows)
            and active.rows[active.begin :][:1]
            and record[0] >= active.rows[0].message.ordinal
        )
        if not is_read and not active.has_enough(decoder):
            return None
        return active.plan(decoder, record)

    def start(self, policy: HistoryPolicy, record: tuple[int, int, int] = (1, 0, 0)) -> int:
        """Ordinal of the first message of the view after the leading system messages."""
        plan = self.decide(policy, record)
        assert plan is not None
        return plan.marks.start

    def view(self, policy: HistoryPolicy, record: tuple[int, int, int] = (1, 0, 0)) -> View:
        """The view of the whole log."""
        plan = self.decide(policy, record)
        assert plan is not None
        return self.rendered(policy, plan)

    def rendered(self, policy: HistoryPolicy, plan: ViewPlan) -> View:
        """The view of a plan about the whole log."""
        active, decoder = self._active(), self._decoder(policy)
        needed = payloads_needed(active.rows[plan.begin :], plan.shown, policy)
        decoder.payloads = {id_: self.payloads[id_][: ref.ends[-1]] for id_, ref in needed}
        return active.view(plan, decoder)

    def again(self, policy: HistoryPolicy, marks: ViewMarks) -> View:
        """The view that a stamp with these marks gives."""
        return self.rendered(policy, self._active().past_plan(self._decoder(policy), marks))

    def payloads_needed(self, policy: HistoryPolicy) -> list[tuple[str, PayloadRef]]:
        """The payloads that the view of the whole log needs, with the ids of their messages."""
        plan = self.decide(policy)
        assert plan is not None
        return payloads_needed(self._active().rows[plan.begin :], plan.shown, policy)

    def _decoder(self, policy: HistoryPolicy) -> Decoder:
        return Decoder(policy, self.codec, self.counter)

    def _active(self, since: int = 1) -> ActiveRows:
        everything, rows = rows_of(self.entries), rows_of(self.entries[since - 1 :])
        earlier = everything[: len(everything) - len(rows)]
        names = [
            NamedMessage(row.message.ordinal, row.message.name)
            for row in reversed(earlier)
            if row.message.is_named
        ]
        system = tuple(row.message for row in leading_system(everything))
        is_complete = since <= 1
        return ActiveRows(
            rows=rows,
            is_complete=is_complete,
            system=system,
            earlier_results=tuple(names[:NOTE_RESULTS]),
        )


def _words(length: int, seed: str) -> str:
    return f"{seed} " + "lorem " * (length // 6)


@dataclass(frozen=True)
class Round:
    """A call of tools in a turn: the sizes of the results in characters, with sources or without."""

    sizes: tuple[int, ...]
    sources: bool


def turn(
    number: int, rounds: Sequence[Round] = (), *, asked: int = 40, said: int = 120
) -> list[BaseMessage]:
    """The messages of a finished turn as agents make them; their ids are unique in any log."""
    made: list[BaseMessage] = [HumanMessage(_words(asked, f"question {number}"), id=f"h{number}")]
    for step, parts in enumerate(rounds):
        ids = [f"c{number}-{step}-{index}" for index in range(len(parts.sizes))]
        calls = [{"name": "search", "args": {"q": id_}, "id": id_} for id_ in ids]
        made.append(AIMessage("", id=f"a{number}-{step}", tool_calls=calls))
        for index, (id_, size) in enumerate(zip(ids, parts.sizes, strict=True)):
            text = _words(size, id_)
            artifact = (
                [(text[: size // 2], {"title": f"T{id_}"}), (text[size // 2 :], {})]
                if parts.sources
                else None
            )
            result_id = f"r{number}-{step}-{index}"
            made.append(
                ToolMessage(text, id=result_id, name="search", tool_call_id=id_, artifact=artifact)
            )
    return [*made, AIMessage(_words(said, f"answer {number}"), id=f"z{number}")]


_sizes = st.sampled_from([0, 30, 300, 900, 1_500, 3_000])
_rounds = st.lists(
    st.builds(Round, st.lists(_sizes, min_size=1, max_size=3).map(tuple), st.booleans()), max_size=2
)
turns = st.tuples(_rounds, st.integers(0, 400), st.integers(0, 400))
"""Rounds, length of the question, length of the answer."""

policies = st.builds(
    HistoryPolicy,
    max_tokens=st.one_of(st.integers(300, 1_500), st.integers(300, 4_000), st.none()),
    max_turns=st.one_of(st.none(), st.none(), st.integers(1, 12)),
    never_stub=st.sampled_from([(), ("search",)]),
    stub_tools=st.sampled_from(["finished_turns", "finished_turns", "never"]),
    view=st.sampled_from(["full", "full", "conversation"]),
    shorten_over=st.sampled_from([None, None, 5, 20, 60]),
    media=st.sampled_from(["finished_turns", "finished_turns", "never"]),
)
"""Policies of all kinds, with budgets that the turns of a short log exceed."""


def log_of(
    script: Sequence[tuple[Sequence[Round], int, int]],
    *,
    batch: int | Sequence[int] = 1,
    begin: Sequence[BaseMessage] = (),
) -> PureLog:
    """A log of these turns, in batches of these lengths."""
    made = list(begin)
    for number, (rounds, asked, said) in enumerate(script, 1):
        made += turn(number, rounds, asked=asked, said=said)
    log = PureLog()
    lengths = itertools.cycle([batch] if isinstance(batch, int) else batch)
    index = 0
    while index < len(made):
        length = next(lengths)
        log.append(made[index : index + length])
        index += length
    return log
