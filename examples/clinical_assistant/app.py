"""The HTTP interface of the assistant.

Serve it, with CONVSTORE_URI and ASSISTANT_TOKENS ("ada=her-token,grace=another") set::

    uvicorn --app-dir examples --factory clinical_assistant.app:app_from_environment

The owner of a session comes only from the bearer token. The header ``X-Request-ID`` identifies an interaction: a client
without an answer repeats its request and gets the stored answer. A failure that may pass is not stored, so a repeated
request then asks the model again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from pydantic import BaseModel, Field

from clinical_assistant.exports import audit_line, fine_tuning_line
from clinical_assistant.graph import Assistant, answer_of, error_of
from clinical_assistant.model import ScriptedModel
from convstore import (
    ConflictError,
    Conversation,
    ConversationDeletedError,
    ConversationStore,
    InvalidInputError,
    StoreUnavailableError,
    Turn,
)
from convstore.exceptions import TurnConflictError, UnknownMessageError

__all__ = ["app_from_environment", "create_app"]

SCOPE_KEYS = ("user_id", "session_id")
_STATUS: Mapping[type[Exception], int] = {
    ConflictError: 409,
    ConversationDeletedError: 404,
    InvalidInputError: 422,
    UnknownMessageError: 404,
}
_bearer = HTTPBearer(auto_error=False)


class ChatRequest(BaseModel):
    """A question; the user comes from the token."""

    session_id: str = Field(min_length=1, max_length=128)
    message: str = Field(min_length=1, max_length=20_000)


class ChatResponse(BaseModel):
    """The answer; `is_repeated` if it came from the log without asking a model."""

    session_id: str
    interaction_id: str
    response: str
    error_message: str | None = None
    is_repeated: bool = False


class Session(BaseModel):
    """A session in a list."""

    session_id: str
    updated_at: str | None
    message_count: int
    last_message: str | None


class SessionPage(BaseModel):
    """Sessions, newest first."""

    sessions: list[Session]
    next_cursor: str | None = None


class HistoryMessage(BaseModel):
    """A message of a session, for its user."""

    ordinal: int
    at: str
    author: str
    text: str


class HistoryPage(BaseModel):
    """Messages, oldest first; the page before this one begins with `next_cursor`."""

    messages: list[HistoryMessage]
    next_cursor: int | None = None


def get_assistant(request: Request) -> Assistant:
    """Return the assistant that the lifespan created."""
    assistant: Assistant = request.app.state.assistant
    return assistant


def get_user(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> str:
    """Return the user of the token; only digests of tokens are kept."""
    digest = _digest(credentials.credentials) if credentials else ""
    user: str | None = request.app.state.users.get(digest)
    if user is None:
        raise HTTPException(401, "no valid token", headers={"WWW-Authenticate": "Bearer"})
    return user


User = Annotated[str, Depends(get_user)]
Ready = Annotated[Assistant, Depends(get_assistant)]
RequestId = Annotated[str, Header(alias="X-Request-ID", min_length=1, max_length=128)]


def get_session(session_id: str, user: User, assistant: Ready) -> Conversation:
    """Return the user's session named in the path."""
    return assistant.conversation(user, session_id)


OwnSession = Annotated[Conversation, Depends(get_session)]


