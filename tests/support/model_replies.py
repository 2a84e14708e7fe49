"""Replies of models as the three APIs return them, made at random, and the events of a stream that sends the same.

The servers that have the API of Chat Completions number and name the deltas of calls in ways of their own: `DIALECTS`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

_WORDS = ("Orcas ", "eat ", "fish.", "\n", "鯨", "🐋 ", '"}', "{", "  ", "a")
_NAMES = ("add", "search", "add")

DIALECTS = (
    "openai",
    "from one",
    "same index",
    "no index",
    "null index",
    "repeated name",
    "no index, repeated name",
    "empty ids",
    "empty ids, no index",
    "new id each time",
)


class Streamed(NamedTuple):
    """A whole reply, and the events of a stream that sends it."""

    whole: dict[str, Any]
    events: list[dict[str, Any]]
    text: str


def chat_reply(random: Random, dialect: str) -> Streamed:
    """Return a `ChatCompletion`, and its chunks from a server with a dialect."""
    calls = [
        _chat_call(random, number, dialect) for number in range(random.choice((0, 0, 1, 2, 3)))
    ]
    message = _chat_message(random)
    finish = "tool_calls" if calls else random.choice(("stop", "stop", "length"))
    usage = random.choice((None, {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}))
    head = {"id": random.choice(("c1", "")), "model": "gpt-5", "created": 7}
    choice = {"index": 0, "finish_reason": finish, "logprobs": None}
    whole: dict[str, Any] = {**head, "object": "chat.completion", "usage": usage}
    whole["choices"] = [choice | {"message": message | ({"tool_calls": calls} if calls else {})}]
    deltas = [*_chat_deltas(random, message), *_call_deltas(random, calls, dialect)]
    events = [
        _chunk(head, [{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas
    ]
    events.insert(0, _chunk(head, []))
    events.append(_chunk(head, [{"index": 0, "delta": {}, "finish_reason": finish}]))
    if usage:
        events.append(_chunk(head, []) | {"usage": usage})
    said = message["content"]
    if isinstance(said, list):
        said = said[-1]["text"]
    return Streamed(whole, events, said or message.get("refusal") or "")


def responses_reply(random: Random) -> Streamed:
    """Return a `Response`, and its events; the closing one may have no items, and others may have no indexes."""
    items = [_item(random, number) for number in range(random.choice((0, 1, 1, 2, 4)))]
    is_cut = random.random() < 0.2
    whole = {
        "id": "resp_1",
        "object": "response",
        "model": "gpt-5",
        "status": "incomplete" if is_cut else "completed",
        "error": None,
        "output": items,
        "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
    }
    begun = whole | {"status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    has_index = random.random() < 0.8
    for at, item in enumerate(items):
        own = {"output_index": at} if has_index else {"item_id": item["id"]}
        events += [event | own for event in _item_events(random, item)]
    output = items if random.random() < 0.7 else []
    kind = "response.incomplete" if is_cut else "response.completed"
    events.append({"type": kind, "response": whole | {"output": output}})
    return Streamed(whole, events, "".join(map(_text_of_item, items)))


def anthropic_reply(random: Random) -> Streamed:
    """Return a `Message`, and its events."""
    blocks = [_block(random, number) for number in range(random.choice((0, 1, 1, 2, 4)))]
    has_call = any(block["type"] == "tool_use" for block in blocks)
    stop = "tool_use" if has_call else random.choice(("end_turn", "max_tokens", "refusal"))
    whole = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-5-5",
        "content": blocks,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 9, "cache_read_input_tokens": None},
    }
    begun = whole | {"content": [], "stop_reason": None}
    begun["usage"] = {"input_tokens": 3, "output_tokens": 1, "cache_read_input_tokens": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for at, block in enumerate(blocks):
        first, *deltas = _block_deltas(random, block)
        events.append({"type": "content_block_start", "index": at, "content_block": first})
        if random.random() < 0.1:
            events.append({"type": "ping"})
        events += [{"type": "content_block_delta", "index": at, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": at})
    delta = {"stop_reason": stop, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9}})
    events.append({"type": "message_stop"})
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    return Streamed(whole, events, text)


def _said(random: Random, least: int = 0) -> str:
    return "".join(random.choices(_WORDS, k=random.randint(least, 5)))


def _pieces(random: Random, text: str) -> list[str]:
    """Split a text anywhere; some pieces are empty."""
    cuts = sorted(random.randint(0, len(text)) for _ in range(random.randint(0, 4)))
    ends = [0, *cuts, len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


def _arguments(random: Random) -> str:
    return json.dumps({"day": random.randint(1, 9), "text": _said(random), "none": None})


def _chunk(head: dict[str, Any], choices: list[Any]) -> dict[str, Any]:
    return {**head, "object": "chat.completion.chunk", "choices": choices, "usage": None}


def _chat_message(random: Random) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _said(random) or None}
    message["refusal"] = (
        random.choice((None, None, _said(random, 1))) if not message["content"] else None
    )
    if random.random() < 0.3:
        message[random.choice(("reasoning_content", "reasoning"))] = _said(random, 1)
    if random.random() < 0.2 and message["content"]:  # as Mistral's models that think
        thought = {"type": "thinking", "thinking": [{"type": "text", "text": _said(random, 1)}]}
        message["content"] = [thought, {"type": "text", "text": message["content"]}]
    if random.random() < 0.3:
        message["annotations"] = [
            {"type": "url_citation", "url_citation": {"url": "https://a.example"}}
        ]
    if random.random() < 0.2:
        message["audio"] = {"id": "audio_1", "data": "QUJD", "transcript": _said(random, 1)}
    if random.random() < 0.2:
        message["images"] = [{"type": "image_url", "image_url": {"url": "https://a.example/i"}}]
    if random.random() < 0.2:
        message["extra_content"] = {"google": {"thought_signature": "c2ln"}}
    if random.random() < 0.3:
        message["reasoning_details"] = _details(random)
    return message


def _details(random: Random) -> list[dict[str, Any]]:
    text = {"type": "reasoning.text", "text": _said(random, 1), "index": 0}
    summary = {"type": "reasoning.summary", "summary": _said(random, 1), "index": 1}
    hidden = [
        {"type": "reasoning.encrypted", "data": data, "id": data, "index": 2}
        for data in ("c1", "c2")
    ]
    return [text | {"signature": "c2ln"}, summary, *hidden]


def _chat_deltas(random: Random, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": "", "refusal": None}
    for name, value in message.items():
        if name == "role" or value is None:
            continue
        if isinstance(value, str):
            yield from ({name: piece} for piece in _pieces(random, value))
        elif name == "audio":
            yield {name: {"id": value["id"]}}
            yield from (
                {name: {"transcript": piece}} for piece in _pieces(random, value["transcript"])
            )
            yield from ({name: {"data": piece}} for piece in _pieces(random, value["data"]))
        elif name == "content":
            thoughts = _pieces(random, value[0]["thinking"][0]["text"])
            texts = [{"type": "text", "text": piece} for piece in thoughts]
            yield from ({name: [{"type": "thinking", "thinking": [text]}]} for text in texts)
            said = _pieces(random, value[1]["text"])
            as_blocks = [[{"type": "text", "text": piece}] for piece in said]
            yield from ({name: part} for part in random.choice((said, as_blocks)))
        elif name == "reasoning_details":
            yield from (
                {name: [part]} for detail in value for part in _detail_parts(random, detail)
            )
        else:
            yield {name: value}


def _detail_parts(random: Random, detail: dict[str, Any]) -> Iterator[dict[str, Any]]:
    key = next((key for key in ("text", "summary") if key in detail), "")
    if not key:
        yield detail
        return
    own = {"type": detail["type"], "index": detail["index"]}
    yield from (own | {key: piece} for piece in _pieces(random, detail[key]))
    if "signature" in detail:
        yield own | {"signature": detail["signature"]}


def _chat_call(random: Random, number: int, dialect: str) -> dict[str, Any]:
    id_ = "" if dialect.startswith("empty ids") else f"call_{number}"
    if random.random() < 0.2 and id_:
        custom = {"name": "sql", "input": _said(random, 1)}
        return {"id": id_, "type": "custom", "custom": custom}
    function = {"name": random.choice(_NAMES), "arguments": _arguments(random)}
    extra = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    call = {"id": id_, "type": "function", "function": function}
    return call | (extra if random.random() < 0.2 else {})


def _call_deltas(random: Random, calls: list[Any], dialect: str) -> Iterator[dict[str, Any]]:
    by_call = [list(_deltas_of_call(random, call, at, dialect)) for at, call in enumerate(calls)]
    if dialect in ("openai", "from one") and random.random() < 0.3:
        longest = max(map(len, by_call), default=0)
        rows = [[deltas[at] for deltas in by_call if at < len(deltas)] for at in range(longest)]
        yield from ({"tool_calls": row} for row in rows)
        return
    yield from ({"tool_calls": [delta]} for deltas in by_call for delta in deltas)


def _deltas_of_call(
    random: Random, call: dict[str, Any], at: int, dialect: str
) -> Iterator[dict[str, Any]]:
    part = call["type"]
    key = "input" if part == "custom" else "arguments"
    indexes: dict[str, dict[str, Any]] = {
        "from one": {"index": at + 1},
        "same index": {"index": 0},
        "null index": {"index": None},
    }
    index = indexes.get(dialect, {} if "no index" in dialect else {"index": at})
    first, *others = _pieces(random, call[part][key])
    if dialect == "empty ids, no index" and not first:
        first = others.pop(0) if others and others[0] else call[part][key]
        others = others if first != call[part][key] else []
    yield index | {**call, part: {**call[part], key: first}}
    for number, piece in enumerate(others):
        delta: dict[str, Any] = index | {part: {key: piece}}
        if "repeated name" in dialect:
            delta |= {"id": call["id"], "type": part}
            delta[part] = {"name": call[part]["name"], key: piece}
        elif dialect == "new id each time":
            delta["id"] = f"other_{number}"
        yield delta


def _item(random: Random, number: int) -> dict[str, Any]:
    id_ = f"item_{number}"
    kinds = ("message", "message", "function", "custom", "reasoning", "search", "later")
    kind = random.choice(kinds)
    if kind == "message":
        said: dict[str, Any] = {"type": "output_text", "text": _said(random, 1), "annotations": []}
        refused = {"type": "refusal", "refusal": _said(random, 1)}
        content = [said] if random.random() < 0.8 else [refused]
        return {
            "type": kind,
            "id": id_,
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
    if kind == "function":
        own = {"call_id": f"call_{number}", "name": "add", "namespace": "crm"}
        return {"type": "function_call", "id": id_, **own, "arguments": _arguments(random)}
    if kind == "custom":
        own = {"call_id": f"call_{number}", "name": "sql"}
        return {"type": "custom_tool_call", "id": id_, **own, "input": _said(random, 1)}
    if kind == "reasoning":
        summary = [{"type": "summary_text", "text": _said(random, 1)}]
        return {"type": kind, "id": id_, "summary": summary, "encrypted_content": "ZW5j"}
    if kind == "search":
        return {"type": "web_search_call", "id": id_, "status": "completed"}
    return {"type": "from_a_later_version", "id": id_, "value": {"a": None}}


def _item_events(random: Random, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind = item["type"]
    empty: dict[str, dict[str, Any]] = {
        "message": {"content": []},
        "function_call": {"arguments": ""},
    }
    yield {"type": "response.output_item.added", "item": item | empty.get(kind, {})}
    own = {"item_id": item["id"], "content_index": 0}
    if kind == "message":
        [block] = item["content"]
        key = "text" if "text" in block else "refusal"
        said = {"type": f"response.{block['type']}.delta", **own}
        yield from (said | {"delta": piece} for piece in _pieces(random, block[key]))
    elif kind == "function_call":
        written = {"type": "response.function_call_arguments.delta", **own}
        yield from (written | {"delta": piece} for piece in _pieces(random, item["arguments"]))
    yield {"type": "response.output_item.done", "item": item}


def _text_of_item(item: dict[str, Any]) -> str:
    content = item["content"] if item["type"] == "message" else ()
    return "".join(block.get("text") or block.get("refusal") for block in content)


def _block(random: Random, number: int) -> dict[str, Any]:
    kind = random.choice(("text", "text", "thinking", "hidden", "call", "search", "later"))
    if kind == "text":
        cited = {"citations": [{"type": "char_location", "document_index": 0, "cited_text": "a"}]}
        return {"type": "text", "text": _said(random, 1)} | random.choice(({}, cited))
    if kind == "thinking":
        return {"type": "thinking", "thinking": _said(random), "signature": "c2ln"}
    if kind == "hidden":
        return {"type": "redacted_thinking", "data": "ZW5j"}
    if kind == "later":
        return {"type": "from_a_later_version", "value": {"a": None}, "input": {}}
    given: dict[str, Any] = random.choice(({}, json.loads(_arguments(random))))
    if kind == "search":
        return {
            "type": "server_tool_use",
            "id": f"srvtoolu_{number}",
            "name": "search",
            "input": given,
        }
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "add", "input": given}


def _block_deltas(random: Random, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the first form of a block, then its deltas."""
    kind = block["type"]
    if kind == "text":
        yield {"type": kind, "text": "", "citations": None}
        yield from (
            {"type": "text_delta", "text": piece} for piece in _pieces(random, block["text"])
        )
        for citation in block.get("citations", ()):
            yield {"type": "citations_delta", "citation": citation}
    elif kind == "thinking":
        yield {"type": kind, "thinking": "", "signature": ""}
        texts = _pieces(random, block["thinking"])
        yield from ({"type": "thinking_delta", "thinking": piece} for piece in texts)
        yield {"type": "signature_delta", "signature": block["signature"]}
    elif kind in ("tool_use", "server_tool_use") and block["input"]:
        yield block | {"input": {}}
        pieces = _pieces(random, json.dumps(block["input"]))
        yield from ({"type": "input_json_delta", "partial_json": piece} for piece in pieces)
    else:
        yield block
