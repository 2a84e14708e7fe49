"""Make the stamps of views: the identity is known after a load, the digest is computed only if a stamp is asked for.

Floor 4, pure. The loader calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from langchain_core.messages import BaseMessage

from convstore.messages.encoding import digest_of_messages
from convstore.values.policy import HistoryPolicy
from convstore.values.stamps import ViewStamp, changed_options

Stamper = Callable[[Sequence[BaseMessage]], ViewStamp]
"""Makes the stamp of a view from its messages."""


def stamper(conversation: str, policy: HistoryPolicy, **identity: Any) -> Stamper:
    """Return the function that makes the stamp of a view with this identity; it can be pickled."""
    options = _changed_options(policy)
    return partial(_with_digest, ViewStamp(conversation_id=conversation, policy=options, **identity))


_changed_options = lru_cache(changed_options)


def _with_digest(identity: ViewStamp, messages: Sequence[BaseMessage]) -> ViewStamp:
    return identity.model_copy(update={"digest": digest_of_messages(messages)})
