"""What servers said of their quotas: a number of permits until a window ends, or a bucket that they refill.

It only ever lowers what a strategy has available. A server has counted the grants before it spoke, so only later ones can come back.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from aiorate._rate import ceil_div, duration_to_ns
from aiorate._schedulers.all_of import AllOf

if TYPE_CHECKING:
    from aiorate._feedback import Quota
    from aiorate._schedulers.interface import Scheduler, Standing


_MOST_WINDOWS = 32  # such as those of a second, a minute and a day, in many responses
_MOST_BUCKETS = 8  # a bucket of each name
_ON_THE_WAY_NS = 5_000_000_000  # requests granted longer ago have reached the server, which has counted them
_EXACT = 10  # times its error: a time that long tells the rate
_PLENTY = _NO_END = 1 << 198  # permits where a quota is over; and when a bucket ends


class _Remainder:
    """What a server said of a quota. It is asked as a member of an `AllOf` is.

    A window allows what is left until it ends, and anything afterwards. A bucket never ends. It is an estimate of the server's: OpenAI and
    Anthropic tell how much is left, how much a full bucket holds, and in how many seconds it will be full. So it holds ``left`` at ``at``
    and gains ``size - left`` in ``full_in`` ns. A level is a whole number of permits times ``full_in``.

    Responses overtake each other, and a server has not counted the requests that are still on their way to it. So the level of a bucket is
    between what the server said and that less the grants of the last seconds. The level here moves to the nearer end if it lies outside.
    """

    __slots__ = (
        *("_at", "_began", "_full_in", "_gain", "_granted", "_recent", "_since", "_size"),
        *("doubted", "level", "most", "until"),
    )

    def __init__(self, left: int, size: int, gain: int, full_in: int, now: int, at: int, in_flight: int = 0, until: int = _NO_END) -> None:
        self.level = (left - in_flight) * full_in
        self.until = until
        self.doubted = 0  # of a window: permits in flight, which the server has counted or not
        self._at = self._since = at
        self._recent = 0  # permits granted since `_since`
        self._heed(left, size, gain, full_in, now)

    def tell(self, left: int, size: int, full_in: int, now: int, at: int, error: int, in_flight: int) -> None:
        """Follow a later report of a bucket; see `ServerQuotas.refill`.

        The earlier rate stays if the report tells none: the bucket is full or soon will be, or ``full_in`` is not known within a tenth.
        """
        self._advance(at)
        left = min(left, size)
        gain = size - left
        if gain == 0 or full_in < max(_EXACT * error, 1):
            gain, full_in = self._gain, self._full_in
        said = left * full_in
        level = self.level * full_in // self._full_in  # rounded down
        if at - self._since >= _ON_THE_WAY_NS:  # what is on its way was granted since
            level = max(level, said - self._recent * full_in)
            self._recent, self._since = 0, at
        self.level = level if level <= said else said - in_flight * full_in
        self._heed(left, size, gain, full_in, now)

    def _heed(self, left: int, size: int, gain: int, full_in: int, now: int) -> None:
        self._size, self._gain, self._full_in, self._began = size, gain, full_in, now
        self.most = left * full_in  # what the server said, less the grants since
        self._granted = 0  # permits granted since the server spoke

    def _advance(self, now: int) -> None:
        elapsed = now - self._at
        if elapsed > 0:
            full = self._size * self._full_in
            self.level = min(self.level + elapsed * self._gain, full)
            self.most = min(self.most + elapsed * self._gain, full)
            self._at = now

    def _rested(self, now: int) -> bool:
        """Whether it is full or over."""
        return self.available(now) >= self._size

    def available(self, now: int) -> int:
        if now >= self.until:
            return _PLENTY
        level = self.level + max(0, now - self._at) * self._gain
        return max(0, min(level // self._full_in, self._size))

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        """As `Scheduler.peek`. A request for more than its size takes a full bucket, and the rest is owed."""
        missing = (ahead + min(permits, self._size)) * self._full_in - self.level
        if missing <= 0 or now >= self.until:
            return now
        return max(now, self._at + ceil_div(missing, self._gain)) if self._gain else self.until

    def take(self, permits: int, now: int, since: int | None) -> int:
        self._advance(now)
        self.level -= permits * self._full_in
        self.most -= permits * self._full_in
        self._recent += permits
        self._granted += permits
        return now if since is None else since

    def give_back(self, permits: int, now: int, taken: int | None) -> None:
        """Take back permits that were granted at ``taken``. The level never exceeds what the server said."""
        if taken is None or taken >= self.until:
            return
        self._advance(now)
        uncounted = min(permits, self._granted) if taken >= self._began else 0  # when the server spoke
        self._granted -= uncounted
        self.most = min(self.most + uncounted * self._full_in, self._size * self._full_in)
        if taken >= self._since:
            self._recent = max(0, self._recent - permits)
        self.level = min(self.level + permits * self._full_in, self.most)

    def _shift(self, ns: int) -> None:
        """Follow a pause, during which the server's time went on."""
        self._at -= ns
        self._since -= ns
        self.until -= ns


