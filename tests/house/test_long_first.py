"""The order in which workers of a long run are given tests."""

from __future__ import annotations

from long_first import LONG, TESTS, dealt


def test_each_worker_begins_with_long_modules() -> None:
    """Every test is given once, and each worker's share begins with long modules; other tests keep their order."""
    modules = [f"other/test_{number}.py" for number in range(100)]
    for number, name in enumerate(LONG):
        modules[number * 5 : number * 5] = [name, name]
    order = dealt(modules, 3)
    assert sorted(order) == list(range(len(modules)))
    begun = [modules[order[len(modules) * worker // 3]] for worker in range(3)]
    assert begun == list(LONG[:3])
    others = [index for index in order if modules[index] not in LONG]
    assert others == sorted(others)


def test_the_long_modules_are_there() -> None:
    """A module that was renamed is renamed in the list, too."""
    assert [name for name in LONG if not (TESTS / name).is_file()] == []
