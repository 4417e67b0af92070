"""One limit for each key: a host, a user, a chat. Keys come and go; a key that owes something is never dropped.

The keys are roughly in the order of their last use: one that was used is put last when it is looked at next. Once there are too many, or
with ``idle``, each new key and now and then a use looks at the first ones, so that eviction needs no task and no timer.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import replace
from functools import partial
from logging import DEBUG, getLogger
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from weakref import ref

from aiorate._errors import Shared, check_count, kind_of, shown
from aiorate._events import Event, emit
from aiorate._feedback import check_feedback
from aiorate._limiters.base import Base, check_callback, check_options, kinds_of, strategy_of
from aiorate._limiters.limiter import Limiter
from aiorate._rate import NS_PER_SECOND, duration_to_ns
from aiorate._tree.fair_queue import Flow
from aiorate._tree.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from typing import ClassVar, Literal

    from aiorate._events import Waited
    from aiorate._feedback import Feedback
    from aiorate._limiters.adaptive import AdaptiveRate
    from aiorate._limiters.base import Limits
    from aiorate._rate import Duration
    from aiorate._tree.limit import Limit


K = TypeVar("K", bound="Hashable")
V = TypeVar("V", bound=Base)

_ONE = 1  # compared by identity
_REMEMBERED = 600 * NS_PER_SECOND  # longer keeps what was found for rare keys; shorter frees their memory sooner
_logger = getLogger("aiorate")

_UNUSED = 16_384  # uses of others before a key goes: that many keys used in turn are not made again and again
_APART = 1024  # uses from one look at the oldest keys to the next: in the main thread, a decision of all threads takes 50 us
_MORE = 2  # keys that may go for each use, so that they go faster than they come


class Keyed(Shared, Generic[K, V]):
    """Makes, keeps and evicts the members. A subclass says what a member is."""

    name: str | None
    """The name that it was given."""
    scope: Literal["loop", "process"]
    """``"loop"`` or ``"process"``."""
    shared: V | None
    """The limit that all keys share, for example to pause all of them. None if there is none, or if a function of the key names it."""
    _KIND: ClassVar[type[Base]]  # the class of the members
    _WANTED: ClassVar[str]  # what the factory must return, for errors
    _weight: Callable[[K], object] | None = None  # the share of a key
    _own: tuple[Base, ...] = ()  # what else was made here, and is closed with the members

    def __init__(
        self,
        factory: Callable[[K], V],
        *,
        shared: V | Callable[[K], V | None] | None = None,
        max_keys: int = 100_000,
        idle: Duration | None = None,
        name: str | None = None,
        on_event: Callable[[Event], object] | None = None,
        on_wait: Callable[[Waited], object] | None = None,
        scope: Literal["loop", "process"] = "loop",
    ) -> None:
        own = type(self).__name__
        if not callable(factory):
            raise TypeError(f"{own}(factory) must be a function of the key that returns {self._WANTED}, not {kind_of(factory)}.")
        self._limit, tree = kinds_of(own, scope)
        check_count(f"{own}(max_keys)", max_keys, least=1)
        self._idle = None if idle is None else duration_to_ns(idle, f"{own}(idle)")
        check_options(own, None, None, name, on_event, on_wait)
        self.name = name
        self.scope = scope
        self._on_event = on_event
        self._factory = factory
        self._max_keys = max_keys
        self._tree = tree()  # of keys that are made here and have no shared limit
        by_key = callable(shared) and not isinstance(shared, (Base, Keyed, type))  # which can be called too, but not with a key
        self._shared_of: Callable[[K], object] | None = cast("Callable[[K], object]", shared) if by_key else None
        self.shared = None if by_key or shared is None else self._checked(f"{own}(shared)", shared, True)
        self._kept: OrderedDict[K, V] = OrderedDict()  # unused for longest first; changed in decisions only
        self._uses = 0  # of any key
        self._closed = False
        self._watch: Watch | None = None
        self._past: Counter[tuple[str, str | None]] = Counter()  # what was counted of keys that are gone
        if on_wait is not None:
            self.watch(on_wait)

    # For subclasses.

    def _member(self, key: K, made: object, shared: V | None) -> V:
        """The member that the factory ``made``. Raises TypeError and ValueError if it is none."""
        return self._checked("it", made)

    def _checked(self, what: str, limit: object, shared: bool = False) -> V:
        """A limit that is a member, or that members share. Raises TypeError or ValueError, which names it ``what``, if it cannot be."""
        if not isinstance(limit, self._KIND):
            wanted = f"a {self._KIND.__name__}, or a function of the key that returns one" if shared else self._WANTED
            raise TypeError(f"{what} must be {wanted}, not {kind_of(limit)}.")
        limit._check_part(what, self._tree.threads, shared)
        return cast("V", limit)

    # Looking.

    def __getitem__(self, key: K) -> V:
        """Return what is kept for the key, and make it if the key is new. It is not dropped while you hold it."""
        self._uses = uses = self._uses + 1
        member = self._kept.get(key)
        if member is None:
            member = self._add(key)
        else:
            member._node.used = uses if self._idle is None else self._now(member._node)
        if not uses % _APART:
            self._tree.change(self._drop_unused, _MORE * _APART)
        return member

    def _now(self, node: Limit) -> int:
        """How often any key was used or, with ``idle``, what the clock of the key's callers reads, also if nobody has asked it yet."""
        if self._idle is None:
            return self._uses
        if node.tree.loop is None:
            node.tree.here()
        return node.tree.now()

    def __len__(self) -> int:
        """How many keys are kept."""
        return len(self._kept)

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys that are kept."""
        return iter(list(dict.keys(self._kept)))

    def __contains__(self, key: object) -> bool:
        """Whether the key is kept. Does not make it."""
        return key in self._kept

    def __repr__(self) -> str:
        shared = ", shared by key" if self._shared_of is not None else "" if self.shared is None else f", shared={self.shared!r}"
        name = "" if self.name is None else f" {self.name!r}"
        return f"<{type(self).__name__}{name} of {len(self._kept)} keys{shared}>"

    # Watching.

    def watch(self, on_wait: Callable[[Waited], object]) -> Callable[[], None]:
        """Call a function after each wait for any key, with a `Waited`; see `Limiter.watch`.

        Returns:
            A function that ends the calls.
        """
        check_callback("watch(on_wait)", on_wait, "Waited")
        return self._tree.run(self._watched).add(on_wait)

    def _watched(self) -> Watch:
        if self._watch is None:
            self._watch = Watch()
            for key, member in self._kept.items():
                self._join_watch(key, member)
        return self._watch

    def _join_watch(self, key: K, member: V) -> None:
        if self._watch is not None:
            member._watched().add(partial(self._watch.tell_of, key, self.name))

    def _totals(self) -> Counter[tuple[str, str | None]]:
        """As `Base._totals`, the sum of all keys: those that were evicted count if it was watched then."""
        total = self._past.copy()  # first: a key that is evicted meanwhile may be missing, and not twice
        for member in self._members():
            total.update(member._totals())
        return total

    def _members(self) -> list[V]:
        return list(dict.values(self._kept))  # in one step, as another thread may be changing them

    # Keeping.

    def evict(self) -> int:
        """Drop all unused keys now, also those that ``idle`` would keep.

        Returns:
            How many were dropped.
        """
        return sum([self._tree.run(self._evict, key) for key in self])

    def forget(self) -> None:
        """Drop every key, whatever it owes and whether or not it is in use. For tests."""
        self._kept = OrderedDict()

    async def aclose(self) -> None:
        """Close the limiter or budget of every key. A shared limit that you made yourself stays open."""
        self._closed = True
        limits: list[Base] = [*self._members(), *self._own]
        for each in limits:
            await each.aclose()

    def observe(self, key: K, feedback: Feedback | None, *, jitter: Duration = 0) -> None:
        """Apply what a server's response said about a key; see `Limiter.observe`. Only that key is paused."""
        if feedback is not None:
            self[key].observe(feedback, jitter=jitter)

    # Making.

    def _add(self, key: K) -> V:
        """The member of a new key. Threads that make one at the same time get the first. Functions of users run without a lock."""
        if isinstance(key, CoroutineType):  # of which no two are equal: each call would have a full limit
            key.close()  # or Python would also warn that it was never awaited
            raise TypeError(f"{type(self).__name__}: a coroutine cannot be a key. Await it first: keyed.acquire(await find_user()).")
        shared = self.shared
        if self._shared_of is not None and (given := self._shared_of(key)) is not None:
            shared = self._checked(f"{type(self).__name__}(shared) for {key!r}", given, True)
        flow: Flow | None = None
        if self._weight is not None:
            weight: Any = self._weight(key)
            check_count(f"{type(self).__name__}(weight) for {shown(key)}: what the function returned", weight, least=1)
            flow = Flow(weight)
        made = self._factory(key)
        try:
            member = self._member(key, made, shared)
            member = member._node.tree.run(self._keep, key, member, shared, flow)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{type(self).__name__}: the factory returned {shown(made)} for {key!r}: {error}") from error
        if self._closed:
            member._close()
        return member

    def _keep(self, key: K, made: V, shared: V | None, flow: Flow | None) -> V:
        """Keep what was made, unless another thread was faster. In a decision."""
        if (member := self._kept.get(key)) is not None:
            return member
        if shared is not None and made._lowest.line.turns is not None:  # they would miss it
            raise ValueError("others share it already: make one for each key, which others may share once it shares this limit.")
        made._share(shared)
        made._node.used = -self._now(made._node)
        if flow is not None and made._node.above is not None:
            made._node.flow = flow
        self._join_watch(key, made)
        if not self._closed:
            self._kept[key] = made
        self._drop_unused(_MORE)
        return made

    # Evicting.

    def _drop_unused(self, most: int) -> None:
        """Drop the keys that were unused for longest: look at so many at most, and up to the first that stays. In a decision."""
        kept, counted, age = self._kept, self._idle is None, self._idle or _UNUSED
        while kept and most > 0:
            most -= 1
            key = next(iter(kept))
            node = kept[key]._node
            now, used = self._uses if counted else self._now(node), node.used
            if now - abs(used) > age or (used <= 0 and len(kept) > self._max_keys):
                if self._evict(key):
                    continue
                used = now  # it will owe what it owes for a while
            elif used <= 0:
                return
            node.used = -used
            kept.move_to_end(key)
            most -= 16  # or a look at keys in use would be two fifths of each use

    def _evict(self, key: K) -> bool:
        """Drop the key if it owes nothing and nobody holds what is kept for it. In a decision."""
        try:
            node = self._kept[key]._node
            if not node.is_rested():
                return False
        except Exception:  # on_event or another thread was faster; or of a strategy or a clock: only callers of that key see it
            return False
        totals = {} if self._watch is None else self._kept[key]._totals()  # nobody waits
        held = ref(self._kept.pop(key))()  # from now on nobody gets hold of it
        if held is not None:
            self._kept[key] = held
            return False
        self._past.update(totals)
        if self._on_event is not None or _logger.isEnabledFor(DEBUG):
            node.tree.after(partial(emit, Event("evicted", node.name, key=key), self._on_event))
        return True


