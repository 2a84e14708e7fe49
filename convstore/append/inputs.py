"""Convert the input of ``append`` to whole LangChain messages that each have an id.

``append`` calls it first, before anything is encoded or sent, so a refused batch has no effect. No field is lost: those
that LangChain lacks stay in ``additional_kwargs`` under their own names. (LangChain's ``convert_to_messages`` drops
such keys of tool messages and tool calls. It raises ``ValidationError`` or ``JSONDecodeError`` if a call's arguments
are ``null`` or not JSON.)

Dicts are copied, so later changes by the caller do not affect the messages. Only dicts and lists are copied, in a loop
and not by recursion. A tuple or any other object inside an artifact is shared, as is everything inside a LangChain
message: it must not change before ``append`` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import isawaitable
from itertools import filterfalse, starmap
from types import NoneType
from typing import Any, TypeAlias, cast
from uuid import NAMESPACE_OID, uuid4, uuid5

from langchain_core import messages as lc
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.tool import tool_call
from pydantic import BaseModel, ValidationError

from convstore.append.fields import (
    PLAIN_CLASSES,
    abbreviated,
    check_blocks,
    check_fields,
    check_text,
    check_type,
    type_name,
)
from convstore.append.formats import InputMessage, convert_formats, field_error, without_input
from convstore.exceptions import (
    ContentConflictError,
    InvalidInputError,
    InvalidMessageError,
    TurnConflictError,
)
from convstore.messages.call_arguments import as_call_fields, read_call
from convstore.messages.langchain_dicts import copied
from convstore.messages.usage import usage_of
from convstore.values.json_form import with_invalid_calls
from convstore.values.plain import part_of
from convstore.values.scope import check_id, id_problem

MessageBatch: TypeAlias = (
    Iterable[BaseMessage | Mapping[str, object]] | BaseMessage | Mapping[str, object]
)
"""The input of ``append``: messages, dicts or both in any iterable, or a single one."""

_Fields: TypeAlias = dict[str, Any]

_WHOLE_CLASS_OF: dict[type[BaseMessage], type[BaseMessage]] = {
    lc.AIMessageChunk: AIMessage,
    lc.ChatMessageChunk: lc.ChatMessage,
    lc.FunctionMessageChunk: FunctionMessage,
    lc.HumanMessageChunk: HumanMessage,
    lc.SystemMessageChunk: SystemMessage,
    lc.ToolMessageChunk: ToolMessage,
}
_CLASS_OF_ROLE: dict[str, type[BaseMessage]] = {
    "system": SystemMessage,
    "developer": SystemMessage,
    "user": HumanMessage,
    "assistant": AIMessage,
    "tool": ToolMessage,
    "function": FunctionMessage,
}
_ONLY_IN_CHUNKS = frozenset({"type", "tool_call_chunks", "chunk_position"})
# The field that links a result to its call.
_NEEDED_TEXT: dict[type[BaseMessage], str] = {ToolMessage: "tool_call_id", FunctionMessage: "name"}

_CALL_TYPES = ("custom", "function")
# The argument under which langchain-openai stores the free text of a custom tool call.
_CUSTOM_INPUT = "__arg1"
# The fields of a dict in which loops on an SDK put its objects.
_LISTS = ("content", "output", "tool_calls")
# A null in these fields means "none" in OpenAI's format, but langchain-openai fails on it when it sends the message.
_NULL_MEANS_ABSENT = ("audio", "function_call")
# The roles whose content OpenAI's API gives or takes as null.
_MAY_BE_EMPTY = ("assistant", "function")
_WANTED = (
    "a LangChain message or an OpenAI-format dict such as {'role': 'user', 'content': 'Hello'}"
)


def _random_id() -> str:
    return str(uuid4())


def normalize_messages(
    batch: MessageBatch,
    *,
    key: str | None = None,
    new_id: Callable[[], str] = _random_id,
) -> list[BaseMessage]:
    """Return the batch as whole LangChain messages, each with an id of its own, or raise and change nothing.

    A message of one of LangChain's six plain classes comes back as the same object; a chunk is made whole; a dict
    becomes a message, or several, see ``formats``. Ids are assigned last, once the whole batch is valid. They are also
    set on the caller's messages and chunks, so appending the same objects again writes nothing twice.

    With a ``key``, missing ids are derived from it and the index in the batch: a batch made again from the same request
    gets the same ids. Else ``new_id`` makes them.

    Raises:
        InvalidMessageError: An item is not a message that can be stored; names its index and field.
        InvalidInputError: ``key`` is not a plain non-empty str of at most 512 bytes of UTF-8.

    Examples:
        >>> asked = {"role": "user", "content": "Who was Ada?"}
        >>> call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "null"}}
        >>> question, answer = normalize_messages([asked, {"role": "assistant", "tool_calls": [call]}], key="r1")
        >>> question.id == normalize_messages(asked, key="r1")[0].id != answer.id
        True
        >>> answer.tool_calls
        [{'name': 'search', 'args': {}, 'id': 'c1', 'type': 'tool_call'}]
    """
    return whole_messages(converted_items(batch), key=key, new_id=new_id)


def whole_messages(
    items: list[InputMessage],
    *,
    key: str | None = None,
    new_id: Callable[[], str] = _random_id,
) -> list[BaseMessage]:
    """Convert the items that `converted_items` returned, as `normalize_messages` does: one message for each item."""
    if key is not None and (problem := id_problem(key)):
        raise InvalidInputError(f"key {problem}")
    messages = [_message(item.value, index=item.position) for item in items]
    ids = _ids(items, key=key, new_id=new_id)
    for message, item, message_id in zip(messages, items, ids, strict=True):
        if getattr(message, "id", None) is not message_id:
            message.id = message_id
        if item.value is not message and isinstance(item.value, BaseMessage):  # a chunk
            item.value.id = message_id
    return messages


def copy_ids(messages: Iterable[BaseMessage], items: Iterable[InputMessage]) -> None:
    """Give the caller's messages and chunks the ids that their whole messages have."""
    for message, item in zip(messages, items, strict=True):
        if isinstance(item.value, BaseMessage):
            item.value.id = message.id


