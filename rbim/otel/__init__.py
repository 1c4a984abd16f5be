"""OpenTelemetry: spans and metrics of calls, jobs and callbacks.

A call is a span (INTERNAL); each attempt is a child span (CLIENT) that follows the conventions for HTTP clients. Without an
SDK in the process nothing is recorded. Addresses are signed and therefore never recorded: ``url.template`` replaces
``url.full``. For the same reason other instrumentation of HTTP libraries is suppressed during an attempt. No trace headers
are sent, because the platform belongs to another company.
"""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.otel.observer import OtelObserver as OtelObserver
else:
    __getattr__, __dir__ = lazy_names(__name__)
