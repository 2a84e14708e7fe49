"""Generated conversations, as four readers stored them, in the requests of seven writers within three budgets.

No request is invalid, and no loss is without a name. What a provider accepts is judged by its own package, by the types
of its SDK, and by validators that share no code with the writers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest
from adapters import package
from api_rules import anthropic_errors, chat_errors, responses_errors
from generated_talks import BUDGETS, READERS, Reader, Talk
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from properties import soaked
from pydantic import TypeAdapter

from convstore import ConversationStore, HistoryPolicy
from convstore.messages.tool_calls import calls_of
from convstore.testing.pairing import check_pairing
from convstore.types import History
from convstore.values.providers import ROWS, row_of_model, rules_for, rules_of_framework
from convstore.view.render import View
from convstore.wire.edits import RequestEdits

Errors = Iterator[str]
_SERVER_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")


def history(view: View) -> History:
    """The view as `load_history` returns it."""
    return History(messages=view.messages)


def chat(talk: Talk, budget: int | None, *, model: str, deep: bool) -> Errors:
    """Chat Completions, of a model."""
    view = talk.view(budget)
    request = history(view).to_openai(model=model)
    rules = row_of_model(model)
    plain = [_plain(message) for message in request] if rules.name != "openai" else request
    yield from chat_errors(plain)
    yield from talk.losses(view.messages, request, request.dropped)
    if rules.reasoning_needed:
        yield from _needed_reasoning(request)
    if rules.kin == "mistralai" and deep:
        yield from _mistral_errors(request, model)
    if deep:
        yield from _type_errors("openai.types.chat", "ChatCompletionMessageParam", request)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without what servers other than OpenAI's have beside it."""
    made = {key: value for key, value in message.items() if key not in _SERVER_FIELDS}
    if made["role"] == "tool":
        made.pop("name", None)
    calls = made.get("tool_calls", ())
    if calls:
        made["tool_calls"] = [
            {key: value for key, value in call.items() if key != "extra_content"} for call in calls
        ]
    is_blank = made["role"] == "assistant" and made["content"] == "" and calls
    return made | {"content": None} if is_blank else made


def _needed_reasoning(request: Sequence[Any]) -> Errors:
    """Thinking models refuse an answer without the field."""
    for message in request:
        if message["role"] == "assistant":
            has_field = bool(message.get("reasoning_content")) and message["content"] is not None
            if not has_field:
                yield f"reasoning_content is missing: {message}"


def _mistral_errors(request: Sequence[Any], model: str) -> Errors:
    """What the package of Mistral refuses."""
    validator = package("mistral_common.protocol.instruct.validator")
    convert = package("mistral_common.protocol.instruct.converters")
    is_old = not row_of_model(model).text_beside_calls
    version = "V3" if is_old else "V11"
    judge = getattr(validator, f"MistralRequestValidator{version}")
    try:
        messages = convert.convert_openai_messages(list(map(dict, request)))
        judge(validator.ValidationMode.serving).validate_messages(messages)
    except Exception as error:  # noqa: BLE001 - whatever it raises
        yield f"mistral-common: {type(error).__name__}: {error}"


def responses(talk: Talk, budget: int | None, *, model: str, deep: bool) -> Errors:
    """The Responses API."""
    view = talk.view(budget)
    request = history(view).to_openai(api="responses", model=model)
    yield from responses_errors(request)
    yield from talk.losses(view.messages, request, request.dropped)
    if deep:
        yield from _type_errors("openai.types.responses", "ResponseInputItemParam", request)


def anthropic(talk: Talk, budget: int | None, *, model: str, deep: bool) -> Errors:
    """Anthropic's API, with marks for the cache."""
    view = talk.view(budget)
    request = history(view).to_anthropic(model=model, cache="5m")
    yield from anthropic_errors(request)
    yield from talk.losses(view.messages, request, request.dropped)
    if deep:
        yield from _type_errors("anthropic.types", "MessageParam", request["messages"])


def langchain(talk: Talk, budget: int | None, *, model: str, deep: bool) -> Errors:
    """A view for LangChain's package of a provider; `model` is the name of that."""
    whole = talk.view(budget)
    view = talk.view(budget, model)
    sent = [message.model_dump(exclude={"response_metadata"}) for message in view.messages]
    yield from check_pairing(view.messages)
    yield from talk.losses(whole.messages, sent, view.dropped)
    yield from _role_errors(view.messages, model)
    if deep:
        yield from _package_errors(view, model, talk)


