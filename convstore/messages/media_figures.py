"""A table of the tokens of images, pages, audio and video for each provider.

A row is chosen by the name of a provider or by the beginning of a model's name; users may pass a row of their own, such
as ``replace(MediaFigures.named("openai"), page_text=300)``. Sources, as of November 2026:

- OpenAI, "Images and vision" (tiles, patches, low detail), "File inputs" (a page is its text and an image of it), and
  the usage of audio models (10 tokens for a second of a user, 20 of a model).
- Anthropic, "Images and vision" (patches of 28 pixels, 1,568 or 4,784 at most) and "PDF support" (7,000 tokens for
  three pages).
- Google, "Understand and count tokens" (tiles, seconds) and "Media resolution" (Gemini 3).

Media that a provider does not accept are sent as a text that describes them. This module does not read messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from convstore.exceptions import InvalidInputError
from convstore.messages.media_sizes import MediaSize

UNMEASURED_TOKENS: Final = 1_000
"""Tokens of media that cannot be measured: the block has only an address or an id, or an image without a header."""
NAMED_TOKENS: Final = 40
"""Tokens of a text that describes media which the provider does not accept."""
TEXT_TOKENS: Final = 750
"""Tokens of the text of a page: Anthropic's 2,350 tokens for a page minus those of its image."""

_PAGE_PIXELS: Final = (1_024, 1_325)
"""Width and height of a page as an image: A4 in the approximate size that providers read."""
_CHARACTERS_PER_TOKEN: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFigures:
    """Tokens of an image: a base, and more for each square that covers the image after it was scaled down.

    Attributes:
        base: Tokens of an image of any size.
        square: Tokens of a square.
        pixels: Side of a square in pixels.
        most: Maximum number of squares; a larger image is scaled down.
        longest: Pixels to which the longer side is scaled down first, None without a limit.
        shortest: Pixels to which the shorter side is scaled down then, None without a limit.
        low: Tokens of an image in low detail; None if the provider does not have it.
    """

    base: int = 0
    square: float = 1
    pixels: int = 28
    most: int = 1_600
    longest: int | None = None
    shortest: int | None = None
    low: int | None = None

    def tokens(self, width: int, height: int) -> int:
        """Return the tokens of an image with this width and height in pixels.

        >>> ImageFigures(most=1_568).tokens(280, 560), ImageFigures(most=1_568).tokens(4_000, 3_000)
        (200, 1568)
        >>> tiles = ImageFigures(base=85, square=170, pixels=512, longest=2_048, shortest=768)
        >>> tiles.tokens(1_024, 1_024), tiles.tokens(2_048, 4_096), tiles.tokens(200, 200)
        (765, 1105, 255)
        """
        scale = 1.0
        if self.longest:
            scale = max(scale, max(width, height) / self.longest)
        if self.shortest:
            scale = max(scale, min(width, height) / self.shortest)
        across = math.ceil(width / scale / self.pixels)
        down = math.ceil(height / scale / self.pixels)
        squares = max(1, min(across * down, self.most))
        return self.base + math.ceil(self.square * squares)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFigures:
    """Tokens of media by the rules of one provider.

    Attributes:
        image: Tokens of an image by its pixels.
        page_text: Tokens of the text of a PDF page.
        page_image: Tokens of the image of a page; None to count it as an image of a page's size.
        audio: Tokens for a second of audio, None if audio is not accepted.
        own_audio: Tokens for a second of audio that a model spoke; None to use `audio`.
        video: Tokens for a second of video with sound, None if video is not accepted.
    """

    image: ImageFigures
    page_text: int = TEXT_TOKENS
    page_image: int | None = None
    audio: float | None = None
    own_audio: float | None = None
    video: float | None = None

    @staticmethod
    def named(name: str) -> MediaFigures:
        """Return the figures of a provider or a model by its name; `UNKNOWN` for any other name.

        >>> MediaFigures.named("openai").image.tokens(512, 512)
        255
        >>> MediaFigures.named("models/gemini-3-pro").image.tokens(512, 512)
        1120

        Raises:
            InvalidInputError: The name is not a text.
        """
        if not isinstance(name, str):
            raise InvalidInputError("the name of a provider or a model must be a str")
        return _named(name.lower())

    def tokens(self, size: MediaSize, *, by_model: bool = False) -> int:
        """Return the tokens of an image, a file or a recording; `by_model` is True if a model made it.

        >>> MediaFigures.named("anthropic").tokens(MediaSize("pdf", 400_000, (14,)))
        32900
        """
        if size.is_image:
            return self._image(size)
        if size.kind == "text":
            return math.ceil(size.length / _CHARACTERS_PER_TOKEN)
        if not size.shape:
            return UNMEASURED_TOKENS
        [amount] = size.shape
        if size.kind == "audio":
            is_own = by_model and self.own_audio is not None
            return _by_time(amount, self.own_audio if is_own else self.audio)
        if size.kind == "video":
            return _by_time(amount, self.video)
        text = 0 if size.kind == "scan" else self.page_text
        return (text + self._page_image) * amount

    def _image(self, size: MediaSize) -> int:
        if size.kind == "thumbnail" and self.image.low is not None:
            return self.image.low
        if not size.shape:
            return UNMEASURED_TOKENS
        width, height = size.shape
        return self.image.tokens(width, height)

    def all_tokens(self, sizes: Iterable[MediaSize], *, by_model: bool = False) -> int:
        """Return the total tokens of some media."""
        return sum([self.tokens(size, by_model=by_model) for size in sizes])

    @property
    def _page_image(self) -> int:
        if self.page_image is not None:
            return self.page_image
        return self.image.tokens(*_PAGE_PIXELS)


