"""A session of OpenAI's Agents SDK on a conversation: it gives a run its history, and stores the items of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from uuid import uuid4
from weakref import WeakKeyDictionary

from langchain_core.messages import AIMessage, BaseMessage

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.edges import (
    append_in_halves,
    as_mapping,
    check_list,
    check_store,
    newest_first,
    read_current,
)
from convstore.exceptions import InvalidInputError, InvalidScopeError, MessageRewoundError
from convstore.ext.openai_agents.items import (
    KIND,
    Item,
    converted,
    digest_of,
    items_of,
    of_view,
    to_log,
)
from convstore.integration import settle
from convstore.messages.filing import last_turn_of
from convstore.messages.tokens import count
from convstore.messages.tool_calls import calls_of
from convstore.messages.usage import usage_of
from convstore.types import History, LogItem, OpenAIMessages, ProviderRules, Receipt
from convstore.values.json_form import sendable
from convstore.values.plain import shown_value
from convstore.values.policy import check_policy
from convstore.values.providers import ROWS, rules_for
from convstore.values.scope import check_one_of

if TYPE_CHECKING:
    from agents import RunContextWrapper, TResponseInputItem
    from agents.memory import SessionSettings
    from agents.usage import RequestUsage


_PAGE = 1_000


@dataclass
class _RunState:
    """State that a session caches of one run.

    Attributes:
        view: The view that the run was given; None if it got none, and after its answer.
        shown: The messages of the view, and those appended after it was loaded.
        entry: The number of the last appended entry.
        billed: Number of the run's requests whose answers are stored; None if the run began in another process.
        question: Id of its last question; None if it is not known yet, "" if it was removed, and for `direct` calls.
    """

    view: History | None = None
    shown: list[BaseMessage] = field(default_factory=list)
    entry: int = 0
    billed: int | None = None
    question: str | None = None


@dataclass
class _ChatState:
    """State that a session caches of one conversation.

    Attributes:
        chat: The conversation.
        failed: Batches whose append failed, so that they may be stored, by the digest of their items.
        runs: The states of its runs, as long as the SDK keeps their wrappers.
        direct: The state for all calls without a wrapper.
        lock: Serializes writes.
    """

    chat: Conversation
    failed: dict[str, list[BaseMessage | LogItem]] = field(default_factory=dict)
    runs: WeakKeyDictionary[RunContextWrapper[Any], _RunState] = field(
        default_factory=WeakKeyDictionary
    )
    direct: _RunState = field(default_factory=partial(_RunState, question=""))
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def run_of(self, wrapper: RunContextWrapper[Any] | None) -> _RunState:
        """Return the state of a wrapper's run."""
        return self.direct if wrapper is None else self.runs.setdefault(wrapper, _RunState())


class _StoredItems(NamedTuple):
    """Items of a message, of a `LogItem`, or of messages of another API, with the id to rewind to."""

    kind: Literal["message", "item", "other"]
    id: str
    items: list[Item]


