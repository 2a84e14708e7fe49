"""The structured response of an agent, from an answer that is in the log already.

Floor 7, pure. LangChain makes it where it calls the model; a step that is taken from the log calls none.
"""

from __future__ import annotations

from typing import Any

from langchain.agents.structured_output import (
    AutoStrategy,
    OutputToolBinding,
    ProviderStrategy,
    ProviderStrategyBinding,
    ToolStrategy,
)
from langchain_core.messages import AIMessage

__all__ = ["may_be_structured", "schema_names", "structured_response"]


def may_be_structured(answer: AIMessage) -> bool:
    """Return True if an answer without calls may be the JSON text of a structured response."""
    return answer.text.lstrip()[:1] in ("{", "[")


def schema_names(response_format: Any) -> set[str]:
    """Names of the tools that a model calls to give a structured response."""
    return {spec.name for spec in _tool_specs(response_format)}


def structured_response(response_format: Any, answer: AIMessage) -> Any:
    """Return the structured response in an answer; None if it has none."""
    if response_format is None:
        return None
    specs = {spec.name: spec for spec in _tool_specs(response_format)}
    calls = [call for call in answer.tool_calls if call["name"] in specs]
    try:
        if len(calls) == 1:
            return OutputToolBinding.from_schema_spec(specs[calls[0]["name"]]).parse(calls[0]["args"])
        if not answer.tool_calls and not isinstance(response_format, ToolStrategy):
            spec = ProviderStrategy(_schema(response_format)).schema_spec
            return ProviderStrategyBinding.from_schema_spec(spec).parse(answer)
    except ValueError:
        return None  # the model was told so and asked again; what follows in the log says how that went
    return None


def _tool_specs(response_format: Any) -> list[Any]:
    if response_format is None or isinstance(response_format, ProviderStrategy):
        return []
    strategy = response_format if isinstance(response_format, ToolStrategy) else ToolStrategy(_schema(response_format))
    return list(strategy.schema_specs)


def _schema(response_format: Any) -> Any:
    wrapped = isinstance(response_format, AutoStrategy | ProviderStrategy)
    return response_format.schema if wrapped else response_format
