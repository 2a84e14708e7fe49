"""A citation in a message, as pages show it."""

from __future__ import annotations

from typing import Literal

from convstore.values.value import Value


class Citation(Value):
    """A source that a message cites at a place in its text.

    Attributes:
        start: First character of the citation in ``message.text``. For a number it is that of its mark, which the
            citations of ``[17, 18]`` share; for a provider's citation that of the text which the source supports.
        end: The character after it.
        given_by: "number" for a number in the text; "provider" for what the model's API attached to it.
        number: The number in the text, also of a source that does not exist; None if a provider gave the citation.
        source_id: The source of the conversation; None if the number means nothing, or a provider cites a page or a
            file that is not a source of the conversation.
        title: The title of the source, "" without one.
        url: The address of the source, "" without one.
        quotation: The text that a provider quotes from the source; "" without one, and for numbers.
        tool_message_id: The tool message that has the source; "" without a source.
        child_id: The `conversation_id` of the child that has the source; "" for the conversation itself.
    """

    start: int
    end: int
    given_by: Literal["number", "provider"]
    number: int | None = None
    source_id: int | None = None
    title: str = ""
    url: str = ""
    quotation: str = ""
    tool_message_id: str = ""
    child_id: str = ""