def create_app(uri: str, *, model: BaseChatModel, tokens: Mapping[str, str]) -> FastAPI:
    """Return the application; it connects at its start.

    Args:
        uri: Address of the database, or ``memory://``.
        model: Any chat model of LangChain.
        tokens: The user of each token.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with await ConversationStore.connect(uri, scope_keys=SCOPE_KEYS) as store:
            await store.setup()
            app.state.assistant = Assistant(store, model)
            yield

    app = FastAPI(title="Clinical assistant", lifespan=lifespan)
    app.state.users = {_digest(token): user for token, user in tokens.items()}
    for error, status in _STATUS.items():
        app.add_exception_handler(error, _answers_with(status))
    app.add_exception_handler(StoreUnavailableError, _unavailable)
    app.add_exception_handler(RequestValidationError, _invalid)
    _add_chat(app)
    _add_sessions(app)
    _add_exports(app)
    return app


def app_from_environment() -> FastAPI:
    """Return the application for a server, see the top of the module."""
    pairs = (pair.strip().partition("=") for pair in os.environ["ASSISTANT_TOKENS"].split(","))
    tokens = {token: user for user, _, token in pairs if user and token}
    return create_app(os.environ["CONVSTORE_URI"], model=ScriptedModel(), tokens=tokens)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _add_chat(app: FastAPI) -> None:
    @app.post("/chat")
    async def chat(
        body: ChatRequest, user: User, request_id: RequestId, assistant: Ready
    ) -> ChatResponse:
        """Save the question, answer it, and save the answer; a repeated request saves neither again."""
        session = assistant.conversation(user, body.session_id)
        reply = partial(ChatResponse, session_id=body.session_id, interaction_id=request_id)
        asked = await session.append(HumanMessage(body.message, id=request_id))
        if not asked.written:
            turn = await session.get_turn(request_id)
            if answer := answer_of(turn):
                return reply(response=answer.text, error_message=error_of(answer), is_repeated=True)
            # another question came first; an answer can no longer be stored
            if turn is not None and turn.is_finished:
                raise TurnConflictError(request_id, is_newest=False)
            # The worker that saved the question died or is still running: the first saved answer wins.
        state = await assistant.run(
            user_input=body.message,
            user_id=user,
            session_id=body.session_id,
            interaction_id=request_id,
        )
        return reply(
            response=state["final_response_text"] or "", error_message=state["error_message"]
        )


def _add_sessions(app: FastAPI) -> None:
    @app.get("/sessions")
    async def sessions(
        user: User,
        assistant: Ready,
        cursor: str | None = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> SessionPage:
        """List the user's sessions, newest first."""
        page = await assistant.store.list_conversations(user_id=user, cursor=cursor, limit=limit)
        found = [
            Session(
                session_id=conversation.scope["session_id"],
                updated_at=conversation.updated_at.isoformat() if conversation.updated_at else None,
                message_count=conversation.message_count,
                last_message=conversation.last_message.text if conversation.last_message else None,
            )
            for conversation in page.conversations
        ]
        return SessionPage(sessions=found, next_cursor=page.next_cursor)

    @app.get("/sessions/{session_id}/history")
    async def history(
        session: OwnSession,
        cursor: Annotated[int | None, Query(ge=1)] = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> HistoryPage:
        """Return the messages without tool results, which are not read; the newest page first."""
        page = await session.list_messages(before=cursor, limit=limit)
        if not page and cursor is None:
            raise HTTPException(404, "there is no such session")
        shown = [
            HistoryMessage(
                ordinal=message.ordinal,
                at=message.created_at.isoformat(),
                author=message.message.type,
                text=message.message.text,
            )
            for message in page
            if message.message.type in ("human", "ai") and message.message.text
        ]
        return HistoryPage(
            messages=shown, next_cursor=page[0].ordinal if page and page[0].ordinal > 1 else None
        )

    @app.delete("/sessions/{session_id}", status_code=204)
    async def delete(session: OwnSession) -> None:
        """Delete a session permanently; a missing session is not an error."""
        await session.delete()


def _add_exports(app: FastAPI) -> None:
    @app.get("/sessions/{session_id}/fine-tuning.jsonl")
    async def fine_tuning(session: OwnSession, after: Annotated[int, Query(ge=0)] = 0) -> Response:
        """Export good turns, each as an example in OpenAI's chat format."""

        async def line(turn: Turn) -> str:
            return fine_tuning_line(turn)

        return await _stream(session, line, after)

    @app.get("/sessions/{session_id}/audit.jsonl")
    async def audit(session: OwnSession, after: Annotated[int, Query(ge=0)] = 0) -> Response:
        """Export every turn: user, time, tools with their arguments, used sources, answer."""

        async def line(turn: Turn) -> str:
            return await audit_line(session, turn)

        return await _stream(session, line, after)


async def _stream(
    session: Conversation, line: Callable[[Turn], Awaitable[str]], after: int
) -> Response:
    """Stream lines. The first turn is read before the response starts, so that an error can still set the status."""
    turns = session.turns(after=after)
    first = await anext(turns, None)
    if first is None and not after:
        raise HTTPException(404, "there is no such session")

    async def lines() -> AsyncIterator[str]:
        if first is not None:
            yield await line(first)
            async for turn in turns:
                yield await line(turn)

    return StreamingResponse(lines(), media_type="application/x-ndjson")


def _answers_with(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handle(request: Request, error: Exception) -> Response:  # noqa: ARG001 - FastAPI passes it
        return JSONResponse({"detail": str(error)}, status)

    return handle


async def _unavailable(request: Request, error: Exception) -> Response:  # noqa: ARG001 - its text is not for users
    return JSONResponse(
        {"detail": "the store does not answer; send the request again"}, 503, {"Retry-After": "1"}
    )


async def _invalid(request: Request, error: Exception) -> Response:  # noqa: ARG001 - FastAPI passes it
    """Omit the input from the response, because JSON in UTF-8 may be unable to encode it."""
    found: list[dict[str, Any]] = (
        list(error.errors()) if isinstance(error, RequestValidationError) else []
    )
    return JSONResponse(
        {"detail": [{"loc": problem["loc"], "msg": problem["msg"]} for problem in found]}, 422
    )
