"""Check a database for damage; see `ConversationStore.verify`.

Conversations are found by their heads and read one page at a time. Without a scope, documents without a head are
checked, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from convstore.exceptions import SchemaVersionError
from convstore.mongo.collection import Document
from convstore.mongo.inspection import Inspection
from convstore.mongo.keys import HEADS, LOG, OF_CONVERSATIONS, state_id
from convstore.mongo.parallel import in_parallel
from convstore.runtime.clock import Clock
from convstore.values.reports import VerifyReport
from convstore.values.scope import Scope
from convstore.verify.conversation import ConversationCheck
from convstore.verify.findings import ORPHAN_AGE, Findings, Subject
from convstore.verify.log import age_of, token_of
from convstore.verify.repair import Repairer
from convstore.verify.schema import SchemaCheck
from convstore.verify.segments import SearchIndex

_HEADS = 100
_PARALLEL = 4


@dataclass(frozen=True, slots=True)
class Verifier:
    """Checks a database, or the conversations with some scope values.

    `repairer` replaces logs that lost entries. `index` is the store's search index. `check_schema` raises an error if a
    migration excludes this process.
    """

    inspection: Inspection
    repairer: Repairer
    schema: SchemaCheck
    clock: Clock
    index: SearchIndex
    check_schema: Callable[[], Awaitable[None]]

    async def verify(
        self, partial_scope: Scope, *, repair: bool, progress: Callable[[VerifyReport], None] | None
    ) -> VerifyReport:
        """Check everything; see `ConversationStore.verify`."""
        findings = Findings(repair, progress)
        await self.schema.run(findings)
        after = ""
        while heads := await self.inspection.heads(dict(partial_scope), after=after, limit=_HEADS):
            await self.check_schema()  # a check of everything may last for hours
            now = self.clock.now()
            await in_parallel(partial(self._check, now, findings), heads, limit=_PARALLEL)
            after = str(heads[-1]["_id"])
        if not partial_scope:
            for collection in OF_CONVERSATIONS:
                await self._check_headless(collection, findings)
        return findings.result()

    async def _check(self, now: datetime, findings: Findings, head: Document) -> None:
        name = head.get("conversation")
        conversation = name if isinstance(name, str) else ""
        subject = Subject(conversation, self.inspection, self.repairer.codec, now, findings.repair)
        try:
            await ConversationCheck(head, subject, self.repairer, self.index).run(findings)
        except SchemaVersionError as error:
            findings.report("newer", HEADS, str(head["_id"]), str(error), conversation=conversation)

    async def _check_headless(self, collection: str, findings: Findings) -> None:
        """Report conversations with neither a head nor a tombstone."""
        conversation = await self.inspection.next_conversation(collection, "")
        while conversation is not None:
            if not await self.inspection.is_known(conversation):
                await self._report_headless(collection, conversation, findings)
            conversation = await self.inspection.next_conversation(collection, conversation)

    async def _report_headless(
        self, collection: str, conversation: str, findings: Findings
    ) -> None:
        """Report a conversation without a head; a repair removes leftovers of a deletion.

        A log with entries is kept, because a backup may restore its head.
        """
        has_entries = bool(await self.inspection.entries(conversation))
        keys = await self._leftovers(collection, conversation)
        if not keys and not (has_entries and collection == LOG):
            return
        if has_entries:
            text = (
                "no head refers to this conversation, so its scope is unknown; restore the "
                f"collection heads from a backup, or remove it: convstore erase {conversation}"
            )
            key = f"{conversation}:" if collection == LOG else conversation
            findings.report("lost", collection, key, text, conversation=conversation)
            return
        removed = 0
        while findings.repair and keys:
            removed += await self.inspection.remove(collection, keys)
            keys = await self._leftovers(collection, conversation)
        outcome = {"repairable": True, "repaired": removed > 0}
        text = "left over from a deleted conversation"
        findings.report(
            "leftover", collection, conversation, text, conversation=conversation, **outcome
        )

    async def _leftovers(self, collection: str, conversation: str) -> list[str]:
        """Return the keys of documents that are too old to belong to work in flight."""
        now = self.clock.now()
        if collection == LOG:
            return await self._leftovers_in_log(conversation, now)
        old: list[str] = []
        for document in await self.inspection.documents_of(collection, conversation):
            at = document.get("at")
            if isinstance(at, datetime) and now - at.replace(tzinfo=UTC) > ORPHAN_AGE:
                old.append(str(document["_id"]))
        return old

    async def _leftovers_in_log(self, conversation: str, now: datetime) -> list[str]:
        """Return the keys of old chunks; if there are no younger ones, also that of the state, which has no date."""
        keys = await self.inspection.chunk_keys(conversation)
        old: list[str] = []
        for key in keys:
            age = age_of(token_of(key), now)
            if age is not None and age > ORPHAN_AGE:
                old.append(key)
        if len(old) == len(keys) and await self.inspection.state(conversation):
            old.append(state_id(conversation))
        return old
