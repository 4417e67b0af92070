"""The demo: short runs with real requests."""

from __future__ import annotations

import pytest

from aiorate import Limiter
from aiorate._tools import cli, demo


@pytest.mark.asyncio
async def test_the_server_refuses_what_exceeds_its_limit() -> None:
    """And notes refused requests too. Every client sends something."""
    for allowed, status in ((0, 429), (1_000_000, 200)):
        arrivals, answers = await demo.send(0.2, 3, allowed)

        assert answers == {status: len(arrivals)}
        assert len(arrivals) >= 3


def test_a_short_run_keeps_the_guarantee(capsys: pytest.CaptureFixture[str]) -> None:
    """Real requests. In a pipe it prints plain text."""
    code = cli.main(["demo", "--rate", "100/s", "--strategy", "TokenBucket", "--seconds", "0.5"])

    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith("with")}
    assert code == 0
    assert ["0", "0"] != rows["without"][1:3]
    _, requests, refused, busiest = map(float, rows["with"])
    assert 0 < busiest <= requests <= 112  # a bucket of 10, and 100/s for 1.02 s
    assert refused == 0
    assert "Kept: " in out
    assert "\x1b" not in out


def test_a_broken_guarantee_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As if the limiter had promised less."""
    monkeypatch.setattr(Limiter, "bound", lambda self, window: 2)

    assert cli.main(["demo", "--rate", "200/s", "--strategy", "BurstCompensation", "--seconds", "0.2"]) == 1

    out = capsys.readouterr().out
    assert "BROKEN: " in out
    assert "where the guarantee is at most 2." in out
