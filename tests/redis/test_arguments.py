"""The arguments of RedisLimiter: wrong ones fail at once, where they are written. No server is needed."""

from __future__ import annotations

import ast
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from helpers.driving import LONG

import aiorate.redis
from aiorate import AllOf, Limiter, Rate, SlidingWindow, TokenBucket, TokenPool
from aiorate.redis import RedisLimiter

URL = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"name": ""}, "must not be empty"),
        ({"rate": "0"}, "greater than 0"),
        ({"rate": []}, "a list of one or more"),
        ({"rate": "10 per fortnight"}, "not a rate"),
        ({"horizon": 0}, "more than 0"),
        ({"horizon": -1}, "0 seconds or more"),
        ({"slack": -0.001}, "0 seconds or more"),
        ({"slack": 0}, "at least 0.001 seconds; 0 was given"),
        ({"slack": 0.0009}, "0.005 is the default"),
        ({"slack": 0, "lease": 0.0009}, "at least 0.001"),
        ({"lease": math.nan}, "finite"),
        ({"grace": -1}, "0 seconds or more"),
        ({"burst": 0}, "1 or more"),
        ({"burst": [1, 2]}, "2 were given for 1"),
        ({"rate": ["10/s", "1/s"], "burst": [1]}, "1 were given for 2"),
        ({"on_unavailable": "ignore"}, "raise, wait, local, open"),
        ({"on_unavailable": "local"}, "needs local_share"),
        ({"on_unavailable": "local", "local_share": 0}, "more than 0"),
        ({"on_unavailable": "local", "local_share": 1.5}, "at most 1"),
        ({"local_share": 0.5}, "is for on_unavailable='local'"),
        ({"client_or_url": "127.0.0.1:6379"}, "a URL such as"),
        ({"client_or_url": "http://127.0.0.1"}, "a URL such as"),
        ({"client_or_url": "redis://127.0.0.1:first/0"}, "must be a number"),
        ({"client_or_url": "redis://127.0.0.1:99999/0"}, "0-65535"),
        ({"max_waiting": -1}, "0 or more"),
        ({"rate": TokenBucket("10/s", burst=20), "burst": 20}, "has a burst already"),
        ({"rate": TokenBucket("10/s", burst=20), "burst": 1}, "has a burst already"),
        ({"rate": ["100/s", TokenBucket("10/s", burst=20)], "burst": [1, 20]}, "has a burst already"),
        ({"rate": TokenBucket("10/s", burst=20, initial=0)}, "starts full"),
        ({"rate": TokenBucket("1/h", burst=10**19)}, "317 years"),
        ({"rate": ()}, "a list of one or more"),
    ],
)
def test_a_wrong_value_is_refused_at_once(changes: dict[str, Any], hint: str) -> None:
    """Not at the first request, far from where it was written."""
    given = {"client_or_url": URL, "name": "x", "rate": "10/s", **changes}

    with pytest.raises(ValueError, match=hint):
        RedisLimiter(given.pop("client_or_url"), given.pop("name"), given.pop("rate"), **given)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": None},
        {"name": b"x"},
        {"rate": None},
        {"rate": {"10/s"}},
        {"burst": 1.5},
        {"burst": True},
        {"burst": "3"},
        {"burst": ["3"]},
        {"lease": "1"},
        {"horizon": None},
        {"client_or_url": None},
        {"client_or_url": redis.Redis.from_url(URL)},
        {"client_or_url": redis.asyncio.Redis},
        {"client_or_url": object()},
        {"clock": 5},
    ],
)
def test_a_wrong_kind_is_refused_at_once(changes: dict[str, Any]) -> None:
    """A synchronous client among them, which would stop the loop."""
    given = {"client_or_url": URL, "name": "x", "rate": "10/s", **changes}

    with pytest.raises(TypeError):
        RedisLimiter(given.pop("client_or_url"), given.pop("name"), given.pop("rate"), **given)


@pytest.mark.parametrize(
    "limit", [SlidingWindow("10/s"), [TokenPool("10/s")], AllOf(TokenBucket("10/s", burst=1)), Limiter("10/s"), TokenBucket]
)
def test_an_error_says_which_limits_are_possible(limit: Any) -> None:
    """A store knows rates and buckets."""
    with pytest.raises(TypeError, match=r"TokenBucket\('100/s', burst=10\)"):
        RedisLimiter(URL, "x", limit)


