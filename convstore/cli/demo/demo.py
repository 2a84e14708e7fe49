"""Runs the demo: two questions, twenty passages, the view at the third question and the view many turns later.

``command`` runs it. All output is read from the store through the public API; only the conversation is scripted.
"""

from __future__ import annotations

import secrets
import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from rich.console import Console
from rich.table import Table
from rich.text import Text

from convstore import Conversation
from convstore.cli.demo.corpus import DEEP_LEARNING, THIRD_QUESTION, TURNS, search_messages
from convstore.cli.demo.pages import cut_page, pages_of
from convstore.cli.invocation import command_name, pip_name
from convstore.cli.options import open_store
from convstore.cli.output import new_table, plain, short
from convstore.exceptions import MissingExtraError
from convstore.messages.text import call_text, text_of
from convstore.sources.source import write_ids
from convstore.summarization import HeadTailSummarizer
from convstore.types import ConversationInfo, History, ToolRecord
from convstore.values.addresses import address_to_print
from convstore.values.plain import counted, percent
from convstore.values.policy import CompactionRule

_PAGE_TOKENS = 1_000
_FIRST_RESULT = "result-1"
_SHOWN = 78
_SUMMARY_LINES = 5
_COMMANDS = """\
export CONVSTORE_URI={address}
{convstore} list
{convstore} show {id}
{convstore} show {id} --view
{convstore} inspect
{convstore} erase --scope user_id={user} --yes"""
_IN_MEMORY = """\
{extra}{convstore} demo --inspect
{convstore} demo --uri mongodb://localhost:27017/app"""
_RULE = CompactionRule(max_tokens_before_summary=1_200, max_summary_tokens=600, keep_last_turns=3)


@dataclass(frozen=True, slots=True)
class Demo:
    """Everything that the demo read from the store.

    Attributes:
        stored: The log, each message with its record.
        history: The view at the third question.
        pages: The pages of the first result, read again through the tool.
        later: The view many turns later, with a summary of old turns.
        expanded: Number of messages that the summary covers.
        info: The conversation's information from listings.
    """

    stored: list[tuple[BaseMessage, ToolRecord]]
    history: History
    pages: list[ToolMessage]
    later: History
    expanded: int
    info: ConversationInfo


async def run_demo(uri: str) -> Demo:
    """Make the conversation, and read it."""
    async with open_store(uri, setup=True, summarizer=HeadTailSummarizer(_RULE)) as store:
        return await _talk(
            store.conversation(user_id=f"demo-{secrets.token_hex(4)}", thread_id="demo")
        )


def demo_as_json(demo: Demo) -> dict[str, Any]:
    """Return the demo as a JSON document."""
    return {
        "conversation": demo.info.model_dump(include={"scope", "conversation_id"}),
        "stored": [_stored(message, record) for message, record in demo.stored],
        "view": [
            {"id": message.id, "type": message.type, "content": message.content}
            for message in demo.history.messages
        ],
        "read_back": {
            "tool_message_id": _FIRST_RESULT,
            "first_page": demo.pages[0].content,
            "next_cursor": demo.pages[0].artifact.next_cursor,
            "pages": len(demo.pages),
            "source_ids": _sources_on(demo.pages),
        },
        "tokens": _tokens(demo.history),
        "summary": {
            "text": demo.later.summary,
            "stands_for_messages": demo.expanded,
            "tokens": _tokens(demo.later),
        },
    }


def print_demo(console: Console, demo: Demo, uri: str) -> None:
    """Print the demo, and the commands that show its conversation."""
    _heading(
        console,
        "1. What is stored",
        "Every message, whole. Sources are numbered through the conversation.",
    )
    console.print(_log_table(demo))
    _heading(
        console,
        "2. What the model gets at the third question",
        "The same messages, old results as stubs.",
    )
    console.print(_view_table(demo))
    _heading(
        console,
        "3. What the model reads back",
        f"The result {_FIRST_RESULT}, page 1 of {len(demo.pages)}.",
    )
    console.print(
        Text(f'retrieve_previous_sources(tool_message_ids=["{_FIRST_RESULT}"])\n', style="yellow")
    )
    console.print(_page_text(demo))
    _heading(console, "4. What it saves", "")
    console.print(_savings(demo.history))
    _heading(
        console,
        "5. Many turns later",
        "Old turns are a summary. With a chat model it is written by RunningSummarizer.",
    )
    console.print(_summary_text(demo))
    console.print(_savings(demo.later))
    _print_commands(console, demo, uri)


def _print_commands(console: Console, demo: Demo, uri: str) -> None:
    """Print the commands that show the conversation; they start convstore in the same way as this process."""
    names: dict[str, str] = {"convstore": command_name()}
    if not uri.startswith("mongodb"):
        _heading(
            console, "6. Look at it", "It was in memory. In the browser, or in a database of yours:"
        )
        missing = MissingExtraError(package="starlette", extra="inspector")
        is_installed = all(map(find_spec, ("jinja2", "starlette", "uvicorn")))
        names["extra"] = "" if is_installed else f"{pip_name()} {missing.arguments}\n"
        console.print(_IN_MEMORY.format(**names), soft_wrap=True)
        return
    address, is_whole = address_to_print(uri)
    about = ""
    if not is_whole:
        about = " For … write what the address has: the user with the password, and options."
    _heading(console, "6. Look at it", f"The conversation stays in the database.{about}")
    names |= {
        "address": shlex.quote(address),
        "id": demo.info.conversation_id,
        "user": demo.info.scope["user_id"],
    }
    console.print(_COMMANDS.format(**names), soft_wrap=True)


