"""Chains: a list of messages as sections and pairs, adapted to another provider, and summarised part by part.

Floor 1, pure. The engine of `summarization` asks the model, and its prompts write the requests.

`structure` has the chain and its operations, `parse` builds one from messages. `work` is one run, which selects the
parts to summarise, and `summarizer` starts it.
"""

from __future__ import annotations

from convstore.chain.models import ChainSummarizerConfig, ChainSummary, Strategy, SummaryCall
from convstore.chain.parse import MISSING_RESULT, parse_chain
from convstore.chain.structure import SUMMARY_TOOL, Chain, Header, Pair, PairKind, Section
from convstore.chain.summarizer import ChainModel, ChainSummarizer, SummaryHandler
from convstore.messages.provenance import SUMMARY_PREFIX

__all__ = [
    "MISSING_RESULT",
    "SUMMARY_PREFIX",
    "SUMMARY_TOOL",
    "Chain",
    "ChainModel",
    "ChainSummarizer",
    "ChainSummarizerConfig",
    "ChainSummary",
    "Header",
    "Pair",
    "PairKind",
    "Section",
    "Strategy",
    "SummaryCall",
    "SummaryHandler",
    "parse_chain",
]
