"""Slots: the steps of an open-loop schedule, which does not wait for the work done in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiorate._rate import ns_to_seconds

if TYPE_CHECKING:
    from aiorate._tree.limit import Limit


@dataclass(frozen=True, slots=True)
class Slot:
    """One step of an open-loop schedule."""

    index: int
    """Counts from 0, skipped slots included."""
    scheduled_at: float
    """Clock reading in seconds at which it was meant to start: measure response times from here."""
    lag: float
    """Seconds by which it starts late."""


class SlotCount:
    """The numbers of one schedule: the index of the next slot, and since when it stands in line."""

    __slots__ = ("_index", "_node", "_opened", "_since", "_skipped", "_spilled")

    def __init__(self, node: Limit) -> None:
        self._node = node
        self._index = 0
        self._since: int | None = None
        self._opened = self._skipped = self._spilled = 0

    def open(self) -> int:
        """Since when the next slot stands in line: since the previous one. A slow body is made up for as far as the limiter allows."""
        node = self._node
        self._opened, self._skipped = node.look_now(), node.counters.skipped
        self._spilled = node.scheduler._spilled
        return self._opened if self._since is None else max(self._since, self._opened - node.catch_up)

    def slot(self, at: int, at_once: bool) -> Slot:
        """The slot that was granted for the instant ``at``. The slots skipped before one that did not wait, nothing else has noticed."""
        node = self._node
        if self._index:
            spilled = max(0, node.scheduler._spilled - self._spilled)  # a reset() begins it again, and set_rate() rounds it
            if at_once:
                node.skip(spilled)
            self._index += max(0, node.counters.skipped - self._skipped)  # a reset() restarts their count
            if at < self._opened - node.catch_up:
                at += spilled  # the slot of that index, in place of the late one that was granted
        index, now, reading = self._index, node.look_now(), node.reading_at(at)
        self._index, self._since = index + 1, at
        return Slot(index, ns_to_seconds(at if reading is None else reading), ns_to_seconds(max(0, now - at)))
