"""Random sequences of turns, other answers and edits, compared with a model that keeps lists of texts."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage
from mongomock_motor import AsyncMongoMockClient
from properties import soaked

from convstore import Conversation, ConversationStore
from convstore.conversation.turn import TurnSession
from convstore.log.branch import Branch
from convstore.log.entry import Totals
from convstore.log.facts.event import TurnEvent
from convstore.transfer import export_conversations, import_conversations, read_file


class Walk:
    """A conversation, and what it should show: `shown` now, `left` by place and variant when each was active last.

    `before` is what each change took away, for undos.
    """

    def __init__(self, chat: Conversation, seed: int, *, rewinds: bool = False) -> None:
        self.chat, self.dice, self.number, self.rewinds = chat, random.Random(seed), 0, rewinds
        self.shown: list[str] = []
        self.left: dict[tuple[str, str], list[str]] = {}
        self.place: dict[str, str] = {}
        self.firsts: dict[str, dict[str, str]] = {}
        self.before: list[list[str]] = []

    def new(self, kind: str) -> str:
        """A text that is also an id; questions begin with "q"."""
        self.number += 1
        return f"{kind}{self.number}"

    def question(self) -> tuple[int, str]:
        """Index and text of a question that is shown."""
        return self.dice.choice([pair for pair in enumerate(self.shown) if pair[1].startswith("q")])

    def keep(self) -> None:
        """Note what is shown for the variants that are active now; none is where a question stands alone."""
        for asked, answer in pairwise(self.shown):
            if asked.startswith("q"):
                place = self.place[asked]
                others = {first: variant for variant, first in self.firsts[place].items()}
                self.left[place, others.get(answer, asked)] = list(self.shown)
        self.before.append(list(self.shown))

    async def answered(self, turn: TurnSession) -> list[str]:
        """Append one to three replies."""
        said = list[str]()
        for _ in range(self.dice.randrange(3)):
            text = self.new("c")
            await turn.append(
                AIMessage(text, id=text, tool_calls=[{"name": "t", "args": {}, "id": text}])
            )
            await turn.add_result(turn.open_calls[0], result := self.new("r"))
            said += [text, result]
        text = self.new("a")
        await turn.append(AIMessage(text, id=text))
        return [*said, text]

    async def ask(self) -> None:
        """Ask a question."""
        text = self.new("q")
        self.place[text], self.firsts[text] = text, {text: text}
        async with await self.chat.turn(text, human=text) as turn:
            self.shown += [text, *await self.answered(turn)]

    async def note(self) -> None:
        """Append outside of turns."""
        self.shown.append(self.new("n"))
        await self.chat.append(AIMessage(self.shown[-1], id=self.shown[-1]))

    async def regenerate(self) -> None:
        """Make another answer to any question."""
        (index, asked), key = self.question(), self.new("k")
        async with await self.chat.turn(asked, regenerate=key) as turn:
            seen = await viewed(turn)
            assert seen == self.shown[: index + 1]
            said = await self.answered(turn)
        self.keep()
        self.firsts[self.place[asked]][key], self.shown = said[0], [*seen, *said]

    async def edit(self) -> None:
        """Ask another question in place of any."""
        (index, old), text = self.question(), self.new("q")
        async with await self.chat.turn(text, human=text, instead_of=old) as turn:
            seen = await viewed(turn)
            assert seen == [*self.shown[:index], text]
            said = await self.answered(turn)
        self.keep()
        place = self.place[text] = self.place[old]
        self.firsts[place][text], self.shown = text, [*seen, *said]

    async def break_off(self) -> None:
        """Leave another answer unfinished."""
        async with await self.chat.turn(self.question()[1], regenerate=self.new("k")) as turn:
            text = self.new("c")
            await turn.append(
                AIMessage(text, id=text, tool_calls=[{"name": "t", "args": {}, "id": text}])
            )

    async def activate(self) -> None:
        """Switch to any variant."""
        asked = self.question()[1]
        variant = self.dice.choice(await self.chat.variants(asked))
        self.keep()
        await self.chat.activate(variant)
        self.shown = list(self.left[self.place[asked], variant.variant_id])
        if self.shown == self.before[-1]:
            self.before.pop()

    async def rewind(self) -> None:
        """Rewind any message but the first one and the results, with all after it."""
        texts = [(index, text) for index, text in enumerate(self.shown) if index and text[0] != "r"]
        if texts:
            index, text = self.dice.choice(texts)
            self.keep()
            assert await self.chat.rewind(before_id=text) == len(self.shown) - index
            del self.shown[index:]

    async def undo(self) -> None:
        """Undo the last change that was not undone."""
        before = self.before
        self.before = [*before]
        self.keep()
        self.before = before
        await self.chat.undo_rewind()
        if self.before:
            self.shown = self.before.pop()

    async def step(self) -> None:
        """Do one of these, and compare what readers see."""
        steps = [self.ask, self.note, self.regenerate, self.edit, self.break_off, self.activate]
        if self.rewinds:
            steps += [self.rewind, self.undo, self.activate]
        await self.dice.choice(steps)()
        assert await shown(self.chat) == self.shown
        assert [
            message.text async for turn in self.chat.turns() for message in turn.messages
        ] == self.shown
        assert (await self.chat.info()).message_count == len(self.shown)


async def viewed(turn: TurnSession) -> list[str]:
    """The texts that a session's view has."""
    return [str(message.text) for message in (await turn.load_history()).messages]


