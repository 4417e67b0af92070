"""The rows of docs/migrating/limits.md: limits and aiorate, side by side, each with a clock that is moved by hand.

Rows with a strategy of limits are run twice: with `limits.strategies`, and with `limits.aio.strategies`, whose calls are awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from types import ModuleType
from typing import Any

import limits
import limits.aio.storage
import limits.aio.strategies
import limits.storage
import limits.strategies
import pytest
from helpers.migrating import BEGINS, CLOSE, HandTime, Row, Side, check_pairs, each_row, in_virtual_time, moments, ours, rows_of
from helpers.stores import RealServer

import aiorate
from aiorate.redis import RedisLimiter
from aiorate.testing import ManualClock

PAGE = "limits"
MOVING = "MovingWindowRateLimiter(MemoryStorage())"
KINDS: dict[str, tuple[ModuleType, ModuleType]] = {
    "sync": (limits.strategies, limits.storage),
    "aio": (limits.aio.strategies, limits.aio.storage),
}
READERS = ("strategies", "aio.strategies", "storage.memory", "aio.storage.memory")


class Both:
    """Both libraries, and their two clocks, which move together."""

    def __init__(self, kind: str, time: HandTime) -> None:
        strategies, storage = KINDS[kind]
        names = {name: value for module in (strategies, storage) for name, value in vars(module).items() if name[0].isupper()}
        self.time, self.clock = time, ManualClock(BEGINS * 1_000_000_000)
        self.theirs = Side(limits, time=time, item=limits.parse("10/minute"), **names)
        self.theirs.names["storage_from_string"] = limits.storage.storage_from_string
        self.ours = ours(Limiter=partial(aiorate.Limiter, clock=self.clock), KeyedLimiter=self._keyed)
        # The instant 0 of the clock is that of Unix time.
        self.ours.names["CalendarWindow"] = partial(aiorate.CalendarWindow, origin=0)

    def _keyed(self, factory: Callable[[str], Any]) -> aiorate.KeyedLimiter[str]:
        return aiorate.KeyedLimiter(lambda key: aiorate.Limiter(factory(key), clock=self.clock))

    def make(self, theirs: str = MOVING, ours: str = 'KeyedLimiter(lambda user: SlidingWindow("10/min"))') -> None:
        """Make a limiter of each."""
        self.theirs.names["limiter"] = self.theirs.call(theirs)
        self.theirs.names["storage"] = self.theirs.names["limiter"].storage
        self.ours.names["users"] = self.ours.call(ours)

    def move(self, seconds: float) -> None:
        self.time.sleep(seconds)
        self.clock.advance(seconds)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> HandTime:
    """The clock of limits."""
    time = HandTime()
    for module in READERS:
        monkeypatch.setattr(f"limits.{module}.time", time)
    return time


@pytest.fixture(params=KINDS)
def both(request: pytest.FixtureRequest, time: HandTime) -> Both:
    return Both(request.param, time)


Steps = Callable[[Row, Both], Coroutine[Any, Any, None]]


def rate(row: Row, both: Both) -> None:
    """Both read the same number in the same time; a strategy in the right cell has that number too."""
    one, other = both.theirs.call(row.theirs[0]), both.ours.call(row.ours[0])
    assert [one.amount] * len(row.ours[1:]) == [both.ours.call(code).rate.permits for code in row.ours[1:]]
    assert (one.amount, one.get_expiry() * 1_000_000_000) == (other.permits, other.period_ns)


async def answers(both: Both, theirs: str, ours: str, *instants: float) -> tuple[list[Any], list[Any]]:
    """What both say, asked at each of the seconds from now on."""
    one, other, now = [], [], 0.0
    for at in instants:
        both.move(at - now)
        now = at
        one.append(await both.theirs.run(theirs))
        other.append(await both.ours.run(ours))
    return one, other


HIT, TRY = 'limiter.hit(item, "alice")', 'users.try_acquire("alice")'


async def moving(row: Row, both: Both) -> None:
    """Asked at any times, both let the same requests pass."""
    both.make(row.theirs[0], row.ours[0])
    random = Random(1)
    one, other = await answers(both, HIT, TRY, *sorted(random.uniform(0, 300) for _ in range(150)))
    assert one == other
    assert 10 < sum(one) < 100


async def fixed(row: Row, both: Both) -> None:
    """The same, if the first hit comes as a minute of the clock begins; the clock was read as a minute began, 1000 s ago."""
    both.make(row.theirs[0], row.ours[0])
    both.move(-BEGINS % 60)
    random = Random(1)
    one, other = await answers(both, HIT, TRY, 0, *sorted(random.uniform(0, 58) for _ in range(20)), 60, *[61.0] * 20)
    assert one == other
    assert 20 == sum(one)
    both.make(row.theirs[0], row.ours[0])
    both.move(-both.time.seconds % 60 + 50)
    one, other = await answers(both, HIT, TRY, *[0.0] * 12, *[12.0] * 12)
    assert (10, 20) == (sum(one), sum(other)), "their window began with the first hit, and the minute of the clock has ended"


async def estimate(row: Row, both: Both) -> None:
    """Ten at once with both; the estimate lets one pass while the window is still full, and no window of ours holds more than ten."""
    both.make(row.theirs[0], row.ours[0])
    both.move(-BEGINS % 60 + 45)
    one, other = await answers(both, HIT, TRY, *[0.0] * 12, *[25.0] * 3)
    assert [True] * 10 + [False] * 2 == one[:12] == other[:12]
    assert any(one[12:])
    assert not any(other[12:])


async def several(row: Row, both: Both) -> None:
    """Each 7 s, 20 requests: ten pass at once, and at most a hundred in a minute."""
    both.make(ours="KeyedLimiter(lambda user: " + row.ours[0] + ")")
    items = both.theirs.call(row.theirs[0])
    for _ in range(20):
        one = other = 0
        for _ in range(20):
            hits = [both.theirs.names["limiter"].test(item, "alice") for item in items]
            if all([hit if isinstance(hit, bool) else await hit for hit in hits]):
                for item in items:
                    both.theirs.names["item"] = item
                    assert await both.theirs.run(HIT)
                one += 1
            other += both.ours.call(TRY)
        assert one == other
        both.move(7)
    # A hit that the second limit refuses has been counted by the first.
    both.make(ours="KeyedLimiter(lambda user: " + row.ours[0] + ")")
    for _ in range(10):
        for side, call in (
            (both.theirs, 'limiter.hit(parse("100/minute"), "alice", cost=10)'),
            (both.ours, 'users.try_acquire("alice", 10)'),
        ):
            assert await side.run(call)
        both.move(2)
    both.theirs.names["first"], both.theirs.names["second"] = items
    assert await both.theirs.run('limiter.hit(first, "alice", cost=10)')
    assert not await both.theirs.run('limiter.hit(second, "alice", cost=10)')
    assert not await both.theirs.run('limiter.test(first, "alice")')
    members = 'repr(users["alice"].scheduler.members)'
    before = both.ours.call(members)
    assert not both.ours.call('users.try_acquire("alice", 10)')
    assert before == both.ours.call(members)


def hits(*instants: float) -> Steps:
    """Both cells ask, and are answered alike."""

    async def check(row: Row, both: Both) -> None:
        both.make()
        one, other = await answers(both, row.theirs[0], row.ours[0], *instants)
        assert one == other
        assert {True, False} == set(one)

    return check


MINUTE = (*[0.0] * 12, *[30.0] * 2, *[61.0] * 12)


async def without_a_key(row: Row, both: Both) -> None:
    both.make()
    both.ours.names["limiter"] = both.ours.call(row.ours[1])
    one, other = await answers(both, row.theirs[0], row.ours[0], *MINUTE)
    assert one == other
    assert 20 == sum(one)


async def looked_at(row: Row, both: Both) -> None:
    """Asked before each hit, both say whether it will pass."""
    both.make()
    for number in range(12):
        free = await both.theirs.run(row.theirs[0])
        assert (number < 10) is free is both.ours.call(row.ours[0])
        assert free is await both.theirs.run(HIT) is both.ours.call(TRY)
        both.move(1)


async def attribute(row: Row, both: Both, name: str) -> Any:
    """The attribute that the left cell reads of a value that may have to be awaited."""
    return getattr(await both.theirs.run(row.theirs[0].removesuffix(f".{name}")), name)


async def remaining(row: Row, both: Both) -> None:
    both.make()
    for used in range(1, 11):
        await both.theirs.run(HIT)
        both.ours.call(TRY)
        both.move(1)
        assert 10 - used == await attribute(row, both, "remaining") == both.ours.call(row.ours[0])


async def reset_time(row: Row, both: Both) -> None:
    """Once all are used; before that, aiorate says 0."""
    both.make()
    assert [True] * 10 == (await answers(both, HIT, TRY, *map(float, range(10))))[1]
    for _ in range(3):
        seconds = await attribute(row, both, "reset_time") - both.time.seconds
        assert seconds == pytest.approx(both.ours.call(row.ours[0]))
        both.move(15)


def as_new(*keys: str) -> Steps:
    """After all of ten are used for each key, the code of the cells makes them free again."""

    async def check(row: Row, both: Both) -> None:
        both.make()
        for key in keys:
            for side, call in ((both.theirs, f"limiter.hit(item, {key!r})"), (both.ours, f"users.try_acquire({key!r})")):
                assert [True] * 10 + [False] == [await side.run(call) for _ in range(11)]
        await both.theirs.run(row.theirs[0])
        both.ours.call(row.ours[0])
        for key in keys:
            for side, call in ((both.theirs, f"limiter.hit(item, {key!r})"), (both.ours, f"users.try_acquire({key!r})")):
                assert [True] * 10 + [False] == [await side.run(call) for _ in range(11)]

    return check


async def polling(row: Row, both: Both) -> None:
    """Polling is granted up to 0.1 s later. aiorate's half is the next test."""
    both.make()
    hit, sleep = row.theirs
    began = both.time.seconds
    theirs = []
    both.theirs.names["sleep"] = both.move
    for _ in range(12):
        while not await both.theirs.run(hit):
            both.theirs.call(sleep)
        theirs.append(both.time.seconds - began)
    assert [0.0] * 10 == theirs[:10]
    assert all(60 <= at <= 60.1 + CLOSE for at in theirs[10:])


