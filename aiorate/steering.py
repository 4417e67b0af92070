"""Steering: what changes a limiter while it works, for those in line too.

Knows nothing of how a rate is computed (it never multiplies or divides) or of HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.desk import Desk
from aiorate.errors import LimiterClosed
from aiorate.rate import Rate, seconds_to_ns
from aiorate.schedulers.interface import check_permits

if TYPE_CHECKING:
    from aiorate.rate import Number
    from aiorate.spec import RateSpec

__all__ = ["Steering"]


class Steering(Desk):
    """The part of `aiorate.Limiter` that does not ask for permits."""

    __slots__ = ()

    def set_rate(self, rate: Rate | str | Number) -> None:
        """Change the rate at once, for those in line too; what is stored or owed is kept as the strategy says."""
        new = Rate.of(rate)
        self._scheduler.set_rate(new, self._enter())
        self._turn_away_too_large()
        self._changed()

    def pause(self, seconds: Number) -> None:
        """Grant nothing for so long. Pauses merge by the later end; afterwards the line goes on where it was held up."""
        ns = seconds_to_ns(seconds, "pause()")
        self._enter()
        self._own_timeline().pause(ns, self._released)
        self._changed()

    def resume(self) -> None:
        """End a pause now, whoever asked for it."""
        self._enter()
        self._timeline.resume()
        self._changed()

    def refund(self, permits: int) -> None:
        """Give permits back after the fact, never above capacity: those in line may move up."""
        check_permits("refund()", permits)
        self._scheduler.give_back(permits, self._enter())
        self._refunded += permits
        self._returned += min(permits, self._taken - self._returned)
        self._changed()

    def charge(self, permits: int) -> None:
        """Take permits after the fact: a debt that those in line and later callers wait for."""
        check_permits("charge()", permits)
        now = self._enter()
        if not self._debt:
            self._debt_since = now
        self._debt += permits
        self._changed()

    def apply(self, spec: RateSpec | str) -> None:
        """Apply rate, burst ratio and verb of a `RateSpec` (or its text); pools and schedules keep what they hold.

        ``start`` ends a stop (and reopens a closed limiter), ``stop`` grants nothing until then, ``restart`` also empties pools
        and forgets a backlog, ``configure`` does neither. The ratio is for strategies that have one: TokenPool, BurstRatio.
        """
        from aiorate.spec import RateSpec

        new = RateSpec.parse(spec) if isinstance(spec, str) else spec
        if not isinstance(new, RateSpec):
            raise TypeError(f"apply() takes a RateSpec or its text such as '12000,1.1,start', not {type(spec).__name__}.")
        now = self._enter()
        configure = getattr(self._scheduler, "apply", None)
        if configure is not None:
            configure(new.rate, new.burst_ratio, now)
        elif new.rate != self._scheduler.rate:
            self._scheduler.set_rate(new.rate, now)
        if new.verb == "restart" and not self._timeline.stopped:
            restart = getattr(self._scheduler, "restart", None)
            if restart is not None:
                restart(now)
        if new.verb == "stop":
            self._own_timeline().stop(self._released)
        elif new.verb != "configure":
            self._timeline.start()
            self._closed = False
        self._turn_away_too_large()
        self._changed()

    async def aclose(self) -> None:
        """Send those in line away with `LimiterClosed`; no task and no timer stays."""
        self._enter()
        self._closed = True
        self._fail(
            LimiterClosed("the limiter was closed while this request stood in line; apply a spec with the verb 'start' to reopen it")
        )
        self._serve()
        if self._driver is not None:
            await self._driver.aclose()

    def _changed(self) -> None:
        """Something changed for those in line too."""
        self._deals = self._most_at_once()
        self._forecast = None
        if self._debt:
            # What was due by now is paid; a refund or a new rate makes room from now on, for a debt as for those in line.
            self._debt_since = max(self._debt_since, self._timeline.now())
        self._serve()
