"""The listener that fails a test whose store sends a command to all shards of a cluster."""

from __future__ import annotations

from typing import Any

import pytest
from routing import BROADCAST, SHARDED, untargeted

from convstore.mongo import inspection, statistics
from convstore.mongo.keys import OF_CONVERSATIONS

ONE = {"conversation": "a"}
SOME: dict[str, Any] = {"conversation": {"$gte": "a", "$lt": "b"}}
TO_ONE: list[tuple[str, dict[str, Any]]] = [
    ("find", {"find": "log", "filter": ONE | {"_id": "a:~"}}),
    ("find", {"find": "my_log", "filter": {"conversation": {"$in": ["a", "b"]}}}),
    ("find", {"find": "heads", "filter": {}}),
    ("find", {"find": "catalog", "filter": {}}),
    ("aggregate", {"aggregate": "search", "pipeline": [{"$match": SOME}, {"$count": "n"}]}),
    ("insert", {"insert": "log", "documents": [{"_id": 1, **ONE}]}),
    ("update", {"update": "log", "updates": [{"q": SOME, "u": {}, "multi": True}]}),
    ("delete", {"delete": "drafts", "deletes": [{"q": ONE, "limit": 1}, {"q": SOME, "limit": 0}]}),
    ("findAndModify", {"findAndModify": "log", "query": ONE}),
    ("createIndexes", {"createIndexes": "log"}),
]
TO_ALL: list[tuple[str, dict[str, Any], list[str]]] = [
    ("find", {"find": "log", "filter": {"_id": "a:~"}}, ["find log by _id"]),
    (
        "find",
        {"find": "my_log", "filter": {"conversation": {"$gte": ""}}},
        ["find log by conversation"],
    ),
    ("aggregate", {"aggregate": "log", "pipeline": [{"$group": {}}]}, ["aggregate log by nothing"]),
    (
        "aggregate",
        {
            "aggregate": "heads",
            "pipeline": [{"$lookup": {"from": "log", "pipeline": [{"$match": {"first": 1}}]}}],
        },
        ["$lookup log"],
    ),
    ("insert", {"insert": "log", "documents": [{"_id": 1}]}, ["insert log by _id"]),
    (
        "update",
        {"update": "log", "updates": [{"q": SOME, "u": {}}]},
        ["update log by conversation"],
    ),
    (
        "delete",
        {"delete": "log", "deletes": [{"q": {"_id": 1}, "limit": 1}]},
        ["delete log by _id"],
    ),
    (
        "findAndModify",
        {"findAndModify": "log", "query": SOME},
        ["findAndModify log by conversation"],
    ),
]


def test_the_listener_knows_what_a_router_could_target() -> None:
    """A write of one document needs the value of the shard key; a read and a write of several take a range, too."""
    assert sorted(SHARDED) == sorted(OF_CONVERSATIONS)
    for name, command in TO_ONE:
        assert [*untargeted(name, command)] == [], command
    for name, command, found in TO_ALL:
        assert [*untargeted(name, command)] == found


def test_each_method_that_asks_all_shards_exists() -> None:
    """Nothing is left on the list after a method was renamed or mended."""
    classes: dict[str, type] = vars(inspection) | vars(statistics)
    for method in BROADCAST:
        name, _, function = method.partition(".")
        assert callable(getattr(classes[name], function))


async def test_the_listener_sees_the_commands_of_the_store(
    store: Any, pytestconfig: pytest.Config
) -> None:
    """A method that asks all shards is found, if it is not on the list."""
    [listener] = [
        plugin
        for plugin in pytestconfig.pluginmanager.get_plugins()
        if type(plugin).__name__ == "Routing"
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(BROADCAST, "Statistics.summaries")
        await store.stats(sizes=False)
    assert listener.found == ["Statistics.summaries: aggregate log by conversation, revision"]
    listener.found.clear()
