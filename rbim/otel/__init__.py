"""OpenTelemetry: spans and metrics of calls, jobs and callbacks.

A call is a span (INTERNAL), each of its attempts one below it (CLIENT) by the conventions for HTTP clients. Without an SDK
in the process nothing is recorded. Addresses are signed, so none is ever recorded: ``url.template`` stands for ``url.full``.
For the same reason other instrumentation of HTTP libraries is asked to leave the attempt alone. No trace headers are sent:
the platform belongs to another company.
"""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.otel.observer import OtelObserver as OtelObserver
else:
    __getattr__, __dir__ = lazy_names(__name__)