def test_waiting_needs_no_polling() -> None:
    """The right half of that row: all are granted as their window is free."""
    row = next(row for row in rows_of(PAGE) if row.left.startswith("a loop of"))

    async def main() -> list[float]:
        side = ours()
        side.names["users"] = side.call('KeyedLimiter(lambda user: SlidingWindow("10/min"))')
        return await moments(side, row.ours[0], [0.0] * 12)

    assert [0.0] * 10 + [60.0] * 2 == pytest.approx(in_virtual_time(main), abs=CLOSE)


def test_a_store_that_processes_share(store: RealServer) -> None:
    """The row of a store: two limiters let ten requests pass together."""
    row = next(row for row in rows_of(PAGE) if row.left == SHARED)
    theirs, mine = (code.replace("redis://localhost:6379", store.url) for code in (row.theirs[0], row.ours[0]))

    one = [limits.strategies.FixedWindowRateLimiter(Side(limits.storage).call(theirs)) for _ in range(2)]
    hits = [one[number % 2].hit(limits.parse("10/hour"), "alice") for number in range(14)]

    async def main() -> list[bool]:
        answers = []
        side = ours(RedisLimiter=RedisLimiter)
        pair = [side.call(mine.replace("10/min", "10/h")) for _ in range(2)]  # however slow the machine is
        for number in range(14):
            side.names["users"] = pair[number % 2]
            try:
                await side.run(row.ours[1])
            except aiorate.WaitTooLong:
                answers.append(False)
            else:
                answers.append(True)
        for users in pair:
            await users.aclose()
        return answers

    assert [True] * 10 + [False] * 4 == hits == asyncio.run(main())


