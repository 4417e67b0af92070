"""The script beside its twin in Python: a real server that is told what time it is answers as the twin does, number by number."""

from __future__ import annotations

import socket
from random import Random
from typing import Any

import pytest
from helpers.stores import TIMED, RealServer

from aiorate._store.failures import BadAnswer
from aiorate._store.script import FORM, MOST, TEXT, Answer, Question, pack, read_answer
from aiorate._store.twin import Twin

EPOCH = 1_700_000_000_000_000
MS, SECOND = 1_000, 1_000_000
WINDOW = 2 * SECOND
KEY = "aiorate:x"


class Line:
    """One connection to the server, for many questions."""

    def __init__(self, store: RealServer) -> None:
        self.socket = socket.create_connection(("127.0.0.1", store.port))
        self.stream = self.socket.makefile("rb")

    def send(self, *words: Any) -> str:
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
        reply = self.stream.readline().decode().strip()
        assert reply[0] in "+:", reply
        return reply[1:]

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


class Client:
    """What a process remembers."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.value, self.told_at, self.seat = "", 0.0, 0.0

    def told(self, answer: Answer, now: float) -> None:
        if answer.value:
            self.value, self.told_at, self.seat = answer.value, now, answer.seat


def history(line: Line, seed: int, questions: int) -> None:
    """Three clients, any limits, charges, credits, pauses, lost and old values, clocks that jump."""
    random = Random(seed)
    pick = random.choice
    kind = pick(["limiter", "budget:a,b", "window"])
    dims = (
        [(0.0, pick([3, 10, 100]))]
        if kind == "window"
        else [(1e6 / pick([7, 10, 1000, 3]), pick([1, 1, 3, 50])) for _ in range(pick([1, 2, 3]))]
    )
    line.send("FLUSHALL")
    twin, now = Twin(), float(EPOCH + random.randrange(10**9))
    clients = [Client(random.getrandbits(48) + 1) for _ in range(3)]
    for _ in range(questions):
        now += pick([0, 1, MS, 20 * MS, 300 * MS, 2.5 * SECOND, -MS, random.randrange(10 * SECOND)])
        client = pick(clients)
        if random.random() < 0.02:
            line.send("FLUSHALL")
            twin.text = ""
        old = pick(clients).value
        if old and random.random() < 0.02:
            line.send("SET", KEY, old)
            twin.text = old
        packed, asked, whole = question(random, kind, dims, client, now)
        reply = line.send("EVAL", TIMED, 1, KEY, packed, client.value or f"{FORM} {kind}", f"{now:.0f}")
        assert reply == twin.ask(now, packed, client.value or f"{FORM} {kind}"), (seed, now)
        rates = sum(every > 0 for every, _ in dims)
        client.told(read_answer(reply, rates, len(dims) - rates, asked, whole), now)


def question(random: Random, kind: str, dims: list[tuple[float, int]], client: Client, now: float) -> tuple[bytes, list[int], bool]:
    pick = random.choice
    begin = now // WINDOW * WINDOW + pick([0, 0, 0, 0, 0, 0, 0, 0, 0, WINDOW])
    edges = [begin + index * WINDOW for index in range(4)]
    limits = [[every, burst, pick([0, 0, 0, 2, -1, -5, 10**16]), *([0] * 4 if every else edges)] for every, burst in dims]
    amounts = {"limiter": [1], "window": [1, 1, 7, 60]}.get(kind, [0, 1, 1, 7, 60])
    runs = [(pick([1, 1, 3, 50]), [pick(amounts) for _ in dims]) for _ in range(pick([0, 1, 1, 2, 4]))]
    asked = Question(
        pause=pick([-1] * 8 + [0, 500_000.5]),
        horizon=pick([20_000.0, 1_000.0, 2e6]),
        reach=pick([MOST, 50_000.0]),
        within=pick([-1, -1, -1, 5_000.0, 300_000.0]),
        age=max(0, now - client.told_at) * pick([1, 1.0001]) if client.value else 0,
        client=client.number,
        oldest=pick([0, 1_000, 5e6]),
        took=pick([-1, 300.0, 50_000.0]),
        seat=client.seat,
        gone=pick([0, 0, 0, 1]),
        margin=5_000.0,
    )
    return pack(asked, limits, runs), [n for n, _ in runs], asked.within >= 0


@pytest.mark.parametrize("histories", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_the_twin_answers_as_the_script_does(store: RealServer, histories: int) -> None:
    line = Line(store)
    for seed in range(histories):
        history(line, seed, 25)
    line.close()


def test_the_tests_change_only_the_clock_of_the_script() -> None:
    assert 1 == TEXT.count("redis.call('TIME')")
    assert TEXT == TIMED.replace("{0, ARGV[3]}", "redis.call('TIME')")


# What it answers, by the twin.


class Asked:
    """One client of a twin, with rates (every, burst)."""

    def __init__(self, twin: Twin, *rates: tuple[float, int], horizon: float = 1e12, number: int = 1) -> None:
        self.twin, self.rates, self.horizon, self.client = twin, rates, horizon, Client(number)

    def ask(self, now: float, n: int = 0, amounts: Any = (1,), more: float = 0, **options: Any) -> list[float]:
        """When the first of each run is due, in us after ``now``, or the first of each request of a single one."""
        client = self.client
        asked = Question(horizon=self.horizon, age=now - client.told_at, client=client.number, **options)
        runs = [(n, amounts)] if n else []
        limits = [[every, burst, more, 0, 0, 0, 0] for every, burst in self.rates]
        reply = self.twin.ask(EPOCH + now, pack(asked, limits, runs), client.value or f"{FORM} limiter")
        answer = read_answer(reply, len(self.rates), 0, [n for n, _ in runs], asked.within >= 0)
        client.told(answer, now)
        self.wait, due = answer.wait, []
        for count, _, (first, *starts) in [run for run in answer.runs if run[0]]:
            steps = [every * amount for (every, _), amount in zip(self.rates, amounts, strict=True)]
            due += [max([first, *[start + i * step for start, step in zip(starts, steps, strict=True)]]) for i in range(count)]
        return due


def test_slots_are_those_of_all_rates() -> None:
    """A burst, then the faster rate, then the slower."""
    client = Asked(Twin(), (100 * MS, 3), (1000 * MS, 4))

    assert [0, 0, 0, 100 * MS, 1000 * MS, 2000 * MS] == client.ask(0, 6, (1, 1))


def test_a_question_gets_only_slots_within_the_horizon() -> None:
    """A process books at most that far ahead, less the further all have booked, and one slot at least."""
    client = Asked(Twin(), (MS, 1), horizon=20 * MS)

    assert [20, 20, 10, 8] == [len(client.ask(0, 1000)) for _ in range(4)]
    client.ask(58 * MS, more=1000)
    assert 1 == len(client.ask(58 * MS, 1000))


def test_a_far_process_books_further_ahead_only_among_far_ones() -> None:
    for trips, slots in (((200 * MS, 200 * MS), 200), ((1 * MS, 200 * MS), 63)):
        twin = Twin()
        clients = [Asked(twin, (MS, 1), horizon=20 * MS, number=number) for number in (1, 2)]
        clients[0].ask(0, 1, took=trips[0])
        assert pytest.approx(slots, abs=1) == len(clients[1].ask(1 * MS, 1000, took=trips[1])), trips


def test_lost_slots_are_restored_plus_one_horizon() -> None:
    """The others may have booked that far ahead, and nothing must be booked twice."""
    twin = Twin()
    one, other = (Asked(twin, (MS, 1), horizon=20 * MS) for _ in range(2))
    one.ask(0, 10)
    twin.text = ""

    assert [29 * MS] == one.ask(1 * MS, 1)
    assert [pytest.approx(30 * MS, abs=2)] == other.ask(1 * MS, 1)


def test_what_comes_back_counts_unless_the_bucket_was_full_since() -> None:
    twin = Twin()
    client = Asked(twin, (100 * MS, 10))
    client.ask(0, 10)
    client.ask(200 * MS, more=-5, oldest=200 * MS)
    assert [0] * 7 == client.ask(200 * MS, 7, within=0)
    client.ask(5 * SECOND)
    client.ask(5 * SECOND, 10)
    client.ask(5 * SECOND, more=-5, oldest=5 * SECOND)
    assert [] == client.ask(5 * SECOND, 1, within=0)


def test_nothing_but_an_answer_is_read_as_one() -> None:
    client = Asked(Twin(), (MS, 1))
    client.ask(0, 1)
    good = f"{client.twin.text}; 0.000 0 0 1 0 0.000 0.000"
    assert [(1, 0, [0.0, 0.0])] == read_answer(good.encode(), 1, 0, [1], False).runs
    for bad in (
        "",
        "OK",
        None,
        7,
        good[:-6],
        good + " 1",
        good.replace("/2", "/3"),
        good.replace(" 1 0 0.000", " 2 0 0.000"),
        "5; clock x",
    ):
        with pytest.raises(BadAnswer):
            read_answer(bad, 1, 0, [1], False)
