"""What each form of a view looks like: results, media, reasoning, names, system messages, cache marks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from api_rules import anthropic_errors, chat_errors, responses_errors
from cases import each_case
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from convstore import InvalidInputError
from convstore.messages.provenance import mark
from convstore.types import Dropped, History
from convstore.wire.hosted import hosted_text
from convstore.wire.openai_chat import NO_SIGNATURE

PNG = "iVBORw0KGgo="
IMAGE = {"type": "image", "base64": PNG, "mime_type": "image/png"}
OPENAI = {"model_provider": "openai", "model_name": "gpt-5-2025-08-07"}
ANTHROPIC = {"model_provider": "anthropic", "model_name": "claude-1"}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "eA=="}


def view(*messages: BaseMessage) -> History:
    """A view of just these messages, with the ids m0, m1 and so on."""
    numbered = [
        message.model_copy(update={"id": f"m{number}"}) for number, message in enumerate(messages)
    ]
    return History(messages=numbered)


def call(id_: str = "call_1", name: str = "search", **arguments: Any) -> dict[str, Any]:
    """A call of a tool."""
    return {"name": name, "args": arguments, "id": id_}


def calling(*calls: Any, said: Any = "", **fields: Any) -> AIMessage:
    """An answer that calls tools."""
    return AIMessage(said, tool_calls=list(calls), **fields)


SEARCHED = (
    HumanMessage("Orcas?"),
    calling(call(q="orcas")),
    ToolMessage("They are whales.", tool_call_id="call_1"),
)


def test_a_call_and_its_result_in_each_form() -> None:
    """The shapes that the three APIs document."""
    history = view(*SEARCHED)
    function = {"name": "search", "arguments": '{"q": "orcas"}'}
    assert history.to_openai()[1:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "They are whales."},
    ]
    assert history.to_openai(api="responses")[1:] == [
        {"type": "function_call", "call_id": "call_1", **function},
        {"type": "function_call_output", "call_id": "call_1", "output": "They are whales."},
    ]
    used = {"type": "tool_use", "id": "call_1", "name": "search", "input": {"q": "orcas"}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "They are whales."}
    assert history.to_anthropic()["messages"][1:] == [
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [result]},
    ]


def test_results_of_parallel_calls_are_one_message_of_anthropic() -> None:
    """In the order of the calls, also if they came late; a failed one says so."""
    calls = calling(call("call_1"), call("call_2"))
    late = [
        ToolMessage("2", tool_call_id="call_2", status="error"),
        ToolMessage("1", tool_call_id="call_1"),
    ]
    messages = view(HumanMessage("?"), calls, AIMessage("Wait."), *late).to_anthropic()["messages"]
    assert [len(message["content"]) for message in messages[1:3]] == [2, 2]
    assert [(block["tool_use_id"], block.get("is_error")) for block in messages[2]["content"]] == [
        ("call_1", None),
        ("call_2", True),
    ]
    assert messages[3] == {"role": "assistant", "content": "Wait."}


def test_an_answer_that_was_paused_goes_back_as_it_came() -> None:
    """Later, too, with the result in what followed it. After another answer, a text names a call without a result."""
    asked = {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "web_search",
        "input": {"query": "seals"},
    }
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    text = {"type": "text", "text": "I look it up."}
    paused = AIMessage([text, asked], response_metadata={"stop_reason": "pause_turn"})
    rest = AIMessage([found, {"type": "text", "text": "They do."}])
    assert view(HumanMessage("?"), paused).to_anthropic()["messages"][1]["content"] == [text, asked]
    for messages in ((paused, rest), (paused, rest, HumanMessage("And?"))):
        request = view(HumanMessage("?"), *messages).to_anthropic()
        assert [message["content"] for message in request["messages"][1:3]] == [
            [text, asked],
            [found, {"type": "text", "text": "They do."}],
        ]
        assert (request.dropped, anthropic_errors(request)) == ((), [])
    over = (paused, AIMessage("Sorry."), HumanMessage("And?"))
    left = view(HumanMessage("?"), *over).to_anthropic()
    named = {"type": "text", "text": '[The provider ran web_search: {"query": "seals"}]'}
    assert left["messages"][1]["content"] == [text, named]
    assert left.dropped == (Dropped("m1", "server_tool_use", "only a text names it"),)


def test_an_answer_that_was_paused_after_a_thought_goes_back_with_it() -> None:
    """A model often searches without a word: the thought before the search is signed, and stays."""
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    asked = {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "web_search",
        "input": {"query": "seals"},
    }
    paused = AIMessage([thought, asked], response_metadata={"stop_reason": "pause_turn"})
    request = view(HumanMessage("?"), paused).to_anthropic()
    assert (request["messages"][1]["content"], request.dropped) == ([thought, asked], ())
    ended = AIMessage([thought, asked], response_metadata={"stop_reason": "end_turn"})
    left = view(HumanMessage("?"), ended).to_anthropic()
    assert "[The provider ran web_search" in left["messages"][1]["content"][1]["text"]
    assert [dropped.part for dropped in left.dropped] == ["server_tool_use"]


def test_a_paused_answer_keeps_the_results_of_its_calls() -> None:
    """If it also calls a tool of the application, what follows is a message of its own, after the result."""
    call = {"name": "search", "args": {}, "id": "toolu_1"}
    paused = AIMessage(
        "I look it up.", tool_calls=[call], response_metadata={"stop_reason": "pause_turn"}
    )
    result = ToolMessage("They do.", tool_call_id="toolu_1")
    messages = view(HumanMessage("?"), paused, result, AIMessage("Yes.")).to_anthropic()["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    assert messages[2]["content"][0]["tool_use_id"] == "toolu_1"


def test_a_call_that_was_cut_is_valid_and_named() -> None:
    """A call that was cut has an empty object as arguments and a placeholder result, and is named in `.dropped`."""
    cut = {
        "name": "search",
        "args": '{"q": "or',
        "id": "call_1",
        "error": None,
        "type": "invalid_tool_call",
    }
    history = view(HumanMessage("?"), AIMessage("", invalid_tool_calls=[cut]))
    for request in (
        history.to_openai(),
        history.to_openai(api="responses"),
        history.to_anthropic(),
    ):
        assert request.dropped == (
            Dropped("m1", "arguments of search", "they are not a JSON object"),
        )
        assert "arguments were malformed" in json.dumps(request)
    assert history.to_openai()[1]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_a_repeated_call_id_is_another_one_the_second_time() -> None:
    """In the call and in its result; the beginning of a longer view has the same ids."""
    again = [*SEARCHED, AIMessage("Yes."), *SEARCHED]
    request = view(*again).to_openai()
    ids = [sent["tool_calls"][0]["id"] for sent in request if sent.get("tool_calls")]
    assert ids[0] == "call_1" != ids[1]
    assert [sent["tool_call_id"] for sent in request if sent["role"] == "tool"] == ids
    assert view(*again, HumanMessage("And?")).to_openai()[: len(request)] == request


def test_names_of_tools_and_users_have_the_characters_of_the_api() -> None:
    """Characters that the API refuses in names become underscores. A name without a field is in `.dropped`."""
    made = view(HumanMessage("?", name="Ada L."), calling(call(name="functions.search")))
    assert made.to_openai()[0]["name"] == "Ada_L."
    assert made.to_openai()[1]["tool_calls"][0]["function"]["name"] == "functions_search"
    assert Dropped("m0", "name", "the API has no names of messages") in made.to_anthropic().dropped


def test_an_image_in_a_result_goes_where_the_api_takes_it() -> None:
    """Into a user message after all results in Chat Completions; elsewhere it stays in the result."""
    shot = ToolMessage([{"type": "text", "text": "Here:"}, IMAGE], tool_call_id="call_1")
    history = view(
        HumanMessage("?"),
        calling(call(), call("call_2")),
        shot,
        ToolMessage("2", tool_call_id="call_2"),
    )
    *_, first, second, moved = history.to_openai()
    assert (first["role"], second["role"], moved["role"]) == ("tool", "tool", "user")
    assert [part["text"] for part in first["content"]] == ["Here:", "[image, image/png, 8 bytes]"]
    assert moved["content"][1]["image_url"]["url"] == f"data:image/png;base64,{PNG}"
    assert history.to_openai(api="responses")[-2]["output"][1]["type"] == "input_image"
    assert history.to_anthropic()["messages"][-1]["content"][0]["content"][1]["type"] == "image"
    assert history.to_openai().dropped == history.to_anthropic().dropped == ()


@each_case(
    ("block", "chat", "responses", "anthropic"),
    [
        (
            {"type": "image_url", "image_url": {"url": "https://a/b.png"}},
            "image_url",
            "input_image",
            "image",
        ),
        (
            {"type": "image", "base64": "QUJD", "mime_type": "image/tiff"},
            "text",
            "input_text",
            "text",
        ),
        (
            {"type": "audio", "base64": "QUJD", "mime_type": "audio/wav"},
            "input_audio",
            "input_text",
            "text",
        ),
        (
            {"type": "file", "base64": "QUJD", "mime_type": "application/pdf"},
            "file",
            "input_file",
            "document",
        ),
        ({"type": "file", "url": "https://a/b.pdf"}, "text", "input_file", "document"),
        ({"type": "file", "base64": "QUJD", "mime_type": "text/csv"}, "text", "input_text", "text"),
        ({"type": "file", "file": {"file_id": "file-1"}}, "file", "input_file", "text"),
        (
            {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
            "text",
            "input_text",
            "document",
        ),
    ],
)
def test_media_of_a_user(block: Any, chat: str, responses: str, anthropic: str) -> None:
    """Media of a user are sent as far as the API takes them. A text names all others."""
    history = view(HumanMessage([{"type": "text", "text": "See:"}, block]))
    assert history.to_openai()[0]["content"][1]["type"] == chat
    assert history.to_openai(api="responses")[0]["content"][1]["type"] == responses
    assert history.to_anthropic()["messages"][0]["content"][1]["type"] == anthropic


def thinking(thought: Any, metadata: Any, **fields: Any) -> AIMessage:
    """A call after some reasoning."""
    return calling(call(), said=[thought], response_metadata=metadata, **fields)


@each_case(
    ("thought", "metadata", "api"), [(THOUGHT, ANTHROPIC, ""), (REASONING, OPENAI, "responses")]
)
def test_reasoning_goes_along_within_the_open_turn(thought: Any, metadata: Any, api: Any) -> None:
    """With the call that followed it; after the next question it is dropped."""
    turn = (HumanMessage("?"), thinking(thought, metadata), ToolMessage("1", tool_call_id="call_1"))
    now, later = (
        history.to_openai(api=api) if api else history.to_anthropic()
        for history in (view(*turn), view(*turn, AIMessage("One."), HumanMessage("And?")))
    )
    secret = json.dumps(thought.get("signature", thought.get("encrypted_content")))
    assert secret in json.dumps(now)
    assert secret not in json.dumps(later)
    assert now.dropped == ()
    assert later.dropped == (Dropped("m1", "reasoning", "its turn is over"),)


def test_thinking_in_langchains_standard_form_is_thinking_again() -> None:
    """Thinking in LangChain's standard form becomes Anthropic's thinking again. Thinking of Gemini is dropped."""
    standard = {"type": "reasoning", "reasoning": "Hm.", "extras": {"signature": "c2ln"}}
    history = view(HumanMessage("?"), thinking(standard, ANTHROPIC))
    assert history.to_anthropic()["messages"][1]["content"][0] == THOUGHT
    gemini = view(
        HumanMessage("?"), thinking(standard, {"model_provider": "google_genai", "model_name": "g"})
    )
    assert [dropped.part for dropped in gemini.to_anthropic().dropped] == ["reasoning"]


def test_an_item_that_follows_reasoning_has_its_id() -> None:
    """Without the reasoning it has none, because OpenAI would miss the reasoning."""
    block = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "search",
        "arguments": "{}",
    }
    text = {"type": "text", "text": "I look.", "id": "msg_1", "phase": "commentary"}
    turn = [
        HumanMessage("?"),
        calling(call(), said=[REASONING, text, block], response_metadata=OPENAI),
    ]
    now = view(*turn).to_openai(api="responses")
    assert [item.get("id") for item in now] == [None, "rs_1", "msg_1", "fc_1", None]
    assert (now[2]["content"][0]["text"], now[2]["phase"]) == ("I look.", "commentary")
    later = view(*turn, AIMessage("One."), HumanMessage("And?")).to_openai(api="responses")
    assert [item.get("id") for item in later] == [None] * 6
    assert later[1] == {
        "type": "message",
        "role": "assistant",
        "content": "I look.",
        "phase": "commentary",
    }
    assert responses_errors(now) == responses_errors(later) == []


@each_case(
    ("thought", "metadata", "model"),
    [
        (REASONING, OPENAI, "gpt-5-mini"),
        (THOUGHT, {**ANTHROPIC, "model_name": "minimax-m3"}, "claude-2"),
        ({**REASONING, "encrypted_content": None}, OPENAI, None),
        ({"type": "thinking", "thinking": "Hm."}, ANTHROPIC, None),
    ],
)
def test_reasoning_of_another_model_or_without_its_seal_is_dropped(
    thought: Any, metadata: Any, model: Any
) -> None:
    """The APIs reject it, or ignore it."""
    history = view(HumanMessage("?"), thinking(thought, metadata))
    for request in (
        history.to_anthropic(model=model),
        history.to_openai(api="responses", model=model),
    ):
        assert [dropped.part for dropped in request.dropped] == ["reasoning"]
        assert request.dropped[0].message_id == "m1"


def test_reasoning_of_other_servers_goes_to_the_model_that_wrote_it() -> None:
    """DeepSeek wants it back within the turn; to a model that is not named it is not sent."""
    said = calling(
        call(),
        response_metadata={"model_name": "deepseek-1"},
        additional_kwargs={"reasoning_content": "Hm."},
    )
    history = view(HumanMessage("?"), said)
    assert history.to_openai(model="deepseek-1")[1]["reasoning_content"] == "Hm."
    for other in (None, "gpt-5"):
        assert "reasoning_content" not in history.to_openai(model=other)[1]
        assert [dropped.part for dropped in history.to_openai(model=other).dropped] == ["reasoning"]


def test_a_message_of_the_store_begins_no_turn() -> None:
    """A note or a late result within the turn leaves its reasoning where it is."""
    note = HumanMessage("[Note: …]", additional_kwargs=mark("note"))
    turn = (
        HumanMessage("?"),
        thinking(THOUGHT, ANTHROPIC),
        ToolMessage("1", tool_call_id="call_1"),
        note,
    )
    assert view(*turn).to_anthropic()["messages"][1]["content"][0] == THOUGHT


def test_system_messages_of_anthropic() -> None:
    """Leading ones are apart; a later one is a user message in its place, and a lone one gets a first message."""
    late = view(
        SystemMessage("A"), HumanMessage("?"), SystemMessage("B"), AIMessage("!")
    ).to_anthropic()
    assert late["system"] == [{"type": "text", "text": "A"}]
    assert late["messages"][1]["content"][0]["text"] == "[Instruction of the application]"
    lone = view(SystemMessage("A")).to_anthropic()
    assert lone["messages"] == [{"role": "user", "content": "(The conversation begins.)"}]
    assert "system" not in view(HumanMessage("?")).to_anthropic()


def test_a_developer_message_stays_one() -> None:
    """In both APIs of OpenAI."""
    said = SystemMessage("A", additional_kwargs={"__openai_role__": "developer"})
    assert view(said).to_openai()[0]["role"] == "developer"
    assert view(said).to_openai(api="responses")[0]["role"] == "developer"


@each_case(
    "message",
    [HumanMessage(""), AIMessage(" \n"), AIMessage([]), SystemMessage([{"type": "text"}])],
)
def test_no_message_is_empty(message: BaseMessage) -> None:
    """A text stands for no content, which the APIs reject."""
    history = view(HumanMessage("?"), message)
    assert history.to_openai()[1]["content"] == "(no text)"
    assert "(no text)" in json.dumps(history.to_openai(api="responses")[1])
    assert anthropic_errors(history.to_anthropic()) == []


def test_what_a_provider_ran_stays_with_it() -> None:
    """Anthropic gets its own searches back whole; half of one, and those of others, are dropped by name."""
    ran = {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "web_search",
        "input": {"query": "x"},
    }
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    whole = view(HumanMessage("?"), AIMessage([ran, found, "Yes."]))
    assert whole.to_anthropic()["messages"][1]["content"][:2] == [ran, found]
    assert [dropped.part for dropped in whole.to_openai().dropped] == [
        "server_tool_use",
        "web_search_tool_result",
    ]
    half = view(HumanMessage("?"), AIMessage([ran, "Yes."])).to_anthropic()
    assert "[The provider ran web_search" in half["messages"][1]["content"][0]["text"]
    assert half.dropped[0].part == "server_tool_use"


def test_cache_marks_end_what_stays() -> None:
    """The system messages, the finished turns and the view: three marks, none on thinking."""
    turn = [
        HumanMessage("?"),
        thinking(THOUGHT, ANTHROPIC),
        ToolMessage("1", tool_call_id="call_1"),
    ]
    history = view(SystemMessage("A"), HumanMessage("1?"), AIMessage("1."), *turn)
    request = history.to_anthropic(cache="1h")
    marked = [message for message in request["messages"] if "cache_control" in json.dumps(message)]
    assert request["system"][-1]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert marked == [request["messages"][1], request["messages"][-1]]
    assert anthropic_errors(request) == []
    assert "cache_control" not in json.dumps(history.to_anthropic())


def test_a_view_that_ends_with_an_answer_has_no_space_at_its_end() -> None:
    """Anthropic rejects it."""
    assert (
        view(HumanMessage("?"), AIMessage("Well. ")).to_anthropic()["messages"][-1]["content"]
        == "Well."
    )


def test_custom_calls_keep_their_form() -> None:
    """Free text for input, and an output of the same kind."""
    block = {"type": "custom_tool_call", "call_id": "call_1", "name": "shell", "input": "ls"}
    history = view(HumanMessage("?"), calling(call(name="shell", __arg1="ls"), said=[block]))
    assert history.to_openai()[1]["tool_calls"][0]["custom"] == {"name": "shell", "input": "ls"}
    assert [item["type"] for item in history.to_openai(api="responses")][1:] == [
        "custom_tool_call",
        "custom_tool_call_output",
    ]


def test_invalid_options_are_refused() -> None:
    """With the values there are."""
    wrong: Any = "completions"
    with pytest.raises(InvalidInputError, match="responses"):
        view().to_openai(api=wrong)
    with pytest.raises(InvalidInputError, match="5m"):
        view().to_anthropic(cache=wrong)


MADE = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USED = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
ASKED = {"role": "user", "content": "?"}
ANSWERED = {"role": "tool", "tool_call_id": "c", "content": ""}
MARK = {"type": "ephemeral"}
FUNCTION = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


@each_case(
    ("messages", "error"),
    [
        (
            [{"role": "assistant", "content": None, "tool_calls": [MADE]}],
            "did not have response messages: c",
        ),
        ([ANSWERED], "preceeding message with 'tool_calls'"),
        ([{"role": "assistant", "content": None}], "expected a string, got null"),
        ([{"role": "assistant", "content": "", "tool_calls": []}], "empty array"),
        (
            [{"role": "assistant", "content": None, "tool_calls": [{**MADE, "id": "c" * 41}]}],
            "string too long",
        ),
        ([{"role": "user", "content": "?", "name": "Ada L"}], "does not match pattern"),
        ([{**ASKED, "content": []}], "empty array"),
        ([{**ASKED, "content": "\ud83d"}], "the client fails"),
        ([{**ASKED, "id": "m1"}], "Unknown parameter"),
        ([{"role": "human", "content": "?"}], "Supported values"),
        (
            [
                {
                    "role": "system",
                    "content": [{"type": "image_url", "image_url": {"url": "https://a"}}],
                }
            ],
            "role 'user'",
        ),
        (
            [
                {
                    **ASKED,
                    "content": [
                        {"type": "image_url", "image_url": {"url": "data:image/tiff;base64,QQ=="}}
                    ],
                }
            ],
            "data URL",
        ),
    ],
)
def test_the_rules_of_chat_completions(messages: Any, error: str) -> None:
    """The checker of these tests finds what the API finds."""
    assert any(error in found for found in chat_errors(messages))


@each_case(
    ("items", "error"),
    [
        ([FUNCTION], "No tool output found for function call c"),
        ([{"type": "function_call_output", "call_id": "c", "output": ""}], "No tool call found"),
        ([REASONING], "required following item"),
        ([{**REASONING, "id": "x"}], "begins with 'rs'"),
        ([{**REASONING, "encrypted_content": ""}], "not persisted"),
        ([REASONING, REASONING], "Duplicate item"),
        (
            [
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "input_text", "text": "?"}],
                }
            ],
            "output_text",
        ),
        ([{"type": "message", "role": "user", "content": ""}], "empty string"),
        ([{"type": "computer_call"}], "Supported values"),
    ],
)
def test_the_rules_of_the_responses_api(items: Any, error: str) -> None:
    """The checker of these tests finds what the API finds."""
    assert any(error in found for found in responses_errors(items))


@each_case(
    ("messages", "error"),
    [
        (
            [ASKED, {"role": "assistant", "content": [USED]}],
            "without `tool_result` blocks immediately after: c",
        ),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "c", "content": ""}],
                }
            ],
            "unexpected",
        ),
        ([{"role": "assistant", "content": "!"}], 'first message must use the "user" role'),
        ([], "at least one message"),
        ([{**ASKED, "content": " "}], "non-whitespace"),
        ([{**ASKED, "content": []}], "non-empty content"),
        ([ASKED, {"role": "assistant", "content": "! "}], "trailing whitespace"),
        ([ASKED, {"role": "assistant", "content": [THOUGHT]}], "cannot be `thinking`"),
        (
            [ASKED, {"role": "assistant", "content": [{**THOUGHT, "signature": ""}, USED]}],
            "Invalid `signature`",
        ),
        ([ASKED, {"role": "system", "content": "A"}], "role 'system'"),
        (
            [
                {
                    **ASKED,
                    "content": [
                        {"type": "text", "text": "?", "cache_control": {"type": "ephemeral"}}
                    ]
                    * 5,
                }
            ],
            "Found 5",
        ),
        (
            [ASKED, {"role": "assistant", "content": [{**USED, "id": "a b"}]}],
            "does not match pattern",
        ),
    ],
)
def test_the_rules_of_anthropic(messages: Any, error: str) -> None:
    """The checker of these tests finds what the API finds."""
    assert any(error in found for found in anthropic_errors({"messages": messages}))


def test_what_the_view_left_out_is_named_before_what_the_request_lacks() -> None:
    """A view for a provider has losses of its own: who logs `.dropped` of a request would not see them."""
    lost = Dropped("a", "reasoning", "messages before it have changed")
    history = History(messages=[HumanMessage("Hi", name="Ada")]).sealed(_no_stamp, [lost])
    for request in (
        history.to_openai(),
        history.to_openai(api="responses"),
        history.to_anthropic(),
    ):
        assert request.dropped[0] == lost


def _no_stamp(*_: Any) -> Any:
    """No stamp is asked for."""


@each_case(
    ("block", "text"),
    [
        (
            {"type": "shell_call_output", "output": [{"stdout": "ok"}]},
            "[Result of shell_call_output]\nok",
        ),
        (
            {
                "type": "mcp_tool_result",
                "content": [{"content": [{"content": [{"text": "deep"}]}]}],
            },
            "[Result of mcp]\ndeep",
        ),
        (
            {"type": "web_search_call", "action": {"query": "sea"}},
            '[The provider ran web_search: {"query": "sea"}]',
        ),
        ({"type": "mcp_call", "name": "look"}, "[The provider ran look]"),
        ({"type": "x_call", "output": "y" * 3_983}, "[The provider ran x]\n" + "y" * 3_979 + " …"),
        ({"type": "x_call", "output": "y" * 3_979}, "[The provider ran x]\n" + "y" * 3_979),
        ({"type": "item_reference", "id": "i"}, ""),
    ],
)
def test_a_text_says_what_a_provider_ran(block: Any, text: str) -> None:
    """Call and result, readable and at most 4,000 characters, whichever API wrote them."""
    assert hosted_text(block) == text


def test_signatures_of_gemini_go_to_gemini_alone() -> None:
    """What it wrote beside answer and call goes back if JSON can carry it; an open turn without any gets its value."""
    gemini = {"model_name": "gemini-3-pro", "model_provider": "openai"}

    def calling(id_: str, metadata: dict[str, str], extra: Any) -> list[BaseMessage]:
        listed = {
            "id": id_,
            "function": {"name": "look", "arguments": "{}"},
            "extra_content": extra,
        }
        call = {"name": "look", "args": {}, "id": id_}
        kwargs = {"tool_calls": [listed], "extra_content": {"google": {"thought": "x"}}}
        said = AIMessage(
            "", id=id_, tool_calls=[call], additional_kwargs=kwargs, response_metadata=metadata
        )
        return [said, ToolMessage("1", tool_call_id=id_)]

    signed = {"google": {"thought_signature": "c2ln"}}
    history = History(
        messages=[
            HumanMessage("One?"),
            *calling("c1", {"model_name": "gpt-5"}, signed),
            AIMessage("So."),
            HumanMessage("Two?"),
            *calling("c2", gemini, signed),
            *calling("c3", gemini, {"google": float("nan")}),
        ]
    )
    request = history.to_openai(model="gemini-3-pro")
    calls = {call["id"]: call for message in request for call in message.get("tool_calls", ())}
    made = {"google": {"thought_signature": NO_SIGNATURE}}
    found = [calls[id_].get("extra_content") for id_ in ("c1", "c2", "c3")]
    assert found == [None, signed, made]
    beside = [message["tool_calls"][0]["id"] for message in request if "extra_content" in message]
    assert beside == ["c2", "c3"]
    assert {(loss.message_id, loss.part) for loss in request.dropped} == {
        ("c1", "extra_content"),
        ("c1", "extra_content of look"),
        ("c3", "extra_content of look"),
    }


def test_only_a_user_shows_images_and_has_a_name_of_his_own() -> None:
    """Chat Completions takes no image of the system; the name of a function is not that of a user."""
    image = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}
    system, function = History(
        messages=[SystemMessage([image]), FunctionMessage(content="4", name="count")]
    ).to_openai()
    assert system == {"role": "system", "content": "[image, image/png, 8 bytes]"}
    assert function["content"][0]["text"] == "[Result of the function count]"
    assert "name" not in function
