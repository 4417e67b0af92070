"""Defects that attacks on the limiter found. Each is written as what should be."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable

import pytest
from helpers.driving import SECOND, Crowd, SteppedClock, descriptors, one_loop, turns

import aiorate
from aiorate.testing import ManualClock, VirtualLoop

MS = SECOND // 1000


# 1. The loop.


@pytest.mark.parametrize("scheduler", [aiorate.TicksAccumulator, aiorate.TokenPool])
def test_a_batch_is_no_reason_to_keep_the_loop(scheduler: Callable[[str], aiorate.Scheduler]) -> None:
    """Defect 1: fast calls open a batch of 256 permits, and these are handed out without a look at the clock, however slow bodies are."""
    most = done = 0

    async def main() -> None:
        nonlocal most, done
        limiter = aiorate.Limiter(scheduler("2000000/s"))
        assert limiter.try_acquire()
        await asyncio.sleep(0.2)  # permits are ready

        async def other() -> None:
            nonlocal most, done
            while True:
                most, done = max(most, done), 0
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for _ in range(3):
            for _ in range(2_000):
                await limiter.acquire()
            done = 0
            for _ in range(100):
                await limiter.acquire()
                until = time.thread_time_ns() + MS
                while time.thread_time_ns() < until:
                    pass
                done += 1
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(main())

    assert most <= 64 + 2 * (10 + 1)  # bodies of 1 ms, after a portion that was not timed


@pytest.mark.asyncio
@pytest.mark.parametrize("options", [{"max_waiting": 0}, {"max_wait": 0}], ids=str)
async def test_who_is_refused_and_asks_again_lets_the_loop_turn_too(options: dict[str, int]) -> None:
    """Defect 1: a refusal is raised without ever letting the loop turn, so a program that tries again at once is never timed out."""
    line = {"max_waiting": 0} if "max_waiting" in options else {}
    ask = {"max_wait": 0} if "max_wait" in options else {}
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=1), **line)
    await limiter.acquire()

    async def try_again() -> None:
        for _ in range(300_000):
            try:
                await limiter.acquire(**ask)
            except (aiorate.WaitTooLong, aiorate.LineFull):
                continue

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await try_again()


# 2. Who waits on a loop or in a process that is gone.


def test_those_of_a_loop_that_was_closed_a_moment_ago_are_in_nobodys_way() -> None:
    """Within 5 ms after the last look at the loop, a request on the next one is refused for the sake of the dead."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=10), max_waiting=1)

    async def before() -> asyncio.Task[float]:
        assert limiter.try_acquire(4)
        task = asyncio.ensure_future(limiter.acquire(10))
        await asyncio.sleep(0)
        return task

    async def after() -> float:
        return await limiter.acquire(max_wait=0)

    for _ in range(5):
        first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
        first.set_exception_handler(lambda _, context: None)
        task = first.run_until_complete(before())
        first.close()
        assert 0.0 == second.run_until_complete(after())
        second.close()
        del task
        limiter.reset()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_the_parents_line_is_in_nobodys_way_right_after_a_fork() -> None:
    """Defect 2: within 5 ms after the parent's last look at its loop, the child is refused: False, LineFull, WaitTooLong."""

    async def ask(limiter: aiorate.Limiter) -> int:
        try:
            await limiter.acquire(max_wait=0)
        except aiorate.LimiterError:
            return 1
        return 0

    async def main(sort: int) -> int:
        limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=10), max_waiting=1)
        assert limiter.try_acquire(4)
        task = asyncio.ensure_future(limiter.acquire(10))
        await asyncio.sleep(0)
        process = os.fork()
        if process == 0:
            os._exit(asyncio.run(ask(limiter)) if sort else not limiter.try_acquire())
        _, status = os.waitpid(process, 0)  # noqa: ASYNC222
        task.cancel()
        return status

    assert [0] * 10 == [asyncio.run(main(sort)) for sort in (0, 1) * 5]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_the_child_keeps_no_descriptor_of_the_parent() -> None:
    """Defect 2: the parent's kernel timer stays open in the child for as long as that lives."""

    async def main() -> int:
        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), precise=True)
        assert limiter.try_acquire()
        task = asyncio.ensure_future(limiter.acquire())
        await asyncio.sleep(0)
        process = os.fork()
        if process == 0:
            limiter.statistics()
            os._exit(descriptors())
        _, status = os.waitpid(process, 0)  # noqa: ASYNC222
        task.cancel()
        return status

    assert 0 == asyncio.run(main())


