"""Rolling summaries of any list of messages, with the parameters of ``langmem.short_term``.

Floor 1. It does not access a store, and is pure except for the model calls in `engine`. The summaries stored with a
conversation are written by a summarizer from `summarizers`.

`cuts` finds where a list may be cut, `prompts` writes requests, `engine` asks the model; `summarize` and `node` apply
them to lists of messages and to the states of graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from convstore.summarization.summarizers import HeadTailSummarizer, RunningSummarizer, Summarizer
from convstore.values.policy import CompactionRule

if TYPE_CHECKING:
    from convstore.summarization.models import (
        DEFAULT_EXISTING_SUMMARY_PROMPT,
        DEFAULT_FINAL_SUMMARY_PROMPT,
        DEFAULT_INITIAL_SUMMARY_PROMPT,
        RunningSummary,
        SummarizationResult,
    )
    from convstore.summarization.node import SummarizationNode
    from convstore.summarization.summarize import asummarize_messages, summarize_messages
else:

    def __getattr__(name: str) -> Any:
        """Import a function for lists or graphs on first use, because these load LangChain's prompts and runnables."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from convstore.summarization import models, node, summarize  # noqa: PLC0415

        return next(
            vars(module)[name] for module in (models, node, summarize) if name in vars(module)
        )


__all__ = [
    "DEFAULT_EXISTING_SUMMARY_PROMPT",
    "DEFAULT_FINAL_SUMMARY_PROMPT",
    "DEFAULT_INITIAL_SUMMARY_PROMPT",
    "CompactionRule",
    "HeadTailSummarizer",
    "RunningSummarizer",
    "RunningSummary",
    "SummarizationNode",
    "SummarizationResult",
    "Summarizer",
    "asummarize_messages",
    "summarize_messages",
]
