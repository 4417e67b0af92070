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

import aiorate
from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, TokenBucket, TokenPool
from aiorate.redis import RedisLimiter

from .world import Level, Stage, Subject, noted

__all__ = ["KINDS", "OPTIONS", "Kind"]

KEYS = "ab"

OPTIONS: dict[str, Any] = {"max_concurrency": 2, "max_wait": 0.35, "max_waiting": 3, "precise": True}
"""Options that a limiter can have; ``max_wait`` is an argument of each request instead."""

VERBS = ("pause", "resume", "observe", "set_rate", "refund", "charge", "reset", "apply", "try_acquire")


@dataclass(frozen=True)
class Kind:
    """A kind of limiter; ``takes`` are the options that it can have, ``verbs`` the methods that change it."""

    name: str
    make: Callable[[Stage, RealServer | None], Subject]
    scope: str = "loop"
    takes: tuple[str, ...] = tuple(OPTIONS)
    verbs: tuple[str, ...] = VERBS

    def __str__(self) -> str:
        return self.name


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


def plain(strategy: Callable[[], Any], **options: Any) -> Callable[[Stage, RealServer | None], Subject]:
    def make(stage: Stage, store: RealServer | None) -> Subject:
        scheduler = strategy()
        limit = limiter(stage, scheduler, **options)
        return Subject(limit, lambda i: asking(stage, limit), {"own": Level.of(scheduler)}, lambda i: ("own",), lambda: [limit])

    return make


def listed(**options: Any) -> Callable[[Stage, RealServer | None], Subject]:
    """Two limits as a list, each of which limits some requests."""

    def make(stage: Stage, store: RealServer | None) -> Subject:
        limits = {"bucket": bucket(), "window": noted(aiorate.SlidingWindow, "3/300ms")}
        limit = limiter(stage, [*limits.values()], **options)
        levels = {name: Level.of(scheduler) for name, scheduler in limits.items()}
        return Subject(limit, lambda i: asking(stage, limit), levels, lambda i: tuple(levels), lambda: [limit])

    return make


def keyed_by(stage: Stage, **options: Any) -> tuple[KeyedLimiter[str], dict[str, Level]]:
    """A limiter for each of two keys, and their levels."""
    schedulers = {key: bucket() for key in KEYS}
    keyed = KeyedLimiter(lambda key: limiter(stage, schedulers[key]), **options)
    held = [keyed[key] for key in KEYS]  # so that no key is evicted
    levels = {key: Level.of(scheduler) for key, scheduler in schedulers.items()}
    levels["a"].held = held
    return keyed, levels


def of_keys(stage: Stage, keyed: KeyedLimiter[str], levels: dict[str, Level], *above: str, also: tuple[Any, ...] = ()) -> Subject:
    return Subject(
        keyed,
        lambda i: asking(stage, keyed[KEYS[i % 2]]),
        levels,
        lambda i: (KEYS[i % 2], *above),
        lambda: [keyed[key] for key in KEYS],
        lambda: keyed["a"],
        also,
    )


def keyed_alone(stage: Stage, store: RealServer | None) -> Subject:
    return of_keys(stage, *keyed_by(stage))


def keyed_shared(stage: Stage, store: RealServer | None) -> Subject:
    top = bucket(3)
    shared = Limiter(top, clock=stage.clock)
    keyed, levels = keyed_by(stage, shared=shared)
    return of_keys(stage, keyed, levels | {"shared": Level.of(top)}, "shared", also=(shared,))


def keyed_late(stage: Stage, store: RealServer | None) -> Subject:
    """Keys may catch up by a second, and the limit that they share may not."""
    top = noted(TokenPool, "10/s")
    shared = Limiter(top, clock=stage.clock, catch_up=0)
    schedulers = {key: noted(TokenPool, "100/s") for key in KEYS}
    keyed = KeyedLimiter(lambda key: limiter(stage, schedulers[key], catch_up=1), shared=shared)
    levels = {key: Level.of(scheduler, SECOND) for key, scheduler in schedulers.items()}
    levels["a"].held = [keyed[key] for key in KEYS]
    return of_keys(stage, keyed, levels | {"shared": Level.of(top, 0)}, "shared", also=(shared,))


