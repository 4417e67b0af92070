"""Messages for common mistakes, which say what to write instead. Imported only when one is made. Knows no limiter."""

from __future__ import annotations

from types import CoroutineType, FunctionType
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
    "not_a_dimension",
    "not_by_name",
    "not_decorated",
    "not_for_plain_functions",
    "not_of_a_budget",
    "not_of_an_adaptive_rate",
    "not_of_keyed",
    "not_to_adapt",
    "not_to_set",
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


def not_to_set(rate: object) -> TypeError:
    """The error for what set_rate() was given in place of a rate."""
    if rate is None:
        return TypeError("set_rate() takes a rate such as '20/s', not None. To grant nothing for a while, write limiter.pause(seconds).")
    kind = type(rate).__name__
    return TypeError(f"set_rate() takes a rate such as '20/s', not {kind}. A limiter keeps its strategy; for another, create a limiter.")


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
    if name in {"consume", "spend", "take", "use", "hit", "wait"}:
        return f"{said}: write `async with budget.reserve(tokens=1800) as lease:` around the call."
    if name in {"release", "record", "report", "add_usage", "update"}:
        return f"{said}: within `async with budget.reserve(...) as lease:`, call lease.settle(tokens=used) or lease.refund()."
    if name in {"remaining", "left", "level", "tokens", "requests", "get_remaining", "statistics"}:
        return f"a Budget has no {name!r}: write budget.available('tokens') for what is left of a dimension."
    if name in {"close", "stop", "shutdown"}:
        return f"{said}: write `await budget.aclose()`."
    return f"'Budget' object has no attribute {name!r}"


def not_a_dimension(call: str, name: str, names: Iterable[str]) -> TypeError:
    """The error for an amount of a dimension that a budget does not have."""
    hint = " To limit the wait, use max_wait=, in seconds." if name in ("timeout", "max_delay", "wait") else ""
    return TypeError(f"{call}(): unknown dimension {name!r}; the dimensions are {', '.join(names)}.{hint}")


def not_by_name(call: str, given: object, names: Sequence[str]) -> TypeError:
    """The error for amounts that a budget was given without their names."""
    written = "**amounts" if isinstance(given, dict) else f"{names[-1]}={given if isinstance(given, int) else 1800!r}"
    return TypeError(f"{call}() takes amounts by name. For {given!r}, write {call}({written}).")


NOT_DIMENSIONS = {
    "burst": "a burst belongs to a strategy: tokens=TokenBucket('200_000/min', burst=20_000)",
    "timeout": "set the longest wait for each call: reserve(max_wait=1)",
    **dict.fromkeys(("max_concurrency", "precise"), "this is an option of Limiter, not of Budget"),
}
"""Options of something else: taken as dimensions, they would be limits that nobody asked for."""


_OF_KEYED = {
    **dict.fromkeys(("get", "limiter", "get_limiter", "for_key", "key"), "write keyed[key], or keyed(key) in `async with keyed(key):`"),
    **dict.fromkeys(("wait", "consume", "take", "until_ready"), "write `await keyed.acquire(key)`, or `async with keyed(key):`"),
    **dict.fromkeys(
        ("hit", "check", "allow", "is_allowed", "test"), "write `keyed.try_acquire(key)`, which never waits and returns True or False"
    ),
    **dict.fromkeys(("keys", "items", "values"), "the keys that are kept are list(keyed)"),
    **dict.fromkeys(("remove", "delete", "pop", "discard", "cleanup"), "keys that owe nothing are dropped; keyed.evict() drops them now"),
    **dict.fromkeys(("clear", "flush"), "write keyed.forget() to drop every key, or keyed.evict() for those that owe nothing"),
    **dict.fromkeys(("release", "leave"), "a permit is used up, and nothing is released; leaving `async with keyed(key):` is enough"),
    **dict.fromkeys(("close", "stop", "shutdown"), "write `await keyed.aclose()`"),
    **dict.fromkeys(("rate", "limit", "scheduler"), "write keyed[key].rate for one key, or keyed.shared.rate for all keys together"),
}
NOT_ASSIGNED = (
    "the factory makes the limit of each key, which is not assigned: KeyedLimiter(lambda key: '10/s'). To change it, write"
    " keyed[key].set_rate('5/s'); to drop what owes nothing, keyed.evict()."
)


