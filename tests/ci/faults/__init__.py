"""The fault matrix: every fault in every phase of a call, over every transport, beside the documented rule.

``scenarios`` says what a server does and what the client can know of it, ``rule`` what README.md and docs/errors.md,
docs/errors.md and docs/transports.md promise for that, and ``matrix`` runs the scenarios over loopback connections.
``python -m tests.ci.faults`` records a run, from which the page on reliability has its table.
"""
