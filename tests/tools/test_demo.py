"""The demo: its verdict, on instants by hand, and short runs with real requests."""

from __future__ import annotations

import pytest

from aiorate._tools import cli, demo
from aiorate._tools.demo import WatchedLimiter, judge
from aiorate._tools.figures import SECOND

MS = SECOND // 1000


def test_one_grant_too_many_is_found() -> None:
    """In a long run that is otherwise right. Arrivals that the network has moved together break nothing."""
    steady = [n * 100 * MS for n in range(50)]
    early = [*steady, 2_350 * MS]

    assert judge(10, steady, [5 * SECOND + 1] * 50) == ("Kept: at most 10 grants in any second, where the guarantee is 10.", True)
    for grants, arrivals in ((early, early), (early, [])):
        assert judge(10, grants, arrivals) == ("BROKEN: 11 grants in a second, where the guarantee is 10.", False)


def test_a_request_without_a_grant_breaks_the_guarantee() -> None:
    """A client went around the limiter. Grants without a request are those under way at the end; requests may overtake each other."""
    for arrivals, kept in (([1], True), ([12, 1], True), ([1, 5, 11], False), ([1, 9], False)):
        verdict, found = judge(None, [0, 10], arrivals)

        assert (found, "had not granted" in verdict) == (kept, not kept), arrivals


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
    assert "requests per second: without (o) and with the limiter (#)" in out
    assert "Kept: at most" in out
    assert "\x1b" not in out


def test_a_broken_guarantee_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As if the limiter had promised less."""
    monkeypatch.setattr(WatchedLimiter, "bound", lambda self, window: 2)

    assert cli.main(["demo", "--rate", "200/s", "--strategy", "BurstCompensation", "--seconds", "0.2"]) == 1

    out = capsys.readouterr().out
    assert "BROKEN: " in out
    assert "where the guarantee is 2." in out
