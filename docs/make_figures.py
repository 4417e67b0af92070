"""Draws the pictures of the documents and writes their tables, from real grants of a limiter on a manual clock.

    python docs/make_figures.py

No timing, and dice that always fall alike: the same code gives the same bytes, and a test compares them with what is committed.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import deque
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import aiorate
from aiorate.redis import RedisLimiter
from aiorate.testing import ManualClock, VirtualLoop, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

HERE = Path(__file__).parent
MS = 1_000_000
SECOND = 1_000 * MS

# Readable on white and on black; the page shows through.
INK, ASKED, GOOD, CATCHING, BAD = "#757c85", "#757c85", "#2f81f7", "#23923f", "#e5484d"

STRATEGIES: dict[str, Callable[[], aiorate.Scheduler]] = {
    'TokenPool("10/s")': lambda: aiorate.TokenPool("10/s"),
    'TokenPool("10/s", burst_ratio=1.5)': lambda: aiorate.TokenPool("10/s", burst_ratio=1.5),
    'TokenBucket("10/s", burst=5)': lambda: aiorate.TokenBucket("10/s", burst=5),
    'SlidingWindow("10/s")': lambda: aiorate.SlidingWindow("10/s"),
    'CalendarWindow("10/s", "UTC")': lambda: aiorate.CalendarWindow("10/s", "UTC", origin=500 * MS),
    'BurstCompensation("10/s")': lambda: aiorate.BurstCompensation("10/s"),
    'BurstCompensation("10/s", strictness=0.5)': lambda: aiorate.BurstCompensation("10/s", strictness=0.5),
    'BurstRatio("10/s", ratio=1.5)': lambda: aiorate.BurstRatio("10/s", ratio=1.5),
    'TicksAccumulator("10/s")': lambda: aiorate.TicksAccumulator("10/s"),
    'SmoothBursty("10/s", max_stored=5)': lambda: aiorate.SmoothBursty("10/s", max_stored=5),
    'SmoothWarmingUp("10/s", warmup=2)': lambda: aiorate.SmoothWarmingUp("10/s", warmup=2),
    'AllOf(TokenBucket("10/s", burst=5), SlidingWindow("8/s"))': lambda: aiorate.AllOf(
        aiorate.TokenBucket("10/s", burst=5), aiorate.SlidingWindow("8/s")
    ),
}
REQUESTS = 12
IDLE_UNTIL = 2 * SECOND
STALL = (300 * MS, 800 * MS)


def at_once(make: Callable[[], aiorate.Scheduler]) -> list[int]:
    """A fresh limiter, and all requests at 0."""
    return simulate(make(), [0] * REQUESTS)


def after_idle(make: Callable[[], aiorate.Scheduler]) -> list[int]:
    """One request at 0, none until 2 s, then all others."""
    return simulate(make(), [0, *[IDLE_UNTIL] * REQUESTS])


def after_a_stall(make: Callable[[], aiorate.Scheduler]) -> list[int]:
    """All requests at 0, and the event loop is stalled from 0.3 to 0.8 s."""
    clock = ManualClock()
    limiter = aiorate.Limiter(make(), clock=clock)
    granted: list[int] = []

    async def request() -> None:
        await limiter.acquire()
        granted.append(clock.now())

    async def main() -> None:
        tasks = [asyncio.create_task(request()) for _ in range(REQUESTS)]
        await clock.run((STALL[0] - MS) / SECOND)
        clock.set(STALL[1])
        await clock.run(10)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    return granted


SCENARIOS = {
    "all at once": at_once,
    "after 2 s idle": after_idle,
    "a stall, 0.3 to 0.8 s": after_a_stall,
}


def delivered(make: Callable[[], aiorate.Scheduler], stall: tuple[int, int], until: int, bins: int) -> list[float]:
    """Permits per second granted in each of the bins, while more requests are always waiting."""
    clock = ManualClock()
    limiter = aiorate.Limiter(make(), clock=clock)
    counts = [0] * bins

    async def worker() -> None:
        while True:
            await limiter.acquire()
            if clock.now() < until:
                counts[clock.now() * bins // until] += 1

    async def main() -> None:
        tasks = [asyncio.create_task(worker()) for _ in range(20)]
        await clock.run((stall[0] - MS) / SECOND)
        clock.set(stall[1])
        await clock.run((until - stall[1]) / SECOND)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    return [count * bins * SECOND / until for count in counts]


def stall_picture() -> str:
    """The set rate and the delivered rate, with a stall of the event loop in the middle."""
    until, bins, top = 4 * SECOND, 40, 300
    stall = (1_000 * MS, 1_500 * MS)
    left, right, floor, ceiling = 52, 708, 216, 34

    def x(t: float) -> float:
        return left + (right - left) * t / until

    def y(rate: float) -> float:
        return floor - (floor - ceiling) * min(rate, top) / top

    def steps(rates: list[float], colour: str, width: float) -> str:
        points = []
        for i, rate in enumerate(rates):
            points += [f"{x(i * until / bins):.1f},{y(rate):.1f}", f"{x((i + 1) * until / bins):.1f},{y(rate):.1f}"]
        return f'<polyline fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round" points="{" ".join(points)}"/>'

    unbounded = delivered(lambda: aiorate.TicksAccumulator("100/s"), stall, until, bins)
    peak = round(max(unbounded))
    parts = [
        f'<rect x="{x(stall[0]):.1f}" y="{ceiling}" width="{x(stall[1]) - x(stall[0]):.1f}" height="{floor - ceiling}"'
        f' fill="{INK}" opacity="0.16"/>',
        _text(x(sum(stall) / 2), ceiling - 6, "the event loop is stalled", INK, "middle"),
    ]
    for rate in (0, 100, 200, 300):
        parts += [
            f'<line x1="{left}" y1="{y(rate):.1f}" x2="{right}" y2="{y(rate):.1f}" stroke="{INK}" stroke-width="0.5" opacity="0.5"/>',
            _text(left - 6, y(rate) + 4, f"{rate}/s", INK, "end"),
        ]
    parts += [_text(x(s * SECOND), floor + 16, f"{s} s", INK, "middle") for s in range(5)]
    parts += [
        steps(unbounded, BAD, 1.5),
        _text(x(1.64 * SECOND), ceiling + 12, f"{peak}/s: all missed permits at once (TicksAccumulator)", BAD),
        steps(delivered(lambda: aiorate.TokenPool("100/s", burst_ratio=1.5), stall, until, bins), CATCHING, 1.5),
        _text(x(1.72 * SECOND), y(150) - 7, 'TokenPool("100/s", burst_ratio=1.5): catches up at 150/s', CATCHING),
        steps(delivered(lambda: aiorate.TokenPool("100/s"), stall, until, bins), GOOD, 2.5),
        _text(x(1.72 * SECOND), y(100) + 18, 'Limiter("100/s"): goes on at the rate; what was missed is gone', GOOD),
        f'<line x1="{left}" y1="{y(100):.1f}" x2="{right}" y2="{y(100):.1f}" stroke="{ASKED}" stroke-width="1.5" stroke-dasharray="5 4"/>',
        _text(left + 6, y(100) - 7, "asked: 100/s", ASKED),
    ]
    title = "Delivered rate over four seconds at a rate of 100 per second, while the event loop is stalled for half a second"
    return _svg(720, 240, title, parts)


def scopes_picture() -> str:
    """The bounds of limiters of each scope, at 1000/s, in windows of up to 100 ms."""
    url, longest, top = "redis://localhost", 100, 160
    bucket = aiorate.TokenBucket
    scopes: list[tuple[str, str, aiorate.Limiter]] = [
        ("RedisLimiter(lease=0.05)", BAD, RedisLimiter(url, "name", "1000/s", lease=0.05)),
        ('one loop, and scope="process": TokenBucket(burst=1)', CATCHING, aiorate.Limiter(bucket("1000/s", 1), scope="process")),
        ("RedisLimiter", GOOD, RedisLimiter(url, "name", "1000/s")),
    ]
    left, right, floor, ceiling = 52, 700, 236, 20

    def x(ms: float) -> float:
        return left + (right - left) * ms / longest

    def y(permits: float) -> float:
        return floor - (floor - ceiling) * permits / top

    parts = []
    for permits in (0, 50, 100, 150):
        parts += [
            f'<line x1="{left}" y1="{y(permits):.1f}" x2="{right}" y2="{y(permits):.1f}" stroke="{INK}" stroke-width="0.5" opacity="0.5"/>',
            _text(left - 6, y(permits) + 4, str(permits), INK, "end"),
        ]
    parts += [_text(x(ms), floor + 16, f"{ms} ms", INK, "middle") for ms in range(0, longest + 1, 20)]
    parts += [
        f'<line x1="{x(0):.1f}" y1="{y(0):.1f}" x2="{x(longest):.1f}" y2="{y(longest):.1f}" stroke="{ASKED}" stroke-width="1.5"'
        f' stroke-dasharray="5 4"/>',
        _text(x(52), y(52) + 18, "the rate: 1000/s", ASKED),
    ]
    for number, (name, colour, limiter) in enumerate(scopes):
        bounds = [(ms, limiter.bound(Fraction(ms, 1_000)) or 0) for ms in range(1, longest + 1)]
        points = " ".join(f"{x(ms):.1f},{y(permits):.1f}" for ms, permits in bounds)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round" points="{points}"/>')
        parts.append(_text(x(4), ceiling + 4 + 18 * number, name, colour))
    return _svg(720, 262, "The most permits in a window, by its length, at 1000 per second", parts)


class Allowing:
    """A server that allows 10 requests in any second and answers 429 to others. Answers take 0.1 to 0.5 s."""

    def __init__(self) -> None:
        self.sent: list[tuple[float, bool]] = []  # when, and whether it was answered
        self._counted: deque[float] = deque(maxlen=10)
        self._dice = random.Random(1)

    async def get(self) -> bool:
        loop = asyncio.get_running_loop()
        left_at = loop.time()
        await asyncio.sleep(self._dice.uniform(0.02, 0.06))  # on its way
        arrived = loop.time()
        allowed = len(self._counted) < 10 or arrived - self._counted[0] >= 1
        if allowed:
            self._counted.append(arrived)
        self.sent.append((left_at, allowed))
        await asyncio.sleep(self._dice.uniform(0.08, 0.44))
        return allowed


async def send_with_semaphore(server: Allowing, seconds: float, jobs: int = 60) -> None:
    """Ten at a time, each with a sleep after it; a job that got 429 waits for a second and tries again."""
    semaphore = asyncio.Semaphore(10)

    async def job() -> None:
        while True:
            async with semaphore:
                answered = await server.get()
                await asyncio.sleep(seconds)
            if answered:
                return
            await asyncio.sleep(1)

    await asyncio.gather(*(job() for _ in range(jobs)))


async def send_with_limiter(server: Allowing, jobs: int = 60) -> None:
    """The same jobs with a limiter, whose period is a tenth longer than the server's."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/1.1s", burst=1))

    async def job() -> None:
        answered = False
        while not answered:
            async with limiter:
                answered = await server.get()

    await asyncio.gather(*(job() for _ in range(jobs)))


