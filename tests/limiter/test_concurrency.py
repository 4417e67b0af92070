"""max_concurrency: how many tasks may be inside; a place is taken before the permit, and is free again at once when its task leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from helpers.driving import SECOND, SteppedClock, one_loop, turns
from helpers.strategies import EACH
from helpers.visitors import Visitors

import aiorate
from aiorate import Limiter, TokenBucket

pytestmark = one_loop


@pytest.fixture
def limiter(clock: SteppedClock) -> Limiter:
    return Limiter(TokenBucket("1/s", burst=3), clock=clock, max_concurrency=2)


@pytest.fixture
def visitors(limiter: Limiter, clock: SteppedClock) -> Visitors:
    return Visitors(limiter, clock)


async def test_the_place_is_taken_before_the_permit(visitors: Visitors, limiter: Limiter, clock: SteppedClock) -> None:
    """A permit taken before a wait for a place would be old by then, and many tasks would start at once."""
    await visitors.queue("abcd")
    before = limiter.statistics()

    await clock.run(60)
    await visitors.go("a", "b")

    assert (before.granted, before.available, before.waiting) == (2, 1, 2)
    assert visitors.began == {"a": 0, "b": 0, "c": 60 * SECOND, "d": 60 * SECOND}
    assert limiter.statistics().available == 1
    await visitors.go("c", "d")
    assert [visitors.tasks[name].result() for name in "abcd"] == [0.0, 0.0, 60.0, 60.0]


async def test_a_task_keeps_its_place_while_it_waits_for_a_permit(visitors: Visitors, clock: SteppedClock) -> None:
    """Its wait is the time for place and permit."""
    await visitors.queue("a", 3)
    await visitors.queue("bc")
    await clock.run(0.5)
    await visitors.go("a")
    await clock.run(10)

    assert visitors.began == {"a": 0, "b": SECOND, "c": 2 * SECOND}
    await visitors.go("b", "c")
    assert [visitors.tasks[name].result() for name in "bc"] == [1.0, 2.0]


@pytest.mark.parametrize("name", EACH)
async def test_at_most_max_concurrency_are_inside_with_each_strategy(name: str, clock: SteppedClock) -> None:
    """All get in, in order of arrival, each once it has a place and a permit."""
    limiter = Limiter(EACH[name](), clock=clock, max_concurrency=3)
    visitors = Visitors(limiter, clock)
    await visitors.queue(range(12))

    for _ in range(12):
        await clock.run(1)
        await visitors.go(*visitors.inside)

    assert (visitors.most, list(visitors.began)) == (3, list(range(12)))
    assert all(task.done() for task in visitors.tasks.values())
    counts = limiter.statistics()
    assert (counts.granted, counts.waiting, counts.cancelled) == (12, 0, 0)


@pytest.mark.parametrize(("wrong", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError), (1.5, TypeError), ("2", TypeError)])
async def test_a_bad_max_concurrency_is_refused(wrong: Any, error: type[Exception]) -> None:
    """The constructor raises."""
    with pytest.raises(error, match="max_concurrency"):
        Limiter("1/s", max_concurrency=wrong)


# Blocks, functions and generators.


async def test_a_bare_acquire_takes_no_place(visitors: Visitors, limiter: Limiter, clock: SteppedClock) -> None:
    """Nothing would give the place back. try_acquire() and slots() take none either."""
    await visitors.queue("ab")

    assert await limiter.acquire() == 0.0
    clock.advance(1)
    assert limiter.try_acquire()
    clock.advance(1)
    slots = limiter.slots()
    assert (await anext(slots)).index == 0
    await slots.aclose()
    assert visitors.inside == ["a", "b"]


async def test_every_form_of_a_block_holds_a_place(clock: SteppedClock) -> None:
    """async with, of(), decorated functions and generators."""
    limiter = Limiter(TokenBucket("1/s", burst=100), clock=clock, max_concurrency=1)
    over = asyncio.Event()

    @limiter
    async def function() -> None:
        await over.wait()

    @limiter.of(3)
    async def weighted() -> None:
        await over.wait()

    @limiter
    async def items() -> AsyncIterator[int]:
        yield 1
        await over.wait()
        yield 2

    async def block() -> None:
        async with limiter:
            await over.wait()

    async def of() -> None:
        async with limiter.of(2):
            await over.wait()

    async def all_items() -> None:
        assert [item async for item in items()] == [1, 2]

    for form in (function, weighted, block, of, all_items):
        over.clear()
        first, second = asyncio.ensure_future(form()), asyncio.ensure_future(block())
        await turns(3)
        assert limiter.statistics().waiting == 1
        over.set()
        await asyncio.gather(first, second)
        assert limiter.statistics().waiting == 0


async def test_a_generator_holds_its_place_until_its_body_has_ended(limiter: Limiter) -> None:
    """Cleanup included: a connection is in use until it is given back."""
    log: list[str] = []

    @limiter
    async def items(name: str) -> AsyncIterator[int]:
        log.append(f"{name} begins")
        try:
            yield 1
        finally:
            await turns(5)
            log.append(f"{name} ends")

    async def use(name: str) -> None:
        steps = items(name)
        async for _ in steps:
            break
        await steps.aclose()  # type: ignore[attr-defined]

    await asyncio.gather(*(use(name) for name in "abc"))

    assert log.index("c begins") > min(log.index("a ends"), log.index("b ends"))


async def test_a_body_that_fails_frees_its_place(visitors: Visitors, limiter: Limiter) -> None:
    """It may fail by an error, a cancellation, or an error while a generator is closed."""

    @limiter
    async def fails() -> None:
        raise ConnectionResetError

    @limiter
    async def items() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise ConnectionResetError

    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            await fails()
    steps = items()
    await anext(steps)
    limiter.reset()
    with pytest.raises(ConnectionResetError):
        await steps.aclose()  # type: ignore[attr-defined]
    await visitors.queue("ab")
    assert visitors.inside == ["a", "b"]
    for name in "ab":
        visitors.tasks[name].cancel()
    await visitors.queue("c")

    assert visitors.inside == ["c"]


async def test_a_generator_that_never_begins_takes_no_place(limiter: Limiter) -> None:
    """It is closed before its first step, or called with wrong arguments."""

    @limiter
    async def items(count: int) -> AsyncIterator[int]:
        for item in range(count):
            yield item

    for _ in range(3):
        await items(1).aclose()  # type: ignore[attr-defined]
    for _ in range(2):
        with pytest.raises(TypeError):
            await anext(items())  # type: ignore[call-arg]

    limiter.reset()
    async with asyncio.timeout(60), limiter, limiter:
        pass


# Waiting for a place.


@pytest.mark.parametrize("most", [0, 1, 3])
async def test_max_waiting_counts_waits_for_places_too(most: int, clock: SteppedClock) -> None:
    """Waits for places and waits for permits together are at most `max_waiting`."""
    limiter = Limiter(TokenBucket("1/s", burst=2), clock=clock, max_concurrency=2, max_waiting=most)
    visitors = Visitors(limiter, clock)
    await visitors.queue("a", 2)
    await visitors.queue(range(most))  # one of them has a place, and waits for a permit

    for _ in range(2):
        with pytest.raises(aiorate.LineFull, match=f"max_waiting={most}"):
            async with limiter:
                pytest.fail("it is full")

    counts = limiter.statistics()
    assert (counts.waiting, counts.refused) == (most, 2)
    await clock.run(1)
    await visitors.go("a")
    await clock.run(10)
    await visitors.go(*range(most))
    await clock.run(10)
    await visitors.go(*range(most))
    assert len(visitors.began) == most + 1


async def test_a_task_that_waited_for_a_place_is_not_refused(clock: SteppedClock) -> None:
    """A newcomer that asks while the other goes from its place to the line for permits gets LineFull instead."""
    limiter = Limiter(TokenBucket("1/s", burst=1), clock=clock, max_concurrency=1, max_waiting=1)
    visitors = Visitors(limiter, clock)
    await visitors.queue("a")
    await visitors.queue("b")

    visitors.come("c")
    visitors.over["a"].set()
    visitors.come("d")
    await clock.run(5)

    assert visitors.began == {"a": 0, "b": SECOND}
    for name in "cd":
        assert isinstance(visitors.tasks[name].exception(), aiorate.LineFull)


async def test_places_are_given_in_the_order_of_arrival(visitors: Visitors, limiter: Limiter) -> None:
    """A newcomer cannot take a place that has just become free while others wait for it."""
    limiter.reset()
    await visitors.queue("abc")

    visitors.over["a"].set()
    await turns(1)
    visitors.come("d")
    await turns(12)

    assert visitors.inside == ["b", "c"]


async def test_closing_fails_waits_for_a_place(visitors: Visitors, limiter: Limiter, clock: SteppedClock) -> None:
    """Later ones fail too, until the limiter is opened again."""
    await visitors.queue("abcd")

    await limiter.aclose()
    await turns(3)
    await visitors.queue("e")

    errors = [visitors.tasks[name].exception() for name in "cde"]
    assert all(isinstance(error, aiorate.LimiterClosed) for error in errors)
    assert errors[0] is not errors[1]
    assert clock.timers == 0
    await visitors.go("a")
    limiter.apply(aiorate.RateSpec(limiter.rate, 1, "start"))
    await visitors.queue("f")
    assert visitors.inside == ["b", "f"]


# Statistics.


async def test_statistics_count_places_as_waits(visitors: Visitors, limiter: Limiter, clock: SteppedClock) -> None:
    """The sums are those of the waits that callers were told; reset() sets them to 0."""
    await visitors.queue("abcde")
    visitors.tasks["e"].cancel()
    await clock.run(2)
    await visitors.go("a")  # c has a permit at once
    await visitors.go("b")
    await visitors.go("c", "d")
    counts = limiter.statistics()

    told = [visitors.tasks[name].result() for name in "abcd"]
    assert told == [0.0, 0.0, 2.0, 2.0]
    assert (counts.waited_total, counts.waited_max, counts.waited_p50) == (sum(told), 2.0, 2.0)
    assert (counts.granted, counts.cancelled, counts.waiting) == (4, 1, 0)
    limiter.reset()
    counts = limiter.statistics()
    assert (counts.granted, counts.cancelled, counts.waited_total) == (0, 0, 0.0)


async def test_a_wait_for_both_is_one_wait(visitors: Visitors, limiter: Limiter, clock: SteppedClock) -> None:
    """Half a second for the place and half a second for the permit count as one wait of a second."""
    await visitors.queue("a", 3)
    await visitors.queue("bc")
    await clock.run(0.5)
    await visitors.go("a")
    await clock.run(5)

    counts = limiter.statistics()
    assert (counts.waited_total, counts.waited_max) == (3.0, 2.0)
    assert (counts.waited_p50, counts.waited_p99) == (pytest.approx(1.0, rel=0.07), 2.0)


async def test_repr_shows_places_and_waits_for_them(visitors: Visitors, limiter: Limiter) -> None:
    """A limiter without a free place would look idle otherwise, since delay() is about permits only."""
    assert "0 of 2 places taken, 0 waiting" in repr(limiter)

    await visitors.queue("abc")

    assert "2 of 2 places taken, 1 waiting" in repr(limiter)
    assert limiter.delay() == 0