def _by_time(milliseconds: int, rate: float | None) -> int:
    """Return the tokens of a recording; if `rate` is None, those of a text that describes it."""
    if rate is None:
        return NAMED_TOKENS
    return math.ceil(milliseconds / 1_000 * rate)


UNKNOWN: Final = MediaFigures(
    image=ImageFigures(), page_text=800, page_image=1_600, audio=32, video=300
)
"""Figures for an unknown provider and model: approximately the highest ones of all providers."""


def _tiles(base: int, tile: int) -> MediaFigures:
    image = ImageFigures(base=base, square=tile, pixels=512, longest=2_048, shortest=768, low=base)
    return MediaFigures(image=image, audio=10, own_audio=20)


def _patches(factor: float) -> MediaFigures:
    low = math.ceil(256 * factor)
    image = ImageFigures(square=factor, pixels=32, most=1_536, low=low)
    return MediaFigures(image=image, audio=10, own_audio=20)


def _claude(most: int, longest: int) -> MediaFigures:
    return MediaFigures(image=ImageFigures(most=most, longest=longest), page_image=1_600)


_CLAUDE: Final = _claude(1_568, 1_568)
_CLAUDE_NEWEST: Final = _claude(4_784, 2_576)
_GEMINI_2: Final = MediaFigures(
    image=ImageFigures(square=258, pixels=768, most=100),
    page_text=0,
    page_image=258,
    audio=32,
    video=263,
)
_GEMINI_3: Final = MediaFigures(
    image=ImageFigures(base=1_120, square=0), page_text=0, page_image=560, audio=32, video=70 + 32
)

FIGURES: Final = {
    "anthropic": _CLAUDE_NEWEST,
    "bedrock_converse": UNKNOWN,
    "google_genai": _GEMINI_3,
    "mistralai": UNKNOWN,
    "openai": _tiles(85, 170),
}
"""Figures by the name of a provider: those of its newest models, or the highest ones."""

_MODELS: Final = {
    "claude": _CLAUDE_NEWEST,
    "claude-2": _CLAUDE,
    "claude-3": _CLAUDE,
    "claude-haiku-4": _CLAUDE,
    "claude-opus-4": _CLAUDE,
    "claude-opus-4-7": _CLAUDE_NEWEST,
    "claude-opus-4-8": _CLAUDE_NEWEST,
    "claude-sonnet-4": _CLAUDE,
    "gemini": _GEMINI_3,
    "gemini-1": _GEMINI_2,
    "gemini-2": _GEMINI_2,
    "gpt": FIGURES["openai"],
    "gpt-4.1-mini": _patches(1.62),
    "gpt-4.1-nano": _patches(2.46),
    "gpt-5": _tiles(70, 140),
    "gpt-5-mini": _patches(1.62),
    "gpt-5-nano": _patches(2.46),
    "o1": FIGURES["openai"],
    "o3": FIGURES["openai"],
    "o4-mini": _patches(1.72),
}
"""Figures by the beginning of a model's name; the longest match is used."""


def _named(name: str) -> MediaFigures:
    if name in FIGURES:
        return FIGURES[name]
    spelled = name.rpartition("/")[2]
    starts = [start for start in _MODELS if spelled.startswith(start) or f".{start}" in spelled]
    longest = max(starts, key=len, default=None)
    return UNKNOWN if longest is None else _MODELS[longest]
