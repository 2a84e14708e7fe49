"""One run of the chain summarizer: the current chain, the calls made, and the origin of each message.

The caller's messages are never changed, so a failed run is simply discarded. A part of the chain is skipped if a
summary would hardly be smaller, or if it already is a single summary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore.chain.models import ChainSummarizerConfig, ChainSummary, Strategy, SummaryCall
from convstore.chain.parse import read_chain
from convstore.chain.structure import (
    SUMMARY_TOOL,
    Chain,
    Header,
    Pair,
    Section,
    humans_of,
    join_humans,
)
from convstore.exceptions import SummaryError
from convstore.messages.provenance import SUMMARY_PREFIX, mark
from convstore.messages.sizes import bytes_of, size_of
from convstore.messages.tool_calls import calls_of
from convstore.summarization.engine import Steps, SummaryRequest, ask_all
from convstore.summarization.prompts import Prompt, join_prompts, make_prompts
from convstore.values.call_id_templates import CallIdTemplate

_RESERVE_PERCENT: Final = 25
"""Percentage of the last section's limit that a rotation leaves free for new messages."""

_MIN_SUMMARY_BYTES: Final = 512
"""Expected minimum size of a summary text. A part with less room is not worth a call."""

_MIN_SECTION_BYTES: Final = 1_000
"""A section whose pairs are smaller keeps them."""

_MIN_FOLD_BYTES: Final = 64
"""The same limit for a fold, which reduces the number of sections; most are summaries, so less room is enough."""

_CALL_IDS: Final = CallIdTemplate("call_{r:24:x}")


def _room_for(pairs: Sequence[Pair]) -> int:
    """Return the size in bytes at which a summary text would save nothing."""
    return sum(pair.size for pair in pairs) - _make_summary_pair("", pairs, used_ids=set()).size


def _is_worth_it(
    pairs: Sequence[Pair], *, config: ChainSummarizerConfig, minimum: int = _MIN_SUMMARY_BYTES
) -> bool:
    """Return True if there are pairs and their summary has more room than `minimum` bytes.

    >>> _is_worth_it([Pair(AIMessage("Hello!"))], config=ChainSummarizerConfig())
    False
    """
    return bool(pairs) and (config.strict_seed or _room_for(pairs) > minimum)


def _is_one_summary(pairs: Sequence[Pair]) -> bool:
    """Return True if the pairs are a single summary, of either form."""
    return len(pairs) == 1 and pairs[0].is_summary


def _make_summary_pair(text: str, pairs: Sequence[Pair], *, used_ids: set[str]) -> Pair:
    r"""Return the pair that replaces others: an answer if all of them are answers, else a call with its result.

    Its messages are marked as summaries. Their ids derive from the id of the last message, if it has one. Messages kept
    after the pairs follow the summary. A new call id is added to `used_ids`, the call ids of the chain.

    >>> _make_summary_pair("Ada likes orcas.", [Pair(AIMessage("You like orcas."))], used_ids=set()).ai.text
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


def _first_kept(section: Section, *, config: ChainSummarizerConfig) -> int:
    """Return the index of the first pair that a rotation keeps, at most the last one; 0 if rotation is not needed."""
    if section.size <= config.last_section_bytes or not section.body:
        return 0
    limit = config.last_section_bytes * (100 - _RESERVE_PERCENT) // 100
    kept = len(section.body) - 1
    size = section.header.size + section.body[kept].size
    while kept and size + section.body[kept - 1].size <= limit:
        kept -= 1
        size += section.body[kept].size
    older = section.body[:kept]
    return kept if _is_worth_it(older, config=config) and not _is_one_summary(older) else 0


def _sections_to_fold(chain: Chain, *, config: ChainSummarizerConfig) -> int:
    """Return the number of leading sections to fold into one: the smallest that brings the chain within both limits.

    The folded section counts as one, and its summary as `_fold_reserve` bytes. If no fold is enough, all but the last
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


