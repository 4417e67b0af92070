"""A kind of event loop that aiorate does not know, with all that docs/contributing.md asks for: a view, a ticket, a driver, a port.

Its row of the table is `TOY`.
"""

from __future__ import annotations

import heapq
from asyncio import InvalidStateError
from collections import deque
from typing import TYPE_CHECKING, Any

from aiorate.testing import ManualClock
from aiorate.waiting.loops import Kind
from aiorate.waiting.one_loop import OneLoop
from aiorate.waiting.timer import Timer
from aiorate.waiting.turnstile import NEVER, Turnstile
from helpers.driving import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from aiorate.waiting.clock import Clock, Handle
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.line import Outcome

__all__ = ["TOY", "ToyLoop"]


class Signal:
    """The only thing that a task of the toy loop can await."""

    def __init__(self) -> None:
        self.sent = False
        self.waiting: list[Callable[[], None]] = []

    def __await__(self) -> Generator[Signal, None, None]:
        while not self.sent:
            yield self


class ToyTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ToyLoop:
    """An event loop in virtual time: it sleeps by moving its clock on."""

    running: ToyLoop | None = None

    def __init__(self) -> None:
        self.now = 5 * SECOND
        self.closed = False
        self.task: object = None
        self._ready: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[int, int, ToyTimer]] = []
        self._count = 0

    def post(self, callback: Callable[[], None]) -> None:
        self._ready.append(callback)

    def call_at(self, instant: int, callback: Callable[[], None]) -> ToyTimer:
        timer = ToyTimer(callback)
        self._count += 1
        heapq.heappush(self._timers, (instant, self._count, timer))
        return timer

    def spawn(self, coroutine: Coroutine[Signal, None, Any]) -> None:
        self.post(lambda: self._step(coroutine))

    def send(self, signal: Signal) -> None:
        signal.sent = True
        for step in signal.waiting:
            self.post(step)

    def run(self) -> None:
        """Run until nothing is left to do."""
        ToyLoop.running = self
        try:
            while self._ready or self._timers:
                if not self._ready:
                    instant, _, timer = heapq.heappop(self._timers)
                    if timer.callback is not None:
                        self.now = max(self.now, instant)
                        timer.callback()
                for _ in range(len(self._ready)):
                    self._ready.popleft()()
        finally:
            ToyLoop.running = None

    def _step(self, coroutine: Coroutine[Signal, None, Any]) -> None:
        self.task = coroutine
        try:
            signal = coroutine.send(None)
        except StopIteration:
            return
        finally:
            self.task = None
        signal.waiting.append(lambda: self._step(coroutine))


class ToyView(OneLoop):
    """The toy loop as limiters see it."""

    section = None
    monotonic = False
    steady = False
    grain = 0
    forked = False

    def __init__(self, native: ToyLoop, clock: Clock | None, precise: bool) -> None:
        self.native = native
        self.timers: Any = clock if isinstance(clock, ManualClock) else native
        self.manual = self.timers is clock
        self.read: Callable[[], int] = (lambda: native.now) if clock is None else clock.now
        super().__init__(Turnstile.of(native, ToyPort, lambda: native.now), NEVER if self.manual else 0)

    @property
    def running(self) -> bool:
        return ToyLoop.running is self.native

    @property
    def closed(self) -> bool:
        return self.native.closed

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.native.post(callback)

    def call_at(self, reading: int, callback: Callable[[], None]) -> Handle:
        handle: Handle = self.timers.call_at(reading, callback)
        return handle

    async def yield_once(self) -> None:
        signal = Signal()
        self.native.post(lambda: self.native.send(signal))
        await signal

    def starved(self) -> bool:
        now = self.read()
        if now < self.check_after or not self.running:
            return False
        return self.watch(now)

    def make_driver(self, dispatcher: Dispatcher) -> ToyDriver:
        return ToyDriver(dispatcher, self)


class ToyTicket:
    def __init__(self, loop: ToyLoop) -> None:
        self.loop = loop
        self.signal = Signal()
        self.outcome: Outcome | None = None

    def done(self) -> bool:
        return self.outcome is not None

    def cancelled(self) -> bool:
        return False  # the toy loop cancels a task by closing it, which takes effect at once

    def result(self) -> Outcome:
        if self.outcome is None:
            raise InvalidStateError
        return self.outcome

    def set_result(self, outcome: Outcome, /) -> None:
        self.outcome = outcome
        self.loop.send(self.signal)


class ToyDriver:
    def __init__(self, dispatcher: Dispatcher, view: ToyView) -> None:
        self.loop = view.native
        self.timer = Timer(view, dispatcher.serve)

    def ticket(self, permits: int) -> ToyTicket:
        return ToyTicket(self.loop)

    def wait(self, ticket: ToyTicket) -> Signal:
        return ticket.signal

    def leave(self, ticket: ToyTicket) -> None:
        pass

    def release(self, ticket: ToyTicket) -> bool:
        return True

    def arm(self, reading: int | None) -> None:
        self.timer.set(reading)

    def retire(self) -> None:
        self.timer.set(None)

    async def aclose(self) -> None:
        self.timer.set(None)


class ToyPort:
    """The way into the toy loop."""

    def __init__(self, native: ToyLoop) -> None:
        self.native = native

    @property
    def closed(self) -> bool:
        return self.native.closed

    def post(self, callback: Callable[[], None]) -> None:
        self.native.post(callback)

    def signal(self) -> Signal:
        return Signal()

    def wait(self, signal: Signal) -> Signal:
        return signal

    def send(self, signal: Signal) -> None:
        self.native.send(signal)

    def owner(self) -> None:
        return None


TOY = Kind(ToyLoop, lambda hosted: ToyLoop.running, lambda: ToyLoop.running and ToyLoop.running.task, ToyView, ToyPort)
