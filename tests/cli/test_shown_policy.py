"""The policy under which commands show views: that of the newest stamp, or the one that ``--policy`` names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest
import typer
from command_line import complaints, convstore, emptied_address
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from test_inspect import browsed

from convstore import ConversationStore, HistoryPolicy
from convstore.cli.options import read_policy
from convstore.values.stamps import RequestParts

ADA = ("user_id=ada", "thread_id=one")
SMALL = HistoryPolicy(max_tokens=300, stub_tools="never")


@pytest.fixture(scope="module")
def uri(server_uri: str) -> Iterator[str]:
    """The address of a store whose application loads small views; in Eve's conversation a call failed."""

    async def fill(address: str) -> None:
        async with await ConversationStore.connect(address) as store:
            await store.setup()
            chat = store.conversation(user_id="ada", thread_id="one")
            for number in range(6):
                await chat.append(HumanMessage(f"Question {number}? {'Please explain. ' * 12}"))
                await chat.append(AIMessage("Yes."), stamp=(await chat.load_history(SMALL)).stamp)
            calls = [{"name": "look_up", "args": {}, "id": "c"}]
            failed = ToolMessage("Timeout", tool_call_id="c", status="error", id="failed-result")
            await store.conversation(user_id="eve", thread_id="one").append(
                [HumanMessage("Q?"), AIMessage("", tool_calls=calls), failed, AIMessage("Sorry.")]
            )

    with emptied_address(server_uri) as address:
        asyncio.run(fill(address))
        yield address


def shown(*arguments: str) -> str:
    """Run a command that must succeed, and return its output."""
    result = convstore(*arguments)
    assert (result.exit_code, complaints(result)) == (0, ""), result.output
    return result.stdout


@pytest.mark.slow
def test_the_next_view_is_the_one_that_the_application_loads(uri: str) -> None:
    """`show --view` applies the policy of the newest stamp, and names it."""
    text = shown("show", *ADA, "--uri", uri, "--view")
    assert "Policy: max_tokens=300,stub_tools=never." in " ".join(text.split())
    found = json.loads(shown("show", *ADA, "--uri", uri, "--view", "--json"))
    assert found["tokens"] <= 300 < found["report"]["tokens_before"]
    assert (found["policy"]["max_tokens"], found["policy"]["stub_tools"]) == (300, "never")
    wide = json.loads(
        shown("show", "user_id=eve", "thread_id=one", "--uri", uri, "--view", "--json")
    )
    assert wide["policy"]["max_tokens"] == 32_000


def test_what_broke_the_prompt_cache_is_said_for_each_call(uri: str) -> None:
    """With the size of each call; --limit says how many messages are looked at. Without a stamp it is not known."""
    found = json.loads(shown("show", *ADA, "--uri", uri, "--why", "--json"))["calls"]
    assert [call["ordinal"] for call in found] == [2, 4, 6, 8, 10, 12, None]
    assert all(0 < call["tokens"] <= 300 for call in found)
    assert [call["cache"] for call in found[:2]] == ["first call", "held"]
    causes = {call["ordinal"]: call["cause"] for call in found if call["cache"] == "broken"}
    assert set(causes.values()) == {"turns left out"}
    for call in found:
        assert (call["held"] is None) == (call["cache"] == "first call")
        assert call["held"] is None or 0 <= call["held"] < call["tokens"]
    text = shown("show", *ADA, "--uri", uri, "--why", "--limit", "6")
    rows = text.splitlines()[-4:]
    assert [row.split()[:3] for row in rows[:3]] == [
        ["for", "message", f"{at}"] for at in (8, 10, 12)
    ]
    assert rows[3].startswith("the next one")
    assert [row.split()[4] for row in rows[:3]] == [f"{call['held']:,}" for call in found[3:6]]
    for call, row in zip(found[3:], rows, strict=True):
        assert row.rstrip().endswith(f"broken: {call['cause']}" if call["cause"] else "held")
    eve = json.loads(shown("show", "user_id=eve", "thread_id=one", "--uri", uri, "--why", "--json"))
    assert [call["cache"] for call in eve["calls"]] == ["first call", "not known", "not known"]
    assert "The system prompt and the tools of these calls are not known" in text
    assert eve["is_prompt_known"] is False
    assert convstore("show", *ADA, "--uri", uri, "--why", "--view").exit_code == 2


def test_calls_whose_prompt_is_known_are_not_said_to_lack_it(server_uri: str) -> None:
    """Their stamps have its digest, as those of the middleware do."""

    async def fill(address: str) -> None:
        async with await ConversationStore.connect(address) as store:
            await store.setup()
            chat = store.conversation(user_id="ada", thread_id="one")
            await chat.append(HumanMessage("Q?"))
            stamp = (await chat.load_history()).stamp
            known = stamp.model_copy(update={"beside": RequestParts("digest", 90, 20)})
            await chat.append(AIMessage("A."), stamp=known)

    with emptied_address(server_uri) as address:
        asyncio.run(fill(address))
        assert "not known" not in shown("show", *ADA, "--uri", address, "--why")
        found = json.loads(shown("show", *ADA, "--uri", address, "--why", "--json"))
        assert found["is_prompt_known"] is True


