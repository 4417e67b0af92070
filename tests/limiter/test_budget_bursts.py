"""How large the burst of a bucket has to be, so that what estimates leave unused is not lost: the rule of the how-to guides, measured."""

from __future__ import annotations

import asyncio
import re
from math import ceil

import pytest
from helpers.programs import DOCS

from aiorate import Budget, TokenBucket
from aiorate.testing import VirtualLoop

PAGE = (DOCS / "howto" / "openai_anthropic.md").read_text(encoding="utf-8")


def measured(rate: int, burst: int, estimate: int, used: int, takes: int) -> float:
    """The part of a limit of ``rate`` per minute that calls of ``takes`` seconds use, while more of them always wait."""
    begin, end = 6 * takes + 60, 6 * takes + 180
    calls = 0

    async def main() -> None:
        loop = asyncio.get_running_loop()
        budget = Budget(tokens=TokenBucket(f"{rate}/min", burst=burst))

        async def work() -> None:
            nonlocal calls
            while loop.time() < end:
                async with budget.reserve(tokens=estimate) as lease:
                    calls += begin <= loop.time() < end
                    await asyncio.sleep(takes)
                    lease.settle(tokens=used)

        workers = [asyncio.create_task(work()) for _ in range(rate * takes // (30 * used) + 3)]
        await asyncio.wait(workers, timeout=end)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    return calls * used / (rate / 60 * (end - begin))


def enough(rate: int, estimate: int, used: int, takes: int) -> int:
    """The least burst with which nothing is lost."""
    return ceil(rate / 60 * takes * (estimate / used - 1) + estimate)


def part(rate: int, burst: int, estimate: int, used: int, takes: int) -> float:
    """The part of the limit that is used with that burst."""
    return min(1.0, used / estimate * (1 + (burst - estimate) / (rate / 60 * takes)))


@pytest.mark.parametrize("of", [0.3, 0.6, 1.0, 1.5])
@pytest.mark.parametrize(("rate", "estimate", "used"), [(8_000, 200, 80), (30_000, 500, 250), (20_000, 1000, 700), (10_000, 300, 290)])
@pytest.mark.parametrize("takes", [3, 10, 30])
def test_the_burst_decides_how_much_is_lost(rate: int, estimate: int, used: int, takes: int, of: float) -> None:
    """An estimate may be used in full until its call is settled, so the unused part has to fit into the burst then."""
    burst = max(estimate, int(of * enough(rate, estimate, used, takes)))

    found = measured(rate, burst, estimate, used, takes)

    half_a_call = used / (rate / 60 * takes) / 2
    assert found == pytest.approx(part(rate, burst, estimate, used, takes), abs=max(0.05, half_a_call))


ROWS = re.findall(r"^\| (\d+) s \| ([\d ]+) \| (\d+) % \| (\d+) % \|$", PAGE, flags=re.MULTILINE)


def test_the_page_has_a_table_of_bursts() -> None:
    assert [row[0] for row in ROWS] == ["3", "10", "30", "60"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}s")
def test_the_table_of_bursts_is_true(row: tuple[str, str, str, str]) -> None:
    takes, burst, small, large = (int(cell.replace(" ", "")) for cell in row)

    assert burst == enough(200_000, 1000, 700, takes)
    assert [small, large] == [round(100 * part(200_000, burst, 1000, 700, takes)) for burst in (20_000, 50_000)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}s")
def test_the_table_of_bursts_was_measured(row: tuple[str, str, str, str]) -> None:
    takes, _, small, large = (int(cell.replace(" ", "")) for cell in row)

    found = [100 * measured(200_000, burst, 1000, 700, takes) for burst in (20_000, 50_000)]

    assert found == pytest.approx([small, large], abs=2)


@pytest.mark.parametrize(("tokens", "estimate", "used"), [("200_000", 206, 144), ("8_000", 200, 80)])
def test_the_programs_have_room_for_calls_of_30_s(tokens: str, estimate: int, used: int) -> None:
    """Of 70 % of the estimate with OpenAI, and of two fifths with Anthropic."""
    (burst,) = re.findall(rf'okens=TokenBucket\("{tokens}/min", burst=([\d_]+)\)', PAGE)
    rate = int(tokens)

    assert int(burst) >= enough(rate, estimate, used, 30)
