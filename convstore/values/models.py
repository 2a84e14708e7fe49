"""Return values of the public API: data without behaviour or I/O.

Fields cannot be reassigned, but lists and dicts inside them can be changed. They are pydantic models, so that a backend
can return them from an endpoint as they are. Messages are serialised with all fields of their own class.

The module is long because half of it is the documentation of fields.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from langchain_core.messages import BaseMessage
from pydantic import SerializeAsAny

from convstore.values.json_form import Value
from convstore.values.stamps import ViewReason, ViewStamp
from convstore.values.turns import OverBy, TurnCall

Status = Literal["running", "waiting", "finished", "stopped", "interrupted"]
State = Literal["", "open", "imported", "finished", "stopped", "cut", "refused"]


class Receipt(Value):
    """The result of an append.

    Attributes:
        message_ids: Ids of the batch's messages that are in the log, in batch order.
        first: Lowest ordinal of the batch's messages, including those written earlier.
        last: Highest ordinal of the batch's messages.
        ordinals: The ordinals of the same messages, in the same order.
        written: Number of messages written by this call; 0 for a repeated batch.
        entry: Number of the entry with the written messages, which stamps of later views name; 0 if `written` is 0.
        source_ids: First and last source id assigned to the results written now, ``(1, 1)`` for one source; None
            without sources.
        omitted: Paths of values of unknown types that were left out (``on_unencodable="omit"``).
        renumbered: By tool message id, old and new numbers of sources (``on_source_clash="renumber"``).
        ignored: Names of the messages of a client's history that were not accepted, such as "message 2 (tool)".
    """

    message_ids: tuple[str, ...]
    first: int
    last: int
    ordinals: tuple[int, ...]
    written: int
    entry: int = 0
    source_ids: tuple[int, int] | None = None
    omitted: tuple[str, ...] = ()
    renumbered: dict[str, dict[int, int]] = {}
    ignored: tuple[str, ...] = ()


class HistoryReport(Value):
    """A report on how `load_history` built the view, and at what cost.

    Attributes:
        stubbed: Ids of tool messages shown as stubs, or with the suffix that names their sources.
        placeholders: Ids of other messages whose images, audio or files are shown as placeholders.
        shortened: Ids of messages with long texts, of which only beginning and end are shown.
        left_out_turns: Whole turns before the view, left out by the budget or `max_turns`; no summary covers them.
        left_out_steps: Steps of later turns that are left out: AI messages with calls and their results.
        is_excursion: True if this view leaves out or shortens more than the views before and after it, because
            messages that the model has not read yet need the room.
        missing_results: Tool call ids that got a synthetic error result.
        orphans: Ids of tool messages left out because no call matches them.
        late_results: Ids of tool messages shown as text, because a summary or a note may have replaced their call.
        moved: Ids of tool messages that came late or out of order and were moved to their call.
        over_budget: The view is larger than `max_tokens`. Either the turn in progress alone does not fit, or its unread
            images and files leave earlier turns a quarter of the budget, or it no longer fits in the form required by
            `provider`.
        tokens_before: Size of the whole log with every result in full, without rewound messages.
        tokens_after: Size of the view. All sizes are by the store's counter.
        tokens_unsummarized: Size of the messages not covered by a summary, in the view or not, as a compaction rule
            measures them: without leading system messages, old results as stubs.
        counter_error: Class of the last error that the store's token counter raised in this process, or "no whole
            number from 0" if it returned anything else; "" without one. Messages that it could not count have estimated
            sizes.
        request_bytes: Estimated size of a request with the view: four bytes a token, and its images, audio and files
            as Base64.
        documents: Number of documents read from the server.
        bytes: Stored size of these documents.
        round_trips: Number of waits for the server; commands sent together count as one.
        reasons: From `Conversation.view_at`, the reason why each message is shown as it is: ranges of ordinals in
            order, at most the last 500.
        reasons_before: Pass it as ``reasons_before`` to get earlier ranges; None if `reasons` begins with the first.
    """

    stubbed: tuple[str, ...] = ()
    placeholders: tuple[str, ...] = ()
    shortened: tuple[str, ...] = ()
    left_out_turns: int = 0
    left_out_steps: int = 0
    is_excursion: bool = False
    missing_results: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    late_results: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    over_budget: bool = False
    tokens_before: int = 0
    tokens_after: int = 0
    tokens_unsummarized: int = 0
    counter_error: str = ""
    request_bytes: int = 0
    documents: int = 0
    bytes: int = 0
    round_trips: int = 0
    reasons: tuple[ViewReason, ...] = ()
    reasons_before: int | None = None


class Summary(Value):
    """A summary that replaces a range of messages in views; the messages stay in the log.

    Attributes:
        version: Number of the summary in the conversation, from 1.
        first: First ordinal that it covers.
        last: Last ordinal that it covers.
        text: The summary.
        messages: The messages by which views show it.
        model: Name of the model that wrote it.
        tokens_in: Size of the messages folded into it as views showed them, including the previous summary.
        tokens_out: Size of the summary itself.
        created_at: Time of creation (UTC).
        reason: Why it was made, as the end of a sentence: "turns had left the view"; "" if an older version made it.
        tool_message_ids: Ids of the tool results that it covers, in order.
        source_ids: Ids of the sources of these results, as text.
        is_current: True if it is the current summary. Views show it unless messages that it covers were rewound.
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
    reason: str = ""
    tool_message_ids: list[str] = []
    source_ids: str = ""
    is_current: bool = False


