"""Chains: a list of messages as sections and pairs, made fit for another provider, and summarised part by part.

Layer 1. Nothing here reads or writes a store; the only thing that is not pure is the call of the model in
`summarizer`.

`structure` is the chain and its operations, `parse` makes one, `sizes` says what its limits count; `call_ids`,
`reasoning` and `arguments` are what another provider needs. `plan` decides what is summarised, `prompts` what the
model is shown, `work` keeps the books of a run, `summarizer` leads through it.
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
