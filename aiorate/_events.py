"""What users' callbacks get: events, each of which is also a log record under ``aiorate``, and requests that waited."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiorate._rate import Rate


_KINDS = {  # the level of the record, and its text
    "paused": (logging.WARNING, "paused for {0.seconds:g} s by the server{1}"),
    "skipped": (logging.INFO, "{0.permits} permits skipped because the event loop was late"),
    "clamped": (logging.WARNING, "estimate of {0.key} lowered to {0.permits}, the most that can be granted at once"),
    "evicted": (logging.DEBUG, "evicted"),
    "degraded": (logging.WARNING, "the store does not answer{1}"),
    "restored": (logging.WARNING, "the store answers again, after {0.seconds:.3g} s"),
    "rate": (logging.INFO, "the rate is now {0.rate}"),
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
        key = "" if self.key is None else f", key {self.key!r}"
        return f"{name}{key}: {_KINDS[self.kind][1].format(self, f' ({self.source})' if self.source else '')}"


@dataclass(frozen=True, slots=True)
class Waited:
    """One request that waited and was granted."""

    seconds: float
    """How long it waited, more than 0: for a place too, with ``max_concurrency``."""
    permits: int | Mapping[str, int]
    """How many permits it was granted; of a `Budget`, the amounts that it reserved, by dimension."""
    name: str | None = None
    """The limiter's name, if it has one; that of the `KeyedLimiter` if that has one."""
    key: object = None
    """The key of a `KeyedLimiter` or `KeyedBudget`; None: it was not asked for a key."""
    limited_by: str | None = None
    """What it waited for last. None: the rate of the limiter that was asked, or requests before it in that line. Of a `Budget`: the
    dimension, as in `Lease.limited_by`. Otherwise the name of a limit that is shared with others, or ``"shared"`` if that has none;
    ``"max_concurrency"``: a place; ``"pause"``: the end of a pause or stop."""

    def __str__(self) -> str:
        name = f"limiter {self.name!r}" if self.name else "limiter"
        key = "" if self.key is None else f", key {self.key!r}"
        limit = "" if self.limited_by is None else f" (limited by {self.limited_by})"
        return f"{name}{key}: waited {self.seconds:.6g} s for {self.permits}{limit}"


def emit(event: Event, on_event: Callable[[Event], object] | None) -> None:
    """Log the event, and call back. Exceptions of the callback are only logged."""
    level, _ = _KINDS[event.kind]
    if _logger.isEnabledFor(level):
        extra = {f"aiorate_{name}": value for name, value in asdict(event).items() if name != "rate" or value is not None}
        _logger.log(level, "%s", event, extra=extra)
    if on_event is not None:
        try:
            on_event(event)
        except Exception:
            _logger.exception("on_event failed for %s", event)
