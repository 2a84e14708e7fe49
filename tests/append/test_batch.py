"""Work of an append before the first command: totals, numbers, stubs, pieces of payload."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from properties import examples
from strategies import NOW, PureLog, Round, log_of, messages, same, turn, turns

from convstore.append.batch import prepare_batch
from convstore.append.compose import compose_entry
from convstore.log.entry import Entry, EntryMessage, OpenCall, Totals
from convstore.log.facts.event import EVENT, TurnEvent
from convstore.log.turns import turns_before
from convstore.messages.compression import Chunk, decompress
from convstore.messages.encoding import decode_message, digest_of, fields_of
from convstore.messages.tokens import NamedCounter, approximate_tokens, count, named_counter
from convstore.messages.tool_calls import calls_of
from convstore.messages.values import Codec, Omitted
from convstore.runtime.threads import characters_in
from convstore.sources.detection import find_sources
from convstore.sources.places import read_item, read_text
from convstore.sources.shortening import leave_out, with_stub, without_media
from convstore.sources.stub import RETRIEVAL_TOOL
from convstore.values.append_options import AppendOptions, Columns
from convstore.values.stamps import ViewStamp

CODEC = Codec()


def _prepare(*batch: BaseMessage, **how: Any) -> Any:
    return prepare_batch(
        batch,
        **({"codec": CODEC, "counter": named_counter(approximate_tokens), "token": "t"} | how),
    )


class _Composed(NamedTuple):
    """An entry, and the chunks that it refers to."""

    entry: Entry
    chunks: list[Chunk]


def _compose(batch: Any, after: Totals | None = None, **how: Any) -> _Composed:
    return _Composed(compose_entry(batch, after or Totals(), **({"at": NOW} | how)), batch.chunks)


def _payload(message: EntryMessage, composed: _Composed) -> str:
    """The payload as it is read back: the chunks that the reference names."""
    if message.payload is None:
        return ""
    ref = message.payload
    chunks = {chunk.number: chunk.data for chunk in composed.chunks}
    pieces = [decompress(chunks[ref.chunk + index]) for index in range(len(ref.ends))]
    assert [sum(map(len, pieces[: index + 1])) for index in range(len(pieces))] == list(ref.ends)
    assert ref.size == sum(len(chunks[ref.chunk + index]) for index in range(len(ref.ends)))
    assert ref.digest == digest_of("".join(pieces)[: ref.own])
    return "".join(pieces)


def _whole(message: EntryMessage, composed: _Composed) -> BaseMessage:
    payload = _payload(message, composed)
    return decode_message(CODEC, message.body, fetch=lambda start, end: payload[start:end])


_some_messages = st.lists(
    messages
    | turns.flatmap(
        lambda script: st.sampled_from(turn(1, script[0], asked=script[1], said=script[2]))
    )
    | st.builds(
        lambda part, kind: kind([{"type": "data", "part": part}]),
        st.integers(1_000, 40_000).map("x".__mul__),
        st.sampled_from([HumanMessage, AIMessage]),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@given(_some_messages)
@examples(60)
def test_what_is_composed_is_what_was_appended(appended: Any) -> None:
    """From body and chunks alone each message comes back equal; ordinals are dense; the digest is the content's."""
    for index, message in enumerate(appended):
        message.id = f"m{index}"
    composed = _compose(_prepare(*appended), Totals(entries=3, messages=7))
    assert [message.ordinal for message in composed.entry.messages] == list(
        range(8, 8 + len(appended))
    )
    assert (composed.entry.number, composed.entry.first, composed.entry.last) == (
        4,
        8,
        7 + len(appended),
    )
    for message, original in zip(composed.entry.messages, appended, strict=True):
        restored = _whole(message, composed)
        assert type(restored) is type(original)
        assert same(restored, original)
        assert message.identity == _prepare(restored).prepared[0].stored.identity
        assert (message.id, message.type) == (original.id, original.type)


def _entry_with_stamps(composed: _Composed) -> tuple[Entry, list[str]]:
    """The entry, and the stamps of its messages, which messages are not compared by."""
    return composed.entry, [message.stamp for message in composed.entry.messages]