@one_loop
async def test_a_clock_that_is_moved_after_a_loop_was_closed_raises_nothing() -> None:
    """Defect 16: a clock by hand outlives the loop; its timer then grants to those who can no longer be woken: RuntimeError."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock)

    def other_thread() -> None:
        native = asyncio.new_event_loop()
        native.set_exception_handler(lambda _, context: None)

        async def begin() -> list[asyncio.Task[float]]:
            assert limiter.try_acquire()
            tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(3)]
            await turns(3)
            return tasks

        native.run_until_complete(begin())
        native.close()

    await asyncio.to_thread(other_thread)

    clock.advance(10)


# 3. What comes back.


@pytest.mark.parametrize(
    "make",
    [lambda: aiorate.TokenBucket("1/h", burst=1_000), lambda: aiorate.TokenPool("1/h", pool=1_000 * 3_600 * SECOND)],
    ids=["TokenBucket", "TokenPool"],
)
def test_a_receipt_is_worth_a_permit_however_many_were_taken_since(make: Callable[[], aiorate.Scheduler]) -> None:
    """Defect 3's mend: in the record of levels the highest seems ever more recent: of 330 cancellations 70 lost their permit."""
    scheduler = make()
    scheduler.take(1, 0)
    scheduler.give_back(1_000, 0)  # full
    for now in range(1, 501):
        assert scheduler.take(1, now) <= now
    before = scheduler.stock(501)

    scheduler.give_back(1, 501, 300)

    assert before + 1 == scheduler.stock(501)


@one_loop
@pytest.mark.parametrize(
    "make",
    [lambda: aiorate.TokenPool("1/s"), lambda: aiorate.TokenBucket("1/s", burst=3, initial=0), lambda: aiorate.SlidingWindow("1/s")],
    ids=["TokenPool", "TokenBucket", "SlidingWindow"],
)
async def test_a_grant_from_before_a_reset_is_not_given_back_after_it(make: Callable[[], aiorate.Scheduler]) -> None:
    """At the very instant of the grant: granted became -1, and a pool or an empty bucket had a permit too many."""
    clock = SteppedClock()
    limiter = aiorate.Limiter(make(), clock=clock)
    crowd = Crowd(limiter, clock)
    while limiter.try_acquire():
        pass
    await crowd.queue("A")
    clock.fire()
    await turns(isinstance(limiter.scheduler, aiorate.TokenPool))

    limiter.reset()
    fresh = limiter.delay(), limiter.delay(2) if limiter.scheduler.max_permits != 1 else None
    crowd.tasks["A"].cancel()
    await turns(3)

    assert 0 == limiter.statistics().granted
    assert fresh == (limiter.delay(), limiter.delay(2) if limiter.scheduler.max_permits != 1 else None)


# 4. Who counts.


@one_loop
@pytest.mark.parametrize(
    "make", [lambda: aiorate.TokenPool("1/s"), lambda: aiorate.TokenBucket("1/s", burst=1)], ids=["TokenPool", "TokenBucket"]
)
async def test_who_was_cancelled_takes_no_place_in_a_long_line_either(make: Callable[[], aiorate.Scheduler]) -> None:
    """Defect 14: with more than 64 in line, every other question is answered without a look at who was cancelled."""
    clock = ManualClock()
    limiter = aiorate.Limiter(make(), clock=clock, max_waiting=100)
    crowd = Crowd(limiter, clock)
    assert limiter.try_acquire()
    await crowd.queue(range(100))

    crowd.tasks[50].cancel()
    coroutine = limiter.acquire()
    coroutine.send(None)  # in this very step

    coroutine.close()
    for task in crowd.tasks.values():
        task.cancel()
    await turns(3)


@one_loop
@pytest.mark.parametrize(
    "make", [lambda: aiorate.TokenPool("1/s"), lambda: aiorate.TokenBucket("1/s", burst=1)], ids=["TokenPool", "TokenBucket"]
)
async def test_a_task_that_was_cancelled_before_waits_like_any_other(make: Callable[[], aiorate.Scheduler]) -> None:
    """Defect 14's mend: who cleans up after a cancellation counts as cancelled in a TokenPool: no ``waiting``, no ``max_waiting``."""
    clock = ManualClock()
    limiter = aiorate.Limiter(make(), clock=clock, max_waiting=1)
    assert limiter.try_acquire()

    async def clean_up() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await limiter.acquire()

    task = asyncio.ensure_future(clean_up())
    await turns(2)
    task.cancel()
    await turns(3)

    assert 1 == limiter.statistics().waiting
    with pytest.raises(aiorate.LineFull):
        await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(limiter.acquire())), 0.1)
    await clock.run(5)
    assert task.cancelled()


