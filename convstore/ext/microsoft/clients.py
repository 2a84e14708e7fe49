"""Tables of the files and reasoning that the chat clients of the Agent Framework send; they drop the rest silently.

As of the packages of October 2026 for OpenAI (1.17), Anthropic, Bedrock, Gemini, Mistral and Ollama.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from agent_framework import Content

MEDIA: Final = ("data", "uri")
"""Types of contents that are files: with their data, or at an address."""


class Client(NamedTuple):
    """The contents that a chat client sends.

    Attributes:
        in_questions: Prefixes of type and media type of the files that it sends in questions, such as "data image/".
        in_results: The prefixes for files in results.
        reasoning: True if it sends reasoning.
    """

    in_questions: tuple[str, ...]
    in_results: tuple[str, ...] = ()
    reasoning: bool = True

    def sends(self, file: Content) -> bool:
        """Return True if the client sends a file in a question."""
        return _name(file).startswith(self.in_questions)

    def place(
        self, file: Content, wanted: Literal["kept", "moved", "named"]
    ) -> Literal["kept", "moved", "named"]:
        """Return where a file of a result is sent: "kept" in the result, "moved" to a question, or "named" by a text.

        `wanted` is the place that the provider's rules prefer.
        """
        if wanted == "kept" and _name(file).startswith(self.in_results):
            return "kept"
        return "moved" if wanted != "named" and self.sends(file) else "named"


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
    """Return the table of an agent's client; `UNKNOWN` for a client that is not one of the framework's."""
    client = getattr(agent, "client", None)
    names = (kind.__name__ for kind in type(client).__mro__)
    return next((_CLIENTS[name] for name in names if name in _CLIENTS), UNKNOWN)
