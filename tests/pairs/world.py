"""The parts of a short program: a loop in virtual time that knows its timers, schedulers that note their grants, requests, and limiters.

A new kind of limiter is a function that makes one, and a line in `KINDS`. Every limit allows 10 permits a second, two of them at once,
and a shared one 10 a second, three at once: so each limits some requests.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from helpers.driving import SECOND, others
from helpers.stores import RealServer, TimedClient

import aiorate
from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, SlidingWindow, TokenBucket, TokenPool
from aiorate.redis import RedisLimiter
from aiorate.testing import ManualClock, VirtualLoop

HOLDS = 0.15  # seconds that a caller stays inside
FAR = 50  # the most grants of a window that is compared with its bound
PATIENT = 400  # virtual seconds: a request that was not granted by then never will be


class World(VirtualLoop):
    """A loop in virtual time that can also pass while the loop is blocked. It knows its timers."""

    def __init__(self) -> None:
        self.leapt = 0.0
        self._handles: list[asyncio.TimerHandle] = []
        super().__init__()
        self.set_exception_handler(lambda loop, context: None)  # some programs leave tasks behind on purpose

    def time(self) -> float:
        return super().time() + self.leapt

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        self._handles.append(handle)
        return handle

    def timers(self) -> int:
        """The number of timers that have yet to fire."""
        self._handles = [handle for handle in self._handles if not handle.cancelled() and handle.when() > self.time()]
        return len(self._handles)


class Notes:
    """A mixin for strategies that notes grants, and permits that came back."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.grants: list[int] = []
        self.back: list[int] = []
        self.hook: Callable[[object], object] | None = None
        """Called after the next grant, with the scheduler that granted: one copied for an estimate has the same hook."""

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at: int = super().take(permits, now, since)
        if at <= now:
            self.grants += [now] * permits
            if self.hook is not None:
                self.hook(self)
        return at

    def charge(self, permits: int, now: int) -> None:
        grants = list(self.grants)
        super().charge(permits, now)  # which may take permits
        self.grants = grants

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        super().give_back(permits, now, taken)
        if taken is not None:
            self.back += [taken] * permits


def noted(strategy: type[aiorate.Scheduler], *args: Any, **options: Any) -> Any:
    """A strategy that notes its grants."""
    return type(f"Noted{strategy.__name__}", (Notes, strategy), {})(*args, **options)


