"""A chain: a list of messages divided into sections, each with a header, pairs and their sizes.

A section begins with a human message; a pair is an AI message and the tool messages that answer it. All values are
frozen: an operation returns a new chain that shares its unchanged parts, and never changes a message.
`parse.parse_chain` builds a chain from messages, `Chain.messages` returns them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.exceptions import InvalidInputError, MalformedChainError
from convstore.messages.call_arguments import with_json_arguments
from convstore.messages.call_ids import NewIds, rename_calls
from convstore.messages.provenance import SUMMARY_PREFIX, kind_of
from convstore.messages.reasoning import without_reasoning
from convstore.messages.sizes import size_of
from convstore.messages.tool_calls import calls_of
from convstore.values.call_id_templates import CallIdTemplate
from convstore.values.plain import shown_value

SUMMARY_TOOL: Final = "execute_task_and_return_summary"
"""Name of the synthetic tool call whose result is the summary of a history with tool calls."""

PairKind = Literal["completion", "request_response", "summarization"]
"""An answer without calls; calls with their results; a summary in the form of a call with its result."""

_Content = str | list[str | dict[Any, Any]]


@dataclass(frozen=True, slots=True)
class Header:
    """The beginning of a section: its human message, and other messages before and after it.

    Only the first section has a `system` message. Further system messages, and messages of other kinds, are in `before`
    or `after`.
    """

    system: SystemMessage | None = None
    human: HumanMessage | None = None
    before: tuple[BaseMessage, ...] = field(default=(), kw_only=True)
    after: tuple[BaseMessage, ...] = field(default=(), kw_only=True)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sum(map(size_of, self.messages())))

    def messages(self) -> list[BaseMessage]:
        """Return all messages of the header, in order."""
        return [
            message
            for message in (self.system, *self.before, self.human, *self.after)
            if message is not None
        ]


@dataclass(frozen=True, slots=True)
class Pair:
    """An AI message and the tool messages that answer its calls; `kind` depends only on the calls.

    Attributes:
        after: Following messages that summaries do not replace: system messages, and kinds that are not part of a
            chain.
        uncounted: Bytes that `size` leaves out. Always 0 unless the original algorithm is reproduced.
    """

    ai: AIMessage
    results: tuple[ToolMessage, ...] = ()
    after: tuple[BaseMessage, ...] = field(default=(), kw_only=True)
    uncounted: int = field(default=0, kw_only=True)
    kind: PairKind = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", _kind_of(self.ai))
        object.__setattr__(self, "size", sum(map(size_of, self.messages())) - self.uncounted)

    @property
    def is_summary(self) -> bool:
        """True if the pair is a summary, of either form.

        Examples:
            >>> Pair(AIMessage(SUMMARY_PREFIX + "Ada likes orcas.")).is_summary
            True
        """
        return self.kind == "summarization" or (
            self.kind == "completion" and str(self.ai.text).startswith(SUMMARY_PREFIX)
        )

    def exchange(self) -> list[BaseMessage]:
        """Return the AI message and its tool messages, which a summary of the pair replaces."""
        return [self.ai, *self.results]

    def messages(self) -> list[BaseMessage]:
        """Return the exchange and the messages after it."""
        return [*self.exchange(), *self.after]


@dataclass(frozen=True, slots=True)
class Section:
    """A header and the pairs up to the next header; `size` is in bytes."""

    header: Header
    body: tuple[Pair, ...] = ()
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.header.size + sum(pair.size for pair in self.body))

    def messages(self) -> list[BaseMessage]:
        """Return all messages of the section, in order."""
        return [
            *self.header.messages(),
            *(message for pair in self.body for message in pair.messages()),
        ]


@dataclass(frozen=True, slots=True)
class Chain:
    """Sections in order. Every operation returns a new chain and leaves this one unchanged.

    `repairs` has one sentence for each repair by the parser, and `size` is in bytes.
    """

    sections: tuple[Section, ...] = ()
    repairs: tuple[str, ...] = field(default=(), compare=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sum(section.size for section in self.sections))

    def messages(self) -> list[BaseMessage]:
        """Return all messages in order. For a well-formed chain they are the parsed objects themselves."""
        return [message for section in self.sections for message in section.messages()]

    def pairs(self) -> Iterator[Pair]:
        """Iterate over all pairs in order."""
        return (pair for section in self.sections for pair in section.body)

    def append_human(self, content: HumanMessage | _Content) -> Chain:
        r"""Return the chain with a human message at its end.

        If the last section has a body, or there is no section, the message begins a new one. Otherwise it completes
        the header of the last section: an unanswered human message is joined with it, the old content first.

        Examples:
            >>> chain = Chain().append_human("I am Ada.").append_human("Who am I?")
            >>> [message.text for message in chain.messages()]
            ['I am Ada.\n\nWho am I?']
        """
        human = (
            content if isinstance(content, HumanMessage) else HumanMessage(_check_content(content))
        )
        last = self.sections[-1] if self.sections else None
        if last is None or last.body or last.header.after:
            return replace(self, sections=(*self.sections, Section(Header(None, human))))
        joined = human if last.header.human is None else join_humans([last.header.human, human])
        return replace(
            self, sections=(*self.sections[:-1], Section(replace(last.header, human=joined)))
        )

    def add_tool_response(self, response: ToolMessage) -> Chain:
        """Return the chain with the result of a call added, or replaced if the call has one.

        The result answers the newest AI message that has a call with its id. If several calls of that message have the
        id, it answers the first one without a result or with a synthetic one, else the last.

        Raises:
            MalformedChainError: No call has that id.
            InvalidInputError: `response` is not a ToolMessage.
        """
        if not isinstance(response, ToolMessage):
            raise InvalidInputError(
                f"response must be a ToolMessage, not {type(response).__name__}"
            )
        called = [
            pair
            for pair in self.pairs()
            if response.tool_call_id in {call.id for call in calls_of(pair.ai)}
        ]
        if not called:
            raise MalformedChainError(
                f"no call of this chain has the id {response.tool_call_id!r}; "
                "append the call before its result"
            )
        answered = _with_result(called[-1], response)
        return self._with_pairs(lambda pair: answered if pair is called[-1] else pair)

    def normalize_tool_call_ids(self, template: str) -> Chain:
        """Return the chain with call ids that fit a template, such as ``call_{r:24:x}`` or ``toolu_{r:24:b}``.

        Ids that fit are kept, even if two calls share one. Other ids are replaced, in the call and in its results; two
        calls that share such an id get two new ones. The same chain always gets the same ids.

        Raises:
            InvalidInputError: The template is invalid, or allows fewer ids than the chain has calls.
        """
        form = CallIdTemplate(template)
        ids = NewIds(form, {call.id for pair in self.pairs() for call in calls_of(pair.ai)})
        return self._with_pairs(
            lambda pair: _changed(pair, *rename_calls(pair.ai, pair.results, ids))
        )

    def clear_reasoning(self) -> Chain:
        """Return the chain without reasoning and provider signatures. Everything else is unchanged, including sizes."""
        return replace(self, sections=tuple(map(_without_reasoning, self.sections)))

    def sanitize_tool_call_arguments(self) -> Chain:
        """Return the chain with valid JSON arguments. Arguments that cannot be repaired become ``{}``."""
        return self._with_pairs(
            lambda pair: _changed(pair, with_json_arguments(pair.ai), pair.results)
        )

    def _with_pairs(self, change: Callable[[Pair], Pair]) -> Chain:
        sections = [
            replace(section, body=tuple(map(change, section.body))) for section in self.sections
        ]
        return replace(self, sections=tuple(sections))


def _check_content(content: _Content) -> _Content:
    """Return the content of a human message; raise an InvalidInputError for anything else."""
    blocks = content if isinstance(content, list) else [content]
    kinds = str | dict if isinstance(content, list) else str
    if not all(isinstance(block, kinds) for block in blocks):
        raise InvalidInputError(
            "content must be a HumanMessage, a text or a list of blocks, not "
            f"{shown_value(content)}"
        )
    return content


def humans_of(headers: Iterable[Header]) -> list[HumanMessage]:
    """Return the human messages of headers."""
    return [header.human for header in headers if header.human is not None]


def join_humans(humans: Sequence[HumanMessage]) -> HumanMessage:
    r"""Join the contents of human messages into one message; a single message is returned unchanged.

    Texts are joined by a blank line. If any content is a list of blocks, the result is one too. Id, name and all other
    fields are those of the first.

    >>> join_humans([HumanMessage("one"), HumanMessage("two")]).content
    'one\n\ntwo'
    """
    if not humans:
        raise InvalidInputError("there is no human message to join; pass at least one")
    if len(humans) == 1:
        return humans[0]
    contents = [human.content for human in humans]
    if all(isinstance(content, str) for content in contents):
        return humans[0].model_copy(update={"content": "\n\n".join(map(str, contents))})
    return humans[0].model_copy(
        update={"content": [block for content in contents for block in _blocks_of(content)]}
    )


def _blocks_of(content: _Content) -> list[str | dict[Any, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content


def _kind_of(ai: AIMessage) -> PairKind:
    tools = {call.tool for call in calls_of(ai)}
    if not tools:
        return "completion"
    return "summarization" if tools == {SUMMARY_TOOL} else "request_response"


def _with_result(pair: Pair, response: ToolMessage) -> Pair:
    """Return a pair with the result of one of its calls added or replaced."""
    slots = results_by_call(pair.ai, pair.results)
    chosen = 0
    for call in calls_of(pair.ai):
        if call.id != response.tool_call_id:
            continue
        chosen = call.position
        if _is_free(slots[chosen]):
            break
    old = slots[chosen]
    if old is None:
        slots[chosen] = response
        return replace(pair, results=tuple(result for result in slots if result is not None))
    # The results keep their order.
    results = (response if result is old else result for result in pair.results)
    return replace(pair, results=tuple(results))


def _is_free(result: ToolMessage | None) -> bool:
    """Return True if a call has no result, or a synthetic one."""
    return result is None or kind_of(result) == "missing_result"


def results_by_call(ai: AIMessage, results: Sequence[ToolMessage]) -> list[ToolMessage | None]:
    """Return the result of each call of an AI message, or None, in the order of the calls."""
    waiting: defaultdict[str, list[ToolMessage]] = defaultdict(list)
    for result in reversed(results):
        waiting[result.tool_call_id].append(result)
    return [waiting[call.id].pop() if waiting[call.id] else None for call in calls_of(ai)]


def _changed(pair: Pair, ai: AIMessage, results: tuple[ToolMessage, ...]) -> Pair:
    same = ai is pair.ai and all(new is old for new, old in zip(results, pair.results, strict=True))
    return pair if same else replace(pair, ai=ai, results=results)


def _without_reasoning(section: Section) -> Section:
    def cleared(messages: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(message and without_reasoning(message) for message in messages)

    header = section.header
    (system, human) = cleared([section.header.system, section.header.human])
    pairs = (_changed(pair, cleared([pair.ai])[0], cleared(pair.results)) for pair in section.body)
    body = (replace(pair, after=cleared(pair.after)) if pair.after else pair for pair in pairs)
    return Section(
        Header(system, human, before=cleared(header.before), after=cleared(header.after)),
        tuple(body),
    )
