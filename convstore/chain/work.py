"""State of one run of the summarizer: the current chain, the calls made, and the origin of each message.

Floor 1, pure; `summarizer` makes the model calls in between. The caller's messages are never changed, so a failed run
is simply discarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from langchain_core.messages import BaseMessage, HumanMessage

from convstore.chain.models import ChainSummarizerConfig, ChainSummary, Strategy, SummaryCall
from convstore.chain.parse import read_chain
from convstore.chain.plan import MIN_SUMMARY_BYTES, make_summary_pair, room_for
from convstore.chain.prompts import Prompt, join_prompts, make_prompts
from convstore.chain.sizes import bytes_of, size_of
from convstore.chain.structure import SUMMARY_PREFIX, Chain, Header, Pair, Section, join_humans
from convstore.exceptions import SummaryError
from convstore.messages.provenance import mark
from convstore.messages.tool_calls import calls_of

__all__ = ["Job", "Request", "Work", "failed"]


@dataclass(slots=True)
class Request:
    """One model call: its reason, its prompt, the indexes of the messages in it, and its error."""

    strategy: Strategy
    prompt: str
    shown: tuple[int, ...] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One summary to make: its requests, the pairs that it replaces, and its size limits.

    Attributes:
        requests: The first requests to the model. The answers of several are joined by further requests.
        pairs: The pairs that the summary replaces; empty for human messages.
        room: Bytes that the summary must stay below.
        limit: The limit that the request names, at most `room`.
    """

    strategy: Strategy
    requests: tuple[Request, ...]
    pairs: tuple[Pair, ...]
    room: int
    limit: int


