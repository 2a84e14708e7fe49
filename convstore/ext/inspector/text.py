"""Make stored text safe and readable: control characters become visible, JSON is indented, Markdown is rendered.

Every value that a template prints passes through `visible`. Stored text is never trusted: Markdown is rendered without
raw HTML and without images, and only http and https addresses become links.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import unescape
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

from convstore.ext.inspector.images import is_image
from convstore.messages.media import block_type, is_media, media_description
from convstore.messages.reasoning import is_reasoning
from convstore.messages.text import text_of
from convstore.sources.detection import parse_json
from convstore.sources.marks import marks_in
from convstore.sources.numbering import numbers_shown
from convstore.sources.shortening import is_image_placeholder
from convstore.types import ToolRecord
from convstore.wire.contents import reasoning_part

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Characters that control a terminal, reorder text, are invisible, or cannot be encoded."""

_LINK = re.compile(r"https?://[^\s]+", re.IGNORECASE)

_BRACKETS = re.compile(
    r"<(a|code|pre)\b.*?</\1>|<[^>]*>|(?P<cited>[\[【][^\[\]【】<>\n]{1,200}[\]】])", re.DOTALL
)
"""A link, code, a tag, or text in brackets in rendered Markdown."""

_NUMBER = re.compile(r"(?<![\w†])\d{1,9}")

_FIELDS = {
    "tool calls": "tool_calls",
    "invalid tool calls": "invalid_tool_calls",
    "usage": "usage_metadata",
    "response metadata": "response_metadata",
    "additional fields": "additional_kwargs",
}
"""Fields of messages that a page shows as JSON, by their heading."""

_CALLS = frozenset({"tool_use", "tool_call", "function_call"})
"""Types of blocks that repeat the calls of their message."""

_TextPart: TypeAlias = tuple[str, str, bool, int]
_FEW = 60
"""A text is not cut to save so few characters, because a link to the rest would need as much space."""

_MARKDOWN_TYPES = frozenset({"human", "ai", "system"})


def visible(text: str) -> str:
    r"""Replace characters that are invisible or change the order of text by visible names.

    >>> visible("a\x00b\u202ec"), visible("line\none")
    ('a␀b⟨U+202E⟩c', 'line\none')
    """
    return _HIDDEN.sub(lambda found: _name(found[0]), text.replace("\r\n", "\n"))


