"""Events that happen to a limiter: each is a log record under ``aiorate``, and a call of the callback if there is one."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._rate import Rate

__all__ = ["Event", "emit"]

_LEVELS = {
    "paused": logging.WARNING,
    "skipped": logging.INFO,
    "clamped": logging.WARNING,
    "evicted": logging.DEBUG,
    "degraded": logging.WARNING,
    "restored": logging.WARNING,
    "rate": logging.INFO,
}
_logger = logging.getLogger("aiorate")


@dataclass(frozen=True, slots=True)
class Event:
    """One change. Attributes that do not belong to its kind are None."""

    kind: str
    """``paused``: a server asked for a pause. ``skipped``: permits fell due while the loop was late, and are given up. ``clamped``:
    an estimate was above the most that can be granted at once. ``evicted``: a key owed nothing and was dropped. ``degraded``: the
    store of a shared limit does not answer, and its policy holds. ``restored``: it answers again. ``rate``: an
    `aiorate.adaptive.AdaptiveRate` has settled on another rate."""
    limiter: str | None = None
    """The limiter's name, if it has one."""
    key: object = None
    """The key of a `KeyedLimiter`, or the dimension of a `Budget`."""
    seconds: float | None = None
    """The length of the pause, or the time for which the store did not answer."""
    permits: int | None = None
    """How many permits were skipped, or are granted instead."""
    source: str | None = None
    """Who asked for the pause: a header, a vendor, or a status. Of a store, the policy and the reason."""
    rate: Rate | None = None
    """The rate that was settled on."""

    def __str__(self) -> str:
        name = f"limiter {self.limiter!r}" if self.limiter else "limiter"
        if self.key is not None:
            name = f"{name}, key {self.key!r}"
        if self.kind == "paused":
            source = f" ({self.source})" if self.source else ""
            return f"{name}: paused for {self.seconds:g} s by the server{source}"
        if self.kind == "skipped":
            return f"{name}: {self.permits} permits skipped because the event loop was late"
        if self.kind == "clamped":
            return f"{name}: estimate lowered to {self.permits}, the most that can be granted at once"
        if self.kind == "degraded":
            return f"{name}: the store does not answer ({self.source})"
        if self.kind == "restored":
            return f"{name}: the store answers again, after {self.seconds:.3g} s"
        if self.kind == "rate":
            return f"{name}: the rate is now {self.rate}"
        return f"{name}: {self.kind}"


def emit(event: Event, on_event: Callable[[Event], object] | None) -> None:
    """Log the event, and call back. Exceptions of the callback are logged and go no further."""
    level = _LEVELS[event.kind]
    if _logger.isEnabledFor(level):
        extra = {f"aiorate_{name}": value for name, value in asdict(event).items() if name != "rate" or value is not None}
        _logger.log(level, "%s", event, extra=extra)
    if on_event is not None:
        try:
            on_event(event)
        except Exception:
            _logger.exception("on_event failed for %s", event)
