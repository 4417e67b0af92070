"""One limit for each key: a host, a user, a chat. Keys come and go; a key that owes something is never dropped.

Knows nothing of how a rate is computed, of event loops, or of HTTP.
"""

from __future__ import annotations

from types import CoroutineType
from typing import TYPE_CHECKING, TypeVar

from aiorate.errors import LimiterClosed, kind_of
from aiorate.explained import explained
from aiorate.keyed_base import Keyed, refuse_keyed
from aiorate.limiter import Limiter
from aiorate.options import check_scope
from aiorate.rate import NS_PER_SECOND, Rate, duration_to_ns
from aiorate.schedulers.interface import Scheduler
from aiorate.waiting import changes
from aiorate.waiting.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Literal, Never, TypeGuard

    from aiorate.adaptive import AdaptiveRate
    from aiorate.events import Event
    from aiorate.feedback import Feedback
    from aiorate.rate import Duration
    from aiorate.several import Limits
    from aiorate.spec import RateSpec
    from aiorate.waited import Waited
    from aiorate.waiting.dispatcher import Dispatcher

__all__ = ["KeyedLimiter"]

K = TypeVar("K", bound="Hashable")

_REMEMBERED = 600 * NS_PER_SECOND  # longer keeps what was found for keys that are rarely used; shorter frees their memory sooner
_OPTIONS = ("shared", "max_keys", "idle", "weight", "name", "on_event", "on_wait", "scope")
_OF_EACH_KEY = ("catch_up", "max_waiting", "precise", "clock", "max_concurrency")


