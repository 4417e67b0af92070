"""The how-to guides' programs that share a limit through a real store."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections import Counter
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import httpx2
import pytest
from helpers.driving import LONG, one_loop
from helpers.programs import block_with, program_with
from helpers.stores import RealServer

from aiorate.http import read_feedback


def workers(store: RealServer, count: int) -> list[Any]:
    """Workers of the program for several workers, and a client for each. Their store is real."""
    program = program_with("def make_app")
    program["STORE"] = store.url
    return [httpx2.AsyncClient(base_url="http://test", transport=httpx2.ASGITransport(program["make_app"]())) for _ in range(count)]


@one_loop
async def test_workers_share_one_limit_and_tell_clients(store: RealServer) -> None:
    """Ten requests a client, whatever worker they reach; what a refusal says is what a client reads from it."""
    clients = workers(store, 4)

    answers = [await clients[n % 4].get("/items") for n in range(14)]

    assert {200: 10, 429: 4} == Counter(answer.status_code for answer in answers)
    assert {'"client";q=10;w=60'} == {answer.headers["ratelimit-policy"] for answer in answers}
    refused = answers[-1]
    wait = int(refused.headers["retry-after"])
    assert 1 <= wait <= 6  # one comes back each 6 s
    assert f'"client";r=0;t={wait}' == refused.headers["ratelimit"]
    feedback = read_feedback(refused.status_code, refused.headers)
    assert feedback is not None
    assert wait == feedback.pause


@one_loop
async def test_workers_serve_all_while_the_store_is_down() -> None:
    """on_unavailable="open": a store that is gone must not take the site with it."""
    with RealServer() as lost:
        (client,) = workers(lost, 1)
        assert 200 == (await client.get("/items")).status_code
        lost.kill()
        async with asyncio.timeout(LONG):
            statuses: list[int] = []
            while statuses[-12:] != [200] * 12:  # after `grace`
                statuses.append((await client.get("/items")).status_code)
                await asyncio.sleep(0.01)

    assert {200, 429} >= set(statuses)


def test_a_daily_quota_survives_restarts(store: RealServer) -> None:
    """Two processes at a time, and two after them: all four together get a day's quota and no more.

    A run over midnight in Berlin would get two: then it is run again.
    """
    program = block_with("1000/day").replace("redis://localhost", store.url).replace("asyncio.run(main())", "print(asyncio.run(run(350)))")
    for _ in range(2):
        days, printed = [day_in_berlin()], ""
        for _ in range(2):
            both = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
            printed += "".join(one.communicate(timeout=LONG)[0] for one in both)
        days.append(day_in_berlin())
        if days[0] == days[1]:
            break
        store.send("FLUSHALL")

    assert 1000 == sum(int(done) for done in re.findall(r"(\d+) of 350", printed))
    assert "the quota is used up for" in printed


@pytest.mark.parametrize(("month", "left"), [("10_000/month", "200 of 300"), ("350/month", "50 of 300")])
def test_a_day_and_a_month_both_hold(store: RealServer, month: str, left: str) -> None:
    """Whichever is used up first; and what the program took ahead is back in the store when it ends."""
    program = block_with("10_000/month").replace("redis://localhost", store.url).replace("10_000/month", month)
    printed = ""
    for _ in range(2):  # again if it ran over midnight in Berlin
        day = day_in_berlin()
        printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG, check=True).stdout
        if day == day_in_berlin():
            break
        store.send("FLUSHALL")

    assert f"300 of 300 and {left}\n" in printed
    used = 300 + int(left.split()[0])
    assert [used] * 2 == [sum(map(float, store.send("GET", f"aiorate:{name}").split()[4:6])) for name in ("weather:day", "all:month")]


def day_in_berlin() -> date:
    return datetime.now(ZoneInfo("Europe/Berlin")).date()