def question_message(turn_id: str, given: str | BaseMessage | Mapping[str, object]) -> BaseMessage:
    """Return the question with the id of its turn, which is also set on the caller's object.

    Raises:
        InvalidMessageError: It is not a valid message.
        InvalidInputError: It cannot be a question, or the id of the turn is invalid.

    Examples:
        >>> question_message("r1", "Hello").id
        'r1'
    """
    check_id(turn_id, name="turn_id")
    message = HumanMessage(given) if isinstance(given, str) else given
    own = part_of(message, "id")
    if own not in (None, turn_id):
        raise InvalidInputError(
            f"the human message has an id of its own; pass that as turn_id instead of {turn_id!r}"
        )
    [*others, whole] = normalize_messages([message], new_id=lambda: turn_id)
    if others:
        raise InvalidInputError("human must be one message; append results of tools before it")
    if whole.type != "human":
        raise InvalidInputError(
            f"human must be a human message or its text, not a message of type {whole.type!r}"
        )
    if isinstance(whole.content, str) and not whole.content.strip():
        raise InvalidInputError(
            "human is a blank text; pass the question, or leave it out to continue a turn"
        )
    return whole


def converted_items(batch: Any) -> list[InputMessage]:
    """Return the items of a batch with other formats converted; a single message is a batch of one."""
    if isinstance(batch, BaseMessage | Mapping) or _is_of_sdk(batch):
        batch = [batch]
    # A str iterates over characters and a pydantic model over pairs: the caller meant neither.
    if isinstance(batch, str | bytes | bytearray | BaseModel) or not isinstance(batch, Iterable):
        advice = "await it first" if isawaitable(batch) else f"pass {_WANTED}, or a list of them"
        raise InvalidMessageError(f"a batch cannot be {type_name(batch)}; {advice}")
    items = list(batch)
    if not items:
        raise InvalidMessageError(f"the batch is empty; pass {_WANTED}, or do not append")
    if all(isinstance(item, BaseMessage) for item in items):
        return list(starmap(InputMessage, enumerate(items)))
    items = [
        _dumped(item) if isinstance(item, Mapping) or _is_of_sdk(item) else item for item in items
    ]
    is_read = any(isinstance(item, Mapping) for item in items)
    return convert_formats(items) if is_read else list(starmap(InputMessage, enumerate(items)))


def _is_of_sdk(value: Any) -> bool:
    """Return True for a message, an item or a whole response of a provider's SDK."""
    is_model = isinstance(value, BaseModel) and not isinstance(value, BaseMessage)
    return is_model and any(hasattr(value, name) for name in ("role", "type", "choices", "output"))


def _dumped(value: Any) -> Any:
    """Return an object of a provider's SDK as a dict; in a dict, also convert the objects in its lists."""
    if isinstance(value, Mapping):
        lists = [key for key in _LISTS if isinstance(value.get(key), list)]
        return (
            {**value, **{key: list(map(_dumped, value[key])) for key in lists}} if lists else value
        )
    # The SDKs do not validate responses, so pydantic may warn about their types.
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_none=True, by_alias=True, warnings=False)
    return value