def three_levels(stage: Stage, store: RealServer | None) -> Subject:
    top, middle = bucket(3), bucket(3, "20/s")
    shared = Limiter(top, clock=stage.clock)
    tenants = KeyedLimiter(lambda tenant: Limiter(middle, clock=stage.clock), shared=shared)
    keyed, levels = keyed_by(stage, shared=tenants["acme"])
    return of_keys(stage, keyed, levels | {"tenant": Level.of(middle), "top": Level.of(top)}, "tenant", "top", also=(tenants, shared))


def keyed_by_function(stage: Stage, store: RealServer | None) -> Subject:
    top, middle = bucket(3), bucket(3, "20/s")
    shared = Limiter(top, clock=stage.clock)
    tenants = KeyedLimiter(lambda tenant: Limiter(middle, clock=stage.clock), shared=lambda tenant: shared)
    keyed, levels = keyed_by(stage, shared=lambda key: tenants["acme"])
    return of_keys(stage, keyed, levels | {"tenant": Level.of(middle), "top": Level.of(top)}, "tenant", "top", also=(tenants, shared))


def reserving(stage: Stage, budget: Budget) -> AbstractAsyncContextManager[Any]:
    return budget.reserve(max_wait=stage.options.get("max_wait"))


def one_budget(stage: Stage, store: RealServer | None) -> Subject:
    requests, tokens = bucket(), bucket(3)
    budget = Budget(requests=requests, tokens=tokens, clock=stage.clock, **_of_budgets(stage))
    levels = {"requests": Level.of(requests), "tokens": Level.of(tokens)}
    return Subject(budget, lambda i: reserving(stage, budget), levels, lambda i: ("requests", "tokens"), lambda: [budget])


def budgets_over(stage: Stage, shared: Limiter, levels: dict[str, Level], also: tuple[Any, ...] = ()) -> Subject:
    """Two budgets with that limiter as their second dimension."""
    own = [bucket(), bucket()]
    budgets = [Budget(requests=each, tokens=shared, clock=stage.clock, **_of_budgets(stage)) for each in own]
    return Subject(
        budgets[0],
        lambda i: reserving(stage, budgets[i % 2]),
        {"0": Level.of(own[0]), "1": Level.of(own[1]), **levels},
        lambda i: (str(i % 2), *levels),
        lambda: budgets,
        None,
        (budgets[1], *also, shared),
    )


def budget_shared(stage: Stage, store: RealServer | None) -> Subject:
    tokens = bucket(3)
    return budgets_over(stage, Limiter(tokens, clock=stage.clock), {"tokens": Level.of(tokens)})


def budget_three_levels(stage: Stage, store: RealServer | None) -> Subject:
    top, middle = bucket(3), bucket(3, "20/s")
    tenants = KeyedLimiter(lambda tenant: Limiter(middle, clock=stage.clock), shared=Limiter(top, clock=stage.clock))
    levels = {"tenant": Level.of(middle), "top": Level.of(top)}
    return budgets_over(stage, tenants["acme"], levels, (tenants,))


def budget_levels(stage: Stage, store: RealServer | None) -> Subject:
    """Budgets of two keys, of a team, and one for all; the team alone has tokens besides."""
    top, middle, tokens = bucket(3), bucket(3, "20/s"), bucket(3, "15/s")
    everybody = Budget(requests=top, clock=stage.clock)
    teams = KeyedBudget[str](lambda team: Budget(requests=middle, tokens=tokens, shared=everybody, clock=stage.clock))
    own = {key: bucket() for key in KEYS}
    users = KeyedBudget[str](
        lambda key: Budget(requests=own[key], tokens="1000/s", clock=stage.clock, **_of_budgets(stage)), shared=lambda key: teams["team"]
    )
    levels = {key: Level.of(scheduler) for key, scheduler in own.items()}
    levels["a"].held = [users[key] for key in KEYS]
    above = {"team": Level.of(middle), "tokens": Level.of(tokens), "top": Level.of(top)}
    return Subject(
        users["a"],
        lambda i: reserving(stage, users[KEYS[i % 2]]),
        levels | above,
        lambda i: (KEYS[i % 2], *above),
        lambda: [users[key] for key in KEYS],
        None,
        (users, teams, everybody),
    )


