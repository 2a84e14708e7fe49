"""Promise 1 in the codec: what goes in comes out equal, the rest is refused, and no stored text can do harm."""

from __future__ import annotations

import contextlib
import enum
import io
import json
import math
import os
import re
import struct
import subprocess
import sys
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import zstandard
from cases import each_case
from hypothesis import example, given
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
from properties import STRIDE, examples
from pydantic import BaseModel
from strategies import any_text, messages, same, values

from convstore.exceptions import InvalidInputError, UnencodableError
from convstore.messages import encoding as rules
from convstore.messages import values as value_rules
from convstore.messages.compression import CHUNK_BYTES, chunk_ends, compress, decompress
from convstore.messages.encoding import (
    PART_MINIMUM,
    decode_message,
    digest_of,
    encode_message,
    fields_of,
)
from convstore.messages.payload_ranges import PayloadRange
from convstore.messages.values import Codec, Kind, Omitted
from convstore.sources.detection import find_sources
from convstore.sources.places import read_item, store_sources
from convstore.sources.shortening import leave_out, with_stub
from convstore.values.models import Source, SourcePage

ROOT = Path(__file__).resolve().parents[2]
CODEC = Codec()


def _back(value: Any, codec: Codec = CODEC) -> Any:
    return codec.decode(codec.encode(value))


def _restored(message: BaseMessage, *, split: bool = False) -> BaseMessage:
    with pytest.MonkeyPatch.context() as patch:
        if split:
            patch.setattr(rules, "RESULT_MINIMUM", 1)
        encoded = encode_message(CODEC, fields_of(message))
    return decode_message(CODEC, encoded.body, fetch=lambda start, end: encoded.payload[start:end])


# ---------------------------------------------------------------------------------------------------------------------
# Values


@given(st.lists(values, max_size=4))
@example([{"title": "A", "rank": 1}, {"title": "B", "at": datetime(2026, 1, 1, tzinfo=UTC)}])
@example([{"a": 1}, {"$": "payload"}])
@example([1.5, float("inf")])
def test_values_are_encoded_together_as_each_alone(several: list[Any]) -> None:
    """Sources of a result are encoded in one call, whatever stands beside a value."""
    alone = [Codec().encode(value) for value in several]
    assert Codec().encode_each(several, omitted=None) == alone


@given(values)
def test_any_value_comes_back_equal(value: Any) -> None:
    """Values of known types come back with the same types, order, zones, signs and code points, at any nesting."""
    assert same(_back(value), value)


@pytest.mark.parametrize(
    "value",
    [
        {"$": ["bytes", "eA=="]},
        {"$": 1},
        {"$": ["line", 0]},
        {"$": ["payload", [0, 1, True, ""]]},
        {"$": ["dict", []], "a": {"$": "$"}},
        {1: "int", "1": "str", None: 0, (1, (2,)): [], 1.5: {}},
        {True: 0, "True": 0, 0.5: 1},
        {"a.b": 1, "$set": 2, "": 3, "\0": 4},
        "\ud83d\ude00",
        "\U0001f600",
        ["\ud83d", "\ude00", "\ude00\ud83d", "\0"],
        [10**5_000, -(10**4_300), 2**63, -(2**63) - 1],
        {10**5_000, 1, 2**64},
        [math.nan, math.inf, -math.inf, -0.0, 0.0, complex(-0.0, math.nan)],
        [1, True, 1.0, "1"],
        Decimal("-0E+3"),
        datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=0),
        datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2026, 1, 1, fold=1),  # noqa: DTZ001 - naive on purpose
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-23, minutes=-59, seconds=-59))),
        time(2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        time(2, 30, 0, 1, tzinfo=UTC),
        {frozenset({(1, frozenset({"a", "b"})), ("x",)}), frozenset()},
        Document("\ud800", id="d", metadata={"a": (1,), 2: {"b"}}),
        bytearray(b"\xff"),
        SourcePage(
            sources=[Source(source_id=1, content="x", metadata={"a": (1,)})],
            not_found=["y"],
            next_cursor="z",
        ),
    ],
    ids=lambda value: (
        re.sub(r"\W+", " ", ascii(value))[:30] if not isinstance(value, list | set) else None
    ),
)
def test_a_treacherous_value_comes_back_equal(value: Any) -> None:
    """Values that look like tags, that JSON would convert or that time zones confuse come back equal."""
    assert same(_back(value), value)
    assert same(_back([value, {"k": value}]), [value, {"k": value}])


