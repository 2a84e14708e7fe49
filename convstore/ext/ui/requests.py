"""Read the request of a page, of the AI SDK or AG-UI's ``RunAgentInput``, into one format.

Clients are not trusted. Only these parts of a request are read: the newest question, decisions of a person about calls
that wait, and results of the tools that the server names as running on the client. Answers, other results and system
messages are never read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from uuid import uuid4

from langchain_core.messages import BaseMessage, HumanMessage

from convstore import Conversation
from convstore.edges import check_conversation
from convstore.exceptions import InvalidInputError
from convstore.ext.ui.messages import newest
from convstore.ext.ui.turns import ANSWER, Format, call_ids
from convstore.integration import TurnAccess
from convstore.messages.media import media_block
from convstore.messages.text import content_of
from convstore.messages.turn_calls import pairs_of
from convstore.types import Decision, TurnCall, TurnSession, TurnState
from convstore.values.scope import MAX_IDS, check_id, check_names, check_one_of

_Value = TypeVar("_Value")
_Fields = Mapping[str, Any]
_LAST = "the last message"
_AG_UI_IDS = {"thread_id": "threadId", "run_id": "runId"}
_TYPES = {
    str: "a text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
_MEDIA = ("image", "audio", "video", "document")


@dataclass(frozen=True, slots=True, kw_only=True)
class UIRequest:
    """Request of a page; `turn` carries it out.

    Attributes:
        format: The page's protocol.
        kind: "ask" a question, "regenerate" an answer, "edit" a question, or "decide" about calls that wait.
        thread_id: The client's name for the conversation; take the user from your authentication.
        run_id: AG-UI's id of the run, else "".
        turn_id: The id of the turn; for "edit", the id of the new question.
        question: The question of "ask" and "edit".
        key: The id of a "regenerate" request; the same id continues the same answer.
        instead_of: The id of the question that "edit" replaces.
        decisions: The decisions of "decide", by the tool call id that pages show, or by the id of the call's result.
        results: The tool results of "decide", by the same ids; only those of client tools are accepted.
        client_tools: Names of the tools that run on the client.
        shown: The parts of the answer that the page already has: parts of the AI SDK, or messages of AG-UI.
    """

    format: Format
    kind: Literal["ask", "regenerate", "edit", "decide"]
    thread_id: str
    run_id: str = ""
    turn_id: str
    question: HumanMessage | None = None
    key: str = ""
    instead_of: str = ""
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    results: Mapping[str, str] = field(default_factory=dict)
    client_tools: frozenset[str] = frozenset()
    shown: Sequence[_Fields] = field(default=(), repr=False)

    async def turn(self, chat: Conversation, *, by: str = "", **options: Any) -> TurnSession:
        """Return a session of the requested turn, after its decisions were recorded.

        A repeated request continues the turn, or finds its answer. Without a `request_id`, a repeated edit or
        regeneration makes another variant.

        Args:
            chat: The conversation. Check first that this user may use it, and may decide about its calls.
            by: The person who decides, as for `Conversation.decide`.
            options: `busy` and `wait_seconds` of `Conversation.turn`.

        Raises:
            InvalidInputError: A decision is about a call that does not wait, a result is not of a client tool, or a
                question has the id that is reserved for the result of a waiting call.
            UnknownMessageError: The turn to regenerate, to replace or to decide about is not in the log.
            ConflictError: As for `Conversation.turn` and `Conversation.decide`.
        """
        check_conversation(chat)
        if self.kind == "regenerate":
            return await chat.turn(
                await _active(chat, self.turn_id), regenerate=self.key, **options
            )
        state = (await newest(chat)).turn
        if self.kind == "decide":
            turn_id, variant = await self._decide(chat, state, by)
            return await chat.turn(turn_id, regenerate=variant or None, **options)
        if state and self.turn_id in {call.result_id for call in state.waiting_calls}:
            raise InvalidInputError(
                f"{self.turn_id!r} is reserved for the result of a call that waits; send the "
                "question under another id"
            )
        replaced = await _active(chat, self.instead_of) if self.kind == "edit" else None
        # a repeated edit must not replace itself
        instead_of = None if replaced == self.turn_id else replaced
        return await chat.turn(self.turn_id, human=self.question, instead_of=instead_of, **options)

    async def _decide(
        self, chat: Conversation, state: TurnState | None, by: str
    ) -> tuple[str, str]:
        """Record decisions and results; return the turn and the variant in which the calls wait."""
        waiting = {call.result_id for call in state.waiting_calls} if state else set[str]()
        calls = await self._calls(chat, state)
        for id_, decision in self._decisions_with_results(calls, waiting):
            result_id = calls[id_].result_id if id_ in calls else id_
            await chat.decide(
                state.turn_id if state and result_id in waiting else self.turn_id,
                result_id,
                decision.verdict,
                args=decision.args,
                message=decision.message,
                by=by,
            )
        if state and waiting and not self._is_about_another(calls.values()):
            return state.turn_id, state.variant_id
        return self.turn_id, ""

    def _is_about_another(self, calls: Iterable[TurnCall]) -> bool:
        """Return True if its decisions are about other calls, such as those of the shown answer beside a hidden one."""
        known = {call.result_id for call in calls}
        return bool(self.decisions) and known.isdisjoint(self.decisions)

    async def _calls(self, chat: Conversation, state: TurnState | None) -> dict[str, TurnCall]:
        """Return the waiting calls by the ids of their results, and the turn's calls by the ids that pages show.

        The log is read only if the request has other ids than those of waiting calls' results.
        """
        waiting = state.waiting_calls if state else ()
        calls = {call.result_id: call for call in waiting}
        if calls.keys() >= {*self.decisions, *self.results}:
            return calls
        messages = await _messages_of(chat, state if waiting else None, self.turn_id)
        of_turn = [call for call, _ in pairs_of(messages)]
        return dict(zip(call_ids(of_turn), of_turn, strict=True)) | calls

    def _decisions_with_results(
        self, calls: Mapping[str, TurnCall], waiting: Collection[str]
    ) -> list[tuple[str, Decision]]:
        """Return the results of waiting calls as decisions, then the decisions, each with its id."""
        responses: list[tuple[str, Decision]] = []
        for id_, result in self.results.items():
            call = calls.get(id_)
            if call is None or call.result_id not in waiting:
                continue  # pages send all results that they show; this one is in the log
            if call.name not in self.client_tools:
                raise InvalidInputError(
                    f"the client sent a result for call {call.id!r} of tool {call.name!r}, which "
                    "is not a client tool; list the tools that run on the client in client_tools"
                )
            responses.append((id_, Decision(verdict="respond", message=result)))
        return [*responses, *self.decisions.items()]


def read_request(
    body: Mapping[str, Any] | str | bytes,
    *,
    format: Format = "ai-sdk",  # noqa: A002 - as in `ui_messages`
    client_tools: Collection[str] = (),
    request_id: str | None = None,
) -> UIRequest:
    """Parse the request of a page. No I/O: `UIRequest.turn` looks up the ids in it.

    The AI SDK sends `id`, `messages` (or only the last one, as `message`), `trigger` and `messageId`; AG-UI a
    ``RunAgentInput``. AG-UI does not define edits and regenerations. Send `trigger` and `messageId` of the AI SDK in
    its `forwardedProps`.

    Args:
        body: The body of the request, as JSON text or parsed.
        format: The page's protocol.
        client_tools: Names of the tools that run on the client. Never take them from the request.
        request_id: Id of this request, such as that of a click, for edits and regenerations; None for AG-UI's `runId`,
            or a random one.

    Raises:
        InvalidInputError: The body lacks a field, or has a value of the wrong type.
    """
    check_one_of(format, "ai-sdk", "ag-ui", name="format")
    try:
        whole = json.loads(body) if isinstance(body, str | bytes) else body
    except (ValueError, RecursionError) as error:
        raise InvalidInputError("the body must be JSON") from error
    if not isinstance(whole, Mapping):
        raise InvalidInputError(f"the body must be a JSON object, not {type(whole).__name__}")
    common: dict[str, Any] = {
        "format": format,
        "client_tools": check_names(client_tools, name="client_tools"),
    }
    if format == "ai-sdk":
        common["thread_id"] = _id(whole, "id", of="the body")
        return _of_ai_sdk(whole, request_id or str(uuid4()), common)
    common |= {name: _id(whole, key, of="the body") for name, key in _AG_UI_IDS.items()}
    return _of_ag_ui(whole, request_id or common["run_id"], common)


async def _active(chat: Conversation, turn_id: str) -> str:
    """Return the id of the active variant of a turn: a page may still use the first id of an edited question."""
    return next(
        (variant.turn_id for variant in await chat.variants(turn_id) if variant.is_active), turn_id
    )


async def _messages_of(
    chat: Conversation, state: TurnState | None, turn_id: str
) -> Sequence[BaseMessage]:
    """Return the messages of the turn in `state`, or of its variant that is not active yet.

    Without a state, return the messages of the turn with this id.
    """
    turn = await chat.get_turn(state.turn_id if state else turn_id)
    if turn and not (state and state.variant_id):
        return turn.messages
    return (await TurnAccess(chat).hidden_variant(state))[0] if state else ()


def _of_ai_sdk(body: _Fields, key: str, common: _Fields) -> UIRequest:
    if "messages" in body:
        last = _items(body, "messages", of="the body")[-1]
    else:
        last = _get(body, "message", dict, of="the body")
    parts = _items(last, "parts", of=_LAST)
    if last.get("role") != "assistant" or body.get("trigger") == "regenerate-message":
        return _question_request(last, parts, body, key, common)
    answers = [
        _get(part, "approval", dict, of="a part")
        for part in parts
        if part.get("state") == "approval-responded"
    ]
    sent = [part for part in parts if part.get("state") in ("output-available", "output-error")]
    results = {
        _id(part, "toolCallId", of="a part"): _outcome(
            part.get("output"), part.get("errorText"), is_failed=part["state"] == "output-error"
        )
        for part in sent
    }
    turn_id = _id(last, "id", of=_LAST).removeprefix(ANSWER)
    decisions = _decisions(answers)
    return UIRequest(
        kind="decide", turn_id=turn_id, decisions=decisions, results=results, shown=parts, **common
    )


def _of_ag_ui(body: _Fields, key: str, common: _Fields) -> UIRequest:
    messages = _items(body, "messages", of="the body")
    position = 0
    for index, message in enumerate(messages):
        if message.get("role") == "user":
            position = index
    question = messages[position]
    shown = messages[position + 1 :]
    props = body.get("forwardedProps")
    options = props if isinstance(props, Mapping) else {}
    if options.get("trigger") != "regenerate-message":
        answers = _items(body, "resume", of="the body") if body.get("resume") else []
        decisions = _decisions([_answer_of_interrupt(answer) for answer in answers])
        results = _client_results(shown)
        if decisions or results:
            return UIRequest(
                kind="decide",
                turn_id=_id(question, "id", of="the question"),
                decisions=decisions,
                results=results,
                shown=shown,
                **common,
            )
    content = question.get("content")
    if isinstance(content, str):
        return _question_request(
            question, [{"type": "text", "text": content}], options, key, common
        )
    parts = _items(question, "content", of="the question")
    return _question_request(question, parts, options, key, common)


def _client_results(messages: Sequence[_Fields]) -> dict[str, str]:
    """Return the results among AG-UI's messages by call id."""
    results: dict[str, str] = {}
    for message in messages:
        if message.get("role") == "tool":
            error = message.get("error")
            results[_id(message, "toolCallId", of="a tool message")] = _outcome(
                message.get("content"), error, is_failed=bool(error)
            )
    return results


