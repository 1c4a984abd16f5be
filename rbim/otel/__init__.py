"""OpenTelemetry: spans and metrics of calls, jobs and callbacks.

Addresses are signed and therefore never recorded: ``url.template`` replaces ``url.full``. No trace headers are sent, because
the platform belongs to another company.
"""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.otel.observer import OtelObserver as OtelObserver
else:
    __getattr__, __dir__ = lazy_names(__name__)
