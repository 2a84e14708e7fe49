"""The knowledge base: an invented handbook of an invented ward, and a tool that searches it.

Nothing here is medical advice: neither the hospital nor the medicines nor the conditions exist.
"""

from __future__ import annotations

import math
import re

from langchain_core.tools import tool

__all__ = ["HANDBOOK", "RAG_TOOL_NAME", "retrieve_knowledge_base"]

RAG_TOOL_NAME = "retrieve_knowledge_base"
_MOST = 3
_URL = "https://larkmoor.example/handbook"

HANDBOOK = {
    "Velorin, dose": (
        "Velorin is given by mouth, 4 mg in the morning and 4 mg at night. From the age of 80 on the first "
        "week is begun with 2 mg at night only. A dose that was missed is left out, never doubled. The ward "
        "keeps the blue tablets of 2 mg and the white ones of 4 mg in separate drawers."
    ),
    "Velorin, with other medicines": (
        "Velorin and Tarnexol are never given on one day: both slow the hum reflex. Twelve hours lie between "
        "Velorin and any dose of Oskadine. With grey tea there is no known effect."
    ),
    "Velorin, when to stop": (
        "Velorin is stopped when the hum reflex falls below two on the Larkmoor scale, or when a patient sees "
        "colours at the edge of the eye. The reflex comes back within three days in most patients."
    ),
    "Tarnexol, infusion": (
        "Tarnexol runs over forty minutes in 100 ml of clear solution. A nurse stays for the first ten. If "
        "moonlace rash shows on the arm, the infusion is stopped and not begun again that day."
    ),
    "Moonlace rash": (
        "Moonlace rash is a fine white net on the skin that is cool to the touch. It fades within a day "
        "without treatment. It is written into the chart with the hour at which it was first seen."
    ),
    "Larkmoor scale": (
        "The Larkmoor scale counts the hum reflex from zero to five. Five is a clear hum on the first touch, "
        "zero is none after three. It is read twice a day, by the same person where that is possible."
    ),
    "Falls": (
        "A patient who fell in the last month gets yellow socks, a low bed and a visit every hour at night. "
        "The visit is signed on the sheet at the door."
    ),
    "Handover": (
        "A shift hands over at the bedside, with the chart open: what changed, what is due within two hours, "
        "and what the patient asked for."
    ),
}


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w{3,}", text.lower()))


_TITLES = {title: _words(title) for title in HANDBOOK}
_WORDS = {title: _TITLES[title] | _words(text) for title, text in HANDBOOK.items()}


def _score(title: str, words: set[str]) -> float:
    """Score a passage: rare words count more, words of the title twice."""
    found = {word: sum(word in held for held in _WORDS.values()) for word in words & _WORDS[title]}
    return sum(
        math.log(len(_WORDS) / count) * (1 + (word in _TITLES[title]))
        for word, count in found.items()
    )


@tool(RAG_TOOL_NAME, response_format="content_and_artifact")
def retrieve_knowledge_base(query: str) -> tuple[str, list[dict[str, str]]]:
    """Search the handbook of the ward; finds up to three passages."""
    scores = {title: _score(title, _words(query)) for title in HANDBOOK}
    found = sorted(
        (title for title in scores if scores[title] > 1), key=lambda title: -scores[title]
    )[:_MOST]
    places = {title: place for place, title in enumerate(HANDBOOK, 1)}
    passages = [
        {"title": title, "url": f"{_URL}/{places[title]}", "content": HANDBOOK[title]}
        for title in found
    ]
    shown = [f"[{n}] {each['title']}\n{each['content']}" for n, each in enumerate(passages, 1)]
    return "\n\n".join([f"{len(passages)} passages found.", *shown]), passages
