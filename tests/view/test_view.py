"""Promise 5 and the shape of a view: what a model gets of a log, whatever happened in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from properties import examples
from strategies import PureLog, Round, log_of, policies, same, turn, turns

from convstore.exceptions import CorruptDocumentError
from convstore.log.rows import rows_of
from convstore.messages.tokens import approximate_tokens
from convstore.messages.values import Codec
from convstore.testing.pairing import check_pairing
from convstore.values.policy import HistoryPolicy
from convstore.values.providers import ROWS
from convstore.view.decoder import FINISHED, Decoder
from convstore.view.render import build_view, get_conversational_history, make_note

DEFAULT = HistoryPolicy()
LARGE = "x" * 20_000


def _exact(messages: Any) -> int:
    """A counter that sees every field."""
    return sum(len(Codec().encode([message.type, message.__dict__])) for message in messages)


def _log(*batches: list[BaseMessage], **fields: Any) -> PureLog:
    log = PureLog(**fields)
    for batch in batches:
        log.append(batch)
    return log


def _kinds(messages: list[BaseMessage]) -> list[Any]:
    return [message.additional_kwargs.get("convstore") for message in messages]


def _from_log(messages: list[BaseMessage]) -> list[BaseMessage]:
    return [
        message for message, kind in zip(messages, _kinds(messages), strict=True) if kind is None
    ]


@st.composite
def _damaged(draw: Any) -> list[BaseMessage]:
    """Turns with results that are missing, come twice, late or out of order, with repeated calls and large parts."""
    made: list[BaseMessage] = []
    for number, (rounds, asked, said) in enumerate(draw(st.lists(turns, min_size=1, max_size=6))):
        made += turn(number, rounds, asked=asked, said=said)
    for _ in range(draw(st.integers(0, 6))):
        index = draw(st.integers(0, len(made) - 1))
        message, how = made[index], draw(st.integers(0, 4))
        if isinstance(message, ToolMessage) and how == 0:
            del made[index]
        elif isinstance(message, ToolMessage) and how < 3:
            copy = message.model_copy(
                update={"id": f"{message.id}-{len(made)}"} if how == 1 else {}
            )
            made.insert(draw(st.integers(0, len(made))), copy)
            made = [item for item in made if item is not message or how == 1]
        elif isinstance(message, AIMessage) and how == 3:
            again = message.model_copy(update={"id": f"{message.id}-{len(made)}"})
            made.insert(draw(st.integers(0, len(made))), again)
        else:
            big = type(message)(
                **(message.model_dump() | {"content": [{"type": "data", "data": LARGE}, "small"]})
            )
            made[index] = big
    return made


@given(_damaged(), policies, st.sampled_from([None, *ROWS]), st.integers(1, 9))
@examples(120)
def test_any_view_is_one_that_providers_accept(
    made: Any, policy: Any, provider: Any, batch: Any
) -> None:
    """No result without its call, no call without all its results, in any log under any policy; sizes add up."""
    policy = replace(policy, provider=provider)
    log = _log(
        *(made[index : index + batch] for index in range(0, len(made), batch)), counter=_exact
    )
    view = log.view(policy)
    assert check_pairing(view.messages) == []
    assert view.tokens == sum(_exact([message]) for message in view.messages)
    shown = [message.id for message in _from_log(view.messages)]
    assert len(shown) == len(set(shown))
    assert set(shown) <= {message.id for message in made}
    results = [message.id for message in made if isinstance(message, ToolMessage)]
    assert set(view.orphans) <= set(results) - set(shown)
    marks = [kind for kind in _kinds(view.messages) if kind]
    assert marks.count({"kind": "late_result"}) == len(view.late_results)
    assert not (view.orphans and {"kind": "note"} in marks)
    assert same(log.view(policy).messages, view.messages)


@given(st.lists(turns, min_size=1, max_size=4), st.data())
@examples(40)
def test_the_turn_in_progress_is_equal_to_what_was_appended(script: Any, data: Any) -> None:
    """Until a turn is finished its messages are in the view as they were appended, artifacts and large parts too."""
    log = log_of(script)
    last = turn(9, [Round((3_000, 200), sources=True), Round((2_000,), sources=False)])
    last[0] = HumanMessage([{"type": "image", "base64": LARGE}], id="h9")
    made = last[: data.draw(st.integers(1, len(last) - 1))]
    for message in made:
        log.append([message])
    shown = _from_log(log.view(DEFAULT).messages)
    assert all(same(item, other) for item, other in zip(shown[-len(made) :], made, strict=True))


# ---------------------------------------------------------------------------------------------------------------------
# Finished turns


def test_a_stub_replaces_a_result() -> None:
    """The stub of the entry is the content; id, call, name and status stay; the artifact and the payload do not."""
    made = turn(1, [Round((3_000,), sources=True)])
    made[2].status = "error"
    log = _log(made)
    view = log.view(DEFAULT)
    stub = view.messages[2]
    assert isinstance(stub, ToolMessage)
    assert stub.content == log.entries[0].messages[2].stub
    assert (stub.id, stub.tool_call_id, stub.name, stub.status, stub.artifact) == (
        "r1-0-0",
        "c1-0-0",
        "search",
        "error",
        None,
    )
    assert view.stubbed == ("r1-0-0",)
    assert log.payloads_needed(DEFAULT) == []


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage(LARGE, id="m"),
        HumanMessage(
            [{"type": "text", "text": LARGE, "id": "b"}, {"type": "text-plain", "text": LARGE}],
            id="m",
        ),
        AIMessage([{"type": "reasoning", "encrypted_content": LARGE}, "so"], id="m"),
        AIMessage(
            "",
            id="m",
            invalid_tool_calls=[{"name": "run", "args": LARGE, "id": "c", "error": None}],
        ),
        AIMessage("", id="m", tool_calls=[{"name": "run", "args": {"code": LARGE}, "id": "c"}]),
        ChatMessage(content=LARGE, role="critic", id="m"),
        FunctionMessage(content=LARGE, name="f", id="m"),
    ],
    ids=["text", "blocks", "reasoning", "invalid call", "call", "chat", "function"],
)
def test_what_people_and_models_said_is_whole_in_finished_turns(message: Any) -> None:
    """Texts, call arguments and reasoning of any length stay, wherever they are stored; the size counts them."""
    log = _log([HumanMessage("?", id="h"), message, AIMessage("done", id="z")], counter=_exact)
    view = log.view(HistoryPolicy(max_tokens=None))
    assert same(view.messages[1], message)
    assert log.entries[0].messages[1].payload is not None
    assert view.placeholders == ()
    assert view.tokens == _exact(view.messages)


_MEDIA = [
    ({"type": "image", "base64": "QUJD", "mime_type": "image/png"}, "image, image/png, 3 bytes"),
    (
        {"type": "image", "base64": "A" * 40_000, "filename": "cat 1.png"},
        'image "cat 1.png", 30,000 bytes',
    ),
    (
        {"type": "image_url", "image_url": {"url": "https://example.org/c.png"}},
        'image "https://example.org/c.png"',
    ),
    ({"type": "image_url", "image_url": {"url": "data:image/png;base64,QUI="}}, "image, 2 bytes"),
    (
        {"type": "input_audio", "input_audio": {"data": "A" * 20_000, "format": "wav"}},
        "audio, 15,000 bytes",
    ),
    ({"type": "file", "file": {"filename": "a.pdf", "file_data": "QUJD"}}, 'file "a.pdf", 3 bytes'),
    (
        {
            "type": "document",
            "title": "T",
            "source": {"type": "base64", "media_type": "a/pdf", "data": "A" * 20_000},
        },
        'file "T", a/pdf, 15,000 bytes',
    ),
    ({"type": "file", "file_id": "file-1"}, "file"),
    ({"type": "media", "data": b"abc", "mime_type": "video/mp4"}, "file, video/mp4, 3 bytes"),
]


@pytest.mark.parametrize(("block", "about"), _MEDIA, ids=[about for _, about in _MEDIA])
def test_media_of_a_finished_turn_are_placeholders(block: Any, about: Any) -> None:
    """Small or large, by address or by value: type, name, size and the id; texts beside it stay."""
    message = HumanMessage([{"type": "text", "text": LARGE}, block, "and this"], id="m")
    log = _log([message], counter=_exact)
    assert same(log.view(DEFAULT).messages[0], message)
    log.append([AIMessage("done", id="z")])
    view = log.view(DEFAULT)
    note = f"[{about}; left out to save context, call retrieve_previous_sources with message id m to read it]"
    assert view.messages[0].content == [
        message.content[0],
        {"type": "text", "text": note},
        "and this",
    ]
    assert view.placeholders == ("m",)
    assert view.tokens == _exact(view.messages)
    [(_, ref)] = log.payloads_needed(DEFAULT)
    assert ref.ends[-1] == len(LARGE)  # the media are not read


@pytest.mark.parametrize(
    "block",
    [
        {"type": "document", "source": {"type": "text", "data": LARGE}},
        {"type": "file", "source_type": "text", "text": LARGE},
    ],
    ids=["document", "file"],
)
def test_a_file_of_plain_text_is_text(block: dict[str, Any]) -> None:
    """A file of plain text is part of the user's message, so it stays whole."""
    message = HumanMessage([block], id="m")
    assert same(_log([message, AIMessage("done", id="z")]).view(DEFAULT).messages[0], message)


