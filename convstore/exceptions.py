"""Define every error that convstore raises, in one tree.

Each message says what happened and what to do. An error of the MongoDB driver is attached as ``__cause__``.

::

    ConvstoreError
    ├── InvalidInputError (ValueError)        the caller's value is rejected; nothing was written
    │   ├── InvalidScopeError                 keys or values of a scope
    │   ├── InvalidMessageError               a message of a batch: names index and field
    │   │   └── UnfinishedReplyError          a model's reply failed or is incomplete: ask the model again
    │   ├── UnencodableError                  a value of an unregistered type: names its path
    │   ├── BatchTooLargeError                an entry above 1 MB, payloads apart
    │   ├── TooManyIdsError                   more ids than one call accepts
    │   ├── InvalidCursorError                a cursor that the same call did not return
    │   ├── MalformedChainError               a chain without valid sections and pairs: names the message
    │   ├── UnknownMessageError               no message of this conversation has that id
    │   └── UntrustedMessageError             a client's history holds messages that are not accepted: names them
    ├── ConflictError
    │   ├── ContentConflictError              same message id, different content; nothing was written
    │   ├── MessageRewoundError               the message is in the log, but rewound; nothing was written
    │   ├── SourceIdClashError                the number of a source is taken; nothing was written
    │   ├── TurnConflictError                 the turn has different messages, or a later turn exists
    │   ├── TurnBusyError                     another worker holds a turn of the conversation: says which
    │   ├── ForkRefusedError                  a turn is in progress, or the new scope is not empty; nothing was written
    │   ├── TurnLostError                     this worker does not hold the turn any more; nothing was written
    │   ├── TurnClosedError                   the turn is over, so nothing can be added or decided any more
    │   ├── DecisionConflictError             another decision about the call is stored
    │   ├── StateConflictError                the state of a conversation has another revision than the caller expected
    │   ├── LogMovedError                     the log ends with another message than the caller expected
    │   ├── ResentHistoryError                the log already contains the beginning of the batch: says how much
    │   ├── HistoryDivergedError              the batch differs from the log: says where
    │   └── OlderCheckpointError              a graph's run began at an older checkpoint; nothing was written
    ├── StoreError                            the store cannot do it now
    │   ├── StoreUnavailableError             no server, no primary, or a timeout: retry
    │   ├── StoreClosedError                  close() was called
    │   ├── NotSetUpError                     setup() has not run on this database
    │   ├── MissingPrivilegeError             the database user lacks a privilege: names the command
    │   ├── SchemaVersionError                a newer convstore set up the database or wrote a document
    │   ├── ConversationDeletedError          the conversation was deleted during a read: call again
    │   ├── CorruptDocumentError              a stored document is damaged: names it
    │   │   └── BrokenLogError                entries are missing or do not follow each other: run the doctor
    │   └── SyncUnsupportedError              a sync call on a store that lives on the caller's event loop
    ├── SummaryError (ValueError)             a model answered without a summary; nothing was summarised
    └── MissingExtraError (ImportError)       an optional dependency is not installed

The module is long because every error has its message beside its attributes.
"""

from __future__ import annotations

import datetime
import json
import shlex
from importlib import metadata
from urllib.parse import urlsplit
from urllib.request import url2pathname


class ConvstoreError(Exception):
    """Base class of every error that convstore raises deliberately."""


class InvalidInputError(ConvstoreError, ValueError):
    """A value from the caller is rejected; nothing was written."""


class InvalidScopeError(InvalidInputError):
    """A scope has a missing, extra or unusable key or value."""


class InvalidMessageError(InvalidInputError):
    """A message of a batch is rejected.

    Attributes:
        index: Index of the message in the batch, from 0; None if the batch itself is rejected.
        field: Dotted path of the field inside the message, "" if the error is about the whole message.
    """

    def __init__(self, problem: str, *, index: int | None = None, field: str = "") -> None:
        self.index = index
        self.field = field
        location = ""
        if index is not None:
            location = f"message {index}" + (f", field {field!r}" if field else "") + ": "
        super().__init__(location + problem)


class UnfinishedReplyError(InvalidMessageError):
    """A model's reply failed, or its stream broke off. Nothing was appended; ask the model again.

    Attributes:
        reason: Why the reply is not finished, such as "its stream ended without a finish reason".
    """

    def __init__(self, reason: str, *, index: int | None = None, field: str = "") -> None:
        self.reason = reason
        problem = (
            f"the reply is not finished ({reason}), so it was not appended; ask the model again, "
            "or append the reply once it is complete"
        )
        super().__init__(problem, index=index, field=field)


