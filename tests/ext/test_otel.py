"""Spans and metrics: one for each operation, in turns, agents and tools too, with counts and without content."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from canary import has_contents
from langchain_core.messages import AIMessage, HumanMessage

from convstore import ConversationStore, InvalidInputError
from convstore.exceptions import ContentConflictError
from convstore.ext import otel
from convstore.integration import host_of
from convstore.summarization import CompactionRule, HeadTailSummarizer
from convstore.testing import rag_turn

pytest.importorskip("opentelemetry.sdk", reason="the SDK of OpenTelemetry is in the extra test")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
RULE = CompactionRule(max_tokens_before_summary=300, max_summary_tokens=100, keep_last_turns=0)
CANARY = "orcas-canary"


class Watched:
    """Providers that keep what they get."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers, self.meters = (
            TracerProvider(shutdown_on_exit=False),
            MeterProvider([self.reader]),
        )
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))

    def observe(self, store: ConversationStore) -> None:
        """Record what a store does."""
        otel.observe(store, tracer_provider=self.tracers, meter_provider=self.meters)

    def spans(self) -> list[Any]:
        """The spans since the last call."""
        found = list(self.exporter.get_finished_spans())
        assert not has_contents(str([span.to_json() for span in found]))
        self.exporter.clear()
        return found

    def check_contents(self) -> None:
        """Fail if a span or a metric has the text of a message."""
        self.spans()
        data = self.reader.get_metrics_data()
        assert data is None or not has_contents(data.to_json())

    def metrics(self) -> dict[str, Any]:
        """The points of each metric."""
        data: Any = self.reader.get_metrics_data()
        [scope] = data.resource_metrics[0].scope_metrics
        return {metric.name: metric.data.data_points for metric in scope.metrics}


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Providers; operations are recorded as they end."""
    monkeypatch.setattr(otel, "_AT_ONCE", 1)
    watched = Watched()
    yield watched
    watched.check_contents()
    watched.meters.shutdown()


async def test_each_operation_leaves_a_span(watched: Watched) -> None:
    """With its counts and the random id of the conversation; sync tools and turns leave them, too."""
    async with await ConversationStore.connect(
        "memory://", summarizer=HeadTailSummarizer(RULE)
    ) as store:
        watched.observe(store)
        await store.setup()
        chat = store.conversation(user_id=CANARY, thread_id=CANARY)
        await chat.append(rag_turn(f"{CANARY}?"))
        async with await chat.turn(f"{CANARY}-t", human=CANARY) as turn:
            await turn.load_history()
            await turn.append(AIMessage(f"{CANARY} " * 500))
        tool = chat.retrieve_previous_sources_tool()
        await chat.get_sources([1])
        await asyncio.to_thread(tool.invoke, {"source_ids": "1"})
        await chat.search(CANARY)
        await store.search(CANARY, user_id=CANARY)
        await chat.compact(force=True)
        await chat.load_history()
        id_ = (await chat.info()).conversation_id
        await chat.delete()
    spans = watched.spans()
    names = ["create_memory"] * 2 + [
        "load_history",
        "create_memory",
        *["read_back"] * 2,
        *["search_memory"] * 2,
    ]
    assert [span.name for span in spans] == [
        *names,
        "compact_history",
        "load_history",
        "delete_memory",
    ]
    assert [span.attributes["gen_ai.operation.name"] for span in spans] == [
        span.name for span in spans
    ]
    ids = [span.attributes.get("gen_ai.conversation.id") for span in spans]
    assert ids == [id_] * 7 + [None] + [id_] * 3  # a search across conversations has no id
    assert {span.attributes["db.system.name"] for span in spans} == {"mongomock"}
    loaded = dict(spans[-2].attributes)
    assert loaded["gen_ai.conversation.compacted"] is True
    assert 0 < loaded["convstore.token.shown"] < loaded["convstore.token.whole"]
    assert (
        spans[0].attributes["gen_ai.memory.record.count"],
        spans[-3].attributes["convstore.outcome"],
    ) == (4, "done")
    assert not re.search(CANARY, str([span.to_json() for span in spans]))


async def test_tokens_and_durations_are_metrics(
    watched: Watched, database: Any, scope: dict[str, str]
) -> None:
    """Each operation has a histogram of durations, and stored and shown tokens have counters."""
    store = ConversationStore(database)
    watched.observe(store)
    chat = store.conversation(**scope)
    await chat.append([HumanMessage("Hello"), AIMessage("Hi")])
    for _ in range(2):
        tokens = (await chat.load_history()).tokens
    await store.close()
    found = watched.metrics()
    assert found["convstore.load.duration"][0].count == 2
    assert found["convstore.load.duration"][0].explicit_bounds[0] == 0.001
    assert found["convstore.append.duration"][0].sum < 60
    totals = {name: points[0].value for name, points in found.items() if ".token." in name}
    assert totals == {
        "convstore.token.stored": tokens,
        "convstore.token.shown": 2 * tokens,
        "convstore.token.whole": 2 * tokens,
    }
    assert {span.attributes["db.system.name"] for span in watched.spans()} == {"mongodb"}


async def test_a_failure_is_named_and_not_quoted(watched: Watched) -> None:
    """The span and the metric have the class of the error, which is raised as ever."""
    async with await ConversationStore.connect("memory://") as store:
        watched.observe(store)
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        await chat.append(HumanMessage("one", id=CANARY))
        with pytest.raises(ContentConflictError, match=CANARY):
            await chat.append(HumanMessage("two", id=CANARY))
    span = watched.spans()[-1]
    assert (span.attributes["error.type"], span.status.is_ok) == ("ContentConflictError", False)
    assert CANARY not in span.to_json()
    points = watched.metrics()["convstore.append.duration"]
    assert [dict(point.attributes) for point in points] == [
        {},
        {"error.type": "ContentConflictError"},
    ]


async def test_spans_belong_to_the_callers_and_come_within_a_second(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the times of its operation and the parent of its call, whenever it is recorded."""
    monkeypatch.setattr(otel, "_AT_ONCE", 100)
    monkeypatch.setattr(otel, "_DELAY", 0.0)
    tracer = watched.tracers.get_tracer("app")
    async with await ConversationStore.connect("memory://") as store:
        watched.observe(store)
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        with tracer.start_as_current_span("request") as request:
            await chat.append(HumanMessage("Hello"))
        while len(spans := watched.exporter.get_finished_spans()) < 2:  # noqa: ASYNC110 - a timer of the loop
            await asyncio.sleep(0.01)
        monkeypatch.setattr(otel, "_DELAY", 60.0)
        await chat.load_history()
    append, load = (span for span in [*spans, *watched.spans()[2:]] if span.name != "request")
    assert append.parent.span_id == request.get_span_context().span_id
    assert request.start_time <= append.start_time <= append.end_time <= request.end_time
    assert (load.name, load.parent) == ("load_history", None)  # closing the store records the rest


async def test_a_store_is_observed_once() -> None:
    """A second time would count everything twice; a store that is not observed calls its own methods."""
    async with await ConversationStore.connect("memory://") as store:
        assert "append" not in vars(host_of(store)._services.writer)
        otel.observe(store)
        with pytest.raises(InvalidInputError, match="already"):
            otel.observe(store)
        await store.setup()
        await store.conversation(user_id="ada", thread_id="t").append(
            HumanMessage("without a provider")
        )


def test_the_page_has_all_names() -> None:
    """The tables of docs/telemetry.md list what is recorded, and nothing else."""
    rows = dict(re.findall(r"^\| `([\w.]+)` \| `?([\w.]+)", PAGE, re.MULTILINE))
    assert {name: rows.get(name) for name in otel._OPERATIONS} == otel._OPERATIONS
    own = {*otel._ATTRIBUTES.values(), otel._OPERATION, otel._CONVERSATION, otel._SYSTEM}
    metrics = {otel._DISCARDED, *(f"convstore.{name}.duration" for name in otel._OPERATIONS)}
    assert (
        set(re.findall(r"`((?:gen_ai|db|error|convstore)\.[\w.]*\w)`", PAGE))
        - {"convstore.ext.otel"}
        == own | metrics
    )