@dataclass
class Level:
    """A limit that requests pass: its grants that did not come back, and the most that it may grant in a window of that many ns."""

    grants: Callable[[], list[int]]
    bound: Callable[[int], int | None]
    notes: Notes | None = None

    @classmethod
    def of(cls, scheduler: Any, catch_up: int = SECOND // 50, largest: int = 1) -> Level:
        def kept() -> list[int]:
            counted = Counter(scheduler.grants)
            counted.subtract(scheduler.back)
            return sorted(counted.elements())

        return cls(kept, lambda window: scheduler._bound_when_late(window, largest, catch_up), scheduler)

    def check(self, name: str, since: int = 0, extra: int = 0, slower: int = 1) -> None:
        """Assert that no window of the grants exceeds its bound, where the rate may once have been higher, and some came back."""
        grants = self.grants()[since:]
        for first, begin in enumerate(grants):
            for last in range(first + 1, min(first + FAR, len(grants))):
                window = grants[last] - begin + 1
                most = self.bound(slower * window)
                assert most is None or last - first + 1 <= most + extra, f"{name}: too many in {window} ns: {grants}"


@dataclass
class Subject:
    """A limiter of some kind, as programs use it."""

    limiter: Any  # the limiter, which is closed at the end
    enter: Callable[[int], AbstractAsyncContextManager[Any]]  # makes request number ``i``
    levels: dict[str, Level]
    path: Callable[[int], tuple[str, ...]]  # the levels of a request; the first one is its line
    looks: list[Any]  # the limiters whose statistics count all requests
    verbs: Any  # the limiter that events change
    also: tuple[Any, ...] = ()  # others to be closed at the end


@dataclass
class Stage:
    """One program: a subject, and requests with their outcomes."""

    options: dict[str, Any]
    clock: ManualClock | None = None
    server_has_time: bool = False
    runner: asyncio.Runner = field(default_factory=lambda: asyncio.Runner(loop_factory=World))
    subject: Subject = None  # type: ignore[assignment]  # made of the options and the clock
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    granted: dict[int, int] = field(default_factory=dict)
    told: dict[int, type[BaseException]] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)  # requests whose loop was closed while they waited
    waits: dict[int, float] = field(default_factory=dict)  # seconds from each request to its grant or error
    waited: dict[int, float] = field(default_factory=dict)  # seconds that each granted request was told that it had waited
    watched: dict[int, list[float]] = field(default_factory=dict)  # what ``on_wait`` was told of each request
    stalled: float = 0.0
    extra: int = 0  # permits that were given back, by which any window may exceed its bound
    since: dict[str, int] = field(default_factory=dict)  # for each level, the number of grants before its last change of rate
    closed: bool = False
    reset: bool = False
    quiet: tuple[int, int] = (0, 0)  # the instants (ns) from which and until which nothing may be granted

    @property
    def loop(self) -> World:
        loop = self.runner.get_loop()
        assert isinstance(loop, World)
        return loop

    def now(self) -> int:
        return self.clock.now() if self.clock is not None else round(self.loop.time() * SECOND)

    async def sleep(self, seconds: float) -> None:
        """Let that much time pass."""
        await (asyncio.sleep(seconds) if self.clock is None else self.clock.run(seconds))

    def stall(self, seconds: float) -> None:
        """Let time pass while the loop is blocked."""
        self.stalled += seconds
        if self.clock is None:
            self.loop.leapt += seconds
        else:
            self.clock.advance(seconds)

    async def hold(self, seconds: float) -> None:
        """Stay inside for that time."""
        if self.clock is None:
            await asyncio.sleep(seconds)
        else:
            over, loop = asyncio.Event(), asyncio.get_running_loop()
            self.clock.call_at(self.clock.now() + round(seconds * SECOND), lambda: loop.is_closed() or over.set())
            await over.wait()

    def ask(self, *numbers: int) -> None:
        """Start a task for each request."""
        for number in numbers:
            self.asked.append(number)
            self.tasks[number] = self.loop.create_task(self._one(number), name=str(number))

    async def _one(self, number: int) -> None:
        asked = self.now()
        try:
            async with self.subject.enter(number) as got:
                self.granted[number] = self.now()
                self.waited[number] = got.waited if isinstance(got, aiorate.Lease) else got
                self.waits[number] = (self.now() - asked) / SECOND
                await self.hold(HOLDS)
        except GeneratorExit:  # collected with its loop
            raise
        except BaseException as error:
            if number not in self.granted:
                self.waits[number] = (self.now() - asked) / SECOND
                self.told[number] = type(error)  # the class, as its traceback would keep the loop
            if not isinstance(error, (aiorate.WaitTooLong, aiorate.LineFull, aiorate.LimiterClosed, asyncio.CancelledError)):
                raise

    def on_wait(self, waited: aiorate.Waited) -> None:
        """Note what is told, by the request in whose task."""
        task = asyncio.current_task()
        assert task is not None
        self.watched.setdefault(int(task.get_name()), []).append(waited.seconds)

    def cancel(self, number: int) -> None:
        if not self.tasks[number].done():
            self.cancelled.add(number)
            self.tasks[number].cancel()

    def pending(self) -> list[int]:
        """The requests without a grant or an error, in order of arrival."""
        return [number for number in self.asked if number not in self.granted and number not in self.told and number not in self.cancelled]

    async def done(self) -> None:
        """Return when each request has a grant or an error."""
        for second in range(PATIENT):
            if all(task.done() for task in self.tasks.values()):
                break
            if self.lost and second < 2:
                gc.collect()  # so that the tasks of a closed loop leave their places
            await self.sleep(1)

    def close(self) -> None:
        """End the loop, and all of its tasks."""
        self.runner.close()

    def new_loop(self) -> None:
        """Go on in a new loop, as after `asyncio.run()`. Its time begins at 0, unless the server has the time."""
        time = self.loop.time()
        if not self.loop.is_closed():
            self.runner.close()
        asyncio.set_event_loop(None)
        self.runner = asyncio.Runner(loop_factory=World)
        if self.server_has_time:
            self.loop.leapt = time

    def check_bounds(self) -> None:
        """Assert that since the last change of a level's rate no window exceeds its bound."""
        for name, level in self.subject.levels.items():
            level.check(name, self.since.get(name, 0), self.extra)

    def changes(self) -> None:
        """Check the bounds, which change from here on."""
        self.check_bounds()
        self.since = {name: len(level.grants()) for name, level in self.subject.levels.items()}

    def left_behind(self) -> list[str]:
        """Tasks, timers and waiters, of which an idle limiter should have none."""
        timers = self.loop.timers() if self.clock is None else self.clock.timers
        waiting = [f"{look!r}" for look in self.subject.looks if look.statistics().waiting]
        return [*(f"task {task!r}" for task in others()), *[f"{timers} timers"] * bool(timers), *waiting]


# The kinds of limiters.

KEYS = "ab"
OPTIONS: dict[str, Any] = {"max_concurrency": 2, "max_wait": 0.35, "max_waiting": 3, "precise": True}
# ``max_wait`` is an argument of each request instead.
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


def chosen(stage: Stage, *names: str) -> dict[str, Any]:
    """The options of the limiter itself."""
    return {name: value for name, value in stage.options.items() if name != "max_wait" and (not names or name in names)}


def limiter(stage: Stage, strategy: Any, **options: Any) -> Limiter:
    return Limiter(strategy, clock=stage.clock, **chosen(stage), **options)


@asynccontextmanager
async def asking(stage: Stage, limit: Limiter) -> Any:
    """A request to one limiter, with or without ``max_wait``."""
    if "max_wait" in stage.options:
        yield await limit.acquire(max_wait=stage.options["max_wait"])
    else:
        async with limit as waited:
            yield waited


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
        one = lambda key: Budget(requests=own[key], tokens=tokens, clock=stage.clock, **chosen(stage, "max_waiting"))  # noqa: E731
        return budgets(stage, own, one, {"tokens": level}, (tokens,))

    return make


def budget_levels(stage: Stage, store: RealServer | None) -> Subject:
    """Budgets of two keys, of a team, and one for all; the team alone has tokens besides."""
    top, middle, tokens = bucket(3), bucket(3, "20/s"), bucket(3, "15/s")
    everybody = Budget(requests=top, clock=stage.clock)
    teams = KeyedBudget[str](lambda team: Budget(requests=middle, tokens=tokens, shared=everybody, clock=stage.clock))
    own = {key: bucket() for key in KEYS}
    waiting = chosen(stage, "max_waiting")
    one = lambda key: Budget(requests=own[key], tokens="1000/s", clock=stage.clock, **waiting)  # noqa: E731
    users = KeyedBudget[str](one, shared=lambda key: teams["team"])
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
    limit, level = in_store(stage, store, 2, **chosen(stage))
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
