"""What finds the limit of a server: aiorate's AdaptiveRate, and two simpler ways. They pace one client, and know nothing of servers."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import NamedTuple, Protocol

from aiorate import Limiter, Rate, Scheduler, SlidingWindow, TokenBucket
from aiorate.adaptive import AdaptiveRate
from aiorate.testing import ManualClock
from helpers.adaptive.servers import SECOND, Answer

PAUSE = 1.0  # seconds: the pause after a refusal that names none, as HTTP adapters have it


class Policy(Protocol):
    """Paces requests, and hears of their answers. All instants are ns, and never go back.

    ``take`` takes a permit and returns an instant that is not after now, or takes none and returns when to ask again. ``answered`` hears
    of an answer that came ``took`` seconds after its permit, and returns whether to ask again, since it may be sooner now.
    """

    def take(self, now: int) -> int: ...
    def answered(self, now: int, answer: Answer, took: float) -> bool: ...
    @property
    def rate(self) -> float: ...


class Options(NamedTuple):
    """What a policy is made with: the rate at first and its range, per second, the strategy of its limiter, and what it is told."""

    start: float
    lowest: float
    highest: float
    strategy: str = "pool"
    took: bool = True
    refused: float = 0.02


STRATEGIES: dict[str, Callable[[float], Scheduler | Rate]] = {
    "pool": Rate,
    "strict": lambda rate: TokenBucket(rate, burst=1),
    "bucket20": lambda rate: TokenBucket(rate, burst=20),
    "window": lambda rate: SlidingWindow(Rate(max(1, round(rate)), 1) if rate >= 1 else Rate(1, 1 / rate)),
}


class Pausing:
    """A limiter on a manual clock that a refusal pauses: for Retry-After, or a second."""

    def __init__(self, options: Options) -> None:
        self.clock = ManualClock()
        self.limiter = Limiter(STRATEGIES[options.strategy](options.start), clock=self.clock)

    def take(self, now: int) -> int:
        self.clock.set(now)
        if self.limiter.try_acquire():
            return now
        delay = self.limiter.delay()
        return now + max(1, ceil(delay * SECOND)) if delay < 1e6 else 1 << 62

    def answered(self, now: int, answer: Answer, took: float) -> bool:
        if not answer.served:
            self.clock.set(now)
            self.limiter.pause(PAUSE if answer.retry_after is None else answer.retry_after)
        return not answer.served

    @property
    def rate(self) -> float:
        return self.limiter.rate.per_second


class Adaptive(Pausing):
    """An AdaptiveRate, told by hand."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.adaptive = AdaptiveRate(self.limiter, options.lowest, options.highest, refused=options.refused)
        self._tells = options.took

    def answered(self, now: int, answer: Answer, took: float) -> bool:
        self.clock.set(now)
        before, told = self.limiter.rate, took if self._tells else None
        if answer.served:
            self.adaptive.succeeded(took=told)
            return self.limiter.rate is not before
        self.adaptive.throttled(answer.retry_after, took=told)
        return True


class Aimd:
    """Additive increase, multiplicative decrease: 5 permits/s more each second, 0.9 times the rate at a refusal, once a round trip."""

    def __init__(self, options: Options) -> None:
        self.rate, self._options = options.start, options
        self._next = 0  # when the next permit is due
        self._cut = -1  # requests granted before this instant say nothing new
        self._last = 0

    def take(self, now: int) -> int:
        if self._next > now:
            return self._next
        self._next = max(self._next, now - SECOND // 1000) + round(SECOND / self.rate)
        return now

    def answered(self, now: int, answer: Answer, took: float) -> bool:
        if answer.served:
            self.rate = min(self._options.highest, self.rate + 5.0 * max(0, now - self._last) / SECOND)
            self._last = max(self._last, now)
            return False
        if now - took * SECOND > self._cut:
            self._cut = self._last = now
            self.rate = max(self._options.lowest, self.rate * 0.9)
        if answer.retry_after is not None:
            self._next = max(self._next, now + round(answer.retry_after * SECOND))
            self._last = max(self._last, self._next)
        return True


POLICIES: dict[str, Callable[[Options], Policy]] = {"AdaptiveRate": Adaptive, "AIMD": Aimd, "a 429 pauses": Pausing}
