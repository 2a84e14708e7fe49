"""Conversations from a seed, as four readers of replies store them; each part has a word that comes nowhere else.

What a request lacks of a view is therefore seen by its words, and each has the names by which `dropped` may report it.
The module shares no code with the writers of requests.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from strategies import PureLog

from convstore.append.inputs import normalize_messages
from convstore.values.policy import HistoryPolicy
from convstore.view.render import View

Reader = Literal["chat", "responses", "anthropic", "langchain"]
READERS: tuple[Reader, ...] = ("chat", "responses", "anthropic", "langchain")
"""The forms of replies that are appended."""
BUDGETS = (None, 2_000, 300)
MODELS = {
    "chat": ("deepseek-v4-pro", "gpt-5", "mistral-large-latest", "kimi-k2.6", "gemini-3-pro"),
    "responses": ("gpt-5", "gpt-5-mini"),
    "anthropic": ("claude-opus-4-1", "claude-opus-5"),
    "langchain": ("claude-opus-4-1", "gpt-5", "gemini-3-pro", "mistral-large-latest"),
}
_PROVIDERS = {"claude": "anthropic", "gpt": "openai", "gemini": "google_genai"}
_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_WORD = re.compile(r"w\d+w")


def words_in(value: Any) -> set[str]:
    """Return the words in a value, wherever they stand."""
    return set(_WORD.findall(json.dumps(value, default=str)))


class Talk:
    """A conversation from a seed: questions, steps with calls, results of all kinds, and what goes wrong in logs."""

    def __init__(self, seed: int, reader: Reader) -> None:
        self._dice = random.Random(f"{seed} {reader}")
        self.reader = reader
        self._words = 0
        self._ids = 0
        self.log = PureLog()
        self._names = dict[str, tuple[str, ...]]()
        self._found = dict[int, frozenset[str]]()
        self._views = dict[tuple[int | None, Any], View]()
        if self._chance(0.7):
            self._add([SystemMessage(self._word("Be brief"))])
        if self._chance(0.2):
            self._add([AIMessage(self._word("Hi"))])
        for _ in range(self._dice.randint(1, 4)):
            self._turn()
        self._add([HumanMessage(self._word("And now"))])

    def view(self, budget: int | None, provider: Any = None) -> View:
        """The view of the whole conversation within a budget."""
        if (budget, provider) not in self._views:
            policy = HistoryPolicy(max_tokens=budget, provider=provider)
            self._views[budget, provider] = self.log.view(policy)
        return self._views[budget, provider]

    def different(self, budgets: Iterable[int | None]) -> Iterator[int | None]:
        """Yield the budgets whose views differ: the same view gives the same requests."""
        seen = list[list[BaseMessage]]()
        for budget in budgets:
            messages = self.view(budget).messages
            if messages not in seen:
                seen.append(messages)
                yield budget

    def _chance(self, share: float) -> bool:
        return self._dice.random() < share

    def _word(self, text: str = "", *names: str) -> str:
        """A new word after a text; a request may lack it if `dropped` has a part whose name begins so."""
        self._words += 1
        word = f"w{self._words}w"
        self._names[word] = names
        return f"{text} {word}".strip()

    def losses(
        self,
        messages: Iterable[BaseMessage],
        request: Any,
        dropped: Iterable[tuple[str, str, str]],
    ) -> Iterator[str]:
        """Yield the words of messages of a view that a request lacks, and `dropped` does not name as such a part."""
        sent = words_in(request)
        named = [(id_, part) for id_, part, _ in dropped]
        for message in messages:
            for word in sorted(self._words_of(message) - sent):
                names = self._names[word]
                if not any(id_ == message.id and part.startswith(names) for id_, part in named):
                    yield f"{message.id}: {word}, {names or 'a text'} of {message.type}"

    def _words_of(self, message: BaseMessage) -> frozenset[str]:
        """The words that a model reads of a message, which a view keeps."""
        if id(message) not in self._found:
            self._found[id(message)] = frozenset(words_in(_of_model(message)))
        return self._found[id(message)]

    def _long(self) -> str:
        return self._word("found") + " fish" * self._dice.choice([1, 1, 400])

    def _add(self, messages: Iterable[Any]) -> list[BaseMessage]:
        batch = normalize_messages(list(messages), key=str(len(self.log.entries)))
        self.log.append(batch)
        return batch

    def _turn(self) -> None:
        model = self._dice.choice(MODELS[self.reader])
        self._add([HumanMessage(self._question(), name="Ada <L>" if self._chance(0.2) else None)])
        for _ in range(self._dice.randint(0, 3)):
            calls = [self._call() for _ in range(self._dice.randint(1, 2))]
            if len(calls) > 1 and self.reader == "langchain" and self._chance(0.1):
                calls[1]["id"] = calls[0]["id"]
            self._add(self._reply(model, calls))
            self._results(calls)
            if self._chance(0.1):
                self._add([SystemMessage(self._word("Note"))])
            if self._chance(0.1):
                self._add([HumanMessage(self._word("Early"))])
        if self._chance(0.85):
            self._add(self._reply(model, []))

    def _question(self) -> Any:
        blocks: list[Any] = [{"type": "text", "text": self._word("Why")}]
        if self._chance(0.2):
            blocks.append({"type": "image", "base64": _PNG, "mime_type": "image/png"})
        if self._chance(0.2):
            url = f"https://example.org/{self._word('', 'image')}.png"
            blocks.append({"type": "image", "url": url, "mime_type": "image/png"})
        return blocks if len(blocks) > 1 or self._chance(0.2) else blocks[0]["text"]

    def _call(self) -> dict[str, Any]:
        self._ids += 1
        forms = [f"call_{self._ids}", f"toolu_{self._ids}", "call_0", "x" * 50, "a.b:c"]
        id_ = self._dice.choice(forms) if self._chance(0.5) else forms[0]
        name = self._dice.choice(["look", "mcp.files:read"])
        return {
            "id": f"{id_}{self._ids if id_ == 'a.b:c' else ''}",
            "name": name,
            "q": self._word("", "arguments of"),
        }

    def _results(self, calls: list[dict[str, Any]]) -> None:
        results = list[ToolMessage]()
        for call in calls:
            content: Any = self._long()
            if self._chance(0.2):
                url = f"https://example.org/{self._word('', 'image')}.png"
                content = [
                    {"type": "text", "text": content},
                    {"type": "image", "url": url, "mime_type": "image/png"},
                ]
            status: Any = "error" if self._chance(0.2) else "success"
            name = call["name"] if self._chance(0.7) else None
            if not self._chance(0.1):
                results.append(
                    ToolMessage(content, tool_call_id=call["id"], name=name, status=status)
                )
        if results:
            self._add(results)

    def _reply(self, model: str, calls: list[dict[str, Any]]) -> list[Any]:
        """Return a reply in the form of the reader."""
        thought = self._word("Hm", "reasoning") if self._chance(0.6) else ""
        said = "" if (calls and self._chance(0.5)) or self._chance(0.05) else self._word("So")
        is_hosted = self._chance(0.2)
        make = getattr(self, f"_as_{self.reader}")
        found: list[Any] = make(model, thought, said, calls, is_hosted)
        return found

    def _as_chat(self, model: str, thought: str, said: str, calls: list[Any], _: bool) -> list[Any]:
        message: dict[str, Any] = {"role": "assistant", "content": said or None}
        if thought and model != "gpt-5":
            message["reasoning_content"] = thought
        made = list[Any]()
        for call in calls:
            given = json.dumps({"q": call["q"]})
            arguments = given[:-2] if self._chance(0.1) else given
            function = {"name": call["name"], "arguments": arguments}
            made.append({"id": call["id"], "type": "function", "function": function})
        if made and model.startswith("gemini"):
            made[0]["extra_content"] = {
                "google": {"thought_signature": self._word("", "extra_content", "reasoning")}
            }
        reason = "tool_calls" if made else "stop"
        if made:
            message["tool_calls"] = made
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return [{"object": "chat.completion", "id": "x", "model": model, "choices": [choice]}]

    def _as_responses(
        self, model: str, thought: str, said: str, calls: list[Any], is_hosted: bool
    ) -> list[Any]:
        self._ids += 1
        output = list[Any]()
        if thought:
            own = {"id": f"rs_{self._ids}", "encrypted_content": thought.rsplit(maxsplit=1)[-1]}
            output.append({"type": "reasoning", "summary": [], **own})
        if is_hosted:
            action = {"type": "search", "query": self._word("", "web_search_call")}
            id_ = f"ws_{self._ids}"
            output.append(
                {"type": "web_search_call", "id": id_, "status": "completed", "action": action}
            )
        if said or not calls:
            text = {"type": "output_text", "text": said or " ", "annotations": []}
            id_ = f"msg_{self._ids}"
            made = {"id": id_, "status": "completed", "content": [text]}
            output.append({"type": "message", "role": "assistant", **made})
        for number, call in enumerate(calls):
            arguments = json.dumps({"q": call["q"]})
            own = {"id": f"fc_{self._ids}_{number}", "call_id": call["id"], "status": "completed"}
            output.append(
                {"type": "function_call", **own, "name": call["name"], "arguments": arguments}
            )
        about = {"object": "response", "id": f"resp_{self._ids}", "status": "completed"}
        return [{**about, "model": model, "output": output}]

    def _as_anthropic(
        self, model: str, thought: str, said: str, calls: list[Any], is_hosted: bool
    ) -> list[Any]:
        self._ids += 1
        content = list[Any]()
        if thought:
            content.append({"type": "thinking", "thinking": thought, "signature": "c2ln"})
        if is_hosted:
            id_ = f"srvtoolu_{self._ids}"
            own = {"name": "web_search", "input": {"query": self._word("", "server_tool_use")}}
            content.append({"type": "server_tool_use", "id": id_, **own})
            title = self._word("", "web_search_tool_result")
            page = {"type": "web_search_result", "url": "https://a", "title": title}
            found = [{**page, "encrypted_content": "eA=="}]
            content.append({"type": "web_search_tool_result", "tool_use_id": id_, "content": found})
        if said:
            content.append({"type": "text", "text": said})
        for call in calls:
            own = {"id": call["id"], "name": call["name"], "input": {"q": call["q"]}}
            content.append({"type": "tool_use", **own})
        reason = "tool_use" if calls else "end_turn"
        about = {"id": f"msg_{self._ids}", "type": "message", "role": "assistant", "model": model}
        usage = {"input_tokens": 1, "output_tokens": 1}
        return [{**about, "content": content, "stop_reason": reason, "usage": usage}]

    def _as_langchain(
        self, model: str, thought: str, said: str, calls: list[Any], _: bool
    ) -> list[Any]:
        blocks: list[Any] = [{"type": "text", "text": said}] if said else []
        if thought:
            blocks.insert(0, {"type": "thinking", "thinking": thought, "signature": "c2ln"})
        made = [
            {"name": call["name"], "args": {"q": call["q"]}, "id": call["id"], "type": "tool_call"}
            for call in calls
        ]
        provider = next(
            (name for start, name in _PROVIDERS.items() if model.startswith(start)), "mistralai"
        )
        metadata = {"model_name": model, "model_provider": provider}
        return [AIMessage(blocks, tool_calls=made, response_metadata=metadata)]


def _of_model(message: BaseMessage) -> Mapping[str, Any]:
    """Return what a model reads of a message."""
    fields = message.model_dump(exclude={"response_metadata", "usage_metadata", "id"})
    fields["additional_kwargs"] = {
        key: value for key, value in message.additional_kwargs.items() if key != "convstore"
    }
    return fields
