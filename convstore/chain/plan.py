"""What of a chain is summarised, and what a summary looks like in it.

Layer 1, pure: `work` and `summarizer` ask here. The limits are those of the algorithm; a part is left alone if a
summary of it would hardly be smaller, and what is one summary already is not summarised again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import islice
from typing import Final

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.chain.models import ChainSummarizerConfig
from convstore.chain.sizes import size_of
from convstore.chain.structure import SUMMARY_PREFIX, SUMMARY_TOOL, Chain, Pair, Section, join_humans
from convstore.messages.call_ids import CallIdTemplate
from convstore.messages.provenance import mark

__all__ = [
    "LEAST_FOLD_BYTES",
    "LEAST_SUMMARY_BYTES",
    "RESERVE_PERCENT",
    "first_kept",
    "fold_cost",
    "fold_reserve",
    "is_one_summary",
    "is_worth_it",
    "kept_behind",
    "make_summary_pair",
    "oversized",
    "room_for",
    "sections_to_fold",
]

RESERVE_PERCENT: Final = 25
"""Part of the last section's limit that a rotation leaves free for what comes."""

LEAST_SUMMARY_BYTES: Final = 512
"""What the text of a summary takes at the least; a part with less room than that is not worth a call."""

LEAST_FOLD_BYTES: Final = 64
"""The same for a fold, which is there to bring down a number and mostly of summaries: it is tried with less room."""

_CALL_IDS: Final = CallIdTemplate("call_{r:24:x}")


def room_for(pairs: Sequence[Pair]) -> int:
    """Bytes that a summary's text may have at most, were it to be as large as the pairs that it stands for."""
    return sum(pair.size for pair in pairs) - make_summary_pair("", pairs, taken=set()).size


def is_worth_it(pairs: Sequence[Pair], *, config: ChainSummarizerConfig, least: int = LEAST_SUMMARY_BYTES) -> bool:
    """Whether there is something to summarise that leaves its summary more room than the least.

    >>> is_worth_it([Pair(AIMessage("Hello!"))], config=ChainSummarizerConfig())
    False
    """
    if config.strict_seed:
        return bool(pairs)
    return bool(pairs) and room_for(pairs) > least


def is_one_summary(pairs: Sequence[Pair]) -> bool:
    """Whether the pairs are a single summary, of either form."""
    return len(pairs) == 1 and pairs[0].is_summary


def make_summary_pair(text: str, pairs: Sequence[Pair], *, taken: set[str]) -> Pair:
    r"""The pair that stands for others: an answer if all of them are answers, else a call with its result.

    Both messages are marked as summaries, with ids made from that of the last message, if it has one. The same text
    for the same pairs gives the same messages. What stands behind the pairs stays, behind the summary.

    Args:
        text: The summary.
        pairs: What it stands for.
        taken: Call ids of the chain; the one that is given here is added.

    >>> make_summary_pair("Ada likes orcas.", [Pair(AIMessage("You like orcas."))], taken=set()).ai.text
    '**summarized content:**\nAda likes orcas.'
    """
    last = pairs[-1].exchange()[-1].id if pairs else None
    after = tuple(message for pair in pairs for message in pair.after)
    ids = [f"{last}:summary-{number}" if last else None for number in range(2)]
    if all(pair.kind == "completion" for pair in pairs):
        return Pair(AIMessage(SUMMARY_PREFIX + text, id=ids[0], additional_kwargs=mark("summary")), after=after)
    call_id = _free_call_id(text, taken)
    call = {"name": SUMMARY_TOOL, "args": {}, "id": call_id}
    ai = AIMessage("", id=ids[0], tool_calls=[call], additional_kwargs=mark("summary"))
    result = ToolMessage(text, id=ids[1], name=SUMMARY_TOOL, tool_call_id=call_id, additional_kwargs=mark("summary"))
    return Pair(ai, (result,), after=after)


