"""Return values of searches, citations and the administration of a store: data without behaviour or I/O."""

from __future__ import annotations

from datetime import date, datetime
from typing import Literal

from convstore.values.json_form import Value


class ErasureReceipt(Value):
    """Counts of the documents that were removed from the database.

    Attributes:
        conversations: Conversations that this call deleted, with those of sub-agents. A removal that was interrupted
            and is finished now was counted by the first call.
        sub_agents: The conversations of sub-agents among them.
        entries: Appended batches.
        payload_chunks: Chunks of large results and of other large parts of messages.
        summaries: Summaries, including earlier versions.
        annotations: Annotated messages, and states that the application kept.
        search_segments: Segments of the search index.
        drafts: Replies that were being streamed.
    """

    conversations: int = 0
    sub_agents: int = 0
    entries: int = 0
    payload_chunks: int = 0
    summaries: int = 0
    annotations: int = 0
    search_segments: int = 0
    drafts: int = 0


class Growth(Value):
    """Messages that were written on one day, and their size.

    Attributes:
        day: The day (UTC).
        conversations: Conversations that began on it.
        messages: Messages appended on it, including those that were rewound later.
        bytes: Size of their entries, without large results and other large parts of messages.
    """

    day: date
    conversations: int
    messages: int
    bytes: int


class StoreStats(Value):
    """Sums over conversations, as `stats` returns them.

    Attributes:
        conversations: Number of conversations.
        damaged: Those among them whose head or last entry cannot be read; their counts are missing in the next fields.
        messages: Their messages, without rewound ones.
        turns: Human messages among these.
        tokens: Size of these messages in full.
        saved_by_stubs: Tokens that default views save, because old results are stubs.
        saved_by_summaries: Further tokens that these views save by the current summaries.
        saved_by_budget: Further tokens that these views save, because `max_tokens` of the store's policy limits each.
            This is an estimate: it assumes that views that leave turns out fill their budget, and that no turn is in
            progress.
        summarized: Conversations with a current summary.
        bytes: Stored size by kind of document: entries, payloads (large parts of messages, compressed), summaries,
            annotations, drafts of replies, and segments of the search index. Heads, indexes and the server's
            compression are not counted.
        growth: The days on which something was written, oldest first.
    """

    conversations: int = 0
    damaged: int = 0
    messages: int = 0
    turns: int = 0
    tokens: int = 0
    saved_by_stubs: int = 0
    saved_by_summaries: int = 0
    saved_by_budget: int = 0
    summarized: int = 0
    bytes: dict[str, int] = {}
    growth: list[Growth] = []


class Migration(Value):
    """A step that brings a database to the shape that this version expects.

    Attributes:
        name: Name of the migration, which begins with its number.
        summary: Description of its effect.
        phase: "before" if this version needs it, so that it runs before a deployment; "after" if it has to wait until
            processes of older versions are replaced, see `setup`.
        is_applied: True if it has run on this database.
    """

    name: str
    summary: str
    phase: Literal["before", "after"]
    is_applied: bool


class Finding(Value):
    """A defect found in the database.

    Attributes:
        kind: Kind of the defect; docs/reference/findings.md lists all kinds.
        collection: Name of the collection, without the store's prefix.
        document_id: The ``_id`` of the document, of the first of several, or the name of an index.
        problem: Description of the defect, without texts of messages.
        conversation: The id of the conversation in the log, else "".
        repairable: True if ``repair=True`` can repair it without guessing.
        repaired: True if it was repaired.
        lost_ordinals: First and last ordinal of the messages that are missing before the document, else None.
        lost_source_ids: First and last source id that were lost with them, else None.
        repaired_as: The new id of a conversation whose log was replaced by a copy of its remaining messages, else "".
    """

    kind: str
    collection: str
    document_id: str
    problem: str
    conversation: str = ""
    repairable: bool = False
    repaired: bool = False
    lost_ordinals: tuple[int, int] | None = None
    lost_source_ids: tuple[int, int] | None = None
    repaired_as: str = ""


class VerifyReport(Value):
    """The result of `verify`: counts of the documents checked, and the defects found.

    Attributes:
        conversations: Conversations that were read to their end. The next six counts are about these.
        entries: Entries of their logs.
        messages: Messages in these entries.
        payload_chunks: Payload chunks, each read and compared with its checksum.
        summaries: Summaries.
        annotations: Annotated messages.
        search_segments: Segments of the search index.
        findings: The first 1,000 findings.
        counts: Number of findings of each kind, including those not listed.
        left: Number of findings that were not repaired.
    """

    conversations: int = 0
    entries: int = 0
    messages: int = 0
    payload_chunks: int = 0
    summaries: int = 0
    annotations: int = 0
    search_segments: int = 0
    findings: tuple[Finding, ...] = ()
    counts: dict[str, int] = {}
    left: int = 0

    @property
    def ok(self) -> bool:
        """True if verification found no defect, or every defect was repaired."""
        return self.left == 0


