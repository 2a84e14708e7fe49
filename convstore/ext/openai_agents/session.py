"""A conversation as the session of runs of OpenAI's Agents SDK: it gives a run its history, and stores its steps."""

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
from convstore.values.scope import check_choice

if TYPE_CHECKING:
    from agents import RunContextWrapper, TResponseInputItem
    from agents.memory import SessionSettings
    from agents.usage import RequestUsage


_PAGE = 1_000


@dataclass
class _Run:
    """State that a session caches of one run.

    Attributes:
        view: The view that it was given; None without one, and after its answer.
        shown: The messages of the view, and those appended since.
        entry: The last entry of those.
        billed: Requests of the run whose answers are stored; None if it began elsewhere.
        question: Id of its last question; None if it began elsewhere and has stored nothing since, "" if the question
            was removed, and for `direct` calls.
    """

    view: History | None = None
    shown: list[BaseMessage] = field(default_factory=list)
    entry: int = 0
    billed: int | None = None
    question: str | None = None


@dataclass
class _State:
    """State that a session caches of one conversation.

    Attributes:
        chat: The conversation.
        failed: By digest of their items, batches that may be stored.
        runs: Its runs, as long as the SDK keeps them.
        direct: The run of all calls without a wrapper.
        lock: Held by whoever writes.
    """

    chat: Conversation
    failed: dict[str, list[BaseMessage | LogItem]] = field(default_factory=dict)
    runs: WeakKeyDictionary[RunContextWrapper[Any], _Run] = field(default_factory=WeakKeyDictionary)
    direct: _Run = field(default_factory=partial(_Run, question=""))
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def run_of(self, wrapper: RunContextWrapper[Any] | None) -> _Run:
        """Return the run of a wrapper."""
        return self.direct if wrapper is None else self.runs.setdefault(wrapper, _Run())


class _Stored(NamedTuple):
    """Items of the log, with the id to rewind to: of a message, a `LogItem`, or messages of another API."""

    kind: Literal["message", "item", "other"]
    id: str
    items: list[Item]


