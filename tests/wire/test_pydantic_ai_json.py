"""Messages of Pydantic AI, read from the JSON that it writes."""

from __future__ import annotations

from typing import Any

from convstore.wire.pydantic_ai import read_pydantic_ai


def test_a_signature_of_another_provider_is_kept_where_its_json_is_not() -> None:
    """Reasoning signed by another provider than Anthropic stays as it is, unless its JSON is kept elsewhere."""
    thought: Any = {
        "part_kind": "thinking",
        "content": "",
        "provider_name": "openai",
        "signature": "s",
        "id": "rs_1",
    }
    answer = {"kind": "response", "parts": [thought, {"part_kind": "text", "content": "So."}]}
    for whole, block in (
        (True, {"type": "non_standard", "value": thought}),
        (False, {"type": "reasoning", "reasoning": ""}),
    ):
        [(message, _)] = read_pydantic_ai(answer, whole=whole)
        assert message.content[0] == block
