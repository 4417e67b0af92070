"""Under trio: the same limiter, line and instants as under asyncio, with trio's clock, scopes and tasks."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import random
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from itertools import pairwise
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from helpers.driving import SECOND
from helpers.server import most_in_any_window
from helpers.strategies import EACH

import aiorate
from aiorate.testing import ManualClock, VirtualLoop, simulate

MS = SECOND // 1000
settled = trio.testing.wait_all_tasks_blocked


def run(main: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Run it under trio in virtual time, from 0 on."""
    return trio.run(main, *args, clock=trio.testing.MockClock(autojump_threshold=0))


def run_on(loop: str, main: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Run what is written for anyio in virtual time: under asyncio with the drivers of that, or under trio."""
    options = {"clock": trio.testing.MockClock(autojump_threshold=0)} if loop == "trio" else {"loop_factory": VirtualLoop}
    return anyio.run(main, *args, backend=loop, backend_options=options)


def now() -> int:
    """What the clock of this run reads, in ns."""
    return round(anyio.current_time() * SECOND)


class Crowd:
    """Tasks that each acquire once, in a scope of their own; ``granted`` says who was granted at which instant."""

    def __init__(self, limiter: aiorate.Limiter, nursery: trio.Nursery | anyio.abc.TaskGroup) -> None:
        self.limiter = limiter
        self.nursery = nursery
        self.scopes: dict[Any, anyio.CancelScope] = {}
        self.granted: dict[Any, int] = {}
        self.waited: dict[Any, float] = {}
        self.failed: dict[Any, Exception] = {}

    def ask(self, name: Any, permits: int = 1, deadline: float = math.inf, **options: Any) -> None:
        """Start a task that acquires, until the deadline."""
        self.scopes[name] = anyio.CancelScope(deadline=deadline)
        self.nursery.start_soon(self._one, name, permits, options)

    async def queue(self, names: Any, permits: int = 1) -> None:
        """Have them all stand in line, in that order: trio starts tasks in any."""
        for name in names:
            self.ask(name, permits)
            await settled()

    def cancel(self, *names: Any) -> None:
        """Cancel them, in one step."""
        for name in names:
            self.scopes[name].cancel()

    async def _one(self, name: Any, permits: int, options: dict[str, Any]) -> None:
        with self.scopes[name]:
            try:
                self.waited[name] = await self.limiter.acquire(permits, **options)
            except (RuntimeError, ValueError, aiorate.WaitTooLong, aiorate.LineFull) as error:
                self.failed[name] = error
            else:
                self.granted[name] = now()


def tenths(**granted: int) -> dict[str, int]:
    """Names, and when they were granted, in tenths of a second."""
    return {name: SECOND // 10 * instant for name, instant in granted.items()}


# The instants are those of the schedule.


@pytest.mark.parametrize("permits", [1, 3])
@pytest.mark.parametrize("name", EACH)
def test_a_line_is_served_at_the_instants_of_its_schedule(name: str, permits: int) -> None:
    """A rate limiter under trio that is a millisecond off, or a permit, is another one."""

    permits = min(permits, EACH[name]().max_permits or permits)

    async def main() -> dict[int, int]:
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter(EACH[name]()), nursery)
            await crowd.queue(range(30), permits)
        return crowd.granted

    instants = run(main)

    assert dict(enumerate(simulate(EACH[name](), [(0, permits)] * 30))) == instants


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", EACH)
def test_requests_of_all_sizes_come_and_wait_as_they_do_on_paper(name: str, seed: int) -> None:
    """Lines that form, empty and form again, with idle time in between."""
    dice = random.Random(seed)
    most = EACH[name]().max_permits or 3
    requests = sorted((dice.randrange(6000) * MS, min(most, dice.choice((1, 1, 2, 3)))) for _ in range(40))
    requests = [(0, 1), *((at + place, size) for place, (at, size) in enumerate(requests))]
    # On paper, everybody is booked from when they came. A limiter does so up to catch_up, which matters if one member waits for another.
    catch_up = 1000 if name == "AllOf" else 0.02

    async def main() -> dict[int, int]:
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter(EACH[name](), catch_up=catch_up), nursery)
            for place, (at, size) in enumerate(requests):
                await trio.sleep_until(at / SECOND)
                crowd.ask(place, size)
        return crowd.granted

    instants = run(main)

    assert dict(enumerate(simulate(EACH[name](), requests))) == instants


@pytest.mark.parametrize("name", EACH)
def test_tasks_that_go_round_are_paced_as_under_asyncio(name: str) -> None:
    """Ten workers that ask again and again, as programs do; asyncio's drivers say when."""

    async def main() -> list[int]:
        limiter = aiorate.Limiter(EACH[name]())
        granted: list[int] = []

        async def worker() -> None:
            for _ in range(10):
                await limiter.acquire()
                granted.append(now())
                await anyio.sleep(0.05)

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(worker)
        return granted

    assert run_on("asyncio", main) == run_on("trio", main)


@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket", "TicksAccumulator"])
def test_thousands_that_fall_due_at_once_are_woken_as_under_asyncio(name: str) -> None:
    """After a pause, in portions, so that others have their turn in between."""
    fast = {
        "TokenPool": lambda: aiorate.TokenPool("10000/s", burst_ratio=10, pool=SECOND),
        "TokenBucket": lambda: aiorate.TokenBucket("10000/s", burst=5000),
        "TicksAccumulator": lambda: aiorate.TicksAccumulator("10000/s"),
    }

    async def main() -> list[int]:
        limiter = aiorate.Limiter(fast[name]())
        await limiter.acquire()
        await anyio.sleep(1)
        limiter.pause(1)
        granted: list[int] = []

        async def one() -> None:
            await limiter.acquire()
            granted.append(now())

        async with anyio.create_task_group() as tasks:
            for _ in range(5000):
                tasks.start_soon(one)
        return granted

    assert run_on("asyncio", main) == run_on("trio", main)


@pytest.mark.parametrize("days", [0, 30, 100, 400])
def test_a_clock_that_has_run_for_long_is_still_exact(days: int) -> None:
    """Its seconds are a float, which has no digits left for a nanosecond after some weeks: no wake-up is early for that."""

    async def main() -> list[int]:
        await trio.sleep(days * 86_400)
        limiter = aiorate.Limiter("7/s")
        begun, granted = trio.current_time(), []
        for _ in range(200):
            await limiter.acquire()
            granted.append(round((trio.current_time() - begun) * SECOND))
        return granted

    expected = simulate(aiorate.TokenPool("7/s"), [0] * 200)

    assert max(abs(instant - exact) for instant, exact in zip(run(main), expected, strict=True)) <= 16 * (days > 0)


# All that users call.


def test_every_way_to_ask_takes_its_turn() -> None:
    """`async with`, `of()`, functions, generators and slots stand in one line."""

    async def main() -> list[tuple[str, int]]:
        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))
        three = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=3))
        seen: list[tuple[str, int]] = []

        @limiter
        async def function() -> None:
            seen.append(("function", now()))

        @limiter.of(1)
        async def generator() -> AsyncIterator[int]:
            seen.append(("generator", now()))
            yield 1

        async with limiter as waited:
            seen.append(("with", now()))
        assert waited == 0.0
        async with limiter.of(1) as waited:
            seen.append(("of", now()))
        assert waited == 0.1
        await function()
        async with aclosing(generator()) as steps:
            async for _ in steps:
                pass
        async with aclosing(limiter.slots()) as slots:
            async for slot in slots:
                seen.append(("slot", round(slot.scheduled_at * SECOND)))
                if slot.index == 2:
                    break
        async with three.of(3):
            pass
        async with three.of(2) as waited:
            seen.append(("of 2", round(waited * SECOND)))
        return seen

    names = ["with", "of", "function", "generator", "slot", "slot", "slot"]
    assert [*((name, place * SECOND // 10) for place, name in enumerate(names)), ("of 2", SECOND // 5)] == run(main)


@pytest.mark.parametrize("name", EACH)
def test_slots_say_what_they_say_under_asyncio(name: str) -> None:
    """Index, instant and lag, where the body is slow now and then."""

    async def main() -> list[tuple[int, float, float]]:
        seen = []
        async with aclosing(aiorate.Limiter(EACH[name]()).slots()) as slots:
            async for slot in slots:
                seen.append((slot.index, slot.scheduled_at, slot.lag))
                if len(seen) % 7 == 0:
                    await anyio.sleep(0.35)
                if len(seen) == 40:
                    return seen
        return seen

    assert run_on("asyncio", main) == run_on("trio", main)


def test_try_acquire_never_passes_the_line() -> None:
    """Also not in the step in which the first is due."""

    async def main() -> list[bool]:
        answers = []
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter("10/s"), nursery)
            answers.append(crowd.limiter.try_acquire())
            await crowd.queue("AB")
            answers.append(crowd.limiter.try_acquire())
            for _ in range(3):
                await trio.sleep(0.1)
                answers.append(crowd.limiter.try_acquire())
        assert tenths(A=1, B=2) == crowd.granted
        return answers

    assert [True, False, False, False, True] == run(main)


def test_delay_and_max_wait_foretell_to_the_nanosecond() -> None:
    """Who waits too long is told at once, and spends nothing."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter("10/s"), nursery)
            await crowd.queue("ABC")

            assert (0.3, 0.1) == (crowd.limiter.delay(), crowd.limiter.statistics().next_at)
            crowd.ask("patient", max_wait=0.3)
            await settled()
            crowd.ask("hasty", max_wait=0.399)
            await settled()

            assert isinstance(crowd.failed["hasty"], aiorate.WaitTooLong)
            assert (0, 3, 1) == (now(), crowd.limiter.statistics().waiting, crowd.limiter.statistics().refused)
        assert tenths(A=0, B=1, C=2, patient=3) == crowd.granted
        assert {"A": 0.0, "B": 0.1, "C": 0.2, "patient": 0.3} == crowd.waited

    run(main)


def test_a_full_line_refuses() -> None:
    """``max_waiting`` counts those who wait."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter("10/s", max_waiting=2), nursery)
            await crowd.queue("ABCD")
            assert isinstance(crowd.failed["D"], aiorate.LineFull)
            await trio.sleep(0.1)
            await settled()
            crowd.ask("E")
        assert tenths(A=0, B=1, C=2, E=3) == crowd.granted

    run(main)


@pytest.mark.parametrize("first", [True, False])
def test_who_is_cancelled_leaves_room_at_once(first: bool) -> None:
    """A place in line is not held by a task that only has to run once more to be gone."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter("10/s", max_waiting=2), nursery)
            await crowd.queue("ABC")

            crowd.cancel("B" if first else "C")
            assert crowd.limiter.statistics().waiting == 1
            waited = await crowd.limiter.acquire()

            assert (0.2, 2) == (waited, len(crowd.granted))

    run(main)


def test_who_is_shielded_stays_in_line() -> None:
    """A scope that cannot reach a task has not cancelled it."""

    async def main() -> None:
        limiter = aiorate.Limiter("10/s")
        await limiter.acquire()

        async def shielded() -> None:
            with trio.CancelScope(shield=True):
                assert await limiter.acquire() == 0.1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(shielded)
            await settled()
            nursery.cancel_scope.cancel()
            assert limiter.statistics().waiting == 1
        assert (2, 0, SECOND // 10) == (limiter.statistics().granted, limiter.statistics().cancelled, now())

    run(main)


# Changes, for those in line too.


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda limiter: limiter.pause(1), [1.1, 1.2, 1.3]),
        (lambda limiter: (limiter.pause(1), limiter.resume()), [0.1, 0.2, 0.3]),
        (lambda limiter: limiter.set_rate("20/s"), [0.05, 0.1, 0.15]),
        (lambda limiter: limiter.set_rate("5/s"), [0.2, 0.4, 0.6]),
        (lambda limiter: limiter.charge(2), [0.3, 0.4, 0.5]),
        (lambda limiter: limiter.refund(1), [0, 0.1, 0.2]),
        (lambda limiter: (limiter.charge(3), limiter.refund(2)), [0.2, 0.3, 0.4]),
        (lambda limiter: limiter.reset(), [0, 0.1, 0.2]),
        (lambda limiter: limiter.apply("5,1.0,restart"), [0.2, 0.4, 0.6]),
    ],
)
@pytest.mark.parametrize("task", ["another task", "a task that comes back from a timer"])
def test_a_change_holds_for_those_in_line(change: Callable[[aiorate.Limiter], object], expected: list[float], task: str) -> None:
    """Whoever keeps watch has to look at the clock anew."""

    async def main() -> list[float]:
        async with trio.open_nursery() as nursery:
            limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))
            await limiter.acquire()
            crowd = Crowd(limiter, nursery)
            await crowd.queue("ABC")
            if task == "another task":
                nursery.start_soon(trio.lowlevel.checkpoint)
            change(limiter)
        return [crowd.granted[name] / SECOND for name in "ABC"]

    assert expected == run(main)


def test_a_line_stands_still_until_it_is_started() -> None:
    """No timer is set meanwhile; afterwards the line goes on where it was held up."""

    async def main() -> dict[str, int]:
        async with trio.open_nursery() as nursery:
            limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))
            await limiter.acquire()
            crowd = Crowd(limiter, nursery)
            await crowd.queue("A")
            await trio.sleep(0.05)
            limiter.apply("10,1.0,stop")
            await crowd.queue("BC")
            assert (math.inf, math.inf) == (limiter.delay(), trio.lowlevel.current_statistics().seconds_to_next_deadline)
            crowd.cancel("B")
            await trio.sleep(10)
            limiter.apply("10,1.0,start")
        return crowd.granted

    assert {"A": 10_100 * MS, "C": 10_200 * MS} == run(main)


def test_a_timer_that_has_fired_is_not_waited_for_again() -> None:
    """Whoever comes while the limiter is stopped would look at the clock for ever, and no time would pass."""

    async def main() -> dict[str, int]:
        async with trio.open_nursery() as nursery:
            limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))
            crowd = Crowd(limiter, nursery)
            await crowd.queue("AB")
            await trio.sleep(1)
            limiter.apply("10,1.0,stop")
            await crowd.queue("C")
            await trio.sleep(1)
            limiter.apply("10,1.0,start")
        return crowd.granted

    assert tenths(A=0, B=1, C=20) == run(main)


def test_pauses_in_a_row_end_at_the_later_end() -> None:
    """The one who keeps watch sleeps through all of them."""

    async def main() -> dict[str, int]:
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1)), nursery)
            crowd.limiter.pause(1)
            await crowd.queue("AB")
            await trio.sleep(0.5)
            crowd.limiter.pause(1)
            crowd.limiter.pause(0.1)
        return crowd.granted

    assert tenths(A=15, B=16) == run(main)


def test_a_lower_rate_sends_away_who_asks_for_too_much() -> None:
    """The first in line among them, who keeps watch."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter(aiorate.SlidingWindow("3/s")), nursery)
            await crowd.limiter.acquire(3)
            await crowd.queue("A", 3)
            await crowd.queue("B", 2)
            crowd.limiter.set_rate("2/s")
        assert isinstance(crowd.failed["A"], ValueError)
        assert {"B": SECOND} == crowd.granted

    run(main)


def test_closing_sends_everybody_away_with_an_error_of_their_own() -> None:
    """A single instance raised in many tasks would collect the frames of them all."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            limiter = aiorate.Limiter("10/s")
            await limiter.acquire()
            crowd = Crowd(limiter, nursery)
            await crowd.queue("ABC")
            await limiter.aclose()
            await settled()
            assert math.inf == trio.lowlevel.current_statistics().seconds_to_next_deadline
            crowd.ask("D")
        assert 0 == now()
        assert set("ABCD") == set(crowd.failed)
        assert all(isinstance(error, aiorate.LimiterClosed) for error in crowd.failed.values())
        assert 4 == len(set(map(id, crowd.failed.values())))

        limiter.apply("10,1.0,start")
        assert await limiter.acquire() == 0.1

    run(main)


# Cancelled.


@pytest.mark.parametrize("gone", ["A", "B", "C", "D", "AB", "BC", "CD", "AC", "DB", "ABC", "BCD", "DCBA"])
@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket-paced", "TicksAccumulator", "SlidingWindow"])
def test_whoever_leaves_the_line_others_move_up_at_once(gone: str, name: str) -> None:
    """The first of them keeps watch, and the next takes over; the last takes nothing along."""

    async def main() -> tuple[dict[str, int], aiorate.Statistics]:
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter(EACH[name]()), nursery)
            while crowd.limiter.try_acquire():
                pass
            await crowd.queue("ABCD")
            await trio.sleep(0.033)
            crowd.cancel(*gone)
        assert crowd.limiter.statistics().waiting == 0
        return crowd.granted, crowd.limiter.statistics()

    granted, statistics = run(main)

    scheduler, ready = EACH[name](), 0
    while scheduler.take(1, 0) <= 0:
        ready += 1
    stayed = [who for who in "ABCD" if who not in gone]
    assert dict(zip(stayed, simulate(scheduler, [0] * len(stayed)), strict=True)) == granted
    assert (ready + len(stayed), len(gone), 0) == (statistics.granted, statistics.cancelled, statistics.skipped)


def test_who_is_cancelled_in_the_step_of_the_grant_hands_it_on() -> None:
    """Cancelled first, then granted, and only then run: the next gets it at the same instant."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=3))
            await limiter.acquire(3)
            crowd = Crowd(limiter, nursery)
            await crowd.queue("ABC")

            crowd.cancel("A")
            limiter.refund(1)
            assert limiter.statistics().waiting == 2
            await settled()

            assert {"B": 0} == crowd.granted
            assert (1, 3, 1) == (limiter.statistics().waiting, limiter.statistics().granted, limiter.statistics().cancelled)
        assert tenths(B=0, C=1) == crowd.granted

    run(main)


def test_who_is_granted_first_and_cancelled_then_keeps_the_permit() -> None:
    """A task that trio has woken goes on to its next checkpoint: the permit is used, and nobody gets it again."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=3))
            await limiter.acquire(3)
            crowd = Crowd(limiter, nursery)
            await crowd.queue("ABC")

            limiter.refund(1)
            crowd.cancel("A")
            await settled()

            assert {"A": 0} == crowd.granted
            assert (2, 3, 0) == (limiter.statistics().waiting, limiter.statistics().granted, limiter.statistics().cancelled)
        assert tenths(A=0, B=1, C=2) == crowd.granted

    run(main)


@pytest.mark.parametrize("gone", ["A", "B", "C", "AB", "AC", "BC", "ABC"])
def test_a_deadline_on_the_very_instant_of_the_grant_loses_nothing(gone: str) -> None:
    """Trio gives the deadline precedence; a permit granted meanwhile goes to the next at that instant."""

    async def main() -> dict[str, int]:
        async with trio.open_nursery() as nursery:
            limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=3))
            limiter.pause(1)
            crowd = Crowd(limiter, nursery)
            for name in "ABCDEF":
                crowd.ask(name, deadline=1.0 if name in gone else math.inf)
                await settled()
        assert (6 - len(gone), len(gone)) == (limiter.statistics().granted, limiter.statistics().cancelled)
        return crowd.granted

    stayed = [name for name in "ABCDEF" if name not in gone]
    assert dict(zip(stayed, [SECOND] * 3 + [11 * SECOND // 10, 12 * SECOND // 10, 13 * SECOND // 10], strict=False)) == run(main)


def test_deadlines_end_the_wait_and_nothing_else() -> None:
    """`move_on_after` and `fail_after`, around one that waits and one that need not."""

    async def main() -> None:
        limiter = aiorate.Limiter("10/s")
        with trio.fail_after(0.01):
            await limiter.acquire()
        with trio.move_on_after(0.05) as scope:
            await limiter.acquire()
        assert (True, 50 * MS) == (scope.cancelled_caught, now())
        with pytest.raises(trio.TooSlowError), trio.fail_after(0.04):
            await limiter.acquire()
        with trio.fail_after(0.02):
            assert await limiter.acquire() == 0.01
        assert (2, 2, 0, SECOND // 10) == (
            limiter.statistics().granted,
            limiter.statistics().cancelled,
            limiter.statistics().waiting,
            now(),
        )

    run(main)


def test_a_nursery_that_is_cancelled_takes_its_waiters_along() -> None:
    """In whatever order trio throws them out, the others stand where they should."""

    async def main() -> None:
        limiter = aiorate.Limiter("10/s")
        await limiter.acquire()
        async with trio.open_nursery() as nursery:
            stay = Crowd(limiter, nursery)
            async with trio.open_nursery() as doomed:
                go = Crowd(limiter, doomed)
                for name in range(50):
                    await go.queue([name])
                    if name % 10 == 0:
                        await stay.queue([name])
                doomed.cancel_scope.cancel()
            assert (5, 50) == (limiter.statistics().waiting, limiter.statistics().cancelled)
        assert {name: (1 + name // 10) * SECOND // 10 for name in range(0, 50, 10)} == stay.granted

    run(main)


def test_cancelled_before_it_waits_nothing_is_spent() -> None:
    """A scope that is cancelled already lets what need not wait through, as trio's own locks would not; the line is never joined."""

    async def main() -> None:
        limiter = aiorate.Limiter("10/s")
        await limiter.acquire()
        with trio.CancelScope() as scope:
            scope.cancel()
            await limiter.acquire()
        assert (True, 0, 1, 1) == (
            scope.cancelled_caught,
            limiter.statistics().waiting,
            limiter.statistics().granted,
            limiter.statistics().cancelled,
        )
        assert await limiter.acquire() == 0.1

    run(main)


def test_slots_and_generators_are_cancelled_like_the_rest() -> None:
    """They stand in line in the same way."""

    async def main() -> None:
        limiter = aiorate.Limiter("10/s")
        seen = 0
        with trio.move_on_after(0.35):
            async with aclosing(limiter.slots()) as slots:
                async for slot in slots:
                    assert slot.index == seen
                    seen += 1
        assert seen == 4
        assert (4, 1, 0) == (limiter.statistics().granted, limiter.statistics().cancelled, limiter.statistics().waiting)
        assert 0.05 == round(await limiter.acquire(), 9)

    run(main)


# Random histories.


class Story:
    """Who asks when, and who gives up when: by its own deadline, or by another's hand. Many on the instants of grants."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.count = 120
        spread = dice.choice((1, 3000, 8_000))
        self.arrivals = [0, *sorted(dice.randrange(spread) * MS for _ in range(self.count - 1))]
        self.deadlines: dict[int, int] = {}
        self.shots: list[tuple[int, int]] = []
        # The first one stays: a schedule begins when it is first asked.
        for who in dice.sample(range(1, self.count), self.count // 2):
            instant = self.arrivals[who] + dice.choice((0, dice.randrange(200), 100 * dice.randrange(150), dice.randrange(20_000))) * MS
            if dice.random() < 0.5:
                instant -= instant % (SECOND // 10)
            if dice.random() < 0.5:
                self.deadlines[who] = max(instant, self.arrivals[who])
            else:
                self.shots.append((instant, who))
        self.shots.sort()

    async def play(self, limiter: aiorate.Limiter, permits: int) -> dict[int, int]:
        """Who was granted, and when."""
        async with trio.open_nursery() as nursery:
            crowd = Crowd(limiter, nursery)

            async def arrive() -> None:
                for who, instant in enumerate(self.arrivals):
                    await trio.sleep_until(instant / SECOND)
                    crowd.ask(who, permits, self.deadlines.get(who, math.inf * SECOND) / SECOND)
                    await settled()

            async def shoot() -> None:
                for instant, who in self.shots:
                    await trio.sleep_until(instant / SECOND)
                    if who in crowd.scopes:
                        crowd.cancel(who)
                    else:
                        self.deadlines[who] = instant

            nursery.start_soon(arrive)
            nursery.start_soon(shoot)
        return crowd.granted


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", EACH)
def test_those_who_stay_never_notice_those_who_leave(name: str, seed: int) -> None:
    """A random half gives up, much of it in the very step of a grant. The rest is served as if nobody else had been there."""
    story = Story(seed)
    limiter = aiorate.Limiter(EACH[name]())
    granted = run(story.play, limiter, 1)
    alone = simulate(EACH[name](), [story.arrivals[who] for who in sorted(granted)])

    assert 60 <= len(granted) <= 115
    assert dict(zip(sorted(granted), alone, strict=True)) == granted
    seen = limiter.statistics()
    assert (len(granted), 120 - len(granted), 0, 0) == (seen.granted, seen.cancelled, seen.waiting, seen.skipped)


@pytest.mark.parametrize("name", ["TokenPool", "TokenPool-burst", "TokenBucket", "TicksAccumulator", "CalendarWindow", "AllOf"])
def test_those_who_stay_never_notice_larger_requests_that_leave(name: str) -> None:
    """What is handed on is the whole request."""
    story = Story(7)
    limiter = aiorate.Limiter(EACH[name]())
    granted = run(story.play, limiter, 3)
    alone = simulate(EACH[name](), [(story.arrivals[who], 3) for who in sorted(granted)])

    assert dict(zip(sorted(granted), alone, strict=True)) == granted
    assert 3 * len(granted) == limiter.statistics().granted


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", EACH)
def test_trios_driver_does_what_asyncios_do(name: str, seed: int) -> None:
    """One random history of everything that users call, under both: the same grants, errors, answers and counts."""
    dice = random.Random(100 + seed)
    most = EACH[name]().max_permits or 3
    verbs = ["ask"] * 8 + ["cancel"] * 4 + ["try", "delay", "pause", "resume", "charge", "refund", "rate", "stop", "start", "restart"]
    steps = [
        (dice.choice((1, 10, 37, 50, 100, 600)) * MS + 7, dice.choice(verbs), min(most, dice.choice((1, 1, 1, 2, 3)))) for _ in range(150)
    ]

    async def main() -> tuple[Any, ...]:
        limiter = aiorate.Limiter(EACH[name](), max_waiting=20)
        said: list[Any] = []
        async with anyio.create_task_group() as tasks:
            crowd = Crowd(limiter, tasks)
            for place, (gap, verb, number) in enumerate(steps):
                await anyio.sleep(gap / SECOND)
                if verb == "ask":
                    crowd.ask(place, number, **({"max_wait": 2} if place % 5 == 0 else {}))
                elif verb == "cancel":
                    waiting = [who for who in crowd.scopes if who not in crowd.granted and who not in crowd.failed]
                    if waiting:
                        crowd.cancel(waiting[place % len(waiting)])
                elif verb == "try":
                    said.append(limiter.try_acquire(number))
                elif verb == "delay":
                    said.append(limiter.delay(number))
                elif verb == "pause":
                    limiter.pause(number / 10)
                elif verb == "resume":
                    limiter.resume()
                elif verb in ("charge", "refund"):
                    getattr(limiter, verb)(number)
                elif name != "AllOf":
                    rate = ("7", "10", "20")[number - 1]
                    limiter.set_rate(f"{rate}/s") if verb == "rate" else limiter.apply(f"{rate},1.0,{verb}")
                said.append(limiter.lag)
            limiter.resume()
            if name != "AllOf":
                limiter.apply("10,1.0,start")
        failed = {who: str(error) for who, error in crowd.failed.items()}
        return crowd.granted, crowd.waited, failed, said, limiter.statistics()

    under_asyncio, under_trio = run_on("asyncio", main), run_on("trio", main)

    assert len(under_asyncio[0]) > 10
    assert under_asyncio == under_trio


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [name for name in EACH if name != "TicksAccumulator"])
def test_nothing_is_lost_created_or_stuck_in_a_crowd_that_does_as_it_likes(name: str, seed: int) -> None:
    """Workers that ask, give up, refund, close scopes and come again; after it, the schedule still has all its permits."""
    dice = random.Random(seed)

    async def main() -> None:
        limiter = aiorate.Limiter(EACH[name]())
        granted: list[int] = []
        asked = ended = 0

        async def worker() -> None:
            nonlocal asked, ended
            for _ in range(12):
                await trio.sleep(dice.choice((0, 0, 0.1, 0.037, 0.5)))
                with trio.move_on_after(dice.choice((math.inf, 0, 0.1, 0.2, 0.3, 0.55, 1, 2))) as scope:
                    asked += 1
                    if dice.random() < 0.3:
                        some.append(scope)
                    if some and dice.random() < 0.4:
                        some.pop(dice.randrange(len(some))).cancel()
                    await limiter.acquire()
                    granted.append(now())
                ended += 1

        some: list[trio.CancelScope] = []
        async with trio.open_nursery() as nursery:
            for _ in range(25):
                nursery.start_soon(worker)
        seen = limiter.statistics()
        assert (25 * 12, 0) == (ended, seen.waiting)
        assert (len(granted), asked - len(granted)) == (seen.granted, seen.cancelled)
        for window in (0.001, 0.1, 0.25, 1.0, 3.0) if limiter.bound(1) else ():
            assert most_in_any_window(granted, round(window * SECOND)) <= (limiter.bound(window) or 0)
        assert max((later - former for former, later in pairwise(granted)), default=0) <= 3 * SECOND
        # Rested, it is as good as one that nobody ever gave up on.
        await trio.sleep(100)
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf
        begun, rested = now(), []
        for _ in range(30):
            await limiter.acquire()
            rested.append(now())
        scheduler = EACH[name]()
        for instant in granted:
            scheduler.take(1, instant)
        assert simulate(scheduler, [begun] * 30) == rested

    run(main)


# The loop turns.


@pytest.mark.parametrize(
    "factory",
    [
        lambda: aiorate.TokenPool("2000000/s"),
        lambda: aiorate.TokenPool("1000000/s", burst_ratio=2),
        lambda: aiorate.TokenBucket("1000000/s", burst=1000),
        lambda: aiorate.TicksAccumulator("2000000/s"),
        lambda: aiorate.TicksAccumulator("1/s", start=-(10**9) * SECOND),
        lambda: aiorate.BurstRatio("2000000/s", ratio=2),
        lambda: aiorate.SmoothBursty("2000000/s"),
        lambda: aiorate.SlidingWindow("1000000/s"),
        lambda: aiorate.AllOf(aiorate.TokenBucket("1000000/s", burst=10), aiorate.SlidingWindow("1000000/s")),
    ],
)
@pytest.mark.parametrize("way", ["acquire", "max_wait", "slots", "with", "many"])
def test_who_asks_for_ever_lets_others_run(factory: Callable[[], aiorate.Scheduler], way: str) -> None:
    """Without a checkpoint now and then no deadline would ever end this loop. In real time."""

    async def ask(limiter: aiorate.Limiter) -> None:
        while True:
            if way == "slots":
                async with aclosing(limiter.slots()) as slots:
                    async for _ in slots:
                        pass
            elif way == "with":
                async with limiter:
                    pass
            else:
                await limiter.acquire(max_wait=1000 if way == "max_wait" else None)

    async def main() -> tuple[bool, int, int]:
        limiter = aiorate.Limiter(factory())
        with trio.move_on_after(0.02) as scope:
            async with trio.open_nursery() as nursery:
                for _ in range(20 if way == "many" else 1):
                    nursery.start_soon(ask, limiter)
        return scope.cancelled_caught, limiter.statistics().waiting, trio.lowlevel.current_statistics().tasks_living

    caught, waiting, living = trio.run(main)

    assert (True, 0) == (caught, waiting)
    assert living == trio.run(_living)


async def _living() -> int:
    return trio.lowlevel.current_statistics().tasks_living


def test_cancelled_while_it_lets_the_loop_turn_the_grant_is_undone() -> None:
    """The checkpoint after a grant may be the one at which a task is cancelled."""

    async def main() -> None:
        limiter = aiorate.Limiter(aiorate.TokenBucket("1/day", burst=1_000_000))
        granted = 0
        for _ in range(3):
            with trio.CancelScope() as scope:
                scope.cancel()
                while True:
                    await limiter.acquire()
                    granted += 1
            assert scope.cancelled_caught
        assert (granted, 3) == (limiter.statistics().granted, limiter.statistics().cancelled)

    trio.run(main)


# One loop after the other, and two at a time.


def once(kind: str, main: Callable[[], Awaitable[Any]]) -> Any:
    """Run it in a loop of that kind."""
    if kind == "asyncio":
        return asyncio.run(main())  # type: ignore[arg-type]
    if kind == "virtual":
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main())  # type: ignore[arg-type]
    return run(main) if kind == "mock" else trio.run(main)


@pytest.mark.parametrize(
    "kinds",
    [
        ("asyncio", "trio", "asyncio", "trio"),
        ("trio", "trio", "mock", "trio"),
        ("mock", "mock", "asyncio", "mock"),
        ("virtual", "mock", "virtual", "trio"),
        ("none", "trio", "none", "asyncio"),
        ("trio", "none", "none", "trio"),
    ],
)
@pytest.mark.parametrize(
    "factory",
    [
        lambda: aiorate.TokenBucket("4/day", burst=3, initial=3),
        lambda: aiorate.SlidingWindow("3/day"),
        lambda: aiorate.TokenPool("1/day", pool=3 * 86_400 * SECOND),
        lambda: aiorate.AllOf(aiorate.TokenBucket("4/day", burst=3), aiorate.SlidingWindow("3/day")),
    ],
)
def test_the_budget_outlives_the_loops(kinds: tuple[str, ...], factory: Callable[[], aiorate.Scheduler]) -> None:
    """Each run has a clock with another origin: neither is time that never passed credited, nor time that did."""
    limiter = aiorate.Limiter(factory())
    most = 1 if isinstance(limiter.scheduler, aiorate.TokenPool) else 3
    taken = []

    async def take() -> None:
        taken.append(limiter.try_acquire())

    for kind in kinds:
        if kind == "none":
            taken.append(limiter.try_acquire())
        else:
            once(kind, take)

    assert [True] * most + [False] * (4 - most) == taken


def test_time_goes_on_from_one_run_to_the_next() -> None:
    """A mock clock stands still between two runs, whatever it read at the end of the first and reads at the beginning of the second."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))

    async def two() -> tuple[float, float]:
        limiter.delay()
        await trio.sleep(0.03)
        return await limiter.acquire(), await limiter.acquire()

    assert (0.0, 0.1) == run(two)
    assert 0.1 == limiter.delay()
    assert (0.07, 0.1) == run(two)
    limiter.pause(1)
    assert (1.07, 0.1) == run(two)


def test_a_pause_outlives_a_run() -> None:
    """It was asked for by the clock of the first, and ends by that of the second."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=5))

    async def pause() -> None:
        await trio.sleep(1000)
        limiter.pause(60)

    run(pause)

    async def main() -> float:
        limiter.delay()
        await trio.sleep(0.5)
        return await limiter.acquire()

    assert 59.5 == run(main)


def test_waiters_of_a_dead_run_go() -> None:
    """Under trio every task has ended when a run has; a closed asyncio loop may leave some for ever."""
    limiter = aiorate.Limiter("1/day")
    loop = asyncio.new_event_loop()

    async def leave_one() -> asyncio.Task[float]:
        limiter.try_acquire()
        task = asyncio.ensure_future(limiter.acquire())
        await asyncio.sleep(0)
        return task

    async def look() -> int:
        trio.lowlevel.spawn_system_task(limiter.acquire)
        trio.lowlevel.spawn_system_task(limiter.acquire)
        await settled()
        return limiter.statistics().waiting

    task = loop.run_until_complete(leave_one())
    assert 2 == trio.run(look)  # the loop stands still, and its waiter is told when it goes on
    with pytest.raises(RuntimeError, match="moved to another event loop"):
        loop.run_until_complete(task)
    loop.close()
    assert 0 == limiter.statistics().waiting
    assert 2 == trio.run(look)


def test_a_second_running_loop_is_an_error() -> None:
    """Two threads would decide at once; either of them is told, whichever loop was first."""
    for first in ("trio", "asyncio"):
        limiter = aiorate.Limiter("1000/s")
        begun, over = threading.Event(), threading.Event()

        async def hold(limiter: aiorate.Limiter = limiter, begun: threading.Event = begun, over: threading.Event = over) -> None:
            await limiter.acquire()
            begun.set()
            while not over.is_set():
                await anyio.sleep(0.001)

        thread = threading.Thread(target=anyio.run, args=(hold,), kwargs={"backend": first})
        thread.start()
        begun.wait()
        try:
            for kind in ("asyncio", "trio"):
                with pytest.raises(RuntimeError, match="another running event loop"):
                    anyio.run(_often, limiter, backend=kind)
            if first == "trio":
                with pytest.raises(RuntimeError, match="another running event loop"):
                    limiter.try_acquire()
        finally:
            over.set()
            thread.join()
        trio.run(limiter.acquire)
        asyncio.run(limiter.acquire())


def test_a_worker_thread_asks_through_its_run() -> None:
    """`trio.from_thread` is to trio what `run_coroutine_threadsafe` is to asyncio."""

    async def main() -> list[float]:
        limiter = aiorate.Limiter(aiorate.TokenBucket("1000/s", burst=1))

        def work() -> list[float]:
            with pytest.raises(RuntimeError, match="another running event loop"):
                limiter.try_acquire()
            return [trio.from_thread.run(limiter.acquire) for _ in range(3)]

        await limiter.acquire()
        return await trio.to_thread.run_sync(work)

    waits = trio.run(main)

    assert 3 == len(waits)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_process_goes_on_with_the_budget() -> None:
    """It has neither the run nor the waiters of its parent, and may start a run of its own."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("2/day", burst=2))

    def child() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are threads
            pid = os.fork()
        if pid:
            return os.waitpid(pid, 0)[1]
        answers = []
        with suppress(BaseException):
            warnings.simplefilter("ignore")  # that both runs have to do with the same signals
            answers.append(limiter.statistics().waiting)
            answers.append(trio.run(_try, limiter))
            answers.append(trio.run(_try, limiter))
            answers.append(asyncio.run(_try(limiter)))
        os._exit(0 if answers == [0, True, False, False] else 1)

    async def main() -> int:
        limiter.try_acquire()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limiter.acquire, 2)
            await settled()
            status = await trio.to_thread.run_sync(child)
            assert (1, 1) == (limiter.statistics().granted, limiter.statistics().waiting)
            nursery.cancel_scope.cancel()
        return status

    assert 0 == trio.run(main)


async def _often(limiter: aiorate.Limiter) -> None:
    for _ in range(100_000):  # a loop is looked for every 5 ms, and by whoever has to wait
        await limiter.acquire(2)


async def _try(limiter: aiorate.Limiter) -> bool:
    return limiter.try_acquire()


def test_a_run_that_broke_off_does_not_keep_the_limiter() -> None:
    """An error inside trio ends the run with its tasks where they stood; nobody can ask them any more."""
    script = """
import asyncio, trio, trio.testing, aiorate
from functools import partial
from aiorate.testing import ManualClock
clock = ManualClock()
limiter, by_hand = aiorate.Limiter("20/s"), aiorate.Limiter("20/s", clock=clock)
kept = []
async def breaks():
    async with trio.open_nursery() as nursery:
        kept.append(nursery)
        for _ in range(3):
            nursery.start_soon(partial(limiter.acquire, max_wait=100))
            nursery.start_soon(partial(by_hand.acquire, max_wait=100))
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.001):
            await trio.lowlevel.wait_task_rescheduled(lambda raise_cancel: 1 / 0)
async def in_trio():
    limiter.pause(3600)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limiter.acquire)
        await trio.testing.wait_all_tasks_blocked()
        waiting = limiter.statistics().waiting
        limiter.resume()
    return waiting
async def in_asyncio():
    limiter.pause(3600)
    async with asyncio.TaskGroup() as group:
        group.create_task(limiter.acquire())
        await asyncio.sleep(0)
        waiting = limiter.statistics().waiting
        limiter.resume()
    return waiting
try:
    trio.run(breaks)
except trio.TrioInternalError:
    print("broke off")
print(by_hand.statistics().waiting, clock.timers)
print(trio.run(in_trio), asyncio.run(in_asyncio()), limiter.statistics().waiting, flush=True)
"""
    outcome = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)

    assert "broke off\n0 0\n1 1 0\n" == outcome.stdout


