"""What limits in stores are given: their options and limits, checked. ``call`` is the name of the class, for errors."""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction
from typing import TYPE_CHECKING

from aiorate._errors import kind_of
from aiorate._rate import Rate, duration_to_ns, exact
from aiorate._schedulers.calendar_window import CalendarWindow
from aiorate._schedulers.interface import check_permits
from aiorate._schedulers.token_bucket import TokenBucket
from aiorate._store.slots import MS, Part, check_memory
from aiorate._store.source import check_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._rate import Duration, Number

    OneLimit = Rate | str | Number | TokenBucket | CalendarWindow


_POLICIES = ("raise", "wait", "local", "open")
_MOST_PERMITS = 10**15
"""What a store counts exactly."""


class Terms:
    """How a limit uses its store. Raises TypeError and ValueError for wrong options."""

    def __init__(
        self, call: str, kind: str, source: object, name: object, scope: object, policy: str, share: Number | None, **durations: Duration
    ) -> None:
        check_source(source, alone=scope == "process")
        check_name(call, name)
        self.source, self.kind, self.policy = source, kind, policy
        self.horizon, self.lease, self.slack, self.grace = [duration_to_ns(each, f"{call}({of})") for of, each in durations.items()]
        """In ns: how far ahead all processes together aim to book; how far ahead slots are taken that nobody asked for yet, or 0; how late
        a slot may be used; and how long an outage may take until the policy decides."""
        self.late: int = max(self.slack, self.lease)
        """How late a slot may be used that was taken ahead."""
        if self.late < MS:
            raise ValueError(
                f"{call}(slack={durations['slack']!r}) must be at least 0.001 seconds: event loops are late. 0.005 is the default."
            )
        if self.horizon < 1:
            raise ValueError(f"{call}(horizon={durations['horizon']!r}) must be more than 0 seconds.")
        if policy not in _POLICIES:
            raise ValueError(f"{call}(on_unavailable) must be one of {', '.join(_POLICIES)}, not {policy!r}.")
        if (policy == "local") is (share is None):
            raise ValueError(f"{call}(): on_unavailable='local' needs local_share, its part of the rate, and no other policy has it.")
        self.share: Fraction = Fraction(0) if share is None else Fraction(*exact(share, f"{call}(local_share)"))
        """This process's part of the limits with the policy "local"."""
        if share is not None and not 0 < self.share <= 1:
            raise ValueError(f"{call}(local_share={share!r}) must be more than 0 and at most 1.")


def check_name(call: str, name: object) -> None:
    """Raise TypeError or ValueError unless it is text that UTF-8 can encode."""
    if not isinstance(name, str):
        raise TypeError(f"{call}(name) must be text, not {type(name).__name__}.")
    if not name:
        raise ValueError(f"{call}(name) must not be empty: processes with the same name share one limit.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{call}(name) must be text that UTF-8 can encode; {name[:40]!a} has a lone surrogate.") from None


def parts_of(call: str, limit: OneLimit | Sequence[OneLimit], burst: int | None, lease: Duration) -> list[Part]:
    """The dimensions of a limiter, which all hold. Raises TypeError and ValueError for anything else, and for a calendar with a lease."""
    limits: Sequence[object] = limit if isinstance(limit, (list, tuple)) else [limit]
    calendar = next((each for each in limits if isinstance(each, CalendarWindow)), None)
    if calendar is not None:
        if len(limits) > 1 or burst is not None or lease:
            raise ValueError(
                f"{call}(rate): the CalendarWindow of {calendar._described} must be the only limit, and has no burst and no lease."
            )
        if calendar.rate.permits > _MOST_PERMITS:
            raise ValueError(f"{call}(rate): a store counts at most 10**15 permits of a window, and {calendar._described} has more.")
        return [Part(calendar.rate, calendar.rate.permits, deepcopy(calendar))]
    if burst is not None:
        check_permits(f"{call}(burst)", burst)
    if not limits:
        raise ValueError(f"{call}(rate) needs at least one limit, such as ['10/s', '500/min'].")
    return [Part(rate, own or 1) for rate, own in [limit_of(f"{call}(rate)", each, burst) for each in limits]]


def limit_of(what: str, limit: object, burst: int | None = None) -> tuple[Rate, int | None]:
    """The rate and the burst of a bucket, or a rate, which may have that ``burst``. Raises TypeError and ValueError for anything else."""
    own = burst
    if isinstance(limit, TokenBucket):
        rate, own = limit.rate, limit.burst
        if burst is not None:
            raise ValueError(f"{what}: {limit!r} has a burst already. Leave burst= out.")
        if deepcopy(limit).peek(own, 0) > 0:
            raise ValueError(f"{what}: the bucket in the store starts full. Give {limit!r} without initial= and start=.")
    else:
        try:
            rate = Rate.of(limit)  # type: ignore[arg-type]  # which says what is wrong
        except TypeError:
            raise TypeError(
                f"{what} must be a rate such as '100/s', or a TokenBucket, not {kind_of(limit)}. Of several, a limiter takes a list:"
                " ['10/s', '100/min']; and a budget has a dimension for each."
            ) from None
    check_memory(what, rate, own or 1)
    return rate, own
