"""Slots: the steps of an open-loop schedule, which does not wait for the work done in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiorate._rate import ns_to_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

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


async def slots_of(node: Limit) -> AsyncGenerator[Slot, None]:
    """The slots of a limit, each in line since the previous one, so that the limit can make up for a slow body."""
    index, since = 0, None

    def slot(waited: int, at: int, opened: int, skipped: int, spilled: int) -> Slot:
        nonlocal index, since
        if index:
            spilled = max(0, node.scheduler._spilled - spilled)  # a reset() begins it again, and set_rate() rounds it
            if not waited:  # nothing else has noticed what was skipped before it
                node.skip(spilled)
            index += max(0, node.counters.skipped - skipped)  # a reset() restarts their count
            if at < opened - node.catch_up:
                at += spilled  # the slot of that index, in place of the late one that was granted
        now, reading = node.look_now(), node.reading_at(at)
        index, since = index + 1, at
        return Slot(index - 1, ns_to_seconds((at if reading is None else reading) + node.tree.shift), ns_to_seconds(max(0, now - at)))

    while True:
        opened, *before = node.tree.run(lambda: (node.look_now(), node.counters.skipped, node.scheduler._spilled))
        waited, at, _ = await node.acquire(1, None, opened if since is None else max(since, opened - node.catch_up))
        yield node.tree.run(slot, waited, at, opened, *before)