def test_asyncio_needs_neither_trio_nor_anyio() -> None:
    """Whoever uses asyncio pays for neither, in time or in memory."""
    script = """
import asyncio, sys, aiorate
async def main():
    for scheduler in (aiorate.TokenPool("1000/s"), aiorate.TokenBucket("1000/s", burst=1)):
        limiter = aiorate.Limiter(scheduler)
        limiter.try_acquire()
        async with limiter, limiter.of(1):
            pass
        limiter.statistics(), limiter.delay()
        await limiter.aclose()
asyncio.run(main())
print(sorted({"trio", "anyio", "sniffio"} & set(sys.modules)))
"""
    outcome = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert "[]\n" == outcome.stdout


# Clocks of one's own.


def test_a_clock_by_hand_moves_waiters_under_trio() -> None:
    """Tests of users' code are written with it, for asyncio and trio alike."""

    async def main() -> None:
        clock = ManualClock()
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter("10/s", clock=clock), nursery)
            await crowd.queue("ABCD")
            served = [len(crowd.granted)]
            for _ in range(2):
                clock.advance(0.099999999)
                await settled()
                served.append(len(crowd.granted))
                clock.advance(0.000000001)
                await settled()
                served.append(len(crowd.granted))
            crowd.cancel("C")
            await settled()
            assert 1 == clock.timers
            clock.advance(0.1)
        assert [1, 1, 2, 2, 3] == served
        assert {"A": 0.0, "B": 0.1, "C": 0.2, "D": 0.3} == crowd.waited | {"C": 0.2}
        assert (0, 0) == (clock.timers, now())

    run(main)


