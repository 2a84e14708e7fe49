"""Move images and files out of the results of calls, where a provider takes only texts there."""

from __future__ import annotations

from typing import Any

from convstore.wire.parts import Media, Text
from convstore.wire.steps import MediaWriter, Result, Step


def results_of(
    step: Step, write: MediaWriter, *, moves: bool
) -> tuple[list[Result], list[dict[str, Any]]]:
    """Return the results of a step, and the images and files in them that move to a message of a user.

    A text stands in the place of each that moves; what the API does not take there is noted.
    """
    moved = list[dict[str, Any]]()
    if not moves or not any(
        isinstance(part, Media) for each in step.results for part in each.parts
    ):
        return step.results, moved
    for result in step.results:
        media = [part for part in result.parts if isinstance(part, Media)]
        written = step.content(write, result._replace(parts=[*media]))
        moved += [part for part in written if not str(part["type"]).endswith("text")]
    return list(map(_without_media, step.results)), moved


def _without_media(result: Result) -> Result:
    """Return a result with texts in place of images and files that follow it."""
    if not any(isinstance(part, Media) for part in result.parts):
        return result
    return result._replace(parts=[*map(_named, result.parts)])


def _named(part: Text | Media) -> Text | Media:
    return part if isinstance(part, Text) else Text(part.plain_text or part.description)
