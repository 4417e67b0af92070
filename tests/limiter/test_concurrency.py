"""max_concurrency: so many inside at a time; the place comes before the permit, and whoever leaves makes room at once."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from helpers.driving import SECOND, SteppedClock, one_loop, others, turns
from helpers.strategies import EACH

import aiorate
from aiorate import Limiter, TokenBucket
from aiorate.testing import ManualClock

pytestmark = one_loop


class Visitors:
    """Tasks that enter and stay until they are told to go; ``began`` says who was inside since which instant."""

    def __init__(self, limiter: Limiter, clock: ManualClock) -> None:
        self.limiter = limiter
        self.clock = clock
        self.tasks: dict[Any, asyncio.Task[float]] = {}
        self.began: dict[Any, int] = {}
        self.inside: list[Any] = []
        self.most = 0
        self.over: dict[Any, asyncio.Event] = {}

    def come(self, name: Any, permits: int = 1) -> None:
        """Start a task that enters."""
        self.over[name] = asyncio.Event()
        self.tasks[name] = asyncio.ensure_future(self._one(name, permits))

    async def queue(self, names: Any, permits: int = 1) -> None:
        """Have them all come, in that order."""
        for name in names:
            self.come(name, permits)
        await turns(5)

    async def go(self, *names: Any) -> None:
        """Have them leave."""
        for name in names:
            self.over[name].set()
        await turns(12)

    async def _one(self, name: Any, permits: int) -> float:
        async with self.limiter.of(permits) as waited:
            self.began[name] = self.clock.now()
            self.inside.append(name)
            self.most = max(self.most, len(self.inside))
            try:
                await self.over[name].wait()
            finally:
                self.inside.remove(name)
            return waited


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def limiter(clock: SteppedClock) -> Limiter:
    return Limiter(TokenBucket("1/s", burst=3), clock=clock, max_concurrency=2)


@pytest.fixture
def visitors(limiter: Limiter, clock: SteppedClock) -> Visitors:
    return Visitors(limiter, clock)


async def test_the_place_is_taken_before_the_permit(visitors: Visitors, limiter: Limiter, clock: SteppedClock) -> None:
    """Permits are not spent while a place is waited for: they would be old by then, and many would go at once."""
    await visitors.queue("abcd")
    before = limiter.statistics()

    await clock.run(60)
    await visitors.go("a", "b")

    assert (before.granted, before.available, before.waiting) == (2, 1, 2)
    assert visitors.began == {"a": 0, "b": 0, "c": 60 * SECOND, "d": 60 * SECOND}
    assert limiter.statistics().available == 1
    await visitors.go("c", "d")
    assert [visitors.tasks[name].result() for name in "abcd"] == [0.0, 0.0, 60.0, 60.0]


async def test_who_has_a_place_waits_for_a_permit_there(visitors: Visitors, clock: SteppedClock) -> None:
    """And its wait is that for both."""
    await visitors.queue("a", 3)
    await visitors.queue("bc")
    await clock.run(0.5)
    await visitors.go("a")
    await clock.run(10)

    assert visitors.began == {"a": 0, "b": SECOND, "c": 2 * SECOND}
    await visitors.go("b", "c")
    assert [visitors.tasks[name].result() for name in "bc"] == [1.0, 2.0]


@pytest.mark.parametrize("name", EACH)
async def test_never_more_are_inside_and_all_get_in_whatever_the_strategy(name: str, clock: SteppedClock) -> None:
    """In order of arrival; each comes when there is a place and a permit."""
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


async def test_a_bare_acquire_takes_no_place(visitors: Visitors, limiter: Limiter, clock: SteppedClock) -> None:
    """There would be nothing to leave it; nor do try_acquire and slots."""
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
    """async with, of(), decorated functions, methods and generators."""
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
    """Cleaning up is a part of it: a connection is in use until it is given back."""
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


async def test_a_body_that_fails_makes_room(visitors: Visitors, limiter: Limiter) -> None:
    """Errors, cancellations and errors while closing a generator."""

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


async def test_a_generator_that_is_never_begun_or_fails_to_begin_takes_no_place(limiter: Limiter) -> None:
    """Nothing was entered, or it was left at once."""

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


# Those who wait.


@pytest.mark.parametrize("most", [0, 1, 3])
async def test_waiting_for_a_place_counts_among_those_who_wait(most: int, clock: SteppedClock) -> None:
    """However many of them wait for a permit: together they are no more than max_waiting."""
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


async def test_who_waited_for_a_place_is_not_refused_afterwards(clock: SteppedClock) -> None:
    """It was admitted; a newcomer who asks while it is on its way to the permit is not to take its place in line."""
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
    """A newcomer does not take the place that has just become free, while others wait for it."""
    limiter.reset()
    await visitors.queue("abc")

    visitors.over["a"].set()
    await turns(1)
    visitors.come("d")
    await turns(12)

    assert visitors.inside == ["b", "c"]


async def test_a_closed_limiter_keeps_nobody_waiting_for_a_place(visitors: Visitors, limiter: Limiter, clock: SteppedClock) -> None:
    """Neither those who wait already nor those who come; and it may be opened again."""
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


async def test_a_refused_request_leaves_its_place(clock: SteppedClock) -> None:
    """LineFull and LimiterClosed come after the place is taken."""
    limiter = Limiter(TokenBucket("1/s", burst=1), clock=clock, max_concurrency=1, max_waiting=0)
    assert limiter.try_acquire()

    for _ in range(3):
        with pytest.raises(aiorate.LineFull):
            async with limiter:
                pytest.fail("there is no permit")

    clock.advance(1)
    async with limiter:
        assert limiter.statistics().refused == 3


# Cancelled.


@pytest.mark.parametrize("permits", [1, 2])
async def test_cancelled_at_every_point_places_and_permits_stay_exact(permits: int) -> None:
    """Waiting for the place, given the place but not yet run, waiting for the permit, given that, and inside."""
    ended = set()
    for step in range(8):
        for turn in range(10):
            clock = SteppedClock()
            limiter = Limiter(TokenBucket("1/s", burst=2), clock=clock, max_concurrency=1)
            visitors = Visitors(limiter, clock)
            await visitors.queue("a", 2)
            await visitors.queue("bc", permits)
            for number in range(8):
                if number == 2:
                    visitors.over["a"].set()
                elif number > 4 and clock.next_timer is not None:
                    clock.advance(1)
                for count in range(10):
                    if (number, count) == (step, turn):
                        visitors.tasks["b"].cancel()
                    await turns(1)
            task = visitors.tasks["b"]
            ended.add((task.cancelled(), "b" in visitors.began))
            await visitors.go("b", "c")
            await clock.run(10)
            await visitors.go("b", "c")
            counts = limiter.statistics()

            assert visitors.inside == []
            assert set(visitors.began) | {"b"} == set("abc")
            assert counts.granted == 2 + permits * (len(visitors.began) - 1)
            assert (counts.waiting, counts.cancelled, counts.available) == (0, "b" not in visitors.began, 2)
            async with asyncio.timeout(60), limiter:
                pass
            assert (clock.timers, others()) == (0, set())
    assert ended == {(True, False), (True, True)}


@pytest.mark.parametrize("seed", range(20))
async def test_whoever_leaves_when_no_place_is_lost_and_none_is_created(seed: int, clock: SteppedClock) -> None:
    """A hundred come and go at random, some of them cancelled."""
    dice = random.Random(seed)
    limiter = Limiter(TokenBucket("20/s", burst=3), clock=clock, max_concurrency=dice.randint(1, 4))
    visitors = Visitors(limiter, clock)
    for number in range(100):
        visitors.come(number, dice.randint(1, 2))
        for _ in range(dice.randrange(6)):
            await turns(1)
            if dice.random() < 0.1:
                dice.choice(list(visitors.tasks.values())).cancel()
            if visitors.inside and dice.random() < 0.4:
                visitors.over[dice.choice(visitors.inside)].set()
        if dice.random() < 0.3 and clock.next_timer is not None:
            clock.fire()
    while not all(task.done() for task in visitors.tasks.values()):
        await clock.run(1)
        await visitors.go(*visitors.inside)

    room = limiter.statistics()
    assert (room.waiting, visitors.inside) == (0, [])
    await visitors.queue(range(1000, 1010))
    await clock.run(60)
    assert len(visitors.inside) == visitors.most
    for name in range(1000, 1010):
        visitors.tasks[name].cancel()


# Statistics.


async def test_statistics_count_places_as_waits(visitors: Visitors, limiter: Limiter, clock: SteppedClock) -> None:
    """What a caller was told that it waited is what the sums are of; and reset() begins them anew."""
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


async def test_a_repr_tells_of_places_and_of_those_who_wait_for_one(visitors: Visitors, limiter: Limiter) -> None:
    """A limiter that lets nobody in for want of a place looks idle otherwise; delay() is of the permits, whoever is inside."""
    assert "0 of 2 places taken, 0 waiting" in repr(limiter)

    await visitors.queue("abc")

    assert "2 of 2 places taken, 1 waiting" in repr(limiter)
    assert limiter.delay() == 0


async def test_a_wait_for_both_is_one_wait(visitors: Visitors, limiter: Limiter, clock: SteppedClock) -> None:
    """Half a second for the place and half a second for the permit is one second, not two waits."""
    await visitors.queue("a", 3)
    await visitors.queue("bc")
    await clock.run(0.5)
    await visitors.go("a")
    await clock.run(5)

    counts = limiter.statistics()
    assert (counts.waited_total, counts.waited_max) == (3.0, 2.0)
    assert (counts.waited_p50, counts.waited_p99) == (pytest.approx(1.0, rel=0.07), 2.0)


@pytest.mark.parametrize(("wrong", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError), (1.5, TypeError), ("2", TypeError)])
async def test_a_wrong_number_of_places_is_refused(wrong: Any, error: type[Exception]) -> None:
    """When the limiter is made."""
    with pytest.raises(error, match="max_concurrency"):
        Limiter("1/s", max_concurrency=wrong)


# Loops and processes come and go.


async def test_places_that_were_taken_in_a_loop_that_was_closed_come_back_when_its_tasks_are_collected() -> None:
    """Nobody else knows that they are gone."""
    limiter = Limiter("1000/s", max_concurrency=1)

    async def stay() -> None:
        async with limiter:
            await asyncio.Event().wait()

    def broken_off() -> None:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda loop, context: None)  # "Task was destroyed but it is pending!"
        tasks = [loop.create_task(stay()) for _ in range(2)]
        loop.run_until_complete(asyncio.sleep(0.01))
        del tasks
        loop.close()

    await asyncio.to_thread(broken_off)
    gc.collect()

    async with asyncio.timeout(60), limiter:
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process")
async def test_a_child_process_begins_with_all_places_free() -> None:
    """Those inside are inside in the parent; the child would wait for them forever."""
    limiter = Limiter("1000/s", max_concurrency=1)

    async def enter() -> None:
        async with asyncio.timeout(60), limiter:
            pass

    async with limiter:
        child = os.fork()
        if not child:
            try:
                asyncio._set_running_loop(None)  # noqa: SLF001  # asyncio's own
                asyncio.new_event_loop().run_until_complete(enter())
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222