def test_a_clock_by_hand_wakes_all_that_are_due_at_once() -> None:
    """With the loop's own timers it would be a thousand at a time; this one rings once."""

    async def main() -> int:
        clock = ManualClock()
        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1500), clock=clock)
        limiter.pause(1)
        async with trio.open_nursery() as nursery:
            for _ in range(1500):
                nursery.start_soon(limiter.acquire)
            await settled()
            clock.advance(1)
        return clock.timers

    assert 0 == run(main)


@pytest.mark.parametrize("name", EACH)
def test_a_clock_without_timers_is_followed_by_trios_deadlines(name: str) -> None:
    """Such a clock only says what time it is; here, one with another origin."""

    class Shifted:
        def now(self) -> int:
            return round((trio.current_time() + 1_000) * SECOND)

    async def main() -> list[int]:
        await trio.sleep(5)
        limiter = aiorate.Limiter(EACH[name](), clock=Shifted())
        granted = []
        for _ in range(20):
            await limiter.acquire()
            granted.append(Shifted().now())
        return granted

    # Deadlines are told by how long they are, in floats.
    expected = simulate(EACH[name](), [1_005 * SECOND] * 20)
    assert max(abs(instant - exact) for instant, exact in zip(run(main), expected, strict=True)) <= 2 * MS


