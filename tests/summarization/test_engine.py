"""The engine that asks models: strategies are generators, driven by calls or by awaits with the same result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from cases import each_case
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from convstore.exceptions import SummaryError
from convstore.summarization.engine import (
    KeptAnswers,
    Steps,
    SummaryRequest,
    ask,
    ask_all,
    drive,
    drive_async,
)


def about(text: str, **options: Any) -> SummaryRequest:
    """A request with one human message."""
    return SummaryRequest([HumanMessage(text)], **options)


def echo(messages: list[BaseMessage]) -> str:
    """Answer with what was asked."""
    return f"re: {messages[-1].text}"


async def aecho(messages: list[BaseMessage]) -> str:
    """The same, awaited."""
    await asyncio.sleep(0)
    return echo(messages)


def two_in_turn() -> Steps[list[str]]:
    """Ask twice, the second time about the first answer."""
    first = yield from ask([HumanMessage("one")])
    second = yield from ask([HumanMessage(first)])
    return [first, second]


@each_case("in_threads", [False, True])
def test_called_and_awaited_models_give_the_same(in_threads: bool) -> None:
    """A strategy does not know by which kind of model it is answered."""
    answers = ["re: one", "re: re: one"]
    assert drive(two_in_turn(), echo) == answers
    assert asyncio.run(drive_async(two_in_turn(), aecho, in_threads=in_threads)) == answers


@pytest.mark.parametrize("in_threads", [False, True])
@pytest.mark.parametrize(
    "error", [TimeoutError("slow"), ValueError("no"), SummaryError("empty")], ids=str
)
def test_an_error_of_the_model_is_raised_in_the_strategy(
    error: Exception, in_threads: bool
) -> None:
    """An error of the model is raised in the strategy as the same object, even out of a thread.

    The strategy can catch it and continue.
    """

    def caught() -> Steps[Exception]:
        try:
            yield from ask([HumanMessage("one")])
        except type(error) as raised:
            return raised
        raise AssertionError

    def fail(_messages: list[BaseMessage]) -> str:
        raise error

    async def afail(_messages: list[BaseMessage]) -> str:
        raise error

    assert drive(caught(), fail) is error
    assert asyncio.run(drive_async(caught(), afail, in_threads=in_threads)) is error
    with pytest.raises(type(error)) as reached:
        asyncio.run(drive_async(ask([HumanMessage("one")]), afail, in_threads=in_threads))
    assert reached.value is error


def nested(depth: int) -> Steps[int]:
    """Ask three times at once, and three strategies below."""
    below = [nested(depth - 1) for _ in range(3)] if depth else []
    answers = yield from ask_all([*(about(str(number)) for number in range(3)), *below])
    return sum(answer if isinstance(answer, int) else 1 for answer in answers)


@each_case("in_threads", [False, True])
def test_no_more_calls_run_at_once_than_allowed(in_threads: bool) -> None:
    """Nested strategies share the limit; all are answered."""
    running = highest = 0

    async def call(messages: list[BaseMessage]) -> str:
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        await asyncio.sleep(0)
        running -= 1
        return echo(messages)

    assert asyncio.run(drive_async(nested(2), call, in_threads=in_threads, concurrency=4)) == 3 * (
        1 + 3 + 9
    )
    assert highest == 4


def test_several_errors_come_as_a_group() -> None:
    """After all calls have ended; each request keeps its own."""
    requests = [about("one"), about("two"), about("three")]

    async def call(messages: list[BaseMessage]) -> str:
        if messages[0].text != "two":
            raise ValueError(messages[0].text)
        return "fine"

    with pytest.raises(ExceptionGroup, match="2 of 3 calls") as raised:
        asyncio.run(drive_async(ask_all(requests), call, concurrency=3))
    assert [str(error) for error in raised.value.exceptions] == ["one", "three"]
    assert [request.error and str(request.error) for request in requests] == ["one", None, "three"]


def test_a_cancelled_run_cancels_its_calls() -> None:
    """All calls in flight end; the strategy is not notified, and no error is swallowed."""
    ended, begun = list[str](), asyncio.Semaphore(0)

    async def hang(messages: list[BaseMessage]) -> str:
        begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(messages[0].text)
        return ""

    async def attempt() -> None:
        running = asyncio.create_task(drive_async(nested(1), hang, in_threads=True, concurrency=12))
        for _ in range(12):
            await begun.acquire()
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(attempt())
    assert len(ended) == 12


def test_slow_rules_run_in_threads() -> None:
    """The strategy's own code, not the calls of the model."""
    threads: set[int] = set()

    def noting() -> Steps[None]:
        threads.add(threading.get_ident())
        yield from ask([HumanMessage("one")])
        threads.add(threading.get_ident())

    async def call(messages: list[BaseMessage]) -> str:
        assert threading.get_ident() == threading.main_thread().ident
        return echo(messages)

    asyncio.run(drive_async(noting(), call, in_threads=True))
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    "reply", ["", " \n", None, 7, AIMessage(""), AIMessage([{"type": "image", "url": "x"}]), "P: "]
)
@pytest.mark.parametrize("driver", [drive, drive_async])
def test_a_reply_without_text_is_an_error(reply: Any, driver: Callable[..., Any]) -> None:
    """A summary of nothing would lose messages; a prefix that the model imitates is no text either."""

    def asked() -> Steps[str]:
        [text] = yield from ask_all([about("one", prefix="P:")])
        return str(text)

    async def call(_messages: list[BaseMessage]) -> Any:
        return reply

    def run() -> str:
        return (
            drive(asked(), lambda _messages: reply)
            if driver is drive
            else asyncio.run(drive_async(asked(), call))
        )

    with pytest.raises(SummaryError):
        run()


def test_the_oldest_answers_are_forgotten() -> None:
    """A summarizer lives as long as its process: it keeps 256 answers, the newest ones."""
    kept = KeptAnswers()
    requests = [SummaryRequest([HumanMessage(str(number))]) for number in range(257)]
    for request in requests:
        assert kept.keep(request, "Yes.") == "Yes."
    assert list(kept.texts) == [request.key for request in requests[1:]]
