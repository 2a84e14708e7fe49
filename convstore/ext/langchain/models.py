"""Chat models by their names.

Layer 6. Imports langchain only when it is called, so that whoever has no need of it need not install it.
"""

from __future__ import annotations

from langchain_core.language_models import BaseChatModel

from convstore.exceptions import MissingExtraError

__all__ = ["chat_model"]


def chat_model(name: str) -> BaseChatModel:
    """The chat model that LangChain's ``init_chat_model`` makes for a name such as ``openai:gpt-5-mini``.

    Raises:
        MissingExtraError: langchain is not installed.
    """
    try:
        from langchain.chat_models import init_chat_model  # noqa: PLC0415 - only who asks for it needs it
    except ImportError as error:
        raise MissingExtraError(package="langchain", extra="langchain") from error
    model: BaseChatModel = init_chat_model(name)
    return model
