"""Names that other libraries give what aiorate names otherwise. Read from an object, each raises AttributeError that says what to write.

A base class has ``__getattr__``, which a lookup that succeeds never meets. On Python 3.11 it would make every attribute of a limiter three
times as slow. There the names lie in the base class: dir() of an object leaves them out, but help() of the class lists them, and a Protocol
finds them. Knows no limiter.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Never

__all__ = ["NamesOfLease", "NamesOfLimiter", "NamesOfRate"]

_HOOKS = (
    "a limiter is not an HTTP hook: write event_hooks=aiorate.http.hooks(limiter) for httpx2 and httpx, or"
    " middlewares=[aiorate.aiohttp.middleware(limiter)] for aiohttp"
)
_TRANSPORT = "write transport=aiorate.http.limit_transport(httpx2.AsyncHTTPTransport(), limiter)"
_ACQUIRE = "write `await limiter.acquire()`, or `async with limiter:`"
_TRY = "write `limiter.try_acquire()`, which never waits and returns True or False"
_LOOK = f"{_TRY}; to look without taking, `limiter.delay()` is 0.0 if a request would be granted now"
_SET = "write `limiter.set_rate('20/s')`"
_SEVERAL = "write `await limiter.acquire(5)`, or `async with limiter.of(5):`, for 5 permits at once"
_AROUND = "write `async with limiter:` around the call"
_DECORATE = "write `@limiter` above `async def`, or `@limiter.of(5)` for 5 permits a call; the rate belongs to Limiter('10/s')"
_RATE = "write `limiter.rate`, which has permits, period_ns and per_second, and `limiter.set_rate('20/s')` to change it"
_BURST = "a burst belongs to a strategy: Limiter(aiorate.TokenBucket('10/s', burst=5))"
_LEVEL = "write `limiter.statistics().available`, or `limiter.delay()` for the seconds that a request would wait"
_COUNTS = "write `limiter.statistics()`, which has granted, refused, waiting and more"
_RELEASE = (
    "a permit is used up, and nothing is released. For a limit on how many run at a time, write `async with limiter:` with"
    " Limiter('10/s', max_concurrency=5). To give a permit back, write `limiter.refund(1)`"
)

_OF_A_LIMITER = {
    **dict.fromkeys(("wait", "acquire_async", "aacquire", "async_acquire", "until_ready", "join", "sleep"), _ACQUIRE),
    **dict.fromkeys(("try_acquire_async", "acquire_nowait", "try_wait", "allow", "is_allowed", "hit", "ahit", "check", "try_"), _TRY),
    **dict.fromkeys(("allowed", "has_capacity", "locked", "test", "ready", "can_acquire", "is_limited"), _LOOK),
    **dict.fromkeys(("consume", "acquire_many", "acquire_n", "allow_n", "wait_n", "until_n_ready", "take"), _SEVERAL),
    **dict.fromkeys(("schedule", "submit", "call", "run", "execute", "enqueue", "add_task"), _AROUND),
    **dict.fromkeys(("limit", "wrap", "as_decorator", "decorator", "ratelimit", "rate_limit", "rate_limited", "throttle"), _DECORATE),
    **dict.fromkeys(("update_rate", "change_rate", "set_limit", "setrate", "set_max_rate"), _SET),
    **dict.fromkeys(("max_rate", "time_period", "period", "per", "permits", "interval", "max_calls"), _RATE),
    **dict.fromkeys(("burst", "max_burst", "set_burst", "capacity", "bucket"), _BURST),
    **dict.fromkeys(("available", "tokens", "level", "remaining", "get_remaining", "current", "retry_after", "reset_time"), _LEVEL),
    **dict.fromkeys(("breach", "time_until_available", "get_wait_time", "wait_time", "time_to_wait"), _LEVEL),
    **dict.fromkeys(("waiting", "granted", "refused", "stats", "metrics", "info", "counts"), _COUNTS),
    **dict.fromkeys(("release", "arelease"), _RELEASE),
    # Not close(): programs that close whatever has that method ask a class for it, by a Protocol, and would find it. Python says aclose.
    **dict.fromkeys(("shutdown", "cancel", "dispose"), "write `await limiter.aclose()`"),
    "stop": "write `await limiter.aclose()` to end it, or `limiter.pause(seconds)`",
    "start": "there is nothing to start; after `limiter.pause(seconds)`, write `limiter.resume()`",
    **dict.fromkeys(("clear", "flush"), "write `limiter.reset()`, which starts over"),
    **dict.fromkeys(("reserve", "reserve_n"), "write `await limiter.acquire(5)`; to take an estimate and settle it, use an aiorate.Budget"),
    **dict.fromkeys(("key", "for_key", "get_limiter"), "for a limit for each key, write aiorate.KeyedLimiter(lambda key: '10/s')"),
    "max_connections": _HOOKS,
    **dict.fromkeys(("handle_async_request", "handle_request"), _TRANSPORT),
    "get": _HOOKS,
}

_SETTLE = "write `lease.settle(tokens=used)` inside the block"
_OF_A_LEASE = {
    **dict.fromkeys(("used", "use", "spend", "consume", "charge", "update", "adjust", "report", "record"), _SETTLE),
    **dict.fromkeys(("commit", "confirm", "complete"), f"the estimate stands without it; for what was really used, {_SETTLE}"),
    **dict.fromkeys(("release", "cancel", "rollback", "close", "free"), "write `lease.refund()`, which gives all of it back"),
    **dict.fromkeys(("tokens", "requests"), "write `lease.amounts`, which has the amount of each dimension"),
    **dict.fromkeys(("acquire", "wait"), "write `async with budget.reserve(tokens=1800) as lease:`"),
}

_PARTS = "write `rate.permits`, `rate.period_ns`, or `rate.per_second`"
_OF_A_RATE = {
    **dict.fromkeys(("limit", "amount", "calls", "requests", "count", "max_rate"), _PARTS),
    **dict.fromkeys(("per", "period", "interval", "seconds", "window", "time_period", "rps"), _PARTS),
    "burst": "a burst belongs to a strategy: aiorate.TokenBucket('10/s', burst=5)",
    **dict.fromkeys(("per_minute", "per_hour", "per_day"), "write Rate.parse('10/min'), '10/h' or '10/day'; of a rate, `rate.per_second`"),
}


class _Absent:
    """A name in a class that does not exist for its objects: neither getattr() nor hasattr() finds it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, instance: object, owner: object) -> Never:
        raise AttributeError(self._text)


