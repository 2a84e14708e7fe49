"""Read-only pages that show the conversations of a store, the view that the model gets of each, and the reasons.

`inspector` makes an ASGI application to mount in a backend::

    app.mount("/inspector", inspector(store, authorize=may_see))

``convstore inspect`` opens the same pages on this machine. Pages load nothing from other hosts and work without
JavaScript.
"""

from __future__ import annotations

from convstore.exceptions import MissingExtraError

try:
    import jinja2  # noqa: F401 - the modules below need all three
    import markdown_it  # noqa: F401
    import starlette  # noqa: F401
except ImportError as error:
    raise MissingExtraError(package=error.name or "starlette", extra="inspector") from error

from convstore.ext.inspector.app import inspector
from convstore.ext.inspector.security import EVERYTHING, Authorize, LocalGate

__all__ = ["EVERYTHING", "Authorize", "LocalGate", "inspector"]
