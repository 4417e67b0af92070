"""The rows of docs/migrating/ratelimit.md: ratelimit and aiorate, side by side, each with a clock that is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import ratelimit
from helpers.migrating import BEGINS, HandTime, Row, Side, check_pairs, each_row, in_thread_time, in_virtual_time, ours

import aiorate
from aiorate import WaitTooLong
from aiorate.testing import ManualClock

PAGE = "ratelimit"
FIFTEEN = 'Limiter(SlidingWindow("15/900s"), scope="process")'


@pytest.fixture(autouse=True)
def hand_time(monkeypatch: pytest.MonkeyPatch) -> HandTime:
    """The clock of `limits`, which is a default argument, and the module whose sleep() it calls."""
    time = HandTime()
    monkeypatch.setattr(ratelimit.limits.__init__, "__defaults__", (15, 900, time.monotonic, True))
    monkeypatch.setattr("ratelimit.decorators.time", time)
    return time


def theirs(**names: Any) -> Side:
    return Side(ratelimit, **names)


def ours_at(clock: ManualClock, made: str = FIFTEEN) -> Side:
    """The names of aiorate, whose limiters have that clock, and a limiter of 15 in 900 s."""
    side = ours(Limiter=partial(aiorate.Limiter, clock=clock))
    side.names["limiter"] = side.call(made)
    return side


def decorated(side: Side, *decorators: str, kind: str = "def") -> Callable[[], Any]:
    """A function below these decorators."""
    side.call("\n".join((*decorators, f"{kind} limited(): return 'done'")))
    return side.names["limited"]  # type: ignore[no-any-return]


def kept(call: Callable[[], Any], count: int, error: type[Exception]) -> tuple[int, list[Exception]]:
    """How many of ``count`` calls are let through, and what the others raise."""
    raised: list[Exception] = []
    done = 0
    for _ in range(count):
        try:
            done += call() == "done"
        except error as refused:
            raised.append(refused)
    return done, raised


def waiting(row: Row, time: HandTime) -> None:
    """35 calls: 15 at once, 15 after 900 s, 5 after 1800 s."""
    call = decorated(theirs(), *row.theirs)
    began, one = time.seconds, []
    for _ in range(35):
        call()
        one.append(time.seconds - began)

    clock = ManualClock()
    side = ours_at(clock)
    limited = decorated(side, *row.ours)

    def work() -> list[float]:
        times = []
        for _ in range(35):
            limited()
            times.append(clock.now() / 1e9)
        return times

    assert one == in_thread_time(side.names["limiter"], clock, work, 100)
    assert [0.0] * 15 + [900.0] * 15 + [1800.0] * 5 == one


def raising(row: Row, time: HandTime) -> None:
    """15 of 20 calls pass, and 15 more 900 s later."""
    clock = ManualClock()
    one, other = decorated(theirs(), row.theirs[0]), ours_at(clock)

    def limited() -> str:
        other.call(row.ours[0])
        return "done"

    for _ in range(2):
        (passed, raised), (also, errors) = kept(one, 20, ratelimit.RateLimitException), kept(limited, 20, WaitTooLong)
        assert (15, 5) == (passed, len(raised)) == (also, len(errors))
        time.sleep(900)
        clock.advance(900)


def remaining(row: Row, time: HandTime) -> None:
    """Both say the seconds until a call passes."""
    clock = ManualClock()
    one, other = decorated(theirs(), "@limits(calls=15, period=900)"), ours_at(clock)
    kept(one, 15, ratelimit.RateLimitException)
    assert all(other.names["limiter"].try_acquire() for _ in range(15))
    for seconds in (900.0, 600.0, 300.0):
        with pytest.raises(ratelimit.RateLimitException) as theirs_raised:
            one()
        with pytest.raises(WaitTooLong) as raised:
            other.call("limiter.acquire_blocking(max_wait=0)")
        names = {"error": theirs_raised.value}, {"error": raised.value}
        assert seconds == Side(**names[0]).call(row.theirs[0]) == Side(**names[1]).call(row.ours[0])
        time.sleep(300)
        clock.advance(300)


def returning_nothing(row: Row, time: HandTime) -> None:
    clock = ManualClock()
    call, side = decorated(theirs(), row.theirs[0]), ours_at(clock)
    side.call(f"def limited():\n {row.ours[0]}\n  return 'done'")
    for limited in (call, side.names["limited"]):
        assert ["done"] * 15 + [None] * 5 == [limited() for _ in range(20)]


def defaults(row: Row, time: HandTime) -> None:
    """15 in 900 s."""
    clock = ManualClock()
    call, side = decorated(theirs(), row.theirs[0]), ours_at(clock, row.ours[0])
    for _ in range(2):
        assert 15 == kept(call, 20, ratelimit.RateLimitException)[0]
        assert 15 == sum(side.names["limiter"].try_acquire() for _ in range(20))
        time.sleep(900)
        clock.advance(900)


def old_name(row: Row, time: HandTime) -> None:
    for code in (row.theirs[0], row.ours[0]):  # the right cell is another row's left one
        assert 15 == kept(decorated(theirs(), code), 20, ratelimit.RateLimitException)[0]


def shared(row: Row, time: HandTime) -> None:
    """Two functions have 15 calls together."""
    one = theirs()
    one.call(row.theirs[0])
    other = ours_at(ManualClock())
    first, second = decorated(one, "@shared"), decorated(one, "@shared")
    assert 15 == kept(first, 9, ratelimit.RateLimitException)[0] + kept(second, 9, ratelimit.RateLimitException)[0]
    decorator = row.ours[0].removeprefix("one ")
    first, second = decorated(other, decorator), decorated(other, decorator)
    assert ["done"] * 15 == [first() for _ in range(9)] + [second() for _ in range(6)]
    assert not other.names["limiter"].try_acquire()


def coroutines(row: Row, time: HandTime) -> None:
    """Their decorator counts when the coroutine is made; aiorate's waits when it is awaited."""
    call = decorated(theirs(), row.theirs[0], kind="async def")
    made = [call() for _ in range(15)]
    with pytest.raises(ratelimit.RateLimitException):
        call()
    for coroutine in made:
        coroutine.close()

    async def main() -> list[float]:
        side = ours()
        side.names["limiter"] = side.call('Limiter(SlidingWindow("15/900s"))')
        limited = decorated(side, row.ours[0], kind="async def")
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert ["done"] * 16 == await asyncio.gather(*(limited() for _ in range(16)))
        return [loop.time() - began]

    assert [900.0] == pytest.approx(in_virtual_time(main))


