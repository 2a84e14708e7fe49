"""The channels that convstore adds to the states of LangGraph graphs."""

from __future__ import annotations

from typing import Final

OWNER: Final = "convstore_owner"
"""Names the conversation of a checkpoint. A state that has it is one whose messages are in the log."""
