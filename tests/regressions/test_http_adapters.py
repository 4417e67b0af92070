"""HTTP adapters: synchronous clients, draft-11 headers, partition keys, and first mistakes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path
from time import process_time
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
from helpers.server import Server, in_thread

from aiorate import Limiter
from aiorate.aiohttp import middleware
from aiorate.http import Quota, hooks, read_feedback

PACKAGES = pytest.mark.parametrize("package", [httpx2, httpx], ids=["httpx2", "httpx"])


# A synchronous client.


def send(package: Any, server: Server, limiter: Limiter) -> None:
    with package.Client(base_url=server.url, event_hooks=hooks(limiter)) as client:
        client.get("/")


@PACKAGES
@pytest.mark.parametrize("where", ["no loop", "a coroutine", "a callback"])
def test_a_synchronous_client_is_refused_before_it_sends(package: Any, where: str) -> None:
    """In a notebook, where a loop runs, 5 of 5 requests were sent under 1/h, with only a RuntimeWarning."""
    limiter = Limiter("1/h")
    errors: list[BaseException] = []

    def refused() -> None:
        try:
            send(package, server, limiter)
        except RuntimeError as error:
            errors.append(error)

    async def main() -> None:
        if where == "a callback":
            asyncio.get_running_loop().call_soon(refused)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        else:
            refused()

    with in_thread() as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        if where == "no loop":
            refused()
        else:
            asyncio.run(main())

    assert [] == server.paths
    assert ["synchronous client cannot wait" in str(error) for error in errors] == [True]
    assert 0 == limiter.statistics().granted


@PACKAGES
def test_subclass_wrapped_hook_and_redirect_are_told_apart(package: Any) -> None:
    """SDKs derive their clients, some wrap a hook in a function, and a redirect calls the hook again."""

    class Own(package.Client):  # type: ignore[misc, name-defined]
        pass

    class OwnAsync(package.AsyncClient):  # type: ignore[misc, name-defined]
        pass

    limiter = Limiter("1000/s")
    (hook,) = hooks(limiter, feedback=False)["request"]

    async def main() -> None:
        with Own(base_url=server.url, event_hooks={"request": [lambda request: hook(request)]}) as client, pytest.raises(RuntimeError):
            client.get("/refused")
        async with OwnAsync(base_url=server.url, event_hooks={"request": [lambda request: hook(request)]}, follow_redirects=True) as client:
            await client.get("/redirect/1")

    with in_thread() as server:
        asyncio.run(main())

    assert ["/redirect/1", "/end"] == server.paths
    assert 2 == limiter.statistics().granted


# The parser of draft 11.


def test_the_extras_of_the_adapters_bring_the_parser() -> None:
    """`aiorate[httpx]` did not, and a draft-11 header was not read."""
    project = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"]

    assert [True, True] == ["aiorate[http]" in extras[name] for name in ("httpx", "aiohttp")]
    assert ["http-sf>=1"] == extras["http"]


def test_a_header_that_cannot_be_read_is_logged_once() -> None:
    """``r=0;t=30`` with a 429 paused for 1 s, and nothing said why."""
    code = """
import logging, sys
sys.modules["http_sf"] = None
from aiorate.http import read_feedback

logging.basicConfig(format="%(name)s %(levelname)s %(message)s", stream=sys.stdout)
read_feedback(429, {"Retry-After": "1", "X-RateLimit-Remaining": "0", "RateLimit": "limit=100, remaining=0, reset=5"})
read_feedback(200, {"RateLimit-Policy": "100;w=60"})
print("now")
for _ in range(3):
    read_feedback(429, {"RateLimit": '"a";r=0;t=30', "RateLimit-Policy": '"a";q=5;w=60'})
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()

    assert ["now"] == said[:1]
    assert [True] == ["aiorate WARNING" in line and 'pip install "aiorate[http]"' in line for line in said[1:]]


# Partition keys.


