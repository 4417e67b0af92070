"""What a server said of its limits, as a limiter heeds it. `aiorate.http.read_feedback` reads it from a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from aiorate.errors import kind_of
from aiorate.rate import seconds_to_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Feedback", "Left", "Part", "Quota", "check_feedback"]


class Quota(Protocol):
    """One limit of a server."""

    @property
    def name(self) -> str:
        """Its name, such as ``requests`` or ``tokens``; empty if it has none."""
        ...

    @property
    def limit(self) -> int | None:
        """How much is allowed in a window."""
        ...

    @property
    def remaining(self) -> int | None:
        """How much is left."""
        ...

    @property
    def reset(self) -> float | None:
        """Seconds in which no more than that may be used."""
        ...

    @property
    def window(self) -> float | None:
        """Seconds of the policy."""
        ...

    @property
    def full_at_reset(self) -> bool:
        """Whether all of it is back at the reset, and a part of it before."""
        ...

    @property
    def unit(self) -> str:
        """What is counted, such as ``requests``."""
        ...


class Feedback(Protocol):
    """What one response said."""

    @property
    def pause(self) -> float | None:
        """Seconds in which nothing may be sent."""
        ...

    @property
    def quotas(self) -> Sequence[Quota]:
        """The limits it told of."""
        ...

    @property
    def source(self) -> str:
        """Who said so."""
        ...


class Part(NamedTuple):
    """A part of what a response said, for one of several limiters."""

    pause: float | None
    quotas: Sequence[Quota]
    source: str


class Left(NamedTuple):
    """What is left of one quota."""

    name: str
    unit: str
    left: int
    """How much may be used before ``ns`` from now; of a bucket, how much it holds now."""
    size: int
    """How much the server's bucket holds when it is full, in ``ns`` from now; 0: the quota is a window."""
    ns: int
    """0: the bucket is full, or will be at once, or nobody knows when."""


def check_feedback(call: str, feedback: Feedback) -> tuple[int, list[Left]]:
    """The pause in ns (0: none), and what is left of each quota that says so.

    Raises TypeError or ValueError that begins with ``call``.
    """
    try:
        pause, quotas, source = feedback.pause, feedback.quotas, feedback.source
    except AttributeError:
        raise TypeError(
            f"{call} takes what aiorate.http.read_feedback(status, headers) returns, not {kind_of(feedback)}."
            " To make one by hand, write aiorate.http.Feedback(429, pause=2.5)."
        ) from None
    try:
        names = [(quota.name, quota.unit) for quota in quotas]
        told = [(quota.remaining, quota.limit, quota.reset, quota.window, quota.full_at_reset) for quota in quotas]
    except (AttributeError, TypeError):
        raise TypeError(f"{call}: the quotas must be a tuple of aiorate.http.Quota: quotas=(Quota(remaining=5, reset=30),).") from None
    if not isinstance(source, str):
        raise TypeError(f"{call}: the source must be text, not {kind_of(source)}.")
    for text in (text for both in names for text in both):
        if not isinstance(text, str):
            raise TypeError(f"{call}: the name and the unit of a quota must be text, not {kind_of(text)}.")
    for remaining, limit, reset, window, _ in told:
        _check_count(f"{call}: what remains of a quota", remaining)
        _check_count(f"{call}: the limit of a quota", limit)
        _ns(f"{call}: the reset of a quota", reset)
        _ns(f"{call}: the window of a quota", window)
    pause_ns = _ns(f"{call}: the pause", pause)
    return pause_ns, [left for quota in quotas if (left := _left_of(quota, pause)) is not None]


def _left_of(quota: Quota, pause: float | None) -> Left | None:
    # None: it does not say. Where nothing is left of a window of requests and the response names a pause, that is the pause already,
    # and a shorter Retry-After wins over the reset (draft-ietf-httpapi-ratelimit-headers-11, section 7).
    if quota.remaining is None:
        return None
    left, ns = quota.remaining, _ns("reset", quota.reset)
    if quota.full_at_reset:  # without a reset too: it may be news of what was said before
        return Left(quota.name, quota.unit, left, quota.limit, ns) if quota.limit else None
    if not quota.reset:
        return None
    if not left and quota.unit == "requests" and pause is not None:
        return None
    window = _ns("window", quota.window)
    if quota.limit is not None and window:
        # 10000 in 1000 s with 10000 left for 10 s is 100 requests, not 10000: section 8.5. An allowance is rounded down.
        left = min(left, max(1, quota.limit * ns // window))
    return Left(quota.name, quota.unit, left, 0, ns)


def _ns(what: str, seconds: float | None) -> int:
    return 0 if seconds is None else seconds_to_ns(seconds, what)


def _check_count(what: str, count: object) -> None:
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{what} must be an int of 0 or more, or None (unknown), not {kind_of(count)}.")
    if count < 0:
        raise ValueError(f"{what} must be 0 or more, or None (unknown); {count} was given.")