def test_the_end_of_an_earlier_turn_does_not_end_the_newest_one() -> None:
    """Its entry is found by the earlier turn, which it is about."""
    after = Totals(entries=2, messages=4, turn=3)
    for question, over, earlier in ((1, "", {1}), (3, "finished", set[int]())):
        batch = _prepare(facts=EVENT.put(TurnEvent("finish", "q")))
        entry = _compose(batch, after, questions={"q": question}).entry
        assert (entry.totals.over, turns_before(entry)) == (over, earlier)


@pytest.mark.parametrize("characters", [8_000, 30_000])
def test_a_message_has_one_identity_in_any_batch(characters: int) -> None:
    """In a large batch more of it is outside the entry, and its body keeps no beginning of what is there."""
    batch = [HumanMessage(f"{index} " + "x" * characters, id=f"m{index}") for index in range(150)]
    together = _prepare(*batch).prepared
    for index in (0, 149):
        [alone] = _prepare(batch[index]).prepared
        assert together[index].stored.identity == alone.stored.identity
    assert together[149].stored.body != alone.stored.body


@pytest.mark.parametrize("had_calls", [True, False])
def test_what_was_composed_before_is_composed_as_if_for_the_first_time(had_calls: bool) -> None:
    """After a collision, or for another log, no field stays as it was: ordinals, numbers, stubs, sizes and stamps."""
    page = "[11] Seals (https://a), characters 0-12 of 12\n" + "Seals sleep. " * 40 + "\nEnd."
    read = ToolMessage(page, tool_call_id="read")
    given_number = {"source_id": 7, "content": "Whales sing."}
    found = ToolMessage(json.dumps([given_number, {"content": "Orcas."}]), tool_call_id="find")
    said = [AIMessage("So."), AIMessage("And so.")]
    whole: list[BaseMessage] = [read, found, *said, HumanMessage("Why?"), AIMessage("Because.")]
    for index, message in enumerate(whole):
        message.id = f"m{index}"
    columns = {str(said[-1].id): Columns("", unseen=1)}
    stamp = ViewStamp(conversation_id="c", entry=2, ordinal=3, digest="d", messages=3)
    batch = _prepare(*whole, options=AppendOptions(stamp=stamp, columns=columns))
    calls = (
        OpenCall("read", RETRIEVAL_TOOL, "{}", "r1", turn=1),
        OpenCall("find", "search", "{}", "r2", turn=1),
    )
    before = Totals(
        entries=3,
        messages=7,
        turn=1,
        sources_through=3_000,
        given_through=3_000,
        calls=calls if had_calls else (),
        shown={source.digest: 1 for source in batch.prepared[1].sources},
    )
    first = _compose(batch, before, taken=frozenset({7}) if had_calls else frozenset())
    stamps = [bool(message.stamp) for message in first.entry.messages]
    assert stamps == [message is said[0] for message in whole]
    plain = AppendOptions(columns=columns)
    after = Totals(entries=9, messages=20, calls=() if had_calls else calls, turn=1)
    again = _compose(replace(batch, options=plain), after)
    assert _entry_with_stamps(again) == _entry_with_stamps(
        _compose(_prepare(*whole, options=plain), after)
    )


@given(_some_messages)
@examples(60)
def test_view_tokens_are_what_the_view_shows(appended: Any) -> None:
    """`tokens` counts the message in full, `view_tokens` what the default view shows of it, to the token."""

    def characters(shown: Any) -> int:
        return sum(len(CODEC.encode(message.__dict__)) for message in shown)

    counter = NamedCounter("characters", characters)
    for index, message in enumerate(appended):
        message.id = f"m{index}"
    composed = _compose(_prepare(*appended, counter=counter))
    for message, original in zip(composed.entry.messages, appended, strict=True):
        if message.stub is None and message.payload and message.payload.shown:
            payload = _payload(message, composed)[: message.payload.shown]
            shown = decode_message(
                CODEC,
                message.body,
                fetch=lambda start, end: payload[start:end],  # noqa: B023
                limit=len(payload),
            )
        else:
            shown = decode_message(CODEC, message.body)
        shown = leave_out(shown)
        shown = without_media(shown) if message.stub is None else with_stub(shown, message.stub)
        assert message.tokens == counter([original])
        assert message.view_tokens == (
            counter([shown]) if message.payload or message.stub else message.tokens
        )