def test_a_moment_without_a_stamp_has_the_same_policy(uri: str) -> None:
    """A stamped one keeps its own, and says that it is exact."""
    assert (
        json.loads(shown("show", *ADA, "--uri", uri, "--at", "11", "--json"))["policy"][
            "max_tokens"
        ]
        == 300
    )
    assert json.loads(shown("show", *ADA, "--uri", uri, "--at", "12", "--json"))["match"] == "exact"


@pytest.mark.costly
@pytest.mark.parametrize(
    "text", ["max_tokens=200,never_stub=a+b", '{"max_tokens": 200, "never_stub": ["a", "b"]}']
)
def test_another_policy_can_be_named(uri: str, text: str) -> None:
    """`--policy` takes pairs or JSON for the next view and for a past one. The output names the policy as pairs."""
    for moment in (["--view"], ["--at", "12"]):
        found = shown("show", *ADA, "--uri", uri, *moment, "--policy", text)
        assert "Policy: max_tokens=200,never_stub=a+b." in " ".join(found.split())
        assert "Exactly" not in found


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens",
        "max_tokens=0",
        "max_token=5",
        "max_tokens=x",
        "max_tokens=1,max_tokens=2",
        "",
        "{",
        "[1]",
    ],
)
def test_a_policy_that_is_none_is_a_usage_error(uri: str, text: str) -> None:
    """An invalid policy is a usage error of `show` and of `inspect`."""
    for command in (["show", *ADA, "--view"], ["inspect", "--no-browser"]):
        result = convstore(*command, "--uri", uri, "--policy", text)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--policy" in result.stderr
    with pytest.raises(typer.BadParameter):
        read_policy(text)


def test_a_policy_is_for_views(uri: str) -> None:
    """The log has none."""
    assert convstore("show", *ADA, "--uri", uri, "--policy", "max_tokens=9").exit_code == 2


@pytest.mark.slow
def test_the_inspector_has_the_policy_of_the_command_line(uri: str) -> None:
    """By default that of the newest stamp."""
    pages = list[str]()

    def open_conversation(client: httpx.Client, address: str) -> None:
        listing = client.get(address)
        path = listing.text.partition('href="/c/')[2].partition('"')[0]
        pages.append(client.get(listing.url.join(f"/c/{path}")).text)

    for options in ([], ["--policy", "max_tokens=90"]):
        browsed(open_conversation, "inspect", "--uri", uri, "--scope", "user_id=ada", *options)
    assert "as in the last call" in pages[0]
    assert "max_tokens=90, chosen for" in pages[1]


def test_a_failed_result_is_marked(uri: str) -> None:
    """Next to its id, in the log and in the view."""
    for options in ([], ["--view"]):
        assert "failed-result  failed\n" in shown(
            "show", "user_id=eve", "thread_id=one", "--uri", uri, *options
        )


@pytest.mark.slow
def test_statistics_obey_the_budget(uri: str) -> None:
    """A view that would exceed it counts with the budget; the log is not read for it."""
    full = json.loads(shown("stats", "--uri", uri, "--json", "--max-tokens", "32000"))
    small = json.loads(shown("stats", "--uri", uri, "--json", "--max-tokens", "100"))
    assert full["saved_by_budget"] == 0
    eve = json.loads(shown("stats", "--uri", uri, "--json", "--scope", "user_id=eve"))
    in_views = small["tokens"] - small["saved_by_stubs"] - small["saved_by_budget"]
    assert in_views == 100 + eve["tokens"] - eve["saved_by_stubs"]
    assert "in views of at most 100 each, about" in shown(
        "stats", "--uri", uri, "--max-tokens", "100"
    )


@pytest.mark.slow
def test_statistics_take_the_budget_of_the_stamps(uri: str) -> None:
    """They name its origin; CONVSTORE_POLICY and --max-tokens come first."""
    found = json.loads(shown("stats", "--uri", uri, "--json"))
    assert (found["max_tokens"], found["max_tokens_from"]) == (300, "stamp")
    lines = shown("stats", "--uri", uri).splitlines()
    assert (
        lines[lines.index(next(line for line in lines if line.startswith("The budget"))) - 1] == ""
    )
    text = " ".join(" ".join(lines).split())
    assert "in views of at most 300 each, about" in text
    assert "that of the newest answer with a stamp" in text
    eve = " ".join(shown("stats", "--uri", uri, "--scope", "user_id=eve").split())
    assert "at most 32,000 each" in eve
    assert "no stamp, so the budget of a view is the default" in eve
    result = convstore("stats", "--uri", uri, "--json", CONVSTORE_POLICY="max_tokens=500")
    assert json.loads(result.stdout)["max_tokens_from"] == "environment"
    assert (
        json.loads(shown("stats", "--uri", uri, "--json", "--max-tokens", "9"))["max_tokens_from"]
        == "option"
    )


@pytest.mark.slow
async def test_the_two_counts_of_messages_are_explained(server_uri: str) -> None:
    """Rewound messages were written, and are not stored messages of a conversation any more."""
    with emptied_address(server_uri) as address:
        async with await ConversationStore.connect(address) as store:
            await store.setup()
            chat = store.conversation(user_id="ada", thread_id="one")
            await chat.append([HumanMessage("Q?", id="q"), AIMessage("A.")])
            assert "What was written includes" not in await asyncio.to_thread(
                shown, "stats", "--uri", address
            )
            await chat.rewind(before_id="q")
        text = " ".join((await asyncio.to_thread(shown, "stats", "--uri", address)).split())
    assert "What was written includes rewound messages and those of sub-agents" in text
