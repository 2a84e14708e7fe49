"""Conversations for `reach.py`: turns with known answers, padded with generated turns, and runs of the MTRAG data set.

The folder ``conversations`` holds the turns and questions as TOML, and the sentences of the generator. The words that
answer a question stand between ⟦ and ⟧; the brackets are removed before a message is appended. Half of the questions,
chosen by a hash of their ids, is held out: nothing is tuned on them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore.messages.tokens import approximate_tokens

__all__ = [
    "STRATA",
    "LongConversation",
    "Question",
    "content_words",
    "is_relevant",
    "mtrag",
    "own",
    "plain",
    "text_of",
]

STRATA = ("same words", "some words", "paraphrase", "several", "MTRAG")
SHARED = {"same words": (0.4, 1.0), "some words": (0.1, 0.6), "paraphrase": (0.0, 0.2)}
"""Limits of the share of a question's content words that its evidence has, too."""
FOLDER = Path(__file__).parent / "conversations"

_PROOF = re.compile("⟦(.*?)⟧", re.DOTALL)
_WORD = re.compile(r"[\u2e80-\u9fff]|[^\W_\u2e80-\u9fff]{2,}")
_PREFIX = 5
"""Words are compared by their first letters, so that an inflected word counts as the same word."""
_STOP_WORDS = frozenset(
    """
    a about after again all also am an and any are as at be been before but by can could did do does done down each
    few for from get give had has have he her here him his how i if in into is it its just may me more most must my
    no not now of off on one only or other our out over own said same say she should since so some such take than
    that the their them then there these they this those to too under until up us use very was we were what when
    where which while who whom whose why will with without would you your aber als am an auf aus bei beim bin bis da
    damit dann das dass dein dem den der des die dies doch du ein eine einen einer eines er es für hat haben ich ihr
    im in ist ja kann mit muss nach nicht noch nur ob oder sein seine seit sich sie sind so über um und uns unser
    unsere unter vom von vor wann war warum was weil welche welchem welchen welcher welches wem wen wenn wer werden
    wie wir wird wo womit wozu zu zum zur
    的 了 是 在 我 有 和 什 么 哪 吗 呢 多 少 怎 几 个 要 会 说 都 不
    就 也 这 那 到 得 着 吧 被 把 给 对 让 用 去 来 上 下 里 时 候 一
    """.split()  # noqa: SIM905 - a list of words reads better as a text
)


@dataclass(frozen=True)
class Question:
    """A question about a conversation, and the texts that answer it.

    Attributes:
        id: Unique; also decides which half the question belongs to.
        stratum: One of `STRATA`.
        text: The question as a user asks it.
        proofs: What has to be read to answer it; all of them, each a part of a message's text.
    """

    id: str
    stratum: str
    text: str
    proofs: tuple[str, ...]

    @property
    def held_out(self) -> bool:
        """Return True if nothing may be tuned on this question."""
        return hashlib.sha256(self.id.encode()).digest()[0] % 2 == 0


@dataclass(frozen=True)
class LongConversation:
    """A conversation as a list of turns, and the questions about it."""

    name: str
    turns: list[list[BaseMessage]]
    questions: list[Question]

    @property
    def messages(self) -> list[BaseMessage]:
        """All messages, oldest first."""
        return [message for turn in self.turns for message in turn]


def plain(text: str) -> str:
    r"""Return a text with every run of white space as one space.

    >>> plain("two\n  lines ")
    'two lines'
    """
    return " ".join(text.split())


def text_of(message: BaseMessage) -> str:
    """Return what a model reads of a message: its content, and the arguments of its calls."""
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return "\n".join(
        [str(message.content), *(json.dumps(call["args"], ensure_ascii=False) for call in calls)]
    )


def content_words(text: str) -> list[str]:
    """Return the words of a text that carry meaning, as prefixes in lower case; Chinese as pairs of characters.

    >>> content_words("When is the appointment at the dentist?"), content_words("我对什么过敏")
    (['appoi', 'denti'], ['过敏'])
    """
    found: list[str] = []
    for sign, following in pairwise([*_WORD.findall(text.lower()), ""]):
        if sign in _STOP_WORDS:
            continue
        if not _is_chinese(sign):
            found.append(sign[:_PREFIX])
        elif _is_chinese(following) and following not in _STOP_WORDS:
            found.append(sign + following)
    return found


def own(*, tokens: int = 205_000, names: Iterable[str] = ()) -> Iterator[LongConversation]:
    """Yield the conversations of the folder, each padded with generated turns to a number of tokens.

    Args:
        tokens: Size of each conversation; at least the turns with facts are in it.
        names: Names of conversations; all of them if there are none.
    """
    filler = tomllib.loads((FOLDER / "filler.toml").read_text("utf-8"))
    for path in sorted(FOLDER.glob("*.toml")):
        if path.stem != "filler" and (not names or path.stem in names):
            script = tomllib.loads(path.read_text("utf-8"))
            conversation = _padded(path.stem, script, filler[script["language"]], tokens)
            _check(conversation)
            yield conversation


