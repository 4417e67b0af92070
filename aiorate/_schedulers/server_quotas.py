"""What servers said of their quotas, beside a strategy: a number of permits until a window ends, or a bucket that they refill."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from aiorate._schedulers.server_bucket import ServerBucket, told_time

if TYPE_CHECKING:
    from aiorate._schedulers.interface import Scheduler

__all__ = ["ServerQuotas"]

_MOST_WINDOWS = 32  # a second's, a minute's and a day's window, in what many responses said of them
_MOST_BUCKETS = 8  # a bucket of each name


class _Window:
    """One window of the server, or several that end soon after each other. ``left`` permits may go before ``until``."""

    __slots__ = ("_at_once", "_began", "earliest", "left", "until")

    def __init__(self, left: int, began: int, until: int) -> None:
        self.left = left
        self.until = until
        self.earliest = until  # the end of the first of several
        self._began = began  # the instant at which the server spoke
        self._at_once = 0  # permits taken since then, at that very instant

    def absorb(self, earlier: _Window) -> None:
        """Hold for a window that ends earlier, too: longer than necessary, and never for more than was left of either."""
        self.left = min(self.left, earlier.left)
        self.earliest = earlier.earliest
        if earlier._began >= self._began:
            self._began, self._at_once = earlier._began, earlier._at_once

    def due(self, permits: int, now: int, ahead: int = 0) -> int:
        """The end of the window if it has fewer left, else ``now``."""
        return self.until if ahead + permits > self.left and now < self.until else now

    def take(self, permits: int, now: int) -> None:
        """Count permits that were granted."""
        if now < self.until:
            self.left -= permits
            if now == self._began:
                self._at_once += permits

    def give_back(self, permits: int, now: int, taken: int) -> None:
        """Count permits that were granted at ``taken`` and not used."""
        if self._began < taken < self.until:
            self.left += permits
        elif taken == self._began:  # the server may have counted some of that instant's grants, so at most what was taken since
            credit = min(permits, self._at_once)
            self.left += credit
            self._at_once -= credit

    def shift(self, ns: int) -> None:
        """Follow a pause of ``ns``, during which the server's time went on."""
        self.until -= ns
        self.earliest -= ns


