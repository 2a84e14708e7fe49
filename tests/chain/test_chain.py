"""The structure of a chain, rule by rule: parsing, repairs, sizes and the operations that add to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from cases import each_case
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from strategies import same

from convstore.chain import (
    MISSING_RESULT,
    SUMMARY_PREFIX,
    SUMMARY_TOOL,
    Chain,
    Header,
    Pair,
    Section,
    parse_chain,
)
from convstore.exceptions import InvalidInputError, MalformedChainError
from convstore.messages.sizes import size_of


def chain_of(*kinds: str) -> list[BaseMessage]:
    """Messages m0, m1, ...: "s" system, "h" human, "a" AI, "a x y" an AI message with calls, "t x" a result."""
    return [_message(f"m{number}", *kind.split()) for number, kind in enumerate(kinds)]


def _message(message_id: str, kind: str, *call_ids: str) -> BaseMessage:
    if kind == "t":
        return ToolMessage(
            f"result {message_id}", id=message_id, name="search", tool_call_id=call_ids[0]
        )
    if kind == "a":
        calls = [
            {"name": "search", "args": {"q": message_id}, "id": call_id} for call_id in call_ids
        ]
        return AIMessage(f"text {message_id}", id=message_id, tool_calls=calls)
    return {"h": HumanMessage, "s": SystemMessage}[kind](f"text {message_id}", id=message_id)


def ids(messages: Sequence[BaseMessage]) -> list[str | None]:
    """Ids in order."""
    return [message.id for message in messages]


def copied(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Deep copies, to see later whether the originals were changed."""
    return [message.model_copy(deep=True) for message in messages]


def bytes_in(message: BaseMessage) -> int:
    """The size of a message with text content, counted anew."""
    size = len(message.text.encode("utf-8", "surrogatepass"))
    if isinstance(message, ToolMessage):
        size += len(message.tool_call_id.encode()) + len((message.name or "").encode())
    for call in getattr(message, "tool_calls", ()):
        arguments = (
            "{" + ", ".join(f'"{key}": "{value}"' for key, value in call["args"].items()) + "}"
        )
        size += len(f"{call['id'] or ''}function{call['name']}{arguments}".encode())
    return size


# ---------------------------------------------------------------------------------------------------------------------
# Parsing


def test_sections_begin_with_human_messages() -> None:
    """The system message goes into the first header; each later human message begins a section."""
    chain = parse_chain(chain_of("s", "h", "a", "h", "a x y", "t x", "t y", "a", "h"))
    outline = [
        (len(section.header.messages()), [pair.kind for pair in section.body])
        for section in chain.sections
    ]
    assert outline == [(2, ["completion"]), (1, ["request_response", "completion"]), (1, [])]
    assert ids(chain.sections[1].body[0].messages()) == ["m4", "m5", "m6"]


@each_case(
    ("kinds", "index", "problem"),
    [
        (["h", "a x"], 1, "the call 'x' has no result"),
        (["h", "a x", "h"], 1, "the call 'x' has no result"),
        (["h", "a x x", "t x"], 1, "the call 'x' has no result"),
        (["h", "a x", "t x", "t y"], 3, "a result for 'y', which no call has"),
        (["h", "a x", "t x", "t x"], 3, "a second result for 'x'"),
        (["h", "h"], 1, "a human message follows a human message"),
        (["h", "t x"], 1, "a tool message without a call"),
        (["h", "a", "t x"], 2, "a tool message without a call"),
        (["t x"], 0, "a tool message without a call"),
        (["a", "h"], 0, "a chain begins with a system or a human message"),
        (["h", "a x", "a", "t x"], 3, "the result for 'x' comes late"),
    ],
)
def test_what_can_be_repaired_is_refused_without_repair(
    kinds: list[str], index: int, problem: str
) -> None:
    """The error names the index and the id of the message, and mentions repair."""
    with pytest.raises(MalformedChainError, match=f"{problem}.*repair=True") as caught:
        parse_chain(chain_of(*kinds))
    assert (caught.value.index, caught.value.message_id) == (index, f"m{index}")
    assert isinstance(caught.value, InvalidInputError)
    parse_chain(chain_of(*kinds), repair=True)


