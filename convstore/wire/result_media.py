"""Move images and files out of the results of calls, where a provider takes only texts there."""

from __future__ import annotations

from typing import Any

from convstore.wire.parts import Media, Text
from convstore.wire.steps import MediaWriter, Result, Step


def moved_media(step: Step, result: Result, write: MediaWriter) -> list[dict[str, Any]]:
    """Return the images and files of a result that move to a message; what the API does not take is noted."""
    media = [part for part in result.parts if isinstance(part, Media)]
    if not media:
        return []
    written = step.content(write, result._replace(parts=[*media]))
    return [part for part in written if not str(part["type"]).endswith("text")]


def without_media(result: Result) -> Result:
    """Return a result with texts in place of images and files that follow it."""
    if not any(isinstance(part, Media) for part in result.parts):
        return result
    return result._replace(parts=[*map(_named, result.parts)])


def _named(part: Text | Media) -> Text | Media:
    return part if isinstance(part, Text) else Text(part.plain_text or part.description)
