"""The how-to guides' programs for servers, asked by clients that obey what they say."""

from __future__ import annotations

from collections import Counter
from typing import Any

import httpx2
import pytest
from helpers.programs import program_with
from helpers.stores import RealServer

from aiorate.http import read_feedback

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


def workers(store: RealServer, count: int) -> list[Any]:
    """Workers of the program for several workers, and a client for each. Their store is real."""
    program = program_with("limit_of")
    program["STORE"] = store.url
    return [httpx2.AsyncClient(base_url="http://test", transport=httpx2.ASGITransport(program["make_app"]())) for _ in range(count)]


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


async def test_workers_serve_all_while_the_store_is_down() -> None:
    """on_unavailable="open": a store that is gone must not take the site with it."""
    with RealServer() as lost:
        (client,) = workers(lost, 1)
        assert 200 == (await client.get("/items")).status_code
        lost.kill()
        statuses = []
        for _ in range(200):
            statuses.append((await client.get("/items")).status_code)
            if statuses[-12:] == [200] * 12:
                break

    assert [200] * 12 == statuses[-12:]
