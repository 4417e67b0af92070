"""A limit that a server does not tell, and that changes: how much of it is used, and how many requests are refused on the way.

Models of servers in virtual time, of every kind, and the same figures for each policy: aiorate's AdaptiveRate; additive increase and
multiplicative decrease (AIMD) with two usual sets of parameters; botocore's adaptive mode, by its own classes; and a plain limiter that
a refusal pauses, for as long as the server says or for a second. A policy starts at a tenth, at once and at ten times the true limit, and
botocore's at no limit, as it does. Round trips are of 5, 50 and 300 ms, with jitter. Means and worst figures are over starts and round
trips; the same seed has the same figures on any machine.

* *served/allowed*: requests served, over what an asker of unlimited speed could have had: 1 is all. A climb from a tenth counts.
* *% refused*: of all requests.
* *s*: from a fall of the limit, and from a rise, until 0.85 of the new limit is served.
* *Jain*: the index of fairness of three clients of one server: equal ones, ones that start late, and ones at different distances.

The last columns are in real time: clients of a real server on loopback whose limit falls from 60 to 20 per second and rises again.
``python tests/benchmarks/adaptive`` runs the models with parameters of your choice.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import TYPE_CHECKING

from aiorate import Limiter
from aiorate.adaptive import AdaptiveRate
from benchmarks.adaptive import kinds, policies, table
from benchmarks.measure import Measured, alternate, part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.adaptive.figures import Figures
    from benchmarks.measure import Plan

__all__ = ["NAME", "TITLE", "run"]

NAME = "adaptive"
TITLE = "A limit that is not known"
_UNLIMITED, _DEMAND = "unlimited", "demand"
_LENGTH = 8.0  # seconds of each limit of the real server


def run(plan: Plan) -> Iterator[Measured]:
    """Every policy against every kind of server, then real clients."""
    chosen = plan.pick(("window1", "equal"), tuple(kinds.KINDS), tuple(kinds.KINDS))
    round_trips = plan.pick((0.05,), table.ROUND_TRIPS, table.ROUND_TRIPS)
    rows: list[Measured] = []
    for name in policies.POLICIES:
        if name.startswith("botocore") and find_spec("botocore") is None:
            rows.append(Measured(NAME, "", name, kinds.KINDS[chosen[0]][0], "served/allowed, mean", (), "not installed"))
            continue
        subject = f"aiorate {name}" if name == "AdaptiveRate" else name
        for kind in chosen:
            if kind == _UNLIMITED and name != "AdaptiveRate":
                continue  # the others have no ceiling to climb to, or climb by constants
            plan.say(f"{name}: {kind}")
            rows += _rows(subject, kind, [table.simulate(cell)[0].figures for cell in table.cells([name], [kind], round_trips)])
    units = dict.fromkeys(row.unit for row in rows)
    yield from (row for unit in units for row in rows if row.unit == unit)
    yield from _real(plan)


def _rows(subject: str, kind: str, found: list[Figures]) -> Iterator[Measured]:
    words = kinds.KINDS[kind][0]

    def row(case: str, unit: str, value: float) -> Measured:
        return Measured(NAME, "", subject, case, unit, (value,))

    all_of = table.summarise(found)
    if kind == _UNLIMITED:
        yield row(f"{words}, from 1 % of it", "s, worst", all_of.reached)
    elif kind == _DEMAND:
        yield row(f"{words}: the highest rate", "per second", all_of.top)
    else:
        yield row(words, "served/allowed, mean", all_of.share)
        yield row(words, "served/allowed, worst", all_of.share_worst)
        yield row(words, "% refused, mean", all_of.refused)
        yield row(words, "% refused, worst", all_of.refused_worst)
        for what, time in (("fall", all_of.fall), ("rise", all_of.rise)):
            if time is not None:
                yield row(f"after a {what}", "s, worst", time)
        if all_of.jain is not None:
            yield row(words, "Jain, mean", all_of.jain)


def _real(plan: Plan) -> Iterator[Measured]:
    from benchmarks.adaptive import real, servers

    length = plan.pick(0.5, _LENGTH, _LENGTH)

    async def follow(client: str, limiter: Limiter | AdaptiveRate) -> tuple[float, float]:
        model = servers.Bucket(servers.Steps((0, 60), (length, 20), (2 * length, 60)), 5)
        async with real.serve(model) as seen:
            await real.follow(client, limiter, seen, 3 * length, lambda second: None)
        return len(seen.served) / model.allowed(round(3 * length * servers.SECOND)), 100 * seen.refusals()

    def job(client: str, make: Callable[[], Limiter | AdaptiveRate]) -> Callable[[], tuple[float, float]]:
        return lambda: asyncio.run(follow(client, make()))

    makes: dict[str, Callable[[], Limiter | AdaptiveRate]] = {
        "aiorate AdaptiveRate": lambda: AdaptiveRate(Limiter(120), 1, 2000),
        "a 429 pauses": lambda: Limiter(120),
    }
    jobs = {(name, client): job(client, make) for name, make in makes.items() for client in real.CLIENTS}
    found = alternate(plan, jobs)
    for place, unit in ((0, "served/allowed"), (1, "% refused")):
        for (name, client), values in found.items():
            yield Measured.of(NAME, "", name, f"real time, {client}", unit, part(values, place))
