"""Keys that share a limit take turns there in permits, by weight."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest
from helpers.driving import SECOND, SteppedClock, one_loop, turns
from helpers.turns import DIRECT, Lines, furthest

import aiorate
from aiorate import KeyedLimiter, Limiter, TokenBucket

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = one_loop

SIZES = {"one": [1], "small and large": [1, 50], "mixed": list(range(1, 51))}


def requests(weights: Sequence[int], sizes: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Enough requests of each key, in mixed order, that all keys still wait after ``count`` grants."""
    random, total = Random(0), sum(weights)
    counts = [min(count, 2 * count * weight // total + 100) for weight in weights]
    found = [(key, random.choice(sizes)) for key, waiting in enumerate(counts) for _ in range(waiting)]
    random.shuffle(found)
    return found


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (100, 1)], ids=str)
async def test_two_keys_get_their_shares(weights: tuple[int, ...], sizes: str) -> None:
    """Within one largest request, over any hundred grants."""
    lines = Lines(TokenBucket("100/s", burst=100, initial=0), dict(enumerate(weights)))
    await lines.fill(requests(weights, SIZES[sizes], 400))

    grants = await lines.run(400)

    assert furthest(grants, dict(enumerate(weights))) <= max(SIZES[sizes])
    await lines.end()


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 2, 3), (100, *[1] * 19), (1, 1, 50, 50, 7, 100)], ids=str)
async def test_many_keys_get_their_shares(weights: tuple[int, ...], sizes: str) -> None:
    """Within two largest requests. Start-time fair queuing serves 19 light keys in a row, and is 16 requests behind then."""
    lines = Lines(TokenBucket("100/s", burst=100, initial=0), dict(enumerate(weights)))
    await lines.fill(requests(weights, SIZES[sizes], 300))

    grants = await lines.run(300)

    assert furthest(grants, dict(enumerate(weights))) <= 2 * max(SIZES[sizes])
    await lines.end()


@pytest.mark.parametrize("strategy", ["TokenPool", "TicksAccumulator", "TokenBucket"])
async def test_shares_hold_where_many_permits_are_due_at_once(strategy: str) -> None:
    """After a late wake-up. One would be granted for each line if lines were served only when all of the permits are granted."""
    scheduler = TokenBucket("100/s", burst=500, initial=0) if strategy == "TokenBucket" else getattr(aiorate, strategy)("100/s")
    lines = Lines(scheduler, {"a": 3, "b": 1})
    await lines.fill([("b", 1), ("a", 1)] * 400)
    granted: list[int] = []

    while len(lines.grants) < 200:
        before = len(lines.grants)
        lines.clock.advance(1)
        await turns(4)
        granted.append(len(lines.grants) - before)

    assert max(granted) >= (100 if strategy == "TokenBucket" else 2)
    assert furthest(lines.grants[:200], {"a": 3, "b": 1}) <= 1
    await lines.end()


async def test_order_within_a_key_is_that_of_arrival() -> None:
    lines = Lines(TokenBucket("10/s", burst=10, initial=0), {"a": 5, "b": 1})
    sizes = [1, 7, 2, 10, 3, 5, 1]
    await lines.fill([(key, size) for size in sizes for key in "ab"])

    await lines.run(2 * len(sizes))

    assert [[size for name, size in lines.grants if name == key] for key in "ab"] == [sizes, sizes]
    await lines.end()


async def test_equal_keys_go_in_order_of_arrival_whatever_their_sizes() -> None:
    """A small request does not pass a large one that came before, as long as neither key has been served."""
    lines = Lines(TokenBucket("10/s", burst=50, initial=0), dict.fromkeys("abcd", 1))
    await lines.fill([("c", 50), ("a", 1), ("d", 7), ("b", 1)])

    assert await lines.run(4) == [("c", 50), ("a", 1), ("d", 7), ("b", 1)]
    await lines.end()


async def test_direct_callers_are_one_line_of_weight_one() -> None:
    """However many there are, in order of arrival."""
    lines = Lines(TokenBucket("100/s", burst=100, initial=0), {"a": 1, "b": 2})
    sizes = [number % 7 + 1 for number in range(150)]
    await lines.fill([(key, size) for size in sizes for key in (DIRECT, "a", "b", "b")])

    grants = await lines.run(400)

    assert furthest(grants, {DIRECT: 1, "a": 1, "b": 2}) <= 2 * 7
    direct = [size for key, size in grants if key is DIRECT]
    assert direct == sizes[: len(direct)]
    await lines.end()


