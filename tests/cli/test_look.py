"""The commands list, show and stats: what they print of real and of hostile conversations."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
from contextlib import redirect_stdout, suppress
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

import httpx
import pytest
from cases import each_case
from command_line import complaints, convstore, emptied_address, lines, recording
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pymongo import MongoClient
from rich.console import Console

from convstore import ConversationStore, HistoryPolicy
from convstore.cli.commands import app
from convstore.cli.list_ import _Member
from convstore.cli.output import plain, screen, write_json
from convstore.cli.progress import progress
from convstore.cli.show import _print_message
from convstore.cli.stats import _growth_table
from convstore.ext.inspector import EVERYTHING, inspector
from convstore.ext.sums import cost_columns
from convstore.testing.samples import rag_turn
from convstore.types import ConversationInfo, Growth, LogItem
from convstore.values.list_rows import ConversationEnd, ListRow

HOSTILE = "\x1b[2J\x1b]0;title\x07 \u202ereversed \x9b31m \ud800 \x00 [bold]tags[/bold] :smile:"
COMMANDS = [str(command.name) for command in app.registered_commands]
ADA = ("user_id=ada", "thread_id=one")


@pytest.fixture(scope="module")
def uri(server_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The address of a database with three conversations, one of them hostile."""
    folder = tmp_path_factory.mktemp("look")
    good, bad = folder / "good.jsonl", folder / "bad.jsonl"
    good.write_text(lines(recording("one"), recording("two", turns=1)), encoding="utf-8")
    messages = [
        {"role": "user", "content": HOSTILE, "id": HOSTILE[:20].encode(errors="replace").decode()}
    ]
    messages += [{"role": "assistant", "content": "x" * 5_000_000}]
    bad.write_text(
        lines({"id": "three \x1b[2J", "title": HOSTILE, "messages": messages}), encoding="utf-8"
    )
    with emptied_address(server_uri) as address:
        for path, user in ((good, "ada"), (bad, "eve")):
            assert (
                convstore("import", path, "--uri", address, "--scope", f"user_id={user}").exit_code
                == 0
            )
        yield address


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal at the output of `list` and `show`."""
    monkeypatch.setattr("convstore.cli.list_.is_terminal", lambda: True)


def printed(*arguments: str, width: int = 80) -> str:
    """Return the output of a command; no character in it can control a terminal."""
    result = convstore(*arguments, width=width)
    assert (result.exit_code, complaints(result)) == (0, ""), result.output
    assert ("/convstore_cli_" in result.stderr) == ("--json" not in arguments)
    assert all(line.isprintable() for line in re.split(r"[\n\t]", result.stdout))
    return result.stdout


def document(*arguments: str) -> dict[str, Any]:
    """The JSON document that a command prints."""
    return json.loads(printed(*arguments, "--json"), parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise AssertionError(f"JSON has no {constant}")


@pytest.mark.slow
def test_a_list_in_a_pipe_is_separated_by_tabs(uri: Any) -> None:
    """A line for each conversation: id, scope, date, state, counts, first question; nothing is cut."""
    result = convstore("list", "--uri", uri, "--scope", "user_id=ada")
    rows = {row[1]: row for row in (line.split("\t") for line in result.stdout.splitlines())}
    assert rows.keys() == {"user_id=ada thread_id=one", "user_id=ada thread_id=two"}
    row_of_one = rows["user_id=ada thread_id=one"]
    assert re.fullmatch(r"[0-9a-f]{24}", row_of_one[0])
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", row_of_one[2])
    assert (row_of_one[3:6], row_of_one[7:]) == (["", "12", "3"], ["0", "What of the tide, 0?"])


def test_a_list_has_costs_if_prices_are_given(uri: Any) -> None:
    """In a pipe as the last column; "-" where no answer says what it used, a plus where a model has no price."""
    lines = printed("list", "--uri", uri, "--price", "gpt-5=1.25,10").splitlines()
    assert {line.split("\t")[9] for line in lines} == {"-"}
    found = document("list", "--uri", uri, "--price", "gpt-5=1.25,10")["conversations"]
    assert [row["cost"] for row in found] == [None] * 3
    usage = {"gpt-5": {"input_tokens": 1_000_000, "output_tokens": 0}}
    for other, cost in (({}, "1.25"), ({"other": {"input_tokens": 5}}, "1.25+")):
        info = ConversationInfo(scope={}, usage=usage | other)
        costs = cost_columns(info, {"gpt-5": (1.25, 10.0)})
        assert _Member(1, 0, ListRow(info, ConversationEnd()), costs=costs).cost == cost


@pytest.mark.costly
@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_list_on_a_terminal_has_a_header_and_a_row_for_each(
    uri: Any, width: int, terminal: None
) -> None:
    """Numbered, and no row is longer than a line; in a narrow one, numbers give way to titles."""
    header, *rows = printed("list", "--uri", uri, width=width).splitlines()
    numbers = ["messages", "tokens"] if width > 60 else []
    assert (header.split()[0], header.split()[3:]) == ("#", [*numbers, "age"])
    assert [row.split()[0] for row in rows] == ["1", "2", "3"]
    assert max(map(len, (header, *rows))) <= width
    assert "user_id" not in printed("list", "--uri", uri, "--scope", "user_id=ada")


@pytest.mark.slow
def test_a_list_knows_a_terminal_from_a_pipe(uri: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`list` prints a table on a real terminal and tabs in a pipe, whatever the environment says of colours."""
    master, terminal = pty.openpty()
    piped = convstore("list", "--uri", uri, FORCE_COLOR="1")
    monkeypatch.setattr("pydoc.pager", lambda text: print(text, end=""))  # noqa: T201 - to the terminal
    with os.fdopen(terminal, "w") as screen_of_ours, redirect_stdout(screen_of_ours):
        app(["list", "--uri", uri], standalone_mode=False)
    shown = b"".join(iter(lambda: read(master), b"")).decode()
    os.close(master)
    assert [line.count("\t") for line in piped.stdout.splitlines()] == [8, 8, 8]
    assert "messages" in shown.splitlines()[0]
    assert "\t" not in shown


