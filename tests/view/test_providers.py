"""Views that are safe for a provider that did not write all of them."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from mongomock_motor import AsyncMongoMockClient
from strategies import PureLog, messages

from convstore import Conversation, ConversationStore, HistoryPolicy, InvalidInputError
from convstore.messages.provenance import kind_of
from convstore.messages.tokens import TokenCounter, approximate_tokens
from convstore.messages.tool_calls import calls_of, pair
from convstore.testing import same_messages
from convstore.testing.pairing import check_pairing
from convstore.types import Dropped
from convstore.values.call_id_templates import CallIdTemplate
from convstore.values.policy import parse_policy
from convstore.values.providers import ROWS, ProviderRules
from convstore.view.provider_rules import made_for, with_original_ids

PROVIDERS = ("anthropic", "bedrock_converse", "google_genai", "mistralai", "openai")
"""Those with packages of LangChain."""
names = st.sampled_from(PROVIDERS)
ANTHROPIC = HistoryPolicy(provider="anthropic")


def called(number: int, id_: str, provider: str = "openai", **more: Any) -> list[BaseMessage]:
    """A call and its result, as a provider writes them."""
    call = {"name": "search", "args": {"n": number}, "id": id_, "type": "tool_call"}
    content: Any = [
        {"type": "thinking", "thinking": "hm", "signature": "s=="},
        {"type": "text", "text": "Let me look."},
    ]
    metadata = {"model_provider": provider}
    return [
        AIMessage(content, id=f"a{number}", tool_calls=[call], response_metadata=metadata, **more),
        ToolMessage(f"found {number}", id=f"t{number}", tool_call_id=id_),
    ]


@pytest.fixture
async def chat() -> Conversation:
    """An empty conversation in memory."""
    store = ConversationStore(AsyncMongoMockClient()["app"])
    await store.setup()
    return store.conversation(user_id="ada", thread_id="t")


def ids_of(view: list[BaseMessage]) -> list[str]:
    """Ids of calls, in order."""
    return [call.id for message in view for call in calls_of(message)]


async def test_parts_of_another_provider_are_converted(chat: Conversation) -> None:
    """Ids in the right form, no foreign reasoning, arguments that are JSON, no system message in the middle."""
    raw = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "search", "arguments": '{"q": "a\nb"}'},
    }
    turn = [
        HumanMessage("q", id="q"),
        *called(1, "call_1", additional_kwargs={"tool_calls": [raw]}),
    ]
    await chat.append([*turn, SystemMessage("Be brief.", id="late"), AIMessage("Done.", id="z")])
    view = (await chat.load_history(ANTHROPIC)).messages
    assert [message.type for message in view] == ["human", "ai", "tool", "human", "ai"]
    assert (view[3].content, view[3].id) == ("[Instruction of the application]\nBe brief.", "late")
    assert re.fullmatch(r"toolu_\w{24}", ids_of(view)[0])
    assert "thinking" not in str(view)
    assert "s==" not in str(view)
    assert r"a\nb" in str(view[1].additional_kwargs["tool_calls"][0]["function"]["arguments"])
    assert check_pairing(view) == []
    assert same_messages([message async for message in chat.messages()][:3], turn)


async def test_what_the_provider_wrote_itself_stays(chat: Conversation) -> None:
    """Byte for byte, reasoning and signatures too."""
    turn = [HumanMessage("q", id="q"), *called(1, "toolu_" + "a" * 24, provider="anthropic")]
    await chat.append(turn)
    assert same_messages((await chat.load_history(ANTHROPIC)).messages, turn)


async def test_ids_are_the_same_each_time_and_each_once(chat: Conversation) -> None:
    """An id that comes again is another one in the view; what stood before keeps its ids as the log grows."""
    seen: list[str] = []
    for number in range(4):
        again = "call_0" if number < 2 else f"call_{'a' * 24}"
        await chat.append(
            [HumanMessage("q", id=f"q{number}"), *called(number, again), AIMessage("so")]
        )
        for policy in (HistoryPolicy(provider="google_genai"), ANTHROPIC):
            view = (await chat.load_history(policy)).messages
            assert len(set(ids_of(view))) == number + 1
            assert check_pairing(view) == []
        assert ids_of(view)[: len(seen)] == seen
        seen = ids_of(view)


async def test_a_result_that_comes_back_under_a_new_id_finds_its_call(chat: Conversation) -> None:
    """An agent that goes on from the view answers with the ids that it saw."""
    ai, result = called(1, "call_abc")
    await chat.append([HumanMessage("q"), ai])
    shown = ids_of((await chat.load_history(ANTHROPIC)).messages)[0]
    assert shown != "call_abc"
    await chat.append(result.model_copy(update={"tool_call_id": shown}))
    history = await chat.load_history(ANTHROPIC)
    assert (history.report.orphans, history.report.missing_results) == ((), ())
    assert history.messages[-1].text == "found 1"


@pytest.mark.slow
@given(st.lists(messages, max_size=8), names)
def test_any_list_becomes_one_that_is_safe(given_: list[BaseMessage], provider: str) -> None:
    """Paired as before, ids in form and each once, nothing lost but reasoning; again changes nothing."""
    numbered = [
        message.model_copy(update={"id": f"m{index}"}) for index, message in enumerate(given_)
    ]
    paired = pair(with_original_ids(numbered, ROWS[provider])).messages
    made = made_for(paired, ROWS[provider])
    form = CallIdTemplate(ROWS[provider].call_ids)
    tools = [call for message in made for call in calls_of(message)]
    assert check_pairing(made) == check_pairing(paired)
    assert all(form.fits(call.id, tool=call.tool) for call in tools)
    assert len({call.id for call in tools}) == len(tools)
    theirs = [
        message
        for message in made
        if kind_of(message) not in ("beginning", "no_answer", "media", "said")
    ]
    assert sorted(str(message.id) for message in theirs) == sorted(
        str(message.id) for message in paired
    )
    assert made_for(made, ROWS[provider]) == made


def test_an_answer_of_another_provider_is_cleaned() -> None:
    """Names, arguments and hosted tools that only the other one knows; a failed result is text for Anthropic."""
    ran = {"type": "code_interpreter_call", "id": "ci_1", "code": "1 + 1", "outputs": []}
    cut = {
        "name": "save",
        "args": "[1]",
        "id": "c2",
        "error": None,
        "type": "invalid_tool_call",
    }
    call = {"name": "mcp.files:read", "args": {}, "id": "c1", "type": "tool_call"}
    picture = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
    failed: Any = [{"type": "text", "text": "No."}, picture]
    asked = HumanMessage("q", name="Ada <L>")
    answer = AIMessage([ran, "Look."], tool_calls=[call], invalid_tool_calls=[cut], id="a")
    read = ToolMessage("1", tool_call_id="c1", name="mcp.files:read")
    saved = ToolMessage(failed, tool_call_id="c2", status="error")
    log = [asked, answer, read, saved]
    for provider in PROVIDERS:
        made = made_for(log, ROWS[provider])
        said = [message for message in made if kind_of(message) == "said"]
        assert len(said) == (provider == "mistralai")  # whose package leaves it out beside calls
        human, ai, result, error, *_ = (message for message in made if message not in said)
        assert isinstance(ai, AIMessage)
        assert (human.name, result.name) == ("Ada_L_", "mcp_files_read")
        assert (ai.tool_calls[0]["name"], ai.invalid_tool_calls[0]["args"]) == (result.name, "{}")
        assert "code_interpreter_call" not in str(ai.content)
        assert "1 + 1" in (said or [ai])[0].text
        assert made_for([asked, *said, *log[1:]], ROWS[provider]) == made
        assert (picture in error.content) == (provider in ("bedrock_converse", "google_genai"))


async def test_a_policy_takes_rows_of_the_users_own(chat: Conversation) -> None:
    """By their fields, not by their name; the stamp and the text of the policy have them."""
    cut = {"type": "custom_tool_call", "call_id": "c1", "name": "run", "input": "1"}
    call = {"name": "run", "args": {"__arg1": "1"}, "id": "c1"}
    answer = AIMessage([cut], tool_calls=[call], response_metadata={"model_provider": "openai"})
    log = [HumanMessage("q"), SystemMessage("Now."), answer, ToolMessage("2", tool_call_id="c1")]
    await chat.append(log)
    rows = {
        name: replace(ROWS[name], name="own", system="first") for name in ("openai", "compatible")
    }
    kinds = dict.fromkeys(rows, "")
    for name, row in rows.items():
        policy = HistoryPolicy(provider=row)
        assert HistoryPolicy(**policy.changed) == parse_policy(str(policy)) == policy
        history = await chat.load_history(policy)
        types = [message.type for message in history.messages]
        assert types[:4] == ["human", "human", "ai", "tool"]
        kinds[name] = str(history.messages[3].content)
        assert history.stamp is not None
        await chat.append(AIMessage("So."), stamp=history.stamp)
        past = await chat.view_at(history.stamp)
        assert past.policy == policy
    assert "custom_tool_call_output" in kinds["openai"]
    assert kinds["compatible"] == "2"


def test_what_a_package_leaves_out_is_sent_apart_or_named() -> None:
    """A text beside calls, of its own answers too, and reasoning; the message with the calls keeps its id."""
    ai, result = called(1, "abcdefghi", provider="mistralai")
    made = made_for([HumanMessage("?"), ai, result], ROWS["mistralai"])
    assert [(message.type, message.id) for message in made[1:3]] == [
        ("ai", "said-a1"),
        ("ai", "a1"),
    ]
    assert (made[1].content, made[2].content) == (ai.content, "")
    metadata = {"model_provider": "deepseek"}
    thought = {"reasoning_content": "Hm."}
    answer = AIMessage("So.", id="a", additional_kwargs=thought, response_metadata=metadata)
    dropped = list[Dropped]()
    assert made_for([HumanMessage("?"), answer], ROWS["deepseek"], dropped)[1] is answer
    assert [(part.message_id, part.part) for part in dropped] == [("a", "reasoning")]


@each_case("options", [{"system": "late"}, {"call_ids": "call_1"}, {"reasoning": None}])
def test_a_row_is_checked_when_it_is_made(options: dict[str, Any]) -> None:
    """Not when it is used."""
    with pytest.raises(InvalidInputError, match=next(iter(options)).replace("_", " ")):
        ProviderRules(name="own", **options)


def test_mistral_gets_an_answer_between_a_result_and_a_user() -> None:
    """A turn that was stopped after its tool; what stands before it is the same later."""
    call = {"name": "t", "args": {}, "id": "abcdefghi", "type": "tool_call"}
    stopped = [HumanMessage("q"), AIMessage("", tool_calls=[call], id="a")]
    log = [*stopped, ToolMessage("1", tool_call_id="abcdefghi", id="t"), HumanMessage("!", id="h")]
    made = made_for(
        [*log, SystemMessage("Be brief."), AIMessage("So."), SystemMessage("B")], ROWS["mistralai"]
    )
    types = ["human", "ai", "tool", "ai", "human", "system", "ai", "human"]
    assert [message.type for message in made] == types
    assert kind_of(made[3]) == "no_answer"
    assert made_for(log, ROWS["mistralai"]) == made[:5]


said = st.sampled_from(
    ["", " ", [], [{"type": "text", "text": ""}], "yes", [{"type": "thinking", "thinking": "hm"}]]
)
spoken = st.builds(
    AIMessage, said, response_metadata=names.map(lambda name: {"model_provider": name})
)
difference = st.builds(
    SystemMessage, st.sampled_from(["It is noon.", [{"type": "text", "text": "It is noon."}]])
)
steps = st.one_of(
    st.tuples(difference | spoken),
    st.tuples(
        st.just(
            AIMessage(
                "", tool_calls=[{"name": "t", "args": {}, "id": "call_1", "type": "tool_call"}]
            )
        ),
        st.builds(ToolMessage, st.sampled_from(["x", "x" * 2_000]), tool_call_id=st.just("call_1")),
    ),
)


@given(
    st.lists(difference, max_size=2),
    st.lists(st.lists(steps, max_size=5), max_size=4),
    names,
)
def test_a_view_begins_with_the_one_before(
    head: list[Any], turns: list[list[Any]], name: Any
) -> None:
    """At the start of each turn, under every provider, whatever system messages and empty answers there are."""
    log, before, number = PureLog(), list[str](), 0

    def numbered(*batch: BaseMessage) -> list[BaseMessage]:
        nonlocal number
        number += len(batch)
        return [
            message.model_copy(update={"id": f"m{number - index}"})
            for index, message in enumerate(batch)
        ]

    for turn in [head, *([message for step in steps for message in step] for steps in turns)]:
        kinds = [message.type for message in turn if message.type in ("ai", "tool")]
        if kinds[-1:] == ["tool"]:  # what a turn that broke off left unread is a stub later
            turn = [*turn, AIMessage("So.")]  # noqa: PLW2901
        if turn:
            log.append(numbered(*turn))
        log.append(numbered(HumanMessage("q")))
        view = [
            repr(message)
            for message in log.view(HistoryPolicy(provider=name, max_tokens=None)).messages
        ]
        assert view[: len(before)] == before
        before = view


@each_case("provider", PROVIDERS)
def test_system_messages_stand_where_they_were_said(provider: str) -> None:
    """The leading ones stay; of the others a provider that takes them at the head alone gets human messages."""
    said: list[BaseMessage] = [
        SystemMessage("A", id="a"),
        SystemMessage("B", id="b"),
        HumanMessage("q", id="q"),
    ]
    said += [SystemMessage([{"type": "text", "text": "C"}], id="c"), AIMessage("yes", id="y")]
    made = made_for(said, ROWS[provider])
    assert [message.id for message in made] == ["a", "b", "q", "c", "y"]
    assert made[:3] == said[:3]
    assert made[3].type == ("human" if ROWS[provider].system == "first" else "system")
    assert made[3].text.endswith("C")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("own", [True, False])
def test_no_answer_is_empty(provider: str, own: bool) -> None:
    """Providers refuse an AI message without content and calls; one that says or calls something stays."""
    metadata = {"model_provider": provider if own else "another"}
    call = {"name": "t", "args": {}, "id": "toolu_" + "a" * 24, "type": "tool_call"}
    asked = HumanMessage("q")
    blank: list[Any] = ["", " \n", [], [""], [{"type": "text", "text": " "}]]
    for content in blank:
        empty = AIMessage(
            content, id="e", additional_kwargs={"refusal": None}, response_metadata=metadata
        )
        assert [message.content for message in made_for([asked, empty], ROWS[provider])] == [
            "q",
            "(no text)",
        ]
        calling = AIMessage(content, id="e", tool_calls=[call], response_metadata=metadata)
        assert (
            made_for([asked, calling, ToolMessage("x", tool_call_id=call["id"])], ROWS[provider])[
                1
            ].content
            == content
        )
    thinking = AIMessage(
        [{"type": "thinking", "thinking": "hm", "signature": "s=="}], response_metadata=metadata
    )
    assert made_for([asked, thinking], ROWS[provider])[1].content == (
        [*thinking.content, {"type": "text", "text": "(no text)"}] if own else "(no text)"
    )


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("kind", [HumanMessage, SystemMessage])
def test_no_message_is_empty(provider: str, kind: type[BaseMessage]) -> None:
    """Providers refuse human and system messages without content, too; one that shows something stays."""
    blank: list[Any] = ["", " \n", [], [""], [{"type": "text", "text": " "}]]
    picture: Any = [
        {"type": "text", "text": ""},
        {"type": "image", "base64": "AAAA", "mime_type": "image/png"},
    ]
    said = [kind(content, id="m") for content in [*blank, "hi", picture]]
    made = [made_for([message, HumanMessage("q")], ROWS[provider])[0] for message in said]
    assert [message.content for message in made] == ["(no text)"] * len(blank) + ["hi", picture]
    assert {(type(message), message.id) for message in made} == {(kind, "m")}


SEARCH = {
    "type": "search_result",
    "source": "https://a.example",
    "title": "Terms",
    "content": [{"type": "text", "text": "A refund takes 14 days."}],
    "citations": {"enabled": True},
}
PDF = b64encode(b"%PDF-1.4 ...").decode()
FOREIGN: list[tuple[Any, Any, str]] = [
    (
        SEARCH,
        {"type": "text", "text": "Terms\nhttps://a.example\nA refund takes 14 days."},
        "citations",
    ),
    (
        {"type": "document", "source": {"type": "text", "data": "14 days."}, "title": "Terms"},
        {"type": "text", "text": "Terms\n14 days."},
        "",
    ),
    (
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
        },
        {"type": "file", "mime_type": "application/pdf", "base64": PDF},
        "",
    ),
    (
        {"type": "document", "source": {"type": "url", "url": "https://a.example/b.pdf"}},
        {"type": "text", "text": '[file "https://a.example/b.pdf"]'},
        "file",
    ),
    ({"type": "input_text", "text": "When?"}, {"type": "text", "text": "When?"}, ""),
    ("When?", {"type": "text", "text": "When?"}, ""),
    (
        {"type": "json", "json": {"days": 14}},
        {"type": "text", "text": '{"type": "json", "json": {"days": 14}}'},
        "",
    ),
]


@each_case("at", range(len(FOREIGN)))
def test_blocks_of_people_and_tools_follow_a_switch_of_providers(at: int) -> None:
    """OpenAI rejects the request for a form of Anthropic, and langchain-openai drops it in silence for its other API.

    A text stands for it, or a file in LangChain's form; what is left out is named.
    """
    block, sent, lost = FOREIGN[at]
    said: dict[str, Any] = {"type": "text", "text": "Look:"}
    calling = AIMessage("", id="a", tool_calls=[{"name": "look", "args": {}, "id": "call_1"}])
    found = ToolMessage([said, block], tool_call_id="call_1", id="t")
    dropped = list[Dropped]()
    made = made_for([HumanMessage([said, block], id="h"), calling, found], ROWS["openai"], dropped)
    assert made[0].content == [said, sent]
    assert made[-1].content[-1] == sent
    assert [(loss.message_id, loss.part) for loss in dropped] == [
        (id_, lost) for id_ in ("h", "t") if lost
    ]
    assert made_for(made[:1], ROWS["openai"])[0] is made[0]


def test_blocks_that_the_package_takes_stay() -> None:
    """Anthropic's own forms go to Claude as they came; OpenAI's to OpenAI; Google's package reads forms of its own."""
    audio = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
    document = {"type": "document", "source": {"type": "text", "data": "14 days."}}
    items = {"type": "mcp_approval_response", "approval_request_id": "r1", "approve": True}
    google = {"type": "media", "mime_type": "video/mp4", "file_uri": "gs://a/b"}
    for provider, blocks in (
        ("anthropic", [SEARCH, document, {"type": "container_upload", "file_id": "file_1"}]),
        ("openai", [audio, items, {"type": "file", "file": {"file_id": "file-1"}}]),
        ("google_genai", [google]),
    ):
        message = HumanMessage(blocks)
        assert made_for([message], ROWS[provider])[0] is message
    [heard] = made_for([HumanMessage([audio])], ROWS["anthropic"])
    assert heard.content == [{"type": "text", "text": "[audio, 2 bytes]"}]


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_an_assistant_may_greet_first(chat: Conversation, provider: Any) -> None:
    """Anthropic, Bedrock and Gemini want a human message first: one that says that it was made is added, and stays."""
    greeting = [SystemMessage("Be kind.", id="s"), AIMessage("Hi! How can I help?", id="beginning")]
    policy, before = HistoryPolicy(provider=provider), list[BaseMessage]()
    for message in [*greeting, HumanMessage("Do orcas sleep?", id="q"), AIMessage("Yes.", id="a")]:
        await chat.append(message)
        view = (await chat.load_history(policy)).messages
        assert same_messages(view[: len(before)], before)
        before = view
    made = [message for message in before if kind_of(message)]
    assert [message.id for message in before if not kind_of(message)] == [
        "s",
        "beginning",
        "q",
        "a",
    ]
    assert [(message.type, message.text, message.id) for message in made] == (
        [("human", "(The conversation begins.)", "beginning~")]
        if ROWS[provider].human_first
        else []
    )
    assert made == before[1:2] * len(made)


