"""Texts of the inspector and the command line that explain in which form a view shows each message, and why."""

from __future__ import annotations

from collections.abc import Mapping

from convstore.values.policy import HistoryPolicy
from convstore.values.stamps import ViewReason

STATES: Mapping[str, tuple[str, str]] = {
    "whole": ("whole", "The model gets this message as it is stored."),
    "stub": ("stub", "A stub replaces the result. Its id or its numbers read it again."),
    "shortened": (
        "shortened",
        "A long text of a finished turn: the model gets its beginning and its end.",
    ),
    "placeholder": (
        "placeholder",
        "Images, audio and files of finished turns are named, not sent again.",
    ),
    "summarised": (
        "in the summary",
        "Old turns, which were summarised: by the rule for it, before they left the view, "
        "or because it was asked to. The model gets the summary instead, and the messages "
        "stay in the log.",
    ),
    "left_out": (
        "left out",
        "Older than the view, because of its budget or its limit of turns. It stays in the log.",
    ),
    "hidden": ("left out", "Views of conversations without tools leave out calls and results."),
    "orphan": ("left out", "No call in the view matches this result."),
    "late": (
        "as text",
        "The result came after its call was summarised or left out, so it is shown as text.",
    ),
    "rewound": (
        "rewound",
        "Taken back, as for another answer or an edited question. It stays in the log alone.",
    ),
}
"""Label and explanation of each `ViewReason.state`."""

ADDED: Mapping[str, tuple[str, str]] = {
    "summary": ("summary", "Replaces the older messages that it covers."),
    "note": ("note", "Says how much is left out, and how the model gets it back."),
    "missing_result": (
        "no result",
        "The log had no result of this call yet; models reject a call without one.",
    ),
    "late_result": ("as text", "A result whose call is not in the view."),
    "joined": ("joined", "Messages that the provider wants as one."),
    "media": ("added", "The provider does not take images and files in tool results."),
    "no_answer": ("added", "The provider wants an answer between a result and a question."),
    "said": ("text", "The provider wants the text of an answer apart from its calls."),
    "beginning": ("added", "The provider wants a human message before the first answer."),
}
"""Label and explanation of each kind of message that only a view contains."""

MISSING_RESULT: Mapping[str, tuple[str, str]] = {
    "running": (
        "no result yet",
        "A worker runs this turn now; the result stands here as soon as it is recorded.",
    ),
    "waiting": (
        "waits",
        "The turn waits for a person, so the call has no result yet.",
    ),
    "interrupted": (
        "no result",
        "The agent stopped before the result was recorded; models reject a call without one.",
    ),
}
"""Label and explanation of a missing result in the newest turn, by the status of this turn."""

PROMPT_UNKNOWN = (
    "The system prompt and the tools of these calls are not known: "
    "a change of them breaks the cache, too, and is not shown here."
)
"""Shown if stamps have no digest of prompt and tools, as in hand-written loops and graphs without the middleware."""


def cause_of_stub(has_ended: bool) -> str:
    """Return the reason why a view shows a stub of a result, depending on whether the result's turn had ended."""
    return "as its turn ended" if has_ended else "as its turn is long"


def why_stub(*, has_ended: bool) -> str:
    """Return a full explanation why a view shows a stub of a result.

    >>> why_stub(has_ended=True)
    'A stub replaces the result, as its turn ended. Its id or its numbers read it again.'
    """
    first, rest = STATES["stub"][1].split(". ", 1)
    return f"{first}, {cause_of_stub(has_ended)}. {rest}"


_LIMITS = {
    "max_tokens": (
        "to keep the view within its budget of {:,} tokens; old turns leave in few large steps, "
        "so that prompt caches hold in between"
    ),
    "max_turns": "to keep the view within its limit of {:,} turns",
}

MATCHES: Mapping[str, str] = {
    "exact": "Message for message what the model was given: the digest is equal.",
    "rebuilt": "The view directly after the message; no stamp of that call is stored.",
    "counter": (
        "This store counts tokens with another counter than the one of that call, "
        "so the view begins elsewhere."
    ),
    "view format": "That call was made by a version of convstore that builds views by other rules.",
    "type": (
        "The view has values of types that are not registered here; they are shown as "
        "they are stored."
    ),
    "adapted": "The model got this view with changes: with messages appended with the answer, "
    "or with results that a middleware shortened.",
    "log": "The log is not as it was then, as after a repair.",
}
"""Explanation of each `PastView.match`, or `difference` if there is one."""


def label_of(reason: ViewReason) -> str:
    """Return a label of two or three words for the form in which a view shows a range.

    >>> label_of(ViewReason(first=1, last=9, state="summarised", summary=2))
    'in summary 2'
    """
    return f"in summary {reason.summary}" if reason.summary else STATES[reason.state][0]


def limit_of(reason: ViewReason, policy: HistoryPolicy) -> str:
    """Return an explanation of the limit that leaves a range out; "" if the policy has no such limit."""
    limit = getattr(policy, reason.limit) if reason.limit else None
    return "" if limit is None else _LIMITS[reason.limit].format(limit)
