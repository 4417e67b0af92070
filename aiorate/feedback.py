"""What a server said of its limits, as a limiter heeds it. `aiorate.http.read_feedback` reads it from a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from aiorate.errors import kind_of
from aiorate.rate import seconds_to_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Feedback", "Part", "Quota", "check_feedback", "left_of"]


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
        """Whether a part is back before the reset."""
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


def check_feedback(call: str, feedback: Feedback) -> tuple[int, list[tuple[int, int]]]:
    """The pause in ns (0: none), and for each quota of requests how many are left and for how many ns.

    Raises TypeError or ValueError that begins with ``call``.
    """
    try:
        pause, quotas, source = feedback.pause, tuple(feedback.quotas), feedback.source
        told = [(quota.remaining, quota.limit, quota.reset, quota.window, quota.unit, quota.full_at_reset) for quota in quotas]
    except (AttributeError, TypeError):
        raise TypeError(
            f"{call} takes what aiorate.http.read_feedback(status, headers) returns, not {kind_of(feedback)}."
            " One of your own is an aiorate.http.Feedback: Feedback(429, pause=2.5)."
        ) from None
    if not isinstance(source, str):
        raise TypeError(f"{call}: the source must be text, not {kind_of(source)}.")
    for remaining, limit, reset, window, *_ in told:
        _check_count(f"{call}: what remains of a quota", remaining)
        _check_count(f"{call}: the limit of a quota", limit)
        _ns(f"{call}: the reset of a quota", reset)
        _ns(f"{call}: the window of a quota", window)
    left = [(permits, _ns(call, quota.reset)) for quota in quotas if (permits := left_of(quota)) is not None]
    return _ns(f"{call}: the pause", pause), left


def left_of(quota: Quota) -> int | None:
    """How many requests may be sent until the quota's reset; None: it does not say, or is not of requests.

    No more than remain, and no more than its policy allows in that time: 10000 in 1000 s with 10000 left for 10 s is 100 requests, not
    10000 (draft-ietf-httpapi-ratelimit-headers-11, section 8.5).
    """
    if quota.unit != "requests" or not quota.remaining or not quota.reset or quota.full_at_reset:
        return None
    window = _ns("window", quota.window)
    if quota.limit is None or not window:
        return quota.remaining
    return min(quota.remaining, max(1, quota.limit * _ns("reset", quota.reset) // window))  # an allowance is rounded down


def _ns(what: str, seconds: float | None) -> int:
    return 0 if seconds is None else seconds_to_ns(seconds, what)


def _check_count(what: str, count: object) -> None:
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{what} must be an int of 0 or more, or None (not told), not {kind_of(count)}.")
    if count < 0:
        raise ValueError(f"{what} must be 0 or more, or None (not told); {count} was given.")
