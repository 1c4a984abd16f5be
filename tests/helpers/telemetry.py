"""Spans and metrics that stay in memory, and readings of them that tests compare."""

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rbim.otel import OtelObserver


class Telemetry:
    """An OtelObserver whose spans and metrics are kept here."""

    def __init__(self):
        self.spans = InMemorySpanExporter()
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.tracer = self.tracer_provider.get_tracer("test")
        self.observer = self.another()

    def another(self):
        return OtelObserver(self.tracer_provider, self.meter_provider)

    @property
    def ended(self):
        return sorted(self.spans.get_finished_spans(), key=lambda span: span.start_time)

    def tree(self):
        """Return the spans that have ended as nested pairs: what a span says, and those below it."""
        known = {span.context.span_id for span in self.ended}
        return [self._branch(span) for span in self.ended if span.parent is None or span.parent.span_id not in known]

    def _branch(self, span):
        below = [each for each in self.ended if each.parent is not None and each.parent.span_id == span.context.span_id]
        said = {"": f"{span.kind.name} {span.name} {span.status.status_code.name}", **span.attributes}
        assert span.status.description is None
        assert not span.events
        return said, [self._branch(each) for each in below]

    def collect(self):
        collected = self.reader.get_metrics_data()
        if collected is None:
            return {}
        (resource,) = collected.resource_metrics
        (scope,) = resource.scope_metrics
        assert scope.scope.name == "rbim"
        return {metric.name: metric for metric in scope.metrics}

    def points(self, name):
        """Return the points of a metric as pairs of attributes and value; of a histogram, count and sum."""
        metric = self.collect().get(name)
        if metric is None:
            return []
        return [(dict(point.attributes), _value(point)) for point in metric.data.data_points]

    def text(self):
        collected = self.reader.get_metrics_data()
        spans = [span.to_json() for span in self.ended]
        return "\n".join([*spans, "" if collected is None else collected.to_json()])


def _value(point):
    return point.value if hasattr(point, "value") else (point.count, round(point.sum, 6))