class UnencodableError(InvalidInputError):
    """A value has a type that the store cannot restore exactly.

    Attributes:
        path: Location of the value, such as ``message 2.artifact[0].owner``.
    """

    def __init__(self, problem: str, *, path: str = "") -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}" if path else problem)


class BatchTooLargeError(InvalidInputError):
    """An entry would exceed 1 MB, not counting payloads; append the messages in smaller batches."""


class TooManyIdsError(InvalidInputError):
    """A call got more ids than it accepts; split them into several calls."""


class InvalidCursorError(InvalidInputError):
    """A cursor was not returned by the same call; start again without a cursor."""


class MalformedChainError(InvalidInputError):
    """A list of messages is not a valid chain: a call or a result has no counterpart, or a message is misplaced.

    Attributes:
        index: Index of the message in the list, from 0; None if the error is not about one message.
        message_id: Id of the message; None if it has no id.
    """

    def __init__(
        self, problem: str, *, index: int | None = None, message_id: str | None = None
    ) -> None:
        self.index = index
        self.message_id = message_id
        name = "" if message_id is None else f" ({message_id!r})"
        super().__init__(problem if index is None else f"message {index}{name}: {problem}")


class UnknownMessageError(InvalidInputError):
    """The conversation has no message with this id. Messages of other conversations are never found.

    Attributes:
        message_id: The id of the message or turn; "" if a stamp is unknown.
    """

    def __init__(self, message_id: str = "", *, begins_turn: bool = False) -> None:
        self.message_id = message_id
        if begins_turn:
            problem = (
                f"turn {message_id!r} was not begun in this conversation, or was rewound: check "
                "the id, or pass its question with human= to begin it; until a question asked with "
                "instead_of= is finished, pass both again"
            )
        elif message_id:
            problem = (
                f"no message of this conversation has the id {message_id!r}; "
                "list_messages returns the existing ids"
            )
        else:
            problem = (
                "this conversation never had a view with this stamp; "
                "pass the stamp of one of its views"
            )
        super().__init__(problem)


class UntrustedMessageError(InvalidInputError):
    """A client's history holds messages that are not in the log and not accepted from a client; nothing was written.

    Only ``strict=True`` raises it; without it, such messages are ignored.

    Attributes:
        ignored: Names of these messages, as in `Receipt.ignored`.
    """

    def __init__(self, ignored: tuple[str, ...]) -> None:
        self.ignored = ignored
        shown = ", ".join(ignored[:10])
        if len(ignored) > 10:
            shown += " …"
        super().__init__(
            f"{len(ignored)} messages of the history are not in this conversation and not accepted "
            f"from a client: {shown}; omit strict to ignore them, name the tools of clients in "
            'client_tools, or pass trust="all" if your application made the history itself'
        )


class ConflictError(ConvstoreError):
    """New data conflicts with data that is already stored."""


class ContentConflictError(ConflictError):
    """The log has different content under a message id; nothing was written.

    Attributes:
        message_id: The id that is taken.
        key: The key of the append that the id was derived from; None if the message had an id.
        position: With a key, the message's index in the batch, from 0.
    """

    def __init__(
        self, message_id: str, *, key: str | None = None, position: int | None = None
    ) -> None:
        self.message_id = message_id
        self.key = key
        self.position = position
        if key is None:
            problem = (
                f"message id {message_id!r} already exists in this conversation with different "
                "content; the log is immutable: append the new content under a new id"
            )
        else:
            problem = (
                f"an append with the key {key!r} has already stored other content as message "
                f"{position} of its batch; to repeat that append, pass the same batch; "
                "for new content, pass a new key"
            )
        super().__init__(problem)


class MessageRewoundError(ConflictError):
    """A message that is appended again has been rewound; nothing was written.

    Attributes:
        message_id: The id of the message.
    """

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        super().__init__(
            f"message {message_id!r} is in this conversation but was rewound, "
            "so views would not show it; append it under a new id, or restore it with undo_rewind"
        )


class SourceIdClashError(ConflictError):
    """A source has the ``source_id`` of another source of the conversation; nothing was written.

    Attributes:
        source_id: The number that is taken.
    """

    def __init__(self, source_id: int) -> None:
        self.source_id = source_id
        super().__init__(
            f"source id {source_id} is already taken in this conversation; wrap the tool with "
            "number_sources, omit source_id from its results, or append with "
            'on_source_clash="renumber"'
        )


