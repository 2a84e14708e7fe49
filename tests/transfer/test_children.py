"""Conversations of sub-agents in exports and imports."""

from __future__ import annotations

from pathlib import Path

from convstore import Conversation, ConversationStore
from convstore.testing.samples import rag_turn
from convstore.transfer import export_conversations, import_conversations, read_file


async def _content(chat: Conversation) -> list[object]:
    """Return what an export has to bring back: messages, sources with their numbers, and the title."""
    page = await chat.get_sources("1-20", page_tokens=16_000)
    # ids of conversations are new
    sources = [source.model_dump(exclude={"child_id"}) for source in page.sources]
    return [[message async for message in chat.messages()], sources, (await chat.info()).title]


async def test_a_family_comes_back_from_an_export(tmp_path: Path) -> None:
    """Each child below its parent, with the same source numbers; again, nothing is written."""
    path, made = tmp_path / "family.jsonl", list[list[list[object]]]()
    for is_import in (False, True):
        async with await ConversationStore.connect("memory://") as store:
            await store.setup()
            chat = store.conversation(user_id="ada", thread_id="t")
            child = chat.child("ai/1", "call_1")
            if is_import:
                for known in (0, 16):
                    report = await import_conversations(store, read_file(path))
                    assert (report.problems, report.known) == ([], known)
                assert (await store.verify()).findings == ()
                assert await child.reserve_source_ids(1) == range(13, 14)
            else:
                for conversation in (chat, child, child.child("critic"), chat):
                    await conversation.append(rag_turn("Seals?"))
                await child.update(title="Research")
                with path.open("wb") as file:
                    written = await export_conversations(store, file.write)
                assert (written.conversations, written.sub_agents) == (3, 2)
            made.append([await _content(handle) for handle in (chat, child, child.child("critic"))])
    assert made[0] == made[1]