def oversized(section: Section, *, config: ChainSummarizerConfig) -> list[int]:
    """Places of the pairs that are summarised by themselves; never the last one, whose signatures are still needed."""
    return [
        at
        for at, pair in enumerate(section.body[:-1])
        if pair.size > config.max_pair_bytes and not pair.is_summary and is_worth_it([pair], config=config)
    ]


def first_kept(section: Section, *, config: ChainSummarizerConfig) -> int:
    """Place of the first pair that a rotation keeps; 0 if there is nothing to rotate.

    The last pair stays; before it the newest ones that fit the limit less the reserve, header included, up to the
    first that does not.
    """
    if section.size <= config.last_section_bytes or not section.body:
        return 0
    limit = config.last_section_bytes * (100 - RESERVE_PERCENT) // 100
    kept = len(section.body) - 1
    size = section.header.size + section.body[kept].size
    while kept and size + section.body[kept - 1].size <= limit:
        kept -= 1
        size += section.body[kept].size
    older = section.body[:kept]
    if is_one_summary(older):
        return 0
    return kept if is_worth_it(older, config=config) else 0


def sections_to_fold(chain: Chain, *, config: ChainSummarizerConfig) -> int:
    """How many sections from the start are folded into one; 0 if none.

    As few as bring the chain within both limits, so that as many of the newest as fit them stay; the folded one counts
    as a section, and its summary as `fold_reserve`. If no fold does, all but the last `keep_sections`.
    """
    sections = chain.sections
    most = len(sections) - config.keep_sections
    if most < 1 or (len(sections) <= config.max_qa_sections and chain.size <= config.max_qa_bytes):
        return 0
    # The original's folded section comes on top of its limit, and it tries one number only.
    kept = config.max_qa_sections - (0 if config.strict_seed else 1)
    counts = range(min(max(len(sections) - kept, 1), most), most + 1)
    fitting = (count for count in counts if count == most or _size_after(chain, count, config) <= config.max_qa_bytes)
    tried = islice(fitting, 1) if config.strict_seed else fitting
    return next((count for count in tried if _is_worth_folding(sections[:count], config)), 0)


def fold_reserve(config: ChainSummarizerConfig) -> int:
    """Bytes that a plan sets aside for the summary of a fold, and that the model is asked for."""
    return max(config.max_qa_bytes * RESERVE_PERCENT // 100, LEAST_SUMMARY_BYTES)


def _size_after(chain: Chain, count: int, config: ChainSummarizerConfig) -> int:
    """Bytes of the chain at most, once so many sections are folded and their summary takes its reserve."""
    older = chain.sections[:count]
    room = room_for([pair for section in older for pair in section.body])
    return chain.size - max(room - fold_cost(older) - fold_reserve(config), 0)


def _is_worth_folding(older: Sequence[Section], config: ChainSummarizerConfig) -> bool:
    pairs = [pair for section in older for pair in section.body]
    if len(older) == 1 and is_one_summary(pairs):
        return False
    return is_worth_it(pairs, config=config, least=LEAST_FOLD_BYTES + fold_cost(older))


def fold_cost(sections: Sequence[Section]) -> int:
    """Bytes that joining the human messages of sections adds."""
    humans = [section.header.human for section in sections if section.header.human is not None]
    return size_of(join_humans(humans)) - sum(map(size_of, humans)) if humans else 0


def kept_behind(sections: Sequence[Section]) -> tuple[BaseMessage, ...]:
    """What stays of sections that are folded, in order: messages behind their questions and pairs."""
    kept: list[BaseMessage] = []
    for section in sections:
        kept += section.header.after
        for pair in section.body:
            kept += pair.after
    return tuple(kept)


def _free_call_id(text: str, taken: set[str]) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    number = 0
    while (made := _CALL_IDS.make(f"{digest}\0{number}", tool=SUMMARY_TOOL)) in taken:
        number += 1
    taken.add(made)
    return made