def read(master: int) -> bytes:
    """Return what a terminal got; nothing once no process has it open."""
    with suppress(OSError):  # EIO, on Linux
        return os.read(master, 65_536)
    return b""


@pytest.mark.slow
def test_a_conversation_is_shown_by_row_id_or_scope(uri: Any) -> None:
    """All three name the same one; its totals come first."""
    ids = [
        line.split("\t")[0]
        for line in printed("list", "--uri", uri, "--scope", "user_id=ada").splitlines()
    ]
    shown = printed("show", *ADA, "--uri", uri)
    assert shown.splitlines()[1].startswith("12 messages, 3 turns, ")
    row = str(1 + ids.index(shown.split()[2]))
    assert printed("show", row, "--scope", "user_id=ada", "--uri", uri) == shown
    assert printed("show", shown.split()[2], "--uri", uri) == shown


def test_a_list_has_pages(uri: Any) -> None:
    """The end of a page names the option for the next one; the error after the last one says how many there are."""
    pages = [document("list", "--uri", uri, "--limit", "2", "--page", page) for page in "12"]
    seen = [info["scope"]["thread_id"] for page in pages for info in page["conversations"]]
    assert sorted(seen) == ["one", "three \x1b[2J", "two"]
    assert [page["next_page"] for page in pages] == [2, None]
    first = convstore("list", "--uri", uri, "--limit", "1")
    assert first.stderr.endswith("Older ones: --page 2\n")
    after = convstore("list", "--uri", uri, "--limit", "2", "--page", "9")
    assert (after.exit_code, after.stderr) == (1, "convstore: the list has 2 pages, not 9\n")


@pytest.mark.slow
def test_a_list_says_what_needs_a_look(server_uri: str, terminal: None) -> None:
    """State, failed results and age; with a filter the rows keep the numbers that `show` takes."""
    with emptied_address(server_uri) as address:
        asyncio.run(_append_states(address))
        header, *rows = printed("list", "--uri", address, width=100).splitlines()
        assert header.split()[3:] == ["state", "messages", "tokens", "failed", "age"]
        columns = [_without_figures(row) for row in rows]
        assert columns == [
            "1 ada t2 no answer 1 # # s Nobody answers?",
            "2 ada t1 4 48 # # s Where are the keys?",
            "3 ada t0 2 # # s All well?",
        ]
        narrow = printed("list", "--uri", address).splitlines()
        assert narrow[0].split()[3:] == ["state", "failed", "age"]
        assert narrow[1].rstrip().endswith("Nobody answers?")
        listed = partial(printed, "list", "--uri", address, width=100)
        _, row, said = listed("--failed").splitlines()
        assert (_without_figures(row), said) == (columns[1], "1 of 3 conversations.")
        shown = document("list", "--uri", address, "--failed", "--since", "1h")
        assert (len(shown["conversations"]), shown["covered"]) == (1, 3)
        assert shown["conversations"][0]["first_question"] == "Where are the keys?"
        _, row, said = listed("--attention").splitlines()
        assert (_without_figures(row), said) == (columns[0], "1 of 3 conversations.")
        assert (
            printed("list", "--uri", address, "--failed", "--attention")
            == "0 of 3 conversations.\n"
        )
        states = [info["state"] for info in document("list", "--uri", address)["conversations"]]
        assert states == ["no answer", "", ""]
        wrong = convstore("list", "--uri", address, "--since", "yesterday")
        assert wrong.exit_code == 2
        assert "such as 90d" in wrong.stderr


