"""The tool that an agent registers to read old tool results back: ``retrieve_previous_sources``.

The conversation is set by the application or by the run's configuration, never by a model. The tool never raises on a
model's arguments, and reads them leniently, see `read_arguments`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from langchain_core.runnables import RunnableConfig
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.json_schema import SkipJsonSchema

from convstore.readback.request import Request, check_page_tokens
from convstore.runtime.loop_thread import BothWays
from convstore.sources.stub import PAGE_TOKENS, RETRIEVAL_TOOL
from convstore.tools.agent_tool import AgentTool, agent_tool
from convstore.tools.arguments import read_arguments
from convstore.values.scope import check_choice

_DESCRIPTION = (
    "Search and read everything that was said earlier in this conversation, also what the history "
    "shortens or leaves "
    "out. To search, pass words as find: you get the best passages with their ids. To read in "
    "full, pass "
    "tool_message_ids (of any messages) or source_ids; with find, only passages that match. A "
    "page that is not the "
    "last one ends with a cursor: call again with it alone. Without arguments: a list of what can "
    "be read."
)


_TEXT = WithJsonSchema({"type": "string"})


class RetrieveArguments(BaseModel):
    """The arguments as models see them; any value is taken under any name, and `read_arguments` reads it."""

    # not for models
    model_config = ConfigDict(json_schema_extra=lambda schema: schema.__delitem__("description"))

    tool_message_ids: Annotated[
        Any, WithJsonSchema({"type": "array", "items": {"type": "string"}})
    ] = Field(
        default_factory=list,
        description=(
            "Messages to read in full: ids from shortened results, notes and searches, or "
            'ordinals. Example: ["call_7", "m12"]'
        ),
    )
    source_ids: Annotated[Any, _TEXT] = Field(
        default_factory=str,
        description=(
            'Sources to read in full, as you cite them: numbers and ranges. Example: "3, 11-20"'
        ),
    )
    find: Annotated[Any, _TEXT] = Field(
        default_factory=str,
        description=(
            "Words to search for when you do not know where something was said; with ids, only in "
            'those. Example: "refund deadline"'
        ),
    )
    cursor: Annotated[Any, _TEXT] = Field(
        default_factory=str,
        description=(
            "To read on: the cursor in the last line of a page, without other arguments. "
            'Example: "11@4000"'
        ),
    )
    given: SkipJsonSchema[Any] = ()

    @model_validator(mode="before")
    @classmethod
    def _collected(cls, given: Any) -> Any:
        """Keep all arguments, under any names, for `read_arguments`."""
        return {"given": dict(given)} if isinstance(given, dict) else given


def make_retrieval_tool(
    read_back_for: Callable[[RunnableConfig], BothWays],
    *,
    page_tokens: int = PAGE_TOKENS,
    artifact: bool = False,
) -> AgentTool:
    """Return the tool, async and sync; its content is for the model, its artifact a `SourcePage`.

    It reads from the conversation that `read_back_for` finds by the configuration of a run. If the store fails, the
    result is a tool message with ``status="error"``. If arguments cannot be understood, the message names the argument
    and what is expected. With `artifact` it also shows what a tool kept in an artifact beside its sources.
    """
    check_page_tokens(page_tokens)
    check_choice(artifact, True, False, name="artifact")

    def request_of(ids: Any = (), *, given: Any = (), **_: Any) -> Request:
        request = read_arguments({"ids": ids, **dict(given)}, page_tokens)
        return replace(request, artifact=artifact)

    return agent_tool(
        request_of,
        read_back_for,
        name=RETRIEVAL_TOOL,
        description=_DESCRIPTION,
        args_schema=RetrieveArguments,
        response_format="content_and_artifact",
    )
