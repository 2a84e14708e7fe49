"""Runs at random checkpoints of a thread, by several workers: after each one the view is its branch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from agents import ScriptedModel, calls, elsewhere
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from test_going_back import Make, at, chat_of, config, database, make, store, texts

from convstore import ConversationStore, HistoryPolicy
from convstore.exceptions import InvalidInputError
from convstore.messages.tool_calls import check_pairing

__all__ = ["config", "database", "make", "store"]

WHOLE = HistoryPolicy(stub_tools="never", max_tokens=None)
OPERATIONS = ("ask", "ask", "append", "question", "question", "replay", "replay", "update", "update and ask")


@dataclass
class End:
    """The end of a run: its checkpoint, the view before its turn, and its turn."""

    config: dict[str, Any]
    before: list[str]
    turn: list[str]


@dataclass
class Traveller:
    """Begins runs of a program where chance has it."""

    make: Make
    database: Any
    store: ConversationStore
    config: dict[str, Any]
    chance: random.Random
    saver: InMemorySaver = field(default_factory=InMemorySaver)
    ends: list[End] = field(default_factory=list)
    view: list[str] = field(default_factory=list)
    replies: int = 0
    is_refused: bool = False

    def program(self) -> Any:
        """The program, as another worker has it."""
        model = ScriptedModel(replies=[self.reply] * 99)
        return self.make(elsewhere(self.store, self.database), model, self.saver, [])

    def reply(self, messages: list[BaseMessage]) -> AIMessage:
        """An answer, or calls; no two are alike."""
        self.replies += 1
        if messages[-1].type == "human" and self.chance.random() < 0.5:
            names = ["search"] * self.chance.randint(1, 2)
            ids = [f"c{self.replies}-{at}" for at in range(len(names))]
            return calls(*names, ids=ids, query=f"{self.replies} ")
        return AIMessage(f"a{self.replies}")

    async def seen(self) -> list[str]:
        """The view of another worker."""
        history = await chat_of(elsewhere(self.store, self.database), self.config).load_history(WHOLE)
        assert check_pairing(history.messages) == []
        return texts({"messages": history.messages})

    async def go(self, name: str) -> None:
        """One operation."""
        operation = self.chance.choice(OPERATIONS) if self.ends else "ask"
        if operation == "append":
            await chat_of(self.store, self.config).append([HumanMessage(f"note {name}"), AIMessage("noted")])
            self.view += [f"note {name}", "noted"]
            return
        app = self.program()
        prefix, run = await self.begin(app, operation, name)
        try:
            result = await run()
        except InvalidInputError:  # it was abandoned by an earlier rewind than the last; the state has the question
            assert await self.seen() == self.view
            self.is_refused = True
            return
        turn = self.turn(result)
        common = next(size for size in range(len(turn), -1, -1) if prefix[len(prefix) - size :] == turn[:size])
        assert _calm(await self.seen()) == _calm([*prefix, *turn[common:]]), operation
        self.view = await self.seen()
        newest = at(self.config, (await app.aget_state(self.config)).config)
        self.ends.append(End(newest, prefix[: len(prefix) - common], turn))

    def turn(self, result: dict[str, Any]) -> list[str]:
        """The texts of a result from its question on."""
        kinds = [message.type for message in result["messages"]]
        return texts(result)[len(kinds) - 1 - kinds[::-1].index("human") :]

    async def begin(self, app: Any, operation: str, name: str) -> tuple[list[str], Callable[[], Any]]:
        """The branch as it is where the run begins, and the run."""
        question = {"messages": [HumanMessage(name)]}
        if operation == "ask":
            where = self.chance.choice([self.config, *(end.config for end in self.ends[-1:])])
            return [*self.view, name], lambda: app.ainvoke(question, where)
        end = self.chance.choice(self.ends)
        if end is self.ends[-1] and operation != "replay":
            return [*self.view, name], lambda: app.ainvoke(question, self.config)
        if operation == "question":
            return [*end.before, *end.turn, name], lambda: app.ainvoke(question, end.config)
        if operation == "replay":
            older = await self.in_turn(app, end)
            return [*end.before, *texts(older.values)], lambda: app.ainvoke(None, at(self.config, older.config))

        async def update() -> Any:
            branch = await app.aupdate_state(end.config, question, as_node="__start__")
            return await app.ainvoke(None, at(self.config, branch) if operation == "update" else self.config)

        return [*end.before, *end.turn, name], update

    async def in_turn(self, app: Any, end: End) -> Any:
        """A checkpoint in the middle of a turn."""
        found, state = [], await app.aget_state(end.config)
        while state.parent_config:
            state = await app.aget_state(at(self.config, state.parent_config))
            if state.next and texts(state.values | {"messages": state.values.get("messages", ())})[:1] == end.turn[:1]:
                found.append(state)
        return self.chance.choice(found)


def _calm(shown: list[str]) -> list[str]:
    """Texts of a view without notes, which a branch at the newest checkpoint keeps; results in any order."""
    return ["found" if text.startswith("found") else text for text in shown if not text.startswith("note")]


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed > 0)) for seed in range(40)])
async def test_random_travels(make: Make, store: ConversationStore, database: Any, config: Any, seed: int) -> None:
    """Questions, replays and updates anywhere, and another worker's appends."""
    traveller = Traveller(make, database, store, config, random.Random(seed))
    for step in range(14):
        if not traveller.is_refused:
            await traveller.go(f"q{step}")
