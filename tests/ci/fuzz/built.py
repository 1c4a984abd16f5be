"""JSON documents that are built from bytes: each input is a document, so that the engine changes values and not syntax."""

import hashlib
import json

MARK = b"\xfe"
"""The first byte of an input that is to be built; no JSON document begins with it."""

DEEPEST = 6
NUMBERS = [0, -1, 1, 2, 7, 1000, 2**53 + 1, 2**63, 2**64, -(2**70), 0.0, -0.0, 1.5, 1e300, 1412128800000, 20130201155306]
TEXTS = [
    *("", " ", "0", "1", "true", "false", "null", "1001", "app1#1001", "App#1002", " 1001 ", "1001,1002"),
    *("\ud83d", "\x00", "\u3000", "NaN"),
]


def built(tape, keys, texts, fixed):
    """Return an object with some of the keys, and with ``fixed`` below what the tape says."""
    found = _Building(tape, keys, [*TEXTS, *texts]).members()
    return {**fixed, **found}


def built_seeds(count):
    """Return some inputs to build, each other than the next."""
    return [MARK + hashlib.shake_128(str(number).encode()).digest(40) for number in range(count)]


class _Building:
    """The rest of a tape, of which each value takes some bytes; an empty tape has zeros."""

    def __init__(self, tape, keys, texts):
        self._tape = iter(tape)
        self._keys = keys
        self._texts = texts

    def _next(self):
        return next(self._tape, 0)

    def members(self, depth=0):
        return {self._key(): self._value(depth) for _ in range(self._next() % 8)}

    def _key(self):
        number = self._next()
        return self._keys[number % len(self._keys)] if number < 240 else self._text()

    def _text(self):
        number = self._next()
        if number < 200:
            return self._texts[number % len(self._texts)]
        return "".join(chr(self._next()) for _ in range(number - 200))

    def _value(self, depth):
        kind = self._next() % 16 if depth < DEEPEST else 0
        if kind < 7:
            return self._text()
        if kind < 10:
            return NUMBERS[self._next() % len(NUMBERS)]
        if kind < 11:
            return (None, True, False)[self._next() % 3]
        if kind < 13:
            return [self._value(depth + 1) for _ in range(self._next() % 5)]
        if kind < 15:
            return self.members(depth + 1)
        return json.dumps(self._value(depth + 1))