async def namespace(row: Row, both: Both) -> None:
    """Hits of one namespace do not count in another."""
    both.make(ours=row.ours[0])
    assert [True] * 10 + [False] == (await answers(both, HIT, TRY, *[0.0] * 11))[0]
    both.theirs.names["item"] = both.theirs.call(row.theirs[0])
    both.ours.names["users"] = both.ours.call(row.ours[0])
    one, other = await answers(both, HIT, TRY, *[0.0] * 11)
    assert [True] * 10 + [False] == one == other


RATES: dict[str, Callable[[Row, Both], None]] = dict.fromkeys(
    ['`parse("10/minute")`', '`parse("10 per 2 hours")`', "`RateLimitItemPerSecond(5, 2)`", '`parse("1000/month")`, which is 30 days'], rate
)
STEPS: dict[str, Steps] = {
    '`RateLimitItemPerMinute(10, namespace="search")`': namespace,
    '`parse_many("10/second; 100/minute")`, each with a `hit()`': several,
    "`MovingWindowRateLimiter(MemoryStorage())`": moving,
    "`FixedWindowRateLimiter(MemoryStorage())`": fixed,
    "`SlidingWindowCounterRateLimiter(MemoryStorage())`, an estimate": estimate,
    '`limiter.hit(item, "alice")`': hits(*MINUTE),
    '`limiter.hit(item, "alice", cost=3)`': hits(*[0.0] * 5, 30.0, *[61.0] * 5),
    '`limiter.hit(item, "alice", "search")`': hits(*MINUTE),
    "`limiter.hit(item)`, without a key": without_a_key,
    '`limiter.test(item, "alice")`': looked_at,
    '`limiter.get_window_stats(item, "alice").remaining`': remaining,
    '`limiter.get_window_stats(item, "alice").reset_time`, a Unix time': reset_time,
    '`limiter.clear(item, "alice")`': as_new("alice"),
    "`storage.reset()`": as_new("alice", "bob"),
    'a loop of `limiter.hit(item, "alice")` and `sleep(0.1)`': polling,
}
SHARED = '`storage_from_string("redis://localhost:6379")`'


