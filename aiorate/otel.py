"""OpenTelemetry: metrics of limiters, and a span for each request that waited. Needs ``pip install "aiorate-limiter[otel]"``.

>>> undo = instrument(limiter)

Requests that are granted at once cost nothing more: counts are read when metrics are collected, and only waits are recorded one by one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from importlib.metadata import distributions
from threading import RLock
from time import time_ns
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from aiorate._errors import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from opentelemetry.trace import Tracer, TracerProvider

    from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, Waited
    from aiorate._limiters.adaptive import AdaptiveRate

    Watched = Limiter | KeyedLimiter[Any] | Budget | KeyedBudget[Any]
    _Use = tuple["_Meters", Tracer]

__all__ = ["instrument"]

# Seconds: from waits at thousands of permits a second to those for quotas.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


def instrument(
    *limiters: Watched | AdaptiveRate, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
) -> Callable[[], None]:
    """Report limiters, budgets and adaptive rates to OpenTelemetry, by metrics and by a span for each wait.

    The metrics are

    * ``aiorate.permits`` ({permit}), a counter of permits granted and kept; of a budget the amounts reserved, by ``aiorate.dimension``;
    * ``aiorate.refusals`` ({request}), a counter of requests refused by `try_acquire`, ``max_wait`` or ``max_waiting``;
    * ``aiorate.waiting`` ({request}), how many requests are in the queue;
    * ``aiorate.wait.duration`` (s), a histogram of the waits of requests that waited.

    A counter does not fall while a limiter of its name is there: permits that come back are taken off later ones. The name of a limiter is
    the attribute ``aiorate.limiter.name``. Limiters of one name are one series, and so is a `KeyedLimiter`: keys are never attributes.
    Spans and waits have ``aiorate.limited_by`` if they waited for more than the limiter's own rate. A limiter that is garbage-collected is
    no longer reported. The providers are by default the global ones. Returns a function that undoes it.
    """
    from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter

    found: list[Any] = [getattr(each, "limiter", each) for each in limiters]  # an AdaptiveRate has one
    wrong = [each for each in found if not isinstance(each, (Limiter, KeyedLimiter, Budget, KeyedBudget))]
    if wrong or not found:
        raise TypeError(f"instrument() takes limiters and budgets, one or more, not {kind_of(wrong[0]) if wrong else 'none'}.")
    try:
        from opentelemetry import metrics, trace
    except ImportError as error:
        raise ImportError('aiorate.otel needs opentelemetry-api: pip install "aiorate-limiter[otel]"') from error
    meters = _made_for(
        meter_provider, metrics.get_meter_provider(), metrics.MeterProvider, lambda of, *scope: _Meters(of.get_meter(*scope))
    )
    tracer = _made_for(tracer_provider, trace.get_tracer_provider(), trace.TracerProvider, lambda of, *scope: of.get_tracer(*scope))
    with ExitStack() as ends, _lock:
        for limiter in dict.fromkeys(found):
            ends.callback(_series.setdefault(limiter.name, _Series(limiter.name)).add(limiter, (meters, tracer)))
        return ends.pop_all().close


class _Series:
    """All limiters of one name. The function that they tell of waits keeps it, so it goes with the last."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._counts = Counter[Any]()  # by instrument and dimension; none falls
        self._limiters: WeakKeyDictionary[Watched, tuple[list[_Use], Counter[Any]]] = WeakKeyDictionary()  # with what is counted of each
        self._ends: WeakKeyDictionary[Watched, Callable[[], None]] = WeakKeyDictionary()

    def add(self, limiter: Watched, use: _Use) -> Callable[[], None]:
        """Report a limiter, once to each provider. Returns a function that ends it."""
        uses, _ = self._limiters.setdefault(limiter, ([], Counter()))
        if not uses:
            self._ends[limiter] = limiter.watch(partial(self._waited, uses))
        uses.append(use)
        return partial(self._remove, ref(limiter), use)

    def _remove(self, of: ref[Watched], use: _Use) -> None:
        if (limiter := of()) is not None:
            with _lock:
                uses, counted = self._limiters[limiter]
                uses.remove(use)
                if not uses:
                    self._ends[limiter]()
                    self._count(limiter, counted)

    def read(self, meters: _Meters) -> dict[tuple[str, str | None], int]:
        """What these meters show; empty if they report none of the limiters."""
        with _lock:
            used = [(limiter, counted) for limiter, (uses, counted) in self._limiters.items() if any(meters is of for of, _ in uses)]
        waiting = [self._count(limiter, counted) for limiter, counted in used]
        return {("waiting", None): sum(waiting), **self._counts} if waiting else {}

    def attributes(self, **more: str | None) -> dict[str, str | int]:
        found = {"aiorate.limiter.name": self._name} | {f"aiorate.{attribute}": value for attribute, value in more.items()}
        return {attribute: value for attribute, value in found.items() if value is not None}

    def _count(self, limiter: Watched, counted: Counter[Any]) -> int:
        """Add to the counts what is new; returns how many wait."""
        totals = limiter._totals()  # of very many keys, without the lock
        with _lock:
            waiting = totals.pop(("waiting", None), 0)
            for key, count in totals.items():
                self._counts[key] += max(count - counted[key], 0)
                counted[key] = max(count, counted[key])
        return waiting

    def _waited(self, uses: list[_Use], waited: Waited) -> None:
        amounts = waited.permits if isinstance(waited.permits, Mapping) else {}
        # Names of limits that are shared may be keys.
        limited_by = waited.limited_by if waited.limited_by in (None, "max_concurrency", "pause", *amounts) else "shared"
        attributes: dict[str, Any] = self.attributes(limited_by=limited_by)
        for meters in {meters for meters, _ in uses}:
            meters.duration.record(waited.seconds, attributes)
        permits: dict[str, Any] = {f"aiorate.permits.{each}": n for each, n in amounts.items()} or {"aiorate.permits": waited.permits}
        end = time_ns()
        for tracer in {tracer for _, tracer in uses}:
            tracer.start_span("aiorate.wait", start_time=end - round(waited.seconds * 1e9), attributes=attributes | permits).end(end)