class ConvstoreSession:
    """A session of the Agents SDK that keeps its items in a conversation.

    Without a limit, `get_items` returns the view: within the budget, old results as stubs. With a limit, it returns the
    newest items exactly as they were added. The constructor does no I/O.

    A failed call of `add_items` can be repeated: nothing is stored twice. Equal items in any other call are stored
    again, even under the same ids, because many models give each answer the same id.

    Args:
        store: The store.
        scope: A function from the context of a run to scope values; those of `values` take precedence.
        view: "all" returns all items exactly as they were added, without a provider's rules, instead of the view.
        policy: The policy of the view; None for the store's.
        provider: The rules of the model's provider for the view, by name or your own, for a model that the SDK calls
            through another API, such as LiteLLM; None for those of OpenAI's Responses API. It cannot be combined with
            ``view="all"`` or a limit: such runs get items as they were added, beginning anywhere in a turn.
        erase_on_clear: `clear_session` deletes the conversation permanently.
        session_settings: The SDK's ``SessionSettings``, or a dict of their fields. A ``limit`` in it applies to every
            run, which then gets items instead of the view.
        values: Values of the store's scope keys, set by your server, never by a model; `session_id` is made of them.

    Raises:
        InvalidScopeError: A scope key is missing or unknown, or a value is invalid.
        InvalidInputError: `view`, `policy`, `provider` or `session_settings` is invalid, or `provider` is given where
            runs get no view.
    """

    def __init__(
        self,
        store: ConversationStore,
        *,
        scope: Callable[[Any], Mapping[str, str]] | None = None,
        view: Literal["policy", "all"] = "policy",
        policy: HistoryPolicy | None = None,
        provider: str | ProviderRules | None = None,
        erase_on_clear: bool = False,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        **values: str,
    ) -> None:
        check_store(store)
        check_one_of(view, "policy", "all", name="view")
        if scope is None:
            store.conversation(**values)  # refuses a wrong scope
        self.store = store
        self._scope = scope
        self._values = values
        self.session_settings = _settings(session_settings)
        self._shows_all = view == "all"
        self._policy = check_policy(policy)
        self._rules = rules_for(provider, None, default=ROWS["responses"])
        if provider is not None and (self._shows_all or _limit_of(self.session_settings)):
            raise InvalidInputError(
                'provider= only applies to the view, but with view="all" or a limit in '
                "session_settings runs get items as they were added; leave one of them out"
            )
        self._erases = erase_on_clear
        self._state_of = lru_cache(1_000)(
            lambda scope: _ChatState(store.conversation(**dict(scope)))
        )
        self.session_id = (
            "/".join(values[key] for key in store.scope_keys if key in values) or "convstore"
        )

    def conversation(self, wrapper: RunContextWrapper[Any] | None = None) -> Conversation:
        """Return the conversation of this session, or of the run of a `wrapper` if the scope comes from its context."""
        if self._scope is not None and wrapper is None:
            raise InvalidScopeError(
                "the scope of this session comes from the context of a run; pass wrapper="
            )
        found: Any = self._scope(wrapper.context) if self._scope and wrapper else {}
        if not isinstance(found, Mapping):
            raise InvalidScopeError(
                f"scope= must return a dict of scope values, not {type(found).__name__}"
            )
        return self.store.conversation(**{**found, **self._values})

    async def get_items(
        self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> list[TResponseInputItem]:
        """Return the view as items; with a limit or ``view="all"``, the newest items as they were added.

        A provider's rules do not apply to the latter, which may begin anywhere in a turn. A lone surrogate becomes
        U+FFFD, because APIs refuse it; `pop_item` returns it unchanged. ``.dropped`` of the list has the parts that the
        API does not support; see `History.to_openai`.
        """
        state = self._state(wrapper)
        run = state.run_of(wrapper)
        found = OpenAIMessages([], [])
        limit = _limit_of(self.session_settings, limit)
        if wrapper is None or run.billed is None or limit is None:  # not later in the same run
            run.view = None
            run.billed = len(_requests(wrapper))
        if limit is None and not self._shows_all:
            run.view = await state.chat.load_history(self._policy)
            run.shown = run.view.messages
            run.entry = 0
            found = of_view(run.shown, self._rules)
            found.dropped = (*run.view.dropped, *found.dropped)
        elif limit is None or limit > 0:
            found = await _as_added(state.chat, limit)
        return cast("list[TResponseInputItem]", found)

    async def add_items(
        self, items: list[TResponseInputItem], *, wrapper: RunContextWrapper[Any] | None = None
    ) -> None:
        """Append items to the log, all of them or none; see `Conversation.append`.

        Small items of more than 1 MB in total are stored in parts; after an error the same call stores the rest. A
        cancelled call ends when its outcome is known. Encrypted items need ``view="all"``.
        """
        check_list(items, dict, name="items")
        if not self._shows_all and any("__enc__" in item for item in items):
            raise InvalidInputError(
                'encrypted items cannot be shown in a view; make the session with view="all"'
            )
        if not items:
            return
        state = self._state(wrapper)
        digest = digest_of(items)
        made = state.failed.pop(digest, None) or to_log(cast("list[Item]", items), uuid4().hex)
        run = state.run_of(wrapper)
        requests = _requests(wrapper)
        _set_usage(run, made, requests)
        try:
            await settle(_add(state, run, made))
        except BaseException:
            state.failed[digest] = made
            raise
        run.billed = len(requests)

    async def pop_item(
        self, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> TResponseInputItem | None:
        """Remove the newest item from views and return it; None if no item is left. It stays in the log."""
        state = self._state(wrapper)
        popped = await settle(self._pop(state, state.run_of(wrapper)))
        return cast("TResponseInputItem | None", popped)

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Remove all items from views; `Conversation.undo_rewind` restores them. With `erase_on_clear` delete them."""
        await settle(self._clear(self._state(wrapper)))

    async def run_compaction(
        self,
        args: Mapping[str, Any] | None = None,
        *,
        wrapper: RunContextWrapper[Any] | None = None,
    ) -> None:
        """Summarise old turns if the store's summarizer requires it; the SDK calls this after every answer.

        Without a summarizer it does nothing, or raises an InvalidInputError with ``args={"force": True}``.
        """
        force = bool(as_mapping(args, name="args").get("force"))
        with suppress(*(() if force else (InvalidInputError,))):  # the store has no summarizer
            await self.conversation(wrapper).compact(force=force)

    async def _read_compaction_items(self, _: int | None) -> Any:
        """Refuse the SDK's own compaction, which calls this method of a session that it wraps."""
        raise InvalidInputError(
            "OpenAIResponsesCompactionSession would clear the messages that are read back and "
            "searched: pass the ConvstoreSession itself, whose views are within a budget"
        )

    def _state(self, wrapper: RunContextWrapper[Any] | None) -> _ChatState:
        return self._state_of(tuple(self.conversation(wrapper).scope.items()))

    @read_current
    async def _pop(self, state: _ChatState, run: _RunState) -> Item | None:
        async with state.lock:
            while stored := await _newest(state.chat, 1):
                last = stored[-1]
                is_message = stored[-1].kind != "item"
                removed = await state.chat.rewind(before_id=last.id)
                # more is removed if another process has appended messages, which are restored
                if removed > is_message:
                    await state.chat.undo_rewind(before_id=last.id if is_message else None)
                elif removed == is_message:  # otherwise another process has removed it already
                    if last.kind == "message" and last.items[1:]:
                        await append_in_halves(
                            partial(_append, state, run), to_log(last.items[:-1], uuid4().hex)
                        )
                    return last.items[-1]
            return None

    @read_current
    async def _clear(self, state: _ChatState) -> None:
        async with state.lock:
            state.runs.clear()
            state.direct = _RunState(question="")
            if self._erases:
                await state.chat.delete()
                return
            first = [item.id async for item in state.chat.items(before=1)]
            first += [
                str(stored.message.id)
                for stored in await state.chat.list_messages(after=0, limit=1)
            ]
            for id_ in first[:1]:
                await state.chat.rewind(before_id=id_)


def _limit_of(settings: SessionSettings | None, given: int | None = None) -> int | None:
    """Return the limit that a call was given, or else that of the settings; None without a limit."""
    if given is not None and type(given) is not int:
        raise InvalidInputError(f"limit must be a whole number, not {shown_value(given)}")
    if given is None and settings is not None:
        return settings.limit
    return given


def _settings(given: Any) -> SessionSettings | None:
    """Return settings, which may be given as an object or a dict, as an object of the SDK."""
    from agents.memory import SessionSettings  # noqa: PLC0415 - the SDK loads slowly

    if given is None or isinstance(given, SessionSettings):
        return given
    names = {field.name for field in fields(SessionSettings)}
    with suppress(ValueError):  # Pydantic refuses a value
        if isinstance(given, Mapping) and given.keys() <= names:
            return SessionSettings(**given)
    raise InvalidInputError(
        "session_settings must be a SessionSettings or a dict of its fields "
        f"({', '.join(sorted(names))}), not {shown_value(given)}"
    )


def _requests(wrapper: RunContextWrapper[Any] | None) -> Sequence[RequestUsage]:
    """Return the requests of a run so far, each with its token counts."""
    return wrapper.usage.request_usage_entries if wrapper else ()


def _set_usage(
    run: _RunState, made: Sequence[BaseMessage | LogItem], requests: Sequence[RequestUsage]
) -> None:
    """Set the token counts of answers from the run's requests since its last items were stored.

    The first requests belong to the answers; those of agents that its tools called follow. For a run that began in
    another process, the last requests are used.
    """
    answers = [message for message in made if isinstance(message, AIMessage)]
    first = max(0, len(requests) - len(answers)) if run.billed is None else run.billed
    for answer, request in zip(answers, requests[first:], strict=False):
        answer.usage_metadata = usage_of(
            {
                "input_tokens": request.input_tokens,
                "output_tokens": request.output_tokens,
                "input_tokens_details": dict(request.input_tokens_details),
                "output_tokens_details": dict(request.output_tokens_details),
            }
        )


async def _add(state: _ChatState, run: _RunState, made: list[BaseMessage | LogItem]) -> None:
    async with state.lock:
        append = partial(_append, state, run)
        try:
            await append_in_halves(append, made)
        except (MessageRewoundError, InvalidInputError):
            # the items of a failed call, or their question, were removed since, or the conversation was deleted
            run.view = None
            run.question = ""
            for logged in made:
                logged.id = uuid4().hex
            await append_in_halves(append, made)


async def _append(state: _ChatState, run: _RunState, made: Sequence[BaseMessage | LogItem]) -> None:
    """Append the messages and items from `to_log`; an answer gets the stamp of the view and the run's added messages.

    They belong to the question of their run, even if another run has asked a later one.
    """
    view = run.view
    messages = [added for added in made if isinstance(added, BaseMessage)]
    answers = [message for message in messages if isinstance(message, AIMessage)]
    stamp = None
    if view and answers:
        size_of = partial(count, state.chat.store.token_counter)
        turn_id = last_turn_of(run.shown[len(view.messages) :])
        stamp = view.stamp_for(run.shown, entry=run.entry, turn=turn_id, size_of=size_of)
    question = last_turn_of(messages)
    turn = None if question else run.question or None
    receipt = await state.chat.append(made, stamp=stamp, turn=turn, on_source_clash="renumber")
    run.entry = receipt.entry
    if question and run is not state.direct:  # a later answer of a direct call may be a reminder
        run.question = question
    elif run.question is None:
        run.question = await _resumed_question(state.chat, receipt)
    is_over = bool(answers) and not calls_of(answers[-1])
    run.view = None if is_over else view
    run.shown = [*run.shown, *messages] if run.view else []


async def _resumed_question(chat: Conversation, added: Receipt) -> str | None:
    """Return the id of the turn of the first added message, which is the question of a run resumed from its state.

    The message is the result of a call. "" if it has no turn, None if no message was added.
    """
    if not added.ordinals:
        return None
    rows = await chat.list_messages(after=added.first - 1, limit=1)
    return rows[0].turn_id if rows and rows[0].ordinal == added.first else ""


async def _as_added(chat: Conversation, limit: int | None) -> OpenAIMessages:
    """Return the newest items as they were added, at most `limit`; None for all of them."""
    groups = [stored.items for stored in await _newest(chat, limit)]
    dropped = [part for items in groups for part in getattr(items, "dropped", ())]
    newest = [item for items in groups for item in items][-(limit or 0) :]
    return OpenAIMessages(map(sendable, newest), dropped)


@read_current
async def _newest(chat: Conversation, limit: int | None) -> list[_StoredItems]:
    """Return the end of the log with at least `limit` items, oldest first; the whole log for None."""
    rows: list[tuple[int, _StoredItems | BaseMessage]] = []
    async with aclosing(newest_first(chat, limit=min(limit or _PAGE, _PAGE))) as rows_read:
        async for row in rows_read:
            items = items_of(row.message)
            rows.append(
                (
                    row.ordinal,
                    _StoredItems("message", str(row.message.id), items) if items else row.message,
                )
            )
            if len(rows) == limit:
                break
    rows.reverse()
    first = rows[0][0] if len(rows) == limit else 0
    others = [item async for item in chat.items(after=first) if item.kind.startswith(KIND)]
    rows += [(item.after, _StoredItems("item", item.id, [item.data])) for item in others]
    rows.sort(key=itemgetter(0))  # stable: items follow their message
    stored: list[_StoredItems] = []
    for is_twin, run in groupby((row for _, row in rows), lambda row: isinstance(row, BaseMessage)):
        group: list[Any] = [*run]
        stored += [_StoredItems("other", str(group[-1].id), converted(group))] if is_twin else group
    return stored
