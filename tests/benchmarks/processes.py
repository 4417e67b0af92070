"""One limit, several processes, a real Valkey or Redis: what they get together, and what each gets.

Worker processes, each with many tasks that ask again and again, note the instants of their grants; all figures are computed from these.

* *delivered/asked*: permits, divided by what the rate of 1 000/s allows. *slowest/fastest*: the permits of the slowest process,
  divided by those of the fastest.
* *granted/limit*: the fullest window of one second, and of a tenth, divided by what the rate allows in it.
* *calls/permit*: scripts that the store ran, divided by the permits.
* *us*, out of reach: microseconds for an acquire where 50 tasks of one process ask at a rate that nobody reaches. Alone: microseconds
  (median) for an acquire of one task.

The floor is, in the first tables, a limiter for each process with a quarter of the rate, which shares nothing; in the last a script
that does nothing, called through the same client.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING

from helpers.local_store import Store

from benchmarks.conformance import most_in_any
from benchmarks.fleet import Event, fleet
from benchmarks.measure import Failed, Measured, Plan, alternate, part, run_in
from benchmarks.shared_peers import SHARED
from benchmarks.subjects import Calls, closed
from benchmarks.worker import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

__all__ = ["NAME", "TITLE", "Shares", "alone", "out_of_reach", "run", "together"]

NAME = "processes"
TITLE = "Processes: one limit for all of them, in Valkey or Redis"
RATE = 1_000.0
LEASE = {"lease": 0.05, "horizon": 0.05}
DELIVERED, GRANTED, CALLS, EVEN, US = "delivered/asked", "granted/limit", "calls/permit", "slowest/fastest", "us"
TOGETHER = "4 x 50 tasks"
SUBJECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "aiorate": ("aiorate", {}),
    "aiorate, lease 50 ms": ("aiorate", LEASE),
    **{name: (name, {}) for name in SHARED if name not in ("floor", "aiorate")},
}
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Shares:
    """The grants of all processes."""

    rate: float
    seconds: float
    begin: int
    grants: Sequence[Sequence[int]]
    """Of each process, those that were killed left out."""
    calls: int
    """Scripts that the store ran since it was last started."""
    errors: dict[str, int]

    @property
    def all(self) -> list[int]:
        """The instants of all grants, in order."""
        return sorted(instant for each in self.grants for instant in each)

    def fullest(self, seconds: float) -> float:
        """The fullest window of that length, divided by what the rate allows in it."""
        return most_in_any(round(seconds * _SECOND), self.all) / (self.rate * seconds)

    def delivered(self, since: float = 0.0, until: float | None = None) -> float:
        """Permits from one second to another, divided by what the rate allows."""
        until = self.seconds if until is None else until
        least, most = self.begin + round(since * _SECOND), self.begin + round(until * _SECOND)
        return sum(least <= instant < most for instant in self.all) / (self.rate * (until - since))

    @property
    def evenness(self) -> float:
        """The permits of the slowest process, divided by those of the fastest."""
        counts = [len(each) for each in self.grants]
        return min(counts) / max(counts) if any(counts) else 0.0

    def figures(self) -> dict[tuple[str, str], float]:
        """By unit and case."""
        return {
            (DELIVERED, TOGETHER): self.delivered(),
            (GRANTED, "any 1 s"): self.fullest(1.0),
            (GRANTED, "any 0.1 s"): self.fullest(0.1),
            (CALLS, TOGETHER): self.calls / max(1, len(self.all)),
            (EVEN, TOGETHER): self.evenness,
        }


def together(orders: Sequence[Order], store: Store, *events: Event) -> Shares:
    """The grants of a process for each order, which share one limit in that store, or in the one whose URL the order names."""
    store.send("FLUSHALL")
    before = store.calls()
    begin, records = fleet([replace(order, url=order.url or store.url) for order in orders], *events)
    left = [record for record in records if record is not None]
    errors: dict[str, int] = {}
    for record in left:
        for name, count in record.errors.items():
            errors[name] = errors.get(name, 0) + count
    calls = store.calls()
    calls = calls - before if calls >= before else calls  # fewer: it was started again
    return Shares(orders[0].rate, orders[0].seconds, begin, [record.grants for record in left], calls, errors)


def out_of_reach(store: Store, subject: str, options: dict[str, Any], seconds: float, tasks: int = 50) -> float:
    """Acquires per second of one process, at a rate that nobody reaches."""
    shares = together([Order("", 1e8, subject, options, tasks=tasks, seconds=seconds)], store)
    if shares.errors:
        raise Failed(f"raised {', '.join(shares.errors)}")
    return len(shares.all) / seconds


async def alone(url: str, subject: str, options: dict[str, Any], count: int) -> float:
    """Microseconds (median) for an acquire, or for a script that does nothing (subject "")."""
    if subject:
        calls = SHARED[subject](url, 1e6, options)
    else:
        from redis.asyncio import Redis

        client = Redis.from_url(url)
        digest = await client.script_load("return 0")
        calls = Calls(partial(client.evalsha, digest, 1, "bench"), close=client.aclose)
    assert calls.acquire is not None
    samples = []
    for _ in range(count):
        began = perf_counter_ns()
        await calls.acquire()
        samples.append((perf_counter_ns() - began) / 1_000)
        await asyncio.sleep(0)
    await closed(calls)
    return median(samples[count // 10 :])


def run(plan: Plan) -> Iterator[Measured]:
    """The accuracy of four processes, then throughput and latency of one."""
    seconds = plan.pick(0.5, 3.0, 5.0)
    plan = plan.at_most(3)
    subjects = _asked(plan)
    with Store() as store:
        floor = {"floor: a quarter of the rate for each": ("floor", {"processes": 4})}
        orders = {name: [Order("", RATE, *each, seconds=seconds)] * 4 for name, each in {**floor, **subjects}.items()}
        fleets = {(TOGETHER, name): partial(_accuracy, each, store) for name, each in orders.items()}
        for (_, name), shares in alternate(plan, fleets).items():
            for place, (unit, case) in enumerate(_COLUMNS):
                yield Measured.of(NAME, "", name, case, unit, part(shares, place))

        rates = {("out of reach", name): partial(_each, store, *each, seconds / 3) for name, each in subjects.items()}
        for (_, name), results in alternate(plan, rates).items():
            yield Measured.of(NAME, "", name, "out of reach", US, results)

        count = plan.pick(50, 2_000, 5_000)
        loop = plan.loops[0]
        jobs: dict[tuple[str, str], Callable[[], float]] = {
            ("alone", name): partial(_alone, store, loop, *each, count)
            for name, each in {"floor: a script that does nothing": ("", {}), **subjects}.items()
        }
        for (_, name), results in alternate(plan, jobs).items():
            yield Measured.of(NAME, "", name, "alone", US, results)


_COLUMNS = ((DELIVERED, TOGETHER), (EVEN, TOGETHER), (GRANTED, "any 1 s"), (GRANTED, "any 0.1 s"), (CALLS, TOGETHER))


def _asked(plan: Plan) -> dict[str, tuple[str, dict[str, Any]]]:
    """The subjects of the plan's libraries."""
    libraries = {_library(subject.name) for subject in plan.subjects}
    return {name: each for name, each in SUBJECTS.items() if _library(name) in libraries}


def _library(subject: str) -> str:
    return re.split("[-, ]", subject)[0]


def _accuracy(orders: Sequence[Order], store: Store) -> tuple[float, ...]:
    shares = together(orders, store)
    if shares.errors:
        raise Failed(f"raised {', '.join(shares.errors)}")
    figures = shares.figures()
    return tuple(figures[column] for column in _COLUMNS)


def _each(store: Store, subject: str, options: dict[str, Any], seconds: float) -> float:
    return 1e6 / out_of_reach(store, subject, options, seconds)


def _alone(store: Store, loop: str, subject: str, options: dict[str, Any], count: int) -> float:
    store.send("FLUSHALL")
    return run_in(loop, partial(alone, store.url, subject, options, count), 60)
