"""Defects found by the second attack: number 21, and messages about keys and budgets that were silent or misleading."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
import trio
from helpers.driving import one_loop

from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket
from aiorate.testing import ManualClock


@pytest.mark.parametrize(
    ("options", "hint"),
    [({"max_concurrency": 2}, r"asyncio\.Semaphore\(2\)"), ({"max_waiting": 5}, "max_waiting to"), ({"max_waiting": 0}, "max_waiting to")],
)
def test_an_option_that_cannot_be_shared_is_refused(options: dict[str, Any], hint: str) -> None:
    """Number 21: ten were inside where two may be, and a line of five grew beyond it, because keys and budgets take only permits."""
    with pytest.raises(ValueError, match=rf"KeyedLimiter\(shared\): .*{hint}"):
        KeyedLimiter(lambda key: "1/s", shared=Limiter("10/s", **options))
    with pytest.raises(ValueError, match=rf"Budget\(tokens\): .*{hint}"):
        Budget(requests="1/s", tokens=Limiter("10/s", **options))
    tenants = KeyedLimiter[str](lambda key: Limiter("10/s", **options), shared="10/s")
    with pytest.raises(ValueError, match=rf"KeyedLimiter\(shared\): .*{hint}"):
        KeyedLimiter(lambda key: "1/s", shared=tenants["acme"])


@one_loop
async def test_the_options_of_a_key_are_its_own() -> None:
    """Number 21: what is refused above has its place in what the factory makes."""
    keyed = KeyedLimiter[str](lambda key: Limiter("10/s", max_concurrency=1, max_waiting=0), shared="10/s")
    async with keyed("ann"):
        assert len(keyed) == 1


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"max_concurrency": 5}, r"Limiter\('10/s', max_concurrency=5\)"),
        ({"max_waiting": 5, "catch_up": 1}, r"Limiter\('10/s', max_waiting=5, catch_up=1\)"),
        ({"burst": 5}, "TokenBucket"),
        ({"nonsense": 1}, "shared, max_keys, idle"),
    ],
)
def test_an_option_of_a_limiter_names_the_factory(options: dict[str, Any], hint: str) -> None:
    """Python's own words only say that the keyword is unexpected."""
    with pytest.raises(TypeError, match=hint):
        KeyedLimiter(lambda key: "10/s", **options)


@one_loop
async def test_keys_as_a_block_say_that_a_key_is_missing() -> None:
    """Python's own words speak of a protocol."""
    with pytest.raises(TypeError, match=r"async with keyed\(key\)"):
        async with KeyedLimiter(lambda key: "10/s"):
            pass


@pytest.mark.parametrize(("name", "hint"), [("acquire", "budget.reserve"), ("try_acquire", "budget.reserve"), ("charge", "lease.settle")])
def test_a_call_of_a_limiter_names_that_of_a_budget(name: str, hint: str) -> None:
    """A budget is reserved from; it still has no such attribute, for who looks."""
    budget = Budget(tokens="10/s")

    with pytest.raises(AttributeError, match=hint):
        getattr(budget, name)()
    assert not hasattr(budget, name)
    assert not hasattr(budget, "nonsense")


def test_a_limiter_that_is_shared_cannot_be_that_of_a_key() -> None:
    """At any depth: its requests would wait for themselves."""
    top = Limiter("10/s")
    acme = KeyedLimiter[str](lambda key: "10/s", shared=top)["acme"]

    for shared in (top, acme):
        with pytest.raises(ValueError, match="make one for each key"):
            KeyedLimiter[str](lambda key, limiter=shared: limiter, shared=acme)["ann"]
    with pytest.raises(ValueError, match="make one for each key"):
        KeyedLimiter[str](lambda key: top, shared=acme)["ann"]


@pytest.mark.parametrize("run", [asyncio.run, trio.run])
@pytest.mark.parametrize("scope", ["loop", "process"])
def test_a_task_that_would_wait_for_itself_is_told_so(run: Callable[..., Any], scope: Any) -> None:
    """As anyio's CapacityLimiter does: it hung, and everybody behind it."""
    limiter = Limiter("1000/s", max_concurrency=1, scope=scope)

    async def main() -> None:
        async with limiter:
            await limiter.acquire()
            with pytest.raises(RuntimeError, match="would wait for itself"):
                async with limiter:
                    pass
            with pytest.raises(RuntimeError, match="would wait for itself"):
                await limited()
        async with limiter:
            pass
        await limited()

    @limiter
    async def limited() -> None:
        pass

    run(main) if run is trio.run else run(main())


@one_loop
@pytest.mark.parametrize("scope", ["loop", "process"])
async def test_a_place_that_another_task_leaves_is_waited_for(scope: Any) -> None:
    """Only the one who is inside would wait for ever; and of two places one may be left by another task."""
    one, two = (Limiter("1000/s", max_concurrency=places, scope=scope) for places in (1, 2))
    order = []

    async def visit(name: str) -> None:
        async with one:
            order.append(name)
            await asyncio.sleep(0)

    async with one:
        visits = [asyncio.ensure_future(visit(name)) for name in "ab"]
        await asyncio.sleep(0)
    await asyncio.wait_for(visit("c"), 10)
    await asyncio.gather(*visits)
    async with two, two:
        assert ["a", "b", "c"] == order


@one_loop
async def test_a_task_that_was_collected_inside_leaves_its_place() -> None:
    """Who has it is known weakly: a place that is kept by nobody is free."""
    limiter = Limiter(TokenBucket("1/s", burst=2), max_concurrency=1, clock=ManualClock())

    async def inside() -> None:
        async with limiter:
            await asyncio.Event().wait()

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)  # "Task was destroyed but it is pending!"
    task = asyncio.ensure_future(inside())
    await asyncio.sleep(0)
    del task
    gc.collect()

    async with limiter:
        pass
