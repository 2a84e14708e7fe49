"""Results of a retrieval in many shapes, and what must hold of the numbers that were written into them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation
from convstore.messages.tokens import approximate_tokens
from convstore.values.models import Source

FIRST = 100_000
"""Numbers above it have six digits, so that they are told from those of the tools."""

_WORDS = (
    "seal", "orca", "dive", "3.5", "km", "(deep)", "ice", "*floe*", "song,", "krill", "[2]", "1.", "first",
    "`b[0]`", '"Aye"', "<b>fin</b>",
)  # fmt: skip
_METADATA: list[Callable[[str], dict[str, Any]]] = [
    lambda name: {"title": name},
    lambda name: {"title": name, "url": f"https://sea.example/{name}"},
    lambda name: {"source": f"book/{name}.pdf", "page": 3, "page_label": "4"},
    lambda name: {"source": f"https://sea.example/{name}", "title": name, "language": "en"},
    lambda name: {"file_path": f"/data/{name}.txt", "creation_date": "2026-11-28"},
    lambda name: {"source": f"{name}.csv", "row": 7},
    lambda name: {"filename": f"{name}.docx", "category": "NarrativeText"},
    lambda name: {"source": f"{name}.md", "Header 1": "Sea", "Header 2": name},
    lambda name: {"name": name, "link": f"https://sea.example/{name}"},
    lambda _name: {"page": 9},
    lambda name: {"id": name, "when": None, "score": 0.5},
    lambda name: {"title": f"{name} " * 40, "url": "https://sea.example/" + "a" * 300},
    lambda _name: {"title": ""},
    lambda _name: {},
]
FORMS = (
    "texts", "numbered", "counted", "words", "elements", "elements counted", "framed", "quoted", "snippets",
    "middles", "titles", "hidden", "empty", "json", "json indented", "some", "fenced", "blocks", "search results",
    "json blocks", "json block", "twice",
)  # fmt: skip


class Made(NamedTuple):
    """A result, and whether it shows each of its passages."""

    message: ToolMessage
    shows: bool
    secrets: list[str]
    texts: list[str]


def make(rng: random.Random, index: int, form: str) -> Made:
    """Return a result of one form. A passage has a word of its own at its beginning, its secret is in no content."""
    count = rng.choice((1, 2, 3, 7))
    names = [f"Name{index}x{n}" for n in range(count)]
    about = rng.choice(_METADATA)
    texts = [
        " ".join([f"Passage{index}x{n}", *rng.choices(_WORDS, k=30), rng.choice(("\n", "\n\n", " ")),
                  f"Middle{index}x{n} " + "of the passage " * 4, "end."])
        for n in range(count)
    ]  # fmt: skip
    secrets = [f"SECRET{index}x{n}" for n in range(count)]
    content = _content(form, texts, [f"{name}: see" for name in names])
    items = [
        Document(f"{text} {secret}", metadata={**about(name), "acl": secret})
        for text, name, secret in zip(texts, names, secrets, strict=True)
    ]
    shows = form not in ("titles", "hidden", "empty", "some", "fenced")
    id_ = f"result-{index}"
    message = ToolMessage(content, artifact=items, tool_call_id=id_, id=id_, name="search")
    return Made(message, shows, secrets, texts)


def _content(form: str, texts: list[str], heads: list[str]) -> Any:
    joined = list(enumerate(texts, 1))
    items = [
        {"title": head, "rank": n, "snippet": text}
        for (n, text), head in zip(joined, heads, strict=True)
    ]
    forms: dict[str, Callable[[], Any]] = {
        "texts": lambda: "\n\n".join(texts),
        "numbered": lambda: "Best is [1].\n" + "\n\n".join(f"[{n}] {heads[n - 1]}\n{text}" for n, text in joined),
        "counted": lambda: "\n".join(f"{n}. {text}" for n, text in joined) + "\n(2 of 371 hits)",
        "words": lambda: "\n".join(f"Source {n}:\n{text}" for n, text in joined),
        "elements": lambda: "".join(f"<passage>{text}</passage>" for text in texts),
        "elements counted": lambda: "<all>" + "".join(f'<doc id="{n - 1}">{text}</doc>' for n, text in joined),
        "framed": lambda: "IMPORTANT: VAT.\n" + "\n---\n".join(f"Text: {text}" for text in texts) + "\n(page 1)",
        "quoted": lambda: "\n".join(f"“{text.splitlines()[0]}”" for text in texts),
        "snippets": lambda: "\n\n".join(f"- {text[:90]}…" for text in texts),
        "middles": lambda: "\n".join(f"…{text[text.index('Middle') :]}…" for text in texts),
        "titles": lambda: "\n".join(heads),
        "hidden": lambda: f"{len(texts)} hits.",
        "empty": lambda: "",
        "json": lambda: '{"x": 1.10, "n": 1e5, "results": ' + json.dumps(items) + "}",
        "json indented": lambda: json.dumps(items, indent=2, ensure_ascii=False),
        "some": lambda: "\n\n".join(texts[1:]) + "\nAnd one more.",
        "fenced": lambda: "```\n" + "\n".join(texts) + "\n```",
        "blocks": lambda: [{"type": "text", "text": text} for text in texts],
        "search results": lambda: [
            {"type": "search_result", "source": "https://a", "title": head, "content": [{"type": "text", "text": text}]}
            for text, head in zip(texts, heads, strict=True)
        ],
        "json blocks": lambda: [{"type": "text", "text": json.dumps(item)} for item in items],
        "json block": lambda: [
            {"type": "text", "text": text} for text in ("Found:", json.dumps({"results": items}))
        ],
        "twice": lambda: "\n".join(heads) + "\n\n" + "\n\n".join(texts),
    }  # fmt: skip
    return forms[form]()


async def append_hidden(chat: Conversation) -> dict[str, Any]:
    """Append a result whose artifact has a field that its content lacks; return the arguments that look for it."""
    found = [Document("Owls sleep.", metadata={"acl": "SECRET"})]
    result = ToolMessage("1 hit", artifact=found, tool_call_id="call-search", id="hidden")
    asked = AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "call-search"}])
    await chat.append([HumanMessage("q"), asked, result, AIMessage("So [1].")])
    return {"tool_message_ids": ["hidden"], "find": "SECRET"}


def check_hidden(page: str, *, artifact: bool) -> None:
    """A page that answers the arguments of `append_hidden` has the field if the rest of artifacts is shown."""
    assert page.startswith("No match for 'SECRET'") != artifact
    assert ('"acl":"SECRET"' in page) == artifact


def flat(content: Any) -> str:
    """Return a content as text, with all that its blocks have."""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def check_content(result: Made, shown: Any, sources: Sequence[Source]) -> None:
    """The content less the numbers is that of the tool, but for its own marks; it has nothing else of the artifact."""
    before = flat(result.message.content)
    after = flat(shown)
    assert not any(secret in after for secret in result.secrets)
    left = re.sub(r"\[(1\d{5})\] |(\\?\")source_id\2: (1\d{5}), ", "", after)
    numbers = [source.source_id for source in sources]
    if left != before and not _is_counted(before, after, numbers):
        assert not result.shows, (before, after)
        assert _named_above(result.message.content, shown, sources), (before, after)
    assert all(text in after for text in result.texts if text in before), (before, after)
    added = _tokens(shown) - _tokens(result.message.content)
    assert added <= (12 if result.shows else 30) * len(numbers) + 1, (before, after)


def _is_counted(before: str, after: str, numbers: Sequence[int]) -> bool:
    """Return True if only the digits of marks differ, which count from 0 or 1 before and have the numbers after."""
    if re.sub(r"\d+", "", before) != re.sub(r"\d+", "", after):
        return False
    pairs = list(zip(re.findall(r"\d+", before), re.findall(r"\d+", after), strict=True))
    changed = [(int(old), int(new)) for old, new in pairs if old != new]
    return any(
        all(new in numbers and numbers.index(new) == old - first for old, new in changed)
        for first in (0, 1)
    )


def _named_above(content: Any, shown: Any, sources: Sequence[Source]) -> bool:
    """Return True if lines above the content name the sources in order, by their headings alone."""
    if isinstance(content, list):
        lines = shown[0]["text"]
        is_whole = shown[1:] == content
    else:
        lines = shown.removesuffix(content).removesuffix("\n\n" if content else "")
        is_whole = shown.endswith(content)
    named = list(zip(lines.split("\n"), sources, strict=True))
    return is_whole and all(_names(line, source) for line, source in named)


def _names(line: str, source: Source) -> bool:
    """Return True if a line is number, title and address of a source, or the beginning of these."""
    address = f"({source.url})" if source.url else ""
    title = " ".join(source.title.split())
    heading = " ".join(filter(None, [f"[{source.source_id}]", title, address]))
    return line.startswith(f"[{source.source_id}]") and heading.startswith(line.removesuffix(" …"))


def _tokens(content: Any) -> int:
    return approximate_tokens([ToolMessage(content, tool_call_id="1")])


def check_beside(shown: str, source: Source) -> None:
    """The first passage that begins after a number, or stands around it, is that of the number."""
    places = [found.start() for found in re.finditer(str(source.source_id), shown)]
    own = re.findall(r"(?:Passage|Middle)(\d+x\d+)", source.content)[0]
    after = shown[places[-1] :]
    beside = re.search(r"(?:Passage|Middle)(\d+x\d+)", after)
    assert beside, shown
    assert beside[1] == own, (shown, source.source_id)