def _question_request(
    last: _Fields, parts: Sequence[_Fields], options: _Fields, key: str, common: _Fields
) -> UIRequest:
    """Return a request of the kind "ask", "edit" or "regenerate"."""
    own = _id(last, "id", of=_LAST).removeprefix(ANSWER)
    replaced = options.get("messageId")
    check_one_of(
        options.get("trigger"), None, "submit-message", "regenerate-message", name="trigger"
    )
    if options.get("trigger") == "regenerate-message":
        return UIRequest(kind="regenerate", turn_id=own, key=key, **common)
    if last.get("role") != "user":
        role = _get(last, "role", str, of=_LAST)[:40]
        raise InvalidInputError(f"the last message must be the user's, not of role {role!r}")
    turn_id = key if replaced == own else own
    # parts of other types are ignored
    blocks = [_block(part) for part in parts if part.get("type") in ("text", "file", *_MEDIA)]
    if not blocks:
        raise InvalidInputError("the message has neither a text nor a file; send one as its part")
    question = HumanMessage(content_of(blocks), id=check_id(turn_id, name="request_id"))
    if replaced is None:
        return UIRequest(kind="ask", turn_id=turn_id, question=question, **common)
    instead_of = _id(options, "messageId", of="the request")
    return UIRequest(
        kind="edit", turn_id=turn_id, question=question, instead_of=instead_of, **common
    )


