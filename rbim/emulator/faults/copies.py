"""Trouble with copies by plan: which message is delivered late, twice, out of order, tampered with or with an old time.

Works as the plan of requests does: a :class:`CopyFault` says what happens and to which messages, every one that
applies adds its part to the :class:`CopyInjection` of an attempt, and the same seed, faults and messages give the same
verdicts. Whom a fault meets is decided when the message is sent, once for all attempts to deliver it, so that it does not
depend on how deliveries to different conversations fall together.
"""

import math
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from attrs import evolve, field, fields, frozen

from rbim.emulator.faults.plan import Plan, Selection, kinds_of, read_plan, within

__all__ = [
    "COPY_KINDS",
    "CopyEffect",
    "CopyFault",
    "CopyFaults",
    "CopyInjection",
    "Delay",
    "Duplicate",
    "Overtaken",
    "Picked",
    "Stale",
    "Tamper",
    "copy_faults_from",
    "injection_of",
]


@frozen(kw_only=True)
class CopyInjection:
    """What is to happen to one attempt of a delivery. Times are seconds.

    It begins ``delay`` late, or lets ``overtaken_by`` later messages of its conversation pass, for which it waits up to
    ``patience``. It is sent ``duplicates`` times more, byte for byte. One byte of its body, at the share ``tampered`` of its
    length, is changed after signing. It is signed with a time that is ``stale`` seconds old.
    """

    delay: float = 0.0
    overtaken_by: int = 0
    patience: float = 0.0
    duplicates: int = 0
    tampered: float | None = None
    stale: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """The names of what is out of the ordinary."""
        return tuple(a.name for a in fields(CopyInjection) if getattr(self, a.name) != a.default and a.name != "patience")


@frozen
class Delay:
    """The attempt begins ``seconds`` late; with ``sigma`` they are the median of a log-normal distribution of that spread.

    Later messages of its conversation wait for it.
    """

    seconds: float = field(validator=within(0))
    sigma: float = field(default=0.0, validator=within(0))

    def apply(self, verdict: CopyInjection, chance: Random, /) -> CopyInjection:
        """Add to the delay."""
        drawn = self.seconds * math.exp(self.sigma * chance.gauss(0, 1)) if self.sigma else self.seconds
        return evolve(verdict, delay=verdict.delay + drawn)


@frozen
class Overtaken:
    """The first attempt comes after the next ``by`` messages of its conversation, or ``patience`` seconds later where fewer
    than that are sent meanwhile.
    """

    by: int = field(default=1, validator=within(1))
    patience: float = field(default=60.0, validator=within(0))

    def apply(self, verdict: CopyInjection, _chance: Random, /) -> CopyInjection:
        """Let others pass."""
        return evolve(verdict, overtaken_by=max(verdict.overtaken_by, self.by), patience=self.patience)


@frozen
class Duplicate:
    """The attempt is followed by ``extra`` more of the same, byte for byte. What they are answered changes nothing."""

    extra: int = field(default=1, validator=within(1))

    def apply(self, verdict: CopyInjection, _chance: Random, /) -> CopyInjection:
        """Add to the duplicates."""
        return evolve(verdict, duplicates=verdict.duplicates + self.extra)


@frozen
class Tamper:
    """A byte of the body, anywhere, is changed after the delivery was signed: its ``MD5`` no longer fits."""

    def apply(self, verdict: CopyInjection, chance: Random, /) -> CopyInjection:
        """Draw where."""
        return evolve(verdict, tampered=chance.random())


@frozen
class Stale:
    """The delivery is signed, correctly, with a ``CurTime`` that is ``seconds`` old; below 0 it is in the future."""

    seconds: float = 3600.0

    def apply(self, verdict: CopyInjection, _chance: Random, /) -> CopyInjection:
        """Add to the age."""
        return evolve(verdict, stale=verdict.stale + self.seconds)


CopyEffect = Delay | Overtaken | Duplicate | Tamper | Stale

CopyMatch = Mapping[str, Any] | Callable[[Mapping[str, Any]], bool]


@frozen(kw_only=True)
class CopyFault(Selection):
    """``effect`` happens to the messages that match all of the rest.

    ``match`` maps fields of the event body, as the wire writes them (``{"convType": "TEAM"}``), to the values they must
    have, or is a function of the body (of an empty one where bytes are copied as they stand). Of the messages that match so
    far, ``nth`` picks some by number (from 1), ``every`` only each so many, ``probability`` a share by chance. ``times``
    ends the fault after so many. ``attempts`` says which attempts to deliver the message it happens to (from 1; empty: all).
    """

    effect: CopyEffect
    match: CopyMatch | None = field(default=None, hash=False)
    attempts: tuple[int, ...] = field(default=(1,), converter=tuple[int, ...], validator=within(1))

    def concerns(self, document: Mapping[str, Any]) -> bool:
        """Tell whether the fault is about the message with this body."""
        if self.match is None:
            return True
        if callable(self.match):
            return self.match(document)
        return all(name in document and document[name] == value for name, value in self.match.items())


Picked = tuple[CopyFault, int]
"""A fault that a message meets, and the root of its chance in it."""


class CopyFaults(Plan[CopyFault]):
    """The plan of one emulator. The same seed, faults and messages give the same verdicts.

    Faults count for messages that are sent from when they were added, and what was decided for messages under way holds.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(f"{seed}:copy")

    def judge(self, document: Mapping[str, Any]) -> tuple[Picked, ...]:
        """Return the faults that the next message meets, for :func:`injection_of`."""
        picked: list[Picked] = []
        for run in self._running:
            if run.fault.concerns(document) and run.picks():
                run.done += 1
                picked.append((run.fault, run.chance.getrandbits(64)))
        return tuple(picked)


def injection_of(picked: tuple[Picked, ...], attempt: int) -> CopyInjection:
    """Return what is to happen to one attempt to deliver a message. It is the same each time it is asked for."""
    verdict = _NOTHING
    for fault, root in picked:
        if not fault.attempts or attempt in fault.attempts:
            verdict = fault.effect.apply(verdict, Random(f"{root}:{attempt}"))  # noqa: S311  # reproducible on purpose
    return verdict


_NOTHING = CopyInjection()

COPY_KINDS: Mapping[str, type[Any]] = kinds_of(CopyEffect)


def copy_faults_from(document: Any) -> tuple[CopyFault, ...]:
    """Read a plan from JSON: a list of ``{"effect": {"kind": "tamper"}, "match": {"convType": "TEAM"}, "every": 10}``.

    Raises InvalidRequest that says what is wrong and where.
    """
    return read_plan(document, CopyFault, CopyEffect, field="copy_faults")
