"""Tell whose conversation a checkpoint belongs to: a checkpointer of LangGraph finds it by the thread's id alone."""

from __future__ import annotations

import json
from typing import Any

from convstore import Conversation
from convstore.exceptions import ConversationDeletedError, InvalidScopeError
from convstore.integration import host_of
from convstore.messages.encoding import digest_of


def owner_of(scope: dict[str, str], conversation: str = "") -> str:
    """Return what a state says of the conversation that it belongs to, whose id is known once it has messages."""
    return f"{digest_of(json.dumps(sorted(scope.items()))).hex()} {conversation}"


async def check_owner(chat: Conversation, owner: Any, *, is_begin: bool = False) -> None:
    """Refuse the state of another conversation; at the beginning of a run, also that of a deleted one.

    Raises:
        InvalidScopeError: The checkpoint is that of another scope.
        ConversationDeletedError: The conversation of the checkpoint was deleted, so its messages must not come back.
    """
    digest, _, conversation = str(owner or "").partition(" ")
    if digest and digest != owner_of(chat.scope).partition(" ")[0]:
        raise InvalidScopeError(
            "the checkpoint of this run is that of another conversation: a checkpointer finds it "
            'by thread_id alone; make that unique, such as f"{user_id}:{thread_id}", pass the '
            "scope as context=..., and scope=lambda run: run.context to the middleware or the nodes"
        )
    if (
        is_begin
        and conversation
        and conversation != await host_of(chat).conversation_id(chat.scope)
    ):
        raise ConversationDeletedError(
            "the conversation of this checkpoint was deleted, and the checkpoint still has its "
            "messages; delete it, too, with `await checkpointer.adelete_thread(thread_id)`"
        )