class _Meters:
    """The instruments of one provider: one set, since OpenTelemetry cannot remove them."""

    def __init__(self, meter: Meter) -> None:
        what = "How long requests waited that waited and were granted."
        self.duration = meter.create_histogram("aiorate.wait.duration", "s", what, explicit_bucket_boundaries_advisory=_BUCKETS)
        meter.create_observable_counter("aiorate.permits", [partial(self._observe, "permits")], "{permit}", "Permits granted.")
        meter.create_observable_counter("aiorate.refusals", [partial(self._observe, "refusals")], "{request}", "Requests refused.")
        meter.create_observable_up_down_counter("aiorate.waiting", [partial(self._observe, "waiting")], "{request}", "Requests in line.")
        self._read: dict[str, list[Observation]] = {}  # for the next instruments of the same collection

    def _observe(self, instrument: str, options: CallbackOptions) -> list[Observation]:
        from opentelemetry.metrics import Observation

        if instrument not in self._read:
            self._read = {"permits": [], "refusals": [], "waiting": []}
            for series in filter(None, [of() for of in _series.valuerefs()]):
                for (name, dimension), count in series.read(self).items():
                    self._read[name].append(Observation(count, series.attributes(dimension=dimension)))
        return self._read.pop(instrument, [])


_series: WeakValueDictionary[str | None, _Series] = WeakValueDictionary()
_made: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # instruments and tracers, by provider
_lock = RLock()


def _made_for(given: object, current: object, api: type, make: Callable[[Any, str, str | None], Any]) -> Any:
    provider = current if given is None else given
    with _lock:
        if provider not in _made:
            # What the API's placeholder made before this became the global provider.
            early = [made for of, made in _made.items() if provider is current and type(of).__module__.startswith(api.__module__)]
            version = next((each.version for each in distributions(name="aiorate-limiter")), None)
            _made[provider] = early[0] if early else make(provider, "aiorate", version)
        return _made[provider]


if hasattr(os, "register_at_fork"):  # not on Windows. If another thread held the lock, nobody would release it in the child.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
