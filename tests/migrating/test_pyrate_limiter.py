"""The rows of docs/migrating/pyrate_limiter.md: pyrate-limiter and aiorate, side by side in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pyrate_limiter
import pytest
import redis
from helpers.migrating import (
    BEGINS,
    CLOSE,
    Check,
    HandTime,
    Row,
    Side,
    a_crowd,
    check_pairs,
    each_row,
    in_thread_time,
    in_virtual_time,
    moments,
    ours,
    rows_of,
    same_moments,
    timeline,
)
from helpers.stores import RealServer
from pyrate_limiter.extras.httpx_limiter import AsyncRateLimiterTransport

import aiorate
from aiorate import WaitTooLong
from aiorate.http import limit_transport
from aiorate.redis import RedisLimiter
from aiorate.testing import ManualClock

PAGE = "pyrate_limiter"
TEN = ("Limiter(Rate(10, Duration.SECOND))", 'Limiter(SlidingWindow("10/s"))')
BUFFER = 0.051 + CLOSE  # what pyrate-limiter adds to each wait, in seconds: buffer_ms=50, and a millisecond
CROWD = a_crowd(25)  # two waits, one after the other


class Clock:
    """The time of the running loop, or one that moves when code sleeps."""

    def __init__(self) -> None:
        self.seconds: Callable[[], float] = lambda: asyncio.get_running_loop().time()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """pyrate-limiter reads this clock instead of the machine's, and starts no thread, which would only free memory."""
    clock = Clock()
    monkeypatch.setattr("pyrate_limiter.limiter.monotonic", lambda: clock.seconds())
    monkeypatch.setattr("pyrate_limiter.clocks.monotonic_ns", lambda: round(clock.seconds() * 1e9))
    monkeypatch.setattr("pyrate_limiter.abstracts.bucket.Leaker.start", lambda self: None)
    return clock


def theirs(**names: Any) -> Side:
    return Side(pyrate_limiter, **names)


def made(arrivals: list[float], rounds: int = 2) -> Check:
    """Both cells make a limiter, and pyrate-limiter lets requests go as late as its buffer makes them, after that many waits."""

    def check(row: Row) -> None:
        one = timeline(theirs(), row.theirs[0], "limiter.try_acquire_async('x')", arrivals)
        same_moments(one, timeline(ours(), row.ours[0], "limiter.acquire()", arrivals), later=rounds * BUFFER)

    return check


def rate(row: Row) -> None:
    one, other = theirs().call(row.theirs[0]), ours().call(row.ours[0])
    assert (one.limit, one.interval * 1_000_000) == (other.permits, other.period_ns)


def together(main: Callable[[Row, Side, Side], Coroutine[Any, Any, None]]) -> Check:
    """Both limiters stand in one loop: ten per second."""

    def check(row: Row) -> None:
        async def run() -> None:
            one, other = theirs(), ours()
            one.names["limiter"], other.names["limiter"] = one.call(TEN[0]), other.call(TEN[1])
            try:
                await main(row, one, other)
            finally:
                one.close()

        in_virtual_time(run)

    return check


@together
async def weighing(row: Row, one: Side, other: Side) -> None:
    """Three of three fit at once, and three more a second later."""
    old, new = await asyncio.gather(moments(one, row.theirs[0], a_crowd(6)), moments(other, row.ours[0], a_crowd(6)))
    assert [0.0] * 3 + [1.0] * 3 == pytest.approx(new, abs=CLOSE)
    same_moments(old, new, later=BUFFER)


@together
async def not_waiting(row: Row, one: Side, other: Side) -> None:
    for granted in (True, True, True, False, False):
        assert granted is await one.run(row.theirs[0]) is other.call(row.ours[0])
    await asyncio.sleep(1.1)
    assert await one.run(row.theirs[0])
    assert other.call(row.ours[0])


@together
async def too_long(row: Row, one: Side, other: Side) -> None:
    """With 30 in line, the next would wait for three seconds."""
    loop = asyncio.get_running_loop()
    crowd = [
        asyncio.ensure_future(side.run(call)) for side, call in ((one, "limiter.try_acquire_async('x')"), (other, "limiter.acquire()")) * 30
    ]
    await asyncio.sleep(0)
    began = loop.time()
    with pytest.raises(other.call(row.ours[1])):
        await other.run(row.ours[0])
    assert 0.0 == pytest.approx(loop.time() - began, abs=CLOSE)
    assert await one.run(row.theirs[0]) is False
    assert 2.0 == pytest.approx(loop.time() - began, abs=CLOSE)
    await asyncio.gather(*crowd)
    assert await one.run(row.theirs[0]) is True
    await asyncio.sleep(1)
    await other.run(row.ours[0])
    assert 7 == other.names["limiter"].statistics().available


@together
async def never(row: Row, one: Side, other: Side) -> None:
    assert await one.run(row.theirs[0]) is False
    with pytest.raises(ValueError, match="11"):
        await other.run(row.ours[0])