def characters(messages: Sequence[BaseMessage]) -> int:
    """A counter that sees ids and marks, too."""
    return sum(len(str(message)) for message in messages)


@pytest.mark.costly
@pytest.mark.parametrize("counter", [approximate_tokens, characters])
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_sizes_are_those_of_the_view(provider: Any, counter: TokenCounter) -> None:
    """The size of a view is that of its messages as shown, even of messages that were appended in another form."""
    store = ConversationStore(AsyncMongoMockClient()["app"], token_counter=counter)
    await store.setup()
    chat = store.conversation(user_id="ada", thread_id="t")
    thinking: Any = [
        {"type": "thinking", "thinking": "hm " * 900, "signature": "s=="},
        {"type": "text", "text": "Yes."},
    ]
    metadata = {"model_provider": "another"}
    await chat.append([AIMessage("Hi!", id="g"), HumanMessage("", id="q"), *called(1, "call_1")])
    await chat.append(
        [SystemMessage("Be brief."), AIMessage(thinking, id="z", response_metadata=metadata)]
    )
    history = await chat.load_history(HistoryPolicy(provider=provider, max_tokens=500))
    assert (
        history.tokens
        == history.report.tokens_after
        == sum(counter([message]) for message in history.messages)
    )
    assert history.report.over_budget == (history.tokens > 500)
    assert history.report.tokens_before > 500


