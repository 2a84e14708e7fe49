"""Policies of `load_history`: the contents of a view, and the time of summaries.

Invalid values are rejected when a policy is created, not when it is used.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal

from convstore.exceptions import InvalidInputError
from convstore.values.plain import suggests_options
from convstore.values.providers import ProviderRules, changed_fields, field_as_json
from convstore.values.scope import check_names, check_number, check_one_of

_CHOICES = {
    "stub_tools": ("finished_turns", "never"),
    "media": ("finished_turns", "never"),
    "view": ("full", "conversation"),
    "compact": ("explicit", "before_load"),
}


_NOT_IN_KEYS = ("compact", "max_request_bytes", "provider")
"""Options that do not change where a view starts. Policies that differ only in them share one stored record."""

DEFAULT_TRIGGER = 16_000
"""Size in tokens from which turns are summarised if neither the rule nor the policy has a limit."""


@suggests_options
@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryPolicy:
    """Rules that turn a log into a view; equal policies give equal views of the same log.

    Attributes:
        max_tokens: Budget of the view, by the store's counter; None for no limit. Above it, long texts of earlier turns
            are shortened, then the oldest turns are left out until the view is half as large, and answered results of
            the turn in progress become stubs. This happens in few large steps that are stored, so that prompt caches
            stay valid for long. Messages that the model has not read yet are never truncated.
        max_turns: Maximum number of turns in a view, including the one in progress; None for no limit. Above it, the
            oldest turns are left out until three quarters of the limit are left.
        stub_tools: "finished_turns" replaces the tool results of finished turns by stubs; "never" loads all in full.
            Results without sources of at most 256 tokens have no stub.
        never_stub: Names of tools whose results always stay whole.
        compact: "explicit" leaves summarising to `compact`. "before_load" summarises first when that is due, so a load
            may wait for the summarizer, for the store's `compaction_seconds` at most.
        shorten_over: Texts of human and AI messages in finished turns that exceed this many tokens (of four characters)
            are cut to their beginning and end, with the id of the message between; None shows them whole. Values up to
            1,000 need no payload reads.
        media: "finished_turns" replaces images, audio and files of finished turns by placeholders; "never" loads them
            as they are, the newest ones in half of the budget.
        max_request_bytes: Maximum size of a request, estimated; None for no limit. Above it, or above the provider's
            number of images or pages, older images, audio and files are placeholders, also in the turn in progress.
            The newest one is always shown.
        view: "full", or "conversation": no tool messages and no AI messages with tool calls.
        provider: Adapts the view to the rules of a provider, whichever model wrote the messages: a name such as
            "anthropic", "bedrock_converse", "google_genai", "mistralai" or "openai", or `ProviderRules` of your own.
            Call ids are unique and in its format, reasoning of other providers is left out, and empty messages get a
            placeholder text. Where the provider requires it, system messages come first and a human message precedes
            the first AI message. With None, messages stay as they were appended.
    """

    max_tokens: int | None = 32_000
    max_turns: int | None = None
    stub_tools: Literal["finished_turns", "never"] = "finished_turns"
    never_stub: frozenset[str] = frozenset()
    shorten_over: int | None = None
    media: Literal["finished_turns", "never"] = "finished_turns"
    max_request_bytes: int | None = 20_000_000
    view: Literal["full", "conversation"] = "full"
    compact: Literal["explicit", "before_load"] = "explicit"
    provider: str | ProviderRules | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "provider", _checked_provider(self.provider))
        object.__setattr__(self, "never_stub", check_names(self.never_stub, name="never_stub"))
        for name in ("max_tokens", "max_turns", "shorten_over", "max_request_bytes"):
            if (limit := getattr(self, name)) is not None:
                check_number(limit, name=name, minimum=1)
        for name, choices in _CHOICES.items():
            check_one_of(getattr(self, name), *choices, name=name)

    def __str__(self) -> str:
        """Return the budget and all changed options, as text for `parse_policy`."""
        values: dict[str, Any] = {"max_tokens": self.max_tokens} | self.changed
        if isinstance(self.provider, ProviderRules):
            return json.dumps(values)
        names = values.get("never_stub")
        if names:
            values["never_stub"] = "+".join(names)
        order = [field.name for field in fields(self) if field.name in values]
        return ",".join(f"{name}={values[name]}" for name in order)

    @property
    def rules(self) -> ProviderRules | None:
        """The rules of the provider, None without one."""
        if isinstance(self.provider, str):
            return ProviderRules.named(self.provider)
        return self.provider

    @property
    def changed(self) -> dict[str, Any]:
        """The options that differ from the defaults, as JSON values for ``HistoryPolicy(**changed)``.

        >>> HistoryPolicy(max_tokens=500, never_stub={"b", "a"}).changed
        {'max_tokens': 500, 'never_stub': ['a', 'b']}
        """
        return changed_fields(self)


def _checked_provider(provider: Any) -> str | ProviderRules | None:
    """Check the provider of a policy; a dict, the form in which stamps store a user's own rules, becomes rules."""
    if isinstance(provider, dict):
        try:
            return ProviderRules(**provider)
        except TypeError as error:
            raise InvalidInputError(f"provider has wrong options: {error}") from error
    if provider is None or isinstance(provider, ProviderRules):
        return provider
    return ProviderRules.named(provider).name


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRule:
    """When a compaction is due, and how much it summarises.

    Attributes:
        max_tokens_before_summary: Summarise once the unsummarised messages exceed this size, as views show them. None
            for half of the budget of the store's policy, or 16,000 if that has no budget.
        max_summary_tokens: Expected size of a summary, below the trigger; it is not enforced.
        keep_last_turns: Number of finished turns that are not summarised, as far as they fit in half of the trigger.
    """

    max_tokens_before_summary: int | None = None
    max_summary_tokens: int = 1_000
    keep_last_turns: int = 4

    def __post_init__(self) -> None:
        for name, minimum in (("max_summary_tokens", 1), ("keep_last_turns", 0)):
            check_number(getattr(self, name), name=name, minimum=minimum)
        if (trigger := self.max_tokens_before_summary) is not None:
            check_number(trigger, name="max_tokens_before_summary", minimum=1)
            if self.max_summary_tokens >= trigger:
                raise InvalidInputError(
                    "max_summary_tokens must be less than max_tokens_before_summary"
                )

    def under(self, budget: int | None) -> CompactionRule:
        """Return the rule with its trigger for views with a budget in tokens, None without a limit.

        Raises:
            InvalidInputError: The trigger is not below the budget.
        """
        if (trigger := self.max_tokens_before_summary) is None:
            trigger = DEFAULT_TRIGGER if budget is None else max(2, budget // 2)
            size = min(self.max_summary_tokens, trigger // 2)
            return replace(self, max_tokens_before_summary=trigger, max_summary_tokens=size)
        if budget is not None and trigger >= budget:
            raise InvalidInputError(
                f"max_tokens_before_summary is {trigger}, and the policy's max_tokens {budget}: "
                "turns would leave views before they are summarised; choose a smaller one, "
                "or None for half of max_tokens"
            )
        return self

    @property
    def trigger(self) -> int:
        """`max_tokens_before_summary`, or the default without a budget."""
        return self.max_tokens_before_summary or DEFAULT_TRIGGER


@lru_cache(maxsize=256)
def view_key(policy: HistoryPolicy, counter: str) -> str:
    """Return the key of a policy's view record in the state; it depends on the options that decide where a view starts.

    >>> view_key(HistoryPolicy(), "approximate") == view_key(HistoryPolicy(provider="openai"), "approximate")
    True
    >>> view_key(HistoryPolicy(), "approximate") == view_key(HistoryPolicy(max_turns=2), "approximate")
    False
    """
    names = sorted(field.name for field in fields(policy) if field.name not in _NOT_IN_KEYS)
    values = [field_as_json(getattr(policy, name)) for name in names]
    return hashlib.sha256(json.dumps([names, values, counter]).encode()).hexdigest()[:16]


def parse_policy(text: str) -> HistoryPolicy:
    """Parse a policy from pairs such as ``str(policy)``, or from JSON.

    >>> str(parse_policy("max_tokens=none,never_stub=b+a")), str(parse_policy('{"max_turns": 3}'))
    ('max_tokens=None,never_stub=a+b', 'max_tokens=32000,max_turns=3')

    Raises:
        InvalidInputError: The text is neither, or has unknown options or invalid values.
    """
    try:
        if text.startswith("{"):
            return HistoryPolicy(**json.loads(text))
        pairs = [pair.split("=", 1) for pair in text.split(",")]
        if any(len(pair) != 2 for pair in pairs) or len(dict(pairs)) != len(pairs):
            raise InvalidInputError("each option must be OPTION=VALUE, and appear once")
        return HistoryPolicy(**{name: _option(name, value) for name, value in pairs})
    except (InvalidInputError, RecursionError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"it must have options of HistoryPolicy, such as max_tokens=8000: {error}"
        ) from error


def _option(name: str, text: str) -> Any:
    if name == "never_stub":
        return text.split("+")
    if text in ("none", "None"):
        return None
    return int(text) if text.isdecimal() else text


def check_policy(policy: HistoryPolicy | None) -> HistoryPolicy | None:
    """Return the policy, or None for the store's policy; raise an InvalidInputError for anything else."""
    if policy is not None and not isinstance(policy, HistoryPolicy):
        raise InvalidInputError(f"policy must be a HistoryPolicy, not {type(policy).__name__}")
    return policy
