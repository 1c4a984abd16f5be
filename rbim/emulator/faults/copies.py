"""Faults of message copies: delayed, duplicated, reordered, tampered or stale deliveries.

As in the plan for requests, a :class:`CopyFault` says what happens and to which messages, and every fault that applies adds
its part to the :class:`CopyInjection` of an attempt. The same seed, faults and messages give the same injections. The faults
of a message are picked when it is sent, once for all attempts to deliver it, so that they do not depend on the order of
deliveries to different conversations.
"""

import math
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from attrs import evolve, field, fields, frozen

from rbim.emulator.faults.plan import LONGEST, SPREADEST, Plan, Selection, kinds_of, read_plan, within

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


MOST_DUPLICATES = 1000  # equal deliveries that can follow an attempt; they hold up their conversation


@frozen(kw_only=True)
class CopyInjection:
    """The faults injected into one attempt of a delivery. Times are in seconds.

    The attempt begins ``delay`` late, or after ``overtaken_by`` later messages of its conversation, for which it waits up to
    ``patience``. It is followed by ``duplicates`` more deliveries, byte for byte the same. One byte of its body, at the
    share ``tampered`` of its length, is changed after signing. It is signed with a time ``stale`` seconds in the past.
    """

    delay: float = 0.0
    overtaken_by: int = 0
    patience: float = 0.0
    duplicates: int = 0
    tampered: float | None = None
    stale: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields, other than ``patience``, that differ from their defaults."""
        return tuple(a.name for a in fields(CopyInjection) if getattr(self, a.name) != a.default and a.name != "patience")


@frozen
class Delay:
    """The attempt begins ``seconds`` late; with ``sigma``, log-normally distributed with ``seconds`` as the median.

    ``sigma`` is the spread (0: always ``seconds``). Later messages of its conversation wait for it.
    """

    seconds: float = field(validator=within(0, LONGEST))
    sigma: float = field(default=0.0, validator=within(0, SPREADEST))

    def apply(self, injection: CopyInjection, random: Random, /) -> CopyInjection:
        """Add to the delay."""
        drawn = self.seconds * math.exp(self.sigma * random.gauss(0, 1)) if self.sigma else self.seconds
        return evolve(injection, delay=injection.delay + drawn)


@frozen
class Overtaken:
    """The first attempt is made after the next ``by`` messages of its conversation, if they come in time.

    If fewer are sent, it is made ``patience`` seconds later.
    """

    by: int = field(default=1, validator=within(1))
    patience: float = field(default=60.0, validator=within(0, LONGEST))

    def apply(self, injection: CopyInjection, _random: Random, /) -> CopyInjection:
        """Set how many messages overtake this one."""
        return evolve(injection, overtaken_by=max(injection.overtaken_by, self.by), patience=self.patience)


@frozen
class Duplicate:
    """The attempt is followed by ``extra`` equal deliveries, byte for byte. Their answers have no effect."""

    extra: int = field(default=1, validator=within(1, MOST_DUPLICATES))

    def apply(self, injection: CopyInjection, _random: Random, /) -> CopyInjection:
        """Add to the duplicates."""
        return evolve(injection, duplicates=injection.duplicates + self.extra)


@frozen
class Tamper:
    """One byte of the body, at a random place, is changed after signing: its ``MD5`` no longer matches."""

    def apply(self, injection: CopyInjection, random: Random, /) -> CopyInjection:
        """Draw the place."""
        return evolve(injection, tampered=random.random())


@frozen
class Stale:
    """The delivery is signed correctly with a ``CurTime`` ``seconds`` in the past; below 0, in the future."""

    seconds: float = field(default=3600.0, validator=within(-LONGEST, LONGEST))

    def apply(self, injection: CopyInjection, _random: Random, /) -> CopyInjection:
        """Add to the age of the signature."""
        return evolve(injection, stale=injection.stale + self.seconds)


CopyEffect = Delay | Overtaken | Duplicate | Tamper | Stale

CopyMatch = Mapping[str, Any] | Callable[[Mapping[str, Any]], bool]


@frozen(kw_only=True)
class CopyFault(Selection):
    """A rule: ``effect`` happens to the messages that match all other fields.

    ``match`` maps fields of the event body, as on the wire (``{"convType": "TEAM"}``), to the values they must have, or is a
    function of the body (of an empty one if bytes are copied unchanged). Of the messages that match so far, ``nth`` picks
    some by number (from 1), ``every`` each n-th one, ``probability`` a random share. ``times`` ends the fault after that
    many. ``attempts`` are the attempts to deliver the message to which it happens (from 1; empty: all).
    """

    effect: CopyEffect
    match: CopyMatch | None = field(default=None, hash=False)
    attempts: tuple[int, ...] = field(default=(1,), converter=tuple[int, ...], validator=within(1))

    def concerns(self, document: Mapping[str, Any]) -> bool:
        """Return whether the fault applies to a message with this body."""
        if self.match is None:
            return True
        if callable(self.match):
            return self.match(document)
        return all(name in document and document[name] == value for name, value in self.match.items())


Picked = tuple[CopyFault, int]
"""A fault picked for a message, and the seed of its random choices for that message."""


class CopyFaults(Plan[CopyFault]):
    """The plan of one emulator. The same seed, faults and messages give the same injections.

    A fault applies to messages sent after it was added. Changes of the plan do not affect messages that are sent already.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(f"{seed}:copy")

    def pick(self, document: Mapping[str, Any]) -> tuple[Picked, ...]:
        """Count the next message and return the faults picked for it, for :func:`injection_of`."""
        picked: list[Picked] = []
        for running in self._running:
            if running.fault.concerns(document) and running.picks():
                running.done += 1
                picked.append((running.fault, running.random.getrandbits(64)))
        return tuple(picked)


def injection_of(picked: tuple[Picked, ...], attempt: int) -> CopyInjection:
    """Return the faults injected into one attempt to deliver a message; always the same for the same arguments."""
    injection = _NO_FAULTS
    for fault, seed in picked:
        if not fault.attempts or attempt in fault.attempts:
            injection = fault.effect.apply(injection, Random(f"{seed}:{attempt}"))  # noqa: S311  # reproducible on purpose
    return injection


_NO_FAULTS = CopyInjection()

COPY_KINDS: Mapping[str, type[Any]] = kinds_of(CopyEffect)


def copy_faults_from(document: Any) -> tuple[CopyFault, ...]:
    """Read a plan from JSON: a list of ``{"effect": {"kind": "tamper"}, "match": {"convType": "TEAM"}, "every": 10}``.

    Raises InvalidRequest that names the wrong fields.
    """
    return read_plan(document, CopyFault, CopyEffect, field="copy_faults")