async def _talk(chat: Conversation) -> Demo:
    """Append two answered questions and a third one, as a backend would: question first."""
    for number, (question, passages, answer) in enumerate(TURNS, 1):
        human, *search = search_messages(number, question, passages)
        await chat.append(human)
        await chat.append([*search, AIMessage(answer, id=f"answer-{number}")])
    await chat.append(HumanMessage(THIRD_QUESTION, id=f"question-{len(TURNS) + 1}"))
    history = await chat.load_history()
    log = [message async for message in chat.messages()]
    records = await chat.get_tool_messages([str(message.id) for message in log])
    tool = chat.retrieve_previous_sources_tool(page_tokens=_PAGE_TOKENS)
    pages = [page async for page in pages_of(tool, _FIRST_RESULT)]
    later, expanded = await _add_turns(chat)
    return Demo(
        list(zip(log, records, strict=True)), history, pages, later, expanded, await chat.info()
    )


async def _add_turns(chat: Conversation) -> tuple[History, int]:
    await chat.append(
        AIMessage("It does much better on what it was trained on than on what it was not [6].")
    )
    for passage in DEEP_LEARNING:
        question = HumanMessage(f"Tell me more about this: {passage['title']}")
        await chat.append([question, AIMessage(passage["text"][:400])])
    done = await chat.compact()
    assert done.summary is not None  # noqa: S101 - by then it is due
    return await chat.load_history(), len(await chat.expand_summary(done.summary.version))


def _heading(console: Console, title: str, subtitle: str) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    if subtitle:
        console.print(Text(subtitle, style="dim"))
    console.print()


def _log_table(demo: Demo) -> Table:
    columns = ("#", "type", "tool", "characters", "source ids")
    table = new_table(*columns, numbers=("#", "characters", "source ids"))
    for message, record in demo.stored:
        row = _stored(message, record)
        table.add_row(
            str(row["ordinal"]),
            row["type"],
            row["tool"],
            f"{row['characters']:,}",
            row["source_ids"],
        )
    return table


def _stored(message: BaseMessage, record: ToolRecord) -> dict[str, Any]:
    calls = ""
    if isinstance(message, AIMessage):
        calls = ", ".join(call["name"] for call in message.tool_calls)
    return {
        "ordinal": record.ordinal,
        "id": record.tool_message_id,
        "type": message.type,
        "tool": record.tool or calls,
        "characters": len(text_of(record.content)),
        "source_ids": write_ids(source.source_id for source in record.sources),
    }


def _view_table(demo: Demo) -> Table:
    full = {message.id: len(message.text) for message, _ in demo.stored}
    table = new_table(
        "#", "type", "what the model reads", "characters", numbers=("#", "characters")
    )
    for number, message in enumerate(demo.history.messages, 1):
        stubbed = message.id in demo.history.report.stubbed
        size = (
            f"{full[message.id]:,} → {len(message.text):,}" if stubbed else f"{len(message.text):,}"
        )
        text = Text(plain(message.text), style="yellow") if stubbed else Text(_reads(message))
        table.add_row(str(number), message.type, text, size)
    return table


def _reads(message: BaseMessage) -> str:
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    called = "; ".join(f"calls {call_text(call)}" for call in calls)
    return short(message.text or called, maximum=_SHOWN)


def _page_text(demo: Demo) -> Text:
    """Return the first page that the model gets, with the text of each passage shortened."""
    page = demo.pages[0]
    text = Text()
    for passage in cut_page(page.text)[0]:
        end = passage.start + len(passage.text)
        text.append(
            f"{passage.label}, characters {passage.start}-{end} of {passage.length}\n", style="cyan"
        )
        text.append(short(passage.text, maximum=_SHOWN) + "\n")
    text.append(page.text.rpartition("\n")[2], style="cyan")
    sources = _sources_on(demo.pages)
    more = len(demo.pages) - 1
    verb = "brings" if more == 1 else "bring"
    return text.append(
        f"\n\n{counted(more, 'more page')} {verb} the rest of sources {sources} and the "
        "result itself."
    )


def _sources_on(pages: list[ToolMessage]) -> str:
    return write_ids(
        sorted({source.source_id for page in pages for source in page.artifact.sources})
    )


def _summary_text(demo: Demo) -> Text:
    lines = (demo.later.summary or "").splitlines()
    shown = "".join(f"{short(plain(line), maximum=_SHOWN)}\n" for line in lines[:_SUMMARY_LINES])
    rest = (
        f"{counted(len(lines) - _SUMMARY_LINES, 'more line')}; it covers "
        f"{counted(demo.expanded, 'message')}, which stay in the log.\n"
    )
    return Text.assemble((shown, "yellow"), rest)


def _savings(history: History) -> Text:
    tokens = _tokens(history)
    return Text.assemble(
        f"The whole log has {tokens['full']:,} tokens, the view {tokens['view']:,}: ",
        (f"{percent(tokens['saved'], decimals=1)}% saved", "bold green"),
        ". Nothing was dropped; each stub names the id that brings it back.",
    )


def _tokens(history: History) -> dict[str, Any]:
    full = history.report.tokens_before
    return {"full": full, "view": history.tokens, "saved": 1 - history.tokens / full}
