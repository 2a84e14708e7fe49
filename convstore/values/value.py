"""The base of the values that the public API returns."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from convstore.values.json_form import is_json, sendable_model


class Value(BaseModel):
    """A frozen model of the public API, which can always be written as JSON.

    In JSON, lone surrogates become U+FFFD, values nested deeper than serializers take become their JSON text, calls
    with such arguments invalid calls, and values that JSON lacks a text. `model_dump` returns them as they are.
    """

    model_config = ConfigDict(
        defer_build=True, frozen=True, extra="forbid", arbitrary_types_allowed=True
    )

    @model_serializer(mode="wrap", when_used="json")
    def _as_json(  # type: ignore[no-untyped-def] # noqa: ANN202
        self, write: SerializerFunctionWrapHandler
    ):
        # A return type would replace the fields in the model's JSON schema.
        try:
            written = write(self)
            if is_json(written):
                return written
        except (ValueError, RecursionError):  # too many levels, or a type that JSON lacks
            pass
        return write(sendable_model(self))