def not_of_keyed(kind: str, name: str) -> str:
    """What to write instead of an attribute that a KeyedLimiter or KeyedBudget does not have."""
    if name in {"reserve"} or (kind == "KeyedBudget" and name in {"acquire", "try_acquire", "acquire_blocking", "of", "consume", "take"}):
        one = "`async with keyed.reserve(key, tokens=1800) as lease:`"
        return f"a {kind} has no {name}(): write {one if kind == 'KeyedBudget' else f'KeyedBudget(lambda key: Budget(...)), and {one}'}."
    if name in _OF_A_KEY:
        return f"a {kind} has no {name}(): write keyed[key].{name}() for one key, or keyed.shared.{name}() for all keys together."
    if name in _OF_KEYED:
        return f"a {kind} has no {name!r}: {_OF_KEYED[name]}."
    return f"{kind!r} object has no attribute {name!r}"


_OF_AN_ADAPTIVE_RATE = {
    **dict.fromkeys(("success", "succeed", "ok", "on_success", "increase", "record_success"), "call adaptive.succeeded(took=seconds)"),
    **dict.fromkeys(
        ("failed", "failure", "throttle", "on_429", "decrease", "backoff", "record_failure", "limited"), "call adaptive.throttled()"
    ),
    **dict.fromkeys(("current_rate", "get_rate", "value"), "read adaptive.rate"),
}


def not_of_an_adaptive_rate(name: str) -> str:
    """What to write instead of an attribute that an AdaptiveRate does not have."""
    if name in _OF_A_KEY or name in {"acquire", "try_acquire", "acquire_blocking", "observe", "lag", "aclose"}:
        own = "" if name == "acquire" else f"write `adaptive.limiter.{name}`; "
        return f"an AdaptiveRate has no {name}: {own}callers use its limiter, as in `await adaptive.limiter.acquire()`."
    if name in _OF_AN_ADAPTIVE_RATE:
        return f"an AdaptiveRate has no {name}: {_OF_AN_ADAPTIVE_RATE[name]}."
    return f"'AdaptiveRate' object has no attribute {name!r}"


NOT_A_BLOCK_OF_RATES = "an AdaptiveRate only moves the rate of its limiter: write `async with adaptive.limiter:`."


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
class _Timedelta(Protocol):
    # Of datetime, which would have to be imported.
    def total_seconds(self) -> float: ...


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


def not_decorated(given: tuple[object, ...], options: Mapping[str, object]) -> TypeError:
    """The error for a limiter called with anything else than one function, as HTTP clients call their hooks with requests."""
    first = given[0]
    if any(isinstance(one, _Request) for one in given):
        return TypeError(NOT_HOOKS)
    if isinstance(first, CoroutineType):
        return TypeError(
            "limiter(...) decorates functions, and a coroutine is a call already: write `async with limiter:` around the await."
        )
    if isinstance(first, (classmethod, property)):
        return TypeError(f"@limiter decorates functions, not a {type(first).__name__}: put it right above `async def`, below the other.")
    if isinstance(first, int) or any(isinstance(one, int) for one in options.values()):
        return TypeError("limiter(...) decorates functions, not numbers. For 5 permits a call, write `@limiter.of(5)` above `async def`.")
    if isinstance(first, str):
        return TypeError(
            f"limiter({first[:40]!r}) decorates nothing: the rate belongs to the limiter. Write limiter = Limiter('10/s'), and `@limiter`"
            " above `async def`. For a limit for each key, write KeyedLimiter(lambda key: '10/s') and `async with keyed(key):`."
        )
    return TypeError(_NOT_CALLED)


