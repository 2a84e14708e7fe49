"""convstore: the conversation store for agent backends on MongoDB.

It stores every message of a conversation in full, and builds the short history that the next model call needs.
Everything that this history leaves out can be read by its id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from convstore.public import *  # noqa: F403
    from convstore.public import __all__ as __all__
else:

    def __getattr__(name: str) -> Any:
        """Return a public name; the first one loads the store, LangChain's messages and PyMongo."""
        import convstore.public  # noqa: PLC0415

        if name not in vars(convstore.public):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(convstore.public, name)

    def __dir__() -> list[str]:
        import convstore.public  # noqa: PLC0415

        return sorted([*globals(), *convstore.public.__all__])
