"""Numbers in what a tool wrote: its characters stay, its artifact stays hidden, and each number means its passage."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore
from convstore.messages.tokens import approximate_tokens
from convstore.sources.numbering import sources_in, with_numbers
from convstore.values.models import Source

_WORDS = [
    *(
        "seal",
        "orca",
        "dive",
        "3.5",
        "km",
        "(deep)",
        "ice",
        "*floe*",
        "song,",
        "krill",
        "[2]",
        "1.",
    ),
    *("first", "`b[0]`", '"Aye"', "<b>fin</b>"),
]
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
_FORMS = (
    *("texts", "numbered", "counted", "words", "elements", "elements counted", "framed", "quoted"),
    *(
        "snippets",
        "middles",
        "titles",
        "hidden",
        "empty",
        "json",
        "json indented",
        "some",
        "fenced",
    ),
    *("blocks", "search results", "json blocks", "json block", "twice"),
)


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
        "json block": lambda: ["Found:", {"type": "text", "text": json.dumps({"results": items})}],
        "twice": lambda: "\n".join(heads) + "\n\n" + "\n\n".join(texts),
    }  # fmt: skip
    return forms[form]()


def _flat(content: Any) -> str:
    """Return a content as text, with all that its blocks have."""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


async def check(made: list[Made], store: ConversationStore) -> None:
    """Number results, append them, and compare what the model is shown with the tool's content and with the log."""
    chat = store.conversation(user_id="ada", thread_id="t")
    first = 100_000
    numbered = list[ToolMessage]()
    for result in made:
        found = sources_in(result.message, {})
        numbers = range(first + 1, first + 1 + len(found.items))
        first = numbers[-1]
        message = with_numbers(result.message, found, (numbers, [None] * len(numbers)))
        numbered.append(message)
        _check_content(result, message, [str(number) for number in numbers])
    calls = [{"name": "search", "args": {}, "id": result.message.tool_call_id} for result in made]
    await chat.append([HumanMessage("q"), AIMessage("", tool_calls=calls), *numbered])
    records = await chat.get_tool_messages([str(message.id) for message in numbered])
    for result, message, record in zip(made, numbered, records, strict=True):
        assert record.content == message.content
        shown = _flat(message.content)
        for source in record.sources:
            assert str(source.source_id) in shown, (message.content, source)
            if result.shows:
                _check_beside(shown, source)
    await _check_citations(chat, [source for record in records for source in record.sources])


async def _check_citations(chat: Conversation, sources: list[Source]) -> None:
    """An answer that cites all numbers cites these sources, and each number reads its passage."""
    answer = AIMessage(" ".join(f"[{source.source_id}]" for source in sources))
    cited = await chat.citations(answer)
    wanted = [(source.source_id, source.tool_message_id) for source in sources]
    assert [(each.source_id, each.tool_message_id) for each in cited] == wanted
    sampled = sources[:: len(sources) // 20]
    page = await chat.get_sources([source.source_id for source in sampled], page_tokens=16_000)
    assert [source.content for source in page.sources] == [source.content for source in sampled]


def _check_content(result: Made, message: ToolMessage, numbers: list[str]) -> None:
    before = _flat(result.message.content)
    after = _flat(message.content)
    assert not any(secret in after for secret in result.secrets)
    left = re.sub(r"\[(1\d{5})\] |(\\?\")source_id\2: (1\d{5}), ", "", after)
    whole = before[1:] if isinstance(result.message.content, list) else before
    is_above = not result.shows and left.endswith(whole)
    is_counted = re.sub(r"\d+", "", after) == re.sub(r"\d+", "", before)
    assert left == before or is_above or is_counted, (before, after)
    assert all(text in after for text in result.texts if text in before), (before, after)
    tokens = [
        approximate_tokens([each.model_copy(update={"artifact": None})])
        for each in (message, result.message)
    ]
    assert tokens[0] - tokens[1] <= (12 if result.shows else 30) * len(numbers) + 1, (before, after)


def _check_beside(shown: str, source: Source) -> None:
    """The first passage that begins after a number, or stands around it, is that of the number."""
    places = [found.start() for found in re.finditer(str(source.source_id), shown)]
    own = re.findall(r"(?:Passage|Middle)(\d+x\d+)", source.content)[0]
    after = shown[places[-1] :]
    beside = re.search(r"(?:Passage|Middle)(\d+x\d+)", after)
    assert beside, shown
    assert beside[1] == own, (shown, source.source_id)


async def _run(seed: int, count: int) -> None:
    rng = random.Random(seed)
    made = [make(rng, index, _FORMS[index % len(_FORMS)]) for index in range(count)]
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        await check(made, store)


async def test_numbers_are_added_and_nothing_else_changes() -> None:
    """200 results: each character stays, no secret is shown, and each number is beside the passage that it reads."""
    await _run(seed=7, count=200)


def test_a_text_among_blank_ones_keeps_its_number() -> None:
    """A list in which only one text is a source is found again with its number, in an artifact of its own form."""
    message = ToolMessage("Seals sleep.", artifact=["Seals sleep.", " "], tool_call_id="1")
    numbered = with_numbers(message, sources_in(message, {}), ([7], [None]))
    assert numbered.content == "[7] Seals sleep."
    assert [source.kept_id for source in sources_in(numbered, {}).items] == [7]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
async def test_numbers_are_added_and_nothing_else_changes_in_many_results(seed: int) -> None:
    """The same for 2,000 results."""
    await _run(seed=seed, count=200)
