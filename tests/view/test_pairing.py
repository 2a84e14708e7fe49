"""The rule of calls and results: what `pair` promises, and that `check_pairing` would notice if it did not hold."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from properties import examples

from convstore.messages.tool_calls import (
    Call,
    calls_of,
    is_paired,
    missing_result,
    pair,
    result_id,
    without_orphans,
)
from convstore.testing.pairing import check_pairing

REAL_DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "dev"

# ---------------------------------------------------------------------------------------------------------------------
# Small lists. "m2 ai x y" is an AI message with the calls x and y, "m3 tool x" a result for x, "m1 human" any other.


def _message(line: str) -> BaseMessage:
    message_id, kind, *call_ids = line.split()
    if kind == "ai":
        calls = [{"name": f"tool_{call_id}", "args": {}, "id": call_id} for call_id in call_ids]
        return AIMessage("", id=message_id, tool_calls=calls)
    if kind == "invalid":
        invalid = [
            {"name": f"tool_{call_id}", "args": "{", "id": call_id, "error": None}
            for call_id in call_ids
        ]
        return AIMessage("", id=message_id, invalid_tool_calls=invalid)
    if kind == "block":
        return AIMessage(
            [{"type": "tool_use", "name": "t", "input": {}, "id": i} for i in call_ids],
            id=message_id,
        )
    if kind == "tool":
        return ToolMessage(f"result {message_id}", id=message_id, tool_call_id=call_ids[0])
    if kind == "function":
        return FunctionMessage(content="legacy", id=message_id, name="f")
    return {"human": HumanMessage, "system": SystemMessage}[kind](
        f"text {message_id}", id=message_id
    )


def _log(*kinds: str) -> list[BaseMessage]:
    """The messages m0, m1, ... of these kinds."""
    return [_message(f"m{index} {kind}") for index, kind in enumerate(kinds)]


def _ids(messages: Sequence[BaseMessage]) -> list[str | None]:
    return [message.id for message in messages]


def _dumps(messages: Sequence[BaseMessage]) -> list[str]:
    return [message.model_dump_json() for message in messages]


def _case(
    name: str, *kinds: str, want: str, missing: str = "", orphans: str = "", moved: str = ""
) -> Any:
    """A row of the table: kinds of the log, wanted message ids ("+m1/0" is a result made for call 0 of m1)."""
    wanted = [
        (f"{word[1:-2]}:missing-result-{word[-1]}", None)
        if word[0] == "+"
        else (word, int(word[1:]))
        for word in want.split()
    ]
    reports = (tuple(missing.split()), tuple(orphans.split()), tuple(moved.split()))
    return pytest.param(list(kinds), wanted, reports, id=name)


@pytest.mark.parametrize(
    ("kinds", "wanted", "reports"),
    [
        _case("empty", want=""),
        _case("no calls", "system", "human", "ai", want="m0 m1 m2"),
        _case("one call", "human", "ai x", "tool x", "ai", want="m0 m1 m2 m3"),
        _case("parallel in order", "ai x y", "tool x", "tool y", want="m0 m1 m2"),
        _case(
            "parallel in odd order",
            "ai x y z",
            "tool z",
            "tool x",
            "tool y",
            want="m0 m2 m3 m1",
            moved="m2 m3",
        ),
        _case(
            "parallel, one missing", "ai x y", "tool y", "human", want="m0 +m0/0 m1 m2", missing="x"
        ),
        _case("missing at the end", "human", "ai x", want="m0 m1 +m1/0", missing="x"),
        _case("missing before a human", "ai x", "human", "ai", want="m0 +m0/0 m1 m2", missing="x"),
        _case("late", "ai x", "human", "ai", "tool x", want="m0 m3 m1 m2", moved="m3"),
        _case("interleaved", "ai x y", "tool x", "human", "tool y", want="m0 m1 m3 m2", moved="m3"),
        _case("two in flight", "ai x", "ai y", "tool y", "tool x", want="m0 m3 m1 m2", moved="m3"),
        _case(
            "two in flight, old first",
            "ai x",
            "ai y",
            "tool x",
            "tool y",
            want="m0 m2 m1 m3",
            moved="m2",
        ),
        _case("orphan", "human", "tool x", "ai", want="m0 m2", orphans="m1"),
        _case(
            "orphan between results",
            "ai x y",
            "tool x",
            "tool z",
            "tool y",
            want="m0 m1 m3",
            orphans="m2",
        ),
        _case(
            "result before its call", "tool x", "ai x", want="m1 +m1/0", missing="x", orphans="m0"
        ),
        _case("duplicate", "ai x", "tool x", "tool x", "ai", want="m0 m1 m3", orphans="m2"),
        _case("late duplicate", "ai x", "tool x", "human", "tool x", want="m0 m1 m2", orphans="m3"),
        _case("id again", "ai x", "tool x", "human", "ai x", "tool x", want="m0 m1 m2 m3 m4"),
        _case("id again, last wins", "ai x", "ai x", "tool x", want="m0 +m0/0 m1 m2", missing="x"),
        _case(
            "id again, then late",
            "ai x",
            "ai x",
            "tool x",
            "tool x",
            want="m0 m3 m1 m2",
            moved="m3",
        ),
        _case("id twice in a message", "ai x x", "tool x", "tool x", want="m0 m1 m2"),
        _case(
            "id twice, one missing",
            "ai x y x",
            "tool x",
            "tool y",
            want="m0 m1 m2 +m0/2",
            missing="x",
        ),
        _case("all missing, id twice", "ai x x", want="m0 +m0/0 +m0/1", missing="x x"),
        _case("invalid call", "invalid x", "human", "tool x", want="m0 m2 m1", moved="m2"),
        _case(
            "call in the content only",
            "block x",
            "tool x",
            "block y",
            want="m0 m1 m2 +m2/0",
            missing="y",
        ),
        _case(
            "function message",
            "ai x",
            "function",
            "tool x",
            "function",
            want="m0 m2 m1 m3",
            moved="m2",
        ),
    ],
)
def test_small_lists(kinds: Any, wanted: Any, reports: Any) -> None:
    """Each kind of damage is mended as the rule says, and reported under its name."""
    log = _log(*kinds)
    paired = pair(log)
    assert list(zip(_ids(paired.messages), paired.indexes, strict=True)) == wanted
    assert (paired.missing, paired.orphans, paired.moved) == reports
    assert check_pairing(paired.messages) == []


def test_messages_without_ids_are_named_by_their_call() -> None:
    """A message that has no id of its own is reported under its tool call id, and lends no id to a made result."""
    calls = [{"name": "t", "args": {}, "id": "x"}, {"name": "t", "args": {}, "id": "y"}]
    late = ToolMessage("late", tool_call_id="x")
    paired = pair(
        [
            AIMessage("", tool_calls=calls),
            HumanMessage("?"),
            late,
            ToolMessage("stray", tool_call_id="z"),
        ]
    )
    assert (paired.moved, paired.orphans, paired.missing) == (("x",), ("z",), ("y",))
    assert paired.messages[1] is late
    assert paired.messages[2].id is None


# ---------------------------------------------------------------------------------------------------------------------
# Which calls a message has


@pytest.mark.parametrize(
    ("message", "calls"),
    [
        pytest.param(
            HumanMessage([{"type": "tool_use", "id": "x", "name": "t"}]), [], id="only AI messages"
        ),
        pytest.param(AIMessage("text"), [], id="text"),
        pytest.param(
            AIMessage(
                "",
                invalid_tool_calls=[{"name": "b", "args": "{", "id": "y", "error": None}],
                tool_calls=[{"name": "a", "args": {}, "id": "x"}],
            ),
            [Call("x", "a", 0), Call("y", "b", 1, is_malformed=True)],
            id="invalid calls come after valid ones",
        ),
        pytest.param(
            AIMessage(
                "",
                tool_calls=[
                    {"name": "a", "args": {}, "id": None},
                    {"name": "b", "args": {}, "id": ""},
                ],
            ),
            [Call("", "a", 0), Call("", "b", 1)],
            id="a call without an id is a call",
        ),
        pytest.param(
            AIMessage(
                "",
                invalid_tool_calls=[
                    {"name": "a", "args": "{", "id": None, "error": None},
                    {"name": None, "args": "{", "id": "x", "error": None},
                    {"name": "b", "args": "{", "id": "y", "error": None},
                ],
            ),
            [Call("y", "b", 0, is_malformed=True)],
            id="an invalid call without id or name is sent to nobody",
        ),
        pytest.param(
            AIMessage(
                [
                    "text",
                    {"type": "text", "text": "Looking."},
                    {"type": "tool_use", "id": "x", "name": "a", "input": {}},
                    {"type": "tool_use", "id": "y", "name": "b", "input": {}},
                    {"type": "tool_use", "id": "y", "name": "b", "input": {}},
                    {"type": "tool_use", "id": None, "name": "c", "input": {}},
                    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                    {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                    {"type": "tool_use", "id": 7, "name": "odd", "input": {}},
                    {"type": ["tool_use"], "id": "odd", "name": "odd"},
                ],
                tool_calls=[{"name": "a", "args": {}, "id": "x"}],
            ),
            [Call("x", "a", 0), Call("y", "b", 1)],
            id="a block that no listed call names is a call, one run by the server is not",
        ),
        pytest.param(
            AIMessage(
                [
                    {
                        "type": "function_call",
                        "id": "fc_1",
                        "call_id": "x",
                        "name": "a",
                        "arguments": "{}",
                    },
                    {
                        "type": "computer_call",
                        "id": "cu_1",
                        "call_id": "y",
                        "action": {"type": "screenshot"},
                    },
                    {"type": "non_standard", "value": {"type": "computer_call", "call_id": "z"}},
                    {"type": "tool_call", "id": "v", "name": "b", "args": {}},
                    {"type": "web_search_call", "id": "ws_1"},
                ],
                tool_calls=[{"name": "a", "args": {}, "id": "x"}],
            ),
            [Call("x", "a", 0), Call("y", "", 1), Call("z", "", 2), Call("v", "b", 3)],
            id="blocks of OpenAI Responses and of LangChain's standard content",
        ),
        pytest.param(
            AIMessageChunk(
                content="", tool_call_chunks=[{"name": "a", "args": "{}", "id": "x", "index": 0}]
            ),
            [Call("x", "a", 0)],
            id="a chunk is an AI message",
        ),
    ],
)
def test_calls_of(message: Any, calls: Any) -> None:
    """The calls are those that a provider would be sent, in the order of their results."""
    assert calls_of(message) == calls


def test_missing_result_says_so_and_is_deterministic() -> None:
    """A made result is an error, says that it is not in the log, and is the same bytes each time."""
    made = missing_result(Call("x", "search", 2), ai_message_id="m1")
    assert made.status == "error"
    assert made.name == "search"
    assert made.tool_call_id == "x"
    assert made.content == "No result was recorded for this call."
    assert made.additional_kwargs == {"convstore": {"kind": "missing_result"}}
    assert (
        made.model_dump_json()
        == missing_result(Call("x", "search", 2), ai_message_id="m1").model_dump_json()
    )
    assert missing_result(Call("x", "", 0), ai_message_id="m1").name is None


def test_made_results_have_ids_of_their_own() -> None:
    """No two results made in one list share an id, although their calls do."""
    made = [m for m in pair(_log("ai x x", "human", "ai x")).messages if isinstance(m, ToolMessage)]
    assert len({message.id for message in made}) == 3


# ---------------------------------------------------------------------------------------------------------------------
# Any list at all

_call_ids = st.lists(st.sampled_from("xyz"), max_size=3)
_kinds = st.one_of(
    st.sampled_from(["human", "system", "function"]),
    st.builds(
        lambda kind, ids: " ".join([kind, *ids]),
        st.sampled_from(["ai", "ai", "invalid", "block"]),
        _call_ids,
    ),
    st.sampled_from(["tool x", "tool y", "tool z", "tool nobody"]),
    # Twice, so that answered calls, and with them duplicates and repeated ids, are common.
    st.sampled_from(["tool x", "tool y", "tool z"]),
)
logs = st.lists(_kinds, max_size=24).map(lambda kinds: _log(*kinds))
many = examples(400)


def _by_search(messages: list[BaseMessage]) -> list[int | tuple[int, int]]:
    """The rule, word for word and slowly: for each result search back for a message with an open call of its id.

    Returns the order as indexes of the log, or (index of the AI message, position of the call) for a made result.
    """
    answers: dict[tuple[int, int], int] = {}
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            for before in range(index - 1, -1, -1):
                calls = calls_of(messages[before])
                free = [
                    c
                    for c in calls
                    if c.id == message.tool_call_id and (before, c.position) not in answers
                ]
                if free:
                    answers[before, free[0].position] = index
                    break
    order: list[int | tuple[int, int]] = []
    for index, message in enumerate(messages):
        if not isinstance(message, ToolMessage):
            order.append(index)
            order.extend(
                answers.get((index, c.position), (index, c.position)) for c in calls_of(message)
            )
    return order


@many
@given(logs)
def test_any_list_becomes_valid(log: Any) -> None:
    """In the output of any list each call is answered once, in order, and there is no other result."""
    assert check_pairing(pair(log).messages) == []


@many
@given(logs)
def test_pairs_as_the_rule_says(log: Any) -> None:
    """A result goes to the latest AI message before it with an open call of its id: the same as by slow search."""
    paired = pair(log)
    order = _by_search(log)
    assert [entry if isinstance(entry, int) else None for entry in order] == list(paired.indexes)
    made = [
        f"m{entry[0]}:missing-result-{entry[1]}" for entry in order if not isinstance(entry, int)
    ]
    assert [
        m.id for m, index in zip(paired.messages, paired.indexes, strict=True) if index is None
    ] == made


@many
@given(logs)
def test_every_message_is_kept_or_named(log: Any) -> None:
    """Each message that came in comes out once, as the same object, or is named among the orphans."""
    paired = pair(log)
    kept = [index for index in paired.indexes if index is not None]
    assert len(set(kept)) == len(kept)
    assert paired.orphans == tuple(
        log[index].id for index in range(len(log)) if index not in set(kept)
    )
    for message, index in zip(paired.messages, paired.indexes, strict=True):
        if index is not None:
            assert message is log[index]


@many
@given(logs, logs)
def test_paired_lists_are_recognised_and_may_be_joined(log: Any, later: Any) -> None:
    """Pairing leaves them as they are, also in a row; a message whose calls share an id is looked up slowly."""
    paired = pair(log).messages
    calls = [[call.id for call in calls_of(message)] for message in paired]
    assert is_paired(paired) == all(len(set(ids)) == len(ids) for ids in calls)
    if is_paired(log) and is_paired(later):
        assert all(
            message is two
            for message, two in zip(pair([*log, *later]).messages, [*log, *later], strict=True)
        )


@many
@given(logs)
def test_made_results_are_named(log: Any) -> None:
    """`missing` holds the call ids of the made results, in order, and all of these are marked."""
    paired = pair(log)
    made = [m for m, index in zip(paired.messages, paired.indexes, strict=True) if index is None]
    assert tuple(m.tool_call_id for m in made if isinstance(m, ToolMessage)) == paired.missing
    assert all(m.additional_kwargs == {"convstore": {"kind": "missing_result"}} for m in made)


@many
@given(logs)
def test_nothing_but_results_is_reordered(log: Any) -> None:
    """All other messages stand in their old order, and a result that was not moved has passed nothing."""
    paired = pair(log)
    assert [m for m in paired.messages if not isinstance(m, ToolMessage)] == [
        m for m in log if not isinstance(m, ToolMessage)
    ]
    left = [i for i in paired.indexes if i is not None and log[i].id not in paired.moved]
    assert left == sorted(left)


@many
@given(logs)
def test_moved_results_passed_something(log: Any) -> None:
    """A result is reported as moved only if it now precedes a message that had come before it."""
    paired = pair(log)
    order = [index for index in paired.indexes if index is not None]
    passed = tuple(log[index].id for place, index in enumerate(order) if index > min(order[place:]))
    assert paired.moved == passed


@many
@given(logs)
def test_pairing_again_changes_nothing(log: Any) -> None:
    """A paired list is its own pairing and has nothing to report."""
    first = pair(log)
    again = pair(first.messages)
    assert all(message is two for message, two in zip(again.messages, first.messages, strict=True))
    assert (again.missing, again.orphans, again.moved) == ((), (), ())


@many
@given(logs)
def test_the_input_is_not_changed(log: Any) -> None:
    """The caller's list and messages are as they were."""
    before, dumps = list(log), _dumps(log)
    copies = copy.deepcopy(log)
    paired = pair(log)
    assert paired.messages is not log
    assert all(item is two for item, two in zip(log, before, strict=True))
    assert _dumps(log) == dumps
    assert _dumps(pair(copies).messages) == _dumps(paired.messages)