class ServerQuotas:
    """A strategy that grants at most what a server said is left of its windows and in its buckets.

    Asked in place of the strategy for permits, and for nothing else: what a server said only ever lowers what is available. A window
    allows ``left`` permits before ``until``, and further windows hold beside the first: 2 in this second and 50 in this minute. A request
    for more than is left goes when the last window that forbids it ends. A bucket holds until the server says more of it.
    """

    __slots__ = ("_buckets", "_strategy", "_windows")

    def __init__(self, strategy: Scheduler) -> None:
        self._strategy = strategy
        self._windows: list[_Window] = []  # the first to end comes first
        self._buckets: dict[str, ServerBucket] = {}

    def lower(self, left: int, now: int, until: int) -> bool:
        """Grant at most ``left`` permits before ``until``, besides what was said before. False if that says nothing new.

        Of more than 32 windows that differ, the two that end the closest together become one: the lesser, until the later end.
        """
        windows = self._windows
        if any(window.left <= left and window.until >= until for window in windows):
            return False
        windows[:] = [window for window in windows if window.until > now and not (window.left >= left and window.until <= until)]
        windows.append(_Window(left, now, until))
        windows.sort(key=attrgetter("until"))
        if len(windows) > _MOST_WINDOWS:
            # Closest from the first end that either stands for, or each response would prolong one window for ever.
            closest = min(range(_MOST_WINDOWS), key=lambda place: windows[place + 1].until - windows[place].earliest)
            windows[closest + 1].absorb(windows.pop(closest))
        return True

    def heed(self, name: str, left: int, size: int, ns: int, now: int, at: int, error: int = 0) -> bool:
        """`refill`, if the server's quota of that name has a size, or `lower` until ``ns`` after ``at``."""
        return self.refill(name, left, size, ns, now, at, error) if size else self.lower(left, now, at + ns)

    def refill(self, name: str, left: int, size: int, full_in: int, now: int, at: int, error: int = 0) -> bool:
        """Grant at most what the server's bucket of that name holds: ``left`` at ``at``, and ``size`` after ``full_in`` ns.

        ``full_in`` may be ``error`` ns too long or too short. ``at`` is ``now`` in time that no pause holds up. False if that says
        nothing: the bucket has no size, or is new here, and is full or may be.
        """
        if not size or (name not in self._buckets and (left >= size or told_time(full_in, error) <= 0)):
            return False
        if name not in self._buckets and len(self._buckets) >= _MOST_BUCKETS:
            name = next(iter(self._buckets))  # a server that makes up names must not cost memory with each
        if name in self._buckets:
            self._buckets[name].tell(left, size, full_in, now, at, error)
        else:
            self._buckets[name] = ServerBucket(left, size, told_time(full_in, error), now, at)
        return True

    def ended(self, now: int) -> bool:
        """Whether the strategy can stand alone again: all windows are over, and no bucket can lower anything."""
        return self._holds_nothing(now) and not any(bucket.lowers(self._strategy) for bucket in self._buckets.values())

    def left(self, now: int) -> int | None:
        """The permits that the server leaves at ``now``; None: nothing that it said holds any longer."""
        windows = [window.left for window in self._windows if now < window.until]
        return min(windows + [bucket.left(now) for bucket in self._buckets.values()], default=None)

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        quotas = self._quotas()
        allowed = max([quota.due(permits, now) for quota in quotas], default=now)
        if allowed > now:
            return max(allowed, self._strategy.peek(permits, now))
        if since is not None:  # a request that waited for a quota was not late before
            since = max([since, *(quota.due(permits, since) for quota in quotas)])
        at = self._strategy.take(permits, now, since)
        if at <= now:
            for quota in quotas:
                quota.take(permits, now)
        return at

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        at, allowed = (
            self._strategy.peek(permits, now, ahead),
            max([quota.due(permits, now, ahead) for quota in self._quotas()], default=now),
        )
        if not ahead:
            return max(allowed, at) if allowed > now else at
        windows = [window for window in self._windows if now < window.until]
        ends = max([window.due(permits, now, ahead) for window in windows], default=now)
        if ends > now:  # what no window leaves goes after the last of them
            left = min(window.left for window in windows if window.until == ends)
            at = max(at, self._strategy.peek(permits, ends, max(ahead - left, 0)))
        return max(allowed, at)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Credit the strategy, and by receipt the quotas too, except for grants before the server spoke, which it has counted."""
        self._strategy.give_back(permits, now, taken)
        if taken is not None:
            for quota in self._quotas():
                quota.give_back(permits, now, taken)

    def charge(self, permits: int, now: int) -> None:
        """Charge the strategy: the server itself tells the effect of a charge."""
        self._strategy.charge(permits, now)

    def shift(self, ns: int) -> None:
        """Move as the strategy does; the server's quotas do not wait for a pause here."""
        self._strategy.shift(ns)
        for quota in self._quotas():
            quota.shift(ns)

    def available(self, now: int) -> int:
        """What the strategy has, but at most what is left."""
        available, left = self._strategy.available(now), self.left(now)
        return available if left is None else min(available, left)

    def _standings(self, now: int) -> list[tuple[int, int]]:
        """The strategy's, but at most what is left, until there is more for a request."""
        left, most = self.left(now), self._strategy.max_permits
        standings = self._strategy._standings(now)
        if left is None:
            return standings
        at = self.peek(left + 1, now) if most is None or left < most else now
        return [(left, max(at, more)) if left <= available else (available, more) for available, more in standings]

    def _rested(self, now: int) -> bool:
        """Not before the last window has ended and the buckets are full."""
        return self._holds_nothing(now) and self._strategy._rested(now)

    def _quotas(self) -> list[_Window | ServerBucket]:
        return [*self._windows, *self._buckets.values()]

    def _holds_nothing(self, now: int) -> bool:
        over = not self._windows or now >= self._windows[-1].until
        return over and all(bucket.is_full(now) for bucket in self._buckets.values())
