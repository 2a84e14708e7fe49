"""The bot's corpus: a handbook of the tide clock of Brinewick, an invented place, and a few web pages."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["HANDBOOK", "WEB", "Passage"]


class Passage(NamedTuple):
    """A short text with its metadata."""

    title: str
    chapter: str
    text: str


_CHAPTERS: dict[str, dict[str, str]] = {
    "Mechanism": {
        "The float": "An oak float the size of a rowing boat lies in a stone well below the tower. The well is joined "
        "to the harbour by a narrow pipe, so the float rises and sinks with the tide but does not feel the waves.",
        "The chain": "A bronze chain runs from the float over the great drum to a counterweight of slate. When the "
        "water rises the counterweight falls, and the drum turns; when the water falls the drum turns back.",
        "The two ratchets": "One ratchet catches the drum on the flood, the other on the ebb. Both push the same "
        "shaft the same way, so that the clock is wound by rising and by falling water alike.",
        "The store of power": "The shaft lifts a cage of eleven stones. A spring tide lifts it to the top, which is "
        "enough for nine days; a neap tide lifts it a third of the way.",
        "The slipping cone": "When the cage is at the top a leather cone begins to slip, and the drum turns without "
        "lifting anything. Without the cone the first spring tide would have torn the chain.",
        "The escapement": "The escapement has two arms of boxwood that drop on pins of steel, a form that nobody has "
        "found in another tower. It ticks once in two seconds and needs no oil.",
        "The pendulum": "The pendulum is four metres long and hangs in a shaft of its own, away from the draught of "
        "the stairs. Its bob is a cannonball, drilled and filled with lead.",
        "The dial of hours": "The dial to the harbour has one hand and twenty-four hours. Fishermen read it from "
        "half a mile out, and nobody there ever asked for minutes.",
        "The dial of water": "The dial to the town shows no time but the height of the water, from two fathoms below "
        "the quay to one above. Its hand is moved by the float alone and is right even when the clock stands still.",
        "The moon ball": "A ball, half black and half gilt, turns once in a lunar month over the dials. It is driven "
        "by a wheel of fifty-nine teeth that was cut twice, because the first one had sixty.",
        "The bell": "The bell is called Old Marrow. It strikes at high water, not on the hour, and by night it is "
        "muffled with a sheepskin that the keeper buttons on.",
        "Oil and grease": "The great drum is greased with sheep's tallow, twice a year; mineral oil made the leather "
        "of the cone hard within a month. Only the pivots of the dials get oil, one drop each.",
    },
    "History": {
        "The founding": "The tower was begun in 1731 with the money of nine herring houses. They had lost two boats "
        "on the bar in one winter, because the pilots had misjudged the water.",
        "The maker": "Hesper Quillon, who made the clock, had been a builder of mill gears. She worked on it for six "
        "years, lived in the tower, and left the town on the day when it first struck.",
        "The quarrel about the hand": "The council wanted two hands on the dial, as in the capital. Quillon sent them "
        "the second hand in a box with a note: it was theirs to hold up to the dial whenever they liked.",
        "The great storm": "In the great storm of 1804 the sea stood over the quay for two tides. The keeper, Ansel "
        "Rook, stayed in the tower and held the slipping cone with wet ropes until the water fell.",
        "The silent years": "From 1848 to 1861 the pipe was blocked with sand and the clock stood still. The dial of "
        "water went on, but a foot too low, and the town laughed at it.",
        "The bar is dredged": "When the bar was dredged in 1862 the pilots no longer needed the tower. It was kept "
        "because a petition with four hundred names, most of them children's, asked for the bell.",
        "The war": "In the war the bell was taken down to be melted. It lay on a siding for three years under turnips "
        "and came back with a crack, which was turned to the wall.",
        "The electric winter": "In 1957 an electric motor was tried in the place of the float. It kept better time, "
        "burnt out in February, and was never spoken of again.",
        "The listing": "The tower was listed as a monument in 1974, and the float with it as a vessel, which makes "
        "it the only clock in the county with a registered tonnage.",
        "The film": "A film was shot in the tower in 1988. The crew stopped the pendulum for a close view, and the "
        "keeper charged them for the eleven minutes that he had to make up by hand.",
    },
    "Keepers": {
        "Who may be keeper": "A keeper must be able to swim, to splice and to be alone. The post is given for life "
        "and comes with a room, a boat and the grass of the tower hill.",
        "The daily round": "The round begins at the turn of the tide, not in the morning. The keeper reads both "
        "dials, feels the chain for warm links and writes the height of the cage into the book.",
        "The book": "There are ninety-one books of the round, without a missing day. Under the day of the great storm "
        "stands one word: wet.",
        "Ansel Rook": "Ansel Rook was keeper for forty-four years. He taught three of his successors, and is said to "
        "have known the water by the sound of the counterweight.",
        "The sisters Tarn": "Ida and Maud Tarn kept the clock together from 1902, as the council could not decide "
        "between them. They shared the round by flood and ebb and are not known to have met at work.",
        "The keeper today": "The keeper today is Jory Pell, who was a diver before. She was chosen in 2015 from "
        "sixty who asked, after a night alone in the tower during a gale.",
        "The boat": "The boat of the post is used to look at the mouth of the pipe at low water. It is painted red "
        "below and green above, so that it can be told from the float in old photographs.",
    },
    "Repairs": {
        "The new float": "The float was made anew in 1890 and in 1996, each time of oak from the same wood. It lasts "
        "about a century; what ends it is not rot but limpets.",
        "Links of the chain": "Every tenth link of the chain can be opened with a pin. One section a year is taken "
        "out and boiled in lye; the clock goes on meanwhile with a rope in its place.",
        "The pipe": "The pipe is cleaned with a brush of whalebone, which is pulled through at the lowest tide of the "
        "year. It takes two people forty minutes and has to be done before the water turns.",
        "The crack in the bell": "The crack was welded in 2003 by a firm that mends ships' propellers. Since then Old "
        "Marrow sounds a little higher, and older people say that high water comes too early.",
        "The leather cone": "The leather of the slipping cone is cut from one hide and stitched wet. It is changed "
        "after each tide that stood over the quay, and at the latest after twelve years.",
        "Worn pins": "The pins of the escapement are turned round every thirty years, so that they wear on the other "
        "side. The boxwood arms have never been changed.",
    },
    "Visiting": {
        "Opening hours": "The tower is open from April to October, from two hours before high water to one hour after. "
        "The hours are different every day; a board on the quay has those of the week.",
        "The stairs": "There are one hundred and sixteen steps and no lift. From the landing below the dials the well "
        "can be seen through a pane of glass, with the float in it.",
        "When to hear the bell": "The bell is loudest from the fish steps. On the two spring tides of the equinox it "
        "is struck by hand, and the sheepskin is auctioned for the lifeboat.",
        "Children": "Children may turn a model of the drum and its two ratchets, with a bucket for the sea. Those who "
        "lift the cage to the top are given a brass pin in the form of a limpet.",
        "What to bring": "Bring warm clothes also in summer: the well breathes with the tide and the air in the tower "
        "is as cold as the sea. Photographs are welcome, flashes are not.",
    },
}

HANDBOOK = tuple(
    Passage(title, chapter, text)
    for chapter, passages in _CHAPTERS.items()
    for title, text in passages.items()
)

WEB = (
    Passage(
        "Cable railway fares",
        "fares.example",
        "The cable railway up to Gannet Head costs 4 crowns, 6 return.",
    ),
    Passage(
        "Weather in Brinewick",
        "weather.example",
        "Sea fog is frequent in June; the wind is mostly from the west.",
    ),
)
