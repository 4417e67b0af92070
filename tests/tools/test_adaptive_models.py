"""The models of servers on which AdaptiveRate is judged: they allow exactly what they say, and the simulation loses no request."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from benchmarks.adaptive import figures, kinds, network, policies, servers, table

SECOND = servers.SECOND
MS = SECOND // 1000


def served(server: servers.Server, instants: range) -> list[int]:
    """The instants at which it served."""
    return [now for now in instants if server.ask(now).served]


@pytest.mark.parametrize("rate", [3, 0.5, 7.25, 100, 333.333])
def test_a_bucket_allows_its_burst_and_its_rate(rate: float) -> None:
    """Neither more nor less, after any time: nothing is rounded away."""
    burst, seconds = 10, 60

    got = served(servers.Bucket(rate, burst), range(0, seconds * SECOND + 1, MS))

    assert burst + int(rate * seconds) == len(got)


def test_a_bucket_follows_a_rate_that_changes() -> None:
    """Also between two requests that are far apart."""
    rate = servers.Steps((0, 100), (5, 40), (10, 1))

    busy = served(servers.Bucket(rate, 10), range(0, 15 * SECOND + 1, MS))
    idle = servers.Bucket(rate, 1000)
    emptied = served(idle, range(1000))
    later = served(idle, range(15 * SECOND, 15 * SECOND + 1000))

    assert 10 + 500 + 200 + 5 == len(busy)
    assert 1000 == len(emptied)
    assert 705 == len(later)
    assert [100, 40, 40, 1] == [rate.at(second * SECOND) for second in (4, 5, 9, 10)]
    assert [(5 * SECOND, 100, 40), (10 * SECOND, 40, 1)] == rate.changes()


def test_a_bucket_may_count_refused_requests() -> None:
    """An asker that never stops gets nothing from it but the burst; its debt is a burst at most."""
    bucket = servers.Bucket(10, 5, counts_refused=True)

    got = served(bucket, range(0, 60 * SECOND, MS))
    begin = 60 * SECOND + 600 * MS

    assert 5 == len(got)
    assert bucket.ask(begin).served


@pytest.mark.parametrize("period", [0.5, 1, 10])
def test_a_fixed_window_allows_n_in_each(period: float) -> None:
    """From its edge on, which is a multiple of its length."""
    window = round(period * SECOND)

    got = served(servers.FixedWindow(7, period), range(0, 3 * window, window // 100))

    assert [0, 1, 2] == sorted(Counter(now // window for now in got))
    assert {7} == set(Counter(now // window for now in got).values())
    assert got[7] == window


def test_a_fixed_window_may_name_its_end() -> None:
    """As servers do that are kind."""
    server = servers.FixedWindow(1, 10, hint=True)
    server.ask(0)

    assert 7.5 == server.ask(2_500 * MS).retry_after
    assert server.ask(10 * SECOND).served


def test_a_sliding_window_allows_n_in_any() -> None:
    """The next is served exactly one window after the first."""
    random = Random(1)
    instants = sorted(random.randrange(30 * SECOND) for _ in range(3000))
    server = servers.SlidingWindow(5, 1)

    got = [now for now in instants if server.ask(now).served]
    exact = served(servers.SlidingWindow(5, 1), range(0, 2 * SECOND + 1, MS))

    assert all(later - first >= SECOND for first, later in zip(got, got[5:], strict=False))
    assert [0, 1, 2, 3, 4, 1000, 1001, 1002, 1003, 1004, 2000] == [now // MS for now in exact]


def test_a_sliding_window_may_count_refused_requests() -> None:
    """An asker that never stops gets nothing after its first n."""
    assert 5 == len(served(servers.SlidingWindow(5, 1, counts_refused=True), range(0, 10 * SECOND, 100 * MS)))


def test_concurrency_is_never_exceeded() -> None:
    """A place is free as soon as the service of its request is over."""
    server = servers.Concurrency(3, 0.1, spread=0)
    answers = [(now, server.ask(now)) for now in range(0, SECOND, 10 * MS)]

    got = [now // MS for now, answer in answers if answer.served]

    assert [0, 10, 20, 100, 110, 120, 200] == got[:7]
    assert {100 * MS} == {answer.service for _, answer in answers if answer.served}


def test_a_service_that_slows_down_allows_less() -> None:
    """The limit is places over seconds of service."""
    server = servers.Concurrency(10, servers.Steps((0, 0.05), (60, 0.2)))

    assert (200, 50) == (server.limit(0), server.limit(60 * SECOND))
    assert 60 * 200 + 30 * 50 == pytest.approx(server.allowed(90 * SECOND))


def test_a_neighbour_takes_its_share_unasked() -> None:
    """It comes and goes by its own schedule, also while the client asks nothing."""

    def left(neighbour: float, second: int) -> int:
        server = servers.Neighbour(servers.Bucket(100, 100), servers.Steps((0, 0), (10, neighbour), (20, 0)))
        return len(served(server, range(second * SECOND - 1000, second * SECOND - 500)))

    assert [100, 0, 100] == [left(150, second) for second in (10, 20, 30)]
    assert [100, 100, 100] == [left(60, second) for second in (10, 20, 30)]
    assert 100 == kinds.build("neighbour").server.limit(0)
    assert 40 == kinds.build("neighbour").server.limit(40 * SECOND)


def test_a_penalty_is_for_everybody_until_it_ends() -> None:
    """Requests in it do not make it longer, and each refusal names what is left of it."""
    server = servers.Penalty(servers.Bucket(1, 1), 30)

    answers = [server.ask(second * SECOND) for second in (0, 0, 0, 10, 29, 30)]

    assert [True, False, False, False, False, True] == [answer.served for answer in answers]
    assert [None, 30, 30, 20, 1, None] == [answer.retry_after for answer in answers]


def test_answers_of_a_queue_take_longer_near_the_limit() -> None:
    """Each waits for those before it."""
    server = servers.Queue(100, 3)

    answers = [server.ask(0) for _ in range(4)]

    assert [10 * MS, 20 * MS, 30 * MS, 0] == [answer.service for answer in answers]
    assert [True, True, True, False] == [answer.served for answer in answers]
    assert server.ask(10 * MS).served


@pytest.mark.parametrize("name", [name for name in kinds.KINDS if not name.startswith(("retry", "unlimited", "fast"))])
def test_what_a_kind_allows_is_what_can_be_had(name: str) -> None:
    """The denominator of a share, against an asker that asks a thousand times a second. Refusals cost nothing here."""
    kind = kinds.build(name)
    until = 20 * SECOND

    got = len(served(kind.server, range(0, until, MS)))

    assert got == pytest.approx(kind.server.allowed(until), rel=0.05 if name in ("concurrency", "varied") else 0.01, abs=1)


class Constant:
    """A policy that asks at a constant rate, and notes what it hears."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.due = 0
        self.heard: list[tuple[int, bool, float]] = []

    def take(self, now: int) -> int:
        if self.due > now:
            return self.due
        self.due += round(SECOND / self.rate)
        return now

    def answered(self, now: int, answer: servers.Answer, took: float) -> bool:
        self.heard.append((now, answer.served, took))
        return False