def _without_figures(row: str) -> str:
    """Return a row without its tokens, or failed results, and its age."""
    return re.sub(r"\d+ +\d+ s", "# # s", " ".join(row.split()))


def test_list_and_show_say_what_is_wrong(server_uri: str) -> None:
    """With the tool that a turn waits for, the error, the share of the budget, and the rating; for programs, too."""
    with emptied_address(server_uri) as address:
        asyncio.run(_append_troubles(address))
        lines = printed("list", "--uri", address).splitlines()
        said = [line.split("\t")[3] for line in lines]
        assert said[:2] == ["broke off: after its question", "broke off: during look"]
        assert said[2:4] == ["broke off: RuntimeError: no shop", "waits: look"]
        assert re.fullmatch(r"9\d% of its budget; rated down", said[4])
        for row, state in enumerate(said, 1):
            line = state.replace("waits", r"waits \d+ s")
            for options in ([], ["--why"], ["--view"]):
                shown = printed("show", str(row), "--uri", address, *options)
                assert re.search(f"\n{line}\n", shown)
        found = document("list", "--uri", address, "--attention")["conversations"]
        broken, waits, full = found[2:]
        assert (broken["error"], waits["waiting"]) == ("RuntimeError: no shop", ["look"])
        assert (full["rated_down"], full["budget_share"] > 0.9) == (True, True)
        shown = document("show", "4", "--uri", address)["conversation"]
        assert (shown["state"], shown["waiting"]) == ("waits", ["look"])


async def test_a_conversation_has_one_document(server_uri: str) -> None:
    """A list, `show`, its calls and the inspector's export say the same of it, and of its sub-agents."""
    with emptied_address(server_uri) as address:
        async with await ConversationStore.connect(address) as store:
            await store.setup()
            chat = store.conversation(user_id="ada", thread_id="one")
            for conversation in (chat, chat.child("search")):
                await conversation.append([HumanMessage("Why?"), *rag_turn("Seals?")])
            await chat.update(metadata={"score": float("nan"), "raw": b"x"})
            pages = inspector(store, authorize=lambda _: EVERYTHING)
            transport = httpx.ASGITransport(pages)
            async with httpx.AsyncClient(transport=transport, base_url="http://it") as client:
                [exported] = (await client.get("/list.json")).json()
        commands = (["list"], ["show", "1"], ["show", "1", "--why"])
        listed, shown, calls = [
            await asyncio.to_thread(document, *command, "--uri", address) for command in commands
        ]
    [row] = listed["conversations"]
    assert row == shown["conversation"] == calls["conversation"] == exported
    assert (row["title"], row["first_question"]) == (None, "Why?")
    assert (row["metadata"], row["budget_share"]) == ({"score": "NaN", "raw": "eA=="}, None)
    assert listed["children"] == shown["children"] != []
    assert listed["children"][0]["scope"]["path"] == "search"


