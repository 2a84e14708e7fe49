"""Rolling summaries of any list of messages: takes the place of ``langmem.short_term``.

Floor 1. Nothing here reads or writes a store; the only thing that is not pure is the call of the model, and a model is
asked with ``invoke(messages)`` or ``ainvoke(messages)`` and nothing else. Summaries that are stored with a
conversation are built on the same rules.

Those are written by a summarizer, see `summarizers`.

`plan` says what is folded into the summary and where it may be cut, `shown` what a model sees of it, `fold` leads
through the calls, `summarize` and `node` are the two ways in.
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
        """Return a name of the functions without a store, which load LangChain's prompts and runnables."""
        from convstore.summarization import models, node, summarize  # noqa: PLC0415

        for module in (models, node, summarize):
            if name in module.__all__:
                return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
