"""One limit for each key: a host, a user, a chat. Keys come and go; a key that owes something is never dropped.

Knows nothing of how a rate is computed, of event loops, or of HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aiorate._base import Base
from aiorate._errors import LimiterClosed, check_count, kind_of, shown
from aiorate._keyed_base import Keyed
from aiorate._limiter import Limiter
from aiorate._options import strategy_of
from aiorate._rate import NS_PER_SECOND, duration_to_ns
from aiorate._tree.fair_queue import Flow

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Literal

    from aiorate._events import Event, Waited
    from aiorate._feedback import Feedback
    from aiorate._options import Limits
    from aiorate._rate import Duration
    from aiorate._tree.tree import Tree
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

    _KIND = Limiter
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
        self._owns_shared = shared is not None and not callable(shared)  # it is made here, and closed here
        if self._owns_shared:
            shared = Limiter(strategy_of("KeyedLimiter(shared)", shared), name="shared", on_event=on_event, scope=scope)
        super().__init__(factory, shared, max_keys, idle, name, on_event, on_wait, scope)
        if weight is not None and not callable(weight):
            raise TypeError(f"KeyedLimiter(weight) must be a function of the key that returns a whole number, not {kind_of(weight)}.")
        if weight is not None and shared is None:
            raise ValueError("KeyedLimiter(weight): only keys that share a limit have weights, and there is none. Add shared=.")
        self._weight = weight
        self._tree: Tree | None = None  # of all keys without a shared limit, as far as they are made here

    def _make(self, key: K) -> Limiter:
        weight = 1
        if self._weight is not None:
            weight = self._call("weight=", self._weight, key)  # type: ignore[assignment]  # it is checked
            check_count(f"KeyedLimiter(weight) for {shown(key)}: what the function returned", weight, least=1)
        limiter = super()._make(key)
        if limiter._node.above is not None:
            limiter._node.flow = Flow(int(weight))
        return limiter

    def _member(self, key: K, made: object, shared: Limiter | None) -> Limiter:
        if type(made) is not str and isinstance(limiter := getattr(made, "limiter", made), Limiter):  # that of an AdaptiveRate
            if limiter is not made and self._idle is None:
                self._idle, self._now = _REMEMBERED, -1
            return super()._member(key, limiter, shared)
        name, tree = key if isinstance(key, str) else None, self._tree if shared is None else shared._node.tree
        limiter = Limiter.__new__(Limiter)  # its options are checked
        scheduler = strategy_of("Limiter()", made)
        Base.__init__(limiter, scheduler, 0.02, None, None, False, self.scope, None, name, self._on_event, None, tree)
        if tree is None:
            self._tree = limiter._node.tree
        limiter._belong(shared)
        return limiter

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
        meter = limiter._meter
        if permits is _ONE and max_wait is None and (meter.grab() or (limiter._node.begin() and meter.grab())):  # without another coroutine
            return 0.0
        return await limiter.acquire(permits, max_wait=max_wait)

    def acquire_blocking(self, key: K, permits: int = 1, *, max_wait: Duration | None = None) -> float:
        """Wait in synchronous code, for a KeyedLimiter with ``scope="process"``; see `Limiter.acquire_blocking`."""
        return self[key].acquire_blocking(permits, max_wait=max_wait)

    def try_acquire(self, key: K, permits: int = 1) -> bool:
        """Take the permits, of the key and of the shared limit, if both have them right now. Never waits."""
        limiter = self[key]
        if permits is _ONE and (limiter._meter.grab(True) or (limiter._node.begin() and limiter._meter.grab(True))):
            return True
        return limiter.try_acquire(permits)

    def observe(self, key: K, feedback: Feedback | None, *, jitter: Duration = 0) -> None:
        """Apply what a server's response said about a key; see `Limiter.observe`. Only that key is paused.

        If nothing is left of a quota named ``global``, such as Discord's over all routes, the shared limit is paused too.
        """
        if feedback is None or self._closed:
            return
        from dataclasses import replace

        from aiorate._feedback import check_feedback

        check_feedback(feedback)
        everywhere = tuple(quota for quota in feedback.quotas if quota.name == "global")
        limiter = self[key]
        above = limiter._node.above
        if above is not None and above.is_places:
            above = above.above
        if above is not None and any(quota.remaining == 0 for quota in everywhere):
            told = replace(feedback, quotas=everywhere)
            above.tree.run(above.observe, told, duration_to_ns(jitter, "observe(jitter)"))
            rest = tuple(quota for quota in feedback.quotas if quota.name != "global")
            feedback = replace(feedback, pause=None, quotas=rest)
        limiter.observe(feedback, jitter=jitter)

    def __call__(self, key: K) -> Limiter:
        """Return the key's limiter, for ``async with keyed(key):``."""
        return self[key]

    async def aclose(self) -> None:
        """Close the limiter of every key. A shared limit that you made yourself stays open."""
        await super().aclose()
        if self._owns_shared and self._shared is not None:
            await self._shared.aclose()