async def _append_troubles(address: str) -> None:
    async with await ConversationStore.connect(address) as store:
        await store.setup()
        call = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c"}])
        full = store.conversation(user_id="ada", thread_id="full")
        await full.append(HumanMessage("Full? " + "Please explain. " * 40))
        tokens = (await full.info()).tokens
        stamp = (await full.load_history(HistoryPolicy(max_tokens=tokens * 20 // 19))).stamp
        await full.append(AIMessage("No.", id="a"), stamp=stamp)
        await full.annotate("a", rating=-1)
        async with await store.conversation(user_id="ada", thread_id="waits").turn(
            "q", human="Waits?"
        ) as turn:
            await turn.append([call])
            await turn.wait_for(turn.open_calls[0])
        with suppress(RuntimeError):
            async with await store.conversation(user_id="ada", thread_id="broken").turn(
                "q", human="Broken?"
            ):
                raise RuntimeError("no shop")
        await store.conversation(user_id="ada", thread_id="called").append(
            [HumanMessage("Called?"), call]
        )
        killed = await store.conversation(user_id="ada", thread_id="killed").turn(
            "q", human="Killed?"
        )
        await killed.__aenter__()
    with MongoClient[dict[str, Any]](address) as client:
        log = client.get_default_database()["log"]
        lapsed = {"turn.until": datetime(2020, 1, 1, tzinfo=UTC)}
        assert log.update_many({"turn": {"$exists": True}}, {"$set": lapsed}).modified_count == 1


async def _append_states(address: str) -> None:
    async with await ConversationStore.connect(address) as store:
        await store.setup()
        call = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c"}])
        failed = ToolMessage("No such room.", tool_call_id="c", name="look", status="error")
        talks = [
            [HumanMessage("All well?"), AIMessage("Yes.")],
            [HumanMessage("Where are the keys?"), call, failed, AIMessage("I do not know.")],
            [HumanMessage("Nobody answers?")],
        ]
        for number, messages in enumerate(talks):
            chat = store.conversation(user_id="ada", thread_id=f"t{number}")
            await chat.append(messages)


def test_a_list_that_is_empty_says_so(uri: Any) -> None:
    """An unknown value is no error, as a user may have no conversation."""
    result = convstore("list", "--uri", uri, "--scope", "user_id=nobody")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no conversations" in result.stderr


def test_a_conversation_is_shown_with_stubs(uri: Any) -> None:
    """Each message has its number, type, tool and calls; old results are stubs."""
    shown = printed("show", *ADA, "--uri", uri)
    assert re.search(r"^1  \d{4}-\d\d-\d\d \d\d:\d\d  user  ", shown, re.MULTILINE)
    assert '→ search(q="tide")' in shown
    assert '"result_count": 2' in shown.replace("\n", "")
    assert "The tide comes in twice a day" not in shown
    note = "Old tool results are stubs; --full shows them whole."
    assert note in shown
    assert len(re.findall(r"  result  search  \S+  stub$", shown, re.MULTILINE)) == 3
    assert note not in printed("show", *ADA, "--uri", uri, "--limit", "1")


def test_text_in_blocks_is_shown_as_text() -> None:
    """Blocks of another type, and their neighbours, are shown as JSON."""
    blocks: list[str | dict[str, Any]] = [{"type": "text", "text": 'Say "hello".\nNow.'}]
    console = Console(file=io.StringIO(), width=80)
    _print_message(console, "1", HumanMessage(blocks), full=False)
    assert console.file.getvalue() == '1  user\nSay "hello".\nNow.\n\n'
    _print_message(
        console,
        "2",
        HumanMessage([*blocks, {"type": "image", "url": "https://a.example"}]),
        full=False,
    )
    assert '"type": "image"' in console.file.getvalue()


def test_a_call_with_invalid_arguments_is_shown() -> None:
    """By its name and the text that the model wrote."""
    broken = [
        {
            "type": "invalid_tool_call",
            "name": "search",
            "args": '{"query": ',
            "id": "c",
            "error": "cut",
        }
    ]
    console = Console(file=io.StringIO(), width=80)
    _print_message(console, "29", AIMessage("", invalid_tool_calls=broken), full=False)
    assert console.file.getvalue() == '29  model\n→ search with invalid arguments: {"query": \n\n'


def test_annotations_are_shown_with_their_message() -> None:
    """Before the empty line that ends it, not above the next heading."""
    console = Console(file=io.StringIO(), width=80)
    _print_message(console, "2", HumanMessage("Hi", id="r1"), full=False, annotations={"rating": 1})
    assert console.file.getvalue() == "2  user  r1\nHi\nrating: 1\n\n"


def test_a_conversation_is_shown_whole(uri: Any) -> None:
    """With --full results are there; --limit and --before choose the messages."""
    assert "The tide comes in twice a day" in printed("show", *ADA, "--uri", uri, "--full")
    found = document("show", *ADA, "--uri", uri, "--limit", "2", "--before", "5")["messages"]
    assert [message["ordinal"] for message in found] == [3, 4]


def test_a_view_is_shown_as_the_model_gets_it(uri: Any) -> None:
    """`show --view` prints the view's size, its stubs, the turns left out, and its policy."""
    shown = printed("show", *ADA, "--uri", uri, "--view").splitlines()
    assert re.fullmatch(
        r"View: 12 messages, [\d,]+ tokens; the log has [\d,]+; 3 stubs, 0 turns left out\.",
        shown[3],
    )
    assert shown[4] == "Policy: max_tokens=32000."
    assert document("show", *ADA, "--uri", uri, "--view")["report"]["left_out_turns"] == 0


def test_a_past_view_is_shown(uri: Any) -> None:
    """By a number, an id or a stamp: its messages, how sure it is, and why each message is shown as it is."""
    shown = printed("show", *ADA, "--uri", uri, "--at", "6")
    assert "What of the tide, 1?" in shown
    assert "What of the tide, 2?" not in shown
    assert "The view directly after the message" in shown
    assert re.search(r"^ +3  stub$", shown, re.MULTILINE)
    assert "stub, as its turn ended\n" in shown
    sixth = document("show", *ADA, "--uri", uri, "--limit", "1", "--before", "7")["messages"][0]
    assert printed("show", *ADA, "--uri", uri, "--at", sixth["message"]["id"]) == shown
    found = document("show", *ADA, "--uri", uri, "--at", "6")
    assert (found["match"], found["ordinal"]) == ("rebuilt", 8)
    assert found["report"]["reasons"][0] == {
        "first": 1,
        "last": 2,
        "state": "whole",
        "summary": 0,
        "limit": "",
    }
    stamp = json.dumps(
        {"conversation_id": document("list", "--uri", uri)["conversations"][0]["conversation_id"]}
    )
    for unknown in ("99", "nothing", stamp, "9" * 30):
        missing = convstore("show", *ADA, "--uri", uri, "--at", unknown)
        assert (missing.exit_code, missing.stdout) == (1, "")
        assert missing.stderr.startswith("convstore: ")
    wrong = convstore("show", *ADA, "--uri", uri, "--at", "{}}")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    no_stamp = convstore("show", *ADA, "--uri", uri, "--at", '{"ordinal": "x"}')
    assert no_stamp.stderr.endswith(
        "--at is not a stamp, such as the field `stamp` of `show --json`: "
        "conversation_id: Field required\n"
    )


def test_a_source_is_shown_whole(uri: Any) -> None:
    """By its number, with its fields; one that is not there is an error."""
    shown = printed("show", *ADA, "--uri", uri, "--source", "3")
    assert shown.startswith("[3] T1.1\n")
    assert "score: 0.5" in shown
    assert " ".join(shown.split()).count("The tide comes in twice a day") == 30
    assert max(map(len, shown.splitlines())) <= 80
    whole = printed("show", *ADA, "--uri", uri, "--source", "3", "--full")
    assert max(map(len, whole.splitlines())) > 1_000
    missing = convstore("show", *ADA, "--uri", uri, "--source", "99")
    assert (missing.exit_code, missing.stderr) == (
        1,
        "convstore: there is no source 99; `convstore show` names them in stubs\n",
    )
    both = convstore("show", *ADA, "--uri", uri, "--source", "3", "--view")
    assert both.exit_code == 2


@pytest.mark.costly
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["user_id=nobody", "thread_id=one"],
            "no conversation has these scope values (an argument each); `conv",
        ),
        (["user_id=ada thread_id=one"], "scope values (an argument each)"),
        (["user_id=ada"], "`convstore list --scope user_id=ada` lists"),
        (["99"], "the list has 3 rows, not 99"),
        (["99999"], "the list has 3 rows, not 99999"),
        (["1.2"], "row 1 has 0 sub-agents, not 2"),
        (["0123456789abcdef01234567"], "no conversation has the id"),
        ([*ADA, "--at", "99"], "the conversation has 12 messages, not 99"),
    ],
)
def test_what_is_not_there_cannot_be_shown(uri: Any, arguments: Any, said: str) -> None:
    """A scope without a conversation, a part of a scope, a row, an id, and a message after the end of the log."""
    result = convstore("show", *arguments, "--uri", uri)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr


