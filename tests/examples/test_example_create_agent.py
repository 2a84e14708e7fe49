"""The example of create_agent runs as it is, in memory and on a real server, and shows what it is said to show."""

from __future__ import annotations

from typing import Any

from test_examples import address, run_example, server_address  # noqa: F401 - fixtures among them


def test_the_agent_is_shown_stubs_reads_them_back_and_answers_once(address: Any) -> None:  # noqa: F811 - the fixture
    """Each call of the model is shown the view and this turn; a question that is asked again costs no call."""
    shown = run_example("create_agent.py", address)
    first, second, third, again = shown.partition("\nThe agent's state")[0].split("\nHuman: ")[1:]
    before = [
        "  The model is shown: system, human",
        "  The model is shown: system, human, call, result of 498 characters",
    ]
    assert first.splitlines()[1:3] == before
    assert "One to two litres a day [1].  [calls of the model: 2]" in first
    view = "  The model is shown: system, human, call, stub, ai, human"
    assert second.splitlines()[1] == view
    assert second.splitlines()[2].startswith(f"{view}, call, result of ")
    assert "Straw keeps half of the water in the soil [2].  [calls of the model: 2]" in second
    assert third.splitlines()[1] == f"{view}, call, stub, ai, human"
    assert again.splitlines()[1:] == [
        "Agent: One to two litres a day [1].  [calls of the model: 0]"
    ]
    assert shown.endswith("The agent's state holds 4 messages, the log 10.\n")
