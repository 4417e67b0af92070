"""The kinds of server that a policy has to find its way with. Each is a function of its parameters, with defaults for the table.

A kind knows the server, the clients and how long it takes; not which policy they have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from helpers.adaptive.servers import Bucket, Concurrency, FixedWindow, Neighbour, NoLimit, Penalty, Queue, Server, SlidingWindow, Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Spec:
    """One client: when it begins, its round trip as a multiple of the run's, and its demand."""

    begins: float = 0.0
    distance: float = 1.0
    demand: Steps | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """A server, its clients, and what is measured."""

    server: Server
    seconds: float
    limit: float
    """The true limit at first, per second, of which the start is a multiple."""
    clients: tuple[Spec, ...] = (Spec(),)
    changes: tuple[tuple[int, float, float], ...] = ()
    """Instants (ns) at which the limit changes, with the limit before and after."""
    fair_from: float = 0.0
    """The second from which Jain's index is measured, if there are several clients."""
    starts: tuple[float, ...] = field(default=(0.1, 1.0, 10.0))
    lowest: float | None = None
    """The range of the rate; None: a fiftieth of the limit, and 20 times the limit."""
    highest: float | None = None


def _window(permits: float, seconds: float) -> int:
    return max(1, round(permits * seconds))


def bucket(limit: float = 100, fall: float = 0.3, rise: float = 1.2, burst: int = 10, seconds: float = 60, counts: bool = False) -> Kind:
    """A token bucket whose rate falls to ``fall`` of the limit after ``seconds``, and rises to ``rise`` of it after as long again."""
    rate = Steps((0, limit), (seconds, limit * fall), (2 * seconds, limit * rise))
    return Kind(Bucket(rate, burst, counts_refused=counts), 3 * seconds, limit, changes=tuple(rate.changes()))


def constant(limit: float = 100, burst: int = 10, seconds: float = 120, counts: bool = False) -> Kind:
    """A token bucket that does not change."""
    return Kind(Bucket(limit, burst, counts_refused=counts), seconds, limit)


def window(limit: float = 100, period: float = 1, seconds: float = 120, hint: bool = False, fall: float = 1.0) -> Kind:
    """A fixed window; the limit falls to ``fall`` of it halfway."""
    server = FixedWindow(Steps((0, _window(limit, period)), (seconds / 2, _window(limit * fall, period))), period, hint=hint)
    return Kind(server, seconds, limit)


def sliding(limit: float = 100, period: float = 1, seconds: float = 120, counts: bool = False) -> Kind:
    """A sliding window."""
    return Kind(SlidingWindow(_window(limit, period), period, counts_refused=counts), seconds, limit)


def concurrency(places: int = 10, service: float = 0.05, slower: float = 4, seconds: float = 60, spread: float = 0) -> Kind:
    """A limit of concurrency. After ``seconds`` the service takes ``slower`` times as long, and after as long again as at first.

    Each service takes a random ``spread`` more or less. A rate cannot hold a concurrency: at exactly the limit, 8 % are refused without
    any spread, and 13 % with one of 0.5.
    """
    times = Steps((0, service), (seconds, service * slower), (2 * seconds, service))
    return Kind(Concurrency(places, times, spread=spread), 3 * seconds, places / service)


def queue(limit: float = 100, length: int = 50, seconds: float = 120) -> Kind:
    """A queue before the server: answers take longer near the limit."""
    return Kind(Queue(limit, length), seconds, limit)


def neighbour(limit: float = 100, takes: float = 0.6, burst: int = 10, seconds: float = 40) -> Kind:
    """A token bucket of which a neighbour takes a share, every other ``seconds``."""
    rate = Steps(*((n * seconds, limit * takes * (n % 2)) for n in range(5)))
    return Kind(Neighbour(Bucket(limit, burst), rate), 5 * seconds, limit)


def penalty(limit: float = 20, after: float = 30, burst: int = 10, seconds: float = 0) -> Kind:
    """A token bucket that refuses everybody for ``after`` seconds once it has refused. ``seconds``: 0: by the penalty."""
    return Kind(Penalty(Bucket(limit, burst), after), seconds or min(3600, max(180, 40 * after)), limit)


def unlimited(ceiling: float = 1000, seconds: float = 40) -> Kind:
    """No limit: the rate climbs from 1 % of the highest."""
    return Kind(NoLimit(ceiling), seconds, ceiling, starts=(0.01,), lowest=ceiling / 1000, highest=ceiling)


def three(limit: float = 100, burst: int = 10, late: float = 0, apart: float = 1, seconds: float = 240, period: float = 0) -> Kind:
    """Three clients of one server, that begin ``late`` seconds after each other, each ``apart`` times as far away as the one before.

    The server has a token bucket, or a fixed window of ``period`` seconds.
    """
    clients = tuple(Spec(number * late, apart ** (number - 1)) for number in range(3))
    server = FixedWindow(_window(limit, period), period) if period else Bucket(limit, burst)
    return Kind(server, seconds, limit, clients, fair_from=seconds / 4)


def demand(limit: float = 100, wants: float = 20, burst: int = 10, seconds: float = 120) -> Kind:
    """A client that wants less than the limit."""
    return Kind(Bucket(limit, burst), seconds, limit, (Spec(demand=Steps.of(wants)),), starts=(0.1, 1.0))


def bursts(limit: float = 100, high: float = 1.5, low: float = 0.2, burst: int = 10, every: float = 15, seconds: float = 180) -> Kind:
    """A client whose demand switches between ``high`` and ``low`` of the limit."""
    count = int(seconds / every)
    wants = Steps(*((n * every, limit * (low if n % 2 else high)) for n in range(count)))
    return Kind(Bucket(limit, burst), seconds, limit, (Spec(demand=wants),))


# The function of each kind, and the parameters that differ from its defaults.
KINDS: dict[str, tuple[Callable[..., Kind], Mapping[str, float]]] = {
    "bucket": (bucket, {}),
    "window1": (window, {}),
    "window10": (window, {"period": 10}),
    "sliding": (sliding, {}),
    "concurrency": (concurrency, {}),
    "varied": (concurrency, {"spread": 0.5}),
    "neighbour": (neighbour, {}),
    "retry1": (penalty, {"after": 1, "limit": 100}),
    "retry30": (penalty, {"after": 30}),
    "retry89": (penalty, {"after": 89}),
    "unlimited": (unlimited, {}),
    "equal": (three, {}),
    "late": (three, {"late": 20}),
    "apart": (three, {"apart": 6}),
    "equal1": (three, {"period": 1}),
    "equal10": (three, {"period": 10}),
    "slow": (constant, {"limit": 3, "burst": 3, "seconds": 300}),
    "fast": (constant, {"limit": 1500, "burst": 150, "seconds": 40}),
    "demand": (demand, {}),
}


def build(name: str, **changed: float) -> Kind:
    """A fresh server of that kind, with these parameters."""
    function, own = KINDS[name]
    return function(**{**own, **changed})