class ServerQuotas(AllOf):
    """A strategy that grants at most what a server said is left of its windows and in its buckets.

    It is asked instead of the strategy for permits and for what is left, and for nothing else. Several windows can hold together: 2 in
    this second and 50 in this minute. A request for more than is left goes when the last window that forbids it ends.
    """

    __slots__ = ("_buckets", "_windows")

    def __init__(self, strategy: Scheduler) -> None:
        self.members = self._permitted = (strategy,)
        self._windows: list[_Remainder] = []  # the first to end comes first
        self._buckets: dict[str, _Remainder] = {}

    def heed(self, quota: Quota, paused: bool, now: int, held_for: int, in_flight: int) -> None:
        """Follow what is left of a quota. Its time runs from now, even in a pause that has lasted ``held_for``.

        ``paused``: the response names a pause, which covers a window of requests of which nothing is left: a shorter Retry-After wins over
        the reset (draft-ietf-httpapi-ratelimit-headers-11, section 7).
        """
        ns, window, error = (duration_to_ns(length or 0, "observe()") for length in (quota.reset, quota.window, quota.reset_error))
        left, limit, at, requests = quota.remaining, quota.limit, now + held_for, quota.unit == "requests"
        in_flight = in_flight if requests else 0
        if left is None and quota.used is not None and ns:
            # Without a limit, of the strategy's own rate per such a window.
            own = [part.rate.permits for part in (*self.members, *self.members[0].members) if part.rate.period_ns == window]
            most = min(own, default=None) if limit is None else limit
            left = None if most is None else max(0, most - quota.used)
        if left is None:
            return
        if quota.full_at_reset:  # without a reset too: it may update an earlier report
            self.refill(quota.name, left, limit or 0, ns, now, at, error, in_flight)
        elif ns and (left or not requests or not paused):
            if limit is not None and window:
                # 10000 in 1000 s with 10000 left for 10 s is 100 requests, not 10000: section 8.5.
                left = min(left, max(1, limit * ns // window))
            self.lower(left, now, at + ns, in_flight)

    def lower(self, left: int, now: int, until: int, in_flight: int = 0) -> None:
        """Grant at most ``left`` permits before ``until``, besides what was said before.

        The server may not have counted the permits in flight. A window that ends at about the same time, and may agree with that, is the
        same one, and knows better: grants were counted here. If more than 32 windows differ, the last and the new one become one: the
        lesser, until the later end.
        """
        windows = self._windows
        same = [window for window in windows if until - window.until < window.until - now]
        for window in same:
            if not in_flight and window.doubted and left > window.level:
                window.level = window.most = min(left, window.level + window.doubted)  # what was in flight has not reached the server
            window.doubted = min(window.doubted, in_flight, max(left - window.level, 0))  # older words that come later bring no more
        if any(window.level <= left and window.until >= until for window in windows):
            return
        agree = [(window.level, window.doubted) for window in same if left - in_flight <= window.level <= left]
        # At least one, whose response says what became of the others.
        known = max(min(left, 1), left - in_flight)
        left, doubted = agree[0] if agree else (known, left - known)
        windows[:] = [window for window in windows if window.until > now and not (window.level >= left and window.until <= until)]
        if len(windows) == _MOST_WINDOWS:
            last = windows.pop()
            left, until, doubted = min(left, last.level), max(until, last.until), 0
        windows.append(window := _Remainder(left, _PLENTY, 0, 1, now, now, 0, until))
        window.doubted = doubted
        windows.sort(key=attrgetter("until"))
        self._permitted = (*self.members, *windows, *self._buckets.values())  # type: ignore[arg-type]

    def refill(self, name: str, left: int, size: int, full_in: int, now: int, at: int, error: int = 0, in_flight: int = 0) -> None:
        """Grant at most what the server's bucket of that name holds: ``left`` at ``at``, and ``size`` after ``full_in`` ns.

        The server may not have counted the permits in flight. ``full_in`` may be off by ``error`` ns. ``at`` is ``now`` in time that no
        pause holds up. A bucket without a size is ignored, and so is a new one that may be full.
        """
        buckets = self._buckets
        # A time that is not known within a tenth is taken as the shortest that it can be. If it is short, the bucket is nearly full, and
        # a rate much too low would cost more than one too high.
        told = full_in if full_in >= _EXACT * error else full_in - error
        if not size or (name not in buckets and (left >= size or told <= 0)):
            return
        if name not in buckets and len(buckets) >= _MOST_BUCKETS:
            name = next(iter(buckets))  # a server that makes up names must not cost memory with each
        if name in buckets:
            buckets[name].tell(left, size, full_in, now, at, error, in_flight)
        else:
            buckets[name] = _Remainder(left, size, size - left, told, now, at, in_flight)
        self._permitted = (*self.members, *self._windows, *buckets.values())  # type: ignore[arg-type]

    def left(self, now: int) -> int | None:
        """The permits that the server leaves at ``now``; None: nothing that it said still holds, and the strategy can stand alone again.
        A bucket holds for ever, because it may be smaller than the strategy."""
        left = min([quota.available(now) for quota in self._permitted[1:]], default=_PLENTY)
        return None if left == _PLENTY else left

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if since is not None:  # a request that waited for a quota was not late before
            since = max([since, *(quota.peek(permits, since) for quota in self._permitted[1:])])
        return super().take(permits, now, since)

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        at = super().peek(permits, now, ahead)
        if ahead and (ends := max([window.peek(permits, now, ahead) for window in self._windows], default=now)) > now:
            # What no window leaves goes after the last of them.
            left = min([window.level for window in self._windows if window.until == ends])
            at = max(at, self.members[0].peek(permits, ends, max(ahead - left, 0)))
        return at

    def _standings(self, now: int) -> list[Standing]:
        """The strategy's, but at most what is left, until there is more for a request."""
        (strategy,), left = self.members, self.left(now)
        most, standings = strategy.max_permits, strategy._standings(now)
        if left is None:
            return standings
        at = self.peek(left + 1, now) if most is None or left < most else now
        return [(size, rate, left, max(at, more)) if left <= own else (size, rate, own, more) for size, rate, own, more in standings]


def quotas_of(asked: Scheduler) -> ServerQuotas:
    """What to ask for permits from now on, instead of ``asked``: a strategy, or what servers said of it."""
    return asked if isinstance(asked, ServerQuotas) else ServerQuotas(asked)
