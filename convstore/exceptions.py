"""Every error that convstore raises, in one tree.

Layer 0. Each message says what happened and what to do; an error of the driver is the ``__cause__``.

::

    ConvstoreError
    ├── InvalidInputError (ValueError)        the caller's value is refused; nothing was written
    │   ├── InvalidScopeError                 keys or values of a scope
    │   ├── InvalidMessageError               a message of a batch: says index and field
    │   ├── UnencodableError                  a value of a type the codec does not know: says where
    │   ├── BatchTooLargeError                an entry above 1 MB, payloads apart
    │   ├── TooManyIdsError                   more ids than one call takes
    │   ├── InvalidCursorError                a cursor that this store did not make
    │   ├── MalformedChainError               a chain of messages that has no sections and pairs: names the message
    │   └── UnknownMessageError               no message of this conversation has that id
    ├── ConflictError
    │   ├── ContentConflictError              same message id, other content; nothing was written
    │   ├── MessageRewoundError               the message is in the log, but rewound; nothing was written
    │   ├── SourceIdClashError                a source came with a number that is taken; nothing was written
    │   ├── TurnConflictError                 the turn holds other messages, or a later one was begun
    │   ├── ResentHistoryError                the beginning of the batch is in the log: says how much
    │   └── HistoryDivergedError              the batch is another history than the log: says where they part
    ├── StoreError                            the store cannot do it now
    │   ├── StoreUnavailableError             no server, no primary, a timeout: try again
    │   ├── StoreClosedError                  close() was called
    │   ├── NotSetUpError                     setup() has not run on this database
    │   ├── SchemaVersionError                the database was set up by a newer convstore
    │   ├── ConversationDeletedError          deleted while it was being read: call again
    │   ├── CorruptDocumentError              a stored document is not what was written: names it
    │   │   └── BrokenLogError                entries are missing or do not follow each other: run the doctor
    │   └── SyncUnsupportedError              a sync call on a store that lives on the caller's event loop
    ├── SummaryError (ValueError)             a model answered without a summary; nothing was summarised
    └── MissingExtraError (ImportError)       an optional dependency is not installed
"""

from __future__ import annotations

__all__ = [
    "BatchTooLargeError",
    "BrokenLogError",
    "ConflictError",
    "ContentConflictError",
    "ConversationDeletedError",
    "ConvstoreError",
    "CorruptDocumentError",
    "HistoryDivergedError",
    "InvalidCursorError",
    "InvalidInputError",
    "InvalidMessageError",
    "InvalidScopeError",
    "MalformedChainError",
    "MessageRewoundError",
    "MissingExtraError",
    "NotSetUpError",
    "ResentHistoryError",
    "SchemaVersionError",
    "SourceIdClashError",
    "StoreClosedError",
    "StoreError",
    "StoreUnavailableError",
    "SummaryError",
    "SyncUnsupportedError",
    "TooManyIdsError",
    "TurnConflictError",
    "UnencodableError",
    "UnknownMessageError",
]


class ConvstoreError(Exception):
    """Base of every error that convstore raises on purpose."""


class InvalidInputError(ConvstoreError, ValueError):
    """A value from the caller is refused; nothing was written."""


class InvalidScopeError(InvalidInputError):
    """A scope has a missing, extra or unusable key or value."""


class InvalidMessageError(InvalidInputError):
    """A message of a batch is refused.

    Attributes:
        index: Place of the message in the batch, from 0; None if the batch itself is refused.
        field: Dotted path of the field inside the message, "" if the whole message is meant.
    """

    def __init__(self, problem: str, *, index: int | None = None, field: str = "") -> None:
        self.index = index
        self.field = field
        place = "" if index is None else f"message {index}" + (f", field {field!r}" if field else "") + ": "
        super().__init__(place + problem)


class UnencodableError(InvalidInputError):
    """A value has a type that the store cannot give back equal.

    Attributes:
        path: Where the value is, such as ``message 2.artifact[0].owner``.
    """

    def __init__(self, problem: str, *, path: str = "") -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}" if path else problem)


class BatchTooLargeError(InvalidInputError):
    """An entry would be larger than 1 MB, payloads apart; append the messages in smaller batches."""


class TooManyIdsError(InvalidInputError):
    """More ids in one call than it takes; ask for them in several calls."""


class InvalidCursorError(InvalidInputError):
    """A cursor that the same call did not hand out; begin again without a cursor."""


class MalformedChainError(InvalidInputError):
    """A list of messages is no chain: a call or a result stands alone, or a message where it cannot stand.

    Attributes:
        index: Place of the message in the list, from 0; None if no message is to blame.
        message_id: Id of the message; None if it has none.
    """

    def __init__(self, problem: str, *, index: int | None = None, message_id: str | None = None) -> None:
        self.index = index
        self.message_id = message_id
        name = "" if message_id is None else f" ({message_id!r})"
        super().__init__(problem if index is None else f"message {index}{name}: {problem}")


class UnknownMessageError(InvalidInputError):
    """No message of this conversation has the id; one of another conversation is as unknown.

    Attributes:
        message_id: The id, which is that of a turn too.
    """

    def __init__(self, message_id: str, *, begins_turn: bool = False) -> None:
        self.message_id = message_id
        super().__init__(
            f"turn {message_id!r} was not begun in this conversation; pass its question with human="
            if begins_turn
            else f"no message of this conversation has the id {message_id!r}; list_messages tells which there are"
        )