WAYS: dict[str, tuple[str, Callable[[Allowing], Coroutine[Any, Any, None]]]] = {
    "short": ("Semaphore(10) and sleep(0.1)", lambda server: send_with_semaphore(server, 0.1)),
    "long": ("Semaphore(10) and sleep(1)", lambda server: send_with_semaphore(server, 1)),
    "aiorate": ('aiorate: TokenBucket("10/1.1s", burst=1)', send_with_limiter),
}


def sent_by(way: str) -> tuple[list[tuple[float, bool]], float]:
    """The requests of sixty jobs, when each left and whether it was answered, and how long all jobs took."""
    server = Allowing()

    async def main() -> float:
        await WAYS[way][1](server)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        took = runner.run(main())
    return sorted(server.sent), took


def first_picture() -> str:
    """When each request of sixty jobs was sent to a server that allows 10 per second, and which got 429."""
    left, right, until, dot, column, floor = 10, 470, 9, 5.0, 0.09, 0.0

    def x(t: float) -> float:
        return left + (right - left) * t / until

    parts = []
    for way, (name, _) in WAYS.items():
        sent, took = sent_by(way)
        columns: list[list[bool]] = []
        begun: list[float] = []
        for at, answered in sent:
            if not begun or at - begun[-1] >= column:
                begun.append(at)
                columns.append([])
            columns[-1].append(answered)
        refused = sum(not answered for _, answered in sent)
        parts.append(_text(left, floor + 18, name, INK))
        parts.append(_text(right, floor + 18, f"{took:.1f} s, {refused or 'no'} refusals", BAD if refused else INK, "end"))
        floor += 32 + dot * max(len(stack) for stack in columns)
        parts.append(f'<line x1="{left}" y1="{floor:.1f}" x2="{right}" y2="{floor:.1f}" stroke="{INK}" stroke-width="0.8"/>')
        for at, stack in zip(begun, columns, strict=True):
            for height, answered in enumerate(stack):
                colour = GOOD if answered else BAD
                parts.append(f'<circle cx="{x(at + column / 2):.1f}" cy="{floor - 4 - height * dot:.1f}" r="2.2" fill="{colour}"/>')
        floor += 8
    parts += [_text(x(s), floor + 10, f"{s} s", INK, "start" if s == 0 else "middle") for s in range(0, until, 2)]
    title = "When sixty jobs send requests to a server that allows 10 per second, and which are refused"
    return _svg(480, round(floor) + 18, title, parts, size=14)


