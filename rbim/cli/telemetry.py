"""OpenTelemetry for commands: they report to an SDK that ``opentelemetry-instrument``, or the like, has configured."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rbim.otel.observer import OtelObserver

__all__ = ["telemetry"]

SDK = "opentelemetry.sdk"


def telemetry() -> OtelObserver | None:
    """Return an observer for the global providers, or None if no SDK is in this process: then nothing would be recorded."""
    if SDK not in sys.modules:
        return None
    from rbim.otel.observer import OtelObserver

    return OtelObserver()
