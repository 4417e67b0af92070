"""Members kept by key, each made when its key is first used, and evicted when it owes nothing: what keyed limiters and budgets share.

A member is anything with a node. Eviction needs no task and no timer: each new key looks at a few old ones, and so do all uses during a
round of looks, between which there is a pause. A key that was used since it was looked at last stays.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial
from logging import DEBUG, getLogger
from threading import Condition, RLock, get_ident
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable
from weakref import WeakSet, ref

from aiorate._errors import LimiterClosed, check_count, kind_of
from aiorate._events import Event, emit
from aiorate._options import check_on_wait, check_options
from aiorate._rate import duration_to_ns
from aiorate._tree.questions import is_rested
from aiorate._tree.watch import Totals

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from typing import ClassVar, Literal, NoReturn

    from aiorate._events import Waited
    from aiorate._rate import Duration
    from aiorate._tree.node import Node
    from aiorate._tree.watch import Watch

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
V = TypeVar("V", bound=Member)

_logger = getLogger("aiorate")

_MOST_NESTED = 64  # keys made one inside the other, each for the one before: as many as a chain of limits may have
_LOOKS = 4  # for each new key, and for each use in a round: a key needs two or three, and keys shall go faster than they come
_BATCH = 16  # uses in a round whose looks are made at once
_PAUSE = 2048  # uses between two rounds; at least as many as there are keys, where no key comes or goes
_UNUSED = 16_384  # uses of other keys before one goes that was not used meanwhile: so many keys used in turn are not made again and again


class Keyed(Generic[K, V]):
    """Finds, makes, keeps and evicts the members. A subclass says what a member is."""

    __slots__ = (
        *("__weakref__", "_changed", "_closed", "_factory", "_idle", "_kept", "_lock", "_look_at", "_making", "_max_keys", "_name"),
        *("_on_event", "_process", "_shared", "_shared_of", "_to_look", "_uses", "_watch"),
    )

    _NAME: ClassVar[str]
    """The name of the class, for errors."""
    _WANTED: ClassVar[str]
    """What the factory must return, for errors."""

    def __init__(
        self,
        factory: Callable[[K], object],
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
        self._shared: V | None = None
        self._shared_of = shared_of  # or a function that names the shared one of each key
        self._making: dict[K, int] = {}  # keys whose functions are running, and in which thread
        self._kept: dict[K, V] = {}
        self._to_look: list[K] = []  # the keys of a round that are still to be looked at, the next one last
        self._uses = 0  # of all keys
        self._look_at = _PAUSE  # uses
        self._changed = False  # whether keys came or went since the round began
        self._closed = False
        self._process = scope == "process"
        self._lock = RLock()
        """Held while kept keys change. It may be taken in a decision, so nobody who holds it asks for one."""
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
        self._uses += 1
        if self._uses > self._look_at:
            self._look(_LOOKS * _BATCH)
            if self._to_look or len(self._kept) > self._max_keys:
                self._look_at = self._uses + _BATCH
            else:
                self._look_at = self._uses + (_PAUSE if self._changed else max(_PAUSE, len(self._kept)))
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
        with self._lock:
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
        with self._lock:
            if self._watch is None:
                from aiorate._tree.watch import Watch

                self._watch = Watch(self._name)
                for key, member in self._kept.items():
                    self._join_watch(key, member)
            return self._watch.add(on_wait)

    def _join_watch(self, key: K, member: V) -> None:
        if self._watch is not None:
            from aiorate._tree.watch import join

            join(self._watch, key, member._node, getattr(member, "_places", None))

    def _totals(self) -> Totals:
        """As `Limiter._totals`, the sum of all keys: those that were evicted count if it was watched then."""
        watch = self._watch
        total = Totals({}, 0, 0) if watch is None else watch.past  # first: a key that is evicted meanwhile may be missing, and not twice
        for member in self._members():
            total += member._totals()
        return total

    def _members(self) -> list[V]:
        """The members of all keys."""
        with self._lock:
            return list(self._kept.copy().values())  # the copy is made in one step: another thread may read the totals

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
            kept = [key for key in keys if (node := self._node_of(key)) is None or not self._evict(key, node)]
            dropped += len(keys) - len(kept)
            # Once more where keys may share those of others here: a key that was kept for them may go now.
            keys = kept if self._shared_of is not None and len(kept) < len(keys) else []
        with self._lock:
            self._to_look = []
            if dropped > len(self._kept):
                self._kept = dict(self._kept)  # a dict that lost most of its keys does not shrink
        return dropped

    def forget(self) -> None:
        """Drop every key, whatever it owes and whether or not it is in use. For tests."""
        with self._lock:
            if self._watch is not None:
                self._watch.past = sum([member._totals().past for member in self._members()], self._watch.past)
            self._kept, self._to_look = {}, []

    async def aclose(self) -> None:
        """Close what is kept for every key. A shared limit that you made yourself stays open."""
        with self._lock:
            self._closed = True
        for member in self._members():
            await member.aclose()

    # Making. Functions of users run in `_make`, and nowhere else, and no lock is held then.

    def _add(self, key: K) -> V:
        """The member of a key that was not kept when it was looked up. If another thread is making it, wait for that."""
        me = get_ident()
        with _made if self._process else self._lock:
            while (maker := self._making.get(key, me)) != me:
                self._wait_for(key, maker, me)
            member = self._kept.get(key)
            if member is not None:
                return member
            self._check_open()
            self._check_key(key)
            if key in self._making:
                raise self._circle(key)
            if len(self._making) >= _MOST_NESTED and list(self._making.values()).count(me) >= _MOST_NESTED:
                raise ValueError(
                    f"{self._NAME}: shared= or the factory leads from key to key, and to {key!r} after {_MOST_NESTED} of them."
                    " At some key it must return None."
                )
            self._making[key] = me
        try:
            return self._keep(key, self._make(key))
        finally:
            with _made if self._process else self._lock:
                self._making.pop(key, None)
                if self._process:
                    _made.notify_all()

    def _wait_for(self, key: K, maker: int, me: int) -> None:
        """Wait until some key was made. Raises ValueError if the thread that makes this key waits for this thread."""
        thread: int | None = maker
        while thread is not None:
            if thread == me:
                raise self._circle(key)
            wanted = _wanted.get(thread)
            thread = None if wanted is None else wanted[0]._making.get(wanted[1])
        _wanted[me] = self, key
        try:
            _made.wait()
        finally:
            _wanted.pop(me, None)

    def _check_open(self) -> None:
        if self._closed:
            raise LimiterClosed(f"the {self._NAME} is closed, and adds no keys. Create a new one.")

    def _check_key(self, key: K) -> None:
        """Raise TypeError for keys of which no two are equal."""
        if isinstance(key, (str, tuple, int)):
            return
        if isinstance(key, _Request) and hash(key) == object.__hash__(key):
            raise TypeError(
                f"{self._NAME}: a request cannot be a key, because every request would get a limit of its own. Use what the limit is"
                " for, such as request.client.host or request.url.host."
            )
        if isinstance(key, CoroutineType):
            key.close()  # or Python would also warn that it was never awaited
            raise TypeError(f"{self._NAME}: a coroutine cannot be a key. Await it first: keyed.acquire(await find_user()).")

    def _circle(self, key: K) -> ValueError:
        return ValueError(
            f"{self._NAME}: {key!r} cannot share itself. While {key!r} was being made, the factory or shared= asked for it again."
        )

    def _make(self, key: K) -> V:
        shared = self._shared
        if self._shared_of is not None:
            given = self._call("shared=", self._shared_of, key)
            shared = None if given is None else self._check_shared(f"{self._NAME}(shared) for {key!r}", given)
        made = self._call("the factory", self._factory, key)
        try:
            member = self._member(key, made)
            if member is shared:
                raise ValueError("it is the limit that is shared: make one for each key.")
            self._join(member, shared)
        except TypeError as error:
            wrong = f": {error}" if isinstance(made, (list, tuple)) else "."
            raise TypeError(
                f"{self._NAME}: the factory must return {self._WANTED}; for {key!r} it returned {kind_of(made)}{wrong}"
            ) from error
        except ValueError as error:
            raise ValueError(f"{self._NAME}: the factory returned {made!r} for {key!r}: {error}") from error
        return member

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

    def _keep(self, key: K, member: V) -> V:
        """Make room for a new member, and keep it, unless this was closed meanwhile."""
        self._look(_LOOKS, 1)
        with self._lock:
            self._check_open()
            self._join_watch(key, member)
            self._kept[key] = member
            self._changed = True
        return member

    # Evicting.

    def _look(self, looks: int, more: int = 0) -> None:
        """Look at the next keys of a round, or of a new one, and drop those that are unused. There will be so many keys ``more``."""
        with self._lock:
            if not self._to_look:
                self._to_look, self._changed = [*reversed(self._kept)], False
            keys = self._to_look[-looks:]
            del self._to_look[-looks:]
        kept, idle, uses = self._kept, self._idle, self._uses
        for key in reversed(keys):
            member = kept.get(key)
            if member is None:
                continue
            node, member = member._node, None  # or it would be in use
            if len(kept) + more > self._max_keys:
                self._evict(key, node)
                continue
            if idle is None:  # by hand, because nearly all looks end here
                granted = node.granted
                if granted != node.seen:
                    node.seen, node.seen_at = granted, uses
                    continue
                if uses - node.seen_at < _UNUSED:
                    continue
                node.seen_at = uses  # if it owes something, it will for a while
            self._evict(key, node, idle)

    def _node_of(self, key: K) -> Node | None:
        member = self._kept.get(key)
        return None if member is None else member._node

    def _evict(self, key: K, node: Node, idle: int | None = None) -> bool:
        """Drop the key if it owes nothing, nobody holds what is kept for it, and it was not used for ``idle`` ns."""
        return node.tree.run(self._evict_if_rested, key, node, idle)

    def _evict_if_rested(self, key: K, node: Node, idle: int | None) -> bool:
        with self._lock:
            return self._evict_now(key, node, idle)

    def _evict_now(self, key: K, node: Node, idle: int | None) -> bool:
        try:
            rested = is_rested(node)
            if idle is not None:
                granted, reading = node.granted, node.read()
                if granted != node.seen:
                    node.seen, node.seen_at = granted, reading
                    return False
                if reading - node.seen_at < idle:
                    return False
        except Exception:  # of a strategy or a clock: a caller of that key sees it, not callers of others
            return False
        if not rested:
            return False
        member = self._kept.get(key)
        if member is None or member._node is not node:  # another thread was faster
            return False
        # A caller may still hold the member. If it survives removal from the dict, keep it.
        there = ref(member)
        counted = None if self._watch is None else member._totals().past
        try:
            del self._kept[key]
            self._changed = True
            in_use = not _OWNED_BY_THREADS or sys.getrefcount(member) > _references()
            del member
            held = there() if in_use else None
            if held is not None:
                self._kept[key] = held
                return False
        except BaseException:  # a signal handler's: a key in use must not be lost
            held = there()
            if held is not None:
                self._kept.setdefault(key, held)
            raise
        if self._watch is not None and counted is not None:
            self._watch.past += counted
        node.dismiss()
        if self._on_event is not None or _logger.isEnabledFor(DEBUG):
            tell = partial(emit, Event("evicted", node.name, key=key), self._on_event)
            node.tree.after(tell)
        return True


_OWNED_BY_THREADS = "free-threading build" in sys.version
"""Whether an object that nothing refers to may live until the thread that made it frees it, so that only a count tells."""


def _references() -> int:
    """What `sys.getrefcount` returns for an object to which one variable refers."""
    member = object()
    return sys.getrefcount(member)


_of_processes: WeakSet[Keyed[Any, Any]] = WeakSet()


_made = Condition()
"""Told when a key was made. Held while it is looked which keys are being made, and by whom."""
_wanted: dict[int, tuple[Keyed[Any, Any], Any]] = {}
"""Of threads that wait for a key that another is making: that key, and whose it is."""


def _after_fork() -> None:
    global _made
    _made = Condition()
    _wanted.clear()
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
