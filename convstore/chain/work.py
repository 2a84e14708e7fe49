"""One run of the chain summarizer: the current chain, the calls made, and the origin of each message.

The caller's messages are never changed, so a failed run is simply discarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from langchain_core.messages import BaseMessage, HumanMessage

from convstore.chain.models import ChainSummarizerConfig, ChainSummary, Strategy, SummaryCall
from convstore.chain.parse import read_chain
from convstore.chain.plan import (
    MIN_SECTION_BYTES,
    MIN_SUMMARY_BYTES,
    first_kept,
    fold_cost,
    fold_reserve,
    is_one_summary,
    is_worth_it,
    make_summary_pair,
    messages_to_keep,
    oversized,
    room_for,
    sections_to_fold,
)
from convstore.chain.structure import Header, Pair, Section, humans_of, join_humans
from convstore.exceptions import SummaryError
from convstore.messages.provenance import SUMMARY_PREFIX, mark
from convstore.messages.sizes import bytes_of, size_of
from convstore.messages.tool_calls import calls_of
from convstore.summarization.engine import Request, Steps, ask_all
from convstore.summarization.prompts import Prompt, join_prompts, make_prompts


@dataclass(slots=True, kw_only=True)
class _ChainRequest(Request):
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
    """A chain while it is summarised. What a summary would not make shorter stays as it is."""

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
            if not is_one_summary(section.body)
            and is_worth_it(section.body, config=self._config)
            and (
                self._config.strict_seed or section.size - section.header.size >= MIN_SECTION_BYTES
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
            if kept := first_kept(section, config=self._config):
                job = self._job("rotation", [section.header], section.body[:kept])
                [text] = yield from ask_all([self._summary(job)])
                if text:
                    self._put({index: [self._summary_pair(job, text), *section.body[kept:]]})

    def fold(self) -> Steps[None]:
        """Fold old sections into one while there are too many or they are too large."""
        # One pass is enough unless a summary is so long that the limits are still exceeded.
        while count := sections_to_fold(self._chain, config=self._config):
            older = self._chain.sections[:count]
            headers = [section.header for section in older]
            spare = self._human_room(headers)
            fold = self._fold_job(older, spare)
            jobs = [fold]
            if spare:
                jobs.append(self._job("qa_humans", headers))
            text, *of_humans = yield from ask_all([self._summary(job) for job in jobs])
            human = self._joined_human(headers, *of_humans)
            header = Header(headers[0].system, human, before=headers[0].before)
            pair = replace(self._summary_pair(fold, text), after=messages_to_keep(older))
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
        """Return the result of the run; raise its first error if it made nothing shorter."""
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
        """Replace each oversized pair of a section by its own summary; if its call fails, it is kept."""
        section = self._chain.sections[index]
        body = list(section.body)
        positions = oversized(section, config=self._config)
        jobs = [
            self._job("oversized_pair", [section.header], [body[position]])
            for position in positions
        ]
        answers = yield list(map(self._summary, jobs))
        for position, job, answer in zip(positions, jobs, answers, strict=True):
            if isinstance(answer, str) and answer:
                body[position] = self._summary_pair(job, answer)
        self._put({index: body})

    def _fold_job(self, older: Sequence[Section], spare: int) -> _Job:
        return self._job(
            "qa",
            [section.header for section in older],
            [pair for section in older for pair in section.body],
            cost=fold_cost(older) - spare,
            limit=fold_reserve(self._config),
        )

    def _human_room(self, headers: Sequence[Header]) -> int:
        """Return the bytes of human messages if they are to be summarised, which makes them smaller; else 0."""
        room = sum(map(size_of, humans_of(headers))) if self._config.summarize_human_in_qa else 0
        return room if room > (0 if self._config.strict_seed else MIN_SUMMARY_BYTES) else 0

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

        Without pairs, the human messages are summarised. `cost` is what replacing the pairs adds elsewhere, in bytes.
        """
        humans = humans_of(headers)
        messages = [message for pair in pairs for message in pair.exchange()]
        room = room_for(pairs) - cost if pairs else sum(map(size_of, humans))
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

        Returns "" for a summary that is not shorter than what it would replace.
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
        pair = make_summary_pair(text, job.pairs, used_ids=self._call_ids)
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
        f"no summary is shorter than what it would replace, which has {room} bytes; "
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
