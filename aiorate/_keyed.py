"""One limit for each key: a host, a user, a chat. Keys come and go; a key that owes something is never dropped.

Knows nothing of how a rate is computed, of event loops, or of HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aiorate._errors import LimiterClosed, kind_of
from aiorate._keyed_base import Keyed, refuse_keyed
from aiorate._limiter import Limiter
from aiorate._options import check_scope
from aiorate._rate import NS_PER_SECOND, Rate, duration_to_ns
from aiorate._schedulers.interface import Scheduler
from aiorate._tree import changes
from aiorate._tree.fair_queue import Flow

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Literal, TypeGuard

    from aiorate._events import Event, Waited
    from aiorate._feedback import Feedback
    from aiorate._options import Limits
    from aiorate._rate import Duration
    from aiorate.adaptive import AdaptiveRate


K = TypeVar("K", bound="Hashable")

_ONE = 1  # compared by identity
_REMEMBERED = 600 * NS_PER_SECOND  # longer keeps what was found for keys that are rarely used; shorter frees their memory sooner


class KeyedLimiter(Keyed[K, Limiter]):
    """A limiter for each key: for each host, user or chat.

    Your function returns the limit for a key, and is called the first time the key is seen::

        hosts: KeyedLimiter[str] = KeyedLimiter(lambda host: "2/s")

        async with hosts("a.example"):
            await fetch()

    Keys need not be registered or removed. A key is dropped if it was not used during the last 16 000 uses of others or so, nobody waits
    for it, and its limit has fully recovered. A key whose rate was changed, that is paused or in debt, or that you hold, stays.

    Args:
        factory: A function of the key that returns its limit: a rate, a strategy, a list of these, a `Limiter`, or an
            `aiorate.adaptive.AdaptiveRate`.
        shared: A limit that all keys go through as well: a rate, a strategy, a list of these, or a `Limiter`. Or a function of the key that
            returns a `Limiter`, or None; that one may share a limit in turn. Keys take turns there, so a busy key does not delay others.
        weight: A function of the key that returns its share of the shared limit, a whole number of 1 or more. Equal shares by default.
        max_keys: How many keys to keep, as far as unused ones can be dropped.
        idle: How many seconds to keep a key after its last use, or a timedelta, instead of counting the uses of others. For adaptive rates,
            ten minutes by default.
        name: Shown in logs, metrics and ``repr()``, for all keys.
        on_event: Called with an `Event` when a key is dropped, and for events of limiters that were made from a rate or a strategy.
        on_wait: Called with a `Waited` after each wait for any key; see `watch`.
        scope: ``"loop"`` or ``"process"``, as for a `Limiter`. Everything that keys share needs the same scope.
    """

    _NAME = "KeyedLimiter"
    _WANTED = "a Limiter, a strategy, a rate such as '10/s' or a list of these"

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
    ) -> None:
        of_aiorate = isinstance(factory, type) and factory.__module__.startswith("aiorate.")  # such as Limiter, for a rate
        if not callable(factory) or isinstance(factory, (Limiter, Scheduler, Rate)) or of_aiorate:
            raise TypeError(
                f"KeyedLimiter(factory) must be a function of the key, such as lambda key: '10/s', not {kind_of(factory)}:"
                " each key needs a separate limit."
            )
        refuse_keyed("KeyedLimiter(shared)", shared)
        check_scope("KeyedLimiter", scope)
        super().__init__(factory, shared if _is_function(shared) else None, max_keys, idle, name, on_event, on_wait, scope)
        if shared is not None and self._shared_of is None:
            limit = shared if isinstance(shared, Limiter) else _make_shared(shared, on_event, scope)
            self._shared = self._check_shared("KeyedLimiter(shared)", limit)
        self._owns_shared = self._shared is not shared  # whether the shared limit was made here
        self._weight = None if weight is None else _check_weight(weight, shared)

    def _make(self, key: K) -> Limiter:
        weight = 1 if self._weight is None else self._ask_weight(self._weight, key)
        limiter = super()._make(key)
        if limiter._node.above is not None:
            limiter._node.flow = Flow(weight)
        return limiter

    def _ask_weight(self, function: Callable[[K], int], key: K) -> int:
        weight = self._call("weight=", function, key)
        what = f"KeyedLimiter(weight) for {_shown(key)}: the function must return a whole number of at least 1"
        if isinstance(weight, bool) or not isinstance(weight, int):
            raise TypeError(f"{what}, such as 1 or 100, not {_shown(weight)}.")
        if weight < 1:
            raise ValueError(f"{what}, not {_shown(weight)}. For keys that must wait less, make the weights of other keys larger.")
        return int(weight)

    def _member(self, key: K, made: object) -> Limiter:
        limiter = made if isinstance(made, Limiter) else self._adapted(made)
        if limiter is not None:
            return limiter
        return Limiter(made, name=key if isinstance(key, str) else None, on_event=self._on_event, scope=self.scope)  # type: ignore[arg-type]  # it checks

    def _adapted(self, made: object) -> Limiter | None:
        """The limiter of an AdaptiveRate. The module is imported only for what can be neither a rate nor a strategy."""
        if isinstance(made, (Scheduler, Rate, str, int, float, list, tuple)):
            return None
        from aiorate.adaptive import AdaptiveRate

        if not isinstance(made, AdaptiveRate):
            return None
        if self._idle is None:
            self._idle, self._now = _REMEMBERED, -1
        return made.limiter

    def _check_shared(self, what: str, shared: object) -> Limiter:
        if not isinstance(shared, Limiter):
            refuse_keyed(what, shared)
            raise TypeError(
                f"{what}: the function must return a Limiter that several keys share, such as teams[user.team], or None,"
                f" not {kind_of(shared)}. A rate would be another limit for each key."
            )
        shared._check_as_shared(what, "KeyedLimiter", self._process, "the limiters that the factory makes")
        return shared

    # Asking.

    async def acquire(self, key: K, permits: int = 1, *, max_wait: Duration | None = None) -> float:
        """Wait until it is the key's turn, at its own limit and at the shared one, and take the permits; see `Limiter.acquire`.

        Raises:
            TypeError: The key is not hashable.
        """
        try:
            limiter = self[key]
        except LimiterClosed:
            await Limiter(1).acquire()  # called again and again, this lets the loop turn too
            raise
        if permits is _ONE and max_wait is None and limiter._meter.grab():  # without another coroutine
            return 0.0
        return await limiter.acquire(permits, max_wait=max_wait)

    def acquire_blocking(self, key: K, permits: int = 1, *, max_wait: Duration | None = None) -> float:
        """Wait in synchronous code, for a KeyedLimiter with ``scope="process"``; see `Limiter.acquire_blocking`."""
        if not self._process:
            raise RuntimeError("acquire_blocking() needs a KeyedLimiter with scope='process'. In a coroutine, await acquire(key).")
        return self[key].acquire_blocking(permits, max_wait=max_wait)

    def try_acquire(self, key: K, permits: int = 1) -> bool:
        """Take the permits, of the key and of the shared limit, if both have them right now. Never waits."""
        return self[key].try_acquire(permits)

    def observe(self, key: K, feedback: Feedback | None, *, jitter: Duration = 0) -> None:
        """Apply what a server's response said about a key; see `Limiter.observe`. Only that key is paused.

        If nothing is left of a quota named ``global``, such as Discord's over all routes, the shared limit is paused too.
        """
        if feedback is None or self._closed:
            return
        from aiorate._feedback import Feedback, check_feedback

        check_feedback("observe()", feedback)
        everywhere = tuple(quota for quota in feedback.quotas if quota.name == "global")
        limiter = self[key]
        above = limiter._node.above
        if above is not None and above.is_places:
            above = above.above
        if above is not None and any(quota.remaining == 0 for quota in everywhere):
            told = Feedback(feedback.status, feedback.pause, everywhere, feedback.source)
            above.tree.run(changes.observe, above, told, duration_to_ns(jitter, "observe(jitter)"))
            rest = tuple(quota for quota in feedback.quotas if quota.name != "global")
            feedback = Feedback(feedback.status, None, rest, feedback.source)
        limiter.observe(feedback, jitter=jitter)

    def __call__(self, key: K) -> Limiter:
        """Return the key's limiter, for ``async with keyed(key):``."""
        return self[key]

    async def aclose(self) -> None:
        """Close the limiter of every key. A shared limit that you made yourself stays open."""
        await super().aclose()
        if self._owns_shared and self._shared is not None:
            await self._shared.aclose()


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
        raise TypeError(f"KeyedLimiter(shared): {error}") from error


def _is_function(shared: object) -> TypeGuard[Callable[..., object]]:
    """Whether ``shared`` is to be called with each key. A limiter can be called too, as a decorator, and a class is a mistake."""
    return callable(shared) and not isinstance(shared, (Limiter, Scheduler, type))