def _role_errors(messages: Sequence[BaseMessage], provider: str) -> Errors:
    """The order of roles, and ids that are each there once."""
    ids = [call.id for message in messages for call in calls_of(message)]
    if len(set(ids)) < len(ids):
        yield "the id of a call comes twice"
    said = [each for each in messages if not isinstance(each, SystemMessage)]
    if provider in ("anthropic", "bedrock_converse", "google_genai"):
        if said and isinstance(said[0], AIMessage):
            yield "an answer is the first message"
        head = messages[: len(messages) - len(said)]
        if any(isinstance(message, SystemMessage) for message in messages[len(head) :]):
            yield "a system message stands in the middle"
    if provider == "mistralai":
        for before, message in pairwise(messages):
            if isinstance(before, ToolMessage) and isinstance(
                message, HumanMessage | SystemMessage
            ):
                yield "a user speaks after a tool"


def _package_errors(view: View, provider: str, talk: Talk) -> Errors:
    """What the API refuses of that which LangChain's package sends, and what this lacks of the view."""
    messages = view.messages
    dropped = view.dropped
    if provider == "openai":
        module = package("langchain_openai.chat_models.base")
        if talk.reader == "responses":
            items = module._construct_responses_api_input(messages)
            found = responses_errors(items)
            # the API takes these messages without such fields, as the package sends them
            optional = (".status'.", ".id'.", ".detail'.")
            yield from (error for error in found if not error.endswith(optional))
            yield from talk.losses(messages, items, dropped)
            return
        sent = [module._convert_message_to_dict(each) for each in messages]
        yield from chat_errors(sent)
        yield from talk.losses(messages, sent, dropped)
    elif provider == "anthropic":
        module = package("langchain_anthropic.chat_models")
        system, sent = module._format_messages(list(messages), model="claude-opus-4-1")
        request = {"messages": sent} | ({"system": _blocks(system)} if system else {})
        yield from anthropic_errors(request)
        yield from talk.losses(messages, request, dropped)
    elif provider == "mistralai":
        module = package("langchain_mistralai.chat_models")
        convert = module._convert_message_to_mistral_chat_message
        sent = [convert(each) for each in messages]
        yield from _mistral_errors(sent, "mistral-large-latest")
        yield from talk.losses(messages, sent, dropped)


