"""Keys that share a limit take turns there in permits, by weight, and estimates follow the order of turns."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from helpers.driving import SECOND, Crowd, SteppedClock, one_loop, turns
from helpers.turns import DIRECT, Lines, furthest

from aiorate import KeyedLimiter, Limiter, TokenBucket, WaitTooLong

pytestmark = one_loop


SIZES = ([1], [1, 50], list(range(1, 51)))


def requests(weights: Sequence[int], sizes: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Enough requests of each key, in mixed order, that all keys still wait after ``count`` grants."""
    dice, total = random.Random(0), sum(weights)
    counts = [min(count, 2 * count * weight // total + 100) for weight in weights]
    found = [(key, dice.choice(sizes)) for key, waiting in enumerate(counts) for _ in range(waiting)]
    dice.shuffle(found)
    return found


@pytest.mark.parametrize("weights", [(1, 1), (100, 1), (1, 2, 3), (100, *[1] * 9), (1, 50, 7, 100)], ids=str)
async def test_keys_get_their_shares(weights: tuple[int, ...]) -> None:
    """Of two, within one largest request over any hundred grants; of many, within two of them, or one of each flow if sizes differ."""
    for sizes in SIZES:
        lines = Lines(TokenBucket("100/s", burst=100, initial=0), dict(enumerate(weights)))
        await lines.fill(requests(weights, sizes, 300))
        grants = await lines.run(300)
        assert furthest(grants, dict(enumerate(weights))) <= max(sizes) * (
            len(weights) - 1 if len(sizes) > 1 else min(2, len(weights) - 1)
        ), sizes
        await lines.end()


async def test_direct_callers_are_one_line_of_weight_one() -> None:
    lines = Lines(TokenBucket("100/s", burst=100, initial=0), {"a": 1, "b": 2})
    sizes = [number % 7 + 1 for number in range(150)]
    await lines.fill([(key, size) for size in sizes for key in (DIRECT, "a", "b", "b")])
    grants = await lines.run(400)
    assert furthest(grants, {DIRECT: 1, "a": 1, "b": 2}) <= 2 * 7
    direct = [size for key, size in grants if key is DIRECT]
    assert direct == sizes[: len(direct)]
    await lines.end()


@pytest.mark.parametrize("depth", [1, 3])
async def test_busy_tenant_delays_another_by_one_request(depth: int) -> None:
    """1000 of its requests wait, and a newcomer at any level waits for one interval and its turn."""
    clock = SteppedClock()
    top = Limiter(TokenBucket("10/s", burst=1), clock=clock)
    above, levels = top, []
    for _ in range(depth):
        level = KeyedLimiter[str](lambda key: Limiter(TokenBucket("1000/s", burst=1000), clock=clock), shared=above)
        levels.append(level)
        above = level["busy"]
    tasks = [asyncio.ensure_future(levels[-1].acquire("busy")) for _ in range(1_001)]
    await turns(3)
    await clock.run(1.05)

    for level in levels:
        request = asyncio.ensure_future(level.acquire("quiet", max_wait=0.2))
        await turns(3)
        await clock.run(0.3)
        assert request.result() <= 0.2
    for task in tasks:
        task.cancel()
    await turns(3)
    assert clock.next_timer is None


async def test_weights_hold_at_every_level() -> None:
    """A level in the middle is one line at the top, with the weight of its key there."""
    clock = SteppedClock()
    top = Limiter(TokenBucket("100/s", burst=50, initial=0), clock=clock)
    teams = KeyedLimiter[str](
        lambda team: Limiter(TokenBucket("100000/s", burst=1000), clock=clock), shared=top, weight={"red": 3, "blue": 1}.__getitem__
    )
    users = KeyedLimiter[tuple[str, str]](
        lambda user: Limiter(TokenBucket("100000/s", burst=1000), clock=clock),
        shared=lambda user: teams[user[0]],
        weight=lambda user: 2 if user[1] == "a" else 1,
    )
    grants: list[tuple[tuple[str, str], int]] = []

    async def ask(user: tuple[str, str], permits: int) -> None:
        await users.acquire(user, permits)
        grants.append((user, permits))

    dice = random.Random(3)
    everyone = [(team, name) for team in ("red", "blue") for name in "ab"]
    tasks = [asyncio.ensure_future(ask(user, dice.randint(1, 10))) for _ in range(200) for user in everyone]
    await turns(3)
    while len(grants) < 300:
        clock.fire()
        await turns(4)

    assert furthest([(user[0], permits) for user, permits in grants[:300]], {"red": 3, "blue": 1}) <= 10
    for team in ("red", "blue"):
        assert furthest([grant for grant in grants[:300] if grant[0][0] == team], {(team, "a"): 2, (team, "b"): 1}) <= 10
    for task in tasks:
        task.cancel()
    await turns(4)
    assert clock.next_timer is None


async def test_large_request_is_not_starved_by_new_keys() -> None:
    """Each of them comes once, and would be served first if only its first request counted."""
    lines = Lines(TokenBucket("10/s", burst=50, initial=0), {"large": 1, **{f"new {number}": 1 for number in range(200)}})
    lines.ask("large", 50)
    await turns(3)
    for number in range(100):
        await lines.fill([(f"new {number}", 1)])
        await lines.clock.run(0.1)
    assert "large" in [key for key, _ in lines.grants]
    await lines.end()


async def test_what_a_key_took_before_an_idle_time_is_forgotten() -> None:
    lines = Lines(TokenBucket("1000/s", burst=1000, initial=0), {"a": 1, "b": 1})
    await lines.fill([("a", 500), ("b", 1), ("a", 500)])
    await lines.run(3)
    await lines.clock.run(5)
    assert lines.shared.try_acquire(1000)
    lines.grants.clear()
    await lines.fill([("a", 10), ("b", 10), ("a", 10), ("b", 10)])
    assert [key for key, _ in await lines.run(4)] == ["a", "b", "a", "b"]
    await lines.end()


async def test_delay_of_a_key_counts_both_lines() -> None:
    clock, waiters = SteppedClock(), 20
    shared = Limiter(TokenBucket("10/s", burst=1), clock=clock)
    keyed = KeyedLimiter[str](lambda key: Limiter(TokenBucket("1/s", burst=1), clock=clock), shared=shared)
    assert keyed.try_acquire("a")
    crowd = Crowd(keyed["a"], clock)
    await crowd.queue(range(waiters))
    assert waiters + 1 == keyed["a"].delay()
    with pytest.raises(WaitTooLong):
        await keyed.acquire("a", max_wait=waiters + 0.5)
    assert 0.1 == keyed["b"].delay()
    last = crowd.ask("last", max_wait=waiters + 1)
    await clock.run(waiters + 1)

    assert [(place + 1) * SECOND for place in range(waiters)] == [crowd.granted[place] for place in range(waiters)]
    assert waiters + 1 == last.result()


async def test_estimates_are_never_too_long() -> None:
    """Whatever was served before and stands in the lines of the others, at one level or two: it is granted no sooner than foretold."""
    weights: dict[Any, int] = {"a": 1, "b": 1, "c": 3, "d": 20, "e": 100}
    callers: list[Any] = [*weights, DIRECT]
    for seed in range(20):
        dice = random.Random(seed)
        lines = Lines(TokenBucket("10/s", burst=5, initial=0), weights)
        tasks = []
        if seed % 2:
            top = Limiter(TokenBucket("8/s", burst=5, initial=0), clock=lines.clock)
            between = KeyedLimiter[str](lambda key: lines.shared, shared=top, weight=lambda key: 7)  # noqa: B023
            assert between["shared"] is lines.shared
            tasks.append(asyncio.ensure_future(top.acquire(3)))
        await lines.fill([(dice.choice(callers), dice.randint(1, 5)) for _ in range(12)])
        await lines.run(6)
        await lines.fill([(dice.choice(callers), dice.randint(1, 5)) for _ in range(dice.randint(0, 9))])
        key, permits = dice.choice(callers), dice.randint(1, 5)
        limiter = lines.shared if key is DIRECT else lines.keyed[key]
        delay, begin = limiter.delay(permits), lines.clock.now()
        task = lines.ask(key, permits)
        await turns(3)
        while not task.done():
            assert lines.clock.fire()
            await turns(4)

        assert 0 < delay * SECOND <= lines.clock.now() - begin + 2, seed
        for each in tasks:
            each.cancel()
        await lines.end()


async def test_a_heavy_key_is_not_refused_for_the_requests_of_others() -> None:
    """Thousands of them stand in their lines, or in the line of direct callers; or a key waits for each of hundreds."""
    lines = Lines(TokenBucket("10/s", burst=1), {"batch": 1, "other": 1, "interactive": 100})
    await lines.fill([("batch", 1), ("other", 1), (DIRECT, 1)] * 300)
    assert lines.keyed["interactive"].delay() <= 0.1
    request = lines.ask("interactive")
    await turns(3)
    waited = asyncio.ensure_future(lines.keyed.acquire("interactive", max_wait=0.3))  # one of another key comes in between
    await turns(3)
    await lines.clock.run(0.3)

    assert request.done()
    assert waited.result() == pytest.approx(0.3)
    with pytest.raises(WaitTooLong):
        await lines.shared.acquire(max_wait=30)
    await lines.end()
