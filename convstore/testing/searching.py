"""Tests of search in one and in all conversations: every active message is found by its words, no other user's."""

from __future__ import annotations

import re
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.conversation import Conversation
from convstore.exceptions import InvalidInputError, InvalidScopeError
from convstore.integration import host_of
from convstore.store import ConversationStore
from convstore.testing.fixtures import NewStore
from convstore.testing.samples import new_id, rag_turn

__all__ = ["SearchContract"]

_FILLER = "The weather on the island stayed calm for the whole week. "


async def _said(store: ConversationStore, user: str, thread: str, *texts: str) -> None:
    chat = store.conversation(user_id=user, thread_id=thread)
    for text in texts:
        await chat.append([HumanMessage(text, id=new_id()), AIMessage("I see.", id=new_id())])


async def _seal_all(store: ConversationStore, user: str) -> None:
    sealer = (await host_of(store).services()).sealer
    for conversation in (await store.list_conversations(user_id=user)).conversations:
        await sealer.seal(tuple((key, conversation.scope[key]) for key in store.scope_keys))


def _turn_with_sources() -> list[BaseMessage]:
    found = [
        Document(
            _FILLER * 40 + "Narwhals dive deepest.",
            metadata={"title": "Arctic", "url": "https://example.org/tusk"},
        ),
        Document(
            _FILLER * 40 + "Belugas whistle.",
            metadata={"title": "Canaries of the sea", "author": "Okonkwo"},
        ),
    ]
    call = {"name": "lookup", "args": {"region": "Svalbard", "order": 47_110_815}, "id": "call-1"}
    return [
        SystemMessage("You are a zoologist.", id=new_id()),
        HumanMessage("Who dives deepest?", id=new_id()),
        AIMessage("Let me look.", id=new_id(), tool_calls=[call]),
        ToolMessage(
            "2 hits; licence Zweibrücken",
            id=new_id(),
            name="lookup",
            tool_call_id="call-1",
            artifact=found,
        ),
        AIMessage(
            [{"type": "text", "text": "Narwhals [1]; see getUserName in src/app.py."}], id=new_id()
        ),
        HumanMessage("東京の水族館はどこですか", id=new_id()),
        AIMessage("x" * 40_000 + " the rare word quokka " + "y" * 40_000, id=new_id()),
    ]