def _of_budgets(stage: Stage) -> dict[str, Any]:
    return {name: value for name, value in stage.options.items() if name == "max_waiting"}


def through_redis(stage: Stage, store: RealServer | None, name: str = "x", **options: Any) -> RedisLimiter:
    assert store is not None
    chosen = {option: value for option, value in stage.options.items() if option != "max_wait"}
    return RedisLimiter(TimedClient(store), name, "10/s", burst=2, **chosen, **options)


def resumed(stage: Stage, limit: RedisLimiter, chosen: Callable[[int], bool] = lambda i: True) -> Level:
    """A level whose grants are known only by the instants at which callers went on."""
    return Level(
        lambda: sorted(at for number, at in stage.granted.items() if chosen(number)),
        lambda window: limit.bound(window / 1_000_000_000),
    )


def redis(**options: Any) -> Callable[[Stage, RealServer | None], Subject]:
    def make(stage: Stage, store: RealServer | None) -> Subject:
        limit = through_redis(stage, store, **options)
        return Subject(limit, lambda i: asking(stage, limit), {"own": resumed(stage, limit)}, lambda i: ("own",), lambda: [limit])

    return make


def redis_keyed(stage: Stage, store: RealServer | None) -> Subject:
    keyed = KeyedLimiter(lambda key: through_redis(stage, store, key))
    held = {key: keyed[key] for key in KEYS}
    levels = {key: resumed(stage, held[key], lambda i, key=key: KEYS[i % 2] == key) for key in KEYS}
    return of_keys(stage, keyed, levels)


def redis_shared(stage: Stage, store: RealServer | None) -> Subject:
    assert store is not None
    shared = RedisLimiter(TimedClient(store), "shared", "10/s", burst=3)
    keyed, levels = keyed_by(stage, shared=shared)
    return of_keys(stage, keyed, levels | {"shared": resumed(stage, shared)}, "shared", also=(shared,))


def redis_budget(stage: Stage, store: RealServer | None) -> Subject:
    assert store is not None
    shared = RedisLimiter(TimedClient(store), "tokens", "10/s", burst=3)
    return budgets_over(stage, shared, {"tokens": resumed(stage, shared)})


_OPTIONS_OF_BUDGETS = ("max_wait", "max_waiting")
_VERBS_OF_BUDGETS = ("pause", "resume", "observe")
_VERBS_OF_LISTS = tuple(verb for verb in VERBS if verb not in ("set_rate", "apply"))  # a rate is that of a member

KINDS = [
    Kind("plain", plain(bucket)),
    Kind("plain-pool", plain(lambda: noted(TokenPool, "10/s"))),
    Kind("plain-window", plain(lambda: noted(aiorate.SlidingWindow, "3/300ms"))),
    Kind("list", listed(), verbs=_VERBS_OF_LISTS),
    Kind("keyed", keyed_alone),
    Kind("keyed-shared", keyed_shared),
    Kind("keyed-late", keyed_late),
    Kind("three-levels", three_levels),
    Kind("keyed-by-function", keyed_by_function),
    Kind("budget-levels", budget_levels, takes=_OPTIONS_OF_BUDGETS, verbs=_VERBS_OF_BUDGETS),
    Kind("budget", one_budget, takes=_OPTIONS_OF_BUDGETS, verbs=_VERBS_OF_BUDGETS),
    Kind("budget-shared", budget_shared, takes=_OPTIONS_OF_BUDGETS, verbs=_VERBS_OF_BUDGETS),
    Kind("budget-three-levels", budget_three_levels, takes=_OPTIONS_OF_BUDGETS, verbs=_VERBS_OF_BUDGETS),
    Kind("process", plain(bucket, scope="process"), "process"),
    Kind("process-pool", plain(lambda: noted(TokenPool, "10/s"), scope="process"), "process"),
    Kind("process-list", listed(scope="process"), "process", verbs=_VERBS_OF_LISTS),
    Kind("redis", redis(), "redis"),
    Kind("redis-lease", redis(lease=0.2), "redis"),
    Kind("redis-keyed", redis_keyed, "redis"),
    Kind("redis-shared", redis_shared, "redis"),
    Kind("redis-budget", redis_budget, "redis", _OPTIONS_OF_BUDGETS, _VERBS_OF_BUDGETS),
]