DEEP = 100_000 // STRIDE


@pytest.mark.costly
@pytest.mark.parametrize(
    ("levels", "wrap"),
    [
        pytest.param(DEEP, lambda inner: [inner], id="lists"),
        pytest.param(DEEP, lambda inner: {"k": inner}, id="dicts"),
        pytest.param(DEEP, lambda inner: (inner,), id="tuples"),
        pytest.param(DEEP // 10, lambda inner: {1: [(inner, "x")], "$": None}, id="mixed"),
        pytest.param(DEEP // 10, lambda inner: Document("", metadata={"k": inner}), id="documents"),
    ],
)
def test_any_nesting_comes_back_equal(levels: Any, wrap: Any) -> None:
    """Values nested 20,000 levels deep, in CI 100,000, come back equal: neither encoder nor parser recurses."""
    value: Any = "core"
    for _ in range(levels):
        value = wrap(value)
    text = CODEC.encode(value)
    restored = CODEC.decode(text)
    assert same(restored, value)
    assert CODEC.encode(restored) == text


def test_a_value_met_twice_is_no_cycle() -> None:
    """Only a value inside itself is refused; the same object at two places is written twice."""
    shared = [1]
    assert same(
        _back([shared, {"a": shared, "b": (shared, shared)}]), [[1], {"a": [1], "b": ([1], [1])}]
    )


@pytest.mark.slow
def test_equal_sets_have_equal_text_in_every_process() -> None:
    """Sets are written in the same order under another hash seed, with registered types in them too."""
    code = """
from dataclasses import dataclass
from convstore.messages.values import Codec, Kind
@dataclass(frozen=True)
class Tag:
    names: frozenset
codec = Codec()
codec.register(Tag, Kind("tag", lambda tag: tag.names, Tag))
words = [f"w{number}" for number in range(50)]
value = [set(words), {frozenset(words[:9]), frozenset(words[9:20])}, {(1, "a"), ("a", 1), 2**70, 1.5, None, b"x"},
         {Tag(frozenset(words[:9])), Tag(frozenset(words[1:9])), Tag(frozenset())}]
print(codec.encode(value))
"""
    texts = {
        subprocess.run(  # noqa: S603 - our own code
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


# ---------------------------------------------------------------------------------------------------------------------
# What is refused


class _Str(str):
    __slots__ = ()


class _Int(int):
    pass


class _Dict(dict[Any, Any]):
    pass


class _List(list[Any]):
    pass


class _Moment(datetime):
    pass


class _Model(BaseModel):
    a: int = 1


class _Zone(tzinfo):
    """A zone that has no name and no fixed offset."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return None if moment is None else timedelta(hours=moment.fold)

    def tzname(self, _moment: datetime | None) -> str | None:
        return None

    def dst(self, _moment: datetime | None) -> timedelta | None:
        return None


_NAMELESS = ZoneInfo.from_file(
    io.BytesIO(b"TZif" + struct.pack(">16x6liBB4s", 0, 0, 0, 0, 1, 4, 3_600, 0, 0, b"ABC"))
)
_Color = enum.Enum("_Color", ["RED"])
_Level = enum.IntEnum("_Level", ["LOW"])
_Word = enum.StrEnum("_Word", ["YES"])
_Pair = namedtuple("_Pair", "a b")


@pytest.mark.parametrize(
    "stranger",
    [
        _Str("a"),
        _Int(1),
        _Dict(),
        _List(),
        _Moment(2026, 1, 1),
        _Color.RED,
        _Level.LOW,
        _Word.YES,
        _Pair(1, 2),
        _Model(),
        HumanMessage("x"),
        OrderedDict(),
        defaultdict(list),
        object(),
        memoryview(b"x"),
        range(3),
        slice(3),
        re.compile("x"),
        len,
        time(1, tzinfo=_Zone()),
        datetime(2026, 1, 1, tzinfo=_Zone()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_another_type_is_refused_by_its_path(stranger: Any) -> None:
    """A value whose type would not come back equal is refused with its path. No value is converted silently."""
    for among in ([0, ({"deep": stranger},)], [0, [{"deep": stranger}]]):
        with pytest.raises(UnencodableError) as refused:
            CODEC.encode({"artifact": among})
        assert refused.value.path == "artifact[1][0].deep"
        assert type(stranger).__name__ in str(refused.value)


def test_a_known_datetime_of_a_foreign_zone_comes_back_equal() -> None:
    """A zone that only gives an offset, such as a driver's own, becomes that offset: the moment is the same."""
    moment = datetime(2026, 7, 1, tzinfo=_NAMELESS)
    assert _back(moment) == moment
    assert _back(moment).utcoffset() == timedelta(hours=1)


@each_case("wrap", [list, dict, tuple, Document])
def test_a_value_inside_itself_is_refused_by_its_path(wrap: Any) -> None:
    """A cycle through any container ends in an error that names it, not in an endless walk."""
    inner: list[Any] = [1]
    held = {
        list: [inner],
        dict: {"k": inner},
        tuple: (inner,),
        Document: Document("", metadata={"k": inner}),
    }[wrap]
    inner.append(held)
    with pytest.raises(UnencodableError, match="contains itself") as refused:
        CODEC.encode({"artifact": inner})
    assert refused.value.path == "artifact"


def test_sets_nested_without_end_are_refused() -> None:
    """Putting the elements of sets in order recurses, so a set nested too deep is refused like an unknown type."""
    value: Any = frozenset()
    for _ in range(3_000):
        value = frozenset({value})
    with pytest.raises(UnencodableError):
        CODEC.encode(value)


def test_a_path_of_any_length_is_shortened() -> None:
    """An error stays readable when the refused value lies 20,000 levels deep."""
    value: Any = object()
    for _ in range(20_000):
        value = [value]
    with pytest.raises(UnencodableError) as refused:
        CODEC.encode(value)
    assert 100 < len(str(refused.value)) < 2_000


def test_left_out_values_leave_markers_and_their_paths() -> None:
    """With a list for what is omitted, unknown values become markers, every one is named, all else stays."""
    stranger, omitted = object(), list[str]()
    value = {
        "a": stranger,
        "b": [1, {"c": stranger}],
        "d": {2: _Color.RED},
        "e": (_Model(),),
        "f": {_Word.YES: 1},
    }
    restored = CODEC.decode(CODEC.encode(value, path="artifact", omitted=omitted))
    gone = Omitted("builtins.object")
    assert restored["a"] == gone
    assert restored["b"] == [1, {"c": gone}]
    assert [type(restored["d"][2]), type(restored["e"][0]), *map(type, restored["f"])] == [
        Omitted
    ] * 3
    assert omitted == [
        "artifact.a",
        "artifact.b[1].c",
        "artifact.d.2",
        "artifact.e[0]",
        "artifact.f.keys()[0]",
    ]
    assert same(_back(restored), restored)


def test_many_values_are_left_out_in_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are looked up once for all values that are left out, so that many of them do not take minutes."""
    looked_at, children = list[Any](), value_rules._children
    monkeypatch.setattr(
        value_rules, "_children", lambda value: looked_at.append(value) or children(value)
    )
    omitted = list[str]()
    CODEC.encode([object() for _ in range(1_000)], omitted=omitted)
    assert omitted == [f"[{place}]" for place in range(1_000)]
    assert len(looked_at) <= 1_001


# ---------------------------------------------------------------------------------------------------------------------
# Types that a caller teaches


@dataclass(frozen=True)
class _Tag:
    names: frozenset[str]


def _taught(**kind: Any) -> Codec:
    codec = Codec()
    codec.register(
        _Tag, Kind(**{"name": "tag", "dump": lambda tag: tag.names, "load": _Tag} | kind)
    )
    return codec


def test_a_registered_type_comes_back_equal_anywhere_in_a_message() -> None:
    """A registered type is written inside containers, sets and documents, as value and as key."""
    tag = _Tag(frozenset({"b", "a"}))
    value = [tag, {tag: {tag, _Tag(frozenset())}}, Document("x", metadata={"t": (tag,)})]
    assert same(_back(value, _taught()), value)


def test_a_taught_type_is_known_to_a_copy() -> None:
    """`copy_from` hands on what was registered, for reading and for writing."""
    codec, tag = Codec(), _Tag(frozenset({"a"}))
    codec.copy_from(_taught())
    assert same(_back(tag, codec), tag)


@each_case(
    ("type_", "name"),
    [
        (_Tag, "bytes"),
        (_Tag, "line"),
        (_Tag, "payload"),
        (_Tag, ""),
        (_Tag, ["x"]),
        (str, "x"),
        (bool, "x"),
        (dict, "x"),
        (int, "x"),
        (datetime, "x"),
    ],
)
def test_a_name_or_type_that_is_taken_is_refused(type_: Any, name: list[str] | str) -> None:
    """No registered type can take the place of one that the codec writes itself, in writing or in reading."""
    with pytest.raises(InvalidInputError):
        Codec().register(type_, Kind(name, str, str))


def test_a_failing_dump_is_an_unencodable_value() -> None:
    """An exception of the caller's function is the cause of an error that names the path, or of an omission."""
    codec = _taught(dump=lambda _tag: 1 / 0)
    with pytest.raises(UnencodableError) as refused:
        codec.encode([_Tag(frozenset())])
    assert refused.value.path == "[0]"
    assert isinstance(refused.value.__cause__, ZeroDivisionError)
    omitted = list[str]()
    assert isinstance(codec.decode(codec.encode(_Tag(frozenset()), omitted=omitted)), Omitted)


def test_a_failing_load_is_a_damaged_text() -> None:
    """An exception of the caller's function while reading is a ValueError, as for any unreadable text."""
    codec = _taught(load=lambda _plain: 1 / 0)
    with pytest.raises(ValueError, match="tag"):
        codec.decode(codec.encode(_Tag(frozenset())))


# ---------------------------------------------------------------------------------------------------------------------
# Hostile texts

_plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats()
    | any_text
    | st.sampled_from(["$", "line", "dict", "ai"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(any_text | st.sampled_from(["$", "type", "content"]), inner, max_size=3)
        | st.builds(
            lambda name, plain: {"$": [name, plain]},
            st.sampled_from([*CODEC._by_name, "line", "no"]),
            inner,
        )
    ),
    max_leaves=12,
)


def _survives(text: str, read: Any) -> None:
    """Reading gives a value or a ValueError, nothing else."""
    with contextlib.suppress(ValueError):
        read(text)


@given(_plain, any_text)
def test_foreign_json_is_a_value_or_a_value_error(plain: Any, payload: Any) -> None:
    """JSON that the codec never wrote, tags with wrong contents in it, raises nothing but ValueError."""
    text = json.dumps(plain)
    _survives(text, CODEC.decode)
    _survives(text, lambda text: CODEC.decode(text, fetch=lambda start, end: payload[start:end]))
    _survives(text, lambda text: leave_out(decode_message(CODEC, text)))


@given(messages, st.data())
def test_a_damaged_text_is_a_value_or_a_value_error(message: Any, data: Any) -> None:
    """A stored text with a piece cut out, put in or exchanged raises nothing but ValueError."""
    text = CODEC.encode(fields_of(message))
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 8)))
    damaged = (
        text[:start]
        + data.draw(any_text | st.sampled_from(['"', "[", '{"$":["line",0]}', "\n", "1e999"]))
        + text[end:]
    )
    _survives(damaged, CODEC.decode)
    _survives(damaged, lambda text: leave_out(decode_message(CODEC, text)))


def _doubling() -> tuple[str, str]:
    """A text and a payload in which each part asks twice for the one before it: 2**40 characters if followed."""
    payload, start = "xx", 0
    for _ in range(40):
        part = json.dumps([{"$": ["payload", [start, len(payload), start == 0, ""]]}] * 2)
        start, payload = len(payload), payload + part
    return json.dumps({"$": ["payload", [start, len(payload), False, ""]]}), payload


_ITSELF = '{"$":["payload",[0,999,false,""]]}'


@each_case(
    ("text", "payload"),
    [
        ("", ""),
        ("[" * 100_000, ""),
        ('{"a":' * 100_000, ""),
        ("9" * 5_000, ""),
        ('{"$":1}', ""),
        ('{"$":["line",0]}', ""),
        ('{"$":["line",7]}', ""),
        ('{"$":["line",[]]}', ""),
        ('[]\n{"$":["line",0]}', ""),
        ('{"$":["os.system","x"]}', ""),
        ('{"$":[{},1]}', ""),
        ('{"$":["dict",[1]]}', ""),
        ('{"$":["dict",[[],1]]}', ""),
        ('{"$":["set",[[]]]}', ""),
        ('{"$":["bytes","é"]}', ""),
        ('{"$":["int","x"]}', ""),
        ('{"$":["decimal","x"]}', ""),
        ('{"$":["timedelta",[1e300,0,0]]}', ""),
        ('{"$":["datetime",["2026-01-01",0,"America"]]}', ""),
        ('{"$":["datetime",["2026-01-01",0,"../../etc/passwd"]]}', ""),
        ('{"$":["datetime",["2026-01-01",2,null]]}', ""),
        ('{"$":["document",{"page_content":1}]}', ""),
        ('{"$":["payload",[0]]}', ""),
        ('{"$":["payload",[-5,1,true,""]]}', "x"),
        ('{"$":["payload",[3,1,true,""]]}', "xxxxx"),
        ('{"$":["payload",["a","b",true,""]]}', "x"),
        (_ITSELF, _ITSELF),
        _doubling(),
    ],
)
def test_a_hostile_text_is_a_value_error_at_once(text: Any, payload: Any) -> None:
    """A hostile text raises ValueError at once, for its depth, its references or a malformed tag."""
    with pytest.raises(ValueError):  # noqa: PT011 - the texts differ
        CODEC.decode(text, fetch=lambda start, end: payload[start:end])


# ---------------------------------------------------------------------------------------------------------------------
# Messages


@given(messages)
def test_any_message_comes_back_equal(message: Any) -> None:
    """A message of each class comes back as the same class with equal fields, extra ones too, whole or split."""
    for split in {False, message.type == "tool"}:
        restored = _restored(message, split=split)
        assert type(restored) is type(message)
        assert same(restored, message)


@given(messages)
@examples(60)
def test_any_part_may_stand_in_the_payload(message: Any) -> None:
    """With every part counted as large, a message still comes back equal; without its payload it can be shown."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "PART_MINIMUM", 1)
        encoded = encode_message(CODEC, fields_of(message))
        restored = decode_message(
            CODEC, encoded.body, fetch=lambda start, end: encoded.payload[start:end]
        )
        shown = leave_out(decode_message(CODEC, encoded.body))
    assert same(restored, message)
    assert "PayloadRange" not in repr(shown)


@given(
    st.lists(
        st.builds(
            Document,
            any_text,
            id=st.none() | any_text,
            metadata=st.dictionaries(any_text, values, max_size=2),
        )
        | st.tuples(any_text, st.dictionaries(any_text, values, max_size=2))
        | st.dictionaries(
            st.sampled_from(["content", "text", "title", "metadata", "x"]),
            values | any_text,
            max_size=3,
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([list, tuple, lambda items: {"n": 1, "results": items, "$": 2}]),
)
def test_a_stored_source_is_as_it_was_found(items: Any, wrap: Any) -> None:
    """A source in an artifact is stored with its text, and with the item that gives its title and its other fields."""
    message = ToolMessage("hits", tool_call_id="c", artifact=wrap(items), id="m")
    found = find_sources(message, None)
    payload, stored = store_sources(found.items, "", CODEC, None)
    for (place, piece), source in zip(stored, found.items, strict=True):
        held = piece or payload
        read = read_item(CODEC, held[place.middle : place.end])
        assert read is not None
        assert same(read.label(), source.label())
        assert held[place.start : place.middle] == source.text
    assert same(_restored(message, split=True), message)


def test_equal_means_equal_dumps_for_real_messages() -> None:
    """`model_dump` of each class is equal afterwards: reasoning, signatures, usage, raw calls, artifacts."""
    call = {"name": "search", "args": {"q": "é", "n": 2**70}, "id": "c1", "type": "tool_call"}
    raw = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{"}}
    with_raw_calls = AIMessage("", id="raw")
    with_raw_calls.additional_kwargs = {"tool_calls": [raw]}
    assert with_raw_calls.tool_calls == []
    originals = [
        HumanMessage(
            [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:"}}],
            name="u",
        ),
        SystemMessage("rules", additional_kwargs={"__openai_role__": "developer"}),
        AIMessage(
            [{"type": "thinking", "thinking": "hm", "signature": "s=="}, "text"],
            tool_calls=[call],
            invalid_tool_calls=[
                {"name": "b", "args": "{", "id": "c2", "error": "no", "type": "invalid_tool_call"}
            ],
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
            response_metadata={"logprobs": [-0.0, math.inf], "model_name": "m"},
        ),
        with_raw_calls,
        ToolMessage(
            "x",
            tool_call_id="c1",
            status="error",
            artifact={"at": datetime.now(UTC), "d": [Document("x")]},
        ),
        FunctionMessage(content="x", name="f"),
        ChatMessage(content="x", role="critic", extra_field=(1, 2)),  # type: ignore[call-arg]
    ]
    for original in originals:
        restored = _restored(original)
        assert type(restored) is type(original)
        assert restored == original
        assert same(restored.model_dump(), original.model_dump())
    assert _restored(with_raw_calls).tool_calls == []


def test_an_empty_value_of_another_type_is_not_taken_for_the_default() -> None:
    """Only a field at its very default is left out of the body."""
    message = AIMessage("", id="m")
    message.__dict__ |= {
        "tool_calls": {},
        "additional_kwargs": [],
        "usage_metadata": {},
        "name": "",
    }
    assert same(_restored(message), message)


def test_defaults_are_not_stored() -> None:
    """A body holds what differs from the default only, so that plain messages stay small."""
    assert fields_of(HumanMessage("x", id="m")) == {"type": "human", "content": "x", "id": "m"}
    assert fields_of(AIMessage("x", id="m")) == {"type": "ai", "content": "x", "id": "m"}
    # A default that was put together at run time is another object, with the same digest.
    built = ToolMessage("x", id="m", tool_call_id="c", status="".join(["succ", "ess"]))
    assert fields_of(built) == {"type": "tool", "content": "x", "id": "m", "tool_call_id": "c"}


@given(messages)
def test_a_rebuilt_message_has_the_same_digest(message: Any) -> None:
    """The digest depends on the fields alone, not on the objects that hold them."""
    again = _restored(message)
    texts = [CODEC.encode(fields_of(item)) for item in (message, again)]
    assert texts[0] == texts[1]
    assert digest_of(texts[0]) == digest_of(texts[1])


@each_case(
    ("content", "kept", "left_out"),
    [
        (
            "x" * 20_000,
            [],
            "[text, 20,000 characters; left out to save context, "
            "call retrieve_previous_sources with message id m to read it]",
        ),
        (
            [{"type": "image", "base64": "A" * 20_000}, "short"],
            ["short"],
            "[image, 15,000 bytes; left out to save context, ",
        ),
        (
            [
                {"type": "server_tool_use", "id": "s"},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": "y" * 20_000},
            ],
            [],
            "[web_search_tool_result,",
        ),
        (
            [
                {"type": "server_tool_use", "id": "s", "input": "y" * 20_000},
                {"type": "code_result", "tool_use_id": "s"},
                "end",
            ],
            ["end"],
            "[server_tool_use,",
        ),
        (
            [
                {"type": "mcp_tool_use", "id": "s"},
                {"type": "mcp_tool_use", "id": "t"},
                {"type": "mcp_tool_result", "tool_use_id": "s", "content": "y" * 20_000},
            ],
            [{"type": "mcp_tool_use", "id": "t"}],
            "[mcp_tool_result,",
        ),
        (
            [
                {"type": "server_tool_call", "id": "s"},
                {"type": "server_tool_result", "tool_call_id": "s", "output": "y" * 20_000},
            ],
            [],
            "[server_tool_result,",
        ),
    ],
)
def test_a_large_part_is_shown_as_a_placeholder(content: Any, kept: Any, left_out: str) -> None:
    """A placeholder names what is left out and the message that brings it back; no request stays without a result."""
    encoded = encode_message(CODEC, fields_of(AIMessage(content, id="m")))
    shown = leave_out(decode_message(CODEC, encoded.body)).content
    if isinstance(shown, str):
        assert shown == left_out
        return
    placeholders = [block for block in shown if block not in kept]
    assert [block for block in shown if block in kept] == kept
    assert [block["type"] for block in placeholders] == ["text"]
    assert placeholders[0]["text"].startswith(left_out)
    assert placeholders[0]["text"].endswith("message id m to read it]")


def test_large_arguments_are_shown_as_a_placeholder() -> None:
    """A call keeps id and name whatever their size; arguments and other large values of it are replaced."""
    call = {
        "name": "n" * 20_000,
        "args": {"code": "x" * 20_000},
        "id": "i" * 20_000,
        "type": "tool_call",
    }
    bad = {
        "name": "run",
        "args": "{" * 20_000,
        "id": "c2",
        "error": "e" * 20_000,
        "type": "invalid_tool_call",
    }
    message = AIMessage("", id="m", tool_calls=[call], invalid_tool_calls=[bad])
    encoded = encode_message(CODEC, fields_of(message))
    shown = leave_out(decode_message(CODEC, encoded.body))
    assert same(_restored(message), message)
    note = "characters; left out to save context, call retrieve_previous_sources with message id m to read it]"
    assert shown.tool_calls == [call | {"args": {"left_out": f"[arguments, 20,011 {note}"}}]
    assert shown.invalid_tool_calls == [
        bad | {"args": f"[arguments, 20,000 {note}", "error": f"[error, 20,000 {note}"}
    ]


def test_what_names_a_message_never_leaves_its_body() -> None:
    """Name, role, status and call id of any size stay, so that a stub can be paired and attributed."""
    long = "x" * PART_MINIMUM
    message = ToolMessage(
        "y" * 20_000, id="m", tool_call_id=long, name=long, artifact=["z" * 20_000]
    )
    encoded = encode_message(CODEC, fields_of(message))
    shown = with_stub(leave_out(decode_message(CODEC, encoded.body)), "stub")
    assert (shown.tool_call_id, shown.name, shown.content, shown.artifact) == (
        long,
        long,
        "stub",
        None,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Payload chunks

_wide_text = st.text(st.sampled_from("aé€😀\ud83d\ude00\n"), max_size=60)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


@given(_wide_text, st.integers(4, 12), st.data())
@example("😀😀\ud83d\ude00é", 4, None)
def test_chunks_hold_every_range_and_never_too_many_bytes(text: Any, size: Any, data: Any) -> None:
    """Chunks are cut between characters, none is too large, and what they hold together is the text."""
    ends = chunk_ends(text, size=size)
    pieces = [text[start:end] for start, end in pairwise([0, *ends])]
    assert ends[-1] == len(text)
    assert "".join(pieces) == text
    assert all(_bytes(piece) <= size for piece in pieces)
    assert all(pieces) or text == ""
    # No chunk could have taken the next character too, so there are no more chunks than need be.
    assert all(_bytes(piece + after[0]) > size for piece, after in pairwise(pieces))
    if data:
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, len(text)))
        decompressed = [decompress(frame) for frame in compress(text, ends)]
        assert "".join(decompressed)[start:end] == text[start:end]
        assert decompressed == pieces


@pytest.mark.costly
@pytest.mark.parametrize(
    "text", ["x" * 2_500_000, "😀" * 600_000, "a" + "\ud800" * 700_000, "é" * 1_000_000 + "😀", ""]
)
def test_real_chunks_stay_below_a_megabyte(text: Any) -> None:
    """At the real size too no chunk is above 1,000,000 bytes of text, and nothing is lost at a boundary."""
    frames = compress(text, chunk_ends(text))
    pieces = [decompress(frame) for frame in frames]
    assert "".join(pieces) == text
    assert all(_bytes(piece) <= CHUNK_BYTES == 1_000_000 for piece in pieces)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"x",
        b"\x28\xb5\x2f\xfd",
        zstandard.ZstdCompressor().compress(b"x" * (CHUNK_BYTES + 1)),
        zstandard.ZstdCompressor().compress(bytes(50_000_000)),
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(50_000_000)),
        zstandard.ZstdCompressor().compress(b"x" * 5_000)[:-3],
        zstandard.ZstdCompressor().compress(b"\xff\xfe"),
    ],
    ids=[
        "empty",
        "short",
        "header",
        "a byte too long",
        "bomb",
        "bomb of unknown size",
        "cut off",
        "not UTF-8",
    ],
)
def test_a_frame_that_is_not_ours_is_refused(frame: Any) -> None:
    """A chunk that is damaged, or would grow beyond what a chunk may hold, is a ValueError before it grows."""
    with pytest.raises(ValueError):  # noqa: PT011 - the libraries' texts differ
        decompress(frame)


@given(st.data())
def test_a_damaged_frame_is_a_value_error(data: Any) -> None:
    """No flipped bytes make the decompressor raise anything else or give more than a chunk."""
    frame = bytearray(compress("hello wörld " * 50, [600])[0])
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        assert _bytes(decompress(bytes(frame))) <= CHUNK_BYTES


def test_a_range_without_its_payload_is_returned_as_it_is() -> None:
    """Without `fetch` a part of the payload is left as a range that says what it is about."""
    encoded = encode_message(CODEC, fields_of(HumanMessage("x" * 20_000, id="m")))
    assert CODEC.decode(encoded.body)["content"] == PayloadRange(0, 20_000, raw=True)


def test_the_text_of_a_message_is_a_plain_text() -> None:
    """The text of `message.text` is stored as the equal str, at any position, also in parts."""
    said = AIMessage("Fish. " * 4_000).text
    assert type(said) is not str
    message = ToolMessage(
        [{"type": "text", "text": said}], artifact=[(said, {"said": said})], tool_call_id="c"
    )
    encoded = encode_message(Codec(), fields_of(message))
    again = decode_message(
        Codec(), encoded.body, fetch=lambda start, end: encoded.payload[start:end]
    )
    assert again == message
    assert type(again.artifact[0][0]) is str
