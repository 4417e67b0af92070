"""Draws the picture of adaptive.md: an AdaptiveRate that looks for the limit of a model of a server, in virtual time.

    python docs/make_adaptive.py

The same code gives the same bytes, and a test compares them with what is committed.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helpers.adaptive.network import Record

HERE = Path(__file__).parent
WIDTH, HEIGHT, LEFT, RIGHT, TOP, FLOOR = 720, 270, 52, 705, 14, 200
MOST = 150  # requests per second at the top
INK, RATE, REFUSED = "#757c85", "#2f81f7", "#e5484d"  # readable on white and on black
TITLE = "An AdaptiveRate that begins at 20 per second finds a limit of 100 per second, follows it to 30 and to 120, and the refusals"


def recorded() -> Record:
    """Three minutes with a token bucket whose rate is 100, 30 and 120 per second, and a round trip of 50 ms."""
    from helpers.adaptive.table import cells, simulate

    (cell,) = cells(["AdaptiveRate"], ["bucket"], [0.05], [0.2])
    return simulate(cell)[1]


def picture() -> str:
    """The limit, the rate and the refusals of each second."""
    record = recorded()
    (client,) = record.clients
    parts_per_second = len(client.rates) / record.seconds

    def x(seconds: float) -> float:
        return LEFT + (RIGHT - LEFT) * seconds / record.seconds

    def y(rate: float) -> float:
        return FLOOR - (FLOOR - TOP) * min(rate, MOST) / MOST

    def line(points: list[tuple[float, float]], style: str) -> str:
        return f'<polyline points="{" ".join(f"{across:.1f},{up:.1f}" for across, up in points)}" fill="none" {style}/>'

    def text(across: float, up: float, words: str, colour: str = INK, anchor: str = "middle") -> str:
        return f'<text x="{across:.1f}" y="{up:.1f}" fill="{colour}" text-anchor="{anchor}">{words}</text>'

    seconds = range(int(record.seconds))
    limits = [record.server.limit(second * 1_000_000_000) for second in seconds]
    steps = [(x(second + edge), y(limit)) for second, limit in zip(seconds, limits, strict=True) for edge in (0, 1)]
    rates = [(x((part + 1) / parts_per_second), y(rate)) for part, rate in enumerate(client.rates)]
    parts = [
        f'<line x1="{LEFT}" y1="{FLOOR}" x2="{RIGHT}" y2="{FLOOR}" stroke="{INK}" stroke-width="0.8"/>',
        *(text(LEFT - 8, y(rate) + 4, str(rate), anchor="end") for rate in (0, 50, 100, 150)),
        *(
            text(x(second), HEIGHT - 8, f"{second} s", anchor="middle" if second else "start")
            for second in range(0, int(record.seconds), 30)
        ),
        line(steps, f'stroke="{INK}" stroke-width="1.4" stroke-dasharray="5 3"'),
        line(rates, f'stroke="{RATE}" stroke-width="1.4"'),
        text(x(31), y(140), "limit of the server, per second", INK, "start"),
        text(x(62), y(62), "rate of the limiter", RATE, "start"),
        text(RIGHT, FLOOR + 46, "refused requests", REFUSED, "end"),
    ]
    for second in seconds:
        part = round(second * parts_per_second)
        refused = sum(client.refused[part : round((second + 1) * parts_per_second)])
        if refused:
            height = min(2.0 * refused, 40.0)
            parts.append(f'<rect x="{x(second):.1f}" y="{FLOOR + 6}" width="2.6" height="{height:.1f}" fill="{REFUSED}"/>')
    font = 'font-family="system-ui, \'Segoe UI\', Helvetica, Arial, sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" {font}>'
    return "\n".join([head, f"<title>{TITLE}</title>", *parts, "</svg>", ""])


def files() -> dict[Path, str]:
    """The picture, by its path."""
    return {HERE / "figures" / "adaptive.svg": picture()}


if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]
    logging.getLogger("aiorate").setLevel(logging.ERROR)
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")
        print(path.relative_to(HERE.parent))
