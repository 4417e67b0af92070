"""The script beside its twin in Python: a real server that is told what time it is answers as the twin does, number by number."""

from __future__ import annotations

from random import Random

import pytest
from helpers.stores import TIMED, RealServer

from aiorate._store.script import FORM, HEAD, MOST, OF_RATE, OF_WINDOW, TEXT, Answer, Question, pack, read_answer
from aiorate._store.twin import answer_of

EPOCH = 1_700_000_000_000_000
MS, SECOND = 1_000, 1_000_000
WINDOW = 2 * SECOND
KEY = "aiorate:x"


class Twin:
    """One key of a store, whose value is text."""

    def __init__(self) -> None:
        self.text: str = ""
        """Its value."""

    def ask(self, now: float, asked: Question, remembered: str) -> str:
        """The answer to a question when the server's clock reads ``now``. Raises ValueError for a value of another kind of limit."""
        kind = remembered.split(" ", 2)[1]
        kept = _read(self.text, kind, asked)
        if self.text and kept is None:
            raise ValueError("WRONGTYPE the key has another kind of limit, or something else")
        told = _read(remembered, kind, asked) if remembered != self.text else None
        answer, _ = answer_of(now, asked, kept, told, self.text == remembered)
        if len(answer.numbers) < HEAD:
            return f"{FORM} {kind} {now:.0f}; 0 0 0"
        self.text = f"{FORM} {kind} " + " ".join([f"{each:.17g}" for each in answer.numbers])
        runs = [f" {n:.0f} {place:.0f}" + "".join([f" {us:.3f}" for us in starts]) for n, place, starts in answer.runs]
        return f"{self.text}; {answer.wait:.3f} {answer.place:.0f} {answer.seat:.0f}{''.join(runs)}"


def _read(text: str, kind: str, asked: Question) -> list[float] | None:
    form, _, rest = text.partition(" ")
    its, _, words = rest.partition(" ")
    numbers = [float(each) for each in words.split(" ")] if form == FORM and its == kind and words else []
    size = HEAD + sum(OF_RATE if every > 0 else OF_WINDOW for every, *_ in asked.limits)
    return numbers if len(numbers) == size else None


class Client:
    """What a process remembers."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.value, self.told_at, self.seat = "", 0.0, 0.0

    def told(self, answer: Answer, now: float) -> None:
        if answer.value:
            self.value, self.told_at, self.seat = answer.value, now, answer.seat


def history(store: RealServer, seed: int, questions: int) -> None:
    """Three clients, any limits, charges, credits, pauses, lost and old values, clocks that jump."""
    random = Random(seed)
    pick = random.choice
    kind = pick(["limiter", "budget:a,b", "window"])
    dims = (
        [(0.0, pick([3, 10, 100]))]
        if kind == "window"
        else [(1e6 / pick([7, 10, 1000, 3]), pick([1, 1, 3, 50])) for _ in range(pick([1, 2, 3]))]
    )
    store.send("FLUSHALL")
    twin, now = Twin(), float(EPOCH + random.randrange(10**9))
    clients = [Client(random.getrandbits(48) + 1) for _ in range(3)]
    for _ in range(questions):
        now += pick([0, 1, MS, 20 * MS, 300 * MS, 2.5 * SECOND, -MS, random.randrange(10 * SECOND)])
        client = pick(clients)
        if random.random() < 0.02:
            store.send("FLUSHALL")
            twin.text = ""
        old = pick(clients).value
        if old and random.random() < 0.02:
            store.send("SET", KEY, old)
            twin.text = old
        asked = question(random, kind, dims, client, now)
        reply = store.send("EVAL", TIMED, 1, KEY, pack(asked), client.value or f"{FORM} {kind}", f"{now:.0f}")
        assert reply == twin.ask(now, asked, client.value or f"{FORM} {kind}"), (seed, now)
        rates = sum(every > 0 for every, _ in dims)
        client.told(read_answer(reply, rates, len(dims) - rates, len(asked.runs)), now)


def question(random: Random, kind: str, dims: list[tuple[float, int]], client: Client, now: float) -> Question:
    pick = random.choice
    begin = now // WINDOW * WINDOW + pick([0, 0, 0, 0, 0, 0, 0, 0, 0, WINDOW])
    edges = [begin + index * WINDOW for index in range(4)]
    limits = [[every, burst, pick([0, 0, 0, 2, -1, -5, MOST]), *([0] * 4 if every else edges)] for every, burst in dims]
    amounts = {"limiter": [1], "window": [1, 1, 7, 60]}.get(kind, [0, 1, 1, 7, 60])
    runs = [(pick([1, 1, 3, 50]), [pick(amounts) for _ in dims]) for _ in range(pick([0, 1, 1, 2, 4]))]
    return Question(
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
        limits=limits,
        runs=runs,
    )


@pytest.mark.parametrize("histories", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_the_twin_answers_as_the_script_does(store: RealServer, histories: int) -> None:
    for seed in range(histories):
        history(store, seed, 25)


def test_the_tests_change_only_the_clock_of_the_script() -> None:
    assert 1 == TEXT.count("redis.call('TIME')")
    assert TEXT == TIMED.replace("{0, ARGV[3]}", "redis.call('TIME')")
