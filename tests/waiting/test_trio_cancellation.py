"""Under trio: cancelled requests, one by one and in random histories."""

from __future__ import annotations

import math
import random
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from helpers.driving import SECOND
from helpers.server import most_in_any_window
from helpers.strategies import EACH
from helpers.under_trio import Crowd, now, run, run_on, settled, tenths

import aiorate
from aiorate.testing import simulate

MS = SECOND // 1000


# Cancelled.


@pytest.mark.parametrize("gone", ["A", "B", "C", "D", "AB", "BC", "CD", "AC", "DB", "ABC", "BCD", "DCBA"])
@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket-paced", "TicksAccumulator", "SlidingWindow"])
def test_when_waiters_leave_the_others_move_up_at_once(gone: str, name: str) -> None:
    """The first of them watches the timer, and the next takes over; the last takes nothing along."""

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


def test_cancelled_before_its_grant_a_task_hands_it_on() -> None:
    """Cancelled first, then granted, and only then run: the next request is granted at the same instant."""

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


def test_cancelled_after_its_grant_a_task_keeps_the_permit() -> None:
    """A task that trio has woken goes on to its next checkpoint: the permit is used, and is not granted again."""

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
def test_a_deadline_at_the_instant_of_the_grant_loses_nothing(gone: str) -> None:
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
    """`move_on_after` and `fail_after`, around a request that waits and one that does not."""

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
    """In whatever order trio cancels them, the others keep their order."""

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
    """In a cancelled scope, a request that need not wait is granted, unlike with trio's locks; another never joins the line."""

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
    """When each request comes, and when some are cancelled: by a deadline or by another task, many at instants of grants."""

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
        """Play it; returns the instants of the grants by number."""
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
def test_waiters_that_stay_never_notice_others_that_leave(name: str, seed: int) -> None:
    """A random half is cancelled, many in the step of a grant. The rest is served as if no other request had come."""
    story = Story(seed)
    limiter = aiorate.Limiter(EACH[name]())
    granted = run(story.play, limiter, 1)
    alone = simulate(EACH[name](), [story.arrivals[who] for who in sorted(granted)])

    assert 60 <= len(granted) <= 115
    assert dict(zip(sorted(granted), alone, strict=True)) == granted
    seen = limiter.statistics()
    assert (len(granted), 120 - len(granted), 0, 0) == (seen.granted, seen.cancelled, seen.waiting, seen.skipped)


@pytest.mark.parametrize("name", ["TokenPool", "TokenPool-burst", "TokenBucket", "TicksAccumulator", "CalendarWindow", "AllOf"])
def test_waiters_never_notice_larger_requests_that_leave(name: str) -> None:
    """All permits of a request are handed on."""
    story = Story(7)
    limiter = aiorate.Limiter(EACH[name]())
    granted = run(story.play, limiter, 3)
    alone = simulate(EACH[name](), [(story.arrivals[who], 3) for who in sorted(granted)])

    assert dict(zip(sorted(granted), alone, strict=True)) == granted
    assert 3 * len(granted) == limiter.statistics().granted


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", EACH)
def test_random_histories_are_equal_under_trio_and_asyncio(name: str, seed: int) -> None:
    """A random history of all calls of users, under both: the same grants, errors, answers and counts."""
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
def test_random_workers_lose_and_gain_no_permit(name: str, seed: int) -> None:
    """Workers acquire, are cancelled, close scopes and come again; afterwards the schedule still has all its permits."""
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
        # After a rest, it grants as a limiter on which no request was cancelled.
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