def clocks(row: Row, time: HandTime) -> None:
    moved = HandTime()
    call = decorated(theirs(clock=moved.monotonic), f"@{row.theirs[0]}")
    side = ours(ManualClock=ManualClock)
    hand: list[ManualClock] = []
    side.names["ManualClock"] = lambda: hand.append(ManualClock()) or hand[0]
    limiter = side.call(row.ours[0])
    for _ in range(2):
        assert 15 == kept(call, 20, ratelimit.RateLimitException)[0] == sum(limiter.try_acquire() for _ in range(20))
        moved.sleep(900)
        hand[0].advance(900)


PAIRS: dict[str, Callable[[Row, HandTime], None]] = {
    "`@sleep_and_retry` above `@limits(calls=15, period=900)`": waiting,
    "`@limits(calls=15, period=900)`, which raises RateLimitException": raising,
    "`error.period_remaining` of a `RateLimitException`": remaining,
    "`@limits(calls=15, period=900, raise_on_limit=False)`, which returns None": returning_nothing,
    "`@limits()`": defaults,
    "`@rate_limited(15, 900)`, the old name": old_name,
    "one `shared = limits(calls=15, period=900)` on several functions": shared,
    "`@limits(calls=15, period=900)` on `async def`, which counts calls": coroutines,
    "`limits(calls=15, period=900, clock=clock)` for tests": clocks,
}


@each_row(PAGE)
def test_row(row: Row, hand_time: HandTime) -> None:
    """The two cells do the same, as far as the row says."""
    PAIRS[row.left](row, hand_time)


def test_every_row_is_run() -> None:
    """A row without a check, or a check without a row, is a mistake."""
    check_pairs(PAGE, PAIRS)


# What the page says below the table.


def test_thirty_calls_may_pass_around_the_end_of_a_window(hand_time: HandTime) -> None:
    """The first window of ratelimit began when the function was decorated. A SlidingWindow has no edge."""
    clock = ManualClock()
    call, limiter = decorated(theirs(), "@limits(calls=15, period=900)"), ours_at(clock).names["limiter"]
    passed = []
    for _ in range(2):
        hand_time.sleep(450)
        clock.advance(450)
        passed.append((kept(call, 20, ratelimit.RateLimitException)[0], sum(limiter.try_acquire() for _ in range(20))))
    hand_time.sleep(1)
    clock.advance(1)
    passed.append((kept(call, 20, ratelimit.RateLimitException)[0], sum(limiter.try_acquire() for _ in range(20))))

    assert [(15, 15), (15, 0), (0, 0)] == passed


def test_sleep_and_retry_blocks_the_event_loop(hand_time: HandTime) -> None:
    """The sixteenth coroutine is made after 900 s, in which nothing else runs."""
    call = decorated(theirs(), "@sleep_and_retry", "@limits(calls=15, period=900)", kind="async def")

    made = [call() for _ in range(16)]

    assert BEGINS + 900 == hand_time.seconds
    for coroutine in made:
        coroutine.close()
