"""The checks of the options that RedisLimiter and RedisBudget have in common. ``call`` is the name of the class, for errors."""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction
from typing import TYPE_CHECKING

from aiorate._errors import kind_of
from aiorate._limiter import Limiter
from aiorate._options import each_of, is_list
from aiorate._rate import Rate, duration_to_ns, exact
from aiorate._schedulers.all_of import AllOf
from aiorate._schedulers.calendar_window import CalendarWindow
from aiorate._schedulers.interface import Scheduler, check_permits
from aiorate._schedulers.token_bucket import TokenBucket
from aiorate._store.outage import POLICIES
from aiorate._store.slots import Part, check_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._rate import Duration, Number

    OneLimit = Rate | str | Number | TokenBucket | CalendarWindow

__all__ = ["check_name", "horizon_of", "lateness_of", "parts_of", "share_of"]

_SHORTEST_SLACK_NS = 1_000_000
_EXAMPLES = (
    "Write RedisLimiter(url, name, '100/s'), TokenBucket('100/s', burst=10), or a list of these that all hold: ['10/s', '100/min']; or"
    " CalendarWindow('1000/day', 'Europe/Berlin') alone."
)
_MOST_PERMITS = 10**15
"""What a store counts exactly."""


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


def parts_of(limit: OneLimit | Sequence[OneLimit], burst: int | Sequence[int] | None) -> list[Part]:
    """The dimensions of a limiter, which all hold. Raises TypeError and ValueError for anything else."""
    calendar = _calendar_of(limit, burst)
    if calendar is not None:
        return [Part(calendar.rate, calendar.rate.permits, calendar)]
    parts = [Part(*each) for each in zip(*_rates_of(limit, burst), strict=True)]
    for part in parts:
        check_memory("RedisLimiter(rate, burst)", part.rate, part.burst)
    return parts


def _calendar_of(limit: object, burst: object) -> CalendarWindow | None:
    """The limit, if it is a window of the calendar. Raises ValueError if it is not alone."""
    limits = limit if isinstance(limit, (list, tuple)) else [limit]
    calendar = next((each for each in limits if isinstance(each, CalendarWindow)), None)
    if calendar is None:
        return None
    if len(limits) > 1:
        raise ValueError(
            f"RedisLimiter(rate): the CalendarWindow of {calendar.described} must be the only limit. For another limit besides, let a"
            " limiter share it: KeyedLimiter(lambda key: RedisLimiter(url, f'rate:{key}', '10/s'), shared=RedisLimiter(url, 'quota',"
            " CalendarWindow(...)))."
        )
    if burst is not None:
        raise ValueError(f"RedisLimiter(burst={burst!r}): a CalendarWindow has no burst. All its permits may go at once. Leave burst= out.")
    if calendar.rate.permits > _MOST_PERMITS:
        raise ValueError(f"RedisLimiter(rate): a store counts at most 10**15 permits of a window, and {calendar.described} has more.")
    return deepcopy(calendar)


def _rates_of(limit: OneLimit | Sequence[OneLimit], burst: int | Sequence[int] | None) -> tuple[list[Rate], list[int]]:
    """The rates and the burst of each. Raises TypeError and ValueError for anything else."""
    limits: Sequence[object] = limit if isinstance(limit, (list, tuple)) else [limit]
    rates = each_of("RedisLimiter(rate)", limits, _rate) if is_list(limit) else [_rate(limit)]
    buckets = [each for each in limits if isinstance(each, TokenBucket)]
    if burst is None:
        return rates, [each.burst if isinstance(each, TokenBucket) else 1 for each in limits]
    if buckets:
        raise ValueError(
            f"RedisLimiter(burst={burst!r}): {buckets[0]!r} has a burst already. Leave burst= out, and write every limit with a burst as"
            " TokenBucket(rate, burst=...)."
        )
    bursts: list[int] = list(burst) if isinstance(burst, (list, tuple)) else [burst] * len(rates)  # type: ignore[list-item]
    if len(bursts) != len(rates):
        raise ValueError(f"RedisLimiter(burst={burst!r}) must be one int, or one for each of the {len(rates)} rates.")
    for each in bursts:
        check_permits("RedisLimiter(burst)", each)
    return rates, bursts


def _rate(limit: object) -> Rate:
    if isinstance(limit, TokenBucket):
        if deepcopy(limit).peek(limit.burst, 0) > 0:
            raise ValueError(
                f"RedisLimiter(): only the rate and the burst of {limit!r} count: the bucket in the store starts full. Give a new one"
                " without initial= and start=."
            )
        return limit.rate
    if isinstance(limit, AllOf):
        raise TypeError(f"RedisLimiter(rate) takes the limits that all hold as a list, not as an AllOf. {_EXAMPLES}")
    if isinstance(limit, (Scheduler, Limiter, type)):
        raise TypeError(f"RedisLimiter(rate) must be a rate, a TokenBucket or a CalendarWindow, not {kind_of(limit)}. {_EXAMPLES}")
    try:
        return Rate.of(limit)  # type: ignore[arg-type]  # which says what is wrong
    except TypeError:
        raise TypeError(
            f"RedisLimiter(rate) must be a rate, a TokenBucket or a CalendarWindow, not {kind_of(limit)}. {_EXAMPLES}"
        ) from None
