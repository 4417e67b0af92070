"""Clients, a server, and the network between them: a discrete-event simulation in virtual time.

Deterministic: the same seed has the same answers. Knows nothing of how a policy finds its rate or a server decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING

from helpers.adaptive.servers import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from helpers.adaptive.policies import Policy
    from helpers.adaptive.servers import Answer, Server, Steps

__all__ = ["BIN", "JITTERS", "Client", "Record", "run"]

BIN = SECOND // 4
"""Answers are counted in parts of this many ns."""
_ASK, _ARRIVE, _ANSWER, _WANT, _LOOK = range(5)

# How much longer than the least a way takes, in shares of it.
JITTERS: dict[str, Callable[[Random], float]] = {
    "none": lambda random: 0.0,
    "even": lambda random: 0.2 * random.random(),
    "heavy": lambda random: min(20.0, 0.1 * random.paretovariate(1.2)),
}


@dataclass(slots=True)
class Client:
    """One client: its policy, the least round trip in seconds, when it begins, and how many requests it wants."""

    policy: Policy
    round_trip: float
    begins: float = 0.0
    demand: Steps | None = None
    """Requests per second that come to the client; None: always more than it may send."""
    jitter: str = "even"
    served: list[int] = field(default_factory=list)
    """Requests served, by the part of the time in which the server decided."""
    refused: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    """The rate at the end of each part."""
    wanted: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """What came of a simulation of ``seconds``."""

    clients: list[Client]
    server: Server
    seconds: float


def run(server: Server, clients: list[Client], seconds: float, seed: int = 0) -> Record:
    """Simulate the time from 0 to ``seconds``."""
    random = Random(seed)
    until = round(seconds * SECOND)
    parts = -(-until // BIN)
    events: list[tuple[int, int, int, int, int, Answer | None]] = []  # instant, number, kind, client, granted at or a number, answer
    count = 0
    waiting: list[int | None] = []  # requests that wait at the client; None: always
    asks = [0] * len(clients)  # the number of the last poll: older ones are void
    asked_at = [-1] * len(clients)
    ways: list[Callable[[], int]] = []

    def way(client: Client) -> Callable[[], int]:
        least, jitter = client.round_trip / 2 * SECOND, JITTERS[client.jitter]
        return lambda: int(least * (1 + jitter(random)))

    for number, client in enumerate(clients):
        client.served, client.refused, client.rates = [0] * parts, [0] * parts, [0.0] * parts
        ways.append(way(client))
        begins = round(client.begins * SECOND)
        waiting.append(None if client.demand is None else 0)
        count += 1
        heappush(events, (begins, count, _ASK, number, 0, None))
        if client.demand is not None:
            heappush(events, (begins, -count, _WANT, number, 0, None))
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
            count += 1
            heappush(events, (now + said.service + ways[number](), count, _ANSWER, number, extra, said))
        elif kind == _ANSWER:
            assert answer is not None
            poll = client.policy.answered(now, answer, (now - extra) / SECOND)
            if not answer.served and waiting[number] is not None:
                waiting[number] += 1  # type: ignore[operator]  # it is tried again
                poll = True
        elif kind == _ASK:
            poll = extra == asks[number]
        elif kind == _WANT:
            assert client.demand is not None
            rate = client.demand.at(now)
            if rate:
                waiting[number] += 1  # type: ignore[operator]
                client.wanted += 1
                poll = True
                later = now + round(SECOND / rate)
            else:
                later = min((instant for instant, value in client.demand.steps if value and instant > now), default=until)
            count += 1
            heappush(events, (later, count, _WANT, number, 0, None))
        else:
            for each in clients:
                each.rates[extra] = each.policy.rate
        if poll:
            take, left = client.policy.take, waiting[number]
            while left is None or left:
                at = take(now)
                if at > now:
                    if at != asked_at[number] or kind == _ASK:
                        asks[number] += 1
                        asked_at[number] = at
                        count += 1
                        heappush(events, (at, count, _ASK, number, asks[number], None))
                    break
                if left is not None:
                    left -= 1
                count += 1
                heappush(events, (now + ways[number](), count, _ARRIVE, number, now, None))
            waiting[number] = left
    return Record(clients, server, seconds)
