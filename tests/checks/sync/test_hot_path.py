"""Regions and allowances: who is in one, who is not, and what they cost the program that is watched by nobody."""

import asyncio
import functools
import inspect
import threading
from collections import Counter

import pytest
import torch

from mrv2.checks.hot_path import (
    Allowance,
    HotPathError,
    allow_sync,
    current_allowances,
    current_entry,
    hot_path,
    watched,
)


class Entries(Counter):
    was_left = ()

    def entered(self, name: str) -> int:
        self[name] += 1
        return self[name] - 1

    def left(self, name: str) -> None:
        self.was_left = (*self.was_left, name)

    def allowing(self, allowance: Allowance) -> None:
        self[allowance.reason] += 1


@pytest.fixture
def entries():
    counted = Entries()
    with watched(counted):
        yield counted


def where() -> str | None:
    entry = current_entry()
    return None if entry is None else entry.name


def test_decorated_function_is_in_its_hot_path(entries):
    @hot_path
    def step():
        return where()

    assert step().endswith("test_decorated_function_is_in_its_hot_path.<locals>.step")
    assert where() is None and entries.total() == 1


def test_names_and_with_statements_nest(entries):
    @hot_path("outer")
    def step():
        with hot_path("inner"):
            inside = where()
        return inside, where()

    assert step() == ("inner", "outer")
    assert entries == {"outer": 1, "inner": 1} and entries.was_left == ("inner", "outer")


def test_recursion_and_reuse_of_one_region(entries):
    region = hot_path("again")
    with region, region:
        assert current_entry().number == 1
    assert where() is None


def test_an_exception_leaves_the_region(entries):
    with pytest.raises(ZeroDivisionError), hot_path("step"):
        1 / 0  # noqa: B018
    assert where() is None


def test_a_thread_started_in_a_hot_path_is_not_in_it(entries):
    seen = []
    with hot_path("step"):
        thread = threading.Thread(target=lambda: seen.append(where()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_a_task_started_in_a_hot_path_is_not_in_it(entries):
    async def child():
        return where()

    async def main():
        with hot_path("step"):
            task = asyncio.create_task(child())
            return await task, where()

    assert asyncio.run(main()) == (None, "step")


def test_tasks_have_their_own_hot_paths(entries):
    async def step(name: str, turn: asyncio.Event, other: asyncio.Event):
        with hot_path(name):
            other.set()
            await turn.wait()
            return where()

    async def main():
        one, two = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(step("a", one, two), step("b", two, one))

    assert asyncio.run(main()) == ["a", "b"]


def test_coroutine_function_is_in_its_hot_path_across_awaits(entries):
    @hot_path("step")
    async def step():
        await asyncio.sleep(0)
        return where()

    assert asyncio.run(step()) == "step"


def test_generators_are_refused():
    def tokens():
        yield 1

    async def later():
        yield 1

    for generator in (tokens, later):
        with pytest.raises(HotPathError, match="generator"):
            hot_path(generator)
        with pytest.raises(HotPathError, match="generator"):
            allow_sync("MRV101", "reads one flag")(generator)


@pytest.mark.parametrize("named", [True, False])
def test_methods_of_every_kind_stay_what_they_are(entries, named):
    hot, may_wait = hot_path("step") if named else hot_path, allow_sync("MRV101", "why")

    class Runner:
        @hot
        @staticmethod
        def static():
            return where()

        @hot
        @classmethod
        def made(cls):
            return cls, where()

        @may_wait
        @classmethod
        def allowed(cls):
            return cls, len(current_allowances())

        @hot
        @property
        def tokens(self):
            return where()

        @hot
        @functools.lru_cache  # noqa: B019 - as programs do
        def cached(self):
            return where()

    name = "step" if named else Runner.static.__module__ + ":" + Runner.static.__qualname__
    assert Runner.static() == Runner().static() == name
    assert Runner.made()[0] is Runner and Runner().made()[1] is not None
    assert Runner.allowed() == Runner().allowed() == (Runner, 1)
    assert Runner().tokens is not None and Runner().cached() is not None
    Runner.cached.cache_clear()


@pytest.mark.parametrize("decorated", [None, 3, "", " ", functools.partial(len, ()), Entries, Entries()])
def test_what_is_no_function_is_no_hot_path(decorated):
    with pytest.raises(HotPathError, match="must be a function or a method"):
        hot_path(decorated)
    if not isinstance(decorated, str):
        with pytest.raises(HotPathError, match="must be a function or a method"):
            hot_path("name")(decorated)
        with pytest.raises(HotPathError, match="must be a function or a method"):
            allow_sync("MRV101", "why")(decorated)


def test_an_allowance_that_ends_in_the_body_of_another_ends_alone():
    def poll():
        with allow_sync("MRV101", "polls"):
            yield

    with watched(Entries()):
        polling = poll()
        next(polling)
        with allow_sync("MRV104", "waits"):
            polling.close()
            assert [held.code for held in current_allowances()] == ["MRV104"]
    assert current_allowances() == ()


def test_nobody_watches_then_nobody_is_in_a_hot_path():
    with hot_path("step"):
        assert current_entry() is None


def test_a_watch_that_begins_or_ends_within_a_region_does_no_harm():
    region = hot_path("step")
    with region, watched(Entries()):
        assert current_entry() is None
        with region:
            assert where() == "step"
    with watched(Entries()):
        region.__enter__()
    region.__exit__(None, None, None)
    assert current_entry() is None


def test_only_one_may_watch():
    with watched(Entries()):
        with pytest.raises(HotPathError, match="second watch"), watched(Entries()):
            pass
        with hot_path("still watched"):
            assert where() == "still watched"


def test_allowances_hold_in_their_body_thread_and_task(entries):
    seen = []
    with allow_sync("MRV101", "reads one flag"), allow_sync("MRV104", "waits once", budget=2):
        thread = threading.Thread(target=lambda: seen.append(current_allowances()))
        thread.start()
        thread.join()
        assert [(held.code, held.budget) for held in current_allowances()] == [("MRV101", None), ("MRV104", 2)]
        assert current_allowances()[0].site.endswith("test_allowances_hold_in_their_body_thread_and_task")
    assert seen == [()] and current_allowances() == ()
    assert entries == {"reads one flag": 1, "waits once": 1}


def test_allowance_as_decorator():
    @allow_sync("MRV101", "reads one flag")
    def collect():
        return [held.reason for held in current_allowances()]

    @allow_sync("MRV101", "reads another")
    async def collect_later():
        await asyncio.sleep(0)
        return [held.reason for held in current_allowances()]

    assert collect() == ["reads one flag"]
    assert asyncio.run(collect_later()) == ["reads another"]


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("MRV101", ""), "reason"),
        (("MRV101", "  "), "reason"),
        (("MRV201", "races are fine"), "MRV1xx"),
        (("sync", "because"), "MRV1xx"),
        (("MRV1", "because"), "MRV1xx"),
        (("MRV110", "because"), "MRV1xx"),
        (("MRV122", "because"), "MRV1xx"),
        (("MRV101", "why", "", "", -1), "whole number"),
        (("MRV101", "why", "", "", True), "whole number"),
    ],
)
def test_allowances_that_mean_nothing_are_errors(arguments, rule):
    with pytest.raises(HotPathError, match=rule):
        Allowance(*arguments)


