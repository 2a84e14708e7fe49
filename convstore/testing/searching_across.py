"""Tests of search across conversations: all that match the scope values, and none of another user."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore.exceptions import InvalidInputError, InvalidScopeError
from convstore.integration import host_of
from convstore.store import ConversationStore
from convstore.testing.fixtures import NewStore
from convstore.testing.samples import new_id, rag_turn

__all__ = ["SearchAcrossContract"]


async def _said(store: ConversationStore, user: str, thread: str, *texts: str) -> None:
    chat = store.conversation(user_id=user, thread_id=thread)
    for text in texts:
        await chat.append([HumanMessage(text, id=new_id()), AIMessage("I see.", id=new_id())])


async def _seal_all(store: ConversationStore, user: str) -> None:
    sealer = (await host_of(store).services()).sealer
    for conversation in (await store.list_conversations(user_id=user)).conversations:
        await sealer.seal(tuple((key, conversation.scope[key]) for key in store.scope_keys))


class SearchAcrossContract:
    """`ConversationStore.search`."""

    @pytest.mark.parametrize("sealed", [False, True])
    async def test_all_conversations_of_a_user_are_searched(
        self, new_store: NewStore, sealed: bool
    ) -> None:
        """Hits are grouped with title and scope; another user's, rewound and deleted messages are not among them."""
        store = new_store()
        ada = new_id()
        eve = new_id()
        await store.setup()
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
        await store.close()

    async def test_a_hit_across_is_one_of_its_conversation(self, new_store: NewStore) -> None:
        """The same message, snippet, turn and sources; statistics are those of all conversations together."""
        store = new_store()
        ada = new_id()
        await store.setup()
        for thread in ("a", "b"):
            await store.conversation(user_id=ada, thread_id=thread).append(
                rag_turn(f"What about {thread}seals?")
            )
        result = await store.search("aseals2w7", user_id=ada)
        [group] = result.conversations
        [hit] = await store.conversation(user_id=ada, thread_id="a").search("aseals2w7")
        assert [found.model_copy(update={"score": hit.score}) for found in group.hits] == [hit]
        assert hit.source_ids == (2,)
        await store.close()

    @pytest.mark.parametrize("sealed", [False, True])
    async def test_rewound_messages_hide_no_hits(self, new_store: NewStore, sealed: bool) -> None:
        """A search finds an active message even if hundreds of rewound messages match better."""
        store = new_store()
        ada = new_id()
        await store.setup()
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
        await store.close()

    async def test_unsealed_conversations_are_read(self, new_store: NewStore) -> None:
        """A search reads all short unsealed conversations, unless `conversations` limits their number."""
        store = new_store(search_index=False)
        ada = new_id()
        await store.setup()
        for number in range(23):
            await _said(store, ada, f"t{number}", "orcas")
        result = await store.search("orcas", user_id=ada, limit=200)
        assert (result.searched, len(result.conversations), result.incomplete) == (23, 23, [])
        assert (await store.search("orcas", user_id=ada, conversations=5)).searched == 5
        assert (await store.search("", user_id=ada)).conversations == []
        await store.close()

    @pytest.mark.parametrize(("limit", "value"), [("_MAX_CHARACTERS", 40), ("_MAX_SECONDS", -1.0)])
    async def test_a_search_across_seals_what_it_had_to_name(
        self, new_store: NewStore, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
    ) -> None:
        """A search reports conversations it could not read in full and seals them, so the next search is complete."""
        store = new_store()
        ada = new_id()
        await store.setup()
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
        await store.close()

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
        """All of the database is searched by a call of its own."""
        with pytest.raises(error):
            await store.search("orcas", **options)
        assert (
            await store.search("a word that nobody says", everything=True, limit=1, conversations=1)
        ).searched <= 1
