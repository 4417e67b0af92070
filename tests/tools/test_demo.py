"""The demo: its verdict, on instants by hand, and short runs with real requests."""

from __future__ import annotations

import pytest

from aiorate import Limiter
from aiorate._tools import cli, demo
from aiorate._tools.demo import judge


def test_one_grant_too_many_is_found() -> None:
    """And a request without a grant: a client went around the limiter. Grants without a request are those under way at the end."""
    for bound, granted, arrived, kept, said in (
        (50, 50, 49, True, "Kept: 50 grants in 4.0 s, where the guarantee is at most 50."),
        (50, 51, 50, False, "BROKEN: 51 grants in 4.0 s, where the guarantee is at most 50."),
        (None, 51, 51, True, "This strategy bounds no window"),
        (None, 51, 52, False, "BROKEN: the server saw a request"),
    ):
        found, verdict = judge(bound, granted, arrived, 4.0)

        assert (kept, True) == (found, verdict.startswith(said)), said


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
    rows = {line[:42].strip(): line[42:].split() for line in out.splitlines() if len(line) == 71}
    assert code == 0
    assert rows["bound(1): granted in any second, at most"] == ["-", "112"]  # a bucket of 10, and 100/s for 1.02 s
    arrived = int(rows["arrived in the busiest second"][1])
    assert 0 < arrived <= int(rows["requests"][1]) <= 112
    assert "Kept: " in out
    assert "\x1b" not in out


def test_a_broken_guarantee_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As if the limiter had promised less."""
    monkeypatch.setattr(Limiter, "bound", lambda self, window: 2)

    assert cli.main(["demo", "--rate", "200/s", "--strategy", "BurstCompensation", "--seconds", "0.2"]) == 1

    out = capsys.readouterr().out
    assert "BROKEN: " in out
    assert "where the guarantee is at most 2." in out
