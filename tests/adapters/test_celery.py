"""The program of examples/adapters/ for Celery: two real workers of two processes each, one limit in a real store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest
from helpers.driving import LONG
from helpers.stores import RealServer

EXAMPLES = Path(__file__).parents[2] / "examples" / "adapters"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(store: RealServer) -> dict[str, str]:
    return {**os.environ, "REDIS": store.url, "PYTHONPATH": str(ROOT)}


def worker(stack: ExitStack, environment: dict[str, str], number: int, pool: str) -> None:
    """Start a worker, and end it with the test."""
    command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", f"--pool={pool}", "--concurrency=2"]
    options = ["-n", f"worker{number}", "--loglevel=ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    process = subprocess.Popen(command + options, cwd=EXAMPLES, env=environment)
    stack.callback(process.wait, LONG)
    stack.callback(process.terminate)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_workers_share_one_limit(environment: dict[str, str], pool: str) -> None:
    """Thirty tasks at ten per second: none is lost, and the last is called when it may be."""
    with ExitStack() as stack:
        for number in range(2):
            worker(stack, environment, number, pool)
        command = [sys.executable, "celery_tasks.py"]
        done = subprocess.run(command, cwd=EXAMPLES, env=environment, capture_output=True, text=True, timeout=LONG)

    calls = re.fullmatch(r"30 calls in ([\d.]+) s\n", done.stdout)
    assert calls is not None, done.stderr
    assert float(calls[1]) >= 2.7


def test_a_task_that_would_wait_long_goes_back(
    environment: dict[str, str], program: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is retried at its time, so that the worker is free meanwhile."""
    from celery.exceptions import Retry

    monkeypatch.setenv("REDIS", environment["REDIS"])
    module = program("celery_tasks")
    module.limiter.charge(50)

    with pytest.raises(Retry) as error:
        module.call_api.apply(args=[1], throw=True)

    assert 4 < error.value.when <= 5.1