def _block(part: _Fields) -> dict[str, Any]:
    """Return a text, a file of the AI SDK or media of AG-UI as a content block of LangChain."""
    kind = part["type"]
    if kind == "text":
        return {"type": "text", "text": _get(part, "text", str, of="a part")}
    if kind == "file":
        mime = _optional(part, "mediaType", of="a file")
        return _media_block(mime, "", _get(part, "url", str, of="a file"), _name(part))
    source: Any = _get(part, "source", dict, of="a part")
    mime = _optional(source, "mimeType", of="a source")
    url = _get(source, "value", str, of="a source")
    if source.get("type") == "data":
        url = f"data:;base64,{url}"
    return _media_block(mime, kind, url, _name(part))


def _optional(fields: _Fields, key: str, *, of: str) -> str:
    return _get(fields, key, str, of=of) if fields.get(key) else ""


def _name(part: _Fields) -> str:
    """Return the name of a file; messages of AG-UI have it in the metadata, where `ui_messages` writes it."""
    name = part.get("filename")
    metadata = part.get("metadata")
    if not name and isinstance(metadata, Mapping):
        name = metadata.get("filename")
    return name if isinstance(name, str) else ""


def _media_block(mime: str, kind: str, url: str, name: str) -> dict[str, Any]:
    head, _, data = url.partition(",")
    if head.startswith("data:") and head.endswith(";base64"):
        return media_block(mime, kind=kind, name=name, base64=data)
    if url.startswith(("https://", "http://")):
        return media_block(mime, kind=kind, name=name, url=url)
    raise InvalidInputError(
        "the url of a file must begin with https:// or http://, or be a data URL in Base64"
    )


