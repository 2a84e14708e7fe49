"""Keep sessions of Microsoft's Agent Framework: a `HistoryProvider` that shows agents convstore's view.

::

    agent = Agent(client, context_providers=[ConvstoreHistoryProvider(store, user_id="ada")])
    await agent.run("What do seals eat?", session=agent.create_session(session_id="seals"))
"""

from __future__ import annotations

from convstore.exceptions import MissingExtraError

try:
    import agent_framework  # noqa: F401 - the modules below need it
except ImportError as error:
    raise MissingExtraError(package="agent-framework-core", extra="agent-framework") from error

from convstore.ext.microsoft.provider import ConvstoreHistoryProvider

__all__ = ["ConvstoreHistoryProvider"]