@one_loop
async def test_an_estimate_counts_nobody_who_has_left() -> None:
    """Defect 10's mend: with 100 in line of 1000, ``delay()`` says 1001 s once, and 101 when asked again; ``max_wait`` refuses by it."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock)
    crowd = Crowd(limiter, clock)
    assert limiter.try_acquire()
    await crowd.queue(range(1_000))
    assert 1001 == limiter.delay()

    for who in range(900):
        crowd.tasks[who].cancel()
    await turns(3)

    assert 101 == limiter.delay()
    for task in crowd.tasks.values():
        task.cancel()
    await turns(3)


# 5. Order.


@one_loop
@pytest.mark.parametrize("seed", range(200))
async def test_permits_of_the_pool_run_in_order_of_arrival_whoever_is_cancelled(seed: int) -> None:
    """Defect 12: a notice is passed on by each cancelled waiter (CPython 3.13: 195 of 500 histories) or skips one (3.11: 3 of 500)."""
    dice, clock = random.Random(seed), ManualClock()
    ran: list[int] = []
    limiter = aiorate.Limiter(aiorate.TokenPool("1000/s", pool=20 * MS), clock=clock)
    while limiter.try_acquire():
        pass

    async def one(name: int) -> None:
        await limiter.acquire()
        ran.append(name)

    tasks = [asyncio.ensure_future(one(name)) for name in range(dice.randrange(2, 200))]
    await turns(3)
    for _ in range(40):
        clock.advance(dice.choice((0.0, 0.001, 0.003, 0.02)))
        await turns(dice.randrange(4))
        pending = [task for task in tasks if not task.done()]
        for task in dice.sample(pending, min(len(pending), dice.randrange(6))):
            task.cancel()
        await turns(dice.randrange(4))
    await clock.run(1)

    assert sorted(ran) == ran
    assert all(task.done() for task in tasks)


# 6. Slots, and schedulers.


@pytest.mark.parametrize("what", ["pause", "resume"])
def test_the_index_of_a_slot_follows_the_schedule_whatever_is_changed_in_between(what: str) -> None:
    """Defect 13: every pause and resume dropped the fraction of a permit again: 4374 for 4809."""

    async def main() -> tuple[int, float]:
        limiter, dice = aiorate.Limiter(aiorate.TokenBucket(97, burst=1)), random.Random(13)
        missed = 0.0  # what the schedule stood still, in permits
        slots = limiter.slots()
        for _ in range(1000):
            slot = await anext(slots)
            if what == "pause":
                limiter.pause(0.001)
                missed += 0.097
            else:
                limiter.resume()
            await asyncio.sleep(dice.uniform(0.001, 0.1))
        slot = await anext(slots)
        await slots.aclose()
        return slot.index, (slot.scheduled_at + slot.lag) * 97 - missed

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        index, schedule = runner.run(main())

    assert schedule - 5 < index <= schedule + 1


async def _two_slots(limiter: aiorate.Limiter) -> list[tuple[int, float]]:
    seen = []
    async for slot in limiter.slots():
        seen.append((slot.index, slot.scheduled_at))
        if len(seen) == 2:
            return seen
        await asyncio.sleep(1.05)
    return seen


def test_a_slot_was_scheduled_where_its_index_says() -> None:
    """Slot 10 of ten per second is said to have been scheduled at 0.1 s, which is slot 1: response times come out 0.9 s too long."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        seen = runner.run(_two_slots(aiorate.Limiter(aiorate.BurstCompensation("10/s"), catch_up=0.02)))

    index, at = seen[1]
    assert abs(index - at * 10) < 1


def test_a_scheduler_is_one_member_at_any_depth() -> None:
    """Defect 17: AllOf refuses the same scheduler twice, but not inside another AllOf: each permit costs it two."""
    scheduler = aiorate.TokenBucket("1/s", burst=10)

    with pytest.raises(ValueError, match=r"twice|belongs"):
        aiorate.Limiter(aiorate.AllOf(scheduler, aiorate.AllOf(scheduler, aiorate.TokenBucket("1/s", burst=10))))
