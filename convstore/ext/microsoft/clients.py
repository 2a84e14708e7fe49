"""What the chat clients of the Agent Framework send of files and reasoning: they leave out the rest without a word.

As of the packages of October 2026 for OpenAI (1.17), Anthropic, Bedrock, Gemini, Mistral and Ollama.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from agent_framework import Content

MEDIA: Final = ("data", "uri")
"""Types of contents that are files: with their data, or at an address."""


class Client(NamedTuple):
    """What a client sends.

    Attributes:
        asked: Beginnings of type and media type of the files that it sends of questions, such as "data image/".
        returned: The same of results.
        reasoning: False if it sends none.
    """

    asked: tuple[str, ...]
    returned: tuple[str, ...] = ()
    reasoning: bool = True

    def takes(self, file: Content) -> bool:
        """Return True if it sends a file in a question."""
        return _name(file).startswith(self.asked)

    def place(
        self, file: Content, wanted: Literal["kept", "moved", "named"]
    ) -> Literal["kept", "moved", "named"]:
        """Return where a file of a result goes, given where the provider wants it: there, to a question, or a text."""
        if wanted == "kept" and _name(file).startswith(self.returned):
            return "kept"
        return "moved" if wanted != "named" and self.takes(file) else "named"


def _name(file: Content) -> str:
    return f"{file.type} {file.media_type or ''}"


UNKNOWN: Final = Client(MEDIA, MEDIA)
"""A client that sends everything."""
_IMAGES: Final = ("data image/", "uri image/")
_OPENAI: Final = (
    *_IMAGES,
    "data application/",
    "data audio/mp3",
    "data audio/mpeg",
    "data audio/wav",
)
_CLIENTS: Final = {
    "BedrockChatClient": Client(("data image/",)),
    "OllamaChatClient": Client(("data image/",)),
    "RawAnthropicClient": Client(_IMAGES, _IMAGES),
    "RawGeminiChatClient": Client(MEDIA),
    "RawMistralChatClient": Client((*_IMAGES, "uri application/pdf"), reasoning=False),
    "RawOpenAIChatClient": Client((*_OPENAI, "uri application/"), (*_OPENAI, "uri application/")),
    "RawOpenAIChatCompletionClient": Client(_OPENAI),
}


def client_of(agent: Any) -> Client:
    """Return what the client of an agent sends; everything if it is none of the framework's."""
    client = getattr(agent, "client", None)
    names = (kind.__name__ for kind in type(client).__mro__)
    return next((_CLIENTS[name] for name in names if name in _CLIENTS), UNKNOWN)
