"""Configuration and results of chain summarization."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from langchain_core.messages import BaseMessage

from convstore.exceptions import InvalidInputError
from convstore.values.plain import shown_value

Strategy = Literal["sections", "oversized_pair", "rotation", "qa", "qa_humans"]
"""The reason for a model call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSummarizerConfig:
    """Limits that decide when a chain is summarised and how much of it is kept. Sizes are in UTF-8 bytes.

    Zero and negative numbers mean the default, as in the original algorithm.

    Attributes:
        preserve_last: Keep the last sections within `last_section_bytes`.
        use_qa: Fold older sections into one when there are too many.
        summarize_human_in_qa: Also summarise the human messages of folded sections, instead of joining them.
        last_section_bytes: Maximum size of each of the last sections. A rotation leaves 25 % of it free for new
            messages.
        max_pair_bytes: Larger pairs in the last sections are summarised one by one. The last pair is exempt.
        max_qa_sections: A chain with more sections is folded.
        max_qa_bytes: A larger chain is folded.
        keep_sections: Number of sections at the end that are never folded or summarised as a whole. A fold keeps more
            if they fit.
        strict_seed: Reproduce the original algorithm, including its known flaws, for comparison.

    Raises:
        InvalidInputError: A switch is not a bool, or a number is not an int.
    """

    preserve_last: bool = True
    use_qa: bool = False
    summarize_human_in_qa: bool = False
    last_section_bytes: int = 50 * 1024
    max_pair_bytes: int = 16 * 1024
    max_qa_sections: int = 10
    max_qa_bytes: int = 64 * 1024
    keep_sections: int = 1
    strict_seed: bool = False

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            kind = type(each.default)
            if type(value) is not kind:
                raise InvalidInputError(
                    f"{each.name} must be of type {kind.__name__}, not {shown_value(value)}"
                )
            if type(value) is int and value <= 0:
                object.__setattr__(self, each.name, each.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryCall:
    """One call of the model.

    Attributes:
        strategy: The reason for the call.
        shown: Indexes of the input messages in the request, context included, but not those already summarised in the
            same run. Empty if the call joined summaries of parts.
        error: The exception, if the call returned no usable summary.
        request: Digest of the request.
    """

    strategy: Strategy
    shown: tuple[int, ...]
    error: Exception | None = None
    request: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSummary:
    """The result of a summarization. After a failure it has the input messages and the error.

    Attributes:
        messages: The messages, valid without repair. Messages that were kept are the same objects as in the input.
        calls: Every model call, in order.
        bytes_before: Size of the input chain after its repairs.
        bytes_after: Size of `messages`, never more than `bytes_before`.
        origins: For each of `messages`, the indexes of the input messages that it represents.
        repairs: One sentence for each repair of the input chain.
        error: The error because of which `messages` is the unchanged input, an ExceptionGroup if several calls failed;
            None on success. A failed call for an oversized pair does not count; the pair is kept.
    """

    messages: list[BaseMessage]
    calls: tuple[SummaryCall, ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0
    origins: tuple[tuple[int, ...], ...] = ()
    repairs: tuple[str, ...] = ()
    error: Exception | None = None
