"""Log each load of a view in one line, at DEBUG."""

from __future__ import annotations

import logging
from collections import OrderedDict

from convstore.values.plain import counted
from convstore.values.stamps import ViewStamp, break_between
from convstore.wire.history import History

_LOGGER = logging.getLogger("convstore")
_MOST_KEPT = 1_000


class LoadLog:
    """Logs loads with their size, and with what broke the prompt cache since the load before in this process."""

    def __init__(self) -> None:
        self._stamps = OrderedDict[tuple[str, str], ViewStamp]()

    def note(self, history: History, view: str) -> None:
        """Log a load; `view` is the key of its policy. Nothing is computed if DEBUG is off."""
        if not _LOGGER.isEnabledFor(logging.DEBUG) or (stamp := history.stamp) is None:
            return
        key = (stamp.conversation_id, view)
        before = self._stamps.pop(key, None)
        self._stamps[key] = stamp
        if len(self._stamps) > _MOST_KEPT:
            self._stamps.popitem(last=False)
        report = history.report
        parts = [
            counted(len(history.messages), "message"),
            counted(history.tokens, "token"),
            counted(len(report.stubbed), "stub"),
            f"{counted(report.left_out_turns, 'turn')} left out",
        ]
        if report.orphans:
            parts.append(f"{counted(len(report.orphans), 'result')} without a call left out")
        if before:
            cause = break_between(before, stamp)
            parts.append(f"prompt cache broken: {cause}" if cause else "prompt cache held")
        _LOGGER.debug(
            "loaded conversation %s: %s",
            stamp.conversation_id or "without messages",
            ", ".join(parts),
        )
