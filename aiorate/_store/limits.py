"""What a limit over a store may be: rates and token buckets, one or several that all hold, or a window of the calendar."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from aiorate._errors import kind_of
from aiorate._limiter import Limiter
from aiorate._options import each_of, is_list
from aiorate._rate import Rate
from aiorate._schedulers.all_of import AllOf
from aiorate._schedulers.calendar_window import CalendarWindow
from aiorate._schedulers.interface import Scheduler, check_permits
from aiorate._schedulers.token_bucket import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._rate import Number

    OneLimit = Rate | str | Number | TokenBucket | CalendarWindow

__all__ = ["calendar_of", "rates_of"]

_EXAMPLES = (
    "Write RedisLimiter(url, name, '100/s'), TokenBucket('100/s', burst=10), or a list of these that all hold: ['10/s', '100/min']; or"
    " CalendarWindow('1000/day', 'Europe/Berlin') alone."
)
_MOST_PERMITS = 10**15
"""What a store counts exactly."""


def calendar_of(limit: object, burst: object) -> CalendarWindow | None:
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
    return calendar


def rates_of(limit: OneLimit | Sequence[OneLimit], burst: int | Sequence[int] | None) -> tuple[list[Rate], list[int]]:
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
