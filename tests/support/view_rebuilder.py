"""Rebuilds past views in a process of its own: reads cases as JSON lines, and writes what became of each.

python tests/support/view_rebuilder.py URI DATABASE PREFIX COUNTER... < cases
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

from langchain_core.messages import BaseMessage
from pymongo import AsyncMongoClient

from convstore import ConversationStore, HistoryPolicy
from convstore.messages.encoding import digest_of_messages
from convstore.types import PastView
from convstore.values.stamps import ViewStamp


def by_words(messages: Sequence[BaseMessage]) -> int:
    """Count the words of messages: another token counter than the default one."""
    return sum(4 + len(str(message.content).split()) for message in messages)


def store_of(database: Any, prefix: str, counter: str = "", **options: Any) -> ConversationStore:
    """A store with the default counter, or with `by_words` under this name."""
    if counter:
        options |= {"token_counter": by_words, "token_counter_name": counter}
    return ConversationStore(database, collection_prefix=prefix, **options)


async def rebuilt(store: ConversationStore, case: dict[str, Any]) -> PastView:
    """The view of a stamp, or the view after a message under a policy."""
    chat = store.conversation(**case["scope"])
    if isinstance(case["at"], str):
        return await chat.view_at(case["at"], policy=HistoryPolicy(**case["policy"]))
    return await chat.view_at(ViewStamp.model_validate(case["at"]))


async def main(uri: str, database: str, prefix: str, *counters: str) -> None:
    """Rebuild each view with a store for each counter."""
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        stores = [store_of(client[database], prefix, counter) for counter in counters]
        for line, store in product(sys.stdin, stores):
            past = await rebuilt(store, json.loads(line))
            reasons = past.report.reasons
            ends = [0, *(edge for one in reasons for edge in (one.first, one.last)), past.ordinal + 1]
            verdict = {
                "match": past.match,
                "difference": past.difference,
                "digest": digest_of_messages(past.messages),
                "is_explained": all(two == one + 1 for one, two in list(pairwise(ends))[::2]),
            }
            sys.stdout.write(json.dumps(verdict) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