def simulated(rate: float, seed: int = 0, **options: object) -> tuple[Constant, network.Client]:
    policy = Constant(rate)
    client = network.Client(policy, 0.05, **options)  # type: ignore[arg-type]
    network.run(servers.Bucket(100, 10), [client], 10, seed)
    return policy, client


def test_no_request_is_lost_on_the_way() -> None:
    """Each is counted once by the server, and its answer is heard unless it is still under way."""
    policy, client = simulated(200)

    asked = sum(client.served) + sum(client.refused)

    assert 2000 == pytest.approx(asked, abs=10)
    assert 1010 == pytest.approx(sum(client.served), abs=5)
    assert asked == pytest.approx(len(policy.heard), abs=10)
    assert all(0.05 <= took <= 0.06 + 1e-9 for _, _, took in policy.heard)


def test_the_same_seed_has_the_same_answers() -> None:
    """So a figure that somebody else reports can be looked at."""
    one, other, third = (simulated(200, seed)[0].heard for seed in (1, 1, 2))

    assert one == other
    assert one != third


def test_demand_bounds_what_is_asked() -> None:
    """A client asks no more often than its own callers want, and tries what was refused again."""
    little = simulated(1000, demand=servers.Steps((0, 20), (5, 0)))[1]
    much = simulated(1000, demand=servers.Steps((0, 150)))[1]

    assert 100 == little.wanted == sum(little.served)
    assert 0 == sum(little.refused)
    assert 1010 == pytest.approx(sum(much.served), abs=10)


