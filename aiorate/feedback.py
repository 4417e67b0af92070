"""What a server said of its limits, as a limiter heeds it. `aiorate.http.read_feedback` reads it from a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Feedback", "Quota", "left_of"]


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


def left_of(quota: Quota) -> int | None:
    """How many requests may be sent until the quota's reset; None: it does not say, or is not of requests.

    No more than remain, and no more than its policy allows in that time: 10000 in 1000 s with 10000 left for 10 s is 100 requests, not
    10000 (draft-ietf-httpapi-ratelimit-headers-11, section 8.5).
    """
    if quota.unit != "requests" or not quota.remaining or not quota.reset or quota.full_at_reset:
        return None
    if quota.limit is None or not quota.window:
        return quota.remaining
    return min(quota.remaining, max(1, int(quota.limit * quota.reset / quota.window)))
