"""Fault injection by plan, reproducible from a seed: faults of requests and of message copies."""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.emulator.faults.copies import (
        CopyEffect as CopyEffect,
        CopyFault as CopyFault,
        CopyFaults as CopyFaults,
        CopyInjection as CopyInjection,
        Delay as Delay,
        Duplicate as Duplicate,
        Overtaken as Overtaken,
        Picked as Picked,
        Stale as Stale,
        Tamper as Tamper,
        copy_faults_from as copy_faults_from,
        injection_of as injection_of,
    )
    from rbim.emulator.faults.plan import Selection as Selection
    from rbim.emulator.faults.requests import (
        Code as Code,
        CutShort as CutShort,
        DuplicateFields as DuplicateFields,
        Effect as Effect,
        Fault as Fault,
        Faults as Faults,
        Injection as Injection,
        InvalidJson as InvalidJson,
        Latency as Latency,
        Refuse as Refuse,
        ResetAfter as ResetAfter,
        ResetBefore as ResetBefore,
        SlowBody as SlowBody,
        Status as Status,
        Throttle as Throttle,
        faults_from as faults_from,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