def test_what_is_due_in_a_thousand_years_is_waited_for() -> None:
    """A deadline is a float, and an instant any whole number."""

    async def main() -> bool:
        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))
        limiter.charge(10**400)
        async with trio.open_nursery() as nursery:
            crowd = Crowd(limiter, nursery)
            await crowd.queue("AB")
            for _ in range(20):  # no timer is set for longer than a day, and who is woken by it waits all the same
                await trio.sleep(86_400)
                assert (2, {}) == (limiter.statistics().waiting, crowd.failed)
            limiter.reset()
        return {"A": 20 * 86_400 * SECOND, "B": 20 * 86_400 * SECOND + SECOND // 10} == crowd.granted

    assert run(main)


def test_who_was_woken_in_vain_leaves_room_like_anyone() -> None:
    """Its own timer ended its wait, which is not the same as being cancelled; being cancelled later is."""

    async def main() -> None:
        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))
        limiter.charge(10**10)
        async with trio.open_nursery() as nursery:
            crowd = Crowd(limiter, nursery)
            for day in range(20):
                await crowd.queue([day])
                await trio.sleep(86_400)
                limiter.apply("10,1.0,stop")  # before or after the timer is heard, as trio likes
                assert limiter.statistics().waiting == 1
                await settled()
                crowd.cancel(day)
                assert limiter.statistics().waiting == 0
                limiter.apply("10,1.0,start")
                await settled()

    run(main)


