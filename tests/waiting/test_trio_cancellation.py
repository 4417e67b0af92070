"""Under trio: cancelled requests, one by one and in random histories."""

from __future__ import annotations

import math
import random
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from helpers.driving import SECOND
from helpers.strategies import EACH
from helpers.under_trio import Crowd, now, run, run_on, settled, tenths

import aiorate
from aiorate.testing import simulate

MS = SECOND // 1000


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


def test_a_shielded_waiter_stays_in_line() -> None:
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


def test_waiters_that_stay_never_notice_others_that_leave() -> None:
    """A random half is cancelled, many in the step of a grant. The rest is served as if no other request had come, whatever its size."""
    large = ("TokenPool", "TokenPool-burst", "TokenBucket", "TicksAccumulator", "CalendarWindow", "AllOf")
    for seed, (name, permits) in enumerate([*((name, 1) for name in EACH), *((name, 3) for name in large)]):
        story = Story(seed)
        limiter = aiorate.Limiter(EACH[name]())
        granted = run(story.play, limiter, permits)
        alone = simulate(EACH[name](), [(story.arrivals[who], permits) for who in sorted(granted)])

        assert 60 <= len(granted) <= 115, (name, permits)
        assert dict(zip(sorted(granted), alone, strict=True)) == granted, (name, permits)
        seen = limiter.statistics()
        assert (permits * len(granted), 120 - len(granted), 0) == (seen.granted, seen.cancelled, seen.waiting), (name, permits)


@pytest.mark.parametrize("name", EACH)
def test_random_histories_are_equal_under_trio_and_asyncio(name: str) -> None:
    """A random history of all calls of users, under both: the same grants, errors, answers and counts."""
    dice = random.Random(name)
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