OTHER_KINDS = [
    SystemMessage("Be brief.", id="k"),
    FunctionMessage(content="2", name="f", id="k"),
    ChatMessage(content="Hm.", role="critic", id="k"),
    RemoveMessage(id="k"),
]


@pytest.mark.costly
@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("kept", OTHER_KINDS, ids=lambda message: message.type)
@pytest.mark.parametrize("index", [0, 1, 2, 3, 5, 6, 7])
def test_system_messages_and_other_kinds_are_kept_in_place(
    index: int, kept: Any, repair: bool
) -> None:
    """Wherever they stand, the very objects in their order, and no section or pair is parted by them."""
    around = chain_of("s", "h", "a", "a x", "t x", "h", "a")
    messages = [*around[:index], kept, *around[index:]]
    chain = parse_chain(messages, repair=repair)
    assert all(message is two for message, two in zip(chain.messages(), messages, strict=True))
    assert chain.repairs == ()
    assert [len(section.body) for section in chain.sections] == [2, 1]
    assert (
        chain.size == sum(section.size for section in chain.sections) == sum(map(size_of, messages))
    )


def test_two_system_messages_at_the_head_are_one_header() -> None:
    """The first is the header's, the second follows it."""
    chain = parse_chain(chain_of("s", "s", "h", "a"))
    assert ids(chain.sections[0].header.messages()) == ["m0", "m1", "m2"]
    assert chain.sections[0].header.system.id == "m0"


def test_a_message_between_two_questions_begins_a_section() -> None:
    """A question after a system message begins a new section. It is not joined to the question before."""
    chain = parse_chain(chain_of("h", "s", "h", "a"))
    assert [ids(section.messages()) for section in chain.sections] == [["m0", "m1"], ["m2", "m3"]]
    grown = parse_chain(chain_of("h", "s")).append_human("And?")
    assert [message.type for message in grown.messages()] == ["human", "system", "human"]


def test_a_result_is_put_before_what_stands_between_it_and_its_call() -> None:
    """Providers refuse a list where it does not follow its call; the message in between stays after it."""
    messages = chain_of("h", "a x y", "t x", "s", "t y")
    with pytest.raises(
        MalformedChainError, match=r"the result for 'y' comes after a system message.*repair=True"
    ):
        parse_chain(messages)
    mended = parse_chain(messages, repair=True)
    assert ids(mended.messages()) == ["m0", "m1", "m2", "m4", "m3"]
    assert len(mended.repairs) == 1
    assert parse_chain(mended.messages()) == mended


def test_operations_keep_what_they_do_not_know() -> None:
    """A result for a call, new ids, cleared reasoning and joined questions leave other messages where they are."""
    thinking = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}]
    messages = [
        *chain_of("s", "s", "h", "a x"),
        ChatMessage(content=thinking, role="critic", id="c"),
    ]
    chain = parse_chain(messages, repair=True).add_tool_response(
        ToolMessage("found", tool_call_id="x", id="r")
    )
    chain = (
        chain.normalize_tool_call_ids("call_{r:24:x}")
        .clear_reasoning()
        .sanitize_tool_call_arguments()
    )
    assert ids(chain.messages()) == ["m0", "m1", "m2", "m3", "r", "c"]
    assert chain.messages()[-1].content == thinking[1:]
    joined = parse_chain(chain_of("s", "s", "h")).append_human("More.")
    assert [message.text for message in joined.messages()] == [
        "text m0",
        "text m1",
        "text m2\n\nMore.",
    ]


@each_case("repair", [False, True])
def test_what_is_no_message_is_refused(repair: bool) -> None:
    """By an error that names its place and what it is."""
    with pytest.raises(MalformedChainError, match="LangChain messages, not of dict") as caught:
        parse_chain([*chain_of("h"), {"role": "user", "content": "hi"}], repair=repair)
    assert caught.value.index == 1


def test_a_repair_answers_a_call_that_has_no_result() -> None:
    """With the fixed text, an error status, the mark and the tool's name, in the place of the call's order."""
    chain = parse_chain(chain_of("h", "a x y", "t y", "h"), repair=True)
    [made, kept] = chain.sections[0].body[0].results
    assert (made.content, made.tool_call_id, made.name, made.status) == (
        MISSING_RESULT,
        "x",
        "search",
        "error",
    )
    assert MISSING_RESULT == "the call was not handled, please try again"
    assert made.additional_kwargs == {"convstore": {"kind": "missing_result"}}
    assert kept.id == "m2"
    assert chain.repairs == ("message 1: the call 'x' has no result: an error result was added",)


