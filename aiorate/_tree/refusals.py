"""Why a request gets no permits: the errors, and the most that may wait. Knows nothing of rates or loops."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from aiorate._errors import LimiterClosed, LineFull, WaitTooLong
from aiorate._rate import ns_to_seconds

if TYPE_CHECKING:
    from aiorate._schedulers.amounts import Permits


CLOSED = "the limiter is closed. Create a new one, or reopen this one: limiter.apply(aiorate.RateSpec(limiter.rate, 1, 'start'))."


class Refusals:
    """The errors of one method, ``call``, and its words for a request. Durations are in ns; an unknown one is None."""

    __slots__ = ("_call",)

    def __init__(self, call: str) -> None:
        self._call = call

    def named(self, permits: Permits) -> str:
        """The call with its argument, as errors name it."""
        return f"{self._call}({permits})" if isinstance(permits, int) else f"{self._call}()"

    def closed(self, limit: Any) -> LimiterClosed:
        """The ``limit``, or one that it shares, is closed."""
        return LimiterClosed(f"{self._call}(): {CLOSED}")

    def full(self, permits: Permits, most: int) -> LineFull:
        """``most`` requests are waiting."""
        return LineFull(f"{self.named(permits)}: the line is full (max_waiting={most}). Nothing was spent. Try later.")

    def too_long(self, limit: Any, permits: Permits, most_ns: int, wait: int | None) -> WaitTooLong:
        """The request would wait for ``wait``, and may wait for ``most_ns``."""
        seconds, most = inf if wait is None else ns_to_seconds(wait), ns_to_seconds(most_ns)
        return WaitTooLong(
            f"{self.named(permits)} would wait {seconds:.6g} s{self.reason(limit, permits)}, but max_wait is {most:g} s."
            " Nothing was spent. Try later, or raise max_wait.",
            seconds,
            most,
        )

    def reason(self, limit: Any, permits: Permits) -> str:
        """Why the request would wait, as a part of a sentence."""
        return ""

    def overdue(self, permits: Permits, most_ns: int, more: int | None) -> WaitTooLong:
        """The request has waited for ``most_ns``, and would wait for ``more`` on top."""
        seconds = ns_to_seconds(most_ns)
        return WaitTooLong(
            f"{self.named(permits)} was not granted within max_wait ({seconds:g} s). Nothing was spent. Try later, or raise max_wait.",
            inf if more is None else ns_to_seconds(most_ns + more),
            seconds,
        )

    def no_lease(self, call: str | None = None) -> RuntimeError:
        """The request may not wait, and the store is asked only for requests that do."""
        return RuntimeError(
            f"{call or f'{self._call}(max_wait=0)'}: a shared RedisLimiter without a lease, like a shared RedisBudget, has permits only for"
            " requests that wait. Give the store time to answer, such as max_wait=0.1, or the limiter a lease, such as lease=0.05."
        )


ACQUIRE = Refusals("acquire")
BLOCKING = Refusals("acquire_blocking")
