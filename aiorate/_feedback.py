"""What a server says of its limits, as a limiter heeds it. `aiorate.http.read_feedback` reads it from a response."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from aiorate._errors import check_count, kind_of
from aiorate._rate import duration_to_ns

if TYPE_CHECKING:
    from aiorate._rate import Duration
    from aiorate._schedulers.interface import Scheduler


@dataclass(frozen=True, slots=True)
class Quota:
    """One limit of a server, as far as the response reports it. None: not reported, or not readable.

    ``reset`` and ``window`` may be given as a timedelta, and are kept as seconds.
    """

    name: str = ""
    """``requests``, ``tokens``, ``input_tokens`` or ``output_tokens``, the name of a policy, or empty if it has none.

    GitHub's is the resource (``core``), Discord's the bucket, or ``global`` for its limit over all routes.
    """
    limit: int | None = None
    """How much the server allows in a window, 0 or more."""
    remaining: int | None = None
    """How much is left, 0 or more. May be larger than ``limit``; the server does not guarantee it."""
    reset: float | None = None
    """Seconds from now in which at most ``remaining`` may be used, 0 to 86400 (one day); see ``full_at_reset``."""
    window: float | None = None
    """Seconds of the policy, 1 to 86400: ``limit`` in each. A longer window is left out, since a shorter one would promise more."""
    full_at_reset: bool = False
    """True if all of ``limit`` is back at ``reset``, and a part of it before. So it is with OpenAI and Anthropic."""
    unit: str = "requests"
    """What is counted: ``requests``, ``tokens``, or the unit of a policy, such as ``content-bytes``."""
    reset_error: float = field(default=0.0, compare=False, repr=False)
    """Seconds by which ``reset`` may be too long or too short, 0 or more: 1 or 2 for a date, which is compared with the response's."""
    used: int | None = None
    """How much was used, 0 or more, if the server says that instead. The limit is that of your own rate per ``window``, if not reported."""

    def __init__(
        self,
        name: str = "",
        limit: int | None = None,
        remaining: int | None = None,
        reset: Duration | None = None,
        window: Duration | None = None,
        full_at_reset: bool = False,
        unit: str = "requests",
        reset_error: Duration = 0.0,
        used: int | None = None,
    ) -> None:
        _set(self, "name", name)
        _set(self, "limit", limit)
        _set(self, "remaining", remaining)
        _set(self, "reset", _seconds(reset))
        _set(self, "window", _seconds(window))
        _set(self, "full_at_reset", full_at_reset)
        _set(self, "unit", unit)
        _set(self, "reset_error", _seconds(reset_error))
        _set(self, "used", used)

    @property
    def rate(self) -> float | None:
        """The most per second that both the policy and ``remaining`` allow; None if neither is reported.

        A policy of 10000 in 1000 s with 10000 left for 10 s is a rate of 10, not of 1000: draft 11, section 8.5.
        ``remaining`` does not limit the rate if ``full_at_reset``.
        """
        rates = []
        if self.limit is not None and self.window:
            rates.append(self.limit / self.window)
        if self.remaining is not None and self.reset and not self.full_at_reset:
            rates.append(self.remaining / self.reset)
        return min(rates, default=None)


@dataclass(frozen=True, slots=True)
class Feedback:
    """What one response says of the server's limits. `read_feedback` makes it; make it yourself for a server with other headers.

    ``pause`` and ``retry_after`` may be given as a timedelta, and are kept as seconds.
    """

    status: int
    """The status of the response."""
    pause: float | None = None
    """Seconds from now during which nothing may be sent, 0 to 86400 (one day); None: no pause. 0: at once, said by the server itself."""
    quotas: tuple[Quota, ...] = ()
    """The limits that the response reports, those of tokens too. A ``pause`` already accounts for those in requests that are used up.

    Without a pause, a limit with nothing left and a reset grants nothing until then.
    """
    source: str = ""
    """Who said so, for logs: a header (``Retry-After``), a vendor (``GitHub``), or the status (``status 429``)."""
    retry_after: float | None = None
    """Seconds of Retry-After, 0 to 86400. With a 202 or a redirect it concerns that one resource, and does not pause."""
    in_flight: int | None = None
    """The permits of requests that were sent before this response came, and are not answered: the server may not have counted them."""

    def __init__(
        self,
        status: int,
        pause: Duration | None = None,
        quotas: tuple[Quota, ...] = (),
        source: str = "",
        retry_after: Duration | None = None,
        in_flight: int | None = None,
    ) -> None:
        _set(self, "status", status)
        _set(self, "pause", _seconds(pause))
        _set(self, "quotas", quotas)
        _set(self, "source", source)
        _set(self, "retry_after", _seconds(retry_after))
        _set(self, "in_flight", in_flight)