def test_a_repair_joins_humans_in_a_row() -> None:
    """Repair joins consecutive human messages into one header, in order. The input messages are not changed."""
    messages = chain_of("h", "h", "h", "a")
    before = copied(messages)
    chain = parse_chain(messages, repair=True)
    assert chain.sections[0].header.human.content == "text m0\n\ntext m1\n\ntext m2"
    assert chain.sections[0].header.human.id == "m0"
    assert len(chain.repairs) == 2
    assert same(messages, before)


def test_joined_humans_keep_their_blocks() -> None:
    """A list of blocks makes the joined content one, and an image stays the block it was."""
    image = {"type": "image", "base64": "aGk=", "mime_type": "image/png"}
    chain = parse_chain([HumanMessage("one"), HumanMessage([image]), HumanMessage("")], repair=True)
    assert chain.sections[0].header.human.content == [{"type": "text", "text": "one"}, image]


def test_a_repair_drops_stray_tool_messages() -> None:
    """A tool message without an earlier AI message with calls in its section is dropped."""
    chain = parse_chain(chain_of("h", "t x", "a", "t x", "h", "t y"), repair=True)
    assert ids(chain.messages()) == ["m0", "m2", "m4"]
    assert [line.partition(":")[0] for line in chain.repairs] == [
        "message 1",
        "message 3",
        "message 5",
    ]


def test_a_repair_gives_a_call_to_a_result_of_another_id() -> None:
    """With the result's tool name and empty arguments, on a copy of the AI message."""
    messages = chain_of("h", "a x", "t x", "t y")
    before = copied(messages)
    [pair] = parse_chain(messages, repair=True).pairs()
    assert pair.ai.tool_calls[1] == {"name": "search", "args": {}, "id": "y", "type": "tool_call"}
    assert ids(pair.messages()) == ["m1", "m2", "m3"]
    assert same(messages, before)


def test_a_repair_keeps_an_ai_message_at_the_start() -> None:
    """Assistants that greet first have such logs; its section has an empty header, and nothing is put before it."""
    messages = chain_of("a", "a x", "t x", "h", "a")
    chain = parse_chain(messages, repair=True)
    assert all(message is two for message, two in zip(chain.messages(), messages, strict=True))
    assert [(each.header, len(each.body)) for each in chain.sections] == [
        (Header(), 2),
        (Header(None, messages[3]), 1),
    ]
    assert len(chain.repairs) == 1


def test_a_second_result_never_makes_a_second_call() -> None:
    """The first answer stays, the other is dropped and named."""
    chain = parse_chain(chain_of("h", "a x", "t x", "t x"), repair=True)
    assert ids(chain.messages()) == ["m0", "m1", "m2"]
    assert chain.repairs == ("message 3: a second result for 'x': dropped",)


def test_a_late_result_follows_its_call() -> None:
    """A result that follows later messages is moved to its unanswered call."""
    chain = parse_chain(chain_of("h", "a x y", "t y", "h", "t x", "a"), repair=True)
    assert ids(chain.messages()) == ["m0", "m1", "m4", "m2", "m3", "m5"]


def test_calls_that_are_not_in_tool_calls_need_results_too() -> None:
    """Invalid calls and calls in content blocks, as `pairing` counts them."""
    invalid = AIMessage(
        "", invalid_tool_calls=[{"name": "f", "args": "{", "id": "x", "error": None}]
    )
    block = AIMessage([{"type": "tool_use", "id": "x", "name": "f", "input": {}}])
    for ai in (invalid, block):
        with pytest.raises(MalformedChainError, match="'x' has no result"):
            parse_chain([HumanMessage("Hi!"), ai])
        chain = parse_chain([HumanMessage("Hi!"), ai, ToolMessage("2", tool_call_id="x")])
        assert [pair.kind for pair in chain.pairs()] == ["request_response"]


# ---------------------------------------------------------------------------------------------------------------------
# Kinds


