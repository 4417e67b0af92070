"""The adaptive mode of botocore, by its own classes, in virtual time.

It limits nothing before the first refusal, whatever the start: until then the client asks at the highest rate that the policies may have.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from benchmarks.adaptive.servers import SECOND

if TYPE_CHECKING:
    from benchmarks.adaptive.policies import PolicyOptions
    from benchmarks.adaptive.servers import Answer

__all__ = ["Boto"]


class Boto:
    """A client that asks whenever botocore's token bucket has a token. Like botocore, it heeds Retry-After only where it names one."""

    def __init__(self, options: PolicyOptions) -> None:
        self._clock = _Clock()
        parts = {
            name: import_module(f"botocore.{name}") for name in ("retries.adaptive", "retries.throttling", "retries.bucket", "exceptions")
        }
        self._bucket: Any = parts["retries.bucket"].TokenBucket(max_rate=1, clock=self._clock)
        self._limiter: Any = parts["retries.adaptive"].ClientRateLimiter(
            rate_adjustor=parts["retries.throttling"].CubicCalculator(starting_max_rate=0, start_time=0.0),
            rate_clocker=parts["retries.adaptive"].RateClocker(self._clock),
            token_bucket=self._bucket,
            throttling_detector=_Detector(),
            clock=self._clock,
        )
        self._none_left = parts["exceptions"].CapacityNotAvailableError
        self._start = options.highest
        self._refused = False
        self._next = 0  # before the first refusal: when the next request is sent; afterwards: the end of a pause

    def take(self, now: int) -> int:
        if self._next > now:
            return self._next
        if not self._refused:
            self._next = max(self._next, now - SECOND // 1000) + round(SECOND / self._start)
            return now
        self._clock.now = now / SECOND
        try:
            self._bucket.acquire(block=False)  # what on_sending_request() does, which would block
        except self._none_left:
            return now + max(1000, round((1 - float(self._bucket.available_capacity)) / float(self._bucket.max_rate) * SECOND))
        return now

    def answered(self, now: int, answer: Answer, took: float) -> bool:
        self._clock.now = now / SECOND
        self._limiter.on_receiving_response(served=answer.served)
        if not answer.served:
            self._refused = True
            if answer.retry_after is not None:
                self._next = max(self._next, now + round(answer.retry_after * SECOND))
        return True

    @property
    def rate(self) -> float:
        return float(self._bucket.max_rate) if self._refused else self._start


class _Clock:
    now: float = 0.0

    def current_time(self) -> float:
        return self.now


class _Detector:
    def is_throttling_error(self, **response: Any) -> bool:
        return not response["served"]