@given(st.lists(turns, max_size=5), st.lists(st.integers(1, 7), min_size=1, max_size=5))
@examples(60)
def test_totals_are_sums_over_the_log(script: Any, lengths: Any) -> None:
    """After any batches the totals are what a count over all messages gives, and independent of how they were cut."""
    log = log_of(script, batch=lengths)
    stored = [message for entry in log.entries for message in entry.messages]
    totals = log.totals
    assert totals.messages == len(stored)
    assert totals.entries == len(log.entries)
    assert totals.turns == len(script) == sum(message.type == "human" for message in stored)
    assert totals.tokens == sum(message.tokens for message in stored)
    assert totals.view_tokens == sum(message.view_tokens for message in stored)
    assert totals.sources_through == sum(len(entry.sources) for entry in log.entries)
    assert [source.id for entry in log.entries for source in entry.sources] == list(
        range(1, totals.sources_through + 1)
    )
    assert totals.calls == ()
    whole = log_of(script, batch=1_000).totals
    assert (whole.tokens, whole.view_tokens, whole.sources_through) == (
        totals.tokens,
        totals.view_tokens,
        totals.sources_through,
    )


@each_case("end", range(1, 6))
def test_open_calls_are_those_without_a_result(end: Any) -> None:
    """The totals name the calls that wait for a result, whatever was answered meanwhile."""
    made = turn(1, [Round((10, 10), sources=False), Round((10,), sources=False)])[: end + 1]
    log = PureLog()
    for message in made:
        log.append([message])
    answered = {message.tool_call_id for message in made if isinstance(message, ToolMessage)}
    called = [(call.id, call.tool) for message in made for call in calls_of(message)]
    assert sorted(call[:2] for call in log.totals.calls) == [
        call for call in called if call[0] not in answered
    ]


def test_open_calls_do_not_pile_up() -> None:
    """Calls that nobody ever answers are forgotten but for the last ones, so that entries stay small."""
    log = PureLog()
    for number in range(300):
        calls = [{"name": "t", "args": {}, "id": f"c{number}-{index}"} for index in range(5)]
        log.append(
            [HumanMessage("?", id=f"h{number}"), AIMessage("", id=f"a{number}", tool_calls=calls)]
        )
    assert len(log.totals.calls) == 25
    assert log.totals.calls[-1][0].startswith("c299-")
    many = [{"name": "t", "args": {}, "id": f"m{index}"} for index in range(300)]
    log.append([AIMessage("", id="many", tool_calls=many)])
    assert len(log.totals.calls) == 200


@given(turns)
@examples(30)
def test_composing_again_changes_numbers_only(script: Any) -> None:
    """After a collision the same batch after other totals differs in ordinals and source ids, in nothing else."""
    batch = _prepare(*turn(1, script[0]))
    first = deepcopy(_compose(batch))
    assert first == _compose(batch)
    later = _compose(batch, Totals(entries=5, messages=50, sources_through=20))
    assert [message.body for message in later.entry.messages] == [
        message.body for message in first.entry.messages
    ]
    assert later.chunks == first.chunks
    assert [source.id - 20 for source in later.entry.sources] == [
        source.id for source in first.entry.sources
    ]
    assert [message.ordinal - 50 for message in later.entry.messages] == [
        m.ordinal for m in first.entry.messages
    ]


def test_without_leaves_only_new_messages() -> None:
    """A batch that is in the log in part is written without that part; chunks keep their numbers."""
    made = [HumanMessage("x" * 20_000, id=f"h{number}") for number in range(3)]
    batch = _prepare(*made)
    rest = batch.without({"h1": 7})
    assert (batch.ids, rest.ids) == (["h0", "h1", "h2"], ["h0", "h2"])
    composed = _compose(rest)
    assert [chunk.number for chunk in composed.chunks] == [0, 2]
    assert [
        same(_whole(m, composed), o)
        for m, o in zip(composed.entry.messages, made[::2], strict=True)
    ] == [True] * 2
    assert _compose(batch.without(dict.fromkeys(batch.ids, 1))).entry.messages == ()