def test_both_forms_of_a_summary_are_recognised() -> None:
    """A call of the tool that summarises, and an answer that begins with the prefix; a mere mention is none."""
    call = {"name": SUMMARY_TOOL, "args": {}, "id": "x"}
    other = {"name": "search", "args": {}, "id": "y"}
    results = (
        ToolMessage("Ada likes orcas.", tool_call_id="x"),
        ToolMessage("2", tool_call_id="y"),
    )
    pairs = [
        Pair(AIMessage("", tool_calls=[call]), results[:1]),
        Pair(AIMessage("", tool_calls=[call, other]), results),
        Pair(AIMessage(SUMMARY_PREFIX + "Ada likes orcas.")),
        Pair(AIMessage([{"type": "text", "text": SUMMARY_PREFIX + "Ada likes orcas."}])),
        Pair(AIMessage("See " + SUMMARY_PREFIX)),
    ]
    assert [pair.kind for pair in pairs] == [
        "summarization",
        "request_response",
        *["completion"] * 3,
    ]
    assert [pair.is_summary for pair in pairs] == [True, False, True, True, False]
    assert (SUMMARY_TOOL, SUMMARY_PREFIX) == (
        "execute_task_and_return_summary",
        "**summarized content:**\n",
    )


# ---------------------------------------------------------------------------------------------------------------------
# Sizes


@pytest.mark.parametrize(
    ("message", "size"),
    [
        pytest.param(AIMessage("\ud800"), 3, id="lone surrogate"),
        pytest.param(
            AIMessage(["ab", {"type": "text", "text": "ü", "citations": [1]}]), 4, id="text blocks"
        ),
        pytest.param(
            HumanMessage([{"type": "image_url", "image_url": {"url": "data:aGk="}}]),
            9,
            id="image_url",
        ),
        pytest.param(
            HumanMessage([{"type": "image", "base64": "aGk=", "mime_type": "image/png"}]),
            4,
            id="base64",
        ),
        pytest.param(HumanMessage([{"type": "audio", "data": b"\xff\0\xff"}]), 3, id="bytes"),
        pytest.param(
            HumanMessage([{"type": "file", "file": {"file_data": "abc", "filename": "x"}}]),
            3,
            id="file",
        ),
        pytest.param(
            HumanMessage([{"type": "document", "source": {"type": "text", "data": "abcde"}}]),
            5,
            id="source",
        ),
        pytest.param(
            AIMessage([{"type": "web_search_call", "n": 1}]), 35, id="another block, as JSON"
        ),
        pytest.param(
            AIMessage([{"type": "thinking", "thinking": "long", "signature": "s"}]),
            0,
            id="reasoning",
        ),
        pytest.param(
            AIMessage("a", additional_kwargs={"reasoning_content": "long"}),
            1,
            id="reasoning in kwargs",
        ),
        pytest.param(
            AIMessage(
                [{"type": "tool_use", "id": "x", "name": "f", "input": {"a": 1}}],
                tool_calls=[{"name": "f", "args": {"a": 1}, "id": "x"}],
            ),
            1 + 8 + 1 + 8,
            id="a call in two indexes counts once",
        ),
        pytest.param(
            AIMessage(
                [{"type": "function_call", "call_id": "x", "name": "f", "arguments": '{"a":1}'}]
            ),
            1 + 8 + 1 + 7,
            id="a call in a block alone",
        ),
        pytest.param(
            AIMessage(
                "", invalid_tool_calls=[{"name": "f", "args": "{oh", "id": "x", "error": "long"}]
            ),
            1 + 8 + 1 + 3,
            id="invalid call",
        ),
        pytest.param(
            AIMessage("", tool_calls=[{"name": "f", "args": {"q": "ü"}, "id": None}]),
            20,
            id="call without id",
        ),
        pytest.param(
            ToolMessage("ab", tool_call_id="x", artifact="long"), 3, id="an artifact is not sent"
        ),
    ],
)
def test_what_counts(message: Any, size: Any) -> None:
    """Every text, every call once, media by their length; reasoning and what no model sees count nothing."""
    pair = (
        Pair(AIMessage(""), (message,))
        if isinstance(message, ToolMessage)
        else Header(None, message)
    )
    assert pair.size == size


