"""What shapes a summary of a chain, and what comes of one.

Layer 1. Values that are not positive mean the default, as in the algorithm that these parameters come from.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from langchain_core.messages import BaseMessage

from convstore.exceptions import InvalidInputError

__all__ = ["ChainSummarizerConfig", "ChainSummary", "Strategy", "SummaryCall"]

Strategy = Literal["sections", "oversized_pair", "rotation", "qa", "qa_humans"]
"""Why the model was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSummarizerConfig:
    """When a chain is summarised, and how much of it stays; sizes are in UTF-8 bytes.

    A number that is not positive means the default.

    Attributes:
        preserve_last: Keep the last sections within `last_section_bytes`.
        use_qa: Fold older sections into one when there are too many.
        summarize_human_in_qa: Summarise the human messages of folded sections, too, instead of joining them.
        last_section_bytes: At most this many bytes in each of the last sections; 25 % of it stay free for what comes.
        max_pair_bytes: A larger pair in the last sections is summarised by itself, the last pair never.
        max_qa_sections: More sections than this are folded.
        max_qa_bytes: The sections of a chain larger than this are folded.
        keep_sections: So many sections at the end are never summarised whole, nor folded; a fold keeps more if they
            fit.
        strict_seed: Do as the algorithm's original does where this one does better; to compare both.

    Raises:
        InvalidInputError: A switch is no bool, or a number no int.
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
            value, kind = getattr(self, each.name), type(each.default)
            if type(value) is not kind:
                raise InvalidInputError(f"{each.name} is of type {kind.__name__}, not {value!r}")
            if type(value) is int and value <= 0:
                object.__setattr__(self, each.name, each.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryCall:
    """One call of the model.

    Attributes:
        strategy: Why it was made.
        shown: Places, in the list that came in, of the messages that it was shown, context included. A summary that
            was made in the same run is shown in place of those that it stands for. Empty where summaries of parts
            were joined.
        error: What became of it, if no summary.
    """

    strategy: Strategy
    shown: tuple[int, ...]
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSummary:
    """What came of a chain; after a failure the messages that came in, and the error.

    Attributes:
        messages: The messages, valid without repair; those that stayed are the objects that came in.
        calls: Every call of the model, in the order they were made.
        bytes_before: Size of the chain that came in, with what had to be repaired in it.
        bytes_after: Size of `messages`; at most the size before.
        origins: For each of `messages` the places, in the list that came in, of those that it stands for.
        repairs: What was repaired in the chain that came in, one sentence each.
        error: Why `messages` is what came in; an ExceptionGroup if several calls failed. None if all went well; a
            failed call for an oversized pair is no failure, the pair stays.
    """

    messages: list[BaseMessage]
    calls: tuple[SummaryCall, ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0
    origins: tuple[tuple[int, ...], ...] = ()
    repairs: tuple[str, ...] = ()
    error: Exception | None = None