@pytest.mark.parametrize("watching", [False, True])
def test_torch_compile_sees_no_break(watching):
    @hot_path
    def step(x):
        with hot_path("inner"), allow_sync("MRV101", "why"):
            return decorated(x) * 2

    @allow_sync("MRV104", "why")
    @hot_path("decorated")
    def decorated(x):
        return x + 1

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    entries = Entries()
    if watching:
        with watched(entries):
            assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]
    else:
        assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]
    torch._dynamo.reset()


def test_a_decorated_function_takes_what_it_took_before():
    """Its wrapper is made for its parameters, whatever they are called."""

    def nothing():
        return ()

    def named(function, enter=2, *, watchers=3, call):
        return function, enter, watchers, call

    def only(a, /, b, c=4, *, d):
        return a, b, c, d

    def all_kinds(a, /, b, *rest, c=5, **others):
        return a, b, rest, c, others

    def rest_only(*a, **b):
        return a, b

    calls = [
        (nothing, (), {}), (named, (1,), {"call": 4}), (named, (), {"function": 1, "watchers": 0, "call": 2}),
        (only, (1, 2), {"d": 3}), (only, (1,), {"b": 2, "d": 3}), (all_kinds, (1, 2, 3, 4), {"c": 6, "e": 7, "a": 8}),
        (rest_only, (1, 2), {"self": 3}),
    ]  # fmt: skip
    for function, args, kwargs in calls:
        decorated = hot_path(function)
        assert inspect.signature(decorated) == inspect.signature(function)
        assert decorated(*args, **kwargs) == function(*args, **kwargs)
        with watched(Entries()):
            assert decorated(*args, **kwargs) == function(*args, **kwargs)
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument"):
        hot_path(named)(1)


def test_defaults_stay_the_objects_that_they_were():
    shared = []

    @hot_path
    def keep(value, held=shared, *, also=shared):
        held.append(value)
        return held is also

    assert keep(1) and keep(2) and shared == [1, 2]