def test_bytes_of_repairs_are_counted() -> None:
    """A result that was made, a call that was added and a human message that was joined make the chain larger."""
    missing = parse_chain(chain_of("h", "a x"), repair=True)
    assert missing.size == parse_chain(chain_of("h", "a")).size + len(
        'xfunctionsearch{"q": "m1"}'
    ) + len("xsearch" + MISSING_RESULT)
    added = parse_chain(chain_of("h", "a x", "t x", "t y"), repair=True)
    assert added.size == sum(map(bytes_in, chain_of("h", "a x", "t x", "t y"))) + len(
        "yfunctionsearch{}"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Adding


def test_a_human_begins_the_first_section() -> None:
    """append_human() begins the first section of an empty chain."""
    chain = Chain().append_human("Hi!")
    assert chain == Chain((Section(Header(None, HumanMessage("Hi!"))),))


def test_a_human_message_begins_a_section_after_a_body() -> None:
    """A HumanMessage is taken as it is."""
    before = parse_chain(chain_of("s", "h", "a"))
    human = HumanMessage("And now?", id="m9")
    after = before.append_human(human)
    assert after.messages() == [*before.messages(), human]
    assert (len(before.sections), len(after.sections)) == (1, 2)
    assert after.size == before.size + 8


def test_a_human_completes_a_header() -> None:
    """append_human() completes a header that has only a system message."""
    chain = parse_chain(chain_of("s")).append_human([{"type": "text", "text": "Hi!"}])
    assert len(chain.sections) == 1
    assert [message.text for message in chain.sections[0].header.messages()] == ["text m0", "Hi!"]


def test_a_human_joins_one_that_nobody_answered() -> None:
    """append_human() joins an unanswered human message, so that no two are adjacent. The original is not changed."""
    messages = chain_of("s", "h")
    before = parse_chain(messages)
    after = before.append_human("And?")
    assert after.sections[0].header.human.content == "text m1\n\nAnd?"
    assert (messages[1].content, before.sections[0].header.human) == ("text m1", messages[1])


def test_a_response_takes_the_place_of_the_one_there() -> None:
    """In the newest AI message with such a call; the chain before stays."""
    before = parse_chain(chain_of("h", "a x", "t x", "a x y", "t y", "t x", "a"))
    after = before.add_tool_response(ToolMessage("new", id="m9", tool_call_id="x"))
    assert ids(after.messages()) == ["m0", "m1", "m2", "m3", "m4", "m9", "m6"]
    assert ids(before.messages()) == ["m0", "m1", "m2", "m3", "m4", "m5", "m6"]
    assert after.size == sum(map(bytes_in, after.messages()))


def test_a_response_answers_a_call_that_waits() -> None:
    """A result that a repair made gives way first, and a pair without results gets one in the calls' order."""
    chain = parse_chain(chain_of("h", "a x x", "t x"), repair=True)
    assert ids(
        chain.add_tool_response(ToolMessage("2", id="new", tool_call_id="x")).messages()
    ) == [*("m0", "m1", "m2", "new")]
    chain = parse_chain(chain_of("h", "a x x"), repair=True)
    for name in ("one", "two", "again"):
        chain = chain.add_tool_response(ToolMessage("2", id=name, tool_call_id="x"))
    assert ids(chain.messages()[2:]) == ["one", "again"]
    ai = chain_of("a x y z")[0]
    chain = Chain((Section(Header(None, HumanMessage("Hi!")), (Pair(ai),)),))
    for name in "zxy":
        chain = chain.add_tool_response(ToolMessage("2", id=name, tool_call_id=name))
    assert ids(chain.messages()[2:]) == ["x", "y", "z"]


def test_a_response_without_a_call_is_refused() -> None:
    """By an error that names the id."""
    with pytest.raises(MalformedChainError, match="no call of this chain has the id 'q'"):
        parse_chain(chain_of("h", "a x", "t x")).add_tool_response(
            ToolMessage("2", tool_call_id="q")
        )


def test_a_chain_can_not_be_changed() -> None:
    """All parts are frozen."""
    chain = parse_chain(chain_of("h", "a x", "t x"))
    for part, name in (
        (chain, "sections"),
        (chain.sections[0], "body"),
        (chain.sections[0].body[0], "results"),
    ):
        with pytest.raises(AttributeError):
            setattr(part, name, ())
