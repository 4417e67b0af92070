"""Draws the pictures of the documents, from real runs in virtual time, and prints the table of adaptive.md.

    python docs/make_figures.py            writes the pictures
    python docs/make_figures.py adaptive   prints the table, after a minute or two

The dice always fall alike: the same code gives the same bytes, and tests compare them with what is committed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import aiorate
from aiorate.testing import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

HERE = Path(__file__).parent
INK, GOOD, BAD = "#757c85", "#2f81f7", "#e5484d"  # readable on white and on black; the page shows through


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
    """The same jobs with a limiter whose rate is a little below the server's."""
    limiter = aiorate.Limiter("9/s")

    async def job() -> None:
        answered = False
        while not answered:
            async with limiter:
                answered = await server.get()

    await asyncio.gather(*(job() for _ in range(jobs)))


WAYS: dict[str, Callable[[Allowing], Coroutine[Any, Any, None]]] = {
    "Semaphore(10) and sleep(0.1)": lambda server: send_with_semaphore(server, 0.1),
    "Semaphore(10) and sleep(1)": lambda server: send_with_semaphore(server, 1),
    'aiorate: Limiter("9/s")': send_with_limiter,
}


def sent_by(way: str) -> tuple[list[tuple[float, bool]], float]:
    """The requests of sixty jobs, when each left and whether it was answered, and how long all jobs took."""
    server = Allowing()

    async def main() -> float:
        await WAYS[way](server)
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
    for name in WAYS:
        sent, took = sent_by(name)
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


def adaptive_picture() -> str:
    """An AdaptiveRate and a bucket of 100, 30 and 120 per second, a minute each: limit, rate, and the refusals of each second."""
    from helpers.adaptive.table import cells, simulate

    width, left, right, top, floor, most = 720, 52, 705, 14, 200, 150  # requests per second at the top
    (cell,) = cells(["AdaptiveRate"], ["bucket"], [0.05], [0.2])
    record = simulate(cell)[1]
    (client,) = record.clients
    parts_per_second = len(client.rates) / record.seconds

    def x(seconds: float) -> float:
        return left + (right - left) * seconds / record.seconds

    def y(rate: float) -> float:
        return floor - (floor - top) * min(rate, most) / most

    def line(points: list[tuple[float, float]], style: str) -> str:
        return f'<polyline points="{" ".join(f"{across:.1f},{up:.1f}" for across, up in points)}" fill="none" {style}/>'

    seconds = range(int(record.seconds))
    limits = [record.server.limit(second * 1_000_000_000) for second in seconds]
    steps = [(x(second + edge), y(limit)) for second, limit in zip(seconds, limits, strict=True) for edge in (0, 1)]
    rates = [(x((part + 1) / parts_per_second), y(rate)) for part, rate in enumerate(client.rates)]
    parts = [
        f'<line x1="{left}" y1="{floor}" x2="{right}" y2="{floor}" stroke="{INK}" stroke-width="0.8"/>',
        *(_text(left - 8, y(rate) + 4, str(rate), INK, "end") for rate in (0, 50, 100, 150)),
        *(_text(x(second), 262, f"{second} s", INK, "middle" if second else "start") for second in range(0, int(record.seconds), 30)),
        line(steps, f'stroke="{INK}" stroke-width="1.4" stroke-dasharray="5 3"'),
        line(rates, f'stroke="{GOOD}" stroke-width="1.4"'),
        _text(x(31), y(140), "limit of the server, per second", INK),
        _text(x(62), y(62), "rate of the limiter", GOOD),
        _text(right, floor + 46, "refused requests", BAD, "end"),
    ]
    for second in seconds:
        refused = sum(client.refused[round(second * parts_per_second) : round((second + 1) * parts_per_second)])
        if refused:
            height = min(2.0 * refused, 40.0)
            parts.append(f'<rect x="{x(second):.1f}" y="{floor + 6}" width="2.6" height="{height:.1f}" fill="{BAD}"/>')
    return _svg(width, 270, "An AdaptiveRate finds a limit of 100 per second, and follows it to 30 and to 120", parts)


KINDS = {
    "bucket": "token bucket whose rate falls and rises",
    "window1": "fixed window of 1 s",
    "window10": "fixed window of 10 s",
    "sliding": "sliding window",
    "concurrency": "limit of concurrency",
    "retry30": "Retry-After of 30 s",
}


def adaptive_row(kind: str) -> str:
    """A row of the table of adaptive.md: the share of what such a server allowed that each way used, and the requests refused."""
    from helpers.adaptive.table import cells, simulate, summary

    row = [KINDS[kind]]
    for policy in ("AdaptiveRate", "AIMD", "a 429 pauses"):
        seen = summary([simulate(cell)[0] for cell in cells([policy], [kind])])
        row.append(f"{seen.share:.2f}" + (f" ({seen.refused:.1f} %)" if policy == "AdaptiveRate" else ""))
    return f"| {' | '.join(row)} |"


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start") -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{text}</text>'


def _svg(width: int, height: int, title: str, parts: list[str], *, size: int = 12) -> str:
    font = f'font-family="system-ui, \'Segoe UI\', Helvetica, Arial, sans-serif" font-size="{size}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" {font}>'
    title = title.replace("&", "&amp;").replace("<", "&lt;")
    return "\n".join([head, f"<title>{title}</title>", *parts, "</svg>", ""])


def files() -> dict[Path, str]:
    """Every picture, by its path."""
    return {HERE / "figures" / "first.svg": first_picture(), HERE / "figures" / "adaptive.svg": adaptive_picture()}


if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]
    logging.getLogger("aiorate").setLevel(logging.ERROR)  # each pause is logged
    if sys.argv[1:] == ["adaptive"]:
        for kind in KINDS:
            print(adaptive_row(kind))
    else:
        for path, content in files().items():
            path.write_text(content, encoding="utf-8")
            print(path.relative_to(HERE.parent))