@many
@given(logs, st.data())
def test_a_paired_prefix_stays(log: Any, data: Any) -> None:
    """Up to the first result made for a missing one, the pairing of a prefix begins the pairing of the whole log."""
    prefix = pair(log[: data.draw(st.integers(0, len(log)))])
    sure = prefix.indexes.index(None) if None in prefix.indexes else len(prefix.indexes)
    whole = pair(log)
    assert whole.indexes[:sure] == prefix.indexes[:sure]
    assert _dumps(whole.messages[:sure]) == _dumps(prefix.messages[:sure])


@many
@given(logs, st.data())
def test_only_a_late_answer_changes_a_paired_prefix(log: Any, data: Any) -> None:
    """The pairing of a prefix begins the pairing of the whole log exactly if none of its made results was replaced."""
    prefix = pair(log[: data.draw(st.integers(0, len(log)))])
    whole = pair(log)
    made = {m.id for m, index in zip(prefix.messages, prefix.indexes, strict=True) if index is None}
    begins = _dumps(whole.messages[: len(prefix.messages)]) == _dumps(prefix.messages)
    assert begins == (made <= set(_ids(whole.messages)))


# ---------------------------------------------------------------------------------------------------------------------
# The checker

VALID = ("human", "ai x y", "tool x", "tool y", "ai x", "tool x", "ai")


