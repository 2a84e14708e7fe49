"""Counts are kept under the name of what counted them; a store with another counter counts anew."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import pytest
from counting import STANDING, Commands
from fixture_types import Client
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately

from convstore import Conversation, ConversationStore, HistoryPolicy, InvalidInputError
from convstore.messages.tokens import TokenCounter, approximate_tokens, counter_name, named_counter
from convstore.testing import rag_turn
from convstore.types import MediaFigures

Stores = Callable[..., ConversationStore]


def characters(messages: Sequence[BaseMessage]) -> int:
    """A counter that gives other numbers than the default one."""
    return sum(len(message.text) + 10 for message in messages)


def words(messages: Sequence[BaseMessage]) -> int:
    """A counter whose counts of a text do not follow from its beginning and end."""
    return sum(len(message.text.split()) for message in messages)


@pytest.fixture
async def stores(client: Client, database_name: str) -> AsyncIterator[Stores]:
    """Makes stores on one database, each as a process of its own would; none builds an index while a test counts."""
    made: list[ConversationStore] = []

    def make(**options: Any) -> ConversationStore:
        made.append(
            ConversationStore(client[database_name], clock=STANDING, search_index=False, **options)
        )
        return made[-1]

    await make().setup()
    yield make
    for store in made:
        await store.close()


async def write(chat: Conversation, turns: range, size: int = 400) -> None:
    """Turns without payloads, so that counting them anew is exact."""
    for number in turns:
        await chat.append(
            [HumanMessage(f"Question {number}", id=f"h{number}"), AIMessage("so " * (size // 3))]
        )


@pytest.mark.slow
async def test_a_view_is_counted_by_the_store_that_loads_it(
    stores: Stores, scope: dict[str, str]
) -> None:
    """`tokens` is the size by the loading store's counter and within the budget, whichever store wrote the messages."""
    await write(stores().conversation(**scope), range(30))
    other = stores(token_counter=characters, policy=HistoryPolicy(max_tokens=5_000)).conversation(
        **scope
    )
    history = await other.load_history()
    assert history.tokens == characters(history.messages) <= 5_000
    assert history.report.left_out_turns
    ours = await stores().conversation(**scope).load_history()
    assert ours.tokens == approximate_tokens(ours.messages)
    assert not ours.report.left_out_turns


async def test_a_result_whose_payload_was_read_is_counted_itself(
    stores: Stores, scope: dict[str, str]
) -> None:
    """A recount estimates long results without their payloads; a view that shows one whole counts its text."""
    call = {"name": "read", "args": {}, "id": "c"}
    text = "x" * 6_000 + " a" * 30_000 + "y" * 6_000
    messages = [
        HumanMessage("q"),
        AIMessage("", tool_calls=[call]),
        ToolMessage(text, tool_call_id="c", name="read"),
    ]
    await stores().conversation(**scope).append(messages)
    other = stores(token_counter=words, policy=HistoryPolicy(max_tokens=8_000)).conversation(
        **scope
    )
    history = await other.load_history()
    assert history.tokens == words(history.messages) > 30_000
    assert history.report.over_budget


async def test_a_message_without_a_payload_is_recounted_whole(
    stores: Stores, scope: dict[str, str]
) -> None:
    """A result that is shorter than with its suffix, and an image, which views show whole, are not estimated."""
    image = {"type": "image_url", "image_url": {"url": "https://example.org/orca.png"}}
    call = {"name": "find", "args": {}, "id": "c"}
    found = ToolMessage("Two.", tool_call_id="c", name="find", artifact=[("Orca", {"title": "1"})])
    messages = [
        HumanMessage(["What is it?", image]),
        AIMessage("", tool_calls=[call]),
        found,
        AIMessage("An orca."),
    ]
    await stores().conversation(**scope).append(messages)
    policy = HistoryPolicy(media="never", stub_tools="never")
    other = stores(token_counter=count_tokens_approximately, policy=policy).conversation(**scope)
    history = await other.load_history()
    assert history.tokens == sum(
        count_tokens_approximately([message]) for message in history.messages
    )
    assert [message.content for message in history.messages] == [
        message.content for message in messages
    ]


@pytest.mark.slow
async def test_the_first_append_of_another_counter_recounts_the_log(
    stores: Stores, scope: dict[str, str]
) -> None:
    """Afterwards totals are by the new counter alone, exact to the token, and again after a change back."""
    default, other = (
        stores().conversation(**scope),
        stores(token_counter=characters).conversation(**scope),
    )
    for number, chat, counter in [
        (0, default, approximate_tokens),
        (1, other, characters),
        (2, default, None),
    ]:
        await write(chat, range(number * 10, number * 10 + 10))
        log = [message async for message in chat.messages(rewound=True)]
        assert (await chat.info()).tokens == (counter or approximate_tokens)(log)


