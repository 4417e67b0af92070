"""No more than a server said is left: until its window ends, or as its bucket refills."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from aiorate.schedulers.compound import Compound
from aiorate.schedulers.interface import check_ask
from aiorate.schedulers.server_bucket import ServerBucket

if TYPE_CHECKING:
    from aiorate.rate import Number, Rate
    from aiorate.schedulers.interface import Scheduler

__all__ = ["Capped"]

_MOST_CAPS = 32  # a second's, a minute's and a day's window, in what many responses said of them
_MOST_BUCKETS = 8  # a bucket of each name


class _Cap:
    """One window of the server, or several that end soon after each other."""

    __slots__ = ("began", "earliest", "left", "taken_at_once", "until")

    def __init__(self, left: int, began: int, until: int) -> None:
        self.left = left
        """Permits."""
        self.began = began
        """The instant at which the server spoke."""
        self.until = until
        """The instant at which the window ends."""
        self.earliest = until
        """The instant at which the first of several ends."""
        self.taken_at_once = 0
        """Permits taken since the server spoke, at that very instant."""

    def absorb(self, earlier: _Cap) -> None:
        """Hold for a window that ends earlier, too: longer than need be, and never for more than was left of either."""
        self.left = min(self.left, earlier.left)
        self.earliest = earlier.earliest
        if earlier.began >= self.began:
            self.began, self.taken_at_once = earlier.began, earlier.taken_at_once


class Capped(Compound):
    """Another scheduler, of which no more is granted than a server said is left of its windows and in its buckets.

    It stands in for the other, and only ever lowers what is available. A window allows ``left`` permits before ``until``, and further
    windows hold beside the first: 2 in this second and 50 in this minute. A request for more than is left goes when the last window
    that forbids it ends. A bucket holds until the server says more of it.
    """

    __slots__ = ("_buckets", "_caps", "inner")

    def __init__(self, inner: Scheduler, left: int | None = None, now: int = 0, until: int = 0) -> None:
        self.inner: Scheduler = inner
        self.parts = (inner,)
        self._caps: list[_Cap] = []  # the one that ends first comes first
        self._buckets: dict[str, ServerBucket] = {}
        if left is not None:
            self.lower(left, now, until)

    def lower(self, left: int, now: int, until: int) -> bool:
        """Grant at most so many before ``until``, besides what was said before. False if that says nothing new.

        Of more than 32 caps that differ, the two that end the closest together become one: the lesser, until the later end.
        """
        caps = self._caps
        if any(cap.left <= left and cap.until >= until for cap in caps):
            return False
        caps[:] = [cap for cap in caps if cap.until > now and not (cap.left >= left and cap.until <= until)]
        caps.append(_Cap(left, now, until))
        caps.sort(key=_end)
        if len(caps) > _MOST_CAPS:
            # Closest from the first end that either stands for, or one cap would be prolonged by each response for ever.
            closest = min(range(_MOST_CAPS), key=lambda place: caps[place + 1].until - caps[place].earliest)
            caps[closest + 1].absorb(caps.pop(closest))
        return True

    def heed(self, name: str, left: int, size: int, ns: int, now: int, at: int) -> bool:
        """`refill`, if the server's quota of that name has a size, or `lower` until ``ns`` after ``at``."""
        return self.refill(name, left, size, ns, now, at) if size else self.lower(left, now, at + ns)

    def refill(self, name: str, left: int, size: int, full_in: int, now: int, at: int) -> bool:
        """Grant no more than the server's bucket of that name holds: ``left`` at ``at``, and ``size`` after ``full_in`` ns.

        ``at`` is ``now`` in time that no pause holds up. False if that says nothing: the bucket has no size, or is full and is new here.
        """
        if not size or ((full_in <= 0 or left >= size) and name not in self._buckets):
            return False
        if name not in self._buckets and len(self._buckets) >= _MOST_BUCKETS:
            name = next(iter(self._buckets))  # a server that makes up names must not cost memory with each
        if name in self._buckets:
            self._buckets[name].tell(left, size, full_in, now, at)
        else:
            self._buckets[name] = ServerBucket(left, size, full_in, now, at)
        return True

    def ended(self, now: int) -> bool:
        """Whether the other can stand alone again: all windows are over, and no bucket can lower anything."""
        if self._caps and now < self._caps[-1].until:
            return False
        return not any(not bucket.is_full(now) or bucket.lowers(self.inner) for bucket in self._buckets.values())

    def left(self, now: int) -> int | None:
        """How many permits the server leaves at ``now``; None: nothing that it said holds any longer."""
        windows = [cap.left for cap in self._caps if now < cap.until]
        return min(windows + [bucket.left(now) for bucket in self._buckets.values()], default=None)

    @property
    def members(self) -> tuple[Scheduler, ...]:  # type: ignore[override]
        """The other's, because this one only stands in for it."""
        return self.inner.members

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        check_ask("take()", permits, now, since, self.max_permits)
        allowed = self._allowed_at(permits, now)
        if allowed > now:
            return max(allowed, self.inner.peek(permits, now))
        if since is not None:  # whoever waited for a cap to end is not late before
            since = max((cap.until for cap in self._caps if since < cap.until <= now and permits > cap.left), default=since)
            since = max([since, *(bucket.due(permits, since) for bucket in self._buckets.values())])
        at = self.inner.take(permits, now, since)
        if at <= now:
            for cap in self._caps:
                if now < cap.until:
                    cap.left -= permits
                    if now == cap.began:
                        cap.taken_at_once += permits
            for bucket in self._buckets.values():
                bucket.take(permits, now)
        return at

    def peek(self, permits: int, now: int) -> int:
        at, allowed = self.inner.peek(permits, now), self._allowed_at(permits, now)
        return max(allowed, at) if allowed > now else at

    def _allowed_at(self, permits: int, now: int) -> int:
        return max([self._window_end(permits, now), *(bucket.due(permits, now) for bucket in self._buckets.values())])

    def _window_end(self, permits: int, now: int) -> int:
        return next((cap.until for cap in reversed(self._caps) if permits > cap.left and now < cap.until), now)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Credit the other, and by receipt the caps too, except for grants before the server spoke: it does not leave us those."""
        self.inner.give_back(permits, now, taken)
        if taken is None:
            return
        for cap in self._caps:
            if cap.began < taken < cap.until:
                cap.left += permits
            elif taken == cap.began:  # nobody knows which of that instant's grants it was: no more than were taken since
                credit = min(permits, cap.taken_at_once)
                cap.left += credit
                cap.taken_at_once -= credit
        for bucket in self._buckets.values():
            bucket.give_back(permits, now, taken)

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the other."""
        self.inner.set_rate(rate, now)

    def apply(self, rate: Rate, burst_ratio: Number, now: int) -> None:
        """Change the other."""
        self.inner.apply(rate, burst_ratio, now)

    def reset(self, now: int) -> None:
        """Reset the other, and forget what the server said, as a new limiter would not know it."""
        super().reset(now)
        self._caps.clear()
        self._buckets.clear()

    def rehearse(self) -> Scheduler:
        """A rehearsal of the other, with as much left."""
        return deepcopy(self, {id(self.inner): self.inner.rehearse()})

    def take_ahead(self, permits: int, now: int) -> None:
        """From the other, what is left now; more once the last window has ended that forbids it. From the buckets, on credit."""
        at = self._window_end(permits, now)
        at_once = permits if at <= now else max(0, min(permits, *(cap.left for cap in self._caps if now < cap.until)))
        if at_once:
            self.inner.take_ahead(at_once, now)
        if permits > at_once:
            self.inner.take_ahead(permits - at_once, at)
        for cap in self._caps:
            if at < cap.until:
                cap.left -= permits
        for bucket in self._buckets.values():
            bucket.take(permits, now)

    def shift(self, ns: int) -> None:
        """Move as the other does; the server's windows and buckets do not wait for a pause here."""
        for cap in self._caps:
            cap.until -= ns
            cap.earliest -= ns
        for bucket in self._buckets.values():
            bucket.shift(ns)
        super().shift(ns)

    def available(self, now: int) -> int:
        """No more than is left."""
        available, left = super().available(now), self.left(now)
        return available if left is None else min(available, left)

    def rested(self, now: int) -> bool:
        """Not before the last window has ended and the buckets are full."""
        if self._caps and now < self._caps[-1].until:
            return False
        return all(bucket.is_full(now) for bucket in self._buckets.values()) and super().rested(now)

    def __repr__(self) -> str:
        return repr(self.inner)


def _end(cap: _Cap) -> int:
    return cap.until
