"""Keep conversations of Pydantic AI agents: a `ConversationStore`, and a capability that shows models convstore's view.

::

    conversations = ConvstoreConversationStore(store, user_id="ada")
    agent = Agent(model, capabilities=[ConvstoreView(conversations)])
    conversation = await conversations.load("seals") or Conversation(conversation_id="seals")
    await conversations.save(await agent.run(prompt, conversation=conversation))
"""

from __future__ import annotations

from convstore.exceptions import MissingExtraError

try:
    import pydantic_ai.conversation_store  # noqa: F401 - the modules below need it
except ImportError as error:
    raise MissingExtraError(package="pydantic-ai-slim", extra="pydantic-ai") from error

from convstore.ext.pydantic_ai.store import ConvstoreConversationStore
from convstore.ext.pydantic_ai.view import ConvstoreView

__all__ = ["ConvstoreConversationStore", "ConvstoreView"]