class Compaction(Value):
    """The result of `compact`.

    Attributes:
        status: "done"; "not_needed": too little would be saved; "busy": another worker is compacting; "failed";
            "waiting": retries back off after a recent failure; "running": the load did not wait for the summarizer any
            longer, and the summary is committed later.
        summary: The new summary, if the status is "done".
        problem: The reason of a failure or a delay, else "".
    """

    status: Literal["done", "not_needed", "busy", "failed", "waiting", "running"]
    summary: Summary | None = None
    problem: str = ""


class Source(Value):
    """One retrieved item of a tool result.

    Attributes:
        source_id: Number of the source, unique in the conversation and never changed.
        title: "" if the tool gave no title.
        url: "" if the tool gave no address.
        content: Text of the source, or the part of it that is on this page.
        metadata: All other fields that the tool gave. A page has only the fields that fit; an entry "convstore" names
            the others.
        tool_message_id: Id of the tool message that contains the source.
        earlier_id: The number with which the same text was first shown, None if it was new. Only recent sources are
            compared.
        given_id: The number that the tool assigned, if it was taken (``on_source_clash="renumber"``); else None.
        child_id: The `conversation_id` of the child that has the source; "" for the conversation itself.
    """

    source_id: int
    title: str = ""
    url: str = ""
    content: str = ""
    metadata: dict[str, Any] = {}
    tool_message_id: str = ""
    earlier_id: int | None = None
    given_id: int | None = None
    child_id: str = ""


class SourcePage(Value):
    """One page of full content.

    Attributes:
        sources: Sources whose text is on this page, in the requested order.
        not_found: Requested source ids (int) and message ids (str) that are not in this conversation.
        next_cursor: Cursor of the next page; None on the last.
    """

    sources: list[Source] = []
    not_found: list[int | str] = []
    next_cursor: str | None = None


class ToolRecord(Value):
    """A message of the log in full, as `get_tool_messages` returns it.

    Attributes:
        tool_message_id: The message's id.
        tool_call_id: Id of the call that it answers; "" for a message that is not a tool result.
        tool: The tool's name, "" if it is unknown.
        status: "success" or "error", unless the message was appended with another value.
        is_failed: True for a result that reports a failed call: by the store's `is_failed`, or else by its status or a
            ``"success": false`` in its JSON.
        content: Equal to the content that was appended.
        artifact: Equal to the artifact that was appended.
        sources: The sources of the message, with their numbers and full texts.
        ordinal: Its position in the log.
        created_at: When it was appended (UTC).
    """

    tool_message_id: str
    tool_call_id: str = ""
    tool: str = ""
    status: str = "success"
    is_failed: bool = False
    content: Any = ""
    artifact: Any = None
    sources: list[Source] = []
    ordinal: int
    created_at: datetime


