"""All kinds of limiters. A new kind is a function that makes one, and a line in `KINDS`.

Every limit allows 10 permits a second, two of them at once, and a shared one 10 a second, three at once: so each limits some requests.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from helpers.driving import SECOND
from helpers.stores import RealServer, TimedClient

from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, SlidingWindow, TokenBucket, TokenPool
from aiorate.redis import RedisLimiter

from .world import Level, Stage, Subject, noted

__all__ = ["KINDS", "OPTIONS", "Kind"]

KEYS = "ab"
OPTIONS: dict[str, Any] = {"max_concurrency": 2, "max_wait": 0.35, "max_waiting": 3, "precise": True}
"""Options that a limiter can have; ``max_wait`` is an argument of each request instead."""
VERBS = ("pause", "resume", "observe", "set_rate", "refund", "charge", "reset", "apply", "try_acquire")

Make = Callable[[Stage, RealServer | None], Subject]


@dataclass(frozen=True)
class Kind:
    """A kind of limiter; ``takes`` are the options that it can have, ``verbs`` the methods that change it."""

    make: Make
    scope: str = "loop"
    takes: tuple[str, ...] = tuple(OPTIONS)
    verbs: tuple[str, ...] = VERBS


def bucket(burst: int = 2, rate: str = "10/s") -> Any:
    return noted(TokenBucket, rate, burst)


def limiter(stage: Stage, strategy: Any, **options: Any) -> Limiter:
    chosen = {name: value for name, value in stage.options.items() if name != "max_wait"}
    return Limiter(strategy, clock=stage.clock, **chosen, **options)


def asking(stage: Stage, limit: Limiter) -> AbstractAsyncContextManager[Any]:
    """A request to one limiter, with or without ``max_wait``."""
    most = stage.options.get("max_wait")
    return limit if most is None else _acquired(limit, most)


@asynccontextmanager
async def _acquired(limit: Limiter, most: float) -> Any:
    yield await limit.acquire(max_wait=most)


def plain(strategies: Callable[[], list[Any]], **options: Any) -> Make:
    """A limiter of one strategy or a list of them."""

    def make(stage: Stage, store: RealServer | None) -> Subject:
        schedulers = strategies()
        limit = limiter(stage, schedulers if len(schedulers) > 1 else schedulers[0], **options)
        levels = {str(place): Level.of(scheduler) for place, scheduler in enumerate(schedulers)}
        return Subject(limit, lambda i: asking(stage, limit), levels, lambda i: tuple(levels), [limit], limit)

    return make


def keyed(
    stage: Stage, shared: Any, above: dict[str, Level], also: tuple[Any, ...] = (), strategy: Any = bucket, **options: Any
) -> Subject:
    """A limiter for each of two keys, below the levels that they share."""
    schedulers = {key: strategy() for key in KEYS}
    keys = KeyedLimiter(lambda key: limiter(stage, schedulers[key], **options), shared=shared)
    held = {key: keys[key] for key in KEYS}  # so that no key is evicted
    catch_up = round(options.get("catch_up", 0.02) * SECOND)
    levels = {key: Level.of(scheduler, catch_up) for key, scheduler in schedulers.items()} | above
    path = lambda i: (KEYS[i % 2], *above)  # noqa: E731
    return Subject(keys, lambda i: asking(stage, keys[KEYS[i % 2]]), levels, path, [*held.values()], held["a"], (shared, *also))


def keyed_shared(stage: Stage, store: RealServer | None) -> Subject:
    top = bucket(3)
    return keyed(stage, Limiter(top, clock=stage.clock), {"shared": Level.of(top)})


def keyed_late(stage: Stage, store: RealServer | None) -> Subject:
    """Keys may catch up by a second, and the limit that they share may not."""
    top = noted(TokenPool, "10/s")
    shared = Limiter(top, clock=stage.clock, catch_up=0)
    return keyed(stage, shared, {"shared": Level.of(top, 0)}, strategy=lambda: noted(TokenPool, "100/s"), catch_up=1)


def three_levels(stage: Stage, store: RealServer | None) -> Subject:
    top, middle = bucket(3), bucket(3, "20/s")
    shared = Limiter(top, clock=stage.clock)
    tenants = KeyedLimiter(lambda tenant: Limiter(middle, clock=stage.clock), shared=lambda tenant: shared)
    return keyed(stage, tenants["acme"], {"tenant": Level.of(middle), "top": Level.of(top)}, (tenants, shared))


def budgets(stage: Stage, own: dict[str, Any], make: Callable[[str], Budget], above: dict[str, Level], also: tuple[Any, ...]) -> Subject:
    """Two budgets, each with its own requests, below the levels that they share."""
    made = [make(key) for key in KEYS]
    levels = {key: Level.of(scheduler) for key, scheduler in own.items()} | above
    return Subject(
        made[0],
        lambda i: made[i % 2].reserve(max_wait=stage.options.get("max_wait")),
        levels,
        lambda i: (KEYS[i % 2], *above),
        made,
        made[0],
        (made[1], *also),
    )


def budget_over(shared: Callable[[Stage, RealServer | None], tuple[Any, Level]]) -> Make:
    """Two budgets with one limiter as their second dimension."""

    def make(stage: Stage, store: RealServer | None) -> Subject:
        own = {key: bucket() for key in KEYS}
        tokens, level = shared(stage, store)
        waiting = {"max_waiting": stage.options["max_waiting"]} if "max_waiting" in stage.options else {}
        one = lambda key: Budget(requests=own[key], tokens=tokens, clock=stage.clock, **waiting)  # noqa: E731
        return budgets(stage, own, one, {"tokens": level}, (tokens,))

    return make


def budget_levels(stage: Stage, store: RealServer | None) -> Subject:
    """Budgets of two keys, of a team, and one for all; the team alone has tokens besides."""
    top, middle, tokens = bucket(3), bucket(3, "20/s"), bucket(3, "15/s")
    everybody = Budget(requests=top, clock=stage.clock)
    teams = KeyedBudget[str](lambda team: Budget(requests=middle, tokens=tokens, shared=everybody, clock=stage.clock))
    own = {key: bucket() for key in KEYS}
    waiting = {"max_waiting": stage.options["max_waiting"]} if "max_waiting" in stage.options else {}
    users = KeyedBudget[str](
        lambda key: Budget(requests=own[key], tokens="1000/s", clock=stage.clock, **waiting), shared=lambda key: teams["team"]
    )
    above = {"team": Level.of(middle), "tokens": Level.of(tokens), "top": Level.of(top)}
    return budgets(stage, own, users.__getitem__, above, (users, teams, everybody))


def in_process(stage: Stage, store: RealServer | None) -> tuple[Any, Level]:
    tokens = bucket(3)
    return Limiter(tokens, clock=stage.clock), Level.of(tokens)


def in_store(stage: Stage, store: RealServer | None, burst: int = 3, **options: Any) -> tuple[RedisLimiter, Level]:
    """A limiter whose grants are known only by the instants at which callers went on."""
    limit = RedisLimiter(TimedClient(store), "x", "10/s", burst=burst, **options)
    return limit, Level(lambda: sorted(stage.granted.values()), lambda window: limit.bound(window / SECOND))


def redis(stage: Stage, store: RealServer | None) -> Subject:
    chosen = {name: value for name, value in stage.options.items() if name != "max_wait"}
    limit, level = in_store(stage, store, 2, **chosen)
    return Subject(limit, lambda i: asking(stage, limit), {"own": level}, lambda i: ("own",), [limit], limit)


def redis_shared(stage: Stage, store: RealServer | None) -> Subject:
    shared, level = in_store(stage, store)
    return keyed(stage, shared, {"shared": level})


_BUDGET: Any = {"takes": ("max_wait", "max_waiting"), "verbs": ("pause", "resume", "observe")}
_LIST: Any = {"verbs": tuple(verb for verb in VERBS if verb not in ("set_rate", "apply"))}  # a rate is that of a member

KINDS = {
    "bucket": Kind(plain(lambda: [bucket()])),
    "pool": Kind(plain(lambda: [noted(TokenPool, "10/s")])),
    "list": Kind(plain(lambda: [bucket(), noted(SlidingWindow, "3/300ms")]), **_LIST),
    "keyed-shared": Kind(keyed_shared),
    "keyed-late": Kind(keyed_late),
    "three-levels": Kind(three_levels),
    "budget": Kind(budget_over(in_process), **_BUDGET),
    "budget-levels": Kind(budget_levels, **_BUDGET),
    "process": Kind(plain(lambda: [bucket()], scope="process"), "process"),
    "process-pool": Kind(plain(lambda: [noted(TokenPool, "10/s")], scope="process"), "process"),
    "redis": Kind(redis, "redis"),
    "redis-shared": Kind(redis_shared, "redis"),
    "redis-budget": Kind(budget_over(in_store), "redis", **_BUDGET),
}
