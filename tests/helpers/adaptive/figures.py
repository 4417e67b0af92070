"""The figures of a simulation: the share of what the server allowed, refusals, how soon a change is found, fairness.

Knows nothing of policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.adaptive.network import BIN
from helpers.adaptive.servers import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helpers.adaptive.kinds import Kind
    from helpers.adaptive.network import Record

__all__ = ["Figures", "figures", "jain"]

_ENOUGH = 0.85  # of a new limit: then it counts as found
_LOOK_BACK = 2 * SECOND // BIN  # parts over which the answers are counted for that
_LEAST = 20  # answers that say something


@dataclass(frozen=True, slots=True)
class Figures:
    """What one simulation showed."""

    share: float
    """Requests served, over what an asker of unlimited speed could have had (of several clients: all together)."""
    refused: float
    """Requests refused, in % of all."""
    fall: float | None
    """Seconds from a fall of the limit until 0.85 of the new one is served, at a rate at most a fifth above it; None: it never fell."""
    rise: float | None
    """Seconds from a rise of the limit until 0.85 of the new one is served; None: it never rose."""
    jain: float | None
    """Jain's index of fairness; None: one client."""
    top: float
    """The highest rate in the second half of the time, per second."""
    end: float
    """The rate at the end (of the first client)."""
    reached: float | None
    """Seconds until the rate was 0.95 of the ceiling; None: never."""


def figures(kind: Kind, record: Record) -> Figures:
    """The figures of a record of that kind."""
    until = round(record.seconds * SECOND)
    served = [sum(parts) for parts in zip(*(client.served for client in record.clients), strict=True)]
    refused = sum(sum(client.refused) for client in record.clients)
    allowed = record.server.allowed(until)
    if all(client.demand is not None for client in record.clients):
        allowed = min(allowed, sum(client.wanted for client in record.clients))
    fair = [sum(client.served[round(kind.fair_from * SECOND) // BIN :]) for client in record.clients]
    rates = [sum(parts) for parts in zip(*(client.rates for client in record.clients), strict=True)]
    reached = next((part for part, rate in enumerate(rates) if rate >= 0.95 * kind.limit), None)
    return Figures(
        sum(served) / allowed,
        100 * refused / max(1, refused + sum(served)),
        _worst(_found(served, rates, instant, new, until) for instant, old, new in kind.changes if new < old),
        _worst(_found(served, None, instant, new, until) for instant, old, new in kind.changes if new > old),
        jain(fair) if len(fair) > 1 else None,
        max(rates[len(rates) // 2 :]),
        rates[-1],
        None if reached is None else (reached + 1) * BIN / SECOND,
    )


def _worst(times: object) -> float | None:
    return max(times, default=None)  # type: ignore[call-overload, no-any-return]


def _found(served: Sequence[int], rates: Sequence[float] | None, change: int, limit: float, until: int) -> float:
    """Seconds from a change until 0.85 of the new limit was served for two seconds, or for as long as 20 requests take."""
    first = change // BIN
    back = max(_LOOK_BACK, round(_LEAST / limit * SECOND / BIN))
    enough = _ENOUGH * limit * back * BIN / SECOND
    for part in range(first + back, until // BIN + 1):
        if sum(served[part - back : part]) >= enough and (rates is None or rates[part - 1] <= 1.2 * limit):
            return (part - first) * BIN / SECOND
    return (until - change) / SECOND


def jain(shares: list[int]) -> float:
    """1: all have the same; 1/n: one has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0