def test_the_checker_accepts_a_valid_list() -> None:
    """Parallel calls and a repeated id are no violation."""
    assert check_pairing(_log(*VALID)) == []
    assert check_pairing([]) == []


@pytest.mark.parametrize(
    ("kinds", "problems"),
    [
        pytest.param(
            ["ai x", "human"],
            ["message 0: the call 'x' has no result directly after it"],
            id="missing",
        ),
        pytest.param(
            ["ai x"],
            ["message 0: the call 'x' has no result directly after it"],
            id="missing at the end",
        ),
        pytest.param(
            ["tool x", "human"],
            ["message 0: the result for 'x' answers no call of the AI message directly before it"],
            id="result at the start",
        ),
        pytest.param(
            ["ai", "human", "tool x"],
            ["message 2: the result for 'x' answers no call of the AI message directly before it"],
            id="result behind a human message",
        ),
        pytest.param(
            ["ai x", "tool x", "tool x"],
            ["message 2: the result for 'x' answers no call of the AI message directly before it"],
            id="duplicate",
        ),
        pytest.param(
            ["ai x", "human", "tool x"],
            [
                "message 0: the call 'x' has no result directly after it",
                "message 2: the result for 'x' answers no call of the AI message directly before it",
            ],
            id="late",
        ),
        pytest.param(
            ["ai x", "tool y"],
            [
                "message 1: the result for 'y' answers no call of the AI message directly before it",
                "message 0: the call 'x' has no result directly after it",
            ],
            id="another id",
        ),
        pytest.param(
            ["human", "ai x y", "tool y", "tool x"],
            ["message 1: its results have the order ['y', 'x'], its calls the order ['x', 'y']"],
            id="order of the calls",
        ),
        pytest.param(
            ["ai x x", "tool x"],
            ["message 0: the call 'x' has no result directly after it"],
            id="id twice, one result",
        ),
        pytest.param(
            ["invalid x"],
            ["message 0: the call 'x' has no result directly after it"],
            id="invalid call",
        ),
        pytest.param(
            ["block x"],
            ["message 0: the call 'x' has no result directly after it"],
            id="call in a block",
        ),
        pytest.param(
            ["ai x", "function", "human"],
            ["message 0: the call 'x' has no result directly after it"],
            id="a function message is no result",
        ),
    ],
)
def test_the_checker_finds_each_violation(kinds: list[str], problems: list[str]) -> None:
    """Each way to break the rule gives a sentence with the place and the call."""
    assert check_pairing(_log(*kinds)) == problems