def test_the_index_of_fairness() -> None:
    """Jain's: from one over the number of clients to 1."""
    assert 1 == figures.jain([5, 5, 5])
    assert 1 / 3 == pytest.approx(figures.jain([7, 0, 0]))
    assert 0 == figures.jain([0, 0])


def test_a_share_is_of_what_was_allowed() -> None:
    """A client at half the limit has half; one above it is refused the rest."""
    kind = kinds.build("window1")
    half, double = (network.Client(Constant(rate), 0.0, jitter="none") for rate in (50, 200))
    records = [network.run(kinds.build("window1").server, [client], 120) for client in (half, double)]

    below, above = (figures.figures(kind, record) for record in records)

    assert (0.5, 0.0) == (below.share, below.refused)
    assert (1.0, 50.0) == (above.share, above.refused)


def test_how_soon_a_change_is_found() -> None:
    """When 0.85 of the new limit was served for two seconds."""

    class Late(Constant):
        def take(self, now: int) -> int:
            self.rate = 100 if now < 63 * SECOND else 30 if now < 130 * SECOND else 120
            return super().take(now)

    kind = kinds.build("bucket")
    found = figures.figures(kind, network.run(kind.server, [network.Client(Late(100), 0.005)], 180))

    assert found.fall == pytest.approx(3.25, abs=0.25)
    assert found.rise == pytest.approx(12, abs=0.5)


@pytest.mark.parametrize("name", [name for name in policies.POLICIES if name not in ("AdaptiveRate", "botocore adaptive")])
def test_rivals_hear_refusals_and_retry_after(name: str) -> None:
    """Each lowers its rate or pauses, at once."""
    policy = policies.POLICIES[name](policies.PolicyOptions(10, 1, 100))
    assert 0 == policy.take(0)

    assert policy.answered(SECOND, servers.Answer(False, 0, 30.0), 0.01)

    assert policy.take(2 * SECOND) > 2 * SECOND
    policy.answered(3 * SECOND, servers.Answer(True), 2.5)
    assert policy.take(32 * SECOND) == 32 * SECOND
    assert 1 <= policy.rate <= 11


def test_the_command_prints_means_and_worsts(capsys: pytest.CaptureFixture[str]) -> None:
    """With the parameters that it was given."""
    code = table.main(
        ["--policies", "pauses", "--kinds", "window1", "--round-trips", "50", "--starts", "1", "--set", "limit=20", "seconds=5", "--each"]
    )

    shown = capsys.readouterr().out
    assert 0 == code
    assert "a 429 pauses: mean; worst" in shown
    assert "fixed window of 1 s" in shown
    assert "share 1.000" in shown


def test_the_command_names_what_a_kind_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    """A parameter that it does not have is an error."""
    assert 2 == table.main(["--policies", "pauses", "--kinds", "window1", "--set", "burst=3"])
    assert "window1 has no parameter burst; it has limit, period" in capsys.readouterr().err


def test_the_command_shows_figures_as_json_and_by_the_second(capsys: pytest.CaptureFixture[str]) -> None:
    """For other programs, and for who looks for the reason of a figure."""
    words = ["--policies", "pauses", "--kinds", "window1", "--round-trips", "50", "--starts", "1", "--set", "limit=20", "seconds=5"]

    table.main([*words, "--json"])
    as_json = capsys.readouterr().out
    table.main([*words, "--trace"])

    assert '"share": 1.0' in as_json
    assert 6 == len(capsys.readouterr().out.splitlines())