class KeyedLimiter(Keyed[K, Limiter]):
    """A limiter for each key: for each host, user or chat.

    Your function returns the limit for a key, and is called the first time the key is seen, if need be by several threads at once::

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
        if shared is not None and not callable(shared):
            shared = Limiter(strategy_of("KeyedLimiter(shared)", shared), name="shared", on_event=on_event, scope=scope)
            self._own = (shared,)
        make = cast("Callable[[K], Limiter]", factory)  # it returns more than other keys have
        super().__init__(make, shared=shared, max_keys=max_keys, idle=idle, name=name, on_event=on_event, on_wait=on_wait, scope=scope)
        self._weight = weight
        if weight is not None and shared is None:
            raise ValueError("KeyedLimiter(weight): only keys that share a limit have weights, and there is none. Add shared=.")

    def _member(self, key: K, made: object, shared: Limiter | None) -> Limiter:
        if type(made) is not str and isinstance(limiter := getattr(made, "limiter", made), Limiter):  # that of an AdaptiveRate
            if limiter is not made and self._idle is None:
                self._idle = _REMEMBERED
            return self._checked("it", limiter)
        limiter, tree = Limiter.__new__(Limiter), self._tree if shared is None else shared._node.tree
        scheduler = strategy_of("Limiter()", made)
        limiter._begin(self._limit(scheduler, 20_000_000, tree, key if isinstance(key, str) else None), self._on_event)
        return limiter

    # Asking.

    async def acquire(self, key: K, permits: int = 1, *, max_wait: Duration | None = None) -> float:
        """Wait until it is the key's turn, at its own limit and at the shared one, and take the permits; see `Limiter.acquire`.

        Raises:
            TypeError: The key is not hashable.
        """
        limiter = self[key]
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
        if feedback is None:
            return
        check_feedback(feedback)
        shared, everywhere = self[key]._node.keeps, [quota for quota in feedback.quotas if quota.name == "global"]
        if isinstance(shared, Limiter) and any(quota.remaining == 0 for quota in everywhere):
            shared.observe(replace(feedback, quotas=tuple(everywhere)), jitter=jitter)
            rest = tuple(quota for quota in feedback.quotas if quota.name != "global")
            feedback = replace(feedback, pause=None, quotas=rest)
        super().observe(key, feedback, jitter=jitter)

    def __call__(self, key: K) -> Limiter:
        """Return the key's limiter, for ``async with keyed(key):``."""
        return self[key]
