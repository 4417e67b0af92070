"""Messages for common mistakes, which say what to write instead. Imported only when one is made. Knows no limiter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "NOT_AWAITED",
    "NOT_A_BLOCK",
    "NOT_A_BLOCK_OF_BUDGETS",
    "NOT_A_RESERVATION",
    "NOT_DIMENSIONS",
    "NOT_HOOKS",
    "NOT_IN_PART",
    "NO_KEY",
    "NO_KEYS_FOR_THREADS",
    "NO_LEASE",
    "NO_TIMEOUT",
    "REQUEST_AS_KEY",
    "is_request",
    "more_than_a_rate",
    "not_a_dimension",
    "not_by_name",
    "not_decorated",
    "not_for_plain_functions",
    "not_of_a_budget",
    "not_of_an_adaptive_rate",
    "not_of_keyed",
    "not_to_adapt",
    "unknown_keyed_options",
    "unknown_options",
    "unknown_options_of_budgets",
    "wrong_of_strategy",
]

NOT_A_BLOCK = (
    "a plain `with` blocks its thread, and this limiter is for one event loop: write `async with limiter:`. For synchronous code, create it"
    " with scope='process'."
)
NOT_A_BLOCK_OF_BUDGETS = (
    "a plain `with` blocks its thread, and this budget is for one event loop: write `async with budget.reserve(tokens=1800) as lease:`."
    " For synchronous code, create it with scope='process'."
)
NO_LEASE = (
    "a shared RedisLimiter without a lease has permits only for requests that wait, so every call would be refused. Create it with a"
    " lease, such as RedisLimiter(..., lease=0.05), or give the store time to answer, such as max_wait=0.1."
)
NOT_HOOKS = (
    "a limiter is not an HTTP hook: write event_hooks=aiorate.http.hooks(limiter) for httpx2 and httpx, or"
    " middlewares=[aiorate.aiohttp.middleware(limiter)] for aiohttp."
)
_NOT_CALLED = "limiter() has nothing to decorate: write `@limiter` above `async def`, or `async with limiter:`, without parentheses."
NOT_AWAITED = "limiter.of(n) cannot be awaited: write `async with limiter.of(n):` or `@limiter.of(n)`, or await limiter.acquire(n)."
NO_TIMEOUT = "acquire_blocking() has no timeout: acquire_blocking(max_wait=1), in seconds, raises WaitTooLong, at once if it can."
NO_KEYS_FOR_THREADS = (
    "acquire_blocking() needs a KeyedLimiter for the whole process: KeyedLimiter(..., scope='process'). In a coroutine, await acquire(key)."
)
NO_KEY = {
    "KeyedLimiter": "a KeyedLimiter has a limit for each key: write `async with keyed(key):`, or await keyed.acquire(key).",
    "KeyedBudget": "a KeyedBudget has a budget for each key: write `async with keyed.reserve(key, tokens=1800) as lease:`.",
}

NOT_A_RESERVATION = (
    "each call reserves its amounts: write `async with budget.reserve(tokens=1800) as lease:`, which waits in line. A Budget cannot be"
    " entered, and neither a Budget nor a reservation can be awaited."
)
NOT_IN_PART = (
    "refund() gives everything back, and takes no amounts. For what was really used of each dimension, write lease.settle(tokens=used)."
)
REQUEST_AS_KEY = (
    "a request cannot be a key: each request would get a separate limit, and none would wait. Use what the limit is for, such as"
    " keyed(request.client.host) in a server, or keyed(request.url.host). For an HTTP client, write event_hooks=aiorate.http.hooks(keyed),"
    " or middlewares=[aiorate.aiohttp.middleware(keyed)]."
)

_RATE = "give the rate as one argument: Limiter('10/s'), Limiter('100/5s') or Limiter(aiorate.Rate(100, 5))"
_BURST = "a burst belongs to a strategy: Limiter(aiorate.TokenBucket('10/s', burst=5))"
_WAIT = "set the longest wait for each call: await limiter.acquire(max_wait=1)"
_KEYS = "for a limit for each key, write aiorate.KeyedLimiter(lambda key: Limiter('10/s'))"
_STORE = "for a limit that processes share, write aiorate.redis.RedisLimiter(url, name, '10/s')"
_PLACES = "for a limit on how many run at a time, write Limiter('10/s', max_concurrency=5)"
_ONE_LOOP = "this is for one event loop. Call it from other threads through asyncio.run_coroutine_threadsafe()"
_HINTS = {
    **dict.fromkeys(("rate", "rate_limit", "limit", "limits", "max_rate", "max_calls", "calls", "requests", "permits"), _RATE),
    **dict.fromkeys(("period", "per", "interval", "seconds", "time_period", "window", "minutes"), _RATE),
    **dict.fromkeys(("burst", "max_burst", "burst_size", "capacity", "bucket_size", "max_tokens", "burst_ratio"), _BURST),
    **dict.fromkeys(("timeout", "max_wait", "max_delay", "blocking", "wait"), _WAIT),
    **dict.fromkeys(("key", "keys", "key_func", "shared", "max_keys", "idle"), _KEYS),
    **dict.fromkeys(("redis", "storage", "storage_uri", "backend", "url", "store", "lease"), _STORE),
    **dict.fromkeys(("concurrency", "max_concurrent", "max_inflight", "max_parallel"), _PLACES),
    "loop": "leave it out, since a limiter finds the running loop",
    "scope": f"only a Limiter has a scope, and {_ONE_LOOP}",
}


def unknown_options(call: str, given: Mapping[str, object], known: Iterable[str]) -> TypeError:
    """The error for unknown options, or for a missing rate: what each was probably meant for, or the known options."""
    names = ", ".join(given)
    hints = list(dict.fromkeys(_HINTS[name] for name in given if name in _HINTS))
    said = "; ".join(hints) if hints else f"its options are {', '.join(known)}" if given else _RATE
    return TypeError(f"{call} has no option {names}: {said}." if given else f"{call} needs a rate or a strategy: {said}.")


def unknown_keyed_options(given: Mapping[str, object], known: Iterable[str], of_each: Iterable[str]) -> TypeError:
    """The same for a KeyedLimiter: options of a Limiter belong in the function that makes the limiters."""
    each = [f"{name}={value!r}" for name, value in given.items() if name in of_each]
    if not each:
        return unknown_options("KeyedLimiter()", given, known)
    made = f"KeyedLimiter(lambda key: Limiter('10/s', {', '.join(each)}))"
    return TypeError(f"KeyedLimiter() has no option {', '.join(given)}: the Limiter of each key has it. Write {made}.")


def unknown_options_of_budgets(given: Mapping[str, object], known: Iterable[str], of_each: Iterable[str]) -> TypeError:
    """The same for a KeyedBudget: options and dimensions of a Budget belong in the function that makes the budgets."""
    each = ", ".join(f"{name}={value!r}" for name, value in given.items())
    dimension = "requests='500/min', " if all(name in of_each for name in given) else ""
    return TypeError(
        f"KeyedBudget() has no option {', '.join(given)}: its options are {', '.join(known)}. Options and dimensions of a Budget belong"
        f" in the factory: KeyedBudget(lambda key: Budget({dimension}{each}))."
    )


def more_than_a_rate(rate: object, misplaced: object) -> TypeError:
    """The error for two positional arguments of a Limiter: a number and its period, or two rates."""
    if isinstance(misplaced, (int, float)):
        hint = f"For {rate!r} per {misplaced!r} seconds, write Limiter(Rate({rate!r}, {misplaced!r})), or text such as Limiter('100/60s')."
    else:
        hint = "To apply several rates at once, write Limiter(AllOf(TokenBucket('1/s', burst=1), TokenBucket('10/min', burst=10)))."
    return TypeError(f"Limiter() takes one positional argument, a rate or a strategy. {hint}")


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
        hint = f"For a burst, write TokenBucket({str(rate)!r}, burst={burst[0]!r})"
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
        return f"{said}: write `async with budget.reserve(tokens=1800) as lease:`. With max_wait=0 it never waits, but raises WaitTooLong."
    if name in {"refund", "charge", "settle"}:
        return f"{said}: within `async with budget.reserve(...) as lease:`, call lease.settle(tokens=used) or lease.refund()."
    if name in {"set_rate", "apply", "bound", "slots", "reset", "rate"}:
        return f"{said}: call it on a Limiter that is a dimension, as in Budget(requests=limiter, tokens='200_000/min')."
    if name in {"try_reserve", "reserve_nowait"}:
        return f"{said}: write `async with budget.reserve(tokens=1800, max_wait=0) as lease:`, which raises WaitTooLong."
    return f"'Budget' object has no attribute {name!r}"


def not_a_dimension(call: str, name: str, names: Iterable[str]) -> TypeError:
    """The error for an amount of a dimension that a budget does not have."""
    hint = " To limit the wait, use max_wait=, in seconds." if name in ("timeout", "max_delay", "wait") else ""
    return TypeError(f"{call}(): unknown dimension {name!r}; the dimensions are {', '.join(names)}.{hint}")


def not_by_name(call: str, given: object, names: Sequence[str]) -> TypeError:
    """The error for amounts that a budget was given without their names."""
    written = "**amounts" if isinstance(given, dict) else f"{names[-1]}={given!r}"
    return TypeError(f"{call}() takes amounts by name. For {given!r}, write {call}({written}).")


NOT_DIMENSIONS = {
    "burst": "a burst belongs to a strategy: tokens=TokenBucket('200_000/min', burst=20_000)",
    "timeout": "set the longest wait for each call: reserve(max_wait=1)",
    "scope": f"only a Limiter has a scope, and {_ONE_LOOP}",
    **dict.fromkeys(("max_concurrency", "precise"), "this is an option of Limiter, not of Budget"),
}
"""Options of something else: taken as dimensions, they would be limits that nobody asked for."""


def not_of_keyed(kind: str, name: str) -> str:
    """What to write instead of an attribute that a KeyedLimiter or KeyedBudget does not have."""
    if kind == "KeyedBudget" and name in {"acquire", "try_acquire", "acquire_blocking", "of"}:
        return f"a {kind} has no {name}(): write `async with keyed.reserve(key, tokens=1800) as lease:`."
    if name in _OF_A_KEY:
        return f"a {kind} has no {name}(): write keyed[key].{name}() for one key, or keyed.shared.{name}() for all keys together."
    return f"{kind!r} object has no attribute {name!r}"


def not_of_an_adaptive_rate(name: str) -> str:
    """What to write instead of an attribute that an AdaptiveRate does not have."""
    if name in _OF_A_KEY or name in {"acquire", "try_acquire", "acquire_blocking", "observe", "lag", "aclose"}:
        return f"an AdaptiveRate has no {name}: callers use its limiter, as in `await adaptive.limiter.acquire()`."
    return f"'AdaptiveRate' object has no attribute {name!r}"


def not_to_adapt(given: object, kind: str) -> str:
    """What to write instead of an AdaptiveRate of something that is not a limiter."""
    said = f"AdaptiveRate() takes a Limiter, not {kind}"
    if kind in {"KeyedLimiter", "KeyedBudget"}:
        return f"{said}: write KeyedLimiter(lambda key: AdaptiveRate(Limiter('10/s'), '1/s', '100/s'))."
    if kind == "Budget":
        return f"{said}: a Budget has a rate for each dimension, and an answer does not say which of them was exceeded."
    if kind == "AdaptiveRate":
        return f"{said}: one is enough."
    if isinstance(given, (str, int, float)):
        return f"{said}: write AdaptiveRate(Limiter({given!r}), '1/s', '1000/s')."
    return f"{said}: write AdaptiveRate(Limiter('10/s'), '1/s', '1000/s')."


_OF_A_KEY = {
    "apply",
    "available",
    "bound",
    "charge",
    "delay",
    "of",
    "pause",
    "refund",
    "reset",
    "resume",
    "set_rate",
    "slots",
    "statistics",
}


@runtime_checkable
class _Request(Protocol):
    # The attributes that requests of httpx2, httpx and aiohttp have.
    url: Any
    headers: Any


def is_request(key: object) -> bool:
    """Whether the key is a request of an HTTP client or server, which never equals another."""
    return isinstance(key, _Request) and hash(key) == object.__hash__(key)


def not_for_plain_functions(name: object) -> RuntimeError:
    """The error for a plain function of that name that would block its thread, decorated with a limiter for one event loop."""
    return RuntimeError(
        f"@limiter: {name!r} is a plain function, which would block its thread, and this limiter is for"
        " one event loop. Write `async def`, or create the limiter with scope='process'."
    )


def not_decorated(given: tuple[object, ...]) -> TypeError:
    """The error for a limiter called with anything else than one function, as HTTP clients call their hooks with requests."""
    return TypeError(NOT_HOOKS if any(isinstance(one, _Request) for one in given) else _NOT_CALLED)
