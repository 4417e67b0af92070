"""What to write instead of arguments that a call does not take. Imported only when a call was given some. Knows no limiter."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "more_than_a_rate",
    "not_of_signature",
    "unknown_keyed_options",
    "unknown_options",
    "unknown_options_of_budgets",
    "wrong_of_strategy",
]

_RATE = "give the rate as one argument: Limiter('10/s'), Limiter('100/5s') or Limiter(aiorate.Rate(100, 5))"
_BURST = "a burst belongs to a strategy: Limiter(aiorate.TokenBucket('10/s', burst=5))"
_STRATEGY = "give the strategy as the one argument in place of the rate: Limiter(aiorate.TokenBucket('10/s', burst=5))"
_WAIT = "set the longest wait for each call: await limiter.acquire(max_wait=1)"
_REFUSES = "acquire() waits in line; to be refused instead, write `limiter.try_acquire()`, or acquire(max_wait=0), which raises WaitTooLong"
_LINE = "for a limit on how many wait in line, write max_waiting=100"
_KEYS = "for a limit for each key, write aiorate.KeyedLimiter(lambda key: Limiter('10/s'))"
_STORE = "for a limit that processes share, write aiorate.redis.RedisLimiter(url, name, '10/s')"
_PLACES = "for a limit on how many run at a time, write Limiter('10/s', max_concurrency=5)"
_THREADS = "for threads and several event loops, write Limiter('10/s', scope='process')"
_COST = "say for each call how many permits it takes: await limiter.acquire(5), or `async with limiter.of(5):`"
_SPREAD = "permits are spaced evenly without it; to spread a pause of a server, write limiter.observe(feedback, jitter=1)"
_TOLD = "write on_event=function, which is called with an aiorate.Event, or on_wait=function, with an aiorate.Waited"
_HINTS = {
    **dict.fromkeys(("rate", "rate_limit", "limit", "limits", "max_rate", "max_calls", "calls", "requests", "permits", "rates"), _RATE),
    **dict.fromkeys(("period", "per", "interval", "seconds", "time_period", "window", "minutes", "every", "time_unit"), _RATE),
    **dict.fromkeys(("rps", "qps", "rpm", "calls_per_second", "requests_per_second", "requests_per_minute", "permits_per_second"), _RATE),
    **dict.fromkeys(("max_per_second", "tokens_per_second", "refill_rate", "fill_rate", "leak_rate", "freq", "hz"), _RATE),
    **dict.fromkeys(("delay", "min_interval", "minimum_interval", "min_time", "minTime", "min_delay", "rate_or_limit"), _RATE),
    **dict.fromkeys(("burst", "max_burst", "burst_size", "capacity", "bucket_size", "max_tokens", "burst_ratio", "tokens"), _BURST),
    **dict.fromkeys(("initial", "initial_tokens", "reservoir", "burst_limit", "bucket"), _BURST),
    **dict.fromkeys(("strategy", "algorithm", "scheduler", "method", "kind", "mode"), _STRATEGY),
    **dict.fromkeys(("timeout", "max_wait", "max_delay", "wait", "wait_timeout"), _WAIT),
    **dict.fromkeys(("blocking", "raise_on_limit", "raise_when_fail", "raises", "raise_exception", "nowait", "fail_fast"), _REFUSES),
    **dict.fromkeys(("retries", "max_retries", "retry", "retry_until_max_delay"), _REFUSES),
    **dict.fromkeys(("max_queue", "queue_size", "max_queue_size", "max_pending", "queue_limit", "max_waiters", "highWater"), _LINE),
    **dict.fromkeys(("key", "keys", "key_func", "shared", "max_keys", "idle", "identifier", "per_key"), _KEYS),
    **dict.fromkeys(("redis", "redis_url", "storage", "storage_uri", "backend", "url", "store", "lease", "distributed"), _STORE),
    **dict.fromkeys(("concurrency", "max_concurrent", "max_inflight", "max_parallel", "maxConcurrent", "max_workers"), _PLACES),
    **dict.fromkeys(("thread_safe", "threadsafe", "threads", "lock", "multi_loop"), _THREADS),
    **dict.fromkeys(("weight", "cost", "amount"), _COST),
    **dict.fromkeys(("jitter", "spread"), _SPREAD),
    **dict.fromkeys(("callback", "on_limit", "on_acquire", "on_limited", "hook", "listener"), _TOLD),
    **dict.fromkeys(("metrics", "instrument", "tracer", "meter_provider"), "write aiorate.otel.instrument(limiter)"),
    "loop": "leave it out, since a limiter finds the running loop",
    "scope": "the scope is that of the limiter: Limiter('10/s', scope='process')",
}
_IN_URL = "write it in the URL: 'redis://user:password@host:6379/0'"
_FORGETS = "leave it out, since the key expires in the store when it says nothing more"
_NAMED = "the name is the key: all limits of one name are one limit. For a limit for each key, write a name for each: f'search:{key}'"
_MISSING = "for when the store cannot be reached, write on_unavailable='raise', 'wait', 'local' or 'open'"
_OF_STORES = {
    **dict.fromkeys(("host", "port", "db", "password", "username", "ssl", "decode_responses"), _IN_URL),
    **dict.fromkeys(
        ("url", "redis_url", "redis", "client", "storage_uri", "connection", "pool"), "give the client or URL as the first argument"
    ),
    **dict.fromkeys(("ttl", "expire", "expiry", "expiration"), _FORGETS),
    **dict.fromkeys(("key", "prefix", "namespace", "key_prefix", "bucket_key"), _NAMED),
    **dict.fromkeys(("fail_open", "fallback", "in_memory_fallback", "swallow_errors", "on_error"), _MISSING),
    **dict.fromkeys(("capacity", "max_burst", "burst_size", "bucket_size", "max_tokens"), "write burst=5, in permits"),
}
_LEAVES = "leave it out: max_keys is the most that are kept, and a key that owes nothing is dropped; idle=60 keeps it for 60 seconds"
_ALL_KEYS = "for a limit that all keys pass too, write shared='100/s'"
_EACH = "the function makes the limit of a key: KeyedLimiter(lambda key: '10/s'); the key is given at the call: keyed.acquire(key)"
_EACH_BURST = "the limit of a key may be a strategy: KeyedLimiter(lambda key: TokenBucket('10/s', burst=5))"
_EACH_BUDGET = "the function makes the budget of a key: KeyedBudget(lambda key: Budget(requests='500/min', tokens='90_000/min'))"
_OF_KEYS = {
    **dict.fromkeys(("ttl", "expire", "expiry", "maxsize", "max_size", "cache_size", "cleanup_interval", "timeout"), _LEAVES),
    **dict.fromkeys(("global_limit", "total", "overall", "default", "shared_limit", "limiter", "parent"), _ALL_KEYS),
    **dict.fromkeys(("key", "keys", "key_func", "rate", "limit", "default_rate", "identifier"), _EACH),
    **dict.fromkeys(("burst", "capacity", "max_burst", "burst_size"), _EACH_BURST),
}
_OF_KEYED_BUDGETS = {
    **_OF_KEYS,
    **dict.fromkeys(("requests", "tokens", "input_tokens", "output_tokens", "rate", "limit", "budget"), _EACH_BUDGET),
}
_OF_RANGES = {
    **dict.fromkeys(("min", "minimum", "min_rate", "low", "floor", "start"), "write lowest='1/s'"),
    **dict.fromkeys(("max", "maximum", "max_rate", "high", "ceiling", "limit"), "write highest='100/s'"),
    **dict.fromkeys(
        ("step", "increase", "decrease", "factor", "backoff", "multiplier", "window", "alpha", "beta"), "leave it out, since it is found"
    ),
}
_LIMITER = "make the limiter first, and pass it: limiter=Limiter('10/s')"
_OF_CLIENTS = {
    **dict.fromkeys(("rate", "limit", "rate_limit", "max_rate", "calls", "period", "per", "burst"), _LIMITER),
    **dict.fromkeys(("timeout", "max_delay", "wait"), "write max_wait=5, in seconds"),
    **dict.fromkeys(("key_func", "keys", "identifier"), "write key=function; of a server's requests, it is a function of the ASGI scope"),
    **dict.fromkeys(("weight", "permits", "tokens"), "write cost=function, which returns the permits that a request takes"),
    **dict.fromkeys(("observe", "respect_retry_after", "retry_after"), "write feedback=True, which is the default"),
}
_OF_SERVERS = {
    **_OF_CLIENTS,
    **dict.fromkeys(("timeout", "max_wait", "max_delay"), "leave it out: a request is let through or answered 429, and never waits"),
}
_TO_SET = {
    **dict.fromkeys(("burst", "max_burst", "capacity"), "it changes only the rate. For another burst, make another limiter"),
    **dict.fromkeys(
        ("per", "period", "seconds", "time_period"), "give the rate as one argument: set_rate('100/60s') or set_rate(Rate(100, 60))"
    ),
}
_TO_A_RATE = {
    **dict.fromkeys(("limit", "calls", "max_calls", "max_rate", "amount", "requests", "rate"), "write Rate(10, 60): permits, and seconds"),
    **dict.fromkeys(("period", "interval", "seconds", "time_period", "window", "duration", "unit"), "write Rate(10, per=60), in seconds"),
    "burst": "a burst belongs to a strategy: aiorate.TokenBucket('10/s', burst=5)",
}
_OF_BUCKETS = {
    **dict.fromkeys(("capacity", "size", "bucket_size", "max_burst", "burst_size", "max_tokens"), "write burst=20, in permits"),
    **dict.fromkeys(("refill_rate", "fill_rate", "refill_per_second", "refill", "limit", "max_rate"), "write the rate first: '10/s'"),
    **dict.fromkeys(("per", "period", "window", "interval", "time_period"), "the rate is one argument: '100/60s', or Rate(100, 60)"),
}
_OF_WINDOWS = dict.fromkeys(
    ("limit", "window", "period", "per", "max_calls", "calls", "size", "max_rate", "time_period", "window_size"),
    "the rate is one argument, and its period the window: SlidingWindow('100/60s'), or SlidingWindow(Rate(100, 60))",
)
_HINTS_OF = {
    "TokenBucket()": _OF_BUCKETS,
    "SlidingWindow()": _OF_WINDOWS,
    **dict.fromkeys(("RedisLimiter()", "RedisBudget()"), _OF_STORES),
    "KeyedLimiter()": _OF_KEYS,
    "KeyedBudget()": _OF_KEYED_BUDGETS,
    "AdaptiveRate()": _OF_RANGES,
    "RateLimitMiddleware()": _OF_SERVERS,
    **dict.fromkeys(("hooks()", "blocking_hooks()", "limit_transport()", "middleware()"), _OF_CLIENTS),
    "set_rate()": _TO_SET,
    "Rate()": _TO_A_RATE,
}
"""What unknown arguments of a call probably mean. Where the call has a table, it comes first."""


def unknown_options(call: str, given: Mapping[str, object], known: Iterable[str]) -> TypeError:
    """The error for unknown options, or for a missing rate: what each was probably meant for, or the known options."""
    table = {**_HINTS, **_HINTS_OF[call]} if call in _HINTS_OF else _HINTS
    names = ", ".join(given)
    hints = list(dict.fromkeys(table[name] for name in given if name in table))
    said = "; ".join(hints) if hints else f"its options are {', '.join(known)}" if given else _RATE
    return TypeError(f"{call} has no option {names}: {said}." if given else f"{call} needs a rate or a strategy: {said}.")


_WRITE = {
    "KeyedLimiter()": "KeyedLimiter(lambda key: '10/s')",
    "KeyedBudget()": "KeyedBudget(lambda key: Budget(requests='500/min', tokens='90_000/min'))",
    "RedisLimiter()": "RedisLimiter('redis://127.0.0.1:6379/0', 'search', '10/s')",
    "RedisBudget()": "RedisBudget('redis://127.0.0.1:6379/0', 'llm', requests='500/min', tokens='90_000/min')",
    "AdaptiveRate()": "AdaptiveRate(Limiter('10/s'), '1/s', '100/s')",
    "RateLimitMiddleware()": "app.add_middleware(RateLimitMiddleware, limiter=limiter)",
    "hooks()": "AsyncClient(event_hooks=hooks(limiter))",
    "blocking_hooks()": "Client(event_hooks=blocking_hooks(limiter))",
    "limit_transport()": "AsyncClient(transport=limit_transport(httpx2.AsyncHTTPTransport(), limiter))",
    "middleware()": "ClientSession(middlewares=[middleware(limiter)])",
    "Rate()": "Rate(10, per=60), or Rate.parse('10/min')",
    "set_rate()": "set_rate('20/s'), set_rate('100/60s') or set_rate(Rate(100, 60))",
    "CalendarWindow()": "CalendarWindow('1000/day', 'Europe/Berlin')",
    "SmoothWarmingUp()": "SmoothWarmingUp('10/s', warmup=5)",
    "SlidingWindow()": "SlidingWindow('100/min')",
    "TokenBucket()": "TokenBucket('10/s', burst=20)",
    "BurstRatio()": "BurstRatio('10/s', ratio=1.1)",
    "BurstCompensation()": "BurstCompensation('10/s', strictness=0.5)",
    "acquire()": "acquire(key), or acquire(key, 5, max_wait=1)",
    "succeeded()": "succeeded(), or succeeded(took=0.5)",
    "simulate()": "simulate(TokenBucket('10/s', burst=5), [0, 0, 0])",
}


def not_of_signature(function: Callable[..., object], given: tuple[object, ...], options: Mapping[str, object]) -> TypeError | None:
    """The error for arguments that the function does not take; None: they fit."""
    from inspect import Parameter, signature

    *_, owner, name = f".{function.__qualname__}".split(".")
    call = f"{owner if name == '__init__' else name}()"
    parameters = signature(function).parameters
    places = [one for one in parameters.values() if one.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    named = {one.name for one in parameters.values() if one.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)}
    kinds = {one.kind for one in parameters.values()}
    named_freely = any(one.kind is Parameter.VAR_KEYWORD and one.name != "unknown" for one in parameters.values())  # as dimensions are
    unknown = {} if named_freely else {option: value for option, value in options.items() if option not in named}
    missing = [one.name for one in places[len(given) :] if one.default is Parameter.empty and one.name not in options]
    if unknown and (missing or Parameter.VAR_KEYWORD not in kinds):
        return unknown_options(call, unknown, [one for one in parameters if one in named - {"self"}])
    write = f" Write {_WRITE[call]}." if call in _WRITE else ""
    if missing:
        return TypeError(f"{call} needs {', '.join(missing)}.{write}")
    if len(given) > len(places) and Parameter.VAR_POSITIONAL not in kinds:
        more = ", ".join(repr(one)[:40] for one in given[len(places) :])
        return TypeError(f"{call} takes no argument {more} without a name.{write}")
    return None


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
        hint = "To apply several limits at once, write a list, which is an AllOf: Limiter(['10/s', SlidingWindow('100/min')])."
    return TypeError(f"Limiter() takes one positional argument, a rate or a strategy. {hint}")


_OF_STRATEGIES = {
    "TokenPool": "rate, burst_ratio and pool",
    "TokenBucket": "rate, burst and initial",
    "SmoothBursty": "rate, and max_burst (seconds) or max_stored (permits)",
    "SlidingWindow": "rate",
    "TicksAccumulator": "rate",
    "BurstCompensation": "rate and strictness",
    "BurstRatio": "rate and ratio",
    "SmoothWarmingUp": "rate, warmup (seconds) and cold_factor",
    "CalendarWindow": "rate and tz",
}
_PERIODS = ("per", "period", "interval", "seconds", "time_period", "window")
_NO_BURST = {
    "TokenPool": "; burst_ratio is the fastest rate divided by the plain rate",
    "SmoothBursty": ", or SmoothBursty({rate!r}, max_stored={burst!r}) for one that is saved up while idle",
}
_BURSTS = ("burst", "burst_size", "capacity", "bucket_size", "size", "max_tokens")


def wrong_of_strategy(strategy: str, rate: object, misplaced: tuple[object, ...], given: Mapping[str, object]) -> TypeError:
    """The error for arguments that a strategy does not have: a period, a burst, or anything else."""
    has = f"{strategy}() takes {_OF_STRATEGIES.get(strategy, 'rate')}"
    period = [*misplaced, *(given[name] for name in _PERIODS if name in given)]
    burst = [given[name] for name in _BURSTS if name in given]
    if burst:
        hint = f"For a burst, write TokenBucket({str(rate)!r}, burst={burst[0]!r})"
        hint += _NO_BURST.get(strategy, "").format(rate=str(rate), burst=burst[0]) + "."
    elif period:
        numbers = all(isinstance(each, (int, float)) for each in (rate, period[0]))
        hint = f"A rate is one argument: {f'Rate({rate!r}, {period[0]!r})' if numbers else 'Rate(100, 60)'}, or text such as '100/60s'."
    else:
        hint = ""
    names = ", ".join(given) or f"{len(misplaced) + 1} positional arguments"
    return TypeError(f"{has}, not {names}. {hint}".rstrip())
