"""Members kept by key, each made when its key is first used, and evicted when it owes nothing: what keyed limiters and budgets share.

A member is anything with a node. Knows nothing of rates, of event loops, or of HTTP. Longer than other files, because finding,
making and evicting rely on the state in which the others leave the keys.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext, suppress
from functools import partial
from logging import DEBUG, getLogger
from threading import RLock, get_ident
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, runtime_checkable
from weakref import WeakSet, ref

from aiorate._errors import check_count, kind_of
from aiorate._events import Event, emit
from aiorate._kept import Kept
from aiorate._options import check_on_wait, check_options
from aiorate._rate import duration_to_ns
from aiorate._totals import Totals
from aiorate._tree.questions import is_rested

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from contextlib import AbstractContextManager
    from typing import ClassVar, Literal, NoReturn

    from aiorate._rate import Duration
    from aiorate._tree.node import Node
    from aiorate._tree.watch import Watch
    from aiorate._waited import Waited

__all__ = ["Keyed", "refuse_keyed"]


class Member(Protocol):
    """What is kept for a key."""

    @property
    def _node(self) -> Node: ...

    def _totals(self) -> Totals:
        """What it has granted and refused."""
        ...

    async def aclose(self) -> None:
        """Fail the requests in line, and grant nothing from now on."""
        ...


@runtime_checkable
class _Request(Protocol):
    """What requests of HTTP clients and servers have. None equals another."""

    url: Any
    headers: Any


K = TypeVar("K", bound="Hashable")
P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", bound=Member)

_logger = getLogger("aiorate")

_MOST_NESTED = 64  # keys made one inside the other, each for the one before: as many as a chain of limits may have
_CHECKED = 2  # keys for each new key, and for each use after a round: fewer would fall behind, more would cost time


class Keyed(Generic[K, V]):
    """Finds, makes, keeps and evicts the members. A subclass says what a member is."""

    __slots__ = (
        "__weakref__",
        "_closed",
        "_factory",
        "_idle",
        "_kept",
        "_lock",
        "_making",
        "_max_keys",
        "_name",
        "_on_event",
        "_process",
        "_seen",
        "_shared",
        "_shared_of",
        "_watch",
    )

    _NAME: ClassVar[str]
    """The name of the class, for errors."""
    _WANTED: ClassVar[str]
    """What the factory must return, for errors."""

    def __init__(
        self,
        factory: Callable[[K], object],
        shared: V | None,
        shared_of: Callable[[K], object] | None,
        max_keys: int,
        idle: Duration | None,
        name: str | None,
        on_event: Callable[[Event], object] | None,
        on_wait: Callable[[Waited], object] | None,
        scope: Literal["loop", "process"],
    ) -> None:
        check_count(f"{self._NAME}(max_keys)", max_keys, least=1)
        self._idle = None if idle is None else duration_to_ns(idle, f"{self._NAME}(idle)", "None (keys are kept)")
        check_options(self._NAME, None, None, name, on_event, on_wait)
        self._name = name
        self._on_event = on_event
        self._factory = factory
        self._max_keys = max_keys
        self._shared = shared
        self._shared_of = shared_of  # or a function that names the shared one of each key
        self._making: dict[K, int] = {}  # keys whose functions are running, and in which thread
        self._kept: Kept[K, V] = Kept()
        self._seen: dict[K, tuple[int, int]] = {}  # with idle: the permits granted to a key when it was checked, and the reading then
        self._closed: V | None = None  # once closed: the member of all further keys
        self._process = scope == "process"
        self._lock: AbstractContextManager[object] = RLock() if self._process else nullcontext()
        """Held while kept keys change; never taken in a decision."""
        if self._process:
            _of_processes.add(self)
        self._watch: Watch | None = None
        if on_wait is not None:
            self.watch(on_wait)

    # For subclasses.

    def _member(self, key: K, made: object) -> V:
        """The member that the factory ``made``. Raises TypeError and ValueError if that is none."""
        raise NotImplementedError

    def _check_shared(self, what: str, shared: object) -> V:
        """The limit that members shall share. If it cannot be that, raises TypeError or ValueError, which names it ``what``."""
        raise NotImplementedError

    def _join(self, member: V, shared: V | None) -> None:
        """Have the new member pass the ``shared`` one too, if there is one. Raises ValueError if it cannot be that of a key."""
        raise NotImplementedError

    def _closed_member(self) -> V:
        """The member of all keys that are not kept when this is closed: it grants nothing."""
        raise NotImplementedError

    def _check_scope_of(self, member: Member) -> None:
        """Raise ValueError if a limiter or budget that a factory returned has another scope."""
        if self._process and member._node.tree.threads is False:
            raise ValueError(f"its scope is one event loop, and that of the {self._NAME} the process. Make one with scope='process'.")
        if not self._process and member._node.tree.threads:
            raise ValueError(
                f"its scope is the process, and that of the {self._NAME} one event loop. Make one with scope='loop', or create the"
                f" {self._NAME} with scope='process'."
            )

    def _check_scope_of_shared(self, what: str, process: bool, shared: Member) -> None:
        """Raise ValueError, which names it ``what``, if a limit that keys share has another scope."""
        if process and shared._node.tree.threads is False:
            raise ValueError(f"{what}: this has scope='loop', and the {self._NAME} scope='process'. Create this with scope='process' too.")
        if not process and shared._node.tree.threads:
            raise ValueError(
                f"{what}: a {self._NAME} is for one event loop, and this has scope='process'. Use scope='loop', or create the {self._NAME}"
                " with scope='process'."
            )

    # Looking.

    def __getitem__(self, key: K) -> V:
        """Return what is kept for the key, and make it if the key is new. It is not dropped while you hold it."""
        kept = self._kept
        member: V | None
        try:
            member = kept.used[key]
        except KeyError:
            member = None
        except TypeError as error:
            raise TypeError(
                f"{self._NAME}: a key must be hashable, such as text or a tuple of texts, not {kind_of(key)} ({error})."
            ) from error
        if member is None:
            member = self._run(self._find, key) or self._add(key)
        kept.uses_left -= 1
        if kept.uses_left < 0:
            self._check_unused()
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
        return iter(self._run(list, self._kept))

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
        return self._run(self._watched).add(on_wait)

    def _watched(self) -> Watch:
        if self._watch is None:
            from aiorate._tree.watch import Watch

            self._watch = Watch(self._name)
            for key in self._kept:
                self._join_watch(key, self._kept.get(key))
        return self._watch

    def _join_watch(self, key: K, member: V | None) -> None:
        if self._watch is not None and member is not None:
            from aiorate._tree.watch import join

            join(self._watch, key, member._node, getattr(member, "_places", None))

    def _totals(self) -> Totals:
        """As `Limiter.totals`, the sum of all keys: those that were evicted count if it was watched then."""
        watch = self._watch
        total = Totals({}, 0, 0) if watch is None else watch.past  # first: a key that is evicted meanwhile may be missing, and not twice
        for member in self._run(self._members):
            total += member._totals()
        return total

    def _members(self) -> list[V]:
        """The members of all keys; in another thread, too, while keys come, go and move."""
        for tries_left in range(9, -1, -1):
            try:  # twice: a key that moves is missed once at most
                return list({id(member): member for member in [*self._kept.values(), *self._kept.values()]}.values())
            except RuntimeError:  # a dict changed meanwhile
                if not tries_left:
                    raise
        return []

    # Keeping.

    def _begin_again(self) -> None:
        """In a child process, after a fork: threads that were making keys are in the parent."""
        self._making.clear()
        self._lock = RLock()

    def evict(self) -> int:
        """Drop all unused keys now, also those that ``idle`` would keep.

        Returns:
            How many were dropped.
        """
        keys, dropped = list(self), 0
        while keys:
            kept = [key for key in keys if not self._evict(key)]
            dropped += len(keys) - len(kept)
            # Once more where keys may share those of others here: a key that was kept for them may go now.
            keys = kept if self._shared_of is not None and len(kept) < len(keys) else []
        self._run(self._tidy, dropped)
        return dropped

    def forget(self) -> None:
        """Drop every key, whatever it owes and whether or not it is in use. For tests."""
        self._run(self._forget)

    def _forget(self) -> None:
        forgotten = [] if self._watch is None else [member._totals().past for member in self._members()]
        self._kept = Kept()
        self._seen = {}
        if self._watch is not None:
            self._watch.past = sum(forgotten, self._watch.past)

    def _tidy(self, dropped: int) -> None:
        self._kept.forget_dropped()
        if dropped > len(self._kept):
            self._kept.shrink()
            self._seen = dict(self._seen)

    async def aclose(self) -> None:
        """Close what is kept for every key. A shared limit that you made yourself stays open."""
        for member in self._run(self._close, self._closed_member()):
            await member.aclose()

    def _close(self, closed: V) -> list[V]:
        self._closed = closed
        return self._kept.values()

    def _run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function that looks at or changes what is kept; with the scope of the process, one thread at a time."""
        with self._lock:
            return call(*args, **options)

    def _find(self, key: K) -> V | None:
        return self._kept.find(key) if not self._process or key not in self._kept.used else self._kept.used[key]

    def _add(self, key: K) -> V:
        """The member of a key that was not kept when it was looked up."""
        with _making_keys if self._process else nullcontext():
            return self._run(self._find, key) or self._add_new(key)

    def _add_new(self, key: K) -> V:
        # Functions of users run in `_make`, and nowhere else.
        if self._closed is not None:
            return self._closed
        if not isinstance(key, (str, tuple, int)):
            if isinstance(key, _Request) and hash(key) == object.__hash__(key):
                raise TypeError(
                    f"{self._NAME}: a request cannot be a key, because every request would get a limit of its own. Use what the limit is"
                    " for, such as request.client.host or request.url.host."
                )
            if isinstance(key, CoroutineType):
                key.close()  # or Python would also warn that it was never awaited
                raise TypeError(f"{self._NAME}: a coroutine cannot be a key. Await it first: keyed.acquire(await find_user()).")
        if key in self._making:
            raise self._circle(key)
        if len(self._making) >= _MOST_NESTED and list(self._making.values()).count(get_ident()) >= _MOST_NESTED:
            raise ValueError(
                f"{self._NAME}: shared= or the factory leads from key to key, and to {key!r} after {_MOST_NESTED} of them."
                " At some key it must return None."
            )
        try:
            self._making[key] = get_ident()
            member = self._make(key)
        finally:
            self._making.pop(key, None)
        return self._keep(key, member)

    def _circle(self, key: K) -> ValueError:
        return ValueError(
            f"{self._NAME}: {key!r} cannot share itself. While {key!r} was being made, the factory or shared= asked for it again."
        )

    def _make(self, key: K) -> V:
        shared = self._shared if self._shared_of is None else self._ask_shared(self._shared_of, key)
        made = self._call("the factory", self._factory, key)
        try:
            member = self._member(key, made)
            if member is shared:
                raise ValueError("it is the limit that is shared: make one for each key.")
            if len(self._kept) == 1:
                self._check_names(key, member)
            self._join(member, shared)
        except TypeError as error:
            if isinstance(made, CoroutineType):
                made.close()  # or Python would also warn that it was never awaited
            wrong = f": {error}" if isinstance(made, (list, tuple)) else "."
            raise TypeError(
                f"{self._NAME}: the factory must return {self._WANTED}; for {key!r} it returned {kind_of(made)}{wrong}"
            ) from error
        except ValueError as error:
            raise ValueError(f"{self._NAME}: the factory returned {made!r} for {key!r}: {error}") from error
        return member

    def _check_names(self, key: K, member: V) -> None:
        """Say so in the log if the first two keys have one name in a store, and so one limit."""
        first = next(iter(self._kept), None)
        other = None if first is None else self._kept.get(first)
        name = member._node.notices.name
        if other is not None and member._node.watcher.state != "local" and other._node.notices.name == name:
            _logger.warning(
                "%s: the limits of %r and %r have one name in the store, %r, and are one limit. For a limit for each key, put the key into"
                " the name: RedisLimiter(url, f'search:{key}', '10/s'). For one limit for all keys, write shared=.",
                *(self._NAME, first, key, name),
            )

    def _ask_shared(self, function: Callable[[K], object], key: K) -> V | None:
        shared = self._call("shared=", function, key)
        if isinstance(shared, CoroutineType):
            shared.close()
            raise TypeError(f"{self._NAME}(shared) for {key!r}: the function must be a plain one. An async one returns a coroutine.")
        return None if shared is None else self._check_shared(f"{self._NAME}(shared) for {key!r}", shared)

    def _call(self, what: str, function: Callable[[K], object], key: K) -> object:
        """Call a function of the user. A note on its error names the key."""
        try:
            return function(key)
        except Exception as error:
            error.add_note(f"{self._NAME}: {what} raised this for the key {key!r}.")
            raise

    def _keep(self, key: K, member: V) -> V:
        """Keep a new member, and make room for it. Returns it, or the closed one if this was closed meanwhile."""
        kept = self._kept
        if self._run(self._add_kept, key, member):
            for _ in range(_CHECKED):
                self._check(self._run(kept.oldest, key))
        if self._closed is not None and key not in kept:
            return self._closed
        for turn in range(2 * _CHECKED):
            if len(kept) > self._max_keys:
                self._check(self._run(kept.oldest, key) if turn < _CHECKED else self._run(kept.unused) or self._run(kept.unused))
        return member

    def _add_kept(self, key: K, member: V) -> bool:
        if self._watch is not None:
            self._join_watch(key, member)
        return self._closed is None and self._kept.add(key, member)

    def _check_unused(self) -> None:
        for _ in range(_CHECKED):
            key = self._run(self._kept.unused)
            if key is None:
                break
            self._check(key)

    def _check(self, key: K | None) -> None:
        if key is not None:
            self._evict(key, None if len(self._kept) > self._max_keys else self._idle)

    def _evict(self, key: K, idle: int | None = None) -> bool:
        with self._lock:
            member = self._kept.get(key)
            if member is None:
                return False
            node = member._node
            del member  # or it would be in use
            return node.tree.run(self._evict_if_rested, key, node, idle)

    def _evict_if_rested(self, key: K, node: Node, idle: int | None) -> bool:
        member = self._kept.get(key)
        assert member is not None  # its node was found just now
        try:
            rested = is_rested(node)
        except Exception:  # of a strategy or a clock: a caller of that key sees it, not callers of others
            return False
        if not rested:
            return False
        if idle is not None:
            granted, reading = node.granted, node.timeline.read()
            before = self._seen.get(key)
            if before is None or before[0] != granted:
                self._seen[key] = granted, reading
                return False
            if reading - before[1] < idle:
                return False
        # A caller may still hold the member. If it survives removal from the dict, keep it.
        there = ref(member)
        counted = None if self._watch is None else member._totals().past
        try:
            self._kept.drop(key)
            in_use = not _OWNED_BY_THREADS or sys.getrefcount(member) > _references()
            del member
            held = there() if in_use else None
            if held is not None:
                self._kept.put_back(key, held)
                return False
        except BaseException:  # a signal handler's: a key in use must not be lost
            held = there()
            if held is not None and key not in self._kept:
                self._kept.put_back(key, held)
            raise
        self._seen.pop(key, None)
        if self._watch is not None and counted is not None:
            self._watch.past += counted
        node.dismiss()
        if self._on_event is not None or _logger.isEnabledFor(DEBUG):
            tell = partial(emit, Event("evicted", node.notices.name, key=key), self._on_event)
            node.tree.after(tell)
        return True


_OWNED_BY_THREADS = "free-threading build" in sys.version
"""Whether an object that nothing refers to may live until the thread that made it frees it, so that only a count tells."""


def _references() -> int:
    """What `sys.getrefcount` returns for an object to which one variable refers."""
    member = object()
    return sys.getrefcount(member)


_of_processes: WeakSet[Keyed[Any, Any]] = WeakSet()


_making_keys = RLock()
"""Held while a key is made, with the user's functions, which may ask other keyed limits. Kept keys are found meanwhile."""


def _after_fork() -> None:
    global _making_keys
    _making_keys = RLock()
    for keyed in list(_of_processes):
        keyed._begin_again()


with suppress(AttributeError):  # Windows, iOS, Android and WASI have no fork
    os.register_at_fork(after_in_child=_after_fork)


def refuse_keyed(what: str, shared: object) -> None:
    """Raise TypeError if the argument ``what`` is limits for each key, in place of one of them."""
    if isinstance(shared, Keyed):
        raise TypeError(
            f"{what}: a {kind_of(shared)} has a limit for each key. Share that of one key: shared=lambda user: tenants[user.tenant],"
            " or shared=tenants['acme']."
        )
