"""Exposing: all metrics of a process in the form that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from earnest.engine.inspection.gauging import DATABASE_UP, GAUGES, STREAMS_OPEN, Gauging, bounded
from earnest.engine.process.metrics import Counter, Histogram, Metrics, Named
from earnest.store.gauges import Gauge, Gauges

MEDIA_TYPE = CONTENT_TYPE_LATEST


async def expose(metrics: Metrics, gauging: Gauging, streams_open: int | None = None) -> bytes:
    """What the process counted, and what the database holds by now."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Told(_families(metrics, await gauging.read(), streams_open)))
    return generate_latest(registry)


class _Told(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def _families(
    metrics: Metrics, gauges: Gauges | None, streams_open: int | None
) -> Iterable[Metric]:
    for counter in metrics.counters():
        yield _counted(counter)
    for histogram in metrics.histograms():
        yield _taken(histogram)
    yield _gauge(DATABASE_UP, [Gauge((), float(gauges is not None))])
    if streams_open is not None:
        yield _gauge(STREAMS_OPEN, [Gauge((), streams_open)])
    if gauges is not None:
        for name, named in GAUGES.items():
            yield _gauge(named, bounded(getattr(gauges, name)))


def _counted(counter: Counter) -> Metric:
    """One without labels is told from the start, so that its first count is seen as a rise."""
    named, counts = counter.named, counter.read()
    family = CounterMetricFamily(named.name.removesuffix("_total"), named.help, labels=named.labels)
    if not named.labels:
        counts = {(): 0.0, **counts}
    for labels, count in counts.items():
        family.add_metric(labels, count)
    return family


def _taken(histogram: Histogram) -> Metric:
    named = histogram.named
    family = HistogramMetricFamily(named.name, named.help, labels=named.labels)
    for labels, durations in histogram.read().items():
        family.add_metric(labels, list(durations.cumulated()), durations.seconds)
    return family


def _gauge(named: Named, found: Iterable[Gauge]) -> Metric:
    family = GaugeMetricFamily(named.name, named.help, labels=named.labels)
    for one in found:
        family.add_metric(one.labels, one.value)
    return family
