"""OpenTelemetry: metrics of limiters, and a span for each request that waited. Needs ``pip install "aiorate-limiter[otel]"``.

>>> undo = instrument(limiter)

Requests that were granted at once cost nothing more: counts are read when metrics are collected, which may be in any thread, and only
waits are recorded one by one. Imports opentelemetry when it is called. Uses only public names of aiorate.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from time import time_ns
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary, ref

from aiorate._errors import kind_of
from aiorate._lock import Lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider

    from aiorate._events import Waited
    from aiorate._tree.watch import Totals

    Attributes = dict[str, str | int]

__all__ = ["Adaptive", "Watched", "instrument"]

P = TypeVar("P")
T = TypeVar("T")

_NAME, _DIMENSION, _PERMITS, _LIMITED_BY = "aiorate.limiter.name", "aiorate.dimension", "aiorate.permits", "aiorate.limited_by"
# Seconds. Waits are from a fraction of a millisecond, at thousands of permits a second, to minutes, for quotas.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_OWN_WORDS = ("max_concurrency", "pause")


@runtime_checkable
class Watched(Protocol):
    """What can be instrumented: limiters and budgets of every kind."""

    @property
    def name(self) -> str | None:
        """The value of the attribute ``aiorate.limiter.name``, if it has one."""
        ...

    def _totals(self) -> Totals:
        """What it has granted and refused, and how many wait; may be asked in any thread."""
        ...

    def watch(self, on_wait: Callable[[Waited], object], /) -> Callable[[], None]:
        """Have ``on_wait`` called for each request that waited; returns a function that ends that."""
        ...


@runtime_checkable
class Adaptive(Protocol):
    """Something that moves the rate of a limiter, such as an ``AdaptiveRate``. Its limiter is instrumented."""

    @property
    def limiter(self) -> Watched:
        """The limiter, at which requests wait."""
        ...


def instrument(
    *limiters: Watched | Adaptive, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
) -> Callable[[], None]:
    """Report limiters and budgets to OpenTelemetry, by metrics and by a span for each wait.

    The metrics are

    * ``aiorate.permits`` ({permit}), a counter of permits granted and kept. Permits that come back are taken off later ones, because a
      counter never falls. Of a budget it counts the amounts reserved, by ``aiorate.dimension``;
    * ``aiorate.refusals`` ({request}), a counter of requests refused by `try_acquire`, ``max_wait`` or ``max_waiting``;
    * ``aiorate.waiting`` ({request}), how many requests are in the queue;
    * ``aiorate.wait.duration`` (s), a histogram of the waits of requests that waited.

    The name of a limiter is the attribute ``aiorate.limiter.name``. Limiters of one name are one series, and so is a `KeyedLimiter`: keys
    are never attributes. Spans and waits have ``aiorate.limited_by`` if they waited for more than the limiter's own rate. A limiter that
    is garbage-collected is no longer reported.

    Args:
        *limiters: Limiters, budgets and adaptive rates of every kind.
        meter_provider: For metrics. By default the global one.
        tracer_provider: For spans. By default the global one.

    Returns:
        A function that undoes it.
    """
    if not limiters:
        raise TypeError("instrument() needs a limiter: instrument(limiter).")
    watched = list({id(each): each for each in map(_watched, limiters)}.values())
    sinks = _meters(meter_provider).sink, _spans(tracer_provider)
    ends: list[Callable[[], None]] = []

    def undo() -> None:
        while ends:
            ends.pop()()

    try:
        ends += (sink.add(each) for each in watched for sink in sinks)
    except BaseException:
        undo()
        raise
    return undo


def _watched(limiter: object) -> Watched:
    if isinstance(limiter, type):
        raise TypeError(f"instrument() takes limiters, not the class {limiter.__name__}. Create one first.")
    if isinstance(limiter, Watched):
        return limiter
    if isinstance(limiter, Adaptive) and isinstance(limiter.limiter, Watched):
        return limiter.limiter
    hint = " Write instrument(*limiters)." if isinstance(limiter, (list, tuple, set)) else ""
    hint = " Write instrument(*limiters.values())." if isinstance(limiter, dict) else hint
    raise TypeError(f"instrument() takes limiters and budgets, such as a Limiter or a KeyedLimiter, not {kind_of(limiter)}.{hint}")


class _Counts:
    """What was read of a limiter. Permits and refusals never fall, and stay when it is no longer read."""

    __slots__ = ("permits", "refusals", "waiting")

    def __init__(self) -> None:
        self.permits: dict[str | None, int] = {}  # by dimension
        self.refusals = self.waiting = 0

    def read(self, limiter: Watched) -> None:
        totals = limiter._totals()
        for dimension, permits in totals.granted.items():
            self.permits[dimension] = max(permits, self.permits.get(dimension, 0))
        self.refusals, self.waiting = max(totals.refused, self.refusals), totals.waiting

    def add(self, other: _Counts) -> None:
        for dimension, permits in other.permits.items():
            self.permits[dimension] = self.permits.get(dimension, 0) + permits
        self.refusals += other.refusals
        self.waiting += other.waiting


class _Entry:
    """One limiter, which is reported while ``uses`` is above 0."""

    __slots__ = ("counts", "end", "name", "uses")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.uses = 0
        self.counts = _Counts()
        self.end: Callable[[], object] = int  # ends the watch


class _Sink:
    """What is told of limiters: of each once, however often it was added. Keeps none of them alive."""

    def __init__(self, on_wait: Callable[[str | None, Waited], None]) -> None:
        self._on_wait = on_wait
        self._lock = Lock()
        self._entries: dict[ref[Watched], _Entry] = {}
        self._gone: dict[str | None, _Counts] = {}  # of limiters that were collected, by name

    def begin_again(self) -> None:
        """In a child process, after a fork."""
        self._lock = Lock()

    def add(self, limiter: Watched) -> Callable[[], None]:
        """Report the limiter until the function is called that this returns."""
        key = ref(limiter)
        with self._lock:
            entry = self._entries.setdefault(key, _Entry(limiter.name))
            entry.uses += 1
            if entry.uses == 1:
                entry.end = limiter.watch(partial(self._on_wait, entry.name))
        return partial(self._leave, key)

    def _leave(self, key: ref[Watched]) -> None:
        with self._lock:
            entry, limiter = self._entries.get(key), key()
            if entry is None or limiter is None:
                return
            entry.uses -= 1
            if not entry.uses:
                entry.end()
                entry.counts.read(limiter)
                entry.counts.waiting = 0

    def counts(self) -> dict[str | None, _Counts]:
        """The sums by name. A name is forgotten once none of its limiters is reported; until then, the sums count all that were."""
        with self._lock:
            there = [(key, key(), entry) for key, entry in self._entries.items()]
            names = {entry.name for _, limiter, entry in there if limiter is not None and entry.uses}
            for key, limiter, entry in there:
                if limiter is None or entry.name not in names:
                    del self._entries[key]
                if limiter is None and entry.name in names:
                    entry.counts.waiting = 0
                    self._gone.setdefault(entry.name, _Counts()).add(entry.counts)
            self._gone = {name: counts for name, counts in self._gone.items() if name in names}
            sums = {name: _Counts() for name in names}
            for name, counts in self._gone.items():
                sums[name].add(counts)
        for _, limiter, entry in there:
            if limiter is not None and entry.name in names:
                if entry.uses:
                    entry.counts.read(limiter)
                sums[entry.name].add(entry.counts)
        return sums


class _Meters:
    """The instruments of one provider. OpenTelemetry cannot remove them, so there is one set, and it reports what is there."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter("aiorate", _version())
        self.sink = _Sink(self._waited)
        self._read: dict[str, dict[str | None, _Counts]] = {}  # for the callbacks that follow in the same collection
        self._duration = meter.create_histogram(
            "aiorate.wait.duration",
            "s",
            "How long requests waited that waited and were granted.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        meter.create_observable_counter("aiorate.permits", [self._permits], "{permit}", "Permits granted.")
        meter.create_observable_counter("aiorate.refusals", [self._refusals], "{request}", "Requests refused.")
        meter.create_observable_up_down_counter("aiorate.waiting", [self._waiting], "{request}", "Requests in line.")

    def _permits(self, options: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        sums = self.sink.counts()
        self._read = {"refusals": sums, "waiting": sums}
        for name, counts in sums.items():
            for dimension, permits in counts.permits.items():
                yield Observation(permits, _attributes(name, dimension))

    def _refusals(self, options: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        for name, counts in (self._read.pop("refusals", None) or self.sink.counts()).items():
            yield Observation(counts.refusals, _attributes(name))

    def _waiting(self, options: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        for name, counts in (self._read.pop("waiting", None) or self.sink.counts()).items():
            yield Observation(counts.waiting, _attributes(name))

    def _waited(self, name: str | None, waited: Waited) -> None:
        self._duration.record(waited.seconds, _attributes(name, limited_by=_limited_by(waited)))


class _Spans:
    """The spans of one provider."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("aiorate", _version())
        self.sink = _Sink(self._waited)

    def _waited(self, name: str | None, waited: Waited) -> None:
        attributes = _attributes(name, limited_by=_limited_by(waited))
        if isinstance(waited.permits, Mapping):
            attributes |= {f"{_PERMITS}.{dimension}": amount for dimension, amount in waited.permits.items()}
        else:
            attributes[_PERMITS] = waited.permits
        end = time_ns()
        span = self._tracer.start_span("aiorate.wait", start_time=end - round(waited.seconds * 1e9), attributes=attributes)
        span.end(end)


def _attributes(name: str | None, dimension: str | None = None, *, limited_by: str | None = None) -> Attributes:
    found = ((_NAME, name), (_DIMENSION, dimension), (_LIMITED_BY, limited_by))
    return {attribute: value for attribute, value in found if value is not None}


def _limited_by(waited: Waited) -> str | None:
    """`Waited.limited_by` without names of limits that are shared, which may be keys."""
    limited_by = waited.limited_by
    if limited_by is None or limited_by in _OWN_WORDS:
        return limited_by
    return limited_by if isinstance(waited.permits, Mapping) and limited_by in waited.permits else "shared"


_all_meters: WeakKeyDictionary[MeterProvider, _Meters] = WeakKeyDictionary()
_all_spans: WeakKeyDictionary[TracerProvider, _Spans] = WeakKeyDictionary()
_lock = Lock()


def _meters(provider: MeterProvider | None) -> _Meters:
    try:
        from opentelemetry import metrics
    except ImportError as error:
        raise ImportError(_MISSING) from error
    if provider is not None and not isinstance(provider, metrics.MeterProvider):
        raise TypeError(f"instrument(meter_provider) must be a MeterProvider, not {kind_of(provider)}.")
    chosen = metrics.get_meter_provider() if provider is None else provider
    with _lock:
        found = _all_meters.get(chosen)
        if found is None:
            found = _all_meters[chosen] = _of_placeholder(_all_meters, chosen, metrics.get_meter_provider()) or _Meters(chosen)
    return found


def _spans(provider: TracerProvider | None) -> _Sink:
    from opentelemetry import trace

    if provider is not None and not isinstance(provider, trace.TracerProvider):
        raise TypeError(f"instrument(tracer_provider) must be a TracerProvider, not {kind_of(provider)}.")
    chosen = trace.get_tracer_provider() if provider is None else provider
    with _lock:
        found = _all_spans.get(chosen)
        if found is None:
            found = _all_spans[chosen] = _of_placeholder(_all_spans, chosen, trace.get_tracer_provider()) or _Spans(chosen)
    return found.sink


def _of_placeholder(known: Mapping[P, T], chosen: P, current: P) -> T | None:
    """What was made with the API's placeholder before ``chosen`` became the global provider: its instruments are those of it now."""
    if chosen is not current:
        return None
    return next((made for provider, made in known.items() if type(provider).__module__.startswith(_PLACEHOLDERS)), None)


def _after_fork() -> None:
    """In a child process: a thread of the parent may have held a lock, and is not here."""
    global _lock
    _lock = Lock()
    for sink in [*(meters.sink for meters in _all_meters.values()), *(spans.sink for spans in _all_spans.values())]:
        sink.begin_again()


with suppress(AttributeError):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)


def _version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("aiorate-limiter")
    except PackageNotFoundError:
        return None


_PLACEHOLDERS = ("opentelemetry.metrics", "opentelemetry.trace")
_MISSING = 'aiorate.otel needs opentelemetry-api: pip install "aiorate-limiter[otel]"'