async def test_a_log_is_recounted_once(
    stores: Stores, scope: dict[str, str], commands: Commands
) -> None:
    """The first load or append reads the log; later ones cost what they always do."""
    await write(stores().conversation(**scope), range(10))
    other = stores(token_counter=characters).conversation(**scope)
    with commands.counted():
        await other.load_history()
    assert commands.names.count("find") <= 4
    with commands.counted():
        await write(other, range(10, 11))
    assert "find" not in commands.names
    with commands.counted():
        await write(other, range(11, 12))
    assert commands.names == ["insert"]
    with commands.counted():
        await other.load_history()
    assert commands.names == ["find"]


@pytest.mark.slow
async def test_views_of_a_log_of_two_counters_are_stable(
    stores: Stores, scope: dict[str, str]
) -> None:
    """Every process comes to the same view, and most views begin with the one before: the budget cuts in steps."""
    policy = HistoryPolicy(max_tokens=6_000)
    await write(stores().conversation(**scope), range(40))
    warm = stores(token_counter=characters).conversation(**scope)
    before, cuts = (await warm.load_history(policy)).messages, 0
    for number in range(40, 80):
        await write(warm, range(number, number + 1))
        history = await warm.load_history(policy)
        cold = await stores(token_counter=characters).conversation(**scope).load_history(policy)
        assert history.messages == cold.messages
        assert history.tokens == characters(history.messages) <= 6_000
        cuts += history.messages[: len(before)] != before
        before = history.messages
    assert cuts <= 40 * 420 // 1_500 + 1  # at least a quarter of the budget leaves at once


@pytest.mark.slow
async def test_views_after_a_summary_of_another_counter_are_equal_in_every_store(
    stores: Stores, scope: dict[str, str]
) -> None:
    """Sizes up to the summary are by the old counter, those after it by the new one: warm and cold still agree."""

    async def short(messages: Sequence[BaseMessage], summary: str | None) -> str:
        return "short"

    policy = HistoryPolicy(max_tokens=2_000)
    old = stores(token_counter=characters, summarizer=short).conversation(**scope)
    await write(old, range(50))
    assert (await old.compact()).status == "done"
    new = stores().conversation(**scope)
    for number in range(50, 90):
        await write(new, range(number, number + 1))
        warm = await new.load_history(policy)
        if number % 4 == 3:
            cold = await stores().conversation(**scope).load_history(policy)
            assert warm.messages == cold.messages
    assert cold.tokens > 1_000


@pytest.mark.slow
async def test_rewinds_keep_the_sums_of_two_counters_right(
    stores: Stores, scope: dict[str, str]
) -> None:
    """A rewind into what another counter wrote, then an append: totals are those of what is active."""
    default, other = (
        stores().conversation(**scope),
        stores(token_counter=characters).conversation(**scope),
    )
    await write(default, range(4))
    await write(other, range(4, 8))
    for point, chat, counter in [("h6", default, approximate_tokens), ("h2", other, characters)]:
        await chat.rewind(before_id=point)
        await write(chat, range(int(point[1:]) * 100, int(point[1:]) * 100 + 2))
        active = [message async for turn in chat.turns() for message in turn.messages]
        assert (await chat.info()).tokens == counter(active)
    await default.undo_rewind()
    await write(default, range(900, 901))
    active = [message async for turn in default.turns() for message in turn.messages]
    assert (await default.info()).tokens == approximate_tokens(active)
    await default.store.close()
    await other.store.close()
    assert (await stores().verify(**scope)).findings == ()


async def test_what_payloads_hold_is_estimated(stores: Stores, scope: dict[str, str]) -> None:
    """Counting anew reads no payload: a hidden part is scaled as the shown one is."""
    await stores().conversation(**scope).append(rag_turn("What do orcas eat?"))
    other = stores(token_counter=characters).conversation(**scope)
    await write(other, range(1))
    log = [message async for message in other.messages(rewound=True)]
    assert (await other.info()).tokens == pytest.approx(characters(log), rel=0.5)


async def test_other_figures_of_media_need_no_payload(
    stores: Stores, scope: dict[str, str]
) -> None:
    """Entries store what the figures count by: pages and pixels."""
    page = b"<< /Type /Page /Font 1 0 R >>"
    pdf = b64encode(b"%PDF-1.4\n" + page * 14 + bytes(30_000)).decode()
    question = [{"type": "text", "text": "Who signed?"}, {"type": "file", "base64": pdf}]
    message = HumanMessage(question)
    default = stores().conversation(**scope)
    await default.append(message)
    assert (await default.info()).tokens == approximate_tokens([message])
    counter = partial(approximate_tokens, media=MediaFigures.named("gpt-5"))
    other = stores(token_counter=counter).conversation(**scope)
    await write(other, range(1))
    log = [message async for message in other.messages()]
    # a placeholder more
    assert 0 <= (await other.info()).tokens - counter(log) < 60
    history = await other.load_history()
    assert history.tokens == counter(history.messages)


