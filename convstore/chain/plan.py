"""Select the parts of a chain to summarise, and build the pair that replaces them.

A part is skipped if a summary would hardly be smaller, or if it already is a single summary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.chain.models import ChainSummarizerConfig
from convstore.chain.structure import SUMMARY_TOOL, Chain, Pair, Section, join_humans
from convstore.messages.provenance import SUMMARY_PREFIX, mark
from convstore.messages.sizes import size_of
from convstore.values.call_id_templates import CallIdTemplate

RESERVE_PERCENT: Final = 25
"""Share of the last section's limit that a rotation leaves free for new messages."""

MIN_SUMMARY_BYTES: Final = 512
"""Smallest size that is expected of a summary text. A part with less room is not worth a call."""

MIN_SECTION_BYTES: Final = 1_000
"""A section whose pairs are smaller keeps them."""

MIN_FOLD_BYTES: Final = 64
"""The same for a fold. It reduces the number of sections, most of them summaries, so less room is enough."""

_CALL_IDS: Final = CallIdTemplate("call_{r:24:x}")


def room_for(pairs: Sequence[Pair]) -> int:
    """Return the size of a summary text, in bytes, that would save nothing."""
    return sum(pair.size for pair in pairs) - make_summary_pair("", pairs, used_ids=set()).size


def is_worth_it(
    pairs: Sequence[Pair], *, config: ChainSummarizerConfig, minimum: int = MIN_SUMMARY_BYTES
) -> bool:
    """Return True if there are pairs and their summary has more room than `minimum` bytes.

    >>> is_worth_it([Pair(AIMessage("Hello!"))], config=ChainSummarizerConfig())
    False
    """
    if config.strict_seed:
        return bool(pairs)
    return bool(pairs) and room_for(pairs) > minimum


def is_one_summary(pairs: Sequence[Pair]) -> bool:
    """Return True if the pairs are a single summary, of either form."""
    return len(pairs) == 1 and pairs[0].is_summary


def make_summary_pair(text: str, pairs: Sequence[Pair], *, used_ids: set[str]) -> Pair:
    r"""Return the pair that replaces others: an answer if all of them are answers, else a call with its result.

    Its messages are marked as summaries. Their ids derive from the id of the last message, if it has one. Messages kept
    after the pairs follow the summary. A new call id is added to `used_ids`, the call ids of the chain.

    >>> make_summary_pair("Ada likes orcas.", [Pair(AIMessage("You like orcas."))], used_ids=set()).ai.text
    '**summarized content:**\nAda likes orcas.'
    """
    last = pairs[-1].exchange()[-1].id if pairs else None
    after = tuple(message for pair in pairs for message in pair.after)
    ids = [f"{last}:summary-{number}" if last else None for number in range(2)]
    if all(pair.kind == "completion" for pair in pairs):
        ai = AIMessage(SUMMARY_PREFIX + text, id=ids[0], additional_kwargs=mark("summary"))
        return Pair(ai, after=after)
    call_id = _unused_call_id(text, used_ids)
    call = {"name": SUMMARY_TOOL, "args": {}, "id": call_id}
    ai = AIMessage("", id=ids[0], tool_calls=[call], additional_kwargs=mark("summary"))
    result = ToolMessage(
        text, id=ids[1], name=SUMMARY_TOOL, tool_call_id=call_id, additional_kwargs=mark("summary")
    )
    return Pair(ai, (result,), after=after)


def oversized(section: Section, *, config: ChainSummarizerConfig) -> list[int]:
    """Return the indexes of the pairs to summarise one by one, except the last, whose signatures are still needed."""
    return [
        index
        for index, pair in enumerate(section.body[:-1])
        if pair.size > config.max_pair_bytes
        and not pair.is_summary
        and is_worth_it([pair], config=config)
    ]


def first_kept(section: Section, *, config: ChainSummarizerConfig) -> int:
    """Return the index of the first pair that a rotation keeps, the last pair at least; 0 for nothing to rotate."""
    if section.size <= config.last_section_bytes or not section.body:
        return 0
    limit = config.last_section_bytes * (100 - RESERVE_PERCENT) // 100
    kept = len(section.body) - 1
    size = section.header.size + section.body[kept].size
    while kept and size + section.body[kept - 1].size <= limit:
        kept -= 1
        size += section.body[kept].size
    older = section.body[:kept]
    return kept if is_worth_it(older, config=config) and not is_one_summary(older) else 0


def sections_to_fold(chain: Chain, *, config: ChainSummarizerConfig) -> int:
    """Return the number of leading sections to fold into one: the smallest that brings the chain within both limits.

    The folded section counts as one, and its summary as `fold_reserve` bytes. If no fold is enough, all but the last
    `keep_sections` are folded.
    """
    sections = chain.sections
    maximum = len(sections) - config.keep_sections
    is_within = len(sections) <= config.max_qa_sections and chain.size <= config.max_qa_bytes
    if maximum < 1 or is_within:
        return 0
    # The original algorithm does not count the folded section, and tries a single number.
    kept = config.max_qa_sections - (0 if config.strict_seed else 1)
    minimum = min(max(len(sections) - kept, 1), maximum)
    for count in range(minimum, maximum + 1):
        fits = count == maximum or _size_after(chain, count, config) <= config.max_qa_bytes
        if not fits:
            continue
        if _is_worth_folding(sections[:count], config):
            return count
        if config.strict_seed:
            return 0
    return 0


def fold_reserve(config: ChainSummarizerConfig) -> int:
    """Return the bytes reserved for the summary of a fold, which is also the size that the model is asked for."""
    return max(config.max_qa_bytes * RESERVE_PERCENT // 100, MIN_SUMMARY_BYTES)


def _size_after(chain: Chain, count: int, config: ChainSummarizerConfig) -> int:
    """Return the maximum size of the chain after `count` sections are folded into a summary within the reserve."""
    older = chain.sections[:count]
    room = room_for([pair for section in older for pair in section.body])
    return chain.size - max(room - fold_cost(older) - fold_reserve(config), 0)


def _is_worth_folding(older: Sequence[Section], config: ChainSummarizerConfig) -> bool:
    pairs = [pair for section in older for pair in section.body]
    if len(older) == 1 and is_one_summary(pairs):
        return False
    return is_worth_it(pairs, config=config, minimum=MIN_FOLD_BYTES + fold_cost(older))


def fold_cost(sections: Sequence[Section]) -> int:
    """Return the bytes that joining the human messages of sections adds."""
    humans = [section.header.human for section in sections if section.header.human is not None]
    return size_of(join_humans(humans)) - sum(map(size_of, humans)) if humans else 0


def messages_to_keep(sections: Sequence[Section]) -> tuple[BaseMessage, ...]:
    """Return the messages of folded sections that no summary replaces, in order: those after questions and pairs."""
    return tuple(
        message
        for section in sections
        for after in (section.header.after, *(pair.after for pair in section.body))
        for message in after
    )


def _unused_call_id(text: str, used_ids: set[str]) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    number = 0
    while (made := _CALL_IDS.make(f"{digest}\0{number}", tool=SUMMARY_TOOL)) in used_ids:
        number += 1
    used_ids.add(made)
    return made
