"""The demo of several processes: each with a limiter of its own, then all with one, and then the store is killed in the middle."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from aiorate._demo import report
from aiorate._demo.member import Order, Report
from aiorate._demo.server import ServerError, fetch_senders, server
from aiorate._demo.store import NoStore, Store
from aiorate._demo.verdict import judge, worst_window
from aiorate.rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from rich.console import Console

    from aiorate import Rate
    from aiorate._demo.verdict import Verdict

__all__ = ["Act", "run", "show"]

_AWAY = 0.5  # seconds for which the store is gone
_WARM = 0.5  # seconds in which the clients connect; they count for nothing but the bound
_TENTH = NS_PER_SECOND // 10


@dataclass(frozen=True, slots=True)
class Act:
    """One run of all processes. Instants are ns since its beginning."""

    name: str
    seconds: float
    arrivals: Sequence[tuple[int, int]]
    """Each with the number of its process."""
    grants: Sequence[int]
    errors: Sequence[str]
    calls: int
    """Scripts that the store ran."""
    killed_at: float | None = None

    @property
    def instants(self) -> list[int]:
        """Of the arrivals."""
        return [instant for instant, _ in self.arrivals]

    def per_second(self, sender: int | None = None) -> float:
        """Arrivals of a process, or of all, once the clients have connected."""
        warm = min(_WARM, self.seconds / 2)
        within = [who for instant, who in self.arrivals if warm * NS_PER_SECOND <= instant < self.seconds * NS_PER_SECOND]
        return (len(within) if sender is None else within.count(sender)) / (self.seconds - warm)


def run(rate: Rate, seconds: float, clients: int, port: int, processes: int, url: str | None) -> int:
    """Run the demo and show its results; returns the exit code: 0, 1 if the bound was broken, 2 if the demo could not run."""
    console = report.new_console()
    try:
        own = None if url else Store()
    except NoStore as error:
        return _refuse(f"{error}; or name a server: --server redis://localhost")
    try:
        where = url if own is None else f"a server of its own, on port {own.port}"
        console.print(Text(f"{rate} for {processes} processes with {clients} clients each; the store is {where}"))
        acts = asyncio.run(_acts(console, rate, seconds, clients, port, processes, url, own))
    except (ServerError, MemberError) as error:
        return _refuse(str(error))
    finally:
        if own is not None:
            own.stop()
    errors = [error for act in acts for error in act.errors]
    if errors:
        return _refuse(f"{len(errors)} requests failed, so this measured something else; the first: {errors[0]}")
    return 0 if show(console, rate, processes, acts) else 1


class MemberError(RuntimeError):
    """A client process could not do its work."""


async def _acts(
    console: Console, rate: Rate, seconds: float, clients: int, port: int, processes: int, url: str | None, own: Store | None
) -> list[Act]:
    where = url or (own.url if own else "")
    async with server(port) as site:
        alone = await _act(console, "a limiter for each process", site, [Order(site, "", str(rate), seconds, clients)] * processes, None)
        shared = [Order(site, where, str(rate), seconds, clients)] * processes
        acts = [alone, await _act(console, "one limiter for all", site, shared, own)]
        if own is not None:
            acts.append(await _act(console, "one, and the store is killed", site, shared, own, kill_at=seconds / 2))
    return acts


async def _act(console: Console, name: str, site: str, orders: Sequence[Order], store: Store | None, kill_at: float | None = None) -> Act:
    before = 0 if store is None else store.script_calls()
    async with _members(orders) as members:
        begin = monotonic_ns() + NS_PER_SECOND // 5
        for member in members:
            assert member.stdin is not None
            member.stdin.write(f"{begin}\n".encode())
        reports = asyncio.gather(*(_report(member) for member in members))
        calls = 0
        if kill_at is not None and store is not None:
            await asyncio.sleep(0.2 + kill_at)
            calls = store.script_calls()
            store.kill()
            await asyncio.sleep(_AWAY)
            await asyncio.to_thread(store.start)
            before = -calls
        done = await reports
        if store is not None:
            calls = store.script_calls() - before
    arrivals = [(instant - begin, sender) for instant, sender in await fetch_senders(site)]
    grants = sorted(instant - begin for each in done for instant in each.grants)
    console.print(Text(f"  {name}: {sum(each.answered for each in done)} requests answered in {orders[0].seconds:g} s"))
    return Act(name, orders[0].seconds, arrivals, grants, [error for each in done for error in each.errors], calls, kill_at)


@asynccontextmanager
async def _members(orders: Sequence[Order]) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    members: list[asyncio.subprocess.Process] = []
    try:
        for number, order in enumerate(orders):
            words = {**asdict(order), "url": f"{order.url}/{number}"}
            members.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "aiorate._demo.member", json.dumps(list(words.values()))),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    limit=1 << 26,
                    start_new_session=True,
                )
            )
        for member in members:
            assert member.stdout is not None
            if (await member.stdout.readline()).strip() != b"ready":
                raise MemberError(await _last_words(member))
        yield members
    finally:
        for member in members:
            if member.returncode is None:
                member.kill()
            await member.wait()


async def _report(member: asyncio.subprocess.Process) -> Report:
    assert member.stdout is not None
    line = await member.stdout.readline()
    if not line:
        raise MemberError(await _last_words(member))
    return Report(**json.loads(line))


async def _last_words(member: asyncio.subprocess.Process) -> str:
    assert member.stderr is not None
    lines = (await member.stderr.read()).decode(errors="replace").strip().splitlines()
    return f"a client process ended: {lines[-1] if lines else 'it does not say why'}"


def show(console: Console, rate: Rate, processes: int, acts: Sequence[Act]) -> bool:
    """Print the arrivals of each process, of all, and what became of the bound; returns whether that was kept."""
    asked = rate.per_second
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("arrivals per second")
    for act in acts:
        table.add_column(act.name, justify="right")
    for number in range(processes):
        table.add_row(f"process {number + 1}", *(f"{act.per_second(number):.1f}" for act in acts))
    table.add_row("all", *(f"{act.per_second():.1f}" for act in acts), style="bold")
    table.add_row("all / asked", *(f"{act.per_second() / asked:.1%}" for act in acts))
    second = [worst_window(sorted(act.instants), NS_PER_SECOND) for act in acts]
    table.add_row("fullest second", *map(str, second))
    table.add_row("calls to the store", *("-" if not act.calls else str(act.calls) for act in acts))
    table.add_row("calls per request", *("-" if not act.calls else f"{act.calls / max(1, len(act.grants)):.3f}" for act in acts))
    console.print(table)

    ends = [sum(act.seconds for act in acts[:number]) for number in range(len(acts) + 1)]
    late = [instant + round(begin * NS_PER_SECOND) for act, begin in zip(acts[1:], ends[1:], strict=False) for instant in act.instants]
    console.print(report.plot(console, acts[0].instants, late, asked, ends[1], ends[-1], "arrivals per second of all processes"))

    verdicts = [_verdict(rate, act) for act in acts[1:]]
    console.print(report.windows_table(verdicts[0]))
    for act in acts:
        if act.killed_at is not None:
            console.print(Text(_outage(act, asked)))
    kept = all(verdict.kept for verdict in verdicts)
    words = "Kept: no window holds more than the bound allows." if kept else "BROKEN: some window holds more than the bound allows."
    console.print(Text(words, "bold green" if kept else "bold red"))
    return kept


def _verdict(rate: Rate, act: Act) -> Verdict:
    """The grants against the bound, which is one permit and the rate, with 5 ms for a slot that is used late.

    After the loss of the store it also has what was booked then: at most the horizon of 20 ms, as long as anybody remembers.
    """
    late = 5_000_000 + (0 if act.killed_at is None else 20_000_000)

    def bound(window: int) -> int:
        return 1 + rate.permits_in(window + late) + 1

    windows = [window for window in (_TENTH, NS_PER_SECOND) if window <= act.seconds * NS_PER_SECOND]
    return judge(bound, act.grants, act.instants, windows or [_TENTH])


def _outage(act: Act, asked: float) -> str:
    assert act.killed_at is not None
    away, back = (round(seconds * NS_PER_SECOND) for seconds in (act.killed_at, act.killed_at + _AWAY))
    instants = sorted(act.instants)
    during = sum(away <= instant < back for instant in instants)
    first = next((instant for instant in instants if instant >= back), None)
    again = "nothing came after it" if first is None else f"requests came again {max(0, first - back) / 1e6:.0f} ms after its return"
    return (
        f"The store was killed at {act.killed_at:g} s and came back empty {_AWAY:g} s later. Meanwhile {during} requests came, whose"
        f" permits were booked before ({asked * _AWAY:.0f} would be the rate); {again}. No request failed."
    )


def _refuse(why: str) -> int:
    print(f"aiorate demo: {why}", file=sys.stderr)
    return 2
