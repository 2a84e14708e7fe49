"""A run works on the conversation that the application chose, in each supported way, or raises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from mongomock_motor import AsyncMongoMockClient
from pydantic import BaseModel

from convstore import ConversationStore
from convstore.exceptions import InvalidScopeError
from convstore.ext.run_scope import Run, check_choice, scope_of

ADA = {"user_id": "ada", "thread_id": "one"}
CONFIG = {"configurable": {"thread_id": "one", "checkpoint_ns": "", "other": 1}}


@dataclass
class DataContext:
    """A context as a dataclass."""

    user_id: str = "ada"
    thread_id: str | None = None


class ModelContext(BaseModel):
    """A context as a pydantic model."""

    user_id: str = "ada"
    thread_id: str = "one"


class Slotted:
    """A context of no known kind."""

    __slots__ = ("thread_id", "user_id")

    def __init__(self) -> None:
        self.user_id, self.thread_id = "ada", "one"


@pytest.fixture
def store() -> ConversationStore:
    """A store with the default scope keys, never spoken to."""
    return ConversationStore(AsyncMongoMockClient()["app"])


@pytest.mark.parametrize(
    ("context", "config"),
    [
        pytest.param(None, {"configurable": ADA}, id="configuration"),
        pytest.param(ADA, None, id="dict"),
        pytest.param(ModelContext(), {}, id="pydantic"),
        pytest.param(Slotted(), {"configurable": None}, id="object"),
        pytest.param(DataContext(), CONFIG, id="dataclass and configuration, None is absent"),
        pytest.param({"user_id": "ada"}, CONFIG, id="dict and configuration"),
        pytest.param(ADA, CONFIG, id="both say the same"),
    ],
)
def test_each_key_is_found_where_the_application_put_it(
    store: ConversationStore, context: Any, config: Any
) -> None:
    """In a context of any kind, in the configuration, or one key here and one there."""
    assert scope_of(store, context=context, config=config) == ADA


def test_what_is_chosen_counts_and_the_rest_is_looked_up(store: ConversationStore) -> None:
    """Fixed values and values of a function go before what the run says, also where that contradicts itself."""
    said: dict[str, Any] = {"context": {"user_id": "eve", "tenant": "ada"}, "config": CONFIG}
    assert scope_of(store, chosen={"user_id": "ada"}, **said) == ADA
    assert scope_of(store, chosen=lambda run: {"user_id": run.context["tenant"]}, **said) == ADA
    two = {
        "context": {"user_id": "x", "thread_id": "y"},
        "config": {"configurable": {**ADA, "user_id": "z"}},
    }
    assert scope_of(store, chosen=lambda _: ADA, **two) == ADA


def test_a_function_sees_context_and_configuration(store: ConversationStore) -> None:
    """A function for the scope gets a run with context and configuration. The defaults are None and an empty dict."""
    seen: list[Run] = []

    def choose(run: Run) -> dict[str, str]:
        seen.append(run)
        return ADA

    scope_of(store, chosen=choose)
    scope_of(store, chosen=choose, context="c", config=CONFIG)
    assert seen == [Run(None, {}), Run("c", CONFIG["configurable"])]


@pytest.mark.parametrize(
    "context", [None, {}, {"user_id": None}, DataContext(user_id=None), "ada", ["user_id"]]
)
def test_a_missing_key_is_named(store: ConversationStore, context: Any) -> None:
    """With the places where it may be passed."""
    with pytest.raises(
        InvalidScopeError, match=r"lacks user_id: pass it in the run's context or in config"
    ):
        scope_of(store, context=context, config=CONFIG)


def test_all_missing_keys_are_named(store: ConversationStore) -> None:
    """At once."""
    with pytest.raises(InvalidScopeError, match="lacks user_id, thread_id:"):
        scope_of(store)


@pytest.mark.costly
@pytest.mark.parametrize("value", [{"$ne": ""}, "", 7, True, "a" * 513, "\ud800", b"ada", ["ada"]])
@pytest.mark.parametrize("place", ["context", "configuration", "chosen", "function", "both"])
def test_a_value_that_can_not_be_one_is_refused_wherever_it_comes_from(
    store: ConversationStore, value: Any, place: str
) -> None:
    """A scope value from any origin is refused unless it is a non-empty str of bounded size."""
    scope = {**ADA, "user_id": value}
    said: dict[str, Any] = {
        "context": {"context": scope},
        "configuration": {"config": {"configurable": scope}},
        "chosen": {"chosen": scope},
        "function": {"chosen": lambda _: scope},
        "both": {"context": scope, "config": {"configurable": scope}},
    }[place]
    with pytest.raises(InvalidScopeError):
        scope_of(store, **said)


def test_none_from_a_function_is_no_permission_to_look_elsewhere(store: ConversationStore) -> None:
    """A function that found nobody must not fall back to what the run says."""
    with pytest.raises(InvalidScopeError, match="user_id must be a plain str, not NoneType"):
        scope_of(store, chosen=lambda _: {"user_id": None}, context=ADA)


def test_two_different_values_are_refused_without_telling_them(store: ConversationStore) -> None:
    """Two different values of one key are refused, and the error does not show the other user's value."""
    with pytest.raises(
        InvalidScopeError, match="user_id has different values in the run's context"
    ) as caught:
        scope_of(store, context=ADA, config={"configurable": {"user_id": "eve-the-other"}})
    assert "eve" not in str(caught.value)


@pytest.mark.parametrize("given", [None, "ada", ("user_id", "ada"), 7])
def test_a_function_that_returns_no_mapping_is_named_in_the_error(
    store: ConversationStore, given: Any
) -> None:
    """By a typed error, None included."""
    with pytest.raises(InvalidScopeError, match="must return a mapping of scope values, not"):
        scope_of(store, chosen=lambda _: given, context=ADA)


def test_an_async_function_is_refused(store: ConversationStore) -> None:
    """An async function for the scope is refused, and its coroutine is closed without a warning."""

    async def choose(_run: Run) -> dict[str, str]:
        return ADA

    with pytest.raises(
        InvalidScopeError, match="must return a mapping of scope values, not coroutine"
    ):
        scope_of(store, chosen=choose)


def test_unknown_keys_are_refused(store: ConversationStore) -> None:
    """A choice of a key that the store does not have is a mistake."""
    with pytest.raises(InvalidScopeError, match="'tenant' is not in this store's scope"):
        scope_of(store, chosen=lambda _: {**ADA, "tenant": "x"})


def test_an_error_of_the_function_passes_through(store: ConversationStore) -> None:
    """An error of the application's function passes through unchanged."""
    with pytest.raises(KeyError, match="nobody"):
        scope_of(store, chosen=lambda run: run.context["nobody"], context={})


def test_a_choice_is_checked_when_it_is_made(store: ConversationStore) -> None:
    """Invalid choices are refused by constructors; a mapping is copied."""
    fixed = {"user_id": "ada"}
    checked = check_choice(store, fixed)
    fixed["user_id"] = "eve"
    assert checked == {"user_id": "ada"}
    assert check_choice(store, None) is None
    chosen: Any = dict
    assert check_choice(store, chosen) is chosen
    for wrong in (
        "ada",
        7,
        ["user_id"],
        {"tenant": "x"},
        {"user_id": {"$ne": ""}},
        {"user_id": None},
    ):
        with pytest.raises(InvalidScopeError):
            check_choice(store, wrong)
