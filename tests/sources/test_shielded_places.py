"""No number is written inside of code, a link, a tag or a quotation; before one, it may stand."""

from __future__ import annotations

from convstore.sources.placing import Shield, find_places
from convstore.sources.source import FoundSource

PASSAGE = "They sleep on land and in the water, half a brain at a time."
PLACES: dict[str, int | None] = {
    PASSAGE: 0,
    f"> {PASSAGE}": 2,
    f"<p>{PASSAGE}</p>": 3,
    f"```\ncode\n```\n{PASSAGE}": 13,
    f"```\n{PASSAGE}\n```": None,
    f"`{PASSAGE}`": 0,
    f"Run `{PASSAGE}`": None,
    f"[{PASSAGE}](https://sea.example)": 0,
    f"See [{PASSAGE}](https://sea.example)": None,
    f'<p title="{PASSAGE}">Seals</p>': None,
    f'"{PASSAGE}"': 0,
    f'He said "{PASSAGE}"': None,
}


def test_a_number_stands_outside_of_what_a_reader_takes_as_one_thing() -> None:
    """Where a text begins with a link, code or a quotation, its number stands before that; else it has no place."""
    found = dict[str, int | None]()
    for text in PLACES:
        places = find_places(text, [FoundSource(None, PASSAGE, {})], Shield(text))
        found[text] = places[0].at if places else None
    assert found == PLACES
