"""Clients, a server, and the network between them: a discrete-event simulation in virtual time. The same seed has the same answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from helpers.adaptive.policies import Policy
from helpers.adaptive.servers import SECOND, Answer, Server, Steps

BIN = SECOND // 4  # answers are counted in parts of this many ns
_ASK, _ARRIVE, _ANSWER, _WANT, _LOOK = range(5)

# How much longer than the least a way takes, in shares of it.
JITTERS: dict[str, Callable[[Random], float]] = {
    "none": lambda random: 0.0,
    "even": lambda random: 0.2 * random.random(),
    "heavy": lambda random: min(20.0, 0.1 * random.paretovariate(1.2)),
}


@dataclass
class Client:
    """One client: its policy, the least round trip in seconds, when it begins, and the requests per second that it wants, None: all."""

    policy: Policy
    round_trip: float
    begins: float = 0.0
    demand: Steps | None = None
    jitter: str = "even"
    # Requests served and refused, by the part of the time in which the server decided, and the rate at the end of each.
    served: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    wanted: int = 0
    waiting: int = 0  # requests that wait at the client
    asks: int = 0  # the number of the last poll: older ones are void
    asked_at: int = -1


@dataclass(frozen=True)
class Record:
    """What came of a simulation of ``seconds``."""

    clients: list[Client]
    server: Server
    seconds: float


def run(server: Server, clients: list[Client], seconds: float, seed: int = 0) -> Record:
    """Simulate the time from 0 to ``seconds``."""
    random, until, count = Random(seed), round(seconds * SECOND), 0
    parts = -(-until // BIN)
    events: list[tuple[int, int, int, int, int, Answer | None]] = []  # instant, number, kind, client, granted at or a number, answer

    def later(at: int, kind: int, number: int, extra: int, answer: Answer | None = None) -> None:
        nonlocal count
        count += 1
        heappush(events, (at, count, kind, number, extra, answer))

    def way(client: Client) -> int:
        return int(client.round_trip / 2 * SECOND * (1 + JITTERS[client.jitter](random)))

    for number, client in enumerate(clients):
        client.served, client.refused, client.rates = [0] * parts, [0] * parts, [0.0] * parts
        if client.demand is not None:
            later(round(client.begins * SECOND), _WANT, number, 0)
        later(round(client.begins * SECOND), _ASK, number, 0)
    for part in range(parts):
        heappush(events, (min(until, (part + 1) * BIN) - 1, 0, _LOOK, 0, part, None))

    while events:
        now, _, kind, number, extra, answer = heappop(events)
        if now >= until:
            break
        client = clients[number]
        poll = False
        if kind == _ARRIVE:
            said = server.ask(now)
            (client.served if said.served else client.refused)[now // BIN] += 1
            later(now + said.service + way(client), _ANSWER, number, extra, said)
        elif kind == _ANSWER:
            assert answer is not None
            poll = client.policy.answered(now, answer, (now - extra) / SECOND)
            if not answer.served and client.demand is not None:
                client.waiting += 1  # it is tried again
                poll = True
        elif kind == _ASK:
            poll = extra == client.asks
        elif kind == _WANT:
            assert client.demand is not None
            rate = client.demand.at(now)
            if rate:
                client.waiting += 1
                client.wanted += 1
                poll = True
            later(now + round(SECOND / rate) if rate else client.demand.next(now, until), _WANT, number, 0)
        else:
            for each in clients:
                each.rates[extra] = each.policy.rate
        while poll and (client.demand is None or client.waiting):
            at = client.policy.take(now)
            if at > now:
                if at != client.asked_at or kind == _ASK:
                    client.asks += 1
                    client.asked_at = at
                    later(at, _ASK, number, client.asks)
                break
            client.waiting -= 1
            later(now + way(client), _ARRIVE, number, now)
    return Record(clients, server, seconds)
