"""Soak: a client, a job, a receiver and an emulator run for minutes under faults, and nothing of theirs may grow.

``python -m tests.ci.soak`` runs all four at the same time, 15 minutes each, and prints figures and a verdict. Each one is a
process of its own, the *subject*, which takes a sample of itself every few seconds: memory, open files and connections,
threads, asyncio tasks, the sizes of its files, and what it counted. Another process, the *driver*, makes the faults, and
keeps the account of what must not be lost. Linux only.
"""