def warn_of_no_block(lease: object) -> None:
    """Say in the log that a lease was never entered, as Python warns of a coroutine that was never awaited."""
    from logging import getLogger

    getLogger("aiorate").warning("%r was never entered: write `async with budget.reserve(...) as lease:` around the call.", lease)


def permits_meant(given: object) -> str:
    """The sentence that says what to write for what was given in place of permits; "" if that is unclear."""
    if isinstance(given, str):
        return " For a limit for each key, write KeyedLimiter(lambda key: '10/s')."
    if isinstance(given, _Request):
        return f" For an HTTP client, {NOT_HOOKS.partition('hook: ')[2]}"
    return ""


def dimension_meant(kind: str) -> str:
    """The sentence that says what to write for a thing of that kind in place of a dimension; "" if that is unclear."""
    if kind == "Budget":
        return " For a budget that several share, write Budget(requests='500/min', shared=budget)."
    if kind == "KeyedLimiter":
        return " Give the limiter of one key, keyed['acme'], or write KeyedBudget(lambda key: Budget(requests='500/min'))."
    return ""


def scope_meant(scope: str) -> str:
    """The sentence that says which scope an unknown one probably means; "" if that is unclear."""
    if scope.startswith(("thread", "sync", "multi", "loops")):
        return " For threads and several event loops, write scope='process'."
    if scope in {"global", "redis", "cluster", "distributed", "processes", "machine", "shared"}:
        return " For a limit that processes share, write aiorate.redis.RedisLimiter(url, name, '10/s')."
    if scope in {"task", "asyncio", "coroutine", "local"}:
        return " For one event loop, leave it out."
    return ""


def not_by_assignment(rate: object) -> AttributeError:
    """The error for a rate that is assigned."""
    return AttributeError(f"limiter.rate cannot be assigned. Write limiter.set_rate({rate!r}), which applies to those in line too.")


_EXAMPLES = {
    "AllOf": "AllOf(TokenBucket('10/s', burst=5), SlidingWindow('100/min'))",
    "CalendarWindow": "CalendarWindow('1000/day', 'UTC')",
    "KeyedLimiter": "KeyedLimiter(lambda key: '10/s')",
    "Rate": "Rate(10, per=60)",
    "RedisLimiter": "RedisLimiter(url, name, '10/s')",
    "SmoothWarmingUp": "SmoothWarmingUp('10/s', warmup=5)",
    "TokenBucket": "TokenBucket('10/s', burst=20)",
}


def not_the_class(call: str, given: type) -> TypeError:
    """The error for a class in place of a strategy or a rate."""
    name = given.__name__
    written = _EXAMPLES.get(name, f"{name}('10/s')")
    return TypeError(f"{call}({name}): pass a strategy with its rate, such as {written}, not the class.")


def not_a_rate(call: str, given: object) -> TypeError:
    """The error for what is neither a rate nor a strategy, nor a list of them."""
    said = f"{call} takes a rate such as '100/s', or a strategy, not {'None' if given is None else type(given).__name__}."
    if isinstance(given, bytes):
        return TypeError(f"{said} Write {given.decode(errors='replace')!r}.")
    if isinstance(given, dict):
        return TypeError(f"{said} Write Rate(10, per=60), or text such as '10/min'.")
    if isinstance(given, _Timedelta):
        return TypeError(f"{said} For one permit in each, write Rate(1, per={given!r}).")
    if isinstance(given, FunctionType):
        return TypeError(
            f"{said} For a limit for each key, write KeyedLimiter(lambda key: '10/s'). To limit a function, write limiter ="
            " Limiter('10/s'), and `@limiter` above `async def`."
        )
    return TypeError(f"{said} A custom strategy must subclass aiorate.Scheduler.")