class Left(NamedTuple):
    """What is left of one quota."""

    name: str
    unit: str
    left: int
    """How much may be used within ``ns`` from now; of a bucket, how much it holds now."""
    size: int
    """How much the server's bucket holds when it is full, in ``ns`` from now; 0: the quota is a window."""
    ns: int
    """0: the bucket is full, or will be at once, or the time is unknown."""
    error: int = 0
    """How many ns too long or too short that may be, of a bucket."""
    in_flight: int | None = None
    """How many more may have been used; None: unknown."""
    period: int = 0
    """Not 0: ``left`` is what was used of a limit per so many ns, which the server did not name."""

    def of(self, strategy: Scheduler) -> Left | None:
        """What is left of that strategy's limit. None: it has no rate of that period."""
        if not self.period:
            return self
        rates = [part.rate for part in (strategy, *strategy.members)]
        limits = [rate.permits for rate in rates if rate.period_ns == self.period]
        return self._replace(left=max(0, min(limits) - self.left), period=0) if limits else None


def check_feedback(feedback: Feedback) -> tuple[int, list[Left]]:
    """The pause in ns (0: none), and what is left of each quota that reports it.

    Raises TypeError or ValueError that begins with ``observe()``.
    """
    try:
        pause, quotas, texts = feedback.pause, feedback.quotas, [feedback.source]
        told = [(quota.remaining, quota.limit, quota.used, quota.reset, quota.reset_error, quota.window) for quota in quotas]
        texts += [text for quota in quotas for text in (quota.name, quota.unit)]
    except (AttributeError, TypeError):
        raise TypeError(
            f"observe() takes what aiorate.http.read_feedback(status, headers) returns, not {kind_of(feedback)}. To make one by hand,"
            " write aiorate.http.Feedback(429, pause=2.5), or with quotas=(aiorate.http.Quota(remaining=5, reset=30),)."
        ) from None
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"observe(): the source, and the name and the unit of a quota, must be text, not {kind_of(text)}.")
    for remaining, limit, used, *lengths in told:
        for count in (remaining, limit, used):
            if count is not None:
                check_count("observe(): what remains of a quota, what was used and its limit", count, ", or None (unknown)")
        for length in lengths:
            _ns("observe(): the reset, its error and the window of a quota", length)
    pause_ns = _ns("observe(): the pause", pause)
    if feedback.in_flight is not None:
        check_count("observe(): in_flight", feedback.in_flight, ", or None (unknown)")
    lefts = [left for quota in quotas if (left := _left_of(quota, pause)) is not None]
    return pause_ns, [left._replace(in_flight=feedback.in_flight) if left.unit == "requests" else left for left in lefts]


def _left_of(quota: Quota, pause: float | None) -> Left | None:
    # None: not reported. Where nothing is left of a window of requests and the response names a pause, the pause already covers it,
    # and a shorter Retry-After wins over the reset (draft-ietf-httpapi-ratelimit-headers-11, section 7).
    left, ns, window = quota.remaining, _ns("reset", quota.reset), _ns("window", quota.window)
    if left is None:
        if quota.used is None or not ns:
            return None
        if quota.limit is None:
            return Left(quota.name, quota.unit, quota.used, 0, ns, period=window) if window else None
        left = max(0, quota.limit - quota.used)
    if quota.full_at_reset:  # without a reset too: it may update an earlier report
        error = _ns("reset_error", quota.reset_error)
        return Left(quota.name, quota.unit, left, quota.limit, ns, error) if quota.limit else None
    if not quota.reset:
        return None
    if not left and quota.unit == "requests" and pause is not None:
        return None
    if quota.limit is not None and window:
        # 10000 in 1000 s with 10000 left for 10 s is 100 requests, not 10000: section 8.5. An allowance is rounded down.
        left = min(left, max(1, quota.limit * ns // window))
    return Left(quota.name, quota.unit, left, 0, ns)


def _ns(what: str, seconds: float | None) -> int:
    return 0 if seconds is None else duration_to_ns(seconds, what, "None (not reported)")


def _seconds(duration: Duration | None) -> Duration | None:
    """A timedelta as seconds. `check_feedback` checks all others, as a mistake in them is not the server's."""
    if duration is None or isinstance(duration, (int, float)):
        return duration
    from datetime import timedelta  # slower than importing all of aiorate

    return duration.total_seconds() if isinstance(duration, timedelta) else duration


_set = object.__setattr__
