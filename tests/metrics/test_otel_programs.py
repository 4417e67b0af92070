"""instrument() with the global providers, without opentelemetry, and after a fork: each a program."""

from __future__ import annotations

from helpers.forks import program
from helpers.platforms import needs_fork

WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from aiorate.otel import instrument
try:
    instrument(aiorate.Limiter("1/s"))
except ImportError as error:
    print(error)
"""

GLOBAL = """
from aiorate.otel import instrument
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

reader, exporter, tracers = InMemoryMetricReader(), InMemorySpanExporter(), TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(exporter))
limiters = [aiorate.Limiter(aiorate.TokenBucket("50/s", burst=1), name=name) for name in "ab"]


def permits():
    data = reader.get_metrics_data()
    metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data is not None else []
    found = [m for m in metrics if m.name == "aiorate.permits"]
    return [sorted((p.attributes["aiorate.limiter.name"], p.value) for p in m.data.data_points) for m in found]


async def use():
    for limiter in limiters:
        await limiter.acquire(1)
        await limiter.acquire(1)
"""


def test_without_opentelemetry_it_says_what_to_install() -> None:
    """At the call, so that the module can be imported anyway."""
    assert "needs opentelemetry-api: pip install" in program(WITHOUT)


def test_providers_that_are_set_later_receive_all() -> None:
    """A limiter that was instrumented before, and one after: one set of instruments, which is that of the provider."""
    printed = program(
        GLOBAL
        + """
instrument(limiters[0])
metrics.set_meter_provider(MeterProvider([reader]))
trace.set_tracer_provider(tracers)
undo = instrument(limiters[1])
asyncio.run(use())
print(permits(), len(exporter.get_finished_spans()))
instrument(limiters[0], meter_provider=metrics.get_meter_provider(), tracer_provider=tracers)
undo()
print(permits())
"""
    )

    assert "[[('a', 2), ('b', 2)]] 2\n[[('a', 2)]]\n" == printed


@needs_fork
def test_a_child_reports_on() -> None:
    """It has the counts until the fork, and goes on from there; its spans are its own."""
    printed = program(
        GLOBAL
        + """
meters = MeterProvider([reader])
undo = instrument(*limiters, meter_provider=meters, tracer_provider=tracers)
asyncio.run(use())


def child():
    asyncio.run(use())
    instrument(*limiters, meter_provider=meters, tracer_provider=tracers)
    print(permits())
    undo()


in_child(child)
print(permits())
"""
    )

    assert "[[('a', 4), ('b', 4)]]\n[[('a', 2), ('b', 2)]]\n" == printed
