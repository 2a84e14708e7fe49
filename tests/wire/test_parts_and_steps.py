"""How a view is read for any API: where its turn begins, which entry is that of a call, what a block says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    ToolMessage,
)

from convstore.messages.call_arguments import arguments_text
from convstore.messages.provenance import mark
from convstore.types import History, ProviderRules
from convstore.wire.parts import Block, Text, parts_of, read_part
from convstore.wire.steps import turn_begin

IMAGE = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}


def content_of(request: Any, at: int = -1) -> Any:
    """The content of a message of a request to Anthropic."""
    return request["messages"][at]["content"]


def anthropic(*messages: BaseMessage, **options: Any) -> Any:
    """The request for a view."""
    return History(messages=[*messages]).to_anthropic(**options)


def test_a_turn_begins_with_a_question_of_a_user() -> None:
    """Neither with a message that the store made, nor with one that follows an answer which was paused."""
    said = [HumanMessage("Why?"), AIMessage("So.")]
    made = HumanMessage("[Result of an earlier call]", additional_kwargs=mark("late_result"))
    assert turn_begin([*said, made]) == 0
    assert turn_begin([*said, HumanMessage("And?"), made]) == 2
    paused = AIMessage("I look.", response_metadata={"stop_reason": "pause_turn"})
    assert turn_begin([*said, HumanMessage("And?"), paused, HumanMessage("Hurry.")]) == 2


def test_no_arguments_are_all_of_them() -> None:
    """A call of a tool without parameters lost nothing."""
    assert arguments_text("{}") == arguments_text(" {} ") == ("{}", True)
    assert arguments_text("[1]") == ("{}", False)


def test_calls_without_ids_have_the_entry_in_their_place() -> None:
    """Each has a signature of its own, which Gemini checks."""
    calls = [{"name": "look", "args": {}, "id": ""}] * 2
    signed = [{"google": {"thought_signature": word}} for word in ("b25l", "dHdv")]
    listed = [{"id": "", "function": {"name": "look"}, "extra_content": each} for each in signed]
    said = AIMessage(
        "",
        id="a",
        tool_calls=calls,
        additional_kwargs={"tool_calls": listed},
        response_metadata={"model_name": "gemini-3-pro"},
    )
    request = History(messages=[HumanMessage("?"), said]).to_openai(model="gemini-3-pro")
    assert [call["extra_content"] for call in request[1]["tool_calls"]] == signed


def test_a_block_is_read_as_its_api_sent_it() -> None:
    """An item beside the content comes first, an input that is there stays, a setting without JSON has no value."""
    item = {"type": "reasoning", "id": "rs_1", "summary": []}
    first, second = parts_of(AIMessage("So.", additional_kwargs={"reasoning": item}))
    assert isinstance(first, Block)
    assert (first.kind, first.block, second) == ("reasoning", item, Text("So."))
    ran = {"type": "server_tool_use", "id": "s1", "input": {"q": 1}}
    hosted = read_part({**ran, "partial_json": '{"q": 2}'})
    assert isinstance(hosted, Block)
    assert hosted.block == ran
    cited = read_part({"type": "text", "text": "So.", "citations": [float("nan")]})
    assert isinstance(cited, Text)
    assert cited.settings == {"citations": None}


def test_the_name_of_a_function_is_not_lost() -> None:
    """The text says it, so the request lacks nothing."""
    request = anthropic(FunctionMessage(content="4", name="count"))
    assert content_of(request)[0]["text"] == "[Result of the function count]"
    assert request.dropped == ()


def test_a_file_goes_to_claude_within_its_limits() -> None:
    """A title has at most 500 characters, the data of an image as many as the provider allows."""
    file = {"type": "file", "mime_type": "application/pdf", "base64": "JVBERi0xLjQ="}
    [block] = content_of(anthropic(HumanMessage([file | {"filename": "n" * 600}])))
    assert block["title"] == "n" * 500
    rules = replace(ProviderRules.named("anthropic"), image_characters=11)
    request = anthropic(HumanMessage([IMAGE]), provider=rules)
    assert content_of(request) == "[image, image/png, 8 bytes]"
    assert [loss.part for loss in request.dropped] == ["image"]
    assert content_of(anthropic(HumanMessage([IMAGE])))[0]["type"] == "image"


def test_claude_gets_no_citations_of_others_and_no_result_before_its_call() -> None:
    """The API checks both, and refuses the request."""
    cited = {"type": "text", "text": "So.", "citations": [{"type": "url_citation"}]}
    foreign = AIMessage([cited], response_metadata={"model_provider": "openai"})
    request = anthropic(HumanMessage("?"), foreign)
    assert content_of(request) == "So."
    assert [loss.part for loss in request.dropped] == ["citations"]
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    own = {"model_provider": "anthropic"}
    said = [AIMessage([block], response_metadata=own) for block in (result, call)]
    request = anthropic(HumanMessage("?"), said[0], HumanMessage("And?"), said[1])
    kinds = [
        block["type"]
        for message in request["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
    ]
    assert set(kinds) <= {"text"}


def test_a_failed_result_shows_no_image_to_claude() -> None:
    """The API takes texts alone there; a mark for the prompt cache ends the request all the same."""
    call = {"name": "look", "args": {}, "id": "toolu_1"}
    result = ToolMessage([IMAGE], tool_call_id="toolu_1", status="error")
    request = anthropic(HumanMessage("?"), AIMessage("", tool_calls=[call]), result, cache="5m")
    [block] = content_of(request)
    assert block["content"] == "[image, image/png, 8 bytes]"
    assert block["cache_control"] == {"type": "ephemeral", "ttl": "5m"}