@given(
    st.lists(
        st.tuples(
            st.text(max_size=900), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
        ),
        min_size=1,
    ),
)
def test_each_source_can_be_read_from_its_place(artifact: Any) -> None:
    """The place of a source gives its text, whether the payload or the entry holds it."""
    message = ToolMessage("x" * 600, id="m", tool_call_id="c", name="t", artifact=artifact)
    composed = _compose(_prepare(message))
    payload = _payload(composed.entry.messages[0], composed)
    texts = [
        read_text(source.place, source.piece or payload)
        for source in composed.entry.sources
        if source.place.length
    ]
    assert texts == [source.text for source in find_sources(message, None).items if source.text]
    assert [source.id for source in composed.entry.sources] == list(range(1, len(artifact) + 1))


def test_sources_follow_the_content() -> None:
    """A result in JSON is stored as it was written, and the sources in it follow, each with its text as it is."""
    hits = [{"title": f"T {n}", "text": f"Übung {n}\n" * 90, "score": 2**70 + n} for n in range(3)]
    content = " " + json.dumps({"query": "q", "data": {"results": hits}}) + "\n"
    composed = _compose(_prepare(ToolMessage(content, id="m", tool_call_id="c", name="t")))
    payload = _payload(composed.entry.messages[0], composed)
    ref = composed.entry.messages[0].payload
    assert ref is not None
    assert payload[: ref.own] == content
    assert all(source.place.start >= ref.own for source in composed.entry.sources)
    assert [read_text(source.place, payload) for source in composed.entry.sources] == [
        hit["text"] for hit in hits
    ]
    found = [
        read_item(CODEC, payload[source.place.middle : source.place.end])
        for source in composed.entry.sources
    ]
    assert [source.label()[2] for source in found if source] == [
        {"score": hit["score"]} for hit in hits
    ]


def test_an_extractor_does_not_change_what_a_message_is_known_by() -> None:
    """A message that is appended again after an extractor was registered is the same message."""
    message = ToolMessage("one\ntwo\n" * 900, id="m", tool_call_id="c", name="grep")
    found = {"grep": lambda item: [{"text": line} for line in item.text.splitlines()[:9]]}
    [before], [after] = _prepare(message).prepared, _prepare(message, extractors=found).prepared
    assert len(after.sources) == 9
    assert before.stored.identity == after.stored.identity


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage("x" * 15_000),
        HumanMessage([{"type": "text", "text": "x" * 100} for _ in range(500)]),
        SystemMessage("x" * 500_000),
        ToolMessage("short", tool_call_id="c"),
        FunctionMessage(content="x" * 900, name="f"),
    ],
    ids=["below 16 KB", "many small parts", "system", "small result", "function"],
)
def test_small_parts_stay_in_the_entry(message: Any) -> None:
    """Small texts stay in their entry, however many there are, and so do system messages of any size."""
    message.id = "m"
    composed = _compose(_prepare(message))
    assert composed.entry.messages[0].payload is None
    assert not composed.chunks


@each_case("size", [10, 3_000, 50_000])
def test_an_omitted_value_is_named_once(size: int) -> None:
    """With `omit` each value left out is named once by its path in the message, whether the message is split or not."""
    artifact = [{"text": "x" * size, "owner": object()}, {"text": "y"}]
    result = ToolMessage(
        "x",
        id="t",
        tool_call_id="c",
        name="t",
        artifact=artifact,
        additional_kwargs={"k": {1: object()}},
    )
    batch = _prepare(HumanMessage("?", id="h"), result, options=AppendOptions("omit"))
    assert batch.omitted == ("message 1.additional_kwargs.k.1", "message 1.artifact[0].owner")
    composed = _compose(batch)
    restored = _whole(composed.entry.messages[1], composed)
    assert isinstance(restored, ToolMessage)
    assert restored.artifact == [artifact[0] | {"owner": Omitted("builtins.object")}, artifact[1]]


def test_a_counter_may_give_nothing() -> None:
    """A message that costs nothing has no tokens."""
    assert count(lambda _messages: 0, HumanMessage("?")) == 0


