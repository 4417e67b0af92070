"""An SDK of OpenTelemetry with exporters in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aiorate.otel import instrument

NAME, DIMENSION, LIMITED_BY = "aiorate.limiter.name", "aiorate.dimension", "aiorate.limited_by"
Series = dict[frozenset[tuple[str, Any]], Any]


class Receiver:
    """An SDK with exporters in memory."""

    def __init__(self) -> None:
        self.reader, self.exporter = InMemoryMetricReader(), InMemorySpanExporter()
        self.meters = MeterProvider([self.reader])
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))

    def instrument(self, *limiters: Any) -> Any:
        return instrument(*limiters, meter_provider=self.meters, tracer_provider=self.tracers)

    def metric(self, name: str) -> Any:
        """What is exported now under that name; None: nothing."""
        data = self.reader.get_metrics_data()
        found = [
            metric
            for resource in ([] if data is None else data.resource_metrics)
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name and metric.data.data_points
        ]
        assert len(found) <= 1, "the same instrument was made twice"
        return found[0] if found else None

    def series(self, name: str) -> Series:
        """The values by attributes; of a histogram, how many there are."""
        metric = self.metric(name)
        points = [] if metric is None else metric.data.data_points
        values = [point.count if isinstance(point, HistogramDataPoint) else point.value for point in points]
        assert len(points) == len({frozenset(point.attributes.items()) for point in points})
        return {frozenset(point.attributes.items()): value for point, value in zip(points, values, strict=True)}

    def value(self, name: str, **attributes: Any) -> Any:
        """The value of the series with exactly these attributes, in short: limiter=, dimension=."""
        names = {"limiter": NAME, "dimension": DIMENSION, "limited_by": LIMITED_BY}
        return self.series(name).get(frozenset((names[short], value) for short, value in attributes.items()))

    def sum(self, name: str) -> int:
        """The sum of all series of that name; of a histogram, of their counts."""
        total: int = sum(self.series(name).values())
        return total

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()


@pytest.fixture
def sdk() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.meters.shutdown()