class ConvstoreSession:
    """A session of the Agents SDK that keeps its items in a conversation.

    Without a limit, `get_items` returns the view: within the budget, old results as stubs. With a limit, it returns the
    newest items exactly as they were added. The constructor does no I/O.

    A call of `add_items` that failed can be repeated: nothing is stored twice. Other equal items are stored again,
    whatever ids they have, because many models give each answer the same id.

    Args:
        store: The store.
        scope: A function from the context of a run to scope values; those of `values` take precedence.
        view: "all" returns all items, exactly as they were added and under no rules, instead of the view.
        policy: The policy of the view; None for the store's.
        provider: The rules of the model's provider for the view, by name or your own, for a model that the SDK asks by
            another API, such as LiteLLM's; None for those of OpenAI's Responses API. A run with ``view="all"`` or a
            limit gets items as they were added, from any place in a turn on, so they cannot be combined with it.
        erase_on_clear: `clear_session` deletes the conversation permanently.
        session_settings: The SDK's own, or a dict of their fields. A ``limit`` in it applies to every run, which then
            gets no view.
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
        check_choice(view, "policy", "all", name="view")
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
                'the rules of provider= apply to the view, and with view="all" or a limit in '
                "session_settings runs get items as they were added; leave one of them out"
            )
        self._erases = erase_on_clear
        self._state_of = lru_cache(1_000)(lambda scope: _State(store.conversation(**dict(scope))))
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

        No rules of a provider apply to the latter: such a list begins anywhere in a turn.

        Half of an emoji, which no API takes, is U+FFFD; `pop_item` returns it as it was added.

        ``.dropped`` of the list names what the API has no place for; see `History.to_openai`.
        """
        state = self._state(wrapper)
        run = state.run_of(wrapper)
        found = OpenAIMessages([], [])
        limit = _limit_of(self.session_settings, limit)
        if wrapper is None or run.billed is None or limit is None:  # else within the run
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

        Small items of more than 1 MB together are stored in parts; after an error the same call stores the rest. A
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
        """Remove all items from views, which `Conversation.undo_rewind` undoes; with `erase_on_clear` erase them."""
        await settle(self._clear(self._state(wrapper)))

    async def run_compaction(
        self,
        args: Mapping[str, Any] | None = None,
        *,
        wrapper: RunContextWrapper[Any] | None = None,
    ) -> None:
        """Summarise old turns if the store's summarizer says that it is time; the SDK calls it after every answer.

        Without a summarizer nothing happens, or with ``args={"force": True}`` it raises an InvalidInputError.
        """
        force = bool(as_mapping(args, name="args").get("force"))
        with suppress(*(() if force else (InvalidInputError,))):  # of a store without a summarizer
            await self.conversation(wrapper).compact(force=force)

    async def _read_compaction_items(self, _: int | None) -> Any:
        """Refuse the SDK's own compaction, which calls this method of a session that it wraps."""
        raise InvalidInputError(
            "OpenAIResponsesCompactionSession would clear what is read back and searched: pass the "
            "ConvstoreSession itself, whose views are within a budget"
        )

    def _state(self, wrapper: RunContextWrapper[Any] | None) -> _State:
        return self._state_of(tuple(self.conversation(wrapper).scope.items()))

    @read_current
    async def _pop(self, state: _State, run: _Run) -> Item | None:
        async with state.lock:
            while stored := await _newest(state.chat, 1):
                last = stored[-1]
                is_message = stored[-1].kind != "item"
                removed = await state.chat.rewind(before_id=last.id)
                if removed > is_message:  # another process appended
                    await state.chat.undo_rewind(before_id=last.id if is_message else None)
                elif removed == is_message:  # else another process removed it
                    if last.kind == "message" and last.items[1:]:
                        await append_in_halves(
                            partial(_append, state, run), to_log(last.items[:-1], uuid4().hex)
                        )
                    return last.items[-1]
            return None

    @read_current
    async def _clear(self, state: _State) -> None:
        async with state.lock:
            state.runs.clear()
            state.direct = _Run(question="")
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
    """Return the settings that the SDK takes as an object or a dict, as the object that it reads."""
    from agents.memory import SessionSettings  # noqa: PLC0415 - the SDK loads slowly

    if given is None or isinstance(given, SessionSettings):
        return given
    names = {field.name for field in fields(SessionSettings)}
    with suppress(ValueError):  # of Pydantic, for a value
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
    run: _Run, made: Sequence[BaseMessage | LogItem], requests: Sequence[RequestUsage]
) -> None:
    """Set the token counts of answers: those of the first requests of the run since its last items were stored.

    Requests of agents that its tools have called follow them. Of a run that began elsewhere the last requests count.
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


async def _add(state: _State, run: _Run, made: list[BaseMessage | LogItem]) -> None:
    async with state.lock:
        append = partial(_append, state, run)
        try:
            await append_in_halves(append, made)
        except (MessageRewoundError, InvalidInputError):
            # removed after a call that failed, as its question was; erased after the view
            run.view = None
            run.question = ""
            for logged in made:
                logged.id = uuid4().hex
            await append_in_halves(append, made)


async def _append(state: _State, run: _Run, made: Sequence[BaseMessage | LogItem]) -> None:
    """Append what `to_log` made; an answer gets the stamp of the view with what the run has added to it.

    It belongs to the question of its run, though another run may have asked one since.
    """
    view = run.view
    messages = [added for added in made if isinstance(added, BaseMessage)]
    answers = [message for message in messages if isinstance(message, AIMessage)]
    stamp = None
    if view and answers:
        size_of = partial(count, state.chat.store.token_counter)
        turn_id = last_turn_of(run.shown[len(view.messages) :])
        stamp = view.stamp_for(run.shown, entry=run.entry, turn=turn_id, size_of=size_of)
    asked = last_turn_of(messages)
    turn = None if asked else run.question or None
    receipt = await state.chat.append(made, stamp=stamp, turn=turn, on_source_clash="renumber")
    run.entry = receipt.entry
    if asked and run is not state.direct:  # there a later answer may be a reminder
        run.question = asked
    elif run.question is None:
        run.question = await _resumed_question(state.chat, receipt)
    is_over = bool(answers) and not calls_of(answers[-1])
    run.view = None if is_over else view
    run.shown = [*run.shown, *messages] if run.view else []


async def _resumed_question(chat: Conversation, added: Receipt) -> str | None:
    """Return the id of the question of a run that was resumed from its state: that of the first message that it adds.

    This is the result of a call, which belongs to its turn. "" for no question, None if no message was added.
    """
    if not added.ordinals:
        return None
    rows = await chat.list_messages(after=added.first - 1, limit=1)
    return rows[0].turn_id if rows and rows[0].ordinal == added.first else ""


async def _as_added(chat: Conversation, limit: int | None) -> OpenAIMessages:
    """Return the newest items as they were added, at most so many."""
    groups = [stored.items for stored in await _newest(chat, limit)]
    dropped = [part for items in groups for part in getattr(items, "dropped", ())]
    newest = [item for items in groups for item in items][-(limit or 0) :]
    return OpenAIMessages(map(sendable, newest), dropped)


@read_current
async def _newest(chat: Conversation, limit: int | None) -> list[_Stored]:
    """Return the end of the log with at least so many items, oldest first; all of it for None."""
    rows: list[tuple[int, _Stored | BaseMessage]] = []
    async with aclosing(newest_first(chat, limit=min(limit or _PAGE, _PAGE))) as rows_read:
        async for row in rows_read:
            items = items_of(row.message)
            rows.append(
                (
                    row.ordinal,
                    _Stored("message", str(row.message.id), items) if items else row.message,
                )
            )
            if len(rows) == limit:
                break
    rows.reverse()
    first = rows[0][0] if len(rows) == limit else 0
    others = [item async for item in chat.items(after=first) if item.kind.startswith(KIND)]
    rows += [(item.after, _Stored("item", item.id, [item.data])) for item in others]
    rows.sort(key=itemgetter(0))  # stable: items follow their message
    stored = list[_Stored]()
    for is_twin, run in groupby((row for _, row in rows), lambda row: isinstance(row, BaseMessage)):
        group: list[Any] = [*run]
        stored += [_Stored("other", str(group[-1].id), converted(group))] if is_twin else group
    return stored
