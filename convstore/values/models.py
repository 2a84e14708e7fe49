"""What the public API gives back: values without behaviour or I/O.

Layer 0. No field can be set anew; the lists and dicts in some of them are plain ones. pydantic models, so that a
backend can return them from an endpoint as they are: messages are dumped with all fields of their own class.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from langchain_core.messages import BaseMessage
from pydantic import BaseModel, ConfigDict, SerializeAsAny

__all__ = [
    "Compaction",
    "ConversationInfo",
    "ConversationPage",
    "ErasureReceipt",
    "Finding",
    "History",
    "HistoryReport",
    "MessagePreview",
    "Receipt",
    "Source",
    "SourcePage",
    "StoredMessage",
    "Summary",
    "ToolRecord",
    "Turn",
    "VerifyReport",
]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Receipt(_Value):
    """What an append did.

    Attributes:
        message_ids: The id of each message of the batch, in its order.
        first: Lowest ordinal of the batch's messages, whether written now or earlier.
        last: Highest ordinal of them.
        ordinals: The ordinal of each message of the batch, in its order.
        written: How many messages were written now; 0 for a repeated batch.
        source_ids: Source ids allotted to the results written now, lowest and highest; None without sources.
        omitted: Where values of unknown types were left out (``unencodable="omit"``).
        renumbered: By tool message id, old and new numbers of sources (``on_source_clash="renumber"``).
    """

    message_ids: tuple[str, ...]
    first: int
    last: int
    ordinals: tuple[int, ...]
    written: int
    source_ids: tuple[int, int] | None = None
    omitted: tuple[str, ...] = ()
    renumbered: dict[str, dict[int, int]] = {}


class HistoryReport(_Value):
    """What `load_history` did to make the view, and what it cost.

    Attributes:
        stubbed: Ids of tool messages that stand as stubs.
        placeholders: Ids of other messages with images, audio or files that stand as placeholders.
        shortened: Ids of messages with long texts that are shown as their beginning and end.
        left_out_turns: Whole turns before the view, left out by the budget or `max_turns`.
        missing_results: Tool call ids that got a synthetic error result.
        orphans: Ids of tool messages left out because no call asks for them.
        late_results: Ids of tool messages shown as text, behind a summary or a note that may stand for their call.
        moved: Ids of tool messages that came late or out of order and were put behind their call.
        over_budget: The view is larger than `max_tokens`: the turn in progress alone does not fit, or only as it was
            appended, not as it is shown to `provider`.
        tokens_before: The whole log, every result in full, by the store's counter; rewound messages apart.
        tokens_after: The view, by the store's counter.
        tokens_unsummarized: What no summary stands for, left out or not, as the rule of a summarizer weighs it: leading
            system messages apart, old results as stubs.
        documents: Documents read from the server.
        bytes: Their size as stored.
        round_trips: Times the load waited for the server; commands sent together count as one.
    """

    stubbed: tuple[str, ...] = ()
    placeholders: tuple[str, ...] = ()
    shortened: tuple[str, ...] = ()
    left_out_turns: int = 0
    missing_results: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    late_results: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    over_budget: bool = False
    tokens_before: int = 0
    tokens_after: int = 0
    tokens_unsummarized: int = 0
    documents: int = 0
    bytes: int = 0
    round_trips: int = 0


class Summary(_Value):
    """A summary that stands for a range of messages, which stay in the log.

    Attributes:
        version: Counts the summaries of the conversation from 1.
        first: First ordinal that it stands for.
        last: Last ordinal that it stands for.
        text: The summary.
        messages: The messages that show it in views.
        model: What wrote it.
        tokens_in: Size of what was folded into it as views showed it, the summary before it included.
        tokens_out: Its own size.
        created_at: When it was made (UTC).
        tool_message_ids: Results that it stands for, in order.
        source_ids: Their sources, as text.
        is_current: Whether views show it, unless messages that it stands for were rewound.
    """

    version: int
    first: int
    last: int
    text: str
    messages: list[SerializeAsAny[BaseMessage]] = []
    model: str
    tokens_in: int
    tokens_out: int
    created_at: datetime
    tool_message_ids: list[str] = []
    source_ids: str = ""
    is_current: bool = False


class Compaction(_Value):
    """What `compact` did.

    Attributes:
        status: "done"; "not_needed", as little would be saved; "busy", as another worker is at it; "failed"; "waiting",
            as the last try failed a short time ago; "running", as a load no longer waited for the summarizer, whose
            work goes on and is committed later.
        summary: The new summary, if it is done.
        problem: Why it is not done, "" if it is or need not be.
    """

    status: Literal["done", "not_needed", "busy", "failed", "waiting", "running"]
    summary: Summary | None = None
    problem: str = ""


class History(_Value):
    """The view of a conversation for the next model call.

    Attributes:
        messages: Leading system messages first, then a summary and a note if there are any, then whole turns.
        summary: Text of the summary that stands for the oldest messages, None if there is none.
        tokens: Size of the view by the store's counter.
        report: What was done to make the view, and what it cost.
        compaction: What became of a compaction that was due first, under a policy with ``compact="before_load"``.
    """

    messages: list[SerializeAsAny[BaseMessage]]
    summary: str | None = None
    tokens: int = 0
    report: HistoryReport
    compaction: Compaction | None = None


class ErasureReceipt(_Value):
    """What was removed, counted in documents that are gone from the database.

    Attributes:
        conversations: Conversations that this call ended; one whose removal broke off earlier was counted then.
        entries: Appended batches.
        payload_chunks: Pieces of large results and of other large parts of messages.
        summaries: Summaries of them, earlier ones too.
        annotations: Annotated messages.
    """

    conversations: int = 0
    entries: int = 0
    payload_chunks: int = 0
    summaries: int = 0
    annotations: int = 0


class Source(_Value):
    """One retrieved item of a tool result.

    Attributes:
        source_id: Its number, unique in the conversation and never changed.
        title: "" if the tool gave none.
        url: "" if the tool gave none.
        content: Its text, or the part of it that is on this page.
        metadata: Everything else that the tool said of it; on a page only what there is room for, and under "convstore"
            a mark that names what is left out.
        tool_message_id: The tool message it came with.
        earlier_id: The number under which the same text was shown first, None if it was new; of documents long ago
            nothing is known.
        given_id: The number it came with, if that was taken (``on_source_clash="renumber"``).
    """

    source_id: int
    title: str = ""
    url: str = ""
    content: str = ""
    metadata: dict[str, Any] = {}
    tool_message_id: str = ""
    earlier_id: int | None = None
    given_id: int | None = None


class SourcePage(_Value):
    """One page of full content.

    Attributes:
        sources: Sources whose text is on this page, in the order asked for.
        not_found: Source ids (int) and message ids (str) that were asked for and are not in this conversation.
        next_cursor: Ask again with it for the next page; None on the last.
    """

    sources: list[Source] = []
    not_found: list[int | str] = []
    next_cursor: str | None = None


class ToolRecord(_Value):
    """A message of the log in full, as `get_tool_messages` gives it.

    Attributes:
        tool_message_id: The message's id.
        tool_call_id: The call it answers; "" for a message that is not a tool result.
        tool: The tool's name, "" if nothing names it.
        status: "success" or "error", unless the message was given another.
        content: Equal to the content that was appended.
        artifact: Equal to the artifact that was appended.
        sources: The sources in it, with their numbers and whole texts.
        ordinal: Its place in the log.
        created_at: When it was appended (UTC).
    """

    tool_message_id: str
    tool_call_id: str = ""
    tool: str = ""
    status: str = "success"
    content: Any = ""
    artifact: Any = None
    sources: list[Source] = []
    ordinal: int
    created_at: datetime


class StoredMessage(_Value):
    """A message of the log with its place, for a user interface.

    Attributes:
        ordinal: Its place in the log: 1, 2, 3 …
        created_at: When it was appended (UTC).
        message: As appended, or as views show it.
        annotations: What `annotate` said of it.
    """

    ordinal: int
    created_at: datetime
    message: SerializeAsAny[BaseMessage]
    annotations: dict[str, Any] = {}


class MessagePreview(_Value):
    """The beginning of a message, for a listing.

    Attributes:
        type: "human" or "ai".
        text: Up to 120 characters in one line.
    """

    type: str
    text: str


class Turn(_Value):
    """A human message and all that follows it up to the next one; what precedes the first is a turn too, number 0.

    Attributes:
        turn_id: Id of its first message.
        number: Its place among the turns that are not rewound.
        first: Ordinal of its first message.
        last: Ordinal of its last message.
        created_at: When its first message was appended (UTC).
        messages: Equal to what was appended.
        is_finished: Whether its last message is an AI message without tool calls, or another turn follows.
    """

    turn_id: str
    number: int
    first: int
    last: int
    created_at: datetime
    messages: list[SerializeAsAny[BaseMessage]]
    is_finished: bool


class ConversationInfo(_Value):
    """What is known of a conversation without reading it.

    Attributes:
        scope: Whose it is.
        title: Set with `update`, None if never.
        metadata: Set with `update`, {} if never.
        created_at: When its first message was appended (UTC); None for a scope without a conversation.
        updated_at: When its last message was appended (UTC); in a listing exact to 15 s.
        message_count: Messages in the log, rewound ones apart.
        tokens: Their size, by the token counter of the store that appended last.
        usage: By model the sums of its own counts (``usage_metadata``): input_tokens, output_tokens, total_tokens; the
            model is "unknown" where messages do not name it.
        last_message: The beginning of the last message with a text, None before there is one; in a listing exact to
            15 s.
    """

    scope: dict[str, str]
    title: str | None = None
    metadata: dict[str, Any] = {}
    created_at: datetime | None = None
    updated_at: datetime | None = None
    message_count: int = 0
    tokens: int = 0
    usage: dict[str, dict[str, int]] = {}
    last_message: MessagePreview | None = None


class ConversationPage(_Value):
    """One page of `list_conversations`.

    Attributes:
        conversations: Newest first.
        next_cursor: Ask again with it for the next page; None on the last. A conversation that was appended to less
            than 15 s before the first page was read, or later, may have moved to the front, off the later pages.
    """

    conversations: list[ConversationInfo] = []
    next_cursor: str | None = None


class Finding(_Value):
    """Something in the database that is not as it should be.

    Attributes:
        kind: What sort of thing; docs/operations.md lists all of them.
        collection: Where it is, without the store's prefix.
        document_id: The ``_id`` of the document, of the first of several, or the name of an index.
        problem: What is wrong, in words. It holds no text of messages.
        conversation: The id of the conversation in the log; "" if it is of none.
        repairable: Whether ``repair=True`` can mend it without guessing.
        repaired: Whether that was done.
    """

    kind: str
    collection: str
    document_id: str
    problem: str
    conversation: str = ""
    repairable: bool = False
    repaired: bool = False


class VerifyReport(_Value):
    """What `verify` looked at and what it found.

    Attributes:
        conversations: Conversations that were read to their end.
        entries: Their entries.
        messages: The messages in them.
        payload_chunks: Their payload chunks, each read and compared with its checksum.
        summaries: Their summaries.
        annotations: Their annotated messages.
        findings: The first 1,000.
        counts: How many findings of each kind there were, those that are not listed too.
        left: How many of all findings were not repaired.
    """

    conversations: int = 0
    entries: int = 0
    messages: int = 0
    payload_chunks: int = 0
    summaries: int = 0
    annotations: int = 0
    findings: tuple[Finding, ...] = ()
    counts: dict[str, int] = {}
    left: int = 0

    @property
    def ok(self) -> bool:
        """Whether all is as it should be, or was brought back to that."""
        return self.left == 0
