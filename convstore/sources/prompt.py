"""The paragraph of a system prompt that explains stubs and the retrieval tool to a model.

Floor 1. An application puts it into the system prompt of its agent; the LangChain middleware does so itself.
"""

from __future__ import annotations

from convstore.sources.stub import RETRIEVAL_TOOL

__all__ = ["SOURCES_PROMPT", "sources_prompt"]


def sources_prompt(tool: str = RETRIEVAL_TOOL) -> str:
    """Return the paragraph for a system prompt about shortened tool results and how to read them.

    >>> "retrieve_previous_sources" in sources_prompt()
    True
    """
    return (
        "Tool results of earlier turns are shortened in this history to save context: you see the tool, whether it "
        "succeeded, how many sources it found and their source ids, but not their text. Source ids such as [17] stay "
        f"valid for the whole conversation, so cite them as before. To read a shortened result, call {tool} with its "
        "tool_message_id, or with source_ids to read single sources; a long one comes in pages, so go on with the "
        "cursor. Earlier turns may be left out or summarized: to search everything that was said, call "
        f"{tool} with find and a few words; it also reads any message under the id that a note, a summary or a "
        "placeholder names. Never answer from a shortened result alone: read it first, or say that you "
        "have not read it."
    )


SOURCES_PROMPT = sources_prompt()
"""`sources_prompt` for the tool under its own name; put it into the agent's system prompt."""
