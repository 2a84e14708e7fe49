"""Integrations that need the package langchain, the extra of the same name.

`ConversationMiddleware` attaches a store to an agent of ``create_agent``. `resume_command` resumes one that waits for a
person.
"""

from __future__ import annotations

from convstore.ext.langchain.middleware import ConversationMiddleware
from convstore.ext.langchain.review import resume_command

__all__ = ["ConversationMiddleware", "resume_command"]
