"""One limit for each key: a host, a user, a chat. Keys come and go; a key that owes something is never dropped.

Knows nothing of how a rate is computed, of event loops, or of HTTP.
"""

from __future__ import annotations

from logging import DEBUG, getLogger
from types import CoroutineType
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import ref

from aiorate.errors import LimiterClosed, check_count, kind_of
from aiorate.events import Event, emit
from aiorate.kept import Kept
from aiorate.limiter import Limiter
from aiorate.rate import Rate, seconds_to_ns
from aiorate.schedulers.interface import Scheduler
from aiorate.waiting import changes
from aiorate.waiting.gate import Gate
from aiorate.waiting.questions import is_rested

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from datetime import timedelta
    from typing import Never, NoReturn

    from aiorate.feedback import Feedback
    from aiorate.rate import Number
    from aiorate.spec import RateSpec

__all__ = ["KeyedLimiter"]

K = TypeVar("K", bound="Hashable")

_logger = getLogger("aiorate")

_OPTIONS = ("shared", "max_keys", "idle", "on_event")
_OF_EACH_KEY = ("catch_up", "max_waiting", "precise", "clock", "name", "max_concurrency")
_CHECKED = 2  # keys for each new key, and for each use after a round: fewer would fall behind, more would cost time


class KeyedLimiter(Generic[K]):
    """A limiter for each key, made when the key is first used, and evicted when it owes nothing.

    ``factory(key)`` makes the limit of a key: a `Limiter`, a strategy such as ``TokenBucket("1/s", 5)``, or a rate such as ``"1/s"``.
    ``shared`` is a limit that all keys pass too: 30/s in all and 1/s per chat. It is a `Limiter`, a strategy or a rate; a `Limiter`
    may be that of a key of another KeyedLimiter, and so share a limit in turn. A busy key does not delay others: only the first request
    of each key stands in the shared line, and only once the key's limit lets it pass. A refund or charge to a key applies to all limits
    that it passes.

    A key is evicted when it is found to owe nothing; it is limited no sooner for that than if it had been kept. Two keys are checked
    for each new key. Keys that were used again stay for as many uses as there are keys, and are checked then, two for each use. A key
    is kept if its rate was changed, while it is paused or in debt, and while somebody holds its limiter. ``max_keys`` bounds how many
    are kept at once as far as that allows. ``idle`` keeps a key for that many seconds after it was found unused. Raises TypeError and
    ValueError for wrong arguments. ``on_event`` is called with an `aiorate.Event` for each evicted key, and for events of the limiters
    that are made here from a rate or a strategy. For one event loop, as a `Limiter` is.
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_factory",
        "_idle",
        "_kept",
        "_max_keys",
        "_on_event",
        "_owns_shared",
        "_seen",
        "_shared",
    )

    def __init__(
        self,
        factory: Callable[[K], Limiter | Scheduler | Rate | str | Number],
        *,
        shared: Limiter | Scheduler | Rate | str | Number | None = None,
        max_keys: int = 100_000,
        idle: Number | None = None,
        on_event: Callable[[Event], object] | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            from aiorate.mistakes import unknown_keyed_options

            raise unknown_keyed_options(unknown, _OPTIONS, _OF_EACH_KEY)
        if not callable(factory) or isinstance(factory, (Limiter, Scheduler, Rate)):
            hint = " For a dict of limits, write KeyedLimiter(limits.__getitem__)." if isinstance(factory, dict) else ""
            raise TypeError(
                f"KeyedLimiter(factory) must be a function of the key, such as lambda key: '10/s', not {kind_of(factory)}:"
                f" each key needs a separate limit.{hint}"
            )
        check_count("KeyedLimiter(max_keys)", max_keys, least=1)
        self._idle = None if idle is None else seconds_to_ns(idle, "KeyedLimiter(idle)")
        if on_event is not None and not callable(on_event):
            raise TypeError(f"KeyedLimiter(on_event) must be a function of an aiorate.Event, not {kind_of(on_event)}.")
        self._on_event = on_event
        self._factory = factory
        self._max_keys = max_keys
        self._shared = shared if shared is None or isinstance(shared, Limiter) else _make_shared(shared, on_event)
        if self._shared is not None and self._shared.dispatcher.section is not None:
            raise ValueError("KeyedLimiter(shared): a KeyedLimiter is for one event loop, and this has scope='process'. Use scope='loop'.")
        if self._shared is not None:
            self._shared.check_shared("KeyedLimiter(shared)", "the limiters that the factory makes")
        self._owns_shared = self._shared is not shared  # whether the shared limit was made here
        self._kept: Kept[K, Limiter] = Kept()
        self._seen: dict[K, tuple[int, int]] = {}  # with idle: the permits granted to a key when it was checked, and the reading then
        self._closed: Limiter | None = None  # once closed: the limiter of all further keys

    # Asking.

    async def acquire(self, key: K, permits: int = 1, *, max_wait: Number | timedelta | None = None) -> float:
        """Wait in the key's line until it, and the shared limit, grant the permits; returns the seconds waited.

        Raises the errors of `Limiter.acquire` and of the factory, and TypeError for a key that cannot be hashed. With a shared limit,
        the estimate counts the requests in both lines now. Other keys may come in between; ``max_wait`` bounds the wait all the same.
        """
        return await self[key].acquire(permits, max_wait=max_wait)

    def try_acquire(self, key: K, permits: int = 1) -> bool:
        """Take the permits, of the key and the shared limit, if both have them at once; never waits."""
        return self[key].try_acquire(permits)

    def observe(self, key: K, feedback: Feedback | None, *, jitter: Number = 0) -> None:
        """Heed what a server said of a key, as `Limiter.observe` does: it pauses that key for everybody.

        Where nothing remains of a quota named ``global``, such as Discord's over all routes, the shared limit is paused, if there is
        one. Does nothing when closed.
        """
        if feedback is None or self._closed is not None:
            return
        from aiorate.feedback import Feedback, check_feedback

        check_feedback("observe()", feedback)
        everywhere = tuple(quota for quota in feedback.quotas if quota.name == "global")
        if self._shared is not None and any(quota.remaining == 0 for quota in everywhere):
            self._shared.observe(Feedback(feedback.status, feedback.pause, everywhere, feedback.source), jitter=jitter)
            rest = tuple(quota for quota in feedback.quotas if quota.name != "global")
            feedback = Feedback(feedback.status, None, rest, feedback.source)
        self[key].observe(feedback, jitter=jitter)

    def __call__(self, key: K) -> Limiter:
        """The key's limiter: ``async with keyed(key):``."""
        return self[key]

    def __getitem__(self, key: K) -> Limiter:
        """The key's limiter, which also passes the shared limit. It is not evicted while somebody holds it.

        Once closed, further keys have a limiter that refuses with `LimiterClosed`.
        """
        kept = self._kept
        limiter: Limiter | None
        try:
            limiter = kept.used[key]
        except KeyError:
            limiter = None
        except TypeError as error:
            raise TypeError(
                f"KeyedLimiter: a key must be hashable, such as text or a tuple of texts, not {kind_of(key)} ({error})."
            ) from error
        if limiter is None:
            limiter = kept.find(key) or self._add(key)
        kept.uses_left -= 1
        if kept.uses_left < 0:
            self._check_unused()
        return limiter

    async def __aenter__(self) -> NoReturn:
        from aiorate.mistakes import NO_KEY

        raise TypeError(NO_KEY)

    async def __aexit__(self, *exc: object) -> None: ...

    # Looking.

    @property
    def shared(self) -> Limiter | None:
        """The limit that all keys pass: to look at it, pause all keys, or change its rate."""
        return self._shared

    def __len__(self) -> int:
        """How many keys are kept."""
        return len(self._kept)

    def __iter__(self) -> Iterator[K]:
        """The keys that are kept."""
        return iter(list(self._kept))

    def __contains__(self, key: object) -> bool:
        """Whether the key is kept. Does not add it."""
        return key in self._kept

    def __repr__(self) -> str:
        shared = "" if self._shared is None else f", shared={self._shared!r}"
        return f"<KeyedLimiter of {len(self._kept)} keys{shared}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            from aiorate.mistakes import not_of_keyed

            raise AttributeError(not_of_keyed(name), name=name, obj=self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a KeyedLimiter cannot be copied or pickled: the copy would grant the same permits again. Share it.")

    # Keeping.

    def evict(self) -> int:
        """Drop every key that owes nothing, now, also those that ``idle`` would keep; returns how many."""
        dropped = sum([self._evict_if_rested(key, None) for key in list(self._kept)])
        self._kept.forget_dropped()
        if dropped > len(self._kept):
            self._kept.shrink()
            self._seen = dict(self._seen)
        return dropped

    async def aclose(self) -> None:
        """Close the limiter of every key, and add no more keys. A shared limit that was made elsewhere stays open."""
        self._closed = _Closed()
        for limiter in self._kept.values():
            await limiter.aclose()
        if self._owns_shared and self._shared is not None:
            await self._shared.aclose()

    def _add(self, key: K) -> Limiter:
        if self._closed is not None:
            return self._closed
        if not isinstance(key, (str, tuple, int)):
            from aiorate.mistakes import REQUEST_AS_KEY, is_request

            if is_request(key):
                raise TypeError(f"KeyedLimiter: {REQUEST_AS_KEY}")
        limiter = self._make(key)
        kept = self._kept
        if kept.add(key, limiter):
            for _ in range(_CHECKED):
                self._check(kept.oldest(key))
        for turn in range(2 * _CHECKED):
            if len(kept) > self._max_keys:
                self._check(kept.oldest(key) if turn < _CHECKED else kept.unused() or kept.unused())
        return limiter

    def _check_unused(self) -> None:
        for _ in range(_CHECKED):
            key = self._kept.unused()
            if key is None:
                break
            self._check(key)

    def _check(self, key: K | None) -> None:
        if key is not None:
            self._evict_if_rested(key, None if len(self._kept) > self._max_keys else self._idle)

    def _make(self, key: K) -> Limiter:
        made = self._factory(key)
        name = key if isinstance(key, str) else None
        try:
            limiter = made if isinstance(made, Limiter) else Limiter(made, name=name, on_event=self._on_event)
            if limiter is self._shared:
                raise ValueError("it is the shared limiter: make one for each key.")
            gate = None if self._shared is None else Gate(self._shared.dispatcher, owner=self._shared)
            changes.share(limiter.dispatcher, gate)
        except TypeError as error:
            if isinstance(made, CoroutineType):
                made.close()  # or Python would also warn that it was never awaited
            wanted = "a Limiter, a strategy or a rate such as '10/s'"
            raise TypeError(f"KeyedLimiter: the factory must return {wanted}; for {key!r} it returned {kind_of(made)}.") from error
        except ValueError as error:
            raise ValueError(f"KeyedLimiter: the factory returned {made!r} for {key!r}: {error}") from error
        return limiter

    def _evict_if_rested(self, key: K, idle: int | None) -> bool:
        limiter = self._kept.get(key)
        if limiter is None:  # evicted meanwhile, by an on_event of another eviction
            return False
        dispatcher = limiter.dispatcher
        try:
            rested = is_rested(dispatcher)
        except Exception:  # of a strategy or a clock: a caller of that key sees it, not callers of others
            return False
        if not rested:
            return False
        if idle is not None:
            granted, reading = dispatcher.granted, dispatcher.timeline.read()
            before = self._seen.get(key)
            if before is None or before[0] != granted:
                self._seen[key] = granted, reading
                return False
            if reading - before[1] < idle:
                return False
        # A caller may still hold the limiter. If it survives removal from the dict, keep it.
        there = ref(limiter)
        self._kept.drop(key)
        del limiter
        held = there()
        if held is not None:
            self._kept.put_back(key, held)
            return False
        self._seen.pop(key, None)
        changes.dismiss(dispatcher)
        if self._on_event is not None or _logger.isEnabledFor(DEBUG):
            emit(Event("evicted", dispatcher.notices.name, key=key), self._on_event)
        return True


def _make_shared(limit: Scheduler | Rate | str | Number, on_event: Callable[[Event], object] | None) -> Limiter:
    try:
        return Limiter(limit, name="shared", on_event=on_event)
    except TypeError as error:
        hint = " One key of another KeyedLimiter is a Limiter: shared=tenants['acme']." if isinstance(limit, KeyedLimiter) else ""
        raise TypeError(f"KeyedLimiter(shared): {error}{hint}") from error


class _Closed(Limiter):
    """The limiter of all keys that a closed KeyedLimiter lacks. Awaited again and again, it lets other tasks run, as any limiter does."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(1)
        self.dispatcher.closed = True

    async def acquire(self, permits: int = 1, *, max_wait: Number | timedelta | None = None) -> float:
        try:
            return await super().acquire(permits, max_wait=max_wait)
        except LimiterClosed:
            raise _closed_error() from None

    def try_acquire(self, permits: int = 1) -> bool:
        raise _closed_error()

    def apply(self, spec: RateSpec | str) -> None:
        """Raises `LimiterClosed`: it cannot be opened again."""
        raise _closed_error()


def _closed_error() -> LimiterClosed:
    return LimiterClosed("the KeyedLimiter is closed, and adds no keys. Create a new one.")
