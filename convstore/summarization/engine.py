"""Ask a model for summaries; the only module of the pure packages that awaits.

A strategy is a generator. It yields the requests that it needs next, receives the answers in the same order and returns
its result. So a strategy is pure, and the same code serves sync and async models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from langchain_core.messages import BaseMessage

from convstore.exceptions import SummaryError
from convstore.messages.encoding import digest_of

_T = TypeVar("_T")
_KEPT_ANSWERS = 256
_KEPT_CHARACTERS = 16_000
Answer = Any
"""The text that answers a request, the result of a nested strategy, or the exception that either raised."""


@dataclass(slots=True)
class SummaryRequest:
    """One request to a model; `error` is the exception if it returned no usable text.

    `prefix` is removed from the beginning of the answer, because models imitate the summaries that they read.
    """

    messages: list[BaseMessage]
    prefix: str = ""
    error: Exception | None = None

    @property
    def key(self) -> bytes:
        """Digest of the last message."""
        return digest_of(str(self.messages[-1].content))

    def text_of(self, reply: object) -> str:
        """Return the text of a model's reply; raise a SummaryError if it has no text."""
        # `text` of a message is a subclass of str that a checkpointer may refuse to store.
        text = str(reply.text) if isinstance(reply, BaseMessage) else reply
        if not isinstance(text, str):
            raise SummaryError(
                f"the summarizer answered with {type(text).__name__}, not with text; "
                "return a str from the handler"
            )
        text = text.removeprefix(self.prefix)
        if not text.strip():
            raise SummaryError(
                "the model answered the request for a summary without text; "
                "nothing was summarised, try again or use another model"
            )
        return text


@dataclass(slots=True)
class KeptAnswers:
    """A cache of the newest answers, by `SummaryRequest.key`; long answers are not kept."""

    texts: dict[bytes, str] = field(default_factory=dict)

    def keep(self, request: SummaryRequest, text: str) -> str:
        """Keep an answer and return it."""
        if len(text) <= _KEPT_CHARACTERS:
            self.texts[request.key] = text
        if len(self.texts) > _KEPT_ANSWERS:
            del self.texts[next(iter(self.texts))]
        return text


Call = Callable[[list[BaseMessage]], Awaitable[object]]
"""Coroutine function from a prompt to a model's reply."""

Steps = Generator[Sequence[Any], list[Answer], _T]
"""A strategy: yields requests, and strategies to run concurrently with them; returns its result."""


def ask(messages: list[BaseMessage]) -> Steps[str]:
    """Ask for one text, as a step of a strategy; an error is raised."""
    [text] = yield from ask_all([SummaryRequest(messages)])
    return str(text)


def ask_all(requests: Sequence[Any]) -> Steps[list[Any]]:
    """Ask for all texts at once, as a step of a strategy; an error is raised, several as an ExceptionGroup."""
    answers = yield requests
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    if len(errors) > 1:
        raise ExceptionGroup(
            f"{len(errors)} of {len(answers)} calls of the summarizer failed", errors
        )
    for error in errors:
        raise error
    return answers


def drive(steps: Steps[_T], call: Callable[[list[BaseMessage]], object]) -> _T:
    """Return the result of a strategy that asks for one text at a time."""
    answers = None
    while not isinstance(step := _advance(steps, answers), _Done):
        [request] = step
        try:
            answers = [request.text_of(call(request.messages))]
        except Exception as error:  # noqa: BLE001 - the strategy raises it
            answers = [error]
    return cast("_T", step.value())


async def _text_for(request: SummaryRequest, call: Call, answers: KeptAnswers | None) -> str:
    """Return the kept answer to a request, or else call the model and keep its answer."""
    if answers is None:
        return request.text_of(await call(request.messages))
    kept = answers.texts.get(request.key)
    return kept or answers.keep(request, request.text_of(await call(request.messages)))


def _without_cancellation(answers: Sequence[Any]) -> list[Answer]:
    """Return texts and errors of calls; raise an exception that is not an error of a call, such as a cancellation."""
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, Exception):
            raise answer
    return list(answers)


async def drive_async(
    steps: Steps[_T],
    call: Call,
    *,
    in_threads: bool = False,
    concurrency: int = 1,
    answers: KeptAnswers | None = None,
) -> _T:
    """Return the result of a strategy. A cancelled call cancels the strategy.

    With `in_threads`, the strategy's own code runs in threads, because it may take seconds; the first requests of a
    nested strategy must be ready without delay. `concurrency` is the maximum number of concurrent calls. A request with
    a kept answer makes no call.
    """
    free = asyncio.Semaphore(concurrency)

    async def advance(steps: Steps[Any], answers: list[Answer] | None) -> Sequence[Any] | _Done:
        if in_threads:
            return await asyncio.to_thread(_advance, steps, answers)
        return _advance(steps, answers)

    async def finish(steps: Steps[Any], step: Sequence[Any] | _Done) -> Any:
        while not isinstance(step, _Done):
            answers = await asyncio.gather(*map(answer, step), return_exceptions=True)
            step = await advance(steps, _without_cancellation(answers))
        return step.value()

    async def answer(item: SummaryRequest | Steps[Any]) -> Any:
        if not isinstance(item, SummaryRequest):
            return await finish(item, _advance(item, None))
        async with free:
            try:
                return await _text_for(item, call, answers)
            except Exception as error:
                item.error = error
                raise

    return cast("_T", await finish(steps, await advance(steps, None)))


def model_name(model: object) -> str:
    """Return the name of a model or a function, else the name of its class."""
    names = (getattr(model, key, None) for key in ("model_name", "model", "model_id", "__name__"))
    return next((name for name in names if isinstance(name, str) and name), type(model).__name__)


@dataclass(frozen=True, slots=True)
class _Done:
    """The end of a strategy: its result or its exception, so that a thread can return either."""

    result: Any = None
    error: Exception | None = None

    def value(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


def _advance(steps: Steps[Any], answers: list[Answer] | None) -> Sequence[Any] | _Done:
    """Return the next requests of a strategy, or its end."""
    try:
        return next(steps) if answers is None else steps.send(answers)
    except StopIteration as done:
        return _Done(done.value)
    except Exception as error:  # noqa: BLE001 - raised by `value`
        return _Done(error=error)
