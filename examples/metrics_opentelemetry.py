"""Limits under OpenTelemetry: metrics of two limiters, and a span for each request that waited.

The SDK exports to memory here, and the program prints what it received. With ``opentelemetry-exporter-otlp``, give the providers
``PeriodicExportingMetricReader(OTLPMetricExporter())`` and ``BatchSpanProcessor(OTLPSpanExporter())`` instead, or set the global
providers and leave them out: ``instrument(api, users)``.
"""

from __future__ import annotations

import asyncio

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aiorate import KeyedLimiter, Limiter, TokenBucket
from aiorate.otel import instrument

reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
meters, tracers = MeterProvider([reader]), TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(spans))
tracer = tracers.get_tracer("example")

api = Limiter(TokenBucket("50/s", burst=10), name="api")
users: KeyedLimiter[str] = KeyedLimiter(lambda user: TokenBucket("5/s", burst=2), shared=api, name="users")


async def handle(user: str) -> None:
    with tracer.start_as_current_span("handle"):  # the span of the wait is its child
        await users.acquire(user)


def show() -> None:
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data is not None else ():
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            for point in metric.data.data_points:
                value = getattr(point, "value", None)
                told = f"{point.count} waits, {point.sum:.3f} s in all" if value is None else str(value)
                print(f"{metric.name:22} {dict(point.attributes)} {told}")
    parents = {span.context.span_id: span.name for span in spans.get_finished_spans()}
    for span in spans.get_finished_spans():
        if span.name == "aiorate.wait":
            length = (span.end_time - span.start_time) / 1e9
            print(f"{span.name} of {length:.3f} s in {parents[span.parent.span_id]!r}: {dict(span.attributes)}")


async def main() -> None:
    undo = instrument(api, users, meter_provider=meters, tracer_provider=tracers)
    await asyncio.gather(*(handle(user) for user in ("ann", "bob", "cid") for _ in range(4)))
    show()
    undo()
    meters.shutdown()
    tracers.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
