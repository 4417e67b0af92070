"""What to write instead: the words of errors for natural mistakes. Imported only where one was made. Knows no limiter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "NOT_AWAITED",
    "NOT_A_BLOCK",
    "NOT_HOOKS",
    "NO_KEY",
    "NO_TIMEOUT",
    "not_decorated",
    "not_of_a_budget",
    "unknown_of_keys",
    "unknown_options",
    "wrong_of_strategy",
]

NOT_A_BLOCK = (
    "a limiter makes its callers wait, and a plain `with` cannot: write `async with limiter:`. In synchronous code, make the limiter"
    " with scope='process' and call limiter.acquire_blocking()."
)
NOT_HOOKS = (
    "a limiter is not a hook of an HTTP client: write event_hooks=aiorate.http.hooks(limiter) for httpx2 and httpx, or"
    " middlewares=[aiorate.aiohttp.middleware(limiter)] for aiohttp."
)
_NOT_CALLED = "limiter() has nothing to decorate: write `@limiter` above `async def`, or `async with limiter:`, without parentheses."
NOT_AWAITED = "limiter.of(n) is for `async with limiter.of(n):` and `@limiter.of(n)`. To wait for n permits, await limiter.acquire(n)."
NO_TIMEOUT = (
    "acquire_blocking() takes max_wait, in seconds, and no timeout: acquire_blocking(max_wait=1) raises WaitTooLong, at once where it can."
)
NO_KEY = "a KeyedLimiter has a limit for each key: write `async with keyed(key):`, or await keyed.acquire(key)."

_RATE = "a rate is one argument: Limiter('10/s'), Limiter('100/5s') or Limiter(aiorate.Rate(100, 5))"
_BURST = "a burst belongs to a strategy: Limiter(aiorate.TokenBucket('10/s', burst=5))"
_WAIT = "how long to wait is said where one waits: await limiter.acquire(max_wait=1)"
_KEYS = "a limit for each key: aiorate.KeyedLimiter(lambda key: Limiter('10/s'))"
_STORE = "a limit that processes share: aiorate.redis.RedisLimiter(url, name, '10/s')"
_PLACES = "how many may run at a time: Limiter('10/s', max_concurrency=5)"
_HINTS = {
    **dict.fromkeys(("rate", "rate_limit", "limit", "limits", "max_rate", "max_calls", "calls", "requests", "permits"), _RATE),
    **dict.fromkeys(("period", "per", "interval", "seconds", "time_period", "window", "minutes"), _RATE),
    **dict.fromkeys(("burst", "max_burst", "burst_size", "capacity", "bucket_size", "max_tokens", "burst_ratio"), _BURST),
    **dict.fromkeys(("timeout", "max_wait", "max_delay", "blocking", "wait"), _WAIT),
    **dict.fromkeys(("key", "keys", "key_func", "shared", "max_keys", "idle"), _KEYS),
    **dict.fromkeys(("redis", "storage", "storage_uri", "backend", "url", "store", "lease"), _STORE),
    **dict.fromkeys(("concurrency", "max_concurrent", "max_inflight", "max_parallel"), _PLACES),
    "loop": "no loop is needed: a limiter finds the one that runs",
}


def unknown_options(call: str, given: Mapping[str, object], known: Iterable[str]) -> TypeError:
    """The error for options that the call does not have, or for no rate: what each may have been meant for, or which there are."""
    names = ", ".join(given)
    hints = list(dict.fromkeys(_HINTS[name] for name in given if name in _HINTS))
    said = "; ".join(hints) if hints else f"its options are {', '.join(known)}" if given else _RATE
    return TypeError(f"{call} has no option {names}: {said}." if given else f"{call} needs a rate or a strategy: {said}.")


def unknown_of_keys(given: Mapping[str, object], known: Iterable[str], of_each: Iterable[str]) -> TypeError:
    """The same for a KeyedLimiter: those of a Limiter are for the function that makes the limiters."""
    each = [f"{name}={value!r}" for name, value in given.items() if name in of_each]
    if not each:
        return unknown_options("KeyedLimiter()", given, known)
    made = f"KeyedLimiter(lambda key: Limiter('10/s', {', '.join(each)}))"
    return TypeError(f"KeyedLimiter() has no option {', '.join(given)}: each key has a Limiter, which has it. Write {made}.")


_OF_STRATEGIES = {
    "TokenPool": "rate, burst_ratio and pool",
    "TokenBucket": "rate, burst and initial",
    "SmoothBursty": "rate, and max_burst (seconds) or max_stored (permits)",
    "SlidingWindow": "rate",
    "TicksAccumulator": "rate",
}
_PERIODS = ("per", "period", "interval", "seconds", "time_period", "window")
_BURSTS = ("burst", "burst_size", "capacity", "bucket_size", "size", "max_tokens")


def wrong_of_strategy(strategy: str, rate: object, misplaced: tuple[object, ...], given: Mapping[str, object]) -> TypeError:
    """The error for arguments that a strategy does not have: a period, a burst, or anything else."""
    has = f"{strategy}() takes {_OF_STRATEGIES.get(strategy, 'rate')}"
    period = [*misplaced, *(given[name] for name in _PERIODS if name in given)]
    burst = [given[name] for name in _BURSTS if name in given]
    if burst:
        hint = f"For so many permits at once, write TokenBucket({str(rate)!r}, burst={burst[0]!r})"
        hint += "; burst_ratio is the fastest rate divided by the plain rate." if strategy == "TokenPool" else "."
    elif period:
        numbers = all(isinstance(each, (int, float)) for each in (rate, period[0]))
        hint = f"A rate is one argument: {f'Rate({rate!r}, {period[0]!r})' if numbers else 'Rate(100, 60)'}, or text such as '100/60s'."
    else:
        hint = ""
    names = ", ".join(given) or f"{len(misplaced) + 1} positional arguments"
    return TypeError(f"{has}, not {names}. {hint}".rstrip())


def not_of_a_budget(name: str) -> str:
    """What to write instead of an attribute that a Budget does not have."""
    said = f"a Budget has no {name}()"
    if name in {"acquire", "try_acquire", "acquire_blocking", "of"}:
        return f"{said}: write `async with budget.reserve(tokens=1800) as lease:`. With max_wait=0 it is refused instead of waiting."
    if name in {"refund", "charge", "settle"}:
        return f"{said}: within `async with budget.reserve(...) as lease:`, call lease.settle(tokens=used) or lease.refund()."
    return f"'Budget' object has no attribute {name!r}"


@runtime_checkable
class _Request(Protocol):
    # What the requests of httpx2, httpx and aiohttp have.
    url: Any
    headers: Any


def not_decorated(given: tuple[object, ...]) -> TypeError:
    """The error for a limiter that was called with anything but one function, as HTTP clients call their hooks with requests."""
    return TypeError(NOT_HOOKS if any(isinstance(one, _Request) for one in given) else _NOT_CALLED)