def test_names_of_counters() -> None:
    """Functions by module and name, models by their own, anything by the name that it is given."""
    model = FakeListChatModel(responses=["x"])
    bound = partial(characters, *[1], b="x")  # type: ignore[call-arg]
    assert counter_name(bound) == "test_token_counters.characters(1, b='x')"
    object.__setattr__(model, "model_name", "fake-2")
    assert counter_name(approximate_tokens) == "approximate"
    assert counter_name(characters) == "test_token_counters.characters"
    assert counter_name(partial(characters)) == "test_token_counters.characters"
    assert counter_name(model.get_num_tokens_from_messages).endswith("FakeListChatModel:fake-2")
    assert named_counter(characters, "gpt-5").name == "gpt-5"


class Counts:
    """A counter that is an object."""

    def __call__(self, messages: Sequence[BaseMessage]) -> int:
        """Return the number of messages."""
        return len(messages)


def closure(factor: int) -> TokenCounter:
    """A counter that others like it share their name with."""
    return lambda messages: factor * len(messages)


def test_counters_that_count_otherwise_have_other_names() -> None:
    """The arguments of a partial are part of its name, at any length."""
    long = ["x" * 500 + end for end in "ab"]
    names = [counter_name(partial(characters, scale)) for scale in (1.0, 8.0, *long)]
    assert len(set(names)) == 4
    assert max(map(len, names)) <= 200


@pytest.mark.parametrize(
    "counter",
    [
        lambda _messages: 1,
        closure(2),
        partial(closure(2)),
        Counts(),
        Counts().__call__,
        partial(characters, Counts()),
        FakeListChatModel(responses=["x"]).get_num_tokens_from_messages,
    ],
)
def test_a_counter_without_a_name_of_its_own_needs_one(
    counter: Any, client: Client, database_name: str
) -> None:
    """A counter whose name could belong to another counter is refused unless the store is given a name for it."""
    with pytest.raises(InvalidInputError, match="pass token_counter_name="):
        ConversationStore(client[database_name], token_counter=counter)
    assert ConversationStore(client[database_name], token_counter=counter, token_counter_name="a")


@pytest.mark.parametrize("name", ["", 5, "x" * 201, "\ud800"])
def test_a_name_is_a_short_text(name: int | str, client: Client, database_name: str) -> None:
    """Refused when the store is made."""
    with pytest.raises(InvalidInputError, match="name of a token counter"):
        ConversationStore(client[database_name], token_counter_name=name)


async def test_a_rewind_of_all_that_another_counter_wrote_keeps_the_sums_right(
    stores: Stores, scope: dict[str, str]
) -> None:
    """Messages before its first entry were recounted with it, and have its counter's name."""
    default, other = (
        stores().conversation(**scope),
        stores(token_counter=characters).conversation(**scope),
    )
    await write(default, range(4))
    await write(other, range(4, 5))
    await other.rewind(before_id="h4")
    await write(default, range(900, 901))
    active = [message async for turn in default.turns() for message in turn.messages]
    assert (await default.info()).tokens == approximate_tokens(active)


async def test_a_counter_that_fails_refuses_no_append() -> None:
    """Anthropic's counter refuses a lone result: such a message has an estimated size, and the report says why."""

    def of_anthropic(messages: Sequence[BaseMessage]) -> int:
        if messages[0].type == "tool":
            raise ConnectionError("secret")
        return 10

    async with await ConversationStore.connect(
        "memory://", token_counter=of_anthropic, token_counter_name="mine"
    ) as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        await chat.append(HumanMessage("Seals?"))
        call = {"name": "look", "args": {}, "id": "c1"}
        result = ToolMessage("Seals do.", tool_call_id="c1")
        await chat.append([AIMessage("", tool_calls=[call]), result])
        history = await chat.load_history()
        assert history.report.counter_error == "ConnectionError"
        assert history.tokens == 20 + approximate_tokens([result])


def test_a_counter_is_a_plain_function() -> None:
    """A coroutine function would give no number: each count would be an estimate."""

    async def awaited(messages: Sequence[BaseMessage]) -> int:
        return characters(messages)

    wrong: Any
    for wrong in (awaited, 4, None):
        with pytest.raises(InvalidInputError, match="token_counter must be a function"):
            named_counter(wrong)