class KeyedLimiter(Keyed[K, Limiter]):
    """A limiter for each key, made when the key is first used, and evicted when it owes nothing.

    ``users: KeyedLimiter[str] = KeyedLimiter(lambda user: "1/s")`` tells type checkers the type of the keys, and so of the functions'
    argument. ``factory(key)`` makes the limit of a key: a `Limiter`, a strategy such as ``TokenBucket("1/s", 5)``, a rate such as
    ``"1/s"``, a list of these, all of which hold, or an `aiorate.adaptive.AdaptiveRate`, whose limiter it is then. ``shared`` is a limit
    that all keys pass too: 30/s in all and 1/s per chat. It is a `Limiter`, a strategy, a rate or a list of these, or a function of the key
    that returns a `Limiter`, or None: ``shared=lambda user: teams[user.team]``. The function is called once for each key that is kept. The
    `Limiter` may be that of a key of another KeyedLimiter, and so share a limit in turn, up to 64 in a row; it is kept while a key that
    shares it is kept. A busy key does not delay others: only the first request of each key stands in the shared line, and only once the
    key's limit lets it pass. A refund or charge to a key applies to all limits that it passes.

    Keys that wait for a shared limit take turns in permits, not requests. ``weight`` is a function of the key that returns its share, a
    whole number of at least 1, relative to that of other keys; without it, all shares are equal. It is called once for each key that is
    kept. Requests that ask the shared limit directly have one line of weight 1.

    A key is evicted when it is found to owe nothing; it is limited no sooner for that than if it had been kept. Two keys are checked for
    each new key. Keys that were used again stay for as many uses as there are keys, and are checked then, two for each use. A key is kept
    if its rate was changed, while it is paused or in debt, and while somebody holds its limiter. ``max_keys`` bounds how many are kept at
    once as far as that allows. ``idle`` keeps a key for that many seconds (or a timedelta) after it was found unused; the default is none,
    and ten minutes if the factory returns AdaptiveRates, whose rates are forgotten with their keys. Raises TypeError and ValueError for
    wrong arguments. ``on_event`` is called with an `aiorate.Event` for each evicted key, and for events of the limiters that are made here
    from a rate or a strategy. ``on_wait`` is called with an `aiorate.Waited` for each request of any key that waited; see `watch`. ``name``
    is for all keys, and appears there, in metrics and in ``repr()``.

    ``scope="loop"`` is for one event loop, as for a `Limiter`. ``scope="process"`` is for any number of event loops in any threads, and
    for synchronous code: `acquire_blocking`, and ``with keyed(key):``. Limiters that ``factory`` and ``shared`` return have the same scope.
    Their functions are called in the thread that first needs the key, outside of every lock that a request takes.
    """

    __slots__ = ("_owns_shared", "_weight")

    _NAME = "KeyedLimiter"
    _WANTED = "a Limiter, a strategy, a rate such as '10/s' or a list of these"

    @explained
    def __init__(
        self,
        factory: Callable[[K], Limiter | AdaptiveRate | Limits],
        *,
        shared: Limiter | Limits | Callable[[K], Limiter | None] | None = None,
        weight: Callable[[K], int] | None = None,
        max_keys: int = 100_000,
        idle: Duration | None = None,
        name: str | None = None,
        on_event: Callable[[Event], object] | None = None,
        on_wait: Callable[[Waited], object] | None = None,
        scope: Literal["loop", "process"] = "loop",
        **unknown: Never,
    ) -> None:
        if unknown:
            from aiorate.wrong_arguments import unknown_keyed_options

            raise unknown_keyed_options(unknown, _OPTIONS, _OF_EACH_KEY)
        if not callable(factory) or isinstance(factory, (Limiter, Scheduler, Rate)) or _is_of_aiorate(factory):
            hint = " For a dict of limits, write KeyedLimiter(limits.__getitem__)." if isinstance(factory, dict) else ""
            raise TypeError(
                f"KeyedLimiter(factory) must be a function of the key, such as lambda key: '10/s', not {kind_of(factory)}:"
                f" each key needs a separate limit.{hint}"
            )
        refuse_keyed("KeyedLimiter(shared)", shared)
        check_scope("KeyedLimiter", scope)
        if shared is None or _is_function(shared):
            limit = None
        else:
            limit = shared if isinstance(shared, Limiter) else _make_shared(shared, on_event, scope)
            self._check_limiter("KeyedLimiter(shared)", limit, scope == "process")
        super().__init__(factory, limit, shared if _is_function(shared) else None, max_keys, idle, name, on_event, on_wait, scope)
        self._owns_shared = limit is not None and limit is not shared  # whether the shared limit was made here
        self._weight = None if weight is None else _check_weight(weight, shared)

    def _make(self, key: K) -> Limiter:
        weight = 1 if self._weight is None else self._ask_weight(self._weight, key)
        limiter = super()._make(key)
        gate = limiter.dispatcher.gate
        if gate is not None:
            gate.weigh(weight)
        return limiter

    def _ask_weight(self, function: Callable[[K], int], key: K) -> int:
        weight: object = self._call("weight=", function, key)
        if isinstance(weight, CoroutineType):
            weight.close()  # or Python would also warn that it was never awaited
        what = f"KeyedLimiter(weight) for {_shown(key)}: the function must return a whole number of at least 1"
        if isinstance(weight, bool) or not isinstance(weight, int):
            raise TypeError(f"{what}, such as 1 or 100, not {_shown(weight)}.")
        if weight < 1:
            raise ValueError(f"{what}, not {_shown(weight)}. For keys that must wait less, make the weights of other keys larger.")
        return int(weight)

    def _member(self, key: K, made: object) -> Limiter:
        if isinstance(made, Limiter):
            self._check_scope_of(made)
            return made
        adapted = _adapted(made)
        if adapted is not None:
            self._check_scope_of(adapted)
            if self._idle is None:
                self._idle = _REMEMBERED
            return adapted
        return Limiter(made, name=key if isinstance(key, str) else None, on_event=self._on_event)  # type: ignore[arg-type]  # it checks

    def _check_shared(self, what: str, shared: object) -> Limiter:
        if not isinstance(shared, Limiter):
            refuse_keyed(what, shared)
            raise TypeError(
                f"{what}: the function must return a Limiter that several keys share, such as teams[user.team], or None,"
                f" not {kind_of(shared)}. A rate would be another limit for each key."
            )
        self._check_limiter(what, shared, self._guard is not None)
        return shared

    def _check_limiter(self, what: str, shared: Limiter, process: bool) -> None:
        self._check_scope_of_shared(what, process, shared)
        shared.check_shared(what, "the limiters that the factory makes")

    def _join(self, member: Limiter, shared: Limiter | None) -> None:
        if self._guard is not None:
            self._guard.join(member.dispatcher, None if shared is None else shared.dispatcher)
        member.dispatcher.run(_share, member.dispatcher, shared)

    def _closed_member(self) -> Limiter:
        closed = _Closed()
        if self._guard is not None:
            self._guard.join(closed.dispatcher, None)
        return closed

    # Asking.

    async def acquire(self, key: K, permits: int = 1, *, max_wait: Duration | None = None) -> float:
        """Wait in the key's line until it, and the shared limit, grant the permits; returns the seconds waited.

        Raises the errors of `Limiter.acquire` and of the factory, and TypeError for a key that cannot be hashed. With a shared limit,
        the estimate counts the requests that would be served first now. Others may come in between; ``max_wait`` bounds the wait all the
        same.
        """
        return await self[key].acquire(permits, max_wait=max_wait)

    def acquire_blocking(self, key: K, permits: int = 1, *, max_wait: Duration | None = None) -> float:
        """As `acquire`, for synchronous code in any thread: blocks until the permits are granted; returns the seconds waited.

        Needs ``scope="process"``. RuntimeError without it, and in a thread whose event loop is running, which it would block.
        """
        if self._guard is None:
            from aiorate.mistakes import NO_KEYS_FOR_THREADS

            raise RuntimeError(NO_KEYS_FOR_THREADS)
        return self[key].acquire_blocking(permits, max_wait=max_wait)

    def try_acquire(self, key: K, permits: int = 1) -> bool:
        """Take the permits, of the key and the shared limit, if both have them at once; never waits."""
        return self[key].try_acquire(permits)

    def observe(self, key: K, feedback: Feedback | None, *, jitter: Duration = 0) -> None:
        """Heed what a server said of a key, as `Limiter.observe` does: it pauses that key for everybody.

        Where nothing remains of a quota named ``global``, such as Discord's over all routes, the limit that the key shares is paused,
        if there is one. Does nothing when closed.
        """
        if feedback is None or self._closed is not None:
            return
        from aiorate.feedback import Feedback, check_feedback

        check_feedback("observe()", feedback)
        everywhere = tuple(quota for quota in feedback.quotas if quota.name == "global")
        limiter = self[key]
        gate = limiter.dispatcher.gate
        if gate is not None and any(quota.remaining == 0 for quota in everywhere):
            told = Feedback(feedback.status, feedback.pause, everywhere, feedback.source)
            gate.shared.run(changes.observe, gate.shared, told, duration_to_ns(jitter, "observe(jitter)"))
            rest = tuple(quota for quota in feedback.quotas if quota.name != "global")
            feedback = Feedback(feedback.status, None, rest, feedback.source)
        limiter.observe(feedback, jitter=jitter)

    def __call__(self, key: K) -> Limiter:
        """The key's limiter: ``async with keyed(key):``, and ``with keyed(key):`` with ``scope="process"``."""
        return self[key]

    async def aclose(self) -> None:
        """Close the limiter of every key, and add no more keys. A shared limit that was made elsewhere stays open."""
        await super().aclose()
        if self._owns_shared and self._shared is not None:
            await self._shared.aclose()