class TurnConflictError(ConflictError):
    """The messages cannot be added to their turn; nothing was written.

    Attributes:
        turn_id: The turn.
        is_newest: True if the turn has different messages; False if a later turn was begun meanwhile.
        is_question: True if the turn has another question.
    """

    def __init__(
        self,
        turn_id: str,
        *,
        is_newest: bool = True,
        is_question: bool = False,
    ) -> None:
        self.turn_id = turn_id
        self.is_newest = is_newest
        self.is_question = is_question
        if is_question:
            problem = "has another question in the log, which get_turn returns; pass a new turn_id"
        elif is_newest:
            problem = (
                "has different messages in the log; get_turn returns them. For another answer, "
                "pass regenerate= to chat.turn"
            )
        else:
            problem = (
                "is no longer the newest, so its answer would end up in another turn; "
                "load the history again and answer the newest question"
            )
        super().__init__(f"turn {turn_id!r} {problem}")


class TurnBusyError(ConflictError):
    """A worker holds a turn of the conversation; nothing was written.

    The turn of a worker that died is free 30 seconds later at the latest.

    Attributes:
        turn_id: The turn that is held, which may be the requested one.
        since: When the worker took it.
    """

    def __init__(self, turn_id: str, *, since: datetime.datetime) -> None:
        self.turn_id = turn_id
        self.since = since
        super().__init__(
            f"turn {turn_id!r} was taken by a worker at {since:%H:%M:%S} UTC: answer 409 and "
            'let the client try again, or pass busy="wait" or, for another question, '
            'busy="interrupt". If that worker died, the turn is free after at most 30 seconds'
        )


class ForkRefusedError(ConflictError):
    """A fork failed: the last turn is in progress, or the new scope has another conversation; nothing was written."""


class TurnLostError(ConflictError):
    """This worker does not hold the turn any more, or its conversation was deleted; nothing was written.

    Attributes:
        turn_id: The turn.
    """

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        super().__init__(
            f"this worker does not hold turn {turn_id!r} any more: it left the session, "
            "the conversation was deleted, or another worker took the turn over after 30 seconds "
            "of silence; stop working on it"
        )


class TurnClosedError(ConflictError):
    """A decision or a message came after its turn was over; nothing was written.

    Attributes:
        turn_id: The turn.
    """

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        super().__init__(
            f"turn {turn_id!r} is over: nothing can be added or decided any more; "
            f"get_turn({turn_id!r}) has its answer, if it got one; ask again in a new turn"
        )


class DecisionConflictError(ConflictError):
    """Another decision about the call is stored already; nothing was written.

    Attributes:
        call_id: The tool call id.
        verdict: The verdict of the stored decision.
        by: The person who decided, as passed with that decision.
    """

    def __init__(self, call_id: str, *, verdict: str, by: str) -> None:
        self.call_id = call_id
        self.verdict = verdict
        self.by = by
        who = f" by {by!r}" if by else ""
        super().__init__(
            f"{verdict!r} was decided about call {call_id!r} before{who}; the first decision stands"
        )


class StateConflictError(ConflictError):
    """The state of a conversation has another revision than the caller expected; nothing was written.

    Attributes:
        expected: The revision that was passed.
        revision: The stored one.
    """

    def __init__(self, expected: int, *, revision: int) -> None:
        self.expected = expected
        self.revision = revision
        super().__init__(
            f"the state has revision {revision}, not {expected}: another writer changed it; "
            "get it again, then repeat the update"
        )


class LogMovedError(ConflictError):
    """The log does not end where the caller expected; nothing was written.

    Attributes:
        after: The ordinal that the log should have ended with.
        last: The ordinal that it ends with.
    """

    def __init__(self, after: int, *, last: int) -> None:
        self.after = after
        self.last = last
        super().__init__(
            f"the log ends with message {last}, not {after}: another writer appended; "
            "load the history again, then decide whether the messages still fit"
        )


class ResentHistoryError(ConflictError):
    """The log already contains the first messages of the batch (``on_resent="raise"``); nothing was written.

    Attributes:
        known: Number of these messages, including leading system messages.
    """

    def __init__(self, *, known: int) -> None:
        self.known = known
        super().__init__(
            f"the first {known} messages of the batch are already in this conversation; "
            f'append only messages[{known}:], or pass on_resent="skip"'
        )


