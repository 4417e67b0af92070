"""The tree: the event loop of all limits that share each other, when to look at each, and how to decide where many threads ask.

A limiter that shares nothing is a tree of one, and keys without a shared limit are a tree without a root. One timer serves all of them. It
is a hint, the clock is the judge: the code that is woken looks, and sets the timer again, for at least a millisecond later.
"""

from __future__ import annotations

from functools import partial
from heapq import heapify, heappop, heappush
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakSet

from aiorate._loops.loop import call_back
from aiorate._loops.table import loop_here, running_loop
from aiorate._meter import FAR
from aiorate._rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    from aiorate._loops.loop import Clock, Handle, Loop, OneLoop, ReadClock, Ticket

    P = ParamSpec("P")
    T = TypeVar("T")


_SMALL = 32
_MOST = 1_000  # callers woken in one iteration of a loop; more would delay the next for too long
_GRAIN_NS = 1_000_000  # between wake-ups: timers that fire early must not make a limiter spin (uvloop#233)
_LONGEST_NS = 86_400 * NS_PER_SECOND  # not all loops can wait for longer; the clock is read again then

Member: TypeAlias = Any  # a `Node`, which knows its tree


class Tree:
    """One event loop and one timer for all limits that share each other."""

    __slots__ = (
        "__weakref__",
        "_early",
        "_fired_at",
        "_handle",
        "_heap",
        "_members",
        "_most",
        "_number",
        "_set_for",
        "begun",
        "clock",
        "epoch",
        "loop",
        "manual",
        "most",
        "precise",
        "read",
        "resuming",
        "shift",
        "steady",
    )

    threads: bool = False  # whether callers of several loops and threads may ask

    def __init__(self, clock: Clock | None = None, precise: bool = False) -> None:
        self.clock: Clock | None = clock
        self.manual: bool = hasattr(clock, "call_at")  # whether the clock keeps its own timers, and time does not pass by itself
        self.most: int = FAR if self.manual else _MOST  # tasks woken in one iteration of the loop
        self.precise: bool = precise
        self.read: ReadClock = monotonic_ns if clock is None else clock.now
        self.shift: int = 0  # how many ns that is ahead of the time of the limits, which went by other clocks before
        self.begun: bool = False  # whether anybody has asked yet: time must go on from there
        self.loop: Loop | None = None  # the loop of its callers; None: not used in a loop yet
        self.epoch: int = 0  # goes up when another loop is used: requests of before are gone
        self.resuming: int = 0  # requests that were granted and whose tasks have not gone on yet
        self._members: WeakSet[Member] | None = None  # the shared ones, and those where somebody has waited

    # Where many threads ask, `aiorate._tree.threads` does these otherwise, and makes one decision at a time.

    def run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function that decides."""
        return call(*args, **options)

    def post(self, call: Callable[[], object]) -> None:
        """Call a function that decides, and never wait, also in a finalizer that interrupted a decision."""
        call()

    @property
    def deciding(self) -> bool:
        """Whether a strategy, or a finalizer that interrupted a decision, calls."""
        return False

    def change(self, call: Callable[P, object], *args: P.args, **options: P.kwargs) -> None:
        """Call a function that changes something; in a finalizer that interrupted a decision, right after it."""
        (self.post if self.deciding else self.run)(partial(call, *args, **options))

    def after(self, call: Callable[[], object], /) -> None:
        """Call a function that may use the limiter, once the present decision is over."""
        call()

    # The loop.

    def now(self) -> int:
        """What the clock reads, as if it had always been the same one."""
        return self.read() - self.shift

    def here(self) -> Loop | None:
        """The loop that runs, which is used from now on; None: there was none yet. RuntimeError if it is in use in another that runs."""
        native, old = running_loop(), self.loop
        if old is not None:
            if native is old.native:
                return old
            if old.running:
                raise RuntimeError(
                    "this limiter is in use by another running event loop. For several loops or threads, create it with scope='process'."
                )
            if native is None and not old.closed:
                return old
            self.disband(old.forked)
        self._use(loop_here())
        return self.loop

    def _use(self, loop: Loop | None) -> None:
        if loop is not None and self.clock is None and loop.read is not self.read:
            if self.begun:
                self.shift += loop.read() - self.read()
            self.read = loop.read
        self.loop, self.begun = loop, True
        self.steady = loop is not None and loop.steady and self.clock is None  # whether its meters may go by the loop's clock
        self._handle: Handle | None = None
        self._set_for: int | None = None
        self._early = 0  # how often the timer fired before that reading
        self._fired_at: int | None = None
        self._heap: list[tuple[int, int, Member, Ticket | None]] = []
        self._most = _SMALL  # entries before those that are over are removed
        self._number = 0

    def starved(self) -> OneLoop | None:
        """The caller's loop, if the calling task must await its `turn`. By real time: virtual time does not keep others waiting."""
        return None if self.loop is None or self.manual else self.loop.starved()

    def call_at(self, reading: int, callback: Callable[[], object]) -> Handle:
        """Call back, in a decision, at about ``reading`` by `now`."""
        loop, clock = self.loop, self.clock
        assert loop is not None  # since somebody waits
        if self.manual:  # the clock may outlive the loop, and a closed loop wakes no task
            return clock.call_at(reading, lambda: None if loop.closed else self.run(callback))  # type: ignore[no-any-return, union-attr]
        return loop.call_after(min(max(reading - self.now(), 0), _LONGEST_NS), callback, self.precise)

    def disband(self, forked: bool) -> None:
        """The loop is no longer used: its requests are gone, and fail if their loop can still wake them."""
        self.epoch += 1
        self.resuming = 0
        for member in list(self._members or ()):
            member.disband(forked)
        if not forked:
            call_back(partial(self._set, None), "as its event loop was left")

    def add(self, member: Member) -> None:
        """Others share that limit, or somebody waits there for the first time."""
        if self._members is None:
            self._members = WeakSet()
        self._members.add(member)

    # When to look.

    def wake(self, limit: Member, reading: int | None) -> None:
        """Look at the limit when the clock reads that; None: not before something changes."""
        if reading != limit.wake_at:
            limit.wake_at = reading
            if reading is not None:
                self._number += 1
                heappush(self._heap, (reading, self._number, limit, None))
        self._aim()  # in any case: the first may be of a request that was just granted

    def limit_wait(self, limit: Member, until: int, ticket: Ticket) -> None:
        """Have a request in line fail at that reading."""
        self._number += 1  # of requests with the same deadline, the first to join gives up first
        heappush(self._heap, (until, self._number, limit, ticket))
        self._aim()

    def _holds(self, entry: tuple[int, int, Member, Ticket | None]) -> bool:
        at, _, limit, ticket = entry
        return bool(limit.wake_at == at if ticket is None else not (ticket.left or ticket.done()))

    def _aim(self) -> None:
        heap = self._heap
        while heap and not self._holds(heap[0]):
            heappop(heap)
        self._most -= 1
        if len(heap) > max(self._most, _SMALL):  # they would pile up behind the first
            heap[:] = [entry for entry in heap if self._holds(entry)]
            heapify(heap)
            self._most = 2 * len(heap) + _SMALL
        self._set(heap[0][0] if heap else None)

    def _set(self, reading: int | None) -> None:
        """Wake when the clock reads that; None: never."""
        if self._handle is not None:
            if reading == self._set_for:
                return
            handle, self._handle = self._handle, None  # first: a signal handler may raise after any call
            handle.cancel()
        self._early = self._early + 1 if reading == self._set_for else 0
        self._set_for = reading
        if reading is not None:
            if self._fired_at is not None:  # a timer of the kernel may follow at once, unless it was early
                reading = max(reading, self._fired_at + max(self._early, not self.precise or self.read is not monotonic_ns) * _GRAIN_NS)
            self._handle = self.call_at(reading, self._ring)

    def _ring(self) -> None:
        """Look at the limits that are due, and fail the requests whose time is over."""
        heap, most = self._heap, self.most
        self._handle = self._fired_at = None
        due: list[Member] = []  # a limit that wants to be looked at again waits for the loop to turn, even if the clock stands still
        over: dict[Member, list[Ticket]] = {}
        try:
            self._fired_at = reading = self.now()
            while heap and heap[0][0] <= reading and most:
                entry = heappop(heap)
                if self._holds(entry):
                    _, _, limit, ticket = entry
                    if ticket is None:
                        limit.wake_at = None
                        due.append(limit)
                    else:
                        most -= 1
                        over.setdefault(limit, []).append(ticket)
            for limit in due:
                if over:  # whoever is due is granted first
                    limit.look()
                else:
                    limit.ring()
            for limit, tickets in over.items():
                limit.expire(tickets)
            self._aim()
        except Exception as error:  # a broken clock: nobody hangs
            for limit in dict.fromkeys([*due, *over, *[entry[2] for entry in heap]]):
                limit.fail(error)
