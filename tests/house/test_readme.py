"""The README is short and true: its program runs, its figures are computed, its commands are those that CI runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from programs import ROOT

from convstore import Conversation, ConversationStore
from convstore.messages.tokens import approximate_tokens

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROMISES = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
COMPARISON = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
MOST_LINES = 95
MOST_WORDS = 750
FIRST_SCREEN = 20
MOST_LINES_OF_THE_PROGRAM = 24


class Block(NamedTuple):
    """A fenced block: its language, its text and the line that it begins on."""

    language: str
    text: str
    line: int


BLOCKS = [
    Block(found[1], found[2], README[: found.start()].count("\n") + 1)
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
]
SHELL, PYTHON = BLOCKS


def test_the_page_is_short() -> None:
    """Longer explanations have a page under docs. Addresses of links and the lines of tables are not words."""
    assert README.count("\n") <= MOST_LINES
    text = re.sub(r"\]\([^)]*\)|<[^>]*>|\|", " ", README)
    assert len(text.split()) <= MOST_WORDS


def test_the_first_screen_says_what_it_is_and_how_to_try_it() -> None:
    """It has the claim, the definition, two numbers, the status and the commands; a short program follows."""
    claim, definition = README.split("\n\n")[1:3]
    assert claim == "**Your agent keeps everything. Your model reads a short view.**"
    assert definition.startswith(
        "convstore is an async Python library that stores the conversations"
    )
    assert SHELL.language == "sh"
    assert SHELL.line < FIRST_SCREEN
    assert PYTHON.language == "python"
    assert PYTHON.text.count("\n") <= MOST_LINES_OF_THE_PROGRAM


async def test_the_program_is_a_turn_that_a_retry_does_not_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asks the model once, however often the question is sent, and stores the answer with the stamp of its view."""
    asked = list[dict[str, Any]]()

    async def create(**request: Any) -> dict[str, Any]:
        asked.append(request)
        message = {"role": "assistant", "content": "Fish."}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}

    completions = SimpleNamespace(completions=SimpleNamespace(create=create))
    names: dict[str, Any] = {
        "ConversationStore": ConversationStore,
        "MODEL": "m",
        "question": "What do orcas eat?",
        "request_id": "request-1",
        "client": SimpleNamespace(chat=completions),
    }
    monkeypatch.setenv("CONVSTORE_URI", "memory://")
    lines = PYTHON.text.splitlines()
    program = "\n".join(
        ["async def turn():", *(f"    {line}" for line in lines), "    return chat"]
    )
    exec(compile(program, "README.md", "exec"), names)  # noqa: S102 - ours
    chat: Conversation = await names["turn"]()
    names["chat"] = chat
    again = ["async def again():", *(f"    {line}" for line in lines[lines.index("") :])]
    again.append("    return turn.answer")
    exec(compile("\n".join(again), "README.md", "exec"), names)  # noqa: S102 - ours
    stored = await names["again"]()
    assert stored.text == "Fish."
    assert [message.text async for message in chat.messages()] == ["What do orcas eat?", "Fish."]
    [_, answer] = await chat.list_messages()
    assert answer.stamp
    assert [[message["role"] for message in request["messages"]] for request in asked] == [["user"]]
    await chat.store.close()


def _conversation() -> list[BaseMessage]:
    passages = [
        Document(
            f"Passage {number} about orcas. " * 19, metadata={"title": f"Orcas, part {number}"}
        )
        for number in range(1, 11)
    ]
    text = "\n\n".join(passage.page_content for passage in passages)
    search = {"name": "search", "args": {"query": "orcas"}, "id": "call-1"}
    return [
        HumanMessage("What do orcas eat?"),
        AIMessage("", tool_calls=[search]),
        ToolMessage(text, artifact=passages, name="search", tool_call_id="call-1"),
        AIMessage("Fish, seals and squid [1]."),
    ]