class StoredMessage(Value):
    """A message of the log with its position, for a user interface.

    Attributes:
        ordinal: Its position in the log: 1, 2, 3 …
        created_at: When it was appended (UTC).
        message: The message as appended, or as views show it.
        turn_id: Id of the turn that it belongs to, which is the id of the question; "" for a message outside turns,
            such as a greeting, a note after an answer or a reminder.
        annotations: Values set with `annotate`.
        stamp: Stamp of the view that an AI message answers, if it was appended with one.
        tokens: Its size as appended, by the token counter of the store that appended it.
        is_rewound: True if it was rewound.
        is_failed: True for a tool result that reports a failed call, as in `ToolRecord`.
    """

    ordinal: int
    created_at: datetime
    message: SerializeAsAny[BaseMessage]
    turn_id: str = ""
    annotations: dict[str, Any] = {}
    stamp: ViewStamp | None = None
    tokens: int = 0
    is_rewound: bool = False
    is_failed: bool = False


class TurnState(Value):
    """State of the last turn of a conversation, or of another answer or question that views do not show yet.

    ``chat.turn(state.turn_id, regenerate=state.variant_id or None)`` continues it.

    Attributes:
        turn_id: Id of the turn; for an edited question that views do not show yet, its id.
        variant_id: The `regenerate` key of another answer that views do not show yet; else "".
        status: "running" in a worker, "waiting" for a person, "finished", "stopped", or "interrupted": it has no
            worker, and the same request continues it.
        draft: The beginning of a reply that a worker is streaming, or was streaming when it was killed; not in the log.
        waiting_calls: The calls that a person has to decide about.
    """

    turn_id: str
    variant_id: str = ""
    status: Status
    draft: str = ""
    waiting_calls: tuple[TurnCall, ...] = ()


class ConversationUpdate(Value):
    """Changes in a conversation; from `Conversation.watch`.

    Attributes:
        replaces_from: Drop the messages with this ordinal and higher ones, which were rewound or are in `messages`.
        messages: Messages to add, in order.
        turn: The last turn, or a newer variant that views do not show yet. Such a variant is returned while a worker
            is at work on it, and while it waits for a person, until it is finished or stopped, or the user asks
            another question. None in a conversation without a turn, and while earlier messages are still to come.
    """

    replaces_from: int
    messages: list[StoredMessage] = []
    turn: TurnState | None = None


class MessagePreview(Value):
    """The beginning of a message, for a listing.

    Attributes:
        type: "human" or "ai".
        text: Up to 120 characters on one line.
    """

    type: str
    text: str


class LastCall(Value):
    """Size of the last model call whose answer was appended with a stamp.

    Attributes:
        ordinal: Ordinal of the answer, which may have been rewound since.
        tokens: Size of the messages that the model got, by the store's counter.
        max_tokens: Budget of the view, None without a limit.
    """

    ordinal: int
    tokens: int
    max_tokens: int | None = None


class Turn(Value):
    """A question and the messages that belong to it, wherever they stand in the log.

    A message outside turns, such as a reminder after the answer, is listed with the turn that it follows and changes
    nothing about that turn. Messages before the first question are listed as a turn with the number 0.

    Attributes:
        turn_id: Id of its first message.
        number: Its position among the turns that are not rewound; for a rewound turn, the position that it had.
        first: Ordinal of its first message.
        last: Ordinal of its last message.
        created_at: When its first message was appended (UTC).
        messages: Equal to the appended messages.
        others: Ids of the messages that belong to no turn, such as a reminder after the answer.
        rewound: Ids of the rewound messages, including the question's if it was rewound. Only with ``rewound=True``.
        is_finished: True if it is over.
        over: Why it is over: its last AI message has no tool calls and was not paused by its provider ("answered"), a
            `TurnSession` ended it ("finished", "stopped"), or a later question was asked ("superseded"). "" if it is in
            progress.
        waiting_calls: The calls that a person has to decide about. Only `watch` tells if a worker runs the turn.
        draft: From `get_turn`, the beginning of a reply that a worker is streaming, or was streaming when it was
            killed; not in the log.
        error: From `get_turn`, class and first line of the error by which the last run broke off, until the next
            append; else "". It may quote contents.
        pending: From `get_turn`, another answer, or a question in place of this one, that views do not show yet, while
            a worker is at work on it or a person has to decide about one of its calls. The newest of several.
    """

    turn_id: str
    number: int
    first: int
    last: int
    created_at: datetime
    messages: list[SerializeAsAny[BaseMessage]]
    others: tuple[str, ...] = ()
    rewound: tuple[str, ...] = ()
    is_finished: bool
    over: OverBy = ""
    waiting_calls: tuple[TurnCall, ...] = ()
    draft: str = ""
    error: str = ""
    pending: TurnState | None = None


