"""Moments of a conversation: a message, and the view that a model got for it.

Floor 7. An answer that was appended with a stamp gives exactly the view that it answers. Any other message gives the
view directly after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request

from convstore.conversation import Conversation
from convstore.ext.inspector.comparison import View
from convstore.ext.inspector.rendering import number_in
from convstore.values.models import StoredMessage

__all__ = ["DIFFERENCES", "Moment", "load_view", "moment_of"]

_LOOKED_BACK = 60

DIFFERENCES = {
    "counter": "This store counts tokens with another counter than the one of that call, so the view begins elsewhere.",
    "view format": "That call was made by a version of convstore that builds views by other rules.",
    "type": "The view has values of types that are not registered here; they are shown as they are stored.",
    "adapted": "The model got this view with changes: with messages appended with the answer, or with results that a "
    "middleware shortened.",
    "log": "The log is not as it was then, as after a repair.",
}
"""Why a view differs from what the model was given."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A message and the view that belongs to it.

    Attributes:
        stored: The message; None for now.
        before: The AI message before it, whose view is compared with this one.
    """

    stored: StoredMessage | None = None
    before: StoredMessage | None = None


async def moment_of(request: Request, chat: Conversation) -> Moment:
    """Return the moment that ``at=`` in the address names by an ordinal, by default now.

    Raises:
        HTTPException: There is no such message.
    """
    ordinal = number_in(request, "at")
    if ordinal is None:
        return Moment()
    page = await chat.list_messages(before=ordinal + 1, limit=_LOOKED_BACK, rewound=True)
    if not page or page[-1].ordinal != ordinal:
        raise HTTPException(404)
    answers = [one for one in reversed(page[:-1]) if one.message.type == "ai" and not one.is_rewound]
    stamped = (one for one in answers if one.seen and page[-1].seen)
    return Moment(page[-1], next(stamped, next(iter(answers), None)))


async def load_view(
    chat: Conversation, stored: StoredMessage | None = None, *, before: int | None = None, is_compared: bool = True
) -> View:
    """Load the view of a message, or of now, with the reasons for messages before an ordinal.

    Args:
        chat: The conversation.
        stored: The message; None for now.
        before: Only reasons that begin before this ordinal.
        is_compared: Compare the view with its stamp.
    """
    seen = stored.seen if stored else None
    policy = None if seen is None or is_compared else seen.history_policy
    history = await chat.view_at(seen or (stored.ordinal if stored else None), policy=policy, reasons_before=before)
    return View(history, chat.store.token_counter, answer=stored.ordinal if stored and seen else 0)
