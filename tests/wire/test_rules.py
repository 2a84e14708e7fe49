"""The rules of the providers are one table: writers ask the row of the model that gets the request."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore import InvalidInputError
from convstore.types import History
from convstore.values.providers import ROWS, row_of_model

SIGNED = {"google": {"thought_signature": "c2ln"}}


def view(*messages: BaseMessage) -> History:
    """A view of just these messages."""
    numbered = [
        message.model_copy(update={"id": f"m{number}"}) for number, message in enumerate(messages)
    ]
    return History(messages=numbered)


def called(model: str, *, calls: int = 1, **listed: Any) -> list[BaseMessage]:
    """An answer of a model with calls, and their results; `listed` is what its API wrote beside the first call."""
    made = [{"name": "look", "args": {}, "id": f"call_{number}"} for number in range(calls)]
    function = {"name": "look", "arguments": "{}"}
    raw = {"id": "call_0", "type": "function", "function": function, **listed}
    answer = AIMessage(
        "",
        tool_calls=made,
        response_metadata={"model_name": model},
        additional_kwargs={"tool_calls": [raw]},
    )
    return [answer, *(ToolMessage("1", tool_call_id=str(call["id"])) for call in made)]


def test_a_row_is_chosen_however_a_gateway_spells_the_model() -> None:
    """Paths, vendors, regions, versions and snapshots; the longest beginning wins, and newer Claudes are bound."""
    rows = {
        "deepseek/deepseek-v4-pro": "deepseek",
        "accounts/fireworks/models/kimi-k2p6": "moonshot",
        "zai-org/GLM-4.6": "zai",
        "models/gemini-3-pro": "google_genai",
        "gemini-2.5-flash": "google_genai_2",
        "us.deepseek.r1-v1:0": "deepseek",
        "open-mistral-7b": "mistral_v3",
        "openai/gpt-oss-120b": "compatible",
        "gpt-5-2025-08-07": "openai",
        "anthropic/claude-opus-5.5": "anthropic_bound",
        "us.anthropic.claude-opus-5-20260801-v1:0": "anthropic",
        "claude-3-5-sonnet-20241022": "anthropic",
        "claude-nova-6": "anthropic_bound",
    }
    assert {name: row_of_model(name).name for name in rows} == rows
    with pytest.raises(InvalidInputError, match="deepseek"):
        view().to_openai(provider="deepsick")


def test_a_broken_row_changes_what_is_written() -> None:
    """The row decides, and it may be the user's own."""
    said = [HumanMessage("?"), AIMessage("!", additional_kwargs={"reasoning_content": "Hm."})]
    own = replace(ROWS["compatible"], reasoning="always", reasoning_of="family")
    assert view(*said).to_openai(provider=own)[1]["reasoning_content"] == "Hm."
    assert (
        "reasoning_content"
        not in view(*said).to_openai(provider=replace(own, reasoning="never"))[1]
    )
    late = [HumanMessage("?"), SystemMessage("Now."), AIMessage("!")]
    rows = [ROWS["anthropic"], replace(ROWS["anthropic"], system="anywhere")]
    roles = [view(*late).to_anthropic(provider=row)["messages"][1]["role"] for row in rows]
    assert roles == ["user", "system"]


@pytest.mark.parametrize("model", ["deepseek-v4-pro", "kimi-k2.6", "glm-4.6"])
def test_thinking_models_get_their_reasoning_back_for_good(model: str) -> None:
    """Each answer of the log has the field: a blank where another model wrote it, and no null beside it."""
    metadata = {"model_name": f"vendor/{model}"}
    thought = AIMessage(
        "Fish.", additional_kwargs={"reasoning_content": "Hm."}, response_metadata=metadata
    )
    other = AIMessage(
        "So.",
        additional_kwargs={"reasoning_content": "Oh."},
        response_metadata={"model_name": "qwen4"},
    )
    log = [HumanMessage("1?"), thought, HumanMessage("2?"), other, HumanMessage("3?")]
    request = view(*log, *called("gpt-5")).to_openai(model=model)
    said = [message for message in request if message["role"] == "assistant"]
    assert [message["reasoning_content"] for message in said] == ["Hm.", " ", " "]
    assert [message["content"] for message in said] == ["Fish.", "So.", ""]
    assert [part.message_id for part in request.dropped] == ["m3"]


def test_a_signature_of_gemini_goes_back_with_its_call() -> None:
    """The first call of a step that has none gets the documented value in the open turn; others never see one."""
    log = [HumanMessage("?"), *called("gemini-3-pro", calls=2, extra_content=SIGNED)]
    request = view(*log, *called("gpt-5")).to_openai(model="models/gemini-3-pro")
    said = [message["tool_calls"] for message in request if "tool_calls" in message]
    assert said[0][0]["extra_content"] == SIGNED
    assert "extra_content" not in said[0][1]
    skip = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    assert said[1][0]["extra_content"] == skip
    assert {message["name"] for message in request if message["role"] == "tool"} == {"look"}
    other = view(*log).to_openai(model="gpt-5")
    assert "c2ln" not in str(other)
    assert [part.part for part in other.dropped] == ["extra_content of look"]