@each_case("provider", ["gpt", "", 7, True])
def test_an_unknown_provider_is_refused(provider: Any) -> None:
    """An unknown provider is refused when the policy is made."""
    with pytest.raises(InvalidInputError, match="provider"):
        HistoryPolicy(provider=provider)


def test_images_and_files_are_labelled_as_what_they_are() -> None:
    """In questions and results, in the formats of LangChain, OpenAI and Anthropic; right ones are the same objects."""
    jpeg = b64encode(b"\xff\xd8\xff\xe0\x00\x10JFIF\x00").decode()
    pdf = b64encode(b"%PDF-1.4 ...").decode()
    url = "data:image/jpg;base64," + jpeg
    source = {"type": "base64", "media_type": "image/png", "data": jpeg}
    wrong: list[Any] = [
        {"type": "image", "base64": jpeg, "mime_type": "application/octet-stream"},
        {"type": "image", "base64": jpeg},
        {"type": "file", "base64": jpeg, "mime_type": "application/octet-stream"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image", "source": source},
        {"type": "image", "source": {**source, "data": pdf}},
        {"type": "file", "base64": pdf, "mime_type": ""},
        {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{jpeg}"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pdf}"}},
        {"type": "input_image", "image_url": f"data:image/png;base64,{pdf}"},
        {"type": "input_file", "file_data": f"data:application/pdf;base64,{jpeg}"},
        {"type": "document_url", "document_url": f"data:application/pdf;base64,{jpeg}"},
    ]
    image = {"type": "image", "base64": jpeg, "mime_type": "image/jpeg"}
    right_image: Any = {"type": "image_url", "image_url": {"url": url.replace("jpg", "jpeg")}}
    right_file = {"file_data": f"data:application/pdf;base64,{pdf}", "filename": "file.pdf"}
    right: list[Any] = [
        *[image] * 3,
        {"type": "image_url", "image_url": {"url": url.replace("jpg", "jpeg")}},
        {"type": "image", "source": {**source, "media_type": "image/jpeg"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": pdf},
        },
        {"type": "file", "base64": pdf, "mime_type": "application/pdf"},
        right_image,
        {"type": "file", "file": right_file},
        {"type": "input_file", **right_file},
        {"type": "input_image", "image_url": right_image["image_url"]["url"]},
        right_image,
    ]
    own_file = {
        "type": "file",
        "base64": pdf,
        "mime_type": "application/pdf",
        "filename": "file.pdf",
    }
    call = {"name": "look", "args": {}, "id": "toolu_01"}
    for provider, expected in (
        ("anthropic", [*right[:8], own_file, own_file, image, right_image]),
        ("google_genai", right),
    ):
        said = HumanMessage(wrong)
        asked = AIMessage("", tool_calls=[call])
        found = ToolMessage(wrong, tool_call_id="toolu_01", name="look")
        made = made_for([said, asked, found], ROWS[provider])
        assert said.content == wrong
        assert made[0].content == made[2].content == expected
        assert made_for(made, ROWS[provider])[0] is made[0]


@pytest.mark.parametrize("odd", [{"$ne": ""}, ["x"], 1.5])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_blocks_of_calls_may_hold_anything(provider: str, odd: Any) -> None:
    """A name or an id that is not a text raised an error at each load, also from an answer of the provider itself."""
    blocks: list[Any] = [
        {"type": "function_call", "name": odd, "call_id": odd, "arguments": odd},
        {"type": "custom_tool_call", "name": odd, "call_id": odd},
    ]
    call = {"name": "look at", "args": {}, "id": "toolu_01"}
    for writer in (provider, "another"):
        metadata = {"model_provider": writer}
        asked = AIMessage(blocks, tool_calls=[call], response_metadata=metadata)
        found = ToolMessage("Fish.", tool_call_id="toolu_01", name="look at")
        kinds = [
            message.type for message in made_for([HumanMessage("?"), asked, found], ROWS[provider])
        ]
        assert kinds == ["human", "ai", "tool"]


def test_every_provider_of_a_policy_is_known() -> None:
    """A policy takes the names of all rows."""
    for name, row in ROWS.items():
        assert HistoryPolicy(provider=name).rules is row


@pytest.mark.costly
@pytest.mark.parametrize("content", ["", " \n", [], [{"type": "text", "text": ""}]])
async def test_an_empty_answer_is_shown_as_a_text_under_every_policy(
    chat: Conversation, content: Any
) -> None:
    """Without a provider, too, from the first view on; the log keeps it, and one that calls or thinks is not empty."""
    empty = AIMessage(content, id="empty")
    await chat.append([HumanMessage("One?"), empty, HumanMessage("Two?")])
    view = await chat.load_history()
    assert [message.content for message in view.messages] == ["One?", "(no text)", "Two?"]
    thinking = AIMessage([{"type": "thinking", "thinking": "hm", "signature": "s"}])
    refusal = AIMessage("", additional_kwargs={"refusal": "No."})
    await chat.append(
        [thinking, HumanMessage("Three?"), refusal, HumanMessage("Four?"), *called(1, "call_1")]
    )
    later = (await chat.load_history()).messages
    assert later[:3] == view.messages
    assert [later[3].content, later[5].content] == [thinking.content, ""]
    assert [message.content async for message in chat.messages()][1] == content
    assert view.tokens == sum(map(approximate_tokens, ([message] for message in view.messages)))
