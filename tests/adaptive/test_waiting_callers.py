"""The simulation takes permits without standing in line. Tasks that wait in a limiter's line, on a virtual loop, fare the same."""

from __future__ import annotations

import asyncio

import pytest
from helpers.adaptive import servers, table

from aiorate import Limiter
from aiorate.adaptive import AdaptiveRate
from aiorate.testing import VirtualLoop

ROUND_TRIP, SECONDS = 0.05, 15


def served_to_tasks(server: servers.Server, adaptive: AdaptiveRate, tasks: int) -> tuple[int, int]:
    """What a server served and refused to tasks that wait at the limiter, each for its answers, in 15 s."""
    told = [0, 0]

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        while True:
            await adaptive.limiter.acquire()
            granted = loop.time()
            await asyncio.sleep(ROUND_TRIP / 2)
            answer = server.ask(round(loop.time() * servers.SECOND))
            told[answer.served] += 1
            await asyncio.sleep(ROUND_TRIP / 2)
            took = loop.time() - granted
            if answer.served:
                adaptive.succeeded(took=took)
            else:
                adaptive.throttled(answer.retry_after, took=took)

    async def run() -> None:
        asking = [asyncio.ensure_future(ask()) for _ in range(tasks)]
        await asyncio.sleep(SECONDS)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())
    return told[1], told[0]


@pytest.mark.parametrize("kind", ["window1", pytest.param("sliding", marks=pytest.mark.slow)])
def test_tasks_in_line_fare_as_the_simulation_says(kind: str) -> None:
    """So what the models show holds for callers too."""
    cell = table.cells(["AdaptiveRate"], [kind], [ROUND_TRIP], [1.0], jitter="none")[0]
    simulated = table.simulate(cell)[1].clients[0]
    parts = SECONDS * 4

    served, refused = served_to_tasks(servers.build(kind).server, AdaptiveRate(Limiter(100), 2, 2000), 200)

    assert served == pytest.approx(sum(simulated.served[:parts]), rel=0.1)
    assert refused / served == pytest.approx(sum(simulated.refused[:parts]) / sum(simulated.served[:parts]), abs=0.03)
