"""Long texts as their beginning and end: a pure function of the text and the number, wherever the text is stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from properties import examples
from strategies import PureLog, Round, same, turn

from convstore.messages.encoding import decode_message, encode_message, fields_of
from convstore.messages.tokens import approximate_tokens, weight
from convstore.messages.values import Codec
from convstore.sources.shortening import shorten_text, with_short_texts
from convstore.values.policy import HistoryPolicy

CODEC = Codec()
_words = st.text(st.sampled_from("abcé订 \n"), min_size=1, max_size=40)


def _text(tokens: int, seed: str = "w") -> str:
    words = (f"{seed}{number:05}" for number in range(tokens))
    return " ".join(words)[: 4 * tokens]


@given(_words, st.integers(1, 800), st.integers(1, 60))
def test_a_text_is_shortened_by_its_middle(words: Any, times: Any, tokens: Any) -> None:
    """A long text keeps its beginning and its end, within the limit. A text that is not longer stays as it is."""
    text = words * times
    shown = shorten_text(text, tokens, "m7")
    if shown == text:
        assert weight(text) <= 4 * tokens or len(text) < 4 * tokens + 130
        return
    head, note, tail = (
        shown.rsplit("\n[", 1)[0],
        shown.rsplit("\n[", 1)[1].split("]\n")[0],
        shown.rsplit("]\n", 1)[1],
    )
    assert weight(text) > 4 * tokens
    assert text.startswith(head.rstrip())
    assert text.endswith(tail) or text.rstrip().endswith(tail)
    assert weight(head) <= 2 * tokens
    assert weight(tail) <= 2 * tokens
    assert note.startswith(f"{len(text) - len(head) - len(tail):,} characters left out")
    assert "message id m7" in note


def test_a_text_is_cut_between_words() -> None:
    """No word is shown in part."""
    text = _text(5_000)
    shown = shorten_text(text, 100, "m")
    head, tail = shown.split("\n[")[0], shown.split("]\n")[1]
    assert set(head.split()) | set(tail.split()) <= set(text.split())
    assert len(head) > 190


@given(st.sampled_from(["word ", "訂單 ", "x", "é\n"]), st.integers(1, 1_000))
@examples(80)
def test_the_edges_in_the_body_are_enough_up_to_a_thousand_tokens(words: Any, tokens: Any) -> None:
    """A long text whose payload was not read is shown as one that was, in a string or in a block."""
    text = words * (20_000 // len(words))
    for message in (
        HumanMessage(text, id="m"),
        AIMessage([{"type": "text", "text": text, "x": 1}, "and"], id="m"),
    ):
        encoded = encode_message(CODEC, fields_of(message), max_edges=4_000)
        assert encoded.is_edged
        assert same(
            with_short_texts(decode_message(CODEC, encoded.body), tokens),
            with_short_texts(message, tokens),
        )


def _pastes(number: int, policy: HistoryPolicy, tokens: int = 5_000) -> PureLog:
    log = PureLog()
    for index in range(number):
        log.append([HumanMessage(_text(tokens, f"q{index}-"), id=f"h{index}")])
        log.append([AIMessage(_text(tokens, f"a{index}-"), id=f"z{index}")])
    return log


@pytest.mark.costly
@pytest.mark.parametrize("tokens", [10, 500, 1_000])
def test_a_policy_that_shortens_reads_no_payload(tokens: int) -> None:
    """Texts of finished turns are shortened, the budget counts what is shown, and the turn in progress is whole."""
    policy = HistoryPolicy(shorten_over=tokens)
    log = _pastes(8, policy)
    view = log.view(policy)
    assert view.shortened == tuple(f"{kind}{index}" for index in range(8) for kind in "hz")
    assert view.tokens == approximate_tokens(view.messages) <= 32_000
    assert log.payloads_needed(policy) == []
    asked = HumanMessage(_text(6_000, "now"), id="now")
    log.append([asked])
    assert same(log.view(policy).messages[-1], asked)


def test_above_a_thousand_tokens_the_payload_is_read() -> None:
    """The entry keeps no more of a text; what is shown is the same function of it."""
    policy = HistoryPolicy(shorten_over=1_500, max_tokens=None)
    log = _pastes(1, policy)
    assert len(log.payloads_needed(policy)) == 2
    assert log.view(policy).messages[0].content == shorten_text(_text(5_000, "q0-"), 1_500, "h0")


def test_media_stay_if_the_policy_says_so() -> None:
    """`media="never"` loads images as they were appended, small and large, and reads them for it."""
    policy = HistoryPolicy(media="never", max_tokens=None)
    for size in (4, 40_000):
        message = HumanMessage([{"type": "image", "base64": "A" * size}, "see"], id="m")
        log = PureLog()
        log.append([message, AIMessage("yes", id="z")])
        view = log.view(policy)
        assert same(view.messages[0], message)
        assert view.tokens == approximate_tokens(view.messages)
        assert view.placeholders == ()


# ---------------------------------------------------------------------------------------------------------------------
# A turn that is larger than the budget


def _large(kind: str) -> list[BaseMessage]:
    text: Any = _text(40_000)
    if kind == "paste":
        return [HumanMessage(text, id="h"), AIMessage("Read.", id="z")]
    if kind == "blocks":
        return [
            HumanMessage([{"type": "text", "text": text}], id="h"),
            AIMessage(_text(3_000, "z"), id="z"),
        ]
    call = {"name": "write_file", "args": {"files": [{"path": "a.py", "text": text}]}, "id": "c"}
    made = turn(1, [Round((30,), sources=False)])
    made[1].tool_calls[0] |= {"args": call["args"]}
    return made


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["paste", "blocks", "arguments"])
def test_the_newest_turn_is_kept_although_it_exceeds_the_budget(kind: str) -> None:
    """A newest turn over the budget is kept, with its longest texts as beginning and end and the id to read them.

    It is shown alike when it is finished and in the next turn.
    """
    policy, log = HistoryPolicy(), PureLog()
    log.append([HumanMessage("first", id="h0"), AIMessage("one", id="z0")])
    large = _large(kind)
    log.append(large)
    views, record = [], (1, 0, 0)
    for message in (None, HumanMessage("Change the second function.", id="h9")):
        if message:
            log.append([message])
        decision = log.decide(policy, record)
        assert decision is not None
        views.append(log.rendered(policy, decision))
        record = decision.stored
    for view in views:
        assert view.tokens == approximate_tokens(view.messages) <= 32_000
        assert {"h0", large[0].id, large[-1].id} <= {message.id for message in view.messages}
        assert view.shortened
        assert all(
            f"message id {id_} to read them" in repr(view.messages) for id_ in view.shortened
        )
    assert same(views[1].messages[: len(views[0].messages)], views[0].messages)
    assert same(log.view(HistoryPolicy(max_tokens=None)).messages[2:-1], large)


@pytest.mark.slow
def test_a_turn_of_many_steps_keeps_its_question_and_its_answer() -> None:
    """The oldest steps leave; the note counts them."""
    log = PureLog()
    log.append(turn(1, [Round((30,), sources=False)] * 900))
    log.append([HumanMessage("next", id="h9")])
    view = log.view(HistoryPolicy(max_tokens=4_000))
    ids = [message.id for message in view.messages]
    assert (ids[1], ids[-2:]) == ("h1", ["z1", "h9"])
    assert f"{900 - (len(ids) - 4) // 2} earlier steps are left out" in view.messages[0].text
    assert view.tokens <= 1_500


def test_the_note_names_long_messages_that_are_left_out() -> None:
    """With the newest results, by id, so that the model can read them back."""
    log = _pastes(6, HistoryPolicy(), tokens=1_500)
    log.append(turn(7, [Round((900,), sources=True)]))
    for number in range(8, 20):
        log.append(turn(number, said=4_000))
    note = log.view(HistoryPolicy(max_turns=4)).messages[0].text
    assert "with an id to read one; newest message ids:" in note
    assert "r7-0-0 (source ids 1-2), z5 (AI message), h5 (human message)" in note
