"""What finds the limit of a server: aiorate's AdaptiveRate, and its rivals, behind one small protocol.

A policy paces the requests of one client in virtual time. Knows nothing of servers.
"""

from __future__ import annotations

from importlib import import_module
from math import ceil
from typing import TYPE_CHECKING, Any, Protocol

from aiorate import Limiter, Rate, Scheduler, SlidingWindow, TokenBucket
from aiorate.testing import ManualClock
from helpers.adaptive.servers import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from helpers.adaptive.servers import Answer

__all__ = ["POLICIES", "STRATEGIES", "Adaptive", "Aimd", "Paced", "Policy", "PolicyOptions"]

_HINT_NONE = 1.0  # seconds: the pause after a refusal that names none, as HTTP adapters have it


class Policy(Protocol):
    """Paces requests, and hears of their answers. All instants are ns, and never go back."""

    def take(self, now: int) -> int:
        """Take a permit. Not after ``now``: taken. Otherwise the instant at which to ask again, and nothing is taken."""
        ...

    def answered(self, now: int, answer: Answer, took: float) -> bool:
        """Hear of an answer that came ``took`` seconds after its request was granted. True: ask again, since it may be sooner now."""
        ...

    @property
    def rate(self) -> float:
        """The rate in force, per second."""
        ...


class PolicyOptions:
    """What a policy is made with: the rate at first, the range, the strategy of its limiter, and what it is told."""

    def __init__(
        self,
        start: float,
        lowest: float,
        highest: float,
        *,
        strategy: str = "pool",
        took: bool = True,
        refused: float | None = None,
        seed: int = 0,
    ) -> None:
        self.start: float = start
        self.lowest: float = lowest
        self.highest: float = highest
        self.strategy: str = strategy
        self.took: bool = took
        self.refused: float | None = refused
        self.seed: int = seed


# The strategies that the limiter of a policy may have.
STRATEGIES: dict[str, Callable[[float], Scheduler | Rate]] = {
    "pool": Rate,
    "strict": lambda rate: TokenBucket(rate, burst=1),
    "bucket20": lambda rate: TokenBucket(rate, burst=20),
    "window": lambda rate: SlidingWindow(Rate(max(1, round(rate)), 1) if rate >= 1 else Rate(1, 1 / rate)),
}


class Paced:
    """A limiter on a manual clock, from which permits are taken without an event loop."""

    def __init__(self, options: PolicyOptions) -> None:
        self.clock: ManualClock = ManualClock()
        self.limiter: Limiter = Limiter(STRATEGIES[options.strategy](options.start), clock=self.clock)

    def take(self, now: int) -> int:
        self.clock.set(now)
        limiter = self.limiter
        if limiter.try_acquire():
            return now
        delay = limiter.delay()
        return now + max(1, ceil(delay * SECOND)) if delay < 1e6 else 1 << 62

    @property
    def rate(self) -> float:
        return _per_second(self.limiter.rate)


class Adaptive(Paced):
    """`aiorate.adaptive.AdaptiveRate`, told by hand."""

    def __init__(self, options: PolicyOptions) -> None:
        super().__init__(options)
        refused = {} if options.refused is None else {"refused": options.refused}
        self.adaptive: Any = import_module("aiorate.adaptive").AdaptiveRate(self.limiter, options.lowest, options.highest, **refused)
        self._tells = options.took

    def answered(self, now: int, answer: Answer, took: float) -> bool:
        self.clock.set(now)
        before = self.limiter.rate
        told = took if self._tells else None
        if answer.served:
            self.adaptive.succeeded(took=told)
            return self.limiter.rate is not before
        self.adaptive.throttled(answer.retry_after, took=told)
        return True

    @property
    def rate(self) -> float:
        return _per_second(self.adaptive.rate)


class _Pausing(Paced):
    """A plain limiter that a refusal pauses: for Retry-After, or a second."""

    def answered(self, now: int, answer: Answer, took: float) -> bool:
        if answer.served:
            return False
        self.clock.set(now)
        self.limiter.pause(_HINT_NONE if answer.retry_after is None else answer.retry_after)
        return True


class Aimd:
    """Additive increase, multiplicative decrease: ``add`` permits/s more each second, ``times`` the rate at a refusal.

    Once a round trip at most, as usual. Heeds Retry-After.
    """

    def __init__(self, options: PolicyOptions, add: float, times: float) -> None:
        self._rate = options.start
        self._options = options
        self._add, self._times = add, times
        self._next = 0  # when the next permit is due
        self._cut = -1  # requests granted before this instant say nothing new
        self._last = 0

    def take(self, now: int) -> int:
        if self._next > now:
            return self._next
        self._next = max(self._next, now - SECOND // 1000) + round(SECOND / self._rate)
        return now

    def answered(self, now: int, answer: Answer, took: float) -> bool:
        if answer.served:
            self._rate = min(self._options.highest, self._rate + self._add * max(0, now - self._last) / SECOND)
            self._last = max(self._last, now)
            return False
        if now - took * SECOND > self._cut:
            self._cut = self._last = now
            self._rate = max(self._options.lowest, self._rate * self._times)
        if answer.retry_after is not None:
            self._next = max(self._next, now + round(answer.retry_after * SECOND))
            self._last = max(self._last, self._next)
        return True

    @property
    def rate(self) -> float:
        return self._rate


POLICIES: dict[str, Callable[[PolicyOptions], Policy]] = {
    "AdaptiveRate": Adaptive,
    "AIMD": lambda options: Aimd(options, 5.0, 0.9),
    "a 429 pauses": _Pausing,
}


def _per_second(rate: Rate) -> float:
    return rate.permits * SECOND / rate.period_ns