class SearchContract:
    """`search` of a conversation and of a store."""

    @pytest.mark.parametrize(
        ("text", "ordinal", "sources"),
        [
            ("zoologists", 1, ()),
            ("svalbard", 3, ()),
            ("47110815", 3, ()),
            ("zweibrucken", 4, ()),
            ("whistling beluga", 4, (2,)),
            ("canary", 4, (2,)),
            ("example.org/tusk", 4, (1,)),
            ("user name", 5, ()),
            ("src/app.py", 5, ()),
            ("水族館", 6, ()),
            ("館", 6, ()),
            ("QUOKKA", 7, ()),
        ],
    )
    async def test_all_that_was_appended_is_found(
        self, chat: Conversation, text: str, ordinal: int, sources: tuple[int, ...]
    ) -> None:
        """Search finds texts of every type, calls, results, sources, titles and parts of identifiers, in any script."""
        turn = _turn_with_sources()
        await chat.append(turn)
        hit = (await chat.search(text))[0]
        assert (hit.ordinal, hit.message_id, hit.type) == (
            ordinal,
            turn[ordinal - 1].id,
            turn[ordinal - 1].type,
        )
        assert hit.source_ids[:1] == sources
        assert hit.turn_id == (
            turn[0].id if ordinal == 1 else turn[5].id if ordinal > 5 else turn[1].id
        )
        assert hit.tool == ("lookup" if ordinal == 4 else "")
        page = await chat.list_messages(around=ordinal, limit=3)
        assert ordinal in [message.ordinal for message in page]
        assert hit.created_at == next(
            message.created_at for message in page if message.ordinal == ordinal
        )

    async def test_metadata_that_a_tool_did_not_show_is_not_found(self, chat: Conversation) -> None:
        """The rest of an artifact, such as an author, is stored but not searched."""
        await chat.append(_turn_with_sources())
        assert await chat.search("okonkwo") == []

    async def test_snippets_show_the_words(self, chat: Conversation) -> None:
        """Snippets show the matching words, cut from the message's text, in at most 400 characters."""
        turn = _turn_with_sources()
        await chat.append(turn)
        for text, shown in (
            ("narwhals deepest", "Narwhals dive deepest."),
            ("quokka", " the rare word quokka "),
        ):
            assert any(shown.strip() in hit.snippet for hit in await chat.search(text))
        assert all(
            len(hit.snippet) <= 400 for hit in await chat.search("narwhals deepest quokka weather")
        )

    async def test_hits_are_active_messages(self, chat: Conversation) -> None:
        """A rewound message is not found; after an undo it is."""
        first = rag_turn("What about seals?")
        second = rag_turn("What about orcas?")
        await chat.append(first)
        await chat.append(second)
        assert {hit.ordinal for hit in await chat.search("orcas")} == {5, 6, 7, 8}
        await chat.rewind(before_id=str(second[0].id))
        assert await chat.search("orcas") == []
        await chat.append(HumanMessage("And orcas once more?", id=new_id()))
        assert [hit.ordinal for hit in await chat.search("orcas")] == [9]
        await chat.undo_rewind()
        assert {hit.ordinal for hit in await chat.search("orcas")} == {5, 6, 7, 8}

    async def test_filters_choose_messages(self, chat: Conversation) -> None:
        """Search filters select messages by type and ordinal, and `limit` keeps the best hits."""
        await chat.append(rag_turn("What about orcas?"))
        await chat.append(rag_turn("More on orcas?"))
        assert {hit.type for hit in await chat.search("orcas", types=["human"])} == {"human"}
        assert {hit.ordinal for hit in await chat.search("orcas", before=5)} <= {1, 2, 3, 4}
        assert {hit.ordinal for hit in await chat.search("orcas", after=4)} <= {5, 6, 7, 8}
        assert await chat.search("orcas", types=[]) == []
        every = await chat.search("orcas")
        assert [hit.ordinal for hit in await chat.search("orcas", limit=2)] == [
            hit.ordinal for hit in every[:2]
        ]
        assert [hit.score for hit in every] == sorted((hit.score for hit in every), reverse=True)

    async def test_a_model_gets_a_found_source_whole_and_once(self, chat: Conversation) -> None:
        """A source of up to 2,000 characters is shown completely, and its repetitions are left out."""
        article = (
            'Arctic\n"Narwhals" dive deepest. '
            + "The ice closes in November. " * 60
            + "It was 1,800 metres."
        )
        for number in range(3):
            call = {"name": "lookup", "args": {}, "id": f"c{number}"}
            found = [(article, {"title": "Arctic"})]
            result = ToolMessage(
                article, id=f"r{number}", tool_call_id=f"c{number}", name="lookup", artifact=found
            )
            await chat.append(
                [HumanMessage(f"Chapter {number}?"), AIMessage("", tool_calls=[call]), result]
            )
        tool = chat.retrieve_previous_sources_tool(page_tokens=1_000)
        page = await tool.ainvoke({"find": "narwhals dive"})
        assert page.startswith("[1] Arctic, in result r0 of lookup")
        assert page.count(article) == 1
        while more := re.search('More: cursor="(.*)"', page):
            page = await tool.ainvoke({"find": "narwhals dive", "cursor": more[1]})
            assert "1,800 metres" not in page

    @pytest.mark.parametrize(
        "text", ["", " \n", "?!", "\x00", "\ud800", '{"$ne": ""}', ".*", "$where: 1", "(" * 100]
    )
    async def test_a_query_is_only_words(self, chat: Conversation, text: str) -> None:
        """Operators, patterns and control characters have no effect in a query."""
        await chat.append(HumanMessage("orcas", id=new_id()))
        assert await chat.search(text) == []

    async def test_a_long_query_is_cut(self, chat: Conversation) -> None:
        """Only the beginning of a query of a megabyte is used."""
        await chat.append(HumanMessage("orcas sing", id=new_id()))
        assert len(await chat.search("orcas " + "whale calf " * 100_000)) == 1
        assert await chat.search("z" * 1_000_000) == []

    @pytest.mark.parametrize(
        ("text", "options"),
        [
            (None, {}),
            ({"$ne": ""}, {}),
            ("x", {"limit": 0}),
            ("x", {"limit": 201}),
            ("x", {"types": "human"}),
            ("x", {"types": [{"$ne": ""}]}),
            ("x", {"before": -1}),
            ("x", {"after": "1"}),
        ],
    )
    async def test_bad_arguments_of_a_search_are_refused(
        self, chat: Conversation, text: Any, options: Any
    ) -> None:
        """The error names the argument."""
        with pytest.raises(InvalidInputError):
            await chat.search(text, **options)

    async def test_other_scopes_find_nothing(
        self, store: ConversationStore, chat: Conversation
    ) -> None:
        """Searching another user's conversation finds nothing, as if it did not exist."""
        await chat.append(rag_turn("What about orcas?"))
        for user in ("eve", "nobody"):
            other = store.conversation(user_id=user, thread_id=chat.scope["thread_id"])
            assert await other.search("orcas") == []

    async def test_copies_by_the_retrieval_tool_are_not_found(self, chat: Conversation) -> None:
        """The tool's own calls and results are not searched, because they repeat other messages."""
        await chat.append(rag_turn("What about orcas?"))
        call = {"name": "retrieve_previous_sources", "args": {"find": "orcas"}, "id": "c2"}
        await chat.append(
            [
                HumanMessage("Again?", id=new_id()),
                AIMessage("", id=new_id(), tool_calls=[call]),
                ToolMessage(
                    "orcas", id=new_id(), name="retrieve_previous_sources", tool_call_id="c2"
                ),
            ]
        )
        assert {hit.ordinal for hit in await chat.search("orcas")} <= {1, 2, 3, 4}

    async def test_a_log_of_many_entries_is_searched_whole(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Another store finds messages at the beginning, in the middle and at the end of a long log."""
        for number in range(150):
            await chat.append(
                HumanMessage(f"message number {number} of the log, word{number}", id=new_id())
            )
        for number in (0, 60, 149):
            assert [hit.ordinal for hit in await elsewhere.search(f"word{number}")] == [number + 1]

    async def test_a_page_around_an_ordinal(self, chat: Conversation) -> None:
        """Half of the page comes before the ordinal, half after it."""
        await chat.append([HumanMessage(f"m{number}", id=new_id()) for number in range(1, 21)])
        assert [message.ordinal for message in await chat.list_messages(around=10, limit=5)] == [
            8,
            9,
            10,
            11,
            12,
        ]
        assert [message.ordinal for message in await chat.list_messages(around=1, limit=3)] == [
            1,
            2,
            3,
        ]
        assert [message.ordinal for message in await chat.list_messages(around=20, limit=1)] == [20]
        with pytest.raises(InvalidInputError):
            await chat.list_messages(around=3, before=9)

    @pytest.fixture
    def ada(self) -> str:
        """A user that other tests do not use."""
        return new_id()

    @pytest.mark.parametrize("sealed", [False, True])
    async def test_all_conversations_of_a_user_are_searched(
        self, store: ConversationStore, new_store: NewStore, ada: str, sealed: bool
    ) -> None:
        """Hits are grouped with title and scope; another user's, rewound and deleted messages are not among them."""
        eve = new_id()
        await _said(store, ada, "whales", "Narwhals dive deep.", "Do orcas?")
        await _said(store, ada, "food", "A recipe with narwhals?")
        await _said(store, ada, "gone", "narwhals that are deleted")
        await _said(store, eve, "whales", "Her narwhals.")
        await store.conversation(user_id=ada, thread_id="whales").update(title="On whales")
        chat = store.conversation(user_id=ada, thread_id="food")
        await chat.append(HumanMessage("rewound narwhals", id="rewound"))
        await chat.rewind(before_id="rewound")
        if sealed:
            await _seal_all(store, ada)
        await store.conversation(user_id=ada, thread_id="gone").delete()
        for searching in (store, new_store(), new_store(search_index=False)):
            result = await searching.search("narwhals", user_id=ada)
            assert (result.searched, result.incomplete) == (2, [])
            found = {
                conversation.scope["thread_id"]: (
                    conversation.title,
                    [hit.ordinal for hit in conversation.hits],
                )
                for conversation in result.conversations
            }
            assert found == {"whales": ("On whales", [1]), "food": (None, [1])}
            assert result.conversations[0].hits[0].snippet.lower().count("narwhals") == 1
        assert (await store.search("narwhals", user_id=new_id())).conversations == []

    async def test_a_hit_across_is_one_of_its_conversation(
        self, store: ConversationStore, ada: str
    ) -> None:
        """A hit has the same message, snippet, turn and sources; word statistics are those of all conversations."""
        for thread in ("a", "b"):
            await store.conversation(user_id=ada, thread_id=thread).append(
                rag_turn(f"What about {thread}seals?")
            )
        result = await store.search("aseals2w7", user_id=ada)
        [group] = result.conversations
        [hit] = await store.conversation(user_id=ada, thread_id="a").search("aseals2w7")
        assert [found.model_copy(update={"score": hit.score}) for found in group.hits] == [hit]
        assert hit.source_ids == (2,)

    @pytest.mark.parametrize("sealed", [False, True])
    async def test_rewound_messages_hide_no_hits(
        self, store: ConversationStore, new_store: NewStore, ada: str, sealed: bool
    ) -> None:
        """A search finds an active message even if hundreds of rewound messages match better."""
        await _said(store, ada, "old", f"Somebody saw an orca. {'The rest is about bees. ' * 20}")
        chat = store.conversation(user_id=ada, thread_id="new")
        await chat.append([HumanMessage(f"orca {number}", id=new_id()) for number in range(250)])
        first, *_ = await chat.list_messages(limit=1, after=0)
        await chat.append(AIMessage("orca", id=new_id()))
        await chat.rewind(before_id=str(first.message.id))
        if sealed:
            await _seal_all(store, ada)
        for searching in (store, new_store()):
            result = await searching.search("orca", user_id=ada)
            assert [conversation.scope["thread_id"] for conversation in result.conversations] == [
                "old"
            ]
            assert [hit.ordinal for hit in result.conversations[0].hits] == [1]

    async def test_unsealed_conversations_are_read(
        self, store: ConversationStore, new_store: NewStore, ada: str
    ) -> None:
        """A search reads all short unsealed conversations, unless `conversations` limits their number."""
        searching = new_store(search_index=False)
        for number in range(23):
            await _said(store, ada, f"t{number}", "orcas")
        result = await searching.search("orcas", user_id=ada, limit=200)
        assert (result.searched, len(result.conversations), result.incomplete) == (23, 23, [])
        assert (await searching.search("orcas", user_id=ada, conversations=5)).searched == 5
        assert (await searching.search("", user_id=ada)).conversations == []

    @pytest.mark.parametrize(("limit", "value"), [("_MAX_CHARACTERS", 40), ("_MAX_SECONDS", -1.0)])
    async def test_a_search_across_seals_what_it_had_to_name(
        self,
        store: ConversationStore,
        ada: str,
        monkeypatch: pytest.MonkeyPatch,
        limit: str,
        value: float,
    ) -> None:
        """A search reports conversations it could not read in full and seals them, so the next search is complete."""
        sealer = (await host_of(store).services()).sealer
        for number in range(4):
            await _said(store, ada, f"t{number}", "orcas")
        monkeypatch.setattr(f"convstore.search.across.{limit}", value)
        for expected in (4, 8):
            result = await store.search("orcas", user_id=ada, limit=200)
            found = sum(len(conversation.hits) for conversation in result.conversations)
            assert found < expected
            assert result.incomplete
            assert found >= (expected == 8) * 4
            await sealer.wait()
            result = await store.search("orcas", user_id=ada, limit=200)
            hits = sum(len(conversation.hits) for conversation in result.conversations)
            assert (hits, result.incomplete) == (expected, [])
            for number in range(4):
                await _said(store, ada, f"t{number}", "orcas")

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({}, InvalidInputError),
            ({"user_id": {"$ne": ""}}, InvalidScopeError),
            ({"color": "red"}, InvalidScopeError),
            ({"user_id": "ada", "limit": 0}, InvalidInputError),
            ({"user_id": "ada", "conversations": 0}, InvalidInputError),
        ],
    )
    async def test_a_search_across_names_its_scope(
        self, store: ConversationStore, options: Any, error: Any
    ) -> None:
        """A search of the whole database needs `everything=True`."""
        with pytest.raises(error):
            await store.search("orcas", **options)
        assert (
            await store.search("a word that nobody says", everything=True, limit=1, conversations=1)
        ).searched <= 1