@pytest.mark.parametrize("index", range(len(VALID)))
def test_the_checker_finds_a_mutation_of_a_valid_list(index: Any) -> None:
    """Taking out, doubling or moving a result, and putting anything between call and result, is found."""
    log = _log(*VALID)
    stranger = _message("m99 human")
    result = _message("m98 tool x")
    in_group = isinstance(log[index], ToolMessage)
    if in_group:
        assert check_pairing([*log[:index], *log[index + 1 :]])
        assert check_pairing([*log[:index], *log[index + 1 :], log[index]])
        assert check_pairing([*log[:index], log[index], *log[index:]])
        assert check_pairing([*log[:index], stranger, *log[index:]])
    assert check_pairing([*log[:index], result, *log[index:]])


@pytest.mark.slow
@many
@given(logs)
@example(_log("ai x y", "tool y", "tool x"))
@example(_log(*VALID))
def test_the_checker_is_content_exactly_if_nothing_needs_a_change(log: Any) -> None:
    """`check_pairing` finds nothing exactly if `pair` hands the same messages back in the same order."""
    paired = pair(log)
    unchanged = paired.indexes == tuple(range(len(log)))
    assert (check_pairing(log) == []) == unchanged
    assert unchanged == (not (paired.missing or paired.orphans or paired.moved))


