"""Pages of messages for a user interface: in both directions, with the turn of each message (`list_messages`)."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore.conversation import Conversation
from convstore.exceptions import InvalidInputError
from convstore.messages.tool_calls import result_id
from convstore.testing.samples import rag_turn, same_messages
from convstore.values.models import StoredMessage

__all__ = ["MessagePageContract"]


class MessagePageContract:
    """`list_messages`."""

    async def test_listed_messages_name_their_turns(self, chat: Conversation) -> None:
        """Each message has the id of its question, also if that stands on another page."""
        for turn in ("q1", "q2"):
            await chat.append([HumanMessage("Why?", id=turn), AIMessage("So.")])
        turns = [
            [message.turn_id for message in await chat.list_messages(limit=limit)]
            for limit in (9, 1)
        ]
        assert turns == [["q1", "q1", "q2", "q2"], ["q2"]]

    async def test_a_page_deep_in_a_turn_names_its_question(self, chat: Conversation) -> None:
        """However long its turn is."""
        await chat.append(
            [
                HumanMessage("Why?", id="q1"),
                *(AIMessage(f"Step {number}.") for number in range(230)),
            ]
        )
        near = await chat.list_messages(after=150, limit=1)
        far = await chat.list_messages(limit=1)
        assert [page[0].turn_id for page in (near, far)] == ["q1", "q1"]

    async def test_a_message_of_an_overtaken_run_names_its_own_question(
        self, chat: Conversation
    ) -> None:
        """A call that names an earlier question, its result, and what its tool added are of that question's turn."""
        call = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c"}], id="call")
        result = ToolMessage("A seal.", tool_call_id="c", id=result_id("call", "c"))
        await chat.append([HumanMessage("Why?", id="q1"), HumanMessage("How?", id="q2")])
        await chat.append([call, result], turn="q1")
        await chat.append(HumanMessage("its picture"), turn="q1")
        await chat.append(AIMessage("So."))
        assert [message.turn_id for message in await chat.list_messages()] == [
            "q1",
            "q2",
            "q1",
            "q1",
            "q1",
            "q2",
        ]
        assert [message.turn_id for message in await chat.list_messages(after=4)] == ["q1", "q2"]

    async def test_messages_are_listed_by_pages_both_ways(self, chat: Conversation) -> None:
        """The pages, one after the other, are the log; results are stubs unless asked for in full."""
        log = [message for number in range(5) for message in rag_turn(f"What about fish {number}?")]
        for begin in (0, 3, 10):
            await chat.append(log[begin : {0: 3, 3: 10, 10: 20}[begin]])
            await chat.reserve_source_ids(1)
        back: list[StoredMessage] = []
        while page := await chat.list_messages(
            before=back[0].ordinal if back else None, limit=3, full=True
        ):
            back = page + back
        forth: list[StoredMessage] = []
        while page := await chat.list_messages(after=forth[-1].ordinal if forth else 0, limit=4):
            forth += page
        assert same_messages([stored.message for stored in back], log)
        assert (
            [stored.ordinal for stored in back]
            == [stored.ordinal for stored in forth]
            == list(range(1, 21))
        )
        assert [stored.message.id for stored in forth] == [message.id for message in log]
        assert '"source_ids": "1-3"' in str(forth[2].message.content)

    @pytest.mark.parametrize(
        "asked", [{"limit": -1}, {"before": "1"}, {"before": 1, "after": 1}, {"limit": 10**9}]
    )
    async def test_a_bad_page_is_refused(self, chat: Conversation, asked: dict[str, Any]) -> None:
        """A bad limit, and two ends of a page, are refused before anything is read."""
        with pytest.raises(InvalidInputError):
            await chat.list_messages(**asked)
