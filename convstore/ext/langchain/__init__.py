"""Integrations that need the package langchain, the extra of the same name.

`ConversationMiddleware` attaches a store to an agent of ``create_agent``. `resume_command` resumes an agent that waits
for a person.
"""

from __future__ import annotations

from convstore.exceptions import MissingExtraError

try:
    import langchain.agents  # noqa: F401 - the modules below need both
    import langgraph.errors  # noqa: F401
except ImportError as error:
    raise MissingExtraError(package="langchain", extra="langchain") from error

from convstore.ext.langchain.middleware import ConversationMiddleware
from convstore.ext.langchain.review import resume_command

__all__ = ["ConversationMiddleware", "resume_command"]