def grants_picture(name: str, make: Callable[[], aiorate.Scheduler]) -> str:
    """A dot for each grant of a strategy, stacked where several come at one instant; one row per scenario."""
    until, left, right, row, dot = 4 * SECOND, 140, 700, 62, 4.4
    parts = []

    def x(t: float) -> float:
        return left + (right - left) * t / until

    for i, (scenario, grants) in enumerate(SCENARIOS.items()):
        floor = (i + 1) * row
        parts.append(_text(left - 12, floor - 2, scenario, INK, "end"))
        if grants is after_a_stall:
            width = x(STALL[1]) - x(STALL[0])
            parts.append(f'<rect x="{x(STALL[0]):.1f}" y="{floor - 34}" width="{width:.1f}" height="34" fill="{INK}" opacity="0.16"/>')
        parts.append(f'<line x1="{left}" y1="{floor}" x2="{right}" y2="{floor}" stroke="{INK}" stroke-width="0.8"/>')
        seen: dict[int, int] = {}
        for instant in grants(make):
            if instant < until:
                height = seen[instant] = seen.get(instant, -1) + 1
                parts.append(f'<circle cx="{x(instant):.1f}" cy="{floor - 4 - height * dot:.1f}" r="2.6" fill="{GOOD}"/>')
    parts += [_text(x(s * SECOND), 3 * row + 17, f"{s} s", INK, "middle") for s in range(5)]
    return _svg(720, 3 * row + 26, f"Grant times of {name}", parts)


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start") -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{text}</text>'