def _answer_of_interrupt(entry: _Fields) -> _Fields:
    """Return the answer to an interrupt of AG-UI in the format of the AI SDK."""
    check_one_of(entry.get("status"), "resolved", "cancelled", name="status")
    answer: Any = {"approved": False}
    if entry["status"] == "resolved":
        answer = _get(entry, "payload", dict, of="an answer")
    return {**answer, "id": _id(entry, "interruptId", of="an answer")}


def _decisions(answers: Iterable[_Fields]) -> dict[str, Decision]:
    found = {_id(answer, "id", of="an approval"): _decision(answer) for answer in answers}
    if len(found) > MAX_IDS:
        raise InvalidInputError(
            f"a request decides about at most {MAX_IDS} calls, not {len(found)}"
        )
    return found


def _decision(answer: _Fields) -> Decision:
    """Return a decision; `approved` must be a JSON boolean."""
    if not _get(answer, "approved", bool, of="an approval"):
        return Decision(verdict="reject", message=_optional(answer, "reason", of="an approval"))
    args = None
    if answer.get("editedArgs") is not None:
        args = _get(answer, "editedArgs", dict, of="an approval")
    return Decision(verdict="approve" if args is None else "edit", args=args)


def _outcome(output: Any, error: Any, *, is_failed: bool) -> str:
    """Return the result of a client's tool: a text, or JSON as a text.

    A failure is reported in the JSON, because the result is stored as a decision, which has no error status.
    """
    value = {"success": False, "error": error} if is_failed else output
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidInputError(f"the output of a tool must be JSON: {problem}") from problem
    return text or "(no output)"


def _get(source: _Fields, name: str, kind: type[_Value], *, of: str) -> _Value:
    """Return a field of one type; the error says what the field is `of`."""
    value = source.get(name)
    if not isinstance(value, kind):
        found = "missing" if value is None else f"of type {type(value).__name__}"
        raise InvalidInputError(f"{name} of {of} must be {_TYPES[kind]}; it is {found}")
    return value


def _items(source: _Fields, name: str, *, of: str) -> list[_Fields]:
    items = _get(source, name, list, of=of)
    if not items or not all(isinstance(item, Mapping) for item in items):
        raise InvalidInputError(f"{name} of {of} must be a list of objects, with at least one")
    return items


def _id(source: _Fields, name: str, *, of: str) -> str:
    return check_id(_get(source, name, str, of=of), name=f"{name} of {of}")
