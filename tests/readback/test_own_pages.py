"""The retrieval tool's own pages are copies: no list and no note names them."""

from __future__ import annotations

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, HistoryPolicy


async def test_lists_and_notes_name_results_and_not_their_copies(chat: Conversation) -> None:
    """After many read-backs a list and a note still name the one result that was read."""
    found = [Document(f"Passage {number}. " * 9) for number in (1, 2)]
    call = {"name": "search", "args": {}, "id": "call"}
    result = ToolMessage("2", artifact=found, tool_call_id="call", name="search", id="result-1")
    await chat.append([HumanMessage("q"), AIMessage("", tool_calls=[call]), result, AIMessage("a")])
    page = await chat.retrieve_previous_sources_tool().ainvoke({"source_ids": "1-2"})
    for number in range(21):
        call = {"name": "retrieve_previous_sources", "args": {}, "id": f"again-{number}"}
        copy = ToolMessage(page, tool_call_id=call["id"], id=f"copy-{number}")
        question = HumanMessage(f"again {number}")
        await chat.append([question, AIMessage("", tool_calls=[call]), copy, AIMessage("ok")])
    listed = await chat.retrieve_previous_sources_tool().ainvoke({})
    history = await chat.load_history(HistoryPolicy(max_turns=1))
    for text in (listed, history.messages[0].text):
        assert "result-1" in text
        assert "copy-" not in text
