"""Items of OpenAI's Responses API go back with their ids once, and only with all that the API needs."""

from __future__ import annotations

from typing import Any

from cases import each_case
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore.types import History, ProviderRules

IMAGE = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}
SEARCH = {"type": "web_search_call", "id": "ws_1", "action": {"query": "sea"}}
CALL = {"name": "look", "args": {}, "id": "call_1"}


def thought(id_: str) -> dict[str, Any]:
    """Encrypted reasoning."""
    return {"type": "reasoning", "id": id_, "summary": [], "encrypted_content": "ZW5j"}


def text(id_: str, said: str = "So.", **fields: Any) -> dict[str, Any]:
    """A text, as langchain-openai keeps it."""
    return {"type": "text", "text": said, "id": id_, **fields}


def answer(*blocks: Any, **fields: Any) -> AIMessage:
    """An answer of a model of OpenAI."""
    return AIMessage(
        list(blocks),
        response_metadata={"model_name": "gpt-5", "model_provider": "openai"},
        **fields,
    )


def request_of(*messages: BaseMessage, **options: Any) -> Any:
    """The request after a question."""
    history = History(messages=[HumanMessage("Why?"), *messages])
    return history.to_openai(api="responses", **options)


def kinds_and_ids(request: Any) -> list[tuple[str, str]]:
    """Type and id of each item after the question."""
    return [(item["type"], item.get("id", "")) for item in request[1:]]


@each_case(
    ("answers", "expected"),
    [
        (
            [answer(thought("rs_1"), text("msg_1")), answer(thought("rs_2"), text("msg_1"))],
            [("reasoning", "rs_1"), ("message", "msg_1"), ("reasoning", "rs_2"), ("message", "")],
        ),
        (
            [answer(thought("rs_1"), text("msg_1")), answer(thought("rs_1"), text("msg_2"))],
            [("reasoning", "rs_1"), ("message", "msg_1"), ("message", "")],
        ),
        (
            [answer(thought("rs_1"), text("msg_1"), thought("rs_1"), text("msg_2"))],
            [("message", ""), ("message", "")],
        ),
        ([answer(text("msg_1"), thought("rs_1"))], [("message", "")]),
        ([answer(thought("rs_1"), SEARCH | {"status": "failed"})], [("message", "")]),
        (
            [answer(thought("rs_1"), SEARCH, text("msg_1"))],
            [("reasoning", "rs_1"), ("web_search_call", "ws_1"), ("message", "msg_1")],
        ),
    ],
)
def test_an_item_is_sent_once_and_whole(answers: list[AIMessage], expected: Any) -> None:
    """The API refuses a request with one id twice, and reasoning without the item that followed it."""
    request = request_of(*answers, model="gpt-5")
    assert kinds_and_ids(request) == expected
    sent = sum(kind == "reasoning" for kind, _ in expected)
    given = sum(block["type"] == "reasoning" for each in answers for block in each.content)
    assert ("reasoning" in {loss.part for loss in request.dropped}) is (sent < given)


def test_an_item_of_a_hosted_tool_is_completed() -> None:
    """The API wants a status; older versions of a package did not keep it."""
    [_, item] = request_of(answer(SEARCH), model="gpt-5")
    assert item == SEARCH | {"status": "completed"}


def test_a_provider_by_name_has_the_rules_of_this_api() -> None:
    """The rows of that name are those of Chat Completions, which takes neither reasoning nor images of results."""
    shown = ToolMessage([IMAGE], tool_call_id="call_1")
    messages = (answer(thought("rs_1"), text("msg_1"), tool_calls=[CALL]), shown)
    request = request_of(*messages, provider="openai")
    assert request == request_of(*messages)
    assert request[1]["type"] == "reasoning"
    assert request[-1]["output"][0]["type"] == "input_image"


def test_a_call_has_the_fields_of_its_own_api_alone() -> None:
    """A namespace of OpenAI goes back; the caller that Anthropic wrote beside a call does not."""
    own = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "namespace": "crm"}
    foreign = {"type": "tool_use", "id": "call_1", "caller": {"type": "direct"}}
    result = ToolMessage("1", tool_call_id="call_1")
    fields = [
        set(request_of(answer(block, tool_calls=[CALL]), result)[1]) for block in (own, foreign)
    ]
    written = {"type", "call_id", "name", "arguments"}
    assert fields == [written | {"namespace"}, written]


def test_a_phase_that_the_api_does_not_know_stays_out() -> None:
    """It has two; a server with the same API may write others."""
    texts = [text("msg_1", phase="commentary"), text("msg_2", phase="planning")]
    _, known, unknown = request_of(answer(*texts))
    assert known["phase"] == "commentary"
    assert "phase" not in unknown


def test_a_recording_of_a_user_is_named() -> None:
    """The API takes images and files, no audio and no video, wherever they are."""
    video = {"type": "video", "url": "https://a.example/b.mp4"}
    request = History(messages=[HumanMessage([video])]).to_openai(api="responses")
    assert request[0]["content"] == '[video "https://a.example/b.mp4"]'
    assert [loss.part for loss in request.dropped] == ["video"]


def test_an_answer_of_calls_alone_has_no_message_beside_its_reasoning() -> None:
    """Servers that need the reasoning of each answer get an item for it, and a text only where there is one."""
    rules = ProviderRules.named("deepseek")
    calling = AIMessage("", tool_calls=[CALL], additional_kwargs={"reasoning_content": "Hm."})
    result = ToolMessage("1", tool_call_id="call_1")
    silent = AIMessage("", additional_kwargs={"reasoning_content": "Hm."})
    request = request_of(calling, result, silent, provider=rules)
    assert [item["type"] for item in request[1:]] == [
        *("reasoning", "function_call", "function_call_output"),
        *("reasoning", "message"),
    ]
    assert request[1]["summary"][0]["text"] == "Hm."
    assert request[-1]["content"][0]["text"] == "(no text)"
