"""The loop always turns: callers that get permits at once let others run every 5 to 10 ms, and a herd of them costs no more than one."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import pytest
from helpers.driving import LONG, SECOND

import aiorate
from aiorate.waiting.turnstile import LOOP_CHECK_NS, MOST, Turnstile

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable

MS = 1_000_000


# Through limiters, in real time.


async def turned(step: Callable[[], Coroutine[Any, Any, object]], times: int = 3) -> bool:
    """Take steps until another task has run that often."""
    count = 0

    async def other() -> None:
        nonlocal count
        while True:
            count += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    end = monotonic_ns() + LONG * SECOND
    while count < times and monotonic_ns() < end:
        await step()
    task.cancel()
    return count >= times


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_a_caller_that_never_waits_lets_others_run() -> None:
    """However it asks, and also if it goes from limiter to limiter."""
    limiters = [aiorate.Limiter(aiorate.TokenBucket("1/h", burst=10**9)) for _ in range(50)]
    place = 0

    async def block() -> None:
        async with limiters[0]:
            pass

    async def next_one() -> None:
        nonlocal place
        place += 1
        await limiters[place % 50].acquire()

    async def try_it() -> None:
        for _ in range(10):
            limiters[0].try_acquire()
        await limiters[0].acquire(2)

    for step in (limiters[0].acquire, block, next_one, try_it):
        assert await turned(step), step


# The turnstile by itself, in a loop whose time is moved by hand.


class Signal:
    """A signal that one caller waits for."""

    def __init__(self) -> None:
        self.sent = False

    def __await__(self) -> Generator[Signal, None, None]:
        while not self.sent:
            yield self


class Loop:
    """An event loop and its time, both moved by hand: one `turn` runs the callbacks that were scheduled before it, in order."""

    def __init__(self, body: int = 0) -> None:
        self.now = 0
        self.closed = False
        self.turnstile = Turnstile(self, lambda: self.now)
        self.waiting: dict[Signal, tuple[int, Coroutine[Any, Any, None]]] = {}
        self.went_on: list[int] = []
        self.resumptions = 0
        self.body = body
        """Nanoseconds that a caller takes once it has gone on."""
        self.slow: dict[int, int] = {}
        """The nanoseconds of callers that take another time."""
        self._ready: list[Callable[[], None]] = []

    # The port of the turnstile.

    def post(self, callback: Callable[[], None]) -> None:
        self._ready.append(callback)

    def signal(self) -> Signal:
        return Signal()

    def wait(self, signal: Signal) -> Signal:
        return signal

    def send(self, signal: Signal) -> None:
        signal.sent = True
        self._ready.append(lambda: self._resume(signal))

    def owner(self) -> None:
        return None

    # What the tests call.

    def enter(self, callers: Iterable[int]) -> None:
        """Have these callers find the loop starved."""
        for number in callers:
            self._step(number, self.turnstile.wait())

    def cancel(self, number: int) -> None:
        signal = next(signal for signal, (other, _) in self.waiting.items() if other == number)
        self.waiting.pop(signal)[1].close()

    def turn(self) -> list[int]:
        """Run one iteration; returns the callers that went on."""
        ready, self._ready = self._ready, []
        before = len(self.went_on)
        for call in ready:
            call()
        return self.went_on[before:]

    def turns_until_empty(self) -> int:
        count = 0
        while self.waiting:
            self.turn()
            count += 1
        return count

    @property
    def idle(self) -> bool:
        return not self._ready

    def _resume(self, signal: Signal) -> None:
        if signal in self.waiting:
            self.resumptions += 1
            self._step(*self.waiting.pop(signal))

    def _step(self, number: int, caller: Coroutine[Any, Any, None]) -> None:
        try:
            signal = caller.send(None)
        except StopIteration:
            self.went_on.append(number)
            self.now += self.slow.get(number, self.body)
        else:
            self.waiting[signal] = number, caller


def test_callers_go_on_in_order_of_arrival() -> None:
    """However many are sent back because the loop was kept busy for too long; latecomers go on after those."""
    loop = Loop(body=2 * MS)
    loop.enter(range(1_000))
    loop.turn()
    loop.turn()
    loop.enter(range(1_000, 1_500))

    loop.turns_until_empty()

    assert loop.went_on == list(range(1_500))


def test_a_turn_ends_after_5_ms_and_one_body() -> None:
    for body in (MS // 2, MS, 3 * MS, 20 * MS):
        loop = Loop(body)
        loop.enter(range(200))

        while loop.waiting:
            before = loop.now
            loop.turn()
            assert loop.now - before < LOOP_CHECK_NS + body, body


def test_the_cost_of_a_herd_is_linear() -> None:
    """Each caller is resumed about once; where each takes long, resuming some in vain costs little beside an iteration."""
    for body in (0, MS // 1000, MS // 50):
        loop = Loop(body)
        loop.enter(range(5_000))
        loop.turns_until_empty()
        assert loop.resumptions <= 1.2 * 5_000 + 2 * MOST, body
    for body in (MS // 4, MS, 6 * MS):
        loop = Loop(body)
        loop.enter(range(2_000))
        count = loop.turns_until_empty()
        assert loop.resumptions <= 2_000 + 70 * count + 2 * MOST, body


def test_a_cancelled_caller_loses_its_place() -> None:
    """Whether it is in the queue, was let through, or was sent back."""
    loop = Loop(body=3 * MS)
    loop.enter(range(10))
    loop.turn()
    loop.cancel(0)  # let through
    loop.turn()
    loop.cancel(5)  # sent back
    loop.turn()
    loop.cancel(9)

    loop.turns_until_empty()

    assert loop.went_on == [1, 2, 3, 4, 6, 7, 8]
    loop.turn()
    loop.turn()
    assert loop.idle


def test_busy_tasks_delay_no_waiting_caller_for_ever() -> None:
    """Tasks of other limiters, which never wait here, may run first in each iteration: every fourth lets a caller through."""
    loop = Loop()
    loop.enter(range(3))

    for _ in range(16):
        loop.turnstile.held_for()  # the loop is watched by a caller that finds a permit
        loop.now += 6 * MS
        loop.turn()

    assert loop.went_on == [0, 1, 2]