def test_a_row_after_the_last_number_is_refused(uri: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how many rows have numbers, and what names the others."""
    monkeypatch.setattr("convstore.cli.named.MOST_ROWS", 2)
    result = convstore("show", "3", "--uri", uri)
    assert result.exit_code == 1
    assert "the list only numbers its first 2 rows, not row 3; name the conv" in result.stderr


def test_a_filter_reads_the_list_in_several_pieces(
    uri: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It selects among all conversations of a page, of which the store lists a thousand at a time."""
    monkeypatch.setattr("convstore.cli.list_.MOST_ROWS", 2)
    found = document("list", "--uri", uri, "--failed")
    assert (found["covered"], found["next_page"]) == (3, None)


@pytest.mark.costly
@pytest.mark.parametrize("options", [(), ("--full",), ("--view",), ("--json", "--full")])
def test_hostile_text_is_shown_escaped(uri: Any, options: Any) -> None:
    """Terminal codes, right-to-left marks, surrogates, markup and lines of 5 MB are text."""
    shown = printed("show", "user_id=eve", "thread_id=three \x1b[2J", "--uri", uri, *options)
    assert "[bold]tags[/bold]:smile:" in "".join(shown.split())
    assert "\\u202ereversed" in shown
    assert len(shown) < (6_000_000 if {"--full", "--json"} & set(options) else 100_000)


@pytest.mark.costly
@pytest.mark.parametrize("width", [60, 80, 120])
def test_statistics_fit_the_terminal(uri: Any, width: int) -> None:
    """Counts, sizes, tokens and growth; the hostile conversation is one of three."""
    shown = printed("stats", "--uri", uri, width=width)
    assert max(map(len, shown.splitlines())) <= width
    assert re.search(r"^conversations +3$", shown, re.MULTILINE)
    for word in (
        "log documents",
        "large results",
        "saved by stubs",
        "in views of at most 32,000 each",
        "written",
    ):
        assert word in shown


def test_the_days_of_growth_have_bars_by_messages() -> None:
    """The last 14 days with messages; those before are one row."""
    days = [
        Growth(day=date(2026, 1, number), conversations=1, messages=100 * number, bytes=10)
        for number in range(1, 17)
    ]
    console = Console(file=io.StringIO(), width=80)
    console.print(_growth_table(days))
    _, earlier, *rows = console.file.getvalue().splitlines()
    assert earlier.split() == ["earlier", "2", "300", "20", "bytes"]
    assert [row.count("█") for row in (rows[0], rows[-1])] == [5, 30]
    assert len(rows) == 14


def test_json_keeps_its_letters(capsys: pytest.CaptureFixture[str]) -> None:
    """Only what steers a terminal, and what stdout cannot hold, is escaped; the document is the same."""
    write_json({"name": "Zoë 漢字 🙂 \u202e\x9b\ud800"})
    shown = capsys.readouterr().out
    assert shown == '{\n  "name": "Zoë 漢字 🙂 \\u202e\\u009b\\ud800"\n}\n'
    with io.TextIOWrapper(io.BytesIO(), encoding="latin-1") as terminal, redirect_stdout(terminal):
        write_json(json.loads(shown))
        terminal.seek(0)
        found = terminal.read()
    assert "Zoë \\u6f22" in found
    assert json.loads(found) == json.loads(shown)


def test_json_has_keys_that_no_encoding_has(capsys: pytest.CaptureFixture[str]) -> None:
    """A model may name an argument so; values beside it are as ever."""
    write_json({"calls": [{"\ud801": date(2026, 1, 1), 2: [b"x"]}]})
    assert json.loads(capsys.readouterr().out) == {
        "calls": [{"\ud801": "2026-01-01", "2": ["eA=="]}]
    }


def test_statistics_of_one_user_as_json(uri: Any) -> None:
    """Sums of this user alone, with the days of growth."""
    found = document("stats", "--uri", uri, "--scope", "user_id=ada")
    assert (found["conversations"], found["messages"], found["turns"]) == (2, 16, 4)
    assert 0 < found["saved_by_stubs"] < found["tokens"]
    assert found["bytes"]["entries"] > 0
    assert sum(day["messages"] for day in found["growth"]) == 16


def test_a_search_in_a_pipe_is_separated_by_tabs(uri: Any) -> None:
    """A row for each hit, whole; how much was searched is on stderr."""
    result = convstore(
        "search", "tide comes", "--uri", uri, "--scope", "thread_id=one", "--limit", "3", width=40
    )
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[1] for row in rows] == ["user_id=ada thread_id=one"] * 3
    assert all(
        re.fullmatch(r"[0-9a-f]{24}", row[0]) and re.fullmatch(r"20\d\d-.*Z", row[2])
        for row in rows
    )
    assert {row[4] for row in rows} <= {"tool", "ai", "human"}
    assert max(len(row[5]) for row in rows) > 40
    assert complaints(result) == "Searched 1 conversation.\n"
    assert convstore("show", rows[0][0], "--uri", uri).exit_code == 0


