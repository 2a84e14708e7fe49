"""Turn stored text into harmless, readable text: control characters made visible, JSON indented, Markdown rendered.

Floor 7. Every value that a template prints passes through `visible`. Stored text is never trusted: Markdown is rendered
without raw HTML and without images, and only http and https addresses become links.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

__all__ = ["Clip", "clip", "finalize", "pretty", "rendered", "slices_of", "visible"]

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Characters that steer a terminal, reorder text, are invisible, or cannot be encoded."""

_LINK = re.compile(r"https?://[^\s]+", re.IGNORECASE)


def visible(text: str) -> str:
    r"""Replace characters that are invisible or change the order of text by a visible name.

    >>> visible("a\x00b\u202ec"), visible("line\none")
    ('a␀b⟨U+202E⟩c', 'line\none')
    """
    return _HIDDEN.sub(lambda found: _name(found[0]), text.replace("\r\n", "\n"))


def _name(character: str) -> str:
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def finalize(value: Any) -> Any:
    """Make a value visible before a template escapes it; markup that this package made stays as it is."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(value)


class Clip(str):
    """The beginning of a text.

    Attributes:
        left: Number of characters that were left out.
    """

    left: int

    def __new__(cls, text: str, left: int) -> Clip:
        """Make a clip of a text, of which `left` characters are missing."""
        clip = super().__new__(cls, text)
        clip.left = left
        return clip


def clip(text: str, limit: int) -> Clip:
    """Return the beginning of a text that takes at most about `limit` bytes in a page.

    >>> clip("abc", 10), clip("abcdef" * 10, 12).left
    ('abc', 48)
    """
    begin = text[:limit]
    size = len(escapeHtml(visible(begin)).encode("utf-8", "replace"))
    if size > limit:
        begin = begin[: limit * len(begin) // size]
    return Clip(begin, len(text) - len(begin))


def slices_of(length: int, size: int) -> int:
    """Return the number of pages of a text; an empty text has one.

    >>> slices_of(0, 10), slices_of(10, 10), slices_of(11, 10)
    (1, 1, 2)
    """
    return max(1, -(-length // size))


def pretty(text: str, *, limit: int = 20_000) -> str:
    r"""Indent a text that is a JSON object or list; return any other text, and a long one, as it is.

    >>> pretty('{"a": [1, 2]}')
    '{\n  "a": [\n    1,\n    2\n  ]\n}'
    >>> pretty("[1] is a citation")
    '[1] is a citation'
    """
    if len(text) > limit or text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


class _Renderer(RendererHTML):
    """Renders links that open safely, and images as their text."""

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        text = self.renderInlineAsText(token.children, options, env) if token.children else ""
        return f'<span class="image">[image: {escapeHtml(text or str(token.attrs.get("src", "")))}]</span>'

    def th_open(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        tokens[index].attrs.pop("style", None)  # the content security policy forbids inline styles
        return self.renderToken(tokens, index, options, env)

    td_open = th_open

    def link_open(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        tokens[index].attrSet("rel", "noreferrer noopener")
        tokens[index].attrSet("target", "_blank")
        return self.renderToken(tokens, index, options, env)


def _markdown() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": 20}, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"])
    parser.validateLink = lambda url: bool(_LINK.fullmatch(url))  # type: ignore[method-assign]
    return parser


_MARKDOWN = _markdown()


def rendered(text: str) -> Markup:
    """Render Markdown without raw HTML; a text whose markup would be much larger than itself is shown as it is."""
    shown = visible(text)
    html = visible(_MARKDOWN.render(shown))  # once more, because Markdown decodes character references
    if len(html) > 4 * len(shown) + 1_000:
        html = f"<p>{escapeHtml(shown)}</p>"
    return Markup(html)  # noqa: S704 - the parser escapes everything but its own tags