@pytest.mark.parametrize(
    ("policy", "told", "limits"),
    [
        ('"10-in-1min";q=10;w=60;pk=:ODM2:', '"10-in-1min";r=4;t=30', [10]),  # express-rate-limit 8
        ('"a";q=10;w=60', '"a";r=4;t=30;pk=:ODM2:', [10]),
        ('"a";q=10;w=60;pk=:ODM2:', '"a";r=4;t=30;pk=:ODM2:', [10]),
        ('"a";q=10;w=60;pk=:ODM2:,"b";q=99;w=60;pk=:ODM2:', '"b";r=4;t=30', [99, 10]),
        ('"a";q=10;w=60;pk=:ODM2:,"a";q=99;w=60', '"a";r=4;t=30', [99, 10]),  # the one without a key, like the item
        ('"a";q=10;w=60;pk=:ODM2:,"a";q=99;w=60;pk=:ODM3:', '"a";r=4;t=30', [None, 10, 99]),  # could belong to either
        ('"a";q=10;w=60;pk=:ODM2:', '"a";r=4;t=30;pk=:ODM3:', [None, 10]),  # another partition
    ],
)
def test_an_item_joins_the_one_policy_of_its_name(policy: str, told: str, limits: list[int | None]) -> None:
    """RateLimit without a partition key became a quota without a limit, beside a policy without a remainder."""
    feedback = read_feedback(200, {"RateLimit-Policy": policy, "RateLimit": told})

    assert feedback is not None
    assert limits == [quota.limit for quota in feedback.quotas]
    assert (4, 30.0) == (feedback.quotas[0].remaining, feedback.quotas[0].reset)


def test_joined_item_and_policy_are_one_quota() -> None:
    """With both, the policy bounds what is granted."""
    feedback = read_feedback(200, {"RateLimit-Policy": '"a";q=10;w=60;pk=:ODM2:', "RateLimit": '"a";r=10;t=6'})

    assert feedback is not None
    assert (Quota("a", 10, 10, 6.0, 60.0),) == feedback.quotas


# Many fields of one name.


@pytest.mark.slow
def test_repeated_headers_cost_linear_time() -> None:
    """Each was joined to all before it; 2 MB of them took 71 s."""
    few, many = [("Retry-After", "1")] * 20_000, [("Retry-After", "1")] * 160_000

    def seconds(headers: Any) -> float:
        begun = process_time()
        assert read_feedback(429, headers) is not None
        return process_time() - begun

    ratio = min(seconds(many) for _ in range(3)) / min(seconds(few) for _ in range(3))

    assert ratio < 24  # 8 times as many; squared, 64


# First mistakes.


@PACKAGES
def test_a_limiter_in_place_of_hooks_names_them(package: Any) -> None:
    """For ``event_hooks=limiter`` httpx only said: 'Limiter' object has no attribute 'get'."""
    with pytest.raises(AttributeError, match=r"event_hooks=aiorate\.http\.hooks\(limiter\)"):
        package.AsyncClient(event_hooks=Limiter("1/s"))


@PACKAGES
@pytest.mark.asyncio
async def test_a_limiter_as_a_hook_names_hooks(package: Any) -> None:
    """For ``{'request': [limiter]}`` the limiter tried to decorate the request."""
    async with Server() as server, package.AsyncClient(base_url=server.url, event_hooks={"request": [Limiter("1/s")]}) as client:
        with pytest.raises(TypeError, match=r"event_hooks=aiorate\.http\.hooks\(limiter\)"):
            await client.get("/")

        assert [] == server.paths


@pytest.mark.asyncio
async def test_a_limiter_as_a_middleware_names_middleware() -> None:
    """For ``middlewares=[limiter]`` Python only said: takes 2 positional arguments but 3 were given."""
    async with Server() as server, aiohttp.ClientSession(server.url, middlewares=[Limiter("1/s")]) as session:
        with pytest.raises(TypeError, match=r"middlewares=\[aiorate\.aiohttp\.middleware\(limiter\)\]"):
            await session.get("/")

        assert [] == server.paths


@pytest.mark.asyncio
async def test_a_middleware_in_place_of_the_list_names_the_list() -> None:
    """For ``middlewares=middleware(limiter)`` Python only said: object of type 'function' has no len()."""
    async with Server() as server, aiohttp.ClientSession(server.url, middlewares=middleware(Limiter("1/s"))) as session:  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"middlewares=\[middleware\(limiter\)\]"):
            await session.get("/")
        with pytest.raises(TypeError, match=r"middlewares=\[middleware\(limiter\)\]"):
            tuple(middleware(Limiter("1/s")))  # type: ignore[arg-type]

        assert [] == server.paths
