"""max_concurrency: a place is taken before the permit, and is free again at once when its task leaves, however it leaves."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from helpers.driving import SECOND, SteppedClock, one_loop, others, turns
from helpers.platforms import needs_fork
from helpers.strategies import EACH

import aiorate
from aiorate import KeyedLimiter, Limiter, TokenBucket, Waited
from aiorate.testing import ManualClock

pytestmark = one_loop


@pytest.fixture
def limiter(clock: SteppedClock) -> Limiter:
    return Limiter(TokenBucket("1/s", burst=3), clock=clock, max_concurrency=2)


@pytest.fixture
def visitors(limiter: Limiter, clock: SteppedClock) -> Visitors:
    return Visitors(limiter, clock)


async def test_the_place_is_taken_before_the_permit(visitors: Visitors, limiter: Limiter, clock: SteppedClock) -> None:
    """A permit taken before a wait for a place would be old by then, and many tasks would start at once."""
    await visitors.queue("abcde")
    visitors.tasks["e"].cancel()
    await turns(3)
    before = limiter.statistics()
    assert "2 of 2 places taken, 2 waiting" in repr(limiter)

    await clock.run(60)
    await visitors.go("a", "b")

    assert (before.granted, before.available, before.waiting) == (2, 1, 2)
    assert visitors.began == {"a": 0, "b": 0, "c": 60 * SECOND, "d": 60 * SECOND}
    assert limiter.statistics().available == 1
    await visitors.go("c", "d")
    assert [visitors.tasks[name].result() for name in "abcd"] == [0.0, 0.0, 60.0, 60.0]
    counts = limiter.statistics()
    assert (counts.waited_total, counts.waited_max, counts.waited_p50) == (120.0, 60.0, 60.0)
    assert (counts.granted, counts.cancelled, counts.waiting) == (4, 1, 0)


async def test_a_task_keeps_its_place_while_it_waits_for_a_permit(visitors: Visitors, limiter: Limiter, clock: SteppedClock) -> None:
    """Half a second for the place and half a second for the permit count as one wait of a second."""
    await visitors.queue("a", 3)
    await visitors.queue("bc")
    await clock.run(0.5)
    await visitors.go("a")
    await clock.run(10)

    assert visitors.began == {"a": 0, "b": SECOND, "c": 2 * SECOND}
    await visitors.go("b", "c")
    assert [visitors.tasks[name].result() for name in "bc"] == [1.0, 2.0]
    counts = limiter.statistics()
    assert (counts.waited_total, counts.waited_max, counts.waited_p99) == (3.0, 2.0, 2.0)
    assert counts.waited_p50 == pytest.approx(1.0, rel=0.07)


async def test_at_most_max_concurrency_are_inside(clock: SteppedClock) -> None:
    for name, make in EACH.items():
        limiter = Limiter(make(), clock=clock, max_concurrency=3)
        visitors = Visitors(limiter, clock)
        await visitors.queue(range(12))

        for _ in range(12):
            await clock.run(1)
            await visitors.go(*visitors.inside)

        assert (visitors.most, list(visitors.began)) == (3, list(range(12))), name
        assert all(task.done() for task in visitors.tasks.values()), name
        counts = limiter.statistics()
        assert (counts.granted, counts.waiting, counts.cancelled) == (12, 0, 0), name


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
    """A generator until its body has ended, cleanup included: a connection is in use until it is given back."""
    limiter = Limiter(TokenBucket("1/s", burst=100), clock=clock, max_concurrency=1)
    over = asyncio.Event()

    @limiter.of(3)
    async def function() -> None:
        await over.wait()

    @limiter
    async def items() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await over.wait()

    async def block() -> None:
        async with limiter:
            await over.wait()

    async def of() -> None:
        async with limiter.of(2):
            await over.wait()

    async def first_item() -> None:
        steps = items()
        async for _ in steps:
            break
        await steps.aclose()  # type: ignore[attr-defined]

    await items().aclose()  # type: ignore[attr-defined]  # it never began, and takes no place
    for form in (function, block, of, first_item):
        over.clear()
        first, second = asyncio.ensure_future(form()), asyncio.ensure_future(block())
        await turns(5)
        assert limiter.statistics().waiting == 1
        over.set()
        await asyncio.gather(first, second)
        assert limiter.statistics().waiting == 0


async def test_a_body_that_fails_frees_its_place(visitors: Visitors, limiter: Limiter) -> None:
    @limiter
    async def items() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise ConnectionResetError

    for _ in range(2):
        steps = items()
        await anext(steps)
        with pytest.raises(ConnectionResetError):
            await steps.aclose()  # type: ignore[attr-defined]
    limiter.reset()
    await visitors.queue("ab")
    assert visitors.inside == ["a", "b"]
    for name in "ab":
        visitors.tasks[name].cancel()
    await visitors.queue("c")

    assert visitors.inside == ["c"]


# Waiting for a place.


async def test_max_waiting_counts_waits_for_places_too(clock: SteppedClock) -> None:
    for most in (0, 1, 3):
        limiter = Limiter(TokenBucket("1/s", burst=2), clock=clock, max_concurrency=2, max_waiting=most)
        visitors = Visitors(limiter, clock)
        await visitors.queue("a", 2)
        await visitors.queue(range(most))  # one of them has a place, and waits for a permit

        for _ in range(2):
            with pytest.raises(aiorate.LineFull, match=f"max_waiting={most}"):
                await limiter.of(1).__aenter__()

        counts = limiter.statistics()
        assert (counts.waiting, counts.refused) == (most, 2)
        await visitors.go("a")  # another takes its place, and waits for a permit without being refused
        for _ in range(3):
            await clock.run(10)
            await visitors.go(*visitors.inside)
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


async def test_closing_fails_waits_for_a_place(visitors: Visitors, limiter: Limiter, clock: SteppedClock) -> None:
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


# Places come back.


async def test_cancellation_at_every_point_loses_nothing() -> None:
    """No place and no permit: while waiting for the place, granted it, waiting for the permit, granted that, and inside."""
    ended = set()
    for step, turn in ((step, turn) for step in range(1, 8) for turn in range(6)):
        permits = 1 + turn % 2
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
        ended.add((visitors.tasks["b"].cancelled(), "b" in visitors.began))
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


async def test_places_of_a_closed_loop_come_back_with_its_tasks() -> None:
    """A task that will never leave is only noticed when it is collected."""
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


@needs_fork
@pytest.mark.filterwarnings("ignore:This process")
async def test_a_child_process_begins_with_all_places_free() -> None:
    """Tasks inside are the parent's, and the child would wait for them for ever."""
    limiter = Limiter("1000/s", max_concurrency=1)

    async def enter() -> None:
        async with asyncio.timeout(60), limiter:
            pass

    async with limiter:
        child = os.fork()
        if not child:
            try:
                asyncio._set_running_loop(None)  # asyncio's own
                asyncio.new_event_loop().run_until_complete(enter())
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222