def _message(item: object, *, index: int) -> BaseMessage:
    """Return the item as a checked message of a plain class."""
    message = _whole(item, index=index)
    check_fields(message, index=index)
    if needed := _NEEDED_TEXT.get(type(message)):
        check_text(getattr(message, needed), field=needed, index=index)
    return message


def _whole(item: Any, *, index: int) -> BaseMessage:
    """Return the item as a message; a chunk becomes a message of its plain class."""
    if type(item) in PLAIN_CLASSES:  # the usual case; `isinstance` takes several times as long
        return item  # type: ignore[no-any-return]
    if isinstance(item, BaseMessage):
        return _from_chunk(item) if type(item) in _WHOLE_CLASS_OF else item
    if isinstance(item, Mapping):
        return _from_dict(item, index=index)
    raise InvalidMessageError(f"expected {_WANTED}, not {type_name(item)}", index=index)


def _from_chunk(chunk: BaseMessage) -> BaseMessage:
    """Return the whole message of a chunk, with every field and extra that the chunk has.

    The message is not validated: ``message_chunk_to_message`` validates, and so drops extra fields and the ``extras``
    of tool calls. The chunk itself parsed its ``tool_call_chunks`` into ``tool_calls`` when it was created.
    """
    fields = {name: value for name, value in vars(chunk).items() if name not in _ONLY_IN_CHUNKS}
    whole = _WHOLE_CLASS_OF[type(chunk)].model_construct(**fields, **(chunk.model_extra or {}))
    return with_invalid_calls(whole) if isinstance(whole, AIMessage) else whole


def _ids(items: list[InputMessage], *, key: str | None, new_id: Callable[[], str]) -> list[str]:
    """Return one unique id for each item: its own, one derived from ``key`` or a new one."""
    ids: list[str] = []
    first_index: dict[str | int, int] = {}
    for position, (index, item) in enumerate(items):
        is_message = type(item) in PLAIN_CLASSES or isinstance(item, BaseMessage)
        message_id: Any = (
            getattr(item, "id", None) if is_message else cast("Mapping[str, Any]", item).get("id")
        )
        if message_id is None or (message_id == "" and _is_reply(item)):
            message_id = new_id() if key is None else _derived_id(position, key)
        if problem := id_problem(message_id):
            raise InvalidMessageError(problem, index=index, field="id")
        # An object has only one id, so an object without an id must not be in the batch twice either.
        for identity in (message_id, id(item)) if is_message else (message_id,):
            if identity in first_index:
                problem = (
                    f"has the id of message {first_index[identity]} or is the same object; give "
                    "each its own id"
                )
                raise InvalidMessageError(problem, index=index, field="id")
            first_index[identity] = index
        ids.append(message_id)
    return ids


def _is_reply(item: Any) -> bool:
    """Return True for a reply of a model. Some servers send it with an empty id, which counts as a missing id."""
    return isinstance(item, AIMessage) or (
        isinstance(item, Mapping) and item.get("role") == "assistant"
    )


def _derived_id(index: int, key: str) -> str:
    # The index comes first: digits end at the colon, so another key and index never give the same text.
    return str(uuid5(NAMESPACE_OID, f"{index}:{key}"))


@contextmanager
def naming_conflicts(
    messages: Sequence[BaseMessage], *, key: str | None = None, turn: str = ""
) -> Iterator[None]:
    """Convert a conflict of a message so that it names the key and position: callers do not know derived ids."""
    try:
        yield
    except ContentConflictError as error:
        ids = [message.id for message in messages]
        if error.message_id not in ids:
            raise
        if turn:
            raise TurnConflictError(turn, is_question=True) from error
        position = ids.index(error.message_id)
        if key is None or error.message_id != _derived_id(position, key):
            raise
        raise ContentConflictError(error.message_id, key=key, position=position) from error


