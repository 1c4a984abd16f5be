"""Spans and metrics by OpenTelemetry's interface, for whatever SDK the process has; without one nothing is recorded.

A call is a span (INTERNAL), each of its attempts one below it (CLIENT) by the conventions for HTTP clients. Addresses are
signed, so none is ever recorded: ``url.template`` stands for ``url.full``. For the same reason what else instruments HTTP
libraries is told to leave the attempt alone. No trace headers are sent: the platform belongs to somebody else.
"""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.otel.observer import OtelObserver as OtelObserver
else:
    __getattr__, __dir__ = lazy_names(__name__)
