"""The turnstile by itself: which callers go on in which iteration of the loop, and that nothing is left behind."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from aiorate.waiting.turnstile import LOOP_CHECK_NS, MOST, Turnstile

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable

MS = 1_000_000


class Signal:
    """A signal that one caller waits for."""

    def __init__(self) -> None:
        self.sent = False

    def __await__(self) -> Generator[Signal, None, None]:
        while not self.sent:
            yield self


class Loop:
    """An event loop and its time, both moved by hand: one `turn` runs the callbacks that were scheduled before it, in order."""

    def __init__(self) -> None:
        self.now = 0
        self.closed = False
        self.turnstile = Turnstile(self, lambda: self.now)
        self.waiting: dict[Signal, tuple[int, Coroutine[Any, Any, None]]] = {}
        self.went_on: list[int] = []
        self.resumptions = 0
        self.body = 0
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


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_caller_waits_for_one_iteration(loop: Loop) -> None:
    """The other tasks run in between, and nothing is left behind."""
    loop.enter([1])

    assert [[], [1]] == [loop.turn(), loop.turn()]
    loop.turn()
    assert loop.idle


def test_callers_go_on_in_order_of_arrival(loop: Loop) -> None:
    """However many are sent back because the loop was kept busy for too long."""
    loop.body = 2 * MS
    loop.enter(range(3_000))

    loop.turns_until_empty()

    assert list(range(3_000)) == loop.went_on


def test_latecomers_go_on_after_those_sent_back(loop: Loop) -> None:
    """A place in the queue is kept."""
    loop.body = 2 * MS
    loop.enter(range(10))
    loop.turn()
    loop.turn()
    loop.enter(range(10, 20))

    loop.turns_until_empty()

    assert list(range(20)) == loop.went_on


@pytest.mark.parametrize("body", [MS // 2, MS, 3 * MS, 20 * MS])
def test_a_turn_ends_after_5_ms_and_one_body(loop: Loop, body: int) -> None:
    """Whatever the callers do once they have gone on."""
    loop.body = body
    loop.enter(range(200))

    while loop.waiting:
        before = loop.now
        loop.turn()
        assert loop.now - before < LOOP_CHECK_NS + body


@pytest.mark.parametrize("body", [0, MS // 1000, MS // 50])
def test_each_caller_is_resumed_about_once(loop: Loop, body: int) -> None:
    """The cost of a herd is linear: the portions adapt to what fits into a turn."""
    loop.body = body
    loop.enter(range(5_000))

    loop.turns_until_empty()

    assert loop.resumptions <= 1.2 * 5_000 + 2 * MOST


@pytest.mark.parametrize("body", [MS // 4, MS, 6 * MS])
def test_a_turn_resumes_few_in_vain(loop: Loop, body: int) -> None:
    """Where each caller takes long, resuming callers in vain costs little beside an iteration."""
    loop.body = body
    loop.enter(range(2_000))

    count = loop.turns_until_empty()

    assert loop.resumptions <= 2_000 + 70 * count + 2 * MOST


def test_slow_callers_delay_the_others_little(loop: Loop) -> None:
    """A careless retry uses up each iteration in which it runs; the others still go through in portions."""
    loop.slow = dict.fromkeys(range(0, 2_000, 100), 6 * MS)
    loop.enter(range(2_000))

    assert loop.turns_until_empty() <= 80


def test_quick_callers_need_few_turns(loop: Loop) -> None:
    """An iteration of a loop costs as much as ten callers."""
    loop.enter(range(20 * MOST))

    assert loop.turns_until_empty() <= 30


def test_portions_grow_again(loop: Loop) -> None:
    """One slow caller, or a pause of the garbage collector, slows the others for some iterations only."""
    loop.body = 20 * MS
    loop.enter(range(20))
    loop.turns_until_empty()

    loop.body = 0
    loop.enter(range(50 * MOST))
    assert loop.turns_until_empty() <= 50 + 60


def test_a_cancelled_caller_loses_its_place(loop: Loop) -> None:
    """Whether it is in the queue, was let through, or was sent back."""
    loop.body = 3 * MS
    loop.enter(range(10))
    loop.turn()
    loop.cancel(0)  # let through
    loop.turn()
    loop.cancel(5)  # sent back
    loop.turn()
    loop.cancel(9)

    loop.turns_until_empty()

    assert [1, 2, 3, 4, 6, 7, 8] == loop.went_on
    loop.turn()
    loop.turn()
    assert loop.idle


def test_busy_tasks_delay_no_waiting_caller_for_ever(loop: Loop) -> None:
    """Tasks of other limiters, which never wait here, may run first in each iteration: every fourth lets a caller through."""
    loop.enter(range(3))

    for _ in range(16):
        loop.turnstile.held_for()  # the loop is watched by a caller that finds a permit
        loop.now += 6 * MS
        loop.turn()

    assert [0, 1, 2] == loop.went_on


def test_time_that_other_tasks_take_does_not_count(loop: Loop) -> None:
    """Otherwise a program that computes for 6 ms in each iteration would let one caller through in each, not a thousand."""
    loop.enter(range(3 * MOST))

    for _ in range(10):
        loop.now += 6 * MS  # before a caller has watched the loop
        loop.turn()

    assert not loop.waiting


# How many tasks a line may wake.


def test_a_line_wakes_fewer_while_callers_wait(loop: Loop) -> None:
    """Tasks that it wakes would wait behind the callers; but never none, or a crowd of callers could stop the line."""
    assert MOST == loop.turnstile.room(0)

    loop.enter(range(300))

    assert MOST - 300 == loop.turnstile.room(0)
    assert MOST - 300 - 50 == loop.turnstile.room(50)
    loop.enter(range(300, 5_000))
    assert MOST // 8 == loop.turnstile.room(0)


# One for each loop.


class Native:
    """A loop that has only an identity."""


def test_each_loop_has_one_while_it_is_used() -> None:
    """All limiters of a loop share it, and without limiters it is freed."""
    native, other = Native(), Native()
    first = Turnstile.of(native, lambda native: Loop(), lambda: 0)

    assert first is Turnstile.of(native, lambda native: Loop(), lambda: 0)
    assert first is not Turnstile.of(other, lambda native: Loop(), lambda: 0)

    gone = weakref.ref(native)
    del native, first
    gc.collect()
    assert gone() is None