def _padded(
    name: str, script: dict[str, Any], filler: dict[str, Any], tokens: int
) -> LongConversation:
    """Return the turns with facts, spread over the first nine tenths of generated turns."""
    questions = list(_questions(name, script))
    facts = [list(_fact(f"{name}-{turn['id']}", turn)) for turn in script["turn"]]
    remaining = tokens - sum(approximate_tokens(turn) for turn in facts)
    filling: list[list[BaseMessage]] = []
    for turn in _generated(
        name, script["topics"], filler, [question.text for question in questions]
    ):
        remaining -= approximate_tokens(turn)
        if remaining < 0:
            break
        filling.append(turn)
    turns: list[list[BaseMessage]] = []
    step = 0.9 * len(filling) / len(facts)
    for index, fact in enumerate(facts):
        turns += [*filling[round(index * step) : round((index + 1) * step)], fact]
    return LongConversation(name, turns + filling[round(len(facts) * step) :], questions)


def _questions(name: str, script: dict[str, Any]) -> Iterator[Question]:
    proofs = {turn["id"]: _proofs(turn) for turn in script["turn"]}
    for turn in script["turn"]:
        for kind, stratum in {
            "same": "same words",
            "some": "some words",
            "paraphrase": "paraphrase",
        }.items():
            if kind in turn:
                yield Question(
                    f"{name}-{turn['id']}-{kind}", stratum, turn[kind], proofs[turn["id"]]
                )
    for question in script["question"]:
        needed = tuple(proof for id_ in question["evidence"] for proof in proofs[id_])
        yield Question(f"{name}-{question['id']}", "several", question["text"], needed)


def _proofs(turn: dict[str, Any]) -> tuple[str, ...]:
    return tuple(
        proof
        for part in ("user", "result", "assistant")
        for proof in _PROOF.findall(turn.get(part, ""))
    )


def _fact(id_: str, turn: dict[str, Any]) -> Iterator[BaseMessage]:
    yield HumanMessage(_unmarked(turn["user"]), id=f"{id_}-user")
    if "call" in turn:
        call = {
            "name": turn["call"]["tool"],
            "args": turn["call"]["arguments"],
            "id": f"call-{id_}",
        }
        yield AIMessage("", id=f"{id_}-call", tool_calls=[call])
        result = _unmarked(turn["result"])
        yield ToolMessage(result, id=f"{id_}-result", name=call["name"], tool_call_id=call["id"])
    yield AIMessage(_unmarked(turn["assistant"]), id=f"{id_}-assistant")


def _unmarked(text: str) -> str:
    return _PROOF.sub(r"\1", text)


def _generated(
    name: str, topics: Sequence[str], filler: dict[str, Any], questions: Sequence[str]
) -> Iterator[list[BaseMessage]]:
    """Yield turns for ever: questions and answers on the topics, every fifth with a search of notes."""
    dice = random.Random(name)  # noqa: S311 - text to fill a conversation
    words = sorted({word for question in questions for word in _echoes(question)})
    number = 0
    while True:
        number += 1
        writer = _Writer(dice, filler, filler["subjects"][dice.choice(topics)], words)
        asked = " ".join([writer.one_of("asks"), *writer.mentions(0.5)])
        turn: list[BaseMessage] = [HumanMessage(asked, id=f"{name}-{number}-user")]
        if dice.random() < 0.2:
            turn += _search(f"{name}-{number}", asked, writer)
        answer = [
            *writer.sentences(dice.randint(4, 11)),
            *writer.mentions(0.7),
            writer.one_of("closings"),
        ]
        layout = dice.choice((" ", " ", "\n\n", "\n- "))
        yield [*turn, AIMessage(layout.join(answer), id=f"{name}-{number}-assistant")]


@dataclass(frozen=True)
class _Writer:
    """Writes sentences about a subject."""

    dice: random.Random
    filler: dict[str, Any]
    subject: dict[str, Any]
    words: Sequence[str]

    def one_of(self, kind: str) -> str:
        return self._filled(self.dice.choice(self.filler[kind]))

    def mentions(self, probability: float) -> list[str]:
        return [self.one_of("mentions")] if self.dice.random() < probability else []

    def sentences(self, count: int) -> list[str]:
        templates = self.subject["sentences"]
        return [
            self._filled(template)
            for template in self.dice.sample(templates, min(count, len(templates)))
        ]

    def _filled(self, template: str) -> str:
        things, words = self.dice.sample(self.subject["things"], 2), self.dice.sample(self.words, 2)
        day, name = self.dice.choice(self.filler["days"]), self.dice.choice(self.filler["names"])
        number = self.dice.randint(2, 90)
        text = template.format(
            x=things[0], y=things[1], w=words[0], v=words[1], n=number, day=day, name=name
        )
        return text[0].upper() + text[1:]