def test_the_roles_of_mistral() -> None:
    """No user after a tool, no system after an answer, ids of nine characters, and of V3 no text beside calls."""
    answer, result = called("gpt-5")
    log = [HumanMessage("?"), answer.model_copy(update={"content": "I look."}), result]
    log += [SystemMessage("Be brief."), HumanMessage("!")]
    request = view(*log).to_openai(model="mistral-large-latest")
    roles = [message["role"] for message in request]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "user"]
    assert len(request[2]["tool_call_id"]) == 9
    parted = view(*log).to_openai(model="open-mixtral-8x22b")
    assert [message["content"] for message in parted[1:3]] == ["I look.", ""]


def test_what_the_user_says_in_a_turn_changes_nothing() -> None:
    """A message beside results leaves the reasoning of the running loop; one after an answer ends the turn."""
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    answer, result = called("claude-sonnet-4-5")
    log = [HumanMessage("?"), answer.model_copy(update={"content": [thought]}), result]
    steered = view(*log, HumanMessage("In the morning.")).to_anthropic(model="claude-opus-4-1")
    assert steered["messages"][1]["content"][0] == thought
    over = view(*log, AIMessage("So."), HumanMessage("And?")).to_anthropic()
    assert [part.part for part in over.dropped] == ["reasoning"]


def test_the_bytes_tell_the_type_of_an_image() -> None:
    """Whatever the label says."""
    jpeg = b64encode(b"\xff\xd8\xff\xe0\x00\x10JFIF\x00").decode()
    webp = b64encode(b"RIFF\x24\x00\x00\x00WEBPVP8 ").decode()
    for label, data, kind in (
        ("image/jpg", jpeg, "jpeg"),
        ("", jpeg, "jpeg"),
        ("image/png", webp, "webp"),
    ):
        image = {"type": "image_url", "image_url": {"url": f"data:{label};base64,{data}"}}
        history = view(HumanMessage([image]))
        source = history.to_anthropic()["messages"][0]["content"][0]["source"]
        assert source["media_type"] == f"image/{kind}"
        assert history.to_openai()[0]["content"][0]["image_url"]["url"].startswith(
            f"data:image/{kind};"
        )


def test_the_bytes_tell_an_image_from_a_file() -> None:
    """Whatever its block is called."""
    jpeg = b64encode(b"\xff\xd8\xff\xe0\x00\x10JFIF\x00").decode()
    pdf = b64encode(b"%PDF-1.4 ...").decode()
    stream = "application/octet-stream"
    blocks: list[Any] = [
        {"type": "file", "base64": jpeg, "mime_type": stream},
        {"type": "image", "base64": pdf, "mime_type": "image/png"},
        {"type": "document_url", "document_url": f"data:{stream};base64,{pdf}"},
    ]
    history = view(HumanMessage(blocks))
    kinds = [block["type"] for block in history.to_openai()[0]["content"]]
    assert kinds == ["image_url", "file", "file"]
    sent = history.to_anthropic()["messages"][0]["content"]
    assert [block["type"] for block in sent] == ["image", "document", "document"]
    assert [block["source"]["media_type"] for block in sent] == [
        "image/jpeg",
        "application/pdf",
        "application/pdf",
    ]


def test_settings_of_parts_are_sent_or_named() -> None:
    """Detail of images, citations of documents and texts, and what a tool refers to."""
    image = {"type": "image_url", "image_url": {"url": "https://a/b.png", "detail": "low"}}
    result = {
        "type": "search_result",
        "source": "https://a",
        "title": "A",
        "content": [{"type": "text", "text": "B"}],
        "citations": {"enabled": True},
    }
    history = view(HumanMessage([image, result]))
    assert history.to_openai()[0]["content"][0] == image
    assert [part.part for part in history.to_openai().dropped] == ["citations"]
    request = history.to_anthropic()
    assert request["messages"][0]["content"][1] == result
    assert [part.part for part in request.dropped] == ["detail"]


def test_a_pending_call_of_the_provider_names_its_container() -> None:
    """Anthropic goes on in it."""
    ran: list[Any] = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {}}
    ]
    paused = AIMessage(
        ran,
        response_metadata={"stop_reason": "pause_turn"},
        additional_kwargs={"container": {"id": "container_1"}},
    )
    assert view(HumanMessage("?"), paused).to_anthropic()["container"] == "container_1"
    assert "container" not in view(HumanMessage("?"), paused, AIMessage("!")).to_anthropic()


def test_what_langchains_streams_leave_in_blocks_is_not_sent() -> None:
    """Indexes and cut JSON, from which an empty input is restored."""
    ran = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    residue = {"index": 0, "partial_json": '{"query": "x"}'}
    answer = AIMessage([{**ran, **residue}, {**found, "index": 1}, "So."])
    sent = view(HumanMessage("?"), answer).to_anthropic()["messages"][1]["content"]
    assert sent[:2] == [{**ran, "input": {"query": "x"}}, found]