def _from_dict(raw: Mapping[str, object], *, index: int) -> BaseMessage:
    """Return the message of an OpenAI-format dict, still without its id; ``raw`` is not changed."""
    fields: _Fields = copied(dict(raw))
    fields.pop("id", None)
    role = fields.pop("role", None)
    if not isinstance(role, str) or role not in _CLASS_OF_ROLE:
        roles = ", ".join(_CLASS_OF_ROLE)
        problem = f"must be one of {roles}, not {abbreviated(role)}"
        if role is None:
            problem = (
                f"is missing; a message has one of {roles}, and a whole reply in place of it "
                "'object': 'chat.completion' or 'object': 'response'"
            )
        raise InvalidMessageError(problem, index=index, field="role")
    if needed := _NEEDED_TEXT.get(_CLASS_OF_ROLE[role]):
        check_text(fields.get(needed), field=needed, index=index)
    if role == "developer":
        # the key under which langchain-openai finds the role to send
        fields["__openai_role__"] = role
    content = fields.pop("content", None)
    if content is None and role not in _MAY_BE_EMPTY:
        raise InvalidMessageError(
            f"a message of role {role!r} needs a text or a list of blocks; only an assistant's may "
            "be None, as in one with tool calls",
            index=index,
            field="content",
        )
    name = fields.pop("name", None)
    own = {"content": "" if content is None else content, "name": name}
    _check_content(own["content"], index=index)
    check_type(name, str, NoneType, field="name", index=index)
    if role == "assistant":
        own |= _take_assistant(fields, index=index)
    elif role == "tool":
        own |= {name: fields.pop(name, None) for name in ("tool_call_id", "artifact", "status")}
        own["status"] = "success" if own["status"] is None else own["status"]
    try:
        return _CLASS_OF_ROLE[role](additional_kwargs=fields, **own)
    except ValidationError as error:
        raise field_error(error, index=index) from without_input(error)


def _take_assistant(fields: _Fields, *, index: int) -> _Fields:
    """Remove tool calls, token counts and metadata of an answer from ``fields``, and return them."""
    lists = _take_calls(fields, index=index)
    for name in _NULL_MEANS_ABSENT:
        if fields.get(name, ...) is None:
            del fields[name]
    if "usage" in fields:
        fields["usage"] = _dumped(fields["usage"])
    lists["usage_metadata"] = usage_of(fields.get("usage"))
    metadata = fields.get("response_metadata")
    is_of_response = isinstance(metadata, dict) and "model_provider" in metadata
    if is_of_response:  # of a whole response, or written by LangChain
        lists["response_metadata"] = fields.pop("response_metadata")
    return lists


def _take_calls(fields: _Fields, *, index: int) -> _Fields:
    """Remove the tool calls from ``fields``; the raw calls stay if LangChain's two lists would lose information.

    Calls of an unknown type move to ``other_tool_calls``, because the client does not answer them.
    """
    given: Any = fields.pop("tool_calls", None)
    check_type(given, list, NoneType, field="tool_calls", index=index)
    raw = list(filterfalse(_is_of_provider, given or ()))
    if given and len(raw) < len(given):
        fields["other_tool_calls"] = list(filter(_is_of_provider, given))
    calls = [
        _call(call, field=f"tool_calls[{position}]", index=index)
        for position, call in enumerate(raw)
    ]
    lists: _Fields = as_call_fields(calls)
    # Splitting the calls into two lists loses their order.
    if all(lists.values()) or not all(_is_plain(call) for call in raw):
        fields["tool_calls"] = raw
    return lists


def _is_of_provider(call: Any) -> bool:
    """Return True for a call of a type that this version does not know, such as a search that a gateway ran."""
    kind = call.get("type") if isinstance(call, dict) else None
    return isinstance(kind, str) and kind not in ("", *_CALL_TYPES) and "function" not in call


def _call(call: Any, *, field: str, index: int) -> _Fields:
    """Return one OpenAI tool call in LangChain's form: valid, or invalid with the raw text of its arguments."""
    check_type(call, dict, field=field, index=index)
    part, source = (
        ("custom", "input") if call.get("type") == "custom" else ("function", "arguments")
    )
    body = call.get(part)
    call_id = call.get("id")
    check_type(body, dict, field=f"{field}.{part}", index=index)
    name = body.get("name")
    given = body.get(source)
    check_text(name, field=f"{field}.{part}.name", index=index)
    check_type(call_id, str, NoneType, field=f"{field}.id", index=index)
    kinds = (str, NoneType) if part == "custom" else (str, dict, NoneType)
    check_type(given, *kinds, field=f"{field}.{part}.{source}", index=index)
    if part == "custom":
        return {**tool_call(name=name, args={_CUSTOM_INPUT: given or ""}, id=call_id)}
    try:
        return read_call(name, given, call_id)
    except ValueError as error:  # a dict with values that JSON does not have
        raise InvalidMessageError(
            str(error), index=index, field=f"{field}.{part}.{source}"
        ) from error


def _is_plain(call: _Fields) -> bool:
    """Return True if a call has only id, name and arguments: no signature, no other type."""
    kind = call.get("type")
    plain = {"id", "type", "function"}
    return (
        kind in (None, "function")
        and call.keys() <= plain
        and call["function"].keys() <= {"name", "arguments"}
    )


def _check_content(content: Any, *, index: int) -> None:
    check_type(content, str, list, field="content", index=index)
    if isinstance(content, list):
        check_blocks(content, index=index)