@pytest.mark.slow
def test_a_search_prints_hits_by_conversation(uri: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`search` prints hits by conversation, of one user or of all users.

    The first search of a long conversation without an index reports that it is incomplete. The next one finds the hit.
    """
    monkeypatch.setattr("convstore.cli.search.is_terminal", lambda: True)
    with MongoClient[dict[str, Any]](uri) as client:
        client.get_default_database()["search"].delete_many({})
    assert "Not searched whole: 1 conversation, " in printed(
        "search", "tags reversed", "--uri", uri, "--scope", "user_id=eve"
    )
    assert "bold" in printed("search", "tags reversed", "--uri", uri, "--scope", "user_id=eve")
    assert "No message matches" in printed(
        "search", "tags reversed", "--uri", uri, "--scope", "user_id=ada"
    )
    lines_of_ada = printed("search", "tide", "--uri", uri, "--scope", "user_id=ada").splitlines()
    assert lines_of_ada[0] in ("user_id=ada thread_id=one", "user_id=ada thread_id=two")
    found = document("search", "tags reversed", "--uri", uri, "--everything", "--limit", "5")
    assert [conversation["scope"]["user_id"] for conversation in found["conversations"]] == ["eve"]
    assert (found["searched"], found["incomplete"]) == (3, [])
    assert convstore("search", "tags", "--uri", uri).exit_code == 2


@pytest.mark.parametrize("command", ["list", "show", "stats"])
def test_nothing_is_written(uri: Any, command: str, server_uri: str) -> None:
    """A database that was not set up is an error, and stays as it is."""
    name = "look_bare"
    bare = f"{server_uri.partition('?')[0].rstrip('/')}/{name}?{server_uri.partition('?')[2]}"
    result = convstore(command, *(ADA if command == "show" else ()), "--uri", bare)
    assert result.exit_code == 1
    assert "convstore migrate" in result.stderr
    with MongoClient[dict[str, Any]](server_uri) as client:
        assert name not in client.list_database_names()


@each_case("command", COMMANDS)
def test_the_help_of_a_command_fits_80_columns(command: str) -> None:
    """Examples included, which take the address from the environment; options show names, not types."""
    shown = convstore(command, "-h").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert f"  convstore {command}" in shown
    assert not re.search(r" <\w", shown.partition("\nOptions:")[2])
    assert "--uri mongodb://" not in shown
    assert (
        command == "demo" or "\n    export CONVSTORE_URI=mongodb://localhost:27017/app\n" in shown
    )


def test_a_shell_completes_commands_and_options() -> None:
    """As the scripts of --show-completion ask for it."""
    for words, found in (("sh", "show"), ("show --wh", "--why")):
        asked = {"COMP_WORDS": f"convstore {words}", "COMP_CWORD": str(len(words.split()))}
        assert convstore(_CONVSTORE_COMPLETE="complete_bash", **asked).stdout.split() == [found]


def test_the_help_groups_the_commands() -> None:
    """To look, to move and to operate; each with its summary, whole."""
    shown = convstore("--help").stdout
    groups = re.findall(r"^(\w+):\n((?:  .+\n)+)", shown.partition("--help")[2], re.MULTILINE)
    assert [name for name, _ in groups] == ["Look", "Move", "Operate"]
    assert sorted(
        re.findall(r"^  (\w+)", "".join(rows for _, rows in groups), re.MULTILINE)
    ) == sorted(COMMANDS)
    assert "..." not in shown.partition("Look:")[2]
    assert shown == convstore("-h").stdout


@each_case(
    ("text", "escaped"),
    [
        ("a\r\nb", "a b"),
        ("\x00\x7f", r"\x00\x7f"),
        ("\U000e0001", r"\U000e0001"),
        ("naïve 漢字 🙂", "naïve 漢字 🙂"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, escaped: str) -> None:
    """plain() escapes unprintable characters and returns one line, or several lines with `lines=True`."""
    assert plain(text).replace("  ", " ") == escaped
    assert plain("a\tb\nc\x1b", lines=True) == "a b\nc\\x1b"


def test_a_pager_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch, uri: Any) -> None:
    """A pipe gets the text as it is; a terminal gets a pager, which ends by itself if all fits."""
    shown: list[str] = []
    monkeypatch.setattr("pydoc.pager", shown.append)
    monkeypatch.delenv("LESS", raising=False)
    printed("show", *ADA, "--uri", uri)
    assert shown == []
    terminal = screen()
    monkeypatch.setattr("convstore.cli.output.screen", lambda **_: terminal)
    terminal._force_terminal = True
    convstore("show", *ADA, "--uri", uri)
    assert "12 messages" in "".join(shown)


@pytest.mark.parametrize("width", [60, 120])
def test_progress_has_rate_and_time_left(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """On a terminal only, on one line of any width; hostile names are escaped."""
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=width, markup=False)
    monkeypatch.setattr("convstore.cli.progress.screen", lambda **_: terminal)
    with progress("\x1b[2Jchats.jsonl", 100) as advance:
        for position in range(0, 100, 10):
            advance(position, position, f"{position} conversations, {'many ' * 40}messages")
    frames = (
        re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.getvalue()).replace("\r", "\n").splitlines()
    )
    assert any(
        re.search(r" 90% (-|\d):..:.. [\d,.]+/s, 90 conversations, many", frame) for frame in frames
    )
    assert max(map(len, frames)) <= width
    assert "[2Jchats" not in shown.getvalue().replace("\\x1b[2J", "")


def test_progress_is_silent_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    """A log file gets no bar."""
    with progress("chats.jsonl", 100) as advance:
        advance(50, 1, "1 conversation")
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
async def test_items_are_shown_in_their_place(server_uri: str) -> None:
    """With kind and data, those of the page alone; a long one by its beginning."""
    with emptied_address(server_uri) as address:
        async with await ConversationStore.connect(address) as store:
            await store.setup()
            marks = [
                LogItem(kind=f"mark{number}", data={"x": [HOSTILE, "y" * 900]})
                for number in range(3)
            ]
            both = [HumanMessage("q", id="q"), marks[1], HumanMessage("then", id="then"), marks[2]]
            await store.conversation(user_id="ada", thread_id="one").append([marks[0], *both])
        shown = await asyncio.to_thread(printed, "show", *ADA, "--uri", address)
        assert re.findall("mark[0-9]|user  [a-z]+", shown) == [
            "mark0",
            "user  q",
            "mark1",
            "user  then",
            "mark2",
        ]
        assert "y" * 900 not in shown
        assert "y" * 900 in await asyncio.to_thread(
            printed, "show", *ADA, "--uri", address, "--full"
        )
        for page, kinds in ((["--limit", "1"], ["mark2"]), (["--before", "2"], ["mark0", "mark1"])):
            found = await asyncio.to_thread(document, "show", *ADA, "--uri", address, *page)
            assert [item["kind"] for item in found["items"]] == kinds


async def test_a_failure_of_a_sub_agent_is_one_of_its_caller(server_uri: str) -> None:
    """`--failed` keeps the caller's row with that of its sub-agent, and no row of others with sub-agents."""
    with emptied_address(server_uri) as address:
        async with await ConversationStore.connect(address) as store:
            await store.setup()
            for thread_id, status in (("one", "error"), ("two", "success")):
                chat = store.conversation(user_id="ada", thread_id=thread_id)
                await chat.append({"role": "user", "content": "Plan my garden."})
                calling = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c"}])
                result = ToolMessage("Beans.", tool_call_id="c", status=status)
                await chat.child("ai 1", "call").append([calling, result])
        found = await asyncio.to_thread(document, "list", "--uri", address, "--failed")
        listed = [*found["conversations"], *found["children"]]
        assert [info["scope"]["thread_id"] for info in listed] == ["one", "one"]
        assert found["covered"] == 2


@pytest.mark.slow
async def test_sub_agents_are_shown_below_their_caller(server_uri: str) -> None:
    """In the list with their states, after the messages, and by the scope that both print; a source is found, too."""
    with emptied_address(server_uri) as address:
        async with await ConversationStore.connect(address) as store:
            await store.setup()
            chat = store.conversation(user_id="ada", thread_id="one")
            await chat.append({"role": "user", "content": "Plan my garden."})
            child = chat.child("ai 1", "call")
            await child.append(rag_turn("When do beans grow?"))
            counts: Any = {"input_tokens": 1_000, "output_tokens": 200, "total_tokens": 1_200}
            said = AIMessage("In May.", usage_metadata=counts)
            await chat.append(said.model_copy())
            said.response_metadata = {"model_name": "m"}
            await child.append(said)
        name = ["user_id=ada", "thread_id=one", "path=ai%201:call"]
        listed = await asyncio.to_thread(printed, "list", "--uri", address)
        rows = [line.split("\t") for line in listed.splitlines()]
        assert [(row[1], row[8]) for row in rows] == [
            (" ".join(name[:2]), "Plan my garden."),
            (" ".join(name), "When do beans grow?"),
        ]
        assert " ".join(name) in await asyncio.to_thread(
            printed, "show", *name[:2], "--uri", address
        )
        for words in (name, ["1.1"], [listed.splitlines()[1].split("\t")[0]]):
            assert "When do beans grow?" in await asyncio.to_thread(
                printed, "show", *words, "--uri", address
            )
        source = await asyncio.to_thread(
            printed, "show", *name[:2], "--source", "2", "--uri", address
        )
        assert "Passage 2 on grow" in source
        found = await asyncio.to_thread(document, "list", "--uri", address)
        assert [len(found[key]) for key in ("conversations", "children")] == [1, 1]
        async with await ConversationStore.connect(address) as store:
            child = store.conversation(user_id="ada", thread_id="one").child("ai 1", "call")
            async with await child.turn("pay", human="Pay.") as turn:
                await turn.append(
                    AIMessage("", tool_calls=[{"name": "pay", "args": {}, "id": "p"}])
                )
                await turn.wait_for(turn.open_calls[0])
        listed = await asyncio.to_thread(printed, "list", "--uri", address)
        assert listed.splitlines()[1].split("\t")[3] == "waits: pay"
        priced = ["show", *name[:2], "--uri", address, "--price", "m=3,15"]
        found = await asyncio.to_thread(document, *priced)
        assert (found["billed"]["input_tokens"], found["billed"]["output_tokens"]) == (2_000, 400)
        assert found["billed"]["cost"] == pytest.approx(0.006)
        billed = "Billed: 2,000 input, 400 output, cost 0.0060, 1,200 tokens without a price."
        assert billed in await asyncio.to_thread(printed, *priced)
        assert "Billed: 2,000 input, 400 output." in await asyncio.to_thread(printed, *priced[:-2])