def _name(character: str) -> str:
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def finalize(value: Any) -> Any:
    """Make a text visible before a template escapes it; markup of this package and other values are unchanged."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(value)


def clip(text: str, limit: int) -> str:
    """Return the beginning of a text that takes at most about `limit` bytes in a page.

    >>> clip("abc", 10), len(clip("abcdef" * 10, 12))
    ('abc', 12)
    """
    begin = text[:limit]
    size = len(escapeHtml(visible(begin)).encode("utf-8", "replace"))
    return begin if size <= limit else begin[: limit * len(begin) // size]


def shorten(text: str, limit: int) -> str:
    """Return a text, or its beginning of at most about `limit` bytes and an ellipsis.

    >>> shorten("abc", 10), shorten("abcdef", 3)
    ('abc', 'abc…')
    """
    beginning = clip(text, limit)
    return text if len(beginning) == len(text) else f"{beginning}…"


def shorten_at_word(text: str, limit: int) -> str:
    """Return a text, or its beginning and an ellipsis. It is cut after a word, unless less than half would be left.

    >>> shorten_at_word("one two three", 9), shorten_at_word("o " + "x" * 20, 9)
    ('one two…', 'o xxxxxxx…')
    """
    beginning = clip(text, limit)
    if len(beginning) == len(text):
        return text
    before, _, last = beginning.rpartition(" ")
    is_between = text[len(beginning)].isspace()
    whole = beginning if is_between or len(last) > limit // 2 else before or beginning
    return f"{whole.rstrip(' ,;:')}…"


def marked(text: str, marks: Callable[[str], list[tuple[int, int]]]) -> list[str]:
    """Split a text into parts; every second part is marked.

    >>> marked("Two seals bark.", lambda text: [(4, 9)])
    ['Two ', 'seals', ' bark.']
    """
    edges = [0, *(edge for mark in marks(text) for edge in mark), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def pretty(text: str, *, limit: int = 20_000) -> str:
    r"""Indent a text that is a JSON object or list; any other text, and a long one, is unchanged.

    >>> pretty('{"a": [1, 2]}')
    '{\n  "a": [\n    1,\n    2\n  ]\n}'
    >>> pretty("[1] is a citation")
    '[1] is a citation'
    """
    value = parse_json(text) if len(text) <= limit else None
    return text if value is None else as_json(value)


class _Renderer(RendererHTML):
    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        text = self.renderInlineAsText(token.children, options, env) if token.children else ""
        return (
            '<span class="image">[image: '
            f"{escapeHtml(text or str(token.attrs.get('src', '')))}]</span>"
        )

    def th_open(
        self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
    ) -> str:
        tokens[index].attrs.pop("style", None)  # the content security policy forbids inline styles
        return self.renderToken(tokens, index, options, env)

    td_open = th_open

    def link_open(
        self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
    ) -> str:
        tokens[index].attrSet("rel", "noreferrer noopener")
        tokens[index].attrSet("target", "_blank")
        return self.renderToken(tokens, index, options, env)


def _markdown() -> MarkdownIt:
    parser = MarkdownIt(
        "commonmark", {"html": False, "breaks": True, "maxNesting": 20}, renderer_cls=_Renderer
    )
    parser.enable(["table", "strikethrough"])
    parser.validateLink = lambda url: bool(_LINK.fullmatch(url))  # type: ignore[method-assign]
    return parser


_MARKDOWN = _markdown()


def rendered(text: str) -> Markup:
    """Render Markdown without raw HTML; if the markup would be much larger than the text, the text is not rendered."""
    shown = visible(text)
    # applied again, because Markdown decodes character references
    html = visible(_MARKDOWN.render(shown))
    if len(html) > 4 * len(shown) + 1_000:
        html = f"<p>{escapeHtml(shown)}</p>"
    return Markup(html)  # noqa: S704 - the parser escapes everything but its own tags


class BodyPart(NamedTuple):
    """A part of a message: its heading, its text, plain or as markup, and the number of its image, 0 without one."""

    heading: str
    text: str | Markup
    is_code: bool = False
    image: int = 0


class Body(NamedTuple):
    """The beginning of a message in parts, with its id and the number of characters left out."""

    id: str
    pieces: list[BodyPart]
    left: int


def body_of(
    message: BaseMessage,
    limit: int,
    *,
    is_plain: bool = False,
    is_stored: bool = False,
    with_calls: bool = True,
) -> Body:
    """Return the beginning of a message, of about `limit` bytes; with `is_plain` Markdown is not rendered.

    Pass `is_stored` for a message of the log, so that its images are shown.
    """
    pieces: list[BodyPart] = []
    left = 0
    for heading, whole, is_markdown, image in _texts(message, with_calls=with_calls):
        number = image if is_stored else 0
        text = _without_image(whole, number)
        beginning = _beginning(text, limit)
        left += len(text) - len(beginning)
        limit -= len(beginning)
        if text and not beginning:
            continue
        if len(beginning) < len(text):
            beginning += "…"
        is_code = is_plain or not is_markdown
        shown = beginning if is_code else rendered(beginning)
        if shown or heading:
            pieces.append(BodyPart(heading, shown, is_code, number))
    return Body(str(message.id), pieces, left)


def _without_image(text: str, number: int) -> str:
    """Return a text; for the placeholder of a numbered image, only its description, which is shown below the image."""
    if not number:
        return text
    return text[1:].partition("; left out")[0].rstrip("]")


def _beginning(text: str, limit: int) -> str:
    """Return about `limit` bytes of a text, or the whole text if only a few characters would be cut."""
    beginning = clip(text, max(limit, 0))
    if beginning and len(text) - len(beginning) <= _FEW:
        return text
    return beginning


def sent_text(message: BaseMessage) -> str:
    """Return the text that a model gets for a message: its texts, then its calls; images and files are described."""
    content = [message.content] if isinstance(message.content, str) else message.content
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    texts = [_sent_block(block) for block in content] + [
        (
            f"{call['id']}  "
            f"{call['name']}({json.dumps(call['args'], ensure_ascii=False, default=repr)})"
        )
        for call in calls
    ]
    return "\n".join(text for text in texts if text)


def _sent_block(block: Any) -> str:
    if isinstance(block, dict) and is_media(block):
        return f"[{media_description(block)}]"
    text = block if isinstance(block, str) else _text_in(block)
    return as_json(block) if text is None else text


def first_line(message: BaseMessage, limit: int) -> str:
    """Return the beginning of a message in one line, without its calls."""
    text = next((text for _, text, _, _ in _texts(message, with_calls=False) if text.strip()), "")
    line = shorten(" ".join(text[: 4 * limit].split()), limit)
    return line if len(text) <= 4 * limit or line.endswith("…") else f"{line}…"


def with_citations(body: Body, address: str, sources: Mapping[int, int]) -> Body:
    """Link the citations in rendered Markdown to their sources; `sources` maps numbers of the text to sources.

    >>> cited = Body("id", [BodyPart("", Markup("<p>Fish [2, 9]. <code>[2]</code></p>"))], 0)
    >>> print(with_citations(cited, "/sources/{}", {2: 12}).pieces[0].text)
    <p>Fish [<a class="cite" href="/sources/12">2</a>, 9]. <code>[2]</code></p>
    """

    def link(found: re.Match[str]) -> str:
        number = found[0]
        source = sources.get(int(number))
        if source is None:
            return number
        href = escapeHtml(address.replace("{}", str(source)))
        return f'<a class="cite" href="{href}">{number}</a>'

    def cited(found: re.Match[str]) -> str:
        is_mark = found["cited"] and marks_in(unescape(found["cited"]))
        return _NUMBER.sub(link, found[0]) if is_mark else found[0]

    def linked(piece: BodyPart) -> BodyPart:
        if not isinstance(piece.text, Markup):
            return piece
        text = _BRACKETS.sub(cited, piece.text)
        return piece._replace(text=Markup(text))  # noqa: S704 - only links around digits were added

    return body._replace(pieces=[linked(piece) for piece in body.pieces])


def own_numbers(record: ToolRecord) -> dict[int, int]:
    """Return the sources by their numbers in a result's text, if these differ from the sources' own numbers."""
    shown = numbers_shown(record.content, record.sources) if record.sources else {}
    return {number: source for number, source in shown.items() if number != source}


def whole_parts(message: BaseMessage, artifact: Any = None) -> dict[str, str]:
    """Return the non-empty parts of a message as text, by name; an empty content if there are none."""
    content = message.content
    parts = {"content": content if isinstance(content, str) else as_json(content)}
    if artifact is not None:
        parts["artifact"] = as_json(artifact)
    parts |= {
        name: as_json(value)
        for name, field in _FIELDS.items()
        if (value := getattr(message, field, None))
    }
    return {name: text for name, text in parts.items() if text} or {"content": ""}


def as_json(value: Any) -> str:
    """Return a value as indented JSON; values that JSON does not support are written as their `repr`."""
    try:
        return json.dumps(value, indent=2, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        return text_of(value)


def _texts(message: BaseMessage, *, with_calls: bool) -> Iterator[_TextPart]:
    """Yield the heading and text of each part of a message, True if it may be Markdown, and the number of its image."""
    content = message.content
    for number, block in enumerate([content] if isinstance(content, str) else content, 1):
        part = _part_of(message, block, number)
        if part:
            yield part
    if isinstance(message, AIMessage):
        for invalid in message.invalid_tool_calls:
            heading = f"calls {invalid.get('name')} with invalid arguments"
            yield heading, str(invalid.get("args") or ""), False, 0
        for call in message.tool_calls if with_calls else ():
            yield f"calls {call['name']}", as_json(call["args"]), False, 0


def _part_of(message: BaseMessage, block: Any, number: int) -> _TextPart | None:
    """Return the part for a block, as `_texts` yields it; None for a call that has a part of its own."""
    if isinstance(block, dict) and is_media(block):
        return "", f"[{media_description(block)}]", False, number if is_image(block) else 0
    text = block if isinstance(block, str) else _text_in(block)
    if text is None:
        return _other_part(message, block)
    if is_image_placeholder(text):
        return "", text, False, number
    if message.type in _MARKDOWN_TYPES:
        return "", text, True, 0
    return "", pretty(text), False, 0


def _other_part(message: BaseMessage, block: Any) -> _TextPart | None:
    kind = block_type(block)
    if kind in _CALLS and isinstance(message, AIMessage) and message.tool_calls:
        return None
    reasoning = ""
    if isinstance(block, dict) and is_reasoning(block):
        reasoning = reasoning_part(block)["text"]
    return kind or "content", reasoning or as_json(block), False, 0


def _text_in(block: Any) -> str | None:
    text = block.get("text") if block_type(block) == "text" else None
    return text if isinstance(text, str) else None