def test_what_a_provider_ran_stays_with_its_request() -> None:
    """The large result of a server tool is part of an answer, so it stays whole beside its request."""
    message = AIMessage(
        [
            {"type": "server_tool_use", "id": "s1", "input": {}},
            {"type": "web_result", "tool_use_id": "s1", "content": LARGE},
            "so",
        ],
        id="m",
    )
    assert same(_log([HumanMessage("?", id="h"), message]).view(DEFAULT).messages[1], message)


def test_a_small_result_keeps_its_content_without_its_large_artifact() -> None:
    """A result that is no stub is shown with its content; a large artifact stays away, and no payload is read."""
    call = AIMessage("", id="a", tool_calls=[{"name": "plot", "args": {}, "id": "c"}])
    plot = ToolMessage(
        "plot saved", id="t", tool_call_id="c", name="plot", artifact={"png": b"x" * 50_000, "n": 1}
    )
    log = _log([HumanMessage("?", id="h"), call, plot, AIMessage("done", id="z")])
    shown = log.view(DEFAULT).messages[2]
    assert isinstance(shown, ToolMessage)
    assert (shown.content, shown.artifact) == ("plot saved", None)
    assert log.payloads_needed(DEFAULT) == []
    assert [id_ for id_, _ in log.payloads_needed(HistoryPolicy(stub_tools="never"))] == ["t"]


