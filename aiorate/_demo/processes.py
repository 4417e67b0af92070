"""The demo of several processes: each with its own limiter, then all with one, and then the store is killed in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from time import monotonic_ns
from typing import TYPE_CHECKING

from redis import Redis, RedisError
from rich import box
from rich.table import Table
from rich.text import Text

from aiorate._demo import report
from aiorate._demo.children import NEW_GROUP
from aiorate._demo.member import Order, Report
from aiorate._demo.server import ServerError, fetch_senders, server
from aiorate._demo.store import NoStore, Store
from aiorate._demo.verdict import judge, worst_window
from aiorate.rate import NS_PER_SECOND
from aiorate.redis.address import check_url, shown

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Sequence
    from typing import Any

    from rich.console import Console

    from aiorate import Rate
    from aiorate._demo.verdict import Verdict

__all__ = ["Act", "run", "show"]

_AWAY = 0.5  # seconds for which the store is gone, or a quarter of the run if that is shorter
_WARM = 0.5  # seconds in which the clients connect; they count for the bound only
_ANSWER = 5.0  # seconds in which the given server must answer
_SLACK, _HORIZON = 5_000_000, 20_000_000  # the defaults of a RedisLimiter, in ns
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
    calls: int | None = None
    """Scripts that the store ran; None: unknown, or no store was used."""
    answer: int = 0
    """How long (ns) the slowest answer of the store took."""
    outage: tuple[float, float] | None = None
    """The seconds at which the store was killed, and at which it was back."""

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
    """Run the demo and show its results; returns the exit code: 0, 1 if the bound was broken, 2 if the demo could not run.

    ``url`` is that of a server; None: one is started, and killed in the middle of a third act.
    """
    console = report.new_console()
    own: Store | None = None
    try:
        if url is None:
            own = Store()
            what = f"its own server, on port {own.port}"
        else:
            url = re.sub(r"^valkey", "redis", url)  # the same protocol
            _ask(url)
            what = shown(url)
        console.print(Text(f"{rate} for {processes} processes with {clients} clients each; the store is {what}"))
        acts = asyncio.run(_acts(console, rate, seconds, clients, port, processes, url or "", own))
    except NoStore as error:
        return _refuse(f"{error}; or name a server: --server redis://localhost")
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
    """A client process or the given server failed."""


async def _acts(
    console: Console, rate: Rate, seconds: float, clients: int, port: int, processes: int, url: str, own: Store | None
) -> list[Act]:
    where = own.url if own else url
    name = f"aiorate-demo-{os.getpid()}-{monotonic_ns()}"  # unused elsewhere
    async with server(port) as site, _members(processes) as members:
        orders = [Order(f"{site}/{number}", "", name, str(rate), seconds, clients) for number in range(processes)]
        alone = await _act(console, "a limiter for each process", site, members, orders)
        orders = [replace(order, store=where) for order in orders]
        acts = [alone, await _act(console, "one limiter for all", site, members, orders)]
        if own is not None:
            acts.append(await _act(console, "one, and the store is killed", site, members, orders, own))
    return acts


async def _act(
    console: Console, name: str, site: str, members: Sequence[Process], orders: Sequence[Order], victim: Store | None = None
) -> Act:
    """Have the orders carried out at once, and the victim killed in the middle."""
    seconds, where = orders[0].seconds, orders[0].store
    outage = None if victim is None else (seconds / 2, seconds / 2 + min(_AWAY, seconds / 4))
    before = await _script_calls(where)
    counted = 0
    for member, order in zip(members, orders, strict=True):
        _tell(member, json.dumps(asdict(order)))
    for member in members:
        await _line(member)  # ready
    begin = monotonic_ns() + NS_PER_SECOND // 5
    for member in members:
        _tell(member, str(begin))
    reports = asyncio.gather(*(_line(member) for member in members))
    if victim is not None and outage is not None:
        await _until(begin, outage[0])
        counted, before = (await _script_calls(where) or 0) - (before or 0), 0
        victim.kill()
        await _until(begin, outage[1])
        await asyncio.to_thread(victim.start)
    done = [Report(**json.loads(line)) for line in await reports]
    after = await _script_calls(where)
    calls = None if before is None or after is None else counted + after - before
    arrivals = [(instant - begin, sender) for instant, sender in await fetch_senders(site)]
    grants = sorted(instant - begin for each in done for instant in each.grants)
    console.print(Text(f"  {name}: {sum(each.answered for each in done)} requests answered in {seconds:g} s"))
    errors = [error for each in done for error in each.errors]
    return Act(name, seconds, arrivals, grants, errors, calls, max(each.answer for each in done), outage)


async def _until(begin: int, seconds: float) -> None:
    await asyncio.sleep(max(0.0, seconds - (monotonic_ns() - begin) / NS_PER_SECOND))


async def _script_calls(url: str) -> int | None:
    """The number of scripts that the store ran since its start, for any client; None if it is unknown, or there is no store."""
    if not url:
        return None
    try:
        statistics = await asyncio.to_thread(_ask, url, "INFO", "commandstats")
    except MemberError:
        return None
    calls: int = sum(statistics.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))
    return calls


def _ask(url: str, *words: str) -> Any:
    """The answer of the server to a command, PING by default. Raises MemberError."""
    try:
        check_url(url)
        with Redis.from_url(url, socket_timeout=_ANSWER, socket_connect_timeout=_ANSWER) as client:
            return client.execute_command(*(words or ("PING",)))
    except (RedisError, OSError, ValueError) as error:
        raise MemberError(f"--server {shown(url)}: {error}") from error


@asynccontextmanager
async def _members(count: int) -> AsyncIterator[list[Process]]:
    members: list[Process] = []
    try:
        for _ in range(count):
            members.append(  # noqa: PERF401  # if one fails to start, the others are ended
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "aiorate._demo.member"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    limit=1 << 26,  # a report is one line
                    start_new_session=True,  # Ctrl-C reaches the demo only
                    creationflags=NEW_GROUP,
                )
            )
        yield members
    finally:
        for member in members:
            if member.returncode is None:
                member.kill()
            await member.wait()


def _tell(member: Process, line: str) -> None:
    assert member.stdin is not None
    member.stdin.write(f"{line}\n".encode())


async def _line(member: Process) -> bytes:
    assert member.stdout is not None
    assert member.stderr is not None
    line = await member.stdout.readline()
    if not line:
        words = (await member.stderr.read()).decode(errors="replace").strip().splitlines()[-1:]
        raise MemberError(": ".join([f"a client process ended with exit code {await member.wait()}", *words]))
    return line


def show(console: Console, rate: Rate, processes: int, acts: Sequence[Act]) -> bool:
    """Print the arrivals of each process, of all, and the bound; returns whether it was kept."""
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
    table.add_row("calls to the store", *("-" if act.calls is None else str(act.calls) for act in acts))
    table.add_row("calls per request", *("-" if act.calls is None else f"{act.calls / max(1, len(act.grants)):.3f}" for act in acts))
    console.print(table)

    ends = [sum(act.seconds for act in acts[:number]) for number in range(len(acts) + 1)]
    late = [instant + round(begin * NS_PER_SECOND) for act, begin in zip(acts[1:], ends[1:], strict=False) for instant in act.instants]
    console.print(report.plot(console, acts[0].instants, late, asked, ends[1], ends[-1], "arrivals per second of all processes"))

    verdicts = [_verdict(rate, act) for act in acts[1:]]
    for act, verdict in zip(acts[1:], verdicts, strict=True):
        windows = report.windows_table(verdict)
        windows.title = act.name
        console.print(windows)
    for act in acts:
        if act.outage is not None:
            console.print(Text(_outage(act, act.outage, asked)))
    slowest = max(act.answer for act in acts) / 1e6
    console.print(Text(f"The guarantee allows for a permit that is used 5 ms late, and for the slowest answer, {slowest:.1f} ms."))
    kept = all(verdict.kept for verdict in verdicts)
    words = "Kept: no window holds more than the bound allows." if kept else "BROKEN: some window holds more than the bound allows."
    console.print(Text(words, "bold green" if kept else "bold red"))
    return kept


def _verdict(rate: Rate, act: Act) -> Verdict:
    """The grants against the bound: one permit, and the rate, with 5 ms for a slot that is used late and the time of an answer.

    After the loss of the store it also allows what was booked then: at most the horizon of 20 ms, while a process still knows of it.
    """
    late = _SLACK + act.answer + (0 if act.outage is None else _HORIZON)

    def bound(window: int) -> int:
        return 1 + rate.permits_in(window + late)

    windows = [window for window in (_TENTH, NS_PER_SECOND) if window <= act.seconds * NS_PER_SECOND]
    return judge(bound, act.grants, act.instants, windows)


def _outage(act: Act, outage: tuple[float, float], asked: float) -> str:
    away, back = (round(seconds * NS_PER_SECOND) for seconds in outage)
    instants = sorted(act.instants)
    during = sum(away <= instant < back for instant in instants)
    first = next((instant for instant in instants if instant >= back), None)
    again = "none came after its return" if first is None else f"the first came {(first - back) / 1e6:.0f} ms after its return"
    long = outage[1] - outage[0]
    return (
        f"The store was killed at {outage[0]:g} s and was back, empty, {long:g} s later. Meanwhile {during} requests came, whose permits"
        f" had been booked before ({asked * long:.0f} would be the rate); {again}. No request failed."
    )


def _refuse(why: str) -> int:
    print(f"aiorate demo: {why}", file=sys.stderr)
    return 2
