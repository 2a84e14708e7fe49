"""Tests of `TurnSession.add_result`: parallel calls, sources, values, errors and repeated results."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage

from convstore.conversation import Conversation
from convstore.exceptions import ContentConflictError, InvalidInputError, StoreUnavailableError
from convstore.mongo.log import Log
from convstore.testing.fixtures import kinds_of
from convstore.testing.turn_sessions import calls

__all__ = ["TurnResultContract"]

_FOUND = [
    Document("Seals sleep.", metadata={"title": "Seals"}),
    "Orcas hunt.",
    ("Whales sing.", {"url": "https://w"}),
]


class TurnResultContract:
    """`TurnSession.add_result`."""

    async def test_parallel_results_come_in_any_order(self, chat: Conversation) -> None:
        """Each result answers its call, even if calls have equal ids."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            asked = [{"name": "search", "args": {"n": number}, "id": "call"} for number in range(3)]
            await turn.append(AIMessage("", tool_calls=asked))
            await asyncio.gather(
                *(turn.add_result(call, str(call.args["n"])) for call in reversed(turn.open_calls))
            )
            assert turn.open_calls == []
            shown = (await turn.load_history()).messages
        assert [message.text for message in shown[2:]] == ["0", "1", "2"]

    async def test_sources_of_results_are_numbered(self, chat: Conversation) -> None:
        """Numbers continue from call to call, and are in the text that the model reads."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append(calls("a", "b"))
            for call in turn.open_calls:
                await turn.add_result(
                    call, sources=[Document(f"from {call.name}"), Document(f"more of {call.name}")]
                )
            texts = [message.text for message in turn.messages[2:]]
        assert texts == ["[1]\nfrom a\n\n[2]\nmore of a", "[3]\nfrom b\n\n[4]\nmore of b"]
        page = await chat.get_sources("3")
        assert page.sources[0].content == "from b"

    async def test_invalid_arguments_are_an_open_call(self, chat: Conversation) -> None:
        """A call with invalid arguments has the error as a text, and can be answered with it."""
        function = {"name": "search", "arguments": '{"query"'}
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            asked = [{"id": "c", "type": "function", "function": function}]
            await turn.append({"role": "assistant", "content": "", "tool_calls": asked})
            [call] = turn.open_calls
            assert (call.name, call.args, call.error != "") == ("search", {}, True)
            await turn.add_result(call, call.error, error=True)
            assert turn.open_calls == []

    async def test_sources_come_with_an_artifact(self, chat: Conversation) -> None:
        """The sources get numbers and are shown, and the artifact is stored as well."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append(calls("search"))
            receipt = await turn.add_result(
                turn.open_calls[0], "Three.", sources=_FOUND, artifact={"took_ms": 12}
            )
            shown = (await turn.load_history()).messages[-1].text
        assert receipt.source_ids == (1, 3)
        assert (
            shown
            == "Three.\n\n[1] Seals\nSeals sleep.\n\n[2]\nOrcas hunt.\n\n[3] (https://w)\nWhales sing."
        )
        page = await chat.get_sources("1-3")
        assert [source.content for source in page.sources] == [
            "Seals sleep.",
            "Orcas hunt.",
            "Whales sing.",
        ]
        [record] = await chat.get_tool_messages(receipt.message_ids)
        assert record.artifact["artifact"] == {"took_ms": 12}

    @pytest.mark.parametrize(
        "sources",
        [
            "a text",
            _FOUND[0],
            {"a": 1},
            [_FOUND[0], {"a": 1}],
            [5],
            [None],
            [" "],
            [_FOUND[0]] * 1_001,
        ],
        ids=lambda value: type(value).__name__,
    )
    async def test_a_value_that_is_no_source_is_refused(
        self, chat: Conversation, sources: Any
    ) -> None:
        """An invalid source raises InvalidInputError. Nothing is written, and the call stays open."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append(calls("search"))
            with pytest.raises(InvalidInputError, match="sources"):
                await turn.add_result(turn.open_calls[0], sources=sources)
            assert len(turn.open_calls) == 1
        assert await kinds_of(chat) == ["human", "ai"]

    async def test_a_failed_call_has_no_sources(self, chat: Conversation) -> None:
        """Sources together with an error are refused, as a model would not see them."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append(calls("search"))
            with pytest.raises(InvalidInputError, match="error"):
                await turn.add_result(turn.open_calls[0], "broken", sources=_FOUND, error=True)

    async def test_the_same_result_again_writes_nothing(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A repeated result, also in another worker, returns the first receipt; a different result is a conflict."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append(calls("read", "search"))
            plain, found = turn.open_calls
            first = [
                await turn.add_result(plain, "yes"),
                await turn.add_result(found, sources=_FOUND),
            ]
            again = [
                await turn.add_result(plain, "yes"),
                await turn.add_result(found, sources=_FOUND),
            ]
        async with await elsewhere.turn("r1") as turn:
            again += [
                await turn.add_result(plain, "yes"),
                await turn.add_result(found, sources=_FOUND),
            ]
            renamed = [Document("Seals sleep.", metadata={"title": "Other"}), *_FOUND[1:]]
            others: list[dict[str, Any]] = [
                {"sources": _FOUND[:1]},
                {"sources": _FOUND, "content": "Found."},
                {"sources": _FOUND, "artifact": 5},
                {"sources": renamed},
            ]
            with pytest.raises(ContentConflictError):
                await turn.add_result(plain, "no")
            for other in others:
                with pytest.raises(ContentConflictError):
                    await turn.add_result(found, **other)
        assert [receipt.ordinals for receipt in again] == 2 * [
            receipt.ordinals for receipt in first
        ]
        assert [receipt.written for receipt in again] == [0, 0, 0, 0]
        assert await kinds_of(chat) == ["human", "ai", "tool", "tool"]

    async def test_copies_in_a_result_are_numbered_apart_and_repeated(
        self, chat: Conversation
    ) -> None:
        """A result with a passage twice is stored once if equal calls are made concurrently or later."""
        sources = [_FOUND[0], "New.", "New."]
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append(calls("first", "second"))
            first, second = turn.open_calls
            await turn.add_result(first, sources=sources[:1])
            both = await asyncio.gather(
                *[turn.add_result(second, sources=sources) for _ in range(2)]
            )
            again = await turn.add_result(second, sources=sources)
        assert sorted(receipt.written for receipt in (*both, again)) == [0, 0, 1]
        assert await kinds_of(chat) == ["human", "ai", "tool", "tool"]
        assert [source.source_id for source in (await chat.get_sources("1-9")).sources] == [
            1,
            2,
            3,
            4,
        ]

    async def test_a_result_of_unknown_outcome_is_repeated(
        self, chat: Conversation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A result that was stored without an acknowledgement is stored once, with the numbers of the first try."""
        insert = Log.insert

        async def stored(*args: Any, **options: Any) -> None:
            await insert(*args, **options)
            if args[2][0].messages:
                raise StoreUnavailableError("no acknowledgement")

        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append(calls("search"))
            [call] = turn.open_calls
            with monkeypatch.context() as patch:
                patch.setattr(Log, "insert", stored)
                with pytest.raises(StoreUnavailableError):
                    await turn.add_result(call, sources=_FOUND)
            receipt = await turn.add_result(call, sources=_FOUND)
            assert (receipt.written, turn.open_calls) == (0, [])
        assert await kinds_of(chat) == ["human", "ai", "tool"]
        assert [source.content for source in (await chat.get_sources("1-3")).sources][
            1
        ] == "Orcas hunt."

    @pytest.mark.parametrize(
        ("content", "shown"),
        [
            ({"a": [1, None]}, '{"a": [1, null]}'),
            (5, "5"),
            ([], "[]"),
            ("text", "text"),
            (["a", 2], '["a", 2]'),
            ([{"type": "booking", "id": 7}], '[{"type": "booking", "id": 7}]'),
        ],
        ids=repr,
    )
    async def test_a_value_is_shown_as_json(
        self, chat: Conversation, content: Any, shown: str
    ) -> None:
        """A model reads JSON, not the repr of Python; content blocks stay blocks."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append(calls("look", "see"))
            first, second = turn.open_calls
            await turn.add_result(first, content)
            await turn.add_result(second, [{"type": "text", "text": "a block"}])
            assert [message.content for message in turn.messages[-2:]] == [
                shown,
                [{"type": "text", "text": "a block"}],
            ]
            with pytest.raises(InvalidInputError, match=r"not in turn\.open_calls"):
                await turn.wait_for(first.model_copy(update={"result_id": "other"}))

    async def test_a_value_that_json_cannot_express_is_refused(self, chat: Conversation) -> None:
        """The error says which contents are possible and where passages go; the call stays open."""
        expected = (
            "content must be a text.*: Object of type set is not.*; convert it, or.* sources="
        )
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append(calls("look"))
            with pytest.raises(InvalidInputError, match=expected):
                await turn.add_result(turn.open_calls[0], {1, 2})
            assert len(turn.open_calls) == 1