def _fold_reserve(config: ChainSummarizerConfig) -> int:
    """Return the bytes reserved for the summary of a fold, which is also the size that the model is asked for."""
    return max(config.max_qa_bytes * _RESERVE_PERCENT // 100, _MIN_SUMMARY_BYTES)


def _size_after(chain: Chain, count: int, config: ChainSummarizerConfig) -> int:
    """Return the maximum size of the chain after `count` sections are folded into a summary within the reserve."""
    older = chain.sections[:count]
    room = _room_for([*Chain(older).pairs()])
    return chain.size - max(room - _fold_cost(older) - _fold_reserve(config), 0)


def _is_worth_folding(older: tuple[Section, ...], config: ChainSummarizerConfig) -> bool:
    pairs = [*Chain(older).pairs()]
    if len(older) == 1 and _is_one_summary(pairs):
        return False
    return _is_worth_it(pairs, config=config, minimum=_MIN_FOLD_BYTES + _fold_cost(older))


def _fold_cost(sections: Sequence[Section]) -> int:
    """Return the bytes that joining the human messages of sections adds."""
    humans = humans_of(section.header for section in sections)
    return size_of(join_humans(humans)) - sum(map(size_of, humans)) if humans else 0


def _messages_to_keep(sections: Sequence[Section]) -> tuple[BaseMessage, ...]:
    """Return the messages of folded sections that stay beside their summary: those after questions and pairs."""
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


@dataclass(slots=True, kw_only=True)
class _ChainRequest(SummaryRequest):
    """A request with its reason and the input indexes of the messages in it."""

    strategy: Strategy
    shown: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Job:
    """One summary to make: its first requests, the pairs that it replaces, and its limits in bytes.

    A summary that reaches `room` is not used; the request is written for `limit`, which may be lower.
    """

    strategy: Strategy
    requests: Sequence[_ChainRequest]
    pairs: tuple[Pair, ...]
    room: int
    limit: int


class Work:
    """A chain while it is summarised. Parts stay as they are if a summary would not be shorter."""

    def __init__(
        self,
        messages: Sequence[BaseMessage],
        config: ChainSummarizerConfig,
        *,
        max_prompt_bytes: int,
    ) -> None:
        self._config = config
        self._max_prompt_bytes = max_prompt_bytes
        distinct = _distinct_objects(messages)
        self._chain, self._origins = read_chain(
            distinct, repair=True, seed_faults=config.strict_seed
        )
        self._before = self._chain.size
        self._requests: list[_ChainRequest] = []
        self._call_ids = {call.id for pair in self._chain.pairs() for call in calls_of(pair.ai)}

    def summarize_sections(self) -> Steps[None]:
        """Replace the body of each older section by one summary pair."""
        older = self._chain.sections[: -self._config.keep_sections]
        jobs = {
            index: self._job("sections", [section.header], section.body)
            for index, section in enumerate(older)
            if not _is_one_summary(section.body)
            and _is_worth_it(section.body, config=self._config)
            and (
                self._config.strict_seed or section.size - section.header.size >= _MIN_SECTION_BYTES
            )
        }
        texts = yield from ask_all(list(map(self._summary, jobs.values())))
        answers = zip(jobs.items(), texts, strict=True)
        self._put(
            {index: [self._summary_pair(job, text)] for (index, job), text in answers if text}
        )

    def rotate(self) -> Steps[None]:
        """Bring each of the last sections within its limit, the newest first."""
        count = len(self._chain.sections)
        for index in range(count - 1, max(count - self._config.keep_sections, 0) - 1, -1):
            yield from self._summarize_oversized(index)
            section = self._chain.sections[index]
            if kept := _first_kept(section, config=self._config):
                job = self._job("rotation", [section.header], section.body[:kept])
                [text] = yield from ask_all([self._summary(job)])
                if text:
                    self._put({index: [self._summary_pair(job, text), *section.body[kept:]]})

    def fold(self) -> Steps[None]:
        """Fold old sections into one while there are too many or they are too large."""
        # One pass is enough unless a summary is so long that the limits are still exceeded.
        while count := _sections_to_fold(self._chain, config=self._config):
            older = self._chain.sections[:count]
            headers = [section.header for section in older]
            spare = self._human_room(headers)
            pairs = [*Chain(older).pairs()]
            cost = _fold_cost(older) - spare
            fold = self._job("qa", headers, pairs, cost=cost, limit=_fold_reserve(self._config))
            jobs = [fold]
            if spare:
                jobs.append(self._job("qa_humans", headers))
            text, *of_humans = yield from ask_all([self._summary(job) for job in jobs])
            human = self._joined_human(headers, *of_humans)
            header = Header(headers[0].system, human, before=headers[0].before)
            pair = replace(self._summary_pair(fold, text), after=_messages_to_keep(older))
            later = self._chain.sections[count:]
            chain = replace(self._chain, sections=(Section(header, (pair,)), *later))
            may_replace = chain.size < self._chain.size or self._config.strict_seed
            if not text or not may_replace:
                error = _not_shorter(chain.size, self._chain.size)
                fold.requests[-1].error = fold.requests[-1].error or error
                return
            self._chain = chain

    def calls(self) -> tuple[SummaryCall, ...]:
        """Return the calls made so far."""
        return tuple(
            SummaryCall(
                strategy=request.strategy,
                shown=request.shown,
                error=request.error,
                request=request.key,
            )
            for request in self._requests
        )

    def result(self) -> ChainSummary:
        """Return the result of the run; raise its first error if the chain did not become shorter."""
        needed = (sent for sent in self._requests if sent.strategy != "oversized_pair")
        error = next((sent.error for sent in needed if sent.error), None)
        if error and self._chain.size >= self._before:
            raise error
        messages = self._chain.messages()
        return ChainSummary(
            messages=messages,
            calls=self.calls(),
            bytes_before=self._before,
            bytes_after=self._chain.size,
            origins=tuple(self._origins.of([message]) for message in messages),
            repairs=self._chain.repairs,
        )

    def _summarize_oversized(self, index: int) -> Steps[None]:
        """Summarise each oversized pair except the last, whose signatures are needed; skip those whose call fails."""
        section = self._chain.sections[index]
        body = list(section.body)
        jobs = {
            position: self._job("oversized_pair", [section.header], [pair])
            for position, pair in enumerate(body[:-1])
            if pair.size > self._config.max_pair_bytes
            and not pair.is_summary
            and _is_worth_it([pair], config=self._config)
        }
        answers = yield list(map(self._summary, jobs.values()))
        for (position, job), answer in zip(jobs.items(), answers, strict=True):
            if isinstance(answer, str) and answer:
                body[position] = self._summary_pair(job, answer)
        self._put({index: body})

    def _human_room(self, headers: Sequence[Header]) -> int:
        """Return the size of human messages in bytes if summarising them is enabled and worthwhile, else 0."""
        room = sum(map(size_of, humans_of(headers))) if self._config.summarize_human_in_qa else 0
        minimum = 0 if self._config.strict_seed else _MIN_SUMMARY_BYTES
        return room if room > minimum else 0

    def _job(
        self,
        strategy: Strategy,
        headers: Sequence[Header],
        pairs: Sequence[Pair] = (),
        *,
        cost: int = 0,
        limit: int | None = None,
    ) -> _Job:
        """Return the job that summarises pairs, with the human messages of their headers as context.

        Without pairs, the human messages are summarised. `cost` is the number of bytes that the replacement of the
        pairs adds elsewhere.
        """
        humans = humans_of(headers)
        messages = [message for pair in pairs for message in pair.exchange()]
        room = _room_for(pairs) - cost if pairs else sum(map(size_of, humans))
        limit = room if limit is None else min(room, limit)
        prompts = make_prompts(humans, messages, room=limit, max_bytes=self._max_prompt_bytes)
        return _Job(
            strategy, self._requests_for(strategy, prompts, pairs), tuple(pairs), room, limit
        )

    def _requests_for(
        self, strategy: Strategy, prompts: Sequence[Prompt], pairs: Sequence[Pair]
    ) -> list[_ChainRequest]:
        """Return requests for the prompts, and record them for `calls` in this order."""
        prefix = SUMMARY_PREFIX if pairs else ""
        shown_by = self._origins.shown_by
        requests = [
            _ChainRequest(
                [HumanMessage(part.text)], prefix, strategy=strategy, shown=shown_by(part.shown)
            )
            for part in prompts
        ]
        self._requests += requests
        return requests

    def _summary(self, job: _Job) -> Steps[str]:
        """Ask for the summary of a job: send its requests at once, and join the answers if there are several.

        Returns "" for a summary that is not shorter than its source.
        """
        requests = job.requests
        while True:
            texts = yield from ask_all(requests)
            if len(texts) > 1:
                requests = self._joining(job, texts)
            elif bytes_of(texts[0]) < job.room or self._config.strict_seed:
                return str(texts[0])
            else:
                requests[-1].error = _not_shorter(bytes_of(texts[0]), job.room)
                return ""

    def _joining(self, job: _Job, texts: Sequence[str]) -> list[_ChainRequest]:
        """Return the requests that join the summaries of a job's parts, fewer than there are summaries."""
        prompts = join_prompts(texts, room=job.limit, max_bytes=self._max_prompt_bytes)
        if len(prompts) >= len(texts):
            raise SummaryError(
                f"{len(texts)} summaries of parts do not fit into fewer prompts of "
                f"{self._max_prompt_bytes} bytes; use a model whose answers are shorter, "
                "or raise max_prompt_bytes"
            )
        return self._requests_for(job.strategy, prompts, job.pairs)

    def _summary_pair(self, job: _Job, text: str) -> Pair:
        pair = _make_summary_pair(text, job.pairs, used_ids=self._call_ids)
        indexes = self._origins.of([message for each in job.pairs for message in each.exchange()])
        for message in pair.exchange():
            self._origins.put(message, indexes, summary=True)
        return pair

    def _joined_human(
        self, headers: Sequence[Header], text: str | None = None
    ) -> HumanMessage | None:
        """Return the human messages of several sections as one message, or their summary if `text` is given."""
        humans = humans_of(headers)
        if not humans:
            return None
        human = join_humans(humans)
        if text is not None:
            first = f"{humans[-1].id}:summary-0" if humans[-1].id else None
            human = HumanMessage(text, id=first, additional_kwargs=mark("summary"))
        self._origins.put(human, self._origins.of(humans), summary=text is not None)
        return human

    def _put(self, bodies: Mapping[int, Sequence[Pair]]) -> None:
        sections = list(self._chain.sections)
        for index, body in bodies.items():
            sections[index] = Section(sections[index].header, tuple(body))
        self._chain = replace(self._chain, sections=tuple(sections))


def _not_shorter(size: int, room: int) -> SummaryError:
    return SummaryError(
        f"no summary is shorter than its source of {room} bytes; "
        f"one has {size}: ask the model for shorter ones, or use another model"
    )


def failed(
    messages: Sequence[BaseMessage], calls: tuple[SummaryCall, ...], error: Exception
) -> ChainSummary:
    """Return the result of a failed run: the unchanged input and the error."""
    size = sum(map(size_of, messages))
    return ChainSummary(
        messages=list(messages),
        calls=calls,
        bytes_before=size,
        bytes_after=size,
        origins=tuple((index,) for index in range(len(messages))),
        error=error,
    )


def _distinct_objects(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages, with a copy for each repeated object: origins are kept by object."""
    seen: set[int] = set()
    distinct: list[BaseMessage] = []
    for message in messages:
        distinct.append(message.model_copy() if id(message) in seen else message)
        seen.add(id(message))
    return distinct
