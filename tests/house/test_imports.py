"""Imports load LangChain's tools, prompts, tracers and models only where they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

SLOW = (
    "jinja2",
    "langchain",
    "langchain_core.language_models.base",
    "langchain_core.prompts.base",
    "langchain_core.runnables.base",
    "langchain_core.tools.base",
    "langchain_core.tracers.base",
    "langgraph",
    "langsmith",
    "mongomock_motor",
    "motor",
    "opentelemetry",
    "rich",
    "typer",
)

UNUSED = {
    *(
        "chain",
        "cli",
        "compaction.compactor",
        "compaction.strategies",
        "devserver",
        "ext",
        "summarization",
        "testing",
    ),
    *("transfer", "verify"),
}
"""Rooms and modules of convstore that no append, load or read-back runs."""

TURN = """
import asyncio
from convstore import ConversationStore
from langchain_core.messages import AIMessage, HumanMessage
import pytest

async def main():
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="seals")
        receipt = await chat.append([HumanMessage("What do seals eat?"), AIMessage("Fish.")])
        assert len((await chat.load_history()).messages) == 2
        await chat.get_tool_messages(receipt.message_ids)

asyncio.run(main())
"""


def loaded_by(code: str) -> set[str]:
    """Names of all modules that a program in a fresh process loads."""
    program = f"import sys\n{code}\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    return set(done.stdout.splitlines())


def test_the_package_alone_loads_nothing() -> None:
    """Importing the package loads neither its modules nor its dependencies. Names are resolved when they are used."""
    loaded = loaded_by("import convstore")
    assert {name for name in loaded if name.startswith("convstore.")} == set()
    assert loaded.isdisjoint({"langchain_core", "pydantic", "pymongo"})


def test_the_command_line_loads_no_store_before_a_command_needs_it() -> None:
    """``convstore --help`` loads what prints it, and no database driver."""
    loaded = loaded_by("import convstore.cli.commands")
    assert loaded.isdisjoint(
        {"convstore.store", "langchain_core", "pydantic", "pymongo", "rich.progress"}
    )


@pytest.mark.slow
def test_the_names_of_summarization_can_be_loaded_first() -> None:
    """Before any other module of the package; those that are looked up when they are used, too."""
    assert "convstore.summarization" in loaded_by("from convstore.summarization import *")


@pytest.mark.slow
def test_the_store_loads_none_of_langchains_slow_modules() -> None:
    """Tools and prompts bring LangChain's tracers and LangSmith's client, which take longer to load than the rest."""
    names = (
        "from convstore import *",
        "from convstore.summarization import RunningSummarizer, CompactionRule",
        "from convstore.transfer import import_conversations",
    )
    assert loaded_by("\n".join(names)).isdisjoint(SLOW)


def test_a_process_loads_only_what_its_turns_use() -> None:
    """The start of a worker is short: compaction, verify, chains and imports are loaded by their first use."""
    assert loaded_by(TURN) & {f"convstore.{name}" for name in UNUSED} == set()
