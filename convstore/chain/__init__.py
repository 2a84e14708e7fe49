"""Chains: a list of messages as sections and pairs, made fit for another provider, and summarised part by part.

Floor 1. Nothing here reads or writes a store. Everything is pure except the model calls in `summarizer`.

`structure` holds the chain and its operations, `parse` builds one, and `sizes` measures messages in bytes. `plan`
selects the parts to summarise, `prompts` writes the requests, `work` holds the state of a run and `summarizer` runs it.
--
"""

from __future__ import annotations

from convstore.chain.models import ChainSummarizerConfig, ChainSummary, Strategy, SummaryCall
from convstore.chain.parse import MISSING_RESULT, parse_chain
from convstore.chain.structure import SUMMARY_PREFIX, SUMMARY_TOOL, Chain, Header, Pair, PairKind, Section
from convstore.chain.summarizer import ChainModel, ChainSummarizer, SummaryHandler

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
