"""Which of several flows is served next, so that each gets its share of the permits, by weight.

A flow has at most one request here at a time. Virtual time is what each flow would have been served by now, for each unit of its weight,
if permits could be divided among all flows at once. A flow that has not been served ahead of that is eligible, and the next one is the
eligible flow that would be finished first, were each request for one permit: WF2Q+ (Bennett and Zhang, 1997), without its favour for small
requests. Start-time fair queuing has no test of eligibility, and serves all light flows in a row before a heavy one again.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar

R = TypeVar("R")

_SCALE = 1 << 40  # units of virtual time for a permit at weight 1
_SMALL = 32


class Flow:
    """Requests that take turns with those of other flows, and its share: ``weight`` of the sum of all weights."""

    __slots__ = ("cost", "left_at", "number", "order", "served", "weight")

    def __init__(self, weight: int) -> None:
        self.weight: int = weight
        self.served: int = 0  # the virtual time up to which it has been served
        self.cost: int = 0  # the virtual time that its request takes
        self.number: int = 0  # that of its request; 0: it has none here
        self.order: int = 0  # its place among flows that were served alike, by arrival; 0: its next request gets one
        self.left_at: int = -1
        """After how many grants its latest request left; as long as none follows, it has lost nothing."""


class FairQueue(Generic[R]):
    """The requests of many flows, one of each. What is done takes logarithmic time."""

    __slots__ = ("_count", "_early", "_grants", "_latest", "_ready", "_time", "_weights", "length")

    def __init__(self) -> None:
        self.length: int = 0  # how many flows have a request here
        self._time = self._latest = 0  # virtual time, and the latest up to which a flow was served
        self._weights = 0  # of the flows with a request
        self._count = self._grants = 0
        # Entries whose number is not that of their flow are gone.
        self._ready: list[tuple[int, int, int, Flow, R]] = []  # of eligible flows, by when one permit would be finished
        self._early: list[tuple[int, int, int, Flow, R]] = []  # of flows that were served ahead of virtual time, by the time of their start

    def join(self, flow: Flow, permits: int, request: R) -> None:
        """Add the request of a flow that has none here."""
        self.length += 1
        self._weights += flow.weight
        self._count += 1
        flow.number = self._count
        if flow.left_at != self._grants:
            flow.served, flow.order = max(flow.served, self._time), 0
        flow.order = flow.order or self._count
        # Rounded up, so that it is not 0: a budget that takes nothing here would hold up the others for ever.
        flow.cost = -(-max(permits, 1) * _SCALE // flow.weight)
        self._put(flow, request)

    def first(self) -> tuple[Flow, R] | None:
        """The flow that is served next, and its request; None: no flow has one."""
        self._release()
        if not self._ready and self._early:
            self._time = self._early[0][0]  # those that were behind have left
            self._release()
        return self._ready[0][3:] if self._ready else None

    def may_be_first(self, flow: Flow) -> bool:
        """Whether its request is the next, as far as that is seen at a glance."""
        self._release()
        return not self._ready or self._ready[0][3] is flow

    def grant(self, flow: Flow) -> None:
        """The flow's request is granted, and leaves."""
        self._time += flow.cost * flow.weight // self._weights
        flow.served += flow.cost
        self._latest = max(self._latest, flow.served)
        flow.order = 0
        self._grants += 1
        self.leave(flow)

    def leave(self, flow: Flow) -> None:
        """The flow's request leaves. If it was not granted, and the flow joins again before the next grant, it has lost nothing."""
        if flow.number:
            flow.number, flow.left_at = 0, self._grants
            self.length -= 1
            self._weights -= flow.weight
            if len(self._ready) + len(self._early) > 2 * self.length + _SMALL:
                self._tidy()

    def forget(self) -> None:
        """No request is left, and none joins at once: what was served until now counts no longer."""
        self._time = self._latest

    def requests(self) -> list[tuple[Flow, R]]:
        """All requests here, in no order."""
        return [(flow, request) for _, _, number, flow, request in self._ready + self._early if flow.number == number]

    def before(self, flow: Flow, ahead: int, most: int) -> list[R]:
        """The requests that are served before one of that flow with so many permits ``ahead`` of it there, in no order.

        Only the first ``most`` that are eligible are looked at.
        """
        self._release()
        known = flow.number or flow.left_at == self._grants
        finish = (flow.served if known else max(flow.served, self._time)) + (ahead + 1) * _SCALE // flow.weight
        order = (finish, flow.order) if known and flow.order else (finish + 1, 0)
        return [
            request
            for end, place, number, each, request in self._ready[:most]
            if each is not flow and each.number == number and (end, place) < order
        ]

    def _tidy(self) -> None:
        requests = self.requests()
        self._ready.clear()
        self._early.clear()
        for flow, request in requests:
            self._put(flow, request)

    def _put(self, flow: Flow, request: R) -> None:
        if flow.served > self._time:
            heappush(self._early, (flow.served, flow.order, flow.number, flow, request))
        else:
            heappush(self._ready, (flow.served + _SCALE // flow.weight, flow.order, flow.number, flow, request))

    def _release(self) -> None:
        """Flows with which virtual time has caught up are eligible."""
        ready, early = self._ready, self._early
        while ready and ready[0][3].number != ready[0][2]:
            heappop(ready)
        while early and (early[0][0] <= self._time or early[0][3].number != early[0][2]):
            _, _, number, flow, request = heappop(early)
            if flow.number == number:
                self._put(flow, request)
