"""One run of the summarizer: the chain as it is so far, the calls that were made, and where each message comes from.

Layer 1, pure; `summarizer` calls the model in between. Nothing of the caller's is changed, so a run that fails is
simply given up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from langchain_core.messages import BaseMessage, HumanMessage

from convstore.chain.models import ChainSummarizerConfig, ChainSummary, Strategy, SummaryCall
from convstore.chain.parse import read_chain
from convstore.chain.plan import LEAST_SUMMARY_BYTES, make_summary_pair, room_for
from convstore.chain.prompts import Prompt, join_prompts, make_prompts
from convstore.chain.sizes import bytes_of, size_of
from convstore.chain.structure import SUMMARY_PREFIX, Chain, Header, Pair, Section, join_humans
from convstore.exceptions import SummaryError
from convstore.messages.provenance import mark
from convstore.messages.tool_calls import calls_of

__all__ = ["Job", "Request", "Work", "failed"]


@dataclass(slots=True)
class Request:
    """One call of the model: why, what it is asked, which messages that shows it, and what went wrong."""

    strategy: Strategy
    prompt: str
    shown: tuple[int, ...] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One summary: its requests, more than one for parts that do not fit one, what it stands for, how long it may be.

    Attributes:
        requests: What the model is asked first; the answers of several are joined by further requests.
        pairs: What the summary stands for; empty for human messages.
        room: Bytes that it must stay below.
        told: The limit that the model is told, at most `room`.
    """

    strategy: Strategy
    requests: tuple[Request, ...]
    pairs: tuple[Pair, ...]
    room: int
    told: int


class Work:
    """A chain while it is summarised.

    Raises:
        MalformedChainError: The messages are no chain, and no repair makes them one.
    """

    def __init__(
        self, messages: Sequence[BaseMessage], config: ChainSummarizerConfig, *, max_prompt_bytes: int
    ) -> None:
        self.config = config
        self._most = max_prompt_bytes
        reading = read_chain(_told_apart(messages), repair=True, seed_faults=config.strict_seed)
        self.chain: Chain = reading.chain
        self._origins = reading.origins
        self._before = self.chain.size
        self._requests: list[Request] = []
        self._taken = {call.id for pair in self.chain.pairs() for call in calls_of(pair.ai)}

    def job(
        self,
        strategy: Strategy,
        headers: Sequence[Header],
        pairs: Sequence[Pair],
        *,
        cost: int = 0,
        told: int | None = None,
    ) -> Job:
        """A request to summarise pairs, the human messages of their sections for context.

        Args:
            strategy: Why.
            headers: Headers of their sections.
            pairs: What the summary stands for.
            cost: Bytes that are added elsewhere when the summary takes its place.
            told: A smaller limit than the one above which the summary is refused, for the model to keep to.
        """
        humans = [header.human for header in headers if header.human is not None]
        messages = [message for pair in pairs for message in pair.exchange()]
        room = room_for(pairs) - cost
        told = room if told is None else min(room, told)
        return self._begin(strategy, humans, messages, pairs=tuple(pairs), room=room, told=told)

    def human_job(self, headers: Sequence[Header]) -> Job | None:
        """A request to summarise human messages; None if a summary of them would hardly be smaller."""
        humans = [header.human for header in headers if header.human is not None]
        room = sum(map(size_of, humans))
        if not humans or (room <= LEAST_SUMMARY_BYTES and not self.config.strict_seed):
            return None
        return self._begin("qa_humans", humans, [], pairs=(), room=room, told=room)

    def joining(self, job: Job, texts: Sequence[str]) -> tuple[Request, ...]:
        """The requests that join the summaries of a job's parts, fewer than there are summaries.

        Raises:
            SummaryError: There would be as many: the summaries are too long to be joined.
        """
        prompts = join_prompts(texts, room=job.told, most=self._most)
        if len(prompts) >= len(texts):
            raise SummaryError(
                f"{len(texts)} summaries of parts do not fit fewer prompts of {self._most} bytes; "
                "use a model whose answers are shorter, or raise max_prompt_bytes"
            )
        return self._asked(job.strategy, prompts)

    def text(self, job: Job, answer: object) -> str:
        """The text of an answer.

        Raises:
            SummaryError: It has none.
        """
        if not isinstance(answer, str):
            raise SummaryError(f"the summarizer answered with {type(answer).__name__}, not with text")
        # Models imitate what they are shown.
        text = answer.removeprefix(SUMMARY_PREFIX) if job.pairs else answer
        if not text.strip():
            raise SummaryError("the summarizer answered without text; try again or use another model")
        return text

    def check(self, job: Job, text: str) -> str:
        """The text of a summary.

        Raises:
            SummaryError: It is not shorter than what it stands for.
        """
        if bytes_of(text) >= job.room and not self.config.strict_seed:
            raise SummaryError(
                f"a summary of {bytes_of(text)} bytes where less than {job.room} would be shorter than the original; "
                "ask for shorter ones, or use another model"
            )
        return text

    def summary_pair(self, job: Job, text: str) -> Pair:
        """The pair that takes the place of a job's pairs."""
        pair = make_summary_pair(text, job.pairs, taken=self._taken)
        stands_for = self._origins.of([message for each in job.pairs for message in each.exchange()])
        for message in pair.exchange():
            self._origins.put(message, stands_for, summary=True)
        return pair

    def joined_human(self, headers: Sequence[Header], text: str | None = None) -> HumanMessage | None:
        """The human messages of several sections as one, or their summary."""
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
        """Give sections, named by their place, other bodies."""
        sections = list(self.chain.sections)
        for at, body in bodies.items():
            sections[at] = Section(sections[at].header, tuple(body))
        self.chain = replace(self.chain, sections=tuple(sections))

    def fold(self, count: int, section: Section) -> None:
        """Put one section in the place of the first ones."""
        self.chain = replace(self.chain, sections=(section, *self.chain.sections[count:]))

    def calls(self) -> tuple[SummaryCall, ...]:
        """The calls so far."""
        return tuple(SummaryCall(strategy=one.strategy, shown=one.shown, error=one.error) for one in self._requests)

    def result(self) -> ChainSummary:
        """What came of it."""
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
        told: int,
    ) -> Job:
        prompts = make_prompts(humans, messages, room=told, most=self._most)
        return Job(strategy, self._asked(strategy, prompts), pairs, room, told)

    def _asked(self, strategy: Strategy, prompts: Sequence[Prompt]) -> tuple[Request, ...]:
        """Requests to send; they are told in `calls`, in this order."""
        requests = tuple(Request(strategy, one.text, self._origins.shown_by(one.shown)) for one in prompts)
        self._requests += requests
        return requests


def failed(messages: Sequence[BaseMessage], calls: tuple[SummaryCall, ...], error: Exception) -> ChainSummary:
    """The messages as they came in, and why."""
    size = sum(map(size_of, messages))
    return ChainSummary(
        messages=list(messages),
        calls=calls,
        bytes_before=size,
        bytes_after=size,
        origins=tuple((index,) for index in range(len(messages))),
        error=error,
    )


def _told_apart(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The messages, an object that comes again as a copy: origins are kept by object."""
    seen: set[int] = set()
    apart: list[BaseMessage] = []
    for message in messages:
        apart.append(message.model_copy() if id(message) in seen else message)
        seen.add(id(message))
    return apart