@pytest.mark.parametrize("limit", [TokenBucket("10/s", burst=20), [TokenBucket("10/s", burst=20)], (TokenBucket("10/s", burst=20),)])
def test_a_bucket_gives_rate_and_burst(limit: Any) -> None:
    """It is what `Limiter` takes."""
    assert repr(RedisLimiter(URL, "x", "10/s", burst=20)) == repr(RedisLimiter(URL, "x", limit))


def test_buckets_and_rates_may_be_mixed() -> None:
    """All hold, and a rate alone has a burst of 1."""
    buckets = [TokenBucket("10/s", burst=20), "500/min", TokenBucket("1000/h", burst=100)]

    mixed = RedisLimiter(URL, "x", buckets)  # type: ignore[arg-type]

    assert repr(RedisLimiter(URL, "x", ["10/s", "500/min", "1000/h"], burst=[20, 1, 100])) == repr(mixed)
    assert mixed.bound(3600) == RedisLimiter(URL, "x", buckets, on_unavailable="open").bound(3600)  # type: ignore[arg-type]


def test_a_password_is_not_shown() -> None:
    """An error is logged."""
    with pytest.raises(ValueError, match="URL") as caught:
        RedisLimiter("http://user:secret@host", "x", "10/s")

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("missing", "url"), [(["redis"], URL), (["redis", "valkey"], URL), (["valkey"], URL.replace("redis", "valkey"))])
def test_a_url_wants_one_of_two_clients(monkeypatch: pytest.MonkeyPatch, missing: list[str], url: str) -> None:
    """Either works for redis://, and without both, the error says what to install."""
    for name in missing:
        monkeypatch.setitem(sys.modules, f"{name}.asyncio", None)

    if missing == ["redis"]:
        assert "aiorate:x" == RedisLimiter(url, "x", "10/s").key
    else:
        with pytest.raises(ImportError, match=r"pip install 'aiorate\[redis\]'"):
            RedisLimiter(url, "x", "10/s")


def test_outside_an_event_loop_nothing_is_asked() -> None:
    """No task could hear an answer there: a refusal, and an estimate."""
    limiter = RedisLimiter(URL, "x", "10/s", lease=1)

    assert not limiter.try_acquire()
    assert 0 <= limiter.delay() < 0.1
    assert 1 == limiter.statistics().refused


def test_the_bound_is_printed() -> None:
    """b + R (W + max(slack, lease)), and the largest request more."""
    assert 1 + 1005 == RedisLimiter(URL, "x", "1000/s").bound(1)
    assert 300 + 1050 == RedisLimiter(URL, "x", "1000/s", burst=300, lease=0.05).bound(1)
    assert 1 + 1005 + 8 == RedisLimiter(URL, "x", "1000/s").bound(1, largest=8)
    assert 5 + 60 == RedisLimiter(URL, "x", ["10/s", "60/min"], burst=[1, 5], slack=0.001).bound(60)
    assert 1 + 1010 == RedisLimiter(URL, "x", "1000/s", slack=0, lease=0.01).bound(1)  # a lease is slack enough


def test_it_says_what_it_is() -> None:
    """In a debugger."""
    limiter = RedisLimiter(URL, "search", ["10/s", "60/min"], burst=[1, 5])

    assert "'search'" in repr(limiter)
    assert "60/min burst 5" in repr(limiter)
    assert "aiorate:search" == limiter.key
    assert Rate.parse("60/min") == limiter.rate
    assert "shared" == limiter.statistics().state


def test_it_can_be_imported_without_fork() -> None:
    """On Windows `os` has no `register_at_fork`."""
    program = (
        "import asyncio, logging, os, random, sys; del os.register_at_fork; sys.platform = 'win32';"  # what takes part in forks itself
        "import aiorate.redis.client; print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG, check=False)

    assert ("ok\n", "") == (done.stdout, done.stderr)


def test_no_part_of_it_looks_at_the_wall_clock() -> None:
    """A machine whose clock is wrong would take the others' share, or get none."""
    for path in Path(aiorate.redis.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and ["timedelta"] == [alias.name for alias in node.names]:
                continue  # a duration, and no clock
            names = {node.attr} if isinstance(node, ast.Attribute) else {node.module} if isinstance(node, ast.ImportFrom) else set()
            names |= {alias.name for alias in node.names} if isinstance(node, (ast.Import, ast.ImportFrom)) else set()
            assert not names & {"datetime", "time_ns", "gmtime", "localtime", "utcnow"}, f"{path.name}: {ast.unparse(node)}"
            if isinstance(node, ast.Attribute) and node.attr == "time":
                assert ast.unparse(node) == "self.loop.time", path.name
