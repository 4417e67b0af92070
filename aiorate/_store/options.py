"""The checks of the options that RedisLimiter and RedisBudget have in common. ``call`` is the name of the class, for errors."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from aiorate._rate import duration_to_ns, exact
from aiorate._store.outage import POLICIES

if TYPE_CHECKING:
    from aiorate._rate import Duration, Number

__all__ = ["check_name", "horizon_of", "lateness_of", "share_of"]

_SHORTEST_SLACK_NS = 1_000_000


def check_name(call: str, name: object) -> None:
    """Raise TypeError or ValueError unless it is text that UTF-8 can encode."""
    if not isinstance(name, str):
        raise TypeError(f"{call}(name) must be text, not {type(name).__name__}.")
    if not name:
        raise ValueError(f"{call}(name) must not be empty: processes with the same name share one limit.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{call}(name) must be text that UTF-8 can encode; {name[:40]!a} has a lone surrogate. Refuse such a key where"
            " it comes in, or write name.encode(errors='replace').decode()."
        ) from None


def lateness_of(call: str, slack: Duration, lease: Duration) -> tuple[int, int]:
    """Slack and lease in ns. Raises TypeError and ValueError for other numbers, and if both are shorter than a millisecond."""
    at_most, leased = duration_to_ns(slack, f"{call}(slack)"), duration_to_ns(lease, f"{call}(lease)")
    if max(at_most, leased) < _SHORTEST_SLACK_NS:
        raise ValueError(
            f"{call}(slack={slack!r}) must be at least 0.001 seconds, because no event loop uses a permit at its very instant. 0.005 is"
            " the default."
        )
    return at_most, leased


def horizon_of(call: str, horizon: Duration, default: float) -> int:
    """The horizon in ns. Raises TypeError and ValueError unless it is more than 0."""
    ahead = duration_to_ns(horizon, f"{call}(horizon)")
    if ahead < 1:
        raise ValueError(f"{call}(horizon={horizon!r}) must be more than 0 seconds. {default} is the default.")
    return ahead


def share_of(call: str, policy: str, share: Number | None) -> Fraction:
    """The part of the rate that this process has while the store cannot be reached; 1 unless the ``policy`` is ``"local"``."""
    if policy not in POLICIES:
        raise ValueError(f"{call}(on_unavailable) must be one of {', '.join(POLICIES)}, not {policy!r}.")
    if share is None:
        if policy == "local":
            raise ValueError(f"{call}(on_unavailable='local') needs local_share: this process's part of the rate, such as 0.25 of 4.")
        return Fraction(1)
    part = Fraction(*exact(share, f"{call}(local_share)"))
    if policy != "local":
        raise ValueError(f"{call}(local_share) is for on_unavailable='local'; the policy is {policy!r}.")
    if not 0 < part <= 1:
        raise ValueError(f"{call}(local_share={share!r}) must be more than 0 and at most 1.")
    return part
