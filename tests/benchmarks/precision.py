"""One consumer that asks again and again for one permit, of a limiter with a burst of 1.

The ideal grid begins with the first grant and has one permit in each interval.

* *us late*: the time from an instant of the grid until the consumer has its permit. p50 and p99 are the most for half of the
  permits and for 99 % of them.
* *drift*: how much slower than asked the whole run is. It is the growth of the median lateness from the first half of the run to the
  second, divided by the time between the two.
* *early*: the number of permits before their instant, on a grid that begins just before the first request. A subject with early
  permits has the remark *early*, because an early permit breaks the limit.
* *CPU a grant*: the processor's time of the process for each grant, the consumer included.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from time import monotonic_ns, process_time_ns
from typing import TYPE_CHECKING

from benchmarks.measure import Failed, Measured, Plan, alternate, in_tens, run_in
from benchmarks.subjects import Subject, of_aiorate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

NAME = "precision"
TITLE = "Precision: how late a permit comes"

SECOND = 1_000_000_000
RATES = (10, 100, 1_000, 5_000)
TIMEOUT = 30


@dataclass(frozen=True, slots=True)
class Paced:
    """The figures of one run: microseconds, parts per million, a count."""

    p50: float
    p99: float
    most: float
    drift: float
    cpu: float
    early: int


# The name of a column, the unit of its table, and its figure.
CASES: tuple[tuple[str, str, Callable[[Paced], float]], ...] = (
    ("p50", "us late", lambda paced: paced.p50),
    ("p99", "us late", lambda paced: paced.p99),
    ("max", "us late", lambda paced: paced.most),
    ("drift", "ppm", lambda paced: paced.drift),
    ("CPU a grant", "us", lambda paced: paced.cpu),
    ("early", "grants", lambda paced: paced.early),
)


def judge(asked: int, instants: Sequence[int], rate: int, cpu_ns: int) -> Paced:
    """Compare instants (ns) with the grid that begins at the first of them. ``asked`` is the instant just before the first request."""
    first = instants[0]
    # Rounded down, so that no permit counts as early by a fraction of a nanosecond.
    grid = [place * SECOND // rate for place in range(1, len(instants))]
    late = [instant - first - due for instant, due in zip(instants[1:], grid, strict=True)]
    early = sum(instant - asked < due for instant, due in zip(instants[1:], grid, strict=True))
    half = len(late) // 2
    if half:
        grown, between = median(late[half:]) - median(late[:half]), median(grid[half:]) - median(grid[:half])
    else:  # a single interval
        grown, between = late[0], grid[0]
    ordered = sorted(late)
    return Paced(
        p50=ordered[len(ordered) // 2] / 1_000,
        p99=ordered[len(ordered) * 99 // 100] / 1_000,
        most=ordered[-1] / 1_000,
        drift=grown / between * 1e6,
        cpu=cpu_ns / len(late) / 1_000,
        early=early,
    )


async def consume(subject: Subject, rate: int, seconds: float) -> Paced:
    """Ask for one permit after the other, for ``seconds``."""
    # The imports at first use are not the limiter's lateness.
    warm = subject.make(1_000, 1)
    assert warm.acquire is not None
    for _ in range(3):
        await warm.acquire()
    await subject.close(warm)

    calls = subject.make(rate, 1)
    assert calls.acquire is not None
    acquire, instants = calls.acquire, []
    count = max(3, round(rate * seconds))
    asked = monotonic_ns()
    await acquire()
    instants.append(monotonic_ns())
    until = asked + max(round(seconds * SECOND), 2 * SECOND // rate)
    cpu = process_time_ns()
    while len(instants) <= count and instants[-1] < until:
        await acquire()
        instants.append(monotonic_ns())
    cpu = process_time_ns() - cpu
    await subject.close(calls)
    return judge(asked, instants, rate, cpu)


def run(plan: Plan) -> Iterator[Measured]:
    """Every rate in every loop."""
    rates = plan.pick((1_000,), RATES, RATES)
    seconds = plan.pick(0.1, 1.0, 3.0)
    subjects = [*with_precise(plan.of("aiorate")), *plan.of("peer")]
    for loop in plan.loops:
        for rate in rates:
            case = f"{in_tens(rate)}/s"
            jobs = {(loop, case, each.name): partial(run_in, loop, partial(consume, each, rate, seconds), TIMEOUT) for each in subjects}
            for (_, _, name), results in alternate(plan.at_most(3), jobs).items():
                yield from rows(loop, name, case, results)


def rows(loop: str, name: str, case: str, results: Sequence[Paced | Failed]) -> Iterator[Measured]:
    """The columns of one subject at one rate."""
    early = sum(result.early for result in results if isinstance(result, Paced))
    for what, unit, figure in CASES:
        values = (result if isinstance(result, Failed) else figure(result) for result in results)
        remark = "early" if early and unit != "grants" else ""
        yield Measured.of(NAME, loop, name, f"{case} {what}", unit, values, remark)


def with_precise(subjects: Sequence[Subject]) -> Iterator[Subject]:
    """Each strategy twice: with the loop's timer, and with the kernel's."""
    for subject in subjects:
        yield subject
        yield of_aiorate(subject.name.removeprefix("aiorate "), precise=True)