class ConflictError(ConvstoreError):
    """What is stored already and what is to be stored cannot both be true."""


class ContentConflictError(ConflictError):
    """A message id is in the log with other content; nothing was written.

    Attributes:
        message_id: The id that is taken.
    """

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        super().__init__(
            f"message id {message_id!r} is already in this conversation with other content; "
            "the log never changes: append the new content under a new id"
        )


class MessageRewoundError(ConflictError):
    """A message that is appended again was rewound meanwhile; nothing was written.

    Attributes:
        message_id: The id of the message.
    """

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        super().__init__(
            f"message {message_id!r} is in this conversation but was rewound, so views would not show it; "
            "append it under a new id, or bring it back with undo_rewind"
        )


class SourceIdClashError(ConflictError):
    """A source came with a ``source_id`` that another source of the conversation has; nothing was written.

    Attributes:
        source_id: The number that is taken.
    """

    def __init__(self, source_id: int) -> None:
        self.source_id = source_id
        super().__init__(
            f"source id {source_id} is taken in this conversation; let number_sources wrap the tool, leave source_id "
            'out of its results, or append with on_source_clash="renumber"'
        )


class TurnConflictError(ConflictError):
    """The log has no place for these messages in their turn; nothing was written.

    Attributes:
        turn_id: The turn.
        is_newest: Whether it is the last one and holds other messages; False if a later one was begun meanwhile.
    """

    def __init__(self, turn_id: str, *, is_newest: bool = True) -> None:
        self.turn_id = turn_id
        self.is_newest = is_newest
        problem = (
            "holds other messages than these; get_turn tells what it holds, to ask for another answer rewind that one"
            if is_newest
            else "is not the newest any more, so its answer would stand in another turn; load the history again and "
            "answer the newest question"
        )
        super().__init__(f"turn {turn_id!r} {problem}")


class ResentHistoryError(ConflictError):
    """The first messages of the batch are in the log already (``resent="raise"``); nothing was written.

    Attributes:
        known: How many messages of the batch, from the first; leading system messages count.
    """

    def __init__(self, *, known: int) -> None:
        self.known = known
        super().__init__(
            f"the first {known} messages of the batch are in this conversation already; append messages[{known}:] "
            'only, or pass resent="skip"'
        )


class HistoryDivergedError(ConflictError):
    """A batch that was said to be a history is not the one in the log; nothing was written.

    Attributes:
        after: Id of the last message of the log up to which they agree; None if they agree on none.
        before: Id of the message that follows it in the log, for `rewind`; None if it is not known.
    """

    def __init__(self, *, after: str | None, before: str | None = None) -> None:
        self.after, self.before = after, before
        agreed = f"agrees with this conversation up to message {after!r} and then goes on" if after else "begins"
        call = f"call rewind(before={before!r})" if before else "call rewind"
        super().__init__(
            f"the history {agreed} in another way than the log, or ends before it; the log never changes: to edit a "
            f"question or ask for another answer, {call} and append the history again; to continue, append new "
            "messages only"
        )


class StoreError(ConvstoreError):
    """The store cannot do what was asked, now or in its present state."""


class StoreUnavailableError(StoreError):
    """No usable server, no primary or no answer in time.

    An append that ends so may or may not have happened: repeat it with the same messages, it is written once.
    """


class StoreClosedError(StoreError):
    """The store was closed; make a new one."""


class NotSetUpError(StoreError):
    """The database has no convstore collections; call ``await store.setup()`` once, at start or deployment."""


class SchemaVersionError(StoreError):
    """The database was set up by a newer convstore than this one; upgrade the package."""


class ConversationDeletedError(StoreError):
    """The conversation was deleted while it was read; call again to see the new, empty one."""


class CorruptDocumentError(StoreError):
    """A stored document is not what was written.

    Attributes:
        document_id: The ``_id`` of the document.
        collection: Where it is.
    """

    _advice = "restore it from a backup"

    def __init__(self, document_id: str, problem: str, *, collection: str = "log") -> None:
        self.document_id, self.collection = document_id, collection
        super().__init__(
            f"document {document_id!r} in the collection {collection!r} is damaged: {problem}; {self._advice}"
        )


class BrokenLogError(CorruptDocumentError):
    """An entry of a log is missing, or does not follow the entry before it; nothing behind it is shown.

    That is so after a backup was restored beneath a running process. ``convstore doctor --repair`` joins the log again:
    all messages that are stored stay, and what is lost is named.
    """

    _advice = "restore it from a backup, or give up what is lost with `convstore doctor --repair`"


class SyncUnsupportedError(StoreError):
    """A sync call on a store whose client belongs to the caller's event loop.

    Use ``ainvoke``, or make the store with ``ConversationStore.connect``, which serves sync callers too.
    """


class SummaryError(ConvstoreError, ValueError):
    """A model answered the request for a summary without text; nothing was summarised, all is as it was."""


class MissingExtraError(ConvstoreError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, *, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; run: pip install 'convstore[{extra}]'")