def _adapted(made: object) -> Limiter | None:
    """The limiter of an AdaptiveRate. The module is imported only for what can be neither a rate nor a strategy."""
    if isinstance(made, (Scheduler, Rate, str, int, float, list, tuple)):
        return None
    from aiorate.adaptive import AdaptiveRate

    return made.limiter if isinstance(made, AdaptiveRate) else None


def _share(dispatcher: Dispatcher, shared: Limiter | None) -> None:
    gate = None if shared is None else Gate(shared.dispatcher, owner=shared)
    changes.share(dispatcher, gate, dispatcher.section)


def _shown(value: object) -> str:
    from reprlib import repr as shortened

    try:
        return shortened(value)
    except ValueError:  # an int of thousands of digits
        return kind_of(value)


def _check_weight(weight: Callable[[K], int], shared: object) -> Callable[[K], int]:
    if not callable(weight):
        raise TypeError(
            "KeyedLimiter(weight) must be a function of the key that returns a whole number, such as lambda key: 100,"
            f" not {kind_of(weight)}."
        )
    if shared is None:
        raise ValueError("KeyedLimiter(weight): only keys that share a limit have weights, and there is none. Add shared=.")
    return weight


def _make_shared(limit: object, on_event: Callable[[Event], object] | None, scope: Literal["loop", "process"]) -> Limiter:
    try:
        return Limiter(limit, name="shared", on_event=on_event, scope=scope)  # type: ignore[arg-type]  # it checks
    except TypeError as error:
        hint = " For a dict of limiters, write shared=limiters.get." if isinstance(limit, dict) else ""
        if _adapted(limit) is not None:
            hint = " Write shared=adaptive.limiter."
        raise TypeError(f"KeyedLimiter(shared): {error}{hint}") from error


def _is_of_aiorate(factory: object) -> bool:
    """Whether it is a class such as Limiter, which would take the key for a rate."""
    return isinstance(factory, type) and factory.__module__.startswith("aiorate.")


def _is_function(shared: object) -> TypeGuard[Callable[..., object]]:
    """Whether ``shared`` is to be called with each key. A limiter can be called too, as a decorator, and a class is a mistake."""
    return callable(shared) and not isinstance(shared, (Limiter, Scheduler, type))


class _Closed(Limiter):
    """The limiter of all keys that a closed KeyedLimiter lacks. Awaited again and again, it lets other tasks run, as any limiter does."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(1)
        self.dispatcher.closed = True

    async def acquire(self, permits: int = 1, *, max_wait: Duration | None = None) -> float:
        try:
            return await super().acquire(permits, max_wait=max_wait)
        except LimiterClosed:
            raise _closed_error() from None

    def try_acquire(self, permits: int = 1) -> bool:
        raise _closed_error()

    def acquire_blocking(self, permits: int = 1, *, max_wait: Duration | None = None, timeout: None = None) -> float:
        raise _closed_error()

    def enter_blocking(self, permits: int) -> float:
        raise _closed_error()

    def apply(self, spec: RateSpec | str) -> None:
        """Raises `LimiterClosed`: it cannot be opened again."""
        raise _closed_error()


def _closed_error() -> LimiterClosed:
    return LimiterClosed("the KeyedLimiter is closed, and adds no keys. Create a new one.")
