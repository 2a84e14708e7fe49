"""The prompts that are used where the caller gives none; their variables are those of langmem's.

Layer 1. What a message or a summary says is put in as a value, never as a part of a template, so braces in it mean
nothing.
"""

from __future__ import annotations

from typing import Final

from langchain_core.prompts import ChatPromptTemplate

__all__ = ["DEFAULT_EXISTING_SUMMARY_PROMPT", "DEFAULT_FINAL_SUMMARY_PROMPT", "DEFAULT_INITIAL_SUMMARY_PROMPT"]

DEFAULT_INITIAL_SUMMARY_PROMPT: Final = ChatPromptTemplate(
    [
        ("placeholder", "{messages}"),
        (
            "human",
            "Write a summary of our conversation up to here. It will stand in the place of these messages, so keep "
            "names, facts, numbers, identifiers, decisions and open questions. Answer with the summary alone.",
        ),
    ]
)
"""Asks for the first summary. Variable: ``messages``, a list."""

DEFAULT_EXISTING_SUMMARY_PROMPT: Final = ChatPromptTemplate(
    [
        ("placeholder", "{messages}"),
        (
            "human",
            "What came before these messages was summarised like this:\n\n{existing_summary}\n\n"
            "Bring the summary up to date with the messages above. It will stand in the place of both, so keep what "
            "is still true of the old one, and names, facts, numbers, identifiers, decisions and open questions of the "
            "new messages. Answer with the whole new summary alone.",
        ),
    ]
)
"""Asks for an extended summary. Variables: ``messages``, a list, and ``existing_summary``."""

DEFAULT_FINAL_SUMMARY_PROMPT: Final = ChatPromptTemplate(
    [
        ("placeholder", "{system_message}"),
        ("system", "Summary of the conversation so far: {summary}"),
        ("placeholder", "{messages}"),
    ]
)
"""Puts a summary before the messages that follow it.

Variables: ``system_message``, a list of one message or none, ``summary``, and ``messages``, a list.
"""