class HistoryDivergedError(ConflictError):
    """A batch passed as a history differs from the log; nothing was written.

    Attributes:
        after_id: Id of the last message on which both agree; None if the first messages differ.
        before_id: Id of the message that follows it in the log, for `rewind`; None if it is unknown.
    """

    def __init__(self, *, after_id: str | None, before_id: str | None = None) -> None:
        self.after_id = after_id
        self.before_id = before_id
        divergence = f"after message {after_id!r}" if after_id else "from the first message"
        call = f"call rewind(before_id={before_id!r})" if before_id else "call rewind"
        super().__init__(
            f"the history differs from this conversation {divergence}, or ends earlier; "
            "the log is immutable: to edit a question or ask for another answer, "
            f"{call} and append the history again; to continue, append only new messages"
        )


class OlderCheckpointError(ConflictError):
    """A run began at an older checkpoint, but its conversation has later messages; nothing was written.

    Attributes:
        before_id: Id of the first message after the checkpoint, for `rewind`.
    """

    def __init__(self, before_id: str) -> None:
        self.before_id = before_id
        super().__init__(
            "the run began at an older checkpoint, but the conversation goes on after it with "
            f"message {before_id!r}, which the model would see; "
            f"call rewind(before_id={before_id!r}) and repeat the run, "
            "or begin it at the newest checkpoint; "
            'on_fork="rewind" rewinds the conversation in such a run, or undoes its last rewind'
        )


class StoreError(ConvstoreError):
    """The store cannot perform the operation in its present state."""


class StoreUnavailableError(StoreError):
    """The store found no usable server or no primary, or got no answer in time.

    An append that fails with this error may have been written. Retry it with the same messages: they are written only
    once.
    """


class StoreClosedError(StoreError):
    """The store was closed; create a new one."""


class NotSetUpError(StoreError):
    """The database has no convstore collections; call ``await store.setup()`` once, at start or deployment."""


class MissingPrivilegeError(StoreError):
    """The database user lacks a privilege. The message names the command; docs/operations.md lists the roles."""


class SchemaVersionError(StoreError):
    """A newer convstore set up the database or wrote a document of the conversation; upgrade the package."""


class ConversationDeletedError(StoreError):
    """The conversation was deleted during a read; call again to get the new, empty one."""


class CorruptDocumentError(StoreError):
    """A stored document is damaged: it differs from the one that was written.

    Attributes:
        document_id: The ``_id`` of the document.
        collection: Name of its collection.
        problem: Description of the damage.
    """

    _advice = "run `convstore doctor`: what it cannot repair has to be restored from a backup"

    def __init__(self, document_id: str, problem: str, *, collection: str = "log") -> None:
        self.document_id = document_id
        self.collection = collection
        self.problem = problem
        super().__init__(
            f"document {document_id!r} in the collection {collection!r} is damaged: {problem}; "
            f"{self._advice}"
        )


class BrokenLogError(CorruptDocumentError):
    """An entry of a log is missing, or does not follow the entry before it; later entries are not shown.

    A cause is a backup that was restored under a running process. A repair copies the remaining messages to a new log.
    """

    _advice = (
        "restore what is missing from a backup, or do without them: `convstore doctor --repair`"
    )


class SyncUnsupportedError(StoreError):
    """A sync call reached a store whose client belongs to the caller's event loop.

    Use ``ainvoke``, or create the store with ``ConversationStore.connect``, which supports sync callers.
    """


class SummaryError(ConvstoreError, ValueError):
    """A model returned no text for a summary; nothing was summarised or changed."""


class MissingExtraError(ConvstoreError, ImportError):
    """An optional dependency is not installed.

    Attributes:
        arguments: Those of `pip` that install it.
    """

    def __init__(self, *, package: str, extra: str) -> None:
        self.arguments = _install_with(extra)
        super().__init__(f"{package} is not installed; run: pip {self.arguments}")


def _install_with(extra: str) -> str:
    """Return the arguments of `pip` that install convstore with an extra, from the origin of this installation.

    The origin is a checkout, a file or a repository as PEP 610 records them, else the package index.
    """
    try:
        recorded = metadata.distribution("convstore").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        recorded = None
    if not recorded:
        return f"install {shlex.quote(f'convstore[{extra}]')}"
    origin = json.loads(recorded)
    url: str = origin["url"]
    if "dir_info" in origin:
        folder = shlex.quote(f"{url2pathname(urlsplit(url).path)}[{extra}]")
        return f"install {'-e ' if origin['dir_info'].get('editable') else ''}{folder}"
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return f"install {shlex.quote(f'convstore[{extra}] @ {url}')}"
