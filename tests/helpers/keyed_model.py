"""A slow and plain model of a KeyedLimiter: for each limit a list and a scheduler, and a list of timers.

A request waits in its key's line; the first there, once due there, asks the shared limit, where keys take turns; both limits are spent
in one step, or neither. Whose turn it is, a `FairQueue` says, which is tested elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import aiorate
from aiorate.waiting.fair_queue import FairQueue, Flow
from helpers.driving import SECOND

CATCH_UP, MS = SECOND // 50, SECOND // 1000
EXACT = {"TokenBucket", "TokenBucket-paced", "SlidingWindow", "AllOf"}
"""Strategies with which a key that was evicted is granted at exactly the same instants as one that was kept."""
GAPS = [0, 0, 0, 1, 10 * MS, 50 * MS, 100 * MS, 137 * MS, SECOND - 1, 3 * SECOND]


@dataclass(eq=False)
class Request:
    """A request in line; ``key`` is None if it was made to the shared limit directly."""

    name: int
    key: str | None
    permits: int
    since: int


class Limit:
    """A line, a scheduler, and its own time, which stands still during a pause."""

    def __init__(self, scheduler: aiorate.Scheduler, clock: int) -> None:
        self.scheduler = scheduler
        self.clock = self.time = clock
        self.held_for = self.paused_until = 0
        self.line: list[Request] = []
        self.standing: Request | None = None  # of a key: its request in the shared line
        self.timer: tuple[int, int] | None = None  # when to look again, and the number of the timer

    @property
    def held(self) -> bool:
        return self.clock < self.paused_until

    def move_to(self, clock: int) -> None:
        moves_on = min(max(self.clock, self.paused_until), clock)
        self.held_for += moves_on - self.clock
        self.time += clock - moves_on
        self.clock = clock
        if not self.held and self.held_for:
            self.scheduler.shift(self.held_for)
            self.held_for = 0

    def take(self, permits: int, since: int) -> None:
        assert self.scheduler.take(permits, self.time, max(since, self.time - CATCH_UP)) <= self.time

    def due(self, permits: int) -> int:
        return self.scheduler.peek(permits, self.time)


class Model:
    """Limits by key and a shared one, moved from timer to timer."""

    def __init__(self, shared: aiorate.Scheduler | None) -> None:
        self.clock = 0
        self.shared = None if shared is None else Limit(shared, 0)
        self.keys: dict[str, Limit] = {}
        self.granted: dict[int, int] = {}
        self.timers = count()
        self.turns: FairQueue[Request] = FairQueue()  # of the shared limit
        self.flows: dict[str | None, Flow] = {}
        self.serving_shared = False

    @property
    def limits(self) -> list[Limit]:
        return [*self.keys.values(), *([] if self.shared is None else [self.shared])]

    @property
    def next(self) -> Request | None:
        """Whose turn it is in the shared line."""
        found = self.turns.first()
        return None if found is None else found[1]

    def run_to(self, clock: int) -> None:
        """Serve at each timer. Timers of one instant fire in the order in which they were set."""
        while woken := [limit for limit in self.limits if limit.timer is not None and limit.timer[0] <= clock]:
            first = min(woken, key=lambda limit: limit.timer)  # type: ignore[return-value, arg-type]
            self.move_to(max(first.timer[0], self.clock))  # type: ignore[index]
            first.timer = None
            self.serve(first)
        self.move_to(clock)

    def move_to(self, clock: int) -> None:
        self.clock = clock
        for limit in self.limits:
            limit.move_to(clock)

    def arm(self, limit: Limit, reading: int | None) -> None:
        if limit.timer is None or limit.timer[0] != reading:
            limit.timer = None if reading is None else (reading, next(self.timers))

    def serve(self, limit: Limit) -> None:
        (self.serve_shared if limit is self.shared else self.serve_key)(limit)

    def serve_key(self, key: Limit) -> None:
        """Grant what is due in the key's line, and let its first request join the shared line."""
        while key.line and not key.held:
            first = key.line[0]
            due = key.due(first.permits)
            if due > key.time:
                self.withdraw(key)
                return self.arm(key, key.clock + due - key.time)
            if self.shared is not None:
                if key.standing is not first:
                    self.withdraw(key)
                    if self.shared.line or self.shared.held or self.shared.due(first.permits) > self.shared.time:
                        key.standing = first
                        self.join_shared(self.shared, Request(first.name, first.key, first.permits, self.shared.time))
                        if key.standing is not first:
                            return None  # granted at once, since others have left: this line was served meanwhile
                if key.standing is first:
                    return self.arm(key, None)
                self.shared.take(first.permits, self.shared.time)
            key.take(first.permits, first.since)
            self.granted[first.name] = self.clock
            del key.line[0]
        self.withdraw(key)
        return self.arm(key, key.paused_until if key.line else None)

    def serve_shared(self, shared: Limit) -> None:
        """Grant what is due in the shared line; the key of each is served at once, and its next request may join."""
        if self.serving_shared:
            return
        self.serving_shared = True
        while shared.line and not shared.held:
            first = self.next
            assert first is not None
            due = shared.due(first.permits)
            if due > shared.time:
                self.arm(shared, shared.clock + due - shared.time)
                break
            shared.take(first.permits, first.since)
            self.granted[first.name] = self.clock
            self.leave_shared(shared, first, granted=True)
            if first.key is not None:
                key = self.keys[first.key]
                key.take(first.permits, key.time)  # no catch-up for the time in the shared line
                key.standing = None
                del key.line[0]
                self.serve_key(key)
        else:
            self.arm(shared, shared.paused_until if shared.line else None)
            if not shared.line:
                self.turns.forget()
        self.serving_shared = False

    def join_shared(self, shared: Limit, request: Request) -> None:
        """Add a request to the shared line. Direct callers are one flow, in which the first of them stands."""
        shared.line.append(request)
        flow = self.flows.setdefault(request.key, Flow(1))
        if not flow.number:
            self.turns.join(flow, request.permits, request)
        if len(shared.line) == 1 or self.next is request:
            self.serve_shared(shared)

    def leave_shared(self, shared: Limit, request: Request, granted: bool = False) -> None:
        """Remove a request from the shared line."""
        flow, was_next = self.flows[request.key], self.next is request
        stands = any(each is request for _, each in self.turns.requests())
        shared.line = [each for each in shared.line if each is not request]
        if stands:
            (self.turns.grant if granted else self.turns.leave)(flow)
            following = next((each for each in shared.line if each.key is None), None) if request.key is None else None
            if following is not None:
                self.turns.join(flow, following.permits, following)
        if was_next and not granted:
            self.serve_shared(shared)

    def withdraw(self, key: Limit) -> None:
        """Remove the key's request from the shared line."""
        if key.standing is not None:
            assert self.shared is not None
            name, key.standing = key.standing.name, None
            self.leave_shared(self.shared, next(request for request in self.shared.line if request.name == name))

    def of(self, key: str | None) -> Limit:
        return self.shared if key is None else self.keys[key]  # type: ignore[return-value]

    def path(self, key: str | None) -> list[Limit]:
        """The limits from which a request of that key takes."""
        return [self.of(key)] + ([] if key is None or self.shared is None else [self.shared])

    def ask(self, name: int, key: str | None, permits: int) -> None:
        limit = self.of(key)
        request = Request(name, key, permits, limit.time)
        if limit is self.shared:
            return self.join_shared(limit, request)
        limit.line.append(request)
        return self.serve(limit) if len(limit.line) == 1 else None

    def leave(self, name: int, key: str | None) -> None:
        limit = self.of(key)
        if limit is self.shared:
            return self.leave_shared(limit, next(each for each in limit.line if each.name == name))
        first, limit.line = limit.line[0], [request for request in limit.line if request.name != name]
        return self.serve(limit) if first.name == name else None

    def try_acquire(self, key: str | None, permits: int) -> bool:
        limits = self.path(key)
        if any(limit.line or limit.held or limit.due(permits) > limit.time for limit in limits):
            return False
        for limit in limits:
            limit.take(permits, limit.time)
        return True