def test_precise_changes_nothing_under_trio() -> None:
    """Kernel timers are asyncio's."""

    async def main(precise: bool) -> list[int]:
        limiter = aiorate.Limiter("10/s", precise=precise)
        granted = []
        for _ in range(5):
            await limiter.acquire()
            granted.append(now())
        return granted

    assert run(main, False) == run(main, True) == [place * SECOND // 10 for place in range(5)]


def test_tasks_of_anyio_are_tasks() -> None:
    """Its groups and scopes work as trio's do."""

    async def main() -> None:
        limiter = aiorate.Limiter("10/s")
        async with anyio.create_task_group() as tasks:
            crowd = Crowd(limiter, tasks)
            for name in "ABC":
                crowd.ask(name)
                await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(0.05) as scope:
                await limiter.acquire()
            assert scope.cancelled_caught
            with pytest.raises(TimeoutError), anyio.fail_after(0.01):
                await limiter.acquire()
            crowd.cancel("B")
        assert tenths(A=0, C=1) == crowd.granted
        assert 3 == limiter.statistics().cancelled

    run_on("trio", main)


# Errors in what others wrote.


class Flawed(aiorate.TokenBucket):
    """A bucket that can be told to fail."""

    fails = False

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if self.fails:
            raise ArithmeticError("flawed")
        return super().take(permits, now, since)


@pytest.mark.parametrize("when", ["at the next instant", "at a change"])
def test_an_error_in_the_scheduler_fails_the_waiters_and_the_limiter_works_on(when: str) -> None:
    """It would otherwise come out of whichever task keeps watch, and leave the others for ever."""

    async def main() -> None:
        scheduler = Flawed("10/s", burst=1)
        limiter = aiorate.Limiter(scheduler)
        await limiter.acquire()
        errors: list[BaseException] = []

        async def one() -> None:
            try:
                await limiter.acquire()
            except ArithmeticError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
            await settled()
            scheduler.fails = True
            if when == "at a change":
                limiter.refund(1)
        assert (3, SECOND // 10 * (when != "at a change")) == (len(set(map(id, errors))), now())
        scheduler.fails = False
        assert (0, math.inf) == (limiter.statistics().waiting, trio.lowlevel.current_statistics().seconds_to_next_deadline)
        await limiter.acquire()
        assert await limiter.acquire() == 0.1

    run(main)


@pytest.mark.parametrize("timers", [False, True])
def test_a_clock_that_breaks_fails_the_waiters(timers: bool) -> None:
    """As a scheduler that does."""

    class Broken(ManualClock if timers else object):  # type: ignore[misc]
        breaks = False

        def now(self) -> int:
            if self.breaks:
                raise OSError("no clock")
            return super().now() if timers else round(trio.current_time() * SECOND)

    async def main() -> None:
        clock = Broken()
        limiter = aiorate.Limiter("10/s", clock=clock)
        await limiter.acquire()
        errors = []

        async def one() -> None:
            try:
                await limiter.acquire()
            except OSError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
            await settled()
            clock.breaks = True
            if timers:
                clock.advance(1)
        clock.breaks = False
        assert (3, 0) == (len(errors), limiter.statistics().waiting)

    run(main)


def test_an_error_behind_the_scenes_does_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """Trio ends everything for an error in a callback; asyncio logs it and goes on, and so do we."""

    async def main() -> None:
        scheduler = Flawed("10000000/s", burst=100_000)
        limiter = aiorate.Limiter(scheduler)
        for _ in range(64):
            await limiter.acquire()
        scheduler.fails = True
        await trio.sleep(0.01)
        scheduler.fails = False
        await limiter.acquire()

    run(main)

    assert {"aiorate"} >= {record.name for record in caplog.records}
    assert caplog.records


# Nothing is left.


@pytest.mark.parametrize("name", EACH)
def test_an_idle_limiter_leaves_nothing_behind(name: str) -> None:
    """No task, no deadline, and no reference to it or to those who waited."""

    async def main() -> None:
        before = trio.lowlevel.current_statistics().tasks_living
        limiter = aiorate.Limiter(EACH[name]())
        tasks = []

        async def one(limiter: aiorate.Limiter) -> None:
            tasks.append(weakref.ref(trio.lowlevel.current_task()))
            await limiter.acquire()

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(one, limiter)
            await settled()
            assert before + 20 >= trio.lowlevel.current_statistics().tasks_living
        await settled()
        after = trio.lowlevel.current_statistics()
        assert (before, math.inf) == (after.tasks_living, after.seconds_to_next_deadline)
        gc.collect()
        assert [None] * 20 == [task() for task in tasks]
        gone = weakref.ref(limiter)
        del limiter
        gc.collect()
        assert gone() is None

    run(main)


def test_who_has_left_the_line_is_not_kept_by_it() -> None:
    """The first may wait for an hour, and all that time those who gave up behind it would stay in memory."""

    async def main() -> None:
        coroutines = []
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter("10/s"), nursery)

            async def leaves() -> None:
                coroutines.append(weakref.ref(trio.lowlevel.current_task().coro))
                with trio.move_on_after(0.01):
                    await crowd.limiter.acquire()

            await crowd.queue("AB")
            nursery.start_soon(leaves)
            await trio.sleep(0.02)
            gc.collect()
            assert (1, [None]) == (crowd.limiter.statistics().waiting, [coroutine() for coroutine in coroutines])

    run(main)
