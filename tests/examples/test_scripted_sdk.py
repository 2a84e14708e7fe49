"""The scripted client of the examples replies like OpenAI's SDK, and refuses what OpenAI refuses."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from programs import ROOT

from convstore.append.inputs import normalize_messages


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The helper, imported as the examples import it."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.delenv("MODEL", raising=False)
    import scripted_sdk  # noqa: PLC0415 - from the folder of the examples

    return scripted_sdk


def script(messages: list[dict[str, Any]]) -> Any:
    """A call first, then an answer."""
    return "They eat fish." if messages[-1]["role"] == "tool" else [("search", {"q": "orcas"})]


ASKED = [{"role": "user", "content": "What do orcas eat?"}]


async def test_whole_replies_are_appended_as_they_are(sdk: Any) -> None:
    """With their call, model and counts."""
    client = sdk.client(script)
    reply = await client.chat.completions.create(model="gpt-5", messages=ASKED, tools=[])
    [message] = normalize_messages(reply)
    assert isinstance(message, AIMessage)
    assert message.tool_calls == [
        {"name": "search", "args": {"q": "orcas"}, "id": "call_1_0", "type": "tool_call"}
    ]
    assert message.response_metadata["finish_reason"] == "tool_calls"
    called = reply.choices[0].message.tool_calls[0]
    result = {"role": "tool", "tool_call_id": called.id, "content": "fish"}
    answer = {"role": "assistant", "content": None, "tool_calls": [called.model_dump()]}
    final = await client.chat.completions.create(model="gpt-5", messages=[*ASKED, answer, result])
    assert final.choices[0].message.content == "They eat fish."


async def test_a_stream_says_the_same_in_pieces(sdk: Any) -> None:
    """Texts by the word, arguments in parts, at the end the reason."""
    pieces = [
        piece
        async for piece in await sdk.client(lambda _: "They eat fish.").create(
            messages=ASKED, stream=True
        )
    ]
    assert (
        "".join(getattr(piece.choices[0].delta, "content", "") for piece in pieces)
        == "They eat fish."
    )
    assert pieces[-1].choices[0].finish_reason == "stop"
    calls = [piece async for piece in await sdk.client(script).create(messages=ASKED, stream=True)]
    parts = [part for piece in calls for part in getattr(piece.choices[0].delta, "tool_calls", ())]
    assert parts[0].id == "call_1_0"
    assert "".join(part.function.arguments for part in parts) == '{"q": "orcas"}'


async def test_a_call_without_its_result_is_refused(sdk: Any) -> None:
    """In OpenAI's words."""
    call = sdk.call_of("search", {}, id_="c")
    with pytest.raises(ValueError, match="did not have response messages: c"):
        await sdk.client(script).create(
            messages=[{"role": "assistant", "tool_calls": [call]}, *ASKED]
        )