def _blocks(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def pydantic_ai(talk: Talk, budget: int | None, *, model: str, deep: bool) -> Errors:
    """Messages of Pydantic AI."""
    from pydantic_ai.messages import (  # noqa: PLC0415 - loads slowly
        ModelMessagesTypeAdapter,
        RetryPromptPart,
        ToolCallPart,
        ToolReturnPart,
    )

    from convstore.ext.pydantic_ai.messages import from_log  # noqa: PLC0415 - loads slowly

    view = talk.view(budget)
    edits = RequestEdits(rules_of_framework(None, model), asked=model)
    found, dropped = from_log(view.messages, edits)
    sent = ModelMessagesTypeAdapter.dump_python(found, mode="json")
    yield from talk.losses(view.messages, sent, [*dropped, *edits.dropped])
    events = list[tuple[str, str]]()
    for message in found:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                events.append(("call", part.tool_call_id))
            elif isinstance(part, ToolReturnPart | RetryPromptPart):
                events.append(("result", part.tool_call_id))
    yield from _call_errors(events)


def agent_framework(talk: Talk, budget: int | None, *, model: str, deep: bool) -> Errors:
    """Messages of Microsoft's Agent Framework."""
    from convstore.ext.microsoft.messages import from_log  # noqa: PLC0415 - loads slowly

    view = talk.view(budget)
    edits = RequestEdits(rules_of_framework(None, model), asked=model)
    found, dropped = from_log(view.messages, edits)
    sent = [message.to_dict() for message in found]
    yield from talk.losses(view.messages, sent, [*dropped, *edits.dropped])
    kinds = {"function_call": "call", "function_result": "result"}
    yield from _call_errors(
        [
            (kinds[content.type], str(content.call_id))
            for message in found
            for content in message.contents
            if content.type in kinds
        ]
    )


def _call_errors(events: Sequence[tuple[str, str]]) -> Errors:
    """Calls have ids of their own, and each is answered once, before the next answer calls."""
    waiting = list[str]()
    seen = set[str]()
    for at, (kind, id_) in enumerate(events):
        if kind == "result":
            if id_ not in waiting:
                yield f"the result {id_} answers no call"
            else:
                waiting.remove(id_)
            continue
        if waiting and events[at - 1][0] == "result":
            yield f"calls have no result: {waiting}"
        if id_ in seen:
            yield f"the id {id_} comes twice"
        seen.add(id_)
        waiting.append(id_)
    if waiting:
        yield f"calls have no result: {waiting}"


def agents_sdk(talk: Talk, budget: int | None, *, model: str, deep: bool) -> Errors:
    """Items for OpenAI's Agents SDK."""
    from convstore.ext.openai_agents.items import of_view  # noqa: PLC0415 - loads slowly

    view = talk.view(budget)
    items = of_view(view.messages, rules_for(None, model, default=ROWS["responses"]))
    yield from talk.losses(view.messages, items, items.dropped)
    if not model:
        yield from responses_errors(items)
        return
    converter = package("agents.models.chatcmpl_converter").Converter
    try:
        sent = converter.items_to_messages(items, model, preserve_tool_output_all_content=True)
    except Exception as error:  # noqa: BLE001 - whatever it raises
        yield f"the SDK: {type(error).__name__}: {error}"
        return
    yield from talk.losses(view.messages, sent, items.dropped)
    if row_of_model(model).reasoning_needed:
        said = [message for message in sent if message["role"] == "assistant"]
        yield from ("no reasoning_content" for each in said if not each.get("reasoning_content"))


@lru_cache
def _adapter(module: str, name: str) -> Any:
    return TypeAdapter(getattr(package(module), name))


def _type_errors(module: str, name: str, messages: Sequence[Any]) -> Errors:
    """What is not of the type that the SDK declares."""
    adapter = _adapter(module, name)
    for message in messages:
        try:
            _read(adapter.validate_python(message))
        except ValueError as error:
            yield f"{module}: {str(error)[:300]}"


def _read(value: Any) -> None:
    """Read what pydantic validates as it is read."""
    if isinstance(value, Mapping):
        for each in value.values():
            _read(each)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__"):
        for each in value:
            _read(each)


Writer = Callable[..., Errors]
WRITERS: list[tuple[Writer, Sequence[str]]] = [
    (chat, ("gpt-5", "deepseek-v4-pro", "gemini-3-pro", "mistral-large-latest", "kimi-k2.6")),
    (responses, ("gpt-5",)),
    (anthropic, ("claude-opus-4-1", "claude-opus-5-5")),
    (langchain, ("anthropic", "openai", "google_genai", "mistralai", "bedrock_converse")),
]
SLOW: list[tuple[Writer, Sequence[str]]] = [
    (chat, ("open-mixtral-8x22b", "glm-4.6", "qwen4")),
    (pydantic_ai, ("gpt-5", "claude-opus-4-1", "open-mixtral-8x22b", "gemini-3-pro")),
    (agent_framework, ("gpt-5", "claude-opus-4-1", "open-mixtral-8x22b")),
    (agents_sdk, ("", "deepseek-v4-pro", "mistral-large-latest")),
]


def check(seeds: Iterable[int], reader: Reader, *, deep: bool, least: int) -> None:
    """Check the requests of all writers for some conversations, which are at least so many."""
    requests = 0
    found = list[str]()
    for seed in seeds:
        talk = Talk(seed, reader)
        for budget in talk.different(BUDGETS):
            for write, models in [*WRITERS, *(SLOW if deep else [])]:
                for model in models:
                    requests += 1
                    where = f"{seed} {reader} {budget} {write.__name__} {model}"
                    errors = write(talk, budget, model=model, deep=deep)
                    found += [f"{where}: {error}" for error in errors]
    assert found == []
    assert requests >= least


@pytest.mark.parametrize("reader", READERS)
def test_no_request_is_invalid_and_no_loss_is_unnamed(reader: Reader) -> None:
    """Some conversations of each reader, by the validators that load quickly: 200 requests and more."""
    check((1, 2, 3), reader, deep=False, least=50)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("seed", soaked(range(2, 102, 10), first=1))
def test_many_requests_are_valid(seed: int, reader: Reader) -> None:
    """Ten conversations at once, by all validators: some 2,000 requests; further seeds as soak."""
    check(range(seed, seed + 10), reader, deep=True, least=400)


class Server:
    """Signs each block of thinking with all that stands before it, and refuses one that comes back after another past.

    A text and a list of one text are not the same there; marks for the cache do not count.
    """

    def __init__(self) -> None:
        self.signed = dict[str, str]()
        self.came_back = 0
        self.errors = list[str]()

    def read(self, request: Mapping[str, Any]) -> None:
        """Note what it would refuse."""
        self.errors += anthropic_errors(request)
        for at, message in enumerate(request["messages"]):
            for block in message["content"] if isinstance(message["content"], list) else ():
                if block["type"] != "thinking":
                    continue
                self.came_back += 1
                if self.signed.get(block["signature"]) != self._before(request, at):
                    self.errors.append(f"{block['signature']} is bound to another past")

    def answer(self, request: Mapping[str, Any], part: dict[str, Any]) -> dict[str, Any]:
        """Return an answer with thinking."""
        signature = f"signature{len(self.signed)}"
        self.signed[signature] = self._before(request, len(request["messages"]))
        thinking = {"type": "thinking", "thinking": "Hm.", "signature": signature}
        reason = "tool_use" if part["type"] == "tool_use" else "end_turn"
        about = {"id": f"msg_{len(self.signed)}", "type": "message", "role": "assistant"}
        usage = {"input_tokens": 1, "output_tokens": 1}
        about |= {"model": "claude-opus-5-5", "stop_reason": reason}
        return {**about, "usage": usage, "content": [thinking, part]}

    def _before(self, request: Mapping[str, Any], at: int) -> str:
        said = [request.get("system"), *request["messages"][:at]]
        return json.dumps(_unmarked(said), sort_keys=True)


def _unmarked(value: Any) -> Any:
    """A value without marks for the cache and without thinking."""
    if isinstance(value, list):
        return [
            _unmarked(each)
            for each in value
            if not (isinstance(each, dict) and each.get("type") == "thinking")
        ]
    if isinstance(value, dict):
        return {key: _unmarked(each) for key, each in value.items() if key != "cache_control"}
    return value


async def play(seed: int, budget: int | None) -> Server:
    """Let a model with bound thinking work on generated turns; return its server."""
    dice = random.Random(seed)
    server = Server()
    number = 0
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        policy = HistoryPolicy(max_tokens=budget)
        await chat.append([SystemMessage("Be brief.")][: dice.randint(0, 1)] or AIMessage("Hi!"))
        for at in range(dice.randint(2, 3)):
            async with await chat.turn(f"q{at}", human=f"Question {at}?") as turn:
                for step in range(last := dice.randint(1, 6)):
                    for call in turn.open_calls:
                        long = dice.choice([1, 40, 600])
                        await turn.add_result(call, f"Log {number}: " + "all is well " * long)
                    if step and dice.random() < 0.2:
                        await turn.append(HumanMessage(f"Also {number}."))
                    request = (await turn.load_history(policy)).to_anthropic(
                        model="claude-opus-5-5", cache=dice.choice(["5m", None])
                    )
                    server.read(request)
                    number += 1
                    call = {"id": f"toolu_{number}", "name": "read", "input": {"n": number}}
                    part = {"type": "tool_use", **call}
                    if step == last - 1:
                        part = {"type": "text", "text": f"Answer {number}."}
                    await turn.append(server.answer(request, part))
    return server


@pytest.mark.parametrize("budget", [2_000])
async def test_bound_thinking_is_not_refused(budget: int) -> None:
    """Whatever the view stubs, shortens and leaves out."""
    server = await play(3, budget)
    assert server.errors == []
    assert server.came_back


@pytest.mark.slow
@pytest.mark.parametrize("seed", soaked(range(10, 60, 10), first=1))
async def test_bound_thinking_is_not_refused_in_many_talks(seed: int) -> None:
    """Within three budgets."""
    for at in range(10):
        for budget in BUDGETS:
            assert (await play(seed + at, budget)).errors == []
