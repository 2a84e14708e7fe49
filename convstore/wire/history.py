"""The results of `load_history` and `view_at`: a view, with methods that convert it for the providers' SDKs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

from langchain_core.messages import BaseMessage
from pydantic import Field, PrivateAttr, SerializeAsAny

from convstore.values.json_form import Value
from convstore.values.models import Compaction, HistoryReport
from convstore.values.plain import equal_at_start
from convstore.values.policy import HistoryPolicy
from convstore.values.providers import ProviderRules
from convstore.values.scope import check_one_of
from convstore.values.stamps import Stamper, ViewStamp, storable_stamp
from convstore.wire.anthropic import to_anthropic
from convstore.wire.openai_chat import to_chat
from convstore.wire.openai_responses import to_responses
from convstore.wire.requests import AnthropicMessages, Dropped, OpenAIMessages


class History(Value):
    """The view of a conversation for the next model call.

    Attributes:
        messages: Leading system messages first, then a summary and a note if there are any, then whole turns.
        summary: Text of the summary that replaces the oldest messages, None without one.
        tokens: Size of the view by the store's counter.
        report: How the view was built, and its cost.
        compaction: Result of the compaction that ran first, under a policy with ``compact="before_load"``.
    """

    messages: list[SerializeAsAny[BaseMessage]]
    summary: str | None = None
    tokens: int = 0
    report: HistoryReport = Field(default_factory=HistoryReport)
    compaction: Compaction | None = None
    _stamp: Stamper | None = PrivateAttr(None)
    _dropped: tuple[Dropped, ...] = PrivateAttr(())
    _open_turn: str = PrivateAttr("")

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """The parts that the view leaves out for a provider, in order; those of its policy are in the report."""
        return self._dropped

    @property
    def stamp(self) -> ViewStamp | None:
        """The identity of the view and a digest of its messages.

        Read it before changing the list. Store it, or pass it to ``append(..., stamp=...)``; `Conversation.view_at`
        rebuilds the view from it. None if a store did not make this history, or its policy names too many tools.
        """
        return self.stamp_for(self.messages)

    def stamp_for(
        self,
        messages: Sequence[BaseMessage],
        *,
        entry: int = 0,
        adapted: bool = False,
        turn: str | None = None,
        size_of: Callable[[BaseMessage], int] | None = None,
    ) -> ViewStamp | None:
        """Return the stamp of this view after it was extended or changed for a model.

        Args:
            messages: The messages that the model got.
            entry: Number of the last entry that they include (`Receipt.entry`), if messages were appended since the
                load.
            adapted: True if they differ from the view that a load would give now.
            turn: Id of the question that is answered, if the view was loaded before it was appended.
            size_of: Counts the tokens of a message that this view does not have; None leaves such messages uncounted.
        """
        if self._stamp is None:
            return None
        added: list[int] | None = None
        if size_of:
            # the same objects, as comparing messages takes long
            shared = equal_at_start(map(id, messages), map(id, self.messages))
            added = [size_of(message) for message in messages[shared:]]
        stamp = self._stamp(messages, added, turn or self._open_turn)
        changes: dict[str, Any] = {"entry": entry or stamp.entry, "adapted": adapted}
        if entry or adapted or len(messages) != len(self.messages):
            # unknown: the model may have seen messages that were appended since the load
            changes["ordinal"] = 0
        return storable_stamp(stamp.model_copy(update=changes))

    def to_openai(
        self,
        *,
        api: Literal["chat", "responses"] = "chat",
        model: str | None = None,
        provider: str | ProviderRules | None = None,
    ) -> OpenAIMessages:
        """Return the view as `messages` of OpenAI's Chat Completions, or as `input` of its Responses API.

        The API accepts the messages, whichever models and frameworks wrote the log. The list's `.dropped` names the
        parts that the API cannot carry. The provider's rules decide which reasoning is sent. The Responses API gets
        encrypted items of the open turn. In Chat Completions, DeepSeek, Kimi and GLM get the `reasoning_content` of all
        answers, other servers that of the open turn, and OpenAI's models none. A tool result is text only there, so its
        images and files follow the results in a user message.

        Args:
            api: "chat" or "responses".
            model: The model that will be asked; it chooses the provider's rules. None means a model of OpenAI.
            provider: The rules, by name or your own, for a model whose name does not determine them.

        Raises:
            InvalidInputError: `api` has another value, or the provider's name is unknown.
        """
        check_one_of(api, "chat", "responses", name="api")
        write = to_chat if api == "chat" else to_responses
        request = write(self.messages, model=model, provider=provider)
        request.dropped = (*self.dropped, *request.dropped)
        return request

    def to_anthropic(
        self,
        *,
        cache: Literal["5m", "1h"] | None = None,
        model: str | None = None,
        provider: str | ProviderRules | None = None,
    ) -> AnthropicMessages:
        """Return the view as the arguments `messages` and `system` of Anthropic's API, to pass with ``**``.

        `system` is missing without leading system messages; a later one becomes a user message at its position.
        Thinking of the open turn is sent with its signatures, to any Claude model. `container` is set if the code of a
        pending call runs in one. `.dropped` names the parts that the API cannot carry.

        Args:
            cache: Lifetime of up to three cache marks: after the system messages, after the finished turns and at the
                end. A fourth mark is left for your tools. None sets no marks.
            model: The model that will be asked; None means the last one of the open turn.
            provider: The rules, by name or your own, for a model whose name does not determine them.

        Raises:
            InvalidInputError: `cache` has another value, or the provider's name is unknown.
        """
        request = to_anthropic(self.messages, model=model, cache=cache, provider=provider)
        request.dropped = (*self.dropped, *request.dropped)
        return request

    def sealed(
        self,
        stamp: Stamper,
        dropped: Sequence[Dropped] = (),
        open_turn: str = "",
    ) -> Self:
        """Set the private data of a view that a store made, and return the view.

        Args:
            stamp: Makes the stamp.
            dropped: The parts that are left out for a provider.
            open_turn: Id of the question of the turn in progress; "" if the newest turn is over.
        """
        self._stamp = stamp
        self._dropped = tuple(dropped)
        self._open_turn = open_turn
        return self


class PastView(History):
    """A view of an earlier time, rebuilt by `Conversation.view_at`.

    Attributes:
        entry: Number of the last entry of the log at that time.
        ordinal: Last ordinal of the log at that time.
        version: Version of the summary that the view shows, 0 without one.
        summary_reason: Why that summary was made, "" if it is unknown.
        policy: The policy of the view.
        match: "exact": equal to the stamped view; "differs" from it; or "rebuilt" without a stamp to compare with.
        is_first_use: True if the policy's record of that time is no longer stored (the last 32 moves are). Then the
            view is the one of a policy used for the first time.
        difference: Reason of a difference: "counter", "view format", "type" (a value whose type is not registered),
            "adapted" (the application changed the messages) or "log"; "" without a difference.
    """

    entry: int = 0
    ordinal: int = 0
    version: int = 0
    summary_reason: str = ""
    policy: HistoryPolicy
    is_first_use: bool = False
    match: Literal["exact", "rebuilt", "differs"] = "rebuilt"
    difference: str = ""


def last_seen(history: History) -> int:
    """Return the last ordinal of the log at the time of a view; 0 for an empty log."""
    stamp = history._stamp  # noqa: SLF001 - without the digest of its messages, which takes long
    return stamp([], None, "").ordinal if stamp else 0


def open_turn_of(history: History) -> str:
    """Return the id of the question of a view's turn in progress; "" if the newest turn is over."""
    return history._open_turn  # noqa: SLF001 - not public, as backends call `get_turn`


def ids_in_progress(history: History) -> set[str | None]:
    """Return the ids of a view's messages from the question of the turn in progress on."""
    begun = open_turn_of(history)
    ids = [message.id for message in history.messages]
    return set(ids[ids.index(begun) :]) if begun in ids else set()