class ProbedConstruct(Value):
    """A construct of MongoDB that a store uses, with the answer of a server to it.

    Attributes:
        name: Name of the construct, such as an option or an operator.
        status: "supported"; "replaced" if the server lacks it and the store works without it; "missing" if a feature
            of the store needs it; "not_tried" if it could not be tried.
        without: The store's replacement, or the feature that does not work; "" if supported or not tried.
        reason: The server's answer, or the reason why it was not tried; "" if it is supported.
        code: The code of the server's error, None without an error.
    """

    name: str
    status: Literal["supported", "replaced", "missing", "not_tried"]
    without: str = ""
    reason: str = ""
    code: int | None = None


class ServerReport(Value):
    """A server and the constructs that it supports and lacks.

    Attributes:
        server: Name of the product, such as "MongoDB", as far as it can be detected.
        version: The version that the server reports; products that imitate MongoDB report a version of MongoDB.
        topology: Kind of deployment that the client is connected to.
        clock_ahead: Seconds by which this machine's clock is ahead of the server's; negative if it is late.
        constructs: All constructs, in the order in which they are tried.
    """

    server: str
    version: str
    topology: Literal["standalone", "replica set", "sharded cluster"]
    clock_ahead: float
    constructs: tuple[ProbedConstruct, ...] = ()

    def having(self, status: str) -> list[ProbedConstruct]:
        """Return the constructs with a status."""
        return [construct for construct in self.constructs if construct.status == status]


class SearchHit(Value):
    """A message that a search found.

    Attributes:
        message_id: Id of the message.
        ordinal: Its position in the log; ``list_messages(around=…)`` jumps to it.
        turn_id: Id of the turn that it is listed with, for `get_turn`.
        type: "human", "ai", "tool", …
        tool: Name of the tool of a tool result, else "".
        source_ids: Ids of the sources of a tool result that matched, best first.
        snippet: The part of its text with the words of the query, unchanged.
        score: Higher is better; comparable within one result only.
        created_at: When it was appended (UTC).
    """

    message_id: str
    ordinal: int
    turn_id: str
    type: str
    tool: str = ""
    source_ids: tuple[int, ...] = ()
    snippet: str
    score: float
    created_at: datetime


class ConversationHits(Value):
    """The hits of a search in one conversation.

    Attributes:
        scope: The scope values of the conversation.
        conversation_id: Random id of the conversation, for `ConversationStore.find_conversation`.
        title: Title of the conversation, None without one.
        hits: Best first.
    """

    scope: dict[str, str]
    conversation_id: str = ""
    title: str | None = None
    hits: list[SearchHit]


class SearchResult(Value):
    """The result of a search across conversations.

    Attributes:
        conversations: The conversations with hits; the one with the best hit first.
        searched: Number of conversations that were searched, the newest ones.
        incomplete: Scopes of conversations that were searched only in part, because they are damaged, or too much of
            them is not in the search index yet. A store with an index adds it in the background.
        problems: By conversation id, why a title is not shown or a conversation was not searched, as in
            `ConversationInfo.problem`.
    """

    conversations: list[ConversationHits] = []
    searched: int = 0
    incomplete: list[dict[str, str]] = []
    problems: dict[str, str] = {}


class Citation(Value):
    """A source that a message cites at a position in its text.

    Attributes:
        start: Index of the first character in ``message.text``. For a number, that is its mark, which the citations of
            ``[17, 18]`` share; for a provider's citation, the text that the source supports.
        end: Index after the last character.
        given_by: "number" for a number in the text; "provider" for a citation that the model's API attached.
        number: The number in the text, even if the source does not exist; None for a provider's citation.
        source_id: Id of the source; None if the number is unknown, or a provider cites a page or a file that is not a
            source of the conversation.
        title: The title of the source, "" without one.
        url: The address of the source, "" without one.
        quotation: The text that a provider quotes from the source; "" without one, and for numbers.
        tool_message_id: The tool message that has the source; "" without a source.
        child_id: The `conversation_id` of the child that has the source; "" for the conversation itself.
    """

    start: int
    end: int
    given_by: Literal["number", "provider"]
    number: int | None = None
    source_id: int | None = None
    title: str = ""
    url: str = ""
    quotation: str = ""
    tool_message_id: str = ""
    child_id: str = ""