def _present(thing: object) -> list[str]:
    from inspect import getattr_static

    return [name for name in object.__dir__(thing) if not isinstance(getattr_static(thing, name, None), _Absent)]


def _texts(of: str, names: dict[str, str]) -> dict[str, str]:
    return {name: f"a {of} has no {name!r}: {instead}." for name, instead in names.items()}


def _looked_up(of: str, names: dict[str, str]) -> type:
    texts = _texts(of, names)

    def missing(thing: object, name: str) -> Any:
        if name in texts and not any(name in base.__dict__ for base in type(thing).__mro__):  # a subclass may have it
            raise AttributeError(texts[name])
        return object.__getattribute__(thing, name)  # which raises: a slot without a value, or the error of a property

    return type(f"NamesOf{of}", (), {"__slots__": (), "__getattr__": missing})


def _in_the_class(of: str, names: dict[str, str]) -> type:
    absent = {name: _Absent(text) for name, text in _texts(of, names).items()}
    return type(f"NamesOf{of}", (), {"__slots__": (), "__dir__": _present, **absent})


if TYPE_CHECKING:

    class NamesOfLimiter:
        """A base class of `aiorate.Limiter`, for checkers: an empty one."""

        __slots__ = ()

    class NamesOfLease:
        """A base class of `aiorate.Lease`."""

        __slots__ = ()

    class NamesOfRate:
        """A base class of `aiorate.Rate`."""

        __slots__ = ()

else:
    _base = _looked_up if sys.version_info >= (3, 12) else _in_the_class
    NamesOfLimiter, NamesOfLease = _base("Limiter", _OF_A_LIMITER), _base("Lease", _OF_A_LEASE)
    NamesOfRate = _in_the_class("Rate", _OF_A_RATE)  # some are looked for in the class: Rate.per_minute(10)
