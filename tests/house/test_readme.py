"""The README is short and true: its program prints what it says, its commands are those that CI runs."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from programs import ROOT, run_program

from convstore import Conversation, ConversationStore

README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_LINES = 200
FIRST_SCREEN = 60
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
PYTHON = [block for block in BLOCKS if block.language == "python"]
SHELL = [block for block in BLOCKS if block.language == "sh"]


def test_the_page_is_short() -> None:
    """The README has at most `MOST_LINES` lines. Longer explanations have a page under docs."""
    assert README.count("\n") <= MOST_LINES


def test_the_program_prints_what_it_is_said_to(tmp_path: Path) -> None:
    """The output under it is its output; an ellipsis stands for what is left out."""
    [program] = PYTHON
    documented = BLOCKS[BLOCKS.index(program) + 1]
    path = tmp_path / "block.py"
    path.write_text(program.text, encoding="utf-8")
    printed = run_program(path)
    assert documented.language == "text"
    assert doctest.OutputChecker().check_output(documented.text, printed, doctest.ELLIPSIS), printed


@pytest.mark.parametrize("other", ["OpenAI", "Anthropic"])
async def test_a_turn_on_a_provider_s_sdk_is_three_calls(other: str) -> None:
    """The three calls in the table, in this order, are a turn on the SDK of OpenAI or Anthropic."""
    rows = re.findall(r"^\| ((?:store|ask|or ask) [\w ]+) \| `(.+)` \|$", README, re.MULTILINE)
    calls = [call for step, call in rows if not step.endswith(other)]
    asked = list[dict[str, Any]]()

    async def create(**request: Any) -> dict[str, Any]:
        asked.append(request)
        usage = {"input_tokens": 9, "output_tokens": 3}
        if other == "Anthropic":
            choice = {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "Fish."},
            }
            return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}
        content = [{"type": "text", "text": "Fish."}]
        return {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": "m",
            "usage": usage,
        }

    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="orcas")
        names = {"chat": chat, "text": "What do orcas eat?", "MODEL": "m"}
        api = SimpleNamespace(create=create)
        names |= {"client": SimpleNamespace(messages=api, chat=SimpleNamespace(completions=api))}
        program = "async def turn():\n" + "".join(f"    {call}\n" for call in calls)
        exec(compile(program, "README.md", "exec"), names)  # noqa: S102 - ours
        await names["turn"]()
        assert [message.text async for message in chat.messages()] == [
            "What do orcas eat?",
            "Fish.",
        ]
    assert len(calls) == 3
    assert [message["role"] for message in asked[0]["messages"]] == ["user"]


def test_the_first_screen_shows_it_working() -> None:
    """The first screen says what convstore is and shows a short program and the first commands."""
    opening = README.partition("```")[0].lower()
    assert "the log is complete and immutable; the view is small, valid and stable" in opening
    assert "everything left out of the view has an id that brings it back" in opening
    assert PYTHON[0].text.count("\n") <= MOST_LINES_OF_THE_PROGRAM
    assert SHELL[0].line < FIRST_SCREEN


def test_no_block_is_left_out() -> None:
    """Every block is a program, its output or a command."""
    assert [block.language for block in BLOCKS] == ["python", "text", "sh"]


def test_two_commands_are_enough() -> None:
    """Two commands are enough: one installs and runs the demo, and one installs and runs the tests."""
    demo, tests = SHELL[0].text.splitlines()
    start = "python3.11 -m venv .venv && .venv/bin/pip install -q -e "
    assert demo == f"{start}'.[cli,memory]' && .venv/bin/convstore demo"
    assert tests == f"{start}'.[test]' && .venv/bin/pytest"


def test_the_checks_before_a_merge_run_the_same_command() -> None:
    """`.ci/run` takes the command from here, and finds exactly one."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    [pattern] = re.findall(r"grep -E '(.+)' README\.md", script)
    assert [line for line in README.splitlines() if re.search(pattern, line)] == SHELL[
        0
    ].text.splitlines()[1:]
    assert '\n.venv/bin/pytest -n "$workers" -m "$marks" |' in script
    assert "`.venv/bin/pytest -m slow`" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_what_is_said_to_be_missing_is_missing() -> None:
    """A feature that comes leaves the list."""
    missing = README.partition("\nNot in this version: ")[2].partition("\n")[0]
    assert missing
    names = re.findall(r"`(\w+)`", missing)
    assert [
        name for name in names if hasattr(Conversation, name) or hasattr(ConversationStore, name)
    ] == []


def test_the_figures_are_those_of_the_comparison() -> None:
    """Each row of the table, and each saving of tokens, is on the page that says how it was measured."""
    comparison = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| ([\w ]+?) \| ([\d.,]+) ?(?:ms|[KM]B)? \| ([\d.,]+)", README, re.MULTILINE
    )
    measured = re.findall(
        r"^\| ([\w ]+?)(?:, ms)? \| \*\*([\d.,]+).*?\*\* \| ([\d.,]+)", comparison, re.MULTILINE
    )
    assert len(rows) >= 5
    assert set(rows) <= set(measured)
    prices = re.findall(
        r"^\| [^|]+ \| (\d+ %) \| (\d+ %) \| (\d+ %) \| (\d+) \|$", README, re.MULTILINE
    )
    plain = comparison.replace("**", "")
    bills = re.findall(
        r"\| \d+ % \| (\d+ %) \| \d+ % \| \d+ \| (\d+) \| (\d+ %) \| (\d+ %) \|$",
        plain,
        re.MULTILINE,
    )
    assert prices == [(price, shown, reached, over) for price, over, shown, reached in bills]
    assert len(prices) == 7
    [saving] = re.findall(r"\*\*([\d,]+) tokens instead of ([\d,]+)\*\*", README)
    assert f"| {saving[1]} | {saving[0]} |" in comparison