def a_bucket_for_each_name(side: Side, base: type = pyrate_limiter.BucketFactory) -> Any:
    """A factory as its users write it: ten per second for each name."""

    class Factory(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.buckets: dict[str, Any] = {}

        def wrap_item(self, name: str, weight: int = 1) -> Any:
            return pyrate_limiter.RateItem(name, pyrate_limiter.MonotonicClock().now(), weight)

        def get(self, item: Any) -> Any:
            if item.name not in self.buckets:
                self.buckets[item.name] = self.create(pyrate_limiter.InMemoryBucket, [side.call("Rate(10, Duration.SECOND)")])
            return self.buckets[item.name]

    return Factory()


@together
async def each_name(row: Row, one: Side, other: Side) -> None:
    """Ten for each name."""
    one.names["limiter"] = pyrate_limiter.Limiter(a_bucket_for_each_name(one, one.call(row.theirs[0])))
    users = other.call(row.ours[0])
    for name in ("ann", "bob"):
        old = [await one.run(f"limiter.try_acquire_async({name!r}, blocking=False)") for _ in range(12)]
        assert [True] * 10 + [False] * 2 == old == [users.try_acquire(name) for _ in range(12)]


@together
async def decorating(row: Row, one: Side, other: Side) -> None:
    """Three permits for each call."""
    for side, code in ((one, row.theirs[0]), (other, row.ours[0])):
        side.call(f"{code}\nasync def limited(): return 'done'")
        assert "done" == await side.run("limited()")
    await asyncio.sleep(1.1)
    old, new = await asyncio.gather(*(moments(side, "limited()", a_crowd(6)) for side in (one, other)))
    assert [0.0] * 3 + [1.0] * 3 == pytest.approx(new, abs=CLOSE)
    same_moments(old, new, later=BUFFER)


@together
async def counting(row: Row, one: Side, other: Side) -> None:
    for used in range(1, 11):
        await one.run("limiter.try_acquire_async('x')")
        await other.run("limiter.acquire()")
        assert used == one.call(row.theirs[0]) == 10 - other.call(row.ours[0])


@together
async def flushing(row: Row, one: Side, other: Side) -> None:
    for _ in range(2):
        for side, call, code in (
            (one, "limiter.try_acquire_async('x', blocking=False)", row.theirs[0]),
            (other, "limiter.try_acquire()", row.ours[0]),
        ):
            assert [True] * 10 + [False] == [await side.run(call) for _ in range(11)]
            side.call(code)


@together
async def closing(row: Row, one: Side, other: Side) -> None:
    """Nothing is left of either; an idle limiter of aiorate had nothing in the first place."""
    await asyncio.gather(*(side.run(call) for side, call in ((one, "limiter.try_acquire_async('x')"), (other, "limiter.acquire()")) * 12))
    assert one.call("limiter.buckets()")
    one.call(row.theirs[0])
    assert not one.call("limiter.buckets()")
    assert row.right.startswith("nothing")
    await asyncio.sleep(1)
    assert {asyncio.current_task()} == asyncio.all_tasks()


def blocking(row: Row, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    time = HandTime()
    clock.seconds = time.monotonic
    monkeypatch.setattr("pyrate_limiter.limiter.sleep", time.sleep)
    one, old = theirs(), list[float]()
    one.names["limiter"] = one.call(TEN[0])
    for _ in range(25):
        assert one.call(row.theirs[0]) is True
        old.append(time.seconds - BEGINS)
    one.close()

    hand = ManualClock()
    call, limiter = row.ours
    other = ours(Limiter=partial(aiorate.Limiter, clock=hand))
    other.names["limiter"] = other.call(limiter)

    def work() -> list[float]:
        new = []
        for _ in range(25):
            other.call(call)
            new.append(hand.now() / 1e9)
        return new

    new = in_thread_time(other.names["limiter"], hand, work, 0.5)
    assert [0.0] * 10 + [1.0] * 10 + [2.0] * 5 == new
    same_moments(old, new, later=2 * BUFFER)


def transport(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both wait before each request; nothing is sent."""

    async def answer(self: object, request: httpx.Request, **more: Any) -> httpx.Response:
        return httpx.Response(200)

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", answer)

    async def main() -> None:
        one, other = theirs(AsyncRateLimiterTransport=AsyncRateLimiterTransport), ours(AsyncHTTPTransport=httpx.AsyncHTTPTransport)
        other.names["limit_transport"] = limit_transport
        went = []
        for side, made, code in ((one, TEN[0], row.theirs[0]), (other, TEN[1], row.ours[0])):
            side.names["limiter"] = side.call(made)
            async with httpx.AsyncClient(transport=side.call(code)) as client:
                side.names["client"] = client
                went.append(await moments(side, "client.get('https://example.com')", CROWD))
        same_moments(*went, later=2 * BUFFER)
        one.close()

    in_virtual_time(main)


PAIRS: dict[str, Check] = {
    "`Limiter(Rate(10, Duration.SECOND))`": made([*CROWD, 8.0, 8.1]),
    "`Limiter([Rate(10, Duration.SECOND), Rate(15, Duration.MINUTE)])`": made(CROWD),
    "`Rate(5, Duration.SECOND * 2)`": rate,
    "`limiter_factory.create_inmemory_limiter(10, Duration.SECOND)`": made(CROWD),
    "`limiter_factory.create_token_bucket_limiter(10, Duration.SECOND, burst=5)`": made(a_crowd(30, 9.0, 9.0)),
    "a `BucketFactory` with a bucket for each name": each_name,
    '`await limiter.try_acquire_async("x", weight=3)`': weighing,
    '`await limiter.try_acquire_async("x", weight=3, blocking=False)`': not_waiting,
    '`await limiter.try_acquire_async("x", weight=3, timeout=2)`, which returns False after 2 s': too_long,
    '`await limiter.try_acquire_async("x", weight=11)`, which returns False': never,
    '`@limiter.as_decorator(name="x", weight=3)`': decorating,
    "`limiter.buckets()[0].count()`, those that are used": counting,
    "`limiter.buckets()[0].flush()`": flushing,
    "`limiter.close()`": closing,
}
BLOCKING = '`limiter.try_acquire("x")`, in synchronous code'
TRANSPORT = "`AsyncRateLimiterTransport(limiter)` for httpx"
STORES = (
    '`RedisBucket.init(rates, redis, "name")`',
    "`SQLiteBucket.init_from_file(rates, db_path=path)`, which processes share",
)


@each_row(PAGE, but=STORES)
def test_row(row: Row, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two cells do the same, as far as the row says."""
    if row.left == BLOCKING:
        blocking(row, clock, monkeypatch)
    elif row.left == TRANSPORT:
        transport(row, monkeypatch)
    else:
        PAIRS[row.left](row)


@pytest.fixture
def client(store: RealServer) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(store.url)
    yield client
    client.close()


@pytest.mark.parametrize("row", [row for row in rows_of(PAGE) if row.left in STORES], ids=lambda row: row.theirs[0])
def test_a_store_that_processes_share(row: Row, store: RealServer, client: redis.Redis, clock: Clock, tmp_path: Path) -> None:
    """Two limiters let ten requests pass together."""
    clock.seconds = HandTime().monotonic
    side = theirs(redis=client, path=str(tmp_path / "bucket"))
    side.names["rates"] = side.call("[Rate(10, Duration.HOUR)]")
    one = [pyrate_limiter.Limiter(side.call(row.theirs[0])) for _ in range(2)]
    hits = [one[number % 2].try_acquire("x", blocking=False) for number in range(14)]
    for limiter in one:
        limiter.close()

    async def main() -> list[bool]:
        answers = []
        names = ours(RedisLimiter=RedisLimiter, url=store.url)
        pair = [names.call(row.ours[0]) for _ in range(2)]
        for number in range(14):
            try:
                await pair[number % 2].acquire(max_wait=0)
            except WaitTooLong:
                answers.append(False)
            else:
                answers.append(True)
        for limiter in pair:
            await limiter.aclose()
        return answers

    assert [True] * 10 + [False] * 4 == hits == asyncio.run(main())


def test_every_row_is_run() -> None:
    """A row without a check, or a check without a row, is a mistake."""
    check_pairs(PAGE, {**PAIRS, BLOCKING: blocking, TRANSPORT: transport, **dict.fromkeys(STORES, test_a_store_that_processes_share)})


# What the page says below the table.


def test_a_name_waits_behind_other_names() -> None:
    """A key of a KeyedLimiter has its own line."""

    async def main() -> None:
        one, other = theirs(), ours()
        one.names["limiter"] = pyrate_limiter.Limiter(a_bucket_for_each_name(one))
        other.names["users"] = other.call('KeyedLimiter(lambda name: SlidingWindow("10/s"))')
        times = []
        for side, call in ((one, "limiter.try_acquire_async({!r})"), (other, "users.acquire({!r})")):
            busy = [asyncio.ensure_future(side.run(call.format("ann"))) for _ in range(11)]
            await asyncio.sleep(0.01)
            times += await moments(side, call.format("bob"), [0.0])
            await asyncio.gather(*busy)
        one.close()
        assert [1.04, 0.0] == pytest.approx(times, abs=0.01)

    in_virtual_time(main)


def test_all_names_share_a_single_bucket() -> None:
    """Ten for both."""

    async def main() -> None:
        limiter = theirs().call(TEN[0])
        granted = [await limiter.try_acquire_async(name, blocking=False) for name in ("ann", "bob") for _ in range(6)]
        limiter.close()
        assert [True] * 10 + [False] * 2 == granted

    in_virtual_time(main)


def test_fixed_windows_are_those_of_the_uptime() -> None:
    """The clock reads 1000 s at first, so a minute ends 20 s later."""

    async def main() -> None:
        limiter = theirs().call("Limiter(InMemoryBucket([Rate(10, Duration.MINUTE)], algorithm=FixedWindow()))")
        for after, left in ((0, 10), (19, 0), (1, 10)):
            await asyncio.sleep(after)
            assert left == sum([await limiter.try_acquire_async("x", blocking=False) for _ in range(11)])
        limiter.close()

    in_virtual_time(main)