class Work:
    """A chain while it is summarised.

    Raises:
        MalformedChainError: An item is not a message.
    """

    def __init__(
        self, messages: Sequence[BaseMessage], config: ChainSummarizerConfig, *, max_prompt_bytes: int
    ) -> None:
        self.config = config
        self._max_prompt_bytes = max_prompt_bytes
        reading = read_chain(_distinct_objects(messages), repair=True, seed_faults=config.strict_seed)
        self.chain: Chain = reading.chain
        self._origins = reading.origins
        self._before = self.chain.size
        self._requests: list[Request] = []
        self._call_ids = {call.id for pair in self.chain.pairs() for call in calls_of(pair.ai)}

    def job(
        self,
        strategy: Strategy,
        headers: Sequence[Header],
        pairs: Sequence[Pair],
        *,
        cost: int = 0,
        limit: int | None = None,
    ) -> Job:
        """Build the job that summarises pairs, with the human messages of their sections as context.

        Args:
            strategy: The reason.
            headers: Headers of their sections.
            pairs: The pairs that the summary replaces.
            cost: Bytes that replacing them adds elsewhere.
            limit: A limit for the model that is smaller than the size at which a summary is rejected.
        """
        humans = [header.human for header in headers if header.human is not None]
        messages = [message for pair in pairs for message in pair.exchange()]
        room = room_for(pairs) - cost
        limit = room if limit is None else min(room, limit)
        return self._begin(strategy, humans, messages, pairs=tuple(pairs), room=room, limit=limit)

    def human_job(self, headers: Sequence[Header]) -> Job | None:
        """Build the job that summarises human messages; None if a summary would hardly be smaller."""
        humans = [header.human for header in headers if header.human is not None]
        room = sum(map(size_of, humans))
        if not humans or (room <= MIN_SUMMARY_BYTES and not self.config.strict_seed):
            return None
        return self._begin("qa_humans", humans, [], pairs=(), room=room, limit=room)

    def joining(self, job: Job, texts: Sequence[str]) -> tuple[Request, ...]:
        """Return the requests that join the summaries of a job's parts, fewer than there are summaries.

        Raises:
            SummaryError: The summaries are too long to be joined in fewer requests.
        """
        prompts = join_prompts(texts, room=job.limit, max_bytes=self._max_prompt_bytes)
        if len(prompts) >= len(texts):
            raise SummaryError(
                f"{len(texts)} summaries of parts do not fit into fewer prompts of {self._max_prompt_bytes} bytes; "
                "use a model whose answers are shorter, or raise max_prompt_bytes"
            )
        return self._record(job.strategy, prompts)

    def text(self, job: Job, answer: object) -> str:
        """Return the text of an answer.

        Raises:
            SummaryError: The answer has no text.
        """
        if not isinstance(answer, str):
            raise SummaryError(
                f"the summarizer answered with {type(answer).__name__}, not with text; return a str from the handler"
            )
        # Models imitate the prefix of the summaries in their requests.
        text = answer.removeprefix(SUMMARY_PREFIX) if job.pairs else answer
        if not text.strip():
            raise SummaryError("the summarizer answered without text; try again or use another model")
        return text

    def check(self, job: Job, text: str) -> str:
        """Return the text of a summary, once its size is checked.

        Raises:
            SummaryError: The summary is not shorter than the messages that it replaces.
        """
        if bytes_of(text) >= job.room and not self.config.strict_seed:
            raise SummaryError(
                f"a summary has {bytes_of(text)} bytes; it must have fewer than {job.room} to be shorter than its "
                "source: ask the model for shorter ones, or use another model"
            )
        return text

    def summary_pair(self, job: Job, text: str) -> Pair:
        """Build the pair that replaces a job's pairs."""
        pair = make_summary_pair(text, job.pairs, used_ids=self._call_ids)
        indexes = self._origins.of([message for each in job.pairs for message in each.exchange()])
        for message in pair.exchange():
            self._origins.put(message, indexes, summary=True)
        return pair

    def joined_human(self, headers: Sequence[Header], text: str | None = None) -> HumanMessage | None:
        """Return the human messages of several sections as one message, or their summary if `text` is given."""
        humans = [header.human for header in headers if header.human is not None]
        if not humans:
            return None
        human = join_humans(humans)
        if text is not None:
            first = f"{humans[-1].id}:summary-0" if humans[-1].id else None
            human = HumanMessage(text, id=first, additional_kwargs=mark("summary"))
        self._origins.put(human, self._origins.of(humans), summary=text is not None)
        return human

    def put(self, bodies: Mapping[int, Sequence[Pair]]) -> None:
        """Replace the bodies of sections, given by index."""
        sections = list(self.chain.sections)
        for index, body in bodies.items():
            sections[index] = Section(sections[index].header, tuple(body))
        self.chain = replace(self.chain, sections=tuple(sections))

    def fold(self, count: int, section: Section) -> None:
        """Replace the first `count` sections by one."""
        self.chain = replace(self.chain, sections=(section, *self.chain.sections[count:]))

    def calls(self) -> tuple[SummaryCall, ...]:
        """Return the calls made so far."""
        return tuple(SummaryCall(strategy=one.strategy, shown=one.shown, error=one.error) for one in self._requests)

    def result(self) -> ChainSummary:
        """Return the result of the run."""
        messages = self.chain.messages()
        return ChainSummary(
            messages=messages,
            calls=self.calls(),
            bytes_before=self._before,
            bytes_after=self.chain.size,
            origins=tuple(self._origins.of([message]) for message in messages),
            repairs=self.chain.repairs,
        )

    def _begin(
        self,
        strategy: Strategy,
        humans: Sequence[HumanMessage],
        messages: Sequence[BaseMessage],
        *,
        pairs: tuple[Pair, ...],
        room: int,
        limit: int,
    ) -> Job:
        prompts = make_prompts(humans, messages, room=limit, max_bytes=self._max_prompt_bytes)
        return Job(strategy, self._record(strategy, prompts), pairs, room, limit)

    def _record(self, strategy: Strategy, prompts: Sequence[Prompt]) -> tuple[Request, ...]:
        """Return requests for the prompts, and record them for `calls` in this order."""
        requests = tuple(Request(strategy, one.text, self._origins.shown_by(one.shown)) for one in prompts)
        self._requests += requests
        return requests


def failed(messages: Sequence[BaseMessage], calls: tuple[SummaryCall, ...], error: Exception) -> ChainSummary:
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
