"""What to write instead: the words of errors for natural mistakes. Imported only where one was made. Knows no limiter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["NOT_AWAITED", "NOT_A_BLOCK", "NOT_HOOKS", "NO_TIMEOUT", "not_decorated", "unknown_options"]

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
NO_TIMEOUT = "acquire() takes max_wait, in seconds, and no timeout: acquire(max_wait=1) raises WaitTooLong, at once where it can."

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


@runtime_checkable
class _Request(Protocol):
    # What the requests of httpx2, httpx and aiohttp have.
    url: Any
    headers: Any


def not_decorated(given: tuple[object, ...]) -> TypeError:
    """The error for a limiter that was called with anything but one function, as HTTP clients call their hooks with requests."""
    return TypeError(NOT_HOOKS if any(isinstance(one, _Request) for one in given) else _NOT_CALLED)
