"""Restores messages in the forms in which a view shows them, and measures each form.

A message is shown as its stub, with placeholders, cut or in full. Most sizes are stored counts; a payload is never read
only to measure a message.

The module is long because each form of a message is restored and measured here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from langchain_core.messages import BaseMessage, HumanMessage

from convstore.log.entry import EntryMessage, PayloadRef
from convstore.log.rows import Row, is_hidden
from convstore.log.stored_message import (
    FormDetails,
    KeptMessage,
    MessageForm,
    ShownMessage,
    payload_needed,
    read_message,
)
from convstore.messages.encoding import decode_if_plain, decode_plain, digest_of, fields_of
from convstore.messages.json_text import plain_json
from convstore.messages.media import has_media
from convstore.messages.media_figures import UNKNOWN
from convstore.messages.provenance import MARK
from convstore.messages.tokens import (
    CHARACTERS_PER_TOKEN,
    TokenCounter,
    count,
    counter_for,
    figures_of,
)
from convstore.messages.tool_calls import Call, calls_of, missing_result
from convstore.messages.values import Codec
from convstore.sources.shortening import (
    SHORTENED,
    Arguments,
    leave_out,
    lengths_without_arguments,
    needs_edges_only,
    shorten_text,
    text_lengths,
    with_short_texts,
    without_media,
)
from convstore.sources.stub import STUB_MIN_TOKENS
from convstore.values.json_form import sendable_message
from convstore.values.policy import HistoryPolicy

_MIN_TEXT_TOKENS = 20
"""Lower limit for the length of a shortened text."""


class Showing(NamedTuple):
    """The form in which a view shows one message.

    Attributes:
        whole: True for the whole message, False for its form in a finished turn.
        room: Maximum size of its texts in tokens; None for whole texts.
        media: Number of its images and files to show, the newest ones; None for all that its form has.
    """

    whole: bool = False
    room: int | None = None
    media: int | None = None


FINISHED = Showing()
WHOLE = Showing(whole=True)


class Decoder:
    """Restores messages as a view shows them, and caches those without payloads, which may be large.

    Attributes:
        policy: The policy of the view.
        counter: Counts messages whose size is not stored in the log, with the media figures of the policy's provider.
        payloads: The texts of payloads that were read, by message id.
    """

    def __init__(self, policy: HistoryPolicy, codec: Codec, counter: TokenCounter) -> None:
        self.policy = policy
        package = policy.rules.package if policy.rules else None
        self.counter = counter_for(counter, package)
        self.payloads: Mapping[str, str] = {}
        self._codec = codec
        self._figures = figures_of(self.counter)
        self._stored = figures_of(counter)
        self._options = policy.media, policy.shorten_over, ""
        self._media_options = (*self._options[:2], package or "")

    def shown(self, message: EntryMessage, showing: Showing) -> ShownMessage:
        """Return a message as a view shows it."""
        kept: KeptMessage | None = message.kept
        options = self._media_options if message.media else self._options
        if kept and kept.showing == showing and kept.options == options:
            if kept.body is None:
                return decode_plain(message.body, message.stub if kept.is_stub else None), kept
            return decode_plain(kept.body), kept
        stub = None if showing.whole else message.stub
        is_whole = showing.whole or _keeps_media(message, self.policy)
        plain = self._plain(message, showing, stub, is_whole=is_whole)
        if plain is not None:
            about = _stored_tokens(message, stub, is_whole=is_whole), False, False, stub is not None
            message.kept = KeptMessage(*about, showing=showing, options=options, body=None)
            return plain, message.kept
        decoded, details = self._with_media(message, *self._decode(message, showing), showing)
        shown = sendable_message(decoded)
        body = None if message.id in self.payloads else plain_json(fields_of(shown))
        if body is not None:
            about = details.tokens, details.has_placeholder, details.is_shortened, details.is_stub
            message.kept = KeptMessage(*about, showing=showing, options=options, body=body)
        return shown, details

    def _plain(
        self, message: EntryMessage, showing: Showing, stub: str | None, *, is_whole: bool
    ) -> BaseMessage | None:
        """Decode a message that is shown as it is stored, or as its stub, on a fast path; None for others."""
        if not self._is_plain(message, showing, stub):
            return None
        shown = _decode_unchanged(message, stub)
        if shown is None or is_whole or stub is not None or message.type == "tool":
            return shown
        return shown if type(shown.content) is str else None  # blocks may be media

    def _is_plain(self, message: EntryMessage, showing: Showing, stub: str | None) -> bool:
        """Return False if the entry's columns show that a message is cut, shortened, or partly in a payload."""
        if showing.room is not None or (message.media and stub is None):
            return False
        if message.payload and (stub is None or message.payload.identity):
            return False
        if stub is not None:
            return not message.keeps_content
        if showing.whole:
            return True
        if message.type == "tool":
            return message.tokens <= STUB_MIN_TOKENS
        return self.policy.shorten_over is None

    def _with_media(
        self, message: EntryMessage, shown: BaseMessage, details: FormDetails, showing: Showing
    ) -> ShownMessage:
        """Replace media that the view does not show by placeholders, and count the others by the view's figures."""
        is_replaced = details.is_stub and not message.keeps_content
        if is_replaced or not message.media:
            return shown, details
        limited = shown
        if showing.media is not None and showing.media < len(message.media):
            # Media in a payload that was not read are placeholders already.
            limited = without_media(shown, everywhere=True, keep=showing.media)
            details.tokens = None
            details.has_placeholder = not details.is_stub
        elif details.tokens is not None and showing.room is None and has_media(shown):
            details.tokens = max(0, details.tokens + self._more(message))
        return limited, details

    def _more(self, message: EntryMessage) -> int:
        """Return the difference of the media of a message between the view's figures and its stored size, in tokens."""
        if self._figures is self._stored or self._figures is None or self._stored is None:
            return 0
        by_model = message.type == "ai"
        now = self._figures.all_tokens(message.media, by_model=by_model)
        return now - self._stored.all_tokens(message.media, by_model=by_model)

    def size_whole(self, message: EntryMessage) -> int:
        """Return the size of a message in full, with media by the view's figures."""
        return max(0, message.tokens + self._more(message)) if message.media else message.tokens

    def size_media(self, message: EntryMessage, oldest: int | None = None) -> int:
        """Return the tokens of the media of a message, or of the `oldest` ones, at most the size of the message.

        A counter without figures for media counted the message with media and with placeholders; the difference is
        used. It is unknown for results, which get the default figures.
        """
        figures = self._figures or UNKNOWN
        by_model = message.type == "ai"
        found = figures.all_tokens(message.media[:oldest], by_model=by_model)
        if self._figures is None and message.type in SHORTENED:
            counted = max(0, message.tokens - message.view_tokens)
            return counted * found // max(1, figures.all_tokens(message.media, by_model=by_model))
        return min(found, self.size_whole(message))

    def _decode(self, message: EntryMessage, showing: Showing) -> ShownMessage:
        if showing.room is not None:
            return self._cut(message, showing)
        shown, details = self._form(message, whole=showing.whole).decode(self._codec, self.payloads)
        if message.is_estimate and not details.is_stub:
            details.tokens = None
        return shown, details

    def size_finished(self, message: EntryMessage) -> int:
        """Return the size of a message in a finished turn; an estimate if parts of it are in an unread payload."""
        limit = self.policy.shorten_over
        tokens = message.view_tokens
        media = 0
        if _keeps_media(message, self.policy):
            media = self.size_whole(message) - tokens
        elif message.media and message.keeps_content and message.type in ("system", "tool"):
            media = self._more(message)
        if self._has_stored_size(message):
            return tokens + media
        if limit and _payload_in_view(message, self.policy, FINISHED):
            return self._size_short(message, limit, _length(message)) + media
        shown, details = self.shown(message, FINISHED)
        if details.tokens is None:
            return count(self.counter, shown)
        return tokens + media

    def _has_stored_size(self, message: EntryMessage) -> bool:
        """Return False if the policy may shorten a message of a finished turn below its stored size."""
        if message.type == "tool":
            return True
        limit = self.policy.shorten_over
        return limit is None or message.type not in SHORTENED or _length(message) <= limit

    def _size_short(self, message: EntryMessage, limit: int, length: int) -> int:
        """Return the maximum size of a message with shortened texts, without reading its payload.

        Of `length` characters some are removed. The size shrinks in proportion, but by at most a quarter of a token for
        each removed character, because the remaining text may be in a script with more tokens.
        """
        tokens = message.view_tokens
        lengths = lengths_without_arguments(read_message(self._codec, message).content)
        cut = [
            text - limit * CHARACTERS_PER_TOKEN
            for text in lengths
            if text > limit * CHARACTERS_PER_TOKEN
        ]
        left = max(
            tokens * (length - sum(cut)) // length, tokens - sum(cut) // CHARACTERS_PER_TOKEN
        )
        return min(tokens, left + _cut_tokens(self.counter) * len(cut))

    @property
    def may_shorten_finished(self) -> bool:
        """True if the policy may show a message of a finished turn in another form than the one counted at append."""
        return (self.policy.shorten_over, self.policy.media) != (None, "finished_turns")

    @property
    def size_missing(self) -> int:
        """The size of the synthetic result of a call without one, for a typical call."""
        return _missing_tokens(self.counter)

    def size_synthetic(self, message: EntryMessage) -> int:
        """Return the size of the largest synthetic result that a call of a message may get."""
        calls = calls_of(read_message(self._codec, message))
        return max(
            (count(self.counter, missing_result(call, ai_message_id=message.id)) for call in calls),
            default=0,
        )

    def size_cut(self, message: EntryMessage, showing: Showing, tokens: int) -> int:
        """Return the size of a message with its texts cut, given its uncut size.

        For a message whose view needs its payload it is an upper bound, because the payload is not read yet.
        """
        if not needs_edges_only(_limit(self.policy, showing)) or _payload_in_view(
            message, self.policy, showing
        ):
            return min(tokens, self._most(message, showing))
        shown, details = self.shown(message, showing)
        return count(self.counter, shown) if details.tokens is None else details.tokens

    def _cut(self, message: EntryMessage, showing: Showing) -> ShownMessage:
        """Cut the texts of a message until it takes at most the size that `size_cut` allows.

        Texts are cut further if the store's counter counts more than a token for four characters. Arguments that stay
        too large, such as a list of a thousand texts, are cut as one text.
        """
        most = self._most(message, showing)
        form = self._form(message, whole=False)
        form = form._replace(has_media=form.has_media or showing.whole)
        ways = _ever_shorter(_limit(self.policy, showing) or 0)
        found = self._cut_to(form, *next(ways))
        for way in ways:
            if (found[1].tokens or 0) <= most:
                break
            found = self._cut_to(form, *way)
        return found

    def _cut_to(self, form: MessageForm, arguments: Arguments, limit: int) -> ShownMessage:
        shown, details = form._replace(shorten_over=limit, arguments=arguments).decode(
            self._codec, self.payloads
        )
        if details.tokens is None or form.message.is_estimate:
            details.tokens = count(self.counter, shown)
        elif form.message.media and form.has_media:
            details.tokens = max(0, details.tokens + self._more(form.message))
        return shown, details

    def _most(self, message: EntryMessage, showing: Showing) -> int:
        """Return the maximum size of a message with `room` tokens for all texts of a question, or for each text of AI.

        The part in its entry is counted. In its payload, each character that cannot be cut counts as a token.
        """
        room = showing.room or 0
        read = read_message(self._codec, message)
        lengths, uncut = text_lengths(read)
        least = count(self.counter, _at_its_shortest(read))
        if showing.whole or self.policy.media == "never":
            least += max(0, self.size_whole(message) - message.view_tokens)
        long = [length for length in lengths if length > room]
        # LangChain's counter ignores call arguments beside a list of blocks, so only long texts are subtracted.
        texts = sum(length for length in lengths_without_arguments(read.content) if length > room)
        least += min(uncut, max(0, message.tokens - texts // CHARACTERS_PER_TOKEN))
        if message.type == "human":
            marks = max(1, sum(length > _MIN_TEXT_TOKENS for length in lengths))
            return max(room, least) + _cut_tokens(self.counter) * marks
        short = message.tokens * (sum(lengths) - sum(long)) // max(1, sum(lengths) + uncut)
        return least + short + room * max(1, len(long))

    def _form(self, message: EntryMessage, *, whole: bool) -> MessageForm:
        if whole or message.type == "tool":
            return MessageForm(message, whole)
        has_media = self.policy.media == "never"
        return MessageForm(message, has_media=has_media, shorten_over=self.policy.shorten_over)


def payloads_needed(
    rows: Sequence[Row], shown: Sequence[Showing | None], policy: HistoryPolicy
) -> list[tuple[str, PayloadRef]]:
    """Return the message id and the range of each payload that a view of these rows needs."""
    needed: list[tuple[str, PayloadRef]] = []
    for row, showing in zip(rows, shown, strict=True):
        if showing is None or (showing is FINISHED and row.message.stub is not None):
            continue
        if ref := _payload_in_view(row.message, policy, showing):
            needed.append((row.message.id, ref))
    return needed


def _payload_in_view(
    message: EntryMessage, policy: HistoryPolicy, showing: Showing
) -> PayloadRef | None:
    """Return the range of a message's payload that a view shows, None if it shows no part of it."""
    ref = message.payload
    if ref is None or is_hidden(message, policy):
        return None
    # In a payload, media come after the texts.
    has_media = _shows_media(message, policy, showing) and ref.shown < ref.ends[-1]
    return payload_needed(
        message, whole=showing.whole or has_media, shorten_over=_limit(policy, showing)
    )


def _keeps_media(message: EntryMessage, policy: HistoryPolicy) -> bool:
    return policy.media == "never" and message.type != "tool"


def _shows_media(message: EntryMessage, policy: HistoryPolicy, showing: Showing) -> bool:
    """Return True if a message of a finished turn shows images or files that may be in its payload."""
    return _keeps_media(message, policy) and showing.media != 0


def _limit(policy: HistoryPolicy, showing: Showing) -> int | None:
    """Return the size in tokens above which texts are cut, None without a limit."""
    limits = (showing.room, None if showing.whole else policy.shorten_over)
    return min((limit for limit in limits if limit is not None), default=None)


def _ever_shorter(limit: int) -> Iterator[tuple[Arguments, int]]:
    """Yield ways to cut texts and arguments, from the given limit down to the smallest one.

    >>> list(_ever_shorter(25))
    [('texts', 25), ('texts', 20), ('whole', 25), ('whole', 20)]
    """
    limits = [limit]
    while limits[-1] > _MIN_TEXT_TOKENS:
        limits.append(max(_MIN_TEXT_TOKENS, limits[-1] * 3 // 4))
    ways: tuple[Arguments, ...] = ("texts", "whole")
    return ((way, limit) for way in ways for limit in limits)


def _at_its_shortest(message: BaseMessage) -> BaseMessage:
    """Return a message, read without its payload, with all of its texts cut."""
    return with_short_texts(without_media(leave_out(message)), _MIN_TEXT_TOKENS, arguments="texts")


@cache
def _missing_tokens(counter: TokenCounter) -> int:
    call = Call("call_of_twenty_four_char", "a_tool_of_twenty", 0)
    return count(counter, missing_result(call, ai_message_id=None))


@lru_cache(maxsize=16)
def _cut_tokens(counter: TokenCounter) -> int:
    """Return the size of the notice that replaces the middle of a cut text."""
    text = "word " * 10_000
    shown = shorten_text(text, _MIN_TEXT_TOKENS, "8e03978e-40d5-43e8-bc93-6894a57f9324")
    return (
        count(counter, HumanMessage(shown))
        - count(counter, HumanMessage(text[: 4 * _MIN_TEXT_TOKENS]))
        + 5
    )


def _decode_unchanged(message: EntryMessage, stub: str | None) -> BaseMessage | None:
    """Decode a message on a fast path; None if its stored form is not plain, or its digest does not match."""
    shown = decode_if_plain(message.body, stub)
    if shown is None or MARK in message.body:
        return None
    if shown.type != message.type or shown.id != message.id:
        return None
    return shown if digest_of(message.body) == message.digest else None


def _length(message: EntryMessage) -> int:
    """Return the number of stored characters of a message, including those in a payload that views show."""
    payload = message.payload.shown if message.payload else 0
    return len(message.body) + payload


def _stored_tokens(message: EntryMessage, stub: str | None, *, is_whole: bool) -> int | None:
    """Return the size of a message in a view as counted at append; None if that was an estimate."""
    if message.is_estimate and stub is None:
        return None
    return message.tokens if is_whole else message.view_tokens