async def test_direct_callers_take_turns_with_keys_that_come_later() -> None:
    """The limiter had a line before any key shared it."""
    clock = SteppedClock()
    shared = Limiter(TokenBucket("1/s", burst=1, initial=0), clock=clock)
    order: list[str] = []

    async def ask(name: str, limiter: Limiter) -> None:
        await limiter.acquire()
        order.append(name)

    tasks = [asyncio.ensure_future(ask("direct", shared)) for _ in range(4)]
    await turns(3)
    keyed = KeyedLimiter[str](lambda key: Limiter(TokenBucket("9/s", burst=9), clock=clock), shared=shared)
    tasks += [asyncio.ensure_future(ask("key", keyed["a"])) for _ in range(2)]
    await turns(3)
    assert shared.statistics().waiting == 5  # the second request of the key stands in its own line only
    await clock.run(7)

    assert order == ["direct", "key", "direct", "key", "direct", "direct"]
    assert all(task.done() for task in tasks)


async def test_interactive_key_passes_ten_thousand_batch_requests() -> None:
    """It waits one interval and its turn, whenever it comes, and the next time too."""
    lines = Lines(TokenBucket("10/s", burst=1), {"batch": 1, "interactive": 100})
    await lines.fill([("batch", 1)] * 10_001)

    for at in (0.05, 0.72, 1.31, 2.09):
        await lines.clock.run(at - lines.clock.now() / SECOND)
        assert lines.keyed["interactive"].delay() <= 0.1
        waited = asyncio.ensure_future(lines.keyed.acquire("interactive", max_wait=0.1))
        await turns(3)
        await lines.clock.run(0.2)
        assert waited.result() <= 0.1
    await lines.end()


async def test_interactive_key_passes_thousands_of_batch_keys() -> None:
    """Each of them has weight 1 and one request in line. At 100 of 10 100, its turn comes after 100 others at the latest."""
    lines = Lines(TokenBucket("1000/s", burst=1), {"interactive": 100, **{f"batch {number}": 1 for number in range(2_000)}})
    await lines.fill([(f"batch {number}", 1) for _ in range(2) for number in range(2_000)])
    await lines.run(700)
    before = lines.clock.now()

    assert lines.keyed["interactive"].delay() <= 0.001
    lines.ask("interactive")
    await turns(3)
    await lines.clock.run(0.002)

    assert "interactive" in [key for key, _ in lines.grants[700:703]]
    assert lines.clock.now() - before < SECOND
    await lines.end()


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
async def test_busy_tenant_delays_another_by_one_request(depth: int) -> None:
    """10 000 of its requests wait, and a newcomer at any level waits for one interval and its turn."""
    clock = SteppedClock()
    top = Limiter(TokenBucket("10/s", burst=1), clock=clock)
    above, levels = top, []
    for _ in range(depth):
        level = KeyedLimiter[str](lambda key: Limiter(TokenBucket("1000/s", burst=1000), clock=clock), shared=above)
        levels.append(level)
        above = level["busy"]
    tasks = [asyncio.ensure_future(levels[-1].acquire("busy")) for _ in range(10_001)]
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

    random = Random(3)
    everyone = [(team, name) for team in ("red", "blue") for name in "ab"]
    tasks = [asyncio.ensure_future(ask(user, random.randint(1, 10))) for _ in range(350) for user in everyone]
    await turns(3)
    while len(grants) < 500:
        clock.fire()
        await turns(4)

    assert furthest([(user[0], permits) for user, permits in grants[:500]], {"red": 3, "blue": 1}) <= 10
    for team in ("red", "blue"):
        assert furthest([grant for grant in grants[:500] if grant[0][0] == team], {(team, "a"): 2, (team, "b"): 1}) <= 10
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
    """A key that took much before the line was empty is equal to the others afterwards."""
    lines = Lines(TokenBucket("1000/s", burst=1000, initial=0), {"a": 1, "b": 1})
    await lines.fill([("a", 500), ("b", 1), ("a", 500)])
    await lines.run(3)
    await lines.clock.run(5)
    assert lines.shared.try_acquire(1000)
    lines.grants.clear()

    await lines.fill([("a", 10), ("b", 10), ("a", 10), ("b", 10)])

    assert [key for key, _ in await lines.run(4)] == ["a", "b", "a", "b"]
    await lines.end()