@pytest.mark.costly
@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": None}],
        [{"type": ["x"]}],
        [{"type": "text"}],
        [{"type": "data", "n": 10**5_000}],
    ],
    ids=range(4),
)
def test_blocks_that_langchain_can_not_count_are_counted(content: Any) -> None:
    """The default counter has a figure for any message."""
    message = HumanMessage("", id="h")
    message.content = content
    assert count(approximate_tokens, message) > 0
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]
    message.content = [{"type": "data", "deep": deep}]
    assert count(approximate_tokens, message) == len(CODEC.encode(fields_of(message))) // 4 > 1_000


@pytest.mark.parametrize(
    ("content", "artifact", "heavy"),
    [
        ("x", None, False),
        ("x" * 300_000, None, True),
        ("x", {"a": [b"x" * 300_000]}, True),
        ("x", [list(range(20_000))], True),
        ("x", [[1] * 100] * 5, False),
    ],
    ids=["small", "long text", "bytes", "many values", "few values"],
)
def test_heavy_batches_are_recognised(content: str, artifact: Any, heavy: bool) -> None:
    """Work of more than some milliseconds leaves the event loop."""
    assert (
        characters_in([ToolMessage(content, tool_call_id="c", artifact=artifact)]) > 200_000
    ) == heavy


def test_a_long_document_is_heavy() -> None:
    """The text of a document counts like any other."""
    assert (
        characters_in([ToolMessage("x", tool_call_id="c", artifact=[Document("x" * 300_000)])])
        > 300_000
    )


def test_no_property_of_an_artifact_is_read_to_estimate_its_size() -> None:
    """Estimating a batch reads no property of an artifact, because a property may be lazy or raise."""

    class Lazy:
        @property
        def page_content(self) -> str:
            raise RuntimeError("not loaded")

    assert characters_in([ToolMessage("x", tool_call_id="c", artifact=Lazy())]) < 1_000


def test_usage_is_kept_of_twenty_models() -> None:
    """Usage of further models is added up under one name, so that an entry stays small; no token is lost."""
    answers = [
        AIMessage(
            "a",
            id=f"a{number}",
            response_metadata={"model_name": f"model {number}"},
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        )
        for number in range(30)
    ]
    usage = _compose(_prepare(*answers)).entry.totals.usage
    assert list(usage) == [*(f"model {number}" for number in range(20)), "other"]
    assert usage["other"] == (10, 20, 30, 0, 0)


def test_the_newest_two_hundred_sources_are_remembered() -> None:
    """An entry holds digests of so many different ones; one that is shown again counts as new."""

    def found(*numbers: int) -> ToolMessage:
        hits = [{"title": "T", "content": f"text {number}"} for number in numbers]
        return ToolMessage(
            "x", id=f"m{numbers[0]}-{len(numbers)}", tool_call_id="c", name="t", artifact=hits
        )

    shown = _compose(_prepare(found(*range(150)))).entry.totals
    shown = _compose(_prepare(found(0)), shown).entry.totals
    shown = _compose(_prepare(found(*range(200, 399))), shown).entry.totals
    assert shown.shown
    assert len(shown.shown) == 200
    assert min(shown.shown.values()) == 1


def test_calls_of_one_message_with_one_id_are_answered_in_their_order() -> None:
    """Results of two calls with the same id are assigned in order: the first result belongs to the first call."""
    calls = [{"name": tool, "args": {}, "id": "c"} for tool in ("first", "second")]
    results = [ToolMessage("x", id=f"m{number}", tool_call_id="c") for number in range(2)]
    composed = _compose(_prepare(AIMessage("", id="a", tool_calls=calls), *results))
    assert [message.tool for message in composed.entry.messages] == ["", "first", "second"]


def test_an_id_of_a_call_that_can_not_be_one_is_not_looked_up_by() -> None:
    """A model may give a call any id; the index holds those that a scope or an id may be."""
    call = "c" * 600
    asked = AIMessage("", id="a", tool_calls=[{"name": "t", "args": {}, "id": call}])
    composed = _compose(_prepare(asked, ToolMessage("x", id="m", tool_call_id=call)))
    assert composed.entry.messages[1].call == ""
    assert composed.entry.messages[1].tool == "t"
