"""Which of several flows is served next, so that each gets its share of the permits, by weight.

A flow has at most one request here at a time. Virtual time is what each flow would have been served by now, for each unit of its weight,
if permits could be divided among all flows at once. A flow that has not been served ahead of that is eligible. The next one is the
eligible flow that would be finished first if each had a request of the largest size: WF2Q (Bennett and Zhang, 1996) and EEVDF (Stoica and
Abdel-Wahab, 1995), without a reward for small requests. So no flow is ahead of its share or behind it by more than one largest request,
and flows of equal weight that have been served equally go in order of arrival. Start-time fair queuing has no test of eligibility, and
serves all light flows in a row before a heavy one again.
Whole numbers only. Knows nothing of rates, time, lines or how a waiter is woken.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar

R = TypeVar("R")

_SCALE = 1 << 40  # units of virtual time for a permit at weight 1
_SMALL = 32


class Flow:
    """Requests that take turns with those of other flows, and its share: ``weight`` of the sum of all weights."""

    __slots__ = ("cost", "number", "order", "period", "served", "weight")

    def __init__(self, weight: int) -> None:
        self.weight: int = weight
        self.served: int = 0
        """The virtual time up to which it has been served."""
        self.cost: int = 0
        """The virtual time that its request takes."""
        self.number: int = 0
        """The number of its request; 0: it has none here."""
        self.order: int = 0
        """Its place among flows that were served alike, by arrival; 0: its next request gets one."""
        self.period: object = None
        """The busy period of the queue in which it is active: it has a request, or has been served ahead of virtual time."""


class FairQueue(Generic[R]):
    """The requests of many flows, one of each. `join`, `first` and `grant` take logarithmic time."""

    __slots__ = ("_ahead", "_count", "_early", "_idle", "_largest", "_left", "_period", "_ready", "_seen", "_time", "_weights", "length")

    def __init__(self) -> None:
        self.length: int = 0
        """How many flows have a request here."""
        self._time = 0  # virtual time
        self._weights = 0  # of the active flows
        self._period = object()
        self._count = 0
        self._largest = 1  # a power of two, and not less than any request here
        self._seen = 1  # the largest request since it was set
        self._left = _SMALL  # grants until it may be lowered
        # Entries whose number is not that of their flow are gone.
        self._ready: list[tuple[int, int, int, Flow, R]] = []  # of eligible flows, by when the largest request would be finished
        self._early: list[tuple[int, int, int, Flow, R]] = []  # of flows that were served ahead of virtual time, by the time of their start
        self._idle: dict[Flow, None] = {}  # flows without a request since the last grant, which are active at least until the next
        self._ahead: list[tuple[int, int, Flow]] = []  # flows without a request, active until virtual time reaches that number

    def join(self, flow: Flow, permits: int, request: R) -> None:
        """Add the request of a flow that has none here."""
        if flow.period is not self._period:
            flow.period, flow.served = self._period, self._time
            self._weights += flow.weight
        if permits > self._seen:
            self._seen = permits
            if permits > self._largest:
                self._set_largest(permits)
        elif permits < 1:  # a budget that takes nothing here would hold up the others forever
            permits = 1
        self.length += 1
        self._count += 1
        flow.number = self._count
        if flow not in self._idle or not flow.order:
            flow.order = self._count
        flow.cost = -(-permits * _SCALE // flow.weight)  # rounded up, so that it is not 0
        self._put(flow, request)

    def first(self) -> tuple[Flow, R] | None:
        """The flow that is served next, and its request; None: no flow has one."""
        ready, early = self._ready, self._early
        while True:
            while ready:
                _, _, number, flow, request = ready[0]
                if flow.number == number:
                    return flow, request
                heappop(ready)
            while early and early[0][3].number != early[0][2]:
                heappop(early)
            if not early:
                return None
            self._time = max(self._time, early[0][0])  # those that were behind have left
            self._release()

    def may_be_first(self, flow: Flow) -> bool:
        """Whether its request is the next, as far as that is seen at a glance."""
        ready = self._ready
        return not ready or ready[0][3].number != ready[0][2] or ready[0][3] is flow

    def grant(self, flow: Flow) -> None:
        """The flow's request is granted, and leaves."""
        for other in self._idle:
            if not other.number and other.period is self._period:
                self._count += 1
                heappush(self._ahead, (other.served, self._count, other))
        self._idle.clear()
        work = flow.cost * flow.weight
        if self._ahead:
            work = self._advance(work)
        self._time += work // self._weights
        flow.served += flow.cost
        self._part(flow)
        flow.order = 0
        if self._early:
            self._release()
        self._left -= 1
        if self._left < 0:
            seen, self._seen = self._seen, 1
            self._set_largest(seen)

    def leave(self, flow: Flow) -> None:
        """The flow's request leaves and was not granted. If the flow joins again before the next grant, it has lost nothing."""
        if not flow.number:
            return
        self._part(flow)
        if len(self._ready) + len(self._early) > 2 * self.length + _SMALL:
            self._tidy()

    def forget(self) -> None:
        """No request is left, and none joins at once: what was served until now counts no longer."""
        if self._weights:
            self._time = self._weights = 0
            self._period = object()
            self._idle.clear()
            self._ahead.clear()

    def requests(self) -> list[tuple[Flow, R]]:
        """All requests here, in no order."""
        return [(flow, request) for _, _, number, flow, request in self._ready + self._early if flow.number == number]

    def before(self, flow: Flow, ahead: int, most: int) -> list[R]:
        """The requests that are served before one of that flow with so many permits ``ahead`` of it there, in no order.

        Only the first ``most`` that are eligible are looked at.
        """
        since = self._time if flow.period is not self._period else flow.served
        finish = since + (ahead + self._largest) * _SCALE // flow.weight
        order = (finish, flow.order) if flow.number or (flow.order and flow in self._idle) else (finish + 1, 0)
        return [
            request
            for end, place, number, each, request in self._ready[:most]
            if each is not flow and each.number == number and (end, place) < order
        ]

    def _finish(self, flow: Flow) -> int:
        return flow.served + self._largest * _SCALE // flow.weight

    def _set_largest(self, permits: int) -> None:
        """Set it to no less than ``permits``, and again after as many grants as pay for that."""
        self._left = 2 * self.length + _SMALL
        for flow, _ in self.requests():
            permits = max(permits, flow.cost * flow.weight // _SCALE)
        largest = 1 << (permits - 1).bit_length()
        if largest != self._largest:
            self._largest = largest
            self._tidy()

    def _tidy(self) -> None:
        """Put the entries in order again, without those that are gone."""
        requests = self.requests()
        self._ready.clear()
        self._early.clear()
        for flow, request in requests:
            self._put(flow, request)

    def _put(self, flow: Flow, request: R) -> None:
        if flow.served > self._time:
            heappush(self._early, (flow.served, flow.order, flow.number, flow, request))
        else:
            heappush(self._ready, (self._finish(flow), flow.order, flow.number, flow, request))

    def _part(self, flow: Flow) -> None:
        flow.number = 0
        self.length -= 1
        self._idle[flow] = None

    def _advance(self, work: int) -> int:
        """Flows without a request leave, each when virtual time has caught up with it; returns the rest of the work until now."""
        ahead = self._ahead
        while ahead:
            served, _, flow = ahead[0]
            if flow.number == 0 and flow.served == served and flow.period is self._period:
                needed = (served - self._time) * self._weights
                if needed > work:
                    break
                if needed > 0:
                    work -= needed
                    self._time = served
                self._weights -= flow.weight
                flow.period = None
            heappop(ahead)
        return work

    def _release(self) -> None:
        """Flows with which virtual time has caught up are eligible."""
        early = self._early
        while early and early[0][0] <= self._time:
            _, order, number, flow, request = heappop(early)
            if flow.number == number:
                heappush(self._ready, (self._finish(flow), order, number, flow, request))