def _echoes(question: str) -> list[str]:
    """Return the words of a question that generated turns use, too: no word of a question is rare by chance."""
    found = re.findall(r"[\u2e80-\u9fff]{2,}|[^\W_\u2e80-\u9fff]{3,}", question)
    pairs = [
        [word[i : i + 2] for i in range(len(word) - 1)] if _is_chinese(word[0]) else [word]
        for word in found
    ]
    return [word for group in pairs for word in group if content_words(word)]


def _search(id_: str, query: str, writer: _Writer) -> list[BaseMessage]:
    """Return a call and its result with three passages."""
    call = {"name": "search_notes", "args": {"query": query}, "id": f"call-{id_}"}
    titles = writer.dice.sample(writer.subject["things"], 3)
    found = [(title, " ".join(writer.sentences(6))) for title in titles]
    content = "\n\n".join(
        f"[{number}] {title}\n{text}" for number, (title, text) in enumerate(found, 1)
    )
    artifact = [(text, {"title": title}) for title, text in found]
    return [
        AIMessage("", id=f"{id_}-call", tool_calls=[call]),
        ToolMessage(
            content,
            id=f"{id_}-result",
            name=call["name"],
            tool_call_id=call["id"],
            artifact=artifact,
        ),
    ]


def _check(conversation: LongConversation) -> None:
    """Check what the strata promise: each proof in one message, and how many words a question shares with it."""
    texts = [plain(text_of(message)) for message in conversation.messages]
    for question in conversation.questions:
        for proof in question.proofs:
            holding = [text for text in texts if plain(proof) in text]
            assert len(holding) == 1, f"{question.id}: {proof!r} is in {len(holding)} messages"
            shared = shared_words(question.text, holding[0])
            least, most = SHARED.get(question.stratum, (0.0, 1.0))
            assert least <= shared <= most, f"{question.id} shares {shared:.0%} of its words"


def shared_words(question: str, text: str) -> float:
    """Return the share of a question's content words that a text has, too."""
    words, known = content_words(question), set(content_words(text))
    return sum(word in known for word in words) / max(1, len(words))


def _is_chinese(sign: str) -> bool:
    return "\u2e80" <= sign[:1] <= "\u9fff"


def mtrag(folder: Path) -> Iterator[LongConversation]:
    """Yield one conversation for each domain of MTRAG: its runs one after the other.

    Every question with a passage that a human called relevant is asked again at the end. Its proof is the sentence of
    these passages that shares most words with the answer of the time.

    Args:
        folder: Has ``mtrag*.jsonl.gz``: a run a line, with `messages` in OpenAI's format and `sources` on results.
    """
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("mtrag_*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                run = json.loads(line)
                runs.setdefault(run["meta"]["domain"], []).append(run)
    for domain, found in runs.items():
        conversation = LongConversation(f"mtrag-{domain}", [], [])
        for index, run in enumerate(found):
            _add_run(conversation, f"{domain}-{index}", run["messages"])
        yield conversation


def _add_run(conversation: LongConversation, id_: str, messages: Sequence[dict[str, Any]]) -> None:
    starts = [index for index, message in enumerate(messages) if message["role"] == "user"]
    for start, end in pairwise([*starts, len(messages)]):
        turn = [_message(f"{id_}-{index}", messages[index]) for index in range(start, end)]
        conversation.turns.append(turn)
        sources = [
            source for message in messages[start:end] for source in message.get("sources", [])
        ]
        relevant = [source["text"] for source in sources if is_relevant(source)]
        proof = _proof(relevant, text_of(turn[-1]))
        if proof:
            conversation.questions.append(
                Question(f"{id_}-{start}", "MTRAG", str(turn[0].content), (proof,))
            )


def _message(id_: str, message: dict[str, Any]) -> BaseMessage:
    content = message["content"] or ""
    if message["role"] == "user":
        return HumanMessage(content, id=id_)
    if message["role"] == "tool":
        artifact = [
            (source["text"], {"title": source.get("title") or ""}) for source in message["sources"]
        ]
        call = message["tool_call_id"]
        return ToolMessage(
            content, id=id_, name=message["name"], tool_call_id=call, artifact=artifact
        )
    calls = [
        {
            "name": call["function"]["name"],
            "args": json.loads(call["function"]["arguments"]),
            "id": call["id"],
        }
        for call in message.get("tool_calls") or []
    ]
    return AIMessage(content, id=id_, tool_calls=calls)


def is_relevant(source: dict[str, Any]) -> bool:
    """Return True if more people found a passage relevant than not."""
    votes = source.get("relevant") or []
    return votes.count("yes") > votes.count("no")


def _proof(passages: Sequence[str], answer: str) -> str:
    """Return the sentence with most words of the answer, or nothing if none has three of them."""
    wanted = set(content_words(answer))
    sentences = [plain(part) for text in passages for part in re.split(r"\n|(?<=[.?!]) ", text)]
    shared = [len(wanted & set(content_words(sentence))) for sentence in sentences]
    best = max(range(len(shared)), key=lambda index: shared[index], default=None)
    return sentences[best] if best is not None and shared[best] >= 3 else ""