# ---------------------------------------------------------------------------------------------------------------------
# What is not in the log


def test_the_note_is_this_text() -> None:
    """The note says how many turns are left out and names their newest results with their source ids."""
    note = make_note((2, 0), [("m9", "11-20"), ("m4", "")], first=12)
    assert note.content == (
        "[Note: 2 earlier turns are left out here to save context. "
        "Call retrieve_previous_sources with find to search them, or with an id to read one; "
        "newest tool message ids: m9 (source ids 11-20), m4.]"
    )
    assert make_note((1, 0), [], first=3).content == (
        "[Note: 1 earlier turn is left out here to save context. "
        "Call retrieve_previous_sources with find to search them, or with an id to read one.]"
    )
    assert (note.id, note.additional_kwargs) == ("note-12", {"convstore": {"kind": "note"}})


def test_the_note_follows_the_system_messages_and_names_twenty_results() -> None:
    """A view that leaves turns out has one note, before all turns, with the newest 20 results of those left out."""
    system = SystemMessage("rules", id="s")
    log = log_of([([Round((900,), sources=True)], 50, 50)] * 40, begin=[system])
    view = log.view(HistoryPolicy(max_tokens=2_000))
    assert same(view.messages[0], system)
    assert _kinds(view.messages) == [None, {"kind": "note"}, *[None] * (len(view.messages) - 2)]
    first = next(message for message in view.messages[2:])
    left_out = int(str(first.id).removeprefix("h")) - 1
    text = view.messages[1].text
    named = [
        f"r{number}-0-0 (source ids {2 * number - 1}-{2 * number})"
        for number in range(left_out, left_out - 20, -1)
    ]
    assert text.startswith(f"[Note: {left_out} earlier turns")
    assert text.endswith(f"newest tool message ids: {', '.join(named)}.]")


@each_case(
    ("id_", "name"),
    [("call_1:m-123", "call_1:m-123"), ("e3a23b90-425e-4d5f-8fc6-9192ed44b2ff", "m{}")],
)
def test_a_note_names_long_ids_by_their_ordinals(id_: str, name: str) -> None:
    """Twenty UUIDs would take 400 tokens; a stub keeps the whole id."""
    log = PureLog()
    for number in range(1, 24):
        own = id_[:-2] + f"{number:02}"
        call = AIMessage(
            "", id=f"a{number}", tool_calls=[{"name": "search", "args": {}, "id": "c"}]
        )
        result = ToolMessage(
            "x" * 3_000, id=own, tool_call_id="c", artifact=[("text", {"title": "T"})]
        )
        stored = log.append(
            [HumanMessage("?", id=f"h{number}"), call, result, AIMessage("!", id=f"z{number}")]
        )
        assert f'"tool_message_id": "{own}"' in str(stored.messages[2].stub)
    note = log.view(HistoryPolicy(max_turns=1)).messages[0]
    newest = name.format(4 * 22 - 1) if "{" in name else f"{name[:-2]}22"
    assert f"newest tool message ids: {newest} (source ids 22), " in note.text
    assert approximate_tokens([note]) < 210