@each_row(PAGE, but=(SHARED,))
def test_row(row: Row, both: Both) -> None:
    """The two cells do the same, as far as the row says."""
    if row.left in RATES:
        RATES[row.left](row, both)
    else:
        asyncio.run(STEPS[row.left](row, both))


def test_every_row_is_run() -> None:
    """A row without a check, or a check without a row, is a mistake."""
    check_pairs(PAGE, {**RATES, **STEPS, SHARED: test_a_store_that_processes_share})


# What the page says below the table.


def test_a_refused_hit_counts_in_a_fixed_window(both: Both) -> None:
    """aiorate takes nothing when it refuses."""

    async def main() -> None:
        both.make("FixedWindowRateLimiter(MemoryStorage())")
        for side, call in ((both.theirs, HIT[:-1]), (both.ours, TRY[:-1])):
            equals = "cost=" if side is both.theirs else ""
            asked = [await side.run(f"{call}, {equals}{permits})") for permits in (8, 5, 1)]
            assert [True, False, side is both.ours] == asked

    asyncio.run(main())


def test_a_hit_at_the_edge_of_a_moving_window(time: HandTime) -> None:
    """limits refuses it. (`limits.aio` does so unless its task that drops old hits runs first.)"""
    both = Both("sync", time)

    async def main() -> None:
        both.make()
        one, other = await answers(both, HIT, TRY, *[0.0] * 10, 60.0)
        assert (False, True) == (one[-1], other[-1])

    asyncio.run(main())
