"""Messages of Microsoft's Agent Framework become messages of the log, and requests by the rules of a provider."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from agent_framework import ChatResponse, Content, Message
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.ext.microsoft.clients import _CLIENTS, MEDIA, Client
from convstore.ext.microsoft.messages import from_log, reply_of, set_replies, to_log
from convstore.types import ProviderRules
from convstore.wire.edits import INSTRUCTION, MOVED, RequestEdits

PIXEL = "iVBORw0KGgo="
IMAGE = {"type": "image", "mime_type": "image/png", "base64": PIXEL}
CALL: Any = {"name": "mcp.files:read", "args": {}, "id": "c1"}


def request(
    *messages: Any, client: Client | None = None, asked: str = "", **rules: Any
) -> tuple[list[Message], list[str]]:
    """Return the messages of a request by some rules, and the parts that it lacks."""
    edits = RequestEdits(ProviderRules(name="own", **rules), asked=asked)
    shown, dropped = from_log(messages, edits, *([client] if client else []))
    return shown, [part.part for part in (*dropped, *edits.dropped)]


@pytest.mark.parametrize(
    ("details", "tokens"),
    [
        ((5, 2, 17, 10, 0), 15),  # the cache's are apart from the input
        ((5, 2, 0, 10, 0), 15),
        ((15, 2, 17, 10, 0), 15),
        ((5, 2, 7, 0, 0), 5),
    ],
)
def test_tokens_of_the_cache_are_counted_once(details: tuple[int, ...], tokens: int) -> None:
    """Some clients count them in the input, some apart from it, and some give no total."""
    names = (
        "input_token_count",
        "output_token_count",
        "total_token_count",
        "cache_read_input_token_count",
        "cache_creation_input_token_count",
    )
    usage: Any = dict(zip(names, details, strict=True))
    found = reply_of(ChatResponse(messages=[], usage_details=usage))["usage"]
    assert (found["input_tokens"], found["output_tokens"]) == (tokens, 2)


def test_the_model_of_a_reply_may_be_in_its_raw_form() -> None:
    """In that of the last update that names one."""
    updates = [SimpleNamespace(raw_representation=SimpleNamespace(model=name)) for name in "ab"]
    reply = ChatResponse(messages=[], raw_representation=[*updates, SimpleNamespace()])
    assert reply_of(reply)["model_name"] == "b"
    direct = ChatResponse(messages=[], raw_representation=SimpleNamespace(model="c"))
    assert reply_of(direct)["model_name"] == "c"


def test_a_reply_of_several_messages_has_its_tokens_once() -> None:
    """On the last of them."""
    said = [Message("assistant", ["One."]), Message("assistant", ["Two."])]
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    set_replies(said, [{"model_name": "m", "finish_reason": "stop", "usage": usage}], {})
    [one, two] = [part for message in said for part in to_log(message)]
    assert isinstance(one, AIMessage)
    assert isinstance(two, AIMessage)
    assert (one.usage_metadata, two.usage_metadata) == (None, usage)
    assert one.response_metadata == two.response_metadata


def test_what_a_message_says_decides_its_type() -> None:
    """Only results of a tool message are apart; an approval with a text is a question; a failure has its status."""
    result = Content.from_function_result("c1", result="5")
    call = Content.from_function_call("c1", "look", arguments="{}")
    assert len(to_log(Message("assistant", [call, result, result]))) == 1
    [failed] = to_log(Message("tool", [Content.from_function_result("c1", exception="No.")]))
    assert isinstance(failed, ToolMessage)
    assert failed.status == "error"
    approval = Content.from_function_approval_response(True, "a", call)
    assert isinstance(to_log(Message("user", [approval]))[0], SystemMessage)
    assert isinstance(to_log(Message("user", ["Yes, do.", approval]))[0], HumanMessage)
    [plain] = to_log(Message("user", [Content("data", uri="data:text/plain,hi")]))
    assert not plain.content


def test_files_of_results_move_after_all_results_of_a_step() -> None:
    """To one message of a user; at the end of a request, too; each once."""
    ai = AIMessage("", tool_calls=[CALL, {**CALL, "id": "c2"}])
    results = [ToolMessage([IMAGE], tool_call_id=id_) for id_ in ("c1", "c2")]
    takes = Client(MEDIA)
    shown, dropped = request(
        HumanMessage("Look."),
        ai,
        *results,
        AIMessage("", tool_calls=[CALL]),
        results[0],
        client=takes,
        result_media="moved",
    )
    roles = [message.role for message in shown]
    assert roles == ["user", "assistant", "tool", "tool", "user", "assistant", "tool", "user"]
    moved = [message.contents for message in shown if message.text == MOVED]
    assert [len(contents) for contents in moved] == [3, 2]
    assert not dropped
    assert takes.place(moved[0][1], "moved") == "moved"
    assert _CLIENTS["RawOpenAIChatClient"].place(moved[0][1], "moved") == "moved"


@pytest.mark.parametrize(("failed_media", "lost"), [(True, []), (False, ["image"])])
def test_files_of_failed_results_are_texts_where_the_provider_says_so(
    failed_media: bool, lost: list[str]
) -> None:
    """They are named, and reported."""
    failed = ToolMessage([IMAGE], tool_call_id="c1", status="error")
    _, dropped = request(
        HumanMessage("Look."), AIMessage("", tool_calls=[CALL]), failed, failed_media=failed_media
    )
    assert dropped == lost


def test_prompts_calls_and_reasoning_follow_the_rules() -> None:
    """Late instructions are a user's, names of tools fit, and reasoning of another family is left out."""
    thinking = Content.from_text_reasoning(text="Hm.")
    [thought] = to_log(Message("assistant", [thinking, "So."]))
    thought.response_metadata = {"model_name": "gpt-5"}
    shown, dropped = request(
        SystemMessage("Be brief."),
        HumanMessage("Look."),
        thought,
        SystemMessage("Cite."),
        AIMessage("", tool_calls=[CALL]),
        ToolMessage("5", tool_call_id="c1"),
        asked="claude-opus-4-1",
        system="first",
        reasoning_of="model",
    )
    assert dropped == ["reasoning"]
    assert [message.role for message in shown[:4]] == ["system", "user", "assistant", "user"]
    assert shown[3].text.startswith(INSTRUCTION)
    assert shown[4].contents[0].name == "mcp_files_read"


def test_arguments_that_are_no_object_are_not_sent() -> None:
    """They are reported."""
    [cut] = to_log(
        Message("assistant", [Content.from_function_call("c1", "look", arguments='{"place":')])
    )
    shown, dropped = request(HumanMessage("Look."), cut)
    assert shown[1].contents[0].arguments == "{}"
    assert dropped == ["arguments of look"]


def test_an_approval_is_no_message_of_a_user() -> None:
    """No answer has to stand between it and the results before it."""
    call = Content.from_function_call("c2", "pay", arguments="{}")
    approval = Message("user", [Content.from_function_approval_response(True, "a", call)])
    shown, _ = request(
        HumanMessage("Pay."),
        AIMessage("", tool_calls=[CALL]),
        ToolMessage("5", tool_call_id="c1"),
        *to_log(approval),
        answer_after_results=True,
    )
    assert [message.role for message in shown] == ["user", "assistant", "tool", "user"]


def test_a_file_has_its_name_where_clients_look_for_it() -> None:
    """Beside its data."""
    shown, _ = from_log([HumanMessage([{**IMAGE, "extras": {"filename": "a.png"}}])])
    assert shown[0].contents[0].additional_properties["filename"] == "a.png"