class ForkOrigin(Value):
    """Origin of a fork.

    Attributes:
        conversation_id: The random id of the conversation that was forked, which may have been deleted since.
        ordinal: Ordinal of the last message that both have, 0 without one.
    """

    conversation_id: str
    ordinal: int


class ConversationInfo(Value):
    """Facts about a conversation that are known without reading its messages.

    Attributes:
        scope: The scope that owns it.
        conversation_id: Its random id, "" for a scope without a conversation. A scope that is used again after a
            deletion gets a new id.
        title: Title set with `update`, else None.
        metadata: Metadata set with `update`, else {}.
        created_at: When its first message was appended (UTC), or source ids were reserved before it. Without messages,
            when its title or metadata was first set; None for a scope without a conversation.
        updated_at: When a message was last appended or rewound, source ids were reserved, or title or metadata was set
            (UTC).
        message_count: Number of messages in the log, without rewound ones.
        turns: Number of human messages among them.
        failed: Number of tool results among them that report a failed call.
        state: State of the newest turn by the last entry of the log, "" without a turn. "open": it runs, waits for a
            person, or broke off; `Conversation.get_turn` tells which. It is also "open" once a variant was begun, until
            that is shown or stopped, because the log does not show that its worker gave up. "finished" or "stopped".
            "cut": finished, but a limit or an unreadable call ended the answer. "refused": finished, but a filter or
            the model refused to answer. "imported": open, cut or refused at the import, and unchanged since.
        tokens: Size of these messages, by the token counter of the store that appended last.
        bytes: Stored size of all messages, after compression, without sources and indexes.
        usage: Sums of the counts of each model (``usage_metadata``): input_tokens, output_tokens, total_tokens, and of
            the input tokens cache_read_tokens and cache_write_tokens, 0 where the provider does not count them. Rewound
            and replaced answers are included, as they were paid for. "unknown" has the messages without a model's name.
        last_message: The beginning of the last message with text, None without such a message.
        has_children: True if sub-agents have conversations below it; see `Conversation.children`.
        last_call: Size of its last model call; None if no answer was appended with a stamp.
        forked_from: Origin of a fork, else None; see `Conversation.fork`.
        problem: The reason why a listing cannot show title and metadata, the counts, or all but the scope; else "". The
            data is damaged, or has a value of a type that this store has not registered.
    """

    scope: dict[str, str]
    conversation_id: str = ""
    title: str | None = None
    metadata: dict[str, Any] = {}
    created_at: datetime | None = None
    updated_at: datetime | None = None
    message_count: int = 0
    turns: int = 0
    failed: int = 0
    state: State = ""
    tokens: int = 0
    bytes: int = 0
    usage: dict[str, dict[str, int]] = {}
    last_message: MessagePreview | None = None
    has_children: bool = False
    last_call: LastCall | None = None
    forked_from: ForkOrigin | None = None
    problem: str = ""


class StateSnapshot(Value):
    """The state that the application keeps for a conversation, at one revision.

    Attributes:
        values: The values by name.
        revision: Rises by 1 with each change; 0 before the first one.
    """

    values: dict[str, Any] = {}
    revision: int = 0


class ConversationPage(Value):
    """One page of `list_conversations`.

    Attributes:
        conversations: Newest first.
        next_cursor: Cursor of the next page; None on the last. A conversation that was appended to after the first page
            was read may have moved to the front and be missing on later pages.
    """

    conversations: list[ConversationInfo] = []
    next_cursor: str | None = None
