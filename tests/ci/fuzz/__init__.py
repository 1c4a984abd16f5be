"""Coverage-guided fuzzing of everything that reads bytes from the network: ``python -m tests.ci.fuzz``.

A target is a module of :mod:`tests.ci.fuzz.targets`. It has

- ``WHAT`` and ``ORACLE``: one line each, for the record; docs/internals/reliability.md shows the second;
- ``INSTRUMENT``: the packages whose branches guide the engine;
- ``WORDS``: words of the format that the engine puts into inputs;
- ``MOST``: the most bytes of an input;
- ``seeds()``: inputs to begin with, each one meaningful;
- ``check(data)``: the oracle. It raises :class:`Broken`, or any other exception, if rbim breaks a promise.

The engine is atheris (libFuzzer), of the extra ``ci``. Without it, ``check`` runs on the inputs that are kept.
"""