async def test_the_table_shows_what_a_load_gives() -> None:
    """Each size, and both sums, are those of a conversation whose tool returned ten passages."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="orcas")
        said = _conversation()
        await chat.append(said)
        await chat.append(HumanMessage("And where do they live?"))
        logged = [message async for message in chat.messages()]
        history = await chat.load_history()
    rows = re.findall(r"^\| (\d) \|.*\| ([\d,]+) \|.*\| ([\d,]+) \|$", README, re.MULTILINE)
    shown = [(number(stored), number(view)) for _, stored, view in rows]
    assert shown == list(zip(sizes_of(logged), sizes_of(history.messages), strict=True))
    [sums] = re.findall(
        r"^\| \| \| \*\*([\d,]+)\*\* \| \| \*\*([\d,]+)\*\* \|$", README, re.MULTILINE
    )
    assert [number(found) for found in sums] == [history.report.tokens_before, history.tokens]
    assert f"ten passages, {len(said[2].text):,} characters" in README


def sizes_of(messages: Sequence[BaseMessage]) -> list[int]:
    """Return the size of each message in tokens."""
    return [approximate_tokens([message]) for message in messages]


def number(text: str) -> int:
    """Return a figure that is written with commas."""
    return int(text.replace(",", ""))


def test_two_commands_are_enough() -> None:
    """One command installs and runs the demo, and one installs and runs the tests. The demo opens in a browser, too."""
    _, demo, tests, browser = SHELL.text.splitlines()
    start = "python3.11 -m venv .venv && .venv/bin/pip install -q -e "
    assert demo == f"{start}'.[cli,memory,inspector]' && .venv/bin/convstore demo"
    assert tests == f"{start}'.[test]' && .venv/bin/pytest"
    assert browser.startswith(".venv/bin/convstore demo --inspect ")


def test_the_checks_before_a_merge_run_the_same_command() -> None:
    """`.ci/run` takes the command from here, and finds exactly one."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    [pattern] = re.findall(r"grep -E '(.+)' README\.md", script)
    found = [line for line in README.splitlines() if re.search(pattern, line)]
    assert found == [SHELL.text.splitlines()[2]]
    assert '\n.venv/bin/pytest -n "$workers" -m "$marks" -k "$names" |' in script
    assert '`.venv/bin/pytest -m "slow and not soak"`' in (ROOT / "CONTRIBUTING.md").read_text(
        encoding="utf-8"
    )


def test_the_figures_are_those_of_the_comparison() -> None:
    """Each figure is on the page that says how it was measured."""
    bills = re.findall(
        r"^\| .+? \| (\d+ %) \| (\d+ %) \| \d+ % \| \d+ \| \d+ \| \d+ % \| (\d+ %) \|$",
        COMPARISON.replace("**", ""),
        re.MULTILINE,
    )
    rows = re.findall(
        r"^\| [^|]+ \| (\d+ %) \| (\d+ %) \| (\d+ %) \| [^|]+ \|$", README, re.MULTILINE
    )
    assert len(rows) == 6
    assert set(rows) <= set(bills)
    [(tenth, reached, quarter)] = re.findall(
        r"\*\*(\d+ %) of sending everything, and (\d+ %) of all.+?at a quarter, (\d+ %)", README
    )
    assert (tenth, quarter, reached) in bills
    [saving] = re.findall(r"\*\*([\d,]+) tokens instead of ([\d,]+)\*\*", README)
    assert f"| {saving[1]} | {saving[0]} |" in COMPARISON
    [[time, size]] = re.findall(r"a load takes ([\d.]+) ms and reads ([\d.]+) KB", README)
    assert re.search(rf"^\| load for the model.*\*\*{re.escape(time)}", COMPARISON, re.MULTILINE)
    assert re.search(rf"^\| bytes read by a load.*\*\*{re.escape(size)}", COMPARISON, re.MULTILINE)


def test_each_promise_names_tests_that_exist() -> None:
    """Ten promises have two tests or more each, in the contract suite or in another file."""
    promises = re.split(r"^\d+\. ", PROMISES, flags=re.MULTILINE)[1:]
    assert len(promises) == 10
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "convstore" / "testing").glob("*.py")]
    texts = "".join(path.read_text(encoding="utf-8") for path in files)
    defined = set(re.findall(r"^ *(?:async )?def (test_\w+)", texts, re.MULTILINE))
    for promise in promises:
        named = re.findall(r"`(test_\w+)`", promise)
        assert len(named) >= 2, promise
        assert set(named) <= defined, set(named) - defined


def test_what_is_said_to_be_missing_is_missing() -> None:
    """A feature that comes leaves the list."""
    missing = PROMISES.partition("\nNot in this version: ")[2].partition("\n")[0]
    assert missing
    names = re.findall(r"`(\w+)`", missing)
    classes = (Conversation, ConversationStore)
    assert [name for name in names if any(hasattr(class_, name) for class_ in classes)] == []