async def shown(chat: Conversation) -> list[str]:
    """The texts that a conversation lists."""
    return [
        str(message.message.text) for message in await chat.list_messages(limit=1_000, full=True)
    ]


async def test_a_variant_is_continued_with_another_counter() -> None:
    """Sizes of its place are counted again, so that the totals are those of the active messages."""
    database = AsyncMongoMockClient()["app"]
    first = ConversationStore(database)
    await first.setup()
    other = ConversationStore(
        database, token_counter=lambda messages: 1_000 * len(messages), token_counter_name="n"
    )
    chats = [store.conversation(user_id="ada", thread_id="t") for store in (first, other)]
    async with await chats[0].turn("q", human="Q") as turn:
        await turn.append(AIMessage("A"))
    for chat in chats:
        async with await chat.turn("q", regenerate="k") as turn:
            assert turn.is_running
            if chat is chats[1]:
                await turn.append(AIMessage("B"))
    assert (await chats[1].info()).tokens == 2_000
    async with await chats[0].turn("q", regenerate="l"):
        assert (await first.verify()).findings == ()


def test_messages_of_two_variants_have_no_common_id() -> None:
    """Two variants have different keys, whatever characters the ids of turns and variants contain."""
    events = [
        TurnEvent("append", "a", first_turn="a", variant="b\nc"),
        TurnEvent("append", "a\nb", variant="c"),
    ]
    assert len({Branch(event, 0, 0, (), Totals()).key for event in events}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("rewinds", [False, True])
@pytest.mark.parametrize("seed", soaked(range(6), first=2))
async def test_any_sequence_of_variants_shows_what_was_left(
    seed: int, tmp_path: Path, *, rewinds: bool
) -> None:
    """Views, listings and counts are those of the active ones, verify finds nothing, and an archive shows the same."""
    database = AsyncMongoMockClient()["app"]
    store = ConversationStore(database)
    await store.setup()
    walk = Walk(store.conversation(user_id="ada", thread_id="t"), seed, rewinds=rewinds)
    await walk.ask()
    for _ in range(8 if seed == 0 else 30):
        await walk.step()
    other = ConversationStore(database).conversation(**walk.chat.scope)
    assert await shown(other) == walk.shown
    assert (await store.verify()).findings == ()
    with (tmp_path / "archive").open("wb") as file:
        await export_conversations(store, file.write)
    imported = ConversationStore(AsyncMongoMockClient()["app"])
    await imported.setup()
    await import_conversations(imported, read_file(tmp_path / "archive"))
    assert await shown(imported.conversation(**walk.chat.scope)) == walk.shown