def _svg(width: int, height: int, title: str, parts: list[str], *, size: int = 12) -> str:
    font = f'font-family="system-ui, \'Segoe UI\', Helvetica, Arial, sans-serif" font-size="{size}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" {font}>'
    title = title.replace("&", "&amp;").replace("<", "&lt;")
    return "\n".join([head, f"<title>{title}</title>", *parts, "</svg>", ""])


def slug(name: str) -> str:
    """The file name of a strategy's picture."""
    return "-".join(re.findall(r"[a-z0-9.]+", name.replace('"10/s"', "").lower())).replace(".", "")


def grants_table(name: str, make: Callable[[], aiorate.Scheduler]) -> str:
    """The picture and the table of one strategy, in Markdown."""
    lines = [
        f"![Grant times of {name.replace('[', '(')}](figures/{slug(name)}.svg)",
        "",
        f"| `{name}` | granted at, in seconds |",
        "|---|---|",
    ]
    for scenario, grants in SCENARIOS.items():
        instants = [instant for instant in grants(make) if grants is not after_idle or instant >= IDLE_UNTIL]
        lines.append(f"| {scenario} | {' '.join(f'{instant / SECOND:.3f}'.rstrip('0').rstrip('.') for instant in instants)} |")
    return "\n".join(lines)


def files() -> dict[Path, str]:
    """Every picture that is drawn here, and the page with the tables, by path."""
    made = {
        HERE / "figures" / "first.svg": first_picture(),
        HERE / "figures" / "stall.svg": stall_picture(),
        HERE / "figures" / "scopes.svg": scopes_picture(),
    }
    for name, make in STRATEGIES.items():
        made[HERE / "figures" / f"{slug(name)}.svg"] = grants_picture(name, make)
    page = HERE / "strategies.md"

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- grants: {name} -->\n{grants_table(name, STRATEGIES[name])}\n<!-- end -->"

    made[page] = re.sub(r"<!-- grants: (.*?) -->\n.*?<!-- end -->", fill, page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return made


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(HERE.parent))