# ---------------------------------------------------------------------------------------------------------------------
# Real conversations


def _real(raw: dict[str, Any], message_id: str) -> BaseMessage:
    content = raw["content"] or ""
    if raw["role"] == "tool":
        return ToolMessage(
            content,
            id=message_id,
            tool_call_id=raw["tool_call_id"],
            status=raw.get("status", "success"),
        )
    if raw["role"] != "assistant":
        return {"user": HumanMessage, "system": SystemMessage}[raw["role"]](content, id=message_id)
    calls, invalid = [], []
    for call in raw.get("tool_calls", []):
        function = call["function"]
        args = json.loads(function["arguments"])
        if isinstance(args, dict):
            calls.append({"name": function["name"], "args": args, "id": call["id"]})
        else:
            arguments = function["arguments"]
            invalid.append(
                {
                    "name": function["name"],
                    "args": arguments,
                    "id": call["id"],
                    "error": "not an object",
                }
            )
    return AIMessage(content, id=message_id, tool_calls=calls, invalid_tool_calls=invalid)


def _real_conversations() -> Iterator[tuple[dict[str, Any], list[BaseMessage]]]:
    for path in sorted(REAL_DATA.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                messages = [_real(raw, f"m{index}") for index, raw in enumerate(record["messages"])]
                yield {"place": f"{path.name}: {record['id']}", **record}, messages


def _unanswered(raw: list[dict[str, Any]]) -> list[str]:
    """Calls without a result, counted on the raw dicts: real results come before the next AI message."""
    open_calls: list[str] = []
    for message in raw:
        if message["role"] == "tool" and message["tool_call_id"] in open_calls:
            open_calls.remove(message["tool_call_id"])
        open_calls.extend(call["id"] for call in message.get("tool_calls", []))
    return open_calls


@pytest.mark.slow
@pytest.mark.skipif(
    not any(REAL_DATA.glob("*.jsonl.gz")),
    reason="the real conversations are not next to the checkout",
)
def test_real_conversations() -> None:
    """Real logs, repeated call ids and all, become valid; only unanswered calls get anything, nothing is lost."""
    seen = 0
    for record, log in _real_conversations():
        paired = pair(log)
        assert check_pairing(paired.messages) == [], record["place"]
        assert list(paired.missing) == _unanswered(record["messages"]), record["place"]
        assert (paired.orphans, paired.moved) == ((), ()), record["place"]
        assert [index for index in paired.indexes if index is not None] == list(range(len(log))), (
            record["place"]
        )
        seen += 1
    assert seen


def test_a_result_without_its_call_becomes_text_with_its_blocks() -> None:
    """Behind the run of results it came in, under its id, with a mark; an image in it stays an image."""
    picture = {"type": "image", "base64": "AAAA", "mime_type": "image/png"}
    call = AIMessage("", id="a", tool_calls=[{"name": "run", "args": {}, "id": "x"}])
    late, answer = (
        ToolMessage([picture], id="l", tool_call_id="y"),
        ToolMessage("ok", id="t", tool_call_id="x"),
    )
    paired = without_orphans([call, late, answer])
    assert paired[:2] == [call, answer]
    assert paired[2].content == [
        {"type": "text", "text": "[Result of an earlier call of a tool]"},
        picture,
    ]
    assert (paired[2].type, paired[2].id, paired[2].additional_kwargs) == (
        "human",
        "l",
        {"convstore": {"kind": "late_result"}},
    )
    assert without_orphans(paired) == paired


@many
@given(logs, st.integers(0, 24))
def test_a_result_shown_as_text_keeps_its_position(log: Any, length: Any) -> None:
    """No message is lost, none comes twice; whatever is appended, the view before the first open call stays."""
    paired, earlier = pair(without_orphans(log)), pair(without_orphans(log[:length]))
    assert check_pairing(paired.messages) == []
    assert paired.orphans == ()
    kept = [
        message.id
        for message, index in zip(paired.messages, paired.indexes, strict=True)
        if index is not None
    ]
    assert sorted(map(str, kept)) == sorted(str(message.id) for message in log)
    until = [*earlier.indexes, None].index(None)
    assert paired.messages[:until] == earlier.messages[:until]


def _result_of(ai_message_id: str, position: int = 0) -> ToolMessage:
    made = result_id(ai_message_id, "x", position)
    return ToolMessage(f"result of {ai_message_id} {position}", tool_call_id="x", id=made)


def test_a_result_with_the_id_made_for_it_answers_its_own_call() -> None:
    """Two runs name their calls alike: neither gets the result of the other, whichever comes first, then or later."""
    log = [
        _message("m1 ai x"),
        _message("m2 ai x"),
        _result_of("m1"),
        _message("m3 human"),
        _result_of("m2"),
    ]
    for length in range(3, len(log) + 1):
        paired = pair(log[:length])
        assert paired.messages[:2] == [log[0], log[2]]
        assert paired.orphans == ()
    assert paired.messages == [log[0], log[2], log[1], log[4], log[3]]


def test_a_result_answers_the_call_that_is_stored_with_it() -> None:
    """Its own id says nothing, and another run has called the same since."""
    log = [_message("m1 ai x"), _message("m2 ai x"), _message("m3 tool x"), _message("m4 tool x")]
    answers = {"m3": result_id("m1", "x"), "m4": result_id("m2", "x")}
    assert pair(log, answers).messages == [log[0], log[2], log[1], log[3]]


def test_results_of_two_calls_with_one_id_in_one_message_keep_their_order() -> None:
    """The second tool was quicker."""
    log = [_message("m1 ai x x"), _result_of("m1", 1), _result_of("m1", 0)]
    assert pair(log).messages == [log[0], log[2], log[1]]


def test_a_result_is_given_no_call_of_another_id_and_none_twice() -> None:
    """An id made for a call is no more than that: the call id has to be the call's, and the first answer wins."""
    log = [
        _message("m1 ai x"),
        _message("m2 ai x"),
        _result_of("m1"),
        _result_of("m1"),
        _result_of("m1"),
    ]
    paired = pair(log)
    assert [message.id for message in paired.messages] == ["m1", log[2].id, "m2", log[3].id]
    assert paired.orphans == (log[4].id,)
    stray = _result_of("m1").model_copy(update={"tool_call_id": "y"})
    assert pair([log[0], log[1], stray]).orphans == (stray.id,)