# Visitors.


async def test_places_that_keys_share_go_to_keys_that_are_due(clock: SteppedClock) -> None:
    """Two inside at most, whatever their keys. A key that waits for its own rate holds no place, and acquire() needs none."""
    shared = Limiter(TokenBucket("1000/s", burst=9), max_concurrency=2, clock=clock, name="host")
    keyed = KeyedLimiter(lambda key: Limiter(TokenBucket("1/s", burst=2), clock=clock, max_concurrency=2), shared=shared)
    waited: list[Waited] = []
    keyed.watch(waited.append)
    slow, other, direct = [Visitors(limiter, clock) for limiter in (keyed["slow"], keyed["other"], shared)]

    await slow.queue("ab")
    assert await keyed.acquire("free") == 0.0  # of the shared limiter too, but no place
    await other.queue("cd")
    await direct.queue("e")
    assert ([*slow.inside, *other.inside, *direct.inside], shared.statistics().waiting) == (["a", "b"], 2)
    slow.come("f")
    await slow.go("a", "b")
    await clock.run(0.1)
    assert (slow.inside, other.inside, direct.inside) == ([], ["c"], ["e"])

    slow.tasks["f"].cancel()
    await direct.go("e")
    await other.go("c", "d")
    await clock.run(10)

    assert [each.most for each in (slow, other, direct)] == [2, 2, 1]
    assert {each.limited_by for each in waited} == {"max_concurrency"}
    assert "0 of 2 places taken, 0 waiting" in repr(shared)


async def test_a_place_of_every_level_is_taken_and_left(clock: SteppedClock) -> None:
    company = Limiter("1000/s", max_concurrency=3, clock=clock)
    teams = KeyedLimiter(lambda team: Limiter("1000/s", max_concurrency=2, clock=clock), shared=company)
    users = KeyedLimiter(lambda user: "1000/s", shared=lambda user: teams[user[0]])
    visitors = [Visitors(users[user], clock) for user in ("a1", "a2", "a3", "b1", "b2")]
    for each in visitors:
        await each.queue("x")
        await clock.run(0.01)
    for leaves, inside in ((), [1, 1, 0, 1, 0]), ((3,), [1, 1, 0, 0, 1]), ((0,), [0, 1, 1, 0, 1]):
        for number in leaves:
            await visitors[number].go("x")
        await clock.run(0.01)
        assert [len(each.inside) for each in visitors] == inside


class Visitors:
    """Tasks that enter and stay until they are told to go; ``began`` has the instant at which each got in."""

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
        """Start a task for each name, in that order."""
        for name in names:
            self.come(name, permits)
        await turns(5)

    async def go(self, *names: Any) -> None:
        """Let these tasks leave."""
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
