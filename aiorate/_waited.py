"""Waited: what ``on_wait`` is told of one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Waited"]


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