def test_a_made_result_says_so() -> None:
    """A call that nobody answered gets a result of its own kind, and the view names it, a late one, and an orphan."""
    calls = [{"name": "search", "args": {}, "id": id_} for id_ in ("c1", "c2")]
    late = ToolMessage("late", id="t2", tool_call_id="c2", name="search")
    stray = ToolMessage("stray", id="t3", tool_call_id="c3", name="search")
    made = [
        HumanMessage("?", id="h"),
        AIMessage("", id="a", tool_calls=calls),
        HumanMessage("!", id="h2"),
        late,
        stray,
    ]
    view = _log(made).view(DEFAULT)
    assert [message.id for message in view.messages] == ["h", "a", "a:missing-result-0", "t2", "h2"]
    assert _kinds(view.messages)[2] == {"kind": "missing_result"}
    assert (view.missing_results, view.moved, view.orphans) == (("c1",), ("t2",), ("t3",))


# ---------------------------------------------------------------------------------------------------------------------
# The rest


def _with_everyone() -> list[BaseMessage]:
    return [
        SystemMessage("s", id="s"),
        *turn(1, [Round((2_000,), sources=True)]),
        ChatMessage(content="c", role="critic", id="c"),
        FunctionMessage(content="f", name="f", id="f"),
        SystemMessage("later", id="s2"),
        AIMessage("z", id="z"),
    ]


def test_a_result_whose_call_is_left_out_is_shown_as_text() -> None:
    """A late result is shown as text under its own id, after the messages already shown, if its call is left out.

    Later messages do not move it.
    """
    call = AIMessage("", id="a", tool_calls=[{"name": "pay", "args": {"invoice": 7}, "id": "c"}])
    log = _log(
        [HumanMessage("Pay.", id="h"), call], *(turn(number, said=2_000) for number in range(9))
    )
    late = ToolMessage("Paid.", id="t", tool_call_id="c")
    whole, cut = HistoryPolicy(max_tokens=None), HistoryPolicy(max_turns=3)
    before = log.view(cut).messages
    log.append([late])
    assert log.view(whole).moved == ("t",)
    view = log.view(cut)
    assert same(view.messages[: len(before)], before)
    [shown] = view.messages[len(before) :]
    assert (shown.type, shown.id) == ("human", "t~")
    assert shown.text == '[Result of an earlier call of pay {"invoice": 7}]\nPaid.'
    assert _kinds([shown]) == [{"kind": "late_result"}]
    assert (view.orphans, view.late_results) == ((), ("t",))
    log.append([AIMessage("It is paid.", id="z")])
    assert same(log.view(cut).messages[:-1], view.messages)
    assert log.view(replace(cut, view="conversation")).late_results == ()


def test_a_conversation_view_is_the_talk_alone() -> None:
    """No tool messages and no AI messages with calls; everybody else who speaks is in it, and the sizes know."""
    log = _log(_with_everyone(), counter=_exact)
    view = log.view(HistoryPolicy(view="conversation", max_tokens=None))
    assert [message.id for message in view.messages] == ["s", "h1", "z1", "c", "s2", "z"]
    assert view.tokens == _exact(view.messages)
    assert view.missing_results == ()


def test_the_talk_of_a_list_is_the_same_objects() -> None:
    """`get_conversational_history` picks, in order, and changes nothing; calls that only content holds count too."""
    in_content = AIMessage([{"type": "tool_use", "id": "c", "name": "t", "input": {}}], id="b")
    made = [*_with_everyone(), in_content]
    picked = get_conversational_history(made)
    assert [message.id for message in picked] == ["s", "h1", "z1", "s2", "z"]
    assert all(any(message is other for other in made) for message in picked)


@each_case(
    "body", ["", "[]", '{"type":"human"', '{"content":"x"}', '{"type":"alien"}', '{"$":["line",3]}']
)
def test_a_damaged_message_is_named(body: str) -> None:
    """A body that cannot be read is an error with the message's id, whichever form it would have had."""
    log = _log(turn(1, [Round((3_000,), sources=True)]))
    rows = rows_of(log.entries)
    for index in range(len(rows)):
        damaged = [*rows]
        damaged[index] = rows[index]._replace(message=replace(rows[index].message, body=body))
        with pytest.raises(CorruptDocumentError, match=f"message '{rows[index].message.id}'"):
            build_view(
                damaged, [FINISHED] * len(rows), decoder=Decoder(DEFAULT, log.codec, log.counter)
            )
