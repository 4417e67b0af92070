"""Members kept by key, each made when its key is first used, and evicted when it owes nothing: what keyed limiters and budgets share.

A member is anything with a node. The keys are in the order of their last use. Each new key, and now and then a use, looks at those that
were unused for longest, so that eviction needs no task and no timer.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from logging import DEBUG, getLogger
from threading import Condition, RLock, get_ident
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from weakref import ref

from aiorate._base import Base
from aiorate._errors import LimiterClosed, check_count, kind_of
from aiorate._events import Event, emit
from aiorate._options import check_on_wait, check_options, check_same_scope, check_scope
from aiorate._rate import duration_to_ns
from aiorate._tree.watch import Totals, Watch, join

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from typing import ClassVar, Literal, NoReturn

    from aiorate._events import Waited
    from aiorate._rate import Duration
    from aiorate._tree.limit import Limit


K = TypeVar("K", bound="Hashable")
V = TypeVar("V", bound=Base)

_logger = getLogger("aiorate")

_MOST_NESTED = 64  # keys made one inside the other, each for the one before: as many as a chain of limits may have
_UNUSED = 16_384  # uses of other keys before one goes that was not used meanwhile: so many keys used in turn are not made again and again
_APART = 32  # uses from one look at the oldest keys to the next
_MORE = 2  # keys that may go for each use: they shall go faster than they come


class Keyed(Generic[K, V]):
    """Finds, makes, keeps and evicts the members. A subclass says what a member is."""

    _KIND: ClassVar[type[Base]]
    """The class of the members."""
    _NAME: ClassVar[str]
    """The name of the class, for errors."""
    _WANTED: ClassVar[str]
    """What the factory must return, for errors."""

    def __init__(
        self,
        factory: Callable[[K], object],
        shared: object,
        max_keys: int,
        idle: Duration | None,
        name: str | None,
        on_event: Callable[[Event], object] | None,
        on_wait: Callable[[Waited], object] | None,
        scope: Literal["loop", "process"],
    ) -> None:
        of_aiorate = (factory if isinstance(factory, type) else type(factory)).__module__.startswith("aiorate.")  # such as Limiter
        if not callable(factory) or of_aiorate:
            raise TypeError(
                f"{self._NAME}(factory) must be a function of the key that returns {self._WANTED}, not {kind_of(factory)}:"
                " each key needs a separate limit."
            )
        check_scope(self._NAME, scope)
        check_count(f"{self._NAME}(max_keys)", max_keys, least=1)
        self._idle = None if idle is None else duration_to_ns(idle, f"{self._NAME}(idle)", "None (keys are kept)")
        check_options(self._NAME, None, None, name, on_event, on_wait)
        self._name = name
        self._on_event = on_event
        self._factory = factory
        self._max_keys = max_keys
        self._process = scope == "process"
        by_key = callable(shared) and not isinstance(shared, (Base, Keyed, type))  # which can be called too, but not with a key
        self._shared_of: Callable[[K], object] | None = cast("Callable[[K], object]", shared) if by_key else None
        self._shared: V | None = None if by_key or shared is None else self._check_shared(f"{self._NAME}(shared)", shared)
        self._kept: OrderedDict[K, V] = OrderedDict()  # the one that was unused for longest first
        self._left = _APART  # uses until the next look at the oldest
        self._now = 0 if self._idle is None else -1  # the uses until the last one; below 0: keys go by the clock instead
        self._closed = False
        self._watch: Watch | None = None
        if on_wait is not None:
            self.watch(on_wait)

    # For subclasses.

    def _member(self, key: K, made: object, shared: V | None) -> object:
        """The member that the factory ``made``, and that will share that one. Raises TypeError and ValueError if that is none."""
        return made

    def _check_shared(self, what: str, shared: object) -> V:
        """The limit that members shall share. If it cannot be that, raises TypeError or ValueError, which names it ``what``."""
        if not isinstance(shared, self._KIND):
            kind = self._KIND._NAME
            raise TypeError(
                f"{what} must be a {kind} that several keys share, or a function that returns one, such as lambda user: teams[user.team],"
                f" not {kind_of(shared)}."
            )
        shared._check_as_shared(what, self._NAME, self._process, "what the factory makes")
        return cast("V", shared)

    # Looking.

    def __getitem__(self, key: K) -> V:
        """Return what is kept for the key, and make it if the key is new. It is not dropped while you hold it."""
        try:
            member = self._kept[key]
        except KeyError:
            member = self._add(key)
        except TypeError as error:
            raise TypeError(
                f"{self._NAME}: a key must be hashable, such as text or a tuple of texts, not {kind_of(key)} ({error})."
            ) from error
        node = member._node
        if node.used != self._now:
            node.used = node.read() if self._now < 0 else self._now
            if not self._process:
                self._kept.move_to_end(key)
            else:
                with _lock:
                    if key in self._kept:
                        self._kept.move_to_end(key)
        self._left -= 1
        if self._left <= 0:
            self._left = _APART
            if self._now >= 0:
                self._now += _APART
            self._look(_MORE * _APART)
        return member

    @property
    def scope(self) -> Literal["loop", "process"]:
        """``"loop"`` or ``"process"``."""
        return "process" if self._process else "loop"

    @property
    def name(self) -> str | None:
        """The name that it was given."""
        return self._name

    @property
    def shared(self) -> V | None:
        """The limit that all keys share, for example to pause all of them. None if there is none, or if a function of the key names it."""
        return self._shared

    def __len__(self) -> int:
        """How many keys are kept."""
        return len(self._kept)

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys that are kept."""
        with _lock:
            return iter(list(self._kept))

    def __contains__(self, key: object) -> bool:
        """Whether the key is kept. Does not make it."""
        return key in self._kept

    def __repr__(self) -> str:
        shared = ", shared by key" if self._shared_of is not None else "" if self._shared is None else f", shared={self._shared!r}"
        name = "" if self._name is None else f" {self._name!r}"
        return f"<{self._NAME}{name} of {len(self._kept)} keys{shared}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {self._NAME} cannot be copied or pickled: the copy would grant the same permits again. Share it.")

    # Watching.

    def watch(self, on_wait: Callable[[Waited], object]) -> Callable[[], None]:
        """Call a function after each wait for any key, with a `Waited`; see `Limiter.watch`.

        Returns:
            A function that ends the calls.
        """
        check_on_wait("watch", on_wait)
        with _lock:
            if self._watch is None:
                self._watch = Watch(self._name)
                for key, member in self._kept.items():
                    self._join_watch(key, member)
            return self._watch.add(on_wait)

    def _join_watch(self, key: K, member: V) -> None:
        if self._watch is not None:
            join(self._watch, key, member._node, member._places)

    def _totals(self) -> Totals:
        """As `Limiter._totals`, the sum of all keys: those that were evicted count if it was watched then."""
        watch = self._watch
        total = Totals({}, 0, 0) if watch is None else watch.past  # first: a key that is evicted meanwhile may be missing, and not twice
        for member in self._members():
            total += member._totals()
        return total

    def _members(self) -> list[V]:
        """The members of all keys."""
        with _lock:
            return list(dict.values(self._kept))  # not in order: another thread may read the totals while a use changes that

    # Keeping.

    def evict(self) -> int:
        """Drop all unused keys now, also those that ``idle`` would keep.

        Returns:
            How many were dropped.
        """
        dropped, again = 0, True
        while again:
            found = sum([self._evict(key) for key in self])
            dropped += found
            again = found > 0 and self._shared_of is not None  # a key that was kept for others here may go now
        return dropped

    def forget(self) -> None:
        """Drop every key, whatever it owes and whether or not it is in use. For tests."""
        with _lock:
            if self._watch is not None:
                self._watch.past = sum([member._totals().past for member in self._members()], self._watch.past)
            self._kept = OrderedDict()

    async def aclose(self) -> None:
        """Close what is kept for every key. A shared limit that you made yourself stays open."""
        with _lock:
            self._closed = True
        for member in self._members():
            await member.aclose()

    # Making. Functions of users run in `_make`, and nowhere else, and no lock is held then.

    def _add(self, key: K) -> V:
        """The member of a key that was not kept when it was looked up. If another thread is making it, wait for that."""
        me, mine = get_ident(), (self, key)
        with _lock:
            while (maker := _making.get(mine)) is not None:
                self._wait_for(mine, maker, me)
            member = self._kept.get(key)
            if member is not None:
                return member
            self._check_open()
            self._check_key(key)
            if len(_making) >= _MOST_NESTED and list(_making.values()).count(me) >= _MOST_NESTED:
                raise ValueError(
                    f"{self._NAME}: shared= or the factory leads from key to key, and to {key!r} after {_MOST_NESTED} of them."
                    " At some key it must return None."
                )
            _making[mine] = me
        made: V | None = None
        try:
            made = self._make(key)
            if self._now < 0 or len(self._kept) >= self._max_keys:  # uses may be rare
                self._look(_MORE, room=1)
            return made
        finally:
            with _lock:
                _making.pop(mine, None)
                if _wanted:
                    _made.notify_all()  # of threads that go on when the lock is free
                if made is not None:
                    self._check_open()
                    self._join_watch(key, made)
                    self._kept[key] = made

    def _wait_for(self, wanted: tuple[Keyed[Any, Any], Any], maker: int | None, me: int) -> None:
        """Wait until some key was made. Raises ValueError if this thread makes the key, or one that makes it waits for this thread."""
        while maker is not None:
            if maker == me:
                raise ValueError(
                    f"{self._NAME}: {wanted[1]!r} cannot share itself. While {wanted[1]!r} was being made, the factory or shared= asked for"
                    " it again."
                )
            maker = _making.get(_wanted[maker]) if maker in _wanted else None
        _wanted[me] = wanted
        try:
            _made.wait()
        finally:
            _wanted.pop(me, None)

    def _check_open(self) -> None:
        if self._closed:
            raise LimiterClosed(f"the {self._NAME} is closed, and adds no keys. Create a new one.")

    def _check_key(self, key: K) -> None:
        """Raise TypeError for keys of which no two are equal: each would have a full limit."""
        if isinstance(key, CoroutineType):
            key.close()  # or Python would also warn that it was never awaited
            raise TypeError(f"{self._NAME}: a coroutine cannot be a key. Await it first: keyed.acquire(await find_user()).")
        if hasattr(key, "headers") and hasattr(key, "url") and hash(key) == object.__hash__(key):
            raise TypeError(
                f"{self._NAME}: a request cannot be a key, because every request would get a limit of its own. Use what the limit is"
                " for, such as request.client.host or request.url.host."
            )

    def _make(self, key: K) -> V:
        shared = self._shared
        if self._shared_of is not None:
            given = self._call("shared=", self._shared_of, key)
            shared = None if given is None else self._check_shared(f"{self._NAME}(shared) for {key!r}", given)
        made = self._call("the factory", self._factory, key)
        try:
            member = self._member(key, made, shared)
            if not isinstance(member, self._KIND):
                raise TypeError
            if member is shared:
                raise ValueError("it is the limit that is shared: make one for each key.")
            check_same_scope("its scope", self._NAME, self._process, member._node.tree.threads)
            member._belong(shared)
        except TypeError as error:
            wrong = f": {error}" if isinstance(made, (list, tuple)) else "."
            raise TypeError(
                f"{self._NAME}: the factory must return {self._WANTED}; for {key!r} it returned {kind_of(made)}{wrong}"
            ) from error
        except ValueError as error:
            raise ValueError(f"{self._NAME}: the factory returned {made!r} for {key!r}: {error}") from error
        return cast("V", member)

    def _call(self, what: str, function: Callable[[K], object], key: K) -> object:
        """Call a function of the user. A note on its error names the key."""
        try:
            made = function(key)
        except Exception as error:
            error.add_note(f"{self._NAME}: {what} raised this for the key {key!r}.")
            raise
        if isinstance(made, CoroutineType):
            made.close()  # or Python would also warn that it was never awaited
            raise TypeError(f"{self._NAME}: {what} for {key!r} must be a plain function. An async one returns a coroutine.")
        return made

    # Evicting.

    def _look(self, most: int, room: int = 0) -> None:
        """Drop the keys that were unused for longest: at most so many, and up to the first that stays. Make ``room`` for more."""
        for _ in range(most):
            with _lock:
                if not self._kept:
                    return
                key = next(iter(self._kept))
                node = self._kept[key]._node
            try:
                now = node.read() if self._now < 0 else self._now
            except Exception:  # of a clock: a caller of that key sees it, not callers of others
                now = node.used
            if len(self._kept) + room <= self._max_keys and now - node.used <= (self._idle or _UNUSED):
                return
            if not self._evict(key):  # what it owes, it will owe for a while
                with _lock:
                    if key in self._kept:
                        self._kept.move_to_end(key)
                node.used = now
                return

    def _evict(self, key: K) -> bool:
        """Drop the key if it owes nothing and nobody holds what is kept for it."""
        member = self._kept.get(key)
        if member is None:
            return False
        node, member = member._node, None  # or it would be in use
        return node.tree.run(self._evict_now, key, node)

    def _evict_now(self, key: K, node: Limit) -> bool:
        try:
            if not node.is_rested():
                return False
        except Exception:  # of a strategy or a clock, as above
            return False
        with _lock:
            member = self._kept.get(key)
            if member is None or member._node is not node:  # another thread was faster
                return False
            counted = None if self._watch is None else member._totals().past
            there, gone = ref(member), False
            try:
                del self._kept[key]
                gone = _OWNED_BY_THREADS and sys.getrefcount(member) <= _references()
                del member
            finally:  # a caller may still hold it, or a signal handler raised
                held = None if gone else there()
                if held is not None:
                    self._kept[key] = held
            if held is not None:
                return False
            if self._watch is not None and counted is not None:
                self._watch.past += counted
        node.dismiss()
        if self._on_event is not None or _logger.isEnabledFor(DEBUG):
            node.tree.after(partial(emit, Event("evicted", node.name, key=key), self._on_event))
        return True


_OWNED_BY_THREADS = "free-threading build" in sys.version
"""Whether an object that nothing refers to may live until the thread that made it frees it, so that only a count tells."""


def _references() -> int:
    """What `sys.getrefcount` returns for an object to which one variable refers."""
    member = object()
    return sys.getrefcount(member)


_lock = RLock()
"""Held while the keys of any change. It may be taken in a decision, so nobody who holds it asks for one."""
_made = Condition(_lock)
"""Told when a key was made."""
_making: dict[tuple[Keyed[Any, Any], Any], int] = {}
"""Keys whose functions are running, and in which thread."""
_wanted: dict[int, tuple[Keyed[Any, Any], Any]] = {}
"""Of threads that wait for a key that another is making: that key, and whose it is."""


def _after_fork() -> None:
    """Threads that were making keys are in the parent."""
    global _lock, _made
    _lock = RLock()
    _made = Condition(_lock)
    _making.clear()
    _wanted.clear()


with suppress(AttributeError):  # Windows, iOS, Android and WASI have no fork
    os.register_at_fork(after_in_child=_after_fork)
